"""The codecs of gradient compression: formats, scales, special values, residuals, errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_hvd import _C

CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}
# The largest value of a format, which a block's largest magnitude becomes.
BLOCKED = {"fp8": 448.0, "fp8_e5m2": 57344.0, "int8": 127.0, "int4": 7.0}
ALL = [*CASTS, *BLOCKED]
FP8 = {"fp8": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
BLOCKS = [32, 64, 128, 256, 512, 1024]


@pytest.fixture(params=["plain", "avx2", "avx512"])
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs a test with the kernels of each instruction set."""
    if request.param not in _C.simd_names():
        pytest.skip(f"this processor has no {request.param}, only {_C.simd_names()}")
    before = _C.simd()
    _C.use_simd(request.param)
    yield request.param
    _C.use_simd(before)


def normal(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def through(values: torch.Tensor, compression: str, block: int = 128) -> torch.Tensor:
    """The values after an encode and a decode."""
    message = _C.encode(values, compression, block)
    return _C.decode(message, compression, block, out=torch.empty_like(values))


@pytest.mark.parametrize("compression", CASTS)
def test_casts_are_those_of_torch(simd: str, compression: str) -> None:
    values = torch.cat([normal(1000) * 10.0**power for power in range(-45, 39, 3)])
    expected = values.to(CASTS[compression])
    message = _C.encode(values, compression)
    assert torch.equal(message, expected.view(torch.uint8))
    assert torch.equal(through(values, compression), expected.float())


def reference(values: torch.Tensor, compression: str, block: int = 128) -> torch.Tensor:
    """What finite values, not near the ends of fp32's range, decode to, in torch's own terms."""
    padded = torch.cat([values, values.new_zeros(-len(values) % block)]).view(-1, block)
    mantissa, exponent = torch.frexp(padded.abs().amax(1, keepdim=True) / BLOCKED[compression])
    scale = torch.ldexp((mantissa * 256).ceil() / 256, exponent)
    scaled = padded * torch.where(scale > 0, 1 / scale, 0)
    codes = scaled.to(FP8[compression]).float() if compression in FP8 else scaled.round()
    return (codes * scale).flatten()[: len(values)]


@pytest.mark.parametrize("compression", BLOCKED)
@pytest.mark.parametrize("block", BLOCKS)
def test_blocks_are_as_described(simd: str, compression: str, block: int) -> None:
    """A scale of 8 significant bits, rounded up; a value rounded to nearest even in its units."""
    for count in (0, 1, 2, 31, 127, 128, 129, 1023, 1024, 1025, 10_001):
        values = normal(count) * torch.logspace(-20, 20, count)
        decoded = through(values, compression, block)
        assert torch.equal(decoded, reference(values, compression, block)), count


def test_length_of_a_message() -> None:
    assert [_C.encoded_bytes(n, "fp16") for n in (0, 1, 129)] == [0, 2, 258]
    assert [_C.encoded_bytes(n, "int8") for n in (0, 1, 128, 129)] == [0, 4, 130, 134]
    assert [_C.encoded_bytes(n, "int4", 32) for n in (0, 1, 2, 3, 32, 33)] == [0, 4, 4, 4, 18, 22]

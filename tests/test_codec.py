"""The codecs of gradient compression: formats, scales, special values, residuals.

tests/test_codec_errors.py has how much they lose, tests/test_codec_exhaustive.py all floats.
"""

from __future__ import annotations

import itertools
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
COUNTS = [0, 1, 2, 31, 127, 128, 129, 1023, 1024, 1025, 10_001]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAN, INF = float("nan"), float("inf")
LARGEST = torch.finfo(torch.float32).max


@pytest.fixture(autouse=True)
def best_simd() -> Iterator[None]:
    """After a test the kernels are those from before it."""
    before = _C.simd()
    yield
    _C.use_simd(before)


@pytest.fixture(params=["plain", "avx2", "avx512"])
def simd(request: pytest.FixtureRequest) -> str:
    """Runs a test with the kernels of each instruction set."""
    if request.param not in _C.simd_names():
        pytest.skip(f"this processor has no {request.param}, only {_C.simd_names()}")
    _C.use_simd(request.param)
    return str(request.param)


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
    for count in COUNTS:
        values = normal(count) * torch.logspace(-20, 20, count)
        decoded = through(values, compression, block)
        assert torch.equal(decoded, reference(values, compression, block)), count


def test_length_of_a_message() -> None:
    assert [_C.encoded_bytes(n, "fp16") for n in (0, 1, 129)] == [0, 2, 258]
    assert [_C.encoded_bytes(n, "int8") for n in (0, 1, 128, 129)] == [0, 4, 130, 134]
    assert [_C.encoded_bytes(n, "int4", 32) for n in (0, 1, 2, 3, 32, 33)] == [0, 4, 4, 4, 18, 22]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """For comparisons to the bit, where a NaN is equal to itself."""
    return tensor.view(torch.int32 if tensor.dtype is torch.float32 else torch.int16)


@pytest.mark.parametrize("compression", BLOCKED)
@pytest.mark.parametrize("power", [-60, -31, -1, 1, 31, 60])
def test_scales_with_powers_of_two(simd: str, compression: str, power: int) -> None:
    values = normal(10_001)
    scaled = through(values * 2.0**power, compression)
    assert torch.equal(scaled, through(values, compression) * 2.0**power)


@pytest.mark.parametrize("compression", BLOCKED)
@pytest.mark.parametrize("power", [-145, -127, -110, -99, 99, 110, 126])
def test_ends_of_the_range(simd: str, compression: str, power: int) -> None:
    """Blocks of denormals, and of the largest floats, keep the error of others but for rounding."""
    values = (normal(1000).clamp(-3.9, 3.9).double() * 2.0**power).float().clamp(-LARGEST, LARGEST)
    values[500:628] *= 0.25
    middle = reference((values.double() * 2.0**-power).float(), compression)
    expected = (middle.double() * 2.0**power).clamp(-LARGEST, LARGEST).float()
    decoded = through(values, compression)
    assert torch.equal(decoded, expected)
    assert decoded.isfinite().all()


@pytest.mark.parametrize("compression", BLOCKED)
def test_the_very_largest_and_smallest(simd: str, compression: str) -> None:
    for value in (LARGEST, -LARGEST, 3e38, 2.0**-149, -(2.0**-149), 2.0**-126):
        values = torch.full((128,), value)
        decoded = through(values, compression)
        # A largest value meets the largest code, or one as near as rounding up to 1/128 makes it.
        relative = ((decoded.double() - values.double()) / values.double()).abs()
        assert (relative <= 1 / 14).all(), (value, decoded)


@pytest.mark.parametrize("compression", BLOCKED)
def test_zeros(simd: str, compression: str) -> None:
    values = torch.zeros(300)
    values[10] = -0.0
    values[290] = 1.0
    decoded = through(values, compression)
    assert torch.count_nonzero(decoded) == 1 and decoded[290] == reference(values, compression)[290]
    message = _C.encode(torch.zeros(300), compression)
    assert torch.count_nonzero(message) == 0


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
@pytest.mark.parametrize("block", [32, 128, 1024])
def test_not_finite(simd: str, compression: str, bad: float, block: int) -> None:
    """It stays in its place, and its neighbours are what they are beside a zero."""
    values = normal(3000)
    places = torch.tensor([0, 17, 31, 32, 64, 127, 128, 1023, 2047, 2998, 2999])
    values[places] = 0
    expected = through(values, compression, block)
    keeps = compression in CASTS or compression == "fp8_e5m2"
    expected[places] = bad if keeps else NAN
    values[places] = bad
    decoded = through(values, compression, block)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compression", ALL)
def test_a_block_of_nothing_finite(simd: str, compression: str) -> None:
    values = torch.full((128,), NAN)
    values[1::2] = INF
    keeps = compression in CASTS or compression == "fp8_e5m2"
    expected = torch.full((128,), NAN)
    expected[1::2] = INF if keeps else NAN
    decoded = through(values, compression)
    torch.testing.assert_close(decoded, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("compression", ALL)
def test_a_sum_that_overflows(simd: str, compression: str) -> None:
    values = torch.ones(256)
    values[7] = 3e38 if compression != "fp16" else 65504.0
    messages = [_C.encode(values, compression)] * 2
    if compression == "fp16":
        messages *= 2
    _, result = _C.decode_sum_encode(messages, compression, result=torch.empty(256))
    keeps = compression in CASTS or compression == "fp8_e5m2"
    assert result[7] == INF if keeps else result[7].isnan()
    rest = torch.cat([result[:7], result[8:]])
    assert rest.isfinite().all()
    assert ((rest[127:] / len(messages) - 1).abs() <= 1 / 64).all()


@pytest.mark.parametrize("compression", BLOCKED)
def test_a_block_does_not_depend_on_its_place(simd: str, compression: str) -> None:
    values = normal(5 * 128)
    values[130] = NAN
    values[300] = 1e-42
    whole = through(values, compression)
    for start in range(0, len(values), 128):
        alone = through(values[start : start + 128], compression)
        assert torch.equal(bits(alone), bits(whole[start : start + 128]))


def hard_values(count: int, seed: int) -> torch.Tensor:
    """Blocks of every kind: any bits at all, zeros, ordinary ones with a few special values."""
    generator = torch.Generator().manual_seed(seed)
    any_bits = torch.randint(-(2**31), 2**31, (count,), generator=generator).int()
    values = any_bits.view(torch.float32)
    exponents = torch.randint(-150, 120, (count // 32 + 1,), generator=generator)
    ordinary = torch.randn(count, generator=generator).double()
    ordinary *= 2.0 ** exponents.double().repeat_interleave(32)[:count]
    kind = torch.randint(0, 8, (count // 128 + 1,), generator=generator)
    kind = kind.repeat_interleave(128)[:count]
    values = torch.where(kind > 1, ordinary.float(), values)
    values[kind == 2] = 0
    special = torch.tensor([NAN, INF, -INF, -0.0, 2.0**-149, LARGEST, 1.0, -NAN])
    where = torch.randint(0, 500, (count,), generator=generator)
    return torch.where((where < 8) & (kind > 5), special[where.clamp(max=7)], values)


@pytest.mark.parametrize("compression", ["int4", "int8", "fp8", "fp8_e5m2"])
def test_a_signalling_nan_hides_nothing_else(compression: str) -> None:
    """Wherever it is: those beside it keep the scale of their largest, on every instruction set."""
    largest, block = 5, 128
    for place in range(block):
        values = torch.randn(block, generator=torch.Generator().manual_seed(place))
        values[largest] = 100.0
        quiet = values.clone()
        quiet[place] = NAN
        values.view(torch.int32)[place] = 0x7F800001
        for simd in _C.simd_names():
            _C.use_simd(simd)
            found = _C.encode(values, compression, block)
            assert torch.equal(found, _C.encode(quiet, compression, block)), (simd, place)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bits_from_every_instruction_set(compression: str, dtype: torch.dtype) -> None:
    if len(_C.simd_names()) == 1:
        pytest.skip("this processor has the plain kernels only")
    for block, (seed, count) in itertools.product(BLOCKS, enumerate(COUNTS)):
        found = []
        for simd in _C.simd_names():
            _C.use_simd(simd)
            values = hard_values(count, seed).to(dtype)
            residual = hard_values(count, seed + 100)
            message = _C.encode(values, compression, block)
            added = _C.encode(values, compression, block, 0.3, residual)
            garbage = hard_values(message.numel(), seed + 200).to(torch.float16)
            garbage = garbage.view(torch.uint8)[: message.numel()].contiguous()
            decoded = _C.decode(garbage, compression, block, out=torch.empty_like(values))
            total, result = _C.decode_sum_encode(
                [message, added, garbage],
                compression,
                block,
                result=torch.empty_like(values),
                residual=residual,
            )
            found.append([message, added, bits(decoded), total, bits(result), bits(residual)])
        for other in found[1:]:
            assert all(map(torch.equal, found[0], other)), (block, count)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", COUNTS)
def test_tensors_of_16_bits(simd: str, compression: str, dtype: torch.dtype, count: int) -> None:
    """As if converted to float32 first, and rounded once at the end."""
    values = normal(count).to(dtype)
    message = _C.encode(values, compression, factor=0.5)
    assert torch.equal(message, _C.encode(values.float() * 0.5, compression))
    decoded = _C.decode(message, compression, out=torch.empty_like(values))
    assert torch.equal(decoded, through(values.float() * 0.5, compression).to(dtype))


@pytest.mark.parametrize("compression", ALL)
def test_bytes_may_lie_anywhere(simd: str, compression: str) -> None:
    values = normal(1001)
    message = _C.encode(values, compression)
    buffer = torch.zeros(message.numel() + 7, dtype=torch.uint8)
    shifted = buffer[3 : 3 + message.numel()]
    _C.encode(values, compression, out=shifted)
    assert torch.equal(shifted, message)
    assert torch.count_nonzero(buffer[:3]) == torch.count_nonzero(buffer[-4:]) == 0
    out = torch.zeros(1005)
    _C.decode(shifted, compression, out=out[1:1002])
    assert torch.equal(out[1:1002], through(values, compression))
    assert torch.count_nonzero(out[:1]) == torch.count_nonzero(out[-3:]) == 0


@pytest.mark.parametrize("compression", ALL)
def test_large_outputs(simd: str, compression: str) -> None:
    """They are written past the caches, if they begin at a multiple of 64 bytes."""
    values = normal((2 << 20) + 1001)
    values[5000] = NAN
    message = _C.encode(values, compression)
    pieces = [_C.encode(piece, compression) for piece in values.split(1024)]
    small = [
        _C.decode(piece, compression, out=torch.empty(min(1024, len(values) - 1024 * i)))
        for i, piece in enumerate(pieces)
    ]
    whole = torch.zeros(len(values) + 1)
    for offset in (0, 1):
        out = whole[offset : offset + len(values)]
        _C.decode(message, compression, out=out)
        assert torch.equal(bits(out), bits(torch.cat(small)))


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("sources", [1, 2, 3, 8])
def test_the_owner_adopts_what_all_others_see(simd: str, compression: str, sources: int) -> None:
    messages = [_C.encode(normal(2001, rank), compression) for rank in range(sources)]
    total, result = _C.decode_sum_encode(messages, compression, result=torch.empty(2001))
    assert torch.equal(result, _C.decode(total, compression, out=torch.empty(2001)))
    expected = _C.decode(messages[0], compression, out=torch.empty(2001))
    for message in messages[1:]:
        expected += _C.decode(message, compression, out=torch.empty(2001))
    assert torch.equal(total, _C.encode(expected, compression))


@pytest.mark.parametrize("compression", ALL)
def test_the_residual_is_what_was_lost(simd: str, compression: str) -> None:
    values, before = normal(2001), 0.1 * normal(2001, 1)
    residual = before.clone()
    message = _C.encode(values, compression, factor=0.25, residual=residual)
    decoded = _C.decode(message, compression, out=torch.empty(2001))
    added = values * 0.25 + before
    assert torch.equal(residual, added - decoded)
    # Half of a value, or less, went: nothing was rounded but where the value itself was tiny.
    near = (added / 2 <= decoded) & (decoded <= added * 2) & (added > 0)
    assert near.any() and torch.equal((decoded + residual)[near], added[near])
    ulp = torch.finfo(torch.float32).eps * added.abs()
    assert ((decoded.double() + residual.double() - added.double()).abs() <= ulp).all()


@pytest.mark.parametrize("compression", ALL)
def test_the_residual_of_the_owner(simd: str, compression: str) -> None:
    messages = [_C.encode(normal(1001, rank), compression) for rank in range(3)]
    residual = 0.1 * normal(1001, 9)
    added = sum(_C.decode(m, compression, out=torch.empty(1001)) for m in messages) + residual
    total, result = _C.decode_sum_encode(
        messages, compression, result=torch.empty(1001), residual=residual
    )
    assert torch.equal(total, _C.encode(added, compression))
    assert torch.equal(residual, added - result)


@pytest.mark.parametrize("compression", ALL)
def test_no_residual_of_what_is_not_finite(simd: str, compression: str) -> None:
    values = normal(200)
    values[3], values[150] = NAN, INF
    residual = torch.zeros(200)
    _C.encode(values, compression, residual=residual)
    assert residual.isfinite().all() and residual[3] == residual[150] == 0


@pytest.mark.parametrize("compression", ALL)
def test_error_feedback_brings_everything_across(simd: str, compression: str) -> None:
    """The sum of what arrives is the sum of what was sent but for the last residual."""
    values, residual = normal(1000), torch.zeros(1000)
    total = torch.zeros(1000, dtype=torch.float64)
    once = (through(values, compression) - values).norm() / values.norm()
    for _ in range(50):
        message = _C.encode(values, compression, residual=residual)
        total += _C.decode(message, compression, out=torch.empty(1000))
    error = (total / 50 - values).norm() / values.norm()
    assert error <= max(once / 20, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            dict(compression="int7"),
            'compression "int7"; allowed is none, fp16, bf16, fp8, fp8_e5m2',
        ),
        (dict(compression="none"), "nothing to encode for compression none"),
        (dict(block=48), "block of 48 values; allowed is a power of two from 32 to 1024"),
        (dict(block=16), "block of 16 values"),
        (dict(block=2048), "block of 2048 values"),
        (dict(block=-128), "block of -128 values"),
        (dict(block=0), "block of 0 values"),
        (dict(tensor=torch.zeros(8, dtype=torch.float64)), "dtype Double; allowed are float32"),
        (dict(tensor=torch.zeros(8, dtype=torch.int32)), "dtype Int"),
        (dict(tensor=torch.zeros(8, 8).t()[:, :3]), "must be contiguous"),
        (dict(residual=torch.zeros(7)), "residual of 8 values is as many float32, not 7 of Float"),
        (dict(residual=torch.zeros(8, dtype=torch.float16)), "not 8 of Half"),
        (dict(out=torch.zeros(9, dtype=torch.uint8)), "8 values as int8 take 10 bytes, not 9"),
        (dict(out=torch.zeros(10, dtype=torch.int8)), "uint8, not Char"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], says: str) -> None:
    good: dict[str, object] = dict(tensor=torch.zeros(8), compression="int8")
    with pytest.raises(ValueError, match=says):
        _C.encode(**(good | arguments))  # type: ignore[arg-type]


def test_bad_messages() -> None:
    message = _C.encode(torch.zeros(8), "int8")
    with pytest.raises(ValueError, match="9 values as int8 take 12 bytes, not 10"):
        _C.decode(message, "int8", out=torch.zeros(9))
    with pytest.raises(ValueError, match="sum of no messages"):
        _C.decode_sum_encode([], "int8", result=torch.zeros(8))
    with pytest.raises(ValueError, match="9 values as int8 take 12 bytes, not 10"):
        _C.decode_sum_encode([message], "int8", result=torch.zeros(9))
    with pytest.raises(ValueError, match='no kernels "sse9"'):
        _C.use_simd("sse9")

"""The CUDA kernels on a GPU, against the codecs on the host, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import kernels
from torch_hvd import _C

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ALL = [*kernels.CASTS, *kernels.BLOCKED]
BLOCKS = [32, 64, 128, 256, 512, 1024]


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
def test_encode_and_decode(
    gpu: torch.device, compression: str, block: int, dtype: torch.dtype
) -> None:
    kernels.check_encode(gpu, compression, block, dtype)
    kernels.check_decode(gpu, compression, block, dtype)


@pytest.mark.parametrize("compression", ALL)
@pytest.mark.parametrize("block", BLOCKS)
def test_decode_sum_encode(gpu: torch.device, compression: str, block: int) -> None:
    kernels.check_sum(gpu, compression, block)


def test_copy(gpu: torch.device) -> None:
    kernels.check_copy(gpu)


@pytest.mark.parametrize("compression", ALL)
def test_more_tensors_than_a_launch_takes(gpu: torch.device, compression: str) -> None:
    tensors = [kernels.hard_values(n % 300, n) for n in range(2000)]
    whole = kernels.packed(tensors, compression, 128)
    there = [tensor.to(gpu) for tensor in tensors]
    message = torch.zeros(_C.encoded_bytes(whole.numel(), compression), dtype=torch.uint8)
    message = message.to(gpu)
    _C.encode_pieces(there, message, compression)
    assert torch.equal(message.cpu(), _C.encode(whole, compression))
    back = [torch.zeros_like(tensor) for tensor in there]
    _C.decode_pieces(message, back, compression)
    expected = _C.decode(message.cpu(), compression, out=torch.empty_like(whole))
    found = kernels.packed([tensor.cpu() for tensor in back], compression, 128)
    # What tensors are filled up with is zeros of either sign.
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())
    assert torch.equal(found.isnan(), expected.isnan())


@pytest.mark.parametrize("sources", [100, 1000])
def test_a_sum_of_many(gpu: torch.device, sources: int) -> None:
    messages = [_C.encode(kernels.hard_values(1024, seed), "int8") for seed in range(sources)]
    there = [message.to(gpu) for message in messages]
    expected, _ = _C.decode_sum_encode(messages, "int8", result=torch.empty(1024))
    _C.sum_messages(there, there[0], 1024, "int8")
    assert torch.equal(there[0].cpu(), expected)


def all_floats(first: int, gpu: torch.device) -> torch.Tensor:
    """2^28 floats from `first` on, by their bits."""
    return torch.arange(first, first + 2**28, device=gpu).int().view(torch.float32)


@pytest.mark.parametrize("compression", kernels.CASTS)
def test_all_floats_as_casts(gpu: torch.device, compression: str) -> None:
    """As torch's own casts on that GPU, where NaN is NaN."""
    dtype = torch.float16 if compression == "fp16" else torch.bfloat16
    for first in range(-(2**31), 2**31, 2**28):
        values = all_floats(first, gpu)
        message = torch.zeros(2 * values.numel(), dtype=torch.uint8, device=gpu)
        _C.encode_pieces([values], message, compression)
        found, expected = message.view(dtype), values.to(dtype)
        same = found.view(torch.int16) == expected.view(torch.int16)
        assert bool((same | (found.isnan() & expected.isnan())).all())
        back = torch.empty_like(values)
        _C.decode_pieces(message, [back], compression)
        same = back.view(torch.int32) == found.float().view(torch.int32)
        assert bool((same | (back.isnan() & found.isnan())).all())


@pytest.mark.parametrize("compression", kernels.BLOCKED)
def test_all_floats_as_blocks(gpu: torch.device, compression: str) -> None:
    """Every 16th run of 1024 floats, by their bits, as the host has it."""
    for first in range(-(2**31), 2**31, 2**28):
        values = all_floats(first, gpu).view(-1, 1024)[::16].contiguous().flatten()
        bytes_ = _C.encoded_bytes(values.numel(), compression)
        message = torch.zeros(bytes_, dtype=torch.uint8, device=gpu)
        _C.encode_pieces([values], message, compression)
        assert torch.equal(message.cpu(), _C.encode(values.cpu(), compression))


@pytest.mark.parametrize("compression", ["fp16", "fp8", "int4"])
def test_beyond_2_to_the_31(gpu: torch.device, compression: str) -> None:
    """More than 2^31 bytes, and values, in one piece."""
    count = 2**31 + 5000
    need = 4 * count + 2 * count + 2**30
    if torch.cuda.mem_get_info(gpu)[0] < need:
        pytest.skip(f"takes {need / 2**30:.0f} GiB of the GPU's memory")
    values = torch.zeros(count, device=gpu)
    values[-5000:] = torch.randn(5000, device=gpu)
    values[:5000] = values[-5000:]
    blocks = -(-count // 128)  # a message of pieces has whole ones
    bytes_ = 2 * count if compression == "fp16" else _C.encoded_bytes(128 * blocks, compression)
    message = torch.zeros(bytes_, dtype=torch.uint8, device=gpu)
    _C.encode_pieces([values], message, compression)
    begin = 2**31 - 2**31 % 128
    tail = _C.encode(values[begin:].cpu(), compression)
    value_bytes = {"fp16": 2 * 5000, "fp8": 5000, "int4": 2500}[compression]
    value_begin = {"fp16": 2 * begin, "fp8": begin, "int4": begin // 2}[compression]
    found = message[value_begin : value_begin + value_bytes].cpu()
    assert torch.equal(found, tail[:value_bytes])
    if compression != "fp16":
        scales = tail.numel() - value_bytes
        assert torch.equal(message[-scales:].cpu(), tail[-scales:])
    expected = values[-5000:].clone()
    values.zero_()
    _C.decode_pieces(message, [values], compression)
    assert torch.equal(values[:4992], values[begin : begin + 4992])
    error = (values[-5000:] - expected).norm() / expected.norm()
    assert error < {"fp16": 1e-3, "fp8": 0.05, "int4": 0.2}[compression]


def test_work_goes_to_the_current_stream(gpu: torch.device) -> None:
    """A kernel waits for what is before it on its stream, and for nothing on others."""
    values = torch.zeros(1 << 20, device=gpu)
    message = torch.zeros(_C.encoded_bytes(values.numel(), "fp8"), dtype=torch.uint8, device=gpu)
    slow, quick = torch.cuda.Stream(gpu), torch.cuda.Stream(gpu)
    torch.cuda.synchronize(gpu)
    with torch.cuda.stream(slow):
        torch.cuda._sleep(2_000_000_000)  # about a second
        values.fill_(3.0)
        _C.encode_pieces([values], message, "fp8")
    other = torch.zeros_like(message)
    with torch.cuda.stream(quick):
        _C.encode_pieces([torch.ones_like(values)], other, "fp8")
    quick.synchronize()
    assert not slow.query()
    slow.synchronize()
    assert torch.equal(message.cpu(), _C.encode(torch.full((1 << 20,), 3.0), "fp8"))


def test_launches_can_be_captured(gpu: torch.device) -> None:
    values = torch.randn(5120, device=gpu)
    message = torch.zeros(_C.encoded_bytes(5120, "int8"), dtype=torch.uint8, device=gpu)
    _C.encode_pieces([values], message, "int8")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _C.encode_pieces([values], message, "int8")
    values.copy_(torch.arange(5120.0))
    graph.replay()
    assert torch.equal(message.cpu(), _C.encode(torch.arange(5120.0), "int8"))


def launches(call: Callable[[], None]) -> int:
    """How many kernels a call launches."""
    call()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    return sum("hvd" in event.name for event in profile.events() or [])


@pytest.mark.parametrize("tensors", [1, 161, 1000])
def test_a_bucket_of_1_mb_takes_two_launches_at_most(gpu: torch.device, tensors: int) -> None:
    values = [torch.randn((1 << 18) // tensors, device=gpu) for _ in range(tensors)]
    whole = kernels.packed([value.cpu() for value in values], "fp8", 128)
    message = torch.zeros(_C.encoded_bytes(whole.numel(), "fp8"), dtype=torch.uint8, device=gpu)
    assert 1 <= launches(lambda: _C.encode_pieces(values, message, "fp8")) <= 2
    assert 1 <= launches(lambda: _C.decode_pieces(message, values, "fp8")) <= 2
    assert 1 <= launches(lambda: _C.copy_pieces(values, values)) <= 2


def test_what_the_device_refuses_is_an_error(gpu: torch.device) -> None:
    message = torch.zeros(130, dtype=torch.uint8, device=gpu)
    with pytest.raises(ValueError, match="is not contiguous, or not"):
        _C.encode_pieces([torch.zeros(8)], message, "int8")

"""The CUDA kernels of gradient compression, as fractions of the GPU's copy bandwidth.

Bandwidth counts the bytes that a call must read and write, each once; that of a copy is measured
in the same run, before and after. Times are of CUDA events, medians of calls that take turns.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from math import prod
from typing import NamedTuple

import torch

from benchmarks.models import gradient_shapes, resnet50
from torch_hvd import _C, _build

BLOCK = 128
ROUNDS = 30
MEGABYTE = 1 << 20

Call = Callable[[], object]


class Case(NamedTuple):
    """A call, the bytes that it must move, and what it is to reach.

    `target` is a fraction of the copy's bandwidth, `eager` does the same in torch's own operations.
    """

    name: str
    call: Call
    bytes: int
    target: float | None = None
    eager: Call | None = None


class Result(NamedTuple):
    case: str
    bytes: int
    microseconds: float
    gigabytes_per_s: float
    fraction: float
    target: float | None
    times_eager: float | None


def seconds(call: Call) -> float:
    """Of one call, by the GPU's clock; the sleep before it hides what its launch costs."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3


def medians(calls: list[Call]) -> list[float]:
    """Seconds of each call, which take turns."""
    for call in calls * 3:
        seconds(call)
    rounds = [[seconds(call) for call in calls] for _ in range(ROUNDS)]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def tensors_of(counts: list[int]) -> list[torch.Tensor]:
    return [torch.randn(count, device="cuda") for count in counts]


def resnet_counts() -> list[int]:
    """161 sizes like those of ResNet-50's parameters, 270 MB of float32 in all."""
    return [int(2.65 * prod(shape)) for shape in gradient_shapes(resnet50)]


def eager_pack(tensors: list[torch.Tensor]) -> Call:
    """fp8 with a scale for each block, by torch's operations."""
    pads = [torch.zeros(-tensor.numel() % BLOCK, device="cuda") for tensor in tensors]
    parts = [part for pair in zip(tensors, pads, strict=True) for part in pair]

    def pack() -> object:
        blocks = torch.cat(parts).view(-1, BLOCK)
        scales = blocks.abs().amax(1, keepdim=True) / 448
        return (blocks / scales).to(torch.float8_e4m3fn), scales

    return pack


def eager_sum(messages: list[torch.Tensor], count: int) -> Call:
    scales = torch.rand(count // BLOCK, 1, device="cuda") + 0.5

    def add() -> object:
        total = torch.zeros(count // BLOCK, BLOCK, device="cuda")
        for message in messages:
            codes = message[:count].view(torch.float8_e4m3fn).view(-1, BLOCK)
            total += codes.float() * scales
        found = total.abs().amax(1, keepdim=True) / 448
        return (total / found).to(torch.float8_e4m3fn), found

    return add


def packing(name: str, counts: list[int], compression: str, target: float | None) -> list[Case]:
    """Encoding into one message, and decoding from it."""
    tensors = tensors_of(counts)
    whole = sum(-(-count // BLOCK) * BLOCK for count in counts)
    bytes_ = _C.encoded_bytes(whole, compression, BLOCK)
    message = torch.zeros(bytes_, dtype=torch.uint8, device="cuda")
    moved = 4 * sum(counts) + bytes_
    eager = eager_pack(tensors) if compression == "fp8" else None
    return [
        Case(
            f"encode {compression}, {name}",
            lambda: _C.encode_pieces(tensors, message, compression, BLOCK),
            moved,
            target,
            eager,
        ),
        Case(
            f"decode {compression}, {name}",
            lambda: _C.decode_pieces(message, tensors, compression, BLOCK),
            moved,
        ),
    ]


def summing(size: int, compression: str, target: float | None) -> Case:
    count = 64 * MEGABYTE
    values = torch.randn(count, device="cuda")
    bytes_ = _C.encoded_bytes(count, compression, BLOCK)
    messages = [torch.zeros(bytes_, dtype=torch.uint8, device="cuda") for _ in range(size)]
    for message in messages:
        _C.encode_pieces([values], message, compression, BLOCK)
    out = torch.zeros_like(messages[0])
    return Case(
        f"decode_sum_encode {compression}, {size} x 64 M values",
        lambda: _C.sum_messages(messages, out, count, compression, BLOCK),
        (size + 1) * bytes_,
        target,
        eager_sum(messages, count) if compression == "fp8" else None,
    )


def copying(name: str, counts: list[int]) -> Case:
    tensors, others = tensors_of(counts), tensors_of(counts)
    return Case(
        f"copy, {name}",
        lambda: _C.copy_pieces(others, tensors),
        8 * sum(counts),
        0.85,
        lambda: torch._foreach_copy_(others, tensors),
    )


def cases() -> list[Callable[[], list[Case]]]:
    """Made one after the other, since all at once would need much memory."""
    resnet, even = resnet_counts(), [67_200] * 1000
    large = [68 * MEGABYTE]
    return [
        lambda: packing("161 tensors, 270 MB", resnet, "fp8", 0.85),
        lambda: packing("1000 tensors, 269 MB", even, "fp8", 0.85),
        lambda: packing("1 tensor, 285 MB", large, "fp8", 0.85),
        lambda: packing("1 tensor, 285 MB", large, "fp8_e5m2", None),
        lambda: packing("1 tensor, 285 MB", large, "int8", None),
        lambda: packing("1 tensor, 285 MB", large, "int4", None),
        lambda: packing("1 tensor, 285 MB", large, "fp16", None),
        lambda: packing("1 tensor, 285 MB", large, "bf16", None),
        lambda: packing("161 tensors, 1 MB", [1628] * 161, "fp8", None),
        lambda: [summing(size, "fp8", 0.80) for size in (4, 8)],
        lambda: [summing(size, "int8", 0.80) for size in (4, 8)],
        lambda: [copying("161 tensors, 270 MB", resnet)],
        lambda: [copying("1000 tensors, 269 MB", even)],
    ]


def measure(case: Case) -> Result:
    source = torch.randn(64 * MEGABYTE, device="cuda")
    target = torch.empty_like(source)
    copy: Call = lambda: target.copy_(source)  # noqa: E731
    calls = [copy, case.call] + ([case.eager] if case.eager else [])
    copied, took, *eager = medians(calls)
    fastest = 2 * source.nbytes / copied
    return Result(
        case.name,
        case.bytes,
        took * 1e6,
        case.bytes / took / 1e9,
        case.bytes / took / fastest,
        case.target,
        eager[0] / took if eager else None,
    )


def measure_all() -> list[Result]:
    from torch_hvd import _cuda

    assert _cuda
    results = []
    for make in cases():
        for case in make():
            results.append(measure(case))
        torch.cuda.empty_cache()
    return results


def table(results: list[Result]) -> str:
    """The results in Markdown."""
    lines = [
        "| case | time us | GB/s | of a copy's | target | times faster than eager torch |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for one in results:
        target = "" if one.target is None else f"{one.target:.0%}"
        eager = "" if one.times_eager is None else f"{one.times_eager:.1f}"
        lines.append(
            f"| {one.case} | {one.microseconds:.1f} | {one.gigabytes_per_s:.0f} "
            f"| {one.fraction:.0%} | {target} | {eager} |"
        )
    return "\n".join(lines)


def main() -> int:
    if not torch.cuda.is_available():
        print("torch finds no GPU here", file=sys.stderr)
        return 1
    if _build.CUDA.startswith("no"):
        print(f"torch_hvd._cuda is not built: {_build.CUDA}", file=sys.stderr)
        return 1
    print(table(measure_all()))
    return 0


if __name__ == "__main__":
    sys.exit(main())

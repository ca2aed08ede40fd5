"""The kernels of gradient compression against memcpy of the same float32 bytes, on one core.

Needs no ranks. A row's baseline, and its limit, is memcpy from one tensor to another; size and
bandwidths count the float32 bytes that go in or come out, for a sum of two those of one. decode_add
is what a sum of three takes longer. What a call costs beside its bytes, measured on 32 values in
the same rounds, is taken off on both sides.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import chain

import pytest
import torch

from benchmarks.interleave import Blocks
from benchmarks.machine import busy_seconds
from benchmarks.rows import Row, Spread, ratio_interval
from torch_hvd import _C

pytestmark = pytest.mark.timeout(300)

QUICK_SIZES = (1 << 18, 1 << 24)
SIZES = (1 << 18, 1 << 24, 1 << 27)

ROUNDS = (11, 400)  # fewest, most
BLOCK_S = 0.0005  # seconds of calls between two readings of the clock, or one call

# Time over memcpy's: none and decoding as fast, fp8 0.8 times as fast.
TARGETS = {
    compression: {"encode": 1.25 if "fp8" in compression else 1.0, "decode": 1.0, "decode_add": 1.0}
    for compression in ("fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4")
}

Calls = dict[str, Callable[[], object]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def calls(compression: str, count: int) -> tuple[Calls, Callable[[], None]]:
    """What is timed, on tensors of its own, and a check that it did its work."""
    values = torch.randn(count, generator=torch.Generator().manual_seed(0))
    message = _C.encode(values, compression)
    sources = [message, message.clone(), message.clone()]
    expected = torch.empty(count)
    _C.decode(message, compression, out=expected)
    sums = [summing(sources[:n], compression, count) for n in (2, 3)]
    copy, decoded, encoded = torch.empty(count), torch.empty(count), torch.empty_like(message)
    where = copy.data_ptr(), values.data_ptr(), values.nbytes

    def check() -> None:
        assert torch.equal(copy, values) and torch.equal(encoded, message)
        assert torch.equal(decoded, expected)
        assert all(torch.equal(result, sum_expected) for _, result, sum_expected in sums)
        assert (decoded - values).norm() < 0.2 * values.norm()

    return {
        "memcpy": lambda: ctypes.memmove(*where),
        "encode": lambda: _C.encode(values, compression, out=encoded),
        "decode": lambda: _C.decode(message, compression, out=decoded),
        "decode_sum_encode": sums[0][0],
        "decode_sum_encode of 3": sums[1][0],
    }, check


def summing(
    sources: list[torch.Tensor], compression: str, count: int
) -> tuple[Callable[[], object], torch.Tensor, torch.Tensor]:
    """A sum of messages, as the owner of a shard makes it; where it goes, and what it must be."""
    result, expected = torch.empty(count), torch.empty(count)
    total = torch.empty_like(sources[0])
    _C.decode_sum_encode(sources, compression, result=expected)

    def call() -> None:
        _C.decode_sum_encode(sources, compression, result=result, out=total)

    return call, result, expected


def took(call: Callable[[], object], times: int) -> float:
    """Seconds for one of so many calls; an untimed one brings back what others drove away."""
    call()
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def interleave(trials: Calls, budget_s: float) -> dict[str, Blocks]:
    """Seconds of each trial in turns, every second round the other way round."""
    times = {name: max(1, int(BLOCK_S / took(call, 1))) for name, call in trials.items()}
    start = time.perf_counter()
    for name, call in trials.items():
        took(call, times[name])
    fewest, most = ROUNDS
    rounds = min(max(int(budget_s / (time.perf_counter() - start)), fewest), most)
    blocks: dict[str, Blocks] = {name: [] for name in trials}
    for index in range(rounds):
        for name in trials if index % 2 == 0 else reversed([*trials]):
            blocks[name].append([took(trials[name], times[name])])
    return blocks


@pytest.mark.parametrize("compression", TARGETS)
def test_codec(compression: str, nbytes: int, budget_s: float, keep: Callable[[Row], None]) -> None:
    large, check = calls(compression, nbytes // 4)
    small, _ = calls(compression, 32)
    trials = large | {f"small {name}": call for name, call in small.items()}
    start, busy, ours = time.monotonic(), busy_seconds(), time.process_time()
    found = interleave(trials, budget_s)
    check()
    others = busy_seconds() - busy - (time.process_time() - ours)
    foreign = max(0.0, others / (time.monotonic() - start))
    blocks = {}
    for name in large:
        beside = statistics.median(chain(*found[f"small {name}"]))
        blocks[name] = [[max(seconds - beside, 1e-9) for seconds in b] for b in found[name]]
    blocks["decode_add"] = [
        [max(of_three - of_two, 1e-9)]
        for [of_three], [of_two] in zip(
            found["decode_sum_encode of 3"], found["decode_sum_encode"], strict=True
        )
    ]
    spread = {name: Spread.of(samples) for name, samples in blocks.items()}
    for name in ("encode", "decode", "decode_add", "decode_sum_encode"):
        low, high = ratio_interval(blocks[name], blocks["memcpy"])
        keep(
            Row(
                op=f"{name} {compression}",
                size=nbytes,
                dtype="float32",
                world_size=1,
                backend=f"codec, {_C.simd()}",
                baseline="memcpy",
                calls=len(blocks[name]),
                time=spread[name],
                baseline_time=spread["memcpy"],
                limit_time=spread["memcpy"],
                algbw=nbytes / spread[name].median / 1e3,
                busbw=nbytes / spread[name].median / 1e3,
                ratio=spread[name].median / spread["memcpy"].median,
                low=low,
                high=high,
                target=TARGETS[compression].get(name),
                foreign=foreign,
                link=None,
                wire_bytes=None,
            )
        )

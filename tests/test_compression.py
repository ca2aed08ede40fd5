"""Compressed all_reduce: how far from the exact sum, the same bits everywhere, and when not at all.

The expected value is the float64 sum of every rank's tensor, which follows from rank and seed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torch_hvd
from calls import check_group, expect_error, says_called
from compressed import (
    BUDGET,
    CODECS,
    COUNT,
    error_of,
    every_layout,
    exact,
    group_with,
    noise,
    one_rank_a_host,
    reduced,
)
from rows import FACTOR

pytestmark = every_layout


def same_everywhere(tensor: Tensor) -> bool:
    """Whether every rank has the same bits."""
    ours = tensor.contiguous().view(torch.uint8)
    theirs = [torch.empty_like(ours) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, ours)
    return all(torch.equal(ours, each) for each in theirs)


@pytest.mark.parametrize("codec", CODECS)
def test_error(codec: str) -> None:
    """Within the budget, for SUM and AVG, dtypes and sizes; and the same bits on all ranks."""
    rank = dist.get_rank()
    group = group_with(compression=codec, compression_min_bytes=0)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        rounding = {torch.float32: 0.0, torch.float16: 0.0005, torch.bfloat16: 0.004}[dtype]
        for op in ("SUM", "AVG"):
            for count in (1, 127, 128, 129, 5000, COUNT):
                result = reduced(noise(rank, count, dtype), group, op)
                expected = exact(op, noise, count, dtype)
                # A few values may be worse off than many are together.
                budget = (BUDGET[codec] if count > 1000 else 2 * BUDGET[codec]) + rounding
                assert error_of(result, expected) <= budget, (dtype, op, count)
                assert same_everywhere(result), (dtype, op, count)


@pytest.mark.parametrize("codec", CODECS)
def test_factor(codec: str) -> None:
    """PREMUL_SUM is the sum of the products."""
    rank = dist.get_rank()
    group = group_with(compression=codec)
    result = reduced(noise(rank), group, "PREMUL_SUM")
    assert torch.equal(result, reduced(FACTOR * noise(rank), group))
    assert BUDGET[codec] / 20 < error_of(result, FACTOR * exact("SUM", noise)) <= BUDGET[codec]


@pytest.mark.parametrize("codec", CODECS)
def test_something_is_compressed(codec: str) -> None:
    """A result that is exact would mean that the codec was not used."""
    result = reduced(noise(dist.get_rank()), group_with(compression=codec))
    assert error_of(result, exact("SUM", noise)) > BUDGET[codec] / 20


@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_what_is_never_compressed(codec: str) -> None:
    """Other verbs, ops and dtypes, and small tensors: exact, whatever the codec."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = group_with(compression=codec)
    for dtype in (torch.float64, torch.int32, torch.int64, torch.complex128):
        start = torch.arange(COUNT, dtype=torch.int32) % 7
        result = reduced((start * (rank + 1)).to(dtype), group)
        assert torch.equal(result, (start * (size * (size + 1) // 2)).to(dtype)), dtype
    inputs = [noise(peer) for peer in range(size)]
    stacked = torch.stack(inputs)
    assert torch.equal(reduced(noise(rank), group, "MAX"), stacked.amax(0))
    assert torch.equal(reduced(noise(rank), group, "MIN"), stacked.amin(0))
    for op in ("SUM", "AVG"):
        small = reduced(noise(rank, 16_383), group, op)
        assert torch.equal(small, reduced(noise(rank, 16_383), dist.group.WORLD, op))
    received = noise(rank)
    dist.broadcast(received, src=size - 1, group=group)
    assert torch.equal(received, inputs[-1])
    gathered = torch.empty_like(stacked)
    dist.all_gather_into_tensor(gathered, inputs[rank], group=group)
    assert torch.equal(gathered, stacked)
    shard = torch.empty(COUNT // 12)
    dist.reduce_scatter_tensor(shard, noise(rank, COUNT // 12 * size), group=group)
    plain = torch.empty(COUNT // 12)
    dist.reduce_scatter_tensor(plain, noise(rank, COUNT // 12 * size))
    assert torch.equal(shard, plain)


@pytest.mark.parametrize("codec", CODECS)
def test_edges(codec: str) -> None:
    """Zeros stay zero, every rank sees NaN and Inf, huge and tiny values keep the bound."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = group_with(compression=codec)
    assert torch.equal(reduced(torch.zeros(COUNT), group), torch.zeros(COUNT))
    for bad in (float("nan"), float("inf"), -float("inf")):
        for place in (0, 12_345, COUNT - 1):
            tensor = noise(rank)
            tensor[place] = bad if rank == size - 1 else tensor[place]
            result = reduced(tensor, group)
            assert not result[place].isfinite()
            assert same_everywhere(result.isfinite())
            away = torch.ones(COUNT, dtype=torch.bool)
            away[place] = False
            expected = exact("SUM", noise)
            assert error_of(result[away], expected[away]) <= BUDGET[codec]
    scales = {"fp16": [], "bf16": [1e-30, 1e30, 2.0**120]}  # casts have the range they have
    for scale in scales.get(codec, [2.0**-135, 1e-30, 1e30, 2.0**120]):
        result = reduced(noise(rank) * scale, group, "AVG")
        expected = exact("AVG", noise) * scale
        tiny = scale < 1e-38  # fp32 itself has few bits left
        assert error_of(result, expected) <= (1.5 if tiny else 1) * BUDGET[codec], scale


@pytest.mark.parametrize("codec", CODECS)
def test_powers_of_two(codec: str) -> None:
    """Inputs times 2^k give the result times 2^k, to the bit."""
    values = noise(dist.get_rank())
    group = group_with(compression=codec)
    powers = [-60, -8, 1, 7, 60]
    if codec == "fp16":  # below 2^-14 it has fewer bits, and so would sums that nearly cancel
        powers = [-8, 1, 7]
        values = values.abs().clamp(min=2.0**-5)
    base = reduced(values.clone(), group)
    for power in powers:
        scaled = reduced(values * 2.0**power, group)
        assert torch.equal(scaled, base * 2.0**power), power


@pytest.mark.parametrize("codec", CODECS)
def test_fusion_changes_no_bit(codec: str) -> None:
    """Alone, in a bucket with others, checked, in place or strided, again: the same bits."""
    rank = dist.get_rank()
    counts = (5, 40_000, 129, 0, 64, 1000, 128, 70_000, 4097)

    def results(**options: Any) -> list[Tensor]:
        group = group_with(compression=codec, compression_min_bytes=0, **options)
        tensors = [noise(rank, count, seed=place) for place, count in enumerate(counts)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        for work in works:
            work.wait()
        return tensors

    alone = results(fusion_threshold=0, fusion_cutoff=0)
    for options in (
        {},
        {"fusion_cutoff": 1 << 30},
        {"fusion_cutoff": 1 << 30, "fusion_threshold": 200_000},
        {"check": True},
    ):
        for one, other in zip(alone, results(**options), strict=True):
            assert torch.equal(one, other), options
    group = group_with(compression=codec, compression_min_bytes=0)
    strided = noise(rank, COUNT).reshape(-1, 2)
    result = reduced(strided.clone()[:, 0], group)
    assert torch.equal(result, reduced(strided[:, 0].contiguous(), group))


def test_many_in_flight() -> None:
    """Several large ones and small ones between, waited for in any order."""
    rank = dist.get_rank()
    group = group_with(compression="int8")
    counts = (COUNT, 10, 300_000, 20_000, 5, COUNT // 2)
    tensors = [noise(rank, count, seed=place) for place, count in enumerate(counts)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    for place, (tensor, count) in enumerate(zip(tensors, counts, strict=True)):
        expected = exact("SUM", noise, count, torch.float32, place)
        assert error_of(tensor, expected) <= BUDGET["int8"]


@one_rank_a_host
@pytest.mark.parametrize("codec", CODECS)
def test_wire_bytes(codec: str) -> None:
    """What the codec promises: 3.9 times fewer bytes with 8 bits, at 4 MB."""
    count = 1 << 20

    def sent(name: str) -> float:
        group = group_with(compression=name)
        reduced(noise(dist.get_rank(), count), group)
        return torch_hvd.statistics()[-1]["wire_bytes"]

    fewer = sent("none") / sent(codec)
    promised = {"fp16": 1.99, "bf16": 1.99, "int4": 7.0}.get(codec, 3.9)
    assert fewer >= promised


@pytest.mark.parametrize("check", [False, True])
def test_ranks_that_compress_differently(check: bool) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = group_with(compression="int8", check=check)
    calls = ["all_reduce(float32[600000], SUM, int8)"] + (size - 1) * [
        "all_reduce(float32[600000], SUM)"
    ]

    def call() -> None:
        with torch_hvd.compression("int8" if rank == 0 else "none"):
            reduced(noise(rank), group)

    text = expect_error(call, within=15)
    for peer, called in enumerate(calls):
        assert says_called(text, peer, called), text
    if check:
        with torch_hvd.compression("none"):
            check_group(group)
    dist.barrier()


@pytest.mark.parametrize("codec", ["int4", "int8", "fp8_e5m2"])
def test_error_feedback(codec: str) -> None:
    """What is lost in a step comes in a later one: the mean over steps gets ever closer."""
    rank = dist.get_rank()
    steps = 40

    def mean(**options: Any) -> Tensor:
        group = group_with(compression=codec, **options)
        tensors = [torch.empty(COUNT // 4), torch.empty(COUNT)]
        total = torch.zeros(COUNT)
        for _ in range(steps):
            for place, tensor in enumerate(tensors):
                tensor.copy_(noise(rank, tensor.numel(), seed=place))
                reduced(tensor, group, "AVG")
            total += tensors[1]
        return total / steps

    expected = exact("AVG", noise, COUNT, torch.float32, 1)
    without = error_of(mean(), expected)
    assert error_of(mean(error_feedback=True), expected) < without / 10


def test_feedback_of_other_tensors() -> None:
    """New memory, another shape or another order: no residual of something else is added."""
    rank = dist.get_rank()
    group, plain = (
        group_with(compression="int4", error_feedback=True),
        group_with(compression="int4"),
    )
    pool = torch.empty(2 * COUNT)
    for step, (begin, count) in enumerate([(0, COUNT), (0, COUNT - 7), (7, COUNT), (0, COUNT)]):
        view = pool[begin : begin + count]
        view.copy_(noise(rank, count, seed=step))
        expected = reduced(noise(rank, count, seed=step), plain)
        assert torch.equal(reduced(view, group), expected), step


@pytest.mark.parametrize("order", ["ab", "aab", "aaab", "aaabbc"])
def test_feedback_of_models_in_turns(order: str) -> None:
    """Of two buckets each, some trained more often: all that is lost of each comes in the end."""
    rank, steps, count = dist.get_rank(), 24, 40_000

    def gradients(rank: int, model: str) -> Tensor:
        return noise(rank, 2 * count, seed=ord(model))

    def errors(**options: Any) -> dict[str, float]:
        group = group_with(compression="int4", **options)
        buckets = {model: torch.empty(2 * count).split(count) for model in order}
        total = {model: torch.zeros(2 * count) for model in order}
        for _ in range(steps):
            for model in order:
                for bucket, gradient in zip(
                    buckets[model], gradients(rank, model).split(count), strict=True
                ):
                    reduced(bucket.copy_(gradient), group)
                total[model] += torch.cat(buckets[model]) / (steps * order.count(model))
        return {model: error_of(total[model], exact("SUM", gradients, model)) for model in order}

    without, with_feedback = errors(), errors(error_feedback=True)
    assert all(with_feedback[model] < without[model] / 8 for model in order), with_feedback


@pytest.mark.parametrize("codec", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_feedback_after_a_sum_that_is_not_finite(codec: str, place: int) -> None:
    """A step that GradScaler skips leaves nothing behind, in whichever bucket it shows."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    options = {"compression": codec, "compression_min_bytes": 0}
    group, plain = group_with(**options, error_feedback=True), group_with(**options)
    buckets = [torch.empty(3_001) for _ in range(3)]
    had_feedback = []
    for step in range(7):
        for i, bucket in enumerate(buckets):
            bucket.copy_(noise(rank, 3_001, seed=10 * step + i))
            if step == 3:
                bucket[::5] *= 1e4 if codec == "fp16" else 1e30
                if i == place and rank == last:
                    bucket[17] = torch.inf
        without = [reduced(bucket.clone(), plain) for bucket in buckets]
        for bucket in buckets:
            reduced(bucket, group)
        had_feedback.append([not torch.equal(*each) for each in zip(buckets, without, strict=True)])
    # In the second step it was not known yet what the first bucket comes after.
    for step, has in {0: False, 2: True, 4: False, 5: True, 6: True}.items():
        assert had_feedback[step] == [has] * 3, step

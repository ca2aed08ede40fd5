"""Compressed all_reduce: how far from the exact sum, the same bits everywhere, and when not at all.

The expected value is the float64 sum of every rank's tensor, which follows from rank and seed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from threading import Barrier, Event, get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from calls import check_group, environment, expect_error, says_called, together
from rows import FACTOR, reduce_op
from training import batch, new_model

pytestmark = pytest.mark.ranks(2, 3, 4, transports=["tcp"], hosts=[3], by_name=[3], rails=[3])

# Every rank sends its own numbers, and none go by shared memory.
one_rank_a_host = pytest.mark.ranks(2, 3, 4, transports=["tcp"])

# Relative L2 error that one all_reduce may have, with the default blocks.
BUDGET = {
    "fp16": 0.0005,
    "bf16": 0.004,
    "int8": 0.013,
    "fp8": 0.038,
    "fp8_e5m2": 0.075,
    "int4": 0.16,
}
CODECS = tuple(BUDGET)
COUNT = 600_000  # several segments for each rank, and a last block that is not full


def group_with(**options: Any) -> dist.ProcessGroup:
    # Feedback would make the second result of a tensor differ from the first.
    return dist.new_group(pg_options=torch_hvd.Options(**{"error_feedback": False, **options}))


def noise(
    rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Tensor:
    return drawn(count, 1000 * seed + rank).to(dtype, copy=True)


@cache  # to draw them takes longer than the all_reduce
def drawn(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def exact(op: str, make: Callable[..., Tensor], *args: Any) -> Tensor:
    """In float64, for make(rank, *args) on each rank."""
    size = dist.get_world_size()
    total = torch.stack([make(rank, *args).double() for rank in range(size)]).sum(0)
    return total / size if op == "AVG" else total


def reduced(tensor: Tensor, group: dist.ProcessGroup | None, op: str = "SUM") -> Tensor:
    dist.all_reduce(tensor, op=reduce_op(op), group=group)
    return tensor


def error_of(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())


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


def test_region() -> None:
    """torch_hvd.compression holds inside its block, nests, and ends with it."""
    rank = dist.get_rank()
    group = group_with(compression="int8")
    plain, coarse = group_with(), group_with(compression="fp8")
    with torch_hvd.compression("none"):
        assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), plain))
        with torch_hvd.compression("fp8"):
            assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), coarse))
        assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), plain))
    again = error_of(reduced(noise(rank), group), exact("SUM", noise))
    assert BUDGET["int8"] / 20 < again <= BUDGET["int8"]
    message = "compression is 'zip'; allowed is none or fp16"
    with pytest.raises(ValueError, match=message), torch_hvd.compression("zip"):
        pass


def test_regions_of_threads() -> None:
    """Each thread has its own, whatever others are in and however they overlap."""
    rank = dist.get_rank()
    plain = reduced(noise(rank), group_with())
    names = ("fp8", "int8")
    expected = {name: reduced(noise(rank), group_with(compression=name)) for name in names}
    groups = {name: group_with() for name in names}
    entered, outside, both = Event(), Event(), Barrier(2)

    def call_inside(name: str) -> None:
        with torch_hvd.compression(name):
            both.wait(20)
            entered.set()
            assert torch.equal(reduced(noise(rank), groups[name]), expected[name])
            assert outside.wait(20)
            if name == "int8":
                both.wait(20)  # the first to come is the first to leave
        if name == "fp8":
            both.wait(20)
        assert torch.equal(reduced(noise(rank), groups[name]), plain)

    def call_outside(group: dist.ProcessGroup) -> None:
        assert entered.wait(20)
        assert torch.equal(reduced(noise(rank), group), plain)
        outside.set()

    calls = {name: partial(call_inside, name) for name in names}
    together({**calls, "outside": partial(call_outside, group_with())})
    assert torch.equal(reduced(noise(rank), None), plain)


def test_region_of_one_rank_alone() -> None:
    """What another thread calls meanwhile is what it is on the other ranks."""
    rank = dist.get_rank()
    group = group_with()
    expected = reduced(noise(rank), group)
    entered, done = Event(), Event()

    def stay_inside() -> None:
        with torch_hvd.compression("int8"):
            entered.set()
            assert done.wait(30)

    with ThreadPoolExecutor(1) as threads:
        inside = threads.submit(stay_inside if rank == 0 else entered.set)
        assert entered.wait(20)
        try:
            assert torch.equal(reduced(noise(rank), group), expected)
        finally:
            done.set()
        inside.result()


class Nested(torch.autograd.Function):
    """Has a backward() of its own in its backward(), `depth` times, and then calls `innermost`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, depth: int, innermost: Callable[[], None]) -> Tensor:
        ctx.depth, ctx.innermost = depth, innermost
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.depth == 0:
            ctx.innermost()
        else:
            nested(ctx.depth - 1, ctx.innermost)
        return grad, None, None


def nested(depth: int, innermost: Callable[[], None]) -> None:
    with torch.enable_grad():
        values = torch.ones(1, requires_grad=True)
        Nested.apply(values, depth, innermost).backward()


def test_region_on_threads_of_autograd() -> None:
    """It holds for what autograd calls on behalf of this thread, here because it nests too deep."""
    rank = dist.get_rank()
    group = group_with(compression="int8")
    plain = reduced(noise(rank), group_with())
    callers = []

    def call() -> None:
        callers.append(get_ident())
        assert torch.equal(reduced(noise(rank), group), plain)

    with torch_hvd.compression("none"):
        nested(100, call)  # from 60 on it takes other threads
    assert callers != [get_ident()]
    assert not torch.equal(reduced(noise(rank), group), plain)


def test_region_of_ddp() -> None:
    """It holds for the gradients of a backward() inside, on each of several threads."""
    names = ("none", "fp8", "int4")
    models = {name: model_in(group_with(compression="int8")) for name in names}
    expected = {name: step(model_in(group_with(compression=name))) for name in names}
    inside = Barrier(len(names))

    def backward(name: str) -> Tensor:
        with torch_hvd.compression(name):
            inside.wait(20)
            result = step(models[name])
            inside.wait(20)
        return result

    found = together({name: partial(backward, name) for name in names})
    for name in names:
        assert torch.equal(found[name], expected[name]), name


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


def model_in(
    group: dist.ProcessGroup, hook: Any = None, width: int = 256
) -> DistributedDataParallel:
    """With buckets of some 540 KB, or 8 * width**2."""
    model = DistributedDataParallel(new_model(width=width), process_group=group)
    if hook is not None:
        model.register_comm_hook(group, hook)
    return model


def step(model: DistributedDataParallel) -> Tensor:
    """The gradients of always the same step, which changes no parameter."""
    model.zero_grad()
    inputs, labels = batch(dist.get_rank(), 0)
    functional.cross_entropy(model(inputs), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def gradients(group: dist.ProcessGroup, hook: Any = None) -> Tensor:
    return step(model_in(group, hook))


@one_rank_a_host
@pytest.mark.parametrize("codec", CODECS)
def test_ddp(codec: str) -> None:
    """Unmodified, by options, and by the hook over hvd and over gloo."""
    exactly = gradients(dist.new_group())
    by_options = gradients(group_with(compression=codec))
    assert BUDGET[codec] / 20 < error_of(by_options, exactly) <= BUDGET[codec]
    hook = torch_hvd.hooks.compress(codec)
    over_hvd = gradients(group_with(), hook)
    over_gloo = gradients(dist.new_group(backend="gloo"), hook)
    # The same blocks, scales and order of summation.
    assert torch.equal(over_hvd, over_gloo)
    assert error_of(over_hvd, exactly) <= BUDGET[codec]


@one_rank_a_host
def test_hook_feeds_back() -> None:
    """With int4 by default, over hvd and over gloo."""
    exactly = gradients(dist.new_group())

    def error(group: dist.ProcessGroup) -> float:
        model = model_in(group, torch_hvd.hooks.compress("int4"))
        return error_of(torch.stack([step(model) for _ in range(30)]).mean(0), exactly)

    assert error(group_with(error_feedback=None)) < 0.02
    assert error(dist.new_group(backend="gloo")) < 0.02
    with environment({"HVD_ERROR_FEEDBACK": "0"}):
        assert error(dist.new_group(backend="gloo")) > 0.1


@one_rank_a_host
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "environ",
    [{}, {"HVD_ERROR_FEEDBACK": "1"}, {"HVD_ERROR_FEEDBACK": "1", "HVD_COMPRESSION_BLOCK": "64"}],
    ids=str,
)
def test_hook_over_other_backends(codec: str, environ: dict[str, str]) -> None:
    """Step by step the same bits, also of buckets of which the last block is not full."""

    def averages(group: dist.ProcessGroup) -> list[Tensor]:
        hook = torch_hvd.hooks.compress(codec)
        first, second = torch.empty(50_001), torch.empty(100_000)
        found = []
        for place in range(10):
            for buffer in (first, second):
                buffer.copy_(noise(dist.get_rank(), buffer.numel(), seed=place))
                bucket = SimpleNamespace(buffer=lambda buffer=buffer: buffer)
                hook(group, cast(dist.GradBucket, bucket)).wait()
                found.append(buffer.clone())
        return found

    with environment(environ):
        over_hvd = averages(group_with(error_feedback=None))
        over_gloo = averages(dist.new_group(backend="gloo"))
    for ours, theirs in zip(over_hvd, over_gloo, strict=True):
        assert torch.equal(ours, theirs)


@one_rank_a_host
def test_hook_of_several_models() -> None:
    """What was lost of one model's gradients is not added to another's, whatever their sizes."""
    group = dist.new_group(backend="gloo")
    hook = torch_hvd.hooks.compress("int4")
    for width in (256, 256, 200, 256):
        expected = step(model_in(group, torch_hvd.hooks.compress("int4"), width))
        model = model_in(group, hook, width)
        assert torch.equal(step(model), expected)
        for _ in range(3):
            step(model)


def test_hook_of_another_name() -> None:
    for name in ("zip", "none"):
        with pytest.raises(ValueError, match=f"compression is '{name}'; allowed is fp16 or"):
            torch_hvd.hooks.compress(name)

"""Bursts of collectives, of which small ones share frames and buckets: each is as if alone.

A call here is a generator: it issues the collective, yields the Work, and checks the result once
resumed. So a burst is a list of calls, all issued before the first is waited for.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

import rows
import torch_hvd
from calls import LARGE, SMALL, check_group, ranks_of_hosts
from rows import Row, Shape, reduce_op

pytestmark = pytest.mark.ranks(2, 4, hosts=[3, 4], by_name=[3], rails=[3])

Group = dist.ProcessGroup | None
Call = Iterator[Any]  # of one Work

SHAPES = (
    Shape("empty", (0,)),
    Shape("one", (1,)),
    Shape("transposed", (3, 5), layout="transposed"),
    Shape("3 KB", nbytes=3000),
    Shape("strided", (40, 5), layout="strided"),
    Shape("20 KB", nbytes=20_000),
    Shape("scalar"),
    Shape("100 KB", nbytes=100_000),
    Shape("unaligned", (9,), layout="offset"),
)
MIXED = [
    Row(dtype, op, SHAPES[place % len(SHAPES)], async_op=True)
    for place, (dtype, op) in enumerate(
        (dtype, op) for op in rows.OPS for dtype in rows.REDUCIBLE if rows.allowed(dtype, op)
    )
]


def all_reduce(row: Row, slot: int, group: Group = None) -> Call:
    tensor = row.input(slot=slot)
    yield dist.all_reduce(tensor, op=reduce_op(row.op), group=group, async_op=True)
    row.equal(tensor, row.reduced(slot), f"{row}, call {slot}")


def all_reduce_coalesced(row: Row, slot: int, group: Group = None) -> Call:
    tensors = [row.input(slot=slot, grow=k) for k in range(4)]
    yield dist.all_reduce_coalesced(tensors, op=reduce_op(row.op), group=group, async_op=True)
    for k, tensor in enumerate(tensors):
        row.equal(tensor, row.reduced(slot, grow=k), f"{row}, call {slot}, tensor {k}")


def all_reduce_in_one_go(row: Row, slot: int, group: Group = None) -> Call:
    tensors = [row.input(slot=slot, grow=k) for k in range(4)]
    with dist._coalescing_manager(group, async_ops=True) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, op=reduce_op(row.op), group=group)
    yield coalesced
    for k, tensor in enumerate(tensors):
        row.equal(tensor, row.reduced(slot, grow=k), f"{row}, call {slot}, tensor {k}")


def reduce(row: Row, slot: int, group: Group = None) -> Call:
    root = slot % row.size
    tensor = row.input(slot=slot)
    yield dist.reduce(tensor, dst=root, op=reduce_op(row.op), group=group, async_op=True)
    expected = row.reduced(slot) if row.rank == root else row.values(row.rank, slot)
    row.equal(tensor, expected, f"reduce {slot}")


def reduce_scatter(row: Row, slot: int, group: Group = None) -> Call:
    """Of uneven parts: that of rank r has r rows more."""
    output = row.output(grow=row.rank)
    inputs = [row.input(slot=slot + rank, grow=rank) for rank in range(row.size)]
    yield dist.reduce_scatter(output, inputs, op=reduce_op(row.op), group=group, async_op=True)
    row.equal(output, row.reduced(slot + row.rank, grow=row.rank), f"reduce_scatter {slot}")


def broadcast(row: Row, slot: int, group: Group = None) -> Call:
    root = slot % row.size
    tensor = row.input(slot=slot)
    yield dist.broadcast(tensor, src=root, group=group, async_op=True)
    row.equal(tensor, row.values(root, slot), f"broadcast {slot}")


def all_gather(row: Row, slot: int, group: Group = None) -> Call:
    """Of uneven tensors: rank r gives r rows more."""
    outputs = [row.output(grow=rank) for rank in range(row.size)]
    yield dist.all_gather(outputs, row.input(slot=slot, grow=row.rank), group=group, async_op=True)
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank, slot, grow=rank), f"all_gather {slot}, from {rank}")


def gather(row: Row, slot: int, group: Group = None) -> Call:
    root = slot % row.size
    outputs = [row.output() for _ in range(row.size)] if row.rank == root else None
    yield dist.gather(row.input(slot=slot), outputs, dst=root, group=group, async_op=True)
    for rank, output in enumerate(outputs or ()):
        row.equal(output, row.values(rank, slot), f"gather {slot}, from {rank}")


def scatter(row: Row, slot: int, group: Group = None) -> Call:
    root = slot % row.size
    given = [row.input(slot=slot + rank) for rank in range(row.size)] if row.rank == root else None
    output = row.output()
    yield dist.scatter(output, given, src=root, group=group, async_op=True)
    row.equal(output, row.values(root, slot + row.rank), f"scatter {slot}")


def all_to_all(row: Row, slot: int, group: Group = None) -> Call:
    outputs = [row.output() for _ in range(row.size)]
    inputs = [row.input(slot=slot + rank) for rank in range(row.size)]
    yield dist.all_to_all(outputs, inputs, group=group, async_op=True)
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank, slot + row.rank), f"all_to_all {slot}, from {rank}")


def barrier(_row: Row, _slot: int, group: Group = None) -> Call:
    yield dist.barrier(group=group, async_op=True)


VERBS: tuple[Callable[[Row, int, Group], Call], ...] = (
    reduce,
    reduce_scatter,
    broadcast,
    all_gather,
    gather,
    scatter,
    all_to_all,
    barrier,
    all_reduce_coalesced,
    all_reduce_in_one_go,
)


def run(burst: Iterable[Call], order: Callable[[list[Any]], Iterable[Any]] = list) -> None:
    """Issue all calls, wait for them in the order that `order` puts them, check all results."""
    issued = [(call, next(call)) for call in burst]
    for _, work in order(issued):
        work.wait()
    for call, _ in issued:
        assert next(call, None) is None


def described(settings: dict[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in settings.items()) or "default"


def mixed(group: Group = None) -> list[Call]:
    return [all_reduce(row, slot, group) for slot, row in enumerate(MIXED)]


@pytest.mark.parametrize("order", [list, reversed])
def test_mixed_dtypes_ops_and_sizes(order: Callable[[list[Any]], Iterable[Any]]) -> None:
    """Twice, since the first call of a group that idles finds nothing to fuse with."""
    run([*mixed(), *mixed()], order)


@pytest.mark.parametrize(
    "settings",
    [{}, {"fusion_threshold": 0}, {"fusion_threshold": 5000}, {"check": True}],
    ids=described,
)
def test_other_verbs_in_between(settings: dict[str, Any]) -> None:
    """Each verb meets rows of each dtype."""
    group = dist.new_group(pg_options=torch_hvd.Options(**settings))
    sums = [row for row in MIXED if row.op == "SUM"]
    burst = []
    for slot in range(len(sums)):
        burst += [all_reduce(sums[slot], slot, group), all_reduce(sums[slot], slot + 1, group)]
        burst += [verb(sums[(slot + k) % len(sums)], slot, group) for k, verb in enumerate(VERBS)]
    run(burst, reversed)


def test_one_call_of_many_tensors() -> None:
    """Coalesced calls with nothing around them."""
    row = Row(torch.float32, "SUM", Shape("3 KB", nbytes=3000), async_op=False)
    for verb in (all_reduce_coalesced, all_reduce_in_one_go):
        run([verb(row, 0)])
        run([verb(row, slot) for slot in range(20)])


def test_two_groups_in_turns() -> None:
    groups = (dist.group.WORLD, dist.new_group())
    burst = [
        all_reduce(row, slot, group) for slot, row in enumerate(MIXED) for group in (*groups, None)
    ]
    run(burst)
    run(burst_of_subgroups())


def burst_of_subgroups() -> list[Call]:
    """In the group of all ranks and in that of all but the first, which has others to wait for."""
    size = dist.get_world_size()
    part = dist.new_group(list(range(1, size)))

    def in_part(count: int) -> Call:
        tensor = torch.ones(count)
        yield dist.all_reduce(tensor, group=part, async_op=True)
        assert rows.filled(tensor, size - 1)

    burst = []
    for slot, row in enumerate(MIXED):
        burst.append(all_reduce(row, slot))
        if dist.get_rank() > 0:
            burst.append(in_part(1 + 500 * slot))
    return burst


def test_async_here_and_sync_there() -> None:
    """Each call is asynchronous on one rank only, another each time."""
    rank, size = dist.get_rank(), dist.get_world_size()
    issued = []
    for slot, call in enumerate(mixed()):
        work = next(call)
        issued.append((call, work))
        if slot % size != rank:
            work.wait()
    for call, work in issued:
        work.wait()
        assert next(call, None) is None
    counts = (SMALL, LARGE, 5, 0, 9000, 1)
    tensors = [torch.ones(count) for _ in range(20) for count in counts]
    works = [
        dist.all_reduce(tensor, async_op=slot % size == rank) for slot, tensor in enumerate(tensors)
    ]
    for work in works:
        if work is not None:
            work.wait()
    assert all(rows.filled(tensor, size) for tensor in tensors)


def test_late_rank() -> None:
    """The last rank comes seconds after the others have issued all, then stops halfway."""
    last = dist.get_rank() == dist.get_world_size() - 1

    def nap(seconds: float) -> Call:
        time.sleep(seconds if last else 0)
        yield from barrier(MIXED[0], 0)

    run([nap(2), *mixed(), nap(1), *mixed()])
    check_group()


def test_one_tensor_again_and_again() -> None:
    """Sums of sums, none waited for but the last."""
    size = dist.get_world_size()
    for count in (1, 1000, 5000, LARGE):
        tensor = torch.ones(count, dtype=torch.int64)
        works = [dist.all_reduce(tensor, async_op=True) for _ in range(12)]
        works[-1].wait()
        assert rows.filled(tensor, size**12), (count, tensor)


def overlapping(buffer: torch.Tensor) -> list[torch.Tensor]:
    """Views of 300 x 100 int64 that share elements, contiguous ones and others."""
    return [
        buffer[:4],
        buffer[2:5],
        buffer[:, 3],
        buffer[1::2],
        buffer[3],
        buffer[:, 2:40],
        buffer,
        buffer.t()[5:9],
        buffer[0, :7],
        buffer[:200],
    ]


@pytest.mark.parametrize("verb", ["all_reduce", "broadcast", "reduce", "premul"])
def test_overlapping_views(verb: str) -> None:
    """Without a wait between them, the result is that of one after the other."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dtype = torch.float64 if verb == "premul" else torch.int64
    start = torch.arange(30_000, dtype=dtype).reshape(300, 100) % 17
    expected = [start * (peer + 1) for peer in range(size)]
    buffer = expected[rank].clone()
    works = []
    for turn in range(2):
        for place, view in enumerate(overlapping(buffer)):
            root = (turn + place) % size
            views = [overlapping(each)[place] for each in expected]
            if verb == "broadcast":
                works.append(dist.broadcast(view, src=root, async_op=True))
                result, receivers = views[root].clone(), views
            elif verb == "reduce":
                works.append(dist.reduce(view, dst=root, async_op=True))
                result, receivers = torch.stack(views).sum(0), [views[root]]
            else:
                op = "SUM" if verb == "all_reduce" else "PREMUL_SUM"
                works.append(dist.all_reduce(view, op=reduce_op(op), async_op=True))
                result, receivers = rows.combine(op, views), views
            for receiver in receivers:
                receiver.copy_(result)
    for work in works:
        work.wait()
    assert torch.equal(buffer, expected[rank])


def test_chain_of_verbs() -> None:
    """The output of one call is the input of the next, none waited for."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (5, 3000, LARGE):
        part = torch.full((count,), float(rank))
        gathered = torch.zeros(size, count)
        scattered = torch.zeros(count)
        works = [
            dist.all_reduce(part, async_op=True),
            dist.all_gather_into_tensor(gathered, part, async_op=True),
            dist.reduce_scatter_tensor(scattered, gathered, async_op=True),
            dist.broadcast(scattered, src=size - 1, async_op=True),
            dist.all_reduce(gathered[:, ::2], async_op=True),
            dist.all_reduce(gathered[:, 1::2], async_op=True),
        ]
        for work in works:
            work.wait()
        total = sum(range(size))
        assert rows.filled(part, total)
        assert rows.filled(scattered, size * total)
        assert rows.filled(gathered, size * total)


def test_progress_while_nobody_waits() -> None:
    """Small and large calls that have to wait for each other's memory."""
    size = dist.get_world_size()
    for _ in range(10):
        buffer = torch.ones(LARGE, dtype=torch.int64)
        views = [buffer[:SMALL], buffer, buffer[SMALL : 2 * SMALL], buffer[1:], buffer[:SMALL]]
        works = [dist.all_reduce(view, async_op=True) for view in views]
        end = time.monotonic() + 10
        while not works[-1].is_completed():
            assert time.monotonic() < end, [work.is_completed() for work in works]
            time.sleep(0.001)
        assert buffer[0] == size**3 and buffer[SMALL] == size**3 and buffer[-1] == size**2


def test_empty_tensors_that_fuse() -> None:
    """With each other alone, in the first batch that has more than one call."""
    size = dist.get_world_size()
    group = dist.new_group()
    full = [torch.ones(1), torch.ones(10_000), torch.ones(5_000, dtype=torch.float64)]
    empty = [torch.empty(0, dtype=torch.int64) for _ in range(2)]
    for work in [dist.all_reduce(each, group=group, async_op=True) for each in (*full, *empty)]:
        work.wait()
    assert all(rows.filled(each, size) for each in full)


def test_completed_in_order() -> None:
    """Whatever travels with what, no call is done before those issued earlier."""
    works = []
    for _ in range(10):
        for count in (3, LARGE, 1000, 0, 20_000):
            works.append(dist.all_reduce(torch.ones(count), async_op=True))
    done = [False]
    while not all(done):
        # The latest is looked at first: the earlier ones must be done by the time they are seen.
        done = [work.is_completed() for work in reversed(works)]
        assert done == sorted(done), done
        time.sleep(0.0005)


def test_tensor_is_given_other_memory() -> None:
    """What is under way keeps the memory it was issued with, and gives back just that."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (SMALL, LARGE):
        dist.barrier()
        old = torch.ones(count)
        tensor, shared = torch.nn.Parameter(old), old.detach()
        time.sleep(0.3 if rank == 0 else 0)
        work = dist.all_reduce(tensor, async_op=True)
        tensor.data = torch.zeros(2 * count)
        work.wait()
        assert rows.filled(shared, size) and rows.filled(tensor, 0)
        dist.all_reduce(shared)
        assert rows.filled(shared, size * size)


def noise(seed: int, dtype: torch.dtype, count: int) -> torch.Tensor:
    """Values whose sum depends on the order; with zeros and both signs."""
    random = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(count, generator=random, dtype=torch.float64).to(dtype)
    return torch.randint(0, 2 if dtype is torch.bool else 100, (count,), generator=random).to(dtype)


def folded(op: str, inputs: Sequence[torch.Tensor], hosts: list[list[int]]) -> torch.Tensor:
    """The sum in rank order, host by host; 16-bit floats in float32, rounded once."""
    dtype = inputs[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    add = torch.logical_or if dtype is torch.bool else torch.add
    sums = [functools.reduce(add, [inputs[rank].to(wide) for rank in ranks]) for ranks in hosts]
    total = functools.reduce(add, sums)
    return (total / len(inputs) if op == "AVG" else total).to(dtype)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fusion_threshold": 0},
        {"fusion_threshold": 1},
        {"fusion_threshold": 300},
        {"fusion_threshold": 100_000},
        {"fusion_cutoff": 0},
        {"fusion_cutoff": 1 << 30},
        {"fusion_cutoff": 1 << 30, "fusion_threshold": 200_000},
        {"check": True},
        {"check": True, "fusion_cutoff": 1 << 30},
    ],
    ids=described,
)
def test_settings_change_no_bit(settings: dict[str, Any]) -> None:
    """Whatever travels with what, sums run in rank order, where there are hosts within each."""
    size, hosts = dist.get_world_size(), ranks_of_hosts()
    group = dist.new_group(pg_options=torch_hvd.Options(**settings))
    dtypes = (*rows.FLOATS, torch.int32, torch.bool)
    counts = (10, 0, 3000, 1, 16_384, 200, 16_385, 40_000, 7, LARGE, 64)
    calls = [
        (dtype, op, counts[(turn + place) % len(counts)])
        for turn in range(6)
        for place, dtype in enumerate(dtypes)
        for op in ("SUM", "AVG")
        if rows.allowed(dtype, op)
    ]

    def inputs(place: int) -> list[torch.Tensor]:
        dtype, _, count = calls[place]
        return [noise(1000 * place + peer, dtype, count) for peer in range(size)]

    tensors = [inputs(place)[dist.get_rank()] for place in range(len(calls))]
    works = [
        dist.all_reduce(tensor, op=reduce_op(op), group=group, async_op=True)
        for tensor, (_, op, _) in zip(tensors, calls, strict=True)
    ]
    for work in works:
        work.wait()
    for place, (tensor, (dtype, op, count)) in enumerate(zip(tensors, calls, strict=True)):
        expected = folded(op, inputs(place), hosts)
        assert torch.equal(tensor, expected), (place, dtype, op, count)

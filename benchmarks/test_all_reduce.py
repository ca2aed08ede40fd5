"""all_reduce of float32 sums: one by one, back to back, asynchronous, and many in flight."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from benchmarks.contenders import Contender
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.payload import calls_per_block, pattern, relative_error, two_copies
from benchmarks.ranks import Rank

pytestmark = pytest.mark.timeout(300)

QUICK_SIZES = (4, 1 << 10, 1 << 14, 1 << 20, 1 << 24)
SIZES = tuple(4 ** (i + 1) for i in range(13))  # 4 B to 64 MB
BURST = 100
IN_A_ROW = 10


def target(bench: Bench, nbytes: int) -> float | None:
    """The ratio to stock gloo that is aimed at for one tensor of this size."""
    return bench.against_gloo(to_gloo(bench, nbytes))


def to_gloo(bench: Bench, nbytes: int) -> float | None:
    if bench.shares_memory:
        small = {2: 1 / 8, 4: 1 / 15}.get(bench.ranks.size)
        return small if nbytes <= 1 << 10 else in_memory(bench, nbytes)
    return 0.8 if nbytes <= 1 << 14 else 1.03 if nbytes >= 1 << 20 else None


def in_memory(bench: Bench, nbytes: int) -> float | None:
    large = 1 / 7 if nbytes >= 10 << 20 else 1 / 5 if nbytes >= 1 << 20 else None
    return large if bench.ranks.size == 2 else None


def bus_factor(size: int) -> float:
    """A rank must send, and receive, at least this share of its tensor."""
    return 2 * (size - 1) / size


def sync(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)


def in_flight(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.wait()


def by_future(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """As DistributedDataParallel waits for its buckets."""
    for work in [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]:
        work.get_future().wait()


def reduce_all(
    rank: Rank,
    *,
    count: int,
    burst: int,
    issue: Callable[[list[torch.Tensor], dist.ProcessGroup], None],
    budget_s: float,
) -> dict[str, Blocks]:
    """Runs on a rank: each call reduces `burst` tensors of `count` float32."""
    calls = calls_per_block(4 * count * burst, burst)
    tensors = [torch.empty(count) for _ in range(calls * burst)]
    source = pattern(count) * (rank.rank + 1)
    expected = pattern(count) * (rank.size * (rank.size + 1) // 2)

    def fill() -> None:
        for tensor in tensors:
            tensor.copy_(source)

    def check(bound: float) -> None:
        for tensor in tensors:
            if not torch.equal(tensor, expected):
                error = relative_error(tensor, expected)
                assert error <= bound, f"wrong sum: relative L2 error {error:.2g}"

    def reduce_over(group: dist.ProcessGroup, contender: Contender) -> Trial:
        def call(i: int) -> None:
            issue(tensors[i * burst : (i + 1) * burst], group)

        return Trial(calls, fill, call, lambda: check(contender.tolerance))

    contenders = {
        "backend": [reduce_over(group, rank.contenders["backend"]) for group in rank.backend],
        "baseline": [reduce_over(group, rank.contenders["baseline"]) for group in rank.baseline],
    }
    return interleave(rank, two_copies(source, tensors, burst), contenders, budget_s)


@pytest.mark.parametrize("issue", [sync, in_flight], ids=["sync", "async"])
def test_all_reduce(bench: Bench, nbytes: int, issue: Callable[..., None]) -> None:
    bench.row(
        reduce_all,
        op="all_reduce" if issue is sync else "all_reduce async",
        size=nbytes,
        bus_factor=bus_factor(bench.ranks.size),
        target=target(bench, nbytes),
        count=nbytes // 4,
        burst=1,
        issue=issue,
    )


def test_back_to_back(bench: Bench) -> None:
    """How many a second: where ranks share cores, the slowest of each call says less of that."""
    nbytes = 4
    bench.row(
        reduce_all,
        op=f"all_reduce, each of {IN_A_ROW}",
        size=nbytes,
        bus_factor=bus_factor(bench.ranks.size),
        trips=IN_A_ROW,
        target=target(bench, nbytes),
        count=nbytes // 4,
        burst=IN_A_ROW,
        issue=sync,
    )


@pytest.mark.parametrize(("burst", "each"), [(IN_A_ROW, 4), (BURST, 1 << 10)])
def test_burst(bench: Bench, burst: int, each: int) -> None:
    bench.row(
        reduce_all,
        op=f"all_reduce async x{burst}",
        size=each * burst,
        bus_factor=bus_factor(bench.ranks.size),
        target=target(bench, each),
        count=each // 4,
        burst=burst,
        issue=in_flight,
    )


def test_future(bench: Bench) -> None:
    nbytes = 1 << 10
    bench.row(
        reduce_all,
        op="all_reduce by future",
        size=nbytes,
        bus_factor=bus_factor(bench.ranks.size),
        target=bench.against_gloo(1.0),
        count=nbytes // 4,
        burst=1,
        issue=by_future,
    )

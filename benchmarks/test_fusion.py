"""The gradients of ResNet-50, tensor by tensor: many small ones and a few large."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import pytest
import torch
import torch.distributed as dist

from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.models import Shape, gradient_shapes, resnet50
from benchmarks.payload import pattern, two_copies
from benchmarks.ranks import Rank
from benchmarks.test_all_reduce import bus_factor, in_flight, sync

pytestmark = pytest.mark.timeout(300)

SMALL = 64 << 10  # bytes; the default fusion cutoff
DDP_BROADCAST_BUCKET = 250 << 20  # bytes; DistributedDataParallel.broadcast_bucket_size


def in_bytes(shapes: list[Shape]) -> int:
    return 4 * sum(map(prod, shapes))


ALL = gradient_shapes(resnet50)
FEW_KB = [shape for shape in ALL if in_bytes([shape]) <= SMALL]
OTHERS = [shape for shape in ALL if shape not in FEW_KB]
FLAT: list[Shape] = [(in_bytes(ALL) // 4,)]
assert (len(ALL), len(FEW_KB), len(OTHERS)) == (161, 115, 46)


def broadcast(tensors: list[torch.Tensor], group: dist.ProcessGroup) -> None:
    """As DistributedDataParallel does with the parameters when it is made."""
    dist._broadcast_coalesced(group, tensors, DDP_BROADCAST_BUCKET, 0)


@dataclass(frozen=True)
class Work:
    """A call that moves one tensor of every shape."""

    shapes: list[Shape]
    issue: Callable[[list[torch.Tensor], dist.ProcessGroup], None]

    def over(self, group: dist.ProcessGroup, rank: int, size: int) -> Trial:
        tensors = [torch.empty(shape) for shape in self.shapes]
        contents = pattern(max(tensor.numel() for tensor in tensors))
        result = 1 if self.issue is broadcast else size * (size + 1) // 2

        def fill() -> None:
            for tensor in tensors:
                torch.mul(contents[: tensor.numel()].view_as(tensor), rank + 1, out=tensor)

        def check() -> None:
            for tensor in tensors:
                expected = contents[: tensor.numel()].view_as(tensor) * result
                assert torch.equal(tensor, expected), f"wrong result, {tuple(tensor.shape)}"

        return Trial(1, fill, lambda _: self.issue(tensors, group), check)


def trials(rank: Rank, work: Work, baseline: Work) -> tuple[Trial, dict[str, list[Trial]]]:
    """The limit, two copies of all that is moved, and the contenders."""
    contenders = {
        "backend": [work.over(group, rank.rank, rank.size) for group in rank.backend],
        "baseline": [baseline.over(group, rank.rank, rank.size) for group in rank.baseline],
    }
    payload = pattern(in_bytes(work.shapes) // 4)
    return two_copies(payload, [torch.empty_like(payload)]), contenders


def move(rank: Rank, *, work: Work, baseline: Work, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    return interleave(rank, *trials(rank, work, baseline), budget_s)


def row(
    bench: Bench, op: str, work: Work, target: float | None, baseline: Work | None = None
) -> None:
    bench.row(
        move,
        op=op,
        size=in_bytes(work.shapes),
        bus_factor=1.0 if work.issue is broadcast else bus_factor(bench.ranks.size),
        target=bench.against_gloo(target),
        work=work,
        baseline=baseline or work,
    )


def test_small_in_flight(bench: Bench) -> None:
    times = {2: 25, 4: 160} if bench.shares_memory else {2: 15, 4: 60}
    target = 1 / times[bench.ranks.size] if bench.ranks.size in times else None
    row(bench, f"all_reduce async, {len(FEW_KB)} small", Work(FEW_KB, in_flight), target)


def test_all_in_flight(bench: Bench) -> None:
    target = 1 / 5 if bench.shares_memory and bench.ranks.size == 2 else 1.0
    row(bench, f"all_reduce async, {len(ALL)}", Work(ALL, in_flight), target)


def test_large_in_flight(bench: Bench) -> None:
    row(bench, f"all_reduce async, {len(OTHERS)} large", Work(OTHERS, in_flight), 1.0)


def test_one_by_one(bench: Bench) -> None:
    row(bench, f"all_reduce, {len(ALL)}", Work(ALL, sync), 1.0)


def test_flat(bench: Bench) -> None:
    """What packing everything by hand would give."""
    row(bench, f"all_reduce, {len(ALL)} in one", Work(FLAT, sync), None)


def test_in_flight_against_flat(bench: Bench) -> None:
    """As many calls as there are tensors, and the baseline one for all that was packed before."""
    op = f"all_reduce async, {len(ALL)} against one"
    row(bench, op, Work(ALL, in_flight), 1.05, Work(FLAT, sync))


def test_broadcast(bench: Bench) -> None:
    row(bench, f"ddp broadcast of {len(ALL)}", Work(ALL, broadcast), 1.0)

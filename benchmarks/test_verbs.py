"""The collectives beside all_reduce: all_gather, reduce_scatter, broadcast, all_to_all, barrier.

Size is what a rank contributes: of reduce_scatter and all_to_all a part goes to each rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import pytest
import torch
import torch.distributed as dist

from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.payload import calls_per_block, pattern, two_copies
from benchmarks.ranks import Rank

pytestmark = pytest.mark.timeout(300)

QUICK_SIZES = (1 << 20, 1 << 24)
SIZES = (1 << 10, 1 << 16, 1 << 20, 1 << 22, 1 << 24)
BARRIERS = 64  # in a block
LATE_S = 0.005  # of a rank in a check; with more a row would have few rounds


@dataclass(frozen=True)
class Verb:
    """`call(output, input, group)`; what is in them, in elements, with `count` contributed."""

    call: Callable[[torch.Tensor, torch.Tensor, dist.ProcessGroup], object]
    outputs: Callable[[int, int], int]  # of count and size
    result: Callable[[torch.Tensor, int, int], torch.Tensor]  # of the pattern, rank and size


def parts(values: torch.Tensor, size: int) -> list[torch.Tensor]:
    return list(values.chunk(size))


# Rank r contributes the pattern times r + 1.
VERBS = {
    "all_gather": Verb(
        lambda out, own, group: dist.all_gather_into_tensor(out, own, group=group),
        lambda count, size: count * size,
        lambda values, _, size: torch.cat([values * (r + 1) for r in range(size)]),
    ),
    "reduce_scatter": Verb(
        lambda out, own, group: dist.reduce_scatter_tensor(out, own, group=group),
        lambda count, size: count // size,
        lambda values, rank, size: parts(values, size)[rank] * (size * (size + 1) // 2),
    ),
    "broadcast": Verb(
        lambda out, own, group: dist.broadcast(own if dist.get_rank() == 0 else out, 0, group),
        lambda count, _: count,
        lambda values, *_: values,
    ),
    "all_to_all": Verb(
        lambda out, own, group: dist.all_to_all_single(out, own, group=group),
        lambda count, _: count,
        lambda values, rank, size: torch.cat(
            [parts(values, size)[rank] * (r + 1) for r in range(size)]
        ),
    ),
}


def move(rank: Rank, *, name: str, count: int, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    verb = VERBS[name]
    calls = calls_per_block(4 * count)
    own = pattern(count) * (rank.rank + 1)
    outputs = [torch.empty(verb.outputs(count, rank.size)) for _ in range(calls)]
    if name == "broadcast" and rank.rank == 0:
        outputs = [own] * calls
    expected = verb.result(pattern(count), rank.rank, rank.size)

    def fill() -> None:
        for output in outputs:
            if output is not own:
                output.zero_()

    def check() -> None:
        assert all(torch.equal(output, expected) for output in outputs), "wrong result"

    def move_over(group: dist.ProcessGroup) -> Trial:
        def call(i: int) -> None:
            verb.call(outputs[i], own, group)

        return Trial(calls, fill, call, check)

    contenders = {
        "backend": [move_over(group) for group in rank.backend],
        "baseline": [move_over(group) for group in rank.baseline],
    }
    copies = [torch.empty(count) for _ in range(calls)]
    return interleave(rank, two_copies(pattern(count), copies), contenders, budget_s)


def meet(rank: Rank, *, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    turns = count()

    def barriers(group: dist.ProcessGroup) -> Trial:
        def call(_: int) -> None:
            dist.barrier(group=group)

        def check() -> None:
            """Each rank in turn comes late, and nobody leaves before it came."""
            late = next(turns) % rank.size
            if rank.rank == late:
                time.sleep(LATE_S)
            came = torch.tensor([time.monotonic()], dtype=torch.float64)  # the machine's own clock
            call(0)
            left = time.monotonic()
            dist.broadcast(came, late, group=rank.control)
            assert left >= came.item(), f"a barrier did not wait for rank {late}"

        return Trial(BARRIERS, lambda: None, call, check)

    contenders = {
        "backend": [barriers(group) for group in rank.backend],
        "baseline": [barriers(group) for group in rank.baseline],
    }
    word = torch.zeros(1)
    return interleave(rank, two_copies(word, [word.clone()] * BARRIERS), contenders, budget_s)


@pytest.mark.parametrize("name", VERBS)
def test_verb(bench: Bench, nbytes: int, name: str) -> None:
    target = bench.against_gloo(1 / 4) if bench.shares_memory and nbytes >= 1 << 20 else None
    bench.row(move, op=name, size=nbytes, target=target, name=name, count=nbytes // 4)


def test_barrier(bench: Bench) -> None:
    target = bench.against_gloo(1 / 8) if bench.shares_memory else None
    bench.row(meet, op="barrier", size=4, target=target)

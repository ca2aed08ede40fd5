"""Ranks that call different things: every rank hears what each one called, and where."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import CALLS, LARGE, SMALL, Call, check_group, expect_error, together
from rows import filled


def reduced(dtype: torch.dtype, op: Any, factor: int = 1) -> Call:
    return lambda group, count: dist.all_reduce(
        torch.ones(factor * count, dtype=dtype), op=op, group=group
    )


def broadcast_from(root: int) -> Call:
    return lambda group, count: dist.broadcast(torch.ones(count), src=root, group=group)


# A call, and how the error's description of it begins; {n} is its element count.
Described = tuple[Call, str]
ALL_REDUCE: Described = (CALLS["all_reduce"], "all_reduce(float32[{n}], SUM)")
DIFFERENT: dict[str, tuple[Described, Described]] = {
    "verb": (ALL_REDUCE, (broadcast_from(0), "broadcast(float32[{n}], root=0)")),
    "verb-all-gather": (ALL_REDUCE, (CALLS["all_gather"], "all_gather(float32[{n}]")),
    "verb-barrier": (ALL_REDUCE, (CALLS["barrier"], "barrier(")),
    "verb-all-to-all": ((CALLS["all_to_all"], "all_to_all(float32"), ALL_REDUCE),
    "dtype": (
        ALL_REDUCE,
        (reduced(torch.float64, dist.ReduceOp.SUM), "all_reduce(float64[{n}], SUM)"),
    ),
    "dtype-same-size": (
        ALL_REDUCE,
        (reduced(torch.int32, dist.ReduceOp.SUM), "all_reduce(int32[{n}], SUM)"),
    ),
    "shape": (
        ALL_REDUCE,
        (reduced(torch.float32, dist.ReduceOp.SUM, 2), "all_reduce(float32[{2n}], SUM)"),
    ),
    "op": (
        ALL_REDUCE,
        (reduced(torch.float32, dist.ReduceOp.MAX), "all_reduce(float32[{n}], MAX)"),
    ),
    "root": (
        (broadcast_from(0), "broadcast(float32[{n}], root=0)"),
        (broadcast_from(1), "broadcast(float32[{n}], root=1)"),
    ),
}


@pytest.mark.ranks(2, 3)
@pytest.mark.parametrize(
    ("first", "other"),
    [(SMALL, SMALL), (SMALL, LARGE), (LARGE, SMALL), (LARGE, LARGE)],
    ids=["small-small", "small-large", "large-small", "large-large"],
)
def test_different_calls(first: int, other: int) -> None:
    """After three calls that agree one that does not: all hear what each called as number 3."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [first if peer == 0 else other for peer in range(size)]

    def differ(what: str, group: dist.ProcessGroup) -> None:
        calls = [DIFFERENT[what][min(peer, 1)] for peer in range(size)]
        text = expect_error(lambda: calls[rank][0](group, counts[rank]), within=15)
        for peer, ((_, description), count) in enumerate(zip(calls, counts, strict=True)):
            said = description.replace("{n}", str(count)).replace("{2n}", str(2 * count))
            assert f"rank {peer} called {said}" in text, text
        assert re.search(r"(number|place) 3\b", text), text

    groups = {what: dist.new_group(timeout=timedelta(seconds=8)) for what in DIFFERENT}
    for group in groups.values():
        for count in (SMALL, LARGE, SMALL):
            dist.all_reduce(torch.ones(count), group=group)
    together({what: partial(differ, what, group) for what, group in groups.items()})
    check_group()


@pytest.mark.ranks(2, 3)
def test_different_calls_with_more_behind() -> None:
    """What was issued after the calls that differ fails too or is right, on every rank."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=4))
    first = dist.all_reduce(torch.ones(3 + (rank == 1)), group=group, async_op=True)
    behind = [dist.all_reduce(torch.ones(n), group=group, async_op=True) for n in (SMALL, LARGE)]
    text = expect_error(first.wait, within=12)
    assert "rank 0 called all_reduce(float32[3], SUM)" in text, text
    assert "rank 1 called all_reduce(float32[4], SUM)" in text, text
    for work in behind:
        try:
            work.wait()
            assert filled(work.result()[0], dist.get_world_size())
        except dist.DistBackendError:
            pass
    dist.barrier()

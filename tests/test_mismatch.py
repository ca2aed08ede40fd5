"""Ranks that call different things: every rank hears what each one called, and where."""

from __future__ import annotations

import os
import re
import time
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_hvd
from calls import (
    CALLS,
    LARGE,
    SMALL,
    Call,
    check_group,
    expect_error,
    says_called,
    together,
)
from ranks import RankPool
from rows import filled, reduce_op

ASIDE = 50_000  # float32 elements: more than a frame, and copied aside over shared memory


def reduced(dtype: torch.dtype, op: Any, factor: int = 1, async_op: bool = False) -> Call:
    return lambda group, count: dist.all_reduce(
        torch.ones(factor * count, dtype=dtype), op=op, group=group, async_op=async_op
    )


def broadcast_from(root: int, async_op: bool = False) -> Call:
    return lambda group, count: dist.broadcast(
        torch.ones(count), src=root, group=group, async_op=async_op
    )


def unlike_from_others(count: int) -> list[torch.Tensor]:
    """A tensor of each rank, of this one shorter: so the ranks differ, but not in the sum."""
    own = dist.get_rank()
    return [torch.ones(count * (1 + (rank != own))) for rank in range(dist.get_world_size())]


def gathered_unlike(group: dist.ProcessGroup | None, count: int) -> None:
    dist.all_gather(unlike_from_others(count), torch.ones(count), group=group)


def scattered_unlike(group: dist.ProcessGroup | None, count: int) -> None:
    dist.reduce_scatter(torch.ones(count), unlike_from_others(count), group=group)


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
    "op-with-factor": (
        ALL_REDUCE,
        (
            reduced(torch.float32, reduce_op("PREMUL_SUM")),
            "all_reduce(float32[{n}], PREMUL_SUM)",
        ),
    ),
    "root": (
        (broadcast_from(0), "broadcast(float32[{n}], root=0)"),
        (broadcast_from(1), "broadcast(float32[{n}], root=1)"),
    ),
    "shapes-all-gather": ((gathered_unlike, "all_gather(float32[{2n}])"),) * 2,
    "shapes-reduce-scatter": ((scattered_unlike, "reduce_scatter(float32["),) * 2,
}


@pytest.mark.ranks(2, 3, hosts=[3])
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
            assert says_called(text, peer, said), text
        assert re.search(r"(number|place) 3\b", text), text

    groups = {what: dist.new_group(timeout=timedelta(seconds=8)) for what in DIFFERENT}
    for group in groups.values():
        for count in (SMALL, LARGE, SMALL):
            dist.all_reduce(torch.ones(count), group=group)
    together({what: partial(differ, what, group) for what, group in groups.items()})
    check_group()


@pytest.mark.ranks(2, 3, hosts=[3], by_name=[2])
def test_different_calls_behind_large_ones() -> None:
    """Found within seconds also where the one before waits for the different one to advance."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group, calls = dist.new_group(), 10
    dist.barrier(group)
    works = []
    for call in range(1, calls + 1):
        op = dist.ReduceOp.MAX if call == calls and rank else dist.ReduceOp.SUM
        works.append(dist.all_reduce(torch.ones(LARGE), op=op, group=group, async_op=True))
    text = expect_error(lambda: [work.wait() for work in works if work], within=6)
    for peer in range(size):
        called = f"all_reduce(float32[{LARGE}], {'MAX' if peer else 'SUM'}) as number {calls}"
        assert says_called(text, peer, called), text


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("count", [ASIDE, LARGE])
def test_different_calls_by_shared_memory(count: int, attach: str) -> None:
    """Also where what is sent is copied aside, and the sender could be done by that."""
    with RankPool(2, env={"HVD_TRANSPORT": "shm", "HVD_CMA": attach}) as pool:
        pool.run(test_different_calls, count, count)


@pytest.mark.ranks(3, hosts=[3])
def test_different_calls_while_a_message_waits() -> None:
    """Which says as much as the collective, whichever of the two finds out first."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=8))
    check_group(group)
    counts = [LARGE, LARGE, 2 * LARGE]
    calls = {"all_reduce": partial(CALLS["all_reduce"], group, counts[rank])}
    if rank == 0:
        calls["recv"] = partial(CALLS["recv"], group, SMALL)
    texts = together({name: partial(expect_error, call, 12) for name, call in calls.items()})
    for text in texts.values():
        for peer, count in enumerate(counts):
            assert says_called(text, peer, f"all_reduce(float32[{count}], SUM)"), text
    if rank == 0:
        assert texts["recv"].startswith("hvd: recv from rank 1 failed on rank 0: "), texts


@pytest.mark.ranks(3)
def test_different_calls_of_which_a_rank_is_late() -> None:
    """With `check` all wait for it, hear of what each called, and the group works on."""
    rank = dist.get_rank()
    groups = {
        count: dist.new_group(pg_options=torch_hvd.Options(check=True)) for count in (SMALL, LARGE)
    }
    if rank == 2:
        time.sleep(5)  # the others compare where they are after 1 s, and again after 3

    def differ(group: dist.ProcessGroup, count: int) -> None:
        counts = [count, 2 * count, count]
        text = expect_error(lambda: CALLS["all_reduce"](group, counts[rank]), within=10)
        for peer, called in enumerate(counts):
            assert says_called(text, peer, f"all_reduce(float32[{called}], SUM)"), text
        check_group(group)

    together({f"{count}": partial(differ, group, count) for count, group in groups.items()})


@pytest.mark.ranks(2, 3, hosts=[3])
def test_different_calls_with_more_behind() -> None:
    """What was issued after the calls that differ fails too or is right, on every rank."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=4))
    first = dist.all_reduce(torch.ones(3 + (rank == 1)), group=group, async_op=True)
    behind = [dist.all_reduce(torch.ones(n), group=group, async_op=True) for n in (SMALL, LARGE)]
    text = expect_error(first.wait, within=12)
    for peer in range(dist.get_world_size()):
        assert says_called(text, peer, f"all_reduce(float32[{3 + (peer == 1)}], SUM)"), text
    for work in behind:
        try:
            work.wait()
            assert filled(work.result()[0], dist.get_world_size())
        except dist.DistBackendError:
            pass
    dist.barrier()


@pytest.mark.ranks(2, hosts=[3])
def test_splits_that_do_not_fit() -> None:
    """Rank 0 sends the last rank more than that expects, which hears how much. Others may have all
    that they want, and then hear of it by their next call, or at once.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    last = size - 1
    sends, expects = [3] * size, [3] * size
    if rank == 0:
        sends[last] = 5
    if rank == last:
        expects[0] = 4

    def exchange(group: dist.ProcessGroup, factor: int) -> None:
        dist.all_reduce(torch.ones(1), group=group)
        inputs, outputs = [factor * n for n in sends], [factor * n for n in expects]
        source, target = torch.ones(sum(inputs)), torch.empty(sum(outputs))
        call = partial(dist.all_to_all_single, target, source, outputs, inputs, group=group)
        told = f"rank 0 sends {5 * factor} elements to rank {last}, which expects {4 * factor}"
        if rank == last:
            text = expect_error(call, within=25)
            assert "all_to_all(float32), number 1 " in text, text
            assert told in text, text
            return
        try:
            call()
            assert filled(target, 1)
        except dist.DistBackendError as error:
            assert told in str(error), error

    groups = {
        (n, check): dist.new_group(
            timeout=timedelta(seconds=40), pg_options=torch_hvd.Options(check=check)
        )
        for n, check in product((1, LARGE), (False, True))
    }
    together({f"{n}, check={check}": partial(exchange, g, n) for (n, check), g in groups.items()})
    check_group()


def gathered(group: dist.ProcessGroup | None, count: int) -> Any:
    outputs = [torch.empty(count) for _ in range(dist.get_world_size(group))]
    return dist.all_gather(outputs, torch.ones(count), group=group, async_op=True)


ASYNC_ALL_REDUCE: Described = (
    reduced(torch.float32, dist.ReduceOp.SUM, async_op=True),
    "all_reduce(float32[{n}], SUM)",
)
DIFFERENT_ASYNC: dict[str, tuple[Described, Described]] = {
    "shape": (
        ASYNC_ALL_REDUCE,
        (
            reduced(torch.float32, dist.ReduceOp.SUM, 2, async_op=True),
            "all_reduce(float32[{2n}], SUM)",
        ),
    ),
    "dtype": (
        ASYNC_ALL_REDUCE,
        (
            reduced(torch.int32, dist.ReduceOp.SUM, async_op=True),
            "all_reduce(int32[{n}], SUM)",
        ),
    ),
    "op": (
        ASYNC_ALL_REDUCE,
        (
            reduced(torch.float32, dist.ReduceOp.MAX, async_op=True),
            "all_reduce(float32[{n}], MAX)",
        ),
    ),
    "op-with-factor": (
        ASYNC_ALL_REDUCE,
        (
            reduced(torch.float32, reduce_op("PREMUL_SUM"), async_op=True),
            "all_reduce(float32[{n}], PREMUL_SUM)",
        ),
    ),
    "root": (
        (broadcast_from(0, async_op=True), "broadcast(float32[{n}], root=0)"),
        (broadcast_from(1, async_op=True), "broadcast(float32[{n}], root=1)"),
    ),
    "verb": (
        ASYNC_ALL_REDUCE,
        (broadcast_from(0, async_op=True), "broadcast(float32[{n}], root=0)"),
    ),
    "verb-all-gather": ((gathered, "all_gather(float32[{n}]"), ASYNC_ALL_REDUCE),
    "verb-barrier": (
        ASYNC_ALL_REDUCE,
        (lambda group, _: dist.barrier(group=group, async_op=True), "barrier("),
    ),
}
BURST = 16
BURSTS = [(False, SMALL), (True, SMALL), (True, LARGE)]  # check, count


@pytest.mark.ranks(2, 4, by_name=[3])
@pytest.mark.parametrize(("check", "count"), BURSTS, ids=["small", "check-small", "check-large"])
def test_different_calls_in_a_burst(check: bool, count: int) -> None:
    """Of a burst of asynchronous calls just those that differ fail, on every rank."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def differ(what: str, group: dist.ProcessGroup) -> None:
        calls = [DIFFERENT_ASYNC[what][min(peer, 1)] for peer in range(size)]
        place = 0
        for wrong in ([5], [0], [3, 4, BURST - 1]):
            works: list[Any] = [
                (calls[rank][0] if turn in wrong else ASYNC_ALL_REDUCE[0])(group, count)
                for turn in range(BURST)
            ]
            for turn, work in enumerate(works):
                if turn not in wrong:
                    work.wait()
                    assert filled(work.result()[0], size), (what, turn, work.result())
                    continue
                text = expect_error(work.wait, within=15)
                for peer, (_, description) in enumerate(calls):
                    said = description.replace("{n}", str(count)).replace("{2n}", str(2 * count))
                    assert says_called(text, peer, said), text
                assert re.search(rf"place {place + turn}\b", text), text
            check_group(group)
            place += BURST + 2  # the two of check_group

    options = torch_hvd.Options(check=check)
    groups = {
        what: dist.new_group(timeout=timedelta(seconds=10), pg_options=options)
        for what in DIFFERENT_ASYNC
    }
    together({what: partial(differ, what, group) for what, group in groups.items()})
    check_group()


@pytest.mark.ranks(2, 4, by_name=[3])
def test_one_call_too_few_in_a_burst() -> None:
    """Rank 1 leaves one out: from there on nothing fits, and the others wait for its last call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    left_out = 5
    timeout = timedelta(seconds=3)
    # Over MPI whoever waits longest tells the other, whose own time is not up then.
    over_mpi = os.environ["HVD_TRANSPORT"] == "mpi"
    endings = ("timed out", "has given up") if over_mpi else ("timed out",)

    def leave_one_out(group: dist.ProcessGroup, count: int) -> None:
        counts = [count + turn for turn in range(BURST) if rank != 1 or turn != left_out]
        works: list[Any] = [
            dist.all_reduce(torch.ones(each), group=group, async_op=True) for each in counts
        ]
        for work in works[:left_out]:
            work.wait()
            assert filled(work.result()[0], size)
        for place in range(left_out, BURST - 1):
            text = expect_error(works[place].wait)
            for peer in range(size):
                called = f"all_reduce(float32[{count + place + (peer == 1)}], SUM)"
                assert says_called(text, peer, called), text
            assert re.search(rf"place {place}\b", text), text
        if rank != 1:
            text = expect_error(works[-1].wait, within=timeout.seconds + 8)
            last = f"all_reduce(float32[{count + BURST - 1}], SUM), number {BURST - 1} "
            assert last in text and any(word in text for word in endings), text
            assert "rank 1" in text, text

    waits = {}
    for check, count in BURSTS:
        options = torch_hvd.Options(check=check)
        group = dist.new_group(timeout=timeout, pg_options=options)
        waits[f"check={check}, {count}"] = partial(leave_one_out, group, count)
    together(waits)
    dist.barrier()
    check_group()

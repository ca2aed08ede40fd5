"""A rank that never calls: the others get an error in time that names the operation; none hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist

from calls import CALLS, LARGE, SMALL, Call, expect_error, together
from ranks import RankPool

pytestmark = pytest.mark.ranks(3, by_name=[2])
SHORT = timedelta(seconds=1)


def expect_timeout(operation: str, call: Callable[[], object], at_least: float = 0.8) -> str:
    """Run `call` where others do not follow; its error comes after about a second."""
    text = expect_error(call, within=6, not_before=at_least)
    assert operation in text and "time" in text.lower(), text
    return text


def lonely(calls: dict[str, Call], timeout: timedelta) -> None:
    """Rank 0 makes each call, small and large, in a new group; the others stay away until all have
    failed.

    The last word of a call's name is the operation that its error must name.
    """
    groups = {
        (name, count): dist.new_group(timeout=timeout) for name in calls for count in (SMALL, LARGE)
    }
    if dist.get_rank() == 0:
        together(
            {
                f"{name} of {count}": partial(
                    expect_timeout, name.split()[-1], partial(calls[name], group, count)
                )
                for (name, count), group in groups.items()
            }
        )
    dist.barrier()


def test_group_timeout() -> None:
    lonely(CALLS, SHORT)


@pytest.mark.ranks(3, hosts=[3], transports=["shm", "tcp"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_whose_time_was_up(count: int) -> None:
    """It is rank 0's; rank 2 has more, waits for rank 0, and hears why that gave up."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=SHORT if rank == 0 else timedelta(minutes=1))
    if rank != 1:
        text = expect_timeout("all_reduce", partial(CALLS["all_reduce"], group, count))
        assert rank == 0 or "rank 0 timed out and gave up" in text, text
    dist.barrier()


def with_set_timeout(group: dist.ProcessGroup | None, count: int) -> None:
    assert group is not None
    group.set_timeout(SHORT)
    dist.all_reduce(torch.ones(count), group=group)


def with_options(group: dist.ProcessGroup | None, count: int) -> None:
    assert group is not None
    options = dist.AllreduceOptions()
    options.timeout = SHORT
    group.allreduce([torch.ones(count)], options).wait()


def with_barrier_options(group: dist.ProcessGroup | None, count: int) -> None:
    assert group is not None
    options = dist.BarrierOptions()
    options.timeout = SHORT
    group.barrier(options).wait()


def with_wait(group: dist.ProcessGroup | None, count: int) -> None:
    work = dist.all_reduce(torch.ones(count), group=group, async_op=True)
    assert work is not None
    work.wait(SHORT)


def test_nearer_timeouts() -> None:
    """The timeout of a call, a wait or `set_timeout` holds, though the group's is far away."""
    calls: dict[str, Call] = {
        "set_timeout all_reduce": with_set_timeout,
        "options all_reduce": with_options,
        "options barrier": with_barrier_options,
        "wait all_reduce": with_wait,
    }
    lonely(calls, timedelta(seconds=30))


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("polls", [False, True])
def test_wait_for_a_message_that_comes_later(count: int, polls: bool) -> None:
    """As with a collective, a wait that is given up ends nothing but itself."""
    store = dist.distributed_c10d._get_default_store()
    rank, group = dist.get_rank(), dist.new_group()
    message = torch.zeros(count)
    if rank == 0:
        work = dist.irecv(message, 1, group=group)
        assert work is not None
        for _ in range(2 * polls):
            assert not work.is_completed()
        for _ in range(2):
            expect_timeout("recv from rank 1", lambda: work.wait(timedelta(seconds=0.3)), 0.3)
        store.set("send now", "")
        work.wait(timedelta(seconds=10))
    elif rank == 1:
        store.wait(["send now"])
        store.delete_key("send now")
        message += 1
        dist.send(message, 0, group=group)
    assert torch.all(message == (rank < 2))
    dist.barrier(group=group)


@pytest.mark.ranks(3)
def test_a_message_that_does_not_come_names_who_could_have_sent_it() -> None:
    senders: dict[int | None, str] = {2: "rank 2", None: "ranks 1-2"}
    groups = {sender: dist.new_group(timeout=SHORT) for sender in senders}

    def fails(sender: int | None) -> None:
        text = expect_timeout("recv", lambda: dist.recv(torch.ones(3), sender, groups[sender]))
        assert f"Timed out waiting for {senders[sender]}." in text, text

    if dist.get_rank() == 0:
        together({f"{sender}": partial(fails, sender) for sender in senders})
    dist.barrier()


@pytest.mark.ranks(3)
def test_a_send_that_nobody_waits_for_fails_its_group() -> None:
    """Dropped at once, it is as long under way as any other."""
    group = dist.new_group(timeout=SHORT)
    if dist.get_rank() == 0:
        dist.isend(torch.ones(LARGE), 1, group=group)
        end = time.monotonic() + 8
        with pytest.raises(dist.DistBackendError) as caught:
            while time.monotonic() < end:
                dist.send(torch.ones(1), 1, group=group, tag=1)  # which leaves at once
                time.sleep(0.02)
        assert "hvd: send to rank 1 failed on rank 0: " in str(caught.value)
    dist.barrier()


def test_timeouts_of_centuries() -> None:
    """They end no earlier than the clock does."""
    ages = timedelta(days=200_000)
    group = dist.new_group()
    if dist.get_rank() == 0:
        time.sleep(0.2)
    work = dist.all_reduce(torch.ones(LARGE), group=group, async_op=True)
    assert work is not None
    work.wait(ages)
    group.monitored_barrier(ages)
    group.set_timeout(ages)
    dist.all_reduce(torch.ones(SMALL), group=group)
    if dist.get_rank() == 0:
        work = dist.irecv(torch.empty(SMALL), 1, group=group)
        assert work is not None
        work.wait(ages)
    if dist.get_rank() == 1:
        time.sleep(0.2)
        dist.send(torch.ones(SMALL), 0, group=group)
    dist.destroy_process_group(group)


def test_future_fails_without_a_wait() -> None:
    """Nobody waits for the Work: its future fails all the same, and everything behind it too."""
    groups = {count: dist.new_group(timeout=SHORT) for count in (SMALL, LARGE)}
    if dist.get_rank() == 0:
        begun = time.monotonic()
        works = [
            dist.all_reduce(torch.ones(count), group=group, async_op=True)
            for count, group in groups.items()
            for _ in range(3)
        ]
        for work in works:
            with pytest.raises(RuntimeError, match="all_reduce"):
                work.get_future().wait()
            assert work.is_completed() and not work.is_success()
            assert isinstance(work.exception(), RuntimeError)
        assert time.monotonic() - begun < 6
    dist.barrier()


def test_others_hear_of_it() -> None:
    """Once a rank has given up, the rest soon find the group broken."""
    group = dist.new_group(timeout=timedelta(seconds=2))
    if dist.get_rank() == 0:
        expect_timeout("all_reduce", lambda: dist.all_reduce(torch.ones(5), group=group), 1.5)
    else:
        time.sleep(4)
        begun = time.monotonic()
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(5), group=group)
        assert time.monotonic() - begun < 5
    dist.barrier()


@pytest.mark.ranks(3)
def test_who_comes_late_hears_who_has_timed_out() -> None:
    """Not of a rank that has only given up because of that."""
    rank, group = dist.get_rank(), dist.new_group()
    assert group is not None
    if rank == 0:
        expect_timeout("all_reduce", partial(with_options, group, SMALL))
    if rank == 2:
        dist.barrier()
    if rank > 0:
        text = expect_error(lambda: dist.all_reduce(torch.ones(SMALL), group=group))
        assert "rank 0 timed out and gave up" in text, text
    if rank < 2:
        dist.barrier()


def timed_out_group() -> None:
    group = dist.new_group(timeout=SHORT)
    if dist.get_rank() == 0:
        text = expect_timeout("all_reduce", lambda: dist.all_reduce(torch.ones(3), group=group))
        assert "timed out after 1000 ms" in text, text
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(dist.DistBackendError):
                dist.all_reduce(torch.ones(3), group=group)
            assert time.monotonic() - begun < 0.5, "a broken group says so at once"
    dist.barrier()
    dist.destroy_process_group(group)


def test_broken_group_says_so_at_once_and_can_be_destroyed(pool: RankPool) -> None:
    pool.run(timed_out_group)


def times_out(count: int, group: dist.ProcessGroup) -> None:
    text = expect_timeout("all_reduce", lambda: dist.all_reduce(torch.ones(count), group=group))
    assert "rank 1 left no word" in text, text


def test_suspended_rank() -> None:
    """A rank is there but does not run: an error in time, which says who is missing."""
    groups = {count: dist.new_group() for count in (SMALL, LARGE)}
    for group in groups.values():
        group.set_timeout(SHORT)
    if dist.get_rank() == 1:
        child = os.fork()
        if child == 0:
            time.sleep(4)
            os.kill(os.getppid(), signal.SIGCONT)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(child, 0)
    else:
        together({f"{count}": partial(times_out, count, g) for count, g in groups.items()})
    dist.barrier()


def test_a_late_rank_is_no_error() -> None:
    if dist.get_rank() == 1:
        time.sleep(1.5)
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()

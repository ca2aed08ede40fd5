"""send, recv and kin: every dtype and layout, tags, any source, batches; not behind collectives."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import rows
from calls import SMALL, cpu_backend, expect_error
from footprint import settled
from ranks import RankPool
from rows import Row, filled

pytestmark = pytest.mark.ranks(2, 4, hosts=[4], mpi_hosts=[3], by_name=[3], rails=[3])
SHAPES = rows.SMALL_SHAPES + rows.LARGE_SHAPES + rows.HUGE_SHAPES


def ring() -> tuple[int, int, int, int]:
    """This rank, the world size, the next rank and the previous one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    return rank, size, (rank + 1) % size, (rank - 1) % size


@pytest.mark.parametrize("dtype", rows.MOVABLE, ids=rows.name)
def test_send_recv(dtype: torch.dtype) -> None:
    rank, _, following, previous = ring()
    for shape in SHAPES:
        row = Row(dtype, "SUM", shape, async_op=False)
        print(row)
        received = row.output()
        if rank % 2 == 0:
            dist.send(row.input(), dst=following)
            assert dist.recv(received, src=previous) == previous
        else:
            assert dist.recv(received, src=previous) == previous
            dist.send(row.input(), dst=following)
        row.equal(received, row.values(previous))


@pytest.mark.parametrize("dtype", rows.MOVABLE, ids=rows.name)
def test_isend_irecv(dtype: torch.dtype) -> None:
    _, _, following, previous = ring()
    for shape in SHAPES:
        row = Row(dtype, "SUM", shape, async_op=True)
        print(row)
        received = row.output()
        works = [dist.irecv(received, src=previous), dist.isend(row.input(), dst=following)]
        for work in works:
            assert work is not None
            work.wait()
            assert work.is_completed()
        row.equal(received, row.values(previous))


def test_tags_match_out_of_order() -> None:
    _, _, following, previous = ring()
    works = [dist.isend(torch.full((5,), float(tag)), dst=following, tag=tag) for tag in range(4)]
    for tag in (3, 0, 2, 1):
        received = torch.zeros(5)
        dist.recv(received, src=previous, tag=tag)
        assert received.tolist() == [tag] * 5
    for work in works:
        assert work is not None
        work.wait()


def test_messages_keep_their_order() -> None:
    _, _, following, previous = ring()
    works = [dist.isend(torch.full((k + 1,), k), dst=following) for k in range(20)]
    for k in range(20):
        received = torch.zeros(k + 1, dtype=torch.int64)
        dist.recv(received, src=previous)
        assert received.tolist() == [k] * (k + 1)
    for work in works:
        assert work is not None
        work.wait()


def sends_to_who_waits_for_something_else(count: int) -> None:
    store, key = dist.distributed_c10d._get_default_store(), f"percent of {count} sent"
    in_a_percent = (24 << 20) // (4 * count + 512) // 100
    messages = [float(number) for number in range(100 * in_a_percent)]
    if dist.get_rank() == 0:
        last = dist.irecv(torch.empty(1), 1, tag=2)
        assert last is not None
        before, now = -1, 0
        while before != now:
            time.sleep(0.5)
            before, now = now, store.add(key, 0)
        assert now < 50
        received = torch.empty(count)
        for number in messages:
            dist.recv(received, 1, tag=1)
            assert received[0] == received[-1] == number
        last.wait()
    elif dist.get_rank() == 1:
        for number in messages:
            dist.send(torch.full((count,), number), 0, tag=1)
            if (number + 1) % in_a_percent == 0:
                store.add(key, 1)
        dist.send(torch.zeros(1), 0, tag=2)
    dist.barrier()


# MPI keeps all that is short itself.
@pytest.mark.ranks(2, transports=["tcp", "shm", "gloo"], hosts=[4], rails=[3])
@pytest.mark.parametrize("count", [16384, 100])
def test_sender_does_not_run_away(pool: RankPool, count: int) -> None:
    """From a receiver that would have to keep all that comes."""
    # A processor that is busy elsewhere takes a while for 27,000 messages over Gloo.
    pool.run(sends_to_who_waits_for_something_else, count, deadline=100)


def test_recv_from_any_source() -> None:
    """Rank 0 takes one message of each rank in whatever order and is told whose it is."""
    rank, size, _, _ = ring()
    for count in (1, 30_000):
        dist.barrier()
        if rank:
            dist.send(torch.full((count,), rank), dst=0, tag=7)
            continue
        sources = set()
        for _ in range(size - 1):
            received = torch.zeros(count, dtype=torch.int64)
            source = dist.recv(received, tag=7)
            assert received.tolist() == [source] * count
            sources.add(source)
        assert sources == set(range(1, size))


@pytest.mark.parametrize("count", [1, 125, 2500, 30_000])
def test_recv_from_any_source_after_its_message_has_come(count: int) -> None:
    rank, size, _, _ = ring()
    for turn in range(10):
        works = []
        if rank:
            works.append(dist.isend(torch.full((count,), rank + turn), dst=0, tag=turn))
        dist.barrier()
        if rank == 0:
            received = torch.zeros(count, dtype=torch.int64)
            sources = set()
            for _ in range(size - 1):
                source = dist.recv(received, tag=turn)
                assert received.tolist() == [source + turn] * count
                sources.add(source)
            assert sources == set(range(1, size))
        for work in works:
            assert work is not None
            work.wait()


# To MPI the messages of two ranks have no order, and Gloo sends none before its receive.
@pytest.mark.ranks(3, 4, hosts=[4], rails=[3])
@pytest.mark.parametrize("count", [1, 5_000, 30_000, 300_000])
def test_recv_from_any_source_takes_what_came_first(count: int) -> None:
    rank, size, _, _ = ring()
    dist.barrier()
    works = []
    for sender in range(size - 1, 0, -1):
        if rank == sender:
            works += [dist.isend(torch.full((count,), sender), dst=0) for _ in range(2)]
        dist.barrier()
        if rank == 0:
            time.sleep(0.1)  # between hosts it may take another way than the barrier
        dist.barrier()  # rank 0 has come out of the first one
    if rank == 0:
        received = torch.zeros(count, dtype=torch.int64)
        sources = [dist.recv(received) for _ in range(2 * (size - 1))]
        assert sources == [sender for sender in range(size - 1, 0, -1) for _ in range(2)]
    for work in works:
        assert work is not None
        work.wait()


# Gloo looks for a receive from that rank before one from any.
@pytest.mark.ranks(2, 3, transports=["tcp", "shm", "mpi"], hosts=[4], mpi_hosts=[3], rails=[3])
@pytest.mark.parametrize("count", [1, 30_000])
def test_receives_keep_their_order_whomever_they_are_from(count: int) -> None:
    """Those that the same message could be for; one of another tag does not wait behind them."""
    rank, _, _, _ = ring()
    from_whom = [None, 1, None, 1, 1, None]
    received = [torch.zeros(count, dtype=torch.int64) for _ in from_whom]
    if rank == 0:
        receives = [
            dist.irecv(tensor, src) for tensor, src in zip(received, from_whom, strict=True)
        ]
        other = torch.zeros(count, dtype=torch.int64)
        dist.recv(other, 1, tag=1)
        assert other.tolist() == [-1] * count
    elif rank == 1:
        dist.send(torch.full((count,), -1), 0, tag=1)
    dist.barrier()
    if rank == 1:
        works = [dist.isend(torch.full((count,), place), 0) for place in range(len(from_whom))]
        for work in works:
            assert work is not None
            work.wait()
    if rank == 0:
        for work in reversed(receives):
            assert work is not None
            work.wait()
        assert [tensor.tolist() for tensor in received] == [
            [place] * count for place in range(len(from_whom))
        ]


def test_recv_from_any_source_names_the_global_rank() -> None:
    """In a group whose ranks are not the global ones."""
    rank, size, _, _ = ring()
    last_two = dist.new_group([size - 2, size - 1])
    if rank == size - 1:
        dist.send(torch.tensor([5]), dst=size - 2, group=last_two)
    elif rank == size - 2:
        received = torch.zeros(1, dtype=torch.int64)
        assert dist.recv(received, group=last_two) == size - 1
        assert received.item() == 5
    dist.barrier()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.float8_e4m3fn], ids=rows.name)
def test_batch_isend_irecv(dtype: torch.dtype) -> None:
    """Everyone to everyone, small and large messages in one batch."""
    rank, size, _, _ = ring()
    others = [other for other in range(size) if other != rank]
    for shape in (rows.SMALL_SHAPES[4], rows.LARGE_SHAPES[0]):
        row = Row(dtype, "SUM", shape, async_op=True)
        received = {other: row.output() for other in others}
        batch = [dist.P2POp(dist.isend, row.input(slot=other), other) for other in others]
        batch += [dist.P2POp(dist.irecv, received[other], other) for other in others]
        for work in dist.batch_isend_irecv(batch):
            work.wait()
        for other in others:
            row.equal(received[other], row.values(other, slot=rank), f"from rank {other}")


@pytest.mark.parametrize("count", [10, 500_000])
def test_does_not_wait_behind_collectives(count: int) -> None:
    """Rank 0 has an all_reduce in flight that rank 1 joins only after a message from rank 0."""
    rank = dist.get_rank()
    tensor = torch.ones(count)
    message = torch.zeros(3)
    if rank == 1:
        dist.recv(message, src=0)
        assert message.tolist() == [1, 1, 1]
        dist.all_reduce(tensor)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        if rank == 0:
            dist.send(torch.ones(3), dst=1)
        work.wait()
    assert torch.equal(tensor, torch.full((count,), float(dist.get_world_size())))


@pytest.mark.ranks(3, hosts=[4], rails=[3])
@pytest.mark.parametrize("count, messages", [(16384, 400), (100, 30_000), (4_000_000, 2)])
def test_who_is_late_to_receive_keeps_nothing_from_others(
    pool: RankPool, count: int, messages: int
) -> None:
    pool.run(sends_beside_who_is_late, count, messages)


def sends_beside_who_is_late(count: int, messages: int) -> None:
    """Rank 1 receives what fills its sender's memory only once rank 2 has a message sent later."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    key = f"rank 2 has its message {count}"
    message = torch.ones(count)
    if rank == 0:
        works = [dist.isend(message, 1) for _ in range(messages)]
        dist.send(torch.ones(300), 2)
        for work in works:
            assert work is not None
            work.wait()
    elif rank == 1:
        store.wait([key])
        for _ in range(messages):
            message.zero_()
            dist.recv(message, 0)
            assert filled(message, 1)
    elif rank == 2:
        dist.recv(torch.zeros(300), 0)
        store.set(key, "")
    dist.barrier()


@pytest.mark.ranks(3)
def test_messages_that_were_called_together() -> None:
    """They have one work, which is done when the last of them is, and fails if one does."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    group, device = dist.new_group(), torch.device("cpu")
    assert group is not None
    if rank == 0:
        received = torch.zeros(2, SMALL)
        group._start_coalescing(device)
        for peer in (1, 2):
            dist.irecv(received[peer - 1], peer, group=group)
        joint = group._end_coalescing(device)
        text = expect_error(lambda: joint.wait(timedelta(seconds=0.3)))
        assert "timed out waiting 300 ms for recv from rank 2" in text, text
        assert not joint.is_completed()
        store.set("first has come", "")
        joint.wait()
        assert joint.is_completed() and joint.is_success()
        assert filled(received[0], 1) and filled(received[1], 2)

        group._start_coalescing(device)
        dist.irecv(received[0], 1, group=group)
        joint = group._end_coalescing(device)
        cpu_backend(group).abort()
        expect_error(joint.wait)
        assert joint.is_completed() and not joint.is_success()
    else:
        if rank == 2:
            store.wait(["first has come"])
        dist.send(torch.full((SMALL,), float(rank)), 0, group=group)
    dist.barrier()


@pytest.mark.ranks(2)
def test_sends_dropped_at_once_leave_no_threads() -> None:
    """Each has one; when that has ended, its stack is there until the next such send joins it."""
    rank, sends = dist.get_rank(), 200

    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    def drop(count: int) -> None:
        for _ in range(count):
            dist.isend(torch.ones(SMALL), 1) if rank == 0 else dist.recv(torch.ones(SMALL), 0)

    drop(1)
    most = threads() + 5
    mappings = []
    for turn in range(2):
        drop(turn * sends)
        settled(lambda: threads() <= most, lambda: f"{threads()} threads")
        drop(1)
        mappings.append(Path("/proc/self/maps").read_text().count("\n"))
    assert mappings[1] - mappings[0] < sends / 2, mappings
    dist.barrier()


def test_to_oneself_is_an_error() -> None:
    with pytest.raises(ValueError, match="rank"):
        dist.send(torch.ones(1), dst=dist.get_rank())


@pytest.mark.parametrize("count", [10, 500_000])
def test_sender_leaves_before_the_message_is_received(count: int) -> None:
    """It has yet to wait for it."""
    rank, size, _, _ = ring()
    group = dist.new_group()
    message = torch.arange(count)
    if rank == 0:
        sent = [dist.isend(message, to, group=group) for to in range(1, size)]
        dist.destroy_process_group(group)
    dist.barrier()
    if rank == 0:
        for work in sent:
            assert work is not None
            work.wait()
    else:
        time.sleep(0.5)
        got = torch.empty_like(message)
        dist.recv(got, 0, group=group)
        assert torch.equal(got, message)

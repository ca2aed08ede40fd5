"""Python objects between ranks, and the barriers."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import cpu_backend

pytestmark = pytest.mark.ranks(2, 3)


def thing(rank: int) -> dict[str, object]:
    """An object whose pickle has another length on each rank."""
    return {"rank": rank, "text": "x" * (100 ** (rank % 3)), "tensor": [1.5] * rank}


def test_all_gather_object() -> None:
    size = dist.get_world_size()
    got: list[object] = [None] * size
    dist.all_gather_object(got, thing(dist.get_rank()))
    assert got == [thing(rank) for rank in range(size)]


@pytest.mark.parametrize("root", [0, 1])
def test_gather_object(root: int) -> None:
    size = dist.get_world_size()
    got: list[object] | None = [None] * size if dist.get_rank() == root else None
    dist.gather_object(thing(dist.get_rank()), got, dst=root)
    assert got == ([thing(rank) for rank in range(size)] if dist.get_rank() == root else None)


@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_object_list(root: int) -> None:
    sent = [thing(2), None, "three"]
    got = sent if dist.get_rank() == root else [None] * 3
    dist.broadcast_object_list(got, src=root)
    assert got == sent


@pytest.mark.parametrize("root", [0, 1])
def test_scatter_object_list(root: int) -> None:
    size = dist.get_world_size()
    got: list[object] = [None]
    dist.scatter_object_list(
        got, [thing(rank) for rank in range(size)] if dist.get_rank() == root else None, src=root
    )
    assert got == [thing(dist.get_rank())]


def test_send_object_list() -> None:
    got: list[object] = [None, None]
    if dist.get_rank() == 0:
        dist.send_object_list([thing(2), 7], dst=1)
    elif dist.get_rank() == 1:
        dist.recv_object_list(got, src=0)
        assert got == [thing(2), 7]
    dist.barrier()


@pytest.mark.parametrize("async_op", [False, True])
@pytest.mark.parametrize("late", [0, 1])
def test_barrier_waits_for_the_last(async_op: bool, late: int) -> None:
    if dist.get_rank() == late:
        time.sleep(0.4)
    called = time.monotonic()  # the same clock for all ranks
    work = dist.barrier(async_op=async_op)
    if async_op:
        assert work is not None
        work.wait()
        assert work.is_completed()
    times: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(times, (called, time.monotonic()))
    last_called = max(called for called, _ in times)
    assert all(last_called <= returned < last_called + 5 for _, returned in times), times


def test_barrier_after_collectives_in_flight() -> None:
    """A barrier keeps its place: what was issued before it is done after it."""
    tensor = torch.ones(300_000)
    work = dist.all_reduce(tensor, async_op=True)
    dist.barrier()
    assert work.is_completed()
    assert tensor[-1] == dist.get_world_size()


def monitored_barrier(seconds: float, wait_all_ranks: bool = False) -> None:
    # The public function is closed to backends of other names than gloo up to torch 2.13.
    group: Any = dist.group.WORLD
    group.monitored_barrier(timedelta(seconds=seconds), wait_all_ranks)


def test_monitored_barrier() -> None:
    """It leaves nothing in the store."""
    store = dist.distributed_c10d._get_default_store()
    keys = []
    for _ in range(3):
        monitored_barrier(5.0)
        dist.barrier()
        keys.append(store.num_keys())
        dist.barrier()
    assert keys == keys[:1] * 3


@pytest.mark.parametrize("wait_all_ranks", [False, True])
def test_monitored_barrier_names_the_missing(wait_all_ranks: bool) -> None:
    """Rank 0 hears within the timeout who did not come; the others do not hang."""
    rank, missing = dist.get_rank(), list(range(1, dist.get_world_size()))
    if rank == 0:
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            monitored_barrier(1.0, wait_all_ranks)
        assert time.monotonic() - begun < 4
        text = str(caught.value)
        named = f"Ranks {', '.join(map(str, missing))}" if wait_all_ranks else "Rank 1"
        assert f"hvd: {named} failed to pass monitoredBarrier in 1000 ms" in text, text
    else:
        time.sleep(1.5)


@pytest.mark.ranks(3)
def test_monitored_barrier_tells_all_who_come_whom_it_has_missed() -> None:
    """Who waits there, and whoever comes when it is over."""
    rank = dist.get_rank()
    group: Any = dist.new_group()
    if rank == 2:
        dist.barrier()
    with pytest.raises(dist.DistBackendError) as caught:
        group.monitored_barrier(timedelta(seconds=1))
    text = str(caught.value)
    if rank == 0:
        assert "hvd: Rank 2 failed to pass monitoredBarrier in 1000 ms" in text, text
    else:
        came = f"hvd: Rank {rank} successfully reached monitoredBarrier, but received errors while"
        assert text.startswith(came) and "from rank 0: it missed rank 2" in text, text
    if rank < 2:
        dist.barrier()


def test_monitored_barrier_that_does_not_wait() -> None:
    """Its error blames no rank that had no time to come."""
    group: Any = dist.new_group()
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError) as caught:
            group.monitored_barrier(timedelta(0))
        said = "hvd: Rank 0 timed out in monitoredBarrier after 0 ms, waiting for rank 1"
        assert said in str(caught.value)
    dist.barrier()


def test_monitored_barrier_takes_the_timeout_of_its_group() -> None:
    group: Any = dist.new_group()
    group.set_timeout(timedelta(seconds=0.5))
    if dist.get_rank() == 0:
        with pytest.raises(dist.DistBackendError, match="in 500 ms"):
            group.monitored_barrier()
    dist.barrier()


def test_monitored_barrier_of_a_group_that_is_shut_down() -> None:
    """Says so at once: nobody could come."""
    group: Any = dist.new_group()
    cpu_backend(group).shutdown()
    with pytest.raises(RuntimeError, match=r"monitored_barrier: process group .* has been shut"):
        group.monitored_barrier(timedelta(seconds=10))
    dist.barrier()

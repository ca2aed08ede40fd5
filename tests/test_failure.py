"""A rank that dies: every pending and later call of the others fails in seconds."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist

from calls import CALLS, LARGE, SMALL, expect_error, says_called, together
from ranks import Lost, RankPool, bare_store
from rows import filled

SYMMETRIC = ["all_reduce", "broadcast", "all_gather", "all_to_all", "barrier"]
Sized = tuple[str, int]  # a call, and its element count


def used_groups() -> dict[Sized, dist.ProcessGroup]:
    """A group for each call and size, which has made it once."""
    groups = {sized: dist.new_group() for sized in product(SYMMETRIC, (SMALL, LARGE))}
    for (call, count), group in groups.items():
        CALLS[call](group, count)
    return groups


def in_each(groups: dict[Sized, dist.ProcessGroup], test: Callable[..., None]) -> None:
    """Run `test(call, count, group)` for all at once."""
    together({str(sized): partial(test, *sized, group) for sized, group in groups.items()})


def fails(victim: int, call: str, count: int, group: dist.ProcessGroup) -> None:
    """The victim dies in or before the call; more calls are behind it."""
    first = partial(CALLS[call], group, count)
    behind = [dist.all_reduce(torch.ones(n), group=group, async_op=True) for n in (SMALL, LARGE)]
    for work in behind[::-1]:
        assert work is not None
        text = expect_error(work.wait)
        assert "all_reduce" in text and "timed out after" not in text, text
        assert work.is_completed() and not work.is_success()
        with pytest.raises(RuntimeError):
            work.get_future().wait()
        if dist.get_world_size() == 2:
            assert f"rank {victim}" in text, text
    for _ in range(2):
        expect_error(first, within=1)


def dies_while_others_wait(victim: int) -> None:
    groups = used_groups()
    if dist.get_rank() == victim:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    in_each(groups, partial(fails, victim))


def finds_out(call: str, count: int, group: dist.ProcessGroup) -> None:
    """A broadcast may get along without the victim, but not the barrier behind it."""
    expect_error(lambda: (CALLS[call](group, count), dist.barrier(group)))


def dies_while_others_are_elsewhere(victim: int) -> None:
    """Nobody is in a call when the victim goes; the next one that needs it finds out."""
    groups = used_groups()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1)
    in_each(groups, finds_out)


@pytest.mark.ranks(2, 3, hosts=[3], by_name=[3], rails=[3])
@pytest.mark.parametrize("first_dies", [True, False])
@pytest.mark.parametrize(
    "scene", [dies_while_others_wait, dies_while_others_are_elsewhere], ids=lambda s: s.__name__
)
def test_killed_rank(pool: RankPool, scene: Callable[[int], None], first_dies: bool) -> None:
    victim = 0 if first_dies else pool.size - 1
    results = pool.run(scene, victim, lost=[victim])
    assert results[victim] == Lost(-signal.SIGKILL)


def dies_after_a_stall() -> None:
    """Ranks 1 and 2 have told where they were once; what they say of that is over by now."""
    rank = dist.get_rank()
    if rank == 0:
        time.sleep(2.5)
    for _ in range(3):
        dist.all_reduce(torch.ones(SMALL))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        time.sleep(0.4)
    text = expect_error(lambda: dist.all_reduce(torch.ones(SMALL + 1)), within=2)
    for survivor in (0, 2):
        assert says_called(text, survivor, f"all_reduce(float32[{SMALL + 1}], SUM)"), text
    last_heard = "when last heard of"
    if os.environ["HVD_TRANSPORT"] != "gloo":  # which does not tell who has died
        last_heard += ", then left or died"
    assert not says_called(text, 1, "") or last_heard in text, text


@pytest.mark.ranks(3, by_name=[3])
def test_killed_after_a_stall(pool: RankPool) -> None:
    pool.run(dies_after_a_stall, lost=[1])


def dies_in_a_conversation(victim: int) -> None:
    rank = dist.get_rank()
    if rank == victim:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    text = expect_error(lambda: dist.recv(torch.zeros(3), src=victim))
    assert "recv" in text and f"rank {victim}" in text, text
    expect_error(lambda: dist.recv(torch.zeros(3), src=victim), within=1)


@pytest.mark.ranks(2, 3, hosts=[3], by_name=[3], rails=[3])
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_peer(pool: RankPool, victim: int) -> None:
    pool.run(dies_in_a_conversation, victim, lost=[victim])


def suspend_itself(seconds: float) -> None:
    child = os.fork()
    if child == 0:
        time.sleep(seconds)
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os.waitpid(child, 0)


def gives_up_because_another_died() -> None:
    """Rank 1 gives up with a message to rank 0 on its way, which has not begun to read it."""
    rank = dist.get_rank()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 1:
        time.sleep(1)
        dist.isend(torch.ones(LARGE), dst=0)
        expect_error(lambda: dist.all_reduce(torch.zeros(3)))
    else:
        work = dist.irecv(torch.zeros(LARGE), src=1)
        assert work is not None
        suspend_itself(2)
        text = expect_error(work.wait)
        assert "rank 2 has left or died" in text, text


@pytest.mark.ranks(3, transports=["shm"])
def test_peer_of_a_killed_rank(pool: RankPool) -> None:
    pool.run(gives_up_because_another_died, lost=[2])


def dies_beside_another_group() -> None:
    """A group that the dead rank was not in goes on."""
    group = dist.new_group([0, 1])
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    expect_error(dist.barrier)
    for count in (SMALL, LARGE):
        tensor = torch.ones(count)
        dist.all_reduce(tensor, group=group)
        assert tensor[-1] == 2


@pytest.mark.ranks(3, hosts=[3])
def test_killed_rank_of_another_group(pool: RankPool) -> None:
    pool.run(dies_beside_another_group, lost=[2])


@pytest.mark.ranks(2, by_name=[2])
def test_suspended_rank() -> None:
    """A rank that is only suspended for a while is not taken for dead."""
    if dist.get_rank() == 1:
        suspend_itself(2)
    tensor = torch.ones(LARGE)
    dist.all_reduce(tensor)
    assert tensor[0] == dist.get_world_size()


def dies_and_leaves_a_child() -> None:
    """As one with data loaders does, which hold all of its file descriptors."""
    dist.barrier()
    if dist.get_rank() == 1:
        if os.fork() == 0:
            time.sleep(6)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    expect_error(lambda: dist.all_reduce(torch.ones(SMALL)), within=4)


@pytest.mark.ranks(2, transports=["shm", "tcp", "mpi"])
def test_killed_rank_with_children(pool: RankPool) -> None:
    pool.run(dies_and_leaves_a_child, lost=[1])


def dies_with_the_store() -> None:
    """Rank 0 hosts the store, as it does without a launcher."""
    rank = int(os.environ["RANK"])
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        bare_store().set("port", str(store.port))
    else:
        port = int(bare_store().get("port"))
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("hvd", store=store, rank=rank, world_size=3)
    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    text = expect_error(lambda: dist.all_reduce(torch.ones(SMALL)), within=2)
    assert "the store does not answer" in text, text
    assert os.environ["HVD_TRANSPORT"] == "gloo" or "rank 0 has left or died" in text, text


@pytest.mark.parametrize("transport", ["gloo", "shm", "tcp"])
def test_killed_host_of_the_store(transport: str) -> None:
    with RankPool(3, backend="", env={"HVD_TRANSPORT": transport}) as pool:
        pool.run(dies_with_the_store, lost=[0])


def leaves() -> None:
    dist.barrier()
    if dist.get_rank() == 1:
        os._exit(7)
    expect_error(lambda: dist.all_reduce(torch.ones(SMALL)))


@pytest.mark.ranks(2, by_name=[2])
def test_exited_rank(pool: RankPool) -> None:
    """A rank that ends without a word is like a killed one."""
    assert pool.run(leaves, lost=[1])[1] == Lost(7)


@pytest.mark.ranks(3, hosts=[3], transports=["shm", "tcp", "mpi"])
def test_all_others_have_left() -> None:
    """A receive from any rank fails once there is none; with some it waits."""
    group = dist.new_group()
    rank = dist.get_rank()
    begun = time.monotonic()
    dist.barrier()  # no rank falls asleep before another's `begun`
    if rank == 0:
        text = expect_error(lambda: dist.recv(torch.zeros(3), group=group))
        assert "all other" in text, text
        assert time.monotonic() - begun > 1
    else:
        time.sleep(rank * 0.5)
        dist.destroy_process_group(group)
    dist.barrier()


# Gloo does not tell that a rank has left from what fails a group.
@pytest.mark.ranks(3, hosts=[3], transports=["shm", "tcp", "mpi"], mpi_hosts=[3], rails=[3])
@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("polls", [False, True])
def test_messages_of_a_rank_that_has_left(count: int, polls: bool) -> None:
    """They fail; those of others do not."""
    rank, group = dist.get_rank(), dist.new_group()
    tensor = torch.full((count,), float(rank))
    dist.barrier(group=group)
    if rank == 1:
        time.sleep(0.3)
        dist.destroy_process_group(group)
    elif rank == 0:
        receive = dist.irecv(tensor, 1, group=group)
        assert receive is not None
        for _ in range(2 * polls):
            assert not receive.is_completed()
        for wait in (receive.wait, lambda: dist.recv(tensor, 1, group=group)):
            text = expect_error(wait)
            assert "recv from rank 1" in text and "left or died" in text, text
        if count == LARGE:
            text = expect_error(lambda: dist.send(tensor, 1, group=group))
            assert "send to rank 1" in text and "left or died" in text, text
        dist.send(torch.zeros(count), 2, group=group)
        dist.recv(tensor, 2, group=group)
        assert filled(tensor, 2)
    else:
        received = torch.ones(count)
        dist.recv(received, 0, group=group)
        assert filled(received, 0)
        dist.send(tensor, 0, group=group)
    dist.barrier()


@pytest.mark.ranks(3, hosts=[3], by_name=[3])
@pytest.mark.parametrize("leaves_first", [True, False], ids=["before", "meanwhile"])
def test_rank_that_leaves_groups(leaves_first: bool) -> None:
    """Its process goes on, and still holds the groups; Gloo's are left with the last reference."""
    groups = used_groups()
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(0 if leaves_first else 0.3)
        for sized in groups:
            dist.destroy_process_group(groups[sized])
        if os.environ["HVD_TRANSPORT"] == "gloo":
            groups.clear()
    else:
        time.sleep(0.3 if leaves_first else 0)
        in_each(groups, finds_out)
    dist.barrier()


@pytest.mark.ranks(2, hosts=[2], transports=["shm", "tcp", "mpi"])
def test_rank_that_left_and_is_owed_nothing() -> None:
    group = dist.new_group()
    own = torch.arange(2.0) + 2 * dist.get_rank()
    if dist.get_rank() == 0:
        received = torch.zeros(2)
        dist.all_to_all_single(received, own.repeat(2), [2, 0], [2, 2], group=group)
        dist.destroy_process_group(group)
        dist.barrier()
        assert received.tolist() == [0.0, 1.0]
    else:
        received = torch.zeros(4)
        dist.barrier()
        dist.all_to_all_single(received, own, [2, 2], [0, 2], group=group)
        assert received.tolist() == [0.0, 1.0, 2.0, 3.0]

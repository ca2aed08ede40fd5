"""Groups that go on without some of their ranks, or with those of others, in the same processes."""

from __future__ import annotations

import os
import signal
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import SHRINK_ABORT, _world
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from calls import SMALL, check_group, cpu_backend, expect_error
from ranks import RankPool, bare_store
from rows import filled


def check_ddp() -> None:
    """DDP's gradients are the mean of what the ranks have: their numbers."""
    layer = torch.nn.Linear(3, 1, bias=False)
    model = DistributedDataParallel(layer)
    model(torch.full((1, 3), float(dist.get_rank()))).sum().backward()
    assert layer.weight.grad is not None
    assert filled(layer.weight.grad, (dist.get_world_size() - 1) / 2)


def check_sum(group: Any, mine: int, expected: int) -> None:
    """In a group that c10d's functions do not know."""
    tensor = torch.full((SMALL,), float(mine))
    group.allreduce([tensor]).wait()
    assert filled(tensor, expected)


def count_alike() -> None:
    """From 2.15 on torch counts groups that only some ranks make, and numbers the next by that."""
    count = torch.tensor(_world.group_count)
    dist.broadcast(count, src=0)
    _world.group_count = int(count)


def goes_on_without(victim: int) -> None:
    """What a training loop does when a rank has died, and again when one leaves on purpose."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pair = dist.new_group([(victim + 1) % size, (victim + 2) % size])
    check_group()
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    text = expect_error(lambda: [dist.all_reduce(torch.ones(SMALL)) for _ in range(1000)])
    assert f"rank {victim}" in text, text
    dist.shrink_group([victim], shrink_flags=SHRINK_ABORT)
    assert dist.get_world_size() == size - 1
    assert dist.get_rank() == rank - (rank > victim)
    check_group()
    check_ddp()
    if pair is not dist.GroupMember.NON_GROUP_MEMBER:
        with pytest.raises((RuntimeError, ValueError)):  # torch has destroyed it
            dist.all_reduce(torch.ones(SMALL), group=pair)
    part = dist.new_group([size - 2])
    if dist.get_rank() == size - 2:
        check_group(part)
        return
    if size > 3:
        dist.shrink_group([size - 2])
        assert (dist.get_rank(), dist.get_world_size()) == (rank - (rank > victim), size - 2)
        check_group()


@pytest.mark.ranks(3, 4, hosts=[4], by_name=[3], rails=[3])
@pytest.mark.parametrize("victim", [0, 1])
def test_shrink_after_a_death(pool: RankPool, victim: int) -> None:
    results = pool.run(goes_on_without, victim, lost=[victim])
    assert results.count(None) == pool.size - 1


@pytest.mark.ranks(3, hosts=[3])
def test_shrink_a_group() -> None:
    """Others go on; the new group has the settings of the old one, or those it is given."""
    rank = dist.get_rank()
    for given in (None, torch_hvd.Options(fusion_cutoff=777)):
        group: Any = dist.new_group(pg_options=torch_hvd.Options(fusion_cutoff=12345))
        if rank == 1:
            with pytest.raises(RuntimeError, match="exclusion list"):
                dist.shrink_group([1], group=group)
            with pytest.raises(ValueError, match="rank 1 cannot make a group without ranks 0, 1"):
                cpu_backend(group).shrink([0, 1], 0, None)
        else:
            part = dist.shrink_group([1], group=group, pg_options=given)
            assert dist.get_process_group_ranks(part) == [0, 2]
            assert cpu_backend(part).options.fusion_cutoff == (777 if given else 12345)
            check_group(part)
            tensor = torch.full((SMALL,), float(rank))
            dist.broadcast(tensor, src=2, group=part)
            assert filled(tensor, 2)
            dist.destroy_process_group(part)
        check_group()
        count_alike()


@pytest.mark.ranks(3)
def test_shrink_aborts_what_waits() -> None:
    """With SHRINK_ABORT; what waits for the rank that is left out cannot end by itself."""
    group: Any = dist.new_group()
    if dist.get_rank() != 2:
        work = dist.all_reduce(torch.ones(SMALL), group=group, async_op=True)
        assert work is not None
        backend = cpu_backend(group)
        part = backend.shrink([2], SHRINK_ABORT, None)
        assert "goes on without ranks 2" in expect_error(work.wait)
        check_sum(part, 1, 2)
        part.shutdown()
    dist.barrier()


@pytest.mark.ranks(3)
def test_shrink_without_another_survivor() -> None:
    """Who does not come is named when the group's timeout is over, and may come the next time."""
    group: Any = dist.new_group(timeout=timedelta(seconds=2))
    rank = dist.get_rank()
    if rank == 0:
        with pytest.raises(dist.DistStoreError, match="rank 0 has waited 2 s for rank 1 to make"):
            cpu_backend(group).shrink([2], 0, None)
    dist.barrier()
    if rank > 0:
        part = cpu_backend(group).shrink([0], 0, None)
        assert (part.rank(), part.size()) == (rank - 1, 2)
        part.shutdown()


def loses_some() -> None:
    """Those who come agree on who does not, each time that some are lost."""
    rank = dist.get_rank()
    assert torch_hvd.lost_ranks() == []
    patience = timedelta(seconds=2)
    group: Any = dist.new_group()
    dist.barrier()
    if rank != 2:
        assert torch_hvd.lost_ranks(group, patience) == [2]
    dist.barrier()
    if rank == 2:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="rank 2 came too late: ranks 0, 1, 3 go on"):
                torch_hvd.lost_ranks(group, patience)
        return
    if rank == 3:
        return
    assert torch_hvd.lost_ranks(group, patience) == [2, 3]
    part = dist.shrink_group([2, 3], group=group)
    check_group(part)
    assert torch_hvd.lost_ranks(part) == []


def test_lost_ranks() -> None:
    with RankPool(4) as pool:
        pool.run(loses_some)


@pytest.mark.ranks(2)
def test_lost_ranks_of_another_backend() -> None:
    with pytest.raises(TypeError, match="takes a group of hvd's, not of 'gloo'"):
        torch_hvd.lost_ranks(dist.new_group(backend="gloo"))


def grows() -> None:
    """A program of two ranks and one of its own become one group, and then a group without one."""
    number = int(os.environ["RANK"])
    store = bare_store()
    first, rank, size = ("single", 0, 1) if number == 2 else ("pair", number, 2)
    dist.init_process_group(
        "hvd",
        store=dist.PrefixStore(first, store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=11),
        pg_options=torch_hvd.Options(fusion_cutoff=12345),
    )
    world: Any = dist.group.WORLD
    merged = world.merge_remote_group(
        dist.PrefixStore("merged", store), 3, timeout=timedelta(seconds=20), group_name="grown"
    )
    assert merged.size() == 3
    options = cpu_backend(merged).options
    assert (options.fusion_cutoff, options.group_name) == (12345, "grown")
    assert options._timeout == timedelta(seconds=20)
    assert cpu_backend().options._timeout == timedelta(seconds=11)
    check_sum(merged, merged.rank(), 3)
    gathered = [torch.zeros(1) for _ in range(3)]
    merged.allgather([gathered], [torch.full((1,), float(number))]).wait()
    assert sorted(tensor.item() for tensor in gathered) == [0, 1, 2]
    if merged.rank() > 0:
        part = cpu_backend(merged).shrink([0], 0, None)
        check_sum(part, merged.rank(), 3)
        part.shutdown()
    dist.destroy_process_group()


@pytest.mark.parametrize("transport", ["auto", "tcp", "gloo"])
def test_merge(transport: str) -> None:
    with RankPool(3, "", {"HVD_TRANSPORT": transport}) as pool:
        pool.run(grows)

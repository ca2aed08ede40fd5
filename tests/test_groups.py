"""Several groups at once: overlapping, made by their members alone, in a mesh, beside gloo."""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

import torch_hvd
from calls import LARGE, SMALL, check_group, cpu_backend
from ranks import RankPool, bare_store
from rows import filled
from torch_hvd import _nccl


@pytest.mark.ranks(2, 3, 4, by_name=[3])
def test_overlapping_subgroups() -> None:
    """Every pair of ranks has a group; operations of several are in flight at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [(a, b) for a in range(size) for b in range(a + 1, size)]
    groups = {pair: dist.new_group(list(pair)) for pair in pairs}
    mine = {pair: group for pair, group in groups.items() if rank in pair}
    for count in (SMALL, LARGE):
        tensors = {pair: torch.full((count,), float(rank)) for pair in mine}
        works = [dist.all_reduce(tensors[pair], group=mine[pair], async_op=True) for pair in mine]
        for work in works:
            work.wait()
        for pair, tensor in tensors.items():
            assert filled(tensor, sum(pair))
        for pair, group in mine.items():
            tensor = torch.full((count,), float(rank))
            dist.broadcast(tensor, src=pair[1], group=group)
            assert filled(tensor, pair[1])
    for pair, group in groups.items():
        if rank not in pair:
            assert dist.get_rank(group) == -1
    check_group()


@pytest.mark.ranks(3, 4, hosts=[3, 4], by_name=[3])
def test_local_synchronization() -> None:
    """Only the members make the group; the others are not asked.

    Each rank makes one, for torch 2.15 numbers the next group by how many a rank has made.
    """
    rank = dist.get_rank()
    members = [0, 2] if rank in (0, 2) else [rank]
    group = dist.new_group(members, use_local_synchronization=True)
    tensor = torch.full((SMALL,), float(rank))
    dist.all_reduce(tensor, group=group)
    assert filled(tensor, sum(members))
    check_group()


@pytest.mark.ranks(4, hosts=[4])
def test_device_mesh() -> None:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("row", "column"))
    for dim, expected in (
        ("row", [rank % 2, rank % 2 + 2]),
        ("column", [rank // 2 * 2, rank // 2 * 2 + 1]),
    ):
        group = mesh.get_group(dim)
        assert dist.get_process_group_ranks(group) == expected
        tensor = torch.full((LARGE,), float(rank))
        dist.all_reduce(tensor, group=group)
        assert filled(tensor, sum(expected))


def split(whole: Any, ranks: list[int], name: str, seconds: int, options: Any = None) -> Any:
    """Of a group, those ranks; null in others."""
    timeout = timedelta(seconds=seconds)
    return whole.split_group(ranks, timeout=timeout, opts=options, group_name=name, group_desc="")


@pytest.mark.ranks(3)
def test_a_part_of_a_part() -> None:
    """Each has the name and the timeout that it was given, and knows its ranks in the job; what it
    is not given it has from the whole, which stays as it was.
    """
    rank = dist.get_rank()
    whole: Any = dist.new_group(pg_options=torch_hvd.Options(fusion_cutoff=12345))
    gloo: Any = dist.ProcessGroupGloo
    expected = [(whole, whole.group_name, [0, 1, 2], 1800, 12345)]
    part = split(whole, [1, 2], "part", 15)
    other = split(whole, [1, 2], "other", 16, gloo._Options())
    if rank > 0:
        expected += [(part, "part", [1, 2], 15, 12345), (other, "other", [1, 2], 16, 12345)]
        single = split(part, [1], "single", 14, torch_hvd.Options(fusion_cutoff=777))
        expected += [(single, "single", [2], 14, 777)] if rank == 2 else []
    for group, name, ranks, seconds, cutoff in expected:
        options = cpu_backend(group).options
        assert options.group_name == name
        assert options.global_ranks_in_group == ranks
        assert options._timeout == timedelta(seconds=seconds)
        assert options.fusion_cutoff == cutoff
        tensor = torch.full((SMALL,), float(rank))
        group.allreduce([tensor]).wait()
        assert filled(tensor, sum(ranks))
        if group is not whole:
            cpu_backend(group).shutdown()


@pytest.mark.ranks(2, by_name=[2])
def test_beside_gloo() -> None:
    gloo = dist.new_group(backend="gloo")
    works = [dist.all_reduce(torch.ones(LARGE), group=g, async_op=True) for g in (None, gloo) * 3]
    for work in works:
        work.wait()
        assert work.result()[0][0] == 2
    check_group(gloo)
    check_group()


@pytest.mark.ranks(2, 3, by_name=[2])
def test_many_groups_leave_nothing_behind() -> None:
    """Threads and open files of destroyed groups are gone."""

    def left() -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

    for round_number in range(6):
        group = dist.new_group()
        check_group(group)
        dist.destroy_process_group(group)
        del group
        dist.barrier()
        if round_number == 1:
            before = left()
    assert all(now <= then for now, then in zip(left(), before, strict=True)), (before, left())


@pytest.mark.ranks(2, transports=["auto"])
def test_nccl_that_cannot_be_had() -> None:
    """Demanded, it is an error on every rank that names the first one without it, and why."""
    if not _nccl.lacks():
        pytest.skip("this machine has NCCL and a GPU")
    with pytest.raises(ValueError) as caught:
        dist.new_group(pg_options=torch_hvd.Options(transport="nccl"))
    assert "HVD_TRANSPORT or Options.transport is 'nccl', but rank 0, on" in str(caught.value)
    assert _nccl.lacks() in str(caught.value)


def begin(store: dist.Store, timeout: timedelta) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("hvd", store=store, rank=rank, world_size=3, timeout=timeout)


def meet_late() -> None:
    bare_store().set_timeout(timedelta(seconds=1))
    if os.environ["RANK"] == "1":
        time.sleep(2.5)
    begin(bare_store(), timedelta(seconds=20))
    check_group()
    dist.destroy_process_group()


def meet_in_vain(path: str) -> None:
    rank = int(os.environ["RANK"])
    if rank == 2:
        return
    for store in (bare_store(), dist.FileStore(path)):
        begun = time.monotonic()
        with pytest.raises(dist.DistStoreError) as caught:
            begin(store, timedelta(seconds=1))
        assert 0.8 < time.monotonic() - begun < 6
        said = f"hvd: rank {rank} has waited 1 s for rank 2 to make a process group"
        assert said in str(caught.value)


def test_ranks_wait_for_each_other_as_long_as_their_group_says(tmp_path: Path) -> None:
    """Not as long as the store does, which may be another group's."""
    with RankPool(3, backend="") as pool:
        pool.run(meet_late)
    with RankPool(3, backend="") as pool:
        pool.run(meet_in_vain, str(tmp_path / "store"))

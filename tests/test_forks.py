"""Forked children: data loader workers, and those that touch the group."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

import torch_hvd
from calls import LARGE, SMALL, check_group


class Doubles(Dataset[int]):
    """0, 2, 4, ... 78, made in forked workers beside the parent's open group."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        return int(torch.tensor(index) * 2)


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("num_workers", [1, 2])
def test_data_loader_workers(num_workers: int) -> None:
    check_group()
    loader = DataLoader(
        Doubles(),
        batch_size=4,
        num_workers=num_workers,
        multiprocessing_context="fork",
    )
    for _ in range(2):
        total = torch.zeros(1)
        pending = dist.all_reduce(torch.ones(LARGE), async_op=True)
        for batch in loader:
            total += batch.sum()
            dist.all_reduce(torch.ones(SMALL))
        pending.wait()
        dist.all_reduce(total)
        assert total.item() == 2 * 780 * dist.get_world_size()


def in_a_fork(action: Callable[[], object]) -> str:
    """What `action` raises in a forked child, which then ends as a DataLoader worker does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = "no error"
            action()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        gc.collect()
        os._exit(0)
    os.close(writing)
    end = time.monotonic() + 10
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        if time.monotonic() > end:
            os.kill(child, 9)
            os.waitpid(child, 0)
            raise AssertionError(f"{action} in a forked child hangs")
        time.sleep(0.02)
    with os.fdopen(reading) as said:
        return said.read()


@pytest.mark.ranks(1, 2)
def test_forked_child_that_touches_the_group() -> None:
    """It gets an error that says why; the parent's group is none the worse."""
    check_group()
    text = in_a_fork(lambda: dist.all_reduce(torch.ones(SMALL)))
    assert "fork" in text, text
    check_group()


def again(call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):
        call()
    call()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("verb", ["recv", "all_reduce"])
def test_forked_child_that_waits(verb: str) -> None:
    """For what its parent has under way, and still gets."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    tensor = torch.ones(LARGE)
    dist.barrier()
    if rank == 1:
        store.wait([f"{verb} forked"])
        dist.send(tensor, 0) if verb == "recv" else dist.all_reduce(tensor)
    else:
        work = dist.irecv(tensor, 1) if verb == "recv" else dist.all_reduce(tensor, async_op=True)
        assert work is not None
        for wait in (work.wait, work.get_future, work.is_completed):
            text = in_a_fork(partial(again, wait))
            assert f"hvd: {verb}" in text, text
            assert "this process was forked" in text, text
        store.set(f"{verb} forked", "")
        work.wait()
        assert torch.all(tensor == (1 if verb == "recv" else 2))
    check_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("ends", ["before", "after"])
def test_forked_child_that_drops_the_last_work(ends: str) -> None:
    """It may be the last to hold a group that its parent has destroyed."""
    group = dist.new_group()
    held = [dist.all_reduce(torch.ones(count), group=group, async_op=True) for count in (3, LARGE)]
    for work in held:
        work.wait()
    dist.barrier()
    if ends == "before":
        dist.destroy_process_group(group)
    del group, work
    in_a_fork(held.clear)
    if ends == "after":
        dist.destroy_process_group(list(dist.distributed_c10d._world.pg_map)[-1])
    check_group()


@pytest.mark.ranks(2)
def test_statistics_are_not_of_a_child() -> None:
    """Their locks may be held by threads that it lacks."""
    assert torch_hvd.statistics()
    text = in_a_fork(lambda: sys.exit(str(torch_hvd.statistics())))
    assert text == "SystemExit: []", text


def test_forked_child_that_starts_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a part of its parent's, with locks that may be held: it is told so. After that has
    ended, a child writes its own.
    """
    monkeypatch.setenv("RANK", "0")
    torch_hvd.start_timeline(tmp_path / "parent")
    text = in_a_fork(lambda: torch_hvd.start_timeline(tmp_path / "child"))
    assert "forked while a timeline was being written" in text, text
    assert in_a_fork(torch_hvd.stop_timeline) == "no error"
    torch_hvd.stop_timeline()
    assert in_a_fork(lambda: torch_hvd.start_timeline(tmp_path / "child")) == "no error"
    assert len(json.loads((tmp_path / "parent" / "rank-0.timeline.json").read_text())) == 1


@pytest.mark.ranks(2)
def test_forked_child_that_leaves() -> None:
    """Nothing that a child does to its copy of the group hangs it or reaches the parent's peers."""
    check_group()
    in_a_fork(dist.destroy_process_group)
    in_a_fork(lambda: None)
    check_group()

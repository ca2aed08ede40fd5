"""Forked children: data loader workers, and those that touch the group."""

from __future__ import annotations

import gc
import os
import time

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

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


def in_a_fork(action: str) -> str:
    """What `action` says in a forked child, which then ends as a DataLoader worker does."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = "no error"
            if action == "all_reduce":
                dist.all_reduce(torch.ones(SMALL))
            elif action == "destroy":
                dist.destroy_process_group()
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
    text = in_a_fork("all_reduce")
    assert "fork" in text, text
    check_group()


@pytest.mark.ranks(2)
def test_forked_child_that_leaves() -> None:
    """Nothing that a child does to its copy of the group hangs it or reaches the parent's peers."""
    check_group()
    in_a_fork("destroy")
    in_a_fork("nothing")
    check_group()

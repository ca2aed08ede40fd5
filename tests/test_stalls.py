"""The report of a stall: which ranks are missing, and what they called last."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from calls import LARGE, SMALL, expect_error
from ranks import RankPool


@contextmanager
def captured_stderr() -> Iterator[list[str]]:
    """What is written to file descriptor 2, by C++ too; the list is filled at the end."""
    lines: list[str] = []
    with tempfile.TemporaryFile("w+") as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().splitlines()


def late(count: int) -> None:
    """The last rank is late by four check times; the others learn who is missing."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.broadcast(torch.ones(SMALL), src=0)
    with captured_stderr() as lines:
        if rank == size - 1:
            time.sleep(4)
        dist.all_reduce(torch.ones(count))
    said = [line for line in lines if "has been waiting" in line]
    if rank == size - 1:
        assert not said, said
        return
    assert 1 <= len(said) <= 4, lines
    called = f"all_reduce(float32[{count}], SUM), number 1"
    assert called in said[-1], said
    assert f"Missing: rank {size - 1}, which last called broadcast(float32[4], root=0)" in said[-1]
    assert f"on rank {rank}" in said[-1]


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_stall_report(count: int) -> None:
    with RankPool(3, env={"HVD_STALL_CHECK_TIME": "1", "TORCH_CPP_LOG_LEVEL": "WARNING"}) as pool:
        pool.run(late, count)


def never_comes() -> None:
    group = dist.new_group(timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(SMALL), group=group)
    if dist.get_rank() == 0:
        text = expect_error(lambda: dist.all_reduce(torch.ones(LARGE), group=group), within=6)
        assert "HVD_STALL_SHUTDOWN_TIME" in text and "Missing: rank 1" in text, text
    else:
        time.sleep(3)


def test_stall_shutdown() -> None:
    with RankPool(2, env={"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"}) as pool:
        pool.run(never_comes)

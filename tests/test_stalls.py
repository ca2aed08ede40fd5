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

REPORTS = {"HVD_STALL_CHECK_TIME": "1", "TORCH_CPP_LOG_LEVEL": "WARNING"}


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
    with RankPool(3, env=REPORTS) as pool:
        pool.run(late, count)


def first_call_is_late() -> None:
    """Rank 1 has told nobody of anything yet."""
    group = dist.new_group()
    with captured_stderr() as lines:
        if dist.get_rank() == 1:
            time.sleep(2.5)
        dist.barrier(group=group)
    said = [line for line in lines if "has been waiting" in line]
    if dist.get_rank() == 0:
        assert said and said[-1].endswith("Missing: rank 1, of which nothing is known"), lines


def test_stall_report_of_who_has_called_nothing() -> None:
    with RankPool(2, env=REPORTS) as pool:
        pool.run(first_call_is_late)


def late_without_a_word() -> None:
    group = dist.new_group()
    with captured_stderr() as lines:
        if dist.get_rank() == 1:
            time.sleep(2.5)
        dist.all_reduce(torch.ones(SMALL), group=group)
    assert not [line for line in lines if "has been waiting" in line], lines


def test_no_stall_report() -> None:
    """A check time of 0 is never, not always."""
    with RankPool(2, env={**REPORTS, "HVD_STALL_CHECK_TIME": "0"}) as pool:
        pool.run(late_without_a_word)


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


def message_comes_late() -> None:
    """The last rank sends late, the middle one after it; the first learns who waits for whom."""
    rank = dist.get_rank()
    group = dist.new_group()
    with captured_stderr() as lines:
        if rank == 2:
            time.sleep(4.5)
        else:
            dist.recv(torch.ones(SMALL), src=rank + 1, group=group)
        if rank > 0:
            dist.send(torch.ones(SMALL), dst=rank - 1, group=group)
    said = [line for line in lines if "has been waiting" in line]
    if rank == 2:
        assert not said, said
        return
    assert 1 <= len(said) <= 5, lines
    assert f"recv from rank {rank + 1} in process group " in said[-1]
    assert f"on rank {rank} for" in said[-1]
    assert "rank 0 called no collective, waiting for recv from rank 1" in said[-1], said
    assert "rank 1 called no collective, waiting for recv from rank 2" in said[-1], said
    assert "rank 2 left no word" in said[-1] or "rank 2 called no collective" in said[-1], said


def collective_waits_for_a_message() -> None:
    """Rank 0 waits in a collective for rank 1, which waits for a message of rank 0."""
    rank = dist.get_rank()
    group = dist.new_group()
    dist.barrier(group=group)
    with captured_stderr() as lines:
        if rank == 0:
            work = dist.barrier(group=group, async_op=True)
            time.sleep(4.5)
            dist.send(torch.ones(SMALL), dst=1, group=group)
            work.wait()
        else:
            dist.recv(torch.ones(SMALL), src=0, group=group)
            dist.barrier(group=group)
    said = [line for line in lines if "has been waiting" in line]
    assert said, lines
    if rank == 0:
        assert "barrier(), number 1" in said[-1], said
        missing = "Missing: rank 1, which last called barrier() as number 0"
        assert f"{missing} and waits for recv from rank 0" in said[-1], said
    else:
        assert "recv from rank 0 in process group" in said[-1], said
        assert "rank 0 called barrier() as number 1" in said[-1], said
        assert "rank 1 called barrier() as number 0 last, waiting for recv from rank 0" in said[-1]


def sender_has_nothing_to_do() -> None:
    """Rank 1 has told so when rank 0 reports that it waits."""
    rank = dist.get_rank()
    group = dist.new_group()
    dist.barrier(group=group)
    with captured_stderr() as lines:
        if rank == 1:
            time.sleep(2.5)
            dist.send(torch.ones(SMALL), dst=0, group=group)
        else:
            dist.recv(torch.ones(SMALL), src=1, group=group)
    said = [line for line in lines if "has been waiting" in line]
    if rank == 0:
        assert said, lines
        assert "rank 1 called barrier() as number 0 last, waiting for nothing" in said[-1], said


def test_stall_report_of_a_message_that_nobody_sends() -> None:
    with RankPool(2, env=REPORTS) as pool:
        pool.run(sender_has_nothing_to_do)


def test_stall_report_of_a_message() -> None:
    with RankPool(3, env=REPORTS) as pool:
        pool.run(message_comes_late)


def test_stall_report_of_a_collective_behind_a_message() -> None:
    with RankPool(2, env=REPORTS) as pool:
        pool.run(collective_waits_for_a_message)


def message_never_comes() -> str:
    """Both ranks wait for the other's message; the error says so."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=6))
    text = expect_error(lambda: dist.recv(torch.ones(SMALL), src=1 - rank, group=group), within=9)
    assert f"recv from rank {1 - rank}" in text, text
    both = [f"rank {r} called no collective, waiting for recv from rank {1 - r}" for r in (0, 1)]
    assert all(one in text for one in both), text
    return text


def test_stall_shutdown_of_a_message() -> None:
    with RankPool(2, env={"HVD_STALL_SHUTDOWN_TIME": "3"}) as pool:
        texts = pool.run(message_never_comes)
    assert any("HVD_STALL_SHUTDOWN_TIME" in text for text in texts), texts


def test_timeout_of_a_message_says_where_the_ranks_were() -> None:
    with RankPool(2) as pool:
        texts = pool.run(message_never_comes)
    assert any("Timed out" in text for text in texts), texts


def many_of_each_size() -> None:
    tensors = [torch.zeros(count) for count in (SMALL, 1000, 40_000, LARGE)]
    for _ in range(1000):
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        for work in works:
            assert work is not None
            work.wait()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_watchdog_that_looks_all_the_time(transport: str) -> None:
    """It looks at what is waited for, which may be over just then."""
    env = {"HVD_TRANSPORT": transport, "HVD_STALL_CHECK_TIME": "0.001"}
    with RankPool(2, env=env) as pool:
        pool.run(many_of_each_size)

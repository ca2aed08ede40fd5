"""So many ranks that a frame does not go straight to each: others pass it on.

`FrameLane` and `RowExchange` are tested by the model for all numbers of ranks; here are real
processes, what they compute, and who hears of what goes wrong.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from calls import SMALL, check_group, cpu_backend, expect_error, ranks_of_hosts, says_called
from ranks import Lost, RankPool
from rows import filled

MANY = 17
MANY_HOSTS = [f"host{rank // 2}" for rank in range(32)]  # two ranks on each
IN_FRAME = (256 << 10) // 32 // 8  # int64 elements in the longest frame of the most ranks here


def sums() -> None:
    """Alone, and many in flight of which some fill a frame and some take another way."""
    rank, size = dist.get_rank(), dist.get_world_size()
    counts = [1, 0, 100, IN_FRAME, 3 * IN_FRAME, 7] * 4
    for in_flight in (1, len(counts)):
        for begin in range(0, len(counts), in_flight):
            tensors = [
                (rank + 1) * torch.arange(1, count + 1)
                for count in counts[begin : begin + in_flight]
            ]
            works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
            for work, tensor in zip(works, tensors, strict=True):
                work.wait()
                expected = size * (size + 1) // 2 * torch.arange(1, len(tensor) + 1)
                assert torch.equal(tensor, expected)


def moves() -> None:
    """From each rank to all."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (1, 30):
        everywhere = torch.empty(size, count)
        dist.all_gather_into_tensor(everywhere, torch.full((count,), float(rank)))
        assert torch.equal(everywhere, torch.arange(float(size)).view(-1, 1).expand(-1, count))
        for root in range(size):
            tensor = torch.full((count,), float(rank))
            dist.broadcast(tensor, src=root)
            assert filled(tensor, root)
        dist.barrier()


def one_differs(odd: int) -> None:
    """Every rank hears what each has called, briefly, and the group goes on."""
    count = SMALL + (dist.get_rank() == odd)
    text = expect_error(lambda: dist.all_reduce(torch.ones(count)))
    for rank in range(dist.get_world_size()):
        assert says_called(text, rank, f"all_reduce(float32[{SMALL + (rank == odd)}], SUM)"), text
    assert text.count("called all_reduce") == 2, text
    check_group()


@pytest.mark.ranks(MANY, by_name=[MANY])
@pytest.mark.parametrize("call", [sums, moves])
def test_call(call: Callable[[], None]) -> None:
    call()


@pytest.mark.ranks(MANY, transports=[], standin=[MANY])
def test_headers_of_a_device() -> None:
    sums()


@pytest.mark.ranks(MANY)
def test_one_differs() -> None:
    for odd in (0, MANY - 1):
        one_differs(odd)


def layout() -> tuple[str, int]:
    return str(cpu_backend().transport), len(ranks_of_hosts())


def test_many_hosts() -> None:
    with RankPool(len(MANY_HOSTS), hosts=MANY_HOSTS) as pool:
        assert set(pool.run(layout)) == {("shm+tcp", len(MANY_HOSTS) // 2)}
        pool.run(sums)
        pool.run(moves)
        pool.run(one_differs, 5)


def one_is_late(late: int) -> None:
    """It is named to all others, though most of them wait for one who waits for it."""
    dist.all_reduce(torch.ones(SMALL))
    if dist.get_rank() != late:
        text = expect_error(lambda: dist.all_reduce(torch.ones(SMALL)), within=15)
        assert f"rank {late}" in text, text


def one_dies(victim: int) -> None:
    if dist.get_rank() == victim:
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    tensor = torch.ones(SMALL)
    text = expect_error(lambda: [dist.all_reduce(tensor) for _ in range(1_000_000)], within=10)
    assert f"rank {victim}" in text, text


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_one_fails(transport: str) -> None:
    with RankPool(MANY, env={"HVD_TRANSPORT": transport}, timeout=timedelta(seconds=5)) as pool:
        pool.run(one_is_late, MANY - 1)
    with RankPool(MANY, env={"HVD_TRANSPORT": transport}) as pool:
        results = pool.run(one_dies, 3, lost=[3])
        assert results[3] == Lost(-signal.SIGKILL)

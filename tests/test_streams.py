"""Tensors of a device that the host moves, among calls that do not wait for the device.

Work on a stream may wait for another rank, as NCCL's of another group does. So a collective must
not wait for it on behalf of one behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import fake_device
from fake_device import device
from ranks import RankPool

pytestmark = pytest.mark.timeout(120)

SMALL, LARGE = 4, 300_000  # of float32: the former goes in a frame


@pytest.fixture(scope="module", params=["shm", "tcp", "gloo"])
def pool(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    fake_device.build()
    with RankPool(2, "", {"HVD_TRANSPORT": request.param}) as made:
        yield made


def joined(function: Callable[..., None], *args: Any) -> None:
    if not dist.is_initialized():  # the first call, or after a failure
        fake_device.join(2)
    function(*args)


def by_wait(work: Any) -> None:
    work.wait()


def by_future(work: Any) -> None:
    work.get_future().wait()


def held(path: Path, first: int, second: int, ahead: bool, wait: Callable[[Any], None]) -> None:
    """Rank 0's stream is busy until rank 1 has heard that the first collective is done there."""
    rank = dist.get_rank()
    host = torch.full((first,), rank + 1.0)
    on_device = device.upload(torch.full((second,), rank + 1.0))
    dist.barrier()
    works: list[Any] = [dist.all_reduce(host, async_op=True)]
    if rank == 0:
        device.hold(str(path))
    if rank == 0 or ahead:
        works.append(dist.all_reduce(on_device, async_op=True))
    wait(works[0])
    assert host.eq(3).all()
    if rank == 0:
        dist.send(torch.empty(0), 1)
    else:
        dist.recv(torch.empty(0), 0)
        path.touch()
    if len(works) == 1:
        dist.all_reduce(on_device)
    for work in works:
        wait(work)
    assert on_device.cpu().eq(3).all()


@pytest.mark.parametrize("wait", [by_wait, by_future])
@pytest.mark.parametrize("ahead", [False, True], ids=["", "both ahead"])
@pytest.mark.parametrize("second", [SMALL, LARGE])
@pytest.mark.parametrize("first", [SMALL, LARGE])
def test_first_is_done_before_the_device(
    pool: RankPool,
    tmp_path: Path,
    first: int,
    second: int,
    ahead: bool,
    wait: Callable[[Any], None],
) -> None:
    """Whatever is issued behind it, and by whom it is waited for."""
    pool.run(joined, held, tmp_path / "done", first, second, ahead, wait)


def burst(path: Path) -> None:
    """On the device and on the host in turns, of which the device is done with some."""
    rank = dist.get_rank()
    tensors = [torch.full((SMALL,), rank + float(place)) for place in range(12)]
    moved = [device.upload(each) if place % 3 else each for place, each in enumerate(tensors)]
    dist.barrier()
    works: list[Any] = []
    for place, tensor in enumerate(moved):
        if rank == 0 and place == 6:
            device.hold(str(path))
        works.append(dist.all_reduce(tensor, async_op=True))
    for work in works[:7]:
        work.wait()
    if rank == 1:
        path.touch()
    for work in works[7:]:
        work.wait()
    for place, tensor in enumerate(moved):
        assert tensor.cpu().eq(2 * place + 1).all()


def test_burst(pool: RankPool, tmp_path: Path) -> None:
    """It is cut where the device is not done on some rank, and goes on from there."""
    pool.run(joined, burst, tmp_path / "done")


def soon() -> None:
    rank = dist.get_rank()
    rng = random.Random(rank)
    tensors = [device.upload(torch.full((count,), rank + 1.0)) for count in (SMALL, LARGE)]
    for _ in range(200):
        for tensor in tensors:
            device.sleep(rng.random() * 3e-5, False)
            dist.broadcast(tensor, 0)
    assert all(tensor.cpu().eq(1).all() for tensor in tensors)


def test_device_that_is_done_soon(pool: RankPool) -> None:
    """Whoever looks whether it is, and when."""
    pool.run(joined, soon)


def named(path: Path) -> None:
    """Rank 0's stream is busy until rank 1 has given up."""
    rank = dist.get_rank()
    group = dist.new_group(timeout=timedelta(seconds=2))
    on_device = device.upload(torch.ones(SMALL))
    dist.barrier()
    if rank == 0:
        device.hold(str(path))
    with pytest.raises(dist.DistBackendError) as failure:
        dist.all_reduce(on_device, group=group)
    path.touch()
    text = str(failure.value)
    if rank == 1:
        assert "ranks 0-1 called all_reduce(float32[4], SUM) as number 0" in text, text
    assert "waiting for nothing" not in text, text


def test_who_waits_for_a_device_is_told_of(pool: RankPool, tmp_path: Path) -> None:
    pool.run(joined, named, tmp_path / "done")

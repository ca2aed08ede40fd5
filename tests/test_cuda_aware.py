"""MPI that takes the memory of GPUs, where there is none: with a libmpi that says that it does, and
a device of threads and the host's memory (tests/fakecuda). tests/gpu has the rest.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import fake_device
import torch_hvd
from fake_device import device
from footprint import leaves_no_names
from libmpi import MPICH, MPICH_ABI, OPEN_MPI, make_libmpi, needs_mpich, needs_open_mpi
from ranks import RankPool
from rows import filled
from torch_hvd import _mpi

pytestmark = [needs_mpich, pytest.mark.timeout(180)]

SMALL, LARGE = 16, 300_000  # of float32: the former goes in a frame


def aware_like(library: Path, folder: Path) -> str:
    """The file of a libmpi that is that one, but says that it is CUDA-aware."""
    answers = "int MPIX_Query_cuda_support() { return 1; }"
    if library == MPICH:
        answers += "int MPIX_GPU_query_support(int kind, int* yes) { *yes = kind == 0; return 0; }"
    return str(make_libmpi(folder, answers, library))


@pytest.fixture(scope="module")
def aware(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A MPICH that says that it is CUDA-aware."""
    return aware_like(MPICH, tmp_path_factory.mktemp("aware"))


@pytest.mark.parametrize(
    "library", [MPICH, pytest.param(OPEN_MPI, marks=needs_open_mpi)], ids=["mpich", "openmpi"]
)
def test_is_asked_elsewhere(library: Path, tmp_path: Path) -> None:
    """As `python -m torch_hvd` does, also in a process of some other world."""
    of_world = {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "3", "PMIX_RANK": "1"}
    with leaves_no_names():
        assert _mpi.is_cuda_aware(aware_like(library, tmp_path), os.environ | of_world)
        assert not _mpi.is_cuda_aware(str(library), os.environ)


def test_a_library_that_has_no_answer() -> None:
    assert not _mpi.is_cuda_aware(str(MPICH_ABI), os.environ)
    with pytest.raises(ValueError, match="MPI_Init ended with status 1"):
        _mpi.is_cuda_aware("/nowhere/libmpi.so", os.environ)


@pytest.mark.parametrize("says", ["not ", ""])
def test_table(aware: str, says: str) -> None:
    file = str(MPICH) if says else aware
    table = subprocess.check_output(
        [sys.executable, "-m", "torch_hvd"], text=True, env={**os.environ, "HVD_LIBMPI": file}
    )
    assert f", ABI of MPICH, {file}; {says}CUDA-aware\n" in table


@dataclass(frozen=True)
class World:
    """By rank, the file of its libmpi; `direct`: whether MPI is handed a device's memory."""

    files: tuple[str, ...]
    direct: bool


def join(world: World) -> list[str]:
    """Returns what is logged."""
    os.environ["HVD_LIBMPI"] = world.files[int(os.environ["RANK"])]
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torch_hvd")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    fake_device.join(len(world.files))
    logger.removeHandler(handler)
    return lines


@pytest.fixture(scope="module")
def build() -> None:
    """The device."""
    fake_device.build()


def pool_of(world: World, transport: str = "mpi", hosts: list[str] | None = None) -> RankPool:
    return RankPool(len(world.files), "", {"HVD_TRANSPORT": transport}, hosts=hosts)


@pytest.mark.usefixtures("build")
@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ([True, True], "CUDA-aware"),
        ([True, False], "not CUDA-aware on rank 1"),
        ([False, False], "not CUDA-aware"),
    ],
)
def test_line_at_init(aware: str, says: list[bool], expected: str) -> None:
    world = World(tuple(aware if yes else str(MPICH) for yes in says), all(says))
    with pool_of(world) as pool:
        (line,), none = pool.run(join, world)
    assert none == []
    assert f", {expected}), by HVD_TRANSPORT=mpi" in line


class Ranks:
    """Of a world, with the device."""

    def __init__(self, world: World, pool: RankPool) -> None:
        self.world = world
        self.pool = pool

    def run(self, function: Callable[..., Any], *args: Any) -> None:
        self.pool.run(joined, self.world, function, *args)


def joined(world: World, function: Callable[..., Any], *args: Any) -> None:
    if not dist.is_initialized():  # the first call, or after a failure
        join(world)
    function(*args)


@pytest.fixture(scope="module", params=["all", "three", "one not", "shm+mpi"])
def device_ranks(request: pytest.FixtureRequest, aware: str, build: None) -> Iterator[Ranks]:
    """Ranks whose libmpis all take the device's memory, or not all, or that share memory."""
    transport, hosts = "mpi", None
    world = World((aware, aware), direct=True)
    if request.param == "three":
        world = World((aware,) * 3, direct=True)
    elif request.param == "one not":
        world = World((aware, str(MPICH)), direct=False)
    elif request.param == "shm+mpi":
        transport, hosts = "shm+mpi", ["a", "a", "b"]
        world = World((aware,) * 3, direct=False)
    with pool_of(world, transport, hosts) as pool:
        yield Ranks(world, pool)


def on_device(count: int, value: float) -> Tensor:
    made: Tensor = device.upload(torch.full((count,), float(value)))
    assert made.is_cuda
    return made


def check(tensor: Tensor, value: float) -> None:
    assert filled(tensor.cpu(), value), tensor.cpu()


# Each makes a call on tensors of so many elements, and returns it, and the check of its results.
Made = tuple[Callable[[bool], Any], Callable[[], None]]


def broadcast(count: int, group: Any) -> Made:
    tensor = on_device(count, dist.get_rank())
    return (
        lambda async_op: dist.broadcast(tensor, 1, group=group, async_op=async_op),
        lambda: check(tensor, 1),
    )


def all_gather(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = on_device(count + rank, rank)
    gathered = [on_device(count + peer, -1) for peer in range(size)]

    def checks() -> None:
        for peer, tensor in enumerate(gathered):
            check(tensor, peer)

    return lambda async_op: dist.all_gather(gathered, mine, group=group, async_op=async_op), checks


def all_gather_into_tensor(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, gathered = on_device(count, rank), on_device(count * size, -1)

    def checks() -> None:
        for peer, part in enumerate(gathered.cpu().split(count)):
            assert filled(part, peer)

    return (
        lambda async_op: dist.all_gather_into_tensor(
            gathered, mine, group=group, async_op=async_op
        ),
        checks,
    )


def gather(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = on_device(count, rank)
    gathered = [on_device(count, -1) for _ in range(size)] if rank == 0 else None

    def checks() -> None:
        for peer, tensor in enumerate(gathered or []):
            check(tensor, peer)

    return lambda async_op: dist.gather(mine, gathered, 0, group=group, async_op=async_op), checks


def scatter(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    into = on_device(count, -1)
    parts = [on_device(count, peer) for peer in range(size)] if rank == 1 else None
    return (
        lambda async_op: dist.scatter(into, parts, 1, group=group, async_op=async_op),
        lambda: check(into, rank),
    )


def all_to_all(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    parts = [on_device(count + rank + peer, 10 * rank + peer) for peer in range(size)]
    into = [on_device(count + rank + peer, -1) for peer in range(size)]

    def checks() -> None:
        for peer, tensor in enumerate(into):
            check(tensor, 10 * peer + rank)

    return lambda async_op: dist.all_to_all(into, parts, group=group, async_op=async_op), checks


def all_to_all_single(count: int, group: Any) -> Made:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, into = on_device(count * size, rank), on_device(count * size, -1)

    def checks() -> None:
        for peer, part in enumerate(into.cpu().split(count)):
            assert filled(part, peer)

    return (
        lambda async_op: dist.all_to_all_single(into, mine, group=group, async_op=async_op),
        checks,
    )


MOVING = [
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
]


def crossed(call: Callable[[], Any]) -> int:
    """Bytes that it copied between host and device."""
    dist.barrier()
    before = device.crossed()
    call()
    after: int = device.crossed()
    return after - before


def moves(name: str, world: World, checked: bool) -> None:
    make = globals()[name]
    options = torch_hvd.Options(check=True) if checked else None
    group = dist.new_group(pg_options=options)
    for async_op in (False, True):
        for count in (SMALL, LARGE):
            call, check_results = make(count, group)
            # What an all_to_all has for others no rank knows, so no frame takes it.
            direct = world.direct and (count == LARGE or make in (all_to_all, all_to_all_single))

            def called(call: Callable[[bool], Any] = call, async_op: bool = async_op) -> None:
                work = call(async_op)
                if async_op:
                    work.wait()

            assert (crossed(called) == 0) is direct, (async_op, count)
            check_results()
    dist.destroy_process_group(group)


@pytest.mark.parametrize("checked", [False, True], ids=["", "checked"])
@pytest.mark.parametrize("make", MOVING, ids=lambda make: make.__name__)
def test_moving(device_ranks: Ranks, make: Callable[[int, Any], Made], checked: bool) -> None:
    """Large ones go from device to device, and nothing by way of the host."""
    device_ranks.run(moves, make.__name__, device_ranks.world, checked)


def reduces() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (SMALL, LARGE):
        tensor, mine, into = (on_device(each, rank) for each in (count, count * size, count))
        assert crossed(lambda tensor=tensor: dist.all_reduce(tensor)) > 0  # type: ignore[misc]
        dist.reduce_scatter_tensor(into, mine)
        check(tensor, sum(range(size)))
        check(into, sum(range(size)))


def test_sums_are_made_on_the_host(device_ranks: Ranks) -> None:
    device_ranks.run(reduces)


def not_contiguous() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    wide = device.upload(torch.full((1000, 2000), float(rank)))
    dist.broadcast(wide[:, 500:], 1)
    check(wide[:, 500:], 1)
    check(wide[:, :500], rank)
    gathered = [on_device(1_500_000, -1).view(1000, 1500) for _ in range(size)]
    dist.all_gather(gathered, wide[:, 500:])
    for tensor in gathered:
        check(tensor, 1)


def test_what_is_not_contiguous(device_ranks: Ranks) -> None:
    device_ranks.run(not_contiguous)


def on_host_and_device() -> None:
    tensor = torch.full((LARGE,), float(dist.get_rank()))
    if dist.get_rank() == 1:
        tensor = device.upload(tensor)
    dist.broadcast(tensor, 1)
    check(tensor, 1)
    dist.broadcast(tensor.add_(4) if tensor.is_cpu else tensor, 0)
    check(tensor, 5)


def test_ranks_on_host_and_device(device_ranks: Ranks) -> None:
    device_ranks.run(on_host_and_device)


BUSY = 0.5  # seconds


def quickly(call: Callable[[], Any]) -> Any:
    begin = time.monotonic()
    result = call()
    took = time.monotonic() - begin
    assert took < BUSY / 2, f"{took:.2f} s: it waited for the device"
    return result


def behind_the_callers_stream() -> None:
    """Memory that the device has yet to write, and later what it has read."""
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, late, late_too = (on_device(LARGE, value) for value in (-1, rank, -2))
    gathered = [on_device(LARGE, -1) for _ in range(size)]
    dist.barrier()
    device.sleep(BUSY, False)
    mine.copy_(late)
    for tensor in gathered:
        tensor.copy_(late_too)  # before what is gathered, not over it
    work: Any = quickly(lambda: dist.all_gather(gathered, mine, async_op=True))
    work.wait()
    mine.copy_(late_too)
    for peer, tensor in enumerate(gathered):
        check(tensor, peer)


def test_behind_the_callers_stream(device_ranks: Ranks) -> None:
    """Who submits does not wait for the device; what moves the tensors does."""
    device_ranks.run(behind_the_callers_stream)


def own_part() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine, gathered = on_device(LARGE, rank), [on_device(LARGE, -1) for _ in range(size)]
    device.sleep(BUSY, True)
    work: Any = dist.all_gather(gathered, mine, async_op=True)
    work.wait()
    for peer, tensor in enumerate(gathered):
        check(tensor, peer)


def test_own_part_is_there(device_ranks: Ranks) -> None:
    """Also where the device is slow to copy it."""
    device_ranks.run(own_part)


def futures() -> None:
    tensors = [on_device(count, dist.get_rank()) for count in (SMALL, LARGE)]
    for tensor in tensors:
        work: Any = dist.broadcast(tensor, 1, async_op=True)
        (result,) = work.get_future().then(lambda done: done.value()).wait()
        check(result, 1)


def test_futures(device_ranks: Ranks) -> None:
    device_ranks.run(futures)


def dropped() -> None:
    size = dist.get_world_size()
    for number in range(30):  # memory of one is free for the next as soon as nobody holds it
        for tensor in [on_device(LARGE, number) for _ in range(3)]:
            dist.broadcast(tensor, number % size, async_op=True)
    again = on_device(LARGE, dist.get_rank())
    dist.broadcast(again, 1)
    check(again, 1)


def test_dropped_without_a_wait(device_ranks: Ranks) -> None:
    device_ranks.run(dropped)


def messages(world: World) -> None:
    rank = dist.get_rank()
    for count in (SMALL, LARGE):
        for source in (0, None):
            tensor = on_device(count, 7 if rank == 0 else -1)

            def call(tensor: Tensor = tensor, source: int | None = source) -> None:
                if rank == 0:
                    dist.send(tensor, 1)
                elif rank == 1:
                    dist.recv(tensor, source)

            assert (crossed(call) == 0) is (world.direct or rank > 1)
            check(tensor, 7 if rank < 2 else -1)


def test_messages(device_ranks: Ranks) -> None:
    """Of any size, and from any rank."""
    device_ranks.run(messages, device_ranks.world)


def poll(work: Any) -> None:
    while not work.is_completed():
        time.sleep(0.001)


WAITS: dict[str, Callable[[Any], object]] = {
    "wait": lambda work: work.wait(),
    "wait for so long": lambda work: work.wait(timedelta(seconds=10)),
    "future": lambda work: work.get_future().wait(),
    "poll": poll,
}


def messages_behind_the_callers_stream(how: str) -> None:
    rank = dist.get_rank()
    device.use_stream(1)  # no other thread's
    tensor, late = on_device(LARGE, -1), on_device(LARGE, 7 if rank == 0 else -2)
    dist.barrier()
    device.sleep(BUSY * (1 + rank), False)  # the message is there before the receiver's device is
    tensor.copy_(late)
    if rank == 0:
        dist.send(tensor, 1)
    elif rank == 1:
        WAITS[how](quickly(lambda: dist.irecv(tensor, 0)))
        check(tensor, 7)
    device.use_stream(0)


@pytest.mark.parametrize("how", WAITS)
def test_messages_behind_the_callers_stream(device_ranks: Ranks, how: str) -> None:
    """Also into memory that the device is not done with, and nobody waits for that."""
    device_ranks.run(messages_behind_the_callers_stream, how)


def captured() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (SMALL, LARGE):
        tensor = on_device(count, rank)
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda tensor=tensor: dist.all_reduce(tensor),  # type: ignore[misc]
            "send": lambda tensor=tensor: dist.isend(tensor, (rank + 1) % size),  # type: ignore[misc]
            "recv": lambda tensor=tensor: dist.irecv(tensor, (rank + 1) % size),  # type: ignore[misc]
        }
        device.capture(True)
        for name, call in calls.items():
            with pytest.raises(
                RuntimeError, match=f"hvd: {name} while a graph is captured on cuda"
            ):
                call()
        device.capture(False)
        dist.all_reduce(tensor)
        check(tensor, sum(range(size)))


def test_in_a_graph(device_ranks: Ranks) -> None:
    """Refused before anything is sent, and the group goes on."""
    device_ranks.run(captured)

"""A store that does not answer: no error, destroy or exit waits for it longer than seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from calls import SMALL, expect_error, says_called
from ranks import RankPool, bare_store
from test_forks import in_a_fork
from torch_hvd import _autoload

SHORT = timedelta(seconds=1)
PATIENCE = 5.0  # seconds: more than a store gets for its answer
TALKATIVE = {"HVD_STALL_CHECK_TIME": "0.4"}  # who is idle says so after a quarter of that


@dataclass(frozen=True)
class Host:
    """A process that hosts a TCPStore, as others see it."""

    pid: int
    port: int

    def store(self) -> dist.TCPStore:
        return dist.TCPStore("127.0.0.1", self.port, is_master=False)

    def suspend(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)
        while any(_state(thread) != "T" for thread in Path(f"/proc/{self.pid}/task").iterdir()):
            time.sleep(0.001)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


def _serve(connection: Connection) -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    connection.send(store.port)
    connection.poll(None)  # until whoever started it ends


@pytest.fixture
def host() -> Iterator[Host]:
    """One that is no rank."""
    processes = multiprocessing.get_context("forkserver")
    ours, theirs = processes.Pipe()
    process = processes.Process(target=_serve, args=(theirs,))
    process.start()
    theirs.close()
    assert process.pid is not None
    yield Host(process.pid, ours.recv())
    process.kill()
    process.join()


@pytest.fixture
def pool() -> Iterator[RankPool]:
    """Two ranks in no group yet."""
    with RankPool(2, backend="", env={"HVD_TRANSPORT": "shm", **TALKATIVE}) as ranks:
        yield ranks


def join(store: dist.Store) -> int:
    """The rank in a group that meets in that store."""
    rank = int(os.environ["RANK"])
    dist.init_process_group(
        "hvd", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    return rank


def places(store: dist.TCPStore, groups: int = 1) -> set[str]:
    """The keys under which ranks say where they are, once both have those of so many groups."""
    while True:
        keys = {key for key in store.list_keys() if key.startswith("hvd/place/")}
        if len(keys) == 2 * groups:
            return keys
        time.sleep(0.01)


def all_told(store: dist.TCPStore, keys: set[str]) -> bool:
    """Whether something is said there; what a rank leaves when it joins is one byte."""
    return all(len(store.get(key)) > 1 for key in keys)


def wait_until_told(store: dist.TCPStore) -> None:
    """Until both ranks have a second connection to the store."""
    dist.barrier()
    keys = places(store)
    while not all_told(store, keys):
        time.sleep(0.01)
    dist.barrier()


def suspend(host: Host) -> None:
    """The store of the ranks that call this, whose next word to it gets no answer."""
    if dist.get_rank() == 0:
        bare_store().wait(["joined"])
        host.suspend()
    else:
        bare_store().set("joined", "")
    dist.barrier()


def fails_alone(group: dist.ProcessGroup | None = None) -> str:
    """The error of an all_reduce that no other rank calls."""
    (group or dist.distributed_c10d._get_default_group()).set_timeout(SHORT)
    text = expect_error(
        lambda: dist.all_reduce(torch.ones(SMALL), group=group),
        within=SHORT.total_seconds() + PATIENCE,
    )
    assert "timed out after 1000 ms" in text, text
    return text


def promptly(call: Callable[[], object]) -> None:
    begun = time.monotonic()
    call()
    took = time.monotonic() - begun
    assert took < PATIENCE, f"after {took:.1f} s"


def suspended_with_its_store(connected: bool) -> None:
    """Rank 0 hosts the store, as it does without a launcher."""
    bare = bare_store()
    if os.environ["RANK"] == "0":
        server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        bare.set("host", f"{os.getpid()} {server.port}")
    host = Host(*map(int, bare.get("host").split()))
    rank, store = join(host.store()), host.store()
    if connected:
        wait_until_told(store)
    if rank == 0:
        bare.set("ready", "")
        bare.wait(["resumed"])
    else:
        bare.wait(["ready"])
        host.suspend()
        try:
            begun = time.monotonic()
            text = fails_alone()
            assert "the store does not answer" in text, text
            dist.destroy_process_group()
            took = time.monotonic() - begun
            assert took < SHORT.total_seconds() + PATIENCE, f"after {took:.1f} s"
        finally:
            host.resume()
            bare.set("resumed", "")


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("connected", [True, False])
def test_suspended_rank(transport: str, connected: bool) -> None:
    env = {"HVD_TRANSPORT": transport, **TALKATIVE}
    with RankPool(2, backend="", env=env) as pool:
        pool.run(suspended_with_its_store, connected)


WAYS_OUT = {
    "destroy": dist.destroy_process_group,
    "abort": dist.distributed_c10d._abort_process_group,
    "end": _autoload._end,  # of the program
}


def leaves_while_idle(host: Host, way_out: str) -> None:
    join(host.store())
    suspend(host)
    time.sleep(0.5)  # it has something to say by now
    promptly(WAYS_OUT[way_out])


@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_idle_rank_leaves(pool: RankPool, host: Host, way_out: str) -> None:
    pool.run(leaves_while_idle, host, way_out)


def asks_again(host: Host, connected: bool) -> None:
    """A group fails while the store does not answer; another one has its word later."""
    rank, store = join(host.store()), host.store()
    if connected:
        wait_until_told(store)
    before = places(store)
    group = dist.new_group()
    keys = places(store, 2) - before
    suspend(host)
    if rank == 0:
        text = fails_alone()
        assert "the store does not answer" in text, text
        host.resume()
    told = torch.zeros(1)
    while not told:
        dist.all_reduce(torch.ones(SMALL + 1), group=group)
        time.sleep(0.5)  # and then it says what it has called
        told += all_told(store, keys)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=group)
    if rank == 0:
        text = fails_alone(group)
        assert "the store does not answer" not in text, text
        assert says_called(text, 1, "all_reduce(float32[1], MIN)"), text
        host.store().set("over", "")
    else:
        store.wait(["over"])
    promptly(dist.destroy_process_group)


@pytest.mark.parametrize("connected", [True, False])
def test_store_that_answers_again(pool: RankPool, host: Host, connected: bool) -> None:
    pool.run(asks_again, host, connected)


def has_a_group(port: int) -> None:
    """In a child: it has a group of its own, which tells where it is."""
    dist.destroy_process_group()
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    join(dist.PrefixStore("child", store))
    dist.barrier()
    wait_until_told(store)
    promptly(dist.destroy_process_group)


def forks(host: Host) -> None:
    join(host.store())
    suspend(host)
    time.sleep(0.5)  # it has something to say by now, and waits for the store
    bare = bare_store()
    assert isinstance(bare, dist.PrefixStore) and isinstance(bare.underlying_store, dist.TCPStore)
    port = bare.underlying_store.port
    assert in_a_fork(lambda: has_a_group(port)) == "no error"
    host.resume()
    promptly(dist.destroy_process_group)


def test_fork_while_the_connection_is_made(pool: RankPool, host: Host) -> None:
    pool.run(forks, host)

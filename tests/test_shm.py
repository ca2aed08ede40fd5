"""How ranks come to share memory, who else does not, and what becomes of ranks that cannot."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import check_group, cpu_backend
from footprint import descriptors, held, settled
from launch import launch
from ranks import RankPool, bare_store
from test_point_to_point import sends_beside_who_is_late
from torch_hvd import _shm
from torch_hvd._load import _C
from torch_hvd._store import Meeting

PAGE = os.sysconf("SC_PAGESIZE")


class Visited(dist.HashStore):
    """A store where strangers come to a rank as soon as it says where it is."""

    def __init__(self, *greetings: bytes) -> None:
        super().__init__()
        self._greetings = greetings
        self.visits: list[socket.socket] = []

    def set(self, key: str, value: str) -> None:
        if key.startswith("said/offers/"):
            _, (name, *_) = json.loads(value)
            # Who looks for it finds it here.
            assert f"@{name}" in Path("/proc/net/unix").read_text().split()
            for greeting in self._greetings:
                stranger = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self.visits.append(stranger)
                stranger.connect(f"\0{name}")
                stranger.bind("")  # or nobody could answer
                stranger.send(greeting)
        super().set(key, value)


def test_strangers_get_nothing() -> None:
    """Not by what they say, nor because they came first; and nobody waits for a silent one."""
    store = Visited(bytes(16), b"GET / HTTP/1.0\r\n\r\n", b"")
    begun = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        meetings = [Meeting(store, rank, range(3), timedelta(seconds=30)) for rank in range(3)]
        made = list(threads.map(lambda meeting: _shm.connect(meeting, 1), meetings))
    assert time.monotonic() - begun < 10
    assert [transport.name for transport, _ in made] == ["shm"] * 3
    assert len(store.visits) == 3 * 3
    for stranger in store.visits:
        with stranger:
            stranger.setblocking(False)
            with pytest.raises(BlockingIOError):
                stranger.recv(1)


def without_watching(rank: int) -> None:
    """The group lives on a rank of which the system allows no descriptor of a process."""

    def refuse(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    if dist.get_rank() == rank:
        os.pidfd_open = refuse
    group = dist.new_group()
    assert cpu_backend(group).transport == "shm"
    if dist.get_rank() != rank:
        time.sleep(0.5)  # it waits for longer than ranks go without a look at each other
    check_group(group)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_living_rank_is_not_taken_for_dead(rank: int) -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "shm"}) as pool:
        pool.run(without_watching, rank)


def refuse_memory(name: str, more: int | bytes = 0) -> int:
    raise PermissionError(errno.EPERM, "memfd_create is not allowed here")


def mapped_by_nobody(number: int, segment: int, *rest: Any) -> Any:
    return RANK(number, -1, *rest)


RANK = _C.ShmRank

# What can go wrong on one rank: whose attribute, by what, and what is then said.
REFUSALS = {
    "made": (os, "memfd_create", refuse_memory, "memfd_create is not allowed here"),
    "taken": (_shm, "_take", refuse_memory, "is not allowed here"),
    "mapped": (_C, "ShmRank", mapped_by_nobody, r"cannot map \d+ bytes of shared memory"),
}


def join_without(refusal: str, wanted: str, hosts: list[str], unlucky: int) -> str:
    """The transport that a rank gets, or the error, where one of them cannot share memory."""
    rank = int(os.environ["RANK"])
    os.environ.update(HVD_TRANSPORT=wanted, HVD_HOST_ID=hosts[rank])
    before = held()
    store = dist.PrefixStore(f"{refusal} {wanted} {hosts} {unlucky}", bare_store())
    begun = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        if rank == unlucky:
            whose, name, instead, _ = REFUSALS[refusal]
            patch.setattr(whose, name, instead)
        try:
            dist.init_process_group("hvd", store=store, rank=rank, world_size=len(hosts))
            check_group()
            result = str(cpu_backend().transport)
            dist.destroy_process_group()
        except ValueError as error:
            result = str(error)
    assert time.monotonic() - begun < 10
    del store
    settled(lambda: held() == before, lambda: f"{held()} held, {before} before: {descriptors()}")
    return result


@pytest.fixture(scope="module")
def bare() -> Iterator[RankPool]:
    with RankPool(3, backend="") as pool:
        pool.run(join_without, "made", "shm", ["a"] * 3, 3)  # what stays for good is there now
        yield pool


@pytest.mark.parametrize("unlucky", [0, 2])
@pytest.mark.parametrize("refusal", list(REFUSALS))
def test_auto_does_without_shared_memory(bare: RankPool, refusal: str, unlucky: int) -> None:
    """All ranks do, also those of other hosts."""
    for hosts in (["a", "a", "a"], ["b", "a", "b"]):
        assert bare.run(join_without, refusal, "auto", hosts, unlucky) == ["tcp"] * 3
    assert bare.run(join_without, refusal, "auto", ["a", "a", "a"], 3) == ["shm"] * 3


@pytest.mark.parametrize("refusal", list(REFUSALS))
def test_shared_memory_by_name_is_the_same_error_everywhere(bare: RankPool, refusal: str) -> None:
    (error,) = set(bare.run(join_without, refusal, "shm", ["a", "a", "a"], 1))
    why = REFUSALS[refusal][3]
    assert re.fullmatch(rf".*HVD_TRANSPORT.* is 'shm', but rank 1.*: .*{why}.*", error), error


def test_why_there_is_no_shared_memory() -> None:
    """With HVD_LOG=info, in the line of the group."""
    refused = """
    import errno
    def refuse(name, flags=0):
        raise PermissionError(errno.EPERM, "memfd_create is not allowed here")
    if rank == 1:
        os.memfd_create = refuse
    dist.new_group([1, 0])
    """
    ended = launch(refused, 2, env={"TORCH_CPP_LOG_LEVEL": "ERROR", "HVD_LOG": "info"})
    assert [rank.returncode for rank in ended] == [0, 0], [rank.stderr for rank in ended]
    (line,) = [line for line in ended[0].stderr.splitlines() if "hvd: group 1" in line]
    assert re.search(r"2 ranks on 1 host: tcp \(from \S+\); no shared memory: rank 1", line), line
    assert "memfd_create is not allowed here" in line


def test_without_reading_memory_who_is_late_keeps_nothing_from_others() -> None:
    with RankPool(3, env={"HVD_CMA": "0"}) as pool:
        pool.run(sends_beside_who_is_late, 4_000_000, 2)


def outlives_its_sender() -> float:
    """Seconds that it takes to drop a group whose sender has left and reads no receipts."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    group = dist.new_group()
    message = torch.ones(64)
    for _ in range(5000):  # more than a ring holds
        dist.recv(message, 0, group=group) if rank else dist.send(message, 1, group=group)
    if rank == 0:
        store.wait(["received"])
        dist.destroy_process_group(group)
        store.set("left", "")
        return 0.0
    store.set("received", "")
    store.wait(["left"])
    begun = time.monotonic()
    dist.destroy_process_group(group)
    del group
    gc.collect()
    return time.monotonic() - begun


def test_who_has_left_is_told_nothing() -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "shm"}) as pool:
        assert max(pool.run(outlives_its_sender)) < 0.9


@pytest.mark.parametrize("size", [2, 64])
def test_a_segment_takes_no_memory_before_it_is_used(size: int) -> None:
    """A page for its head, and one for the start of each ring."""
    segment = os.memfd_create("hvd-test")
    try:
        os.ftruncate(segment, _C.shm_segment_bytes(size))
        _C.initialise_shm_segment(segment, size)
        assert os.stat(segment).st_blocks * 512 <= (1 + size) * PAGE
    finally:
        os.close(segment)


def memory_of_segments() -> int:
    """Bytes of them that this process has touched."""
    touched, is_segment = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            is_segment = "memfd:hvd-" in line
        elif is_segment and name == "Rss:":
            touched += int(values[0]) * 1024
    return touched


def taken_by_long_messages() -> int:
    """Of a group's segments: by one of the user's, and by collectives that only move."""
    rank, group = dist.get_rank(), dist.new_group()
    tensor = torch.full((1 << 20,), float(rank))
    dist.barrier(group=group)
    before = memory_of_segments()
    dist.send(tensor, 1, group=group) if rank == 0 else dist.recv(tensor, 0, group=group)
    assert not tensor.any()
    gathered = [torch.ones_like(tensor) for _ in range(2)]
    dist.all_gather(gathered, tensor, group=group)
    assert not torch.cat(gathered).any()
    return memory_of_segments() - before


@pytest.mark.parametrize("attach", ["0", "1"])
def test_long_messages_are_read_where_they_are(attach: str) -> None:
    """Where cross-memory attach is allowed: nothing of them is in the segments, but letters are."""
    with RankPool(2, env={"HVD_TRANSPORT": "shm", "HVD_CMA": attach}) as pool:
        taken = pool.run(taken_by_long_messages)
    if attach == "1" and _shm.can_attach():
        assert max(taken) <= 16 * PAGE, taken
    else:
        assert min(taken) >= 64 * PAGE, taken


def complaint(*command: str) -> str:
    """Why a command cannot be run here; "" if it can."""
    if not shutil.which(command[0]):
        return f"no {command[0]} here (Debian: apt-get install util-linux)"
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20)
    return tried.stderr.strip() if tried.returncode else ""


def test_hosts_end_where_namespaces_do() -> None:
    """Those by which containers keep processes, sockets and memory apart."""
    tell = [sys.executable, "-c", "from torch_hvd import _shm; print(_shm.host_id({}))"]
    ways = [
        ["unshare", *flags] for flags in (["--ipc"], ["--net"], ["--pid", "--fork"], ["--user"])
    ]
    for way in ways:
        if refused := complaint(*way):
            pytest.skip(f"no namespaces here: {' '.join(way)}: {refused}")
    running = [subprocess.Popen([*way, *tell], stdout=subprocess.PIPE, text=True) for way in ways]
    ids = [process.communicate(timeout=60)[0].strip() for process in running]
    here = _shm.host_id({})
    assert all(here.split()[0] == there.split()[0] for there in ids)  # the same boot
    assert len({here, *ids}) == 1 + len(ways)


SMALL_DEV_SHM = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
SMALL_DEV_SHM += ['mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh"]


@pytest.mark.parametrize("attach", ["0", "1"])
def test_dev_shm_may_be_small(attach: str) -> None:
    """As in a container that nobody has told of shared memory."""
    if refused := complaint(*SMALL_DEV_SHM):
        pytest.skip(f"no namespaces here: {refused}")
    script = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from ranks import RankPool
from test_transport import collectives_of_all_sizes, more_than_the_arena
space = os.statvfs("/dev/shm")
assert space.f_blocks * space.f_frsize == 64 * 1024, space
with RankPool(2, env={{"HVD_TRANSPORT": "shm", "HVD_CMA": {attach!r}}}) as pool:
    pool.run(more_than_the_arena)
    pool.run(collectives_of_all_sizes)
"""
    command = [*SMALL_DEV_SHM, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr

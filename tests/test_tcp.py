"""How ranks connect by TCP, and what only TCP can get wrong."""

from __future__ import annotations

import json
import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from calls import check_group
from launch import launch
from ranks import RankPool
from rig.hosts import Hosts, complaint
from torch_hvd import _addresses, _tcp
from torch_hvd._store import Meeting

needs_hosts = pytest.mark.skipif(bool(REASON := complaint()), reason=f"no hosts here: {REASON}")


def connect_all(store: dist.Store, size: int) -> list[str]:
    """What ranks that are threads get: the transport, and their addresses; or the error."""

    def connect(rank: int) -> str:
        meeting = Meeting(store, rank, range(size), timedelta(seconds=30))
        try:
            transport, here = _tcp.connect(meeting, [0] * size, 1.0)
        except RuntimeError as error:
            return str(error)
        made.append(transport)  # until all have connected
        return f"{transport.name} from {here}"

    made: list[object] = []
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(connect, range(size)))


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_addresses(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with socket.socket(_addresses.family(address)) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            pytest.skip(f"there is no {address} here: {error}")
    monkeypatch.setattr(_addresses, "for_peers", lambda hosts: [address] * 2)
    assert connect_all(dist.HashStore(), 3) == [f"tcp from {[address] * 2}"] * 3


class Visited(dist.HashStore):
    """A store where strangers connect to rank 0 as soon as it says where it listens."""

    def __init__(self, *greetings: bytes) -> None:
        super().__init__()
        self._greetings = greetings
        self.visits: list[socket.socket] = []

    def set(self, key: str, value: str) -> None:
        if key == "said/listens/0":
            ((host, port),), _ = json.loads(value)
            for greeting in self._greetings:
                self.visits.append(socket.create_connection((host, port)))
                self.visits[-1].sendall(greeting)
        super().set(key, value)


def test_strangers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what they say, or because they say nothing."""
    monkeypatch.setattr(_tcp, "_HELLO_S", 0.2)
    wrong_token = _tcp._HELLO.pack(1, bytes(16))
    store = Visited(b"GET / HTTP/1.0\r\n\r\n" + bytes(20), wrong_token, b"")
    assert [text.partition(" from ")[0] for text in connect_all(store, 2)] == ["tcp"] * 2
    assert [is_closed(visit) for visit in store.visits] == [True] * 3


def test_who_calls_itself_a_rank_that_is_not_awaited_is_turned_away() -> None:
    """Though it knows the token: it has come before, or is to be called."""
    token = bytes(range(16))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        visits = [socket.create_connection(listener.getsockname()) for _ in range(4)]
        for visit, rank in zip(visits, (1, 1, 0, 2), strict=True):
            visit.sendall(_tcp._HELLO.pack(rank, token))
        taken = dict(_tcp._accept(listener, token, {1, 2}, time.monotonic() + 10))
    assert {rank: one.getpeername() for rank, one in taken.items()} == {
        1: visits[0].getsockname(),
        2: visits[3].getsockname(),
    }
    assert is_closed(visits[1]) and is_closed(visits[2])
    for connection in (visits[0], visits[3], *taken.values()):
        connection.close()


def is_closed(connection: socket.socket) -> bool:
    with connection:
        connection.settimeout(5)
        try:
            return connection.recv(1) == b""
        except ConnectionResetError:
            return True


def test_a_rank_that_does_not_come() -> None:
    """It has said where it listens, and no more."""
    store = dist.HashStore()
    store.set("said/listens/2", json.dumps([[["127.0.0.1", 1]], "00" * 16]))

    def connect(rank: int) -> str:
        with pytest.raises(RuntimeError) as caught:
            _tcp.connect(Meeting(store, rank, range(3), timedelta(seconds=1)), [0] * 3, 1.0)
        return str(caught.value)

    begun = time.monotonic()
    with ThreadPoolExecutor(2) as threads:
        errors = list(threads.map(connect, range(2)))
    assert 0.9 < time.monotonic() - begun < 10
    for rank, error in enumerate(errors):
        assert f"rank {rank} of 3 could not connect to the others over TCP on address" in error
        assert "no connection from rank 2" in error


def test_an_interface_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nothing0")
    (text,) = connect_all(dist.HashStore(), 1)
    here = ", ".join(name for name, _ in _addresses.of_interfaces())
    assert "interface nothing0 (GLOO_SOCKET_IFNAME)" in text
    assert f"no interface 'nothing0' has an address here; those that have are {here}" in text


def test_not_as_many_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([1, 2, 1])
    monkeypatch.setattr(_addresses, "for_peers", lambda hosts: ["127.0.0.1"] * next(counts))
    errors = connect_all(dist.HashStore(), 3)
    what = r"interfaces to use: \d, rank \d: \d; allowed is the same number on every rank"
    assert len({re.findall(what, error)[0] for error in errors}) == 1, errors


def stays_within_memory() -> int:
    """MB that a rank takes while another, ahead of it, sends it what it has not asked for."""
    rank = dist.get_rank()
    parts = [torch.full((1 << 20,), float(i)) for i in range(16)]  # 4 MB each
    if rank == 0:
        sends = [dist.isend(part, 1, tag=i) for i, part in enumerate(parts)]
        dist.barrier()
        for send in sends:
            assert send is not None
            send.wait()
        return 0
    before = resident()
    dist.barrier()  # reads what is there meanwhile
    taken = resident() - before
    for i, part in enumerate(parts):
        got = torch.empty_like(part)
        dist.recv(got, 0, tag=i)
        assert torch.equal(got, part)
    return taken


def resident() -> int:
    with open("/proc/self/status") as status:
        found = re.search(r"VmRSS:\s+(\d+) kB", status.read())
    assert found
    return int(found[1]) >> 10


def sends_in_a_row() -> None:
    """Rank 0 sends while its engine waits for room; rank 1 says nothing before both are done."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    parts = [torch.empty(25_000) for _ in range(150)]
    given = [[torch.full((25_000,), float(peer)) for peer in range(2)] for _ in parts]
    for attempt in range(20):
        dist.barrier()
        if rank == 1:
            time.sleep(0.03)  # the sockets fill
        works = []
        for part, both in zip(parts, given, strict=True):
            works.append(dist.scatter(part, None if rank else both, src=0, async_op=True))
            if rank == 0:
                time.sleep(0.0001)
        for work in works:
            assert work is not None
            work.wait()
        assert all(torch.all(part == rank) for part in parts)
        store.set(f"{attempt} done by {rank}", "")
        store.wait([f"{attempt} done by {1 - rank}"], timedelta(seconds=5))


def test_a_send_that_another_thread_ends() -> None:
    """Its waiter hears of that without a word from the receiver."""
    with RankPool(2, env={"HVD_TRANSPORT": "tcp"}) as pool:
        pool.run(sends_in_a_row)


def leaves_at_once(holds_group: bool) -> None:
    """Rank 0's last message is read though it has left, with what others have sent it unread."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.new_group()
    check_group(group)
    if rank > 0:
        dist.isend(torch.ones(1_000), 0, group=group)
    dist.barrier()
    if rank == 0:
        for peer in range(1, size):
            dist.send(torch.full((20_000,), float(peer)), peer, group=group)
        dist.destroy_process_group(group)
        if not holds_group:
            del group
    else:
        time.sleep(0.2)
        got = torch.empty(20_000)
        dist.recv(got, 0, group=group)
        assert torch.all(got == rank)
    dist.barrier()


def test_what_is_not_asked_for_stays_with_its_sender() -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "tcp"}) as pool:
        assert max(pool.run(stays_within_memory)) < 16  # of 64


def test_the_last_message_of_who_leaves() -> None:
    with RankPool(3, env={"HVD_TRANSPORT": "tcp"}) as pool:
        for holds_group in (False, True):
            pool.run(leaves_at_once, holds_group)


# What those scripts begin with that cut_off() runs.
BEFORE_THE_CUT = """
from datetime import timedelta
from pathlib import Path
from torch_hvd import _tcp

_tcp._PATIENCE = timedelta(seconds=1)
markers = Path(os.environ["MARKERS"])
group = dist.new_group()

def wait_for(marker):
    while not (markers / marker).exists():
        time.sleep(0.01)

def tell_failure(call):
    begun = time.monotonic()
    try:
        call()
    except RuntimeError as error:
        print(f"{time.monotonic() - begun:.1f} {error}", flush=True)
"""


def cut_off(hosts: Hosts, rail: int, script: str, markers: Path) -> list[str]:
    """What ranks print that run a script on two hosts; once both have left a marker with their
    number, nothing passes that link of host 1, and the marker "cut" is there.
    """
    with ThreadPoolExecutor(1) as thread:
        variables = {"MARKERS": str(markers)}
        ended = thread.submit(
            launch, BEFORE_THE_CUT + script, 2, env=variables, hosts=hosts, timeout=60
        )
        while not all((markers / str(rank)).exists() for rank in range(2)):
            assert not ended.done(), ended.result()
            time.sleep(0.01)
        hosts.cut(1, rail)
        (markers / "cut").touch()
        return [rank.stdout for rank in ended.result()]


# Rank 0 sends to a host that has been cut off.
SENDS_TO_NOBODY = """
tensor = torch.ones(1 << 22)
dist.all_reduce(tensor, group=group)
(markers / str(rank)).touch()
wait_for("over" if rank == 1 else "cut")
if rank == 1:
    os._exit(0)
tell_failure(lambda: dist.all_reduce(tensor, group=group))
(markers / "over").touch()
os._exit(0)
"""


@needs_hosts
def test_a_host_that_is_gone_without_a_word(tmp_path: Path) -> None:
    """As by a power cut: its system tells nobody. TCP would send again for a quarter of an hour."""
    with Hosts(2) as hosts:
        out, _ = cut_off(hosts, 0, SENDS_TO_NOBODY, tmp_path)
    assert "rank 1 has left or died" in out, out
    assert 0.9 < float(out.split()[0]) < 10


# Rank 0 sends to a process that has asked for the message and then was suspended: there is no room
# for more of it, so the system has nothing under way of which it could miss the receipt.
SENDS_TO_WHO_HAS_NO_ROOM = """
import signal

message = torch.ones(1 << 25)
dist.barrier(group=group)
if rank == 1:
    work = dist.irecv(message, 0, group=group)
    (markers / "1").write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGSTOP)
work = dist.isend(message, 1, group=group)
wait_for("1")
time.sleep(1)
(markers / "0").touch()
wait_for("cut")
tell_failure(work.wait)
os.kill(int((markers / "1").read_text()), signal.SIGKILL)
os._exit(0)
"""


@needs_hosts
def test_a_host_that_is_gone_while_it_took_in_nothing(tmp_path: Path) -> None:
    with Hosts(2) as hosts:
        out, _ = cut_off(hosts, 0, SENDS_TO_WHO_HAS_NO_ROOM, tmp_path)
    assert "rank 1 has left or died" in out, out
    assert 0.9 < float(out.split()[0]) < 20


# Until it is cut off, and on until it fails.
REDUCES_ON_AND_ON = """
tensor = torch.ones(1 << 22)
cut, begun = markers / "cut", None
try:
    while begun is None or time.monotonic() < begun + 20:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)
        (markers / str(rank)).touch()
        if begun is None and cut.exists():
            begun = time.monotonic()
except RuntimeError as error:
    print(f"{time.monotonic() - (begun or time.monotonic()):.1f} {error}", flush=True)
os._exit(0)
"""


@needs_hosts
def test_a_rail_that_is_gone_without_a_word(tmp_path: Path) -> None:
    """Half of every tensor goes there, so the ranks cannot do without it."""
    with Hosts(2, "1gbit", rails=2) as hosts:
        outs = cut_off(hosts, 1, REDUCES_ON_AND_ON, tmp_path)
    for rank, out in enumerate(outs):
        assert f"rank {1 - rank} has left or died" in out, outs
        assert float(out.split()[0]) < 10, outs


def connections() -> dict[tuple[Any, ...], int]:
    """Descriptors of this process, by the ends of their connections."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as one:
                found[one.getsockname(), one.getpeername()] = int(name)
        except OSError:
            continue  # it is closed by now, no socket, or not connected
    return found


def loses_a_rail(number: int) -> None:
    """Both ranks hear of it, though each has another that works."""
    before = connections()
    group = dist.new_group()
    check_group(group)
    new = [ends for ends in connections() if ends not in before]
    everyones: list[Any] = [None, None]
    dist.all_gather_object(everyones, new)
    if dist.get_rank() == 0:
        rails = [(here, there) for here, there in new if (there, here) in everyones[1]]
        assert len(rails) == 2
        with socket.socket(fileno=os.dup(connections()[rails[number]])) as rail:
            rail.shutdown(socket.SHUT_RDWR)
    dist.barrier()
    with pytest.raises(RuntimeError, match=r"rank \d has left or died|rank \d gave up"):
        for _ in range(3):
            dist.all_reduce(torch.ones(1 << 20), group=group)


@pytest.mark.parametrize("number", [0, 1])
def test_a_rail_that_is_closed(number: int) -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "tcp", "GLOO_SOCKET_IFNAME": "lo,lo"}) as pool:
        pool.run(loses_a_rail, number)

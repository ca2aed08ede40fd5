"""Which transport a group takes, and what only shared memory can get wrong."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import torch_hvd
from calls import check_group, cpu_backend
from footprint import held, settled
from libmpi import needs_mpich
from ranks import RankPool, bare_store
from torch_hvd import _mpi, _settings, _shm, _transport
from torch_hvd._store import Meeting

MB = 1 << 18  # float32 elements
PATIENCE = timedelta(seconds=30)


def chosen(
    monkeypatch: pytest.MonkeyPatch,
    wanted: str,
    hosts: list[str],
    launched: int = 0,
    fast_networks: Sequence[str] = ("/sys/class/net",),
) -> list[str]:
    """What each rank chooses, or the error it gets; ranks are threads, and mpirun has started the
    first of them, as many as said.
    """
    here = threading.local()
    monkeypatch.setattr(_shm, "host_id", lambda environ: here.host)
    monkeypatch.setattr(_mpi, "launcher", lambda environ: here.launcher)
    monkeypatch.setattr(_mpi, "FAST_NETWORKS", fast_networks)
    store = dist.HashStore()

    def choose(rank: int) -> str:
        here.host = hosts[rank]
        here.launcher = "Open MPI" if rank < launched else None
        meeting = Meeting(store, rank, range(len(hosts)), PATIENCE)
        try:
            return _transport.choose(wanted, meeting).transport
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(len(hosts)) as threads:
        return list(threads.map(choose, range(len(hosts))))


@pytest.mark.parametrize(
    ("wanted", "hosts", "expected"),
    [
        ("auto", ["a"], "none"),
        ("gloo", ["a"], "none"),
        ("shm", ["a"], "none"),
        ("auto", ["a", "a", "a"], "shm"),
        ("auto", ["a", "a", "b"], "shm+tcp"),
        ("auto", ["b", "a", "a", "b"], "shm+tcp"),
        ("gloo", ["b", "a", "a", "b"], "gloo"),
        ("auto", ["b", "a"], "tcp"),
        ("gloo", ["a", "a"], "gloo"),
        ("gloo", ["a", "b"], "gloo"),
        ("shm", ["a", "a"], "shm"),
        ("mpi", ["a", "a"], "mpi"),
        ("mpi", ["a", "b", "a"], "mpi"),
        ("mpi", ["a"], "none"),
        ("shm+gloo", ["a", "a"], "shm"),
        ("shm+gloo", ["a", "b"], "gloo"),
        ("shm+gloo", ["a", "b", "a"], "shm+gloo"),
        ("tcp", ["a", "a"], "tcp"),
        ("shm+tcp", ["a", "b", "a"], "shm+tcp"),
        ("shm+mpi", ["a", "b", "a"], "shm+mpi"),
        ("shm+mpi", ["a", "b"], "mpi"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch, wanted: str, hosts: list[str], expected: str
) -> None:
    assert chosen(monkeypatch, wanted, hosts) == [expected] * len(hosts)


def test_choice_under_mpirun_over_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, "auto", ["a", "b", "a"], 3, ["/nowhere"]) == ["shm+tcp"] * 3
    some = chosen(monkeypatch, "auto", ["a", "b", "a"], 2)  # ranks that mpirun has started
    assert some == ["shm+tcp"] * 3


@pytest.mark.parametrize(
    ("wanted", "hosts", "expected"),
    [
        ("auto", ["a", "a", "a"], "shm"),
        ("auto", ["a", "b", "c"], "mpi"),
        ("auto", ["a", "b", "a"], "shm+mpi"),
        ("gloo", ["a", "b", "a"], "gloo"),
        ("mpi", ["a", "b", "a"], "mpi"),
    ],
)
def test_choice_under_mpirun(
    monkeypatch: pytest.MonkeyPatch, wanted: str, hosts: list[str], expected: str
) -> None:
    assert chosen(monkeypatch, wanted, hosts, 3) == [expected] * len(hosts)


@pytest.mark.parametrize(
    ("hosts", "cores", "expected"),
    [
        (["a", "a"], [{0}, {1}], [1, 1]),  # as Open MPI binds them
        (["a", "a"], [{0}, {0}], [2, 2]),
        (["a", "a"], [{0, 1, 2, 3}, {2, 3, 4, 5}], [1 / 3, 1 / 3]),
        (["a", "b", "a"], [{0}, {200}, {0, 65}], [1, 1, 1]),
        (["a"] * 4, [{0, 1}] * 4, [2] * 4),
        (["a"], [{3, 4}], [0.5]),
    ],
)
def test_ranks_share_the_cores_of_all_on_their_host(
    monkeypatch: pytest.MonkeyPatch,
    hosts: list[str],
    cores: list[set[int]],
    expected: list[float],
) -> None:
    here = threading.local()
    monkeypatch.setattr(_shm, "host_id", lambda environ: here.host)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: here.cores)
    store = dist.HashStore()

    def ranks_per_core(rank: int) -> float:
        here.host, here.cores = hosts[rank], cores[rank]
        meeting = Meeting(store, rank, range(len(hosts)), PATIENCE)
        return _transport.choose("auto", meeting).ranks_per_core(rank)

    with ThreadPoolExecutor(len(hosts)) as threads:
        assert list(threads.map(ranks_per_core, range(len(hosts)))) == expected


def test_memory_that_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = chosen(monkeypatch, "shm", ["a", "a", "b"])
    assert len(set(errors)) == 1
    assert "transport is 'shm', but ranks 0 and 2" in errors[0]
    assert "allowed there is auto, gloo, mpi, tcp or a pair, as shm+tcp" in errors[0]


def unreadable(*_: object) -> str:
    raise PermissionError("masked")


def test_host_of_an_incomplete_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without namespaces the boot is enough; without that a process shares memory with nobody."""
    monkeypatch.setattr(os, "readlink", unreadable)
    assert _shm.host_id({}) == _shm.host_id({})
    monkeypatch.setattr(Path, "read_text", unreadable)
    assert _shm.host_id({}) != _shm.host_id({})


def test_host() -> None:
    here = _shm.host_id({})
    assert here == _shm.host_id({}) and len(here) > 36
    assert _shm.host_id({"HVD_HOST_ID": "rack 7"}) == "rack 7"
    for text in ("yes", "2"):
        with pytest.raises(ValueError, match=f"HVD_CMA is '{text}'; allowed is 0 or 1"):
            _settings.may_attach({"HVD_CMA": text})


def join(prefix: str, hosts: list[str]) -> str:
    """Join as a rank on the host of that name; the transport it got."""
    rank = int(os.environ["RANK"])
    os.environ["HVD_HOST_ID"] = hosts[rank]
    store = dist.PrefixStore(prefix, bare_store())
    dist.init_process_group("hvd", store=store, rank=rank, world_size=len(hosts))
    check_group()
    transport = cpu_backend().transport
    dist.destroy_process_group()
    return transport


def test_hosts_by_name() -> None:
    """Ranks that say they are elsewhere use the network."""
    with RankPool(3, backend="") as pool:
        assert pool.run(join, "one host", ["a", "a", "a"]) == ["shm"] * 3
        assert pool.run(join, "two hosts", ["a", "b", "a"]) == ["shm+tcp"] * 3
        assert pool.run(join, "three hosts", ["a", "b", "c"]) == ["tcp"] * 3


def many_messages() -> None:
    """More letters than a ring holds, before the other side looks at any."""
    rank, size = dist.get_rank(), dist.get_world_size()
    peer = (rank + 1) % size
    source = (rank - 1) % size
    count = 3000
    sends = [dist.isend(torch.full((i % 90,), float(i)), peer, tag=i % 7) for i in range(count)]
    dist.barrier()
    for i in range(count):
        got = torch.empty(i % 90)
        dist.recv(got, source, tag=i % 7)
        assert torch.all(got == i), i
    for send in sends:
        assert send is not None
        send.wait()


def more_than_the_arena() -> None:
    """Messages of many parts, sent by all before anyone receives."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sends = [
        dist.isend(torch.full((3 * MB + 1,), float(10 * rank + i)), peer, tag=i)
        for i in range(4)
        for peer in range(size)
        if peer != rank
    ]
    for i in reversed(range(4)):
        for source in range(size):
            if source != rank:
                got = torch.empty(3 * MB + 1)
                dist.recv(got, source, tag=i)
                assert torch.all(got == 10 * source + i)
    for send in sends:
        assert send is not None
        send.wait()


def both_send_before_they_receive() -> None:
    """With a receive posted, a send ends though nobody waits for that receive yet."""
    rank, size = dist.get_rank(), dist.get_world_size()
    got = torch.empty(20 * MB)
    receive = dist.irecv(got, (rank - 1) % size)
    assert receive is not None
    dist.send(torch.full((20 * MB,), float(rank)), (rank + 1) % size)
    receive.wait()
    assert torch.all(got == (rank - 1) % size)


def a_receive_that_nobody_waits_for() -> None:
    """Rank 0 goes on once its message is out; rank 1 waits for that in another group first."""
    rank = dist.get_rank()
    other = dist.new_group()
    got = torch.zeros(20 * MB)
    receive = dist.irecv(got, 0) if rank == 1 else None
    if rank == 0:
        dist.send(torch.ones(20 * MB), 1)
    dist.all_reduce(torch.ones(1), group=other)
    if receive is not None:
        receive.wait()
        assert torch.all(got == 1)


def collectives_of_all_sizes() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = size * (size + 1) / 2
    for count in (1, 49, 51, 20_000, MB, 5 * MB + 3, 20 * MB):
        tensor = torch.full((count,), float(rank + 1))
        works = [dist.all_reduce(tensor.clone(), async_op=True) for _ in range(3)]
        for work in works:
            assert work is not None
            work.wait()
            assert torch.all(work.result()[0] == total), count
        gathered = torch.empty(size * count)
        dist.all_gather_into_tensor(gathered, tensor)
        for peer, part in enumerate(gathered.chunk(size)):
            assert torch.all(part == peer + 1), count


def exact_sums() -> None:
    size = dist.get_world_size()
    parts = [torch.randn(MB, generator=torch.Generator().manual_seed(r)) for r in range(size)]
    tensor = parts[dist.get_rank()].clone()
    with torch_hvd.compression("int4"):
        dist.all_reduce(tensor)
    assert torch.equal(tensor, sum(parts[1:], parts[0]))


def test_nothing_is_compressed_inside_a_host() -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "shm", "HVD_COMPRESSION": "int8"}) as pool:
        pool.run(exact_sums)


MESSAGES = (
    many_messages,
    more_than_the_arena,
    both_send_before_they_receive,
    a_receive_that_nobody_waits_for,
    collectives_of_all_sizes,
)


@pytest.mark.parametrize("attach", ["0", "1"])
@pytest.mark.parametrize("size", [2, 3])
def test_messages(size: int, attach: str) -> None:
    """With cross-memory attach and without, where everything is copied through the arena."""
    with RankPool(size, env={"HVD_TRANSPORT": "shm", "HVD_CMA": attach}) as pool:
        for function in MESSAGES:
            pool.run(function)
            pool.run(check_group)


@pytest.mark.parametrize("transport", [pytest.param("mpi", marks=needs_mpich), "tcp"])
def test_messages_between_hosts(transport: str) -> None:
    with RankPool(3, env={"HVD_TRANSPORT": transport}) as pool:
        for function in MESSAGES:
            pool.run(function)
            pool.run(check_group)


def make_and_drop_groups() -> None:
    def make_and_drop() -> None:
        group = dist.new_group()
        check_group(group)
        assert cpu_backend(group).transport == "shm"
        dist.destroy_process_group(group)
        del group

    make_and_drop()
    before = held()
    for _ in range(10):
        make_and_drop()
    settled(lambda: held() == before, lambda: f"{held()} held, {before} before")


def test_nothing_is_left_of_a_group() -> None:
    with RankPool(2, env={"HVD_TRANSPORT": "shm"}) as pool:
        pool.run(make_and_drop_groups)
    assert not [name for name in os.listdir("/dev/shm") if "hvd" in name]


def idle_cpu() -> float:
    """Seconds of CPU that a second of waiting takes, while the last rank is late."""
    dist.barrier()
    begin, start = time.process_time(), time.monotonic()
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(2)
        begin = time.process_time()
    dist.all_reduce(torch.ones(4))
    return (time.process_time() - begin) / (time.monotonic() - start)


@pytest.mark.parametrize("size", [2, 4])
def test_waiting_burns_no_core(size: int) -> None:
    with RankPool(size, env={"HVD_TRANSPORT": "shm"}) as pool:
        pool.run(check_group)
        assert max(pool.run(idle_cpu)) < 0.1

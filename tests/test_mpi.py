"""MPI as a transport: its one world, under launchers and without, and how programs end.

That it moves what it should the contract tests show, which run on it, too.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from datetime import timedelta
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

import standin
import torch_hvd
from calls import check_group, cpu_backend
from footprint import leaves_no_names
from launch import launch
from libmpi import (
    MPICH,
    OPEN_MPI,
    OVER_MPI,
    SYSTEMS_OPEN_MPI_4,
    needs_mpich,
    needs_open_mpi,
    needs_systems_open_mpi_4,
)
from libmpi import launch as launch_by_mpi
from mpiruns import SYSTEMS_OPEN_MPI
from ranks import RankPool, bare_store
from torch_hvd import _mpi
from torch_hvd._load import _C

SCRIPT = Path(__file__).with_name("mpi_script.py")
MPI4PY_SCRIPT = Path(__file__).with_name("mpi4py_script.py")


def join_again(prefix: str, order: list[int]) -> tuple[int, str]:
    """Join with the ranks in that order, or stay away."""
    mine = int(os.environ["RANK"])
    if mine not in order:
        return -1, ""
    rank = order.index(mine)
    store = dist.PrefixStore(prefix, bare_store())
    try:
        dist.init_process_group("hvd", store=store, rank=rank, world_size=len(order))
    except ValueError as error:
        return rank, str(error)
    transport = cpu_backend().transport
    gathered = [torch.empty(1) for _ in order]
    dist.all_gather(gathered, torch.tensor([float(mine)]))
    assert gathered == [torch.tensor([float(each)]) for each in order]
    check_group()
    dist.destroy_process_group()
    return rank, transport


@needs_mpich
def test_one_world_for_many_groups() -> None:
    """MPI starts once: what joins later is a part of that world, in any order."""
    with RankPool(3, backend="", env=OVER_MPI) as pool:
        assert [rank for rank, _ in pool.run(join_again, "all", [0, 1, 2])] == [0, 1, 2]
        assert [rank for rank, _ in pool.run(join_again, "turned", [2, 0, 1])] == [1, 2, 0]
        assert pool.run(join_again, "some", [2, 0])[2] == (0, "mpi")


def joins_in_a_child() -> str:
    """What a child that a rank forks is told when it joins a group of its own."""
    check_group()
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(theirs, str(_mpi._found(2, os.environ)).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    check_group()
    return os.read(ours, 1000).decode()


@needs_mpich
def test_a_forked_child_has_no_mpi() -> None:
    with RankPool(2, env=OVER_MPI) as pool:
        for told in pool.run(joins_in_a_child):
            assert "MPI was started before this process was forked off" in told


@needs_mpich
def test_a_rank_from_outside_of_the_world() -> None:
    with RankPool(3, backend="", env=OVER_MPI) as pool:
        pool.run(join_again, "two", [0, 1])
        errors = {text for _, text in pool.run(join_again, "three", [0, 1, 2])}
    (error,) = errors
    assert "MPI runs already on only one of ranks 0 and 2" in error


def dies(victim: int) -> None:
    check_group()
    if dist.get_rank() == victim:
        os.kill(os.getpid(), signal.SIGKILL)


@needs_mpich
@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "a", "b"]], ids="-".join)
def test_nothing_is_left_of_killed_ranks(hosts: list[str]) -> None:
    with leaves_no_names(), RankPool(3, env=OVER_MPI, hosts=hosts) as pool:
        pool.run(dies, 0, lost=[0])


def makes_a_group_alone(timeout: timedelta, said: str, dies: bool) -> None:
    """Rank 1 comes as far as where the others call MPI, and no further."""

    def stay_away(*_: object) -> None:
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(4)
        raise InterruptedError

    rank = dist.get_rank()
    if rank == 1:
        with patch.object(_C, "mpi_transport", stay_away), pytest.raises(InterruptedError):
            dist.new_group()
    else:
        begun = time.monotonic()
        with pytest.raises(RuntimeError) as caught:
            dist.new_group(timeout=timeout)
        assert 0.9 < time.monotonic() - begun < 4
        assert f"rank {rank} of 3 could not make a communicator of MPI" in str(caught.value)
        assert said in str(caught.value)
    if not dies:
        check_group()


@needs_mpich
@pytest.mark.parametrize("hosts", [["a", "a", "a"], ["a", "a", "b"]], ids="-".join)
def test_a_rank_that_does_not_make_its_part_of_a_group(hosts: list[str]) -> None:
    """MPI itself waits for it for ever."""
    with RankPool(3, env=OVER_MPI, hosts=hosts) as pool:
        second = timedelta(seconds=1)
        pool.run(makes_a_group_alone, second, "Timed out waiting for the others", dies=False)
    with RankPool(3, env=OVER_MPI, hosts=hosts) as pool:
        pool.run(makes_a_group_alone, 20 * second, "rank 1 has left or died", dies=True, lost=[1])


def sums_between_hosts() -> None:
    for count in (3, 300_000):
        tensor = torch.full((count,), float(dist.get_rank()))
        dist.all_reduce(tensor)
        assert torch.all(tensor == 3)


@needs_mpich
def test_two_hosts() -> None:
    """Ranks that say that they are elsewhere: MPI uses its network between them."""
    with RankPool(3, env=OVER_MPI, hosts=["a", "a", "b"]) as pool:
        pool.run(sums_between_hosts)


@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        pytest.param("openmpi", 2, marks=needs_open_mpi),
        pytest.param("openmpi", 3, marks=needs_open_mpi),
        pytest.param("mpich", 3, marks=needs_mpich),
    ],
)
def test_launched(launcher: str, size: int) -> None:
    ended = launch_by_mpi(launcher, size, SCRIPT)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("all well") == size, ended.stdout


@needs_systems_open_mpi_4
def test_launched_by_open_mpi_4() -> None:
    env = {"HVD_LIBMPI": str(SYSTEMS_OPEN_MPI_4), "HVD_LOG": "info"}
    ended = launch_by_mpi(SYSTEMS_OPEN_MPI, 2, SCRIPT, env=env)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("all well") == 2, ended.stdout
    assert "2 ranks on 1 host: mpi (Open MPI 4." in ended.stdout, ended.stdout


@pytest.mark.parametrize(("level", "turns"), [("multiple", 0), ("serialized", 1)])
@pytest.mark.parametrize(
    ("launcher", "library"),
    [
        pytest.param("openmpi", OPEN_MPI, marks=needs_open_mpi),
        pytest.param("mpich", MPICH, marks=needs_mpich),
    ],
)
def test_started_by_mpi4py(launcher: str, library: Path, level: str, turns: int) -> None:
    """Which has MPI before hvd, and ends it."""
    pytest.importorskip("mpi4py", reason="needs `pip install mpi4py`")
    ended = launch_by_mpi(launcher, 2, MPI4PY_SCRIPT, level, env={"MPI4PY_LIBMPI": str(library)})
    assert ended.returncode == 0, ended.stdout
    printed = [ended.stdout.count(text) for text in ("all well", "MPI runs on", "they take turns")]
    assert printed == [2, 2, 2 * turns], ended.stdout


@pytest.mark.parametrize(
    ("launcher", "hosts"),
    [
        pytest.param("openmpi", "aab", marks=needs_open_mpi),
        pytest.param("mpich", "abab", marks=needs_mpich),
    ],
)
def test_auto_between_hosts(launcher: str, hosts: str) -> None:
    """Ranks that say that they are on several."""
    args = ("--hosts", hosts, "--transport", "shm+mpi")
    ended = launch_by_mpi(launcher, len(hosts), SCRIPT, *args, env={"HVD_TRANSPORT": "auto"})
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("all well") == len(hosts), ended.stdout


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        ("/nowhere/libmpi.so", "rank 0: no libmpi can be opened: /nowhere/libmpi.so"),
        pytest.param(
            str(OPEN_MPI),
            "is not the MPI whose launcher, of PMI, has started it",
            marks=needs_open_mpi,
        ),
    ],
    ids=["no library", "another MPI"],
)
@needs_mpich
def test_auto_does_without_mpi(library: str, reason: str) -> None:
    env = {"HVD_TRANSPORT": "auto", "HVD_LIBMPI": library, "HVD_LOG": "info"}
    args = ("--hosts", "aab", "--transport", "shm+tcp")
    ended = launch_by_mpi("mpich", 3, SCRIPT, *args, env=env)
    assert ended.returncode == 0, ended.stdout
    assert "3 ranks on 2 hosts: shm+tcp" in ended.stdout
    assert "; no MPI: rank 0: " in ended.stdout and reason in ended.stdout, ended.stdout


@needs_open_mpi
def test_fewer_ranks_than_were_launched() -> None:
    ended = launch_by_mpi("openmpi", 3, SCRIPT, "--size", "2")
    assert ended.returncode != 0
    assert "3 processes were launched, but the first group over MPI is of 2" in ended.stdout


@needs_open_mpi
@needs_mpich
def test_launcher_of_another_mpi() -> None:
    ended = launch_by_mpi("mpich", 2, SCRIPT, env={"HVD_LIBMPI": str(OPEN_MPI)})
    assert ended.returncode != 0
    assert "Open MPI 5" in ended.stdout, ended.stdout
    assert "is not the MPI whose launcher has started them" in ended.stdout, ended.stdout


@needs_mpich
def test_a_rank_that_raises_does_not_wait_for_the_others() -> None:
    script = """
        begun = time.monotonic()
        dist.barrier()
        if rank == 0:
            raise ValueError("mine")
        try:
            dist.barrier()
        except dist.DistBackendError as error:
            assert "rank 0 left or died" in str(error), error
        assert time.monotonic() - begun < 10
        print("told")
    """
    first, second = launch(script, size=2, env=OVER_MPI)
    assert first.returncode == 1 and "ValueError: mine" in first.stderr
    assert second.returncode == 0 and second.stdout == "told\n", second.stderr


ON_THREE_HOSTS = """
    import torch_hvd

    def pidfd_open(pid):  # of another host's process there is none
        raise OSError

    os.pidfd_open = pidfd_open
    os.environ["HVD_HOST_ID"] = str(rank)
    group = dist.new_group(pg_options=torch_hvd.Options(transport="mpi"))
    dist.all_reduce(torch.ones(4), group=group)
"""


@needs_mpich
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("pass", ""),
        ("dist.all_reduce(torch.ones(4), group=group)", "rank 0 left or died"),
        ("dist.send(torch.ones(4), 0, group=group)", "rank 0: it has left or died"),
        (
            "dist.isend(torch.ones(4), 3 - rank, group=group);"
            "dist.send(torch.ones(4), 0, group=group)",
            "rank 0: it has left or died",
        ),
        ("dist.recv(torch.ones(4), 0, group=group)", "rank 0: it has left or died"),
    ],
)
def test_a_rank_that_left_and_has_ended(what: str, error: str) -> None:
    """MPICH over TCP crashes in a rank that sends to one that has ended."""
    script = f"""
    dist.barrier()
    if rank != 0:
        time.sleep(2)
        try:
            {what}
        except dist.DistBackendError as error:
            print(error)
    """
    ended = launch(ON_THREE_HOSTS + script, size=3, env={"UCX_TLS": "tcp,self"})
    assert [one.returncode for one in ended] == [0, 0, 0], ended
    # One of them may hear that the other has given up because of it.
    assert error in "".join(one.stdout for one in ended), ended


@needs_mpich
def test_a_rank_that_gave_up_and_has_ended() -> None:
    script = """
    dist.barrier()
    if rank == 0:
        group._get_backend(torch.device("cpu")).abort()
    else:
        time.sleep(2)
        try:
            dist.send(torch.ones(4), 0, group=group)
        except dist.DistBackendError as error:
            print(error)
    """
    ended = launch(ON_THREE_HOSTS + script, size=3, env={"UCX_TLS": "tcp,self"})
    assert [one.returncode for one in ended] == [0, 0, 0], ended
    assert all("rank 0 has given up" in one.stdout for one in ended[1:]), ended


LAUNCHERS = [
    pytest.param("openmpi", marks=needs_open_mpi),
    pytest.param("mpich", marks=needs_mpich),
    pytest.param(SYSTEMS_OPEN_MPI, marks=needs_systems_open_mpi_4),
]


def launch_program(launcher: str, program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(program)
    env = {"HVD_LIBMPI": str(SYSTEMS_OPEN_MPI_4)} if launcher == SYSTEMS_OPEN_MPI else None
    return launch_by_mpi(launcher, 2, script, env=env)


FEWER_BATCHES = """
import torch
import torch.distributed as dist

dist.init_process_group("hvd")
for _ in range(3 if dist.get_rank() == 1 else 4):
    dist.all_reduce(torch.ones(4))
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_with_fewer_batches(launcher: str, tmp_path: Path) -> None:
    """At MPI's end it waits for the others, which must hear that it does not take part any more."""
    ended = launch_program(launcher, FEWER_BATCHES, tmp_path)
    assert ended.returncode != 0
    assert "all_reduce(float32[4], SUM), number 3" in ended.stdout, ended.stdout
    assert "it has left or died" in ended.stdout, ended.stdout


GETS_OVER_A_FAILURE = """
import time
from datetime import timedelta
import torch
import torch.distributed as dist

dist.init_process_group("hvd")
rank = dist.get_rank()
group = dist.new_group(timeout=timedelta(seconds=1))
if rank == 0:
    for count in (4, 300_000):
        try:
            dist.all_reduce(torch.ones(count), group=group)
        except dist.DistBackendError:
            pass
    dist.isend(torch.ones(4_000_000), 1)
dist.barrier()
time.sleep(2 * rank)
print("all well", flush=True)
"""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_who_gets_over_a_failure_ends_nobody(launcher: str, tmp_path: Path) -> None:
    """A launcher ends all when one ends without MPI's end, even if it says that all is well."""
    ended = launch_program(launcher, GETS_OVER_A_FAILURE, tmp_path)
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("all well") == 2, ended.stdout


def is_late_in_a_group_after_another() -> None:
    rank = dist.get_rank()
    for late in range(dist.get_world_size()):
        first = dist.new_group()
        check_group(first)
        time.sleep(0.2 if rank == late else 0)
        dist.destroy_process_group(first)
        del first
        second = dist.new_group()
        time.sleep(1.5 if rank == late else 0)
        check_group(second)


@needs_mpich
def test_a_later_group_does_not_hear_who_left_the_first() -> None:
    """MPI gives it the number by which it told the messages of the first one."""
    with RankPool(2, env=OVER_MPI) as pool:
        pool.run(is_late_in_a_group_after_another)


def idle_cpu() -> float:
    """Seconds of CPU that a second of waiting takes, while the last rank is late."""
    dist.barrier()
    last = dist.get_rank() == dist.get_world_size() - 1
    if last:
        time.sleep(2)
    begin, start = time.process_time(), time.monotonic()
    dist.all_reduce(torch.ones(4))
    return 0.0 if last else (time.process_time() - begin) / (time.monotonic() - start)


@needs_mpich
def test_waiting_burns_no_core() -> None:
    with RankPool(3, env=OVER_MPI) as pool:
        pool.run(check_group)
        assert max(pool.run(idle_cpu)) < 0.1


def long_message(count: int) -> None:
    if dist.get_rank() == 0:
        tensor = torch.arange(count, dtype=torch.int64)
        dist.send(tensor, 1)
        dist.send(tensor, 1)
    else:
        for receive in (lambda got: dist.recv(got, 0), dist.recv):
            got = torch.zeros(count, dtype=torch.int64)
            receive(got)
            assert torch.equal(got, torch.arange(count, dtype=torch.int64))
            del got


def _meet_elsewhere(rounds: int) -> None:
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    with standin.hosts_apart():
        group = dist.new_group(pg_options=torch_hvd.Options(compression="fp16"))
    tensor = torch.ones(9_000_001)
    for number in range(rounds):
        print(f"round {number}")
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
        store.set(f"met/{number}/{rank}", "")
        store.get(f"met/{number}/{1 - rank}")
    assert bool((tensor == 1).all())


@needs_mpich
def test_who_has_received_owes_nothing() -> None:
    """One that waits for its send does not wait for the other's next call of MPI."""
    with RankPool(2, "hvd", OVER_MPI) as ranks:
        ranks.run(_meet_elsewhere, 60)


@pytest.mark.slow
@needs_mpich
def test_a_message_longer_than_mpi_can_count() -> None:
    """In parts: from a rank, and from any."""
    with RankPool(2, env=OVER_MPI) as pool:
        pool.run(long_message, (1 << 28) + 3)

"""mpirun over two hosts, which are network namespaces."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from mpiruns import KINDS, environment, left_of, mpirun
from rig.agent import agent
from rig.hosts import Hosts, complaint
from torch_hvd.hvdrun import version_of

pytestmark = [pytest.mark.timeout(180)]
if REASON := complaint():
    pytestmark.append(pytest.mark.skip(reason=f"no hosts here: {REASON}"))

SCRIPT = Path(__file__).with_name("mpi_script.py")
SUM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("hvd")
ranks = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(ranks)
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "HVD_STALL_CHECK_TIME")
print(ranks.item(), *(os.environ.get(name) for name in names), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    with Hosts(2) as two:
        yield two


@pytest.fixture
def variables(hosts: Hosts, tmp_path: Path) -> dict[str, str]:
    """Those that have each mpirun start its daemons on both."""
    return agent(hosts, 2, tmp_path)


def new_store() -> dist.TCPStore:
    return dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)


def run(hosts: Hosts, variables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on host 0."""
    env, token = environment(variables)
    ran = subprocess.run(
        [*hosts.command(0), *command], env=env, capture_output=True, text=True, timeout=150
    )
    assert left_of(token) == []
    return ran


def places(hosts: Hosts, order: tuple[int, int], each: int = 2) -> str:
    return ",".join(f"{hosts.address(host)}:{each}" for host in order)


def plain(kind: str, mpirun: str, hosts: str, size: int = 4) -> list[str]:
    ranks = ["-np", str(size)]
    if kind == "mpich":
        return [mpirun, *ranks, "-hosts", hosts]
    return [mpirun, *ranks, "--allow-run-as-root", "--bind-to", "none", "-H", hosts]


def fills_its_own_host_first(mpirun: str) -> bool:
    return version_of(mpirun).startswith("Open MPI 4")


@pytest.mark.parametrize("kind", KINDS)
def test_mpirun_over_two_hosts(
    hosts: Hosts, variables: dict[str, str], tmp_path: Path, kind: str
) -> None:
    command = plain(kind, mpirun(kind, tmp_path), places(hosts, (0, 1)))
    ran = run(hosts, variables, *command, sys.executable, "-c", SUM)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == [
        f"15 {rank} {rank % 2} 2 {hosts.address(0)} None" for rank in range(4)
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("each", "wanted", "transport"),
    [(1, "mpi", "mpi"), (1, "auto", "mpi"), (2, "auto", "shm+mpi")],
)
def test_contract_over_two_hosts(
    hosts: Hosts,
    variables: dict[str, str],
    tmp_path: Path,
    kind: str,
    each: int,
    wanted: str,
    transport: str,
) -> None:
    """By TCP, or as if over a faster network, where auto takes MPI, it keeps the contract."""
    variables |= {"HVD_LOG": "info", "HVD_TRANSPORT": wanted}
    store = hosts.at_the_switch(new_store)
    command = plain(kind, mpirun(kind, tmp_path), places(hosts, (0, 1), each), 2 * each)
    script = [sys.executable, str(SCRIPT), "--transport", transport]
    ran = run(hosts, variables, *command, *script, hosts.switch_address, str(store.port))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["all well"] * 2 * each
    assert f"{2 * each} ranks on 2 hosts: {transport} (" in ran.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_hvdrun_over_two_hosts_with_rank_0_on_the_other(
    hosts: Hosts, variables: dict[str, str], tmp_path: Path, kind: str
) -> None:
    launch = [sys.executable, "-m", "torch_hvd.hvdrun", "--mpirun", mpirun(kind, tmp_path)]
    options = ["-np", "4", "-H", places(hosts, (1, 0)), "--stall-check-time", "77"]
    logs = ["--output-filename", str(tmp_path / "logs")]
    ran = run(hosts, variables, *launch, *options, *logs, sys.executable, "-c", SUM)
    assert ran.returncode == 0, ran.stderr
    printed = [(tmp_path / "logs" / f"rank.{rank}" / "stdout").read_text() for rank in range(4)]
    first = 0 if fills_its_own_host_first(launch[-1]) else 1
    assert printed == [f"15 {rank} {rank % 2} 2 {hosts.address(first)} 77\n" for rank in range(4)]


def test_rank_0_says_that_it_is_not_where_mpirun_is(
    hosts: Hosts, variables: dict[str, str], tmp_path: Path
) -> None:
    found = mpirun("openmpi", tmp_path)
    if fills_its_own_host_first(found):
        pytest.skip("Open MPI 4 has rank 0 where mpirun is")
    command = plain("openmpi", found, places(hosts, (1, 0)))
    script = SUM.replace('("hvd")', '("hvd", init_method="mpi://")')
    ran = run(hosts, variables, *command, sys.executable, "-c", script)
    assert ran.returncode == 1
    assert (
        "Open MPI does not tell where rank 0 is; say it: mpirun -x MASTER_ADDR=HOST "
        "-x MASTER_PORT=29500"
    ) in ran.stderr

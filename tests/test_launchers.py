"""What ranks are made of the variables that launchers set, as tables of faked environments."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from torch_hvd import _addresses, _rendezvous
from torch_hvd.launchers import Launch, expand, find

HNP = "prterun-a-7@0.0;tcp://10.0.0.1,192.168.5.1:52531:24,24"
PRTED = ["/opt/bin/prted", "--prtemca", "ess", "env", "--prtemca", "prte_hnp_uri", HNP]
PRTERUN = ["/opt/bin/prterun", "-H", "a:1,b:2", "-np", "3", "python", "train.py"]
PROXY = ["/opt/bin/hydra_pmi_proxy", "--control-port", "node7:40811", "--proxy-id", "1"]

PROXY_OF_INTEL = ["/opt/bin//hydra_pmi_proxy", "--usize", "-1", "--auto-cleanup", "1"]


def open_mpi(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    values = (rank, size, local_rank, local_size)
    numbers = {f"OMPI_COMM_WORLD_{n}": str(v) for n, v in zip(names, values, strict=True)}
    return {**numbers, "PMIX_NAMESPACE": "prterun-a-7@1", "PMIX_RANK": str(rank)}


def hydra(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    names = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    values = (rank, size, local_rank, local_size)
    return {name: str(value) for name, value in zip(names, values, strict=True)}


def slurm(rank: int, local_rank: int, node: int, tasks: str, nodes: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "81",
        "SLURM_STEP_ID": "2",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local_rank),
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": "64",  # of the job; the step has fewer
        "SLURM_STEP_NUM_TASKS": "5",
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_JOB_NODELIST": "login,n[1-9]",
    }


FOUND: dict[str, tuple[Mapping[str, str], Sequence[str], Launch]] = {
    "open-mpi-one-host": (
        open_mpi(1, 2, 1, 2),
        (),
        Launch("Open MPI", 1, 2, 1, 2, "prterun-a-7@1", master_is_here=True),
    ),
    "open-mpi-5-other-host": (
        open_mpi(2, 3, 1, 2),
        PRTED,
        Launch("Open MPI", 2, 3, 1, 2, "prterun-a-7@1", ("10.0.0.1", "192.168.5.1")),
    ),
    "open-mpi-5-host-of-mpirun": (
        open_mpi(0, 3, 0, 1),
        PRTERUN,
        Launch("Open MPI", 0, 3, 0, 1, "prterun-a-7@1", master_is_here=True),
    ),
    "open-mpi-nobody-to-ask": (
        open_mpi(0, 3, 0, 1),
        (),
        Launch("Open MPI", 0, 3, 0, 1, "prterun-a-7@1"),
    ),
    "open-mpi-4": (
        {
            **open_mpi(2, 3, 1, 2),
            "OMPI_MCA_orte_hnp_uri": "16.0;tcp://10.0.0.9:44419;tcp6://[fd00::2]:58855",
        },
        (),
        Launch("Open MPI", 2, 3, 1, 2, "prterun-a-7@1", ("10.0.0.9",)),
    ),
    "open-mpi-4-without-ipv4": (
        {**open_mpi(2, 3, 1, 2), "OMPI_MCA_orte_hnp_uri": "16.0;tcp6://[fd00::2,fd01::2]:58855"},
        ("orted", "-mca", "ess", "env"),
        Launch("Open MPI", 2, 3, 1, 2, "prterun-a-7@1", ("fd00::2", "fd01::2")),
    ),
    "open-mpi-of-an-unknown-address": (
        {**open_mpi(2, 3, 1, 2), "OMPI_MCA_orte_hnp_uri": "16.0;ud://7"},
        ("orted", "-mca", "ess", "env"),
        Launch("Open MPI", 2, 3, 1, 2, "prterun-a-7@1"),
    ),
    "open-mpi-in-a-step-of-slurm": (
        {**open_mpi(1, 2, 1, 2), **slurm(0, 0, 0, "1(x2)", "n[1-2]")},
        (),
        Launch("Open MPI", 1, 2, 1, 2, "prterun-a-7@1", master_is_here=True),
    ),
    "open-mpi-in-a-job-of-slurm": (
        {**open_mpi(2, 3, 1, 2), "SLURM_JOB_NODELIST": "n[07-08]"},
        PRTED,
        Launch("Open MPI", 2, 3, 1, 2, "prterun-a-7@1", ("n07",)),
    ),
    "hydra-in-a-job-of-slurm": (
        {**hydra(1, 2, 0, 1), "SLURM_JOB_NODELIST": "n[07-08]"},
        PROXY,
        Launch("Hydra", 1, 2, 0, 1, "node7:40811", ("n07",)),
    ),
    "hydra-one-host": (
        hydra(1, 2, 1, 2),
        PROXY,
        Launch("Hydra", 1, 2, 1, 2, "node7:40811", master_is_here=True),
    ),
    "hydra-two-hosts": (
        hydra(1, 2, 0, 1),
        PROXY,
        Launch("Hydra", 1, 2, 0, 1, "node7:40811", ("node7",)),
    ),
    "intel-mpi-one-host": (
        {**hydra(1, 2, 1, 2), "I_MPI_HYDRA_UUID": "7b4e0000-0b3a"},
        PROXY_OF_INTEL,
        Launch("Hydra", 1, 2, 1, 2, "7b4e0000-0b3a", master_is_here=True),
    ),
    "intel-mpi-two-hosts": (
        {**hydra(1, 2, 0, 1), "I_MPI_HYDRA_UUID": "7b4e0000-0b3a"},
        PROXY_OF_INTEL,
        Launch("Hydra", 1, 2, 0, 1, "7b4e0000-0b3a"),
    ),
    "intel-mpi-in-a-job-of-slurm": (
        {
            **hydra(1, 2, 0, 1),
            "I_MPI_HYDRA_UUID": "7b4e0000-0b3a",
            "SLURM_JOB_NODELIST": "n[07-08]",
        },
        PROXY_OF_INTEL,
        Launch("Hydra", 1, 2, 0, 1, "7b4e0000-0b3a", ("n07",)),
    ),
    "hydra-nobody-to-ask": (hydra(1, 2, 0, 1), (), Launch("Hydra", 1, 2, 0, 1)),
    "slurm-two-hosts": (
        slurm(4, 1, 1, "3,2", "n[07-08]"),
        (),
        Launch("Slurm", 4, 5, 1, 2, "81.2", ("n07",)),
    ),
    "slurm-one-host": (
        slurm(4, 4, 0, "5", "n7"),
        (),
        Launch("Slurm", 4, 5, 4, 5, "81.2", master_is_here=True),
    ),
    "slurm-with-pmi2": (
        {**slurm(0, 0, 0, "1(x5)", "a,b,c,d,e"), "PMI_RANK": "0", "PMI_SIZE": "5"},
        (),
        Launch("Slurm", 0, 5, 0, 1, "81.2", ("a",)),
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_found(case: str) -> None:
    environ, process, expected = FOUND[case]
    assert find(environ, lambda: process) == expected


def without(environ: Mapping[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


STEP = slurm(0, 0, 0, "5", "n7")
NOT_LAUNCHED = {
    "nothing": {},
    "pmi-of-another": {"PMI_RANK": "0", "PMI_SIZE": "2"},
    "pmix-alone": {"PMIX_RANK": "0", "PMIX_NAMESPACE": "x"},
    "slurm-batch-script": without(STEP, "SLURM_STEP_ID", "SLURM_STEP_NODELIST"),
    "slurm-shell-of-salloc": {**STEP, "SLURM_STEP_ID": "4294967290"},
    "slurm-first-of-its-own": {**STEP, "SLURM_STEP_ID": "4294967280"},
    "torchrun": {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"},
}


@pytest.mark.parametrize("case", NOT_LAUNCHED)
def test_not_launched(case: str) -> None:
    assert find(NOT_LAUNCHED[case], tuple) is None


@pytest.mark.parametrize(
    "environ",
    [
        open_mpi(2, 2, 0, 2),
        open_mpi(1, 2, 2, 2),
        {**open_mpi(0, 2, 0, 2), "OMPI_COMM_WORLD_SIZE": "two"},
        slurm(1, 0, 7, "1(x5)", "a"),
        {**STEP, "SLURM_STEP_NODELIST": ""},
    ],
)
def test_impossible_ranks_are_an_error_and_fill_in_nothing(environ: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        find(environ, tuple)
    before = dict(environ)
    _rendezvous.fill(environ)
    assert environ == before


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", "a"),
        ("a,b-1.x", "a b-1.x"),
        ("n[1-3]", "n1 n2 n3"),
        ("n[08-10,7,012]", "n08 n09 n10 n7 n012"),
        ("a[1-2]-x,b,c[3,5]", "a1-x a2-x b c3 c5"),
        ("r[1-2]n[0-1]", "r1n0 r1n1 r2n0 r2n1"),
        ("", ""),
    ],
)
def test_lists_of_hosts(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


def test_filled_in_on_one_host() -> None:
    environ = open_mpi(1, 4, 1, 4)
    _rendezvous.fill(environ)
    port = environ.pop("MASTER_PORT")
    assert 10000 <= int(port) < 29500
    assert environ == {
        **open_mpi(1, 4, 1, 4),
        **{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
        "MASTER_ADDR": "127.0.0.1",
    }


@pytest.mark.parametrize("name", ["LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_what_the_user_has_set_stays(name: str) -> None:
    environ = {**open_mpi(1, 4, 1, 4), name: "mine"}
    _rendezvous.fill(environ)
    assert environ[name] == "mine"
    assert environ["RANK"] == "1"


@pytest.mark.parametrize(
    "setting", [{"RANK": "0"}, {"WORLD_SIZE": "9"}, {"HVD_LAUNCHER": "none"}], ids=str
)
def test_nothing_is_filled_in(setting: dict[str, str]) -> None:
    environ = {**open_mpi(1, 4, 1, 4), **setting}
    before = dict(environ)
    _rendezvous.fill(environ)
    assert environ == before


def test_ranks_of_a_job_have_one_port_and_other_jobs_others() -> None:
    def port(job: str, rank: int) -> int | None:
        return Launch("Open MPI", rank, 9, rank, 9, job).port

    assert len({port("prterun-a-7@1", rank) for rank in range(9)}) == 1
    # Hashes of 100 jobs among 19500 ports: hardly two meet.
    assert len({port(f"prterun-a-{pid}@1", 0) for pid in range(100)}) >= 97
    assert Launch("Hydra", 0, 2, 0, 1).port is None
    # Names whose CRC-32, modulo 19500, is 0 and 19499.
    assert (port("job-3332", 0), port("job-31700", 0)) == (10000, 29499)


OWN = "203.0.113.7"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host is OWN in 203.0.113.0/24; "self" is its name, "here" its loopback."""
    names = {"self": OWN, "here": "127.0.1.1", "far": "198.51.100.9", OWN: OWN}
    monkeypatch.setattr(_addresses, "resolve", lambda name: names.get(name, name))
    monkeypatch.setattr(_addresses, "towards", lambda address: OWN)
    monkeypatch.setattr(_addresses, "is_own", lambda address: address == OWN)
    monkeypatch.setattr(_addresses, "own", lambda: OWN)


@pytest.mark.usefixtures("network")
@pytest.mark.parametrize(
    ("rank", "master", "here", "address"),
    [
        (0, (), True, OWN),
        (0, ("self",), False, OWN),
        (0, ("here",), False, OWN),  # as /etc/hosts of Debian has it
        (0, ("far",), False, None),  # mpirun runs there, rank 0 does not
        (1, ("far",), False, "198.51.100.9"),
        (1, ("172.17.0.1", "203.0.113.200", "198.51.100.9"), False, "203.0.113.200"),
        (1, (), False, None),
    ],
)
def test_address_of_rank_0(
    rank: int, master: tuple[str, ...], here: bool, address: str | None
) -> None:
    launch = Launch("Hydra", rank, 4, 0, 2, "x:1", master, here)
    assert _rendezvous.master_address(launch) == address


def test_the_process_of_the_launcher_is_found_above_shells(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.symlink_to("/bin/sh")
    ask = "from torch_hvd.launchers import launcher_process as p; print(list(p()))"
    script = f"sh -c '{sys.executable} -c \"{ask}\"; true'; true"
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    ran = subprocess.run(
        [mpirun, "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == f"{[str(mpirun), '-c', script]}\n", ran.stderr

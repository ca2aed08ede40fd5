"""srun and salloc of a real Slurm, over two nodes that are network namespaces."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from libmpi import MPICH, OPEN_MPI, needs_mpich, needs_open_mpi
from mpiruns import environment, left_of, mpirun, plain
from rig.slurm import Slurm, cluster, complaint

pytestmark = [pytest.mark.timeout(180)]
if REASON := complaint():
    pytestmark.append(pytest.mark.skip(reason=f"no Slurm here: {REASON}"))

_PMIX = next(Path("/usr/lib").glob("*/pmix2/lib/libpmix.so"), None)  # where Debian's srun looks
needs_pmix = pytest.mark.skipif(_PMIX is None, reason="needs `apt-get install libpmix-dev`")

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("hvd")
ranks = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(ranks)
transport = dist.group.WORLD._get_backend(torch.device("cpu")).transport
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
print(transport, ranks.item(), *(os.environ[name] for name in names), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(2, tmp_path_factory.mktemp("slurm"), others=1) as running:
        yield running


def run(
    slurm: Slurm,
    *command: str,
    host: int = 0,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command on the first node, or another host."""
    env, token = environment(variables)
    ran = subprocess.run(
        slurm.on(host, *command), env=env, capture_output=True, text=True, timeout=150
    )
    assert left_of(token) == []
    return ran


def printed(transport: str, *local: tuple[int, int]) -> list[str]:
    """What each rank prints, which is given by its place on its node and the ranks there."""
    every = (1 << len(local)) - 1
    return [f"{transport} {every} {rank} {place} {n}" for rank, (place, n) in enumerate(local)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-N1 -n2", printed("shm", (0, 2), (1, 2))),
        ("-N2 --ntasks-per-node=1", printed("tcp", (0, 1), (0, 1))),
        ("-N2 --ntasks-per-node=2", printed("shm+tcp", (0, 2), (1, 2), (0, 2), (1, 2))),
        ("-N2 -n3 --distribution=cyclic", printed("shm+tcp", (0, 2), (0, 1), (1, 2))),
    ],
    ids=["one node", "a task a node", "two tasks a node", "uneven"],
)
def test_a_step(slurm: Slurm, options: str, expected: list[str]) -> None:
    """A stock script: what srun sets is all there is."""
    ran = run(slurm, "srun", *options.split(), sys.executable, "-c", SUM)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines(), key=lambda line: line.split()[2]) == expected


@pytest.mark.parametrize(
    ("pmi", "library"),
    [
        pytest.param("none", MPICH, marks=needs_mpich),
        pytest.param("pmi2", MPICH, marks=needs_mpich),
        pytest.param("pmix", OPEN_MPI, marks=[needs_open_mpi, needs_pmix]),
    ],
)
def test_a_step_over_mpi(slurm: Slurm, pmi: str, library: Path) -> None:
    step = ("srun", f"--mpi={pmi}", "-N2", "--ntasks-per-node=2")
    variables = {"HVD_TRANSPORT": "mpi", "HVD_LIBMPI": str(library)}
    ran = run(slurm, *step, sys.executable, "-c", SUM, variables=variables)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == printed("mpi", (0, 2), (1, 2), (0, 2), (1, 2))


KINDS = [
    pytest.param("mpich", marks=needs_mpich),
    pytest.param("openmpi", marks=needs_open_mpi),
]
JOB = ("salloc", "--quiet", "-N2", "--ntasks-per-node=2")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("host", [0, 2], ids=["on the first node", "on a login node"])
def test_mpirun_in_a_job(slurm: Slurm, tmp_path: Path, kind: str, host: int) -> None:
    launch = plain(kind, mpirun(kind, tmp_path), 4)
    variables = {"HVD_TRANSPORT": "mpi"}
    ran = run(slurm, *JOB, *launch, sys.executable, "-c", SUM, host=host, variables=variables)
    assert ran.returncode == 0, ran.stderr
    assert sorted(ran.stdout.splitlines()) == printed("mpi", (0, 2), (1, 2), (0, 2), (1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_hvdrun_in_a_job(slurm: Slurm, tmp_path: Path, kind: str) -> None:
    """Without -H it takes the nodes of the job."""
    launch = (sys.executable, "-m", "torch_hvd.hvdrun", "--mpirun", mpirun(kind, tmp_path))
    ran = run(slurm, *JOB, *launch, "-np", "4", sys.executable, "-c", SUM)
    assert ran.returncode == 0, ran.stderr
    lines = [re.sub(r"^\[.*?\](<stdout>:)? ", "", line) for line in ran.stdout.splitlines()]
    expected = printed("shm+tcp", (0, 2), (1, 2), (0, 2), (1, 2))
    assert sorted(line for line in lines if line) == expected


def test_torchrun_in_a_step(slurm: Slurm) -> None:
    """One task a node, each of which is a torchrun: its variables count, not Slurm's."""
    rendezvous = ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "n1:29501")
    torchrun = (sys.executable, "-m", "torch.distributed.run", *rendezvous)
    program = ("--nproc-per-node", "2", "--no-python", sys.executable, "-c", SUM)
    ran = run(slurm, "srun", "-N2", "--ntasks-per-node=1", *torchrun, *program)
    assert ran.returncode == 0, ran.stderr
    lines = sorted(ran.stdout.splitlines())
    assert [re.sub(r" \d ", " ", line, count=1) for line in lines] == [
        f"shm+tcp 15 {rank % 2} 2" for rank in range(4)
    ]


def test_a_rank_that_dies_ends_the_step(slurm: Slurm) -> None:
    script = SUM.replace(
        "ranks =",
        "if dist.get_rank() == 3: os.kill(os.getpid(), 9)\nranks =",
    )
    step = ("srun", "--kill-on-bad-exit=1", "-N2", "--ntasks-per-node=2")
    ran = run(slurm, *step, sys.executable, "-c", script)
    assert ran.returncode != 0
    assert ran.stdout == ""
    assert "task 3: Killed" in ran.stderr

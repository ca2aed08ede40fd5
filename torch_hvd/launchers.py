"""Who started this process, and as which rank: what mpirun and srun leave where it can see it.

Open MPI 4 and 5, Hydra (MPICH, Intel MPI) and Slurm say ranks and sizes in variables. No variable
says where rank 0 is, so on several hosts that comes from Slurm's list of hosts, or else from what
the launcher's own process on this host was started with. Nothing here talks to anybody.
"""

from __future__ import annotations

import itertools
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

Process = Callable[[], Sequence[str]]

# Below the ports that systems hand out by themselves (32768 and up on Linux).
_FIRST_PORT, _PORTS = 10000, 19500

_LAUNCHERS = {
    *("prted", "prterun", "prte", "orted", "orterun", "mpirun", "mpiexec"),
    *("hydra_pmi_proxy", "mpiexec.hydra"),
}
_MOST_ANCESTORS = 32

# Slurm's own steps (the batch script, a shell of salloc) have numbers from here on.
_FIRST_STEP_OF_SLURM = 0xFFFFFFF0


@dataclass(frozen=True)
class Launch:
    """This process's place among those that a launcher has started.

    `master` holds addresses of the host of rank 0, of which any may do, as the launcher gave them;
    none where that is this host, or is not known. `job` is the same text on every rank and another
    for every other job; None where it is not known.
    """

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str | None = None
    master: tuple[str, ...] = ()
    master_is_here: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size or not 0 <= self.local_rank < self.local_size:
            raise ValueError(f"{self.launcher} set ranks that cannot be: {self}")

    @property
    def port(self) -> int | None:
        """Where rank 0 may listen: the same on every rank, very likely another for each job."""
        return None if self.job is None else _FIRST_PORT + zlib.crc32(self.job.encode()) % _PORTS


def find(environ: Mapping[str, str], launcher: Process) -> Launch | None:
    """What started this process, None if nothing that is known here.

    Args:
        launcher: the command line of the launcher's process above this one, see
            `launcher_process`; asked for only where a variable does not say it.

    Raises:
        ValueError: a variable of the launcher holds no number, or an impossible one.
    """
    # mpirun may itself have been started by srun, so Slurm's variables are the last to count.
    for look in (_open_mpi, _hydra, _slurm):
        if found := look(environ, launcher):
            return found
    return None


def _open_mpi(environ: Mapping[str, str], launcher: Process) -> Launch | None:
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    numbers = _numbers(environ, *(f"OMPI_COMM_WORLD_{name}" for name in names))
    if numbers is None:
        return None
    _, size, _, local_size = numbers
    here = size == local_size
    master = () if here else _first_of_slurm(environ)
    if not here and not master:
        # The address of mpirun: version 4 tells everyone, 5 its daemons on other hosts.
        command = launcher()
        uri = environ.get("OMPI_MCA_orte_hnp_uri") or _after("prte_hnp_uri", command)
        addresses = re.search(r"tcp://([^:;]+)|tcp6://\[([^\];]+)\]", uri or "")
        master = tuple((addresses[1] or addresses[2]).split(",")) if addresses else ()
        here = uri is None and bool(command)
    return Launch("Open MPI", *numbers, environ.get("PMIX_NAMESPACE"), master, here)


def _hydra(environ: Mapping[str, str], launcher: Process) -> Launch | None:
    numbers = _numbers(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
    if numbers is None:
        return None
    _, size, _, local_size = numbers
    # Where mpiexec listens for its proxies: no two on a host listen at the same port. Intel MPI
    # does not say it in their command line, but names the job.
    control = _after("--control-port", launcher())
    job = control or environ.get("I_MPI_HYDRA_UUID")
    if size == local_size:
        return Launch("Hydra", *numbers, job, master_is_here=True)
    by_control = (control.rpartition(":")[0],) if control else ()
    return Launch("Hydra", *numbers, job, _first_of_slurm(environ) or by_control)


def _first_of_slurm(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where an mpirun in a job of Slurm has rank 0, also if it runs on a login node itself."""
    return expand(environ.get("SLURM_JOB_NODELIST", ""))[:1]


def _slurm(environ: Mapping[str, str], launcher: Process) -> Launch | None:
    del launcher
    step = ("SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    numbers = _numbers(environ, "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NODEID")
    if numbers is None or not environ.keys() >= set(step):
        return None
    if int(environ["SLURM_STEP_ID"]) >= _FIRST_STEP_OF_SLURM:
        return None
    rank, size, local_rank, node = numbers
    # SLURM_NTASKS is that of the job where the step was started without -n.
    size = int(environ.get("SLURM_STEP_NUM_TASKS", size))
    tasks = _counts(environ["SLURM_STEP_TASKS_PER_NODE"])
    hosts = expand(environ["SLURM_STEP_NODELIST"])
    if node >= len(tasks) or not hosts:
        raise ValueError(f"SLURM_NODEID is {node}, but the step has {len(tasks)} nodes")
    job = f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}"
    local_size, alone = tasks[node], len(tasks) == 1
    return Launch(
        *("Slurm", rank, size, local_rank, local_size, job),
        master=() if alone else hosts[:1],
        master_is_here=alone,
    )


def _numbers(environ: Mapping[str, str], *names: str) -> tuple[int, int, int, int] | None:
    """The values of four variables, None unless all are set."""
    if not environ.keys() >= set(names):
        return None
    first, second, third, fourth = (int(environ[name]) for name in names)
    return first, second, third, fourth


def _after(option: str, command: Sequence[str]) -> str | None:
    """What follows an option in a command line."""
    return next((value for name, value in itertools.pairwise(command) if name == option), None)


def _counts(text: str) -> list[int]:
    """Slurm's numbers of tasks on each host: "2(x3),1" are 2, 2, 2 and 1."""
    counts = []
    for part in text.split(","):
        count, _, times = part.partition("(x")
        counts += [int(count)] * int(times.rstrip(")") or 1)
    return counts


def expand(hosts: str) -> tuple[str, ...]:
    """The names in a list of hosts as Slurm writes it: "a[1-2,07]-x,b" are a1-x, a2-x, a07-x, b.

    Raises:
        ValueError: a range is none.
    """
    names: list[str] = []
    for part in re.findall(r"(?:[^,\[]|\[[^\]]*\])+", hosts):
        pieces = [
            tuple(_range(piece[1:-1])) if piece.startswith("[") else (piece,)
            for piece in re.findall(r"\[[^\]]*\]|[^\[]+", part)
        ]
        names += ("".join(chosen) for chosen in itertools.product(*pieces))
    return tuple(names)


def _range(text: str) -> Iterator[str]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield f"{number:0{len(first)}}"  # as many digits as the first


def launcher_process() -> Sequence[str]:
    """The command line of the nearest process above this one that belongs to a launcher.

    Empty where there is none, or it cannot be seen (a container with processes of its own).
    """
    process = os.getppid()
    try:
        for _ in range(_MOST_ANCESTORS):
            folder = Path("/proc", str(process))
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if Path(command[0]).name in _LAUNCHERS:
                return command[:-1]
            # The name, in brackets, may hold anything; state and parent follow it.
            process = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        pass
    return ()

"""Finds an MPI library, starts MPI once in the process, and connects ranks by it.

MPI starts in all processes of its world at once, and only once. Under its own launcher (mpirun,
mpiexec, srun) that world is the launcher's. Elsewhere MPICH and its kin are told by ourselves who
belongs to it: the ranks of the first group of the program.
"""

import contextlib
import functools
import itertools
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_hvd import _log, _shm, launchers
from torch_hvd._load import _C
from torch_hvd._store import Meeting, Unavailable

FAST_NETWORKS: Sequence[str] = ("/sys/class/infiniband", "/sys/class/cxi")

_STANDARD, _MPICH, _OPEN_MPI = "libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"

# With one of these an MPI leaves PMI to its process manager's own library.
_PMI_OF_MANAGERS = ("libpmi.so.0", "libpmi2.so.0")


# Asked by a process of its own, for MPI starts only once in one, and has to run to know.
_ASK_CUDA = """
import sys
from torch_hvd._load import _C
_C.open_mpi(sys.argv[1:])
_C.start_launched_mpi()
print(_C.mpi_place().cuda_aware)
"""

# MPI promises tags up to 32767; each group takes two.
_tags = itertools.cycle(range(0, 32768, 2))


def launcher(environ: Mapping[str, str]) -> str | None:
    """The launcher that has started this process as one of an MPI world: "Open MPI", "PMI" or
    "PMIx", after what it speaks; None if none has.
    """
    if "TORCHELASTIC_RUN_ID" in environ:
        return None  # what MPI's launcher has started, if any, is torchrun
    if "OMPI_COMM_WORLD_SIZE" in environ:
        return "Open MPI"
    if "PMIX_RANK" in environ:
        return "PMIx"
    if "PMI_RANK" in environ and ("PMI_FD" in environ or "PMI_PORT" in environ):
        return "PMI"
    return None


def _answers(environ: Mapping[str, str]) -> bool:
    """Whether the launcher, if there is one, answers all that the open library may ask.

    `srun --mpi=pmi2` takes the first 1024 bytes of a line for all of it (Slurm's pmi1.c). MPICH
    writes up to 1077, as memory that it sends uninitialised happens to be, and then hangs.
    """
    by = launcher(environ)
    launch = launchers.find(environ, tuple)
    by_slurm = by == "PMI" and launch is not None and launch.launcher == "Slurm"
    return by is not None and (not by_slurm or any(map(_C.mpi_is_loaded, _PMI_OF_MANAGERS)))


def has_fast_network() -> bool:
    """Whether this host has a network that MPI is made for.

    InfiniBand, Omni-Path, RoCE and EFA are in the first of these folders, Slingshot is in the
    other.
    """
    return any(Path(folder).is_dir() and os.listdir(folder) for folder in FAST_NETWORKS)


def _launched_size(environ: Mapping[str, str]) -> int | None:
    """How many processes that launcher has started, where it says so."""
    launch = launchers.find(environ, tuple)
    return launch.size if launch and launcher(environ) else None


def _fits(library: _C.MpiLibrary, launcher: str | None) -> bool:
    """Whether a launcher's processes are one world to the library, as far as one can tell before
    it starts.
    """
    if launcher is None:
        return library.speaks_pmi
    return launcher == "PMIx" or library.speaks_pmi == (launcher == "PMI")


def candidates(environ: Mapping[str, str]) -> list[str]:
    """Where a libmpi may be, the best first, for `_C.open_mpi`.

    `HVD_LIBMPI` alone if it is set. Else those that fit the launcher come before others, and of
    equals one that is loaded, then one of this Python's environment, then the system's.
    """
    if given := environ.get("HVD_LIBMPI"):
        return [given]
    fitting = {
        "Open MPI": [_OPEN_MPI, _STANDARD],
        "PMIx": [_OPEN_MPI, _STANDARD, _MPICH],
        "PMI": [_STANDARD, _MPICH],
        None: [_STANDARD, _MPICH],
    }[launcher(environ)]
    others = [name for name in (_STANDARD, _MPICH, _OPEN_MPI) if name not in fitting]
    found = [name for name in (_STANDARD, _MPICH, _OPEN_MPI) if _C.mpi_is_loaded(name)]
    for names in (fitting, others):
        here = [Path(sys.prefix, "lib", name) for name in names]
        found += [str(path) for path in here if path.exists()]
        found += names
    return found


def is_cuda_aware(path: str, environ: Mapping[str, str]) -> bool:
    """Whether the library of that file takes the memory of CUDA devices.

    Raises:
        ValueError: it does not start here; says how that went.
    """
    # Whoever has these starts as a part of the world that they tell of.
    ours = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_")
    alone = {name: value for name, value in environ.items() if not name.startswith(ours)}
    alone["OMPI_MCA_btl"] = "self"  # or Open MPI leaves a name in /dev/shm
    command = [sys.executable, "-c", _ASK_CUDA, path]
    try:
        asked = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        raise ValueError("MPI_Init took more than 30 s") from None
    if asked.returncode != 0:
        raise ValueError(f"MPI_Init ended with status {asked.returncode}")
    return asked.stdout.split()[-1:] == ["True"]


def _found(
    size: int, environ: Mapping[str, str], only_if_it_fits: bool = False
) -> dict[str, Any] | str:
    """What this rank has, or why it cannot take part."""
    try:
        library = _C.open_mpi(candidates(environ))
        place = _C.mpi_place()
        launched = _launched_size(environ)
    except ValueError as error:
        return str(error).splitlines()[0]  # without C++'s stack
    by = launcher(environ)
    text = f"{library.name} ({library.path})"
    if place is None and by is None and not library.speaks_pmi:
        return (
            f"{text} works only in processes that its launcher has started: start with mpirun, "
            "hvdrun or srun --mpi=pmix, or pip install mpich, which needs none"
        )
    if place is None and only_if_it_fits and not _fits(library, by):
        return f"{text} is not the MPI whose launcher, of {by}, has started it"
    if place is None and launched not in (size, None):
        return (
            f"{launched} processes were launched, but the first group over MPI is of {size}; it "
            "must be of all, because MPI starts in all of them at once"
        )
    return {"library": library.name, "runs": place is not None, "launcher": by}


def _check_same(everyones: list[dict[str, Any]]) -> None:
    """Raises Unavailable, on every rank alike."""
    for peer, theirs in enumerate(everyones):
        for what, text in (("library", "MPI library"), ("launcher", "launcher of MPI")):
            if theirs[what] != everyones[0][what]:
                raise Unavailable(
                    f"the {text} is {everyones[0][what]} on rank 0 but {theirs[what]} on rank "
                    f"{peer}; HVD_LIBMPI names the file of a library"
                )
        if theirs["runs"] != everyones[0]["runs"]:
            raise Unavailable(
                f"MPI runs already on only one of ranks 0 and {peer}: a group over MPI cannot have "
                "ranks that were not in the program's first one"
            )


def _mapping(hosts: list[int]) -> str:
    """Ranks on hosts as MPICH's PMI_process_mapping: runs of (first host, hosts, ranks on each)."""
    runs = [(host, 1, len(list(ranks))) for host, ranks in itertools.groupby(hosts)]
    merged: list[tuple[int, int, int]] = []
    for host, _, count in runs:
        if merged:
            first, width, each = merged[-1]
            if each == count and host == first + width:
                merged[-1] = (first, width + 1, each)
                continue
        merged.append((host, 1, count))
    return f"(vector,{','.join(f'({a},{b},{c})' for a, b, c in merged)})"


def _start(meeting: Meeting, hosts: list[int]) -> None:
    if _answers(os.environ):
        _C.start_launched_mpi()
        return
    # MPICH names shared memory by it, and what a kill leaves must not meet a later world.
    world = meeting.exchange("world", f"hvd-{secrets.token_hex(8)}")[0]
    _C.start_unlaunched_mpi(
        meeting.part("pmi").store,
        meeting.rank,
        meeting.size,
        world,
        _mapping(hosts),
        meeting.timeout,
    )


def _check_places(places: list[dict[str, Any]], library: str) -> None:
    """Raises Unavailable, on every rank alike, unless all are in one world."""
    size = len(places)
    if all(place["size"] == 1 for place in places):
        raise Unavailable(
            f"each of the {size} ranks is an MPI world of its own: {library} is not the MPI whose "
            "launcher has started them; HVD_LIBMPI names the right file"
        )
    worlds = {(place["world"], place["size"]) for place in places}
    if len(worlds) > 1 or len({place["rank"] for place in places}) < size:
        raise Unavailable("the ranks of the group are not in one MPI world")


def _cuda_awareness(places: list[dict[str, Any]]) -> str:
    """Where ranks can hand MPI the memory of their GPUs, for people."""
    lacking = [rank for rank, place in enumerate(places) if not place["cuda_aware"]]
    if not lacking:
        return "CUDA-aware"
    if len(lacking) == len(places):
        return "not CUDA-aware"
    return f"not CUDA-aware on rank {lacking[0]}"


def _forget_names() -> None:
    """Take away the names of the memory that MPICH shares on this host; all ranks have it by now.

    MPICH does so in MPI_Finalize, for which a killed rank has no time, and others need not wait.
    """
    mapped = Path("/proc/self/maps").read_text().split()
    for name in {path for path in mapped if path.startswith("/dev/shm/mpich_shm_")}:
        with contextlib.suppress(FileNotFoundError):  # another rank was first
            os.unlink(name)


@functools.cache
def _warn_of_turns(library: str) -> None:
    _log.logger.warning(
        "hvd: %s does not allow calls from several threads at once; they take turns", library
    )


def _life(place: dict[str, Any], mine: dict[str, Any]) -> int:
    """A file descriptor that polls readable once the process is gone; -1 if there is none."""
    if place["host"] != mine["host"] or place["pid"] == mine["pid"]:
        return -1
    try:
        return os.pidfd_open(place["pid"])
    except OSError:  # before Linux 5.3
        return -1


def connect(
    meeting: Meeting, hosts: list[int], ranks_per_core: float, only_if_it_fits: bool = False
) -> tuple[_C.Transport, tuple[str, ...]]:
    """Connect the ranks of a group, and start MPI if it does not run yet.

    Args:
        meeting: of all ranks.
        hosts: by rank, the number of its host.
        ranks_per_core: how many ranks of this host share a core.
        only_if_it_fits: do not start a library that is likely not the launcher's.

    Returns:
        The transport, and what is of interest of the library.

    Raises:
        Unavailable: MPI cannot be had.
        RuntimeError: not all ranks came in time, or one has died.
    """
    rank = meeting.rank
    found = _found(meeting.size, os.environ, only_if_it_fits)
    mine: Any = Unavailable(f"rank {rank}: {found}") if isinstance(found, str) else found
    everyones = meeting.agree("found", mine)
    _check_same(everyones)
    library = everyones[0]["library"]
    if not everyones[0]["runs"]:
        _start(meeting, hosts)
    place = _C.mpi_place()
    assert place is not None
    if not place.any_threads:
        _warn_of_turns(library)
    mine = {
        "world": place.world,
        "rank": place.rank,
        "size": place.size,
        "host": _shm.host_id({}),
        "pid": os.getpid(),
        "fast": has_fast_network(),
        "cuda_aware": place.cuda_aware,
        "tag": next(_tags),
    }
    places = meeting.exchange("place", mine)
    if place.world:
        _forget_names()
    _check_places(places, library)
    ranks = [
        _C.MpiRank(
            theirs["rank"],
            _life(theirs, mine),
            by_tcp=host != hosts[rank] and not (theirs["fast"] and mine["fast"]),
        )
        for host, theirs in zip(hosts, places, strict=True)
    ]
    # Of one library that is and one that is not, the two sides of a message might not match.
    cuda_aware = all(theirs["cuda_aware"] for theirs in places)
    try:
        made = _C.mpi_transport(
            rank, ranks, places[0]["tag"], ranks_per_core, cuda_aware, meeting.timeout
        )
    except RuntimeError as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {meeting.size} could not make a communicator of MPI, and may not "
            f"make later ones: {error}"
        ) from error
    return made, (library, _cuda_awareness(places))

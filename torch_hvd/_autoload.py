"""Registration with c10d, of the backend "hvd" and of mpi://: what the entry points call."""

import atexit
import contextlib
import os
import sys
import warnings
from typing import Any

# Who starts Python without a launcher shall not load what is for launchers.
_RANKS = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}


def _create(opts: Any, pg_options: Any) -> Any:
    from torch_hvd._backend import create

    return create(opts, pg_options)


def _meet(url: str, **options: Any) -> Any:
    from torch_hvd import _rendezvous

    return _rendezvous.mpi(url, **options)


@atexit.register
def _end() -> None:
    """Stop threads: a program may end without destroy_process_group.

    What is registered first runs last. This is when torch is imported, so a program's own handlers
    find its groups alive, also those from before it makes one.
    """
    if backend := sys.modules.get("torch_hvd._backend"):
        backend.end()


def _launched() -> None:
    """Let scripts that mpirun or srun started find their ranks, by env:// and by mpi://."""
    from torch.distributed import register_rendezvous_handler

    with contextlib.suppress(RuntimeError):  # a second time, it is there already
        register_rendezvous_handler("mpi", _meet)
    if not _RANKS.isdisjoint(os.environ):
        from torch_hvd import _rendezvous

        _rendezvous.fill(os.environ)


def register() -> None:
    """Register "hvd" for CPU and CUDA tensors; a second time changes nothing.

    Never raises: it runs at the end of `import torch`, for every user of the environment. A failure
    is a RuntimeWarning, and "hvd" stays unknown, as it does where torch is built without c10d.
    """
    try:
        import torch.distributed as dist

        if dist.is_available():
            devices = ["cpu", "cuda"]
            dist.Backend.register_backend("hvd", _create, extended_api=True, devices=devices)
            _launched()
    except Exception as error:
        warnings.warn(f"torch_hvd could not register its backend: {error!r}", RuntimeWarning, 2)

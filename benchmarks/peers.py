"""What `--peer` can compare hvd with, and why one of them cannot be had here."""

from __future__ import annotations

from importlib import import_module

import torch

from benchmarks.contenders import HOROVOD

PEERS = ("gloo", "mpi", HOROVOD, "nccl")


def parse_peers(text: str) -> list[str]:
    """Of a list with commas. ValueError for a name that is none of PEERS."""
    peers = text.split(",")
    for peer in peers:
        if peer not in PEERS:
            raise ValueError(f"--peer {peer!r}; allowed is {', '.join(PEERS)}")
    return list(dict.fromkeys(peers))


def why_not(baseline: str, link: str | None = None) -> str | None:
    """Why a baseline cannot be measured by `pytest benchmarks`; None where nothing is known."""
    if baseline == "mpi":
        # A process has one libmpi, and who started it decides which.
        return "MPI has a program of its own, under mpirun: python -m benchmarks.mpi"
    if baseline == "nccl":
        if not torch.cuda.is_available():
            return "there is no CUDA device for NCCL"
        return "these tensors are on the host; against NCCL: python -m benchmarks.gpu.dispatch"
    return why_not_horovod(link) if baseline == HOROVOD else None


def why_not_horovod(link: str | None) -> str | None:
    try:
        import_module("horovod.torch")
    except ImportError as error:
        return f"Horovod cannot be imported: {error}"
    return "Horovod is measured on one host only" if link else None

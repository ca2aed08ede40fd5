"""The stock NCCL process group, which moves tensors on GPUs."""

import contextlib
import importlib
import os
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Backend, Store

from torch_hvd._load import _C
from torch_hvd._store import Meeting

DEVICE = "cuda"


def lacks() -> str:
    """Why this process cannot use NCCL; empty if it can."""
    if not dist.is_nccl_available():
        return "torch is built without NCCL"
    if not torch.cuda.is_available():
        return "there is no GPU"
    return ""


def connect(wanted: str, opts: Any, meeting: Meeting) -> _C.DeviceTransport | None:
    """Connect the GPUs of a group.

    Args:
        wanted: the transport, the same on every rank. "auto" takes NCCL if all ranks can, "nccl"
            demands it, any other does without.
        opts: c10d's DistributedBackendOptions for the group.
        meeting: of the group.

    Returns:
        None on every rank where it is not to be had, or not wanted.

    Raises:
        ValueError: it cannot be had, on every rank alike; says why.
    """
    if wanted not in ("auto", "nccl"):
        return None
    mine = [lacks(), os.uname().nodename]
    everyones = meeting.exchange("nccl", mine)
    for rank, (reason, node) in enumerate(everyones):
        if not reason:
            continue
        if wanted == "nccl":
            raise ValueError(
                "HVD_TRANSPORT or Options.transport is 'nccl', but rank "
                f"{rank}, on {node}, cannot use NCCL: {reason}; allowed there is auto, gloo, mpi, "
                "shm, tcp or a pair, as shm+tcp"
            )
        return None
    with contextlib.suppress(ImportError):  # nothing but compression needs its kernels
        importlib.import_module("torch_hvd._cuda")
    return _C.DeviceTransport(_make(opts, meeting.part("nccl").store), DEVICE)


def _make(opts: Any, store: Store) -> Backend:
    """As torch does for the backend "nccl".

    That is another class from torch 2.15 on, which is bound to a device, and with
    TORCH_DIST_USE_NCCL2=0 the one before: torch's own function decides.
    """
    dist_c10d = dist.distributed_c10d
    ensure = getattr(dist.Backend, "_ensure_backend_registered", None)
    if ensure is None:  # before torch 2.15
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = opts.timeout
        options.global_ranks_in_group = opts.global_ranks_in_group
        options.group_name = opts.group_id
        return dist.ProcessGroupNCCL(store, opts.group_rank, opts.group_size, options)
    ensure("nccl")
    own: Any = dist_c10d._DistributedBackendOptions()
    for name in ("group_rank", "group_size", "timeout", "group_id", "global_ranks_in_group"):
        setattr(own, name, getattr(opts, name))
    own.store = store
    parent = getattr(opts, "process_group", None)
    if parent is not None and parent.bound_device_id is not None:
        own.process_group = parent  # else torch would bind it to a device
    backend: Backend = dist.Backend._plugins["NCCL"].creator_fn(own, None)
    return backend

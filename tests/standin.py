"""The way of tensors on a GPU, walked by tensors of the host, with stock Gloo in the place of NCCL.

Streams are what this cannot stand in for: Gloo's work is done when it has been waited for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torch_hvd import _backend, _nccl

NAME = "standin"
NCCL_ID = "0"  # the key under which NCCL's rank 0 tells the others how to reach it

_made: dict[str, Any] = {}  # by the name of the group


def backend_of(group: dist.ProcessGroup) -> Any:
    """What a group of this backend has for NCCL."""
    return _made[group.group_name]


def _make(opts: Any, store: dist.Store) -> Any:
    assert not store.check([NCCL_ID]), "NCCL's rank 1 would take it for its rank 0's word"
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = opts.timeout
    options._threads = 1  # what is called comes one after the other, as on a stream
    options._devices = [gloo.create_default_device()]
    made = gloo(store, opts.group_rank, opts.group_size, options)
    made._set_sequence_number_for_group()
    _made[str(opts.group_id)] = made
    return made


def _create(opts: Any, pg_options: Any) -> Any:
    _nccl.DEVICE, _nccl.lacks, _nccl._make = "cpu", lambda: "", _make
    return _backend.create(opts, pg_options)


def register() -> None:
    """Register the backend of that name; again, if need be."""
    dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])


@contextmanager
def hosts_apart() -> Iterator[None]:
    """Groups made meanwhile have a host for each rank."""
    os.environ["HVD_HOST_ID"] = f"host{dist.get_rank()}"
    try:
        yield
    finally:
        del os.environ["HVD_HOST_ID"]


@contextmanager
def group(
    pg_options: Any = None, timeout: float = 20.0, apart: bool = False
) -> Iterator[dist.ProcessGroup]:
    """A group of all ranks of the default one, on that backend; `apart`: on a host each."""
    register()
    with hosts_apart() if apart else nullcontext():
        made = dist.new_group(
            backend=NAME, pg_options=pg_options, timeout=timedelta(seconds=timeout)
        )
    assert backend_of(made).size() == dist.get_world_size()
    try:
        yield made
    finally:
        dist.destroy_process_group(made)

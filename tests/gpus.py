"""Ranks on GPUs, on one together where there is but one.

NCCL takes two ranks on one GPU for an error unless it is told that they are on different hosts, or
to allow it, so such ranks are for results, not for speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import standin
from ranks import RankPool

LONG = 500_000_000  # cycles, some 0.3 s


def _use_gpu() -> None:
    rank = dist.get_rank()
    os.environ["NCCL_HOSTID"] = f"rank{rank}"
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.set_default_device("cuda")


def pool_on_gpus(transport: str) -> RankPool:
    """Two ranks of hvd whose tensors are on GPUs."""
    env = {"HVD_TRANSPORT": transport, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return RankPool(2, "hvd", env, setup=_use_gpu)


@contextmanager
def group(
    pg_options: Any = None, timeout: float = 20.0, apart: bool = False
) -> Iterator[dist.ProcessGroup]:
    """A group of all ranks; `apart`: on a host each."""
    with standin.hosts_apart() if apart else nullcontext():
        made = dist.new_group(pg_options=pg_options, timeout=timedelta(seconds=timeout))
    try:
        yield made
    finally:
        dist.destroy_process_group(made)

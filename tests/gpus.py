"""Ranks on GPUs, on one together where there is but one.

NCCL takes two ranks on one GPU for an error unless it is told that they are on different hosts, or
to allow it, so such ranks are for results, not for speed.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

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

"""Groups that compress, what goes through them, and how far from the exact sum it may come out."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torch_hvd
from rows import reduce_op

every_layout = pytest.mark.ranks(2, 3, 4, transports=["tcp"], hosts=[3], by_name=[3], rails=[3])

# Every rank sends its own numbers, and none go by shared memory.
one_rank_a_host = pytest.mark.ranks(2, 3, 4, transports=["tcp"])

# Relative L2 error that one all_reduce may have, with the default blocks.
BUDGET = {
    "fp16": 0.0005,
    "bf16": 0.004,
    "int8": 0.013,
    "fp8": 0.038,
    "fp8_e5m2": 0.075,
    "int4": 0.16,
}
CODECS = tuple(BUDGET)
COUNT = 600_000  # several segments for each rank, and a last block that is not full


def group_with(**options: Any) -> dist.ProcessGroup:
    # Feedback would make the second result of a tensor differ from the first.
    return dist.new_group(pg_options=torch_hvd.Options(**{"error_feedback": False, **options}))


def noise(
    rank: int, count: int = COUNT, dtype: torch.dtype = torch.float32, seed: int = 0
) -> Tensor:
    return drawn(count, 1000 * seed + rank).to(dtype, copy=True)


@cache  # to draw them takes longer than the all_reduce
def drawn(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def exact(op: str, make: Callable[..., Tensor], *args: Any) -> Tensor:
    """In float64, for make(rank, *args) on each rank."""
    size = dist.get_world_size()
    total = torch.stack([make(rank, *args).double() for rank in range(size)]).sum(0)
    return total / size if op == "AVG" else total


def reduced(tensor: Tensor, group: dist.ProcessGroup | None, op: str = "SUM") -> Tensor:
    dist.all_reduce(tensor, op=reduce_op(op), group=group)
    return tensor


def error_of(result: Tensor, expected: Tensor) -> float:
    return float((result.double() - expected).norm() / expected.norm())

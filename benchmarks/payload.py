"""Tensors with known contents, and the memory limit that they meet."""

from __future__ import annotations

import torch

from benchmarks.interleave import Trial

PERIOD = 251  # prime, so that a result shifted by any power of two is wrong


def pattern(count: int) -> torch.Tensor:
    """float32 of `count` small positive integers; sums over ranks stay exact."""
    return (torch.arange(count) % PERIOD + 1).float()


def calls_per_block(nbytes: int, tensors: int = 1) -> int:
    """Many where the skew of a barrier is of the order of the call, of so many bytes in all."""
    return max(min((8 << 20) // nbytes, 640 // tensors, 64), 1)


def two_copies(source: torch.Tensor, tensors: list[torch.Tensor], group: int = 1) -> Trial:
    """The memory model of a transfer: the payload is written once and read back once.

    Each call takes the next `group` tensors. All ranks copy at once, as they share memory.
    """
    staging = torch.empty_like(source)

    def fill() -> None:
        for tensor in tensors:
            tensor.copy_(source)

    def call(i: int) -> None:
        for tensor in tensors[i * group : (i + 1) * group]:
            staging.copy_(tensor)
            tensor.copy_(staging)

    def check() -> None:
        assert all(torch.equal(tensor, source) for tensor in tensors)

    return Trial(len(tensors) // group, fill, call, check)


def relative_error(tensor: torch.Tensor, expected: torch.Tensor) -> float:
    """Of the L2 norm."""
    return float((tensor - expected).norm() / expected.norm())

"""Ping-pong between two ranks; a row's time is one way, half of the round trip."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.payload import calls_per_block, pattern, two_copies
from benchmarks.ranks import Rank

pytestmark = pytest.mark.timeout(300)

WORLD_SIZES = (2,)
QUICK_SIZES = (4, 1 << 20)
SIZES = (4, 1 << 10, 1 << 14, 1 << 20, 1 << 24)


def ping_pong(rank: Rank, *, count: int, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank: rank 0 sends, rank 1 returns what it got."""
    calls = calls_per_block(4 * count)
    tensors = [torch.empty(count) for _ in range(calls)]
    source = pattern(count)

    def fill() -> None:
        for tensor in tensors:
            tensor.zero_()

    def check() -> None:
        assert all(torch.equal(tensor, source) for tensor in tensors), "wrong payload"

    def through(group: dist.ProcessGroup) -> Trial:
        def call(i: int) -> None:
            if rank.rank == 0:
                dist.send(source, 1, group=group)
                dist.recv(tensors[i], 1, group=group)
            else:
                dist.recv(tensors[i], 0, group=group)
                dist.send(tensors[i], 0, group=group)

        return Trial(calls, fill, call, check)

    contenders = {
        "backend": [through(group) for group in rank.backend],
        "baseline": [through(group) for group in rank.baseline],
    }
    return interleave(rank, two_copies(source, tensors), contenders, budget_s)


def test_ping_pong(bench: Bench, nbytes: int) -> None:
    bench.row(ping_pong, op="send_recv", size=nbytes, trips=2, count=nbytes // 4)

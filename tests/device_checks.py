"""What a group must do for tensors on a device, by whatever its backend moves them.

tests/test_device.py asks it of the stand-in on the host, tests/gpu/test_nccl.py of NCCL. Tensors
are made on torch's default device. `group` makes one of all ranks for a `with` statement.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

import torch_hvd
from calls import expect_error, says_called
from rows import filled


class MakeGroup(Protocol):
    def __call__(
        self, pg_options: Any = None, timeout: float = 20.0, apart: bool = False
    ) -> AbstractContextManager[dist.ProcessGroup]: ...


def _steps(make_group: MakeGroup, feedback: bool) -> list[list[Tensor]]:
    """What three buckets sum up to in each of six steps; in the fourth one is infinite."""
    rank = dist.get_rank()
    options = torch_hvd.Options(compression="int4", error_feedback=feedback)
    buckets = [torch.empty(50_000) for _ in range(3)]
    steps = []
    with make_group(options, apart=True) as group:
        for step in range(6):
            works = []
            for i, bucket in enumerate(buckets):
                random = torch.Generator(torch.get_default_device())
                random.manual_seed(100 * step + 10 * i + rank)
                bucket.copy_(torch.randn(50_000, generator=random))
                if step == 3:
                    bucket *= 1e30
                    bucket[17] = torch.inf if (i, rank) == (1, 0) else 0
                works.append(dist.all_reduce(bucket, group=group, async_op=True))
            for work in works:
                assert work is not None
                work.wait()
            steps.append([bucket.clone() for bucket in buckets])
    return steps


def error_feedback_after_a_sum_that_is_not_finite(make_group: MakeGroup) -> None:
    """The step that GradScaler skips leaves nothing behind, in no bucket."""
    same = [
        [torch.equal(*pair) for pair in zip(*step, strict=True)]
        for step in zip(_steps(make_group, True), _steps(make_group, False), strict=True)
    ]
    assert same[0] == same[4] == [True] * 3
    assert not any(same[2] + same[5])


def mismatch_with_check(make_group: MakeGroup) -> None:
    """Nothing is launched for what differs, each rank hears of it, and the group goes on."""
    rank = dist.get_rank()
    with make_group(torch_hvd.Options(check=True)) as group:
        dist.all_reduce(torch.ones(4), group=group)
        tensor = torch.ones(4 if rank == 0 else 5)
        text = expect_error(lambda: dist.all_reduce(tensor, group=group))
        for peer in range(dist.get_world_size()):
            assert says_called(text, peer, f"all_reduce(float32[{4 if peer == 0 else 5}], SUM)")
        for count in (4, 300_000):
            again = torch.ones(count)
            dist.all_reduce(again, group=group)
            assert filled(again.cpu(), dist.get_world_size())


def mismatch_of_what_is_fused(make_group: MakeGroup, again: str) -> None:
    """Too late to take back: once ranks know, calls fail and waits do, and say what each called."""
    with make_group(timeout=5.0) as group:
        tensor = torch.ones(4)  # as many bytes, which are added up without notice
        if dist.get_rank() == 1:
            tensor = tensor.int()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        assert work is not None

        def until_it_fails() -> None:
            work.wait()  # they may know by now
            for _ in range(100):
                if again == "call":
                    dist.all_reduce(torch.ones(4), group=group)
                else:
                    time.sleep(0.02)
                    work.wait()

        text = expect_error(until_it_fails)
        assert "float32[4]" in text
        assert "int32[4]" in text

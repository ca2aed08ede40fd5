"""Tensors on a device, as far as a machine without one can tell: see `standin`.

What is fused, what a batch of several ranks agrees on, what is compressed, and what goes wrong, is
decided on the host, and is the same for any device. tests/gpu has the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import SHRINK_ABORT, _coalescing_manager

import device_checks
import standin
import torch_hvd
from rows import filled
from verbs import gather_into

BURST = 115


def total(make: Callable[[int], float], size: int) -> float:
    return sum(make(rank) for rank in range(size))


def launches(group: dist.ProcessGroup) -> int:
    """What Gloo was called for by the group so far."""
    count: int = standin.backend_of(group)._get_sequence_number_for_group()
    return count


@pytest.mark.ranks(2, 3, transports=["auto"])
def test_burst_is_fused() -> None:
    """Many small ones that nobody waits for yet are a few calls of the backend, in any order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with standin.group() as group:
        before = launches(group)
        tensors = [torch.full((number % 7 + 1,), float(rank + number)) for number in range(BURST)]
        wholes = [torch.full((number % 5 + 1,), rank + number) for number in range(BURST)]
        works = []
        for tensor, whole in zip(tensors, wholes, strict=True):
            works.append(dist.all_reduce(tensor, group=group, async_op=True))
            works.append(dist.all_reduce(whole, dist.ReduceOp.MAX, group=group, async_op=True))
        for work in works[:: 1 - 2 * (rank % 2)]:  # odd ranks begin with the last
            work.wait()
        for number in range(BURST):
            assert filled(tensors[number], size * number + total(float, size))
            assert filled(wholes[number], size - 1 + number)
        assert launches(group) - before <= 2 * BURST / 4


@pytest.mark.ranks(2, transports=["auto"])
def test_a_future_is_no_wait() -> None:
    """What has been launched and is not done has a future at once: who asks may hold the GIL."""
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    with standin.group() as group:
        dist.all_reduce(torch.ones(1), group=group)
        if rank == 1:
            store.wait(["rank 0 has looked"])
        work = dist.all_reduce(torch.full((1 << 18,), float(rank)), group=group, async_op=True)
        if rank == 0:
            time.sleep(0.3)  # launched by now
            assert not work.get_future().done()
            store.set("rank 0 has looked", "")
        assert filled(work.get_future().wait()[0], 1)


@pytest.mark.ranks(2, 3, transports=["auto"])
def test_gather_into_tensor() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = torch.full((2, 3), float(rank))
    with standin.group() as group:
        for root in (0, size - 1):
            output = torch.empty(size, 6) if rank == root else torch.empty(0)
            gather_into(output, mine, dst=root, group=group)
            if rank == root:
                assert torch.equal(output, torch.arange(float(size)).repeat(6, 1).t())
        if rank == 0:
            for wrong, says in (
                (torch.empty(size, 5), rf"output has {5 * size} elements .* {6 * size} are needed"),
                (torch.empty(6, size).t(), rf"shape \[{size}, 6\] .* is not contiguous"),
            ):
                with pytest.raises(RuntimeError, match=f"hvd: gather: .*{says}"):
                    gather_into(wrong, mine, dst=0, group=group)
        dist.barrier(group=group)


@pytest.mark.ranks(2, transports=["auto"])
def test_fusion_off() -> None:
    with standin.group(torch_hvd.Options(fusion_threshold=0)) as group:
        before = launches(group)
        tensors = [torch.ones(3) for _ in range(20)]
        for work in [dist.all_reduce(t, group=group, async_op=True) for t in tensors]:
            work.wait()
        assert all(filled(tensor, 2) for tensor in tensors)
        assert launches(group) - before == 20


@pytest.mark.ranks(2, 3, transports=["auto"])
def test_mixed_with_large_and_other_verbs() -> None:
    """Whatever is between small ones keeps its place, also where they share memory."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with standin.group() as group:
        small, large = torch.full((5,), float(rank)), torch.full((300_000,), float(rank))
        gathered = [torch.empty(5) for _ in range(size)]
        works = [
            dist.all_reduce(small, group=group, async_op=True),  # sum
            dist.all_reduce(small, group=group, async_op=True),  # of that, times size
            dist.all_reduce(large, group=group, async_op=True),
            dist.all_gather(gathered, small, group=group, async_op=True),
            dist.all_reduce(small, group=group, async_op=True),
            dist.broadcast(large, 1, group=group, async_op=True),
            dist.all_reduce(large[:10], group=group, async_op=True),
        ]
        for work in works:
            work.wait()
        once = total(float, size)
        assert all(filled(each, once * size) for each in gathered)
        assert filled(small, once * size * size)
        assert filled(large[:10], once * size)
        assert filled(large[10:], once)


@pytest.mark.ranks(2, 3, transports=["auto"])
@pytest.mark.parametrize(
    ("codec", "dtype"),
    [
        *((codec, torch.float32) for codec in ("fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4")),
        *((codec, torch.bfloat16) for codec in ("fp8", "int4")),
        ("int8", torch.float16),
    ],
)
def test_compressed_like_on_the_host(codec: str, dtype: torch.dtype) -> None:
    """The same bits as from tensors on the host, alone and fused, whole blocks and not."""
    options: dict[str, Any] = {
        "compression": codec,
        "compression_min_bytes": 1,
        "error_feedback": False,
        "fusion_cutoff": 1 << 20,
    }

    def inputs() -> list[Tensor]:
        random = torch.Generator().manual_seed(dist.get_rank())
        counts = (70_001, 4096, 33, 1000, 1_000_003)
        return [torch.randn(count, generator=random).to(dtype) for count in counts]

    with standin.hosts_apart():
        on_host = dist.new_group(pg_options=torch_hvd.Options(**options))
    with standin.group(torch_hvd.Options(**options), apart=True) as group:
        expected, together, alone = inputs(), inputs(), inputs()
        for tensor in expected:
            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=on_host)
        works = [
            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group, async_op=True)
            for tensor in together
        ]
        for work in works:
            work.wait()
        for tensor in alone:
            dist.all_reduce(tensor, dist.ReduceOp.AVG, group=group)
    for fused, single, same in zip(together, alone, expected, strict=True):
        assert torch.equal(fused, single)
        assert torch.equal(fused, same)
    dist.destroy_process_group(on_host)


@pytest.mark.ranks(2, transports=["auto"])
def test_error_feedback() -> None:
    """Over many rounds the mean of what arrives comes near the exact one, and only with it."""
    rank = dist.get_rank()
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(7)) * (1 + rank)
    exact = values / (1 + rank) * 3
    errors = {}
    for feedback in (False, True):
        options = torch_hvd.Options(compression="int4", error_feedback=feedback)
        with standin.group(options, apart=True) as group:
            mean, tensor = torch.zeros_like(values), torch.empty_like(values)
            for _ in range(16):
                tensor.copy_(values)
                dist.all_reduce(tensor, group=group)
                mean += tensor / 16
        errors[feedback] = float((mean - exact).norm() / exact.norm())
    assert errors[True] < errors[False] / 4, errors


@pytest.mark.ranks(2, transports=["auto"])
def test_error_feedback_after_a_sum_that_is_not_finite() -> None:
    device_checks.error_feedback_after_a_sum_that_is_not_finite(standin.group)


@pytest.mark.ranks(2, transports=["auto"])
def test_coalesced_calls_that_the_backend_refuses() -> None:
    """As Gloo does: nobody waits within the block, and each call's work has the error."""
    tensor, refused = torch.ones(4), "gloo does not implement startCoalescing"
    with standin.group() as group:
        with (
            pytest.raises(RuntimeError, match=refused),
            _coalescing_manager(group, tensor.device),
        ):
            dist.broadcast(tensor, 0, group=group)
            work: Any = dist.broadcast(tensor, 0, group=group, async_op=True)
            work.wait()
            assert not work.is_completed()
        with pytest.raises(RuntimeError, match=refused):
            work.wait()
        dist.all_reduce(tensor, group=group)
    assert filled(tensor, 2)


@pytest.mark.ranks(2, transports=["auto"])
def test_all_reduce_of_several_tensors() -> None:
    """Is the backend's affair, never that of the first alone: Gloo adds them all up."""
    tensors = [torch.ones(4), torch.ones(4)]
    with standin.group() as group:
        group.allreduce(tensors, dist.AllreduceOptions()).wait()
    assert all(filled(tensor, 4) for tensor in tensors)


@pytest.mark.ranks(2, 3, transports=["auto"])
def test_nothing_is_compressed_in_one_host() -> None:
    """Ranks that share memory send their tensors as they are."""
    random = torch.Generator().manual_seed(dist.get_rank())
    tensor = torch.randn(100_000, generator=random)
    exact = tensor.clone()
    dist.all_reduce(exact)
    with standin.group(torch_hvd.Options(compression="int8")) as group:
        dist.all_reduce(tensor, group=group)
    torch.testing.assert_close(tensor, exact)


@pytest.mark.ranks(2, 3, transports=["auto"])
def test_mismatch_with_check() -> None:
    device_checks.mismatch_with_check(standin.group)


@pytest.mark.ranks(2, transports=["auto"])
@pytest.mark.parametrize("again", ["call", "wait"])
def test_mismatch_of_what_is_fused(again: str) -> None:
    device_checks.mismatch_of_what_is_fused(standin.group, again)


@pytest.mark.ranks(2, transports=["auto"])
def test_what_the_backend_refuses_is_the_calls_own_error() -> None:
    with standin.group() as group:
        with pytest.raises((RuntimeError, ValueError), match="BAND"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BAND, group=group)
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=group)
        assert filled(tensor, 2)


@pytest.mark.ranks(2, transports=["auto"])
@pytest.mark.parametrize("count", [3, 300_000])
def test_what_an_abort_has_cut_off_is_no_result(count: int) -> None:
    """The backend ends its works as if they were done; nobody may go on with what they left."""
    with standin.group() as group:
        work = dist.all_reduce(torch.ones(count), group=group, async_op=True)
        work.wait()
        assert work.is_success()
        dist.barrier()
        backend = group._get_backend(torch.device("cpu"))
        backend.abort()
        assert not work.is_success()
        with pytest.raises(dist.DistBackendError, match="abort"):
            work.wait()
        with pytest.raises(RuntimeError, match="abort"):
            work.get_future().wait()


@pytest.mark.ranks(2, transports=["auto"])
def test_dtypes_of_which_the_backend_decides() -> None:
    """What it refuses is refused on every rank alike, so it does not travel with others."""
    with standin.group() as group:
        for dtype in (torch.bool, torch.complex64, torch.uint16):
            tensor, whole = torch.ones(3, dtype=dtype), torch.ones(3)
            works = [dist.all_reduce(whole, group=group, async_op=True)]
            try:
                dist.all_reduce(tensor, group=group)
                assert filled(tensor.to(torch.float32), 1 if dtype == torch.bool else 2)
            except (RuntimeError, ValueError) as error:
                print(dtype, error)
            works[0].wait()
            assert filled(whole, 2)


@pytest.mark.ranks(2, transports=["auto"])
def test_future_of_what_waits_for_others() -> None:
    """A future made before its collective is launched completes with the caller's tensors."""
    rank = dist.get_rank()
    with standin.group() as group:
        tensors = [torch.full((3,), float(rank + 1)) for _ in range(10)]
        works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
        futures = [work.get_future() for work in works]
        doubled = [future.then(lambda done: done.value()[0] * 2) for future in futures]
        assert all(filled(future.wait(), 6) for future in doubled)
        assert all(work.is_completed() and filled(work.result()[0], 3) for work in works)


@pytest.mark.ranks(3, transports=["auto"])
def test_split() -> None:
    """A part of a group, with the options of the whole."""
    rank = dist.get_rank()
    options = torch_hvd.Options(fusion_cutoff=12345)
    with standin.group(options) as group:
        for ranks in ([0, 2], [1, 2], [1]):
            whole: Any = group
            part = whole.split_group(
                ranks,
                timeout=timedelta(seconds=20),
                opts=None,
                group_name=f"part {ranks}",
                group_desc="",
            )
            if rank not in ranks:
                assert part is None
                continue
            assert (part.rank(), part.size()) == (ranks.index(rank), len(ranks))
            backend = part._get_backend(torch.device("cpu"))
            assert backend.options.fusion_cutoff == 12345
            tensor = torch.full((3,), float(rank))
            part.allreduce([tensor]).wait()
            assert filled(tensor, float(sum(ranks)))
            backend.shutdown()


@pytest.mark.ranks(3, transports=["auto"])
def test_shrink() -> None:
    """The device's part of a group goes on without a rank, too."""
    rank = dist.get_rank()
    with standin.group() as group:
        backend: Any = group._get_backend(torch.device("cpu"))
        if rank != 1:
            part = backend.shrink([1], SHRINK_ABORT, None)
            assert part.transport == backend.transport
            tensor = torch.full((3,), float(rank))
            part.allreduce([tensor]).wait()
            assert filled(tensor, 2)
            part.shutdown()
        dist.barrier()

"""Groups whose tensors NCCL moves: order on streams, feedback, training, failures."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import SHRINK_ABORT, _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import device_checks
import gpus
import torch_hvd
from calls import expect_error
from gpus import LONG, pool_on_gpus
from ranks import RankPool
from rows import filled
from training import new_model, new_optimizer, train

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def nccl(gpu: torch.device) -> Iterator[RankPool]:
    with pool_on_gpus("auto") as ranks:
        yield ranks


def total() -> float:
    return sum(range(dist.get_world_size()))


def _coalesced_among_others() -> None:
    """What is coalesced follows what was fused before, and is followed by what comes after."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    for count in (5, 300_000):
        small = [torch.zeros(7) for _ in range(20)]
        tensors = [torch.zeros(count) for _ in range(3)]
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda._sleep(LONG)
            for tensor in [*small, *tensors]:
                tensor.fill_(rank)
            before = [dist.all_reduce(tensor, async_op=True) for tensor in small]
            with _coalescing_manager(group, torch.device("cuda"), async_ops=True) as coalesced:
                for tensor in [small[3], *tensors]:
                    dist.all_reduce(tensor)
            after = [dist.all_reduce(tensor, async_op=True) for tensor in (small[3], tensors[1])]
            for work in [*before, coalesced, *after]:
                work.wait()
            sums = [tensor.cpu() for tensor in [*small, *tensors]]
        for number, tensor in enumerate(sums):
            times = {3: 3, 21: 2}.get(number, 1)
            assert filled(tensor, total() * size ** (times - 1)), (count, number)


def _coalesced_shards() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    wholes = [torch.empty(size * 6) for _ in range(3)]
    with _coalescing_manager(group, torch.device("cuda")):
        for number, whole in enumerate(wholes):
            dist.all_gather_into_tensor(whole, torch.full((6,), float(rank + number)))
    for number, whole in enumerate(wholes):
        expected = torch.arange(float(size)).repeat_interleave(6) + number
        assert torch.equal(whole, expected)
    shards = [torch.empty(6) for _ in range(3)]
    with _coalescing_manager(group, torch.device("cuda")):
        for shard, whole in zip(shards, wholes, strict=True):
            dist.reduce_scatter_tensor(shard, whole)
    for number, shard in enumerate(shards):
        assert filled(shard.cpu(), size * (rank + number))


def _all_reduce_coalesced(count: int) -> None:
    group: Any = dist.distributed_c10d._get_default_group()
    tensors = [torch.full((count,), float(dist.get_rank() + number)) for number in range(20)]
    options = dist.AllreduceCoalescedOptions()
    group.allreduce_coalesced(tensors, options).wait()
    for number, tensor in enumerate(tensors):
        assert filled(tensor.cpu(), total() + dist.get_world_size() * number)


def test_coalesced_among_others(nccl: RankPool) -> None:
    nccl.run(_coalesced_among_others)


def test_coalesced_shards(nccl: RankPool) -> None:
    nccl.run(_coalesced_shards)


@pytest.mark.parametrize("count", [5, 300_000])
def test_all_reduce_coalesced(nccl: RankPool, count: int) -> None:
    nccl.run(_all_reduce_coalesced, count)


def _means(values: Tensor, codec: str) -> tuple[list[Tensor], Tensor]:
    """What has come of 16 times the same values, and its mean."""
    options = torch_hvd.Options(compression=codec, error_feedback=True)
    tensor, sums = torch.empty_like(values), []
    with gpus.group(options, apart=True) as group:
        for _ in range(16):
            tensor.copy_(values)
            dist.all_reduce(tensor, group=group)
            sums.append(tensor.clone().cpu())
    return sums, torch.stack(sums).mean(0)


def _feedback(codec: str) -> None:
    """The mean of what arrives comes near the exact one; all of it is as on the host."""
    rank = dist.get_rank()
    values = torch.randn(50_000, generator=torch.Generator("cuda").manual_seed(7)) * (1 + rank)
    exact = (values / (1 + rank) * 3).cpu()
    sums, mean = _means(values, codec)
    expected, _ = _means(values.cpu(), codec)
    assert all(torch.equal(*pair) for pair in zip(sums, expected, strict=True))
    assert (mean - exact).norm() < (sums[0] - exact).norm() / 4


@pytest.mark.parametrize("codec", ["int4", "fp8"])
def test_error_feedback(nccl: RankPool, codec: str) -> None:
    nccl.run(_feedback, codec)


def test_error_feedback_after_a_sum_that_is_not_finite(nccl: RankPool) -> None:
    nccl.run(device_checks.error_feedback_after_a_sum_that_is_not_finite, gpus.group)


def _barrier(by_name: bool) -> None:
    """It waits for what the current stream has yet to do."""
    dist.barrier()
    done = torch.cuda.Event()
    torch.cuda._sleep(LONG)
    done.record()
    assert not done.query()
    dist.barrier(device_ids=[torch.cuda.current_device()] if by_name else None)
    assert done.query()


@pytest.mark.parametrize("by_name", [False, True])
def test_barrier(nccl: RankPool, by_name: bool) -> None:
    nccl.run(_barrier, by_name)


def _futures(count: int) -> None:
    """Callbacks see the sum, whenever they are run, and what they compute is seen in turn."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.zeros(count) for _ in range(10)]
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    for number, tensor in enumerate(tensors):
        tensor.fill_(rank + number)
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    doubled = [work.get_future().then(lambda done: done.value()[0] * 2) for work in works]
    for number, future in enumerate(doubled):
        assert filled(future.wait().cpu(), 2 * (total() + size * number))
    again = works[0].get_future().then(lambda done: done.value()[0] * 3).wait()
    assert filled(again.cpu(), 3 * total())


@pytest.mark.parametrize("count", [5, 300_000])
def test_futures(nccl: RankPool, count: int) -> None:
    nccl.run(_futures, count)


def _host_and_device() -> None:
    """Tensors of both in one group, in any order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (5, 300_000):
        there = [torch.full((count,), float(rank + number)) for number in range(10)]
        here = [tensor.cpu() for tensor in there]
        works = []
        for pair in zip(there, here, strict=True):
            works += [dist.all_reduce(tensor, async_op=True) for tensor in pair]
        for work in works[:: 1 - 2 * (rank % 2)]:
            work.wait()
        for number, pair in enumerate(zip(there, here, strict=True)):
            assert all(filled(tensor.cpu(), total() + size * number) for tensor in pair)
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank})
    assert gathered == [{"rank": peer} for peer in range(size)]


def test_tensors_of_host_and_device(nccl: RankPool) -> None:
    nccl.run(_host_and_device)


def test_mismatch_with_check(nccl: RankPool) -> None:
    nccl.run(device_checks.mismatch_with_check, gpus.group)


def test_mismatch_of_what_is_fused(nccl: RankPool) -> None:
    nccl.run(device_checks.mismatch_of_what_is_fused, gpus.group, "wait")


def _rank_1_ends() -> float:
    dist.all_reduce(torch.ones(5))
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        os._exit(0)
    begun = time.monotonic()

    def until_it_fails() -> None:
        for _ in range(100):
            dist.all_reduce(torch.ones(5))
            torch.cuda.synchronize()

    expect_error(until_it_fails)
    return time.monotonic() - begun


def test_a_rank_that_ends(nccl: RankPool) -> None:
    """Whoever waits for its headers hears of it; of what NCCL waits for NCCL's watchdog does."""
    seconds, _ = nccl.run(_rank_1_ends, lost=[1])
    assert seconds < 15


def _shrink() -> None:
    group = dist.new_group()
    dist.all_reduce(torch.ones(5), group=group)
    torch.cuda.synchronize()
    if dist.get_rank() == 1:
        os._exit(0)
    backend: Any = group._get_backend(torch.device("cuda"))
    part = backend.shrink([1], SHRINK_ABORT, None)
    assert part.transport.endswith("+nccl"), part.transport
    for count in (3, 300_000):
        tensor = torch.full((count,), 4.0)
        part.allreduce([tensor]).wait()
        assert filled(tensor.cpu(), 4)
    part.shutdown()


def test_shrink(nccl: RankPool) -> None:
    """The part of a group without a rank that has ended."""
    nccl.run(_shrink, lost=[1])


def _groups() -> None:
    """Made and destroyed again and again, they leave no memory of the GPU in use."""
    free = []
    for _ in range(6):
        group = dist.new_group()
        tensor = torch.ones(300_000)
        dist.all_reduce(tensor, group=group)
        assert filled(tensor.cpu(), dist.get_world_size())
        dist.destroy_process_group(group)
        dist.barrier()
        free.append(torch.cuda.mem_get_info()[0])
        dist.barrier()
    assert free[1] - free[-1] < 64 << 20, free


def test_groups_made_and_destroyed(nccl: RankPool) -> None:
    nccl.run(_groups, deadline=100)


def _timeline(folder: str) -> None:
    torch_hvd.start_timeline(folder)
    tensors = [torch.ones(5), torch.ones(300_000)]
    for tensor in tensors:
        dist.all_reduce(tensor)
    torch_hvd.stop_timeline()
    written = (Path(folder) / f"rank-{dist.get_rank()}.timeline.json").read_text()
    carried = [json.dumps(e) for e in json.loads(written) if "all_reduce" in e.get("name", "")]
    assert any("nccl" in event for event in carried), carried


def test_timeline(nccl: RankPool, tmp_path: Path) -> None:
    nccl.run(_timeline, str(tmp_path))


def _losses(model: nn.Module, trained: nn.Module) -> Tensor:
    def forward(inputs: Tensor) -> Tensor:
        result: Tensor = trained(inputs.cuda()).cpu()
        return result

    with torch.device("cpu"):
        return train(forward, new_optimizer(model), dist.get_rank())


def _ddp(hook: Any = None, **settings: Any) -> Tensor:
    model = new_model(batch_norm=False).cuda()
    parallel = DistributedDataParallel(model, **settings)
    if hook is not None:
        parallel.register_comm_hook(None, hook)
    return _losses(model, parallel)


def _fsdp() -> Tensor:
    model = new_model(batch_norm=False).cuda()
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for unit in [*(layer for layer in model if isinstance(layer, nn.Linear)), model]:
        fully_shard(unit, mesh=mesh)
    return _losses(model, model)


def _trains_alike() -> None:
    exact = _ddp()
    close = partial(torch.testing.assert_close, expected=exact)
    close(_ddp(gradient_as_bucket_view=True), rtol=1e-3, atol=1e-3)
    close(_ddp(static_graph=True), rtol=1e-3, atol=1e-3)
    close(_ddp(bucket_cap_mb=1), rtol=1e-3, atol=1e-3)
    close(_fsdp(), rtol=1e-3, atol=1e-3)
    close(_ddp(fp16_compress_hook), rtol=0.02, atol=0.02)
    close(_ddp(torch_hvd.hooks.compress("int8")), rtol=0.05, atol=0.05)


def test_ddp_and_fsdp_train_alike(nccl: RankPool) -> None:
    nccl.run(_trains_alike, deadline=100)


def _overflow() -> None:
    """Under AMP a step that overflows on one rank is skipped on all."""
    rank = dist.get_rank()
    options = torch_hvd.Options(compression="int8", compression_min_bytes=1)
    with gpus.group(options, apart=True) as group:
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(64, 64), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**10)
        for step in range(4):
            before = model.module.weight.detach().clone()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(8, 64)).square().mean()
            if step == 2 and rank == 1:
                loss = loss * torch.inf
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(before, model.module.weight) == (step == 2), step
            scales = [torch.zeros(()) for _ in range(dist.get_world_size())]
            dist.all_gather(scales, torch.tensor(scaler.get_scale()), group=group)
            assert scales[0] == scales[1]


def test_overflow_is_skipped_by_all(nccl: RankPool) -> None:
    nccl.run(_overflow)


def _dtensor() -> None:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    whole = torch.arange(35.0).view(7, 5)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(sharded.full_tensor(), whole)
    turned: DTensor = sharded.redistribute(placements=[Shard(1)])
    assert torch.equal(turned.full_tensor(), whole)
    assert torch.equal(turned.redistribute(placements=[Replicate()]).to_local(), whole)


def test_dtensor(nccl: RankPool) -> None:
    nccl.run(_dtensor)

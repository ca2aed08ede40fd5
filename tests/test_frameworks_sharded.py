"""Sharded training over the backend: ZeRO, FSDP2, DTensor, tensor parallelism."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import distribute_tensor as distribute
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from parity import same_as_gloo
from training import FEATURES, batch, new_model, new_optimizer, state_of, train

pytestmark = pytest.mark.ranks(2, standin=[2])

Trained = tuple[Tensor, dict[str, Tensor]]


def mesh_of(group: dist.ProcessGroup) -> DeviceMesh:
    return DeviceMesh.from_group(group, "cpu")


def whole(model: nn.Module) -> dict[str, Tensor]:
    """Return the unsharded state of a model whose parameters are DTensors."""
    return {
        name: value.full_tensor().detach().clone() if isinstance(value, DTensor) else value.clone()
        for name, value in model.state_dict().items()
    }


def with_ddp() -> Trained:
    model = DistributedDataParallel(new_model(batch_norm=False))
    losses = train(model, new_optimizer(model), dist.get_rank())
    return losses, state_of(model.module)


@pytest.mark.parametrize("as_view", [False, True])
def test_zero_redundancy_optimizer(as_view: bool) -> None:
    def work(group: dist.ProcessGroup) -> tuple[Tensor, dict[str, Tensor], Any]:
        model = DistributedDataParallel(new_model(batch_norm=False), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(),
            optimizer_class=torch.optim.SGD,
            process_group=group,
            parameters_as_bucket_view=as_view,
            lr=0.05,
            momentum=0.9,
        )
        losses = train(model, optimizer, dist.get_rank())
        optimizer.consolidate_state_dict(to=1)
        state = optimizer.state_dict() if dist.get_rank() == 1 else {}
        return losses, state_of(model.module), state

    losses, parameters, state = same_as_gloo(work)
    torch.testing.assert_close((losses, parameters), with_ddp(), rtol=0, atol=0)
    if dist.get_rank() == 1:
        assert len(state["state"]) == len(parameters)


def test_zero_and_ddp_join_with_uneven_inputs() -> None:
    def work(group: dist.ProcessGroup) -> Trained:
        model = DistributedDataParallel(new_model(batch_norm=False), process_group=group)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=torch.optim.Adam, process_group=group, lr=0.01
        )
        with Join([model, optimizer]):
            losses = train(model, optimizer, dist.get_rank(), steps=4 + 3 * dist.get_rank())
        return losses, state_of(model.module)

    same_as_gloo(work)


def fsdp(
    group: dist.ProcessGroup, policy: MixedPrecisionPolicy | None = None, force_sum: bool = False
) -> Trained:
    """Train with every layer its own FSDP unit, and return the losses and the whole state."""
    model = new_model(batch_norm=False)
    mesh = mesh_of(group)
    for unit in [*(layer for layer in model if isinstance(layer, nn.Linear)), model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy or MixedPrecisionPolicy())
    assert isinstance(model, FSDPModule)
    for unit in model.modules():
        if isinstance(unit, FSDPModule):
            unit.set_force_sum_reduction_for_comms(force_sum)
    losses = train(model, new_optimizer(model), dist.get_rank())
    return losses, whole(model)


@pytest.mark.parametrize("force_sum", [False, True], ids=["average", "sum"])
def test_fsdp2(force_sum: bool) -> None:
    """FSDP2 asks reduce_scatter for the average, or for the sum if it is told to."""
    trained = same_as_gloo(lambda group: fsdp(group, force_sum=force_sum))
    torch.testing.assert_close(trained, with_ddp(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_fsdp2_reducing_in_16_bits(dtype: torch.dtype) -> None:
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=dtype)
    losses, _ = same_as_gloo(lambda group: fsdp(group, policy, force_sum=False))
    torch.testing.assert_close(losses.float(), with_ddp()[0], rtol=0.03, atol=0.03)


@pytest.mark.parametrize("rows", [6, 5, 1], ids=["even", "uneven", "empty shard"])
def test_dtensor_redistribute(rows: int) -> None:
    """Every change of placement keeps the whole tensor, and each shard is the right slice."""
    rank = dist.get_rank()
    full = torch.arange(rows * 7, dtype=torch.float32).reshape(rows, 7)
    shards = {dim: [*torch.chunk(full, 2, dim), full.narrow(dim, 0, 0)][rank] for dim in (0, 1)}

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        mesh = mesh_of(group)
        results = []
        placements: list[Placement] = [Shard(0), Shard(1), Replicate()]
        for source in placements:
            for target in placements:
                moved = distribute(full, mesh, [source]).redistribute(mesh, [target])
                expected = shards[target.dim] if isinstance(target, Shard) else full
                torch.testing.assert_close(moved.to_local(), expected)
                results += [moved.to_local().clone(), moved.full_tensor()]
        for target in placements:
            partial = DTensor.from_local(full * (rank + 1), mesh, [Partial()])
            moved = partial.redistribute(mesh, [target])
            expected = shards[target.dim] if isinstance(target, Shard) else full
            torch.testing.assert_close(moved.to_local(), expected * 3)
            results.append(moved.to_local().clone())
        return results

    same_as_gloo(work)


@pytest.mark.parametrize("op", ["sum", "avg", "max", "min", "product"])
def test_dtensor_partial_of_every_op(op: str) -> None:
    rank = dist.get_rank()
    full = torch.arange(1.0, 13.0).reshape(4, 3)

    def work(group: dist.ProcessGroup) -> Tensor:
        partial = DTensor.from_local(full + rank, mesh_of(group), [Partial(op)])
        return partial.full_tensor()

    expected = {
        "sum": 2 * full + 1,
        "avg": full + 0.5,
        "max": full + 1,
        "min": full,
        "product": full * (full + 1),
    }
    torch.testing.assert_close(same_as_gloo(work), expected[op])


def test_tensor_parallel_layers() -> None:
    def work(group: dist.ProcessGroup) -> list[Tensor]:
        model = new_model(batch_norm=False)
        plan = {"0": ColwiseParallel(), "3": RowwiseParallel()}
        parallelize_module(model, mesh_of(group), plan)
        inputs, labels = batch(0, 0)
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        return [
            loss.detach(),
            *(g.full_tensor() if isinstance(g, DTensor) else g for g in gradients),
        ]

    results = same_as_gloo(work)
    alone = new_model(batch_norm=False)
    inputs, labels = batch(0, 0)
    assert inputs.shape[1] == FEATURES
    loss = F.cross_entropy(alone(inputs), labels)
    loss.backward()
    torch.testing.assert_close(results, [loss.detach(), *(p.grad for p in alone.parameters())])

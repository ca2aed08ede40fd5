"""What PyTorch builds on collectives still holds when a group compresses: AMP, FSDP2."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from training import batch, new_model, new_optimizer, state_of, train

pytestmark = pytest.mark.ranks(2, 3, transports=["tcp"])

CODECS = ("none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4")
WIDTH = 256  # of the model: 540 KB of gradients, which DDP sends in one bucket
OVERFLOW = 2  # the step in which it happens


def group_with(**options: Any) -> dist.ProcessGroup:
    return dist.new_group(pg_options=torch_hvd.Options(**options))


def compressing_ddp(**options: Any) -> DistributedDataParallel:
    model = new_model(batch_norm=False, width=WIDTH)
    return DistributedDataParallel(model, process_group=group_with(**options))


def scaled_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, scaler: GradScaler, step: int
) -> None:
    inputs, labels = batch(dist.get_rank(), step)
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(inputs), labels)).backward()
    scaler.step(optimizer)
    scaler.update()


def with_one(value: float) -> Any:
    """A hook that puts `value` into one place of a gradient."""

    def hook(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[5] = value
        return gradient

    return hook


def alike(state: dict[str, Tensor]) -> bool:
    """Whether all ranks have the same bits."""
    states: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)
    return all(torch.equal(each[name], state[name]) for each in states for name in state)


@pytest.mark.parametrize("feedback", [False, True], ids=["", "feedback"])
@pytest.mark.parametrize("value", [-math.inf, math.nan], ids=str)
@pytest.mark.parametrize("codec", CODECS)
def test_overflow_on_one_rank_skips_the_step_on_all(
    codec: str, value: float, feedback: bool
) -> None:
    """The last rank alone has a gradient that is not finite; the steps around it train."""
    model = compressing_ddp(compression=codec, error_feedback=feedback)
    optimizer, scaler = new_optimizer(model), GradScaler("cpu", init_scale=1024.0)
    for step in range(6):
        overflow = step == OVERFLOW
        if overflow and dist.get_rank() == dist.get_world_size() - 1:
            weight = next(model.parameters())
            handle = weight.register_hook(with_one(value))
            scaled_step(model, optimizer, scaler, step)
            handle.remove()
        else:
            before = state_of(model)
            scaled_step(model, optimizer, scaler, step)
            kept = all(torch.equal(before[name], now) for name, now in state_of(model).items())
            assert kept is overflow, step
        assert scaler.get_scale() == (512.0 if step >= OVERFLOW else 1024.0), step
        assert alike(state_of(model)), step
    assert all(bool(value.isfinite().all()) for value in state_of(model).values())


def test_fp16_that_is_out_of_range_lowers_the_scale() -> None:
    """Gradients of fp32 that fp16 cannot hold are Inf for GradScaler, as with fp16 gradients."""
    model = compressing_ddp(compression="fp16")
    optimizer, scaler = new_optimizer(model), GradScaler("cpu", init_scale=2.0**30)
    before = state_of(model)
    for step in range(24):
        scaled_step(model, optimizer, scaler, step)
    # Some gradient of 0.001 or more, and none of 16 or more.
    assert 2.0**12 <= scaler.get_scale() <= 2.0**26
    state = state_of(model)
    assert not any(torch.equal(before[name], value) for name, value in state.items())
    assert alike(state)


def sharded(group: dist.ProcessGroup) -> tuple[Tensor, list[Tensor]]:
    """Train with every layer its own FSDP unit: losses, and all parameters, whole."""
    model = new_model(batch_norm=False, width=WIDTH)
    mesh = DeviceMesh.from_group(group, "cpu")
    for unit in [*(layer for layer in model if isinstance(layer, nn.Linear)), model]:
        fully_shard(unit, mesh=mesh)
    losses = train(model, new_optimizer(model), dist.get_rank())
    whole = [p.full_tensor() for p in model.parameters() if isinstance(p, DTensor)]
    return losses, [each.detach().clone() for each in whole]


@pytest.mark.parametrize("codec", CODECS[1:])
def test_fsdp2_is_not_compressed(codec: str) -> None:
    """It reduces by reduce_scatter and gathers weights, so it is the same to the bit."""
    compressing = sharded(group_with(compression=codec, compression_min_bytes=0))
    plain = sharded(group_with())
    torch.testing.assert_close(compressing, plain, rtol=0, atol=0)

"""A step of DistributedDataParallel, forward and backward, without an optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from zlib import crc32

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.contenders import Contender
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.payload import relative_error, two_copies
from benchmarks.ranks import Rank

pytestmark = pytest.mark.timeout(300)

WIDTH, LAYERS, BATCH = 1024, 10, 32
NBYTES = 4 * WIDTH * WIDTH * LAYERS  # 40 MB of parameters
TARGET = 1.02
# PowerSGD sums its second factor from threads of Gloo, for several buckets in an order that is each
# rank's own; then ranks may wait for each other for ever.
ONE_BUCKET_MB = 2 * NBYTES >> 20
LOSS_SCALE = 2.0**12  # gradients of 1e-6 would be denormals of fp16
ROUNDING = 1e-5  # relative L2 error of gradients summed in another order


def mlp() -> nn.Module:
    """The same on every rank and for every trial."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


def batch(rank: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))


def step(model: nn.Module, inputs: torch.Tensor) -> None:
    model(inputs).square().sum().mul(LOSS_SCALE).backward()


def gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def check_agreement(rank: Rank, found: torch.Tensor) -> None:
    """Of gradients that are no mean to a known error: all ranks have the same, finite and not 0."""
    assert found.isfinite().all() and found.any(), "gradients are not finite, or all 0"
    mine = torch.tensor([crc32(found.numpy().tobytes())])
    everyones = [torch.empty_like(mine) for _ in range(rank.size)]
    dist.all_gather(everyones, mine, group=rank.control)
    assert all(torch.equal(mine, theirs) for theirs in everyones), "gradients differ between ranks"


Sides = Mapping[str, tuple[Contender, Sequence[dist.ProcessGroup]]]


def sides(rank: Rank) -> Sides:
    """The two that the options of a run compare."""
    return {
        "backend": (rank.contenders["backend"], rank.backend),
        "baseline": (rank.contenders["baseline"], rank.baseline),
    }


def trials(rank: Rank, sides: Sides) -> tuple[Trial, dict[str, list[Trial]]]:
    """The limit, a step of the bare model and two copies of its gradients, and the contenders."""
    bare, inputs = mlp(), batch(rank.rank)
    expected = torch.zeros(NBYTES // 4)
    for peer in range(rank.size):
        bare.zero_grad()
        step(bare, batch(peer))
        expected += gradients(bare) / rank.size
    copies = two_copies(expected, [torch.empty_like(expected)])

    def check(model: nn.Module, bound: float) -> None:
        found = gradients(model)
        if bound == inf:
            return check_agreement(rank, found)
        error = relative_error(found, expected)
        assert error <= bound, f"wrong gradients: relative L2 error {error:.2g}"

    def ddp(group: dist.ProcessGroup, contender: Contender) -> Trial:
        cap = ONE_BUCKET_MB if contender.hook == "powerSGD_hook" else None
        model = DistributedDataParallel(mlp(), process_group=group, bucket_cap_mb=cap)
        if hook := contender.comm_hook(group):
            model.register_comm_hook(*hook)
        bound = ROUNDING + contender.tolerance
        return Trial(1, model.zero_grad, lambda _: step(model, inputs), lambda: check(model, bound))

    def fill() -> None:
        bare.zero_grad()
        copies.fill()

    def call(i: int) -> None:
        step(bare, inputs)
        copies.call(i)

    contenders = {
        name: [ddp(group, contender) for group in groups]
        for name, (contender, groups) in sides.items()
    }
    return Trial(1, fill, call, copies.check), contenders


def steps(rank: Rank, *, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    limit, contenders = trials(rank, sides(rank))
    return interleave(rank, limit, contenders, budget_s)


def test_ddp_step(bench: Bench) -> None:
    bench.row(steps, op="ddp step", size=NBYTES, target=bench.against_gloo(TARGET), hooks=True)

"""DistributedDataParallel over the backend does what it does over gloo, to the bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from parity import same_as_gloo
from training import BATCH, FEATURES, batch, new_model, new_optimizer, state_of, train

pytestmark = pytest.mark.ranks(2, standin=[2])


class TwoPaths(nn.Module):
    """Uses one of two layers by the sign of the input's sum; the other's gradient is missing."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.left, self.right = (new_model(batch_norm=False) for _ in range(3))

    def forward(self, inputs: Tensor) -> Tensor:
        path = self.left if inputs.sum() < 0 else self.right
        return self.shared(inputs) + path(inputs)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bucket_cap_mb": 0.002},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"static_graph": True, "gradient_as_bucket_view": True, "bucket_cap_mb": 0.002},
        {"broadcast_buffers": False},
    ],
    ids=str,
)
def test_loss_curve(options: dict[str, Any]) -> None:
    def work(group: dist.ProcessGroup) -> tuple[Tensor, dict[str, Tensor]]:
        model = DistributedDataParallel(new_model(), process_group=group, **options)
        losses = train(model, new_optimizer(model), dist.get_rank(), steps=24)
        return losses, state_of(model)

    losses, _ = same_as_gloo(work)
    assert losses[-4:].mean() < 0.8 * losses[:4].mean()


def test_two_ranks_train_as_one_process_does_on_both_batches() -> None:
    model = DistributedDataParallel(new_model(batch_norm=False))
    train(model, new_optimizer(model), dist.get_rank())

    alone = new_model(batch_norm=False)
    optimizer = new_optimizer(alone)
    for step in range(12):
        inputs, labels = (
            torch.cat(parts) for parts in zip(*(batch(r, step) for r in range(2)), strict=True)
        )
        optimizer.zero_grad()
        F.cross_entropy(alone(inputs), labels).backward()
        optimizer.step()
    for ours, reference in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("as_view", [False, True])
def test_find_unused_parameters(as_view: bool) -> None:
    def work(group: dist.ProcessGroup) -> tuple[Tensor, dict[str, Tensor]]:
        model = DistributedDataParallel(
            TwoPaths(),
            process_group=group,
            find_unused_parameters=True,
            gradient_as_bucket_view=as_view,
        )
        losses = train(model, new_optimizer(model), dist.get_rank())
        return losses, state_of(model)

    ways = [[bool(batch(rank, step)[0].sum() < 0) for step in range(12)] for rank in range(2)]
    assert ways[0] != ways[1], "the ranks must leave different parameters unused"
    same_as_gloo(work)


def test_no_sync_accumulates_before_one_reduction() -> None:
    def work(group: dist.ProcessGroup) -> list[list[Tensor]]:
        model = DistributedDataParallel(new_model(batch_norm=False), process_group=group)
        gradients = []
        with model.no_sync():
            for step in range(2):
                inputs, labels = batch(dist.get_rank(), step)
                F.cross_entropy(model(inputs), labels).backward()
        local = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        inputs, labels = batch(dist.get_rank(), 2)
        F.cross_entropy(model(inputs), labels).backward()
        gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        return [local, gradients]

    local, reduced = same_as_gloo(work)
    alone = new_model(batch_norm=False)
    for rank in range(2):
        for step in range(3):
            inputs, labels = batch(rank, step)
            (F.cross_entropy(alone(inputs), labels) / 2).backward()
    for ours, parameter in zip(reduced, alone.parameters(), strict=True):
        torch.testing.assert_close(ours, parameter.grad)
    assert not torch.equal(local[0], reduced[0])


@pytest.mark.parametrize("by_initial_size", [False, True])
def test_join_with_uneven_inputs(by_initial_size: bool) -> None:
    steps = 5 + 4 * dist.get_rank()

    def work(group: dist.ProcessGroup) -> tuple[Tensor, dict[str, Tensor]]:
        model = DistributedDataParallel(new_model(), process_group=group, bucket_cap_mb=0.01)
        optimizer = new_optimizer(model)
        with model.join(divide_by_initial_world_size=by_initial_size):
            losses = train(model, optimizer, dist.get_rank(), steps)
        return losses, state_of(model)

    losses, state = same_as_gloo(work)
    assert len(losses) == steps
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state)
    for name in state:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=0)


def test_join_throws_on_early_termination() -> None:
    def work(group: dist.ProcessGroup) -> str:
        model = DistributedDataParallel(new_model(), process_group=group)
        with (
            pytest.raises(RuntimeError, match="exhausted") as raised,
            model.join(throw_on_early_termination=True),
        ):
            train(model, new_optimizer(model), dist.get_rank(), steps=2 + dist.get_rank())
        return str(raised.value)

    same_as_gloo(work)


@pytest.mark.parametrize("fresh", [False, True], ids=["every row", "rows by rank"])
def test_sparse_embedding(fresh: bool) -> None:
    """Gradients of nn.Embedding(sparse=True) are sparse COO tensors, of unequal nnz by rank."""
    rank = dist.get_rank()

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        torch.manual_seed(3)
        table = nn.Embedding(12, 5, sparse=True)
        layers = nn.Sequential(table, nn.Linear(5, 1))
        model = DistributedDataParallel(layers, process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        seen = []
        for step in range(4):
            rows = torch.arange(step, step + 2 + 3 * rank) if fresh else torch.arange(12)
            optimizer.zero_grad()
            model(rows).square().sum().backward()
            gradient = table.weight.grad
            assert gradient is not None and gradient.is_sparse
            seen += [gradient.to_dense().clone(), gradient.coalesce().indices().clone()]
            optimizer.step()
        return [*seen, *(p.detach().clone() for p in model.parameters())]

    first, indices, *_ = same_as_gloo(work)
    touched = 5 if fresh else 12  # rank 0 uses rows 0 and 1, rank 1 rows 0 to 4
    assert indices[0].tolist() == list(range(touched))
    assert first[touched:].abs().sum() == 0 and first[:touched].abs().sum() > 0


def test_sync_batch_norm_on_cpu_is_refused_in_the_same_words() -> None:
    def work(group: dist.ProcessGroup) -> str:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(new_model(), process_group=group)
        with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor") as raised:
            model(torch.zeros(BATCH, FEATURES))
        return str(raised.value)

    same_as_gloo(work)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_parameters_of_other_dtypes(dtype: torch.dtype) -> None:
    def work(group: dist.ProcessGroup) -> dict[str, Tensor]:
        model = DistributedDataParallel(new_model(batch_norm=False).to(dtype), process_group=group)
        optimizer = new_optimizer(model)
        for step in range(3):
            inputs, labels = batch(dist.get_rank(), step)
            optimizer.zero_grad()
            F.cross_entropy(model(inputs.to(dtype)).float(), labels).backward()
            optimizer.step()
        return state_of(model)

    state = same_as_gloo(work)
    assert all(value.dtype is dtype for value in state.values())

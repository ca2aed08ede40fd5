"""Functional collectives, eager, traced and compiled, do over the backend what gloo does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from parity import default_group, same_as_gloo
from ranks import RankPool
from training import new_model, new_optimizer, state_of, train

pytestmark = pytest.mark.ranks(2)

COMPILE_SECONDS = 110.0  # inductor runs a C++ compiler in every rank


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return arange plus 100 times the rank, in `shape`."""
    count = torch.arange(torch.Size(shape).numel(), dtype=dtype).reshape(shape)
    return count + 100 * dist.get_rank()


def every_verb(group: dist.ProcessGroup) -> list[Tensor]:
    x = numbers(4, 6)
    rank = dist.get_rank()
    results = [
        funcol.all_reduce(x, "sum", group),
        funcol.all_reduce(x, "avg", group),
        funcol.all_reduce(x, "max", group),
        funcol.all_gather_tensor(x, 0, group),
        funcol.all_gather_tensor(x, 1, group),
        funcol.reduce_scatter_tensor(x, "sum", 0, group),
        funcol.reduce_scatter_tensor(x, "sum", 1, group),
        funcol.broadcast(x, 1, group),
        funcol.all_to_all_single(x, None, None, group),
        funcol.all_to_all_single(x, [1 + 2 * rank] * 2, [1, 3], group),
        funcol.permute_tensor(x.flatten(), [1, 0], group),
        *funcol.all_reduce_coalesced([x, numbers(3)], "sum", group),
        *funcol.all_gather_into_tensor_coalesced([x, numbers(3)], group),
        *funcol.reduce_scatter_tensor_coalesced([x, numbers(2)], "sum", [0, 0], group),
    ]
    return [funcol.wait_tensor(result) + 0 for result in results]


def test_every_verb_eagerly() -> None:
    summed, averaged, largest, *_ = same_as_gloo(every_verb)
    expected = 2 * torch.arange(24.0).reshape(4, 6) + 100
    torch.testing.assert_close(summed, expected)
    torch.testing.assert_close(averaged, expected / 2)
    torch.testing.assert_close(largest, expected / 2 + 50)


def test_gradients_flow_through_collectives() -> None:
    def work(group: dist.ProcessGroup) -> list[Tensor | None]:
        x = numbers(4, 6).requires_grad_()
        gathered = funcol.all_gather_tensor_autograd(x, 0, group)
        scattered = funcol.reduce_scatter_tensor_autograd(x * x, "sum", 0, group)
        swapped = funcol.all_to_all_single_autograd(x * 3, [2, 2], [2, 2], group)
        (gathered.square().sum() + scattered.square().sum() + swapped.sum()).backward()
        return [x.grad]

    (gradient,) = same_as_gloo(work)
    assert gradient is not None and gradient.abs().min() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [5, 100_000], ids=["small", "large"])
def test_parameters_are_communicated_in_place(size: int, dtype: torch.dtype) -> None:
    """With gradients enabled autograd would let no operator write into a leaf, or into a view."""

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        summed, sent, swapped, other = (
            torch.nn.Parameter(numbers(size, 2, dtype=dtype)) for _ in range(4)
        )
        requests = [
            dist.all_reduce(summed, group=group, async_op=True),
            dist.broadcast(sent.unbind(0)[1], 0, group=group, async_op=True),
            dist.all_to_all_single(swapped.view(-1), other.view(-1), group=group, async_op=True),
        ]
        for request in requests:
            request.wait()
        return [summed.detach(), sent.detach(), swapped.detach()]

    summed, sent, _ = same_as_gloo(work)
    assert summed[0].tolist() == [100, 102]
    assert sent[1].tolist() == [2, 3]


def layer_with_collectives(x: Tensor, weight: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Column-parallel product, gathered and summed: what tensor parallelism traces."""
    partial = torch.relu(x @ weight)
    gathered = funcol.all_gather_tensor(partial, 0, group)
    total = funcol.all_reduce(gathered * 2, "sum", group)
    return funcol.reduce_scatter_tensor(total.sin(), "sum", 0, group).sum(1)


def stock_collectives(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """In-place c10d calls, which the compiler rewrites as functional ones."""
    dist.all_reduce(x, group=group)
    gathered = torch.empty(2 * len(x), *x.shape[1:])
    dist.all_gather_into_tensor(gathered, x * 3, group=group)
    return gathered.sum(0)


def compiled_equals_eager(compiler: str) -> None:
    torch._inductor.config.compile_threads = 1  # no pool of workers in every rank

    def work(group: dist.ProcessGroup) -> list[Tensor]:
        results = []
        calls: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = [
            (layer_with_collectives, (numbers(4, 6) / 64, torch.ones(6, 8) / 8, group)),
            (stock_collectives, (numbers(4, 6), group)),
        ]
        for function, inputs in calls:
            torch._dynamo.reset()
            compiled = torch.compile(function, backend=compiler, fullgraph=True)
            copies = [a.clone() if isinstance(a, Tensor) else a for a in inputs]
            result = compiled(*inputs)
            torch.testing.assert_close(result, function(*copies), rtol=1e-5, atol=1e-5)
            results.append(result)
        return results

    same_as_gloo(work)


def test_compiled_by_aot_eager() -> None:
    compiled_equals_eager("aot_eager")


@pytest.mark.timeout(COMPILE_SECONDS + 40)
def test_compiled_by_inductor(pool: RankPool) -> None:
    pool.run(compiled_equals_eager, "inductor", deadline=COMPILE_SECONDS)


def test_compiled_ddp() -> None:
    """Dynamo cuts the graph at DDP's bucket boundaries, so that buckets start in backward."""

    def work(group: dist.ProcessGroup) -> tuple[Tensor, dict[str, Tensor]]:
        torch._dynamo.reset()
        model = DistributedDataParallel(
            new_model(batch_norm=False, width=512), process_group=group, bucket_cap_mb=1
        )
        compiled = torch.compile(model, backend="aot_eager")
        losses = train(compiled, new_optimizer(model), dist.get_rank(), steps=4)
        return losses, state_of(model)

    def eager(group: dist.ProcessGroup) -> Tensor:
        model = DistributedDataParallel(new_model(batch_norm=False, width=512), process_group=group)
        return train(model, new_optimizer(model), dist.get_rank(), steps=4)

    losses, _ = same_as_gloo(work)
    torch.testing.assert_close(losses, eager(default_group()), rtol=1e-5, atol=1e-5)

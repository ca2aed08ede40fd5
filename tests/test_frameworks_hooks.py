"""DDP's communication hooks and local SGD do over the backend what they do over gloo."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from parity import default_group, same_as_gloo
from training import new_model, new_optimizer, state_of, train

pytestmark = pytest.mark.ranks(2, standin=[2])

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[Any]]
Trained = tuple[Tensor, dict[str, Tensor]]


def train_with(
    hook: Hook, state: Any, group: dist.ProcessGroup, steps: int = 12, bucket_cap_mb: float = 0.01
) -> Trained:
    """Train with every bucket going through `hook`: several buckets, or one if the cap is large."""
    model = DistributedDataParallel(
        new_model(batch_norm=False), process_group=group, bucket_cap_mb=bucket_cap_mb
    )
    model.register_comm_hook(state, hook)
    losses = train(model, new_optimizer(model), dist.get_rank(), steps)
    return losses, state_of(model)


def require_alike_on_both_ranks(state: dict[str, Tensor]) -> None:
    states: list[Any] = [None, None]
    dist.all_gather_object(states, state)
    for name in state:
        torch.testing.assert_close(states[0][name], states[1][name], rtol=0, atol=0)


@pytest.mark.parametrize(
    "hook",
    [default_hooks.allreduce_hook, default_hooks.fp16_compress_hook],
    ids=lambda hook: hook.__name__,
)
def test_stock_hook(hook: Hook) -> None:
    _, state = same_as_gloo(lambda group: train_with(hook, group, group))
    require_alike_on_both_ranks(state)


def test_fp16_hook_sends_fp16() -> None:
    """The compressed run differs from the plain one, by no more than half precision explains."""
    plain, _ = train_with(default_hooks.allreduce_hook, None, default_group(), steps=4)
    compressed, _ = train_with(default_hooks.fp16_compress_hook, None, default_group(), steps=4)
    assert not torch.equal(plain, compressed)
    torch.testing.assert_close(plain, compressed, rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"matrix_approximation_rank": 1},
        {"matrix_approximation_rank": 2, "batch_tensors_with_same_shape": True},
        {"matrix_approximation_rank": 4, "warm_start": False, "use_error_feedback": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("fp16", [False, True])
def test_power_sgd(options: dict[str, Any], fp16: bool) -> None:
    """PowerSGD starts collectives in callbacks; only with one bucket is their order the same."""
    hook: Hook = powerSGD_hook.powerSGD_hook
    if fp16:
        hook = default_hooks.fp16_compress_wrapper(hook)

    def work(group: dist.ProcessGroup) -> Trained:
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=3, **options)
        trained = train_with(hook, state, group, bucket_cap_mb=1)
        rate, before, after = state.compression_stats()
        assert before > 2 * after, (rate, "nothing was compressed")
        return trained

    _, state = same_as_gloo(work)
    require_alike_on_both_ranks(state)


def sum_twice(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Reduce a bucket, and in the callback that this future runs start another collective."""
    half = bucket.buffer().div_(2 * group.size())

    def again(first: torch.futures.Future[list[Tensor]]) -> Tensor:
        total = first.value()[0]
        dist.all_reduce(total.div_(group.size()), group=group)
        return total.mul_(2)

    return dist.all_reduce(half, group=group, async_op=True).get_future().then(again)


def test_collective_inside_a_future_callback() -> None:
    """The callback runs on the thread that completed the first one, and waits for another."""
    losses, _ = same_as_gloo(lambda group: train_with(sum_twice, group, group, bucket_cap_mb=1))
    plain, _ = train_with(default_hooks.allreduce_hook, None, default_group())
    torch.testing.assert_close(losses, plain, rtol=0, atol=0)


@pytest.mark.parametrize("local", [1, 2], ids=["a rank alone", "both ranks"])
def test_local_sgd(local: int) -> None:
    """Average gradients globally for 4 steps, then in a subgroup, and models every 3 steps."""
    rank = dist.get_rank()

    def work(group: dist.ProcessGroup) -> Trained:
        backend = dist.get_backend(group)
        parts = [[0, 1]] if local == 2 else [[0], [1]]
        subgroups = [dist.new_group(part, backend=backend) for part in parts]
        state = post_localSGD_hook.PostLocalSGDState(
            group, subgroups[rank % len(parts)], start_localSGD_iter=4
        )
        model = DistributedDataParallel(new_model(batch_norm=False), process_group=group)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
        averager = PeriodicModelAverager(period=3, warmup_steps=4, process_group=group)
        optimizer = PostLocalSGDOptimizer(new_optimizer(model), averager)
        losses = train(model, optimizer, rank, steps=14)  # the last step averages models
        for subgroup in subgroups:
            if subgroup is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(subgroup)
        return losses, state_of(model)

    _, state = same_as_gloo(work)
    require_alike_on_both_ranks(state)

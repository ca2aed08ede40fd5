"""Compressed gradients of DDP: by options, in a region, and by torch_hvd.hooks.compress."""

from __future__ import annotations

import warnings
from functools import partial
from threading import Barrier
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import torch_hvd
from calls import environment, together
from compressed import BUDGET, CODECS, error_of, every_layout, group_with, noise, one_rank_a_host
from training import batch, new_model

pytestmark = every_layout


def model_in(
    group: dist.ProcessGroup, hook: Any = None, width: int = 256
) -> DistributedDataParallel:
    """With buckets of some 540 KB, or 8 * width**2."""
    model = DistributedDataParallel(new_model(width=width), process_group=group)
    if hook is not None:
        model.register_comm_hook(group, hook)
    return model


def step(model: DistributedDataParallel) -> Tensor:
    """The gradients of always the same step, which changes no parameter."""
    model.zero_grad()
    inputs, labels = batch(dist.get_rank(), 0)
    functional.cross_entropy(model(inputs), labels).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def average_by(hook: torch_hvd.hooks.Hook, group: dist.ProcessGroup, buffer: Tensor) -> None:
    """As DDP does with a bucket, and waits."""
    bucket = SimpleNamespace(buffer=lambda: buffer)
    hook(group, cast(dist.GradBucket, bucket)).wait()


def gradients(group: dist.ProcessGroup, hook: Any = None) -> Tensor:
    return step(model_in(group, hook))


@one_rank_a_host
@pytest.mark.parametrize("codec", CODECS)
def test_ddp(codec: str) -> None:
    """Unmodified, by options, and by the hook over hvd and over gloo."""
    exactly = gradients(dist.new_group())
    by_options = gradients(group_with(compression=codec))
    assert BUDGET[codec] / 20 < error_of(by_options, exactly) <= BUDGET[codec]
    hook = torch_hvd.hooks.compress(codec)
    over_hvd = gradients(group_with(), hook)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # of torch, of what it will not have any more
        over_gloo = gradients(dist.new_group(backend="gloo"), hook)
    # The same blocks, scales and order of summation.
    assert torch.equal(over_hvd, over_gloo)
    assert error_of(over_hvd, exactly) <= BUDGET[codec]


def test_region_of_ddp() -> None:
    """It holds for the gradients of a backward() inside, on each of several threads."""
    names = ("none", "fp8", "int4")
    models = {name: model_in(group_with(compression="int8")) for name in names}
    expected = {name: step(model_in(group_with(compression=name))) for name in names}
    inside = Barrier(len(names))

    def backward(name: str) -> Tensor:
        with torch_hvd.compression(name):
            inside.wait(20)
            result = step(models[name])
            inside.wait(20)
        return result

    found = together({name: partial(backward, name) for name in names})
    for name in names:
        assert torch.equal(found[name], expected[name]), name


@one_rank_a_host
def test_hook_feeds_back() -> None:
    """With int4 by default, over hvd and over gloo."""
    exactly = gradients(dist.new_group())

    def error(group: dist.ProcessGroup) -> float:
        model = model_in(group, torch_hvd.hooks.compress("int4"))
        return error_of(torch.stack([step(model) for _ in range(30)]).mean(0), exactly)

    assert error(group_with(error_feedback=None)) < 0.02
    assert error(dist.new_group(backend="gloo")) < 0.02
    with environment({"HVD_ERROR_FEEDBACK": "0"}):
        assert error(dist.new_group(backend="gloo")) > 0.1


@one_rank_a_host
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "environ",
    [{}, {"HVD_ERROR_FEEDBACK": "1"}, {"HVD_ERROR_FEEDBACK": "1", "HVD_COMPRESSION_BLOCK": "64"}],
    ids=str,
)
def test_hook_over_other_backends(codec: str, environ: dict[str, str]) -> None:
    """Step by step the same bits, also of buckets of which the last block is not full."""

    def averages(group: dist.ProcessGroup) -> list[Tensor]:
        hook = torch_hvd.hooks.compress(codec)
        first, second = torch.empty(50_001), torch.empty(100_000)
        found = []
        for place in range(10):
            for buffer in (first, second):
                buffer.copy_(noise(dist.get_rank(), buffer.numel(), seed=place))
                average_by(hook, group, buffer)
                found.append(buffer.clone())
        return found

    with environment(environ):
        over_hvd = averages(group_with(error_feedback=None))
        over_gloo = averages(dist.new_group(backend="gloo"))
    for ours, theirs in zip(over_hvd, over_gloo, strict=True):
        assert torch.equal(ours, theirs)


@one_rank_a_host
def test_hook_of_several_models() -> None:
    """What was lost of one model's gradients is not added to another's, whatever their sizes."""
    group = dist.new_group(backend="gloo")
    hook = torch_hvd.hooks.compress("int4")
    for width in (256, 256, 200, 256):
        expected = step(model_in(group, torch_hvd.hooks.compress("int4"), width))
        model = model_in(group, hook, width)
        assert torch.equal(step(model), expected)
        for _ in range(3):
            step(model)


@one_rank_a_host
@pytest.mark.parametrize("backend", ["hvd", "gloo"])
def test_hook_after_a_skipped_step(backend: str) -> None:
    """Of a step whose gradients were not finite nothing is added to the next one's."""
    group = dist.new_group(backend=backend)
    hook = torch_hvd.hooks.compress("int4")
    buffers = [torch.empty(100_000) for _ in range(2)]

    def average(seed: int, factor: float = 1.0) -> list[Tensor]:
        for place, buffer in enumerate(buffers):
            buffer.copy_(noise(dist.get_rank(), 100_000, seed=2 * seed + place)).mul_(factor)
            if factor > 1 and place == 1:
                buffer[17] = torch.inf
            average_by(hook, group, buffer)
        return [buffer.clone() for buffer in buffers]

    first, _, third = average(1), average(1), average(1)
    assert not any(map(torch.equal, first, third))  # what those before had lost
    average(2, factor=1e30)
    assert all(map(torch.equal, average(1), first))


def test_hook_alone() -> None:
    """A rank that averages with nobody loses nothing."""
    group = dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)
    buffer = noise(dist.get_rank(), 100_000)
    average_by(torch_hvd.hooks.compress("int8"), group, buffer)
    assert torch.equal(buffer, noise(dist.get_rank(), 100_000))


@one_rank_a_host
def test_hook_under_another_default_dtype() -> None:
    group = dist.new_group(backend="gloo")
    gradient = noise(dist.get_rank(), 5_001)

    def average() -> Tensor:
        buffer = gradient.clone()
        average_by(torch_hvd.hooks.compress("int4"), group, buffer)
        return buffer

    expected = average()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert torch.equal(average(), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_hook_of_another_name() -> None:
    for name in ("zip", "none"):
        with pytest.raises(ValueError, match=f"compression is '{name}'; allowed is fp16 or"):
            torch_hvd.hooks.compress(name)

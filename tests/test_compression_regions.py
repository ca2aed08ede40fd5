"""torch_hvd.compression: it holds inside its block, for the thread that is in it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, get_ident
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import torch_hvd
from calls import together
from compressed import BUDGET, error_of, every_layout, exact, group_with, noise, reduced

pytestmark = every_layout


def test_region() -> None:
    """torch_hvd.compression holds inside its block, nests, and ends with it."""
    rank = dist.get_rank()
    group = group_with(compression="int8")
    plain, coarse = group_with(), group_with(compression="fp8")
    with torch_hvd.compression("none"):
        assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), plain))
        with torch_hvd.compression("fp8"):
            assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), coarse))
        assert torch.equal(reduced(noise(rank), group), reduced(noise(rank), plain))
    again = error_of(reduced(noise(rank), group), exact("SUM", noise))
    assert BUDGET["int8"] / 20 < again <= BUDGET["int8"]
    message = "compression is 'zip'; allowed is none or fp16"
    with pytest.raises(ValueError, match=message), torch_hvd.compression("zip"):
        pass


def test_regions_of_threads() -> None:
    """Each thread has its own, whatever others are in and however they overlap."""
    rank = dist.get_rank()
    plain = reduced(noise(rank), group_with())
    names = ("fp8", "int8")
    expected = {name: reduced(noise(rank), group_with(compression=name)) for name in names}
    groups = {name: group_with() for name in names}
    entered, outside, both = Event(), Event(), Barrier(2)

    def call_inside(name: str) -> None:
        with torch_hvd.compression(name):
            both.wait(20)
            entered.set()
            assert torch.equal(reduced(noise(rank), groups[name]), expected[name])
            assert outside.wait(20)
            if name == "int8":
                both.wait(20)  # the first to come is the first to leave
        if name == "fp8":
            both.wait(20)
        assert torch.equal(reduced(noise(rank), groups[name]), plain)

    def call_outside(group: dist.ProcessGroup) -> None:
        assert entered.wait(20)
        assert torch.equal(reduced(noise(rank), group), plain)
        outside.set()

    calls = {name: partial(call_inside, name) for name in names}
    together({**calls, "outside": partial(call_outside, group_with())})
    assert torch.equal(reduced(noise(rank), None), plain)


def test_region_of_one_rank_alone() -> None:
    """What another thread calls meanwhile is what it is on the other ranks."""
    rank = dist.get_rank()
    group = group_with()
    expected = reduced(noise(rank), group)
    entered, done = Event(), Event()

    def stay_inside() -> None:
        with torch_hvd.compression("int8"):
            entered.set()
            assert done.wait(30)

    with ThreadPoolExecutor(1) as threads:
        inside = threads.submit(stay_inside if rank == 0 else entered.set)
        assert entered.wait(20)
        try:
            assert torch.equal(reduced(noise(rank), group), expected)
        finally:
            done.set()
        inside.result()


class Nested(torch.autograd.Function):
    """Has a backward() of its own in its backward(), `depth` times, and then calls `innermost`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, depth: int, innermost: Callable[[], None]) -> Tensor:
        ctx.depth, ctx.innermost = depth, innermost
        return values.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.depth == 0:
            ctx.innermost()
        else:
            nested(ctx.depth - 1, ctx.innermost)
        return grad, None, None


def nested(depth: int, innermost: Callable[[], None]) -> None:
    with torch.enable_grad():
        values = torch.ones(1, requires_grad=True)
        Nested.apply(values, depth, innermost).backward()


def test_region_on_threads_of_autograd() -> None:
    """It holds for what autograd calls on behalf of this thread, here because it nests too deep."""
    rank = dist.get_rank()
    group = group_with(compression="int8")
    plain = reduced(noise(rank), group_with())
    callers = []

    def call() -> None:
        callers.append(get_ident())
        assert torch.equal(reduced(noise(rank), group), plain)

    with torch_hvd.compression("none"):
        nested(100, call)  # from 60 on it takes other threads
    assert callers != [get_ident()]
    assert not torch.equal(reduced(noise(rank), group), plain)

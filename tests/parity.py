"""Do the same work over the backend under test and over stock gloo, and compare to the bit."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
Work = Callable[[dist.ProcessGroup], T]


@functools.cache
def gloo_group() -> dist.ProcessGroup:
    """Return a stock gloo group of all ranks of this pool."""
    return dist.new_group(backend="gloo")


def default_group() -> dist.ProcessGroup:
    """Return the group of the backend under test, all ranks of this pool."""
    assert dist.group.WORLD is not None
    return dist.group.WORLD


def same_as_gloo(work: Work[T]) -> T:
    """Return what `work` gives on the default group, having found it equal to the bit on gloo.

    `work` is seeded alike both times and returns tensors, numbers or texts in nested lists,
    tuples or dicts. With two ranks the order of a sum cannot matter, so nothing may differ.
    """
    results = []
    for group in (default_group(), gloo_group()):
        torch.manual_seed(20 + dist.get_rank())
        results.append(work(group))
    ours, gloos = results
    require_equal(ours, gloos, "result")
    return ours


def require_equal(ours: object, gloos: object, place: str) -> None:
    """Raise AssertionError naming the place where two nested results differ in any bit."""
    assert type(ours) is type(gloos), f"{place}: {type(ours)} is not gloo's {type(gloos)}"
    if isinstance(ours, dict):
        assert ours.keys() == gloos.keys(), place  # type: ignore[attr-defined]
        for key, value in ours.items():
            require_equal(value, gloos[key], f"{place}[{key!r}]")  # type: ignore[index]
    elif isinstance(ours, (list, tuple)):
        assert len(ours) == len(gloos), place  # type: ignore[arg-type]
        for index, value in enumerate(ours):
            require_equal(value, gloos[index], f"{place}[{index}]")  # type: ignore[index]
    elif isinstance(ours, torch.Tensor):
        torch.testing.assert_close(
            ours, gloos, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{place}: {text}"
        )
    else:
        assert ours == gloos, f"{place}: {ours!r} is not gloo's {gloos!r}"

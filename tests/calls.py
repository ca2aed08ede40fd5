"""Calls that many tests make: is the group well, does a call fail in time, and with what words."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
import torch
import torch.distributed as dist

from rows import filled
from torch_hvd import _shm

SMALL, LARGE = 4, 300_000  # float32 elements, before and past every cut-off for small tensors


Result = TypeVar("Result")
Call = Callable[[dist.ProcessGroup | None, int], object]


def _each(group: dist.ProcessGroup | None, count: int) -> list[torch.Tensor]:
    return [torch.ones(count) for _ in range(dist.get_world_size(group))]


# By the names that errors give them, as rank 0 makes them; it needs rank 1 in each.
CALLS: dict[str, Call] = {
    "all_reduce": lambda group, count: dist.all_reduce(torch.ones(count), group=group),
    "reduce": lambda group, count: dist.reduce(torch.ones(count), dst=0, group=group),
    "broadcast": lambda group, count: dist.broadcast(torch.ones(count), src=1, group=group),
    "all_gather": lambda group, count: dist.all_gather(
        _each(group, count), torch.ones(count), group=group
    ),
    "gather": lambda group, count: dist.gather(
        torch.ones(count), _each(group, count), dst=0, group=group
    ),
    "scatter": lambda group, count: dist.scatter(torch.ones(count), None, src=1, group=group),
    "reduce_scatter": lambda group, count: dist.reduce_scatter(
        torch.ones(count), _each(group, count), group=group
    ),
    "all_to_all": lambda group, count: dist.all_to_all(
        _each(group, count), _each(group, count), group=group
    ),
    "barrier": lambda group, count: dist.barrier(group=group),
    "recv": lambda group, count: dist.recv(torch.ones(count), src=1, group=group),
}


def check_group(group: dist.ProcessGroup | None = None) -> None:
    """The group sums, small and large."""
    size = dist.get_world_size(group)
    for count in (SMALL, LARGE):
        tensor = torch.ones(count)
        dist.all_reduce(tensor, group=group)
        assert filled(tensor, size), tensor


def together(calls: Mapping[str, Callable[[], Result]]) -> dict[str, Result]:
    """The results by name of calls that are made at once, each on a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as threads:
        futures = {name: threads.submit(call) for name, call in calls.items()}
    failed = {name: future.exception() for name, future in futures.items() if future.exception()}
    for name, error in failed.items():
        raise AssertionError(f"{name} (of {list(failed)}): {error}") from error
    return {name: future.result() for name, future in futures.items()}


def said_of(text: str, rank: int) -> Iterator[str]:
    """How an error goes on where it has named the rank, alone or among others."""
    for ranks in re.finditer(r"\branks? (\d+(?:[,-]\d+)*)", text):
        for part in ranks[1].split(","):
            first, _, last = part.partition("-")
            if int(first) <= rank <= int(last or first):
                yield text[ranks.end() :]


def says_called(text: str, rank: int, call: str) -> bool:
    """Whether an error says that the rank called that."""
    return any(said.startswith(f" called {call}") for said in said_of(text, rank))


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Those variables are set meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def cpu_backend(group: dist.ProcessGroup | None = None) -> Any:
    """The backend object behind a group, the default one if None."""
    group = group or dist.group.WORLD
    assert group is not None
    return group._get_backend(torch.device("cpu"))


def ranks_of_hosts() -> list[list[int]]:
    """The ranks of each host; all as on one where the transport makes no difference."""
    size = dist.get_world_size()
    if "+" not in str(cpu_backend().transport):
        return [list(range(size))]
    names = [""] * size
    dist.all_gather_object(names, _shm.host_id(os.environ))
    return [[r for r in range(size) if names[r] == name] for name in dict.fromkeys(names)]


def expect_error(call: Callable[[], object], within: float = 8.0, not_before: float = 0.0) -> str:
    """The text of the DistBackendError that `call` raises, between so many seconds from now."""
    begun = time.monotonic()
    with pytest.raises(dist.DistBackendError) as caught:
        call()
    took = time.monotonic() - begun
    assert not_before <= took < within, f"after {took:.1f} s: {caught.value}"
    return str(caught.value)

"""Several hosts with several ranks: the order of sums, what is encoded, who hears of a death.

The contract suite runs on such groups too; here are the layouts that it does not have. Ranks are on
hosts by name (`HVD_HOST_ID`), so all of them are on this one.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist

import torch_hvd
from calls import SMALL, cpu_backend, expect_error, ranks_of_hosts
from ranks import Lost, RankPool
from rows import reduce_op

MB = 1 << 18  # float32 elements
LAYOUTS = {  # by rank, the name of its host
    "2x2": "aabb",
    "2x2 in turns": "abab",
    "2+1": "aab",
    "1+2": "abb",
    "3+2": "abbaa",
    "2+2+1": "aabcc",
}


def noise(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def host_by_host(tensors: list[torch.Tensor]) -> torch.Tensor:
    """The sum in fp32: of each host in rank order, then of the hosts."""
    return functools.reduce(
        torch.add,
        [
            functools.reduce(torch.add, [tensors[rank].float() for rank in ranks])
            for ranks in ranks_of_hosts()
        ],
    )


def sums_of_all_sizes() -> None:
    """To the bit, so on all ranks alike; also of a part of a tensor, and of many in flight."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in (torch.float32, torch.bfloat16):
        for count in (1, 2, 50_000, MB, 3 * MB + 17, 14 * MB + 1):
            inputs = [noise(peer, count, dtype) for peer in range(size)]
            total = host_by_host(inputs)
            for op, expected in (("SUM", total), ("AVG", total / size)):
                tensors = [inputs[rank].clone() for _ in range(2)]
                works = [dist.all_reduce(t, op=reduce_op(op), async_op=True) for t in tensors]
                for work, tensor in zip(works, tensors, strict=True):
                    work.wait()
                    assert torch.equal(tensor, expected.to(dtype)), (dtype, count, op)


def nearly_cancelled(rank: int, count: int) -> torch.Tensor:
    """What the first rank of a host gives is large, and its last takes that away again."""
    (here,) = [ranks for ranks in ranks_of_hosts() if rank in ranks]
    large = 1000 * noise(100 + here[0], count) * (len(here) > 1)
    signs = {here[-1]: -1, here[0]: 1}
    return signs.get(rank, 0) * large + noise(rank, count)


def compressed_sums() -> None:
    """Encoded are the sums of hosts: what goes on inside one adds nothing to the error."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (17 << 10, 3 * MB + 17):
        inputs = [nearly_cancelled(peer, count) for peer in range(size)]
        exact = host_by_host(inputs).double()
        for op in ("SUM", "AVG"):
            tensor = inputs[rank].clone()
            with torch_hvd.compression("int8"):
                dist.all_reduce(tensor, op=reduce_op(op))
            expected = exact / size if op == "AVG" else exact
            assert 0 < (tensor - expected).norm() <= 0.013 * expected.norm(), (count, op)
            everywhere = [torch.empty_like(tensor) for _ in range(size)]
            dist.all_gather(everywhere, tensor)
            assert all(torch.equal(tensor, other) for other in everywhere)


def fed_back(steps: int) -> None:
    """With error feedback what was lost in one step comes in the next: the mean gets better."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 3 * MB + 17
    exact = host_by_host([noise(peer, count) for peer in range(size)]).double()
    mean = torch.zeros(count, dtype=torch.float64)
    tensor = torch.empty(count)
    errors = []
    for step in range(steps):
        tensor.copy_(noise(rank, count))
        with torch_hvd.compression("int4"):
            dist.all_reduce(tensor)
        mean += (tensor - mean) / (step + 1)
        errors.append(float((mean - exact).norm() / exact.norm()))
    assert errors[-1] < 1.5 * errors[0] / steps, errors


def dropped_with_what_was_not_finite(place: int) -> None:
    """What was lost of a step is, wherever in a tensor of several pieces its sum was infinite."""
    rank, size = dist.get_rank(), dist.get_world_size()
    count = 3 * MB + 17
    options: dict[str, Any] = {"compression": "int8", "compression_min_bytes": 0}
    groups = [
        dist.new_group(pg_options=torch_hvd.Options(**options, error_feedback=on))
        for on in (False, True)
    ]
    tensors = [torch.empty(count) for _ in groups]
    had_feedback = []
    for step in range(5):
        for group, tensor in zip(groups, tensors, strict=True):
            tensor.copy_(noise(10 * step + rank, count))
            if step == 2 and rank == size - 1:
                tensor[place] = torch.inf
            dist.all_reduce(tensor, group=group)
        had_feedback.append(not torch.equal(*tensors))
    # In the second step it was not known yet what the tensor comes after.
    assert had_feedback == [False, False, True, False, True], place


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def complex_sums() -> None:
    """torch passes complex tensors on as real ones, unless it is asked for a group's own call."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    assert group is not None
    for dtype in (torch.complex32, torch.complex64, torch.complex128):
        for count in (5, MB):
            tensor = torch.tensor([1 + 2j * rank], dtype=torch.complex64).to(dtype).repeat(count)
            group.allreduce([tensor]).wait()
            expected = torch.tensor(size + 1j * size * (size - 1), dtype=torch.complex64)
            assert torch.all(tensor.to(torch.complex64) == expected), (dtype, count)


def transport() -> str:
    return str(cpu_backend().transport)


@pytest.mark.parametrize("hosts", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout(hosts: str) -> None:
    with RankPool(len(hosts), hosts=hosts) as pool:
        assert set(pool.run(transport)) == {"shm+tcp"}
        pool.run(sums_of_all_sizes)
        pool.run(complex_sums)
        pool.run(compressed_sums)
        pool.run(fed_back, 8)


@pytest.mark.parametrize("place", [17, 3 * MB + 16])
def test_feedback_after_a_sum_that_is_not_finite(place: int) -> None:
    with RankPool(4, hosts="aabb") as pool:
        pool.run(dropped_with_what_was_not_finite, place)


@pytest.mark.parametrize("hosts", ["abab", "aab"])
def test_without_cross_memory_attach(hosts: str) -> None:
    with RankPool(len(hosts), env={"HVD_CMA": "0"}, hosts=hosts) as pool:
        pool.run(sums_of_all_sizes)


def dies_at_work(victim: int, after: float) -> None:
    """In the midst of large all_reduces; every other rank hears of it, and of whom."""
    if dist.get_rank() == victim:
        threading.Timer(after, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    tensor = torch.ones(4 * MB)
    text = expect_error(lambda: [dist.all_reduce(tensor) for _ in range(10_000)], within=10)
    assert f"rank {victim}" in text, text
    expect_error(lambda: dist.all_reduce(torch.ones(SMALL)), within=1)


@pytest.mark.parametrize("victim", range(4))
def test_killed_rank(victim: int) -> None:
    with RankPool(4, hosts="aabb") as pool:
        results = pool.run(dies_at_work, victim, 0.5 + victim / 10, lost=[victim])
        assert results[victim] == Lost(-signal.SIGKILL)

"""The harness itself: no wrong number and no silent hang gets past it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from benchmarks.contenders import Contender
from benchmarks.gpu import dispatch, kernels
from benchmarks.interleave import FEW, Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.payload import calls_per_block, pattern, two_copies
from benchmarks.peers import parse_peers, why_not
from benchmarks.ranks import Rank, Ranks
from benchmarks.rows import Row
from benchmarks.test_all_reduce import target
from benchmarks.test_ddp import check_agreement
from benchmarks.test_verbs import meet
from rig.hosts import complaint
from torch_hvd import _build


def hang(rank: Rank) -> None:
    """Rank 1 never answers."""
    if rank.rank == 1:
        time.sleep(3600)


def wrong_sum(rank: Rank, *, contributing: int) -> dict[str, Blocks]:
    """Compares the sum of all ranks with what it would be if `contributing` ranks took part."""
    source = pattern(100)
    tensor = torch.empty(100)

    def call(_: int) -> None:
        dist.all_reduce(tensor, group=rank.backend[0])

    def check() -> None:
        assert torch.equal(tensor, contributing * source), "wrong sum"

    trial = Trial(1, lambda: tensor.copy_(source), call, check)
    return interleave(rank, two_copies(source, [tensor]), {"backend": [trial]}, budget_s=0.1)


def unmet(rank: Rank) -> dict[str, Blocks]:
    """Measures barriers that wait for nobody."""
    barrier = dist.barrier

    def leave(group: dist.ProcessGroup) -> None:
        if group is rank.control:
            barrier(group=group)

    with patch.object(dist, "barrier", leave):
        return meet(rank, budget_s=0.1)


def apart(rank: Rank) -> None:
    """Gradients that are the same on all ranks, then others."""
    check_agreement(rank, torch.ones(3))
    check_agreement(rank, torch.ones(3) + rank.rank)


class MeasuredRanks(Ranks):
    """Ranks of which it is known how long everything takes: 20 ms, and 1 ms for two copies."""

    def start(self) -> list[int]:
        return [os.getpid()]

    def run(self, function: Any, *, timeout_s: float, **arguments: object) -> list[Any]:
        blocks = {"backend": [[0.02] * 2], "baseline": [[0.02] * 2], "limit": [[0.001] * 2]}
        return [blocks] * self.size


@pytest.mark.parametrize(
    ("link", "per_host", "hooks", "percent"),
    [(None, 1, False, 5), ("1gbit", 1, False, 75), ("1gbit", 2, False, 5), ("1gbit", 1, True, 5)],
    ids=["memory", "link", "several-on-a-host", "computes"],
)
def test_limits(link: str | None, per_host: int, hooks: bool, percent: float) -> None:
    rows: list[Row] = []
    bench = Bench(MeasuredRanks(4, link=link, per_host=per_host), 0.1, rows.append)
    bench.row(wrong_sum, op="all_reduce", size=1_250_000, bus_factor=1.5, hooks=hooks)
    assert rows[0].percent_of_limit == pytest.approx(percent)  # 1.25 MB at 125 MB/s: 15 of 20 ms


def measured(op: str, baseline: str = "gloo", trips: int = 1) -> Row:
    """The row of two ranks, of 1 MB and with a target of 1."""
    rows: list[Row] = []
    bench = Bench(MeasuredRanks(2, baseline=baseline), 0.1, rows.append)
    bench.row(wrong_sum, op=op, size=1_000_000, target=1.0, trips=trips)
    return rows[0]


def test_a_trip_is_a_part_of_a_call() -> None:
    row = measured("send_recv", trips=2)
    assert row.time.median == row.baseline_time.median == pytest.approx(10_000)
    assert (row.limit_time.median, row.algbw) == pytest.approx((500, 0.1))  # 1 MB in 10 ms


def test_nothing_is_aimed_at_against_horovod() -> None:
    assert measured("all_reduce").target == 1.0
    assert measured("all_reduce", baseline="horovod").target is None


@pytest.mark.parametrize(
    ("baseline", "link", "size", "aim"),
    [
        ("gloo", None, 4, 1 / 8),
        ("gloo", None, 1 << 20, 1 / 5),
        ("hvd:fusion_threshold=0", None, 4, None),
        ("gloo", "1gbit", 4, None),
    ],
)
def test_what_is_aimed_at_is_gloo_on_one_host(
    baseline: str, link: str | None, size: int, aim: float | None
) -> None:
    bench = Bench(MeasuredRanks(2, baseline=baseline, link=link), 0.1, lambda _: None)
    assert target(bench, size) == aim


@pytest.fixture
def two_ranks() -> Iterator[Ranks]:
    ranks = Ranks(2, "gloo", "gloo")
    yield ranks
    ranks.close()


def test_failures_are_named_and_the_next_run_starts_afresh(two_ranks: Ranks) -> None:
    with pytest.raises(RuntimeError, match=r"wrong_sum.*rank \d failed(?s:.*)wrong sum"):
        two_ranks.run(wrong_sum, timeout_s=60, contributing=3)
    with pytest.raises(TimeoutError, match=r"hang.*ranks \[1\] within 3 s"):
        two_ranks.run(hang, timeout_s=3)
    answers = two_ranks.run(wrong_sum, timeout_s=60, contributing=2)
    assert [sorted(answer) for answer in answers] == [["backend", "limit"]] * 2
    assert len(answers[0]["backend"]) == len(answers[1]["limit"]) >= FEW
    with pytest.raises(RuntimeError, match=r"apart(?s:.*)gradients differ between ranks"):
        two_ranks.run(apart, timeout_s=60)
    with pytest.raises(RuntimeError, match=r"unmet(?s:.*)a barrier did not wait for rank \d"):
        two_ranks.run(unmet, timeout_s=60)


def interfaces(rank: Rank) -> list[str]:
    """The network interfaces of the place where a rank runs, once all ranks have met."""
    dist.barrier(group=rank.control)
    return [name for _, name in socket.if_nameindex()]


def test_ranks_on_links_have_hosts_of_their_own() -> None:
    if reason := complaint("1gbit"):
        pytest.skip(f"no hosts here: {reason}")
    ranks = Ranks(2, "gloo", "gloo", link="1gbit")
    try:
        assert ranks.run(interfaces, timeout_s=60) == [["lo", "eth0"]] * 2
    finally:
        ranks.close()


def cores(rank: Rank) -> set[int]:
    """Those that any thread of a rank may run on."""
    threads = os.listdir("/proc/self/task")
    return set().union(*(os.sched_getaffinity(int(thread)) for thread in threads))


def test_ranks_can_be_bound_to_cores() -> None:
    ranks = Ranks(2, "gloo", "gloo", bind=True)
    ours = sorted(os.sched_getaffinity(0))
    try:
        assert ranks.run(cores, timeout_s=60) == [{ours[0]}, {ours[1 % len(ours)]}]
    finally:
        ranks.close()


def test_a_block_has_8_mb() -> None:
    """Of up to 64 calls, 640 tensors, and one call at least."""
    sizes = (4, 128 << 10, 256 << 10, 8 << 20, 64 << 20)
    assert [calls_per_block(size) for size in sizes] == [64, 64, 32, 1, 1]
    assert calls_per_block(100 << 10, tensors=100) == 6


def test_contenders_by_name() -> None:
    contender = Contender.parse("hvd:compression=int8,fusion_threshold=0+fp16_compress_hook")
    assert contender.backend == "hvd"
    assert contender.options == {"compression": "int8", "fusion_threshold": 0}
    assert contender.hook == "fp16_compress_hook"
    assert contender.tolerance == 0.013
    assert Contender.parse("gloo+bf16_compress_hook").tolerance == 0.008
    assert Contender.parse("gloo") == Contender("gloo", {}, "")
    with pytest.raises(ValueError, match=r"'compression' is no OPTION=VALUE"):
        Contender.parse("hvd:compression")


@pytest.mark.parametrize(
    "name", ["gloo", "hvd:transport=shm+gloo,check=1", "hvd:transport=shm+mpi+fp16_compress_hook"]
)
def test_a_contender_has_its_name_again(name: str) -> None:
    assert str(Contender.parse(name)) == name
    assert Contender.parse(name).hook == ("fp16_compress_hook" if "_hook" in name else "")


def test_options_are_added_to_the_name() -> None:
    options = {"transport": "shm+gloo", "compression": "int8"}
    added = Contender.parse("hvd:check=1+fp16_compress_hook").with_options(options)
    assert str(added) == "hvd:check=1,transport=shm+gloo,compression=int8+fp16_compress_hook"
    assert Contender.parse("gloo").with_options({}) == Contender.parse("gloo")
    with pytest.raises(ValueError, match="transport=shm is an option of hvd, not of gloo"):
        Contender.parse("gloo").with_options({"transport": "shm"})
    with pytest.raises(ValueError, match="has a transport of its own, so it cannot be shm"):
        Contender.parse("hvd:transport=gloo").with_options({"transport": "shm"})


def test_peers_by_name() -> None:
    assert parse_peers("mpi,gloo,mpi") == ["mpi", "gloo"]
    with pytest.raises(ValueError, match="'tcp'; allowed is gloo, mpi, horovod, nccl"):
        parse_peers("gloo,tcp")
    assert why_not("gloo") is None and why_not("hvd:transport=gloo") is None
    assert "python -m benchmarks.mpi" in str(why_not("mpi"))


@pytest.mark.parametrize("program", [kernels, dispatch])
def test_without_a_gpu_its_programs_say_so(
    program: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main() == 1
    assert capsys.readouterr().err == "torch finds no GPU here\n"


def test_without_the_kernels_their_program_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(_build, "CUDA", "no: as is said here")
    assert kernels.main() == 1
    assert capsys.readouterr().err == "torch_hvd._cuda is not built: no: as is said here\n"

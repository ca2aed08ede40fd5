"""Whose turn it is, and what of a block is timed: trials that write down when they are called."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby
from typing import Any, cast

import pytest
import torch.distributed as dist

from benchmarks.interleave import WARM_UP_ROUNDS, Blocks, Trial, interleave
from benchmarks.ranks import Rank

CONTROL = cast("dist.ProcessGroup", object())
RANK = Rank(0, 1, CONTROL, backend=(), baseline=(), contenders={})


class Log:
    """Of what happens in a run of this rank alone. A call takes a second, all else 100."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[str, str]] = []
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(dist, "barrier", self.barrier)
        monkeypatch.setattr(dist, "broadcast", lambda *_, **__: None)

    def barrier(self, group: object) -> None:
        assert group is CONTROL
        self.add(self.seen[-1][0], "barrier", 100)

    def add(self, trial: str, what: str, seconds: float) -> None:
        self.seen.append((trial, what))
        self.now += seconds

    def trial(self, name: str, wake: bool = False) -> Trial:
        def does(what: str) -> Callable[[], None]:
            return lambda: self.add(name, what, 100)

        def call(i: int) -> None:
            self.add(name, f"call {i}", 1)

        woken = does("wake") if wake else None
        return Trial(2, does("fill"), call, does("check"), woken)

    def run(self, **arguments: Any) -> dict[str, Blocks]:
        contenders = {name: [self.trial(f"{name}{turn}") for turn in "12"] for name in "AB"}
        return interleave(RANK, self.trial("limit"), contenders, **arguments)

    def turns(self) -> str:
        return " ".join(trial for trial, _ in groupby(self.seen, key=lambda seen: seen[0]))


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    return Log(monkeypatch)


WARM_UP = "limit A1 B1 limit A2 B2"
FOUR_ROUNDS = "limit A1 B1 limit B1 A1 limit A2 B2 limit B2 A2"


def test_contenders_alternate_and_their_groups_take_turns(log: Log) -> None:
    """Nine rounds are eight, a multiple of two for each of two groups."""
    blocks = log.run(budget_s=4, rounds=9)
    assert log.turns() == " ".join([WARM_UP, FOUR_ROUNDS, FOUR_ROUNDS])
    assert {name: len(found) for name, found in blocks.items()} == {"limit": 8, "A": 8, "B": 8}


def test_a_budget_that_is_not_short_warms_up_longer(log: Log) -> None:
    """A round takes more than a second here, so there are the fewest, in fours."""
    log.run(budget_s=4)
    assert log.turns() == " ".join([WARM_UP] * WARM_UP_ROUNDS + [FOUR_ROUNDS])


@pytest.mark.parametrize(("wake", "first"), [(False, ["fill", "call 0"]), (True, ["wake"])])
def test_a_block_times_its_calls_alone(log: Log, wake: bool, first: list[str]) -> None:
    contenders = {"A": [log.trial("A", wake)]}
    blocks = interleave(RANK, log.trial("limit"), contenders, budget_s=4, rounds=2)
    assert blocks["A"] == [[1.0, 1.0]] * 2
    of_a_block = [*first, "fill", "barrier", "call 0", "call 1", "barrier", "check"]
    seen = [what for trial, what in log.seen if trial == "A"]
    assert seen == of_a_block * 3  # one to warm up

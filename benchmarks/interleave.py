"""Time several trials in turns, so that all of them meet the same machine.

Units: a *call* is what one pair of clock readings encloses; a *block* is a few calls of
one trial; a *round* is one block of every trial. Rounds alternate between limit, A, B and
limit, B, A: a steady drift of the machine cancels, and each contender follows the limit as
often as the other contender. A contender is a few trials, one for each of its groups, that
take turns by two rounds. A block is: an untimed call, which brings the trial's code,
threads and sockets back to life after the others ran; fresh input; a barrier in a group
that no trial uses; the timed calls, each on a tensor of its own; a barrier, so that nothing else
takes cores from a rank that is not through; a check of every result.
A wrong result raises, so no number outlives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.distributed as dist

from benchmarks.ranks import Rank

Blocks = list[list[float]]

WARM_UP_ROUNDS = 2  # of two calls or more: DDP settles its buckets in the second
ROUNDS = (12, 240)  # fewest, most
FEW = 6  # fewest rounds where each takes longer than SLOW_S, or the budget is below SHORT_S
SLOW_S, SHORT_S = 1.0, 1.0


@dataclass(frozen=True)
class Trial:
    """One thing to time. `fill` and `check` run outside the clock.

    `call(i)` for i in range(calls) makes one block; `check` raises AssertionError unless
    all of them left the right result. `wake`, if there is one, stands for the untimed call,
    where that would take seconds.
    """

    calls: int
    fill: Callable[[], object]
    call: Callable[[int], None]
    check: Callable[[], None]
    wake: Callable[[], object] | None = None


def interleave(
    rank: Rank,
    limit: Trial,
    contenders: Mapping[str, Sequence[Trial]],
    budget_s: float,
    rounds: int | None = None,
) -> dict[str, Blocks]:
    """Seconds of every timed call on this rank, by trial ("limit" too), round and call.

    Rank 0 chooses the number of rounds that fits into `budget_s` seconds, within ROUNDS, or
    there are `rounds`, if given; either way a multiple of two for each trial of a contender.
    With `rounds` or a budget below SHORT_S one round warms up. Every rank must pass the same
    contenders, of as many trials each, in the same order.
    """
    trials = [
        {"limit": limit, **dict(zip(contenders, turn, strict=True))}
        for turn in zip(*contenders.values(), strict=True)
    ]
    short = budget_s < SHORT_S
    for _ in range(1 if rounds or short else WARM_UP_ROUNDS):
        start = time.perf_counter()
        for trial in chain.from_iterable(turn.values() for turn in trials):
            _block(rank, trial)
        took = (time.perf_counter() - start) / len(trials)
    least, most = (FEW if short else ROUNDS[0], ROUNDS[1]) if took < SLOW_S else (FEW, FEW)
    wanted = rounds or min(max(int(budget_s / took), least), most)
    count = torch.tensor([max(wanted // (2 * len(trials)), 1) * 2 * len(trials)])
    dist.broadcast(count, 0, group=rank.control)

    blocks: dict[str, Blocks] = {name: [] for name in trials[0]}
    for index in range(int(count.item())):
        order = contenders if index % 2 == 0 else reversed([*contenders])
        for name in ("limit", *order):
            trial = trials[index // 2 % len(trials)][name]
            blocks[name].append(_block(rank, trial))
    return blocks


def _block(rank: Rank, trial: Trial) -> list[float]:
    if trial.wake:
        trial.wake()
    else:
        trial.fill()
        trial.call(0)
    trial.fill()
    dist.barrier(group=rank.control)
    times = []
    for i in range(trial.calls):
        start = time.perf_counter()
        trial.call(i)
        times.append(time.perf_counter() - start)
    dist.barrier(group=rank.control)
    trial.check()
    return times

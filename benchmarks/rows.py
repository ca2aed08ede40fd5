"""From samples of all ranks to one row of the table."""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

from benchmarks.interleave import Blocks

RESAMPLES = 200


@dataclass(frozen=True)
class Spread:
    """Microseconds of a call: median, and the 10th and 90th percentile."""

    median: float
    p10: float
    p90: float

    @staticmethod
    def of(blocks: Blocks) -> Spread:
        deciles = statistics.quantiles(chain(*blocks), n=10, method="inclusive")
        return Spread(*(1e6 * seconds for seconds in (deciles[4], deciles[0], deciles[8])))


@dataclass(frozen=True)
class Row:
    """A comparison. Sizes in bytes per rank, bandwidths in GB/s as nccl-tests defines them.

    `ratio` is the median time over the baseline's; `low` and `high` bound it with 95 %
    confidence. `target` is the ratio aimed at in development, if there is one, and not what
    README promises. `foreign` is the CPU time that other processes took meanwhile, in cores: well
    above 0, the row means little. `link` is the rate of the links between ranks, None for loopback;
    `wire_bytes` what each rank of the backend sends over the network in a call, on average, None
    where it does not tell or sends none.
    """

    op: str
    size: int
    world_size: int
    backend: str
    baseline: str
    calls: int
    time: Spread
    baseline_time: Spread
    limit_time: Spread
    algbw: float
    busbw: float
    ratio: float
    low: float
    high: float
    target: float | None
    foreign: float
    link: str | None
    wire_bytes: float | None = None
    dtype: str = "float32"

    @property
    def percent_of_limit(self) -> float:
        return 100 * self.limit_time.median / self.time.median

    @property
    def missed(self) -> bool:
        return self.target is not None and self.ratio > self.target

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"percent_of_limit": self.percent_of_limit}


def compare(
    backend_blocks: Blocks,
    baseline_blocks: Blocks,
    limit_blocks: Blocks,
    *,
    size: int,
    bus_factor: float,
    **facts: Any,
) -> Row:
    """The row of these samples, each that of the slowest rank; `facts` are the row's own fields."""
    time = Spread.of(backend_blocks)
    baseline_time = Spread.of(baseline_blocks)
    low, high = ratio_interval(backend_blocks, baseline_blocks)
    algbw = size / time.median / 1e3
    return Row(
        size=size,
        calls=sum(map(len, backend_blocks)),
        time=time,
        baseline_time=baseline_time,
        limit_time=Spread.of(limit_blocks),
        algbw=algbw,
        busbw=algbw * bus_factor,
        ratio=time.median / baseline_time.median,
        low=low,
        high=high,
        **facts,
    )


def slowest(ranks: Sequence[Blocks]) -> Blocks:
    """The time of each call on the rank where it took longest.

    A job goes on when its last rank does; the figure of one rank would flatter an
    algorithm that lets this rank leave early.
    """
    return [[max(call) for call in zip(*block, strict=True)] for block in zip(*ranks, strict=True)]


def slowest_by_name(ranks: Sequence[Mapping[str, Blocks]]) -> dict[str, Blocks]:
    """`slowest` of each trial, from what `interleave` returned on every rank."""
    return {name: slowest([rank[name] for rank in ranks]) for name in ranks[0]}


def ratio_interval(backend: Blocks, baseline: Blocks) -> tuple[float, float]:
    """95 % interval of the ratio of medians, by drawing rounds with replacement.

    Rounds are drawn whole: calls of one round share the state of the machine.
    """
    draw = random.Random(0)
    ratios = []
    for _ in range(RESAMPLES):
        rounds = draw.choices(range(len(backend)), k=len(backend))
        above = statistics.median(chain(*(backend[i] for i in rounds)))
        below = statistics.median(chain(*(baseline[i] for i in rounds)))
        ratios.append(above / below)
    cuts = statistics.quantiles(ratios, n=40, method="inclusive")
    return cuts[0], cuts[-1]

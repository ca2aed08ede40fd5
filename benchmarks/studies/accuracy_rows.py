"""The results of the accuracy study, summed up over seeds, and what is promised of them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.studies.training import NAIVE, RECIPES

Results = list[dict[str, Any]]

PROMISED = ("fp16", "bf16", "fp8", "int8")
MOST_POINTS = 0.1  # of accuracy, between the means of a promised codec and of fp32, on MNIST
COLLAPSED = 15.0  # per cent; guessing gives some 10
ORDER = ("gloo", "none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4", NAIVE)
NAMES = {"none": "fp32", "gloo": "fp32, stock gloo"}


@dataclass(frozen=True)
class Verdict:
    """A promise and whether the results keep it."""

    promise: str
    found: str
    held: bool

    def __str__(self) -> str:
        return f"{'held' if self.held else 'NOT held'}: {self.promise}; {self.found}"


@dataclass(frozen=True)
class Row:
    """The cells of one model, codec and number of ranks; accuracies in %, by seed."""

    model: str
    codec: str
    ranks: int
    accuracies: dict[int, float]
    loss: float
    seconds: float
    wire_bytes: float | None  # of a rank and a step

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies.values())

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds, 0 for one."""
        several = len(self.accuracies) > 1
        return statistics.stdev(self.accuracies.values()) if several else 0.0

    def points_above(self, other: Row) -> float:
        """Of accuracy: the mean over the seeds that both have; NaN where there is none."""
        seeds = self.accuracies.keys() & other.accuracies.keys()
        if not seeds:
            return math.nan
        return statistics.mean(self.accuracies[s] - other.accuracies[s] for s in seeds)


Rows = Mapping[tuple[str, str, int], Row]


def summary(results: Results) -> Rows:
    """Rows by (model, codec, ranks), in the order of the tables."""
    cells = defaultdict(list)
    for result in results:
        cells[result["model"], result["codec"], result["ranks"]].append(result)

    def place(key: tuple[str, str, int]) -> tuple[int, int, int]:
        model, codec, ranks = key
        return [*RECIPES].index(model), ranks, ORDER.index(codec)

    return {key: _row(*key, cells[key]) for key in sorted(cells, key=place)}


def _row(model: str, codec: str, ranks: int, cells: Results) -> Row:
    return Row(
        model,
        codec,
        ranks,
        accuracies={cell["seed"]: cell["accuracy"] for cell in cells},
        loss=statistics.mean(cell["loss"] for cell in cells),
        seconds=statistics.median(cell["seconds"] for cell in cells),
        wire_bytes=cells[0]["wire_bytes"],
    )


def verdicts(results: Results) -> list[Verdict]:
    """What is promised of training on MNIST, for the cells that are there."""
    rows = summary(results)
    found = []
    for (model, codec, ranks), row in rows.items():
        plain = rows.get((model, "none", ranks))
        if model != "cnn" or plain is None:
            continue
        if codec in PROMISED:
            points = row.points_above(plain)
            promise = f"{codec}, {ranks} ranks: within {MOST_POINTS} points of fp32"
            held = abs(points) <= MOST_POINTS
            found.append(Verdict(promise, f"{points:+.3f} points", held))
        elif codec == NAIVE:
            promise = f"{NAIVE}, {ranks} ranks: collapses"
            held = max(row.accuracies.values()) < COLLAPSED
            found.append(Verdict(promise, f"{row.mean:.2f} %", held))
        elif codec == "gloo" and ranks == 2:
            promise = "2 ranks: fp32 over hvd and over stock gloo are equal to the digit"
            points = row.points_above(plain)
            found.append(Verdict(promise, f"{points:+.3f} points", points == 0))
    return found

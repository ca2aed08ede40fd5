"""A model of all_reduce: time = alpha + bytes / beta for each of its two ways, by transport.

With n ranks, a tensor of S bytes travels (docs/design.md)

- in a *frame*, whole, to every other rank: each sends (n - 1) S, in one stage, or from 16 ranks on
  in several, of fewer messages, in which ranks pass on what they have got;
- *direct*, a slice to its owner and the sum back: each sends 2 (n - 1) / n S, in two stages.

The line is that of Hockney, The communication challenge for MPP, 1994. Both are fitted where they
were measured, with n0 ranks; alpha of the direct way is no less than two of the frame's, for it has
two stages. (Links of the rig let some bytes pass at once after a pause: without that bound, sizes
in the middle would seem to have no alpha at all.) What more ranks do to alpha is not known from
that, so a prediction has two ends: the messages of a stage overlap, and each stage takes alpha; or
each message costs its own time, one after the other. The upper end of the direct way, n - 1
messages in each stage, is also that of a ring of 2 (n - 1) steps.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

FRAME, FRAME_OF_ALL_RANKS = 64 << 10, 256 << 10  # the longest payload: csrc/options.cpp
CUTOFF = 64 << 10  # the default; up to here a header goes ahead of a tensor
MANY, RADIX = 16, 4  # of ranks that pass frames on: csrc/collectives/frame_steps.cpp

Point = tuple[int, float]  # bytes of a tensor, microseconds


@dataclass(frozen=True)
class Line:
    """Microseconds for a number of sent bytes; beta in bytes per microsecond, MB/s."""

    alpha: float
    beta: float  # infinite where bytes cost nothing that shows

    def at(self, sent: float) -> float:
        return self.alpha + sent / self.beta


def fit(points: Sequence[tuple[float, float]], least_alpha: float = 0.0) -> Line:
    """The line through (sent bytes, microseconds) with the least squares of relative errors.

    alpha is not below `least_alpha`, nor 1 / beta below 0. ValueError for fewer than two sizes.
    """
    if len({sent for sent, _ in points}) < 2:
        raise ValueError(f"a line needs two sizes, and there are {len(points)} points")
    weights = [1 / time**2 for _, time in points]
    mean_sent = _mean((sent for sent, _ in points), weights)
    mean_time = _mean((time for _, time in points), weights)
    products = ((sent - mean_sent) * (time - mean_time) for sent, time in points)
    squares = ((sent - mean_sent) ** 2 for sent, _ in points)
    slope = _mean(products, weights) / _mean(squares, weights)
    alpha = mean_time - slope * mean_sent
    if alpha < least_alpha:
        alpha = least_alpha
        products = (sent * (time - alpha) for sent, time in points)
        squares = (sent**2 for sent, _ in points)
        slope = _mean(products, weights) / _mean(squares, weights)
    if slope <= 0:
        return Line(max(mean_time, least_alpha), float("inf"))
    return Line(alpha, 1 / slope)


def _mean(values: Iterable[float], weights: Sequence[float]) -> float:
    pairs = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / sum(weights)


def frame_limit(ranks: int) -> int:
    """Bytes up to which a tensor travels in a frame."""
    return min(FRAME, FRAME_OF_ALL_RANKS // ranks)


def frame_messages(ranks: int) -> list[int]:
    """How many a rank sends in each stage of a frame's way."""
    radix = RADIX if ranks >= MANY else ranks
    messages, distance = [], 1
    while distance < ranks:
        messages.append(len(range(distance, min(ranks, radix * distance), distance)))
        distance *= radix
    return messages


@dataclass(frozen=True)
class Model:
    """Fitted to measurements with `ranks` ranks."""

    ranks: int
    frame: Line
    direct: Line

    def predict(self, size: int, ranks: int, overlap: bool = True) -> float:
        """Microseconds of an all_reduce of `size` bytes; see above for the two ends."""
        growth = 1.0 if overlap else (ranks - 1) / (self.ranks - 1)
        messages = frame_messages(ranks)
        stages = len(messages) if overlap else sum(messages) / (self.ranks - 1)
        header = stages * self.frame.alpha
        if size <= frame_limit(ranks):
            return header + (ranks - 1) * size / self.frame.beta
        direct = growth * self.direct.alpha + direct_bytes(size, ranks) / self.direct.beta
        return header + direct if size <= CUTOFF else direct


def direct_bytes(size: int, ranks: int) -> float:
    return 2 * (ranks - 1) / ranks * size


@dataclass(frozen=True)
class Fitted:
    """A model, the points it was fitted to, and those that were held out to check it."""

    model: Model
    used: list[Point]
    held_out: list[Point]

    @property
    def errors(self) -> list[float]:
        """Relative errors at the points held out, without sign."""
        ranks = self.model.ranks
        return [abs(self.model.predict(size, ranks) / time - 1) for size, time in self.held_out]

    @property
    def median_error(self) -> float:
        return statistics.median(self.errors)


def fit_model(points: Iterable[Point], ranks: int) -> Fitted:
    """Fit each way to every other size, from its smallest on; the sizes between are held out.

    ValueError where there are fewer than three sizes of a way.
    """
    points = sorted(points)
    frames = [point for point in points if point[0] <= frame_limit(ranks)]
    direct = [point for point in points if point[0] > max(frame_limit(ranks), CUTOFF)]
    if min(len(frames), len(direct)) < 3:
        raise ValueError(
            f"three sizes of each way are needed, and there are {len(frames)} of frames "
            f"and {len(direct)} above {CUTOFF} bytes"
        )
    frame = fit([((ranks - 1) * size, time) for size, time in frames[::2]])
    slices = [(direct_bytes(size, ranks), time) for size, time in direct[::2]]
    model = Model(ranks, frame, fit(slices, least_alpha=2 * frame.alpha))
    return Fitted(model, frames[::2] + direct[::2], frames[1::2] + direct[1::2])


def points_of(rows: Iterable[dict[str, Any]]) -> list[Point]:
    """Medians of single, synchronous all_reduces, of the last row for each size."""
    found = {row["size"]: row["time"]["median"] for row in rows if row["op"] == "all_reduce"}
    return sorted(found.items())

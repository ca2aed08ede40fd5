"""docs/accuracy.png; needs matplotlib."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.accuracy_rows import MOST_POINTS, NAMES, Row, Rows
from benchmarks.studies.training import NAIVE, RECIPES

matplotlib.use("Agg")


def draw(rows: Rows, file: Path) -> None:
    """Accuracy on MNIST against the bytes that a rank sends in a step; bars: the spread."""
    figure, (upper, lower) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 5), height_ratios=(4, 1), layout="constrained"
    )
    drawn = [row for row in rows.values() if row.model == "cnn" and row.wire_bytes]
    for ranks, style in ((2, "o"), (4, "s")):
        for axes, naive in ((upper, False), (lower, True)):
            some = [row for row in drawn if row.ranks == ranks and (row.codec == NAIVE) is naive]
            _points(axes, some, style, f"{ranks} ranks")
    middle = statistics.mean(row.mean for row in drawn if row.codec == "none")
    band = (middle - MOST_POINTS, middle + MOST_POINTS)
    upper.axhspan(*band, color="tab:green", alpha=0.1, label=f"fp32 and {MOST_POINTS} points")
    upper.set(ylim=(band[0] - 0.1, band[1] + 0.1), ylabel="test accuracy %")
    upper.set_title(f"MNIST, {RECIPES['cnn'].epochs} epochs: means over seeds, and their spread")
    upper.legend(loc="lower right")
    lower.set(xscale="log", xlabel="KB that a rank sends in a step", ylim=(0, 70))
    ticks = sorted({round((row.wire_bytes or 0) / 1000) for row in drawn if row.codec != NAIVE})
    lower.set_xticks(ticks, [str(tick) for tick in ticks])
    lower.minorticks_off()
    lower.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _points(axes: Any, rows: list[Row], style: str, label: str) -> None:
    """Codecs of as many bytes stand side by side."""
    aside = {"fp16": 0.97, "bf16": 1.03, "fp8": 0.95, "int8": 1.05}
    places = [aside.get(row.codec, 1.0) * (row.wire_bytes or 0) / 1000 for row in rows]
    axes.errorbar(
        places,
        [row.mean for row in rows],
        [row.spread for row in rows],
        fmt=style,
        capsize=3,
        label=label,
    )
    for place, row in zip(places, rows, strict=True):
        axes.annotate(
            NAMES.get(row.codec, row.codec),
            (place, row.mean + row.spread),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            rotation=90,
        )
    axes.grid(alpha=0.3)

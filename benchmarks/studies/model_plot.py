"""docs/studies/model.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.report import in_bytes
from benchmarks.studies.model_report import RANKS, SIZES, Transport

matplotlib.use("Agg")


def draw(transports: list[Transport], file: Path) -> None:
    """The fit of all transports, and for each between hosts its model on more ranks."""
    drawn = [transport for transport in transports if transport.has_links]
    count = 1 + len(drawn)
    figure, pictures = pyplot.subplots(
        1, count, figsize=(5.5 * count, 4.5), layout="constrained", squeeze=False
    )
    _draw_fits(pictures[0][0], transports)
    for axes, transport in zip(pictures[0][1:], drawn, strict=True):
        _draw_model(axes, transport)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_fits(axes: Any, transports: list[Transport]) -> None:
    for index, transport in enumerate(transports):
        fitted, color = transport.fitted, f"C{index}"
        ranks = fitted.model.ranks
        axes.scatter(*zip(*fitted.used, strict=True), color=color, s=18)
        axes.scatter(*zip(*fitted.held_out, strict=True), s=30, edgecolors=color, facecolors="none")
        sizes = [2.0**half for half in range(2, 27)]
        times = [fitted.model.predict(int(size), ranks) for size in sizes]
        axes.plot(sizes, times, color=color, label=f"{transport.name}, {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us")
    axes.set_title("The fit: measured (held out: hollow), and lines")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_model(axes: Any, transport: Transport) -> None:
    measured = {
        transport.fitted.model.ranks: transport.fitted.used + transport.fitted.held_out,
        **transport.beyond,
    }
    for index, size in enumerate(SIZES):
        ends = [transport.ends(size, ranks) for ranks in RANKS]
        low, high = ([end[place] / 1e3 for end in ends] for place in (0, 1))
        axes.fill_between(RANKS, low, high, color=f"C{index}", alpha=0.25)
        axes.plot(RANKS, low, color=f"C{index}", linewidth=1, label=in_bytes(size))
        dots = [
            (ranks, time / 1e3)
            for ranks, points in measured.items()
            for place, time in points
            if place == size
        ]
        if dots:
            axes.scatter(*zip(*dots, strict=True), color=f"C{index}", s=20)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="ranks", ylabel="ms")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
    axes.set_title(f"MODEL, {transport.name}; dots: measured")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

"""docs/studies/fusion.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.fusion_report import CONTENDERS, NAMES, TITLES, Cell

matplotlib.use("Agg")


def draw(cells: list[Cell], file: Path) -> None:
    """A picture for each model: bars by link, from the 10th to the 90th percentile."""
    models = list(dict.fromkeys(cell.model for cell in cells))
    figure, pictures = pyplot.subplots(
        1, len(models), figsize=(4.5 * len(models), 4), layout="constrained", squeeze=False
    )
    for axes, model in zip(pictures[0], models, strict=True):
        some = [cell for cell in cells if cell.model == model]
        for place, name in enumerate(CONTENDERS):
            _bars(axes, some, place, name)
        for index, cell in enumerate(some):
            edges = (index - 0.4, index + 0.4)
            label = "the link alone" if index == 0 else None
            axes.hlines(cell.link_alone_ms, *edges, "black", "dashed", label=label)
        axes.set_xticks(range(len(some)), [cell.link for cell in some])
        axes.set_title(f"{TITLES[model]}, {some[0].ranks} hosts")
        axes.set_ylabel("ms per batch")
        axes.grid(axis="y", alpha=0.3)
    pictures[0][-1].legend()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _bars(axes: Any, cells: list[Cell], place: int, name: str) -> None:
    times = [cell.time(name) for cell in cells]
    heights = [time["median"] / 1e3 for time in times]
    below = [(time["median"] - time["p10"]) / 1e3 for time in times]
    above = [(time["p90"] - time["median"]) / 1e3 for time in times]
    places = [index + 0.27 * (place - 1) for index in range(len(cells))]
    axes.bar(places, heights, 0.25, yerr=(below, above), capsize=3, label=NAMES[name])

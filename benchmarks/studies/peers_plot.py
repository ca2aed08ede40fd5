"""docs/studies/peers.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.peers_report import NAMES, STOCK, Run, case_of, title_of

matplotlib.use("Agg")

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)


def draw(runs: list[Run], file: Path) -> None:
    """A picture for each place: by case, what each contender takes of stock gloo's time."""
    figure, pictures = pyplot.subplots(
        1, len(runs), figsize=(5 * len(runs), 4.5), layout="constrained", squeeze=False, sharey=True
    )
    for axes, run in zip(pictures[0], runs, strict=True):
        names = [name for name in NAMES if name != STOCK]
        for index, name in enumerate(names):
            aside = 0.1 * (index - len(names) / 2)
            points = [
                (place + aside, found[name]["ratio"])
                for place, found in enumerate(run.rows.values())
                if name in found
            ]
            if points:
                axes.plot(*zip(*points, strict=True), "o", color=f"C{index}", label=NAMES[name])
        axes.axhline(1, color="black", linewidth=1)
        axes.set_yscale("log")
        axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
        cases = [case_of(*case) for case in run.rows]
        axes.set_xticks(range(len(cases)), cases, rotation=45, ha="right", fontsize=8)
        axes.set_title(title_of(run.place))
        axes.grid(axis="y", alpha=0.3)
    pictures[0][0].set_ylabel("time over stock gloo's")
    fullest = max(pictures[0], key=lambda axes: len(axes.get_legend_handles_labels()[1]))
    handles, labels = fullest.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

"""docs/studies/steps.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.steps_cells import BETWEEN_HOSTS, NAMES, TITLES, Cell, rate

matplotlib.use("Agg")

PICTURED = ("vgg", "resnet18")  # where there are such; else whatever there is
COLORS = dict(zip(BETWEEN_HOSTS, ("0.35", "0.65", "C0", "C2", "C1", "C4"), strict=True))


def draw(cells: list[Cell], file: Path) -> None:
    """A row of pictures for each model, one for each link, with the larger batch: links differ by
    more than an axis can show at once.
    """
    models = [model for model in PICTURED if any(cell.model == model for cell in cells)]
    models = models or [cells[0].model]
    links = sorted({cell.link for cell in cells}, key=rate)
    bars = [max(len(cell.rows) for cell in cells if cell.link == link) for link in links]
    figure, pictures = pyplot.subplots(
        len(models),
        len(links),
        width_ratios=bars,
        figsize=(max(0.4 * sum(bars) + 2, 7), 2.5 * len(models) + 0.6),
        layout="constrained",
        squeeze=False,
    )
    for row, model in zip(pictures, models, strict=True):
        some = [cell for cell in cells if cell.model == model]
        batch = max(cell.batch for cell in some)
        for axes, link in zip(row, links, strict=True):
            found = [cell for cell in some if (cell.link, cell.batch) == (link, batch)]
            if found:
                _draw_cell(axes, found[0])
            else:
                axes.axis("off")
        row[0].set_ylabel(f"{TITLES[model]}, {batch} inputs\nms per step")
    for axes, link in zip(pictures[0], links, strict=True):
        axes.set_title(link)
    _legend(figure, pictures)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_cell(axes: Any, cell: Cell) -> None:
    for place, (name, row) in enumerate(cell.rows.items()):
        time = {key: value / 1e3 for key, value in row["time"].items()}
        spread = [[time["median"] - time["p10"]], [time["p90"] - time["median"]]]
        axes.bar(place, time["median"], 0.8, color=COLORS[name], label=NAMES[name])
        axes.errorbar(place, time["median"], spread, color="black", capsize=2, linewidth=0.8)
    axes.axhline(cell.alone["median"] / 1e3, color="black", ls="--", label="computing alone")
    axes.set_xlim(-0.7, len(cell.rows) - 0.3)
    axes.set_xticks([])
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.3)


def _legend(figure: Any, pictures: Any) -> None:
    """One for all pictures, below them."""
    known: dict[str, Any] = {}
    for axes in pictures.flat:
        handles, labels = axes.get_legend_handles_labels()
        known |= dict(zip(labels, handles, strict=True))
    figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4)

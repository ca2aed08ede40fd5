"""docs/studies/scaling.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.results import Results
from benchmarks.studies.scaling_report import CONTENDERS, NAMES, TITLES, images_per_s

matplotlib.use("Agg")


def draw(results: Results, file: Path) -> None:
    """A picture for each model: images/s by processes, over each contender and alone."""
    models = list(dict.fromkeys(row["model"] for row in results))
    figure, pictures = pyplot.subplots(
        1, len(models), figsize=(5 * len(models), 4), layout="constrained", squeeze=False
    )
    for axes, model in zip(pictures[0], models, strict=True):
        rows = sorted(
            (row for row in results if row["model"] == model), key=lambda row: row["world_size"]
        )
        alone = {row["world_size"]: images_per_s(row, "limit_time") for row in rows}
        axes.plot([*alone], [*alone.values()], "k--", label="computing alone")
        for name in CONTENDERS:
            some = [row for row in rows if row["backend"] == name]
            if some:
                places = [row["world_size"] for row in some]
                axes.plot(places, [*map(images_per_s, some)], "o-", label=NAMES[name])
        axes.set_xscale("log", base=2)
        axes.set_xticks([*alone], [str(size) for size in alone])
        axes.set(title=TITLES[model], xlabel="processes", ylim=(0, None))
        axes.grid(alpha=0.3)
    pictures[0][0].set_ylabel("images/s, all processes")
    pictures[0][0].legend()
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

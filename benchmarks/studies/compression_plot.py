"""docs/studies/compression.png; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot

from benchmarks.studies.compression_report import CODECS, Cells, name_of

matplotlib.use("Agg")


def draw(cells: Cells, file: Path) -> None:
    """Bars of seconds for each link, a codec's accuracy on each."""
    links = list(dict.fromkeys(link for link, _ in cells))
    codecs = [codec for codec in CODECS if any((link, codec) in cells for link in links)]
    figure, pictures = pyplot.subplots(
        1, len(links), figsize=(4 * len(links), 4), layout="constrained", squeeze=False, sharey=True
    )
    for axes, link in zip(pictures[0], links, strict=True):
        for place, codec in enumerate(codecs):
            if cell := cells.get((link, codec)):
                axes.bar(place, cell.median, 0.8, color=f"C{place}")
                text = f"{cell.accuracy:.1f} %"
                axes.text(place, cell.median, text, ha="center", va="bottom", fontsize=7)
        axes.set_xticks(range(len(codecs)), [name_of(codec) for codec in codecs], rotation=60)
        axes.set_title(link)
        axes.grid(axis="y", alpha=0.3)
    pictures[0][0].set_ylabel("s for a training; above: test accuracy")
    figure.savefig(file, dpi=110)
    pyplot.close(figure)

"""compression.md and compression.png from the results of the compression study."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.studies.results import Results, table, where, write_page
from benchmarks.studies.training import NAIVE, RECIPES

LOOPBACK = "loopback"
STOCK, PLAIN = "gloo", "none"
CODECS = (STOCK, PLAIN, "fp16", "bf16", "fp8", "int8", "int4", NAIVE)
NAMES = {STOCK: "fp32, stock gloo", PLAIN: "fp32, hvd"}

# Of the study that this one follows: accuracy in %, and seconds with 2 and with 4 devices.
ORIGINAL = {
    PLAIN: ("fp32", "98.29, 98.27", 73.8, 51.3),
    "fp16": ("fp16", "98.27, 98.30", 58.9, 38.3),
    "fp8": ("float8, bytes summed as integers", "9.58", 59.4, 37.8),
}

HEAD = """\
# Compression: accuracy and time of a training

Written by

    python -m benchmarks.studies.compression DIR --report docs/studies    # MNIST's IDX files; root

A small CNN on MNIST, {epochs} epochs of {steps} steps, a batch of {batch} over {ranks} ranks, by
DistributedDataParallel: a gradient of {kilobytes:.0f} KB in each step. Each rank is on a host of
its own, a network namespace that sends at the rate of its link at most; *loopback* has no such
limit, and TCP all the same, so that codecs are at work. A training runs from its first step to its
last, alone on the machine; seconds are medians over the seeds, accuracies means. *KB* is what hvd
counts on a rank in a step. {naive} is how not to do it: gradients cast to e4m3, whose bytes the
transport adds up as integers."""

COLUMNS = ("link", "gradients", "accuracy %", "s", "by seed", "of stock gloo's", "KB")

FOLLOWED = """\
## The original figures

Of a CNN on MNIST, with 2 and 4 devices; in brackets the part of fp32's time. Ours are with {ranks}
ranks, of hvd's fp32; its float8 is our *{naive}* in accuracy, and our fp8 is what it was meant to
be."""


@dataclass(frozen=True)
class Cell:
    """The trainings of one codec on one link."""

    link: str
    codec: str
    accuracy: float
    seconds: tuple[float, ...]
    wire_bytes: float | None

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


Cells = dict[tuple[str, str], Cell]  # by link and codec


def cells_of(results: Results) -> Cells:
    """In the order of the links' first results, and of CODECS."""
    links = list(dict.fromkeys(result["link"] for result in results))
    found: Cells = {}
    for link in links:
        for codec in CODECS:
            if some := [r for r in results if (r["link"], r["codec"]) == (link, codec)]:
                found[link, codec] = Cell(
                    link,
                    codec,
                    statistics.mean(result["accuracy"] for result in some),
                    tuple(result["seconds"] for result in some),
                    some[0]["wire_bytes"],
                )
    return found


def write(results: Results, folder: Path) -> None:
    """Write compression.md and compression.png into `folder`."""
    from benchmarks.studies.compression_plot import draw

    cells, recipe, one = cells_of(results), RECIPES["cnn"], results[0]
    parts = [
        HEAD.format(
            epochs=recipe.epochs,
            steps=one["steps"] // recipe.epochs,
            batch=recipe.batch,
            ranks=one["ranks"],
            kilobytes=one["gradient_bytes"] / 1e3,
            naive=NAIVE.capitalize(),
        ),
        table(COLUMNS, [_line(cells, cell) for cell in cells.values()], text_columns=2),
        "![seconds of a training](compression.png)",
        "## What we see",
        "\n".join(f"- {line}" for line in _seen(cells)),
        FOLLOWED.format(ranks=one["ranks"], naive=NAIVE),
        _original(cells),
        where(results),
    ]
    write_page(folder, "compression", parts)
    draw(cells, folder / "compression.png")


def name_of(codec: str) -> str:
    return NAMES.get(codec, codec)


def _line(cells: Cells, cell: Cell) -> list[str]:
    stock = cells.get((cell.link, STOCK))
    return [
        cell.link,
        name_of(cell.codec),
        f"{cell.accuracy:.2f}",
        f"{cell.median:.1f}",
        ", ".join(f"{seconds:.1f}" for seconds in cell.seconds),
        f"{cell.median / stock.median:.2f}" if stock else "",
        f"{cell.wire_bytes / 1e3:.1f}" if cell.wire_bytes else "",
    ]


def _seen(cells: Cells) -> Iterator[str]:
    for link in dict.fromkeys(link for link, _ in cells):
        right = [cell for cell in cells.values() if cell.link == link and cell.codec != NAIVE]
        fastest = min(right, key=lambda cell: cell.median)
        slowest = max(right, key=lambda cell: cell.median)
        least, most = (f(cell.accuracy for cell in right) for f in (min, max))
        line = (
            f"{link}: from {fastest.median:.1f} s ({name_of(fastest.codec)}) to "
            f"{slowest.median:.1f} s ({name_of(slowest.codec)}), with {least:.2f} to {most:.2f} %"
        )
        naive = cells.get((link, NAIVE))
        yield line + (f"; {NAIVE} {naive.median:.1f} s and {naive.accuracy:.2f} %" if naive else "")


def _original(cells: Cells) -> str:
    links = [link for link, codec in cells if codec == PLAIN]
    lines = []
    for codec, (title, accuracy, *seconds) in ORIGINAL.items():
        theirs = [
            f"{value} ({value / plain:.2f})"
            for value, plain in zip(seconds, ORIGINAL[PLAIN][2:], strict=True)
        ]
        ours = [
            f"{cell.median:.1f} ({cell.median / cells[link, PLAIN].median:.2f})"
            if (cell := cells.get((link, codec)))
            else ""
            for link in links
        ]
        lines.append([title, accuracy, *theirs, *ours])
    head = ("codec", "accuracy %", "2 devices, s", "4 devices, s")
    return table([*head, *(f"ours, {link}, s" for link in links)], lines)

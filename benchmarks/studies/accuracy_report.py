"""docs/accuracy.md and docs/accuracy.png from the results of the accuracy study."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from benchmarks.studies.accuracy_rows import NAMES, Results, Row, summary, verdicts
from benchmarks.studies.training import RECIPES, Recipe

# Accuracy of the study that this one follows, by codec and number of ranks.
ORIGINAL = {
    ("none", 1): "98.35",
    ("none", 2): "98.29",
    ("none", 4): "98.27",
    ("fp16", 2): "98.27",
    ("fp16", 4): "98.30",
}


def write(results: Results, folder: Path) -> None:
    """Write accuracy.md and accuracy.png into `folder`."""
    from benchmarks.studies.accuracy_plot import draw

    rows = summary(results)
    draw(rows, folder / "accuracy.png")
    machine = results[-1]["machine"]
    parts = [
        HEAD.format(recipe=_describe(RECIPES["cnn"])),
        _table(row for row in rows.values() if row.model == "cnn"),
        "![accuracy against bytes on the wire](accuracy.png)",
        "\n".join(f"- {verdict}" for verdict in verdicts(results)),
    ]
    others = [model for model in RECIPES if model != "cnn" and (model, "none", 2) in rows]
    if others:
        parts.append(OTHERS)
    for model in others:
        parts += [
            f"### {TITLES[model]}\n\n{_describe(RECIPES[model])}",
            _table(row for row in rows.values() if row.model == model),
        ]
    parts.append(TAIL.format(cpu=machine["cpu"], cores=machine["cores"], torch=machine["torch"]))
    (folder / "accuracy.md").write_text("\n\n".join(parts) + "\n")


HEAD = """\
# Accuracy with compressed gradients

Written by `python -m benchmarks.studies.accuracy DIR --report docs`; do not edit.

## MNIST

A small CNN on the real data. {recipe}
The batch is divided among the ranks, so their number changes
no recipe; a seed gives the same initial weights and order of images to all. *fp32* is hvd without
compression, *naive fp8* what an older study called float8 and found to give 9.58 %: each gradient
is cast to e4m3, and the transport adds up the bytes as integers. *points* is the mean difference to
fp32 with as many ranks and the same seeds, *KB* what a rank sends in a step. After every training
the ranks were found to have the same parameters, to the bit. (Bytes of up to 64 KB, as naive fp8's,
go whole to every rank, so with four ranks they are no fewer.)"""

OTHERS = """\
## Other models

scikit-learn's 1797 digits, 540 of them for testing, so that one image is 0.19 points; means over
seeds as above. Nothing is promised here but what the tables show: with so few images the difference
of two seeds in fp32 is as large as any between codecs, and the finest codec is not the nearest to
fp32. ResNet-18 has twice the seeds because after three of them fp16 was 0.3 points below fp32."""

TITLES = {
    "resnet18": "ResNet-18, 16 channels wide, on images of 32x32",
    "lstm": "An LSTM of two layers, on rows of pixels as steps",
    "transformer": "A transformer encoder of two layers, on rows of pixels as tokens",
}

TAIL = """\
## Where

{cpu}, torch {torch}, over loopback; {cores} cores for all ranks and whatever else ran, so the
seconds mean little: `pytest benchmarks/test_compression.py --link 1gbit` measures speed."""


def _describe(recipe: Recipe) -> str:
    optimizer = "Adam" if recipe.optimizer.__name__ == "Adam" else "SGD with momentum 0.9"
    return (
        f"{recipe.epochs} epochs, a batch of {recipe.batch} over all ranks, {optimizer}, "
        f"a one-cycle learning rate of {recipe.rate:g} at most."
    )


def _table(rows: Iterable[Row]) -> str:
    rows = list(rows)
    plain = {row.ranks: row for row in rows if row.codec == "none"}
    original = any(row.model == "cnn" for row in rows)
    lines = ["| ranks | gradients | accuracy % | spread | seeds | points | loss | KB | s |"]
    lines.append("|--:|---|--:|--:|--:|--:|--:|--:|--:|")
    if original:
        lines = [lines[0] + " original study % |", lines[1] + "--:|"]
    for row in rows:
        serial = row.ranks == 1
        cells = [
            "serial" if serial else str(row.ranks),
            NAMES.get(row.codec, row.codec),
            f"{row.mean:.2f}",
            f"{row.spread:.2f}" if len(row.accuracies) > 1 else "",
            str(len(row.accuracies)),
            "" if row.codec == "none" else f"{row.points_above(plain[row.ranks]):+.2f}",
            f"{row.loss:.4f}",
            f"{row.wire_bytes / 1000:.1f}" if row.wire_bytes else "",
            f"{row.seconds:.0f}",
        ]
        if original:
            cells.append(ORIGINAL.get((row.codec, row.ranks), ""))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)

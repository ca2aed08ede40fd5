"""steps.md and steps.png from the results of the study of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.studies.results import Results, milliseconds, table, where, write_page
from benchmarks.studies.steps_cells import HVD, NAMES, ONE_HOST, TITLES, Cell, cells_of, rate

ABOUT = {
    "cnn": "Two convolutions and two linear layers, images of 28x28",
    "lstm": "Two layers of 256, sequences of 16 steps",
    "transformer": "An encoder of two layers, 256 wide, sequences of 8",
    "resnet18": "As wide as the original, images of 32x32",
    "vgg": "VGG-16 with narrower layers, images of 32x32; two thirds of it are one tensor",
}

# Seconds of a training on MNIST of the study that this one follows, with 2 and 4 devices.
ORIGINAL = {
    HVD: ("fp32", 73.8, 51.3),
    "hvd:compression=fp16": ("fp16", 58.9, 38.3),
    "hvd:compression=fp8": ("float8", 59.4, 37.8),
}

HEAD = """\
# Steps

What does a step of training cost when gradients travel, and what does a codec save? Written by

    python -m benchmarks.studies.steps --report docs/studies    # as root

A step is forward, backward and SGD, by DistributedDataParallel, on {ranks} ranks with a thread
each. Each is on a host of its own, a network namespace that sends at the rate of its link at most,
or all are on *one host* without links, where hvd takes shared memory and compresses nothing.
*computing alone* is a step of the bare model, on all ranks at once; *communication* is what a step
takes beyond that, and about 0 may come out below. All take turns in one run, and the gradients of
every block are checked, those of codecs to thrice the error that they leave in numbers of a normal
distribution. *KB sent* is what hvd counts on a rank in a step, with the batch statistics of
ResNet-18, which DDP broadcasts. The hosts share the cores of one machine: who encodes, or carries
bytes between hosts, takes time from computing."""

COLUMNS = (
    "link",
    "inputs of a rank",
    "over",
    "ms per step",
    "p10-p90",
    "computing alone ms",
    "communication %",
    "KB sent",
    "to stock gloo, 95 %",
)

FOLLOWED = """\
## The original figures

Seconds of a whole training of a CNN on MNIST, by codec and number of devices, and what part of
fp32's they are; ours are ms of a step of our CNN with {batch} inputs on each of {ranks} ranks. Its
float8 reached an accuracy of 9.58 %; ours reaches that of fp32 (docs/accuracy.md)."""


def write(results: Results, folder: Path) -> None:
    """Write steps.md and steps.png into `folder`."""
    from benchmarks.studies.steps_plot import draw

    cells = cells_of(results)
    parts = [
        HEAD.format(ranks=cells[0].ranks),
        "![milliseconds per step](steps.png)",
        "## What we see",
        "\n".join(f"- {line}" for line in seen(cells)),
    ]
    for model in TITLES:
        if some := [cell for cell in cells if cell.model == model]:
            lines = [line for cell in some for line in cell.lines()]
            size = f"{some[0].bytes / 1e6:.3g} MB"
            parts += [f"## {TITLES[model]}", f"{ABOUT[model]}. Gradients of {size}."]
            parts.append(table(COLUMNS, lines, text_columns=3))
    parts += _original(cells)
    parts.append(where(results))
    write_page(folder, "steps", parts)
    draw(cells, folder / "steps.png")


def at(link: str) -> str:
    return f"on {link}" if link == ONE_HOST else f"at {link}"


def seen(cells: list[Cell]) -> Iterator[str]:
    """In words: by link, by model, and where hvd is slower than stock gloo."""
    for link in sorted({cell.link for cell in cells}, key=rate):
        yield _on_link(link, [cell for cell in cells if cell.link == link])
    for model in dict.fromkeys(cell.model for cell in cells):
        if line := _of_model(model, [cell for cell in cells if cell.model == model]):
            yield line
    slower = [
        f"{NAMES[name]} {at(cell.link)}, {cell}: {cell.ratio(name)}"
        for cell in cells
        for name in cell.rows
        if name.startswith(HVD) and cell.verdict(name) == "slower"
    ]
    if slower:
        yield "Slower than stock gloo beyond the interval: " + "; ".join(slower)
    else:
        yield "Nothing of hvd is slower than stock gloo beyond the interval"


def _on_link(link: str, cells: list[Cell]) -> str:
    shares = sorted(cell.communication() for cell in cells)
    plain = Counter(cell.verdict(HVD) for cell in cells)
    first = Counter(cell.fastest for cell in cells).most_common()
    best, name = min(
        ((cell, name) for cell in cells for name in cell.rows if name.startswith(HVD)),
        key=lambda pair: pair[0].rows[pair[1]]["ratio"],
    )
    ahead = ", ".join(f"{NAMES[fastest]} in {count}" for fastest, count in first)
    return (
        f"{link}: communication takes {shares[0]:.0f} to {shares[-1]:.0f} % of a step over stock "
        f"gloo. hvd without compression is faster in {plain['faster']} of {len(cells)} cells, "
        f"slower in {plain['slower']}, neither in {plain['']}. The fastest is {ahead}; at best "
        f"{NAMES[name]} takes {best.ratio(name)} of gloo's time ({best})"
    )


def _of_model(model: str, cells: list[Cell]) -> str | None:
    """How the size of the batch changes communication's share."""
    parts = []
    for link in dict.fromkeys(cell.link for cell in cells):
        few, *_, many = sorted((c for c in cells if c.link == link), key=lambda c: c.batch) * 2
        if few.batch < many.batch:
            shares = f"{few.communication():.0f} % to {many.communication():.0f} %"
            parts.append((f"from {few.batch} to {many.batch} inputs", f"{shares} {at(link)}"))
    if not parts:
        return None
    return f"{TITLES[model]}, {parts[0][0]}: communication over stock gloo goes from " + (
        ", from ".join(share for _, share in parts)
    )


def _original(cells: list[Cell]) -> list[str]:
    """The CNN by codec, beside the original; nothing where it was not measured."""
    batch = max((cell.batch for cell in cells if cell.model == "cnn"), default=None)
    ours = [cell for cell in cells if (cell.model, cell.batch) == ("cnn", batch)]
    ours = [cell for cell in ours if cell.link != ONE_HOST]
    if not ours:
        return []
    lines = []
    for name, (title, *seconds) in ORIGINAL.items():
        theirs = [
            f"{value} ({value / fp32:.2f})"
            for value, fp32 in zip(seconds, ORIGINAL[HVD][1:], strict=True)
        ]
        steps = [
            f"{milliseconds(cell.rows[name]['time'])} ({cell.median(name) / cell.median(HVD):.2f})"
            for cell in ours
        ]
        lines.append([title, *theirs, *steps])
    head = ["codec", "2 devices, s", "4 devices, s", *(f"ours at {cell.link}, ms" for cell in ours)]
    return [FOLLOWED.format(batch=batch, ranks=ours[0].ranks), table(head, lines)]

"""scaling.md and scaling.png from the results of the scaling study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.studies.results import (
    Results,
    milliseconds,
    p10_p90,
    ratio,
    table,
    where,
    write_page,
)

CONTENDERS = ("hvd", "hvd:transport=tcp", "hvd:transport=mpi", STOCK := "gloo")
SERIAL = "one process"
NAMES = {
    "hvd": "hvd, auto",
    "hvd:transport=tcp": "hvd, tcp",
    "hvd:transport=mpi": "hvd, mpi",
    STOCK: "stock gloo",
    SERIAL: SERIAL,
}
TITLES = {
    "cnn": "A CNN on images of MNIST's shape",
    "resnet18": "ResNet-18 on images of 32x32",
    "resnet50": "ResNet-50 on images of 96x96",
}

# Of the study that this one follows, whose processes had a device each: speed-up by processes.
ORIGINAL = {
    "MNIST, GPUs, MPI (530.97, 882, 1084, 1227 images/s)": {1: 1.0, 2: 1.66, 3: 2.04, 4: 2.31},
    "ResNet-50": {2: 1.72, 4: 3.15, 8: 3.04},
    "ResNet-18": {2: 1.55, 4: 2.34, 8: 2.16},
}

HEAD = """\
# Scaling

What does a step of training cost when more processes share it? Written by

    python -m benchmarks.studies.scaling --mnist DIR --report docs/studies

A step is forward, backward and SGD, by DistributedDataParallel; a process always takes as many
images. All processes share one machine and its cores, and the number of threads is fixed as far as
each process needs one: with nothing to say to each other they would do about as many images/s as
one. *computing alone* is the same step without DistributedDataParallel, on all processes at once,
in turns with the contenders in one run; *efficiency* is its time over that of the step, and
*communication* what is missing to 100 %. *auto* takes shared memory here. The gradients of every
block are checked."""

EPOCHS = 2  # of a training for its accuracy
TRAINED = f"""\
*accuracy* is what a training of its own reaches, {EPOCHS} epochs with a batch of 240 over all,
on the images that are for testing; [accuracy.md](../accuracy.md) has longer ones, with codecs."""

COLUMNS = (
    "processes x threads",
    "over",
    "ms per step",
    "p10-p90",
    "images/s",
    "speed-up",
    "efficiency %",
    "communication %",
    "to stock gloo, 95 %",
)

FOLLOWED = """\
## The original figures

There each process had a device of its own, so the most is the number of processes, and efficiency
is speed-up over that; here the most is some 1, for the cores are the same, and efficiency is that
of the tables above, over hvd."""


def write(results: Results, folder: Path) -> None:
    """Write scaling.md and scaling.png into `folder`."""
    from benchmarks.studies.scaling_plot import draw

    parts = [HEAD]
    results = sorted(results, key=lambda row: ([*TITLES].index(row["model"]), row["world_size"]))
    over_hvd = [row for row in results if row["backend"] == "hvd"]
    models = list(dict.fromkeys(row["model"] for row in results))
    for model in models:
        rows = [row for row in results if row["model"] == model]
        parts += [f"## {TITLES[model]}", _describe(rows[0]), *_tables(rows)]
    parts += [
        "![images per second](scaling.png)",
        "## What we see",
        "\n".join(_seen(model, [r for r in results if r["model"] == model]) for model in models),
        FOLLOWED,
        _original(results, over_hvd),
        where(results),
    ]
    write_page(folder, "scaling", parts)
    draw(results, folder / "scaling.png")


def images_per_s(row: dict[str, Any], time: str = "time") -> float:
    """Over all processes; `time`: "time" of the step, or "limit_time", computing alone."""
    return 1e6 * row["images"] / row[time]["median"]


def _describe(row: dict[str, Any]) -> str:
    each = row["images"] // row["world_size"]
    return (
        f"{each} images ({row['data']}) for each process, gradients of {row['size'] / 1e6:.1f} MB."
    )


def _tables(rows: Results) -> list[str]:
    """Of one model: of its steps, and of its accuracy, if it was trained."""
    parts = [table(COLUMNS, _lines(rows), 2)]
    reached = {
        (NAMES[row["backend"]], row["world_size"]): f"{row['accuracy']:.2f}"
        for row in rows
        if row.get("accuracy") is not None
    }
    if reached:
        sizes = sorted({size for _, size in reached})
        lines = [
            [name, *(reached.get((name, size), "") for size in sizes)]
            for name in dict.fromkeys(name for name, _ in reached)
        ]
        parts += [TRAINED, table(("accuracy % by processes", *map(str, sizes)), lines)]
    return parts


def _lines(rows: Results) -> list[list[str]]:
    """`rows` of one model, by world size."""
    one = next((images_per_s(row) for row in rows if row["world_size"] == 1), None)
    lines, sizes = [], set()
    for row in rows:
        if row["world_size"] not in sizes and row["world_size"] > 1:
            lines.append(_line(row, "computing alone", "limit_time", one))
        sizes.add(row["world_size"])
        lines.append(_line(row, NAMES[row["backend"]], "time", one))
    return lines


def _line(row: dict[str, Any], name: str, time: str, one: float | None) -> list[str]:
    rate = images_per_s(row, time)
    cells = [
        f"{row['world_size']} x {row['threads']}",
        name,
        milliseconds(row[time]),
        p10_p90(row[time]),
        f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}",
        f"{rate / one:.2f}" if one else "",
    ]
    if time == "limit_time" or row["world_size"] == 1:
        return [*cells, "", "", ""]
    percent = row["percent_of_limit"]
    stock = row["backend"] == row["baseline"]
    return [*cells, f"{percent:.1f}", f"{100 - percent:.1f}", "" if stock else ratio(row)]


def _seen(model: str, rows: Results) -> str:
    """Of one model: communication's share over hvd, and who is slower than stock gloo."""
    shares = [
        (row["world_size"], 100 - row["percent_of_limit"], 100 * (1 - _alone(row)))
        for row in rows
        if row["backend"] == "hvd"
    ]
    each = ", ".join(
        f"{ours:.0f} % with {size} processes ({stock:.0f} %)" for size, ours, stock in shares
    )
    slower = [
        f"{NAMES[row['backend']]} with {row['world_size']}: {ratio(row)}"
        for row in rows
        if row["low"] > 1
    ]
    line = f"- {TITLES[model]}: communication takes {each} of a step over hvd (over stock gloo)"
    return line + (f". Slower than stock gloo: {'; '.join(slower)}" if slower else "")


def _alone(row: dict[str, Any]) -> float:
    """The part of a step over stock gloo that computing alone takes."""
    return float(row["limit_time"]["median"] / row["baseline_time"]["median"])


def _original(results: Results, over_hvd: Results) -> str:
    """Speed-up and efficiency by number of processes: theirs, and ours over hvd."""
    lines = {
        name: {size: f"{up:.2f} ({up / size:.0%})" for size, up in found.items()}
        for name, found in ORIGINAL.items()
    }
    one = {row["model"]: images_per_s(row) for row in results if row["world_size"] == 1}
    for row in over_hvd:
        if first := one.get(row["model"]):
            ours = lines.setdefault(f"ours: {TITLES[row['model']]}", {1: "1.00 (100%)"})
            ours[row["world_size"]] = (
                f"{images_per_s(row) / first:.2f} ({row['percent_of_limit']:.0f}%)"
            )
    sizes = sorted({size for found in lines.values() for size in found})
    return table(
        ("speed-up (efficiency)", *map(str, sizes)),
        [[name, *(found.get(size, "") for size in sizes)] for name, found in lines.items()],
    )

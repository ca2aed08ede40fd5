"""fusion.md and fusion.png from the results of the fusion study."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.links import link_bytes_per_s
from benchmarks.studies.results import (
    Results,
    milliseconds,
    p10_p90,
    ratio,
    table,
    where,
    write_page,
)

FUSED, UNFUSED, STOCK = CONTENDERS = ("hvd", "hvd:fusion_threshold=0", "gloo")
NAMES = {FUSED: "hvd, fused", UNFUSED: "hvd, not fused", STOCK: "stock gloo"}
TITLES = {"resnet50": "ResNet-50", "vgg16": "VGG-16", "cnn": "MNIST CNN"}

# Milliseconds per batch, fused and not, of the study that this one follows: 4 nodes, 16 Gbit/s.
ORIGINAL = {"resnet50": (299.5, 352.5), "vgg16": (786.8, 793.7)}

HEAD = """\
# Fusion

Does it pay to put small gradients together? Written by

    python -m benchmarks.studies.fusion --report docs/studies    # as root

Each rank is on a host of its own, a network namespace that sends at the rate of its link at most. A
batch is an asynchronous all_reduce of every gradient, the last parameter's first, as Horovod
sends them, and a wait for all. Nothing is computed meanwhile, so this is communication alone; all
ranks share the cores of one machine. The contenders take turns in one run, and every sum is
checked. *responses* are the pieces in which hvd moves a batch. *link alone* is what a rank must
send, 2 (n - 1) / n of the gradients, at the link's rate."""

COLUMNS = (
    "model",
    "link",
    "hosts",
    "link alone ms",
    "hvd fused ms",
    "p10-p90",
    "not fused ms",
    "p10-p90",
    "gloo ms",
    "p10-p90",
    "fused / not, 95 %",
    "fused / gloo, 95 %",
    "responses",
    "not fused",
)

RESPONSES = """\
## Responses

What goes out at once on rank 0, a frame of small gradients or large ones that are waited for
together, by size; means of a batch. Several are under way at a time, and the ms are of each, so
they may add up to more than a batch takes."""

RESPONSE_COLUMNS = (
    "model",
    "link",
    "",
    "size",
    "responses",
    "gradients each",
    "average MB",
    "Mbit/s",
    "ms each",
)

FOLLOWED = """\
## The original figures

Milliseconds per batch, computing included, on 4 nodes at 16 Gbit/s. Ours are of communication
alone: compare what fusion changes, not the times."""


class Cell:
    """What was measured of one model on one link."""

    def __init__(self, rows: Results) -> None:
        first = rows[0]
        self.model, self.link = str(first["model"]), str(first["link"])
        self.ranks, self.bytes = int(first["world_size"]), int(first["size"])
        self.responses: dict[str, Results] = first["responses"]
        self.rows = {(row["backend"], row["baseline"]): row for row in rows}

    @property
    def title(self) -> str:
        return TITLES[self.model]

    @property
    def link_alone_ms(self) -> float:
        sent = 2 * (self.ranks - 1) / self.ranks * self.bytes
        return 1e3 * sent / link_bytes_per_s(self.link)

    def time(self, name: str) -> dict[str, float]:
        """Microseconds of a contender: median, p10 and p90."""
        row = next(row for pair, row in self.rows.items() if name in pair)
        return row["time" if row["backend"] == name else "baseline_time"]

    def ratio(self, backend: str, baseline: str) -> str:
        return ratio(self.rows[backend, baseline])

    def columns(self) -> list[str]:
        cells = [self.title, self.link, f"{self.ranks}", f"{self.link_alone_ms:.0f}"]
        for name in CONTENDERS:
            time = self.time(name)
            cells.append(milliseconds(time))
            cells.append(p10_p90(time))
        cells += [self.ratio(FUSED, UNFUSED), self.ratio(FUSED, STOCK)]
        counts = [sum(bucket["count"] for bucket in self.responses[name]) for name in NAMES]
        return [*cells, *(f"{count:.0f}" for count in counts[:2])]

    def buckets(self) -> Iterator[list[str]]:
        """Lines of the table of responses."""
        for name in (FUSED, UNFUSED):
            for bucket in self.responses[name]:
                count, seconds = bucket["count"], bucket["seconds"]
                yield [
                    self.title,
                    self.link,
                    NAMES[name],
                    _upto(bucket["upto"]),
                    f"{count:.1f}",
                    f"{bucket['tensors'] / count:.1f}",
                    f"{bucket['bytes'] / count / 1e6:.3g}",
                    f"{bucket['bytes'] / seconds * 8e-6:.0f}",
                    f"{1e3 * seconds / count:.2f}",
                ]

    def seen(self) -> str:
        """In words, whether fusion makes a difference that the interval does not explain."""
        row = self.rows[FUSED, UNFUSED]
        saved = 100 * (1 - row["ratio"])
        bounds = f"95 %: {100 * (1 - row['high']):.1f} to {100 * (1 - row['low']):.1f}"
        verdict = "no difference beyond the interval" if row["low"] <= 1 <= row["high"] else "clear"
        return f"- {self.title}, {self.link}: fusion saves {saved:.1f} % ({bounds}); {verdict}"


def write(results: Results, folder: Path) -> None:
    """Write fusion.md and fusion.png into `folder`."""
    from benchmarks.studies.fusion_plot import draw

    keys = dict.fromkeys((row["model"], row["link"], row["world_size"]) for row in results)
    cells = [
        Cell([row for row in results if (row["model"], row["link"], row["world_size"]) == key])
        for key in keys
    ]
    write_page(
        folder,
        "fusion",
        [
            HEAD,
            table(COLUMNS, [cell.columns() for cell in cells], text_columns=2),
            "![milliseconds per batch](fusion.png)",
            "## What we see",
            "\n".join(cell.seen() for cell in cells),
            RESPONSES,
            table(RESPONSE_COLUMNS, [line for cell in cells for line in cell.buckets()], 4),
            FOLLOWED,
            _original(cells),
            where(results),
        ],
    )
    draw(cells, folder / "fusion.png")


def _upto(size: float | None) -> str:
    if size is None:
        return "more"
    return f"<= {size / 1e6:g} MB" if size >= 1e6 else f"<= {size / 1e3:g} KB"


def _original(cells: list[Cell]) -> str:
    lines = []
    for model, (fused, unfused) in ORIGINAL.items():
        ours = [
            f"{cell.rows[FUSED, UNFUSED]['ratio']:.3f} at {cell.link}"
            for cell in cells
            if cell.model == model
        ]
        theirs = [f"{fused}", f"{unfused}", f"{fused / unfused:.3f}"]
        lines.append([TITLES[model], *theirs, ", ".join(ours)])
    return table(("model", "fused ms", "not fused ms", "fused / not", "ours"), lines)

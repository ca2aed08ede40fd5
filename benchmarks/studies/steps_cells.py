"""The results of the study of steps, by cell: a model, a batch and a link."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

from benchmarks.links import link_bytes_per_s
from benchmarks.studies.results import Results, milliseconds, p10_p90, ratio

BETWEEN_HOSTS = (
    STOCK := "gloo",
    "gloo+fp16_compress_hook",
    HVD := "hvd",
    "hvd:compression=fp16",
    "hvd:compression=int8",
    "hvd:compression=fp8",
)
ON_ONE_HOST = (STOCK, HVD)
ONE_HOST = "one host"
NAMES = {
    STOCK: "stock gloo",
    "gloo+fp16_compress_hook": "gloo, fp16 hook",
    HVD: "hvd",
    "hvd:compression=fp16": "hvd fp16",
    "hvd:compression=int8": "hvd int8",
    "hvd:compression=fp8": "hvd fp8",
}
TITLES = {
    "cnn": "MNIST CNN",
    "lstm": "LSTM",
    "transformer": "Transformer",
    "resnet18": "ResNet-18",
    "vgg": "Narrow VGG-16",
}


class Cell:
    """What was measured of one model, batch and link."""

    def __init__(self, rows: Results) -> None:
        first = rows[0]
        self.model, self.batch = str(first["model"]), int(first["batch"])
        self.link, self.ranks = str(first["link"] or ONE_HOST), int(first["world_size"])
        self.bytes = int(first["size"])
        self.rows = {str(row["backend"]): row for row in rows}

    def __str__(self) -> str:
        return f"{TITLES[self.model]} with {self.batch} inputs"

    @property
    def alone(self) -> dict[str, float]:
        """Microseconds of the bare model's step: median, p10 and p90."""
        return self.rows[STOCK]["limit_time"]

    @property
    def fastest(self) -> str:
        return min(self.rows, key=self.median)

    def median(self, name: str) -> float:
        return self.rows[name]["time"]["median"]

    def communication(self, name: str = STOCK) -> float:
        """Its share of a step in per cent."""
        return 100 - self.rows[name]["percent_of_limit"]

    def ratio(self, name: str) -> str:
        return ratio(self.rows[name])

    def verdict(self, name: str) -> str:
        """Against stock gloo: "faster" or "slower" where the interval says so, else ""."""
        row = self.rows[name]
        if row["low"] <= 1 <= row["high"]:
            return ""
        return "faster" if row["high"] < 1 else "slower"

    def lines(self) -> Iterator[list[str]]:
        """Of the table, one for each contender."""
        for name, row in self.rows.items():
            time, sent = row["time"], row["wire_bytes"]
            yield [
                self.link,
                f"{self.batch}",
                NAMES[name],
                milliseconds(time),
                p10_p90(time),
                milliseconds(self.alone),
                f"{self.communication(name):.1f}",
                f"{sent / 1e3:.0f}" if sent else "",
                "" if name == STOCK else self.ratio(name),
            ]


def cells_of(results: Results) -> list[Cell]:
    """By model, from the slowest link to one host, by batch."""
    grouped: dict[tuple[Any, ...], Results] = {}
    for row in results:
        key = (row["model"], row["batch"], row["link"], row["world_size"])
        grouped.setdefault(key, []).append(row)
    return sorted(
        map(Cell, grouped.values()),
        key=lambda cell: ([*TITLES].index(cell.model), rate(cell.link), cell.batch),
    )


def rate(link: str) -> float:
    """In bytes per second; without a link there is no bound."""
    return inf if link == ONE_HOST else link_bytes_per_s(link)

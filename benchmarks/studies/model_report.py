"""model.md and model.png: what an alpha-beta model says of all_reduce on up to 1024 ranks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot

from benchmarks.report import in_bytes
from benchmarks.studies.alpha_beta import Fitted, Line, Point
from benchmarks.studies.results import Results, table, where, write_page

matplotlib.use("Agg")

RANKS = [2**power for power in range(1, 11)]
SIZES = (4 << 10, 1 << 20, 16 << 20, 64 << 20)

HEAD = """\
# A model of all_reduce on many ranks

How long would an all_reduce take on more ranks than there are here? **What follows beyond the
measured ranks is a model, not a measurement.** Written by

    python -m benchmarks.studies.model out/all_reduce-*.jsonl --report docs/studies

from rows of `pytest benchmarks/test_all_reduce.py`; the module's text has the commands. The model
is time = alpha + bytes / beta, where bytes are what a rank sends, for each way that hvd has: up to
64 KB, and 256 KB / n, a tensor goes whole to all others (*frame*: (n - 1) S, one stage), above in
slices to their owners and back (*direct*: 2 (n - 1) / n S, two stages). Each line is fitted to
every other size, by relative errors, and checked at the sizes between, which it has not seen."""

FIT_COLUMNS = (
    "transport",
    "ranks",
    "frame alpha us",
    "frame beta GB/s",
    "direct alpha us",
    "direct beta GB/s",
    "held-out sizes",
    "error, median",
    "error, most",
)

BEYOND = """\
## Carried to more ranks

A model of n0 ranks does not tell what n do to alpha. Either the messages of a stage overlap and it
stays, or each costs its own time and it grows as n - 1: two ends, between which the time should be.
(The upper end is a ring's, too: as many messages, one after the other.) Where more ranks were
measured, this is how the band fits them; here all ranks share the cores of one machine, which hosts
would not."""

BEYOND_COLUMNS = ("transport", "ranks", "size", "measured us", "model us", "inside")


@dataclass(frozen=True)
class Transport:
    """A transport on links of some rate: its model, and what was measured with more ranks."""

    name: str
    fitted: Fitted
    beyond: dict[int, list[Point]]

    @property
    def has_links(self) -> bool:
        return not self.name.endswith("one host")


def fits(transports: list[Transport]) -> str:
    """The table of lines and their errors."""
    return table(FIT_COLUMNS, [_fit(transport) for transport in transports])


def _fit(transport: Transport) -> list[str]:
    fitted = transport.fitted
    return [
        transport.name,
        str(fitted.model.ranks),
        *_line(fitted.model.frame),
        *_line(fitted.model.direct),
        str(len(fitted.held_out)),
        f"{fitted.median_error:.0%}",
        f"{max(fitted.errors):.0%}",
    ]


def _line(line: Line) -> tuple[str, str]:
    return f"{line.alpha:.0f}", f"{line.beta / 1e3:.3g}"


def write(transports: list[Transport], rows: Results, folder: Path) -> None:
    """Write model.md and model.png into `folder`."""
    beyond = [line for transport in transports for line in _beyond(transport)]
    parts = [HEAD, fits(transports), "![the fit, and the model](model.png)"]
    if beyond:
        parts += [BEYOND, table(BEYOND_COLUMNS, beyond)]
    parts += ["## On 1,024 ranks, by the model", *_far(transports), where(rows)]
    write_page(folder, "model", parts)
    draw(transports, folder / "model.png")


def _ends(transport: Transport, size: int, ranks: int) -> tuple[float, float]:
    predict = transport.fitted.model.predict
    return predict(size, ranks), predict(size, ranks, overlap=False)


def _beyond(transport: Transport) -> list[list[str]]:
    lines = []
    for ranks, points in transport.beyond.items():
        for size, time in points:
            low, high = _ends(transport, size, ranks)
            nearest = min(max(time, low), high)
            inside = "yes" if time == nearest else f"{time / nearest:.2f} of the nearer end"
            model = f"{low:.0f}-{high:.0f}"
            lines.append([transport.name, str(ranks), in_bytes(size), f"{time:.0f}", model, inside])
    return lines


def _drawn(transports: list[Transport]) -> list[Transport]:
    """Those that many ranks can have: one host holds no thousand of them."""
    return [transport for transport in transports if transport.has_links]


def _far(transports: list[Transport]) -> list[str]:
    columns = ("transport", *(f"{in_bytes(size)}, ms" for size in SIZES))
    lines = []
    for transport in _drawn(transports):
        cells = [transport.name]
        for size in SIZES:
            low, high = _ends(transport, size, RANKS[-1])
            cells.append(f"{low / 1e3:.3g}-{high / 1e3:.3g}")
        lines.append(cells)
    return [table(columns, lines)] if lines else ["No transport between hosts was measured."]


def draw(transports: list[Transport], file: Path) -> None:
    """The fit of all transports, and for each between hosts its model on more ranks."""
    drawn = _drawn(transports)
    count = 1 + len(drawn)
    figure, pictures = pyplot.subplots(
        1, count, figsize=(5.5 * count, 4.5), layout="constrained", squeeze=False
    )
    _draw_fits(pictures[0][0], transports)
    for axes, transport in zip(pictures[0][1:], drawn, strict=True):
        _draw_model(axes, transport)
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def _draw_fits(axes: Any, transports: list[Transport]) -> None:
    for index, transport in enumerate(transports):
        fitted, color = transport.fitted, f"C{index}"
        ranks = fitted.model.ranks
        axes.scatter(*zip(*fitted.used, strict=True), color=color, s=18)
        axes.scatter(*zip(*fitted.held_out, strict=True), s=30, edgecolors=color, facecolors="none")
        sizes = [2.0**half for half in range(2, 27)]
        times = [fitted.model.predict(int(size), ranks) for size in sizes]
        axes.plot(sizes, times, color=color, label=f"{transport.name}, {ranks} ranks")
    axes.set(xscale="log", yscale="log", xlabel="bytes", ylabel="us")
    axes.set_title("The fit: measured (held out: hollow), and lines")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _draw_model(axes: Any, transport: Transport) -> None:
    measured = {
        transport.fitted.model.ranks: transport.fitted.used + transport.fitted.held_out,
        **transport.beyond,
    }
    for index, size in enumerate(SIZES):
        ends = [_ends(transport, size, ranks) for ranks in RANKS]
        low, high = ([end[place] / 1e3 for end in ends] for place in (0, 1))
        axes.fill_between(RANKS, low, high, color=f"C{index}", alpha=0.25)
        axes.plot(RANKS, low, color=f"C{index}", linewidth=1, label=in_bytes(size))
        dots = [
            (ranks, time / 1e3)
            for ranks, points in measured.items()
            for place, time in points
            if place == size
        ]
        if dots:
            axes.scatter(*zip(*dots, strict=True), color=f"C{index}", s=20)
    axes.set_xscale("log", base=2)
    axes.set(yscale="log", xlabel="ranks", ylabel="ms")
    axes.set_xticks(RANKS, [str(ranks) for ranks in RANKS])
    axes.set_title(f"MODEL, {transport.name}; dots: measured")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)

"""model.md and model.png: what an alpha-beta model says of all_reduce on up to 1024 ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import in_bytes
from benchmarks.studies.alpha_beta import (
    Fitted,
    Line,
    Point,
    direct_bytes,
    frame_limit,
    frame_messages,
)
from benchmarks.studies.results import Results, table, where, write_page

RANKS = [2**power for power in range(1, 11)]
SIZES = (64, 4 << 10, 1 << 20, 16 << 20, 64 << 20)

HEAD = """\
# A model of all_reduce on many ranks

How long would an all_reduce take on more ranks than there are here? **What follows beyond the
measured ranks is a model, not a measurement.** Written by

    python -m benchmarks.studies.model out/all_reduce-*.jsonl --report docs/studies

from rows of `pytest benchmarks/test_all_reduce.py`; the module's text has the commands. The model
is time = alpha + bytes / beta, where bytes are what a rank sends, for each way that hvd has: up to
64 KB, and 256 KB / n, a tensor goes whole to all others (*frame*: (n - 1) S, one stage; from 16
ranks on they pass it on in stages of at most 3 messages each), above in slices to their owners and
back (*direct*: 2 (n - 1) / n S, two stages of n - 1 messages). Each line is fitted to every other
size, by relative errors, and checked at the sizes between, which it has not seen; alpha of the
direct way, of two stages, is at least two of the frame's."""

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
stays, or each costs its own time: two ends, between which the time should be. (The upper end of the
direct way is a ring's, too: as many messages, one after the other.) Where more ranks were measured,
this is how the band fits them; here all ranks share the cores of one machine, which hosts would
not: that is most of what a small tensor takes."""

BEYOND_COLUMNS = ("transport", "ranks", "size", "measured us", "model us", "inside")


@dataclass(frozen=True)
class Transport:
    """A transport on links of some rate: its model, and what was measured with more ranks."""

    name: str
    fitted: Fitted
    beyond: dict[int, list[Point]]

    @property
    def has_links(self) -> bool:
        """Whether its ranks can be many: one host holds no thousand of them."""
        return not self.name.endswith("one host")

    def ends(self, size: int, ranks: int) -> tuple[float, float]:
        """Microseconds between which the model sees an all_reduce."""
        predict = self.fitted.model.predict
        return predict(size, ranks), predict(size, ranks, overlap=False)


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
    from benchmarks.studies.model_plot import draw

    beyond = [line for transport in transports for line in _beyond(transport)]
    parts = [HEAD, fits(transports), "![the fit, and the model](model.png)"]
    if beyond:
        parts += [BEYOND, table(BEYOND_COLUMNS, beyond)]
    parts += ["## On 1,024 ranks, by the model", *_far(transports), where(rows)]
    write_page(folder, "model", parts)
    draw(transports, folder / "model.png")


def _beyond(transport: Transport) -> list[list[str]]:
    lines = []
    for ranks, points in transport.beyond.items():
        for size, time in points:
            low, high = transport.ends(size, ranks)
            nearest = min(max(time, low), high)
            inside = "yes" if time == nearest else f"{time / nearest:.2f} of the nearer end"
            model = f"{low:.0f}-{high:.0f}"
            lines.append([transport.name, str(ranks), in_bytes(size), f"{time:.0f}", model, inside])
    return lines


def _far(transports: list[Transport]) -> list[str]:
    columns = ("transport", *(f"{in_bytes(size)}, ms" for size in SIZES))
    lines = []
    for transport in (each for each in transports if each.has_links):
        cells = [transport.name]
        for size in SIZES:
            low, high = transport.ends(size, RANKS[-1])
            cells.append(f"{low / 1e3:.3g}-{high / 1e3:.3g}")
        lines.append(cells)
    if not lines:
        return ["No transport between hosts was measured."]
    return [table(columns, lines), "\n".join(f"- {line}" for line in _seen(transports))]


def _seen(transports: list[Transport]) -> Iterator[str]:
    least, few, *_, large = SIZES
    most = RANKS[-1]
    passed_on = frame_messages(most)
    for transport in (each for each in transports if each.has_links):
        ranks = transport.fitted.model.ranks
        before, _ = transport.ends(large, ranks)
        low, high = transport.ends(large, most)
        yield (
            f"{transport.name}: {in_bytes(large)} take {low / before:.2f} to {high / before:.2f} "
            f"times what they take on {ranks} ranks, for their bytes are what counts, and a rank "
            f"sends {direct_bytes(large, most) / direct_bytes(large, ranks):.2f} times as many"
        )
        low, high = transport.ends(few, most)
        yield (
            f"{transport.name}: of {in_bytes(few)} the ends are {high / low:.0f} times apart: what "
            f"counts is how many of {most - 1} messages overlap, which {ranks} ranks do not tell"
        )
        low, high = transport.ends(least, most)
        yield (
            f"{transport.name}: of {in_bytes(least)} they are {high / low:.1f} times apart. What "
            f"is not longer than {in_bytes(frame_limit(most))} is passed on there, in "
            f"{len(passed_on)} stages and {sum(passed_on)} messages of a rank"
        )

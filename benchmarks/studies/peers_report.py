"""peers.md and peers.png from the results of the study of peers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import in_bytes
from benchmarks.studies.results import Results, table, where, write_page
from benchmarks.studies.steps_cells import ONE_HOST, rate

HVD, STOCK, MPI = "hvd", "gloo", "MPI_Allreduce"
NAMES = {
    HVD: "hvd",
    "hvd:transport=mpi": "hvd, mpi",
    "hvd:compression=fp16": "hvd, fp16",
    "hvd:compression=int8": "hvd, int8",
    STOCK: "stock gloo",
    "gloo+fp16_compress_hook": "gloo, DDP's fp16 hook",
    "gloo+powerSGD_hook": "gloo, PowerSGD of rank 1",
    MPI: "plain MPI",
    "horovod": "Horovod",
}
GRADIENTS, STEP = "161 gradients in flight", "DDP step"

# What Open MPI's coll_tuned_allreduce_algorithm takes.
ALGORITHMS = {
    "linear": 1,
    "reduce, then broadcast": 2,
    "recursive doubling": 3,
    "ring": 4,
    "segmented ring": 5,
    "Rabenseifner": 6,
}

HEAD = """\
# Peers

hvd beside what else there is. Written by

    python -m benchmarks.studies.peers --report docs/studies    # as root; mpirun is Open MPI's

{ranks} ranks; on *one host*, where hvd takes shared memory, or each on a host of its own, a network
namespace that sends at the rate of its link at most. The contenders of a table took turns in one
run, and every result was checked. all_reduce is of float32, and each is waited for; the gradients
*in flight* are those of ResNet-50, 102 MB, asynchronous and then waited for; a DDP step is that of
{megabytes} MB of parameters, forward and backward. *plain MPI* is a loop over MPI_Allreduce, or
MPI_Iallreduce and MPI_Waitall, by mpi4py, in the library that hvd has as well: {library}. Each cell
is a median, with its ratio to stock gloo's in brackets: below 1 is faster. Codecs and hooks round,
all else is exact; PowerSGD's gradients are no mean to any small error. Horovod takes part where it
is installed."""

TUNED = """\
## Open MPI's algorithms

Each in a run of its own, with coll_tuned_allreduce_algorithm set: the median, and in brackets what
hvd takes in the same run over it, so that below 1 hvd is faster. With {ranks} ranks some come to
the same."""


@dataclass(frozen=True)
class Run:
    """The rows of one place and one algorithm ("": Open MPI's own choice)."""

    place: str
    algorithm: str
    rows: dict[tuple[str, int], dict[str, dict[str, Any]]]  # by case, then by contender

    @property
    def contenders(self) -> list[str]:
        met = {name for found in self.rows.values() for name in found}
        return [name for name in NAMES if name in met]


def runs_of(results: Results) -> list[Run]:
    """In the order of their first rows."""
    found: dict[tuple[str, str], Run] = {}
    for row in results:
        key = (row["place"], row["algorithm"])
        run = found.setdefault(key, Run(*key, {}))
        run.rows.setdefault((row["op"], row["size"]), {})[row["backend"]] = row
    return list(found.values())


def write(results: Results, folder: Path) -> None:
    """Write peers.md and peers.png into `folder`."""
    from benchmarks.studies.peers_plot import draw

    runs = sorted(runs_of(results), key=lambda run: -rate(run.place))
    chosen = [run for run in runs if not run.algorithm]
    tuned = [run for run in runs if run.algorithm]
    steps = [row for row in results if row["op"] == STEP]
    parts = [
        HEAD.format(
            ranks=results[0]["world_size"],
            megabytes=(steps[0]["size"] >> 20) if steps else 0,
            library=results[0]["library"],
        ),
        "![time over stock gloo's](peers.png)",
        "## What we see",
        "\n".join(f"- {line}" for run in chosen for line in _seen(run)),
    ]
    for run in chosen:
        head = ("", *(NAMES[name] for name in run.contenders))
        parts += [f"## {title_of(run.place)}", table(head, _lines(run))]
    if tuned:
        parts += [TUNED.format(ranks=results[0]["world_size"]), _algorithms(runs)]
    parts.append(where(results))
    write_page(folder, "peers", parts)
    draw(chosen, folder / "peers.png")


def title_of(place: str) -> str:
    return "On one host" if place == ONE_HOST else f"Between hosts, {place}"


def case_of(op: str, size: int) -> str:
    return f"{op} {in_bytes(size)}" if op == "all_reduce" else op


def duration(microseconds: float) -> str:
    """To three digits."""
    if microseconds >= 1e5:
        return f"{microseconds / 1e3:.0f} ms"
    if microseconds >= 1e3:
        return f"{microseconds / 1e3:.3g} ms"
    return f"{microseconds:.3g} us" if microseconds < 100 else f"{microseconds:.0f} us"


def _lines(run: Run) -> Iterator[list[str]]:
    for case, found in run.rows.items():
        cells = [case_of(*case)]
        for name in run.contenders:
            row = found.get(name)
            cells.append(f"{duration(row['time']['median'])} ({row['ratio']:.2f})" if row else "")
        yield cells


def _seen(run: Run) -> Iterator[str]:
    ratios = {case: found[HVD] for case, found in run.rows.items()}
    least, most = (f(row["ratio"] for row in ratios.values()) for f in (min, max))
    line = f"{title_of(run.place)}: hvd takes {least:.2f} to {most:.2f} of stock gloo's time"
    slower = [
        f"{case_of(*case)}, {row['ratio']:.2f} ({row['low']:.2f}-{row['high']:.2f})"
        for case, row in ratios.items()
        if row["low"] > 1
    ]
    yield line + (f"; slower beyond the interval: {'; '.join(slower)}" if slower else "")
    against = [
        f"{found[HVD]['time']['median'] / found[MPI]['time']['median']:.2f} ({case_of(*case)})"
        for case, found in run.rows.items()
        if MPI in found
    ]
    if against:
        yield f"{title_of(run.place)}: of plain MPI's time it takes {', '.join(against)}"


def _algorithms(runs: list[Run]) -> str:
    """Open MPI's own choice first, then what it was told to take."""
    cases = [case for case in runs[0].rows if case[0] == "all_reduce"]
    lines = []
    for place in dict.fromkeys(run.place for run in runs if run.algorithm):
        for run in (run for run in runs if run.place == place):
            cells = [place, run.algorithm or "Open MPI's choice"]
            for case in cases:
                hvd, mpi = (run.rows[case][name]["time"]["median"] for name in (HVD, MPI))
                cells.append(f"{duration(mpi)} ({hvd / mpi:.2f})")
            lines.append(cells)
    return table(("", "algorithm", *(in_bytes(size) for _, size in cases)), lines, text_columns=2)

"""Are the ratios kept that README and docs/results.md promise, as benchmarks/promises.py has them?

`python -m benchmarks.gate out/gate/*.jsonl`, of JSON lines of `pytest benchmarks --json` and of
`python -m benchmarks.mpi --json`; `make bench-gate` writes all that are needed. The last row of a
measurement counts. A promise is kept up to a margin of `benchmarks.promises`. Prints those that are
not; exit status 1 where there are some, or where no row tells. Ratios belong to a machine without
other work: theirs had two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.promises import PROMISES, Promise
from benchmarks.report import describe, in_bytes
from benchmarks.studies.results import ratio, read_given, table

Json = dict[str, Any]

COLUMNS = (
    "op",
    "backend",
    "against",
    "link",
    "verdict",
    "ranks",
    "size",
    "promised",
    "at most",
    "found, 95 %",
    "foreign",
)


@dataclass(frozen=True)
class Finding:
    """A promise, and the row of JSON that tells of it, if there is one."""

    promise: Promise
    row: Json | None

    @property
    def verdict(self) -> str:
        """ "kept", "worse" or "not measured"."""
        if self.row is None:
            return "not measured"
        return "kept" if self.row["ratio"] <= self.promise.at_most else "worse"


def findings(rows: Iterable[Json], promises: Sequence[Promise] = PROMISES) -> list[Finding]:
    """One for each promise, in their order."""
    told = {measurement(row): row for row in rows}
    return [Finding(promise, told.get(promise.measurement)) for promise in promises]


def measurement(row: Json) -> tuple[Any, ...]:
    """That of `Promise`."""
    baseline, _, _library = row["baseline"].partition(" of ")  # MPI_Allreduce of Open MPI v5.0.11
    return row["op"], row["size"], row["world_size"], row["backend"], baseline, row["link"]


def machine_of(row: Json) -> str:
    return describe({name: fact for name, fact in row["machine"].items() if name != "utc"})


def cells(finding: Finding) -> list[str]:
    promise, row = finding.promise, finding.row
    return [
        promise.op,
        promise.backend,
        promise.baseline,
        promise.link or "",
        finding.verdict,
        str(promise.ranks),
        in_bytes(promise.size),
        f"{promise.ratio:.3f}",
        f"{promise.at_most:.3f}",
        ratio(row) if row else "",
        f"{row['foreign']:.2f}" if row else "",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="JSON lines of measured rows")
    parser.add_argument(
        "--partial", action="store_true", help="promises that no row tells of do not count"
    )
    args = parser.parse_args()
    rows = list(chain.from_iterable(read_given(args.files, parser)))
    found = findings(rows)
    verdicts = [finding.verdict for finding in found]
    for machine in dict.fromkeys(machine_of(row) for row in rows):
        print(machine)
    passing = ("kept", "not measured") if args.partial else ("kept",)
    failed = [finding for finding in found if finding.verdict not in passing]
    if failed:
        print(f"\n{table(COLUMNS, map(cells, failed), text_columns=5)}")
    counts = (f"{verdicts.count(name)} {name}" for name in ("kept", "worse", "not measured"))
    print(f"\n{len(found)} promises: {', '.join(counts)}")
    return 1 if failed or "kept" not in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())

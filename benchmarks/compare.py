"""Two runs of the benchmarks side by side: `python -m benchmarks.compare A.json B.json`.

Files are JSON lines of `pytest benchmarks --json`, or of a study. Rows of the same measurement are
paired, the last of each file. Times of two runs differ with the machine, which the baseline beside
them felt as well: so what counts is the ratio to the baseline, and it *differs* where its 95 %
intervals in the two runs have nothing in common. An interval tells of the rounds in its run, not
of a run's luck, so repeat a run before you believe a small difference. With --fail, exit status 1
where a row is slower in B by that measure.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import describe, in_bytes
from benchmarks.studies.results import ratio, read_given, table

Json = dict[str, Any]

KEY = ("op", "size", "dtype", "world_size", "backend", "baseline", "link")
COLUMNS = (
    "op",
    "backend",
    "against",
    "link",
    "ranks",
    "size",
    "A us",
    "B us",
    "B / A",
    "A to baseline, 95 %",
    "B to baseline, 95 %",
    "in B",
)


@dataclass(frozen=True)
class Pair:
    """The same measurement in two runs, as rows of JSON."""

    a: Json
    b: Json

    @property
    def times(self) -> float:
        """B's median time over A's."""
        return self.b["time"]["median"] / self.a["time"]["median"]

    @property
    def verdict(self) -> str:
        """ "faster" or "slower" where the ratios' intervals are apart, else nothing."""
        if self.b["high"] < self.a["low"]:
            return "faster"
        return "slower" if self.b["low"] > self.a["high"] else ""


def pair(a: Iterable[Json], b: Iterable[Json]) -> tuple[list[Pair], int]:
    """Rows that both runs have, in A's order, and the number of those that one has alone."""
    of_a, of_b = ({key(row): row for row in rows} for rows in (a, b))
    pairs = [Pair(row, of_b[place]) for place, row in of_a.items() if place in of_b]
    return pairs, len(of_a.keys() ^ of_b.keys())


def key(row: Json) -> tuple[Any, ...]:
    """What makes two rows the same measurement."""
    return tuple(row[name] for name in KEY)


def cells(pair: Pair) -> list[str]:
    return [
        pair.a["op"],
        pair.a["backend"],
        pair.a["baseline"],
        pair.a["link"] or "",
        str(pair.a["world_size"]),
        in_bytes(pair.a["size"]),
        f"{pair.a['time']['median']:.1f}",
        f"{pair.b['time']['median']:.1f}",
        f"{pair.times:.2f}",
        ratio(pair.a),
        ratio(pair.b),
        pair.verdict,
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("a", type=Path, metavar="A", help="JSON lines of a run")
    parser.add_argument("b", type=Path, metavar="B", help="of the run to compare with it")
    parser.add_argument("--fail", action="store_true", help="exit status 1 where B is slower")
    args = parser.parse_args()

    runs = read_given([args.a, args.b], parser)
    pairs, alone = pair(*runs)
    if not pairs:
        parser.error("the two files have no measurement in common")
    for name, rows in zip("AB", runs, strict=True):
        print(f"{name}: {describe(rows[-1]['machine'])}")
    print(f"\n{table(COLUMNS, map(cells, pairs), text_columns=4)}\n")
    verdicts = [pair.verdict for pair in pairs]
    faster, slower = verdicts.count("faster"), verdicts.count("slower")
    print(f"{len(pairs)} rows in both: {faster} faster in B, {slower} slower; {alone} in one alone")
    return 1 if args.fail and slower else 0


if __name__ == "__main__":
    sys.exit(main())

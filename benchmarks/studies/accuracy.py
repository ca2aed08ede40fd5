"""Does training with compressed gradients reach the accuracy of fp32? On real data, seed by seed.

    python -m benchmarks.studies.accuracy DIR                  # MNIST's IDX files: the whole study
    python -m benchmarks.studies.accuracy DIR --ranks 2 --codecs none int8 --seeds 1
    python -m benchmarks.studies.accuracy DIR --model lstm     # on scikit-learn's digits
    python -m benchmarks.studies.accuracy DIR --report docs    # docs/accuracy.md and .png as well

A *cell* is one training: model, number of ranks, codec, seed. Its result is a line of the results
file, and a cell that has one is not run again: stop and go on at will. Exit status 1 where what the
report promises does not hold for the cells that are there. The picture needs matplotlib.
"""

from __future__ import annotations

import sys
from dataclasses import astuple
from itertools import product
from pathlib import Path
from typing import Any

from benchmarks.ranks import Ranks
from benchmarks.studies import accuracy_report
from benchmarks.studies.accuracy_rows import verdicts
from benchmarks.studies.results import append, parser_of, read
from benchmarks.studies.training import NAIVE, RECIPES, Cell, train

CODECS = ("none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4", NAIVE)
ONE_SEED = ("gloo",)  # hvd in fp32 is equal to the digit
CELL_TIMEOUT_S = 1200


def wanted(model: str, ranks: list[int], codecs: list[str], seeds: list[int]) -> list[Cell]:
    """What to train, by number of ranks and seed. Serial training has no codec."""
    return [
        Cell(model, size, codec, seed)
        for size, seed in product(ranks, seeds)
        for codec in (["none"] if size == 1 else codecs)
        if seed == seeds[0] or codec not in ONE_SEED
    ]


def cell_of(result: dict[str, Any]) -> Cell:
    return Cell(*(result[name] for name in Cell.__dataclass_fields__))


def run(cells: list[Cell], folder: str, file: Path) -> None:
    """Train each cell and append its result to `file`."""
    ranks = Ranks(0)
    try:
        for cell in cells:
            if ranks.size != cell.ranks:
                ranks.close()
                ranks = Ranks(cell.ranks, groups=0)
            answers = ranks.run(train, timeout_s=CELL_TIMEOUT_S, cell=cell, folder=folder)
            append(file, answers[:1])
            print(
                *astuple(cell),
                f"{answers[0]['accuracy']:.2f} %",
                f"{answers[0]['seconds']:.1f} s",
                sep="  ",
                flush=True,
            )
    finally:
        ranks.close()


def main() -> int:
    parser = parser_of("accuracy", __doc__)
    parser.add_argument("folder", help="of MNIST's IDX files, gzipped or not")
    parser.add_argument("--model", choices=RECIPES, default="cnn")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--codecs", nargs="+", default=[*CODECS, *ONE_SEED])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    args = parser.parse_args()

    done = {cell_of(result) for result in read(args.results)}
    cells = wanted(args.model, args.ranks, args.codecs, args.seeds)
    run([cell for cell in cells if cell not in done], args.folder, args.results)
    results = read(args.results)
    if args.report:
        accuracy_report.write(results, args.report)
    found = verdicts(results)
    print("\n".join(str(verdict) for verdict in found))
    return 0 if all(verdict.held for verdict in found) else 1


if __name__ == "__main__":
    sys.exit(main())

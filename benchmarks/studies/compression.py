"""What does a codec save of a whole training, and what does it cost in accuracy? By link.

    python -m benchmarks.studies.compression DIR                         # MNIST's IDX files; root
    python -m benchmarks.studies.compression DIR --links loopback        # needs no root
    python -m benchmarks.studies.compression DIR --codecs none int8 --seeds 1
    python -m benchmarks.studies.compression DIR --report docs/studies   # compression.md and .png

A *cell* is one training, as in the accuracy study, on a link. Its result is a line of the results
file, and a cell that has one is not run again. The picture needs matplotlib.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

from benchmarks.machine import Load
from benchmarks.ranks import Ranks
from benchmarks.studies import compression_report
from benchmarks.studies.compression_report import CODECS, LOOPBACK
from benchmarks.studies.results import append, parser_of, read
from benchmarks.studies.training import Cell, train

MODEL = "cnn"
CELL_TIMEOUT_S = 1200


def run(link: str, cell: Cell, folder: str, file: Path) -> None:
    """Train, and append the result to `file`."""
    ranks = Ranks(cell.ranks, link=None if link == LOOPBACK else link, groups=0)
    try:
        load = Load(ranks.start())
        first, *_ = ranks.run(train, timeout_s=CELL_TIMEOUT_S, cell=cell, folder=folder)
        foreign = load.foreign()
    finally:
        ranks.close()
    append(file, [first], link=link, foreign=foreign)
    accuracy, seconds = f"{first['accuracy']:.2f} %", f"{first['seconds']:.1f} s"
    print(link, cell.codec, cell.seed, accuracy, seconds, sep="  ", flush=True)


def main() -> None:
    parser = parser_of("compression", __doc__)
    parser.add_argument("folder", help="of MNIST's IDX files, gzipped or not")
    parser.add_argument(
        "--links", nargs="+", metavar="RATE", default=["100mbit", "1gbit", LOOPBACK]
    )
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=[*CODECS])
    parser.add_argument("--ranks", type=int, default=2, help="each on a host of its own")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    args = parser.parse_args()

    names = ("link", "ranks", "codec", "seed")
    done = {tuple(result[name] for name in names) for result in read(args.results)}
    # A seed after the other, and all codecs in each: a machine that slows down slows all of them.
    for seed, link, codec in product(args.seeds, args.links, args.codecs):
        if (link, args.ranks, codec, seed) not in done:
            run(link, Cell(MODEL, args.ranks, codec, seed), args.folder, args.results)
    if args.report:
        compression_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()

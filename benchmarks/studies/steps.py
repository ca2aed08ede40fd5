"""What does a step of training cost between hosts? By link, codec, model and size of the batch.

    python -m benchmarks.studies.steps                        # two hosts; as root, eleven minutes
    python -m benchmarks.studies.steps --models vgg --links 1gbit "one host"
    python -m benchmarks.studies.steps --report docs/studies  # steps.md and .png: matplotlib

A *cell* is a model, the inputs that a rank takes in a step, and the rate of the links. Its rows are
lines of the results file, and a cell that has some is not measured again.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.interleave import Blocks, interleave
from benchmarks.links import link_bytes_per_s
from benchmarks.machine import Load
from benchmarks.models import Lstm, Transformer, cnn, resnet18, small_vgg
from benchmarks.ranks import Rank, Ranks
from benchmarks.report import markdown
from benchmarks.rows import Row, slowest_by_name
from benchmarks.studies import steps_report
from benchmarks.studies.ddp_steps import Workload, contest, rows
from benchmarks.studies.results import append, parser_of, read
from benchmarks.studies.steps_cells import BETWEEN_HOSTS, ON_ONE_HOST, ONE_HOST, STOCK
from rig.hosts import complaint

CELL_TIMEOUT_S = 300
LINKS = ("100mbit", "1gbit", "5gbit", ONE_HOST)
SLOW_S, SLOW_ROUNDS = 1.0, 4  # where the link alone takes longer than this for a step

WORKLOADS = {
    "cnn": Workload(cnn, (1, 28, 28), calls=8, groups=2),
    "lstm": Workload(lambda: Lstm(256), (16, 8)),
    "transformer": Workload(lambda: Transformer(256), (8, 8)),
    "resnet18": Workload(lambda: resnet18(64), (1, 32, 32)),
    "vgg": Workload(small_vgg, (3, 32, 32)),
}
BATCHES = {"cnn": (16, 64)}  # of each rank; else:
OTHER_BATCHES = (8, 32)
# Left out unless asked for: computing is some hundredths of these steps, with either batch.
LEFT_OUT = {("resnet18", 8, "100mbit"), ("vgg", 8, "100mbit")}


class Cell(NamedTuple):
    model: str
    batch: int
    link: str


def wanted(
    models: Sequence[str], links: Sequence[str], batches: Sequence[int] | None = None
) -> list[Cell]:
    """The cells to measure, link by link."""
    cells = [
        Cell(model, batch, link)
        for link in links
        for model in models
        for batch in batches or BATCHES.get(model, OTHER_BATCHES)
    ]
    return [cell for cell in cells if batches or cell not in LEFT_OUT]


def rounds_of(work: Workload, link: str) -> int | None:
    """A few where each takes many seconds; None: as many as fit into the time of a cell."""
    if link == ONE_HOST or work.nbytes / link_bytes_per_s(link) < SLOW_S:
        return None
    return SLOW_ROUNDS


def train(
    rank: Rank,
    *,
    model: str,
    batch: int,
    names: Sequence[str],
    budget_s: float,
    rounds: int | None,
) -> tuple[dict[str, Blocks], dict[str, float | None]]:
    """Runs on a rank: samples of each contender, and the bytes that it sends in a step."""
    torch.set_num_threads(1)
    work = WORKLOADS[model]
    found = contest(rank, work, work.noise(batch, rank.rank), names)
    if found.missing:
        raise RuntimeError(f"cannot be had: {found.missing}")
    blocks = interleave(rank, found.bare, found.trials, budget_s, rounds)
    found.close()
    return blocks, found.wire_bytes()


def measure(ranks: Ranks, cell: Cell, budget_s: float, rounds: int | None = None) -> list[Row]:
    """A row for each contender against stock gloo."""
    work = WORKLOADS[cell.model]
    load = Load(ranks.start())
    answers = ranks.run(
        train,
        timeout_s=CELL_TIMEOUT_S,
        model=cell.model,
        batch=cell.batch,
        names=BETWEEN_HOSTS if ranks.link else ON_ONE_HOST,
        budget_s=budget_s,
        rounds=rounds or rounds_of(work, cell.link),
    )
    foreign = load.foreign()
    return rows(
        slowest_by_name([answer[0] for answer in answers]),
        STOCK,
        answers[0][1],
        op=f"step of {cell.model}, {cell.batch} inputs",
        size=work.nbytes,
        world_size=ranks.size,
        foreign=foreign,
        link=ranks.link,
    )


def run(cells: Sequence[Cell], size: int, budget_s: float, file: Path) -> None:
    """Measure each cell and append its rows to `file`; ranks stay as long as the link does."""
    for link, some in groupby(cells, lambda cell: cell.link):
        ranks = Ranks(size, link=None if link == ONE_HOST else link, groups=0)
        try:
            for cell in some:
                measured = measure(ranks, cell, budget_s)
                append(file, measured, model=cell.model, batch=cell.batch)
                print(markdown(row.as_json() for row in measured), flush=True)
        finally:
            ranks.close()


def main() -> None:
    parser = parser_of("steps", __doc__)
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=[*WORKLOADS])
    parser.add_argument("--links", nargs="+", metavar="RATE", default=LINKS)
    parser.add_argument("--batches", type=int, nargs="+", help="inputs of a rank; else two sizes")
    parser.add_argument("--ranks", type=int, default=2, help="each on a host of its own")
    parser.add_argument("--seconds", type=float, default=6.0, help="for a cell, about")
    args = parser.parse_args()

    done = {
        (Cell(row["model"], row["batch"], row["link"] or ONE_HOST), row["world_size"])
        for row in read(args.results)
    }
    cells = wanted(args.models, args.links, args.batches)
    cells = [cell for cell in cells if (cell, args.ranks) not in done]
    for link in sorted({cell.link for cell in cells} - {ONE_HOST}):
        if reason := complaint(link):
            parser.error(f"links of {link}: {reason}")
    run(cells, args.ranks, args.seconds, args.results)
    if args.report:
        steps_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()

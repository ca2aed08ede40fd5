"""What does a step cost when it is shared? DDP over more processes on the same cores.

    python -m benchmarks.studies.scaling                        # eight minutes
    python -m benchmarks.studies.scaling --mnist DIR            # its IDX files: accuracy, too
    python -m benchmarks.studies.scaling --models resnet50 --ranks 1 2
    python -m benchmarks.studies.scaling --report docs/studies  # scaling.md and .png: matplotlib

A *cell* is a model on some number of processes, which share a fixed number of threads. Its rows are
lines of the results file, and a cell that has some is not measured again.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import torch

from benchmarks.interleave import Blocks, interleave
from benchmarks.machine import Load
from benchmarks.models import cnn, resnet18, resnet50
from benchmarks.ranks import Rank, Ranks
from benchmarks.report import markdown
from benchmarks.rows import Row, slowest_by_name
from benchmarks.studies import scaling_report
from benchmarks.studies.ddp_steps import Batch, Workload, contest, rows
from benchmarks.studies.results import append, parser_of, read
from benchmarks.studies.scaling_report import CONTENDERS, EPOCHS, SERIAL, STOCK
from benchmarks.studies.training import RECIPES, train_over

CELL_TIMEOUT_S = 300
SLOW_ROUNDS = 4
SEED = 1


@dataclass(frozen=True)
class Course:
    """A workload, the images that a process takes in a step, and the numbers of processes."""

    work: Workload
    batch: int
    ranks: tuple[int, ...]
    slow: tuple[int, ...] = ()  # where SLOW_ROUNDS must do


COURSES = {
    "cnn": Course(Workload(cnn, (1, 28, 28), calls=8, groups=2), batch=64, ranks=(1, 2, 3, 4)),
    "resnet18": Course(Workload(lambda: resnet18(64), (1, 32, 32)), batch=8, ranks=(1, 2, 4, 8)),
    "resnet50": Course(Workload(resnet50, (3, 96, 96)), batch=2, ranks=(1, 2, 4, 8), slow=(8,)),
}


def is_real(work: Workload, mnist: str | None) -> bool:
    return mnist is not None and work.input == (1, 28, 28)


def images(course: Course, rank: int, mnist: str | None) -> Batch:
    """A rank's images and labels: MNIST's where there is a folder and they fit, else noise."""
    if mnist and is_real(course.work, mnist):
        from benchmarks.studies.training import mnist as load

        inputs, labels, *_ = load(mnist)
        own = slice(rank * course.batch, (rank + 1) * course.batch)
        return inputs[own].clone(), labels[own].clone()
    return course.work.noise(course.batch, rank)


def train(
    rank: Rank, *, model: str, threads: int, mnist: str | None, budget_s: float, rounds: int | None
) -> tuple[dict[str, Blocks], dict[str, float | None], dict[str, str]]:
    """Runs on a rank: samples of each contender, the bytes that it sends in a step, and why
    other contenders cannot be had.
    """
    torch.set_num_threads(threads)
    course = COURSES[model]
    names = CONTENDERS if rank.size > 1 else ()
    found = contest(rank, course.work, images(course, rank.rank, mnist), names)
    trials = found.trials or {SERIAL: [found.bare]}
    blocks = interleave(rank, found.bare, trials, budget_s, rounds)
    return blocks, found.wire_bytes(), found.missing


def accuracies(rank: Rank, *, names: list[str], folder: str) -> dict[str, float]:
    """Runs on a rank: per cent of MNIST's test images, after a training over each contender.

    That of the accuracy study, but shorter: all ranks together take as many images as one would.
    """
    recipe = replace(RECIPES["cnn"], epochs=EPOCHS)
    return {name: train_over(rank, name, recipe, SEED, folder)["accuracy"] for name in names}


def measure(
    ranks: Ranks, model: str, threads: int, mnist: str | None, budget_s: float
) -> list[Row]:
    """A row for each contender against stock gloo; for one process, one against itself."""
    course = COURSES[model]
    load = Load(ranks.start())
    answers = ranks.run(
        train,
        timeout_s=CELL_TIMEOUT_S,
        model=model,
        threads=threads,
        mnist=mnist,
        budget_s=budget_s,
        rounds=SLOW_ROUNDS if ranks.size in course.slow else None,
    )
    for name, reason in answers[0][2].items():
        print(f"without {name}: {reason}")
    foreign = load.foreign()
    return rows(
        slowest_by_name([answer[0] for answer in answers]),
        STOCK if ranks.size > 1 else SERIAL,
        answers[0][1],
        op=f"step of {model}",
        size=course.work.nbytes,
        world_size=ranks.size,
        foreign=foreign,
        link=None,
    )


def main() -> None:
    parser = parser_of("scaling", __doc__)
    parser.add_argument("--models", nargs="+", choices=COURSES, default=[*COURSES])
    parser.add_argument("--ranks", type=int, nargs="+", help="else as the model has them")
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together"
    )
    parser.add_argument("--mnist", metavar="DIR", help="a folder of MNIST's IDX files")
    parser.add_argument("--seconds", type=float, default=20.0, help="for a cell, about")
    args = parser.parse_args()

    done = {(row["model"], row["world_size"]) for row in read(args.results)}
    cells = [(model, size) for model in args.models for size in args.ranks or COURSES[model].ranks]
    for model, size in cells:
        if (model, size) in done:
            continue
        course, threads = COURSES[model], max(args.threads // size, 1)
        real = is_real(course.work, args.mnist)
        ranks = Ranks(size, groups=0)
        try:
            measured = measure(ranks, model, threads, args.mnist, args.seconds)
            reached = {}
            if real:
                names = [row.backend for row in measured]
                reached = ranks.run(
                    accuracies, timeout_s=CELL_TIMEOUT_S, names=names, folder=args.mnist
                )[0]
        finally:
            ranks.close()
        append(
            args.results,
            [row.as_json() | {"accuracy": reached.get(row.backend)} for row in measured],
            model=model,
            images=size * course.batch,
            threads=threads,
            data="real" if real else "synthetic",
        )
        print(markdown(row.as_json() for row in measured), flush=True)
    if args.report:
        scaling_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()

"""What does a step cost when it is shared? DDP over more processes on the same cores.

    python -m benchmarks.studies.scaling                        # three minutes
    python -m benchmarks.studies.scaling --mnist DIR            # images of its IDX files
    python -m benchmarks.studies.scaling --models resnet18 --ranks 1 2 4 8
    python -m benchmarks.studies.scaling --report docs/studies  # scaling.md and .png: matplotlib

A *cell* is a model on some number of processes, which share a fixed number of threads. Its rows are
lines of the results file, and a cell that has some is not measured again.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from benchmarks.contenders import Contender
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.machine import Load
from benchmarks.models import cnn, resnet18
from benchmarks.payload import relative_error
from benchmarks.ranks import Rank, Ranks
from benchmarks.report import markdown
from benchmarks.rows import Row, compare, slowest
from benchmarks.studies import scaling_report
from benchmarks.studies.results import append, read
from benchmarks.studies.scaling_report import CONTENDERS, SERIAL, STOCK
from benchmarks.test_ddp import gradients

GROUPS = 2  # of each contender; they take turns
GROUP_TIMEOUT = timedelta(seconds=60)
CELL_TIMEOUT_S = 300
ROUNDING = 1e-4  # relative L2 error of gradients summed in another order


@dataclass(frozen=True)
class Workload:
    """A model, the shape of its images, and how many of them a process takes in a step."""

    model: Callable[[], nn.Module]
    image: tuple[int, int, int]
    batch: int
    steps: int  # in a block


WORKLOADS = {
    "cnn": Workload(cnn, (1, 28, 28), batch=64, steps=8),
    "resnet18": Workload(lambda: resnet18(64), (1, 32, 32), batch=8, steps=1),
}


def is_real(work: Workload, mnist: str | None) -> bool:
    return mnist is not None and work.image == (1, 28, 28)


def images(work: Workload, rank: int, mnist: str | None) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's batch and its labels: MNIST's where there is a folder and they fit, else noise."""
    if mnist and is_real(work, mnist):
        from benchmarks.studies.training import mnist as load

        inputs, labels, *_ = load(mnist)
        own = slice(rank * work.batch, (rank + 1) * work.batch)
        return inputs[own].clone(), labels[own].clone()
    draw = torch.Generator().manual_seed(rank)
    inputs = torch.randn(work.batch, *work.image, generator=draw)
    return inputs, torch.randint(10, (work.batch,), generator=draw)


def steps(
    work: Workload,
    model: nn.Module,
    batch: tuple[torch.Tensor, torch.Tensor],
    expected: torch.Tensor | None,
) -> Trial:
    """Whole steps, at a learning rate of 0: each leaves the same gradients, to be checked."""
    optimizer = SGD(model.parameters(), lr=0.0)

    def call(_: int) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    def check() -> None:
        if expected is not None:
            error = relative_error(gradients(model), expected)
            assert error <= ROUNDING, f"wrong gradients: relative L2 error {error:.2g}"

    return Trial(work.steps, lambda: None, call, check)


def new_model(work: Workload) -> nn.Module:
    """The same on every rank and for every trial."""
    torch.manual_seed(0)
    return work.model()


def train(
    rank: Rank, *, model: str, threads: int, mnist: str | None, budget_s: float
) -> tuple[dict[str, Blocks], dict[str, str]]:
    """Runs on a rank: samples of each contender, and why others cannot be had.

    The limit is a step that nobody else takes part in, on all ranks at once.
    """
    torch.set_num_threads(threads)
    work = WORKLOADS[model]
    batch = images(work, rank.rank, mnist)
    bare = steps(work, alone := new_model(work), batch, None)
    bare.call(0)
    expected = gradients(alone) / rank.size
    dist.all_reduce(expected, group=rank.control)

    trials: dict[str, list[Trial]] = {}
    missing: dict[str, str] = {}
    for name in CONTENDERS if rank.size > 1 else ():
        try:
            groups = [Contender.parse(name).new_group(GROUP_TIMEOUT) for _ in range(GROUPS)]
        except ValueError as error:  # on every rank alike
            missing[name] = str(error)
            continue
        trials[name] = [
            steps(
                work,
                DistributedDataParallel(new_model(work), process_group=group),
                batch,
                expected,
            )
            for group in groups
        ]
    return interleave(rank, bare, trials or {SERIAL: [bare]}, budget_s), missing


def measure(
    ranks: Ranks, model: str, threads: int, mnist: str | None, budget_s: float
) -> list[Row]:
    """A row for each contender against stock gloo; for one process, one against itself."""
    load = Load(ranks.start())
    answers = ranks.run(
        train,
        timeout_s=CELL_TIMEOUT_S,
        model=model,
        threads=threads,
        mnist=mnist,
        budget_s=budget_s,
    )
    for name, reason in answers[0][1].items():
        print(f"without {name}: {reason}")
    blocks = {name: slowest([answer[0][name] for answer in answers]) for name in answers[0][0]}
    limit = blocks.pop("limit")
    baseline = STOCK if STOCK in blocks else SERIAL
    foreign = load.foreign()
    return [
        compare(
            samples,
            blocks[baseline],
            limit,
            op=f"step of {model}",
            size=4 * sum(parameter.numel() for parameter in WORKLOADS[model].model().parameters()),
            bus_factor=1.0,
            world_size=ranks.size,
            backend=name,
            baseline=baseline,
            target=None,
            foreign=foreign,
            link=None,
        )
        for name, samples in blocks.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=[*WORKLOADS])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument(
        "--threads", type=int, default=len(os.sched_getaffinity(0)), help="of all ranks together"
    )
    parser.add_argument("--mnist", metavar="DIR", help="a folder of MNIST's IDX files")
    parser.add_argument("--seconds", type=float, default=20.0, help="for a cell, about")
    parser.add_argument(
        "--results", type=Path, default=Path("out/scaling.jsonl"), help="of all cells, kept"
    )
    parser.add_argument("--report", type=Path, metavar="DIR", help="write scaling.md and .png")
    args = parser.parse_args()

    done = {(row["model"], row["world_size"]) for row in read(args.results)}
    for model, size in product(args.models, args.ranks):
        if (model, size) in done:
            continue
        threads = max(args.threads // size, 1)
        ranks = Ranks(size, groups=0)
        try:
            rows = measure(ranks, model, threads, args.mnist, args.seconds)
        finally:
            ranks.close()
        work = WORKLOADS[model]
        more: dict[str, object] = {"images": size * work.batch, "threads": threads}
        more["data"] = "real" if is_real(work, args.mnist) else "synthetic"
        append(args.results, rows, model=model, **more)
        print(markdown(row.as_json() for row in rows), flush=True)
    if args.report:
        scaling_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()

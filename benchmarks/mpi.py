"""all_reduce over MPI against a plain loop on the same MPI library, and against stock gloo.

    python -m benchmarks.mpi                              # 2 ranks; hvdrun starts them by mpirun
    python -m benchmarks.mpi -np 4 --quick --mpirun /usr/bin/mpirun
    python -m benchmarks.mpi --bind                       # each rank on a core of its own
    python -m benchmarks.mpi --link 1gbit --quick         # on hosts of their own; root
    mpirun -np 2 python -m benchmarks.mpi                 # by hand

The plain loop is mpi4py's MPI_Allreduce, in place on the tensor's memory, in the library that hvd
uses: a process has one libmpi, or it ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.contenders import Contender
from benchmarks.interleave import Trial, interleave
from benchmarks.links import link_limit
from benchmarks.machine import Load, facts
from benchmarks.mpirun import (
    TIMEOUT,
    check_one_library,
    is_rank,
    join,
    library_of,
    mpi4py,
    mpirun,
    of_all,
)
from benchmarks.payload import calls_per_block, pattern, two_copies
from benchmarks.ranks import GROUPS, Rank
from benchmarks.report import describe, markdown
from benchmarks.rows import Row, compare, slowest_by_name

QUICK_SIZES = (4, 1 << 10, 1 << 16, 1 << 20, 1 << 24)
SIZES = tuple(4 ** (i + 1) for i in range(13))  # 4 B to 64 MB
BUDGET_S, QUICK_BUDGET_S = 6.0, 2.0
ALLREDUCE = "MPI_Allreduce"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-np", type=int, default=2, help="ranks")
    parser.add_argument("--mpirun", help="that of the MPI to measure; hvdrun finds one")
    parser.add_argument("--quick", action="store_true", help="fewer sizes, less time for each")
    parser.add_argument("--backend", default="hvd:transport=mpi", help="what is measured")
    parser.add_argument("--link", metavar="RATE", help="ranks on hosts behind such links: 1gbit")
    parser.add_argument("--per-host", type=int, default=1, metavar="N", help="ranks on each")
    parser.add_argument("--bind", action="store_true", help="each rank to a core")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write one JSON line per row")
    return parser.parse_args()


def with_groups(rank: Rank, backend: str) -> Rank:
    def groups(contender: Contender) -> tuple[dist.ProcessGroup, ...]:
        return tuple(contender.new_group(TIMEOUT) for _ in range(GROUPS))

    ours, stock = Contender.parse(backend), Contender.parse("gloo")
    contenders = {"backend": ours, "baseline": stock}
    return replace(rank, backend=groups(ours), baseline=groups(stock), contenders=contenders)


def trials(rank: Rank, mpi: Any, count: int) -> tuple[Trial, dict[str, list[Trial]]]:
    """The memory limit and the contenders, for sums of `count` float32."""
    calls = calls_per_block(4 * count)
    tensors = [torch.empty(count) for _ in range(calls)]
    source = pattern(count) * (rank.rank + 1)
    expected = pattern(count) * (rank.size * (rank.size + 1) // 2)

    def fill() -> None:
        for tensor in tensors:
            tensor.copy_(source)

    def check() -> None:
        assert all(torch.equal(tensor, expected) for tensor in tensors), "wrong sum"

    def over(group: dist.ProcessGroup) -> Trial:
        return Trial(calls, fill, lambda i: dist.all_reduce(tensors[i], group=group), check)

    def plain(communicator: Any) -> Trial:
        arrays = [tensor.numpy() for tensor in tensors]
        return Trial(calls, fill, lambda i: communicator.Allreduce(mpi.IN_PLACE, arrays[i]), check)

    contenders = {
        "backend": [over(group) for group in rank.backend],
        "baseline": [over(group) for group in rank.baseline],
        "plain": [plain(mpi.COMM_WORLD.Dup()) for _ in rank.backend],
    }
    return two_copies(source, tensors), contenders


def target(baseline: str, nbytes: int, link: str | None, crowded: bool) -> float | None:
    """The ratio aimed at: 0.9 of the plain loop's bandwidth, three times its latency.

    `crowded`: there are fewer cores than ranks.
    """
    if baseline != ALLREDUCE:
        return None if link else 1.0
    if nbytes >= 1 << 20:
        return 1 / 0.9
    return 3.0 if nbytes <= 1 << 10 and not crowded else None


def bind(cores: Sequence[int]) -> None:
    """Has this rank run on one of them only, in turn."""
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})


def measure(options: argparse.Namespace) -> Iterator[Row]:
    """On every rank; the rows are rank 0's."""
    cores = sorted(os.sched_getaffinity(0))
    if options.bind:
        bind(cores)
    mpi = mpi4py()
    rank = with_groups(join(), options.backend)
    check_one_library()
    names = {"baseline": "gloo", "plain": f"{ALLREDUCE} of {library_of(mpi)}"}
    pids = of_all(rank, os.getpid())
    bus_factor = 2 * (rank.size - 1) / rank.size
    budget_s = QUICK_BUDGET_S if options.quick else BUDGET_S
    for nbytes in QUICK_SIZES if options.quick else SIZES:
        load = Load(pids)
        blocks = interleave(rank, *trials(rank, mpi, nbytes // 4), budget_s)
        everyones = of_all(rank, blocks)
        if rank.rank == 0:
            slowest = slowest_by_name(everyones)
            limit = slowest["limit"]
            if options.link and options.per_host == 1:
                limit = link_limit(options.link, bus_factor * nbytes)
            for baseline, name in names.items():
                yield compare(
                    slowest["backend"],
                    slowest[baseline],
                    limit,
                    op="all_reduce",
                    size=nbytes,
                    bus_factor=bus_factor,
                    world_size=rank.size,
                    backend=options.backend,
                    baseline=name,
                    target=target(
                        name.partition(" ")[0], nbytes, options.link, rank.size > len(cores)
                    ),
                    foreign=load.foreign(),
                    link=options.link,
                )


def main() -> None:
    options = parse()
    if is_rank():
        machine = facts()  # with all its cores
        rows = [row.as_json() for row in measure(options)]
        if dist.get_rank() == 0 and options.json:
            lines = [json.dumps(row | {"machine": machine}) for row in rows]
            options.json.write_text("".join(f"{line}\n" for line in lines))
        elif dist.get_rank() == 0:
            print(f"{describe(machine)}\n\n{markdown(rows)}")
        dist.destroy_process_group()
        return
    with tempfile.TemporaryDirectory() as folder:
        file: Path = options.json or Path(folder, "rows.jsonl")
        script = ["benchmarks.mpi", *sys.argv[1:], "--json", str(file.resolve())]
        mpirun(script, options.np, options.mpirun, options.link, options.per_host)
        found = map(json.loads, file.read_text().splitlines())
        print(f"{describe(facts())}\n\n{markdown(found)}")


if __name__ == "__main__":
    main()

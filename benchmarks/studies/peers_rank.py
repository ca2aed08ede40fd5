"""What the study of peers runs on its ranks, which mpirun starts.

    python -m benchmarks.studies.peers_rank PLACE ALGORITHM SECONDS FILE

Writes the rows of a run to FILE, as JSON lines. PLACE is "one host" or the rate of links, ALGORITHM
"" or what Open MPI was told to take.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks import test_ddp
from benchmarks.contenders import HOROVOD, Contender
from benchmarks.interleave import Trial, interleave
from benchmarks.machine import Load
from benchmarks.models import Shape
from benchmarks.mpirun import TIMEOUT, check_one_library, join, library_of, mpi4py, of_all
from benchmarks.payload import calls_per_block, pattern, relative_error, two_copies
from benchmarks.peers import why_not_horovod
from benchmarks.ranks import Rank
from benchmarks.rows import slowest_by_name
from benchmarks.studies.ddp_steps import rows
from benchmarks.studies.peers_report import GRADIENTS, MPI, STEP, STOCK
from benchmarks.studies.results import append
from benchmarks.studies.steps_cells import ONE_HOST
from benchmarks.test_all_reduce import in_flight, sync
from benchmarks.test_fusion import ALL, in_bytes

SIZES = (4, 1 << 10, 64 << 10, 1 << 20, 16 << 20)
BACKENDS = ("hvd", "hvd:transport=mpi", STOCK)
CODECS = ("hvd:compression=fp16", "hvd:compression=int8")  # between hosts
HOOKS = ("gloo+fp16_compress_hook", "gloo+powerSGD_hook")
GROUPS = 2  # of each contender; they take turns

Issue = Callable[[list[torch.Tensor]], None]


def contenders(place: str) -> list[str]:
    """Of all_reduce, but for plain MPI; why another cannot be had is printed."""
    names = [*BACKENDS, *(CODECS if place != ONE_HOST else ())]
    if reason := why_not_horovod(None if place == ONE_HOST else place):
        if dist.get_rank() == 0:
            print(f"without {HOROVOD}: {reason}", flush=True)
        return names
    return [*names, HOROVOD]


def new_groups(contender: Contender) -> list[dist.ProcessGroup]:
    return [contender.new_group(TIMEOUT) for _ in range(GROUPS)]


def issues(names: Sequence[str], mpi: Any, flying: bool) -> dict[str, list[Issue]]:
    """How each contender sums tensors: one by one, or all in flight."""
    found: dict[str, list[Issue]] = {}
    for name in names:
        groups = new_groups(Contender.parse(name))
        over = in_flight if flying else sync
        found[name] = [partial(over, group=group) for group in groups]

    def one_by_one(communicator: Any, tensors: list[torch.Tensor]) -> None:
        for tensor in tensors:
            communicator.Allreduce(mpi.IN_PLACE, tensor.numpy())

    def all_at_once(communicator: Any, tensors: list[torch.Tensor]) -> None:
        mpi.Request.Waitall([communicator.Iallreduce(mpi.IN_PLACE, t.numpy()) for t in tensors])

    plain = all_at_once if flying else one_by_one
    communicators = [mpi.COMM_WORLD.Dup() for _ in range(GROUPS)]
    found[MPI] = [partial(plain, communicator) for communicator in communicators]
    return found


def sums(
    rank: Rank, shapes: Sequence[Shape], issues: dict[str, list[Issue]]
) -> tuple[Trial, dict[str, list[Trial]]]:
    """The memory limit, and a call of each contender that sums one tensor of every shape."""
    calls = calls_per_block(in_bytes([*shapes]), len(shapes))
    tensors = [torch.empty(shape) for _ in range(calls) for shape in shapes]
    contents = pattern(max(tensor.numel() for tensor in tensors))

    def of(tensor: torch.Tensor, factor: int) -> torch.Tensor:
        return contents[: tensor.numel()].view_as(tensor) * factor

    def fill() -> None:
        for tensor in tensors:
            tensor.copy_(of(tensor, rank.rank + 1))

    def trial(name: str, issue: Issue) -> Trial:
        bound = 0.0 if name == MPI else Contender.parse(name).tolerance

        def check() -> None:
            for tensor in tensors:
                error = relative_error(tensor, of(tensor, rank.size * (rank.size + 1) // 2))
                assert error <= bound, f"{name}: wrong sum, relative L2 error {error:.2g}"

        return Trial(
            calls, fill, lambda i: issue(tensors[i * len(shapes) : (i + 1) * len(shapes)]), check
        )

    payload = pattern(in_bytes([*shapes]) // 4)
    limit = two_copies(payload, [torch.empty_like(payload) for _ in range(calls)])
    return limit, {name: [trial(name, each) for each in some] for name, some in issues.items()}


def cases(
    rank: Rank, place: str, algorithm: str, mpi: Any
) -> Iterator[tuple[str, int, Trial, dict[str, list[Trial]]]]:
    """What is measured in a place, or of an algorithm: its name, bytes, limit and contenders."""
    names = contenders(place) if not algorithm else ["hvd", STOCK]
    one_by_one = issues(names, mpi, flying=False)
    for size in SIZES:
        yield "all_reduce", size, *sums(rank, [(size // 4,)], one_by_one)
    if not algorithm:
        flying = issues(names, mpi, flying=True)
        yield GRADIENTS, in_bytes(ALL), *sums(rank, ALL, flying)
        trained = [name for name in (*names, *HOOKS) if name != HOROVOD]
        each = {name: Contender.parse(name) for name in trained}
        sides = {name: (contender, new_groups(contender)) for name, contender in each.items()}
        yield STEP, test_ddp.NBYTES, *test_ddp.trials(rank, sides)


def measure(place: str, algorithm: str, budget_s: float, file: Path) -> None:
    """On every rank; rank 0 appends the rows to `file`."""
    mpi = mpi4py()
    rank = join()
    pids = of_all(rank, os.getpid())
    for op, size, limit, trials in cases(rank, place, algorithm, mpi):
        check_one_library()
        load = Load(pids)
        blocks = interleave(rank, limit, trials, budget_s)
        everyones = of_all(rank, blocks)
        if rank.rank == 0:
            measured = rows(
                slowest_by_name(everyones),
                STOCK,
                {},
                op=op,
                size=size,
                world_size=rank.size,
                foreign=load.foreign(),
                link=None if place == ONE_HOST else place,
            )
            append(file, measured, place=place, algorithm=algorithm, library=library_of(mpi))


def main() -> None:
    place, algorithm, seconds, file = sys.argv[1:]
    measure(place, algorithm, float(seconds), Path(file))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

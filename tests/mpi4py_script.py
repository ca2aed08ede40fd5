"""A program that starts MPI itself, by mpi4py, with the thread level in its first argument, and has
its ranks joined by hvd: `mpirun -np 2 mpi4py_script.py serialized ADDRESS PORT`.

Prints "all well" on every rank, and as the last thing that Python does whether MPI still runs.
"""

from __future__ import annotations

import atexit
import sys
from datetime import timedelta


def say_how_it_ends() -> None:
    print("MPI was finalised" if MPI.Is_finalized() else "MPI runs on", flush=True)


atexit.register(say_how_it_ends)  # before all others, so it is called after them

import mpi4py  # noqa: E402

mpi4py.rc.thread_level = sys.argv[1]
mpi4py.rc.errors = "default"  # which ends the job

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from mpi4py import MPI  # noqa: E402

from calls import check_group, cpu_backend  # noqa: E402
from torch_hvd._load import _C  # noqa: E402


def check_groups_are_made_beside_messages(rank: int) -> None:
    """Where calls take turns, making a group does not keep messages from going on."""
    tensor = torch.full((1 << 22,), float(rank))
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    if rank == 0:
        work.wait()
    group = dist.new_group()
    work.wait()
    assert torch.all(tensor == 1)
    check_group(group)
    dist.destroy_process_group(group)


def check_errors_are_ours(rank: int) -> None:
    """One of ours ends nothing, and what would end the job for one of the program's stays."""
    ranks = [_C.MpiRank(number, -1, by_tcp=False) for number in range(2)]
    try:
        _C.mpi_transport(rank, ranks, -2, 1.0, False, timedelta(seconds=9))  # no tag of MPI's
    except RuntimeError as error:
        assert "MPI_Comm_create_group: " in str(error), error
    else:
        raise AssertionError("a group was made with a tag that cannot be")
    assert MPI.COMM_WORLD.Get_errhandler() == MPI.ERRORS_ARE_FATAL


def main() -> None:
    torch.set_num_threads(1)
    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    store = dist.TCPStore(sys.argv[2], int(sys.argv[3]), is_master=False)
    dist.init_process_group("hvd", store=store, rank=rank, world_size=size)
    assert cpu_backend().transport == "mpi"
    check_group()
    check_groups_are_made_beside_messages(rank)
    check_errors_are_ours(rank)
    assert MPI.COMM_WORLD.allreduce(1 << rank) == 3
    check_group()
    dist.destroy_process_group()
    assert MPI.COMM_WORLD.allreduce(1 << rank) == 3
    print("all well", flush=True)


if __name__ == "__main__":
    main()

"""A part of the contract as a program that a launcher of MPI starts: `mpirun -np 3 mpi_script.py`.

Prints "all well" on every rank.
"""

from __future__ import annotations

import argparse
import os
from datetime import timedelta

import torch
import torch.distributed as dist

import rows
import verbs
from calls import check_group, cpu_backend
from rows import Row
from torch_hvd import _mpi

_SHAPES = (*rows.SMALL_SHAPES, *rows.LARGE_SHAPES)


def rank_and_size() -> tuple[int, int]:
    """As Open MPI or Hydra say in the environment, but numbered from the other end."""
    for rank, size in (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")):
        if rank in os.environ:
            return int(os.environ[size]) - 1 - int(os.environ[rank]), int(os.environ[size])
    raise RuntimeError("no launcher of MPI has started this")


def check_verbs() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for shape in _SHAPES:
            for check in verbs.REDUCING:
                check(Row(dtype, "SUM", shape, False))
            for check in verbs.MOVING:
                check(Row(dtype, "SUM", shape, True))


def check_messages(rank: int, size: int) -> None:
    previous = (rank - 1) % size
    for tag, source in ((7, previous), (8, None)):
        got = torch.empty(300_000)
        receive = dist.irecv(got, source, tag=tag)
        dist.send(torch.full((300_000,), float(rank)), (rank + 1) % size, tag=tag)
        assert receive is not None
        receive.wait()
        assert torch.all(got == previous)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", default="mpi", help="what is to be had")
    parser.add_argument("--size", type=int, help="that many of the processes, and no others")
    parser.add_argument("--hosts", help="by rank, a letter for its host")
    parser.add_argument("address", help="of the store")
    parser.add_argument("port", type=int)
    return parser.parse_args()


def main() -> None:
    torch.set_num_threads(1)
    if os.environ.get("HVD_TRANSPORT", "auto") == "auto":
        _mpi.FAST_NETWORKS = ("/sys/class/net",)  # or it would take Gloo between hosts
    options = parsed()
    rank, size = rank_and_size()
    size = options.size or size
    if rank >= size:
        return
    if options.hosts:
        os.environ["HVD_HOST_ID"] = options.hosts[rank]
    store = dist.TCPStore(options.address, options.port, is_master=False)
    dist.init_process_group(
        "hvd", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30)
    )
    transport = cpu_backend().transport
    assert transport == options.transport, transport
    check_verbs()
    check_messages(rank, size)
    for _ in range(2):  # MPI starts once, groups come and go
        group = dist.new_group([0, size - 1])
        if rank in (0, size - 1):
            check_group(group)
            dist.destroy_process_group(group)
    check_group()
    print("all well", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Every asynchronous call: `start(count)` returns its Work and the tensors that it fills."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

Start = Callable[[int], tuple[dist.Work, list[torch.Tensor]]]


def start_all_reduce(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    tensor = torch.ones(count)
    return dist.all_reduce(tensor, async_op=True), [tensor]


def start_reduce(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    tensor = torch.ones(count)
    return dist.reduce(tensor, dst=0, async_op=True), [tensor]


def start_broadcast(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    tensor = torch.full((count,), float(dist.get_rank()))
    return dist.broadcast(tensor, src=0, async_op=True), [tensor]


def start_all_gather(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    outputs = [torch.zeros(count) for _ in range(dist.get_world_size())]
    return dist.all_gather(outputs, torch.ones(count), async_op=True), outputs


def start_all_gather_into_tensor(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    output = torch.zeros(dist.get_world_size() * count)
    return dist.all_gather_into_tensor(output, torch.ones(count), async_op=True), [output]


def start_scatter(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    output = torch.zeros(count)
    inputs = [torch.ones(count)] * dist.get_world_size() if dist.get_rank() == 0 else None
    return dist.scatter(output, inputs, src=0, async_op=True), [output]


def start_reduce_scatter(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    output = torch.zeros(count)
    pieces = [torch.ones(count)] * dist.get_world_size()
    return dist.reduce_scatter(output, pieces, async_op=True), [output]


def start_reduce_scatter_tensor(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    output = torch.zeros(count)
    whole = torch.ones(dist.get_world_size() * count)
    return dist.reduce_scatter_tensor(output, whole, async_op=True), [output]


def start_all_to_all(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    outputs = [torch.zeros(count) for _ in range(dist.get_world_size())]
    return dist.all_to_all(outputs, [torch.ones(count)] * len(outputs), async_op=True), outputs


def start_all_to_all_single(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    output = torch.zeros(dist.get_world_size() * count)
    return dist.all_to_all_single(output, torch.ones_like(output), async_op=True), [output]


def start_barrier(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    return dist.barrier(async_op=True), []


_sends: list[object] = []  # dropping one is a test of its own


def start_send_recv(count: int) -> tuple[dist.Work, list[torch.Tensor]]:
    """The recv of a message from the previous rank in the ring; alone, an all_reduce."""
    rank, size = dist.get_rank(), dist.get_world_size()
    if size == 1:
        return start_all_reduce(count)
    received = torch.zeros(count)
    work = dist.irecv(received, src=(rank - 1) % size)
    _sends.append(dist.isend(torch.ones(count), dst=(rank + 1) % size))
    assert work is not None
    return work, [received]


STARTS = (
    start_all_reduce,
    start_reduce,
    start_broadcast,
    start_all_gather,
    start_all_gather_into_tensor,
    start_scatter,
    start_reduce_scatter,
    start_reduce_scatter_tensor,
    start_all_to_all,
    start_all_to_all_single,
    start_barrier,
    start_send_recv,
)

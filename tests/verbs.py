"""Every collective of c10d as a check: make the call that a row describes, compare all it wrote.

Reduced results are compared with the same expected tensor on every rank, so ranks that pass hold
identical ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _get_default_group

from rows import Row, laid_out, reduce_op

Check = Callable[[Row], None]


def roots(row: Row) -> tuple[int, ...]:
    return (0,) if row.size == 1 else (0, row.size - 1)


def all_reduce(row: Row) -> None:
    tensor = row.input()
    row.call(dist.all_reduce, tensor, op=reduce_op(row.op))
    row.equal(tensor, row.reduced())


def all_reduce_coalesced(row: Row) -> None:
    tensors = [row.input(slot=slot, grow=slot) for slot in range(3)]
    row.call(dist.all_reduce_coalesced, tensors, op=reduce_op(row.op))
    for slot, tensor in enumerate(tensors):
        row.equal(tensor, row.reduced(slot, grow=slot), f"tensor {slot}")


def all_reduce_in_one_go(row: Row) -> None:
    tensors = [row.input(slot=slot, grow=slot) for slot in range(3)]
    op = reduce_op(row.op)
    with dist._coalescing_manager(async_ops=row.async_op) as coalesced:
        for tensor in tensors:
            dist.all_reduce(tensor, op=op)
    if row.async_op:
        coalesced.wait()
    for slot, tensor in enumerate(tensors):
        row.equal(tensor, row.reduced(slot, grow=slot), f"tensor {slot}")


def reduce(row: Row) -> None:
    for root in roots(row):
        tensor = row.input()
        row.call(dist.reduce, tensor, dst=root, op=reduce_op(row.op))
        expected = row.reduced() if row.rank == root else row.values(row.rank)
        row.equal(tensor, expected, f"root {root}")


def reduce_scatter(row: Row) -> None:
    output = row.output()
    inputs = [row.input(slot=slot) for slot in range(row.size)]
    row.call(dist.reduce_scatter, output, inputs, op=reduce_op(row.op))
    row.equal(output, row.reduced(slot=row.rank))
    for slot, tensor in enumerate(inputs):
        row.equal(tensor, row.values(row.rank, slot), f"input {slot}")


def reduce_scatter_uneven(row: Row) -> None:
    output = row.output(grow=row.rank)
    inputs = [row.input(slot=slot, grow=slot) for slot in range(row.size)]
    row.call(dist.reduce_scatter, output, inputs, op=reduce_op(row.op))
    row.equal(output, row.reduced(slot=row.rank, grow=row.rank))


def reduce_scatter_tensor(row: Row) -> None:
    joined = torch.stack if row.shape.label == "scalar" else torch.cat
    for join in (torch.stack, joined):
        output = row.output()
        tensor = join([row.values(row.rank, slot) for slot in range(row.size)])
        row.call(dist.reduce_scatter_tensor, output, tensor, op=reduce_op(row.op))
        row.equal(output, row.reduced(slot=row.rank), join.__name__)


def reduce_scatter_in_one_go(row: Row) -> None:
    outputs = [row.output(grow=k) for k in range(2)]
    inputs = [
        torch.stack([row.values(row.rank, s, grow=k) for s in range(row.size)]) for k in range(2)
    ]
    op = reduce_op(row.op)
    with dist._coalescing_manager(async_ops=row.async_op) as coalesced:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.reduce_scatter_tensor(output, tensor, op=op)
    if row.async_op:
        coalesced.wait()
    for k, output in enumerate(outputs):
        row.equal(output, row.reduced(slot=row.rank, grow=k), f"tensor {k}")


def broadcast(row: Row) -> None:
    for root in roots(row):
        tensor = row.input()
        row.call(dist.broadcast, tensor, src=root)
        row.equal(tensor, row.values(root), f"root {root}")


def all_gather(row: Row) -> None:
    outputs = [row.output() for _ in range(row.size)]
    tensor = row.input()
    row.call(dist.all_gather, outputs, tensor)
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank), f"from rank {rank}")
    row.equal(tensor, row.values(row.rank), "input")


def all_gather_uneven(row: Row) -> None:
    outputs = [row.output(grow=2 * rank) for rank in range(row.size)]
    row.call(dist.all_gather, outputs, row.input(grow=2 * row.rank))
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank, grow=2 * rank), f"from rank {rank}")


def all_gather_views(row: Row) -> None:
    """Outputs that are slices, then columns, of one buffer; the input is this rank's own output."""
    dims = row.shape.of(row.dtype)
    for buffer, dim in (
        (torch.empty(row.size, *dims, dtype=row.dtype), 0),
        (torch.empty(*dims, row.size, dtype=row.dtype), -1),
    ):
        outputs = list(buffer.unbind(dim))
        outputs[row.rank].copy_(row.values(row.rank))
        row.call(dist.all_gather, outputs, outputs[row.rank])
        for rank, output in enumerate(buffer.unbind(dim)):
            row.equal(output, row.values(rank), f"from rank {rank}, views along {dim}")


def all_gather_into_tensor(row: Row) -> None:
    dims = row.shape.of(row.dtype)
    joined = (row.size * dims[0], *dims[1:]) if dims else (row.size,)
    expected = torch.stack([row.values(rank) for rank in range(row.size)])
    for shape in (joined, (row.size, *dims)):
        output = torch.empty(shape, dtype=row.dtype)
        row.call(dist.all_gather_into_tensor, output, row.input())
        row.equal(output, expected.reshape(shape), f"output {shape}")


def all_gather_in_one_go(row: Row) -> None:
    outputs = [
        torch.empty(row.size, *row.shape.of(row.dtype, k), dtype=row.dtype) for k in range(2)
    ]
    inputs = [row.input(slot=k, grow=k) for k in range(2)]
    with dist._coalescing_manager(async_ops=row.async_op) as coalesced:
        for output, tensor in zip(outputs, inputs, strict=True):
            dist.all_gather_into_tensor(output, tensor)
    if row.async_op:
        coalesced.wait()
    for k, output in enumerate(outputs):
        for rank in range(row.size):
            row.equal(output[rank], row.values(rank, k, grow=k), f"tensor {k} from rank {rank}")


def all_gather_coalesced(row: Row) -> None:
    outputs = [[row.output(grow=k) for k in range(2)] for _ in range(row.size)]
    row.call(dist.all_gather_coalesced, outputs, [row.input(slot=k, grow=k) for k in range(2)])
    for rank, lists in enumerate(outputs):
        for k, output in enumerate(lists):
            row.equal(output, row.values(rank, k, grow=k), f"tensor {k} from rank {rank}")


def gather(row: Row) -> None:
    for root in roots(row):
        outputs = [row.output() for _ in range(row.size)] if row.rank == root else None
        row.call(dist.gather, row.input(), outputs, dst=root)
        for rank, output in enumerate(outputs or ()):
            row.equal(output, row.values(rank), f"root {root}, from rank {rank}")


def gather_into(
    output: Tensor, tensor: Tensor, dst: int, group: Any = None, async_op: bool = False
) -> Any:
    """`dist.gather_single`, which torch has from 2.15 on; the backend always has it."""
    options = dist.GatherOptions()
    options.rootRank, options.asyncOp = dst, async_op
    backend: Any = (group or _get_default_group())._get_backend(tensor.device)
    work = backend.gather_into_tensor(output, tensor, options)
    if not async_op:
        work.wait()
    return work


def gather_into_tensor(row: Row) -> None:
    dims = row.shape.of(row.dtype)
    expected = torch.stack([row.values(rank) for rank in range(row.size)])
    for root in roots(row):
        output = torch.empty(row.size, *dims, dtype=row.dtype)
        if row.shape.layout != "contiguous":
            output = torch.empty(*dims, row.size, dtype=row.dtype).movedim(-1, 0)
        if row.rank != root:
            output = torch.empty(0)  # which stands for none
        row.call(gather_into, output, row.input(), dst=root)
        if row.rank == root:
            row.equal(output, expected, f"root {root}")


def scatter(row: Row) -> None:
    for root in roots(row):
        inputs = [row.input(slot=rank) for rank in range(row.size)] if row.rank == root else None
        output = row.output()
        row.call(dist.scatter, output, inputs, src=root)
        row.equal(output, row.values(root, row.rank), f"root {root}")


def all_to_all(row: Row) -> None:
    outputs = [row.output() for _ in range(row.size)]
    row.call(dist.all_to_all, outputs, [row.input(slot=rank) for rank in range(row.size)])
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank, row.rank), f"from rank {rank}")


def all_to_all_uneven(row: Row) -> None:
    """Rank s sends s + d more rows to rank d."""
    outputs = [row.output(grow=rank + row.rank) for rank in range(row.size)]
    inputs = [row.input(slot=rank, grow=row.rank + rank) for rank in range(row.size)]
    row.call(dist.all_to_all, outputs, inputs)
    for rank, output in enumerate(outputs):
        row.equal(output, row.values(rank, row.rank, grow=rank + row.rank), f"from rank {rank}")


def all_to_all_single(row: Row) -> None:
    output = laid_out((row.size, *row.shape.of(row.dtype)), row.dtype, "contiguous")
    tensor = torch.stack([row.values(row.rank, slot) for slot in range(row.size)])
    row.call(dist.all_to_all_single, output, tensor)
    row.equal(output, torch.stack([row.values(rank, row.rank) for rank in range(row.size)]))


def all_to_all_single_uneven(row: Row) -> None:
    """Rank s sends s + d more rows to rank d, all in one tensor with splits."""
    sent = [row.values(row.rank, rank, grow=row.rank + rank) for rank in range(row.size)]
    expected = [row.values(rank, row.rank, grow=row.rank + rank) for rank in range(row.size)]
    sent, expected = ([t.reshape(-1) if t.dim() == 0 else t for t in ts] for ts in (sent, expected))
    output = torch.empty_like(torch.cat(expected))
    row.call(
        dist.all_to_all_single,
        output,
        torch.cat(sent),
        [len(t) for t in expected],
        [len(t) for t in sent],
    )
    row.equal(output, torch.cat(expected))


REDUCING: tuple[Check, ...] = (
    all_reduce,
    all_reduce_coalesced,
    all_reduce_in_one_go,
    reduce,
    reduce_scatter,
    reduce_scatter_uneven,
    reduce_scatter_tensor,
    reduce_scatter_in_one_go,
)
MOVING: tuple[Check, ...] = (
    broadcast,
    all_gather,
    all_gather_uneven,
    all_gather_views,
    all_gather_into_tensor,
    all_gather_in_one_go,
    all_gather_coalesced,
    gather,
    gather_into_tensor,
    scatter,
    all_to_all,
    all_to_all_uneven,
    all_to_all_single,
    all_to_all_single_uneven,
)

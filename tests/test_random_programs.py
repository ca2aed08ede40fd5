"""Random programs, on hvd and on stock gloo, with the same inputs in the same processes.

A program is a list of steps that every rank draws from the same seed; the test id holds it. On hvd
the steps run asynchronously or not and are waited for at some later time and in some way, as each
rank draws for itself; on gloo they run one by one. Integers must come out equal, floats within
rounding, and what all ranks get must have the same bits on all of them. Steps keep to what gloo
does right.
"""

from __future__ import annotations

import functools
import random
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import standin
import torch_hvd
from parity import gloo_group
from rows import name

FLOATS = (torch.float16, torch.float32, torch.float64)
INTEGERS = (torch.int8, torch.uint8, torch.int32, torch.int64)
# Of these a group has a buffer, in views of which it works. 16-bit sums would overflow.
IN_VIEWS = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
BUFFER = 100_000  # elements
SETTINGS: tuple[dict[str, Any], ...] = (
    {"fusion_threshold": 0},
    {"fusion_threshold": 1000},
    {"fusion_cutoff": 1 << 20},
    {"check": True},
)
STEPS = 60
SEEDS = 25


@dataclass(frozen=True)
class Step:
    verb: str
    dtype: torch.dtype
    op: str
    count: int
    group: int
    root: int  # rank in the group
    view: slice | None  # of the buffer; None for a tensor of its own
    number: int


@dataclass
class Run:
    """What one execution of a program holds: its buffers, and what the steps gave."""

    buffers: dict[tuple[int, torch.dtype], Tensor]
    results: dict[int, list[Tensor]] = field(default_factory=dict)


def draw_count(draw: random.Random) -> int:
    kind = draw.random()
    if kind < 0.1:
        return draw.choice((0, 1))
    if kind < 0.6:
        return draw.randint(1, 300)
    if kind < 0.85:
        return draw.randint(300, 20_000)
    if kind < 0.97:
        return draw.choice((8191, 8192, 16_384, 16_385, 65_536, 70_001))
    return draw.randint(100_000, 2_000_000)


def draw_step(draw: random.Random, number: int, sizes: list[int]) -> Step:
    verb = draw.choices(list(VERBS), [8 if verb == "all_reduce" else 1 for verb in VERBS])[0]
    group = draw.choice(range(len(sizes)))
    count = draw_count(draw)
    if verb not in ("all_reduce", "broadcast"):
        count //= 4
    view = None
    if verb in ("all_reduce", "broadcast") and draw.random() < 0.4:
        count = min(count, BUFFER)
        begin = draw.choice((0, draw.randint(0, BUFFER - count)))
        view = slice(begin, begin + count)
    dtype = draw.choice(IN_VIEWS if view else FLOATS + INTEGERS)
    if dtype.itemsize * count > 8 << 20:
        dtype = torch.float32
    ops = ["SUM", "MIN", "MAX"]
    if view is None:  # what grows must not be reduced again
        ops += ["PRODUCT"]
    if not dtype.is_floating_point:
        ops += ["BAND", "BOR", "BXOR"]
    op = "SUM" if verb == "reduce_scatter_tensor" else draw.choice(ops)
    root = draw.randrange(sizes[group])
    return Step(verb, dtype, op, count, group, root, view, number)


def filled(seed: str, dtype: torch.dtype, *shape: int) -> Tensor:
    """Random values; positive where a sum could cancel what it had right."""
    generator = torch.Generator().manual_seed(random.Random(seed).getrandbits(60))
    if dtype.is_floating_point:
        return (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def all_reduce(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    op = getattr(dist.ReduceOp, step.op)
    return dist.all_reduce(x, op=op, group=group, async_op=async_op), [x]


def broadcast(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    return dist.broadcast(x, group_src=step.root, group=group, async_op=async_op), [x]


def reduce(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    op = getattr(dist.ReduceOp, step.op)
    work = dist.reduce(x, group_dst=step.root, op=op, group=group, async_op=async_op)
    return work, [x] if dist.get_rank(group) == step.root else []


def all_gather(_: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    outputs = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    return dist.all_gather(outputs, x, group=group, async_op=async_op), outputs


def all_gather_into_tensor(
    _: Step, x: Tensor, group: Any, async_op: bool
) -> tuple[Any, list[Tensor]]:
    output = x.new_empty(dist.get_world_size(group) * len(x))
    return dist.all_gather_into_tensor(output, x, group=group, async_op=async_op), [output]


def gather(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    outputs = []
    if dist.get_rank(group) == step.root:
        outputs = [torch.empty_like(x) for _ in range(dist.get_world_size(group))]
    work = dist.gather(x, outputs or None, group_dst=step.root, group=group, async_op=async_op)
    return work, outputs


def scatter(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    inputs = None
    if dist.get_rank(group) == step.root:
        inputs = [x + rank for rank in range(dist.get_world_size(group))]
    output = torch.empty_like(x)
    work = dist.scatter(output, inputs, group_src=step.root, group=group, async_op=async_op)
    return work, [output]


def reduce_scatter_tensor(
    _: Step, x: Tensor, group: Any, async_op: bool
) -> tuple[Any, list[Tensor]]:
    inputs = torch.cat([x + rank for rank in range(dist.get_world_size(group))])
    output = torch.empty_like(x)
    return dist.reduce_scatter_tensor(output, inputs, group=group, async_op=async_op), [output]


def all_to_all_single(_: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    inputs = torch.cat([x + rank for rank in range(dist.get_world_size(group))])
    output = torch.empty_like(inputs)
    return dist.all_to_all_single(output, inputs, group=group, async_op=async_op), [output]


def all_to_all_uneven(
    step: Step, x: Tensor, group: Any, async_op: bool
) -> tuple[Any, list[Tensor]]:
    """all_to_all_single with a number of values of its own for each pair of ranks."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    draw = random.Random(str(step))
    counts = [[draw.choice((0, len(x) // 2, len(x))) for _ in range(size)] for _ in range(size)]
    gives, takes = counts[rank], [row[rank] for row in counts]
    inputs = torch.cat([x[:count] + other for other, count in enumerate(gives)])
    output = x.new_empty(sum(takes))
    work = dist.all_to_all_single(output, inputs, takes, gives, group=group, async_op=async_op)
    return work, [output]


def all_reduce_coalesced(
    step: Step, x: Tensor, group: Any, async_op: bool
) -> tuple[Any, list[Tensor]]:
    op = getattr(dist.ReduceOp, step.op)
    parts = [part.clone() for part in x.chunk(3)]
    return dist.all_reduce_coalesced(parts, op=op, group=group, async_op=async_op), parts


class Works(list[Any]):
    """Of several calls, waited for as one."""

    def wait(self) -> None:
        for work in self:
            work.wait()


def finish(work: Any, draw: random.Random) -> None:
    """Wait for it, or for its future, or look again and again."""
    only_waits = dist.get_backend() == standin.NAME  # what Gloo itself returns there
    for each in work if isinstance(work, Works) else [work]:
        way = draw.random()
        if isinstance(each, dist.Work) and not only_waits:  # all_reduce_coalesced has a future
            if way < 0.2:
                each.get_future().wait()
            elif way < 0.3:
                while not each.is_completed():
                    time.sleep(0)
        each.wait()


def send_round(step: Step, x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    """Each rank sends to one other, as far away for all, with the step's number for a tag."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    away = step.root or 1
    if size == 1:
        return None, []
    output = torch.empty_like(x)
    to, source = (rank + away) % size, (rank - away) % size
    works = Works(
        dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, group=group, group_peer=to, tag=step.number),
                dist.P2POp(dist.irecv, output, group=group, group_peer=source, tag=step.number),
            ]
        )
    )
    if async_op:
        return works, [output]
    works.wait()
    return None, [output]


def barrier(_: Step, _x: Tensor, group: Any, async_op: bool) -> tuple[Any, list[Tensor]]:
    return dist.barrier(group=group, async_op=async_op), []


VERBS: dict[str, Callable[[Step, Tensor, Any, bool], tuple[Any, list[Tensor]]]] = {
    verb.__name__: verb
    for verb in (
        all_reduce,
        broadcast,
        reduce,
        all_gather,
        all_gather_into_tensor,
        gather,
        scatter,
        reduce_scatter_tensor,
        all_to_all_single,
        all_to_all_uneven,
        all_reduce_coalesced,
        send_round,
        barrier,
    )
}
ALIKE = ("all_reduce", "broadcast", "all_gather", "all_gather_into_tensor")  # on all ranks


@functools.cache
def groups() -> list[tuple[Any, Any]]:
    """Pairs of hvd and gloo: all ranks, with each of the settings, and all ranks but the first."""
    part = list(range(1, dist.get_world_size()))
    options = [torch_hvd.Options(**settings) for settings in SETTINGS]
    return [
        (dist.group.WORLD, gloo_group()),
        (dist.new_group(part), dist.new_group(part, backend="gloo")),
        *((dist.new_group(pg_options=each), gloo_group()) for each in options),
    ]


def perform(run: Run, step: Step, seed: str, group: Any, async_op: bool) -> Any:
    """Issue one step; its Work, or None."""
    if step.view is None:
        tensor = filled(f"{seed} {step.number}", step.dtype, step.count)
    else:
        tensor = run.buffers[step.group, step.dtype][step.view]
    work, results = VERBS[step.verb](step, tensor, group, async_op)
    if step.view is None:
        run.results[step.number] = results
    return work


def same(step: Step | str, ours: Tensor, gloos: Tensor) -> None:
    """Equal, but for the rounding of each sum in a row of them."""
    dtype = ours.dtype
    eps = torch.finfo(dtype).eps * 4 * STEPS if dtype.is_floating_point else 0.0
    if dtype is torch.float16:
        eps = torch.finfo(dtype).eps * 4  # never reduced twice
    torch.testing.assert_close(ours, gloos, rtol=eps, atol=0.0, msg=lambda text: f"{step}: {text}")


@pytest.mark.ranks(2, 4, hosts=[3], by_name=[3], rails=[3], standin=[2, 3])
@pytest.mark.parametrize("seed", range(SEEDS))
def test_program(seed: int) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    draw = random.Random(f"{seed} of {size}")
    chosen = [groups()[0], groups()[1], groups()[2 + draw.randrange(len(SETTINGS))]]
    steps = [draw_step(draw, number, [size, size - 1, size]) for number in range(STEPS)]
    mine = [step for step in steps if step.group != 1 or rank > 0]
    own_seed = f"{seed} of {size} on {rank}"
    # Only the steps of one group have an order among them, so each group has its own memory.
    buffers = [(group, dtype) for group in range(len(chosen)) for dtype in IN_VIEWS]
    ours, gloos = (
        Run({key: filled(f"{own_seed} {key}", key[1], BUFFER) for key in buffers}) for _ in range(2)
    )

    own = random.Random(own_seed)
    in_flight: list[Any] = []
    for step in mine:
        print(step)
        work = perform(ours, step, own_seed, chosen[step.group][0], own.random() < 0.8)
        if work is not None:
            in_flight.append(work)
        if own.random() < 0.1:
            own.shuffle(in_flight)
            while in_flight and own.random() < 0.8:
                finish(in_flight.pop(), own)
        if own.random() < 0.02:
            time.sleep(own.random() * 0.05)
    for work in in_flight:
        finish(work, own)
    for step in mine:
        perform(gloos, step, own_seed, chosen[step.group][1], async_op=False)

    for step in mine:
        if step.view is None:
            for one, other in zip(
                ours.results[step.number], gloos.results[step.number], strict=True
            ):
                same(step, one, other)
    for group, dtype in buffers:
        what = f"buffer of group {group} and {name(dtype)}"
        same(what, ours.buffers[group, dtype], gloos.buffers[group, dtype])
    require_alike(steps, ours)


def require_alike(steps: list[Step], run: Run) -> None:
    """What all ranks got has the same bits on all of them."""
    shared: list[Any] = []
    written = {key: torch.zeros(BUFFER, dtype=torch.bool) for key in run.buffers if key[0] != 1}
    for step in steps:
        if step.group == 1:
            continue  # not of all ranks
        if step.view is not None:
            written[step.group, step.dtype][step.view] = True
        elif step.verb in ALIKE:
            shared.append((step, run.results[step.number]))
    shared += [(key, [run.buffers[key][where]]) for key, where in written.items()]
    mine = [
        (str(what), [zlib.crc32(t.numpy().tobytes()) for t in tensors]) for what, tensors in shared
    ]
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine, group=gloo_group())
    for each in everyones:
        for one, other in zip(each, mine, strict=True):
            assert one == other

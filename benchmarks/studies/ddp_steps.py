"""Steps of DistributedDataParallel as trials, for the studies that time training.

A step is forward, backward and SGD, at a learning rate of 0: each leaves the same gradients, to be
checked against their mean over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from benchmarks.contenders import Contender, sent_bytes
from benchmarks.interleave import Blocks, Trial
from benchmarks.models import Shape, gradient_shapes
from benchmarks.payload import relative_error
from benchmarks.ranks import Rank
from benchmarks.rows import Row, compare
from benchmarks.test_ddp import gradients
from benchmarks.test_fusion import in_bytes

GROUP_TIMEOUT = timedelta(seconds=60)
ROUNDING = 1e-4  # relative L2 error of gradients summed in another order
# TOLERANCES are for numbers of a normal distribution. Gradients have longer tails: int8 of a block
# with one large number errs by up to sqrt(128) / (254 sqrt(3)) = 2.6 %, and twice in a sum; and
# those of two ranks may partly cancel.
TAILS = 3
LABELS = 10

Batch = tuple[Tensor, Tensor]  # inputs and their labels


@dataclass(frozen=True)
class Workload:
    """A model, what it takes, and how its steps are timed.

    One call in a block is for steps that take long: then an all_reduce of one number stands for
    the untimed step before it.
    """

    model: Callable[[], nn.Module]
    input: Shape
    calls: int = 1  # steps in a block
    groups: int = 1  # of each contender; they take turns

    @property
    def nbytes(self) -> int:
        """Of the gradients."""
        return in_bytes(gradient_shapes(self.model))

    def new_model(self) -> nn.Module:
        """The same on every rank and for every trial."""
        torch.manual_seed(0)
        return self.model()

    def noise(self, count: int, rank: int) -> Batch:
        """A rank's batch of `count` inputs."""
        draw = torch.Generator().manual_seed(rank)
        inputs = torch.randn(count, *self.input, generator=draw)
        return inputs, torch.randint(LABELS, (count,), generator=draw)


class Sent:
    """What this rank sends through hvd between `begin` and `end`, in steps."""

    def __init__(self) -> None:
        self._before = self._bytes = 0.0
        self._steps = 0

    def begin(self) -> None:
        self._before = sent_bytes()

    def end(self, steps: int) -> None:
        self._bytes += sent_bytes() - self._before
        self._steps += steps

    def per_step(self) -> float | None:
        """In bytes; None where hvd sent nothing."""
        return self._bytes / self._steps if self._bytes else None


@dataclass(frozen=True)
class Contest:
    """Steps of the bare model on all ranks at once, and over each contender that can be had."""

    bare: Trial
    trials: dict[str, list[Trial]] = field(default_factory=dict)
    sent: dict[str, Sent] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # why a contender cannot be had
    groups: list[dist.ProcessGroup] = field(default_factory=list)

    def wire_bytes(self) -> dict[str, float | None]:
        return {name: sent.per_step() for name, sent in self.sent.items()}

    def close(self) -> None:
        """End the groups; on all ranks, after the last step."""
        for group in self.groups:
            dist.destroy_process_group(group)


def contest(rank: Rank, work: Workload, batch: Batch, names: Sequence[str]) -> Contest:
    """To be called on all ranks, each with its own batch."""
    alone = work.new_model()
    step = stepper(alone, batch)
    step(0)
    expected = gradients(alone) / rank.size
    alone.zero_grad()
    dist.all_reduce(expected, group=rank.control)
    awake = (lambda: None) if work.calls == 1 else None
    found = Contest(Trial(work.calls, lambda: None, step, alone.zero_grad, awake))
    for name in names:
        contender = Contender.parse(name)
        try:
            groups = [contender.new_group(GROUP_TIMEOUT) for _ in range(work.groups)]
        except ValueError as error:  # on every rank alike
            found.missing[name] = str(error)
            continue
        found.groups.extend(groups)
        sent = found.sent[name] = Sent()
        found.trials[name] = [
            over(group, contender, work, batch, expected, sent) for group in groups
        ]
    return found


def stepper(model: nn.Module, batch: Batch) -> Callable[[int], None]:
    optimizer = SGD(model.parameters(), lr=0.0)

    def step(_: int) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch[0]), batch[1]).backward()
        optimizer.step()

    return step


def over(
    group: dist.ProcessGroup,
    contender: Contender,
    work: Workload,
    batch: Batch,
    expected: Tensor,
    sent: Sent,
) -> Trial:
    """Steps whose gradients travel through a group of the contender."""
    # All ranks make the same model: no need to send it over a slow link.
    model = DistributedDataParallel(work.new_model(), process_group=group, init_sync=False)
    if hook := contender.comm_hook(group):
        model.register_comm_hook(*hook)
    step, word = stepper(model, batch), torch.zeros(1)
    step(0)  # after the first, DDP settles its buckets
    model.zero_grad()

    def check() -> None:
        sent.end(work.calls)
        error = relative_error(gradients(model), expected)
        bound = ROUNDING + TAILS * contender.tolerance
        assert error <= bound, f"wrong gradients: relative L2 error {error:.2g}"
        model.zero_grad()  # no memory for them while others run

    wake = (lambda: dist.all_reduce(word, group=group)) if work.calls == 1 else None
    return Trial(work.calls, sent.begin, step, check, wake)


def rows(
    blocks: Mapping[str, Blocks],
    baseline: str,
    wire_bytes: Mapping[str, float | None],
    **facts: Any,
) -> list[Row]:
    """A row for each contender against the baseline, with `facts` about all of them.

    `blocks` are those of `interleave`, of the slowest rank.
    """
    return [
        compare(
            samples,
            blocks[baseline],
            blocks["limit"],
            bus_factor=1.0,
            backend=name,
            baseline=baseline,
            target=None,
            wire_bytes=wire_bytes.get(name),
            **facts,
        )
        for name, samples in blocks.items()
        if name != "limit"
    ]

"""What does fusion bring? The gradients of a batch, sent as Horovod sends them, on slow links.

    python -m benchmarks.studies.fusion                        # four hosts; as root, ten minutes
    python -m benchmarks.studies.fusion --models resnet50 --links 1gbit
    python -m benchmarks.studies.fusion --report docs/studies  # fusion.md and .png: matplotlib

A *cell* is a model on links of some rate. Its rows are lines of the results file, and a cell that
has some is not measured again. A call is a batch: an asynchronous all_reduce of each gradient,
the last parameter's first, and a wait for all of them; nothing is computed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import combinations, product

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.contenders import Contender
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.machine import Load
from benchmarks.models import Shape, cnn, gradient_shapes, resnet50, vgg16
from benchmarks.payload import pattern
from benchmarks.ranks import Rank, Ranks
from benchmarks.report import markdown
from benchmarks.rows import Row, compare, slowest_by_name
from benchmarks.studies import fusion_report
from benchmarks.studies.fusion_report import CONTENDERS
from benchmarks.studies.responses import Bucket, Tally
from benchmarks.studies.results import append, parser_of, read
from benchmarks.test_all_reduce import bus_factor, in_flight
from benchmarks.test_fusion import in_bytes

GROUP_TIMEOUT = timedelta(seconds=60)
CELL_TIMEOUT_S = 600


@dataclass(frozen=True)
class Effort:
    """A model, and how often its gradients are sent: those of VGG-16 take seconds."""

    model: Callable[[], nn.Module]
    rounds: int
    groups: int  # of each contender; they take turns

    @property
    def shapes(self) -> list[Shape]:
        return gradient_shapes(self.model)


MODELS = {
    "resnet50": Effort(resnet50, rounds=12, groups=2),
    "vgg16": Effort(vgg16, rounds=4, groups=1),
    "cnn": Effort(cnn, rounds=40, groups=2),
}


class Batch:
    """The gradients of one batch on a rank; `fill` and `check` are those of a trial."""

    def __init__(self, rank: Rank, shapes: Sequence[Shape]) -> None:
        self._rank = rank
        self.tensors = [torch.empty(shape) for shape in shapes]
        self._contents = pattern(max(tensor.numel() for tensor in self.tensors))

    def fill(self) -> None:
        for tensor in self.tensors:
            own = self._contents[: tensor.numel()].view_as(tensor)
            torch.mul(own, self._rank.rank + 1, out=tensor)

    def check(self) -> None:
        """In place, for the largest gradient has 411 MB; sums and quotients are exact."""
        total = self._rank.size * (self._rank.size + 1) // 2
        for tensor in self.tensors:
            own = self._contents[: tensor.numel()].view_as(tensor)
            assert torch.equal(tensor.div_(total), own), f"wrong sum, {tuple(tensor.shape)}"


def copies(batch: Batch) -> Trial:
    """The limit: every gradient is copied out and back, by all ranks at once."""
    staging = torch.empty(max(tensor.numel() for tensor in batch.tensors))

    def call(_: int) -> None:
        for tensor in batch.tensors:
            aside = staging[: tensor.numel()].view_as(tensor)
            tensor.copy_(aside.copy_(tensor))

    return Trial(1, lambda: None, call, lambda: None, wake=lambda: None)


def sums(batch: Batch, group: dist.ProcessGroup, tally: Tally) -> Trial:
    """A batch over a group; `tally` gets what hvd makes of it."""
    word = torch.zeros(1)

    def fill() -> None:
        batch.fill()
        tally.begin()

    def check() -> None:
        tally.end()
        batch.check()

    return Trial(
        1,
        fill,
        lambda _: in_flight(batch.tensors, group),
        check,
        wake=lambda: dist.all_reduce(word, group=group),
    )


def reduce_batches(
    rank: Rank, *, model: str, rounds: int
) -> tuple[dict[str, Blocks], dict[str, list[Bucket]]]:
    """Runs on a rank: the samples of each contender, and its responses to a batch."""
    batch = Batch(rank, MODELS[model].shapes[::-1])
    tallies = {name: Tally() for name in CONTENDERS}
    trials: dict[str, list[Trial]] = {}
    count = MODELS[model].groups
    for name in CONTENDERS:
        groups = [Contender.parse(name).new_group(GROUP_TIMEOUT) for _ in range(count)]
        trials[name] = [sums(batch, group, tallies[name]) for group in groups]
    blocks = interleave(rank, copies(batch), trials, budget_s=0.0, rounds=rounds)
    return blocks, {name: tally.per_batch() for name, tally in tallies.items()}


def measure(ranks: Ranks, model: str, rounds: int) -> tuple[list[Row], dict[str, list[Bucket]]]:
    """A row for each two of CONTENDERS, and the responses of rank 0 to a batch of each."""
    load = Load(ranks.start())
    answers = ranks.run(reduce_batches, timeout_s=CELL_TIMEOUT_S, model=model, rounds=rounds)
    blocks = slowest_by_name([answer[0] for answer in answers])
    foreign = load.foreign()
    rows = [
        compare(
            blocks[backend],
            blocks[baseline],
            blocks["limit"],
            op=f"gradients of {model}",
            size=in_bytes(MODELS[model].shapes),
            bus_factor=bus_factor(ranks.size),
            world_size=ranks.size,
            backend=backend,
            baseline=baseline,
            target=None,
            foreign=foreign,
            link=ranks.link,
        )
        for backend, baseline in combinations(CONTENDERS, 2)
    ]
    return rows, answers[0][1]


def main() -> None:
    parser = parser_of("fusion", __doc__)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["resnet50", "vgg16"])
    parser.add_argument("--links", nargs="+", metavar="RATE", default=["1gbit", "5gbit"])
    parser.add_argument("--ranks", type=int, default=4, help="each on a host of its own")
    parser.add_argument("--rounds", type=int, help="how often; else as the model's size allows")
    args = parser.parse_args()

    done = {(row["model"], row["link"], row["world_size"]) for row in read(args.results)}
    for model, link in product(args.models, args.links):
        if (model, link, args.ranks) in done:
            continue
        ranks = Ranks(args.ranks, link=link, groups=0)
        try:
            rows, responses = measure(ranks, model, args.rounds or MODELS[model].rounds)
        finally:
            ranks.close()
        append(args.results, rows, model=model, responses=responses)
        print(markdown(row.as_json() for row in rows), flush=True)
    if args.report:
        fusion_report.write(read(args.results), args.report)


if __name__ == "__main__":
    main()

"""One training of the accuracy study, as its ranks run it.

The batch is fixed, and a rank sees its share of it: the number of ranks changes no recipe.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks.contenders import Contender, sent_bytes
from benchmarks.models import Lstm, Transformer, cnn, resnet18
from benchmarks.ranks import Rank

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

GROUP_TIMEOUT = timedelta(seconds=60)
NAIVE = "naive fp8"

Data = tuple[Tensor, Tensor, Tensor, Tensor]  # inputs and labels to train on, and to test on


@dataclass(frozen=True)
class Cell:
    """One training. `codec` is a compression of hvd, "gloo" for stock gloo, or NAIVE."""

    model: str
    ranks: int
    codec: str
    seed: int


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `batch` inputs a step over all ranks, one-cycle from `rate`."""

    model: Callable[[], nn.Module]
    data: Callable[[str], Data]
    optimizer: Callable[..., Optimizer]
    rate: float
    batch: int
    epochs: int


def mnist(folder: str) -> Data:
    """Of MNIST's IDX files in `folder`: images (n, 1, 28, 28)."""
    from digits import load

    train, test = load(folder, 0)
    return (*train.tensors, *test.tensors)  # type: ignore[return-value]


def digits(_: str, side: int = 8) -> Data:
    """scikit-learn's, 8x8, enlarged to `side`: images (n, 1, side, side), 540 to test on."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    known = load_digits()
    images = torch.from_numpy(known.images).float()[:, None] / 8 - 1
    images = interpolate(images, size=(side, side), mode="bilinear")
    parts = train_test_split(
        images, torch.from_numpy(known.target), test_size=0.3, random_state=0, stratify=known.target
    )
    return parts[0], parts[2], parts[1], parts[3]


def large_digits(folder: str) -> Data:
    return digits(folder, side=32)


def rows_of_digits(folder: str) -> Data:
    """Sequences (n, 8, 8): a row of pixels is a step."""
    train, train_labels, test, test_labels = digits(folder)
    return train[:, 0], train_labels, test[:, 0], test_labels


def sgd(parameters: Any, lr: float) -> Optimizer:
    return SGD(parameters, lr=lr, momentum=0.9)


RECIPES = {
    "cnn": Recipe(cnn, mnist, sgd, rate=0.1, batch=240, epochs=10),
    "resnet18": Recipe(resnet18, large_digits, sgd, rate=0.1, batch=60, epochs=8),
    "lstm": Recipe(Lstm, rows_of_digits, sgd, rate=0.3, batch=60, epochs=40),
    "transformer": Recipe(Transformer, rows_of_digits, Adam, rate=3e-3, batch=60, epochs=30),
}


def naive_fp8(
    group: dist.ProcessGroup, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """How not to: cast to e4m3 and let the transport add the bytes as if they were numbers."""
    codes = bucket.buffer().to(torch.float8_e4m3fn).view(torch.uint8)
    future = dist.all_reduce(codes, group=group, async_op=True).get_future()

    def decode(done: torch.futures.Future[list[Tensor]]) -> Tensor:
        return done.value()[0].view(torch.float8_e4m3fn).float().div_(group.size())

    return future.then(decode)


def train(rank: Rank, *, cell: Cell, folder: str) -> dict[str, Any]:
    """Runs on a rank: what one line of the results holds of a cell.

    Raises AssertionError where the ranks end with different parameters.
    """
    recipe, hook = RECIPES[cell.model], naive_fp8 if cell.codec == NAIVE else None
    return asdict(cell) | train_over(rank, contender_of(cell), recipe, cell.seed, folder, hook)


def train_over(
    rank: Rank,
    contender: str,
    recipe: Recipe,
    seed: int,
    folder: str,
    hook: Callable[..., Any] | None = None,
) -> dict[str, Any]:
    """Runs on a rank: train through a group of the contender, if there are others, and test.

    Raises AssertionError where the ranks end with different parameters.
    """
    torch.set_num_threads(1)
    inputs, labels, test_inputs, test_labels = recipe.data(folder)
    torch.manual_seed(seed)
    network = recipe.model()
    group, model = None, network
    if rank.size > 1:
        group = Contender.parse(contender).new_group(GROUP_TIMEOUT)
        model = DistributedDataParallel(network, process_group=group)
        if hook:
            model.register_comm_hook(group, hook)

    before, start = sent_bytes(), time.perf_counter()
    steps, loss = fit(model, recipe, (inputs, labels), seed, rank)
    seconds, sent = time.perf_counter() - start, sent_bytes() - before

    require_alike(rank, network)
    correct = count_correct(network, test_inputs, test_labels)
    if group:
        dist.destroy_process_group(group)
    return {
        "accuracy": 100 * correct / len(test_labels),
        "correct": correct,
        "tested": len(test_labels),
        "loss": loss,
        "seconds": seconds,
        "steps": steps,
        "gradient_bytes": sum(4 * p.numel() for p in network.parameters()),
        "wire_bytes": sent / steps or None,
    }


def fit(
    model: nn.Module, recipe: Recipe, data: tuple[Tensor, Tensor], seed: int, rank: Rank
) -> tuple[int, float]:
    """Train on this rank's share of every batch; the steps taken, and the last epoch's loss."""
    inputs, labels = data
    optimizer = recipe.optimizer(model.parameters(), lr=recipe.rate)
    steps = len(inputs) // recipe.batch
    scheduler = OneCycleLR(optimizer, recipe.rate, total_steps=recipe.epochs * steps)
    order = torch.Generator().manual_seed(seed)
    for _ in range(recipe.epochs):
        shuffled = torch.randperm(len(inputs), generator=order)
        losses = 0.0
        for some in shuffled[: steps * recipe.batch].split(recipe.batch):
            own = some[rank.rank :: rank.size]
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs[own]), labels[own])
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses += loss.item()
    return recipe.epochs * steps, losses / steps


def contender_of(cell: Cell) -> str:
    if cell.codec == "gloo":
        return "gloo"
    # What auto takes between hosts. On one host it would take shared memory, and no codec.
    return f"hvd:transport=tcp,compression={'none' if cell.codec == NAIVE else cell.codec}"


def require_alike(rank: Rank, network: nn.Module) -> None:
    """Raise AssertionError unless all ranks have the same parameters, to the bit."""
    own = torch.cat([p.detach().flatten() for p in network.parameters()]).view(torch.int32)
    theirs = own.clone()
    dist.broadcast(theirs, 0, group=rank.control)
    assert torch.equal(own, theirs), "the ranks ended with different parameters"


@torch.no_grad()
def count_correct(network: nn.Module, inputs: Tensor, labels: Tensor) -> int:
    network.eval()
    return sum(
        int((network(some).argmax(1) == right).sum())
        for some, right in zip(inputs.split(500), labels.split(500), strict=True)
    )

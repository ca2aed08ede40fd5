"""Train a small network on handwritten digits with stock DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/train_digits.py --backend hvd

Without torchrun it trains on one process. `--data digits` is scikit-learn's set of 1797 real
digits, 8x8 pixels each; any other value is a folder with MNIST's four IDX files, gzipped or not,
as torchvision stores them.
"""

import argparse
import json
import math
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
from tqdm import tqdm

from digits import SIDE, load


def make_model(name: str) -> nn.Module:
    """Return the "cnn" or the "mlp": images (n, 1, 28, 28) in, logits (n, 10) out."""
    if name == "mlp":
        layers = nn.Linear(SIDE * SIDE, 128), nn.ReLU(), nn.Linear(128, 10)
        return nn.Sequential(nn.Flatten(), *layers)
    return nn.Sequential(
        nn.Conv2d(1, 10, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(10, 20, kernel_size=5),
        nn.Dropout2d(),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Dropout(),
        nn.Linear(50, 10),
    )


def train_epoch(model: nn.Module, scheduler: LRScheduler, batches: Any, device: str) -> Tensor:
    """Train one pass over `batches`; return this rank's [sum of losses, images], float64."""
    model.train()
    optimizer = scheduler.optimizer
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for images, labels in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images.to(device)), labels.to(device))
        loss.backward()
        optimizer.step()
        scheduler.step()
        totals += torch.tensor([loss.item() * len(images), len(images)], device=device)
    return totals


@torch.no_grad()
def count_correct(model: nn.Module, batches: Any, device: str) -> Tensor:
    """Return this rank's [correct answers, images], float64."""
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64, device=device)
    for images, labels in batches:
        correct = model(images.to(device)).argmax(dim=1) == labels.to(device)
        totals += torch.tensor([correct.sum().item(), len(images)], device=device)
    return totals


def train(args: argparse.Namespace, parts: tuple[TensorDataset, TensorDataset]) -> dict[str, Any]:
    """Train on `parts` (training set, test set) in the default group; return what --json holds."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = args.device
    if device == "cuda":
        device = f"cuda:{int(os.environ.get('LOCAL_RANK', rank)) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)

    training_set, test_set = parts
    sampler = DistributedSampler[Any](training_set, seed=args.seed)
    training_batches = DataLoader(training_set, args.batch_size, sampler=sampler)
    # A DistributedSampler repeats images until the ranks have equal shares; a test may not.
    test_share = Subset(test_set, range(rank, len(test_set), world_size))
    test_batches = DataLoader(test_share, batch_size=1000)

    torch.manual_seed(args.seed)
    network = make_model(args.model).to(device)
    model = DistributedDataParallel(network)
    optimizer = SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(training_batches))
    torch.manual_seed(args.seed + rank)  # each rank drops out other activations

    epochs: list[dict[str, Any]] = []
    for epoch in range(1, args.epochs + 1):
        sampler.set_epoch(epoch)
        started = time.perf_counter()
        progress = tqdm(
            training_batches, f"epoch {epoch}", leave=False, disable=None if rank == 0 else True
        )
        trained = train_epoch(model, scheduler, progress, device)
        seconds = time.perf_counter() - started
        totals = torch.cat((trained, count_correct(network, test_batches, device)))
        dist.all_reduce(totals)
        loss_sum, images, correct, tested = totals.tolist()
        epochs.append(
            {
                "epoch": epoch,
                "loss": loss_sum / images,
                "accuracy": correct / tested,
                "images": int(images),
                "images_per_s": images / seconds,
                "seconds": seconds,
            }
        )
        if rank == 0:
            print(f"epoch {epoch:2}: {line(epochs[-1])}", flush=True)

    seconds = sum(entry["seconds"] for entry in epochs)
    return {
        **vars(args),
        "torch": torch.__version__,
        "world_size": world_size,
        "epochs": epochs,
        "loss": epochs[-1]["loss"],
        "accuracy": epochs[-1]["accuracy"],
        "correct": int(correct),
        "tested": int(tested),
        "images_per_s": sum(entry["images"] for entry in epochs) / seconds,
        "seconds": seconds,
    }


def line(result: dict[str, Any]) -> str:
    """Return loss, accuracy and speed of an epoch or of the whole training in one line."""
    return (
        f"loss {result['loss']:.4f}  test accuracy {result['accuracy']:.2%}  "
        f"{result['images_per_s']:,.0f} images/s  {result['seconds']:.1f} s"
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    backends = ("hvd", "gloo", "nccl", "mpi")
    parser.add_argument("--backend", choices=backends, default="hvd", help="of init_process_group")
    parser.add_argument("--model", choices=("cnn", "mlp"), default="cnn", help="network")
    parser.add_argument("--epochs", type=int, default=20, help="passes over the training set")
    parser.add_argument("--batch-size", type=int, default=32, help="images per rank and step")
    parser.add_argument(
        "--lr", type=float, default=0.05, help="highest learning rate of a one-cycle SGD"
    )
    parser.add_argument("--seed", type=int, default=1, help="of weights, order, dropout and split")
    parser.add_argument(
        "--data", default="digits", metavar="digits|DIR", help="DIR: a folder of MNIST IDX files"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of the network")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to it")
    return parser


def complaint(args: argparse.Namespace) -> str | None:
    """Return what is wrong with the command line beyond its syntax, None when nothing is."""
    if args.epochs < 1 or args.batch_size < 1 or not 0 < args.lr < math.inf:
        return "--epochs, --batch-size and --lr must be positive"
    if args.device == "cuda" and not torch.cuda.is_available():
        return f"--device cuda: torch {torch.__version__} finds no GPU here"
    if args.backend == "nccl" and args.device != "cuda":
        return "--backend nccl needs --device cuda"
    if not dist.is_backend_available(args.backend):
        return f"--backend {args.backend}: torch {torch.__version__} has no such backend here"
    if args.json and not args.json.absolute().parent.is_dir():
        return f"--json {args.json}: no folder {args.json.parent}"
    return None


def main() -> None:
    parser = make_parser()
    args = parser.parse_args()
    if error := complaint(args):
        parser.error(error)
    try:
        parts = load(args.data, args.seed)
    except (OSError, ValueError) as error:
        parser.error(f"--data {args.data}: {error}")

    # Steps this short lose by more threads; and sums then do not depend on the number of cores.
    torch.set_num_threads(1)
    if not {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"} & os.environ.keys():
        # Neither torchrun nor mpirun started this: a world of one.
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

    dist.init_process_group(args.backend)
    result = train(args, parts)
    if dist.get_rank() == 0:
        print(
            f"{args.backend} x {result['world_size']}, {args.model} on {args.data}: "
            f"{line(result)}  ({result['correct']} of {result['tested']} right)"
        )
        if args.json:
            args.json.write_text(json.dumps(result, indent=2, default=str) + "\n")
    dist.destroy_process_group()
    if args.backend == "gloo":
        # Its threads outlive the group. One that drops a tensor while Python exits aborts the
        # process (pytorch/pytorch#190489), so let them come to rest first.
        time.sleep(0.1)


if __name__ == "__main__":
    main()

"""A small model, its data in closed form from rank and step, and a loop that trains it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FEATURES, CLASSES, BATCH = 16, 4, 32


def new_model(*, batch_norm: bool = True, width: int = 64) -> nn.Sequential:
    """Return a classifier with the same parameters on every rank, some `8 * width**2` bytes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        return nn.Sequential(
            nn.Linear(FEATURES, width),
            nn.BatchNorm1d(width) if batch_norm else nn.Identity(),
            nn.ReLU(),
            nn.Linear(width, 2 * width),
            nn.ReLU(),
            nn.Linear(2 * width, CLASSES),
        )


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    """Return inputs (BATCH, FEATURES) and labels (BATCH,) that depend on rank and step alone."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(BATCH, FEATURES, generator=generator)
    return inputs, inputs[:, :CLASSES].argmax(1)


def train(
    model: Callable[[Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    rank: int,
    steps: int = 12,
) -> Tensor:
    """Take `steps` optimizer steps over this rank's batches and return the losses (steps,)."""
    losses = []
    for step in range(steps):
        inputs, labels = batch(rank, step)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def new_optimizer(model: nn.Module, **options: Any) -> torch.optim.SGD:
    """Return SGD with momentum over the model's parameters."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, **options)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of the model's parameters and buffers by name."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}

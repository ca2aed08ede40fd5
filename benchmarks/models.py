"""Small networks for studies of training: minutes on two cores, gradients of more than 64 KB."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def cnn() -> nn.Module:
    """Images (n, 1, 28, 28) to logits (n, 10); 187 KB of parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=5, stride=2),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


class Block(nn.Module):
    """A basic block of He et al., Deep Residual Learning, 2015: two 3x3 convolutions."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or channels != width:
            conv = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(width))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = F.relu(self.first_norm(self.first(inputs)))
        return F.relu(self.second_norm(self.second(hidden)) + self.skip(inputs))


def resnet18(width: int = 16) -> nn.Module:
    """ResNet-18 for images (n, 1, 32, 32), 16 channels wide, not 64; 2.8 MB of parameters."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, width, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels = width
    for wide in (width, 2 * width, 4 * width, 8 * width):
        layers += [Block(channels, wide, 1 if wide == width else 2), Block(wide, wide, 1)]
        channels = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


class Lstm(nn.Module):
    """Sequences (n, steps, 8) to logits (n, 10), from the last step; 210 KB of parameters."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        outputs, _ = self.lstm(inputs)
        return self.head(outputs[:, -1])


class Transformer(nn.Module):
    """Sequences (n, 8, 8) to logits (n, 10): an encoder, the mean of its outputs."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Linear(8, width)
        self.position = nn.Parameter(0.02 * torch.randn(8, width))
        layer = nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=2 * width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2)
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(inputs) + self.position).mean(1))

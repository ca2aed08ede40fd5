"""Networks of the studies: small ones to train in minutes on two cores, and large ones whose
gradients are known to everybody. Those have the parameters of torchvision's, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, ...]


def gradient_shapes(model: Callable[[], nn.Module]) -> list[Shape]:
    """Of a model's parameters, in order, for no memory: it is made on the meta device."""
    with torch.device("meta"):
        return [tuple(parameter.shape) for parameter in model().parameters()]


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


class Bottleneck(nn.Module):
    """The block of ResNet-50: convolutions of 1x1, 3x3 with the stride, and 1x1 four times wider.

    Same source as Block; the stride is where torchvision has it.
    """

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.narrow = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or channels != 4 * width:
            conv = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu(self.narrow(inputs) + self.skip(inputs))


def resnet50() -> nn.Module:
    """Images (n, 3, 224, 224) to logits (n, 1000); 102 MB of parameters in 161 tensors."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            layers.append(Bottleneck(channels, width, 2 if block == 0 and width > 64 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


VGG16_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(
    widths: Sequence[Sequence[int]] = VGG16_WIDTHS, hidden: int = 4096, dropout: float = 0.5
) -> nn.Module:
    """Images (n, 3, 224, 224) to logits (n, 1000); 553 MB of parameters in 32 tensors.

    Configuration D of Simonyan and Zisserman, Very Deep Convolutional Networks, 2014; `widths` of
    its convolutions, by the pools between them.
    """
    layers: list[nn.Module] = []
    channels = 3
    for group in widths:
        for width in group:
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = [nn.Linear(49 * channels, hidden), nn.ReLU(), nn.Dropout(dropout)]
    head += [nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, 1000)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), *head)


def small_vgg() -> nn.Module:
    """VGG-16 for images (n, 3, 32, 32); 39 MB of parameters, two thirds of them in one tensor.

    Without dropout, so that a step can be repeated and its gradients checked.
    """
    widths = ((32, 32), (64, 64), (128, 128, 128), (128, 128, 128), (128, 128, 128))
    return vgg16(widths, hidden=1024, dropout=0.0)


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

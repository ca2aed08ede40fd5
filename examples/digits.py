"""Handwritten digits as data sets: scikit-learn's, or a folder of MNIST's IDX files."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate, pad
from torch.utils.data import TensorDataset

SIDE = 28  # pixels, MNIST's
MEAN, DEVIATION = 0.1307, 0.3081  # of MNIST's pixels


def read_idx(folder: Path, name: str, dimensions: int) -> Tensor:
    """Read the IDX file `name` or `name`.gz, found in `folder` or in `folder`/MNIST/raw.

    Returns a uint8 tensor. Raises FileNotFoundError where no such file is, and ValueError where
    it does not hold unsigned bytes in `dimensions` dimensions.
    """
    places = (folder / name, folder / "MNIST" / "raw" / name)
    paths = [path for place in places for path in (place, place.with_name(f"{name}.gz"))]
    path = next(filter(Path.is_file, paths), None)
    if path is None:
        raise FileNotFoundError(
            f"neither {folder} nor {folder / 'MNIST' / 'raw'} holds {name} or {name}.gz"
        )
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path} cannot be unzipped: {error}") from error
    header = 4 * (1 + dimensions)
    magic, *shape = struct.unpack(f">{1 + dimensions}I", content[:header].ljust(header, b"\0"))
    if magic != 0x0800 + dimensions or len(content) != header + math.prod(shape):
        raise ValueError(f"{path} is no IDX file of unsigned bytes in {dimensions} dimensions")
    values = np.frombuffer(content, dtype=np.uint8, offset=header)
    return torch.from_numpy(values.reshape(shape).copy())


def dataset(images: Tensor, labels: Tensor) -> TensorDataset:
    """Pair images (n, 28, 28) of pixels in 0..1 with labels (n): float32 (n, 1, 28, 28), int64."""
    if not 0 < len(images) == len(labels) or images.shape[1:] != (SIDE, SIDE):
        shape = tuple(images.shape)
        raise ValueError(f"images {shape} and {len(labels)} labels; wanted n of {SIDE}x{SIDE}")
    normal = (images[:, None].float() - MEAN) / DEVIATION
    return TensorDataset(normal, labels.long())


def load(source: str, seed: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the training set and the test set.

    `source` is "digits" (a fifth, drawn by `seed`, is the test set) or a folder of IDX files.
    """
    if source == "digits":
        # Here, so that a folder of IDX files can do without scikit-learn.
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        digits = load_digits()
        pixels = torch.from_numpy(digits.images)[:, None] / 16
        # As in MNIST: the digit fills 20x20 pixels in the middle.
        drawn = interpolate(pixels, size=(20, 20), mode="bilinear")
        parts = train_test_split(
            pad(drawn, (4, 4, 4, 4))[:, 0],
            torch.from_numpy(digits.target),
            test_size=0.2,
            random_state=seed,
            stratify=digits.target,
        )
        train_images, test_images, train_labels, test_labels = parts
        return dataset(train_images, train_labels), dataset(test_images, test_labels)
    folder = Path(source)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}; give a folder of IDX files, or 'digits'")
    train, test = (
        dataset(
            read_idx(folder, f"{part}-images-idx3-ubyte", 3) / 255,
            read_idx(folder, f"{part}-labels-idx1-ubyte", 1),
        )
        for part in ("train", "t10k")
    )
    return train, test

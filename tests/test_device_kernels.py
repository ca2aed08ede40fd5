"""The host's own table of device kernels, on which the layers above are tested without a GPU."""

from __future__ import annotations

import pytest
import torch

import kernels
from torch_hvd import _C

CPU = torch.device("cpu")


@pytest.mark.parametrize("compression", [*kernels.CASTS, *kernels.BLOCKED])
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
def test_encode_and_decode(compression: str, dtype: torch.dtype) -> None:
    for block in (32, 128, 1024):
        kernels.check_encode(CPU, compression, block, dtype)
        kernels.check_decode(CPU, compression, block, dtype)


@pytest.mark.parametrize("compression", [*kernels.CASTS, *kernels.BLOCKED])
def test_decode_sum_encode(compression: str) -> None:
    for block in (32, 128, 1024):
        kernels.check_sum(CPU, compression, block)


def test_copy() -> None:
    kernels.check_copy(CPU)


def test_a_device_without_kernels() -> None:
    assert _C.has_device_kernels("cpu") and not _C.has_device_kernels("meta")
    message = torch.zeros(130, dtype=torch.uint8, device="meta")
    with pytest.raises(ValueError, match="no kernels for tensors on meta"):
        _C.encode_pieces([torch.zeros(8, device="meta")], message, "int8")


def test_arguments_that_do_not_fit() -> None:
    message = torch.zeros(10, dtype=torch.uint8)
    with pytest.raises(ValueError, match="takes 130 bytes, not 10"):
        _C.encode_pieces([torch.zeros(8)], message, "int8", 128)
    with pytest.raises(ValueError, match="not contiguous, or not"):
        _C.encode_pieces([torch.zeros(8), torch.zeros(8).half()], message, "int8", 32)
    with pytest.raises(ValueError, match="not of whole blocks"):
        _C.sum_messages([message], message, 8, "int8", 32)

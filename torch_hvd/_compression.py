"""Compression by region of a program."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch_hvd import _settings
from torch_hvd._load import _C


@contextmanager
def compression(name: str) -> Iterator[None]:
    """All groups use compression `name` for what this thread calls inside.

    Every rank must call the same inside. Other threads are not concerned, but for those that torch
    has work for this one: the gradients of a `loss.backward()` inside are reduced as it says.

    Args:
        name: none, fp16, bf16, fp8, fp8_e5m2, int8 or int4.

    Raises:
        ValueError: another name.
    """
    _settings.check_compression(name)
    before = _C.override_compression(name)
    try:
        yield
    finally:
        _C.override_compression(before)

"""MNIST, for the tests that want it: its IDX files, where they are beside the repository."""

from pathlib import Path

import pytest

MNIST = Path(__file__).resolve().parents[2] / "shared" / "data" / "mnist"

needs_mnist = pytest.mark.skipif(not MNIST.is_dir(), reason="MNIST is not beside the repository")

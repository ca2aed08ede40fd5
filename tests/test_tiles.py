"""The functions that the CUDA kernels are made of, on the host: see tests/tiles/main.cpp."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str) -> None:
    ran = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert ran.returncode == 0, f"{command}\n{ran.stdout}"


@pytest.mark.timeout(300)
def test_the_same_bits_as_the_codecs() -> None:
    run("make", "-C", "tests/tiles", "tiles")
    run("build/tiles/tiles", "4")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_bits_with_the_host_side_of_nvcc() -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc on the PATH")
    run("make", "-C", "tests/tiles", "tiles-nvcc")
    run("build/tiles/tiles-nvcc", "4")

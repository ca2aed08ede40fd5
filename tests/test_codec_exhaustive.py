"""All floats through the codecs' arithmetic, in C++: see tests/codec/exhaustive.cpp."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_floats() -> None:
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    build = ["make", "-C", "tests/codec", jobs, f"PYTHON={sys.executable}"]
    for command in (build, ["build/codec/exhaustive"]):
        ran = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert ran.returncode == 0, ran.stdout

"""The engine on simulated ranks, in one C++ process and without Python: see tests/model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_programs() -> None:
    jobs = f"-j{len(os.sched_getaffinity(0))}"
    build = ["make", "-C", "tests/model", jobs, f"PYTHON={sys.executable}", "model"]
    for command in (build, ["build/model-none/model", "--seeds", "500"]):
        ran = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert ran.returncode == 0, ran.stdout

"""What it costs two cores to hand each other memory, by the stores that shared memory chooses from.

benchmarks/staging/main.cpp measures; here it is compiled and its table printed.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PROGRAM = HERE.parent / "build" / "staging" / "staging"
CORES = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.timeout(120)


@pytest.mark.skipif(len(CORES) < 2, reason="takes two cores")
def test_staging(capsys: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["make", "-s", "-C", HERE / "staging"], check=True)
    cores = [str(core) for core in CORES[:2]]
    table = subprocess.run([PROGRAM, *cores], check=True, capture_output=True, text=True).stdout
    with capsys.disabled():
        print(f"\ncores {' and '.join(cores)}", table, sep="\n")
    first = [line.split(",")[0].split(":")[0] for line in table.splitlines()]
    assert first == ["a cache line there and back", *3 * ["256 KB each way"]]

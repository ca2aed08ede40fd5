"""All that needs a GPU, in one go: `python -m benchmarks.gpu [--out FOLDER]`.

Runs tests/gpu, the tests of the kernels under compute-sanitizer, and the benchmarks, and writes
`report.md` and each step's output to the folder. Exits with 1 where a step failed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.machine import facts

ROOT = Path(__file__).parent.parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider"]
# Hours under a sanitizer, or about time.
LONG = "not all_floats and not 2_to_the_31 and not stream and not captured and not launches"


class Step(NamedTuple):
    title: str
    command: list[str]
    environment: Mapping[str, str] = {}


def sanitizer(tool: str, compute_sanitizer: str) -> Step:
    """The kernels' tests under one of its tools.

    It sees the ends of tensors only where torch's allocator does not cut them from larger blocks.
    """
    options = ["--tool", tool, "--error-exitcode", "9", "--target-processes", "all"]
    some = ["--timeout", "0", "-k", f"({LONG}) and (128 or copy or many or refuses)"]
    return Step(
        f"compute-sanitizer, {tool}",
        [compute_sanitizer, *options, *PYTEST, "tests/gpu/test_kernels.py", *some],
        {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    )


def steps() -> Iterator[Step]:
    yield Step("tests/gpu", [*PYTEST, "tests/gpu"])
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if Path(found).exists():
        yield from (sanitizer(tool, found) for tool in ("memcheck", "racecheck", "synccheck"))
    for part in ("kernels", "dispatch"):
        yield Step(part, [sys.executable, "-m", f"benchmarks.gpu.{part}"])


def run(step: Step, log: Path) -> str:
    """Run it; return its paragraph of the report."""
    start = time.monotonic()
    ran = subprocess.run(
        step.command,
        cwd=ROOT,
        env={**os.environ, **step.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    log.write_text(ran.stdout)
    state = "passed" if ran.returncode == 0 else f"FAILED with {ran.returncode}"
    tail = "\n".join(ran.stdout.splitlines()[-40:])
    return f"## {step.title}: {state}, {time.monotonic() - start:.0f} s\n\n{tail}\n"


def heading() -> str:
    device = torch.cuda.get_device_properties(0)
    known = facts() | {
        "gpu": f"{device.name}, sm_{device.major}{device.minor}, "
        f"{device.multi_processor_count} multiprocessors",
        "cuda": torch.version.cuda,
    }
    return "\n".join(["# On a GPU", "", *(f"- {name}: {fact}" for name, fact in known.items()), ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/gpu"))
    out: Path = parser.parse_args().out
    if not torch.cuda.is_available():
        print("torch finds no GPU here", file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    parts = [heading()]
    for step in steps():
        print(f"{step.title} ...", flush=True)
        name = "".join(c if c.isalnum() else "-" for c in step.title)
        parts.append(run(step, out / f"{name}.log"))
        (out / "report.md").write_text("\n".join(parts))
        print(parts[-1], flush=True)
    return int(any("FAILED" in part.splitlines()[0] for part in parts))


if __name__ == "__main__":
    sys.exit(main())

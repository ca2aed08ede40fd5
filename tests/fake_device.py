"""A CUDA device of threads and the host's memory (tests/fakecuda), for a torch without one.

`device.upload(tensor)` has a tensor on it, `device.hold(path)` keeps the current stream busy until
there is such a file, and `device.sleep(seconds, pool)` for so long.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ranks import bare_store

ROOT = Path(__file__).parent.parent
LIBRARY = ROOT / "build/fakecuda/device.so"

device: Any = torch.ops.fakecuda


def build() -> None:
    command = ["make", "-C", "tests/fakecuda", f"PYTHON={sys.executable}"]
    built = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert built.returncode == 0, built.stdout


def join(size: int) -> None:
    """Makes this rank of a pool without a group one of "hvd", with the device."""
    torch.ops.load_library(LIBRARY)
    vars(torch.cuda)["get_device_capability"] = lambda _: (8, 0)  # c10d asks
    dist.init_process_group(
        "hvd",
        store=bare_store(),
        rank=int(os.environ["RANK"]),
        world_size=size,
        timeout=timedelta(seconds=20),
    )

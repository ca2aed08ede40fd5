"""Scripts as users run them: N fresh interpreters, each a rank, to its own end."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

from rig.hosts import Hosts

_HEAD = """
import os, sys, time
import torch
import torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group({backend!r}, init_method="file://{file}", rank=rank, world_size=size)
"""


def launch(
    script: str,
    size: int,
    backend: str = "hvd",
    env: Mapping[str, str] | None = None,
    timeout: float = 60.0,
    hosts: Hosts | None = None,
    per_host: int = 1,
) -> list[subprocess.CompletedProcess[str]]:
    """Run `script` after init_process_group in `size` interpreters; it sees `rank` and `size`.

    With `hosts`, ranks fill them in order, `per_host` on each.
    Returns exit codes and output by rank. Raises subprocess.TimeoutExpired when one has not ended
    after `timeout` seconds; none is left running.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = _HEAD.format(backend=backend, file=Path(folder, "store")) + textwrap.dedent(script)
        started = []
        for rank in range(size):
            own = {"RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-c", text]
            if hosts:
                own |= hosts.variables
                command = [*hosts.command(rank // per_host), *command]
            started.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **own, **(env or {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    cwd=folder,
                )
            )
        try:
            ended = []
            for process in started:
                out, err = process.communicate(timeout=timeout)
                ended.append(
                    subprocess.CompletedProcess(process.args, process.returncode, out, err)
                )
            return ended
        finally:
            for process in started:
                process.kill()
                process.wait()

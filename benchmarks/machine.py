"""Facts about the machine and the code, without which a time means little."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import torch


def facts() -> dict[str, str | int | None]:
    """CPU model, usable cores, versions and git revision; None where unknown."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_hvd": _installed("torch_hvd"),
        "revision": _revision(),
        "utc": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def busy_seconds() -> float:
    """CPU time that this machine has spent on processes, stolen time included.

    Not on interrupts: most are the network's, that is of what ranks on hosts send each other.
    """
    user, nice, system, _idle, _iowait, _irq, _softirq, steal = (
        int(ticks) for ticks in Path("/proc/stat").read_text().split()[1:9]
    )
    return (user + nice + system + steal) / os.sysconf("SC_CLK_TCK")


def network_threads() -> list[int]:
    """Process ids of the kernel's threads that take over interrupts where there are many."""
    found = []
    for file in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):  # it has ended
            if file.read_text().startswith("ksoftirqd/"):
                found.append(int(file.parent.name))
    return found


def cpu_seconds(pid: int) -> float:
    """CPU time that all threads of a living process have taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """What others do on this machine, from the making of this on."""

    def __init__(self, pids: Sequence[int]) -> None:
        """`pids`: of the processes that are not others."""
        self._pids = [*pids, *network_threads()]
        self._begin = self._now()

    def foreign(self) -> float:
        """CPU time that others have taken, in cores."""
        now = self._now()
        wall, busy, ours = (end - begin for end, begin in zip(now, self._begin, strict=True))
        return max(0.0, (busy - ours) / wall)

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), busy_seconds(), sum(map(cpu_seconds, self._pids))


def _cpu_model() -> str | None:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return None


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _revision() -> str | None:
    describe = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    result = subprocess.run(
        describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or None

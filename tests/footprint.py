"""What a process holds of the system: to see that nothing is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def held() -> tuple[int, int, int]:
    """File descriptors, threads and mappings of shared segments of this process."""
    maps = Path("/proc/self/maps").read_text()
    return (
        len(os.listdir("/proc/self/fd")),
        len(os.listdir("/proc/self/task")),
        maps.count("memfd:hvd-"),
    )


def descriptors() -> list[str]:
    """What the file descriptors of this process are, for messages."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.append(f"{entry.name}: {os.readlink(entry)}")
    return sorted(found)


def settled(condition: Callable[[], bool], what: Callable[[], str]) -> None:
    """Wait until `condition()`; after 5 seconds it is an error that says `what()`."""
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, what()
        time.sleep(0.01)


def shared_names() -> set[str]:
    """Names that outlive their process, or could: in /dev/shm, of abstract sockets."""
    sockets = Path("/proc/net/unix").read_text().split()
    return {
        f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if "hvd" in name or "mpich" in name
    } | {name for name in sockets if name.startswith("@hvd-")}


@contextmanager
def leaves_no_names() -> Iterator[None]:
    """Whatever goes on in it and beside it, its names are gone 5 seconds later."""
    before = shared_names()
    yield
    new = shared_names() - before

    def gone() -> bool:
        new.intersection_update(shared_names())  # what other programs name is gone, too, in a while
        return not new

    settled(gone, lambda: f"left: {new}")

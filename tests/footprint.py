"""What a process holds of the system: to see that nothing is left behind."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# All that the tests of this worker start has it in its environment, and nothing else does.
_MARK = f"STARTED_BY_TESTS_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"
os.environ.setdefault(_MARK, uuid.uuid4().hex)


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


def _names_of_others() -> set[str]:
    """Those of shared_names() that processes hold which these tests have not started."""
    mine = f"{_MARK}={os.environ[_MARK]}".encode()
    held_there = ""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ends meanwhile
            ours = mine in (process / "environ").read_bytes() or int(process.name) == os.getpid()
            if not ours:
                held_there += (process / "maps").read_text()
                held_there += "".join(os.readlink(file) for file in (process / "fd").iterdir())
    sockets = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    names = {fields[-1] for fields in sockets if f"socket:[{fields[6]}]" in held_there}
    return names | {name for name in shared_names() if name in held_there}


@contextmanager
def leaves_no_names() -> Iterator[None]:
    """No names are left 5 seconds after its end, but for those that others hold by then."""
    before = shared_names()
    yield
    new = shared_names() - before

    def gone() -> bool:
        new.intersection_update(shared_names())
        return not new or new <= _names_of_others()

    settled(gone, lambda: f"left: {new}")

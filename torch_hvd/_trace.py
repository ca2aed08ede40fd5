"""What a program sees of the engine: statistics and the timeline of its ranks."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from torch_hvd import _settings
from torch_hvd._load import _C


def statistics() -> list[dict[str, Any]]:
    """What each group of this process has sent, in the order they were made.

    A *response* is what goes out at once: a frame of small tensors with its buckets, or large
    tensors that are waited for together.

    Returns:
        For each group a dict of
        group: its name;
        frames, responses, tensors: how many; frames are all-to-all rounds of small messages;
        tensor_bytes: of the tensors;
        messages: calls of send and recv, which are no responses;
        wire_bytes, shared_memory_bytes: what this rank has sent over the network, and through
        memory to ranks of its host, messages and headers included; what MPI sends, or TCP or Gloo
        by name, counts as network also inside a host;
        fusion_buffer_bytes: the most that the fusion buffer has been;
        elapsed: seconds since the group was made;
        waiting: of them those in which at least one thread waited for operations of the group: it
        was in a call that blocks, or it was the last that had asked for a future, as DDP does, this
        was not complete, and the thread slept, for whatever reason. Of tensors on a device it is
        not the time that they take, but until they are launched;
        rows: responses by size, each a dict of upto (bytes; None in the last), count, tensors,
        bytes, seconds, and rates (the sum over its responses of bytes per second).
    """
    return _C.statistics()


def start_timeline(path: str | os.PathLike[str]) -> None:
    """Write what this rank does from now on to `path`/rank-N.timeline.json, in Chrome's trace
    format.

    Call it on every rank; `python -m torch_hvd.report timeline PATH` puts all ranks in one picture.

    Raises:
        OSError: `path` is no folder that can be written.
        RuntimeError: a timeline is being written already, the file cannot be written, or nothing
            tells which rank this is: there is no process group yet, and RANK is not set.
    """
    _start_timeline(path)


def stop_timeline() -> None:
    """End the timeline; without effect if there is none, or in a forked child.

    Raises:
        RuntimeError: not all of it could be written, as on a full disk.
    """
    _C.stop_timeline()


def begin(environ: Any, rank: int, run: str) -> None:
    """Start what `HVD_TIMELINE` and `HVD_STATS` ask for; called when a group is made.

    Args:
        environ: the environment.
        rank: the global one.
        run: see `_names.of_run`.

    Raises:
        ValueError: names the variable whose folder cannot be written.
    """
    global _process
    if _process is None:
        _process = _Process(os.getpid(), rank, run)
    for names, start in (
        (("HVD_TIMELINE", "HOROVOD_TIMELINE"), _start_timeline),
        (("HVD_STATS",), _start_statistics),
    ):
        name = _settings.first_set(names, environ)
        if name == "HOROVOD_TIMELINE" and environ[name] == "DYNAMIC":
            continue  # Horovod's word for a start_timeline() later
        if name and start not in _begun:
            try:
                start(environ[name])
            except (OSError, RuntimeError) as error:
                raise ValueError(
                    f"{name} is {environ[name]!r}; allowed is a folder that can be written: {error}"
                ) from error
            _begun.add(start)


def end() -> None:
    """Write what `HVD_STATS` asks for and end the timeline; called when the process ends."""
    try:
        _C.stop_timeline()
    finally:
        # A child that was forked comes here, too, where it ends as a program does.
        if _process and _process.pid == os.getpid() and _process.statistics:
            _write_statistics(_process, _process.statistics, ended=True)


@dataclass
class _Process:
    """This process, as it was when it made its first group."""

    pid: int
    rank: int
    run: str
    statistics: Path | None = None  # where they go at the end


_process: _Process | None = None
_begun: set[Callable[[str], None]] = set()


def _file(path: str | os.PathLike[str], rank: int, kind: str) -> Path:
    folder = Path(path).absolute()  # the program may go elsewhere
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"rank-{rank}.{kind}.json"


def _start_timeline(path: str | os.PathLike[str]) -> None:
    rank, run = (_process.rank, _process.run) if _process else (_rank(), "")
    _C.start_timeline(str(_file(path, rank, "timeline")), rank, run)


def _rank() -> int:
    """That of a process that has no group of hvd's yet."""
    if dist.is_initialized():
        return dist.get_rank()
    rank = os.environ.get("RANK", "")
    if not rank.isdecimal():
        raise RuntimeError(
            f"start_timeline cannot tell which rank this is, for RANK is {rank!r}: call it after "
            "init_process_group, or set RANK"
        )
    return int(rank)


def _start_statistics(path: str) -> None:
    assert _process
    file = _file(path, _process.rank, "stats")
    # At the end it would be too late to find that it cannot be written.
    _write_statistics(_process, file, ended=False)
    _process.statistics = file


def _write_statistics(process: _Process, file: Path, ended: bool) -> None:
    content = {
        "rank": process.rank,
        "run": process.run,
        "ended": ended,
        "groups": _C.statistics() if ended else [],
    }
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1))
    partial.replace(file)  # so that a rank that is killed leaves what was there, or all of it

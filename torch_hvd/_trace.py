"""What a program sees of the engine: statistics and the timeline of its ranks."""

import json
import os
from pathlib import Path
from typing import Any

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
    """Write what this rank does from now on to `path`/rank-N.json, in Chrome's trace format.

    Call it on every rank; `python -m torch_hvd.report timeline PATH` puts all ranks in one picture.

    Raises:
        OSError: `path` is no folder that can be written.
        RuntimeError: a timeline is being written already, or the file cannot be written.
    """
    _start_timeline(path, _rank())


def stop_timeline() -> None:
    """End the timeline; without effect if there is none."""
    _C.stop_timeline()


def begin(environ: Any, rank: int) -> None:
    """Start what `HVD_TIMELINE` asks for; called when a group is made. `rank`: the global one.

    Raises:
        ValueError: names the variable whose folder cannot be written.
    """
    global _global_rank, _timeline_begun
    if _global_rank is None:
        _global_rank = rank
    names = ("HVD_TIMELINE", "HOROVOD_TIMELINE")
    name = next((name for name in names if environ.get(name)), None)
    if name and not _timeline_begun:
        path = environ[name]
        try:
            _start_timeline(path, _rank())
        except (OSError, RuntimeError) as error:
            raise ValueError(
                f"{name} is {path!r}; allowed is a folder that can be written: {error}"
            ) from error
        _timeline_begun = True


def end() -> None:
    """Write what `HVD_STATS` asks for and end the timeline; called when the process ends."""
    _C.stop_timeline()
    path = os.environ.get("HVD_STATS")
    groups = _C.statistics()
    if path and groups:
        folder = Path(path)
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"rank": _rank(), "groups": groups}, indent=1)
        (folder / f"rank-{_rank()}.json").write_text(text)


_global_rank: int | None = None
_timeline_begun = False


def _rank() -> int:
    return int(os.environ.get("RANK", 0)) if _global_rank is None else _global_rank


def _start_timeline(path: str | os.PathLike[str], rank: int) -> None:
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    _C.start_timeline(str(folder / f"rank-{rank}.json"), rank)

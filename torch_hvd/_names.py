"""What groups and runs are called in what people see: alike on all ranks, and never twice."""

import os
from collections import Counter
from datetime import datetime, timezone

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from torch_hvd._store import Meeting

_groups: Counter[str] = Counter()  # of each name, that this process has made
_run: str | None = None


def of_group(name: str, meeting: Meeting) -> str:
    """c10d's name of a group; "0#2" for the second that has it.

    c10d names groups as before when a program destroys all of them and makes new ones. Ranks that
    were in different ones agree on the highest number.
    """
    number = max(meeting.exchange("number", _groups[name] + 1))
    _groups[name] = number
    return name if number == 1 else f"{name}#{number}"


def of_run(meeting: Meeting) -> str:
    """Which run of the program this is: of how many ranks, and since when.

    Args:
        meeting: of any group; what lies below its store is every rank's.
    """
    global _run
    if _run is None:
        ranks = dist.get_world_size() if dist.is_initialized() else meeting.size
        store = meeting.store
        while isinstance(store, PrefixStore):
            store = store.underlying_store
        # As torchrun keeps the store when it starts all ranks again.
        key = f"hvd/run/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}/{ranks}"
        if store.add(f"{key}/asked", 1) == 1:
            store.set(key, datetime.now(timezone.utc).isoformat(" ", "milliseconds"))
        _run = f"world size {ranks}, since {store.get(key).decode()}"
    return _run

"""Which transport a group takes."""

import json
import os
from collections.abc import Sequence

from torch._C._distributed_c10d import Store

from torch_hvd import _settings, _shm
from torch_hvd._load import _C


def choose(wanted: str, store: Store, rank: int, size: int) -> str:
    """The name of the transport, the same on every rank.

    Args:
        wanted: "auto" or a name, the same on every rank.
        store: its keys are this group's own.

    Returns:
        "none" for a group of one; else `wanted`, or for "auto" the fastest that all ranks share.

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why.
    """
    if size == 1:
        return "none"
    keys = [f"host/{peer}" for peer in range(size)]
    store.set(keys[rank], json.dumps([_shm.host_id(os.environ), os.uname().nodename]))
    hosts = [json.loads(text) for text in store.multi_get(keys)]
    elsewhere = [peer for peer in range(size) if hosts[peer][0] != hosts[0][0]]
    if not elsewhere:
        return "shm" if wanted == "auto" else wanted
    if wanted == "shm":
        peer = elsewhere[0]
        raise ValueError(
            "HVD_TRANSPORT or Options.transport is 'shm', but ranks 0 and "
            f"{peer}, on {hosts[0][1]} and {hosts[peer][1]}, cannot share memory: they are on "
            "different hosts or in different containers; allowed there is auto or gloo"
        )
    return "gloo"


def describe(
    wanted: _settings.Origin, chosen: str, shm: Sequence[_C.ShmRank], store: Store, size: int
) -> str:
    """What was chosen, and why, for people.

    Args:
        wanted: the setting.
        chosen: what `choose` has returned.
        shm: what `_shm.connect` has returned, if that is it.
        store: that of `choose`.
    """
    if size == 1:
        return "1 rank: needs no transport"
    names = store.multi_get([f"host/{peer}" for peer in range(size)])
    hosts = len({json.loads(text)[0] for text in names})
    text = f"{size} ranks on {hosts} host{'s' if hosts > 1 else ''}: {chosen}"
    if shm:
        attached = all(peer.reads_memory for peer in shm)
        text += f" ({'' if attached else 'no '}cross-memory attach)"
    return text if wanted.text == "auto" else f"{text}, by {wanted}"

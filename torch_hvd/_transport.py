"""Which transport a group takes."""

import json
import os

from torch._C._distributed_c10d import Store

from torch_hvd import _shm


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

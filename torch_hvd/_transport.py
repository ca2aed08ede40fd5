"""Which transport a group takes."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass

from torch._C._distributed_c10d import Store

from torch_hvd import _settings, _shm
from torch_hvd._load import _C


@dataclass(frozen=True)
class Choice:
    """A transport by name, and by rank the number of its host; the same on every rank."""

    transport: str
    hosts: list[int]

    def ranks_beside(self, rank: int) -> list[int]:
        """The ranks on the host of this one, itself included, in rising order."""
        return [peer for peer, host in enumerate(self.hosts) if host == self.hosts[rank]]


def choose(wanted: str, store: Store, rank: int, size: int) -> Choice:
    """The transport that a group takes.

    Args:
        wanted: "auto" or a name, the same on every rank.
        store: its keys are this group's own.

    Returns:
        "none" for a group of one; else `wanted`, or for "auto" the fastest that there is: "shm"
        for one host, "gloo" for hosts of one rank each, "shm+gloo" for several with several.

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why.
    """
    if size == 1:
        return Choice("none", [0])
    keys = [f"host/{peer}" for peer in range(size)]
    store.set(keys[rank], json.dumps([_shm.host_id(os.environ), os.uname().nodename]))
    known = [json.loads(text) for text in store.multi_get(keys)]
    names = list(dict.fromkeys(host for host, _ in known))
    hosts = [names.index(host) for host, _ in known]
    if wanted == "shm" and len(names) > 1:
        peer = hosts.index(1)
        raise ValueError(
            "HVD_TRANSPORT or Options.transport is 'shm', but ranks 0 and "
            f"{peer}, on {known[0][1]} and {known[peer][1]}, cannot share memory: they are on "
            "different hosts or in different containers; allowed there is auto or gloo"
        )
    if wanted != "auto" or len(names) == size:
        return Choice("gloo" if wanted == "auto" else wanted, hosts)
    return Choice("shm" if len(names) == 1 else "shm+gloo", hosts)


def describe(
    wanted: _settings.Origin, choice: Choice, shm: Sequence[_C.ShmRank], library: str = ""
) -> str:
    """What was chosen, and why, for people.

    Args:
        wanted: the setting.
        choice: what `choose` has returned.
        shm: what `_shm.connect` has returned, if that is in it.
        library: what MPI it is, if it is.
    """
    size, hosts = len(choice.hosts), len(set(choice.hosts))
    if size == 1:
        return "1 rank: needs no transport"
    text = f"{size} ranks on {hosts} host{'s' if hosts > 1 else ''}: {choice.transport}"
    if shm:
        attached = all(peer.reads_memory for peer in shm)
        text += f" ({'' if attached else 'no '}cross-memory attach)"
    if library:
        text += f" ({library})"
    return text if wanted.text == "auto" else f"{text}, by {wanted}"

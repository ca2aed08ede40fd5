"""Which transport a group takes, and how its ranks are connected by it."""

import os
from dataclasses import dataclass
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

from torch_hvd import _mpi, _settings, _shm, _store, _tcp
from torch_hvd._load import _C


@dataclass(frozen=True)
class Choice:
    """Transports by name, and by rank the number of its host; the same on every rank.

    `near` is for ranks of one host, `far` for all others; "" where a group has no use for one.
    """

    near: str
    far: str
    hosts: list[int]

    @property
    def transport(self) -> str:
        return "+".join(filter(None, (self.near, self.far))) or "none"

    def ranks_beside(self, rank: int) -> list[int]:
        """The ranks on the host of this one, itself included, in rising order."""
        return [peer for peer, host in enumerate(self.hosts) if host == self.hosts[rank]]


@dataclass(frozen=True)
class Connection:
    """The ranks of a group, connected. `details`: what is of interest of the transport."""

    choice: Choice
    transport: _C.Transport
    details: tuple[str, ...] = ()
    regret: str = ""  # why it is not what was tried first


def choose(wanted: str, store: Store, rank: int, size: int) -> Choice:
    """The transport that a group takes, if it can be had.

    Args:
        wanted: "auto" or a name, the same on every rank.
        store: its keys are this group's own.

    Returns:
        "none" for a group of one; else `wanted`, of "shm+tcp" and the like only what the hosts
        have a use for. "auto" is "shm+mpi" if MPI has started all ranks and they have a fast
        network, else "shm+tcp".

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why.
    """
    if size == 1:
        return Choice("", "", [0])
    wants_mpi = _mpi.launcher(os.environ) is not None and _mpi.has_fast_network()
    mine = [_shm.host_id(os.environ), os.uname().nodename, wants_mpi]
    known = _store.exchange(store, "host", rank, size, mine)
    names = list(dict.fromkeys(host for host, _, _ in known))
    hosts = [names.index(host) for host, _, _ in known]
    if wanted == "shm" and len(names) > 1:
        peer = hosts.index(1)
        raise ValueError(
            "HVD_TRANSPORT or Options.transport is 'shm', but ranks 0 and "
            f"{peer}, on {known[0][1]} and {known[peer][1]}, cannot share memory: they are on "
            "different hosts or in different containers; allowed there is auto, gloo, mpi, tcp "
            "or a pair, as shm+tcp"
        )
    if wanted == "auto":
        wanted = "shm+mpi" if all(wants for _, _, wants in known) else "shm+tcp"
    near = "shm" if wanted.startswith("shm") else ""
    far = wanted.removeprefix("shm").removeprefix("+")
    if near and len(names) == 1:
        return Choice(near, "", hosts)
    return Choice(near if len(names) < size else "", far, hosts)


def connect(wanted: str, store: Store, rank: int, size: int, timeout: timedelta) -> Connection:
    """Connect the ranks of a group.

    Args:
        wanted: as for `choose`.
        store: its keys are this group's own.
        timeout: for connecting.

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why. Never for "auto".
        RuntimeError: connecting failed; says on which rank, and why.
    """
    choice = choose(wanted, store, rank, size)
    try:
        return _connect(choice, store, rank, timeout, only_if_it_fits=wanted == "auto")
    except _mpi.Unavailable as error:
        if wanted != "auto":
            raise ValueError(
                f"HVD_TRANSPORT or Options.transport is {wanted!r}, but {error}"
            ) from None
        choice = Choice(choice.near, "tcp", choice.hosts)
        made = _connect(choice, store, rank, timeout)
        return Connection(choice, made.transport, made.details, f"no MPI: {error}")


def _connect(
    choice: Choice, store: Store, rank: int, timeout: timedelta, only_if_it_fits: bool = False
) -> Connection:
    near = far = None
    details = []
    here = choice.ranks_beside(rank)
    if choice.far == "mpi":
        part = PrefixStore("mpi", store)
        far, library = _mpi.connect(part, rank, choice.hosts, timeout, only_if_it_fits)
        details.append(library)
    elif choice.far == "gloo":
        from torch_hvd import _gloo  # which not every torch has

        part = PrefixStore("gloo", store)
        far = _C.gloo_transport(_gloo.connect(part, rank, len(choice.hosts), timeout))
    elif choice.far == "tcp":
        part = PrefixStore("tcp", store)
        far, address = _tcp.connect(part, rank, len(choice.hosts), len(here), timeout)
        details.append(f"from {address}")
    if choice.near and len(here) > 1:
        near, attached = _shm.connect(PrefixStore("shm", store), rank, here, timeout)
        details.insert(0, f"{'' if attached else 'no '}cross-memory attach")
    if choice.near and far:
        made = _C.routed_transport(near, far, choice.hosts)
    else:
        made = near or far or _C.solo_transport()
    return Connection(choice, made, tuple(details))


def describe(
    wanted: _settings.Origin, compression: _settings.Origin, connection: Connection
) -> str:
    """What was chosen, and why, for people. `wanted`, `compression`: the settings."""
    hosts = connection.choice.hosts
    size, count = len(hosts), len(set(hosts))
    if size == 1:
        return "1 rank: needs no transport"
    text = f"{size} ranks on {count} host{'s' if count > 1 else ''}: {connection.choice.transport}"
    if connection.details:
        text += f" ({', '.join(connection.details)})"
    if connection.regret:
        text += f"; {connection.regret}"
    if wanted.text != "auto":
        text += f", by {wanted}"
    if compression.text != "none" and connection.choice.transport == "shm":
        text += f"; {compression} compresses nothing, all ranks share memory"
    return text

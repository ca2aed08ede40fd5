"""Which transport a group takes, and how its ranks are connected by it."""

import functools
import operator
import os
from dataclasses import dataclass, replace

from torch_hvd import _mpi, _settings, _shm, _tcp
from torch_hvd._load import _C
from torch_hvd._store import Meeting, Unavailable


@dataclass(frozen=True)
class Choice:
    """Transports by name, and by rank the number of its host, and as bits the cores that it may run
    on; the same on every rank.

    `near` is for ranks of one host, `far` for all others; "" where a group has no use for one.
    """

    near: str
    far: str
    hosts: list[int]
    cores: list[int]

    @property
    def transport(self) -> str:
        return "+".join(filter(None, (self.near, self.far))) or "none"

    def ranks_beside(self, rank: int) -> list[int]:
        """The ranks on the host of this one, itself included, in rising order."""
        return [peer for peer, host in enumerate(self.hosts) if host == self.hosts[rank]]

    def ranks_per_core(self, rank: int) -> float:
        """How many ranks on the host of this one share a core that one of them may run on.

        A launcher may have bound each to some cores, so one rank's say nothing of the host's.
        """
        here = self.ranks_beside(rank)
        cores = functools.reduce(operator.or_, (self.cores[peer] for peer in here))
        return len(here) / cores.bit_count()


@dataclass(frozen=True)
class Connection:
    """The ranks of a group, connected. `details`: what is of interest of the transport."""

    choice: Choice
    transport: _C.Transport
    details: tuple[str, ...] = ()
    regret: str = ""  # why it is not what was tried first


def choose(wanted: str, meeting: Meeting) -> Choice:
    """The transport that a group takes, if it can be had.

    Args:
        wanted: "auto" or a name, the same on every rank.
        meeting: of the group.

    Returns:
        "none" for a group of one; else `wanted`, of "shm+tcp" and the like only what the hosts
        have a use for. "auto" is "shm+mpi" if MPI has started all ranks and they have a fast
        network, else "shm+tcp".

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why.
    """
    own_cores = sum(1 << core for core in os.sched_getaffinity(0))
    size = meeting.size
    if size == 1:
        return Choice("", "", [0], [own_cores])
    wants_mpi = _mpi.launcher(os.environ) is not None and _mpi.has_fast_network()
    mine = [_shm.host_id(os.environ), os.uname().nodename, own_cores, wants_mpi]
    known = meeting.exchange("host", mine)
    names = list(dict.fromkeys(host for host, *_ in known))
    hosts = [names.index(host) for host, *_ in known]
    cores = [own for _, _, own, _ in known]
    if wanted == "shm" and len(names) > 1:
        peer = hosts.index(1)
        raise ValueError(
            "HVD_TRANSPORT or Options.transport is 'shm', but ranks 0 and "
            f"{peer}, on {known[0][1]} and {known[peer][1]}, cannot share memory: they are on "
            "different hosts or in different containers (if not, give them one HVD_HOST_ID); "
            "allowed there is auto, gloo, mpi, tcp or a pair, as shm+tcp"
        )
    if wanted == "auto":
        wanted = "shm+mpi" if all(wants for *_, wants in known) else "shm+tcp"
    near = "shm" if wanted.startswith("shm") else ""
    far = wanted.removeprefix("shm").removeprefix("+")
    if near and len(names) == 1:
        return Choice(near, "", hosts, cores)
    return Choice(near if len(names) < size else "", far, hosts, cores)


def connect(wanted: str, meeting: Meeting) -> Connection:
    """Connect the ranks of a group.

    Args:
        wanted: as for `choose`.
        meeting: as for `choose`; its timeout is for connecting, too.

    Raises:
        ValueError: `wanted` cannot be had, on every rank alike; says why. Never for "auto".
        RuntimeError: connecting failed; says on which rank, and why.
    """
    choice = choose(wanted, meeting)
    near = far = None
    details = []
    regrets = []
    if choice.near:
        try:
            near, detail = _connect_near(choice, meeting)
            details += detail
        except Unavailable as error:
            regrets.append(_without("shared memory", wanted, error))
            choice = replace(choice, near="", far=choice.far or "tcp")
    try:
        far, detail = _connect_far(choice, meeting, only_if_it_fits=wanted == "auto")
    except Unavailable as error:
        regrets.append(_without("MPI", wanted, error))
        choice = replace(choice, far="tcp")
        far, detail = _connect_far(choice, meeting)
    details += detail
    if choice.near and far:
        made = _C.routed_transport(near, far, choice.hosts)
    else:
        made = near or far or _C.solo_transport()
    return Connection(choice, made, tuple(details), "; ".join(regrets))


def _without(what: str, wanted: str, error: Unavailable) -> str:
    """Why "auto" does without something. Raises ValueError if it was asked for by name."""
    if wanted != "auto":
        raise ValueError(f"HVD_TRANSPORT or Options.transport is {wanted!r}, but {error}") from None
    return f"no {what}: {error}"


def _connect_near(choice: Choice, meeting: Meeting) -> tuple[_C.Transport | None, list[str]]:
    """The ranks of each host among themselves; none for one that is alone on its host.

    Raises:
        Unavailable: on the ranks of all hosts, if some of one cannot share memory.
    """
    rank = meeting.rank
    here = choice.ranks_beside(rank)
    near, details = None, list[str]()
    failed = None
    try:
        if len(here) > 1:
            part = meeting.part(f"shm/{choice.hosts[rank]}", here)
            near, attached = _shm.connect(part, choice.ranks_per_core(rank))
            details = [f"{'' if attached else 'no '}cross-memory attach"]
    except Unavailable as error:
        failed = Unavailable(f"{error}")  # without a traceback, which would hold this frame
    meeting.agree("near", failed)
    return near, details


def _connect_far(
    choice: Choice, meeting: Meeting, only_if_it_fits: bool = False
) -> tuple[_C.Transport | None, list[str]]:
    """All ranks, by what they have for those of other hosts; none where they have nothing.

    Raises:
        Unavailable: there is no MPI.
    """
    part = meeting.part(choice.far)
    ranks_per_core = choice.ranks_per_core(meeting.rank)
    if choice.far == "mpi":
        far, found = _mpi.connect(part, choice.hosts, ranks_per_core, only_if_it_fits)
        return far, [*found]
    if choice.far == "gloo":
        from torch_hvd import _gloo  # which not every torch has

        return _C.gloo_transport(_gloo.connect(part, choice.hosts)), []
    if choice.far == "tcp":
        far, addresses = _tcp.connect(part, choice.hosts, ranks_per_core)
        return far, [f"from {' and '.join(addresses)}"]
    return None, []


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

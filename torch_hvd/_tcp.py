"""Connects the ranks of a group by TCP, each with each, on one network or several (rails)."""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from itertools import chain
from typing import Any

from torch_hvd import _addresses
from torch_hvd._load import _C
from torch_hvd._store import Meeting

_TOKEN_BYTES = 16
_HELLO = struct.Struct(f"!i{_TOKEN_BYTES}s")  # rank, the token of who listens

# When a connection that says nothing is none of ours.
_HELLO_S = 5.0

# A host that is gone without a word is noticed after some 30 s. TCP itself looks for it only while
# it has nothing to send.
_PATIENCE = timedelta(seconds=30)
_KEEPALIVE = {
    socket.TCP_KEEPIDLE: 15,  # seconds
    socket.TCP_KEEPINTVL: 5,  # seconds
    socket.TCP_KEEPCNT: 3,
}


def _listen(address: str, size: int) -> socket.socket:
    return socket.create_server((address, 0), family=_addresses.family(address), backlog=size)


def _accept(
    listener: socket.socket, token: bytes, awaited: set[int], deadline: float
) -> Iterator[tuple[int, socket.socket]]:
    """The ranks that connect, until all awaited have. Who does not know the token is no rank."""
    while awaited:
        listener.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            ranks = ", ".join(map(str, sorted(awaited)))
            raise TimeoutError(f"no connection from rank {ranks}") from None
        connection.settimeout(_HELLO_S)
        try:
            hello = connection.recv(_HELLO.size, socket.MSG_WAITALL)
        except OSError:
            hello = b""
        rank, theirs = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (-1, b"")
        if rank in awaited and hmac.compare_digest(theirs, token):
            awaited.remove(rank)
            yield rank, connection
        else:
            connection.close()


def _prepare(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE.items():
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setblocking(False)


def _same_count(places: list[list[Any]]) -> None:
    for peer, theirs in enumerate(places):
        if len(theirs) != len(places[0]):
            raise OSError(
                f"rank 0 has interfaces to use: {len(places[0])}, rank {peer}: {len(theirs)}; "
                "allowed is the same number on every rank"
            )


def _connect_all(
    meeting: Meeting, addresses: list[str], deadline: float
) -> list[list[socket.socket]]:
    """To all ranks below this one, and from all above; by rank, on each network."""
    rank, size = meeting.rank, meeting.size
    token = secrets.token_bytes(_TOKEN_BYTES)
    rails: list[list[socket.socket]] = [[] for _ in range(size)]
    with ExitStack() as listening, ExitStack() as failed:
        listeners = [listening.enter_context(_listen(address, size)) for address in addresses]
        mine = [listener.getsockname()[:2] for listener in listeners]
        known = meeting.exchange("listens", [mine, token.hex()])
        _same_count([places for places, _ in known])
        for peer, (places, theirs) in enumerate(known[:rank]):
            for (host, port), own in zip(places, addresses, strict=True):
                # Of several interfaces to one network the system would take one for all.
                source = (own, 0) if len(addresses) > 1 else None
                left = max(deadline - time.monotonic(), 0.001)
                try:
                    connection = socket.create_connection((host, port), left, source)
                    rails[peer].append(failed.enter_context(connection))
                    connection.sendall(_HELLO.pack(rank, bytes.fromhex(theirs)))
                except OSError as error:
                    raise OSError(f"to rank {peer} at {host} port {port}: {error}") from error
        for listener in listeners:
            above = set(range(rank + 1, size))
            for peer, connection in _accept(listener, token, above, deadline):
                rails[peer].append(failed.enter_context(connection))
        failed.pop_all()
    return rails


def connect(
    meeting: Meeting, hosts: list[int], ranks_per_core: float
) -> tuple[_C.Transport, list[str]]:
    """Connect all ranks of a group.

    Args:
        meeting: of all ranks; its timeout is for connecting, too.
        hosts: by rank, the number of its host.
        ranks_per_core: how many ranks of this host share a core.

    Returns:
        The transport, and the addresses of this rank.

    Raises:
        RuntimeError: names the addresses and the interfaces that were tried; also where ranks
            have several, and not as many each.
    """
    rank, size, addresses = meeting.rank, meeting.size, list[str]()
    try:
        addresses = _addresses.for_peers(hosts)
        deadline = time.monotonic() + meeting.timeout.total_seconds()
        rails = _connect_all(meeting, addresses, deadline)
        for connection in chain.from_iterable(rails):
            _prepare(connection)
    except OSError as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over TCP on "
            f"{_addresses.describe(addresses)}; GLOO_SOCKET_IFNAME chooses other ones. {error}"
        ) from error
    sockets = [[connection.detach() for connection in one] for one in rails]
    return _C.tcp_transport(rank, sockets, ranks_per_core, _PATIENCE), addresses

"""Connects the ranks of a group by TCP, each with each."""

import hmac
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

from torch._C._distributed_c10d import Store

from torch_hvd import _addresses, _store
from torch_hvd._load import _C

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


def _connect_all(
    store: Store, rank: int, size: int, address: str, deadline: float
) -> dict[int, socket.socket]:
    """To all ranks below this one, and from all above."""
    token = secrets.token_bytes(_TOKEN_BYTES)
    connections = {}
    with ExitStack() as failed, _listen(address, size) as listener:
        port = listener.getsockname()[1]
        known = _store.exchange(store, "listens", rank, size, [address, port, token.hex()])
        for peer, (host, port, theirs) in enumerate(known[:rank]):
            left = max(deadline - time.monotonic(), 0.001)
            try:
                connection = socket.create_connection((host, port), timeout=left)
                connections[peer] = failed.enter_context(connection)
                connection.sendall(_HELLO.pack(rank, bytes.fromhex(theirs)))
            except OSError as error:
                raise OSError(f"to rank {peer} at {host} port {port}: {error}") from error
        for peer, connection in _accept(listener, token, set(range(rank + 1, size)), deadline):
            connections[peer] = failed.enter_context(connection)
        failed.pop_all()
    return connections


def connect(
    store: Store, rank: int, hosts: list[int], ranks_per_core: float, timeout: timedelta
) -> tuple[_C.Transport, str]:
    """Connect all ranks of a group.

    Args:
        store: where ranks find each other; its keys are this connection's own.
        hosts: by rank, the number of its host.
        ranks_per_core: how many ranks of this host share a core.
        timeout: for connecting.

    Returns:
        The transport, and the address of this rank.

    Raises:
        RuntimeError: names the address and the interface that were tried.
    """
    size, address = len(hosts), None
    try:
        address = _addresses.for_peers(hosts)
        deadline = time.monotonic() + timeout.total_seconds()
        connections = _connect_all(store, rank, size, address, deadline)
        for connection in connections.values():
            _prepare(connection)
    except OSError as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over TCP on "
            f"{_addresses.describe(address)}; GLOO_SOCKET_IFNAME chooses another interface. {error}"
        ) from error
    sockets = [connections[peer].detach() if peer != rank else -1 for peer in range(size)]
    return _C.tcp_transport(rank, sockets, ranks_per_core, _PATIENCE), address

"""Connects the ranks of one host by shared memory.

Nothing here has a name that outlives its process: segments are anonymous files handed over abstract
sockets. So a kill leaves nothing behind, and the size of /dev/shm does not matter.
"""

import ctypes
import os
import secrets
import socket
import struct
from collections.abc import Mapping
from datetime import timedelta

from torch._C._distributed_c10d import Store

from torch_hvd._load import _C

_COOKIE_BYTES = 32
_HELLO = struct.Struct(f"iQ{_COOKIE_BYTES}s")  # rank, address of a cookie, the cookie


def may_attach(environ: Mapping[str, str]) -> bool:
    """Whether ranks may read each other's memory, by `HVD_CMA`.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    text = environ.get("HVD_CMA", "1")
    if text not in ("0", "1"):
        raise ValueError(f"HVD_CMA is {text!r}; allowed is 0 or 1")
    return text == "1"


def host_id(environ: Mapping[str, str]) -> str:
    """What processes that can share memory have in common: `HVD_HOST_ID`, or else where they run.

    That is the kernel's boot, and the namespaces by which containers keep processes, their sockets
    and their memory apart.
    """
    if "HVD_HOST_ID" in environ:
        return environ["HVD_HOST_ID"]
    with open("/proc/sys/kernel/random/boot_id") as boot_id:
        parts = [boot_id.read().strip()]
    parts += [os.readlink(f"/proc/self/ns/{name}") for name in ("ipc", "net", "pid", "user")]
    return " ".join(parts)


def can_attach() -> bool:
    """Whether a process can read the memory of one that it is not the parent of; tries it."""
    _C.allow_reading_memory()
    cookie = ctypes.create_string_buffer(_COOKIE_BYTES)
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        try:
            theirs.recv(1)
            read = _C.read_memory(os.getppid(), ctypes.addressof(cookie), _COOKIE_BYTES)
            theirs.sendall(read or b"no")
        finally:
            os._exit(0)
    theirs.close()
    cookie.raw = secrets.token_bytes(_COOKIE_BYTES)  # which the child's own copy does not have
    ours.sendall(b"!")
    read = ours.recv(_COOKIE_BYTES)
    ours.close()
    os.waitpid(child, 0)
    return read == cookie.raw


class _Peer:
    """The connection to another rank, and what it has told."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid: int = struct.unpack("3i", credentials)[0]
        self.rank = -1
        self.segment = -1

    def meet(self) -> tuple[int, bytes]:
        """Receive the greeting; returns the address of the peer's cookie, and the cookie."""
        text, descriptors, _, _ = socket.recv_fds(self.connection, _HELLO.size, 1)
        if not descriptors:
            raise ConnectionError(f"process {self.pid}, a rank of this host, has ended")
        (self.segment,) = descriptors
        self.rank, address, cookie = _HELLO.unpack(text)
        return address, cookie

    def life(self) -> int:
        """A file descriptor that polls readable once the process is gone."""
        try:
            return os.pidfd_open(self.pid)
        except OSError:  # before Linux 5.3; a child of the process would keep this one open
            return self.connection.detach()

    def agree(self, readable: bool) -> bool:
        """Tell whether its memory can be read from here; returns whether it can read ours."""
        self.connection.sendall(bytes([readable]))
        return self.connection.recv(1) == b"\x01"


def _connect_all(store: Store, rank: int, ranks: list[int], timeout: timedelta) -> list[_Peer]:
    """To all ranks below this one, and from all above."""
    below = [peer for peer in ranks if peer < rank]
    above = [peer for peer in ranks if peer > rank]
    peers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.settimeout(timeout.total_seconds())
        name = f"hvd-{secrets.token_hex(16)}"
        listener.bind(f"\0{name}")  # abstract: gone with the last descriptor
        listener.listen(len(ranks))
        store.set(str(rank), name)
        for peer in below:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(timeout.total_seconds())
            connection.connect(f"\0{store.get(str(peer)).decode()}")
            peers.append(_Peer(connection))
        for _ in above:
            connection, _ = listener.accept()
            connection.settimeout(timeout.total_seconds())
            peers.append(_Peer(connection))
    return peers


def connect(
    store: Store, rank: int, ranks: list[int], timeout: timedelta
) -> tuple[_C.Transport, bool]:
    """Connect ranks that share a host.

    Args:
        store: where ranks find each other; its keys are this connection's own.
        rank: of this process in its group.
        ranks: of that group, those on this host, in rising order; this one among them.
        timeout: for connecting.

    Returns:
        The transport, in which a rank is its place in `ranks`, and whether this process's memory
        can be read by all of them.

    Raises:
        RuntimeError: says which step failed on this rank, and why.
    """
    known: list[_C.ShmRank] = []
    try:
        known = _connect(store, rank, ranks, timeout)
        transport = _C.shm_transport(ranks.index(rank), known)
        return transport, all(peer.reads_memory for peer in known)
    except OSError as error:
        raise RuntimeError(
            f"hvd: rank {rank} could not share memory with the others of {ranks}: {error}; "
            "HVD_TRANSPORT=tcp does without"
        ) from error
    finally:
        for peer in known:
            os.close(peer.segment)  # it is mapped by now


def _connect(store: Store, rank: int, ranks: list[int], timeout: timedelta) -> list[_C.ShmRank]:
    segment = os.memfd_create(f"hvd-{rank}", os.MFD_CLOEXEC)
    os.ftruncate(segment, _C.shm_segment_bytes(len(ranks)))
    _C.initialise_shm_segment(segment, len(ranks))
    attach = may_attach(os.environ)
    if attach:
        _C.allow_reading_memory()
    cookie = ctypes.create_string_buffer(secrets.token_bytes(_COOKIE_BYTES), _COOKIE_BYTES)
    hello = _HELLO.pack(rank, ctypes.addressof(cookie), cookie.raw)
    known = {rank: _C.ShmRank(rank, segment, -1, -1, True)}
    peers = _connect_all(store, rank, ranks, timeout)
    for peer in peers:
        socket.send_fds(peer.connection, [hello], [segment])
    readable = {}
    for peer in peers:
        address, theirs = peer.meet()
        cookie_read = _C.read_memory(peer.pid, address, _COOKIE_BYTES) if attach else None
        readable[peer.rank] = cookie_read == theirs
    for peer in peers:
        reads_ours = peer.agree(readable[peer.rank])
        known[peer.rank] = _C.ShmRank(peer.rank, peer.segment, peer.pid, peer.life(), reads_ours)
        peer.connection.close()
    return [known[peer] for peer in ranks]

"""Connects the ranks of one host by shared memory.

Nothing here has a name that outlives its process: segments are anonymous files handed over abstract
sockets. So a kill leaves nothing behind, and the size of /dev/shm does not matter.

Every user of the system can find such a socket. So a rank answers nobody but who knows a token that
it has left in the store; and since its socket takes datagrams, nobody can keep it waiting.
"""

import array
import ctypes
import hmac
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

from torch_hvd import _settings
from torch_hvd._load import _C
from torch_hvd._store import Meeting, Unavailable

T = TypeVar("T")

_COOKIE_BYTES = 32
_TOKEN_BYTES = 16

# Another rank answers at once, whatever its program does, unless it is gone or suspended.
_ANSWER_S = 30.0


def host_id(environ: Mapping[str, str]) -> str:
    """What processes that can share memory have in common: `HVD_HOST_ID`, or else where they run.

    That is the kernel's boot, and the namespaces by which containers keep processes, their sockets
    and their memory apart. Where /proc does not tell the boot, this process is
    on a host of its own.
    """
    if given := environ.get("HVD_HOST_ID"):
        return given
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = secrets.token_hex()
    return " ".join([boot, *map(_namespace, ("ipc", "net", "pid", "user"))])


def _namespace(kind: str) -> str:
    try:
        return os.readlink(f"/proc/self/ns/{kind}")
    except OSError:  # a kernel without such namespaces
        return "-"


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


class _Door:
    """Hands descriptors to the other ranks, on a thread of its own, until it is closed."""

    def __init__(self, *descriptors: int) -> None:
        self.name = f"hvd-{secrets.token_hex(16)}"
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self._rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, name="hvd-door", daemon=True)
        try:
            self._socket.bind(f"\0{self.name}")  # abstract: gone with the last descriptor
            self._thread.start()
        except BaseException:
            self._socket.close()
            raise

    def _serve(self) -> None:
        while not self._closing:
            token, address = self._socket.recvfrom(_TOKEN_BYTES)
            if hmac.compare_digest(token, self.token):
                with suppress(OSError):  # it has ended meanwhile
                    self._socket.sendmsg([b"!"], [self._rights], socket.MSG_DONTWAIT, address)

    def close(self) -> None:
        self._closing = True
        self._socket.shutdown(socket.SHUT_RD)  # wakes the thread
        self._thread.join()
        self._socket.close()


def _take(name: str, token: bytes) -> tuple[int, int]:
    """The two descriptors behind another rank's door."""
    descriptors = array.array("i")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ours:
        ours.settimeout(_ANSWER_S)
        ours.connect(f"\0{name}")  # from now on it takes nothing from anybody else
        ours.bind("")  # a name for the answer
        ours.send(token)
        room = socket.CMSG_SPACE(2 * descriptors.itemsize)
        _, messages, _, _ = ours.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    for _, _, content in messages:
        descriptors.frombytes(content)
    if len(descriptors) < 2:
        for descriptor in descriptors:
            os.close(descriptor)
        raise OSError("the system refuses more file descriptors")
    segment, life = descriptors
    return segment, life


class _Handover:
    """What this rank has for the others of its host, and what it has got from them, by place."""

    def __init__(self, place: int, size: int) -> None:
        self._place = place
        self._size = size
        self._attach = _settings.may_attach(os.environ)
        cookie = secrets.token_bytes(_COOKIE_BYTES)
        self._cookie = ctypes.create_string_buffer(cookie, _COOKIE_BYTES)
        self._segments: dict[int, int] = {}
        self._pids: dict[int, int] = {place: -1}
        self._lives: dict[int, int] = {}
        self._held = ExitStack()
        self._until_taken_over = self._held.enter_context(ExitStack())

    def __enter__(self) -> "_Handover":
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def offer(self) -> list[Any]:
        """Make what the others need; returns how they get it."""
        segment = os.memfd_create(f"hvd-{self._place}", os.MFD_CLOEXEC)
        self._keep(self._place, segment)
        os.ftruncate(segment, _C.shm_segment_bytes(self._size))
        _C.initialise_shm_segment(segment, self._size)
        # Of a pipe: the other end is closed when this process ends, however it does.
        theirs, ours = os.pipe()
        self._held.callback(os.close, theirs)
        self._watch(self._place, ours)
        door = _Door(segment, theirs)
        self._held.callback(door.close)
        if self._attach:
            _C.allow_reading_memory()
        address = ctypes.addressof(self._cookie)
        return [door.name, door.token.hex(), os.getpid(), address, self._cookie.raw.hex()]

    def take(self, offers: list[list[Any]]) -> list[int]:
        """Get what the others offer; returns the places of those whose memory can be read."""
        readable = []
        for place, (name, token, pid, address, cookie) in enumerate(offers):
            if place == self._place:
                continue
            segment, life = _take(name, bytes.fromhex(token))
            self._keep(place, segment)
            self._watch(place, life)
            self._pids[place] = pid
            read = _C.read_memory(pid, address, _COOKIE_BYTES) if self._attach else None
            if read == bytes.fromhex(cookie):
                readable.append(place)
        return readable

    def transport(
        self, ranks: Sequence[int], readable: list[list[int]], ranks_per_core: float
    ) -> _C.Transport:
        """`readable`: by place, what that rank has returned from `take`."""
        known = [
            _C.ShmRank(
                rank,
                self._segments[place],
                self._pids[place],
                self._lives[place],
                place == self._place or self._place in readable[place],
            )
            for place, rank in enumerate(ranks)
        ]
        self._until_taken_over.pop_all()
        return _C.shm_transport(self._place, known, ranks_per_core)

    def _keep(self, place: int, segment: int) -> None:
        self._segments[place] = segment
        self._held.callback(os.close, segment)  # when it has been mapped

    def _watch(self, place: int, life: int) -> None:
        self._lives[place] = life
        self._until_taken_over.callback(os.close, life)


def _unavailable(rank: int, error: Exception) -> Unavailable:
    return Unavailable(f"rank {rank} cannot share memory: {error}")


def _tried(rank: int, step: Callable[..., T], *args: Any) -> T | Unavailable:
    try:
        return step(*args)
    except (OSError, RuntimeError) as error:
        return _unavailable(rank, error)


def connect(meeting: Meeting, ranks_per_core: float) -> tuple[_C.Transport, bool]:
    """Connect ranks that share a host.

    Args:
        meeting: of these ranks.
        ranks_per_core: how many of them share a core.

    Returns:
        The transport, in which a rank is its place, and whether this process's memory can be read
        by all of them.

    Raises:
        Unavailable: says on which rank which step failed. From the last step on this rank alone.
    """
    place, rank = meeting.place, meeting.rank
    with _Handover(place, meeting.size) as handover:
        offers = meeting.agree("offers", _tried(rank, handover.offer))
        readable = meeting.agree("readable", _tried(rank, handover.take, offers))
        try:
            made = handover.transport(meeting.ranks, readable, ranks_per_core)
        except RuntimeError as error:
            raise _unavailable(rank, error) from error
    others = [theirs for peer, theirs in enumerate(readable) if peer != place]
    return made, all(place in theirs for theirs in others)

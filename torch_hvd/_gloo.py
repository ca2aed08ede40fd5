"""The stock Gloo process group that serves as a transport, on an address others can reach."""

import fcntl
import ipaddress
import os
import socket
import struct
from datetime import timedelta

from torch._C._distributed_c10d import ProcessGroupGloo, Store

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def _resolve(host: str) -> str | None:
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _address_towards(host: str) -> str:
    """The local address that packets to `host` leave from. Sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address


def _interface_of(address: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return "unknown"


def choose_address() -> str | None:
    """The address Gloo should bind to, or None to leave the choice to Gloo.

    Gloo binds to what the host name resolves to. Where that is loopback, as on Debian, ranks on
    other hosts cannot connect; if MASTER_ADDR is not loopback, the way to it tells a better one.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    own = _resolve(socket.gethostname())
    master = _resolve(os.environ.get("MASTER_ADDR", "localhost"))
    if (own is not None and not _is_loopback(own)) or master is None or _is_loopback(master):
        return None
    return _address_towards(master)


def _where(address: str | None) -> str:
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return f"interface {os.environ['GLOO_SOCKET_IFNAME']} (GLOO_SOCKET_IFNAME)"
    tried = address or _resolve(socket.gethostname()) or "127.0.0.1"
    return f"address {tried}, interface {_interface_of(tried)}"


def connect(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    """Connect all ranks of a group.

    Args:
        store: where ranks find each other; its keys are this connection's own.
        timeout: for connecting.

    Raises:
        RuntimeError: names the address and the interface that were tried.
    """
    address = choose_address()
    try:
        if address is None:
            return ProcessGroupGloo(store, rank, size, timeout=timeout)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        return ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over Gloo on "
            f"{_where(address)}; GLOO_SOCKET_IFNAME chooses another interface. {error}"
        ) from error

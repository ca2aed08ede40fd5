"""Addresses of this host, and which of another's it reaches best. Sends nothing."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence

_SIOCGIFADDR = 0x8915  # linux/sockios.h


def resolve(host: str) -> str | None:
    """The IPv4 address of a host, None if nobody knows it."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return None


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def towards(host: str) -> str:
    """The local address that packets to `host` leave from.

    Raises:
        OSError: there is no way to it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))
        address: str = probe.getsockname()[0]
        return address


def of_interfaces() -> Iterator[tuple[str, str]]:
    """Each interface that has an IPv4 address, and that."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            yield name, socket.inet_ntoa(reply[20:24])


def own() -> str | None:
    """An address of this host for others: that of its name, or of an interface."""
    named = resolve(socket.gethostname())
    if named is not None and not is_loopback(named):
        return named
    return next((found for _, found in of_interfaces() if not is_loopback(found)), None)


def is_own(address: str) -> bool:
    """Whether it is an address of this host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def nearest(addresses: Sequence[str]) -> str | None:
    """Of the addresses of a host the one most like ours on the way to it, None of none."""

    def likeness(address: str) -> int:
        try:
            ours = towards(address)
        except OSError:
            return -1
        return 32 - (_number(address) ^ _number(ours)).bit_length()

    others = [address for address in addresses if not is_loopback(address)]
    return max(others, key=likeness, default=None)


def for_others(addresses: Sequence[str]) -> str | None:
    """Of what a name resolves to the address to give to other hosts, None if there is none.

    A name that means loopback is this host's own; other hosts need another address of it.
    """
    return nearest(addresses) or own()


def for_peers() -> str | None:
    """The address that other ranks reach this host by, None where its name or the user tells it.

    Where the name of a host means loopback, as on Debian, or what is not its own, ranks on other
    hosts cannot connect to it; if MASTER_ADDR is not loopback, the way to that tells a better one.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    named = resolve(socket.gethostname())
    if named is not None and not is_loopback(named) and is_own(named):
        return None
    master = resolve(os.environ.get("MASTER_ADDR", "localhost"))
    return None if master is None or is_loopback(master) else towards(master)


def describe(address: str | None) -> str:
    """What `for_peers` has led to, for people."""
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return f"interface {os.environ['GLOO_SOCKET_IFNAME']} (GLOO_SOCKET_IFNAME)"
    tried = address or resolve(socket.gethostname()) or "127.0.0.1"
    interface = next((name for name, found in of_interfaces() if found == tried), "unknown")
    return f"address {tried}, interface {interface}"


def _number(address: str) -> int:
    return int(ipaddress.IPv4Address(address))

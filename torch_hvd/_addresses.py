"""Addresses of this host, and which of another's it reaches best. Sends nothing."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator, Sequence

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_LINK_LOCAL = "20"  # in /proc/net/if_inet6; from net/ipv6.h
_NOT_IN_USE = 0x68  # linux/if_addr.h: tentative, deprecated, or another host's as well


def resolve(host: str) -> str | None:
    """The address of a host, IPv4 if it has one, None if nobody knows it."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            infos = socket.getaddrinfo(host, None, family, socket.SOCK_STREAM)
            return str(infos[0][4][0])
    return None


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def towards(address: str) -> str:
    """The local address that packets to `address` leave from.

    Raises:
        OSError: there is no way to it.
    """
    with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def of_interfaces() -> Iterator[tuple[str, str]]:
    """Each interface that has an address known beyond its link, and that, IPv4 if there is one."""
    others = _of_ipv6()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", os.fsencode(name)[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # it has none of IPv4
                if name in others:
                    yield name, others[name]
            else:
                yield name, socket.inet_ntoa(reply[20:24])


def _of_ipv6() -> dict[str, str]:
    """The first IPv6 address in use of each interface."""
    found: dict[str, str] = {}
    with contextlib.suppress(FileNotFoundError), open("/proc/net/if_inet6") as lines:
        for line in lines:
            digits, _, _, scope, flags, name = line.split()
            if scope != _LINK_LOCAL and not int(flags, 16) & _NOT_IN_USE:
                found.setdefault(name, str(ipaddress.IPv6Address(int(digits, 16))))
    return found


def own() -> str | None:
    """An address of this host for others: that of its name, or of an interface."""
    named = resolve(socket.gethostname())
    if named is not None and not is_loopback(named) and is_own(named):
        return named
    return next((found for _, found in of_interfaces() if not is_loopback(found)), None)


def is_own(address: str) -> bool:
    """Whether it is an address of this host."""
    with socket.socket(family(address), socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def nearest(addresses: Sequence[str]) -> str | None:
    """Of the addresses of a host the one most like ours on the way to it, None of none."""

    def likeness(address: str) -> float:
        theirs = ipaddress.ip_address(address)
        try:
            ours = ipaddress.ip_address(towards(address))
        except OSError:
            return -1
        return 1 - (int(theirs) ^ int(ours)).bit_length() / theirs.max_prefixlen

    others = [address for address in addresses if not is_loopback(address)]
    return max(others, key=likeness, default=None)


def for_others(addresses: Sequence[str]) -> str | None:
    """Of what a name resolves to the address to give to other hosts, None if there is none.

    A name that means loopback is this host's own; other hosts need another address of it.
    """
    return nearest(addresses) or own()


def for_peers(hosts: Sequence[int]) -> list[str]:
    """The addresses that other ranks reach this host by, IPv4 where there is one.

    They are those of the interfaces in GLOO_SOCKET_IFNAME, else that of the host's name. Where the
    name means loopback, as on Debian, or what is not the host's own, ranks on other hosts cannot
    connect to it; if MASTER_ADDR is not loopback, the way to that tells a better one. On the host
    of rank 0 MASTER_ADDR may mean loopback, too: then it is that of an interface.

    Args:
        hosts: by rank, the number of its host. Loopback will do only where all are the same.

    Raises:
        OSError: an interface has no address, there is no way to MASTER_ADDR, or this host has
            nothing but loopback.
    """
    if interfaces := os.environ.get("GLOO_SOCKET_IFNAME"):
        return [_of_interface(name) for name in interfaces.split(",")]
    found = _by_name()
    if len(set(hosts)) > 1 and is_loopback(found):
        found = own() or ""
        if not found:
            raise OSError("this host has only loopback, where ranks on other hosts cannot connect")
    return [found]


def _by_name() -> str:
    """The address that the name of this host, or else the way to MASTER_ADDR tells."""
    named = resolve(socket.gethostname())
    if named is not None and not is_loopback(named) and is_own(named):
        return named
    master = resolve(os.environ.get("MASTER_ADDR", "localhost"))
    if master is not None and not is_loopback(master):
        return towards(master)
    return "127.0.0.1"


def _of_interface(name: str) -> str:
    found = dict(of_interfaces())
    if name not in found:
        raise OSError(
            f"no interface {name!r} has an address here; those that have are {', '.join(found)}"
        )
    return found[name]


def describe(addresses: Sequence[str]) -> str:
    """Where connections were tried from, for people. None of them: none was found."""
    if interfaces := os.environ.get("GLOO_SOCKET_IFNAME"):
        return f"interface {interfaces} (GLOO_SOCKET_IFNAME)"
    names = {found: name for name, found in of_interfaces()}
    text = (f"address {one}, interface {names.get(one, 'unknown')}" for one in addresses)
    return "; ".join(text) or "address unknown, interface unknown"

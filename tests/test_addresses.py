"""Which addresses a rank gives to others, by which they reach its host."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

from launch import launch
from rig.hosts import INTERFACE, NETWORK, Hosts, complaint
from torch_hvd import _addresses

IPV6 = "fd00::/64"

needs_hosts = pytest.mark.skipif(bool(REASON := complaint()), reason=f"no hosts here: {REASON}")
needs_ipv6 = pytest.mark.skipif(bool(WHY := complaint(network=IPV6)), reason=f"no IPv6 here: {WHY}")


def test_an_interface_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert _addresses.for_peers([0, 0]) == ["127.0.0.1"]


def test_a_name_that_means_another_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    elsewhere = "203.0.113.7"  # of RFC 5737
    known = {socket.gethostname(): elsewhere, "localhost": "127.0.0.1", "master": "127.0.0.2"}
    monkeypatch.setattr(_addresses, "resolve", known.get)
    for master in ("localhost", "master", "unknown"):
        monkeypatch.setenv("MASTER_ADDR", master)
        assert _addresses.for_peers([0, 0]) == ["127.0.0.1"]
    monkeypatch.setattr(_addresses, "is_loopback", lambda address: address == "127.0.0.1")
    monkeypatch.setenv("MASTER_ADDR", "master")
    assert _addresses.for_peers([0, 0]) == [_addresses.towards("127.0.0.2")]


def test_a_name_that_means_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Debian, where on the host of rank 0 MASTER_ADDR does, too."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("MASTER_ADDR", "node1")
    monkeypatch.setattr(_addresses, "resolve", lambda host: "127.0.1.1")
    interfaces = [("lo", "127.0.0.1"), ("eth0", "192.0.2.7")]  # of RFC 5737
    monkeypatch.setattr(_addresses, "of_interfaces", lambda: iter(interfaces))
    assert _addresses.for_peers([0, 0]) == ["127.0.0.1"]
    assert _addresses.for_peers([0, 1]) == ["192.0.2.7"]
    interfaces.pop()
    with pytest.raises(OSError, match="this host has only loopback"):
        _addresses.for_peers([0, 1])


@needs_hosts
@pytest.mark.parametrize("network", [NETWORK, pytest.param(IPV6, marks=needs_ipv6)])
@pytest.mark.parametrize("known", ["the interface", "the way to rank 0", "no more than loopback"])
@pytest.mark.parametrize("transport", ["tcp", "gloo"])
def test_two_hosts_whose_names_mean_nothing_there(transport: str, known: str, network: str) -> None:
    script = "ranks = torch.tensor([1 << rank]); dist.all_reduce(ranks); print(ranks.item())"
    with Hosts(2, network=network) as hosts:
        names = {
            "GLOO_SOCKET_IFNAME": INTERFACE if known == "the interface" else "",
            "MASTER_ADDR": hosts.address(0) if known == "the way to rank 0" else "localhost",
            "HVD_TRANSPORT": transport,
        }
        ended = launch(script, 2, env=names, hosts=hosts)
    assert [rank.stdout for rank in ended] == ["3\n"] * 2, [rank.stderr for rank in ended]


def test_a_name_of_ipv6_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, port: None, family: int, kind: int) -> list[tuple[Any, ...]]:
        if family == socket.AF_INET:
            raise socket.gaierror(socket.EAI_NONAME, host)
        return [(family, kind, 6, "", ("2001:db8::7", 0, 0, 0))]  # of RFC 3849

    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(_addresses, "is_own", lambda address: address == "2001:db8::7")
    assert _addresses.for_peers([0, 1]) == ["2001:db8::7"]


@pytest.mark.parametrize(
    ("addresses", "found"),
    [
        ([], None),
        (["127.0.0.1", "::1"], None),
        (["10.0.0.9", "192.0.2.77", "192.0.2.9"], "192.0.2.9"),
        (["fd00::9", "2001:db8::7777", "2001:db8::9"], "2001:db8::9"),
        (["fd00::9", "192.0.2.77"], "192.0.2.77"),
        (["10.0.0.9", "2001:db8::7777"], "2001:db8::7777"),
    ],
)
def test_the_nearest_address(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], found: str | None
) -> None:
    """This host is 192.0.2.1 and 2001:db8::1."""
    ours = {4: "192.0.2.1", 6: "2001:db8::1"}
    monkeypatch.setattr(_addresses, "towards", lambda to: ours[ipaddress.ip_address(to).version])
    assert _addresses.nearest(addresses) == found

"""Hosts on one machine: network namespaces on a switch, with links as slow as wanted.

    with Hosts(2, "1gbit") as hosts:
        subprocess.run([*hosts.command(0), "ip", "address"])

Each host has an interface `eth0` and an address of its own, and if asked for `eth1` and so on, each
in a network and on a switch of its own; what it sends by one leaves at the rate given at most.
Linux, as root, with iproute2 and util-linux.

The namespaces have no names: they live as long as somebody holds them, so nothing has to be
cleaned up after a run, however it ended, and two runs cannot meet.

This module must not import torch: a process enters its host first.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

INTERFACE = "eth0"
NETWORK = "10.0.0.0/24"
BURST = "256kb"  # passes at once after a pause; more than the 64 KB packets of a veth
QUEUE = "20ms"  # at the rate; what would wait longer is dropped

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_COMMANDS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}


class Hosts:
    """`count` hosts, numbered from 0, on a switch that has an address too.

    Args:
        rate: at which a host sends, as tc writes it: "1gbit", "100mbit"; None for no limit.
        network: of which they have addresses, IPv4 or IPv6.
        rails: how many interfaces each has; the networks of the others follow on the first.

    Raises:
        RuntimeError: names the command that failed and what it said.
        OSError: this process may not make namespaces.
    """

    def __init__(
        self, count: int, rate: str | None = None, network: str = NETWORK, rails: int = 1
    ) -> None:
        first = ipaddress.ip_network(network)
        self._networks = [
            ipaddress.ip_network((first[0] + rail * first.num_addresses, first.prefixlen))
            for rail in range(rails)
        ]
        self._namespaces = [_new_namespace()]  # the switches', then the hosts'
        try:
            self._connect(count, rate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def switch_address(self) -> str:
        """Reachable from every host, over its link."""
        return str(self._networks[0][254])

    @property
    def interfaces(self) -> list[str]:
        """Of each host."""
        return [f"eth{rail}" for rail in range(len(self._networks))]

    @property
    def variables(self) -> dict[str, str]:
        """For the environment of a rank on one of them."""
        return {"GLOO_SOCKET_IFNAME": ",".join(self.interfaces)}

    def address(self, host: int, rail: int = 0) -> str:
        return str(self._networks[rail][host + 1])

    def namespace(self, host: int) -> str:
        """The path of its network namespace, for `enter`; valid while this process holds it."""
        return _path(self._namespaces[1 + host])

    def command(self, host: int) -> list[str]:
        """What to put before a command to run it on a host."""
        return ["nsenter", f"--net={self.namespace(host)}"]

    def cut(self, host: int, rail: int = 0) -> None:
        """From now on nothing passes its link, and nobody hears of that."""
        _run(self._namespaces[0], f"ip link set port{host}_{rail} nomaster")

    def at_the_switch(self, function: Callable[[], T]) -> T:
        """Call `function` at the switch: sockets it opens, threads it starts stay there."""

        def call() -> T:
            enter(_path(self._namespaces[0]))
            return function()

        return _in_a_thread(call)

    def close(self) -> None:
        """Let go of the hosts. They are gone when the last process on them is."""
        while self._namespaces:
            os.close(self._namespaces.pop())

    def _connect(self, count: int, rate: str | None) -> None:
        switches = self._namespaces[0]
        _run(switches, "ip link set lo up")
        for rail, _ in enumerate(self.interfaces):
            _run(switches, f"ip link add switch{rail} type bridge")
            _run(switches, f"ip link set switch{rail} up")
        _run(switches, self._add_address(self.switch_address, "switch0"))
        for host in range(count):
            self._namespaces.append(own := _new_namespace())
            _run(own, "ip link set lo up")
            for rail, interface in enumerate(self.interfaces):
                port = f"port{host}_{rail}"
                peer = f"peer name {port} netns {_path(switches)}"
                _run(own, f"ip link add {interface} type veth {peer}")
                _run(own, self._add_address(self.address(host, rail), interface))
                if rate:
                    limit = f"tbf rate {rate} burst {BURST} latency {QUEUE}"
                    _run(own, f"tc qdisc add dev {interface} root {limit}")
                _run(own, f"ip link set {interface} up")
                _run(switches, f"ip link set {port} master switch{rail} up")

    def _add_address(self, address: str, interface: str) -> str:
        # nodad: IPv6 asks the others for a second or two whether the address is theirs; IPv4 never.
        length = self._networks[0].prefixlen
        return f"ip address add {address}/{length} dev {interface} nodad"


def complaint(rate: str | None = None, network: str = NETWORK) -> str | None:
    """Why such hosts cannot be made here; None if they can."""
    for command, package in _COMMANDS.items():
        if not shutil.which(command):
            return f"no {command} here (Debian: apt-get install {package})"
    try:
        Hosts(1, rate, network).close()
    except (OSError, RuntimeError) as error:
        return f"{error}" if os.geteuid() == 0 else f"needs root: {error}"
    return None


def enter(namespace: str) -> None:
    """Move the calling thread, and what it starts from now on, into a network namespace."""
    descriptor = os.open(namespace, os.O_RDONLY)
    try:
        _call("setns", descriptor, _CLONE_NEWNET)
    finally:
        os.close(descriptor)


def _new_namespace() -> int:
    """A file descriptor that keeps a new network namespace."""

    def leave() -> int:
        _call("unshare", _CLONE_NEWNET)
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    return _in_a_thread(leave)


def _path(namespace: int) -> str:
    return f"/proc/{os.getpid()}/fd/{namespace}"


def _run(namespace: int, command: str) -> None:
    inside = ["nsenter", f"--net={_path(namespace)}", *command.split()]
    done = subprocess.run(inside, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip() or done.returncode}")


def _call(name: str, *arguments: int) -> None:
    """Call libc; Python has these from 3.12 on."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _in_a_thread(function: Callable[[], T]) -> T:
    """Call `function` in a thread of its own, which takes the namespace it enters with it."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()

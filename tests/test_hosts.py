"""The rig itself: hosts of their own, links as slow as asked for, nothing left behind."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rig.hosts import INTERFACE, Hosts, complaint

ROOT = Path(__file__).resolve().parent.parent

if REASON := complaint("1gbit"):
    pytestmark = pytest.mark.skip(reason=f"no hosts here: {REASON}")


def run_on(hosts: Hosts, host: int, *command: str) -> str:
    done = subprocess.run(
        [*hosts.command(host), *command], capture_output=True, text=True, timeout=20, check=True
    )
    return done.stdout


def answers(address: str, hosts: Hosts) -> bool:
    """Whether host 0 reaches it: it has nobody who listens, and says so."""
    connect = f"import socket; print(socket.socket().connect_ex(({address!r}, 9)), end='')"
    set_time = "import socket; socket.setdefaulttimeout(1); "
    return run_on(hosts, 0, sys.executable, "-c", set_time + connect) == str(errno.ECONNREFUSED)


def test_links_have_the_rate() -> None:
    with Hosts(2, "100mbit") as hosts:
        for host in range(2):
            (limit,) = json.loads(
                run_on(hosts, host, "tc", "-j", "qdisc", "show", "dev", INTERFACE)
            )
            assert (limit["kind"], limit["options"]["rate"]) == ("tbf", 100_000_000 // 8)
    with Hosts(1) as hosts:
        assert "tbf" not in run_on(hosts, 0, "tc", "qdisc")


def test_several_rails() -> None:
    """A network each; to be cut off from one leaves the other."""
    with Hosts(2, "100mbit", rails=2) as hosts:
        assert hosts.interfaces == ["eth0", "eth1"]
        assert [hosts.address(1, rail) for rail in range(2)] == ["10.0.0.2", "10.0.1.2"]
        assert run_on(hosts, 0, "tc", "qdisc").count("tbf") == 2
        for rail, interface in enumerate(hosts.interfaces):
            to = hosts.address(1, rail)
            assert f"dev {interface}" in run_on(hosts, 0, "ip", "route", "get", to)
        hosts.cut(1, rail=0)
        assert [answers(hosts.address(1, rail), hosts) for rail in range(2)] == [False, True]


def test_hosts_reach_each_other_and_the_switch() -> None:
    connect = "import socket; print(socket.create_connection({address!r}, 5).getpeername())"
    listen = "import socket; s = socket.create_server(('', 7)); print(flush=True); s.accept()"
    with Hosts(3) as hosts:
        with hosts.at_the_switch(lambda: socket.create_server(("", 0))) as server:
            place = (hosts.switch_address, server.getsockname()[1])
            client = run_on(hosts, 1, sys.executable, "-c", connect.format(address=place))
            assert client.strip() == repr(place)
            assert server.accept()[1][0] == hosts.address(1)
        with subprocess.Popen(
            [*hosts.command(2), sys.executable, "-c", listen], stdout=subprocess.PIPE
        ) as listener:
            assert listener.stdout is not None
            listener.stdout.readline()
            place = (hosts.address(2), 7)
            client = run_on(hosts, 0, sys.executable, "-c", connect.format(address=place))
            assert client.strip() == repr(place)


def test_two_rigs_do_not_meet() -> None:
    with Hosts(1) as one, Hosts(1) as other:
        assert one.address(0) == other.address(0)
        links = [run_on(rig, 0, "ip", "-j", "link", "show", INTERFACE) for rig in (one, other)]
        addresses = [json.loads(link)[0]["address"] for link in links]
        assert addresses[0] != addresses[1]


def test_nothing_is_left_of_a_rig_that_was_killed() -> None:
    script = f"""
import os, signal, sys
sys.path.insert(0, {str(ROOT)!r})
from rig.hosts import Hosts
hosts = Hosts(2, "1gbit")
print(os.stat(hosts.namespace(0)).st_ino, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    namespace = f"net:[{int(killed.stdout)}]"
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                held = [
                    os.readlink(process / "ns" / "net"),
                    *map(os.readlink, (process / "fd").iterdir()),
                ]
            except OSError:
                continue  # it has ended meanwhile
            assert namespace not in held, process
    here = subprocess.run(["ip", "-j", "link"], capture_output=True, text=True, check=True).stdout
    assert not any(link["ifname"].startswith("port") for link in json.loads(here))


def test_a_rate_that_is_none_is_named() -> None:
    assert "fast" in str(complaint("fast"))
    with pytest.raises(RuntimeError, match=r"tbf rate fast .*illegal value"):
        Hosts(1, "fast")

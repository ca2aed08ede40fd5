"""What an all_reduce puts on the network, as the interface of each host counts it."""

from __future__ import annotations

import functools
import json

import pytest

from launch import launch
from rig.hosts import Hosts, complaint

if REASON := complaint():
    pytestmark = pytest.mark.skip(reason=f"no hosts here: {REASON}")

COUNT = 1 << 20  # float32, 4 MB
REPEAT = 4

# /sys shows the namespace that it was mounted from; /proc that of the process. What TCP has sent
# again, because a host was too busy to take it in, is left out: segments of 1448 bytes. They are
# counted for the host, not for each interface: a part is taken from each, not all of it.
SCRIPT = f"""
import json
from pathlib import Path

def sent(interfaces):
    rows = dict(line.split(":") for line in Path("/proc/self/net/dev").read_text().splitlines()[2:])
    by_name = {{name.strip(): int(row.split()[8]) for name, row in rows.items()}}
    lines = Path("/proc/self/net/snmp").read_text().splitlines()
    names, counts = (line.split() for line in lines if line.startswith("Tcp:"))
    again = 1448 * int(counts[names.index("RetransSegs")])
    return [by_name[interface] - again / len(interfaces) for interface in interfaces]

tensor = torch.randn({COUNT}, generator=torch.Generator().manual_seed(rank))
dist.all_reduce(tensor.clone())
dist.barrier()
interfaces = os.environ["GLOO_SOCKET_IFNAME"].split(",")
before = sent(interfaces)
for _ in range({REPEAT}):
    dist.all_reduce(tensor.clone())
dist.barrier()
after = sent(interfaces)
print(json.dumps([(late - early) / {REPEAT} for early, late in zip(before, after)]))
dist.destroy_process_group()
"""


def sent_by(
    hosts: Hosts, size: int, compression: str = "none", per_host: int = 1
) -> list[list[float]]:
    """Bytes on the wire, headers and all, that each rank's host sends for an all_reduce of 4 MB, by
    interface.
    """
    env = {"HVD_COMPRESSION": compression}
    ended = launch(SCRIPT, size, env=env, hosts=hosts, per_host=per_host)
    assert [process.returncode for process in ended] == [0] * size, ended[0].stderr
    return [json.loads(process.stdout) for process in ended]


@functools.cache
def sent_by_each(size: int, compression: str, per_host: int = 1) -> list[float]:
    """By its one interface."""
    with Hosts(-(-size // per_host)) as hosts:
        return [sent for (sent,) in sent_by(hosts, size, compression, per_host)]


@pytest.mark.parametrize("size", [2, 4])
def test_without_compression(size: int) -> None:
    least = 2 * 4 * COUNT * (size - 1) / size  # shards out, sums back
    for sent in sent_by_each(size, "none"):
        assert least <= sent <= 1.02 * least


@pytest.mark.parametrize(
    ("compression", "factor"),
    [("fp16", 1.99), ("bf16", 1.99), ("int8", 3.9), ("fp8", 3.9), ("fp8_e5m2", 3.9), ("int4", 6.9)],
)
def test_compressed(compression: str, factor: float) -> None:
    plain, compressed = sent_by_each(2, "none"), sent_by_each(2, compression)
    for before, after in zip(plain, compressed, strict=True):
        assert before / after >= factor


@pytest.mark.parametrize("size", [3, 4])
def test_two_ranks_on_a_host(size: int) -> None:
    """A host sends no more than one rank in its place would."""
    least = 4 * COUNT
    plain = sent_by_each(size, "none", per_host=2)
    for sent in plain:
        assert least <= sent <= 1.02 * least
    for before, after in zip(plain, sent_by_each(size, "int8", per_host=2), strict=True):
        assert before / after >= 3.9


def test_two_interfaces() -> None:
    """Each carries about half. Of much faster ones, one could keep up."""
    with Hosts(2, "1gbit", rails=2) as hosts:
        for both in sent_by(hosts, 2):
            assert sum(both) >= 4 * COUNT
            assert min(both) >= 0.4 * sum(both)

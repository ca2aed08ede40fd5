"""The transport that `auto` takes against each that a user could name: it is never to be slower.

pytest benchmarks/test_auto.py                                               # one host
pytest benchmarks/test_auto.py --link 1gbit --world-size 4 --per-host 2      # two
"""

from __future__ import annotations

import pytest

from benchmarks.measure import Bench
from benchmarks.test_all_reduce import bus_factor, reduce_all, sync
from benchmarks.test_verbs import VERBS, move

QUICK_SIZES = (1 << 10, 1 << 24)
SIZES = (1 << 6, 1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26)
TARGET = 1.05

BY_NAME = [("hvd:transport=auto", f"hvd:transport={name}") for name in ("shm", "tcp", "gloo")]
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.contenders(loopback=BY_NAME, link=BY_NAME[1:]),
]


def test_all_reduce(bench: Bench, nbytes: int) -> None:
    bench.row(
        reduce_all,
        op="all_reduce",
        size=nbytes,
        bus_factor=bus_factor(bench.ranks.size),
        target=TARGET,
        count=nbytes // 4,
        burst=1,
        issue=sync,
    )


@pytest.mark.parametrize("name", VERBS)
def test_verb(bench: Bench, nbytes: int, name: str) -> None:
    bench.row(move, op=name, size=nbytes, target=TARGET, name=name, count=nbytes // 4)

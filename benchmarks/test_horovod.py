"""Horovod as a baseline, with a stand-in that has of it what the harness calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ranks import Ranks
from benchmarks.test_all_reduce import in_flight, reduce_all, sync

pytestmark = pytest.mark.timeout(120)

# Sums through gloo; a name may not be in flight twice, as in Horovod.
STAND_IN = {
    "torch/__init__.py": """
import os
from torch import distributed as dist
Sum = object()
names = set()
def init():
    place = [int(os.environ["HOROVOD_" + name]) for name in ("RANK", "SIZE")]
    assert place == [dist.get_rank(), dist.get_world_size()]
def allreduce_async_(tensor, name, op):
    assert op is Sum and name not in names
    names.add(name)
    return name, dist.all_reduce(tensor, async_op=True)
def synchronize(handle):
    name, work = handle
    work.wait()
    names.remove(name)
""",
    "runner/common/util/hosts.py": """
def parse_hosts(text):
    return text.split(":")
def get_host_assignments(hosts, number):
    assert hosts == ["localhost", str(number)]
    return range(number)
""",
    "runner/gloo_run.py": """
def create_run_env_vars(address, interfaces, port):
    return {"HOROVOD_GLOO_RENDEZVOUS_ADDR": address, "HOROVOD_SIZE": port}
def create_slot_env_vars(slot):
    return {"HOROVOD_RANK": slot}
""",
    "runner/http/http_server.py": """
class RendezvousServer:
    def start(self):
        return 2
    def init(self, slots):
        assert list(slots) == [0, 1]
    def stop(self):
        pass
""",
}


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in STAND_IN.items():
        file = tmp_path / "horovod" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("stand_in")
def test_horovod_reduces_for_the_baseline() -> None:
    """`reduce_all` checks each sum."""
    ranks = Ranks(2, "gloo", "horovod")
    try:
        for burst, issue in ((1, sync), (3, in_flight)):
            answers = ranks.run(
                reduce_all, timeout_s=60, count=4, burst=burst, issue=issue, budget_s=0.1
            )
            assert all(len(answer["baseline"]) >= 6 for answer in answers)
    finally:
        ranks.close()

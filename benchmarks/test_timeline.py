"""What the timeline costs: a step of DistributedDataParallel with it, against one without."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks import test_ddp
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.ranks import Rank

pytestmark = pytest.mark.timeout(300)

TARGET = 1.03


def traced(trial: Trial, folder: Path) -> Trial:
    import torch_hvd

    def fill() -> None:
        torch_hvd.stop_timeline()
        torch_hvd.start_timeline(folder)
        trial.fill()

    def check() -> None:
        torch_hvd.stop_timeline()
        assert any(path.read_text().count("all_reduce") for path in folder.iterdir())
        trial.check()

    return Trial(trial.calls, fill, trial.call, check)


def steps(rank: Rank, *, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    limit, contenders = test_ddp.trials(rank, test_ddp.sides(rank))
    with TemporaryDirectory() as folder:
        contenders["backend"] = [traced(trial, Path(folder)) for trial in contenders["backend"]]
        return interleave(rank, limit, contenders, budget_s)


PAIR = [("hvd", "hvd")]


@pytest.mark.contenders(loopback=PAIR, link=PAIR)
def test_ddp_step_with_timeline(bench: Bench) -> None:
    bench.row(steps, op="ddp step, traced", size=test_ddp.NBYTES, target=TARGET)

"""What the timeline costs: a step of DistributedDataParallel, and many small tensors."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from benchmarks import test_ddp, test_fusion
from benchmarks.interleave import Blocks, Trial, interleave
from benchmarks.measure import Bench
from benchmarks.ranks import Rank
from benchmarks.test_all_reduce import in_flight

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


def compare(
    rank: Rank, limit: Trial, contenders: dict[str, list[Trial]], budget_s: float
) -> dict[str, Blocks]:
    """The backend with a timeline, the baseline without."""
    with TemporaryDirectory() as folder:
        contenders["backend"] = [traced(trial, Path(folder)) for trial in contenders["backend"]]
        return interleave(rank, limit, contenders, budget_s)


def steps(rank: Rank, *, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    return compare(rank, *test_ddp.trials(rank, test_ddp.sides(rank)), budget_s)


def small(rank: Rank, *, work: test_fusion.Work, budget_s: float) -> dict[str, Blocks]:
    """Runs on a rank."""
    return compare(rank, *test_fusion.trials(rank, work, work), budget_s)


PAIR = [("hvd", "hvd")]


@pytest.mark.contenders(loopback=PAIR, link=PAIR)
def test_ddp_step_with_timeline(bench: Bench) -> None:
    bench.row(steps, op="ddp step, traced", size=test_ddp.NBYTES, target=TARGET)


@pytest.mark.contenders(loopback=PAIR, link=PAIR)
def test_small_in_flight_with_timeline(bench: Bench) -> None:
    """Each of them is an operation in the picture."""
    shapes = test_fusion.FEW_KB
    bench.row(
        small,
        op=f"all_reduce async, {len(shapes)} small, traced",
        size=test_fusion.in_bytes(shapes),
        work=test_fusion.Work(shapes, in_flight),
    )

"""Compare outcomes with what stock gloo passes and with the listed exceptions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from .exceptions import ListedException
from .launch import Outcome


def expected_file(torch_minor: str, world_size: int) -> Path:
    """Return where the names of the tests that stock gloo passes are kept, one a line."""
    return Path(__file__).parent / "expected" / f"torch-{torch_minor}-world-{world_size}.txt"


def read_expected(torch_minor: str, world_size: int) -> list[str]:
    """Return the names that stock gloo passes; FileNotFoundError says how to record them."""
    path = expected_file(torch_minor, world_size)
    if not path.exists():
        raise FileNotFoundError(
            f"{path}: no baseline for torch {torch_minor} at world size {world_size}; "
            "record one with --backend gloo --record"
        )
    return path.read_text().split()


def judge(
    outcome: Outcome, expected: Iterable[str], exceptions: Iterable[ListedException]
) -> Outcome:
    """Turn an outcome into pass, fail, skip or "listed" (failed, as an exception foretells)."""
    listed = next((e for e in exceptions if e.test == outcome.test), None)
    if listed is not None and outcome.status == "pass":
        detail = f"passes, though listed as an exception: {listed.reason}"
        return replace(outcome, status="fail", detail=detail)
    if listed is not None and outcome.status == "fail":
        return replace(outcome, status="listed", detail=listed.reason)
    if outcome.status == "skip" and outcome.test in expected:
        detail = f"skipped, though stock gloo passes it: {outcome.detail}"
        return replace(outcome, status="fail", detail=detail)
    return outcome


def unknown_names(
    names: Sequence[str], expected: Iterable[str], exceptions: Iterable[ListedException]
) -> list[Outcome]:
    """Return a failure for each name that is expected or listed but is no test of the suite."""
    wanted = {*expected, *(e.test for e in exceptions)}
    return [Outcome(name, "fail", 0.0, "no such test") for name in sorted(wanted - set(names))]

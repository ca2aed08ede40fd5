"""The gate on made-up rows: what is kept, what is worse, and what nobody measured."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gate
from benchmarks.gate import findings
from benchmarks.promises import PROMISES, TIMES_FASTER, Promise

PLAIN = Promise("all_reduce", 1 << 20, ratio=0.4)
WIDE = Promise("barrier", 4, ratio=0.1, high=0.3)
LINK = Promise("all_reduce", 16 << 20, ratio=0.5, ranks=4, link="1gbit")
MPI = Promise("all_reduce", 4, ratio=9.0, backend="hvd:transport=mpi", baseline="MPI_Allreduce")


def row(promise: Promise, ratio: float, **fields: Any) -> dict[str, Any]:
    """What `pytest benchmarks --json` writes of a promise's measurement, as far as it matters."""
    return {
        "op": promise.op,
        "size": promise.size,
        "world_size": promise.ranks,
        "backend": promise.backend,
        "baseline": promise.baseline,
        "link": promise.link,
        "ratio": ratio,
        "low": 0.9 * ratio,
        "high": 1.1 * ratio,
        "foreign": 0.0,
        "machine": {"cores": 2, "utc": "2026-01-01"},
    } | fields


@pytest.mark.parametrize(
    ("promise", "ratio", "verdict"),
    [
        (PLAIN, 0.50, "kept"),  # 0.4 x 1.25 = 0.5, and half of README's last digit
        (PLAIN, 0.51, "worse"),
        (WIDE, 0.30, "kept"),  # the end of the interval is more than 0.1 x 1.25
        (WIDE, 0.31, "worse"),
        (LINK, 0.55, "kept"),  # 0.5 x 1.1
        (LINK, 0.56, "worse"),
    ],
)
def test_verdicts(promise: Promise, ratio: float, verdict: str) -> None:
    (finding,) = findings([row(promise, ratio)], [promise])
    assert finding.verdict == verdict


@pytest.mark.parametrize(
    "other",
    [{"size": 4}, {"world_size": 2}, {"link": None}, {"backend": "gloo"}, {"baseline": "hvd"}],
)
def test_other_rows_tell_nothing(other: dict[str, Any]) -> None:
    (finding,) = findings([row(LINK, 0.1, **other)], [LINK])
    assert finding.verdict == "not measured"


def test_the_last_row_counts() -> None:
    (finding,) = findings([row(PLAIN, 9.0), row(PLAIN, 0.4)], [PLAIN])
    assert finding.verdict == "kept"


def test_a_plain_loop_is_one_on_any_library() -> None:
    (finding,) = findings([row(MPI, 8.0, baseline="MPI_Allreduce of Open MPI v5.0.11")], [MPI])
    assert finding.verdict == "kept"


@pytest.mark.parametrize(
    ("factor", "left_out", "options", "status"),
    [
        (1.0, 0, [], 0),
        (1.0, 1, [], 1),
        (1.0, 1, ["--partial"], 0),
        (1.0, len(PROMISES), ["--partial"], 1),
        (10.0, 0, ["--partial"], 1),
    ],
)
def test_exit_status(
    factor: float,
    left_out: int,
    options: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All promises, as measured, or ten times slower, or without some rows."""
    file = tmp_path / "rows.jsonl"
    rows = [row(promise, factor * promise.ratio) for promise in PROMISES[left_out:]]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(sys, "argv", ["gate", str(file), *options])
    assert gate.main() == status
    kept = len(rows) if factor == 1 else 0
    assert f"{len(PROMISES)} promises: {kept} kept" in capsys.readouterr().out


def test_a_promise_is_made_once() -> None:
    assert len({promise.measurement for promise in PROMISES}) == len(PROMISES)


def test_promises_are_those_of_the_readme() -> None:
    root = Path(__file__).parent.parent
    text = (root / "README.md").read_text()
    results = (root / "docs" / "results.md").read_text()
    intervals = set(re.findall(r"([\d.]+) \([\d.]+-([\d.]+)\)", text + results))
    made = {(float(ratio), float(high)) for ratio, high in intervals}
    assert made >= {(promise.ratio, promise.high) for promise in PROMISES if promise.high}

    begin = text.index("| Gloo, fp32 |")
    times_faster = {}
    for line in text[begin : text.index("\n\n", begin)].splitlines()[1:]:
        codec, *cells = (cell.strip(" `") for cell in line.strip("|").split("|"))
        times_faster[codec] = tuple(float(cell) if cell else None for cell in cells[1::2])
    assert times_faster == {codec: times[:-1] for codec, times in TIMES_FASTER.items()}
    steps_of_four = {codec: times[-1] for codec, times in TIMES_FASTER.items() if times[-1]}
    assert list(steps_of_four) == ["int8"]
    assert f"with `int8`, {steps_of_four['int8']} times less than with Gloo" in text

"""The accuracy study's bookkeeping: which cells run, and what its verdicts rest on."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.studies import accuracy
from benchmarks.studies.accuracy_rows import summary, verdicts
from benchmarks.studies.training import NAIVE, Cell

FP32 = [99.0, 99.1, 99.2]


def results(codec: str, *accuracies: float, ranks: int = 2) -> list[dict[str, Any]]:
    """As the results file holds them, a seed for each accuracy."""
    return [
        {"model": "cnn", "ranks": ranks, "codec": codec, "seed": seed, "accuracy": accuracy}
        | {"loss": 0.1, "seconds": 1.0, "wire_bytes": None}
        for seed, accuracy in enumerate(accuracies)
    ]


@pytest.mark.parametrize(
    ("codec", "accuracies", "held"),
    [
        ("int8", (99.1, 99.1, 99.3), True),  # 0.07 above
        ("int8", (98.9, 99.0, 99.0), False),  # 0.13 below
        ("fp8", (99.2, 99.3, 99.2), False),  # 0.13 above is no parity either
        (NAIVE, (10.0,), True),
        (NAIVE, (98.0,), False),
        ("gloo", (99.0,), True),
        ("gloo", (99.01,), False),
    ],
)
def test_verdicts(codec: str, accuracies: tuple[float, ...], held: bool) -> None:
    found = verdicts(results("none", *FP32) + results(codec, *accuracies))
    assert [verdict.held for verdict in found] == [held]


def test_what_cannot_be_compared_has_no_verdict() -> None:
    assert verdicts(results("int8", 50.0) + results("none", *FP32, ranks=4)) == []
    assert verdicts(results("none", *FP32) + results("int4", 50.0)) == []


def test_points_compare_the_same_seeds() -> None:
    rows = summary(results("none", *FP32) + results("int4", 99.05, 99.05))
    plain, coarse = rows["cnn", "none", 2], rows["cnn", "int4", 2]
    assert coarse.points_above(plain) == pytest.approx((0.05 - 0.05) / 2)


def test_rows_are_means_over_seeds() -> None:
    row = summary(results("none", *FP32))["cnn", "none", 2]
    assert row.mean == pytest.approx(99.1)
    assert row.spread == pytest.approx(0.1)


def test_cells() -> None:
    """Serial training has no codec; stock gloo, which hvd equals to the digit, has one seed."""
    codecs = ["none", NAIVE, "gloo"]
    cells = accuracy.wanted("cnn", ranks=[1, 2], codecs=codecs, seeds=[5, 6])
    assert cells == [
        Cell("cnn", 1, "none", 5),
        Cell("cnn", 1, "none", 6),
        Cell("cnn", 2, "none", 5),
        Cell("cnn", 2, NAIVE, 5),
        Cell("cnn", 2, "gloo", 5),
        Cell("cnn", 2, "none", 6),
        Cell("cnn", 2, NAIVE, 6),
    ]

"""From samples to a row, of samples whose row is known by hand."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import rows
from benchmarks.rows import Row, Spread, compare, ratio_interval, slowest

# Medians of 2, 8 and 1 ms, and means of others.
BACKEND = [[0.001, 0.002, 0.009], [0.002, 0.002, 0.002]]
BASELINE = [[0.008, 0.008, 0.008], [0.007, 0.008, 0.030]]
LIMIT = [[0.001], [0.001]]


def compared(target: float | None) -> Row:
    facts: dict[str, Any] = {"op": "all_reduce", "world_size": 4, "backend": "hvd"}
    facts |= {"baseline": "gloo", "foreign": 0.0, "link": None, "target": target}
    return compare(BACKEND, BASELINE, LIMIT, size=1_000_000, bus_factor=1.5, **facts)


def test_a_row_of_known_medians() -> None:
    row = compared(None)
    assert (row.ratio, row.low, row.high) == pytest.approx((0.25, 0.25, 0.25))
    assert row.algbw == pytest.approx(0.5)  # 1 MB in 2 ms
    assert row.busbw == pytest.approx(0.75)
    assert row.percent_of_limit == pytest.approx(50)
    assert (row.time.median, row.baseline_time.median) == pytest.approx((2000, 8000))
    assert row.calls == 6


@pytest.mark.parametrize(("target", "missed"), [(None, False), (0.3, False), (0.2, True)])
def test_a_target_is_missed_above_it(target: float | None, missed: bool) -> None:
    assert compared(target).missed is missed


def test_a_call_counts_where_it_took_longest() -> None:
    assert slowest([[[1.0, 5.0]], [[2.0, 4.0]]]) == [[2.0, 5.0]]


def test_spread_is_in_microseconds() -> None:
    blocks = [[1e-6 * i for i in range(6)], [1e-6 * i for i in range(6, 11)]]
    spread = Spread.of(blocks)
    assert (spread.p10, spread.median, spread.p90) == pytest.approx((1.0, 5.0, 9.0))


def test_ratio_interval_covers_noise_and_narrows_without_it() -> None:
    steady = [[1.0]] * 20
    noisy = [[1.0 + 0.1 * (i % 5 - 2)] for i in range(20)]
    assert ratio_interval([[2.0]] * 20, steady) == (2.0, 2.0)
    low, high = ratio_interval(noisy, steady)
    assert 0.8 <= low < 1 < high <= 1.2


def test_ratio_interval_is_as_wide_as_calculated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of 100, 101, ... 200 over 200, 199, ... 100, each of three calls.

    The median of 101 draws from 0 to 100 is around 50 by 101 / (2 sqrt(103)) = 4.98, so within 9.75
    of it with 95 %: from (100 + 40.25) / (200 - 40.25) = 0.878 to 1.139.
    """
    monkeypatch.setattr(rows, "RESAMPLES", 4000)  # for the third digit
    rising = [[100.0 + i] * 3 for i in range(101)]
    interval = ratio_interval(rising, rising[::-1])
    assert interval == pytest.approx((0.878, 1.139), abs=0.01)

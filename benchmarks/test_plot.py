"""Which lines a picture has."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.plot import LINK, TWO_COPIES, pictures

MB = 1 << 20


def row(**fields: Any) -> dict[str, Any]:
    """4 ranks: 1 MB in 100 us, gloo 300, the limit 50; of the 1 MB a rank must send 1.5."""
    return {
        "op": "all_reduce",
        "size": MB,
        "world_size": 4,
        "backend": "hvd",
        "baseline": "gloo",
        "link": None,
        "time": {"median": 100.0},
        "baseline_time": {"median": 300.0},
        "limit_time": {"median": 50.0},
        "algbw": 1.0,
        "busbw": 1.5,
    } | fields


def test_lines_of_times() -> None:
    other = row(backend="hvd:transport=gloo", time={"median": 200.0}, baseline_time={"median": 500})
    small = row(size=4, time={"median": 7.0}, baseline_time={"median": 8.0})
    drawn = pictures([row(), other, small, row(op="barrier")], "all_reduce", "time")
    assert drawn == {
        (4, None): {
            "hvd": {4: 7.0, MB: 100.0},
            "gloo": {4: 8.0, MB: 400.0},  # the median of 300 and 500
            "hvd:transport=gloo": {MB: 200.0},
            TWO_COPIES: {4: 50.0, MB: 50.0},
        }
    }


def test_lines_of_bandwidth() -> None:
    lines = pictures([row()], "all_reduce", "busbw")[4, None]
    moved = 1.5 * MB / 1e3  # GB/s where it takes a microsecond
    expected = {"hvd": moved / 100, "gloo": moved / 300, TWO_COPIES: moved / 50}
    assert {name: line[MB] for name, line in lines.items()} == pytest.approx(expected)


def test_a_link_is_a_limit_of_its_own() -> None:
    small = row(link="1gbit", size=4)
    drawn = pictures([row(), small, row(link="1gbit"), row(world_size=2)], "all_reduce", "busbw")
    assert list(drawn) == [(4, None), (4, "1gbit"), (2, None)]
    assert drawn[4, "1gbit"][LINK] == pytest.approx({MB: 0.125})
    assert LINK not in drawn[4, None]

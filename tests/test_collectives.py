"""The contract: verb x dtype x op x shape x sync/async x world size, on every transport.

A test here is a verb with a dtype (and an op); it runs all the shapes, sync and async, in one go.
The last line that a rank printed names the row that failed.
"""

from __future__ import annotations

import pytest
import torch

import rows
import verbs
from rows import Row

pytestmark = pytest.mark.ranks(1, 2, 4, hosts=[4], by_name=[3])


def run_rows(check: verbs.Check, dtype: torch.dtype, op: str) -> None:
    huge = dtype in (torch.float32, torch.bfloat16) and op == "SUM"
    for shape in (*rows.SMALL_SHAPES, *rows.LARGE_SHAPES, *(rows.HUGE_SHAPES if huge else ())):
        for async_op in (False, True):
            row = Row(dtype, op, shape, async_op)
            print(f"{check.__name__} {row}")
            check(row)


@pytest.mark.parametrize("check", verbs.REDUCING, ids=lambda check: check.__name__)
@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        pytest.param(dtype, op, id=f"{rows.name(dtype)}-{op}")
        for dtype in rows.REDUCIBLE
        for op in rows.OPS
        if rows.allowed(dtype, op)
    ],
)
def test_reducing(check: verbs.Check, dtype: torch.dtype, op: str) -> None:
    run_rows(check, dtype, op)


@pytest.mark.parametrize("check", verbs.MOVING, ids=lambda check: check.__name__)
@pytest.mark.parametrize("dtype", rows.MOVABLE, ids=rows.name)
def test_moving(check: verbs.Check, dtype: torch.dtype) -> None:
    run_rows(check, dtype, "SUM")

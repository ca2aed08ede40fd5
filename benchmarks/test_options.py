"""What fails a run by its options: --gate and --allow-skips, in runs of pytest within this one."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

# A row of a ratio of 0.5, and whatever else.
KEEP = """
    from benchmarks.rows import Row, Spread
    def test_row(keep):
        us = Spread(1.0, 1.0, 1.0)
        keep(
            Row(
                "all_reduce", 4, 2, "hvd", "gloo", 1, us, us, us, algbw=1.0, busbw=1.0,
                ratio=0.5, low=0.5, high=0.5, target={target}, foreign=0.0, link=None,
            )
        )
"""


@pytest.fixture(autouse=True)
def no_options_of_this_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)


def run(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(source)
    return pytester.runpytest_inprocess("-p", "benchmarks.conftest", *options)


@pytest.mark.parametrize(
    ("target", "options", "failed"),
    [(0.4, ["--gate"], 1), (0.6, ["--gate"], 0), (None, ["--gate"], 0), (0.4, [], 0)],
)
def test_the_gate_fails_a_row_that_misses_its_target(
    pytester: pytest.Pytester, target: float | None, options: list[str], failed: int
) -> None:
    result = run(pytester, KEEP.format(target=target), *options)
    result.assert_outcomes(passed=1 - failed, failed=failed)
    assert ("4 B: ratio 0.500 is above 0.4" in result.stdout.str()) == bool(failed)


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ([], pytest.ExitCode.OK),
        (["--allow-skips=GPU|no hosts here"], pytest.ExitCode.OK),
        (["--allow-skips=GPU"], pytest.ExitCode.TESTS_FAILED),
    ],
)
def test_a_skip_for_another_reason_fails(
    pytester: pytest.Pytester, options: list[str], status: pytest.ExitCode
) -> None:
    source = "import pytest\ndef test_skipped():\n    pytest.skip('no hosts here: no ip')"
    result = run(pytester, source, *options)
    assert result.ret == status
    assert ("may not be skipped: Skipped: no hosts here: no ip" in result.stdout.str()) == (
        status != pytest.ExitCode.OK
    )

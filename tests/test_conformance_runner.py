"""The conformance run itself: a hang is a failure with stacks, and both lists are checked."""

import subprocess
import sys
import time
import unittest

import pytest

from conformance import launch, verdict
from conformance.exceptions import ListedException
from conformance.launch import Outcome

SKIP_CODE = 73


def sleep_past_the_deadline() -> None:
    time.sleep(60)


class FourEndings(unittest.TestCase):
    """Stands in for the suite: every rank ends as the test's name says."""

    __test__ = False

    @classmethod
    def _run(cls, rank: int, test: str, store: str, pipe: object) -> None:
        if test == "test_hangs" or (test == "test_one_fails" and rank == 0):
            sleep_past_the_deadline()
        if test == "test_one_fails":
            raise ValueError(f"raised on rank {rank}")
        if test == "test_skips" or (test == "test_disagrees" and rank == 0):
            sys.exit(SKIP_CODE)

    def test_disagrees(self) -> None: ...
    def test_hangs(self) -> None: ...
    def test_one_fails(self) -> None: ...
    def test_passes(self) -> None: ...
    def test_skips(self) -> None: ...

    @unittest.skip("decorated")
    def test_skips_unstarted(self) -> None: ...


def outcome_of(test: str) -> Outcome:
    (outcome,) = launch.run(FourEndings, [test], world_size=2, jobs=1, timeout=2.0)
    return outcome


@pytest.mark.timeout(60)
def test_hang_is_a_failure_with_the_stacks_of_every_rank() -> None:
    outcome = outcome_of("test_hangs")
    assert outcome.status == "fail"
    assert outcome.detail.startswith("timed out")
    assert outcome.detail.count("in sleep_past_the_deadline") == 2
    assert outcome.seconds < 20


@pytest.mark.timeout(60)
def test_failing_rank_fails_the_test_and_ends_the_others() -> None:
    outcome = outcome_of("test_one_fails")
    assert outcome.status == "fail"
    assert "ValueError: raised on rank 1" in outcome.detail
    assert "rank 0: killed while running" in outcome.detail


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("test", "status"),
    [
        ("test_passes", "pass"),
        ("test_skips", "skip"),
        ("test_skips_unstarted", "skip"),
        ("test_disagrees", "fail"),
    ],
)
def test_status_is_what_all_ranks_agree_on(test: str, status: str) -> None:
    assert outcome_of(test).status == status


@pytest.mark.parametrize(
    ("name", "status", "judged"),
    [
        ("plain", "pass", "pass"),
        ("plain", "fail", "fail"),
        ("plain", "skip", "skip"),
        ("expected", "pass", "pass"),
        ("expected", "skip", "fail"),
        ("listed", "fail", "listed"),
        ("listed", "pass", "fail"),
        ("listed", "skip", "fail"),
    ],
)
def test_lists_are_checked_both_ways(name: str, status: str, judged: str) -> None:
    exceptions = [ListedException("listed", ("2.13",), "a reason")]
    outcome = verdict.judge(Outcome(name, status, 0.1), ["expected", "listed"], exceptions)
    assert outcome.status == judged


def test_names_that_do_not_exist_fail() -> None:
    exceptions = [ListedException("gone", ("2.13",), "a reason")]
    unknown = verdict.unknown_names(["there"], ["there", "lost"], exceptions)
    assert [(outcome.test, outcome.status) for outcome in unknown] == [
        ("gone", "fail"),
        ("lost", "fail"),
    ]


@pytest.mark.timeout(120)
def test_run_reports_counts_and_exit_code() -> None:
    command = [sys.executable, "-m", "tests.conformance.run", "--backend", "gloo"]
    command += ["--world-size", "2", "-k", "test_get_rank"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100)
    lines = run.stdout.splitlines()
    assert run.returncode == 0, run.stdout + run.stderr
    assert sum(line.startswith("pass   test_get_rank") for line in lines) == 3
    assert lines[-1] == "3 passed, 0 failed, 0 skipped"

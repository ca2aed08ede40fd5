"""Start the ranks of tests, wait for them no longer than allowed, and say how each test ended."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import unittest
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from . import suite as suite_

# Forked, not spawned: torch and the suite are imported once, by a process with one thread.
FORK = multiprocessing.get_context("fork")
GRACE_SECONDS = 3.0  # what other ranks get, after one has failed, to report what they saw
LOG_BYTES = 40_000  # of each rank's log, from its end


@dataclass(frozen=True)
class Outcome:
    """How one test ended: `status` is "pass", "fail" or "skip", `detail` says why."""

    test: str
    status: str
    seconds: float
    detail: str = ""


class Attempt:
    """One test under way: a process per rank and a deadline."""

    def __init__(
        self, suite: type[unittest.TestCase], test: str, world_size: int, timeout: float
    ) -> None:
        self.test = test
        self.skips = suite_.skip_codes()
        self.scratch = Path(tempfile.mkdtemp(prefix="conformance-"))
        (self.scratch / "barrier").mkdir()
        (self.scratch / "test_dir").mkdir()
        self.started = time.monotonic()
        self.deadline = self.started + timeout
        self.killed: list[multiprocessing.process.BaseProcess] = []
        self.ranks = [
            FORK.Process(
                target=suite_.run_rank, args=(suite, test, rank, self.scratch), daemon=True
            )
            for rank in range(world_size)
        ]
        for process in self.ranks:
            process.start()

    def living(self) -> list[multiprocessing.process.BaseProcess]:
        return [process for process in self.ranks if process.exitcode is None]

    def poll(self) -> Outcome | None:
        """Return the outcome once all ranks are gone, having killed those past the deadline."""
        now = time.monotonic()
        if any(rank.exitcode not in (None, 0, *self.skips) for rank in self.ranks):
            self.deadline = min(self.deadline, now + GRACE_SECONDS)
        if self.living() and now >= self.deadline:
            self._kill()
        if self.living():
            return None
        outcome = self._judge(time.monotonic() - self.started)
        shutil.rmtree(self.scratch)
        return outcome

    def _kill(self) -> None:
        # SIGUSR1 prints the stacks of Python threads, torch's handler of SIGABRT those of C++.
        self.killed = self.living()
        for stop in (signal.SIGUSR1, signal.SIGABRT, signal.SIGKILL):
            for process in self.living():
                assert process.pid is not None
                os.kill(process.pid, stop)
            time.sleep(0.5)
        for process in self.ranks:
            process.join()

    def _judge(self, seconds: float) -> Outcome:
        codes = {process.exitcode for process in self.ranks if process.exitcode is not None}
        if codes == {0}:
            return Outcome(self.test, "pass", seconds)
        if len(codes) == 1 and codes <= self.skips.keys():
            return Outcome(self.test, "skip", seconds, self.skips[codes.pop()])
        lines = ["timed out" if len(self.killed) == len(self.ranks) else "failed"]
        for rank, process in enumerate(self.ranks):
            how = "killed while running" if process in self.killed else f"exit {process.exitcode}"
            log = (self.scratch / f"rank{rank}.log").read_text(errors="replace")
            lines += [f"--- rank {rank}: {how}", log[-LOG_BYTES:].rstrip()]
        return Outcome(self.test, "fail", seconds, "\n".join(lines))


def run(
    suite: type[unittest.TestCase],
    tests: Sequence[str],
    world_size: int,
    jobs: int,
    timeout: float,
) -> Iterator[Outcome]:
    """Run `tests`, `jobs` at a time, and yield each outcome as it comes.

    A test whose ranks have not all ended after `timeout` seconds fails; its ranks' stacks are
    part of the outcome.
    """
    waiting = deque(tests)
    running: list[Attempt] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            test = waiting.popleft()
            reason = suite_.skip_reason(suite, test)
            if reason is None:
                running.append(Attempt(suite, test, world_size, timeout))
            else:
                yield Outcome(test, "skip", 0.0, reason)
        sentinels = [process.sentinel for attempt in running for process in attempt.living()]
        if sentinels:
            wait(sentinels, timeout=1.0)
        for attempt in list(running):
            outcome = attempt.poll()
            if outcome is not None:
                running.remove(attempt)
                yield outcome

"""Load PyTorch's `distributed_test` suite and run one rank of one test on one backend.

What the suite skips is decided by the name of the backend, when it is imported and in the tests.
So it believes to the end that it runs on gloo, and only its process groups are made by the
backend under test: that backend is asked for all that gloo is asked for.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import unittest
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def load(backend: str, world_size: int) -> type[unittest.TestCase]:
    """Import the suite and return its test class, whose groups are `backend`'s.

    Reads and sets process-wide state (environment, the suite's globals), and must leave the
    process fit to be forked: raises RuntimeError if the import started a thread.
    """
    os.environ.update(
        BACKEND="gloo",
        CUDA_VISIBLE_DEVICES="",
        MASTER_ADDR="127.0.0.1",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
        WORLD_SIZE=str(world_size),
    )
    os.environ.pop("MASTER_PORT", None)

    from torch import distributed as dist
    from torch.testing._internal.distributed import distributed_test as untyped

    distributed_test: Any = untyped

    if world_size > 2:
        # Tests of the subgroup [1, 2] ask for 8 ranks of any backend but this one, and need 3.
        os.environ["BACKEND"] = "mpi"
    for checked in (
        distributed_test.PROFILING_SUPPORTED_BACKENDS,
        distributed_test.SEND_RECV_PROFILING_SUPPORTED_BACKENDS,
    ):
        checked.append(backend)

    base: Any = distributed_test.DistributedTest._DistTestBase

    class Conformance(distributed_test.TestDistBackend, base):  # type: ignore[misc]
        @classmethod
        def _run(cls, rank: int, test: str, store: str, pipe: Connection) -> None:
            self = cls(test)
            self.rank = rank
            seconds = distributed_test.CUSTOM_PG_TIMEOUT.get(
                test, distributed_test.default_pg_timeout
            )
            dist.init_process_group(
                backend,
                init_method=f"file://{store}",
                world_size=world_size,
                rank=rank,
                timeout=timedelta(seconds=seconds),
            )
            self._barrier()
            self.run_test(test, pipe)
            self._barrier()
            dist.destroy_process_group()

    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise RuntimeError(f"importing the suite left {threads} threads; ranks cannot be forked")
    return Conformance


def names(suite: type[unittest.TestCase]) -> list[str]:
    """Return the names of all tests of the suite, sorted."""
    return sorted(unittest.TestLoader().getTestCaseNames(suite))


def skip_reason(suite: type[unittest.TestCase], test: str) -> str | None:
    """Return why a decorator skips `test` with no rank started, or None if it must run."""
    method = getattr(suite, test)
    if getattr(method, "__unittest_skip__", False):
        return str(method.__unittest_skip_why__)
    return None


def skip_codes() -> dict[int, str]:
    """Return the exit codes by which a rank says that it skips, each with its reason."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}


def run_rank(suite: type[unittest.TestCase], test: str, rank: int, scratch: Path) -> None:
    """Be rank `rank` of `test` in this fresh process; SystemExit tells a skip or an error.

    Writes stdout and stderr to `scratch/rank<rank>.log`, and the Python stacks of all threads
    too when SIGUSR1 arrives.
    """
    log = os.open(scratch / f"rank{rank}.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.disable()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    os.environ["TEMP_DIR"] = str(scratch)
    tempfile.tempdir = str(scratch)
    _unread, pipe = multiprocessing.Pipe()  # the suite sends errors here; the log has them too
    suite._run(rank, test, str(scratch / "store"), pipe)  # type: ignore[attr-defined]

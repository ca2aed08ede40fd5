"""Real rank processes for tests, started once and reused.

    with RankPool(size=3) as pool:
        pool.run(function, 1, 2)       # function(1, 2) on every rank; a list of its results by rank

`function` lives at the top of a module and runs inside an initialised default process group. If a
rank raises, dies or does not answer in time, `run` raises `RankFailure`: it tells what every rank
did, with tracebacks, the stacks of the ranks that are stuck and the end of what they printed; the
next call gets new ranks. So a function that prints where it is names that place in the failure.
"""

from __future__ import annotations

import faulthandler
import gc
import itertools
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

import standin

# Forked from a server that has torch loaded and no threads, a rank starts in milliseconds.
# It reads this variable once, for all of them, and some tests read what torch logs.
os.environ.pop("TORCH_CPP_LOG_LEVEL", None)
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.testing", "torch._dynamo", "pytest"]
)
_generations = itertools.count()

GROUP_TIMEOUT = timedelta(seconds=20)
DEADLINE = (
    40.0  # seconds for one call, more than the group's timeout: the backend's own error comes first
)
_AFTER_FAILURE = 5.0  # seconds that the others get to answer once a rank has failed


class RankFailure(AssertionError):
    """What every rank did in a call that went wrong on at least one of them."""


@dataclass(frozen=True)
class Lost:
    """Stands for the result of a rank whose process ended; a signal is a negative exit code."""

    exitcode: int | None


@dataclass
class _Rank:
    process: Any
    connection: Connection
    log: Path
    read_from: int = 0

    def printed(self) -> str:
        """What the rank wrote to stdout and stderr since the current call began."""
        with self.log.open("rb") as log:
            log.seek(self.read_from)
            return log.read().decode(errors="replace")


class RankPool:
    """`size` rank processes joined in a default process group on `backend`.

    With `backend` "" they join nothing; the function does, on `bare_store()`. Then a rank that is
    lost is replaced by a new one, and the others live on. `env` is set in every rank before
    anything reads it. `hosts` has the name of the host that each takes itself to be on. `setup`
    runs in every rank that starts, once it has joined. Use from one thread, but for `kill`; `close`
    when done.
    """

    def __init__(
        self,
        size: int,
        backend: str = "hvd",
        env: Mapping[str, str] | None = None,
        timeout: timedelta = GROUP_TIMEOUT,
        hosts: Sequence[str] | None = None,
        setup: Callable[[], None] | None = None,
    ) -> None:
        self.size = size
        self.backend = backend
        self.env = dict(env or {})
        self.hosts = hosts
        self.timeout = timeout
        self.setup = setup
        self._ranks: list[_Rank] = []
        self._generation = next(_generations)
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        # Held here, so that the store outlives any rank that a test kills.
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        deadline: float = DEADLINE,
        lost: Collection[int] = (),
        **kwargs: Any,
    ) -> list[Any]:
        """Call `function(*args, **kwargs)` on every rank and return the results by rank.

        The ranks in `lost` must end in the call; their result is a `Lost`. Raises RankFailure when
        another rank ends, any rank raises, or an answer is missing after `deadline` seconds.
        """
        __tracebackhide__ = True
        if not self._ranks:
            self._start()
        call = pickle.dumps((function, args, kwargs))
        for rank in self._ranks:
            rank.read_from = rank.log.stat().st_size
            rank.connection.send_bytes(call)
        arguments = [repr(value) for value in args] + [f"{k}={v!r}" for k, v in kwargs.items()]
        what = f"{function.__module__}.{function.__qualname__}({', '.join(arguments)})"
        results = self._collect(what, deadline, lost)
        if lost and self.backend:
            self._kill()
        elif lost:
            for number in lost:
                self._drop(self._ranks[number])
                self._ranks[number] = self._start_rank(number)
            self._collect("start again", DEADLINE, (), lost)
        return results

    def store(self) -> dist.Store:
        """What `bare_store()` is in the ranks."""
        return dist.PrefixStore(f"pool{self._generation}", self._store)

    def kill(self, number: int) -> float:
        """Kill a rank while a call runs that counts it among the lost; the time, as monotonic()."""
        process = self._ranks[number].process
        now = time.monotonic()
        process.kill()
        return now

    def close(self) -> None:
        """End the ranks as a script does; to fail or hang while leaving is a RankFailure."""
        try:
            if self._ranks:
                self.run(_leave, deadline=20.0)
        finally:
            self._kill()

    def _start(self) -> None:
        for number in range(self.size):
            self._ranks.append(self._start_rank(number))
        self._collect("init_process_group", DEADLINE, ())

    def _start_rank(self, number: int) -> _Rank:
        ours, theirs = _processes.Pipe()
        log = Path(self._folder.name, f"{self._generation}-{number}.log")
        log.touch()
        place = (
            number,
            self.size,
            self.backend,
            self.timeout,
            self._store.port,
            f"pool{self._generation}",
            self.setup,
        )
        env = self.env | ({"HVD_HOST_ID": self.hosts[number]} if self.hosts else {})
        process = _processes.Process(target=_serve, args=(place, env, str(log), theirs))
        process.start()
        theirs.close()
        return _Rank(process, ours, log)

    def _collect(
        self,
        what: str,
        deadline: float,
        lost: Collection[int],
        asked: Collection[int] | None = None,
    ) -> list[Any]:
        __tracebackhide__ = True
        results: list[Any] = [None] * self.size
        asked = range(self.size) if asked is None else asked
        waiting = {self._ranks[number].connection: number for number in asked}
        problems: dict[int, str] = {}
        end = time.monotonic() + deadline
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                number = waiting.pop(connection)  # type: ignore[call-overload]
                returned, results[number] = self._answer(number)
                if isinstance(results[number], Lost) is not (number in lost):
                    problems[number] = f"was not to end with {results[number]}"
                elif not returned:
                    problems[number] = f"raised\n{results[number]}"
            if problems:
                end = min(end, time.monotonic() + _AFTER_FAILURE)
        if waiting or problems:
            problems.update(self._stuck(list(waiting.values())))
            report = [f"{what} on {self.size} ranks of {self.backend}"]
            for number, problem in problems.items():
                printed = self._ranks[number].printed().splitlines()[-40:]
                report += [f"--- rank {number} {problem}", *(f"  | {line}" for line in printed)]
            self._kill()
            raise RankFailure("\n".join(report))
        return results

    def _answer(self, number: int) -> tuple[bool, Any]:
        rank = self._ranks[number]
        try:
            return pickle.loads(rank.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            rank.process.join(5)
            return True, Lost(rank.process.exitcode)

    def _stuck(self, numbers: list[int]) -> dict[int, str]:
        for number in numbers:
            os.kill(self._ranks[number].process.pid, signal.SIGUSR1)
        time.sleep(0.3 if numbers else 0)
        return dict.fromkeys(numbers, "did not answer in time; it printed this and its stacks:")

    def _kill(self) -> None:
        for rank in self._ranks:
            self._drop(rank)
        self._ranks = []
        self._generation = next(_generations)

    @staticmethod
    def _drop(rank: _Rank) -> None:
        rank.process.kill()
        rank.process.join()
        rank.connection.close()


def _serve(
    place: tuple[int, int, str, timedelta, int, str, Callable[[], None] | None],
    env: dict[str, str],
    log: str,
    connection: Connection,
) -> None:
    """Run in a rank: join, then answer calls until the pool hangs up."""
    gc.freeze()  # or each collection looks through all that the server has loaded
    os.environ.update(env)
    with open(log, "ab", buffering=0) as printed:
        os.dup2(printed.fileno(), 1)
        os.dup2(printed.fileno(), 2)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    faulthandler.register(signal.SIGUSR1, sys.stderr, all_threads=True)
    call = pickle.dumps((_join, place, {}))
    while True:
        try:
            function, args, kwargs = pickle.loads(call)
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except BaseException:
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)
        try:
            call = connection.recv_bytes()
        except EOFError:
            return


def _join(
    rank: int,
    size: int,
    backend: str,
    timeout: timedelta,
    port: int,
    prefix: str,
    setup: Callable[[], None] | None,
) -> None:
    torch.set_num_threads(1)
    dist.set_debug_level_from_env()
    store = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port, is_master=False))
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
    if backend == standin.NAME:
        standin.register()
    if backend:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
    else:
        _bare_stores.append(store)
    if setup:
        setup()


_bare_stores: list[dist.Store] = []


def bare_store() -> dist.Store:
    """In a rank of a pool without a group: the store to join one with."""
    return _bare_stores[0]


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()

"""Rank processes that stay alive between measurements.

This module must not import torch at its top: a rank sets its environment first.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

# One thread per rank, as torchrun sets it. From torch 2.14 on the flight recorder
# is attached to plug-ins only, so it would weigh on one side of the comparison.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "0"}
GROUPS = 3  # of each contender
GROUP_TIMEOUT_S = 60
START_TIMEOUT_S = 90


@dataclass(frozen=True)
class Rank:
    """What a function sent to the ranks finds there.

    `control` is a gloo group of its own, in which ranks meet between measurements. Of each
    contender there are several groups, equal in all but luck: where the kernel puts its
    threads can make one of two gloo groups of the same processes steadily slower.
    All groups hold every rank.
    """

    rank: int
    size: int
    control: ProcessGroup
    backend: tuple[ProcessGroup, ...]
    baseline: tuple[ProcessGroup, ...]


class Ranks:
    """`size` processes joined in three process groups, started at the first `run`.

    A failure or a time-out ends all of them, since survivors may wait in a collective;
    the next `run` starts afresh. Not safe to use from several threads.
    """

    def __init__(self, size: int, backend: str, baseline: str) -> None:
        self.size = size
        self.backend = backend
        self.baseline = baseline
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    def start(self) -> list[int]:
        """Start the ranks unless they live; their process ids."""
        if not self._processes:
            self._spawn()
        return [process.pid for process in self._processes]

    def run(self, function: Callable[..., T], *, timeout_s: float, **arguments: object) -> list[T]:
        """Call `function(rank: Rank, **arguments)` on every rank; results in rank order.

        `function` must be importable by name. Raises RuntimeError with the traceback of
        the first rank that failed, TimeoutError naming the ranks that did not answer.
        """
        self.start()
        what = f"{function.__name__}({arguments})"
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send((function, arguments))
            except BrokenPipeError:
                self.close()
                raise RuntimeError(f"{what}: rank {rank} had died before") from None
        return self._collect(what, timeout_s)

    def close(self) -> None:
        """Kill the ranks: they hold nothing worth the seconds of an orderly exit."""
        for process in self._processes:
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        self._processes, self._pipes = [], []

    def _spawn(self) -> None:
        from torch.distributed import TCPStore

        # Port 0 and a store owned here: no race for a free port.
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(theirs, rank, self.size, store.port, self.backend, self.baseline),
                daemon=True,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._store = store
        self._collect(
            f"start of {self.size} ranks ({self.backend}, {self.baseline})", START_TIMEOUT_S
        )

    def _collect(self, what: str, timeout_s: float) -> list[Any]:
        deadline = time.monotonic() + timeout_s
        results: dict[int, Any] = {}
        waiting = dict(enumerate(self._pipes))
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready = connection.wait(waiting.values(), timeout=left)
            if not ready:
                self._show_stacks(waiting)
                self.close()
                late = list(waiting)
                raise TimeoutError(f"{what}: no answer from ranks {late} within {timeout_s:.0f} s")
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                try:
                    failed, results[rank] = waiting.pop(rank).recv()
                except EOFError:
                    failed, results[rank] = True, "the process died"
                if failed:
                    self._show_stacks(waiting)
                    self.close()
                    raise RuntimeError(f"{what}: rank {rank} failed: {results[rank]}")
        return [results[rank] for rank in range(self.size)]

    def _show_stacks(self, ranks: Iterable[int]) -> None:
        """Have ranks that did not answer write their Python stacks to stderr."""
        for rank in ranks:
            print(f"rank {rank} is here:", file=sys.stderr, flush=True)
            os.kill(self._processes[rank].pid, signal.SIGUSR1)
            time.sleep(0.5)


def _serve(
    pipe: connection.Connection, rank: int, size: int, port: int, backend: str, baseline: str
) -> None:
    faulthandler.register(signal.SIGUSR1)
    os.environ.update(ENVIRONMENT)
    try:
        joined = _join(rank, size, port, backend, baseline)
        pipe.send((False, None))
        while True:
            function, arguments = pipe.recv()
            pipe.send((False, function(joined, **arguments)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))


def _join(rank: int, size: int, port: int, backend: str, baseline: str) -> Rank:
    import torch.distributed as dist

    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    store = dist.TCPStore("127.0.0.1", port, timeout=timeout)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    control = dist.group.WORLD
    assert control is not None
    pairs = [
        [_new_group(contender, timeout) for contender in (backend, baseline)] for _ in range(GROUPS)
    ]
    return Rank(rank, size, control, *zip(*pairs, strict=True))


def _new_group(contender: str, timeout: timedelta) -> ProcessGroup:
    """A group on a c10d backend by name; "hvd:fusion_threshold=0" is hvd with that option."""
    import torch.distributed as dist

    backend, _, settings = contender.partition(":")
    options = None
    if settings:
        from torch_hvd import Options

        options = Options()
        for setting in settings.split(","):
            name, value = setting.split("=")
            setattr(options, name, int(value))
    return dist.new_group(backend=backend, timeout=timeout, pg_options=options)

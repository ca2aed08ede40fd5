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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from multiprocessing import connection, get_context
from typing import TYPE_CHECKING, Any, TypeVar

from benchmarks.contenders import HOROVOD, Contender
from benchmarks.links import hosts_behind
from rig.hosts import Hosts, enter

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, TCPStore

    from benchmarks.horovod import Rendezvous

T = TypeVar("T")

# One thread per rank, as torchrun sets it. From torch 2.14 on the flight recorder
# is attached to plug-ins only, so it would weigh on one side of the comparison.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "0"}
GROUPS = 3  # of each contender; one may be luckier than its twin
GROUP_TIMEOUT_S = 60
START_TIMEOUT_S = 90


@dataclass(frozen=True)
class Rank:
    """What a function sent to the ranks finds there.

    `control` is a gloo group of its own, in which ranks meet between measurements. Of each
    contender there are several groups, equal in all but luck: where the kernel puts its
    threads can make one of two gloo groups of the same processes steadily slower.
    All groups hold every rank. `contenders` has what the two are, as "backend" and "baseline".
    """

    rank: int
    size: int
    control: ProcessGroup
    backend: tuple[ProcessGroup, ...]
    baseline: tuple[ProcessGroup, ...]
    contenders: Mapping[str, Contender]


class Ranks:
    """`size` processes joined in `groups` groups of each contender, started at the first `run`.

    With a `link`, a rate such as "1gbit", they are on hosts behind such links, `per_host` on each;
    with "2x1gbit" each host has two.
    With `bind` each runs on one core only, in turn of those that this process may use.
    A failure or a time-out ends all of them, since survivors may wait in a collective;
    the next `run` starts afresh. Not safe to use from several threads.
    """

    def __init__(
        self,
        size: int,
        backend: str = "hvd",
        baseline: str = "gloo",
        link: str | None = None,
        groups: int = GROUPS,
        per_host: int = 1,
        bind: bool = False,
    ) -> None:
        self.size = size
        self.backend = backend
        self.baseline = baseline
        self.link = link
        self.groups = groups
        self.per_host = per_host
        self.bind = bind
        self._hosts: Hosts | None = None
        self._rendezvous: Rendezvous | None = None
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
        if self._hosts:
            self._hosts.close()
            self._hosts = None
        if self._rendezvous:
            self._rendezvous.close()
            self._rendezvous = None

    def _spawn(self) -> None:
        count = -(-self.size // self.per_host)
        self._hosts = hosts_behind(self.link, count) if self.link else None
        store = self._hosts.at_the_switch(_new_store) if self._hosts else _new_store()
        if HOROVOD in (self.backend, self.baseline):
            from benchmarks.horovod import Rendezvous

            self._rendezvous = Rendezvous(self.size)
        context = get_context("spawn")
        cores = sorted(os.sched_getaffinity(0))
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            place = Place(rank, self.size, store.port, self.groups)
            if self.bind:
                place = replace(place, core=cores[rank % len(cores)])
            if self._hosts:
                namespace = self._hosts.namespace(rank // self.per_host)
                place = replace(
                    place,
                    address=self._hosts.switch_address,
                    namespace=namespace,
                    variables=self._hosts.variables,
                )
            if self._rendezvous:
                place = replace(place, variables=self._rendezvous.variables[rank])
            process = context.Process(
                target=_serve, args=(theirs, place, self.backend, self.baseline), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        self._store = store
        what = f"start of {self.size} ranks ({self.backend}, {self.baseline})"
        self._collect(what, START_TIMEOUT_S)

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


@dataclass(frozen=True)
class Place:
    """Where a rank stands, and where the store is; a namespace is that of a host in a rig.

    `core` is the one that it is bound to, `variables` are for its environment.
    """

    rank: int
    size: int
    port: int
    groups: int  # of each contender
    address: str = "127.0.0.1"
    namespace: str | None = None
    core: int | None = None
    variables: dict[str, str] = field(default_factory=dict)


def _new_store() -> TCPStore:
    """A store owned here, on port 0: no race for a free port."""
    from torch.distributed import TCPStore

    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _serve(pipe: connection.Connection, place: Place, backend: str, baseline: str) -> None:
    faulthandler.register(signal.SIGUSR1)
    os.environ.update(ENVIRONMENT | place.variables)
    try:
        if place.core is not None:
            os.sched_setaffinity(0, {place.core})  # before torch, whose threads inherit it
        if place.namespace:
            enter(place.namespace)  # before torch, whose threads would stay outside
        joined = _join(place, backend, baseline)
        pipe.send((False, None))
        while True:
            function, arguments = pipe.recv()
            pipe.send((False, function(joined, **arguments)))
    except BaseException:
        pipe.send((True, traceback.format_exc()))


def _join(place: Place, backend: str, baseline: str) -> Rank:
    import torch.distributed as dist

    timeout = timedelta(seconds=GROUP_TIMEOUT_S)
    store = dist.TCPStore(place.address, place.port, timeout=timeout)
    rank, size = place.rank, place.size
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    control = dist.group.WORLD
    assert control is not None
    contenders = {"backend": Contender.parse(backend), "baseline": Contender.parse(baseline)}
    groups: dict[str, list[ProcessGroup]] = {name: [] for name in contenders}
    for _ in range(place.groups):
        for name, contender in contenders.items():
            groups[name].append(contender.new_group(timeout))
    return Rank(
        rank, size, control, tuple(groups["backend"]), tuple(groups["baseline"]), contenders
    )

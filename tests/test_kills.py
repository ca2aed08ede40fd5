"""A rank is killed at a random moment of a random program, again and again.

Every survivor gets errors that name it, soon, and is then what it was before it made its groups.
The survivors stay for the next round. `--kills N` asks for another number of rounds.
"""

from __future__ import annotations

import gc
import os
import random
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist

from calls import said_of
from footprint import descriptors, held, leaves_no_names, settled
from ranks import RankPool, bare_store

WITHIN = 2.0  # seconds from the kill to the error, but where the machine itself stands still
AT_MOST = 10.0
LONGEST_RUN = 0.3  # seconds before the kill
MOST_RANKS = 4
FINAL = 3  # elements of the last calls, as many as no other call has
FINAL_CALL = f"called all_reduce(float32[{FINAL}], SUM)"
COUNTS = [1, 40, 5_000, 20_000, 300_000, 1_000_000]  # float32 elements

Pending = list[tuple[str, dist.Work]]


@dataclass(frozen=True)
class Round:
    """What follows from the seed: the same on every rank."""

    seed: int
    size: int
    victim: int
    groups: int
    delay: float


def plan(seed: int) -> Round:
    rng = random.Random(seed)
    size = rng.randint(2, MOST_RANKS)
    return Round(
        seed, size, rng.randrange(size), rng.randint(1, 3), rng.random() ** 2 * LONGEST_RUN
    )


def start(kind: str, count: int, group: dist.ProcessGroup) -> list[dist.Work | None]:
    """A collective of that kind, or a message to the next rank and one from the one before."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = torch.ones(count)
    if kind == "all_reduce":
        return [dist.all_reduce(tensor, group=group, async_op=True)]
    if kind == "broadcast":
        return [dist.broadcast(tensor, src=count % size, group=group, async_op=True)]
    if kind == "all_gather":
        gathered = torch.empty(size * count)
        return [dist.all_gather_into_tensor(gathered, tensor, group=group, async_op=True)]
    if kind == "reduce_scatter":
        whole = torch.ones(size * count)
        return [dist.reduce_scatter_tensor(tensor, whole, group=group, async_op=True)]
    if kind == "messages":
        return [
            dist.irecv(torch.empty(count), (rank - 1) % size, group=group),
            dist.isend(tensor, (rank + 1) % size, group=group),
        ]
    return [dist.barrier(group=group, async_op=True)]


KINDS = ["all_reduce", "all_reduce", "broadcast", "all_gather", "reduce_scatter", "messages", "-"]


def work_until_it_fails(round: Round, groups: list[dist.ProcessGroup]) -> Pending:
    """Run the program; returns what was pending when one of its operations had an error."""
    rng = random.Random(round.seed)
    pending: Pending = []
    try:
        while True:
            kind, count = rng.choice(KINDS), rng.choice(COUNTS)
            group = rng.choice(groups)
            at_once, everything = rng.random() < 0.4, len(pending) > rng.randint(0, 12)
            for work in start(kind, count, group):
                assert work is not None
                pending.append((f"{kind} of {count}", work))
            while pending and (everything or at_once):
                pending[-1][1].wait()
                pending.pop()
                at_once = False
    except dist.DistBackendError as error:
        check_error(round, "first error", error)
    return pending


def mismatched(error: dist.DistBackendError) -> bool:
    """The victim had called something else before it died, or a survivor was finishing already."""
    return " in place " in str(error) and FINAL_CALL in str(error)


def check_error(round: Round, what: str, error: dist.DistBackendError) -> None:
    said = said_of(str(error), round.victim)
    named = any(re.match(r" (?:[^;]* )?left or died", rest) for rest in said)
    assert named or mismatched(error), f"{what} names no rank {round.victim}: {error}"


def finish(round: Round, pending: Pending, groups: list[dist.ProcessGroup]) -> None:
    """Everything that is pending is done or fails, and what is called later fails, each in time."""
    for what, work in pending:
        begun = time.monotonic()
        try:
            work.wait()
        except dist.DistBackendError as error:
            check_error(round, what, error)
        assert time.monotonic() - begun < AT_MOST, what
    for number, group in enumerate(groups):
        begun = time.monotonic()
        while True:
            with pytest.raises(dist.DistBackendError) as caught:
                dist.all_reduce(torch.ones(FINAL), group=group)
            assert time.monotonic() - begun < AT_MOST, f"all_reduce in group {number}"
            check_error(round, f"all_reduce in group {number}", caught.value)
            if not mismatched(caught.value):
                break


def survive(round: Round) -> float:
    """The time of the first error, as time.monotonic()."""
    rank = int(os.environ["RANK"])
    if rank >= round.size:
        return 0.0
    before = held()
    store = dist.PrefixStore(f"round {round.seed}", bare_store())
    dist.init_process_group("hvd", store=store, rank=rank, world_size=round.size)
    world = dist.group.WORLD
    assert world is not None
    groups = [world, *(dist.new_group() for _ in range(round.groups - 1))]
    store.add("ready", 1)
    pending = work_until_it_fails(round, groups)
    failed = time.monotonic()
    finish(round, pending, groups)
    del pending, groups, world, store
    dist.destroy_process_group()
    gc.collect()  # errors have tracebacks, which have what was local
    settled(lambda: held() == before, lambda: f"{held()} held, {before} before: {descriptors()}")
    return failed


class Killer(threading.Thread):
    """Kills the victim once all ranks have made their groups, and then some."""

    def __init__(self, pool: RankPool, round: Round) -> None:
        super().__init__()
        self.killed = 0.0
        self._pool, self._round = pool, round
        self._store = dist.PrefixStore(f"round {round.seed}", pool.store())

    def run(self) -> None:
        end = time.monotonic() + 20
        while self._store.add("ready", 0) < self._round.size and time.monotonic() < end:
            time.sleep(0.005)
        time.sleep(self._round.delay)
        self.killed = self._pool.kill(self._round.victim)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({"HVD_TRANSPORT": "shm", "HVD_CMA": "1"}, id="attached"),
        pytest.param({"HVD_TRANSPORT": "shm", "HVD_CMA": "0"}, id="copied"),
        pytest.param({"HVD_TRANSPORT": "tcp"}, id="tcp"),
    ],
)
def survivors(request: pytest.FixtureRequest) -> Iterator[RankPool]:
    """Ranks that have joined nothing."""
    with RankPool(MOST_RANKS, backend="", env=request.param) as pool:
        yield pool


def test_kills(survivors: RankPool, seeds: range) -> None:
    times = []
    for seed in seeds:
        round = plan(seed)
        killer = Killer(survivors, round)
        with leaves_no_names():
            killer.start()
            failed = survivors.run(survive, round, lost=[round.victim])
            killer.join()
        for rank in range(round.size):
            if rank != round.victim:
                took = failed[rank] - killer.killed
                assert 0 < took < AT_MOST, f"{round}: rank {rank} failed after {took:.2f} s"
                times.append(took)
    late = [took for took in times if took >= WITHIN]
    assert len(late) <= len(times) / 10, f"{len(late)} of {len(times)} errors late: {late}"

"""What a benchmark test calls: run a case on the ranks and sum it up as a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from benchmarks.contenders import HOROVOD, Contender
from benchmarks.interleave import Blocks
from benchmarks.links import link_limit
from benchmarks.machine import Load
from benchmarks.ranks import Ranks
from benchmarks.rows import Row, compare, slowest_by_name

Case = Callable[..., dict[str, Blocks]]

# Beyond the budget: warm-up rounds, and the fewest rounds where they take longer.
GRACE_S = 100


@dataclass(frozen=True)
class Bench:
    """Measures on `ranks`, about `budget_s` seconds a row, and hands rows to `keep`."""

    ranks: Ranks
    budget_s: float
    keep: Callable[[Row], None]

    @property
    def shares_memory(self) -> bool:
        """Whether the backend's ranks reach each other by shared memory."""
        backend = Contender.parse(self.ranks.backend)
        transport = str(backend.options.get("transport", "auto"))
        on_one_host = self.ranks.link is None
        return backend.backend == "hvd" and on_one_host and transport.startswith(("auto", "shm"))

    def against_gloo(self, target: float | None) -> float | None:
        """The target of a test that does not name what it compares: of gloo, on one host."""
        return target if self.ranks.baseline == "gloo" and not self.ranks.link else None

    def row(
        self,
        case: Case,
        *,
        op: str,
        size: int,
        bus_factor: float = 1.0,
        trips: int = 1,
        target: float | None = None,
        hooks: bool = False,
        wire_bytes: float | None = None,
        **arguments: object,
    ) -> None:
        """Run `case(rank, budget_s=..., **arguments)` on all ranks and keep the row.

        The case returns the samples of the trials "backend", "baseline" and "limit", as
        `interleave` does. `size` is what a rank contributes to a call, in bytes;
        `bus_factor` turns algbw into busbw; a call makes `trips` transfers, one after
        the other, and sends `wire_bytes` from each rank where that is known. Skips the test
        where a contender has a communication hook and the case makes no use of `hooks`, and where
        Horovod cannot do it; there is no target against Horovod.

        Between hosts of one rank each the limit is that of the link for those bytes, but for a case
        with `hooks`, which computes as well.
        """
        names = (self.ranks.backend, self.ranks.baseline)
        if not hooks and any(Contender.parse(name).hook for name in names):
            pytest.skip("a communication hook means something to a DDP step only")
        if HOROVOD in names:
            target = None
            if not op.startswith("all_reduce"):
                pytest.skip("Horovod is compared by its all_reduce")
        load = Load(self.ranks.start())
        answers = self.ranks.run(
            case, timeout_s=self.budget_s + GRACE_S, budget_s=self.budget_s, **arguments
        )
        foreign = load.foreign()
        blocks = {
            name: [[seconds / trips for seconds in block] for block in of_all]
            for name, of_all in slowest_by_name(answers).items()
        }
        limit = blocks["limit"]
        if self.ranks.link and self.ranks.per_host == 1 and not hooks:
            limit = link_limit(self.ranks.link, bus_factor * size)
        self.keep(
            compare(
                blocks["backend"],
                blocks["baseline"],
                limit,
                op=op,
                size=size,
                bus_factor=bus_factor,
                world_size=self.ranks.size,
                backend=self.ranks.backend,
                baseline=self.ranks.baseline,
                target=target,
                foreign=foreign,
                link=self.ranks.link,
                wire_bytes=wire_bytes,
            )
        )

"""The ratios that README and docs/results.md promise, as `benchmarks.gate` holds rows to them.

Left out, as a row cannot tell: what they call noise; hosts of several ranks, which a row does not
tell from hosts of one; and MPI against Gloo from 1 to 64 KB, where Gloo takes 0.3 or 4 ms, by luck.

Left out, as `make bench-gate` does not measure it: 4 ranks over shared memory, and all_reduce of 64
MB there; 4 B to 16 KB, and all tensors against one, between hosts with one link; codecs without a
slow link; Open MPI; and what needs a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.test_ddp import NBYTES as DDP_BYTES
from benchmarks.test_fusion import ALL, FEW_KB, in_bytes

KB, MB = 1 << 10, 1 << 20

LOOPBACK_MARGIN, LINK_MARGIN = 1.25, 1.1  # links are slow, and so steadier than memory
ROUNDING = 0.005  # of their two digits


@dataclass(frozen=True)
class Promise:
    """`ratio` is hvd's time over the baseline's; `high` the end of its interval, 0 without one."""

    op: str
    size: int  # bytes, as in a row
    ratio: float
    high: float = 0.0
    backend: str = "hvd"
    baseline: str = "gloo"
    ranks: int = 2
    link: str | None = None

    @property
    def measurement(self) -> tuple[str, int, int, str, str, str | None]:
        """What the row that tells of it has as operation, size, ranks, contenders and link."""
        return self.op, self.size, self.ranks, self.backend, self.baseline, self.link

    @property
    def at_most(self) -> float:
        """The ratio above which a row is worse: with a margin, or the interval's end if more."""
        margin = LINK_MARGIN if self.link else LOOPBACK_MARGIN
        return max(self.ratio * margin, self.high) + ROUNDING


SMALL = f"all_reduce async, {len(FEW_KB)} small"
IN_FLIGHT = f"all_reduce async, {len(ALL)}"
ONE_BY_ONE = f"all_reduce, {len(ALL)}"
IN_ONE = f"all_reduce, {len(ALL)} in one"
AGAINST_ONE = f"all_reduce async, {len(ALL)} against one"
DDP_BROADCAST = f"ddp broadcast of {len(ALL)}"

# Operation, size, ratio and the end of its interval.
OVER_SHARED_MEMORY = (
    ("all_reduce", 4, 0.04, 0.04),
    ("all_reduce", 1 * KB, 0.02, 0.02),
    ("all_reduce", 16 * KB, 0.03, 0.03),
    ("barrier", 4, 0.04, 0.18),
    ("all_reduce async x100", 100 * KB, 0.02, 0.02),
    ("all_reduce", 1 * MB, 0.10, 0.12),
    ("all_reduce", 16 * MB, 0.20, 0.22),
    ("reduce_scatter", 16 * MB, 0.12, 0.13),
    ("all_gather", 16 * MB, 0.17, 0.18),
    ("all_to_all", 16 * MB, 0.42, 0.45),
    ("broadcast", 16 * MB, 0.41, 0.44),
    ("ddp step", DDP_BYTES, 0.72, 0.74),
    (SMALL, in_bytes(FEW_KB), 0.01, 0.03),
    (IN_FLIGHT, in_bytes(ALL), 0.18, 0.26),
    (ONE_BY_ONE, in_bytes(ALL), 0.05, 0.06),
    (IN_ONE, in_bytes(ALL), 0.21, 0.23),
    (AGAINST_ONE, in_bytes(ALL), 0.37, 0.41),
    (DDP_BROADCAST, in_bytes(ALL), 0.85, 0.88),
)
OVER_TCP = (
    ("all_reduce", 4, 0.09, 0.11),
    ("all_reduce", 1 * KB, 0.06, 0.15),
    ("all_reduce", 16 * KB, 0.05, 0.05),
    ("all_reduce async x100", 100 * KB, 0.04, 0.05),
    ("all_reduce", 1 * MB, 0.26, 0.46),
    ("all_reduce", 16 * MB, 0.72, 0.76),
    ("ddp step", DDP_BYTES, 1.02, 1.06),
    (SMALL, in_bytes(FEW_KB), 0.03, 0.05),
    (IN_FLIGHT, in_bytes(ALL), 0.47, 0.57),
    (ONE_BY_ONE, in_bytes(ALL), 0.21, 0.27),
    (IN_ONE, in_bytes(ALL), 0.88, 0.96),
    (AGAINST_ONE, in_bytes(ALL), 1.19, 1.38),
    (DDP_BROADCAST, in_bytes(ALL), 0.94, 0.98),
)
BY_FUSION = ((SMALL, in_bytes(FEW_KB), 0.52, 0.61), (IN_FLIGHT, in_bytes(ALL), 1.00, 1.18))
# Baseline, size, ratio and the end of its interval.
OVER_MPI = (
    ("gloo", 4, 0.06, 0.06),
    ("gloo", 1 * MB, 0.10, 0.11),
    ("gloo", 16 * MB, 0.26, 0.29),
    ("MPI_Allreduce", 4, 2.96, 3.00),
    ("MPI_Allreduce", 1 * KB, 2.13, 2.20),
    ("MPI_Allreduce", 64 * KB, 1.20, 1.41),
    ("MPI_Allreduce", 1 * MB, 0.92, 0.94),
    ("MPI_Allreduce", 16 * MB, 1.00, 1.08),
)
# How many times faster than Gloo in fp32, by codec, at 1 Gbit. Columns: operation, size, ranks.
ON_LINKS_OF_1GBIT = (
    ("all_reduce", 16 * MB, 2),
    ("all_reduce", 64 * MB, 2),
    ("all_reduce", 16 * MB, 4),
    ("all_reduce", 64 * MB, 4),
    ("ddp step", DDP_BYTES, 2),
    ("ddp step", DDP_BYTES, 4),
)
TIMES_FASTER = {
    "none": (1.00, 1.00, 0.99, 1.01, 1.03, None),
    "fp16": (1.95, 1.99, 1.91, 1.99, 1.86, None),
    "bf16": (1.98, 1.99, 1.90, 1.97, 1.79, None),
    "fp8": (3.83, 3.94, 3.82, 3.88, 2.86, None),
    "fp8_e5m2": (3.68, 3.94, 3.82, 3.87, 2.92, None),
    "int8": (3.77, 3.94, 3.76, 3.82, 2.99, 2.66),
    "int4": (6.76, 7.14, 6.43, 6.58, 4.08, None),
}
# Operation, size, and for 2 and for 4 hosts the ratio and the end of its interval.
ON_TWO_LINKS_OF_1GBIT = (
    ("all_reduce", 1 * MB, (0.94, 0.96), (0.77, 0.81)),
    ("all_reduce", 4 * MB, (0.52, 0.52), (0.63, 0.66)),
    ("all_reduce", 16 * MB, (0.52, 0.54), (0.52, 0.54)),
    ("all_reduce", 64 * MB, (0.50, 0.51), (0.51, 0.51)),
    ("ddp step", DDP_BYTES, (0.71, 0.73), (0.73, 0.78)),
)


def _promises() -> Iterator[Promise]:
    for row in OVER_SHARED_MEMORY:
        yield Promise(*row)
    for row in OVER_TCP:
        yield Promise(*row, backend="hvd:transport=tcp")
    for row in BY_FUSION:
        unfused = "hvd:transport=tcp,fusion_threshold=0"
        yield Promise(*row, backend="hvd:transport=tcp", baseline=unfused)
    for baseline, size, ratio, high in OVER_MPI:
        yield Promise("all_reduce", size, ratio, high, "hvd:transport=mpi", baseline)
    for codec, times in TIMES_FASTER.items():
        backend = f"hvd:transport=tcp,compression={codec}"
        for (op, size, ranks), faster in zip(ON_LINKS_OF_1GBIT, times, strict=True):
            if faster:
                yield Promise(op, size, 1 / faster, 0, backend, ranks=ranks, link="1gbit")
    for op, size, *found in ON_TWO_LINKS_OF_1GBIT:
        for ranks, (ratio, high) in zip((2, 4), found, strict=True):
            yield Promise(op, size, ratio, high, ranks=ranks, link="2x1gbit")


PROMISES = tuple(_promises())

"""How much is measured: `--quick`, what is done without it, and `--full`. Said here alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """`sizes`: the constant of a test module that has its sizes, in bytes.

    `contenders`: which pairs a test's mark compares on loopback, the first that it has.
    """

    sizes: str
    contenders: tuple[str, ...]
    world_sizes: tuple[int, ...]
    budget_s: float  # for a row, beside the fewest rounds of `benchmarks.interleave`


QUICK = Effort("QUICK_SIZES", ("quick", "loopback"), (2,), 0.5)
USUAL = Effort("SIZES", ("loopback",), (2,), 4.0)
FULL = Effort("SIZES", ("loopback",), (2, 4), 4.0)


def effort(*, quick: bool, full: bool) -> Effort:
    """ValueError if it is to be both."""
    if quick and full:
        raise ValueError("--quick and --full exclude each other")
    return QUICK if quick else FULL if full else USUAL

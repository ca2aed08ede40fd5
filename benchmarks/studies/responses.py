"""What hvd makes of a batch: its responses by size, from the statistics of a rank."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch_hvd import statistics

COUNTED = ("count", "tensors", "bytes", "seconds")

Bucket = dict[str, Any]  # COUNTED, and "upto": bytes, None in the last


class Tally:
    """Counts the responses between `begin` and `end`, over all groups of this process."""

    def __init__(self) -> None:
        self._batches = 0
        self._counts: Counter[tuple[float | None, str]] = Counter()

    def begin(self) -> None:
        self._counts.subtract(_now())

    def end(self) -> None:
        self._counts.update(_now())
        self._batches += 1

    def per_batch(self) -> list[Bucket]:
        """The means of a batch in each bucket of sizes that had some; seconds are those from
        when a response begins to when it ends, also where several are under way.
        """
        uptos = dict.fromkeys(upto for upto, _ in self._counts)
        buckets: list[Bucket] = [
            {"upto": upto} | {name: self._counts[upto, name] / self._batches for name in COUNTED}
            for upto in uptos
        ]
        return [bucket for bucket in buckets if bucket["count"]]


def _now() -> Counter[tuple[float | None, str]]:
    counts: Counter[tuple[float | None, str]] = Counter()
    for group in statistics():
        for row in group["rows"]:
            for name in COUNTED:
                counts[row["upto"], name] += row[name]
    return counts

"""How the ranks of a group meet in its store, before they are connected."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

# torch gives poll() a store's timeout, in milliseconds, of which it takes 32 bits.
_LONGEST_WAIT = timedelta(days=24)
_NAMED = 10  # ranks in an error


class Unavailable(Exception):
    """A transport cannot be had, on every rank alike; the text names a rank and the reason."""


@dataclass(frozen=True)
class Meeting:
    """The ranks of a group, or some of them, where they tell each other what they have.

    Attributes:
        store: its keys are theirs alone.
        rank: of this process in the group.
        ranks: all that meet, in rising order.
        timeout: how long each waits for the others; the store's own is of another group.
    """

    store: Store
    rank: int
    ranks: Sequence[int]
    timeout: timedelta

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def place(self) -> int:
        """Of this process among those that meet."""
        return self.ranks.index(self.rank)

    def part(self, name: str, ranks: Sequence[int] | None = None) -> "Meeting":
        """The same ranks, or some of them, for topics of that part's own."""
        return replace(self, store=PrefixStore(name, self.store), ranks=ranks or self.ranks)

    def say(self, topic: str, mine: Any) -> None:
        """Leave `mine`, anything that JSON can hold, for the `exchange` of the other ranks."""
        self.store.set(_key(topic, self.place), json.dumps(mine))

    def exchange(self, topic: str, mine: Any) -> list[Any]:
        """What each rank says on a topic, by its place, once all have. There is a topic once.

        Raises:
            DistStoreError: names the ranks that did not come in time.
        """
        self.say(topic, mine)
        keys = [_key(topic, place) for place in range(self.size)]
        try:
            self.wait(*keys)
        except RuntimeError as error:  # which of them it is depends on the store
            came = map(self.store.check, ([key] for key in keys))
            missing = [str(rank) for rank, here in zip(self.ranks, came, strict=True) if not here]
            if not missing:
                raise
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            raise dist.DistStoreError(
                f"hvd: rank {self.rank} has waited {self.timeout.total_seconds():g} s for rank "
                f"{', '.join(missing[:_NAMED])}{more} to make a process group: {error}"
            ) from None
        return [json.loads(text) for text in self.store.multi_get(keys)]

    def agree(self, topic: str, mine: Any) -> list[Any]:
        """As `exchange`, of what may have failed: then `mine` is the Unavailable, for every rank.

        Raises:
            Unavailable: on every rank, that of the first that has one.
        """
        failed = str(mine) if isinstance(mine, Unavailable) else ""
        everyones = self.exchange(topic, [failed, None if failed else mine])
        for failed, _ in everyones:
            if failed:
                raise Unavailable(failed)
        return [theirs for _, theirs in everyones]

    def wait(self, *keys: str) -> None:
        """Until they are set.

        Raises:
            RuntimeError: one was not in time.
        """
        self.store.wait(list(keys), min(self.timeout, _LONGEST_WAIT))

    def end(self) -> None:
        """Have rank 0 return after all others have done with the store, which it usually hosts.

        Its program may end at once, or fail.
        """
        if self.store.add("joined", 1) == self.size:
            self.store.set("all_joined", "")
        if self.place == 0:
            self.wait("all_joined")


def _key(topic: str, place: int) -> str:
    # In a place of their own: what a backend keeps in a PrefixStore of the topic's name is not
    # theirs. NCCL's rank 0 leaves its id at "0".
    return f"said/{topic}/{place}"

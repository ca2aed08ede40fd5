"""What the ranks of a group tell each other through its store before they are connected."""

import json
from typing import Any

from torch._C._distributed_c10d import Store


class Unavailable(Exception):
    """A transport cannot be had, on every rank alike; the text names a rank and the reason."""


def say(store: Store, topic: str, rank: int, mine: Any) -> None:
    """Leave `mine`, anything that JSON can hold, for the `exchange` of the other ranks."""
    store.set(_key(topic, rank), json.dumps(mine))


def _key(topic: str, rank: int) -> str:
    # In a place of their own: what a backend keeps in a PrefixStore of the topic's name is not
    # theirs. NCCL's rank 0 leaves its id at "0".
    return f"said/{topic}/{rank}"


def exchange(store: Store, topic: str, rank: int, size: int, mine: Any) -> list[Any]:
    """What each rank says on a topic, by rank, once all have. A store has a topic once.

    Raises:
        DistStoreError: a rank did not come before the store's timeout.
    """
    say(store, topic, rank, mine)
    return [json.loads(text) for text in store.multi_get([_key(topic, n) for n in range(size)])]


def agree(store: Store, topic: str, rank: int, size: int, mine: Any) -> list[Any]:
    """As `exchange`, of what may have failed: then `mine` is the Unavailable, for every rank.

    Raises:
        Unavailable: on every rank, that of the first that has one.
    """
    failed = str(mine) if isinstance(mine, Unavailable) else ""
    everyones = exchange(store, topic, rank, size, [failed, None if failed else mine])
    for failed, _ in everyones:
        if failed:
            raise Unavailable(failed)
    return [theirs for _, theirs in everyones]

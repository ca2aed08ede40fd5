"""Which ranks of a group are left after one has died, agreed upon by those that are."""

import json
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from torch_hvd._load import _C

_BETWEEN_LOOKS = 0.05  # seconds


def lost_ranks(
    group: dist.ProcessGroup | None = None, patience: timedelta = timedelta(seconds=30)
) -> list[int]:
    """The ranks that `dist.shrink_group` is to leave out: those that do not call this, too.

    All ranks of the group that live call it, as each does where a collective raises because one has
    died. It returns the same to all of them: once all ranks of the group have come, or else when
    the first to come has waited for `patience`. It needs the group's store, but not the group,
    which may have failed.

    Args:
        group: of the backend "hvd"; the default group if None.
        patience: more than ranks may be apart, as where one is busy before it finds out.

    Returns:
        Their numbers in the group, in rising order; none if all have come.

    Raises:
        TypeError: the group is of another backend.
        RuntimeError: this rank was too late, and the others go on without it.
    """
    backend = (group or dist.distributed_c10d._get_default_group())._get_backend(
        torch.device("cpu")
    )
    if not isinstance(backend, _C.ProcessGroupHVD):
        raise TypeError(f"lost_ranks takes a group of hvd's, not of {backend.name()!r}")
    number = 0  # of the times that ranks of this group were lost
    while True:
        store = PrefixStore(f"survivors/{number}", backend.store)
        if not store.check([str(backend.rank())]):
            break
        _left(store, backend)
        number += 1
    store.set(str(backend.rank()), "")
    store.add("came", 1)
    end = time.monotonic() + patience.total_seconds()
    while not store.check(["left"]):
        if store.add("came", 0) == backend.size() or time.monotonic() > end:
            here = [rank for rank in range(backend.size()) if store.check([str(rank)])]
            store.compare_set("left", "", json.dumps(here))  # whoever is the first says it
        else:
            time.sleep(_BETWEEN_LOOKS)
    left = _left(store, backend)
    return [rank for rank in range(backend.size()) if rank not in left]


def _left(store: Store, backend: _C.ProcessGroupHVD) -> list[int]:
    """The ranks that have come. Raises RuntimeError if this one came later."""
    left: list[int] = json.loads(store.get("left"))
    if backend.rank() not in left:
        raise RuntimeError(
            f"hvd: rank {backend.rank()} came too late: ranks {', '.join(map(str, left))} go on "
            "without it"
        )
    return left

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import Backend, Store

class Options:
    """Settings of one process group, for `init_process_group(pg_options=...)` and `new_group`.

    Args:
        timeout: of its operations; c10d's `timeout=` argument takes precedence.
        transport: "auto", or the name of the transport to use.
        fusion_threshold: bytes that all_reduces fused together may have; 0 turns fusion off.
        fusion_cutoff: bytes up to which an all_reduce is fused; a longer one travels alone.
        check: compare what the ranks call before every collective.
        stall_check_time: seconds after which an operation that waits for ranks is logged, with
            those that are missing; 0 for never.
        stall_shutdown_time: seconds after which it fails, and the group with it; 0 for never.

    What is left out comes from the environment, or is the default: see `torch_hvd._settings`. All
    ranks must have the same, apart from times.
    """

    transport: str
    fusion_threshold: int | None
    fusion_cutoff: int | None
    check: bool | None
    stall_check_time: float | None
    stall_shutdown_time: float | None
    _timeout: timedelta
    group_name: str
    global_ranks_in_group: list[int]
    def __init__(
        self,
        *,
        timeout: timedelta = ...,
        transport: str = "auto",
        fusion_threshold: int | None = None,
        fusion_cutoff: int | None = None,
        check: bool | None = None,
        stall_check_time: float | None = None,
        stall_shutdown_time: float | None = None,
    ) -> None: ...
    def __copy__(self) -> Options: ...
    def __deepcopy__(self, memo: dict[int, object]) -> Options: ...

class ProcessGroupHVD(Backend):
    """The c10d backend "hvd". Made by `torch_hvd._backend.create`.

    Args:
        store: keys are this group's own.
        gloo: a connected ProcessGroupGloo used by nobody else; None in a group of one.
        group: name of the group, for messages.
        stats_edges: upper ends, in bytes, of the rows of its statistics, rising.
    """

    def __init__(
        self,
        store: Store,
        gloo: Backend | None,
        options: Options,
        group: str,
        stats_edges: Sequence[float],
    ) -> None: ...
    @property
    def options(self) -> Options: ...  # type: ignore[override]
    def _set_default_timeout(self, timeout: timedelta) -> None: ...

def shutdown_all() -> None:
    """Shut down every group of this process that is still open."""

def statistics() -> list[dict[str, Any]]:
    """What each group of this process has counted; see `torch_hvd.statistics`."""

def start_timeline(path: str, rank: int) -> None:
    """Write the timeline of this process to the file `path`. RuntimeError if that cannot be."""

def stop_timeline() -> None:
    """End the timeline's file, if one is open."""

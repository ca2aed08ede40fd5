"""The tests that stock gloo passes and this project's backend cannot, each with its reason.

The conformance run checks the list both ways: a listed test must exist and must fail.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ListedException:
    """A test that fails for `reason` on the given torch minors ("2.13", ...)."""

    test: str
    torch: tuple[str, ...]
    reason: str


_GATE = "torch.distributed.monitored_barrier refuses any backend not named gloo; lifted in 2.14"
_NAME = "DDP's logger takes the name from ProcessGroup, which says `custom` for every plug-in"
_NAMED_GLOO = "suite.py leaves the suite in the belief that it runs on gloo, so it wants that name"

EXCEPTIONS = (
    ListedException("test_ddp_logging_data_cpu", ("2.13", "2.15"), _NAME),
    ListedException("test_get_backend", ("2.13", "2.15"), _NAMED_GLOO),
    ListedException("test_monitored_barrier_failure_order", ("2.13",), _GATE),
    ListedException("test_monitored_barrier_gloo", ("2.13",), _GATE),
    ListedException("test_monitored_barrier_gloo_subgroup", ("2.13",), _GATE),
    ListedException("test_monitored_barrier_wait_all_ranks", ("2.13",), _GATE),
)


def exceptions_for(backend: str, torch_minor: str) -> tuple[ListedException, ...]:
    """Return the exceptions that hold for `backend` on `torch_minor`."""
    if backend != "hvd":
        return ()
    return tuple(e for e in EXCEPTIONS if torch_minor in e.torch)

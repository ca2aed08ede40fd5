"""What is compared, by name: a c10d backend, its options, a communication hook of DDP.

    gloo    hvd:fusion_threshold=0    hvd:compression=int8    gloo+fp16_compress_hook

This module must not import torch at its top: a rank sets its environment first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from math import inf
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Relative L2 error that a codec may leave in the sum of all ranks, and a hook in DDP's average.
TOLERANCES = {
    "none": 0.0,
    "fp16": 5e-4,
    "bf16": 4e-3,
    "int8": 0.013,
    "fp8": 0.038,
    "fp8_e5m2": 0.076,
    "int4": 0.3,  # 0.15, and as much that error feedback brings along from the call before
    "fp16_compress_hook": 1e-3,
    "bf16_compress_hook": 8e-3,
    "powerSGD_hook": inf,  # its result is no mean to any small error
}

HOROVOD = "horovod"  # which is no backend of c10d
UNCOMPRESSED_STEPS = 2  # PowerSGD's fewest; a block to warm up has as many


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: the backend's name, its options and the name of a hook."""

    backend: str
    options: dict[str, Any]
    hook: str

    @staticmethod
    def parse(text: str) -> Contender:
        """ValueError, naming what is wrong, unless it is BACKEND[:OPTION=VALUE,...][+HOOK].

        HOOK ends in _hook; what else stands behind a + belongs to a value, as in shm+gloo.
        """
        rest, _, hook = text.rpartition("+") if text.endswith("_hook") else (text, "", "")
        backend, _, settings = rest.partition(":")
        options: dict[str, Any] = {}
        for setting in settings.split(",") if settings else ():
            name, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f"{text}: {setting!r} is no OPTION=VALUE")
            options[name] = int(value) if value.isdecimal() else value
        return Contender(backend, options, hook)

    def __str__(self) -> str:
        """What `parse` takes."""
        settings = ",".join(f"{name}={value}" for name, value in self.options.items())
        return self.backend + (settings and f":{settings}") + (self.hook and f"+{self.hook}")

    def with_options(self, options: dict[str, Any]) -> Contender:
        """With these, too. ValueError unless it is hvd and has none of them."""
        for name, value in options.items():
            if self.backend != "hvd":
                raise ValueError(f"{name}={value} is an option of hvd, not of {self.backend}")
            if name in self.options:
                raise ValueError(f"{self} has a {name} of its own, so it cannot be {value}")
        return replace(self, options=self.options | options)

    @property
    def tolerance(self) -> float:
        """Relative L2 error of its results at most; 0: exact; inf: unknown."""
        codec = self.options.get("compression", "none")
        return max(TOLERANCES[str(codec)], TOLERANCES[self.hook] if self.hook else 0.0)

    def new_group(self, timeout: timedelta) -> ProcessGroup:
        """A group of all ranks; to be called on all."""
        import torch.distributed as dist

        if self.backend == HOROVOD:
            from benchmarks.horovod import HorovodGroup

            return cast("ProcessGroup", HorovodGroup())
        options = None
        if self.options:
            from torch_hvd import Options

            options = Options(**self.options)  # and not setattr, which takes any name
        return dist.new_group(backend=self.backend, timeout=timeout, pg_options=options)

    def comm_hook(self, group: ProcessGroup) -> tuple[Any, Callable[..., Any]] | None:
        """State and hook for DDP's register_comm_hook: PowerSGD, or one of its default_hooks."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        if self.hook == "powerSGD_hook":
            state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=UNCOMPRESSED_STEPS)
            return state, powerSGD_hook.powerSGD_hook
        return (group, getattr(default_hooks, self.hook)) if self.hook else None


def sent_bytes() -> float:
    """What this rank has sent over the network, through all groups of hvd that it has made."""
    from torch_hvd import statistics

    return sum(group["wire_bytes"] for group in statistics())

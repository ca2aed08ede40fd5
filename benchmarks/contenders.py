"""What is compared, by name: a c10d backend, its options, a communication hook of DDP.

    gloo    hvd:fusion_threshold=0    hvd:compression=int8    gloo+fp16_compress_hook

This module must not import torch at its top: a rank sets its environment first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

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
}


@dataclass(frozen=True)
class Contender:
    """One side of a comparison: the backend's name, its options and the name of a hook."""

    backend: str
    options: dict[str, Any]
    hook: str

    @staticmethod
    def parse(text: str) -> Contender:
        """ValueError, naming what is wrong, unless it is BACKEND[:OPTION=VALUE,...][+HOOK]."""
        rest, _, hook = text.partition("+")
        backend, _, settings = rest.partition(":")
        options: dict[str, Any] = {}
        for setting in settings.split(",") if settings else ():
            name, equals, value = setting.partition("=")
            if not equals:
                raise ValueError(f"{text}: {setting!r} is no OPTION=VALUE")
            options[name] = int(value) if value.isdecimal() else value
        return Contender(backend, options, hook)

    @property
    def tolerance(self) -> float:
        """Relative L2 error of its results at most; 0 where they are exact."""
        codec = self.options.get("compression", "none")
        return max(TOLERANCES[str(codec)], TOLERANCES[self.hook] if self.hook else 0.0)

    def new_group(self, timeout: timedelta) -> ProcessGroup:
        """A group of all ranks; to be called on all."""
        import torch.distributed as dist

        options = None
        if self.options:
            from torch_hvd import Options

            options = Options(**self.options)  # and not setattr, which takes any name
        return dist.new_group(backend=self.backend, timeout=timeout, pg_options=options)

    def comm_hook(self) -> Callable[..., Any] | None:
        """For DDP's register_comm_hook: one of its default_hooks."""
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        return getattr(default_hooks, self.hook) if self.hook else None


def sent_bytes() -> float:
    """What this rank has sent through the groups of hvd that it has now."""
    from torch_hvd import statistics

    return sum(group["wire_bytes"] for group in statistics())

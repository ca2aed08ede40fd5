"""Horovod's all_reduce in the place of a process group's, to be compared with.

All groups are one: Horovod sets itself up once in a process. It is measured as it comes, with its
cycle time and its fusion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Rendezvous:
    """Where Horovod's ranks find each other, in the process that starts them, all on this host.

    `variables`: what each rank has to have in its environment before `join`.
    """

    def __init__(self, size: int) -> None:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.gloo_run import create_run_env_vars, create_slot_env_vars
        from horovod.runner.http.http_server import RendezvousServer

        self._server = RendezvousServer()
        port = self._server.start()
        slots = get_host_assignments(parse_hosts(f"localhost:{size}"), size)
        self._server.init(slots)
        common = create_run_env_vars("127.0.0.1", ["lo"], port)
        self.variables: list[dict[str, str]] = [
            {name: str(value) for name, value in (common | create_slot_env_vars(slot)).items()}
            for slot in slots
        ]

    def close(self) -> None:
        self._server.stop()


class Reduction:
    """The Work of an all_reduce."""

    def __init__(self, group: HorovodGroup, handle: Any) -> None:
        self._group = group
        self._handle = handle

    def wait(self) -> None:
        self._group.finish(self._handle)


class HorovodGroup:
    """What `dist.all_reduce` needs of a process group: it sums tensors of all ranks, in place."""

    def __init__(self) -> None:
        import horovod.torch

        self._horovod = horovod.torch
        self._horovod.init()
        self._in_flight = self._called = 0

    def allreduce(self, tensors: list[torch.Tensor], options: object) -> Reduction:
        # Horovod caches what ranks agreed on by name, so a name must come again, as a gradient's.
        name = f"tensor {self._called}"
        self._called += 1
        self._in_flight += 1
        sum_ = self._horovod.Sum
        return Reduction(self, self._horovod.allreduce_async_(tensors[0], name=name, op=sum_))

    def finish(self, handle: Any) -> None:
        self._horovod.synchronize(handle)
        self._in_flight -= 1
        if self._in_flight == 0:
            self._called = 0

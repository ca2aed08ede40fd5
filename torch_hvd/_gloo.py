"""The stock Gloo process group that serves as a transport, on an address others can reach."""

import os
from datetime import timedelta

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from torch_hvd import _addresses


def connect(store: Store, rank: int, hosts: list[int], timeout: timedelta) -> ProcessGroupGloo:
    """Connect all ranks of a group.

    Args:
        store: where ranks find each other; its keys are this connection's own.
        hosts: by rank, the number of its host.
        timeout: for connecting.

    Raises:
        RuntimeError: names the address and the interface that were tried.
    """
    size, address = len(hosts), None
    try:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        if interfaces := os.environ.get("GLOO_SOCKET_IFNAME"):
            options._devices = [
                ProcessGroupGloo.create_device(interface=name) for name in interfaces.split(",")
            ]
        else:
            address = _addresses.for_peers(hosts)
            options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        return ProcessGroupGloo(store, rank, size, options)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over Gloo on "
            f"{_addresses.describe(address)}; GLOO_SOCKET_IFNAME chooses another interface. {error}"
        ) from error

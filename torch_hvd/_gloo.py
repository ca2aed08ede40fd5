"""The stock Gloo process group that serves as a transport, on an address others can reach."""

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
    size, addresses = len(hosts), list[str]()
    try:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        addresses = _addresses.for_peers(hosts)
        options._devices = [
            ProcessGroupGloo.create_device(hostname=address) for address in addresses
        ]
        return ProcessGroupGloo(store, rank, size, options)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over Gloo on "
            f"{_addresses.describe(addresses)}; GLOO_SOCKET_IFNAME chooses other ones. {error}"
        ) from error

"""The stock Gloo process group that serves as a transport, on an address others can reach."""

from torch._C._distributed_c10d import ProcessGroupGloo

from torch_hvd import _addresses
from torch_hvd._store import Meeting


def connect(meeting: Meeting, hosts: list[int]) -> ProcessGroupGloo:
    """Connect all ranks of a group.

    Args:
        meeting: of all ranks; its timeout is for connecting, too.
        hosts: by rank, the number of its host.

    Raises:
        RuntimeError: names the address and the interface that were tried.
    """
    rank, size, addresses = meeting.rank, meeting.size, list[str]()
    try:
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = meeting.timeout
        addresses = _addresses.for_peers(hosts)
        options._devices = [
            ProcessGroupGloo.create_device(hostname=address) for address in addresses
        ]
        return ProcessGroupGloo(meeting.store, rank, size, options)
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over Gloo on "
            f"{_addresses.describe(addresses)}; GLOO_SOCKET_IFNAME chooses other ones. {error}"
        ) from error

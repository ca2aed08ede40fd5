"""The stock Gloo process group that serves as a transport, on an address others can reach."""

import os
import socket
from datetime import timedelta

from torch._C._distributed_c10d import ProcessGroupGloo, Store

from torch_hvd import _addresses


def choose_address() -> str | None:
    """The address Gloo should bind to, or None to leave the choice to Gloo.

    Gloo binds to what the host name resolves to. Where that is loopback, as on Debian, ranks on
    other hosts cannot connect; if MASTER_ADDR is not loopback, the way to it tells a better one.
    """
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return None
    own = _addresses.resolve(socket.gethostname())
    master = _addresses.resolve(os.environ.get("MASTER_ADDR", "localhost"))
    if (
        (own is not None and not _addresses.is_loopback(own))
        or master is None
        or _addresses.is_loopback(master)
    ):
        return None
    return _addresses.towards(master)


def _where(address: str | None) -> str:
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return f"interface {os.environ['GLOO_SOCKET_IFNAME']} (GLOO_SOCKET_IFNAME)"
    tried = address or _addresses.resolve(socket.gethostname()) or "127.0.0.1"
    interface = next((name for name, a in _addresses.of_interfaces() if a == tried), "unknown")
    return f"address {tried}, interface {interface}"


def connect(store: Store, rank: int, size: int, timeout: timedelta) -> ProcessGroupGloo:
    """Connect all ranks of a group.

    Args:
        store: where ranks find each other; its keys are this connection's own.
        timeout: for connecting.

    Raises:
        RuntimeError: names the address and the interface that were tried.
    """
    address = choose_address()
    try:
        if address is None:
            return ProcessGroupGloo(store, rank, size, timeout=timeout)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._timeout = timeout
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        return ProcessGroupGloo(store, rank, size, options)
    except RuntimeError as error:
        raise RuntimeError(
            f"hvd: rank {rank} of {size} could not connect to the others over Gloo on "
            f"{_where(address)}; GLOO_SOCKET_IFNAME chooses another interface. {error}"
        ) from error

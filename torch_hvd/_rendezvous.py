"""How ranks that mpirun or srun started find each other: env:// filled in, and mpi://."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, MutableMapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torch_hvd import _addresses
from torch_hvd.launchers import Launch, find, launcher_process

_OF_THE_JOB = ("RANK", "WORLD_SIZE")
_SET_MASTER = {
    "Open MPI": "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500",
    "Hydra": "mpirun -genv MASTER_ADDR HOST -genv MASTER_PORT 29500",
    "Slurm": "export MASTER_ADDR=HOST MASTER_PORT=29500 before srun",
}

filled: set[str] = set()  # the variables that `fill` has set in this process


def fill(environ: MutableMapping[str, str]) -> None:
    """Set what env:// reads, where a launcher has set ranks and nobody RANK or WORLD_SIZE.

    What is set stays. MASTER_ADDR stays unset where it cannot be known. Never raises: it runs for
    everyone who imports torch.
    """
    if environ.get("HVD_LAUNCHER") == "none" or any(name in environ for name in _OF_THE_JOB):
        return
    try:
        launch = find(environ, launcher_process)
        found = {} if launch is None else variables(launch)
    except (OSError, ValueError):
        return  # mpi:// tells why
    for name in found.keys() - environ.keys():
        environ[name] = found[name]
        filled.add(name)


def check(environ: Mapping[str, str]) -> None:
    """Raise ValueError if HVD_LAUNCHER is what `fill` takes no notice of."""
    value = environ.get("HVD_LAUNCHER", "")
    if value not in ("", "none"):
        raise ValueError(f"HVD_LAUNCHER is {value!r}; allowed is none")


def variables(launch: Launch) -> dict[str, str]:
    """What torchrun would set, as far as it is known."""
    values = {
        "RANK": launch.rank,
        "WORLD_SIZE": launch.size,
        "LOCAL_RANK": launch.local_rank,
        "LOCAL_WORLD_SIZE": launch.local_size,
        "MASTER_ADDR": master_address(launch),
        "MASTER_PORT": launch.port,
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def master_address(launch: Launch) -> str | None:
    """An address of the host of rank 0 that others can reach, None where it is not known.

    mpirun tells where it runs itself, not where rank 0 does. Mostly that is the same host; rank 0
    sees if it is not, and as it then fails the launcher ends the others.
    """
    if launch.size == launch.local_size:
        return "127.0.0.1"
    if launch.master_is_here:
        return _addresses.own()
    resolved = [found for name in launch.master if (found := _addresses.resolve(name))]
    if not resolved:
        return launch.master[0] if launch.master and launch.rank else None
    address = _addresses.for_others(resolved)
    if address and launch.rank == 0 and not _addresses.is_own(address):
        return None
    return address


def mpi(url: str, timeout: timedelta, **_: Any) -> Iterator[tuple[Any, int, int]]:
    """The handler of init_method="mpi://": ranks are the launcher's, whatever RANK says.

    MASTER_ADDR and MASTER_PORT win where they are set.

    Raises:
        ValueError: no launcher has started this process, it does not tell where rank 0 is, or
            init_process_group was given another rank or world size.
    """
    from torch.distributed import TCPStore

    launch = find(os.environ, launcher_process)
    if launch is None:
        raise ValueError(
            "mpi:// finds no launcher: start the program with mpirun, srun or hvdrun --mpi; under "
            "torchrun leave init_method out"
        )
    for name, value in parse_qsl(urlsplit(url).query):
        ours = {"rank": launch.rank, "world_size": launch.size}.get(name)
        if ours is not None and int(value) != ours:
            raise ValueError(f"mpi://: {name} is {value}, but {launch.launcher} says {ours}")
    host, port = _master(launch, os.environ)
    store = TCPStore(host, port, launch.size, launch.rank == 0, timeout, multi_tenant=True)
    yield store, launch.rank, launch.size


def _master(launch: Launch, environ: Mapping[str, str]) -> tuple[str, int]:
    host = environ.get("MASTER_ADDR") or master_address(launch)
    port = environ.get("MASTER_PORT") or launch.port
    if not host or not port:
        raise ValueError(
            f"{launch.launcher} does not tell where rank 0 is; say it: "
            f"{_SET_MASTER[launch.launcher]}"
        )
    return host, int(port)

"""Which hosts a job runs on, and how many ranks each takes: -H and --hostfile."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from torch_hvd import _addresses


class Host(NamedTuple):
    name: str
    slots: int


def from_list(text: str) -> tuple[Host, ...]:
    """The hosts of "a:2,b:4"; without a number, one rank.

    Raises:
        ValueError: names the part that is none.
    """
    return tuple(_host(part, part) for part in text.split(","))


def from_file(path: str) -> tuple[Host, ...]:
    """The hosts of a file with lines as "a slots=2"; also "a:2", and comments from # on.

    Raises:
        ValueError: names the line that is none, or there is no host, or it is no text.
        OSError: the file cannot be read.
    """
    try:
        text = Path(path).read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from None
    hosts = tuple(_lines(text.splitlines()))
    if not hosts:
        raise ValueError(f"{path} names no host")
    return hosts


def _lines(lines: Iterable[str]) -> Iterator[Host]:
    for line in lines:
        if text := line.partition("#")[0].strip():
            yield _host(re.sub(r"\s+slots\s*=\s*|\s*:\s*", ":", text), text)


def _host(text: str, shown: str) -> Host:
    name, found, slots = text.partition(":")
    if not re.fullmatch(r"[\w.-]+", name) or (found and not re.fullmatch(r"[1-9]\d*", slots)):
        raise ValueError(f"{shown!r} is no host with its slots; they are as in host1:2")
    return Host(name, int(slots or 1))


def is_here(host: Host) -> bool:
    """Whether it is this host, by its name or an address."""
    if host.name in ("localhost", socket.gethostname()):
        return True
    address = _addresses.resolve(host.name)
    return address is not None and _addresses.is_own(address)

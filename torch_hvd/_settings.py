"""The settings of a process group: where their values come from, and what is allowed.

A value in `torch_hvd.Options` wins, then `HVD_*`, then `HOROVOD_*` where Horovod has the switch. A
variable that is empty counts as one that is not set.
"""

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch_hvd import _log, _rendezvous
from torch_hvd._store import Meeting

Value = str | int | float | bool | None

TRANSPORTS = ("auto", "gloo", "mpi", "nccl", "shm", "tcp", "shm+gloo", "shm+mpi", "shm+tcp")
COMPRESSIONS = ("none", "fp16", "bf16", "fp8", "fp8_e5m2", "int8", "int4")


def _transport(text: str) -> str:
    if text not in TRANSPORTS:
        raise ValueError
    return text


def _written_plainly(text: str) -> str:
    """Python's own numbers may also hold 1_000 and blanks."""
    if re.search(r"[_\s]", text):
        raise ValueError
    return text


def _bytes(text: str) -> int:
    value = int(_written_plainly(text))
    if not 0 <= value < 1 << 63:
        raise ValueError
    return value


def _compression(text: str) -> str:
    if text not in COMPRESSIONS:
        raise ValueError
    return text


def check_compression(name: str, allowed: tuple[str, ...] = COMPRESSIONS) -> None:
    """Raise ValueError unless `name` is one of those allowed."""
    if name not in allowed:
        raise ValueError(f"compression is {name!r}; allowed is {' or '.join(allowed)}")


def _block(text: str) -> int | None:
    if text == "auto":
        return None
    value = int(_written_plainly(text))
    if value not in (32, 64, 128, 256, 512, 1024):
        raise ValueError
    return value


def _seconds(text: str) -> float:
    value = float(_written_plainly(text))
    if value != 0 and not 1e-3 <= value < 1e9:
        raise ValueError
    return value


def _switch(text: str) -> bool:
    return {"0": False, "False": False, "1": True, "True": True}[text]


def _switch_or_auto(text: str) -> bool | None:
    return None if text == "auto" else _switch(text)


@dataclass(frozen=True)
class _Setting:
    parse: Callable[[str], Value]
    allowed: str
    default: str
    variables: tuple[str, ...]
    same_everywhere: bool = True


_SETTINGS = {
    "transport": _Setting(_transport, " or ".join(TRANSPORTS), "auto", ("HVD_TRANSPORT",)),
    "fusion_threshold": _Setting(
        _bytes,
        "a number of bytes, 0 to turn fusion off",
        str(64 << 20),
        ("HVD_FUSION_THRESHOLD", "HOROVOD_FUSION_THRESHOLD"),
    ),
    "fusion_cutoff": _Setting(_bytes, "a number of bytes", str(64 << 10), ("HVD_FUSION_CUTOFF",)),
    "check": _Setting(_switch, "0 or 1", "0", ("HVD_CHECK",)),
    "compression": _Setting(_compression, " or ".join(COMPRESSIONS), "none", ("HVD_COMPRESSION",)),
    # What is no longer travels in one message, and with others: two stages would take longer.
    "compression_min_bytes": _Setting(
        _bytes, "a number of bytes", str((64 << 10) + 1), ("HVD_COMPRESSION_MIN_BYTES",)
    ),
    "block": _Setting(
        _block,
        "auto, 32, 64, 128, 256, 512 or 1024",
        "auto",
        ("HVD_COMPRESSION_BLOCK",),
    ),
    "error_feedback": _Setting(_switch_or_auto, "auto, 0 or 1", "auto", ("HVD_ERROR_FEEDBACK",)),
    "stall_check_time": _Setting(
        _seconds,
        "a number of seconds from 0.001 on, 0 to turn the report off",
        "60",
        ("HVD_STALL_CHECK_TIME", "HOROVOD_STALL_CHECK_TIME_SECONDS"),
        same_everywhere=False,
    ),
    "stall_shutdown_time": _Setting(
        _seconds,
        "a number of seconds from 0.001 on, 0 for never",
        "0",
        ("HVD_STALL_SHUTDOWN_TIME", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"),
        same_everywhere=False,
    ),
}


def first_set(names: Iterable[str], environ: Mapping[str, str]) -> str | None:
    """The first of these variables that is set; one that is empty is not."""
    return next((name for name in names if environ.get(name)), None)


@dataclass(frozen=True)
class Origin:
    """Where the value of a setting comes from, as text, and the value."""

    source: str  # the option, the variable, or "default"
    text: str

    def __str__(self) -> str:
        return f"{self.source}={self.text}"


def origin(name: str, options: Any, environ: Mapping[str, str]) -> Origin:
    """What decides on the setting of that name in `torch_hvd.Options`."""
    setting = _SETTINGS[name]
    value = getattr(options, name)
    if value is not None:
        return Origin(f"Options.{name}", str(value))
    if variable := first_set(setting.variables, environ):
        return Origin(variable, environ[variable])
    return Origin("default", setting.default)


def resolve(options: Any, environ: Mapping[str, str]) -> dict[str, Value]:
    """The value of every setting, by its name in `torch_hvd.Options`.

    Raises:
        ValueError: names the option or the variable, its value and what is allowed.
    """
    return {name: _parsed(name, origin(name, options, environ)) for name in _SETTINGS}


def _parsed(name: str, origin: Origin) -> Value:
    setting = _SETTINGS[name]
    try:
        return setting.parse(origin.text)
    except (ValueError, KeyError):
        raise ValueError(
            f"{origin.source} is {origin.text!r}; allowed is {setting.allowed}"
        ) from None


def table(options: Any, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each setting by its variable, with its value and where that comes from, for people."""
    for name, setting in _SETTINGS.items():
        found = origin(name, options, environ)
        variable = setting.variables[0]
        source = "environment" if found.source == variable else found.source
        try:
            _parsed(name, found)
            yield variable, f"{found.text} ({source})"
        except ValueError as error:
            yield variable, str(error)


def may_attach(environ: Mapping[str, str]) -> bool:
    """Whether ranks may read each other's memory, by `HVD_CMA`.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    text = environ.get("HVD_CMA") or "1"
    if text not in ("0", "1"):
        raise ValueError(f"HVD_CMA is {text!r}; allowed is 0 or 1")
    return text == "1"


# The edges of Horovod's fusion studies: 1 KB, 1 MB, then tens of MB.
_EDGES_MB = (1e-3, 1, *range(10, 410, 10))


def stats_edges(environ: Mapping[str, str]) -> list[float]:
    """Upper ends, in bytes, of the rows of the response statistics, from `HVD_STATS_EDGES` in MB.

    Raises:
        ValueError: the variable is not a rising list of positive, finite numbers.
    """
    text = environ.get("HVD_STATS_EDGES")
    if not text:
        return [1e6 * edge for edge in _EDGES_MB]
    try:
        edges = [1e6 * float(_written_plainly(part)) for part in text.split(",")]
    except ValueError:
        edges = []
    if (
        not edges
        or edges[0] <= 0
        or edges != sorted(set(edges))
        or not all(map(math.isfinite, edges))
    ):
        raise ValueError(
            f"HVD_STATS_EDGES is {text!r}; allowed are rising numbers of MB, as in 0.001,1,10,100"
        )
    return edges


def _any(environ: Mapping[str, str]) -> None:
    """Of a variable whose value shows to be wrong only where it is used."""


# What no option stands for, each with what raises ValueError unless its value is allowed.
_OTHERS: Mapping[tuple[str, ...], Callable[[Mapping[str, str]], object]] = {
    ("GLOO_SOCKET_IFNAME",): _any,
    ("HVD_CMA",): may_attach,
    ("HVD_HOST_ID",): _any,
    ("HVD_LAUNCHER",): _rendezvous.check,
    ("HVD_LIBMPI",): _any,
    ("HVD_LOG",): _log.level,
    ("HVD_STATS",): _any,
    ("HVD_STATS_EDGES",): stats_edges,
    ("HVD_TIMELINE", "HOROVOD_TIMELINE"): _any,
}


def check_others(environ: Mapping[str, str]) -> None:
    """Raise ValueError, as `resolve` does, if another variable has a value that is not allowed."""
    for check in _OTHERS.values():
        check(environ)


def other_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The other variables and their values, as `table` has them."""
    for names, check in _OTHERS.items():
        found = first_set(names, environ)
        try:
            check(environ)
        except ValueError as error:
            yield names[0], str(error)
        else:
            source = "environment" if found == names[0] else found
            yield names[0], f"{environ[found]} ({source})" if found else "not set"


_BUILDING = ("HVD_BUILD_CUDA",)  # read by setup.py, and may be set where programs run
# Horovod's switches that do nothing here, and whose users may rely on them; see docs/horovod.md.
_HOROVODS = {
    "HOROVOD_AUTOTUNE": "not read: there is nothing to tune",
    "HOROVOD_CACHE_CAPACITY": "not read: there is no cache of responses",
    "HOROVOD_CPU_OPERATIONS": "not read; HVD_TRANSPORT is",
    "HOROVOD_CYCLE_TIME": "not read: there is no cycle",
    "HOROVOD_GLOO_IFACE": "not read; GLOO_SOCKET_IFNAME is",
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "not read: several hosts are always summed host by host",
    "HOROVOD_LOG_LEVEL": "not read; HVD_LOG is",
    "HOROVOD_STALL_CHECK_DISABLE": "not read; HVD_STALL_CHECK_TIME=0 is",
}


def unknown_variables(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each variable that is set and that nothing reads, and what to say of it.

    They are those of Horovod's, and any HVD_, as if misspelt.
    """
    everything = {*_BUILDING}.union(*_OTHERS, *(each.variables for each in _SETTINGS.values()))
    known = {name for name in everything if name.startswith("HVD_")}
    for name in sorted(environ):
        if name.startswith("HVD_") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            yield name, f"no setting of hvd{f'; {near[0]} is' if near else ''}"
        elif name in _HOROVODS and environ[name]:
            yield name, _HOROVODS[name]


_LONGEST = timedelta(days=36500)  # a third of what 64 bits of nanoseconds hold


def check_timeout(timeout: timedelta) -> None:
    """Raise ValueError if a group cannot have this timeout; `timedelta.max` comes as a negative."""
    if not timedelta(0) < timeout <= _LONGEST:
        raise ValueError(
            f"the timeout of the group is {timeout.total_seconds():g} s; allowed is more than 0, "
            f"up to {_LONGEST.days} days"
        )


def refuse(error: ValueError, meeting: Meeting) -> None:
    """Have `agree` raise on the other ranks: this one has a value that is not allowed."""
    meeting.say("settings", str(error))


def agree(settings: Mapping[str, Value], meeting: Meeting) -> None:
    """Compare with the other ranks of the group, once all are here.

    Raises:
        ValueError: a setting differs or was refused, on every rank; says which, and its values.
    """
    everyones = meeting.exchange("settings", settings)
    for peer, theirs in enumerate(everyones):
        if isinstance(theirs, str):
            raise ValueError(f"on rank {peer}: {theirs}")
    for name in settings:
        for peer, theirs in enumerate(everyones):
            if _SETTINGS[name].same_everywhere and theirs[name] != everyones[0][name]:
                raise ValueError(
                    f"{' or '.join(_SETTINGS[name].variables)} or Options.{name} is "
                    f"{everyones[0][name]!r} on rank 0 but {theirs[name]!r} on rank {peer}; "
                    "all ranks must have the same"
                )

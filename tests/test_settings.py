"""Settings: where their values come from, and what is said of values that are not allowed."""

from __future__ import annotations

import copy
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import torch_hvd
from calls import check_group, cpu_backend, environment
from ranks import RankPool, bare_store
from torch_hvd import _log, _mpi, _rendezvous, _settings, _shm

DEFAULTS = {
    "transport": "auto",
    "fusion_threshold": 64 << 20,
    "fusion_cutoff": 64 << 10,
    "check": False,
    "compression": "none",
    "compression_min_bytes": (64 << 10) + 1,
    "block": None,
    "error_feedback": None,
    "stall_check_time": 60.0,
    "stall_shutdown_time": 0.0,
}
BYTES = "allowed is a number of bytes"
SECONDS = "allowed is a number of seconds from 0.001 on"
TRANSPORTS = (
    "allowed is auto or gloo or mpi or nccl or shm or tcp or shm+gloo or shm+mpi or shm+tcp"
)
# source, value, what the error says is allowed
BAD_VARIABLES = [
    (
        "HVD_TRANSPORT",
        "carrier-pigeon",
        TRANSPORTS,
    ),
    (
        "HVD_TRANSPORT",
        "Gloo",
        TRANSPORTS,
    ),
    ("HVD_FUSION_THRESHOLD", "much", BYTES),
    ("HVD_FUSION_THRESHOLD", "-1", BYTES),
    ("HVD_FUSION_THRESHOLD", "64MB", BYTES),
    ("HVD_FUSION_THRESHOLD", "1e6", BYTES),
    ("HVD_FUSION_THRESHOLD", str(1 << 63), BYTES),
    ("HVD_FUSION_THRESHOLD", "1_000", BYTES),
    ("HVD_FUSION_THRESHOLD", " 1000", BYTES),
    ("HOROVOD_FUSION_THRESHOLD", "-5", BYTES),
    ("HVD_FUSION_CUTOFF", "none", BYTES),
    ("HVD_FUSION_CUTOFF", "-1", BYTES),
    ("HVD_FUSION_CUTOFF", str(1 << 64), BYTES),
    ("HVD_CHECK", "2", "allowed is 0 or 1"),
    ("HVD_CHECK", "yes", "allowed is 0 or 1"),
    ("HVD_COMPRESSION", "zip", "allowed is none or fp16 or bf16 or fp8 or fp8_e5m2 or int8"),
    ("HVD_COMPRESSION", "FP16", "allowed is none or fp16"),
    ("HVD_COMPRESSION_MIN_BYTES", "-1", BYTES),
    ("HVD_COMPRESSION_BLOCK", "16", "allowed is auto, 32, 64"),
    ("HVD_COMPRESSION_BLOCK", "100", "allowed is auto, 32, 64"),
    ("HVD_COMPRESSION_BLOCK", "2048", "allowed is auto, 32, 64"),
    ("HVD_COMPRESSION_BLOCK", "x", "allowed is auto, 32, 64"),
    ("HVD_COMPRESSION_BLOCK", "1_28", "allowed is auto, 32, 64"),
    ("HVD_ERROR_FEEDBACK", "on", "allowed is auto, 0 or 1"),
    ("HVD_STALL_CHECK_TIME", "soon", SECONDS),
    ("HVD_STALL_CHECK_TIME", "nan", SECONDS),
    ("HVD_STALL_CHECK_TIME", "6_0", SECONDS),
    ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1", SECONDS),
    ("HVD_STALL_SHUTDOWN_TIME", "inf", SECONDS),
    ("HVD_STALL_SHUTDOWN_TIME", "1e-9", SECONDS),
    ("HVD_STALL_SHUTDOWN_TIME", "9e-4", SECONDS),
]
BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("transport", "NCCL", TRANSPORTS),
    ("fusion_threshold", -1, BYTES),
    ("fusion_cutoff", -65536, BYTES),
    ("compression", "int16", "allowed is none or fp16"),
    ("compression_min_bytes", -1, BYTES),
    ("block", 0, "allowed is auto, 32, 64"),
    ("stall_check_time", -1.0, SECONDS),
    ("stall_shutdown_time", float("nan"), SECONDS),
]


def resolved(environ: Mapping[str, str], **options: Any) -> dict[str, Any]:
    return _settings.resolve(torch_hvd.Options(**options), environ)


def test_defaults() -> None:
    assert resolved({}) == DEFAULTS


def test_empty_variables_are_not_set() -> None:
    """As a job's script sets them by `HVD_COMPRESSION=$CODEC` where CODEC is not set."""
    empty = dict.fromkeys([name for name, _ in _settings.table(torch_hvd.Options(), {})], "")
    others = dict.fromkeys([name for name, _ in _settings.other_variables({})], "")
    assert len(empty) == len(DEFAULTS)
    assert resolved(empty) == DEFAULTS
    assert resolved({"HVD_FUSION_THRESHOLD": "", "HOROVOD_FUSION_THRESHOLD": "5"}) == {
        **DEFAULTS,
        "fusion_threshold": 5,
    }
    assert {value for _, value in _settings.other_variables(others)} == {"not set"}
    assert _settings.stats_edges(others) == _settings.stats_edges({})
    assert _log.level(others) is None
    assert _settings.may_attach(others)
    assert _shm.host_id(others) == _shm.host_id({})
    assert _mpi.candidates(others) == _mpi.candidates({})


@pytest.mark.parametrize(("variable", "value", "allowed"), BAD_VARIABLES)
def test_bad_variable(variable: str, value: str, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolved({variable: value})
    assert f"{variable} is {value!r}" in str(caught.value)
    assert allowed in str(caught.value)


def test_edges() -> None:
    """In bytes; without the variable 1 KB, 1 MB, and each 10 MB to 400."""
    found = _settings.stats_edges({})
    assert len(found) == 42
    assert found[:4] == [1e3, 1e6, 1e7, 2e7] and found[-1] == 4e8
    assert _settings.stats_edges({"HVD_STATS_EDGES": "0.5,3"}) == [5e5, 3e6]


@pytest.mark.parametrize("text", ["nan", "1,nan", "1,inf", "2,1", "1,1", "0,1", "-1", "1;2"])
def test_bad_edges(text: str) -> None:
    with pytest.raises(ValueError) as caught:
        _settings.stats_edges({"HVD_STATS_EDGES": text})
    assert f"HVD_STATS_EDGES is {text!r}; allowed are rising numbers of MB" in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "told"),
    [
        ("HVD_FUSION_THRESHHOLD", "; HVD_FUSION_THRESHOLD is"),
        ("HVD_COMPRESION", "; HVD_COMPRESSION is"),
        ("HVD_TIME_LINE", "; HVD_TIMELINE is"),
        ("HVD_XYZZYQUUX", ""),
    ],
)
def test_name_that_is_no_setting(variable: str, told: str) -> None:
    unknown = list(_settings.unknown_variables({variable: "1", "HVD_CHECK": "1", "HVD": "1"}))
    assert unknown == [(variable, f"no setting of hvd{told}")]


def test_switches_of_horovods_that_are_not_read() -> None:
    """Each that docs/horovod.md tells of is read, or said not to be, unless it is empty."""
    text = (Path(__file__).parent.parent / "docs" / "horovod.md").read_text()
    found = set(re.findall(r"\bHOROVOD_[A-Z_]+", text))
    read = {name for setting in _settings._SETTINGS.values() for name in setting.variables}
    unread = found - read.union(*_settings._OTHERS)
    assert len(unread) == 8 and len(found) == 12
    told = dict(_settings.unknown_variables(dict.fromkeys(found, "1")))
    assert told.keys() == unread
    assert told["HOROVOD_STALL_CHECK_DISABLE"] == "not read; HVD_STALL_CHECK_TIME=0 is"
    assert told["HOROVOD_CYCLE_TIME"] == "not read: there is no cycle"
    assert list(_settings.unknown_variables(dict.fromkeys(found, ""))) == []


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HVD_CMA", "yes"),
        ("HVD_LAUNCHER", "foo"),
        ("HVD_LOG", "INFO"),
        ("HVD_STATS_EDGES", "3,1"),
    ],
)
def test_bad_value_of_another_variable(variable: str, value: str) -> None:
    """Is told wherever it is shown, and before anything starts."""
    environ = {variable: value}
    with pytest.raises(ValueError, match=f"{variable} is '{value}'; allowed ") as caught:
        _settings.check_others(environ)
    assert dict(_settings.other_variables(environ))[variable] == str(caught.value)


def test_names_that_are_known() -> None:
    """Every variable that anything here reads, sets or tells of, but for tests of other names."""
    root = Path(__file__).parent.parent
    files = [root / "README.md", root / "Makefile", root / ".ci" / "run", root / "setup.py"]
    for folder in ("benchmarks", "build_backend", "docs", "examples", "rig", "tests", "torch_hvd"):
        files += [*(root / folder).rglob("*.py"), *(root / folder).rglob("*.md")]
    others = ("test_settings.py", "test_log.py")
    texts = [file.read_text() for file in files if file.name not in others]
    found = {name for text in texts for name in re.findall(r"\bHVD_[A-Z_]+", text)}
    assert len(found) > 15
    assert list(_settings.unknown_variables(dict.fromkeys(found, "1"))) == []


def test_bad_launcher() -> None:
    for value in ("off", "slurm"):
        with pytest.raises(ValueError, match=f"HVD_LAUNCHER is '{value}'; allowed is none"):
            _rendezvous.check({"HVD_LAUNCHER": value})
    for environ in ({}, {"HVD_LAUNCHER": ""}, {"HVD_LAUNCHER": "none"}):
        _rendezvous.check(environ)


@pytest.mark.parametrize(("option", "value", "allowed"), BAD_OPTIONS)
def test_bad_option(option: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError) as caught:
        resolved({}, **{option: value})
    assert f"Options.{option} is {str(value)!r}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize(
    "option",
    [{"fusion_threshold": "1"}, {"check": "0"}, {"check": 2}, {"transport": 1}, {"fusion": 1}],
    ids=str,
)
def test_option_of_another_type(option: dict[str, Any]) -> None:
    """Python's own error, at the call that is wrong."""
    with pytest.raises(TypeError):
        torch_hvd.Options(**option)


@pytest.mark.parametrize(
    ("environ", "options", "name", "expected"),
    [
        ({"HOROVOD_FUSION_THRESHOLD": "7"}, {}, "fusion_threshold", 7),
        ({"HVD_FUSION_THRESHOLD": "0"}, {}, "fusion_threshold", 0),
        (
            {"HOROVOD_FUSION_THRESHOLD": "7", "HVD_FUSION_THRESHOLD": "8"},
            {},
            "fusion_threshold",
            8,
        ),
        ({"HVD_FUSION_THRESHOLD": "8"}, {"fusion_threshold": 0}, "fusion_threshold", 0),
        (
            {"HOROVOD_FUSION_THRESHOLD": "x", "HVD_FUSION_THRESHOLD": "8"},
            {},
            "fusion_threshold",
            8,
        ),
        ({"HVD_FUSION_THRESHOLD": "x"}, {"fusion_threshold": 9}, "fusion_threshold", 9),
        ({"HVD_FUSION_CUTOFF": "100"}, {}, "fusion_cutoff", 100),
        ({"HVD_FUSION_CUTOFF": "100"}, {"fusion_cutoff": 200}, "fusion_cutoff", 200),
        ({"HVD_COMPRESSION": "int8"}, {}, "compression", "int8"),
        ({"HVD_COMPRESSION": "int8"}, {"compression": "none"}, "compression", "none"),
        ({"HVD_COMPRESSION_BLOCK": "32"}, {}, "block", 32),
        ({"HVD_COMPRESSION_BLOCK": "64"}, {}, "block", 64),
        ({"HVD_COMPRESSION_BLOCK": "1024"}, {}, "block", 1024),
        ({"HVD_COMPRESSION_BLOCK": "64"}, {"block": 512}, "block", 512),
        ({"HVD_COMPRESSION_BLOCK": "auto"}, {}, "block", None),
        ({"HVD_ERROR_FEEDBACK": "1"}, {}, "error_feedback", True),
        ({"HVD_ERROR_FEEDBACK": "1"}, {"error_feedback": False}, "error_feedback", False),
        ({"HVD_CHECK": "1"}, {}, "check", True),
        ({"HVD_CHECK": "1"}, {"check": False}, "check", False),
        ({"HVD_CHECK": "0"}, {"check": True}, "check", True),
        ({"HOROVOD_STALL_CHECK_TIME_SECONDS": "5"}, {}, "stall_check_time", 5.0),
        ({"HVD_STALL_SHUTDOWN_TIME": "0.001"}, {}, "stall_shutdown_time", 0.001),
        ({"HVD_STALL_CHECK_TIME": "5"}, {"stall_check_time": 0.5}, "stall_check_time", 0.5),
        ({"HVD_TRANSPORT": "shm"}, {}, "transport", "shm"),
        ({"HVD_TRANSPORT": "nonsense"}, {"transport": "gloo"}, "transport", "gloo"),
        ({"HVD_TRANSPORT": "gloo"}, {"transport": "auto"}, "transport", "auto"),
    ],
)
def test_precedence(
    environ: dict[str, str], options: dict[str, Any], name: str, expected: Any
) -> None:
    """Options win over HVD_, which wins over HOROVOD_; what is not used is not looked at."""
    assert resolved(environ, **options) == DEFAULTS | {name: expected}


def test_an_option_that_there_is_not() -> None:
    """It would do nothing, and nobody would notice."""
    options = torch_hvd.Options()
    with pytest.raises(AttributeError, match="no attribute 'compresion'"):
        options.compresion = "int8"  # type: ignore[attr-defined]


def test_options_are_copied() -> None:
    options = torch_hvd.Options(fusion_threshold=5, check=True)
    for other in (copy.copy(options), copy.deepcopy(options)):
        other.fusion_threshold = 6
        assert (options.fusion_threshold, other.fusion_threshold) == (5, 6)
        assert other.check is True


def test_options_are_described() -> None:
    """By the call that makes such options."""
    assert repr(torch_hvd.Options()) == "torch_hvd.Options()"
    assert repr(torch_hvd.Options(check=False, compression="int8")) == (
        "torch_hvd.Options(check=False, compression='int8')"
    )
    said = repr(torch_hvd.Options(timeout=timedelta(seconds=5), stall_check_time=0.5))
    assert said == (
        "torch_hvd.Options(timeout=datetime.timedelta(seconds=5), stall_check_time=0.5)"
    )


def test_options_are_pickled() -> None:
    """With every setting, in a process that has not imported torch_hvd before."""
    set_to: dict[str, Any] = {**DEFAULTS, "transport": "shm", "block": 64, "error_feedback": True}
    options = torch_hvd.Options(timeout=timedelta(seconds=7), **set_to)
    code = "import pickle, sys; print(repr(pickle.loads(sys.stdin.buffer.read())))"
    found = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(options), capture_output=True, timeout=60
    )
    assert found.returncode == 0, found.stderr.decode()
    assert found.stdout.decode().strip() == repr(options)
    assert all(f"{name}={value!r}" in repr(options) for name, value in set_to.items())


def init(size: int, prefix: str, options: Any = None) -> None:
    store = dist.PrefixStore(prefix, bare_store())
    rank = int(os.environ["RANK"])
    dist.init_process_group("hvd", store=store, rank=rank, world_size=size, pg_options=options)


def leave() -> None:
    dist.destroy_process_group()


def init_with_bad_values(size: int) -> None:
    """Each is refused; the right ones that follow are not."""
    for place, (variable, value, allowed) in enumerate(BAD_VARIABLES):
        with environment({variable: value}), pytest.raises(ValueError) as caught:
            init(size, f"variable {place}")
        assert f"{variable} is {value!r}" in str(caught.value)
        assert allowed in str(caught.value)
    for place, (option, value, allowed) in enumerate(BAD_OPTIONS):
        with pytest.raises(ValueError) as caught:
            init(size, f"option {place}", torch_hvd.Options(**{option: value}))
        assert f"Options.{option} is {str(value)!r}" in str(caught.value)
        assert allowed in str(caught.value)
    init(size, "after all")
    check_group()
    leave()


def group_with_bad_timeouts() -> None:
    # The last is more than c10d can hold, which makes a negative number of it.
    for timeout in (timedelta(0), timedelta(seconds=-2), timedelta(days=36501), timedelta.max):
        with pytest.raises(ValueError) as caught:
            dist.new_group(timeout=timeout)
        shown = "-" if timeout == timedelta.max else f"{timeout.total_seconds():g} s; "
        assert f"the timeout of the group is {shown}" in str(caught.value)
        assert "allowed is more than 0, up to 36500 days" in str(caught.value)
    check_group(dist.new_group(timeout=timedelta(days=36500)))


def in_force(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    options = cpu_backend(group).options
    return {name: getattr(options, name) for name in DEFAULTS}


def init_with_values(size: int) -> None:
    init(size, "defaults")
    assert in_force() == DEFAULTS
    assert cpu_backend().transport == ("shm" if size > 1 else "none")
    leave()

    variables = {
        "HVD_TRANSPORT": "auto",
        "HOROVOD_FUSION_THRESHOLD": "1000",
        "HVD_FUSION_CUTOFF": "100",
        "HVD_CHECK": "1",
    }
    ours = DEFAULTS | {"fusion_threshold": 1000, "fusion_cutoff": 100, "check": True}
    options = torch_hvd.Options(fusion_threshold=0, check=False)
    with environment(variables):
        init(size, "variables")
        assert in_force() == ours
        other = dist.new_group(pg_options=options)
        assert in_force(other) == ours | {"fusion_threshold": 0, "check": False}
        assert in_force() == ours
        for group in (None, other):
            check_group(group)
        leave()
    assert (options.fusion_cutoff, options.transport) == (None, None), "the caller's was changed"

    init(size, "options", options)
    assert in_force() == DEFAULTS | {"fusion_threshold": 0, "check": False}
    # Options are of one group; the next is made with the environment's.
    assert in_force(dist.new_group()) == DEFAULTS
    check_group()
    leave()


def init_with_values_that_differ(size: int) -> None:
    """Every rank is told, not only those that come later."""
    rank = int(os.environ["RANK"])
    cases: list[tuple[str, Any, Any]] = [
        ("fusion_threshold", 0, 100),
        ("fusion_cutoff", 1, 2),
        ("check", False, True),
        ("compression", "fp8", "int8"),
    ]
    init(size, "differ")
    last = size - 1
    with environment({"HVD_FUSION_CUTOFF": "few"} if rank == last else {}):
        with pytest.raises(ValueError, match=r"HVD_FUSION_CUTOFF is 'few'; allowed is") as caught:
            dist.new_group()
        assert (f"on rank {last}: " in str(caught.value)) == (rank != last)
    for name, value, of_last in cases:
        options = torch_hvd.Options(**{name: of_last if rank == last else value})
        with pytest.raises(ValueError) as caught:
            dist.new_group(pg_options=options)
        text = str(caught.value)
        assert f"HVD_{name.upper()}" in text, text
        said = f"Options.{name} is {value!r} on rank 0 but {of_last!r} on rank {last}; all ranks"
        assert said in text, text
        check_group()
        check_group(dist.new_group())
    # How long a rank is patient is its own affair.
    patience = torch_hvd.Options(stall_check_time=50.0 + rank, stall_shutdown_time=60.0 + rank)
    check_group(dist.new_group(pg_options=patience))
    leave()


@pytest.mark.parametrize("size", [1, 2, 3])
def test_values_in_force(size: int) -> None:
    with RankPool(size, backend="") as pool:
        pool.run(init_with_values, size)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_bad_values_at_init(size: int) -> None:
    with RankPool(size, backend="") as pool:
        pool.run(init_with_bad_values, size)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_bad_timeouts(transport: str) -> None:
    with RankPool(2, env={"HVD_TRANSPORT": transport}) as pool:
        pool.run(group_with_bad_timeouts)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_differ(size: int) -> None:
    with RankPool(size, backend="") as pool:
        pool.run(init_with_values_that_differ, size)

"""What hvd says of its choices: a line at init with HVD_LOG=info, and `python -m torch_hvd`."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launch import launch
from libmpi import MPICH_ABI, needs_mpich
from torch_hvd import _log, _settings, _shm, _transport
from torch_hvd._load import _C

AUTO = _settings.Origin("default", "auto")
NO_CODEC = _settings.Origin("default", "none")
ATTACH = "cross-memory attach"


@pytest.mark.parametrize(
    ("wanted", "near", "far", "hosts", "details", "regret", "expected"),
    [
        (AUTO, "", "", [0], (), "", "1 rank: needs no transport"),
        (AUTO, "shm", "", [0, 0], (ATTACH,), "", f"2 ranks on 1 host: shm ({ATTACH})"),
        (AUTO, "", "tcp", [0, 1, 0], (), "", "3 ranks on 2 hosts: tcp"),
        (
            AUTO,
            *("shm", "mpi", [0, 1, 0], (ATTACH, "MPICH 5.0.2"), ""),
            f"3 ranks on 2 hosts: shm+mpi ({ATTACH}, MPICH 5.0.2)",
        ),
        (
            AUTO,
            *("shm", "tcp", [0, 1, 0], (ATTACH,), "no MPI: rank 1: no libmpi"),
            f"3 ranks on 2 hosts: shm+tcp ({ATTACH}); no MPI: rank 1: no libmpi",
        ),
        (
            _settings.Origin("HVD_TRANSPORT", "mpi"),
            *("", "mpi", [0, 1], ("MPICH 5.0.2",), ""),
            "2 ranks on 2 hosts: mpi (MPICH 5.0.2), by HVD_TRANSPORT=mpi",
        ),
    ],
)
def test_description(
    wanted: _settings.Origin,
    near: str,
    far: str,
    hosts: list[int],
    details: tuple[str, ...],
    regret: str,
    expected: str,
) -> None:
    choice = _transport.Choice(near, far, hosts, [1] * len(hosts))
    connection = _transport.Connection(choice, _C.solo_transport(), details, regret)
    assert _transport.describe(wanted, NO_CODEC, connection) == expected


@pytest.mark.parametrize("source", ["HVD_COMPRESSION", "Options.compression"])
def test_description_of_a_codec(source: str) -> None:
    """Said where it is not used; elsewhere there is nothing to say."""

    def description(near: str, far: str, hosts: list[int]) -> str:
        choice = _transport.Choice(near, far, hosts, [1] * len(hosts))
        connection = _transport.Connection(choice, _C.solo_transport())
        return _transport.describe(AUTO, _settings.Origin(source, "int8"), connection)

    unused = f"; {source}=int8 compresses nothing, all ranks share memory"
    assert description("shm", "", [0, 0]) == f"2 ranks on 1 host: shm{unused}"
    assert description("shm", "tcp", [0, 0, 1]) == "3 ranks on 2 hosts: shm+tcp"
    assert description("", "tcp", [0, 1]) == "2 ranks on 2 hosts: tcp"
    assert description("", "", [0]) == "1 rank: needs no transport"


def said(**env: str) -> list[list[str]]:
    """What each rank prints of hvd's."""
    ended = launch("dist.new_group([1, 0])", 2, env={"TORCH_CPP_LOG_LEVEL": "ERROR", **env})
    assert [rank.returncode for rank in ended] == [0, 0], [rank.stderr for rank in ended]
    return [[line for line in rank.stderr.splitlines() if "hvd" in line] for rank in ended]


def test_line_at_init() -> None:
    """From the first rank of each group."""
    line = "2 ranks on 1 host: gloo, by HVD_TRANSPORT=gloo"
    lines = [f"hvd: group {group}, {line}" for group in (0, 1)]
    assert said(HVD_LOG="info", HVD_TRANSPORT="gloo") == [lines, []]


def test_line_by_a_handler_that_the_program_has_put_there() -> None:
    """It is not printed a second time."""
    script = """
    import logging
    logging.getLogger("torch_hvd").addHandler(logging.StreamHandler(sys.stdout))
    dist.new_group([1, 0])
    """
    first, _ = launch(script, 2, env={"HVD_LOG": "info", "HVD_TRANSPORT": "gloo"})
    assert first.stdout == "hvd: group 1, 2 ranks on 1 host: gloo, by HVD_TRANSPORT=gloo\n"
    assert "group 1" not in first.stderr


def test_line_of_a_codec_that_is_not_used() -> None:
    env = {"HVD_LOG": "info", "HVD_TRANSPORT": "shm", "HVD_COMPRESSION": "int8"}
    (first, second), others = said(**env)
    for line in (first, second):
        assert line.endswith("; HVD_COMPRESSION=int8 compresses nothing, all ranks share memory")
    assert others == []


@pytest.mark.parametrize("log", [{}, {"HVD_LOG": "warning"}], ids=str)
def test_warning_of_a_name_that_is_no_setting(log: dict[str, str]) -> None:
    """Once, from the first rank, for all its groups."""
    line = "hvd: HVD_COMPRESION is no setting of hvd; HVD_COMPRESSION is"
    assert said(HVD_COMPRESION="int8", **log) == [[line], []]


def test_warning_of_a_switch_of_horovods_that_is_not_read() -> None:
    line = "hvd: HOROVOD_LOG_LEVEL is not read; HVD_LOG is"
    assert said(HOROVOD_LOG_LEVEL="info", HOROVOD_GPU_OPERATIONS="NCCL") == [[line], []]


@pytest.mark.parametrize("env", [{}, {"HVD_LOG": "warning"}], ids=str)
def test_silence(env: dict[str, str]) -> None:
    assert said(**env) == [[], []]


def test_levels() -> None:
    assert _log.level({}) is None
    assert _log.level({"HVD_LOG": "warning"}) == logging.WARNING
    assert _log.level({"HVD_LOG": "info"}) == logging.INFO
    for text in ("INFO", "all"):
        with pytest.raises(ValueError, match=f"HVD_LOG is '{text}'; allowed is warning or info"):
            _log.level({"HVD_LOG": text})


def test_level_that_is_none() -> None:
    """An error at init, on every rank."""
    for rank in launch("", 2, env={"HVD_LOG": "loud"}):
        assert rank.returncode == 1
        assert "HVD_LOG is 'loud'; allowed is warning or info" in rank.stderr


def facts(folder: Path, **env: str) -> dict[str, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "torch_hvd"],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    return dict(re.findall(r"^  (\S+(?: \S+)?)  +(.*)$", ran.stdout, re.MULTILINE))


def test_table_that_nobody_reads() -> None:
    """As with `| head`."""
    run = subprocess.Popen(
        [sys.executable, "-m", "torch_hvd"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout
    run.stdout.close()
    run.stdout = None
    assert run.communicate(timeout=60)[1] == ""
    assert run.returncode == -signal.SIGPIPE


def test_table(tmp_path: Path) -> None:
    """Each setting with where it comes from, also one that is not allowed."""
    found = facts(
        tmp_path,
        HVD_TRANSPORT="gloo",
        HOROVOD_FUSION_THRESHOLD="7",
        HVD_CHECK="maybe",
        HOROVOD_TIMELINE="out",
        HVD_TIMELIN="out",
        HVD_LOG="INFO",
    )
    assert found["HVD_TRANSPORT"] == "gloo (environment)"
    assert found["HVD_FUSION_THRESHOLD"] == "7 (HOROVOD_FUSION_THRESHOLD)"
    assert found["HVD_FUSION_CUTOFF"] == "65536 (default)"
    assert found["HVD_CHECK"] == "HVD_CHECK is 'maybe'; allowed is 0 or 1"
    assert found["HVD_TIMELINE"] == "out (HOROVOD_TIMELINE)"
    assert found["HVD_STATS"] == "not set"
    assert found["HVD_LOG"] == "HVD_LOG is 'INFO'; allowed is warning or info"
    assert found["HVD_TIMELIN"] == "no setting of hvd; HVD_TIMELINE is"
    assert found["cores"] == str(len(os.sched_getaffinity(0)))
    assert found["codecs"] == f"{_C.simd()}, of {', '.join(_C.simd_names())}"


def test_table_of_shared_memory(tmp_path: Path) -> None:
    attach = "with" if _shm.can_attach() else "without"
    assert facts(tmp_path)["shm"].startswith(f"yes, {attach} cross-memory attach")
    without = "yes, without cross-memory attach: HVD_CMA is 0"
    assert facts(tmp_path, HVD_CMA="0")["shm"] == without
    assert facts(tmp_path, HVD_CMA="x")["shm"] == "no: HVD_CMA is 'x'; allowed is 0 or 1"


def test_table_of_mpi(tmp_path: Path) -> None:
    found = facts(tmp_path, HVD_LIBMPI="/nowhere/libmpi.so")["mpi"]
    assert found.startswith("no: no libmpi can be opened: /nowhere/libmpi.so: cannot open")


@needs_mpich
def test_table_of_mpich(tmp_path: Path) -> None:
    found = facts(tmp_path, HVD_LIBMPI=str(MPICH_ABI))["mpi"]
    assert re.fullmatch(rf"yes: MPICH 5\S*, ABI of MPI 5, {MPICH_ABI}; not CUDA-aware", found)

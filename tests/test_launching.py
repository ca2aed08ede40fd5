"""Ranks that mpirun, torchrun and hvdrun start: real processes, to their ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import torch_hvd
from libmpi import needs_mpich
from mpiruns import KINDS, ROOT, environment, left_of, mpirun, plain

pytestmark = pytest.mark.timeout(180)

HVDRUN = [sys.executable, "-m", "torch_hvd.hvdrun"]
DIGITS = ROOT / "examples" / "train_digits.py"
LAUNCHERS = ("torchrun", *KINDS)
SUM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("hvd", init_method=sys.argv[1])
ranks = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(ranks)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
print(ranks.item(), *(os.environ[name] for name in names), flush=True)
dist.destroy_process_group()
"""
# Ranks meet, then rank 1 does what is asked for and the others would sleep on.
MEET = """
import os, signal, sys, time, torch.distributed as dist
dist.init_process_group("hvd")
print("here", flush=True)
dist.barrier()  # or the job may end before some rank has written
if dist.get_rank() == 1:
    {}
time.sleep(150)
"""
# Rank 1 ends before the others do, and one of its threads waits for them.
LEFT_WAITING = """
import threading, time, torch, torch.distributed as dist
dist.init_process_group("hvd")
dist.barrier()
if dist.get_rank() == 1:
    threading.Thread(target=lambda: dist.{}, daemon=True).start()
time.sleep(2 - 1.5 * dist.get_rank())
"""
# The first time rank 1 is killed, while rank 0 waits for it.
RESTARTED = """
import os, signal, torch, torch.distributed as dist
dist.init_process_group("hvd")
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
if attempt == "0" and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
ranks = torch.tensor([1 << dist.get_rank()])
dist.all_reduce(ranks)
print(f"attempt {attempt} ranks {ranks.item()}\\n", end="", flush=True)  # in one piece
dist.destroy_process_group()
"""
MPICH = Path(sys.prefix, "lib", "libmpi.so.12")
MPI = """
import ctypes, fcntl, os, termios, time
lib, world = ctypes.CDLL({library!r}), 0x44000000  # MPICH's MPI_COMM_WORLD
def abort(code): lib.MPI_Abort(world, code)
lib.MPI_Init(None, None)
size, rank = ctypes.c_int(), ctypes.c_int()
lib.MPI_Comm_size(world, ctypes.byref(size))
lib.MPI_Comm_rank(world, ctypes.byref(rank))
print(f"{{rank.value}} of {{size.value}}", flush=True)
# mpiexec drops what it has not read of a program that aborts.
while any(fcntl.ioctl(1, termios.FIONREAD, bytes(4))):
    time.sleep(0.01)
lib.MPI_Barrier(world)
if rank.value == 1:
    {does}
lib.MPI_Barrier(world)
lib.MPI_Finalize()
"""


def hvdrun_by(launcher: str, folder: Path) -> list[str]:
    return HVDRUN if launcher == "torchrun" else [*HVDRUN, "--mpirun", mpirun(launcher, folder)]


@pytest.fixture(params=LAUNCHERS)
def hvdrun(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """hvdrun, by each launcher."""
    return hvdrun_by(request.param, tmp_path)


def run(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    env, token = environment(more)
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150)
    assert left_of(token) == []
    return ran


def lines(ran: subprocess.CompletedProcess[str]) -> list[str]:
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.splitlines())


@pytest.mark.parametrize("kind", KINDS)
def test_a_stock_script_under_mpirun(tmp_path: Path, kind: str) -> None:
    script = [sys.executable, str(ROOT / "tests" / "stock_script.py")]
    ran = run(plain(kind, mpirun(kind, tmp_path), 3, *script))
    assert lines(ran) == [f"rank {rank} of 3: hvd" for rank in range(3)]


@pytest.mark.parametrize("kind", KINDS)
def test_mpi_urls_under_mpirun(tmp_path: Path, kind: str) -> None:
    script = [sys.executable, "-c", SUM, "mpi://"]
    ran = run(plain(kind, mpirun(kind, tmp_path), 2, *script))
    assert lines(ran) == ["3 0 2 0 2 127.0.0.1", "3 1 2 1 2 127.0.0.1"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_set_where_that_is_not_wanted(tmp_path: Path, kind: str) -> None:
    ask = [sys.executable, "-c", "import os, torch; print(os.environ.get('RANK'))"]
    ran = run(plain(kind, mpirun(kind, tmp_path), 2, *ask), HVD_LAUNCHER="none")
    assert lines(ran) == ["None", "None"]


def test_mpi_urls_without_a_launcher_say_what_to_do() -> None:
    ran = run([sys.executable, "-c", SUM, "mpi://"])
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "ValueError: mpi:// finds no launcher: start the program with mpirun, srun or hvdrun "
        "--mpi; under torchrun leave init_method out"
    )


def test_a_step_of_slurm() -> None:
    step = {
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "node7",
        "SLURM_NODEID": "0",
    }
    started = []
    for rank in range(2):
        env, _ = environment({**step, "SLURM_PROCID": f"{rank}", "SLURM_LOCALID": f"{rank}"})
        command = [sys.executable, "-c", SUM, "env://"]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate(timeout=60)[0] for process in started]
    assert printed == ["3 0 2 0 2 127.0.0.1\n", "3 1 2 1 2 127.0.0.1\n"]


@pytest.mark.parametrize("transport", ["shm", "tcp", "gloo"])
def test_torchrun_starts_ranks_again(tmp_path: Path, transport: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(RESTARTED)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=1"]
    ran = run([*torchrun, "--nproc-per-node=2", str(script)], HVD_TRANSPORT=transport)
    assert lines(ran) == ["attempt 1 ranks 3"] * 2


@pytest.mark.parametrize(
    ("launcher", "prefix"),
    [("torchrun", "[rank{}]:"), ("openmpi", "[1,{}]<stdout>:"), ("mpich", "[{}] ")],
)
def test_hvdrun_prefixes_output_with_ranks(tmp_path: Path, launcher: str, prefix: str) -> None:
    command = [*hvdrun_by(launcher, tmp_path), "-np", "2", "--verbose"]
    ran = run([*command, sys.executable, "-c", SUM, "env://"])
    for rank, line in enumerate(lines(ran)):
        # Version 5 of Open MPI has a space there, and torchrun's address may be a name.
        assert line.replace(">: ", ">:").startswith(f"{prefix.format(rank)}3 {rank} 2 {rank} 2 ")
    started = ran.stderr.splitlines()[0]
    assert ("torchrun --standalone" in started) == (launcher == "torchrun"), started
    assert f"{sys.executable} -c " in started


def test_a_program_has_its_own_options(hvdrun: list[str]) -> None:
    """Also such as torchrun takes for the beginning of one of its own."""
    own = ["--run", "3", "--np", "--log=x", "--", "--max"]
    script = "import sys; print(sys.argv[1:])"
    ran = run([*hvdrun, "-np", "1", sys.executable, "-c", script, *own])
    assert [line.endswith(repr(own)) for line in lines(ran)] == [True]


def test_hvdrun_writes_output_to_files(hvdrun: list[str], tmp_path: Path) -> None:
    script = (
        "import os, sys, torch\n"
        "for stream in (sys.stdout, sys.stderr): print(os.environ['RANK'], file=stream)"
    )
    options = ["-np", "2", "--output-filename", str(tmp_path / "logs")]
    ran = run([*hvdrun, *options, sys.executable, "-c", script])
    assert lines(ran) == []
    logs = {
        f"{path.parent.name}/{path.name}": path.read_text() for path in tmp_path.glob("logs/*/*")
    }
    assert logs == {
        f"rank.{rank}/{name}": f"{rank}\n" for rank in range(2) for name in ("stdout", "stderr")
    }


def test_hvdrun_whose_output_nobody_reads_any_longer() -> None:
    """As with `| head`: ranks that print end by that, as without hvdrun, and so does the job."""
    env, token = environment()
    command = [*HVDRUN, "-np", "2", "seq", "100000"]
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None and job.stderr is not None
        assert job.stdout.readline().startswith("[rank")
        job.stdout.close()
        said = job.stderr.read()
        assert f"was ended by signal {signal.SIGPIPE:d}\n" in said
        assert "Traceback" not in said
        assert job.wait(timeout=60) == 128 + signal.SIGPIPE
    assert left_of(token) == []


@pytest.mark.parametrize("to_files", [False, True], ids=["terminal", "files"])
def test_hvdrun_leaves_nothing_in_the_temporary_folder(tmp_path: Path, to_files: bool) -> None:
    temporary, logs = tmp_path / "tmp", tmp_path / "logs"
    temporary.mkdir()
    options = ["-np", "2", *(["--output-filename", str(logs)] if to_files else [])]
    ran = run([*HVDRUN, *options, "echo", "here"], TMPDIR=str(temporary))
    files = [path.read_text() for path in logs.glob("*/stdout")]
    assert (ran.stdout + "".join(files)).count("here") == 2
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("does", "code"),
    [("os._exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL)],
    ids=["exit", "kill"],
)
def test_the_first_failure_ends_all_with_its_exit_code(
    hvdrun: list[str], does: str, code: int
) -> None:
    ran = run([*hvdrun, "-np", "3", sys.executable, "-c", MEET.format(does)])
    assert ran.returncode == code, ran.stderr
    assert ran.stdout.count("here") == 3


@pytest.mark.skipif(not MPICH.exists(), reason="no MPICH in this environment: pip install mpich")
@pytest.mark.parametrize(("does", "code"), [("pass", 0), ("os._exit(3)", 3), ("abort(4)", 4)])
def test_programs_of_mpich_run_and_end_as_without_hvdrun(
    tmp_path: Path, does: str, code: int
) -> None:
    command = [*hvdrun_by("mpich", tmp_path), "-np", "2", sys.executable, "-c"]
    ran = run([*command, MPI.format(library=str(MPICH), does=does)])
    assert ran.returncode == code, ran.stderr
    assert sorted(ran.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_that_exits_does_not_wait_for_the_others(kind: str, tmp_path: Path) -> None:
    """As MPI's end would, for ranks that wait for this one."""
    script = MEET.format("sys.exit('no such folder')")
    command = plain(kind, mpirun(kind, tmp_path), 2, sys.executable, "-c", script)
    ran = run(command, HVD_TRANSPORT="mpi")
    assert ran.returncode != 0
    assert "no such folder" in ran.stdout + ran.stderr, ran
    assert ran.stdout.count("here") == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["recv(torch.ones(1), src=0)", "all_reduce(torch.ones(1))"])
def test_a_daemon_thread_that_waits_ends_with_its_rank(
    kind: str, call: str, tmp_path: Path
) -> None:
    """It calls nothing of MPI any more once that was finalised."""
    script = LEFT_WAITING.format(call)
    command = plain(kind, mpirun(kind, tmp_path), 2, sys.executable, "-c", script)
    ran = run(command, HVD_TRANSPORT="mpi")
    assert ran.returncode == 0, ran


def test_a_command_that_is_not_there(hvdrun: list[str]) -> None:
    ran = run([*hvdrun, "-np", "2", "/no/such/program"])
    assert ran.returncode != 0
    assert "/no/such/program" in ran.stderr


@pytest.mark.parametrize("text", ["true\n", "#!/no/such/interpreter\n"], ids=["none", "missing"])
def test_a_command_without_its_interpreter(hvdrun: list[str], tmp_path: Path, text: str) -> None:
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    ran = run([*hvdrun, "-np", "2", str(script)])
    assert ran.returncode != 0
    assert str(script) in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_file_where_the_output_of_a_rank_would_go(hvdrun: list[str], tmp_path: Path) -> None:
    (tmp_path / "rank.1").touch()
    ran = run([*hvdrun, "-np", "2", "--output-filename", str(tmp_path), "true"])
    assert ran.returncode != 0
    assert f"hvdrun: --output-filename {tmp_path}: [Errno 17] File exists: " in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_ctrl_c_leaves_no_process(hvdrun: list[str], number: int) -> None:
    env, token = environment()
    command = [*hvdrun, "-np", "2", sys.executable, "-c", MEET.format("pass")]
    with subprocess.Popen(
        command,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as job:
        assert job.stdout is not None
        for _ in range(2):
            assert "here" in job.stdout.readline()
        if number == signal.SIGINT:
            os.killpg(job.pid, number)  # as a terminal does
        else:
            os.kill(job.pid, number)
        assert job.wait(timeout=100) not in (0, -signal.SIGKILL)
    assert left_of(token) == []


def train(command: list[str], results: Path, wanted: str, transport: str) -> dict[str, Any]:
    options = ["--model", "mlp", "--epochs", "2", "--json", str(results)]
    script = [sys.executable, str(DIGITS), *options]
    ran = run([*command, *script], HVD_TRANSPORT=wanted, HVD_LOG="info")
    assert ran.returncode == 0, ran.stderr
    assert f"2 ranks on 1 host: {transport} (" in ran.stderr
    return json.loads(results.read_text())


@pytest.mark.parametrize(
    ("wanted", "transport"), [("auto", "shm"), pytest.param("mpi", "mpi", marks=needs_mpich)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_the_example_trains_alike_under_every_launcher(
    tmp_path: Path, kind: str, wanted: str, transport: str
) -> None:
    """torchrun starts no MPI: there it is MPICH."""
    found = mpirun(kind, tmp_path)
    commands = [
        plain(kind, found, 2),
        [*HVDRUN, "-np", "2", "--mpirun", found],
        [*HVDRUN, "-np", "2"],
    ]
    results = [
        train(command, tmp_path / f"{number}.json", wanted, transport)
        for number, command in enumerate(commands)
    ]
    for result in results:
        assert (result["world_size"], result["tested"], result["backend"]) == (2, 360, "hvd")
        assert result["accuracy"] > 0.5
        assert result["loss"] == results[0]["loss"]
        assert result["accuracy"] == results[0]["accuracy"]


def place_of(rank_plus: int, *, fails: int = -1) -> tuple[int, int]:
    """For `torch_hvd.run`: this rank plus a number, and the number of ranks."""
    dist.init_process_group("hvd")
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    if rank == fails:
        raise KeyError("mine")
    return rank + rank_plus, size


# Every rank starts a job of its own, while its own job lives.
NESTED = """
import subprocess, sys, torch.distributed as dist
dist.init_process_group("hvd")
ran = subprocess.run(sys.argv[1:], capture_output=True, text=True)
print(ran.stdout, ran.stderr, flush=True)
dist.barrier()
"""


@pytest.mark.parametrize("outer", LAUNCHERS)
def test_a_job_within_a_rank(outer: str, tmp_path: Path) -> None:
    script = [sys.executable, "-c", SUM, "env://"]
    nested = [sys.executable, "-c", NESTED, *hvdrun_by("mpich", tmp_path), "-np", "3", *script]
    ran = run([*hvdrun_by(outer, tmp_path), "-np", "2", *nested])
    assert ran.returncode == 0, ran.stderr
    for rank in range(3):
        assert ran.stdout.count(f"7 {rank} 3 {rank} 3 ") == 2, ran


@pytest.mark.parametrize("options", [[], ["--mpi"]], ids=["torchrun", "mpirun"])
def test_run_returns_results_by_rank(options: list[str], tmp_path: Path) -> None:
    if options:
        options = ["--mpirun", mpirun("mpich", tmp_path)]
    assert torch_hvd.run(place_of, (10,), np=3, options=options) == [(10, 3), (11, 3), (12, 3)]


def test_run_raises_what_a_rank_raised() -> None:
    with pytest.raises(RuntimeError, match=r"(?s)rank 1 raised:.*KeyError: 'mine'"):
        torch_hvd.run(place_of, (0,), {"fails": 1}, np=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
@pytest.mark.parametrize("launcher", ["torchrun", "mpich"])
def test_run_leaves_no_process(launcher: str, number: int, tmp_path: Path) -> None:
    """Where a signal ends who has called it."""
    options = ["--mpirun", mpirun(launcher, tmp_path)] if launcher != "torchrun" else []
    call = "import time; print('here', flush=True); time.sleep(150)"
    script = f"import torch_hvd; torch_hvd.run(exec, ({call!r},), np=2, options={options})"
    env, token = environment({"TMPDIR": str(tmp_path)})  # where its folder stays
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        for _ in range(2):
            assert "here" in program.stdout.readline()
        program.send_signal(number)
        assert program.wait(timeout=60) == -number
    assert left_of(token) == []


def test_run_tells_that_a_rank_has_ended() -> None:
    with pytest.raises(RuntimeError, match="hvdrun ended with exit code 3"):
        torch_hvd.run(os._exit, (3,), np=2)

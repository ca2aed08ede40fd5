"""What ranks print, by hvdrun over torchrun: whole lines, each behind the number of its rank."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpiruns import environment, left_of
from torch_hvd import _translate

pytestmark = pytest.mark.timeout(120)

HVDRUN = [sys.executable, "-m", "torch_hvd.hvdrun"]
PREFIXED = [sys.executable, "-I", str(_translate.RANK), "--prefix"]
ENV = {**os.environ, "RANK": "3", "WORLD_SIZE": "4"}
LONG = 1 << 16


def python(script: str) -> list[str]:
    return [*PREFIXED, sys.executable, "-c", f"import os, signal, sys\n{script}"]


def run(command: list[str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, env=ENV, capture_output=True, timeout=60)


@contextmanager
def started(script: str) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A rank, and a socket that has each write to its stdout as a packet."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(60)
    with (
        ours,
        theirs,
        subprocess.Popen(
            python(script),
            env=ENV,
            stdin=subprocess.PIPE,
            stdout=theirs.fileno(),
            start_new_session=True,
        ) as rank,
    ):
        theirs.close()
        try:
            yield rank, ours
        finally:
            rank.kill()


def answer(rank: subprocess.Popen[bytes]) -> None:
    assert rank.stdin is not None
    rank.stdin.write(b"me\n")
    rank.stdin.flush()


@pytest.mark.parametrize("stream", [1, 2], ids=["stdout", "stderr"])
@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ([b"one ", b"li", b"ne\n", b"two\n"], b"[rank3]:one line\n[rank3]:two\n"),
        ([b"\n\na\n"], b"[rank3]:\n[rank3]:\n[rank3]:a\n"),
        ([b"\xff\xfe \0\n"], b"[rank3]:\xff\xfe \0\n"),
        ([b"\x0b\x0c\x1c\xc2\x85 a row\n"], b"[rank3]:\x0b\x0c\x1c\xc2\x85 a row\n"),
        ([b"the last"], b"[rank3]:the last\n"),
        ([b"[rank3]: of torch\n"], b"[rank3]: of torch\n"),
        ([b"[rank1]: of another\n"], b"[rank3]:[rank1]: of another\n"),
        ([b"of a file\r", b"\nof Windows\r\n"], b"[rank3]:of a file\r\n[rank3]:of Windows\r\n"),
        ([b"\r1%", b"\r2%", b"\n"], b"\r[rank3]:1%\r[rank3]:2%\n"),
        ([b"1%\r", b"2%\r"], b"[rank3]:1%\r[rank3]:2%\r"),
        ([b"\r1%", b"\r2%"], b"\r[rank3]:1%\r[rank3]:2%\n"),
    ],
    ids=[
        "parts",
        "empty",
        "bytes",
        "separators",
        "end",
        "has-it",
        "has-another",
        "crlf",
        "bar",
        "bar-behind",
        "bar-ended",
    ],
)
def test_lines(stream: int, writes: list[bytes], expected: bytes) -> None:
    script = f"for part in {writes}: os.write({stream}, part)"
    ran = run(python(script))
    assert (ran.stdout, ran.stderr)[stream - 1] == expected
    assert (ran.stdout, ran.stderr)[2 - stream] == b""
    assert ran.returncode == 0


def test_a_line_in_parts_is_written_at_once() -> None:
    script = "for part in 'one ', 'li', 'ne\\n': print(part, end='', flush=True)"
    with started(script) as (rank, packets):
        assert packets.recv(LONG) == b"[rank3]:one line\n"
        assert packets.recv(LONG) == b""
        assert rank.wait(60) == 0


def test_python_keeps_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is told so."""
    script = "print('here'); sys.stdin.readline(); os.write(1, b'then\\n')"
    here, then = b"[rank3]:here\n", b"[rank3]:then\n"
    monkeypatch.setitem(ENV, "PYTHONUNBUFFERED", "")
    with started(script) as (rank, packets):
        answer(rank)
        assert b"".join(iter(lambda: packets.recv(LONG), b"")) == then + here
    monkeypatch.delitem(ENV, "PYTHONUNBUFFERED")
    with started(script) as (rank, packets):
        assert packets.recv(LONG) == here
        answer(rank)
        assert packets.recv(LONG) == then


@pytest.mark.parametrize(
    ("first", "then", "expected"),
    [
        ("name? ", "hi\\n", [b"[rank3]:name? \n", b"[rank3]:hi\n"]),
        ("wait", "\\nhi\\n", [b"[rank3]:wait\n", b"[rank3]:hi\n"]),
        ("\\r50%", "\\nhi\\n", [b"\r", b"[rank3]:50%\r", b"\n[rank3]:hi\n"]),
        ("\\r50%", "\\r60%\\n", [b"\r", b"[rank3]:50%\r", b"\r[rank3]:60%\n"]),
        ("50%\\r", "\\nhi\\n", [b"[rank3]:50%\r", b"\n[rank3]:hi\n"]),
    ],
    ids=["prompt", "pause", "bar", "bar-moves", "bar-behind"],
)
def test_an_unfinished_line_is_written_after_a_while(
    first: str, then: str, expected: list[bytes]
) -> None:
    """With an end, which the line does not get again."""
    script = f"os.write(1, b'{first}'); sys.stdin.readline(); os.write(1, b'{then}')"
    with started(script) as (rank, packets):
        for packet in expected[:-1]:
            assert packets.recv(LONG) == packet
        answer(rank)
        assert packets.recv(LONG) == expected[-1]
        assert packets.recv(LONG) == b""
        assert rank.wait(60) == 0


def test_a_long_line_is_written_in_pieces() -> None:
    """Before its end is there: the rank waits for that."""
    count = 5 * LONG
    script = f"os.write(1, b'x' * {count}); sys.stdin.readline(); print('end')"
    with started(script) as (rank, packets):
        pieces = [packets.recv(4 * LONG) for _ in range(2)]
        assert all(len(piece) >= LONG for piece in pieces)
        answer(rank)
        while piece := packets.recv(4 * LONG):
            pieces.append(piece)
        assert rank.wait(60) == 0
    lines = b"".join(pieces).splitlines()
    assert max(map(len, lines)) < 3 * LONG
    assert all(line.startswith(b"[rank3]:") for line in lines)
    assert b"".join(line.removeprefix(b"[rank3]:") for line in lines) == b"x" * count + b"end"


def test_lines_of_ranks_do_not_mix_in_a_full_pipe() -> None:
    """A pipe takes only short writes as one."""
    script = "for i in range(100): print(os.environ['RANK'] * 20000, flush=True)"
    read_end, write_end = os.pipe()
    ranks = [
        subprocess.Popen(python(script), env={**ENV, "RANK": str(rank)}, stdout=write_end)
        for rank in range(4)
    ]
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        lines = pipe.read().splitlines()
    assert [rank.wait(60) for rank in ranks] == [0] * 4
    assert len(lines) == 400
    assert set(lines) == {f"[rank{rank}]:{str(rank) * 20000}".encode() for rank in range(4)}


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV], ids=["kill", "term", "segv"]
)
def test_last_words_of_a_rank_that_a_signal_ends(number: int) -> None:
    script = "os.write(1, b'to out'); os.write(2, b'to err')\n"
    ran = run(python(f"{script}os.kill(os.getpid(), {number})"))
    assert (ran.stdout, ran.stderr) == (b"[rank3]:to out\n", b"[rank3]:to err\n")
    assert ran.returncode == -number


def test_exit_code() -> None:
    ran = run(python("print('here'); sys.exit(7)"))
    assert (ran.returncode, ran.stdout) == (7, b"[rank3]:here\n")


def test_no_program() -> None:
    ran = run([*PREFIXED, "/no/such/program"])
    assert ran.returncode == 127
    assert ran.stderr == b"[rank3]:hvdrun: /no/such/program: No such file or directory\n"


def test_a_process_that_the_command_leaves_behind() -> None:
    """It holds the pipe open, but not the job up; what it wrote before the end is there."""
    script = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.write(1, b'from the child\\n'); os.kill(os.getppid(), signal.SIGUSR1)\n"
        "    signal.pause()\n"
        "signal.sigwait([signal.SIGUSR1])\n"
        "print(child)"
    )
    block = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    ran = run(python(block + script))
    first, second = ran.stdout.splitlines()
    child = int(second.removeprefix(b"[rank3]:"))
    os.kill(child, signal.SIGKILL)  # it was alive
    assert (ran.returncode, first) == (0, b"[rank3]:from the child")


def test_a_process_that_the_command_leaves_behind_and_that_prints_for_ever() -> None:
    env, token = environment(ENV)
    command = [*PREFIXED, "sh", "-c", "yes & head -c 100000 /dev/zero; exit 5"]
    ran = subprocess.run(command, env=env, stdout=subprocess.DEVNULL, timeout=60)
    assert ran.returncode == 5
    assert left_of(token) == []  # nobody reads it any longer


def test_a_stream_that_the_command_closes() -> None:
    ran = run(python("os.write(1, b'bye'); os.close(1); os.write(2, b'still here'); sys.exit(3)"))
    assert (ran.stdout, ran.stderr) == (b"[rank3]:bye\n", b"[rank3]:still here\n")
    assert ran.returncode == 3


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (["yes"], -signal.SIGPIPE, ""),
        ([sys.executable, "-c", "while True: print(1)"], 1, "[rank3]:BrokenPipeError: [Errno 32]"),
    ],
    ids=["yes", "python"],
)
def test_output_that_nobody_reads_any_longer(command: list[str], code: int, says: str) -> None:
    """The rank finds so itself, as it would without us."""
    with subprocess.Popen(
        [*PREFIXED, *command], env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None and rank.stderr is not None
        assert rank.stdout.readline().startswith("[rank3]:")
        rank.stdout.close()
        last = rank.stderr.read().splitlines()[-1:]
        assert [line.startswith(says) for line in last] == ([True] if says else [])
        assert rank.wait(60) == code


def test_output_to_a_full_disk() -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run([*PREFIXED, "yes"], env=ENV, stdout=full, stderr=subprocess.PIPE)
    assert ran.returncode == -signal.SIGPIPE
    assert ran.stderr == b"hvdrun: the output: No space left on device\n"


@pytest.mark.parametrize("to_all", [True, False], ids=["group", "process"])
def test_a_signal_reaches_the_command_once(to_all: bool) -> None:
    """torchrun sends it to the group, of which the command is; others may send it to us."""
    script = (
        "signal.signal(signal.SIGTERM, lambda *_: os.write(1, b'got it\\n'))\n"
        "print('here', flush=True); sys.stdin.readline()"
    )
    with started(script) as (rank, packets):
        assert packets.recv(LONG) == b"[rank3]:here\n"
        if to_all:
            os.killpg(rank.pid, signal.SIGTERM)
        else:
            subprocess.run(["kill", "-TERM", str(rank.pid)], check=True)
        assert packets.recv(LONG) == b"[rank3]:got it\n"
        answer(rank)
        assert packets.recv(LONG) == b""
        assert rank.wait(60) == 0


def test_the_command_does_not_outlive_us() -> None:
    read_end, write_end = os.pipe()
    script = f"os.write({write_end}, b'here'); signal.pause()"
    rank = subprocess.Popen(python(script), env=ENV, pass_fds=[write_end])
    os.close(write_end)
    with open(read_end, "rb", buffering=0) as pipe:
        assert pipe.read(4) == b"here"
        rank.kill()
        assert pipe.read() == b""  # both have closed it
    assert rank.wait(60) == -signal.SIGKILL


def hvdrun(tmp_path: Path, script: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """A job, and the files that it leaves in its temporary folder."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    env, token = environment({"TMPDIR": str(temporary)})
    command = [*HVDRUN, "-np", "2", sys.executable, "-c", script]
    ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100)
    assert left_of(token) == []
    return ran, os.listdir(temporary)


def test_output_takes_no_room_on_a_disk(tmp_path: Path) -> None:
    """A full TMPDIR is none of its business."""
    script = (
        "import os\n"
        "print('x' * 100000, flush=True)\n"
        "found = [file for *_, files in os.walk(os.environ['TMPDIR']) for file in files]\n"
        "print('files:', found)"
    )
    ran, left = hvdrun(tmp_path, script)
    assert sorted(line for line in ran.stdout.splitlines() if "files" in line) == [
        f"[rank{rank}]:files: []" for rank in range(2)
    ]
    assert ran.stdout.count("x") == 200000
    assert (ran.returncode, ran.stderr, left) == (0, "", [])


def test_what_fails_first_is_what_error_files_say(tmp_path: Path) -> None:
    """Those of torchrun, for ranks under torch's `record`."""
    script = """
import json, os, signal, sys, time
own, rank = os.environ["TORCHELASTIC_ERROR_FILE"], int(os.environ["RANK"])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
error = {"message": "mine", "extraInfo": {"timestamp": 100 - rank}}
with open(own + ".new", "w") as file:
    json.dump({"message": error}, file)
os.rename(own + ".new", own)
for other in "0", "1":
    while not os.path.exists(os.path.join(os.path.dirname(own), "..", other, "error.json")):
        time.sleep(0.01)
sys.exit(10 + rank)
"""
    ran, left = hvdrun(tmp_path, script)
    assert ran.returncode == 11
    assert ran.stderr.splitlines()[-1] == "hvdrun: rank 1 exited with code 11"
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "term"])
def test_a_signal_as_ranks_start_leaves_nothing(tmp_path: Path, number: int) -> None:
    env, token = environment({"TMPDIR": str(tmp_path)})
    with subprocess.Popen([*HVDRUN, "-np", "2", "sleep", "100"], env=env) as job:
        while not list(tmp_path.glob("hvdrun-*/*")):  # torchrun's, for the ranks
            assert job.poll() is None
            time.sleep(0.001)
        job.send_signal(number)
        assert job.wait(60) == 128 + number
    assert (left_of(token), os.listdir(tmp_path)) == ([], [])


def test_ranks_do_not_outlive_hvdrun() -> None:
    env, token = environment()
    script = "print('here', flush=True); import time; time.sleep(100)"
    command = [*HVDRUN, "-np", "2", sys.executable, "-c", script]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as job:
        assert job.stdout is not None
        assert sorted(job.stdout.readline() for _ in range(2)) == [
            f"[rank{rank}]:here\n".encode() for rank in range(2)
        ]
        job.kill()
    assert left_of(token) == []

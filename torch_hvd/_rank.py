"""What hvdrun puts before the command of a rank, where the launcher cannot do it.

    python _rank.py [--output DIR] [--abort] COMMAND...
    python _rank.py --with PID COMMAND...

--output: what the rank prints goes to DIR/rank.N/stdout and stderr.
--abort: a rank that fails ends the others, with its exit code. Hydra does so only for ranks that a
signal has ended, unless it is told by the line that MPI_Abort writes (PMI-1).

--with: whatever ends the process PID, which has started this one, ends the command by SIGTERM; for
`torch_hvd.run`, that puts it before hvdrun.

It is run as a file, because `-m torch_hvd._rank` would load torch first.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def _rank_and_size() -> tuple[str, str]:
    return next(
        (os.environ[rank], os.environ[size]) for rank, size in _VARIABLES if rank in os.environ
    )


def redirect(folder: str) -> None:
    """Send stdout and stderr to files of this rank."""
    rank, size = _rank_and_size()
    own = Path(folder, f"rank.{int(rank):0{len(str(int(size) - 1))}}")
    own.mkdir(parents=True, exist_ok=True)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(own / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, stream)
        os.close(file)


def end_with(parent: int, number: int) -> None:
    """Have this process, and what it becomes, get a signal once its parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it was faster


def run(command: list[str]) -> int:
    """Run a command to its end; its exit code, or 128 and the number of a signal."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with(parent, signal.SIGKILL)
        replace(command)

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code < 0:  # mpirun would say nothing of it
        text = f"hvdrun: rank {_rank_and_size()[0]} was ended by signal {-code}"
        print(text, file=sys.stderr, flush=True)
    return code if code >= 0 else 128 - code


def replace(command: list[str]) -> None:
    """Become the command; 127 if there is none, as in a shell."""
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"hvdrun: {command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def main() -> int:
    command = sys.argv[1:]
    if command[0] == "--with":
        end_with(int(command[1]), signal.SIGTERM)
        replace(command[2:])
    if command[0] == "--output":
        try:
            redirect(command[1])
        except OSError as error:  # on another host; on its own, hvdrun has looked
            sys.exit(f"hvdrun: --output-filename {command[1]}: {error}")
        del command[:2]
    if command[0] != "--abort":
        replace(command)
    code = run(command[1:])
    if code and "PMI_FD" in os.environ:
        with contextlib.suppress(OSError):  # mpirun is about to end the job anyway
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())
            signal.pause()  # it ends this process; the first code that it sees is the job's
    return code


if __name__ == "__main__":
    sys.exit(main())

"""What hvdrun puts before the command of a rank, where the launcher cannot do it.

    python _rank.py --prefix COMMAND...
    python _rank.py [--output DIR] [--abort] COMMAND...
    python _rank.py --with PID COMMAND...

--prefix: what the rank prints gets its number before each line. The rank gets SIGTERM where its
launcher, torchrun, is gone without having ended it.
--output: it goes to DIR/rank.N/stdout and stderr.
--abort: a rank that fails ends the others, with its exit code. Hydra does so only for ranks that a
signal has ended, unless it is told by the line that MPI_Abort writes (PMI-1).

--with: whatever ends the process PID, which has started this one, ends the command by SIGTERM; for
`torch_hvd.run`, that puts it before hvdrun.

It is run as a file, because `-m torch_hvd._rank` would load torch first, and imports what is quick
to import.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from collections.abc import Iterator

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_DUMPABLE = 4
_SIGINFO = struct.Struct("=IiiI112x")  # sys/signalfd.h: the number, two more, and who sent it
# Those that a launcher or a user ends a rank by, or tells it something.
_PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
_CHUNK = 1 << 16  # what a pipe holds; a longer line is written in pieces
_UNFINISHED_S = 1.0  # after which a line is written without its end: it may be a prompt
_NEVER = float("inf")
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
    own = os.path.join(folder, f"rank.{int(rank):0{len(str(int(size) - 1))}}")
    os.makedirs(own, exist_ok=True)
    for stream, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(os.path.join(own, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.dup2(file, stream)
        os.close(file)


class Lines:
    """A pipe that the command writes to: its lines go on to a stream, each behind the prefix.

    A line ends with \\n, \\r\\n or \\r. The last is that of a progress bar, which is drawn again
    over itself: the prefix is drawn with it, and a \\r alone has none. A line whose end does not
    come is given one, that of the line before: so a prompt has a row of its own and a bar has not.
    """

    def __init__(self, stream: int, prefix: bytes) -> None:
        self.source, self.command_end = os.pipe()
        self.is_open = True
        self.patience_ends = _NEVER  # with a line that is unfinished
        self._stream = stream
        self._prefix = prefix
        self._kind = stat.S_IFMT(os.fstat(stream).st_mode)
        self._line = b""  # the unfinished one
        self._end = b"\n"  # of the last one
        self._end_is_ours = False

    def pass_on(self) -> int:
        """Pass on what the pipe has; the number of bytes that were read, at most a chunk."""
        data = os.read(self.source, _CHUNK)
        if not data:
            self.close()
            return 0
        end, rest = self._belated_end(data)
        lines = (self._line + rest).splitlines(keepends=True)
        if lines and not lines[-1].endswith((b"\n", b"\r")):
            self._line = lines.pop()
            if lines or self.patience_ends == _NEVER:  # it has begun now
                self.patience_ends = time.monotonic() + _UNFINISHED_S
        else:
            self._line, self.patience_ends = b"", _NEVER
        if lines:
            self._end = lines[-1][-1:]
        self._write(end + b"".join(map(self._prefixed, lines)))
        if len(self._line) >= _CHUNK:
            self.write_unfinished()
        return len(data)

    def _belated_end(self, data: bytes) -> tuple[bytes, bytes]:
        """What of `data` ends a line that has been written with an end, and the rest.

        The line does not get it again, but the row of a bar is still to be left.
        """
        is_ours, self._end_is_ours = self._end_is_ours, False
        end = data[: data.find(b"\n") + 1]
        was_bar = self._end == b"\r"
        if self._line or end not in (b"\n", b"\r\n") or not (is_ours or was_bar):
            return b"", data
        self._end = b"\n"
        return b"\n" if was_bar else b"", data[len(end) :]

    def write_unfinished(self) -> None:
        """Write what there is of a line, with an end."""
        line, self._line, self.patience_ends = self._line, b"", _NEVER
        if line:
            self._end_is_ours = True
            self._write(self._prefixed(line + self._end))

    def finish(self) -> None:
        """Pass on what was written up to now: the command has ended.

        Not up to the end of the pipe, which a process that it has left behind may hold open.
        """
        if self.is_open:
            (left,) = struct.unpack("i", fcntl.ioctl(self.source, termios.FIONREAD, bytes(4)))
            while self.is_open and left > 0:
                left -= self.pass_on()
            self.close()

    def close(self) -> None:
        """Write what is left; what the command writes from now on fails."""
        self._end = b"\n"  # nothing is drawn over it any more
        self.write_unfinished()
        self._give_up()

    def _give_up(self) -> None:
        if self.is_open:
            os.close(self.source)
        self.is_open, self._line, self.patience_ends = False, b"", _NEVER

    def _prefixed(self, line: bytes) -> bytes:
        # torch begins the lines of a traceback so, too.
        return line if line == b"\r" or line.startswith(self._prefix) else self._prefix + line

    def _write(self, data: bytes) -> None:
        """Write it all; if nobody reads it, the command is to find so as it writes."""
        try:
            with self._alone():
                while data:
                    try:
                        data = data[os.write(self._stream, data) :]
                    except BlockingIOError:  # who shares the stream may have made it such
                        select.select([], [self._stream], [])
        except OSError as error:
            self._give_up()
            if error.errno != errno.EPIPE:
                with contextlib.suppress(OSError):
                    print(f"hvdrun: the output: {error.strerror}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other ranks from writing: a full pipe takes long lines in parts."""
        is_locked = False
        if self._kind in (stat.S_IFIFO, stat.S_IFSOCK):  # else a write is one
            with contextlib.suppress(OSError):
                fcntl.lockf(self._stream, fcntl.LOCK_EX)
                is_locked = True
        try:
            yield
        finally:
            if is_locked:
                fcntl.lockf(self._stream, fcntl.LOCK_UN)


def end_with(parent: int, number: int) -> None:
    """Have this process, and what it becomes, get a signal once its parent has ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)  # it was faster


def run(command: list[str], streams: list[Lines]) -> int:
    """Run a command to its end; its exit code, or the number of a signal below 0."""
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    child = os.fork()
    if child == 0:
        end_with(parent, signal.SIGKILL)
        for number, lines in enumerate(streams, start=1):
            os.dup2(lines.command_end, number)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        replace(command)
    for lines in streams:
        os.close(lines.command_end)
    signals = _signals()
    code = None
    while code is None:
        by_source = {lines.source: lines for lines in streams if lines.is_open}
        soonest = min((lines.patience_ends for lines in streams), default=_NEVER)
        wait = None if soonest == _NEVER else max(0.0, soonest - time.monotonic())
        ready = select.select([signals, *by_source], [], [], wait)[0]
        for lines in (by_source[source] for source in ready if source != signals):
            lines.pass_on()
        for lines in streams:
            if lines.patience_ends <= time.monotonic():
                lines.write_unfinished()
        if signals in ready:
            code = _take(os.read(signals, _SIGINFO.size), child)
    for lines in streams:
        lines.finish()
    return code


def _signals() -> int:
    """A file of the signals that are blocked: other than a handler it tells who sent them."""
    numbers = sum(1 << (number - 1) for number in (*_PASSED_ON, signal.SIGCHLD))
    mask = numbers.to_bytes(8, sys.byteorder).ljust(128, b"\0")  # a sigset_t
    libc = ctypes.CDLL(None, use_errno=True)
    file = libc.signalfd(-1, mask, os.O_CLOEXEC)
    if file < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return file


def _take(siginfo: bytes, child: int) -> int | None:
    """Take a signal; the command's exit code once it has ended."""
    number, _, _, sender = _SIGINFO.unpack(siginfo)
    if number == signal.SIGCHLD:
        ended, status = os.waitpid(child, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None
    # A launcher's is for the group of processes that it makes for a rank: the command has it.
    if sender != os.getppid() or os.getpgrp() != os.getpid():
        os.kill(child, number)
    return None


def end_as(code: int) -> int:
    """End by the signal that has ended the command; return an exit code as it is."""
    if code < 0:
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0)  # a core there is already
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    return code


def replace(command: list[str]) -> None:
    """Become the command; 127 if there is none, as in a shell."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores them, and what it becomes would
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
    if command[0] == "--prefix":
        end_with(os.getppid(), signal.SIGTERM)
        # To a pipe Python writes when it has some KB. Horovod's launcher sets this, too.
        os.environ.setdefault("PYTHONUNBUFFERED", "1")
        prefix = f"[rank{_rank_and_size()[0]}]:".encode()
        return end_as(run(command[1:], [Lines(stream, prefix) for stream in (1, 2)]))
    if command[0] == "--output":
        try:
            redirect(command[1])
        except OSError as error:  # on another host; on its own, hvdrun has looked
            sys.exit(f"hvdrun: --output-filename {command[1]}: {error}")
        del command[:2]
    if command[0] != "--abort":
        replace(command)
    code = run(command[1:], [])
    if code < 0:  # mpirun would say nothing of it
        text = f"hvdrun: rank {_rank_and_size()[0]} was ended by signal {-code}"
        print(text, file=sys.stderr, flush=True)
        code = 128 - code
    if code and "PMI_FD" in os.environ:
        with contextlib.suppress(OSError):  # mpirun is about to end the job anyway
            os.write(int(os.environ["PMI_FD"]), f"cmd=abort exitcode={code}\n".encode())
            signal.sigwait(_PASSED_ON)  # it ends this process; the first code it sees is the job's
    return code


if __name__ == "__main__":
    sys.exit(main())

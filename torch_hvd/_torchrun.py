"""torchrun in this process, with the exit code of the rank that failed first: its own is 1."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Sequence

from torch.distributed import run as torch_run
from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def _run(arguments: Sequence[str]) -> None:
    try:
        # Ranks that torch's `record` decorates write there what they failed of; torchrun would
        # leave it behind.
        with tempfile.TemporaryDirectory(prefix="hvdrun-") as folder:
            torch_run.run(torch_run.parse_args(["--log-dir", folder, *arguments]))
    finally:
        # All ranks are gone, and what is left to say may have no reader, as with `2>&1 | head`.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def run(arguments: Sequence[str]) -> int:
    """Run `torchrun` with `arguments` to its end; its ranks are gone when this returns."""
    try:
        _run(arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        code = failure.exitcode
        how = f"exited with code {code}" if code > 0 else f"was ended by signal {-code}"
        print(f"hvdrun: rank {rank} {how}", file=sys.stderr)
        return code if code > 0 else 128 - code
    except OSError as error:  # nothing could be started
        what = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"hvdrun: {what}", file=sys.stderr)
        return 127
    except SignalException as error:
        return 128 + error.sigval
    return 0

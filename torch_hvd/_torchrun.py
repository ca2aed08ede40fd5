"""torchrun in this process, with the exit code of the rank that failed first: its own is 1."""

from __future__ import annotations

import io
import logging
import sys
import tempfile
from collections.abc import Sequence

from torch.distributed import run as torch_run
from torch.distributed.elastic.multiprocessing import SignalException, tail_log
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def _is_of_note(record: logging.LogRecord) -> bool:
    """Whether it is more than that nobody reads what ranks print any longer, as with `| head`."""
    return not record.exc_info or not isinstance(record.exc_info[1], BrokenPipeError)


def run(arguments: Sequence[str]) -> int:
    """Run `torchrun` with `arguments` to its end; its ranks are gone when this returns."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # torchrun does not flush what ranks print
    tail_log.logger.addFilter(_is_of_note)
    try:
        # What ranks print goes through files, which torchrun would leave behind.
        with tempfile.TemporaryDirectory(prefix="hvdrun-") as folder:
            torch_run.run(torch_run.parse_args(["--log-dir", folder, *arguments]))
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

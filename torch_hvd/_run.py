"""`torch_hvd.run`: call a function on several ranks, as `horovod.run` does.

The ranks run `python -m torch_hvd._run FOLDER`. The call and the results are files in that folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import operator
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch_hvd._translate import RANK

_CALL = "call"


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    np: int = 1,
    *,
    options: Sequence[str] = (),
) -> list[Any]:
    """Call `fn(*args, **kwargs)` on `np` ranks of this host and return its results by rank.

    `fn` finds RANK and all else set, and calls `init_process_group("hvd")` itself. It, its
    arguments and its results are pickled: by cloudpickle where that is installed; else `fn` must
    be at the top of a module other than the program itself.

    Args:
        options: more for hvdrun, such as "--mpi" or "--compression=int8".

    Raises:
        RuntimeError: a rank raised or ended; has the traceback of the first that did, or hvdrun's
            exit code and which ranks have no result.
        TypeError: `np` is no whole number, or `options` one text.
        ValueError: `np` is less than 1, or `fn` cannot be pickled.
    """
    np = operator.index(np)
    if np < 1:
        raise ValueError(f"np is {np}; allowed is 1 or more ranks")
    if isinstance(options, str):
        raise TypeError(f"options is {options!r}; allowed is a list of texts, as [{options!r}]")
    with tempfile.TemporaryDirectory(prefix="hvdrun-") as folder:
        Path(folder, _CALL).write_bytes(_pickled(fn, tuple(args), dict(kwargs or {})))
        # A signal that ends this process gives it no time to end the job.
        tied = [sys.executable, "-I", str(RANK), "--with", str(os.getpid())]
        hvdrun = [*tied, sys.executable, "-m", "torch_hvd.hvdrun", "-np", str(np), *options]
        task = [sys.executable, "-m", "torch_hvd._run", folder]
        with subprocess.Popen([*hvdrun, *task]) as job:
            try:
                code = job.wait()
            except BaseException:
                job.terminate()  # and not kill: it takes its ranks along
                raise
        return _results(Path(folder), np, code)


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    # What the ranks import, they shall find where we do.
    paths = pickle.dumps(sys.path)
    pickler = _pickler()
    if pickler is pickle and getattr(fn, "__module__", None) == "__main__":
        raise ValueError(
            f"{fn!r} is part of the program itself, where ranks cannot import it from: move it to "
            "a module, or pip install cloudpickle"
        )
    try:
        return paths + bytes(pickler.dumps((fn, args, kwargs)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"{fn!r} with its arguments cannot be pickled: {error}") from error


def _pickler() -> Any:
    """cloudpickle where it is installed, else pickle."""
    is_there = importlib.util.find_spec("cloudpickle")
    return importlib.import_module("cloudpickle") if is_there else pickle


def _results(folder: Path, size: int, code: int) -> list[Any]:
    files = [folder / f"result.{rank}" for rank in range(size)]
    answers = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    failed = [
        (files[rank].stat().st_mtime_ns, rank, answer[1])
        for rank, answer in enumerate(answers)
        if answer is not None and not answer[0]
    ]
    if failed:  # the others may have failed of what the first did
        _, rank, error = min(failed)
        raise RuntimeError(f"rank {rank} raised:\n{error}")
    silent = [str(rank) for rank, answer in enumerate(answers) if answer is None]
    if code or silent:
        without = f", without a result of rank {', '.join(silent)}" if silent else ""
        raise RuntimeError(f"hvdrun ended with exit code {code}{without}")
    return [answer[1] for answer in answers if answer is not None]


def _answer(folder: Path) -> bool:
    """Make the call and write its result, or its traceback; whether it is a result."""
    with (folder / _CALL).open("rb") as call:
        sys.path[:] = pickle.load(call)
        returned = True
        try:
            fn, args, kwargs = pickle.load(call)
            answer = _pickler().dumps((True, fn(*args, **kwargs)))
        except Exception:
            traceback.print_exc()
            returned = False
            answer = pickle.dumps((False, traceback.format_exc()))
    result = folder / f"result.{os.environ['RANK']}"
    partial = folder / f"partial.{os.environ['RANK']}"
    partial.write_bytes(answer)
    partial.rename(result)  # so that a rank that is killed leaves none, or all of it
    return returned


if __name__ == "__main__":
    sys.exit(0 if _answer(Path(sys.argv[1])) else 1)

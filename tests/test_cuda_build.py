"""When the build makes `torch_hvd._cuda`, and what it says where it does not."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parent.parent


def load(name: str) -> ModuleType:
    """A module of the folder build_backend, which is on no path."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "build_backend" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cuda_build = load("cuda_build")


@pytest.fixture
def toolkit(tmp_path: Path) -> Path:
    """A toolkit of CUDA 13.0 with an nvcc that answers questions."""
    home = tmp_path / "toolkit"
    (home / "bin").mkdir(parents=True)
    (home / "lib").mkdir()
    (home / "lib" / "libcudart.so.13").touch()
    nvcc = home / "bin" / "nvcc"
    nvcc.write_text(
        f"""#!/bin/sh
case $1 in
  --version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
  --dryrun) echo "#$ TOP={home}/bin/.." >&2 ;;
  --list-gpu-arch) echo "compute_75 compute_80 compute_86 compute_90" ;;
esac
"""
    )
    nvcc.chmod(0o755)
    return home


def test_the_toolkit_of_cuda_home(toolkit: Path) -> None:
    found = cuda_build.decide("13.2", {"CUDA_HOME": str(toolkit)})
    assert found == (toolkit, "13.0")
    assert cuda_build.runtime(found) == (toolkit / "lib", "libcudart.so.13")
    assert cuda_build.architectures(found) == "7.5+PTX;8.0;9.0"


def test_the_toolkit_that_an_nvcc_on_the_path_belongs_to(
    toolkit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a script elsewhere that calls the real one."""
    script = tmp_path / "nvcc"
    script.write_text(f'#!/bin/sh\nexec {toolkit}/bin/nvcc "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert cuda_build.decide("13.2", {}).home == toolkit


def test_no_nvcc(tmp_path: Path) -> None:
    environment = {"CUDA_HOME": str(tmp_path)}
    reason = f"there is no {tmp_path}/bin/nvcc: set CUDA_HOME"
    assert cuda_build.decide("13.2", environment) == reason


@pytest.mark.parametrize(
    ("torch_cuda", "reason"),
    [
        (None, "this torch is built without CUDA"),
        ("12.8", "this torch is built with CUDA 12.8, but nvcc in .* is 13.0"),
    ],
)
def test_what_is_lacking(toolkit: Path, torch_cuda: str | None, reason: str) -> None:
    environment = {"CUDA_HOME": str(toolkit)}
    said = cuda_build.decide(torch_cuda, environment)
    with pytest.raises(SystemExit, match=f"HVD_BUILD_CUDA=1, but {reason}") as demanded:
        cuda_build.decide(torch_cuda, environment | {"HVD_BUILD_CUDA": "1"})
    assert str(demanded.value) == f"HVD_BUILD_CUDA=1, but {said}"
    assert "\n" not in said


def test_it_can_be_forbidden(toolkit: Path) -> None:
    environment = {"CUDA_HOME": str(toolkit), "HVD_BUILD_CUDA": "0"}
    assert cuda_build.decide("13.2", environment) == "HVD_BUILD_CUDA was 0"
    with pytest.raises(SystemExit, match="HVD_BUILD_CUDA=yes; allowed are 0 and 1"):
        cuda_build.decide("13.2", environment | {"HVD_BUILD_CUDA": "yes"})


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch is a CUDA build")
def test_pip_says_what_is_lacking() -> None:
    options = ("--dry-run", "--no-deps", "--no-build-isolation")
    ran = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "."],
        cwd=ROOT,
        env={**os.environ, "HVD_BUILD_CUDA": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode != 0
    said = "HVD_BUILD_CUDA=1, but this torch is built without CUDA"
    assert said in [line.strip() for line in (ran.stdout + ran.stderr).splitlines()]


def test_a_report_of_this_build() -> None:
    from torch_hvd import _build

    report = subprocess.check_output([sys.executable, "-m", "torch_hvd"], text=True, cwd=ROOT)
    (line,) = [line for line in report.splitlines() if line.split()[:1] == ["_cuda"]]
    assert _build.CUDA in line
    assert _build.CUDA.startswith("no") == (torch.version.cuda is None) or "nvcc" in line

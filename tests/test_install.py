"""The package as users get it: sdist, `pip install .`, wheel, and a script outside the clone.

A fresh environment with a torch of its own takes gigabytes. Here it is a new venv that finds, after
its own packages, those of the interpreter that runs the tests. That may be one without torch_hvd:

    pytest --noconftest -m slow tests/test_install.py
"""

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest
import setuptools
import torch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

ROOT = Path(__file__).parent.parent
MINOR = ".".join(torch.__version__.split(".")[:2])


def run(*command: str | Path, folder: Path, **environment: str) -> str:
    """Return what the command prints; a failure shows both of its streams."""
    ran = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert ran.returncode == 0, f"{command} exited {ran.returncode}\n{ran.stdout}"
    return ran.stdout


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, unpacked: all that a build may need, and nothing that was built here."""
    folder = tmp_path_factory.mktemp("sdist")
    build = f"import installed_torch; print(installed_torch.build_sdist({str(folder)!r}))"
    run(sys.executable, "-c", build, folder=ROOT, PYTHONPATH=str(ROOT / "build_backend"))
    (archive,) = folder.glob("torch_hvd-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment."""
    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, symlinks=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).parent.parent))
    return environment / "bin" / "python"


@pytest.fixture(scope="module")
def wheel(sources: Path, python: Path) -> Path:
    command = ("pip", "wheel", "--no-deps", "--wheel-dir", "dist", ".")
    run(python, "-m", *command, folder=sources, HVD_BUILD_CUDA="0")
    (wheel,) = sources.glob("dist/*.whl")
    return wheel


def test_the_sdist_holds_sources_and_nothing_built(sources: Path) -> None:
    files = {path.relative_to(sources).as_posix() for path in sources.rglob("*") if path.is_file()}
    ours = [ROOT / "setup.py", ROOT / "LICENSE", *ROOT.glob("build_backend/*.py")]
    ours += [path for path in ROOT.glob("csrc/**/*") if path.is_file()]
    ours += ROOT.glob("torch_hvd/*.pyi")
    assert {path.relative_to(ROOT).as_posix() for path in ours} <= files
    assert [name for name in files if name.endswith((".so", ".pyc", "/_build.py"))] == []


def test_the_wheel_is_small_and_pins_the_minor_of_torch(wheel: Path) -> None:
    assert wheel.stat().st_size < 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        metadata = message_from_bytes(archive.read(name))
        (built,) = (name for name in archive.namelist() if name.endswith(".so"))
        module = archive.read(built)
    required = [line for line in metadata.get_all("Requires-Dist", []) if "extra" not in line]
    assert required == [f"torch=={MINOR}.*"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert b".debug_info" not in module


def test_pip_install_then_an_unmodified_script(sources: Path, python: Path, wheel: Path) -> None:
    del wheel  # built first: its objects are used again
    run(python, "-m", "pip", "install", ".", folder=sources)
    outside = python.parent.parent
    (outside / "script.py").write_text((ROOT / "tests" / "stock_script.py").read_text())
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    hvdrun = str(python.parent / "hvdrun")
    for launch in ((str(python), *torchrun), (hvdrun, "-np", "2", str(python))):
        printed = run(*launch, "script.py", folder=outside)
        assert sorted(re.findall(r"rank . of .: hvd", printed)) == [
            "rank 0 of 2: hvd",
            "rank 1 of 2: hvd",
        ]
    where = run(python, "-c", "import torch_hvd; print(torch_hvd.__file__)", folder=outside)
    assert Path(where.strip()).is_relative_to(outside)
    cuda = run(python, "-c", "from torch_hvd import _build; print(_build.CUDA)", folder=outside)
    if cuda.startswith("yes"):
        run(python, "-c", "from torch_hvd import _cuda", folder=outside)


def test_the_build_asks_for_torch_only_where_there_is_none(tmp_path: Path, python: Path) -> None:
    ask = "import installed_torch; print(installed_torch.get_requires_for_build_wheel())"
    for package in ("setuptools", "_distutils_hack"):
        (tmp_path / package).symlink_to(Path(setuptools.__file__).parent.parent / package)
    path = os.pathsep.join([str(ROOT / "build_backend"), str(tmp_path)])
    venv.create(tmp_path / "bare", symlinks=True)
    bare = tmp_path / "bare" / "bin" / "python"
    assert run(python, "-c", ask, folder=tmp_path, PYTHONPATH=path) == "[]\n"
    assert run(bare, "-c", ask, folder=tmp_path, PYTHONPATH=path) == "['torch>=2.13,<2.16']\n"

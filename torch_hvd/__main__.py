"""`python -m torch_hvd`: how this copy was built, what it finds here, and what it would do."""

import os
import platform
import signal
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

import torch
import torch.distributed as dist

import torch_hvd
from torch_hvd import launchers

Fact = tuple[str, str]


def _versions() -> Iterator[Fact]:
    yield "torch_hvd", f"{torch_hvd.__version__} in {Path(torch_hvd.__file__).parent}"
    yield "torch", str(torch.__version__)
    yield "Python", f"{platform.python_version()} on {platform.platform()}"


def _modules() -> Iterator[Fact]:
    try:
        from torch_hvd import _build, _load

        assert _load._C
        yield "_C", f"yes: torch {_build.TORCH_VERSION}, {_build.COMPILER}"
    except ImportError as error:
        yield "_C", f"no: {error}"
    yield "_cuda", _cuda()


def _cuda() -> str:
    try:
        from torch_hvd import _build

        if _build.CUDA.startswith("no"):
            return _build.CUDA
        from torch_hvd import _cuda

        assert _cuda
    except ImportError as error:
        return f"no: {error}"
    gpus = torch.cuda.device_count()
    names = ", ".join(torch.cuda.get_device_name(gpu) for gpu in range(gpus))
    return f"{_build.CUDA}; {f'{gpus} GPU: {names}' if gpus else 'no GPU here'}"


def _machine() -> Iterator[Fact]:
    yield "cores", f"{len(os.sched_getaffinity(0))}"
    try:
        from torch_hvd._load import _C

        yield "codecs", f"{_C.simd()}, of {', '.join(_C.simd_names())}"
    except ImportError:
        yield "codecs", "unknown: no _C"


def _shared_memory() -> str:
    try:
        from torch_hvd import _settings, _shm

        os.close(os.memfd_create("hvd-probe"))
        if not _settings.may_attach(os.environ):
            return "yes, without cross-memory attach: HVD_CMA is 0"
        if not _shm.can_attach():
            return "yes, without cross-memory attach: the system does not allow it"
        return "yes, with cross-memory attach"
    except (ImportError, OSError, ValueError) as error:
        return f"no: {error}"


def _mpi() -> str:
    try:
        from torch_hvd import _mpi
        from torch_hvd._load import _C

        library = _C.open_mpi(_mpi.candidates(os.environ))
    except (ImportError, ValueError) as error:
        return f"no: {error}"
    try:
        awareness = "" if _mpi.is_cuda_aware(library.path, os.environ) else "not "
    except ValueError as error:
        awareness = f"{error}, so perhaps not "
    text = f"yes: {library.name}, {library.abi}, {library.path}; {awareness}CUDA-aware"
    return text if library.speaks_pmi else f"{text}; only under mpirun"


def _nccl() -> str:
    try:
        from torch_hvd import _nccl

        lacks = _nccl.lacks()
    except ImportError as error:
        return f"no: {error}"
    return f"no: {lacks}" if lacks else "yes, for tensors on GPUs"


def _tcp() -> str:
    try:
        from torch_hvd import _addresses

        return f"yes, {_addresses.describe(_addresses.for_peers([0, 1]))}"
    except OSError as error:
        return f"no: {error}"


def _transports() -> Iterator[Fact]:
    if dist.is_available() and dist.is_gloo_available():
        yield "gloo", "yes"
    else:
        yield "gloo", "no: this torch is built without it; install a torch wheel from PyPI"
    yield "shm", _shared_memory()
    yield "tcp", _tcp()
    yield "mpi", _mpi()
    yield "nccl", _nccl()


def _registration() -> Iterator[Fact]:
    if not dist.is_available():
        yield "import torch", "no: this torch is built without torch.distributed"
    elif not entry_points(group="torch.backends", name="hvd"):
        yield "import torch", "no: no entry point; run `pip install .`, or `import torch_hvd` first"
    elif os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        yield "import torch", "no: TORCH_DEVICE_BACKEND_AUTOLOAD is off; `import torch_hvd` first"
    else:
        yield "import torch", "yes"


def _launcher() -> Iterator[Fact]:
    try:
        launch = launchers.find(os.environ, launchers.launcher_process)
        place = f"{launch.launcher}, rank {launch.rank} of {launch.size}" if launch else "none"
        yield "launcher", place
    except ValueError as error:
        yield "launcher", str(error)
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        yield name, os.environ.get(name, "not set")


def _settings() -> Iterator[Fact]:
    try:
        from torch_hvd import Options, _settings

        yield from _settings.table(Options(), os.environ)
        yield from _settings.other_variables(os.environ)
        yield from _settings.unknown_variables(os.environ)
    except ImportError as error:
        yield "settings", f"unknown: {error}"


def main() -> None:
    sections = {
        "versions": _versions(),
        "modules built": _modules(),
        "this machine": _machine(),
        "transports usable": _transports(),
        "registered by": _registration(),
        "started by": _launcher(),
        "settings": _settings(),
    }
    for title, facts in sections.items():
        print(title)
        for name, value in facts:
            print(f"  {name:25}  {value}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `| head` ends it, without a traceback
    main()

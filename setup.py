"""The part of the build that depends on torch: the extension modules and the pin to torch's minor.

pyproject.toml says the rest.
"""

import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler, include_paths

ROOT = Path(__file__).parent
sys.path.append(str(ROOT / "build_backend"))

import cuda_build  # noqa: E402

# Named by -isystem as well as by -I, headers that are not ours cannot warn.
FOREIGN_HEADERS = [f"-isystem{path}" for path in [*include_paths(), sysconfig.get_path("include")]]
WARNINGS = ["-Wall", "-Wextra"]
# NDEBUG, which torch's headers look at, comes with Python's own flags, but not where CFLAGS is set.
FLAGS = ["-O2", "-g0", "-DNDEBUG", "-std=c++20", "-fvisibility=hidden", *WARNINGS, *FOREIGN_HEADERS]

# Without it GCC makes no vectors of loops that compare floats. Nothing here reads what it gives up,
# the processor's record of exceptions; on x86 the codecs have loops of their own.
PLAIN_LOOPS = [] if platform.machine() == "x86_64" else ["-fno-trapping-math"]

os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))
# torch looks for ninja here, where an environment that is not activated keeps its own.
os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")


def sources(*suffixes: str, cuda: bool) -> list[str]:
    """The files below csrc/ of one of the two modules."""
    paths = [path.relative_to(ROOT) for path in (ROOT / "csrc").rglob("*")]
    mine = [path for path in paths if path.suffix in suffixes and ("cuda" in path.parts) == cuda]
    return sorted(path.as_posix() for path in mine)


def main_module() -> Extension:
    """`torch_hvd._C`."""
    return CppExtension(
        "torch_hvd._C",
        sources(".cpp", cuda=False),
        include_dirs=[str(ROOT / "csrc")],
        # -ffp-contract: the same bits from every instruction set.
        extra_compile_args={"cxx": [*FLAGS, *PLAIN_LOOPS, "-ffp-contract=off"]},
        extra_link_args=["-Wl,-s,--gc-sections"],
    )


def cuda_module(nvcc: cuda_build.Nvcc) -> Extension:
    """`torch_hvd._cuda`, which uses nothing of torch but pybind11's headers."""
    cpp_extension.CUDA_HOME = str(nvcc.home)
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", cuda_build.architectures(nvcc))
    folder, runtime = cuda_build.runtime(nvcc)
    smaller = ["--compress-mode=size"] if int(nvcc.version.split(".")[0]) >= 13 else []
    return Extension(
        "torch_hvd._cuda",
        sources(".cpp", ".cu", cuda=True),
        language="c++",
        include_dirs=[str(ROOT / "csrc"), *include_paths()],
        extra_compile_args={
            "cxx": FLAGS,
            "nvcc": [
                "-O3",
                "-std=c++20",
                *smaller,
                f"--compiler-options=-fvisibility=hidden,{','.join(WARNINGS)}",
            ],
        },
        extra_link_args=["-Wl,-s", f"-L{folder}", f"-l:{runtime}"],
    )


if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
    sys.exit(f"torch_hvd needs PyTorch 2.13 or newer; here is {torch.__version__}")
NVCC = cuda_build.decide(torch.version.cuda, os.environ)
if isinstance(NVCC, str):
    print(f"torch_hvd._cuda is not built: {NVCC}")
    MODULES = [main_module()]
    CUDA = f"no: {NVCC}"
else:
    MODULES = [main_module(), cuda_module(NVCC)]
    CUDA = f"yes: CUDA {NVCC.version}, {os.environ['TORCH_CUDA_ARCH_LIST']}"


class BuildNativeModules(BuildExtension):
    """Compiles the modules and writes `_build.py`, the facts of the build, beside them."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Kept between builds, and apart for each torch and Python: a rebuild compiles only what
        # changed and never links objects of another torch.
        mode = "editable" if self.editable_mode else "release"
        tag = f"{mode}-torch{torch.__version__}-{sysconfig.get_config_var('SOABI')}"
        self.build_temp = str(ROOT / "build" / tag)
        self.force = True

    def precompile(self) -> None:
        """Has the compiler read torch's headers once, not once for each source of `_C`.

        A compiler to which the file means nothing, or other flags, reads them as before.
        """
        header = Path(self.build_temp) / "precompiled.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        compiled = header.with_suffix(".h.gch")
        extension = self.extensions[0]
        flags = [
            *self.compiler.compiler_so[1:],
            *(f"-I{path}" for path in extension.include_dirs),
            *extension.extra_compile_args["cxx"],
        ]
        # With other flags than those of the sources it would be of no use.
        text = f"// {flags}\n" + (ROOT / "csrc" / "precompiled.h").read_text()
        if not header.exists() or header.read_text() != text:
            header.write_text(text)
            command = [get_cxx_compiler(), "-x", "c++-header", *flags, header, "-o", compiled]
            subprocess.run(command, check=False)
        extension.extra_compile_args["cxx"] += ["-include", str(header)]

    def build_extensions(self) -> None:
        self.precompile()
        super().build_extensions()

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # some 400 MB
            (Path(self.build_temp) / "precompiled.h").unlink()
            (Path(self.build_temp) / "precompiled.h.gch").unlink(missing_ok=True)
        compiler = subprocess.check_output([get_cxx_compiler(), "--version"], text=True)
        facts = Path(self.get_ext_fullpath("torch_hvd._C")).with_name("_build.py")
        facts.write_text(
            f"TORCH_VERSION = {str(torch.__version__)!r}\n"
            f"COMPILER = {compiler.splitlines()[0]!r}\n"
            f"CUDA = {CUDA!r}\n"
        )


setup(
    install_requires=[f"torch=={'.'.join(torch.__version__.split('.')[:2])}.*"],
    ext_modules=MODULES,
    cmdclass={"build_ext": BuildNativeModules},
)

"""The part of the build that depends on torch: the extension module and the pin to torch's minor.

pyproject.toml says the rest.
"""

import os
import subprocess
import sysconfig
from pathlib import Path

import torch
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension, get_cxx_compiler, include_paths

ROOT = Path(__file__).parent
SOURCES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "csrc").rglob("*.cpp")
    if "cuda" not in path.relative_to(ROOT).parts
)
# Named by -isystem as well as by -I, headers that are not ours cannot warn.
FOREIGN_HEADERS = [*include_paths(), sysconfig.get_path("include")]

os.environ.setdefault("MAX_JOBS", str(len(os.sched_getaffinity(0))))
# torch looks for ninja here, where an environment that is not activated keeps its own.
os.environ["PATH"] += os.pathsep + sysconfig.get_path("scripts")


class BuildNativeModules(BuildExtension):
    """Compiles `_C` and writes `_build.py`, the facts of the build, beside it."""

    def finalize_options(self) -> None:
        super().finalize_options()
        # Kept between builds, and apart for each torch and Python: a rebuild compiles only what
        # changed and never links objects of another torch.
        mode = "editable" if self.editable_mode else "release"
        tag = f"{mode}-torch{torch.__version__}-{sysconfig.get_config_var('SOABI')}"
        self.build_temp = str(ROOT / "build" / tag)
        self.force = True
        if self.editable_mode:
            # A warning stops who edits the sources, not who installs them with a newer compiler.
            for extension in self.extensions:
                extension.extra_compile_args.append("-Werror")

    def precompile(self) -> None:
        """Has the compiler read torch's headers once, not once for each source.

        A compiler to which the file means nothing, or other flags, reads them as before.
        """
        header = Path(self.build_temp) / "precompiled.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        compiled = header.with_suffix(".h.gch")
        (extension,) = self.extensions
        flags = [
            *self.compiler.compiler_so[1:],
            *(f"-I{path}" for path in extension.include_dirs),
            *extension.extra_compile_args,
        ]
        # With other flags than those of the sources it would be of no use.
        text = f"// {flags}\n" + (ROOT / "csrc" / "precompiled.h").read_text()
        if not header.exists() or header.read_text() != text:
            header.write_text(text)
            command = [get_cxx_compiler(), "-x", "c++-header", *flags, header, "-o", compiled]
            subprocess.run(command, check=False)
        extension.extra_compile_args += ["-include", str(header)]

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
            f"TORCH_VERSION = {str(torch.__version__)!r}\nCOMPILER = {compiler.splitlines()[0]!r}\n"
        )


setup(
    install_requires=[f"torch=={'.'.join(torch.__version__.split('.')[:2])}.*"],
    ext_modules=[
        CppExtension(
            "torch_hvd._C",
            SOURCES,
            include_dirs=[str(ROOT / "csrc")],
            extra_compile_args=[
                "-O3",
                "-g0",
                "-std=c++20",
                "-ffp-contract=off",  # the same bits from every instruction set
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
                *(f"-isystem{path}" for path in FOREIGN_HEADERS),
            ],
            extra_link_args=["-Wl,-s"],
        )
    ],
    cmdclass={"build_ext": BuildNativeModules},
)

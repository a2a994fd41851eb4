# SPDX-License-Identifier: Apache-2.0
"""A wheel with libgradus.so and the command of a finished build: `build` at the root of the
sources, or the folder that GRADUS_BUILD_DIR names. Its tag says the glibc that both need; nothing
is compiled here."""
import os
import pathlib
import platform
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

BUILD = pathlib.Path(os.environ.get("GRADUS_BUILD_DIR",
                                    pathlib.Path(__file__).resolve().parent.parent / "build"))
BINARIES = {"libgradus.so": "libgradus.so", "gradus": "bin/gradus"}  # there: here


def glibc():
    """The newest 2.N whose symbols the binaries need."""
    return max(int(number) for name in BINARIES
               for number in re.findall(rb"\0GLIBC_2\.(\d+)(?=[.\0])", (BUILD / name).read_bytes()))


class BuildWithBinaries(build_py):
    def run(self):
        super().run()
        for name, place in BINARIES.items():
            if not (BUILD / name).exists():
                raise SystemExit(f"{BUILD / name} does not exist; build Gradus first (cmake --build"
                                 " --preset release), or set GRADUS_BUILD_DIR to a build's folder")
            target = pathlib.Path(self.build_lib, "gradus", place)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(BUILD / name, target)
            target.chmod(0o755)
            if shutil.which("strip"):
                subprocess.run(["strip", "--strip-debug", target], check=True)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True  # it belongs to one kind of machine


class TaggedWheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", f"manylinux_2_{glibc()}_{platform.machine()}"


setup(distclass=BinaryDistribution,
      cmdclass={"build_py": BuildWithBinaries, "bdist_wheel": TaggedWheel})

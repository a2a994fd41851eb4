# SPDX-License-Identifier: Apache-2.0
"""The wheel: built without a network, installed into a fresh environment, the first lines of the
page."""
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from conftest import SOURCE

pytest.importorskip("setuptools")
pytest.importorskip("wheel")
pytest.importorskip("pip")


def copy_package(folder):
    """The build writes beside its sources. Byte code that others write or replace stays there."""
    shutil.copytree(SOURCE / "python", folder / "python",
                    ignore=shutil.ignore_patterns("__pycache__"))


def clean(environment):
    """Without what would find the package elsewhere."""
    return {name: value for name, value in environment.items()
            if name not in ("PYTHONPATH", "LIBGRADUS")}


def test_wheel_installs_and_runs_the_lines_of_the_page(gradus, tmp_path):
    copy_package(tmp_path)
    env = gradus.environment({"GRADUS_BUILD_DIR": str(gradus.build), "PIP_NO_INDEX": "1",
                              "PIP_DISABLE_PIP_VERSION_CHECK": "1"})

    def run(*words, env=env):
        done = subprocess.run([*map(str, words)], env=env, cwd=tmp_path, capture_output=True,
                              text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", ".",
        "./python", "./python/horovod", "./python/torchrun")
    wheel, = tmp_path.glob("gradus-*.whl")
    tag = re.fullmatch(r"gradus-0\.1\.0-py3-none-manylinux_2_(\d+)_(x86_64|aarch64)\.whl",
                       wheel.name)
    assert tag, wheel.name
    assert int(tag[1]) <= int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"gradus/libgradus.so", "gradus/bin/gradus", "gradus/py.typed", "gradus/jobs.py",
            "gradus/ray.py", "gradus/spark.py", "gradus/keras/callbacks.py",
            "gradus/tensorflow/_ops.py"} <= names
    run(sys.executable, "-m", "venv", "--without-pip", "venv")
    python = tmp_path / "venv" / "bin" / "python3"
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps",
        *tmp_path.glob("*.whl"))
    first = re.search(r"```python\n(.*?)```", (SOURCE / "docs/python.md").read_text(), re.S)[1]
    assert len(first.splitlines()) == 3
    (tmp_path / "three_lines.py").write_text(first)
    bare = clean(gradus.environment())
    out = run(tmp_path / "venv/bin/gradus", "run", "-np", 3, "--", python, "three_lines.py",
              env=bare)
    assert sorted(out.splitlines()) == [f"[{rank}] [0, 1, 2]" for rank in range(3)]
    where = "import gradus, gradus._library as one; print(gradus.__version__, one.lib._name)"
    assert run(python, "-c", where, env=bare).split() == [
        "0.1.0", str(next((tmp_path / "venv").glob("lib/*/site-packages/gradus/libgradus.so")))]
    for words in (["horovodrun", "-np", 1], ["torchrun", "--nproc-per-node", 1, "--no-python"]):
        out = run(tmp_path / "venv/bin" / words[0], *words[1:], "echo", words[0], env=bare)
        assert out.split()[-1] == words[0]


def test_wheel_without_a_build_says_what_to_do(tmp_path):
    copy_package(tmp_path)
    done = subprocess.run([sys.executable, "setup.py", "-q", "build"], cwd=tmp_path / "python",
                          capture_output=True, text=True,
                          env={**os.environ, "GRADUS_BUILD_DIR": "/nowhere"})
    assert done.returncode != 0 and "/nowhere/libgradus.so does not exist; build" in done.stderr

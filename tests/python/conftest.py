# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: programs that run as ranks."""
import functools
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import uuid

import pytest

_path = pathlib.Path(__file__).parent.parent / "blackbox" / "conftest.py"
_spec = importlib.util.spec_from_file_location("blackbox_conftest", _path)
blackbox = importlib.util.module_from_spec(_spec)
sys.modules["blackbox_conftest"] = blackbox
_spec.loader.exec_module(blackbox)
gradus = blackbox.gradus
pytest_configure = blackbox.pytest_configure
SOURCE = blackbox.SOURCE


def pytest_collection_modifyitems(items):
    if blackbox.is_sanitized():
        for item in items:
            item.add_marker(pytest.mark.skip("an interpreter cannot load a sanitized library"))


# What an import of torch reads. The backends that are installed are none of ours.
BEFORE_TORCH = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


class Ranks:
    """Runs a program on so many ranks. `words` begin the command line of each."""

    def __init__(self, gradus, folder, python=sys.executable, words=()):
        self.gradus = gradus
        self.python = python
        self.forked = words
        self.folder = folder
        self.environment = {"LIBGRADUS": gradus.library, "PYTHONPATH": str(SOURCE / "python"),
                            "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}

    @property
    def words(self):
        return self.forked or [self.python]

    def write(self, text):
        path = self.folder / "worker.py"
        path.write_text(textwrap.dedent(text))
        return path

    def __call__(self, count, text, *arguments, code=0, flags=(), timeout=blackbox.TIMEOUT_S):
        """Returns what each rank has written, a list of lines for each."""
        done = self.gradus("run", "-np", count, *flags, "--", *self.words, self.write(text),
                           *arguments, env=self.environment, timeout=timeout)
        assert done.returncode == code, done.stdout + done.stderr
        self.err = done.stderr
        lines = [[] for _ in range(count)]
        for line in done.stdout.splitlines():
            found = re.fullmatch(r"\[(\d+)\] (.*)", line)
            lines[int(found[1])].append(found[2])
        return lines


@pytest.fixture
def ranks(gradus, tmp_path):
    return Ranks(gradus, tmp_path)


@functools.lru_cache(None)
def has(python, module):
    """Whether that interpreter finds a module."""
    text = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", text], check=False, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def named_pythons():
    """The interpreters of GRADUS_PYTHONS."""
    return [path for path in os.environ.get("GRADUS_PYTHONS", "").split(":") if path]


def pythons_with(module, package):
    """Interpreters for a test: this one, and for the long tests those of GRADUS_PYTHONS (paths with
    colons between) that have the module; where there is none a skip that says so."""
    here = [] if has(sys.executable, module) else [pytest.mark.skip(
        f"{module} is not installed ({package})")]
    found = [pytest.param(sys.executable, id="here", marks=here)]
    others = [path for path in named_pythons() if has(path, module)]
    found += [pytest.param(path, id=path, marks=pytest.mark.long) for path in others]
    if not others:
        found.append(pytest.param("", id="others", marks=[pytest.mark.long, pytest.mark.skip(
            f"GRADUS_PYTHONS names no interpreter with {module} (CONTRIBUTING.md)")]))
    return found


def pytest_generate_tests(metafunc):
    if "torch_ranks" in metafunc.fixturenames:
        metafunc.parametrize("torch_ranks", pythons_with("torch", "Debian: python3-torch"),
                             indirect=True)


@pytest.fixture(scope="session")
def fork_server():
    """What begins a command line of an interpreter that has imported torch: fork_server.py."""
    program, servers = pathlib.Path(__file__).parent / "fork_server.py", {}

    def words_of(python):
        if python not in servers:
            name = f"gradus-test-{uuid.uuid4().hex}"
            servers[python] = name, subprocess.Popen(
                [python, program, "--serve", name, "torch"], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, env={**os.environ, **BEFORE_TORCH})
            assert servers[python][1].stdout.readline() == b"ready\n"
        return [python, "-I", "-S", program, servers[python][0]]
    yield words_of
    for _, server in servers.values():
        server.communicate()


@pytest.fixture
def torch_ranks(request, gradus, tmp_path, fork_server):
    python = getattr(request, "param", sys.executable)
    made = Ranks(gradus, tmp_path, python, fork_server(python))
    made.environment.update(BEFORE_TORCH)
    return made

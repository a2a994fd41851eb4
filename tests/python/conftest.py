# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: programs that run as ranks."""
import importlib.util
import pathlib
import re
import sys
import textwrap

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


class Ranks:
    """Runs a program on so many ranks."""

    def __init__(self, gradus, folder):
        self.gradus = gradus
        self.folder = folder
        self.environment = {"LIBGRADUS": gradus.library, "PYTHONPATH": str(SOURCE / "python"),
                            "PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}

    def write(self, text):
        path = self.folder / "worker.py"
        path.write_text(textwrap.dedent(text))
        return path

    def __call__(self, count, text, *arguments, code=0, flags=()):
        """Returns what each rank has written, a list of lines for each."""
        done = self.gradus("run", "-np", count, *flags, "--", sys.executable, self.write(text),
                           *arguments, env=self.environment)
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

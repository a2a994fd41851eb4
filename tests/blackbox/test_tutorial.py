# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md shows the code of its programs, which compile and print what it says."""
import re
import shutil
import subprocess

from conftest import SOURCE, TIMEOUT_S, is_sanitized

PAGE = (SOURCE / "docs/tutorial.md").read_text()
PROGRAMS = SOURCE / "examples/tutorial"


def test_shown_code_is_that_of_its_program():
    shown = re.findall(r"^```c (\S+)\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(shown) >= 7
    for name, code in shown:
        assert code in (PROGRAMS / name).read_text(), (name, code)


def commands():
    """Each command of the page, with the lines that it prints."""
    for block in re.findall(r"^```\n(\$ .*?)^```$", PAGE, re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, printed = part.partition("\n")
            yield command, printed.splitlines()


def normal(line):
    """The launcher may hear of a lost rank when the others are through already."""
    line = line.replace("; the job's work was done", "; the job goes on with 3 workers")
    return re.sub(r"after \d+\.\d s", "after N s", re.sub(r"\(pid \d+\)", "(pid N)", line))


def test_commands_print_what_the_page_shows(gradus, tmp_path):
    for program in PROGRAMS.iterdir():
        shutil.copy(program, tmp_path)
    library = f"-I{SOURCE}/include -L{gradus.build} -lgradus -Wl,-rpath,{gradus.build}"
    if is_sanitized():
        library += " -fsanitize=address,undefined"
    ran = 0
    for command, printed in commands():
        command = command.replace("$(pkg-config --cflags --libs gradus)", library)
        command = re.sub("^gradus ", f"{gradus.program} ", command)
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=gradus.environment(),
                              text=True, capture_output=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, (command, done.stderr)
        lines = [normal(line) for line in (done.stdout + done.stderr).splitlines()]
        assert sorted(lines) == sorted(map(normal, printed)), command
        ran += 1
    assert ran == 9

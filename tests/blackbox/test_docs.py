# SPDX-License-Identifier: Apache-2.0
"""What the documentation says exists: commands, flags, variables, files, tests; and its commands
are understood."""
import re
import shlex
import shutil
import subprocess

import pytest
from conftest import SOURCE, write_digits

PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").glob("*.md"))]
# Of cmake, ctest, pkg-config, py-spy, torchrun, sbatch.
OTHERS_FLAGS = {"--install", "--preset", "--build", "--test-dir", "--cflags", "--libs", "--static",
                "--no-build-isolation", "--system-site-packages", "--no-deps", "--server-side",
                "--pid", "--monitor_interval", "--nproc-per-node", "--no-python", "--nodes",
                "--ntasks", "--open-mode", "--requeue", "--signal", "--from-file"}


def words_of(line):
    """Of a command that stands in a block of its own; what is behind it explains it."""
    return shlex.split(re.split(r"\s#\s|\s{3,}", line)[0])


def commands():
    """All that begin with `gradus`, but for those in which something stands for something else."""
    found = {}
    for page in PAGES:
        block = False
        for number, line in enumerate(page.read_text().splitlines(), 1):
            block ^= line.startswith("```")
            match = re.match(r"(?:[a-z-]+\$ )?(?:build/)?gradus ([a-z].*)", line.strip())
            if match and (block or line.startswith("    ")) and "|" not in line:
                found[f"{page.name}:{number}"] = words_of(match[1])
    return found


@pytest.mark.parametrize("where", commands())
def test_a_command_is_understood(gradus, tmp_path, where):
    """Up to the words that are not its own, where --help stands now."""
    words = commands()[where]
    end = words.index("--") if "--" in words else len(words)
    done = gradus(*words[:end], "--help")
    assert done.returncode == 0 and done.stdout.startswith("usage: "), (words, done.stderr)


ELSEWHERE = {"--", "-H", "--listen", "-f"}  # programs, hosts and manifests that are not there
RUN = [where for where, words in commands().items()
       if words[0] == "simulate" or words[:2] == ["info", "--plan"] or
       (words[0] == "run" and "digits.yaml" not in words and not ELSEWHERE & {*words})]


@pytest.mark.parametrize("where", RUN)
def test_a_command_does_something(gradus, tmp_path, where):
    """Those that need nothing, and job files as far as they are checked before anything starts."""
    words = commands()[where]
    job = write_digits(tmp_path, 40).read_text().replace("shards: 8", "shards: 16")
    if "--servers" in words:
        job = job.replace("  shards: 16", "  strategy: ps\n  shards: 16")
    (tmp_path / "job.yaml").write_text(job)
    text = (SOURCE / "docs/simulate.md").read_text()
    (tmp_path / "cluster.yaml").write_text(re.search(r"```yaml\n(.*?)```", text, re.S)[1])
    (tmp_path / "hosts.sh").write_text("#!/bin/sh\necho localhost:16\n")
    (tmp_path / "hosts.sh").chmod(0o755)
    (tmp_path / "examples").symlink_to(SOURCE / "examples")
    small = ["--hosts", 2, "--ranks-per-host", 2, "--to", "1k"]
    short = {"run": ["--dry-run"], "simulate": small, "info": []}[words[0]]
    done = gradus(*words, *short)
    assert done.returncode == 0 and done.stdout, (words, done.stderr)


def names(pattern, text):
    return set(re.findall(pattern, text))


FLAG, VARIABLE = r"(?<![\w-])--[a-z][a-z0-9_-]+", r"\bGRADUS_[A-Z_]*[A-Z]\b"


@pytest.fixture(scope="module")
def known():
    """Flags and variables that there are; the scripts' own included."""
    reference = (SOURCE / "docs/reference.md").read_text()
    scripts = "".join(path.read_text() for path in [*(SOURCE / "bench").rglob("*.[cp]*"),
                                                    SOURCE / "check", *SOURCE.glob("scripts/*")])
    flags = names(FLAG, reference)
    flags |= {flag.replace("--", "--no-", 1) for flag in flags}
    flags |= names(r'"(--[a-z][a-z-]+)"', scripts) | names(r"[\[|] ?(--[a-z][a-z-]+)", scripts)
    torchrun = (SOURCE / "python/gradus/torchrun.py").read_text()
    flags |= {f"--{name}" for name in re.findall(r'\badd\("([a-z-]+)"', torchrun)}
    settings = reference + (SOURCE / "tests/CMakeLists.txt").read_text()
    settings += (SOURCE / "src/cli/server.c").read_text()  # what a server prints
    return flags | OTHERS_FLAGS | names(VARIABLE, settings + scripts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_names_exists(page, known):
    text = page.read_text()
    if page.name == "coming-from.md":  # the first column has the flags of other launchers
        text = re.sub(r"^\| [^|]* \||^    (horovodrun|torchrun|mpirun) .*", "", text, flags=re.M)
    unknown = (names(FLAG, text) | names(VARIABLE, text)) - known
    assert not unknown
    links = names(r"\]\(([^)#:]+)\)", text)
    assert not [link for link in links if not (page.parent / link).exists()]
    paths = names(r"`((?:src|tests|bench|docs|examples|scripts|include|fuzz)/[\w./*-]+)`", text)
    assert not [path for path in paths if not list(SOURCE.glob(path))]
    tests = {f"{path.parent.name}_{path.stem[5:]}" for path in SOURCE.glob("tests/*/test_*")}
    layers = "|".join(path.name for path in (SOURCE / "tests").iterdir() if path.is_dir())
    # Arguments that look like a test's name.
    arguments = {"ps_out", "train_parameters", "train_specification"}
    assert not names(rf"`((?:{layers})_[a-z_]+)`", text) - tests - arguments


def test_docs_first_job_is_done_as_written(gradus, tmp_path):
    """All commands of the page, in their order, with the job file that it shows."""
    text = (SOURCE / "docs/first-job.md").read_text()
    shutil.copy(SOURCE / "examples/digits/digits.csv.gz", tmp_path)
    (tmp_path / "digits.yaml").write_text(re.search(r"```yaml\n(.*?)```", text, re.S)[1])
    lines = re.findall(r"^    gradus (.*)", text, re.M)
    hashes = set()
    for line in lines:
        done = gradus(*shlex.split(line), cwd=tmp_path)
        assert done.returncode == 0, (line, done.stderr)
        hashes |= names(r"sha256 (\w+)", done.stdout) if line.startswith("run -np") else set()
    assert len(lines) == 5 and len(hashes) == 1
    predictions = (tmp_path / "predictions.csv").read_text().splitlines()
    assert len(predictions) == 1 + 1797


def test_docs_pictures_are_what_the_script_draws(tmp_path):
    subprocess.run([SOURCE / "scripts/make-pictures", tmp_path], check=True)
    drawn = {path.name: path.read_text() for path in tmp_path.glob("*.svg")}
    kept = {path.name: path.read_text() for path in (SOURCE / "docs/pictures").glob("*.svg")}
    assert drawn and drawn == kept, "run scripts/make-pictures"
    pages = "".join(page.read_text() for page in PAGES)
    assert not [name for name in kept if f"(pictures/{name})" not in pages]


LAYERS = sorted(path.parent.name for path in SOURCE.glob("src/*/README.md"))


@pytest.mark.parametrize("layer", LAYERS)
def test_docs_readme_of_a_layer_names_files_that_exist(layer):
    """As from the folder itself, from src/, from include/ or from the top."""
    folders = [SOURCE / "src" / layer, SOURCE / "src", SOURCE / "include", SOURCE]
    text = (SOURCE / "src" / layer / "README.md").read_text()
    files = names(r"`([\w/*.-]+\.(?:[ch]|py|md))`", text)
    assert not [name for name in files
                if not any([*folder.glob(name), *folder.glob(f"*/{name}")] for folder in folders)]

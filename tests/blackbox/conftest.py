# SPDX-License-Identifier: Apache-2.0
"""What the black-box tests share: the built command, and a look at what it leaves behind."""
import contextlib
import json
import itertools
import os
import pathlib
import select
import signal
import subprocess
import sys
import time
import uuid

import pytest

SOURCE = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "bench"))
from processes import Process, marked  # noqa: E402

TIMEOUT_S = float(os.environ.get("GRADUS_TEST_TIMEOUT_S", "60"))  # longer where all is slow
MARK = "GRADUS_TEST_MARK"

# A shell starts what is to run in the background with SIGINT ignored, and so would be all that is
# started here: Ctrl-C would not end a job.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config):
    config.addinivalue_line("markers", "long: too long for ./check; ./check --full runs it")


def wait_until(condition, what, timeout_s=TIMEOUT_S, pause_ms=5):
    """Waits for something that gives no event of its own (the end of a intruder's process). Looks
    that cost much, as those of a command, leave the cores to what is waited for."""
    begin = time.monotonic()
    deadline = begin + timeout_s
    pause = select.poll()
    while not condition():
        now = time.monotonic()
        assert now < deadline, f"waited {timeout_s} s for {what}"
        pause.poll(max(pause_ms, 1000 * (now - begin)))
        begin = time.monotonic()


# --chaos of a job that is to go on for as long as it takes, and to leave the cores to others.
LEISURELY = "slow:rank=0,by=20ms,again"


@contextlib.contextmanager
def unhurried(folder, step=23, by="250ms"):
    """What --chaos is to be so that a job goes on, but is not over before this context is left,
    however busy the machine is: from `step` on (the digits have 22 an epoch) none takes less than
    `by`."""
    over = folder / "over"
    try:
        yield f"slow:rank=0,by={by},again,until={over}@step={step}"
    finally:
        over.touch()


class Gradus:
    """The command, with a mark in its environment by which everything that stems from it is
    found."""

    def __init__(self, folder):
        self.build = pathlib.Path(os.environ["GRADUS_BUILD_DIR"])
        self.source = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])
        self.program = str(self.build / "gradus")
        self.library = str(self.build / "libgradus.so")
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self.settings = {}  # beside what it inherits
        self.started = []

    def environment(self, extra=None):
        names = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                 "MASTER_PORT", "OMP_NUM_THREADS", "NO_COLOR"}
        kept = {name: value for name, value in os.environ.items()
                if name not in names and not name.startswith("GRADUS_")}
        runtime = self.folder.parent / f"{self.folder.name}-runtime"  # where jobs are found
        runtime.mkdir(mode=0o700, exist_ok=True)
        return kept | {MARK: self.mark, "TMPDIR": str(self.folder), "XDG_RUNTIME_DIR": str(runtime),
                       "GRADUS_START_TIMEOUT": f"{TIMEOUT_S}s"} | self.settings | (extra or {})

    def __call__(self, *arguments, env=None, timeout=TIMEOUT_S, text=True, **more):
        """Runs the command to its end."""
        return subprocess.run([self.program, *map(str, arguments)], env=self.environment(env),
                              cwd=more.pop("cwd", self.folder), capture_output=True, text=text,
                              timeout=timeout, stdin=more.pop("stdin", subprocess.DEVNULL), **more)

    def start(self, *arguments, env=None, **more):
        """Starts the command; it is killed when the test ends."""
        process = Process([more.pop("program", self.program), *map(str, arguments)],
                          env=self.environment(env), cwd=more.pop("cwd", self.folder),
                          stdin=more.pop("stdin", subprocess.DEVNULL),
                          stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=more.pop("stderr", subprocess.PIPE),
                          text=more.pop("text", True), **more)
        self.started.append(process)
        return process

    def document(self, *arguments):
        """The job document of these words of `gradus run`, as a file."""
        done = self("run", "--dry-run", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        path = self.folder / f"{uuid.uuid4().hex}.json"
        path.write_text(done.stdout)
        return path

    def start_worker(self, document, env):
        """A worker of a job document, as no launcher would start it."""
        with open(document) as stdin:
            return self.start("worker", stdin=stdin, env=env)

    def remains(self):
        """Processes that stem from this test's commands: pid and name."""
        found = {}
        for pid in marked(MARK, self.mark):
            with contextlib.suppress(OSError):
                found[pid] = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
        found.pop(os.getpid(), None)
        return found

    def named(self, name):
        return [pid for pid, of in self.remains().items() if of == name]

    def kill_supervisors(self):
        """With their deputies, which would go on in their places."""
        deputies, supervisors = self.named("gradus-deputy"), self.named("gradus-job")
        for pids, number in ((deputies, signal.SIGSTOP), (supervisors, signal.SIGKILL),
                             (deputies, signal.SIGKILL)):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        return supervisors

    def wait_for_nothing(self, timeout_s=TIMEOUT_S):
        wait_until(lambda: not self.remains(), f"the end of {self.remains()}", timeout_s)

    def close(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self.kill_supervisors()  # they outlive their launchers
        try:
            self.wait_for_nothing()
        finally:
            for pid in self.remains():
                os.kill(pid, signal.SIGKILL)


def finish(launcher, code=0):
    """Waits for the end of a job, however long that takes where all is slow."""
    out, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == code, out + err
    return out, err


@pytest.fixture
def gradus(request, tmp_path):
    """The command. A module whose tests kill launchers, or look for agents among their children,
    says OUTLIVE = "0"."""
    command = Gradus(tmp_path)
    if hasattr(request.module, "OUTLIVE"):
        command.settings["GRADUS_OUTLIVE"] = request.module.OUTLIVE
    yield command
    command.close()


def write_digits(folder, epochs, eval_every=10):
    """The job file of the digits, for so many epochs."""
    digits = SOURCE / "examples/digits"
    text = (digits / "mlp.yaml").read_text()
    for old, new in (("epochs: 40", f"epochs: {epochs}"),
                     ("eval_every: 10", f"eval_every: {eval_every}"),
                     ("file: digits.csv.gz", f"file: {digits}/digits.csv.gz")):
        assert old in text
        text = text.replace(old, new)
    (folder / "mlp.yaml").write_text(text)
    return folder / "mlp.yaml"


def lines_of(output, *events):
    """What a job wrote of its training, or its lines of these events: the others cost nothing."""
    whole = (output / "metrics.jsonl").read_text().rpartition("\n")[0]  # it may write the next line
    return [json.loads(line) for line in whole.splitlines()
            if not events or any(f'"event":"{event}"' in line for event in events)]


def wait_for_event(output, event, count=1):
    """Until a job has written so many such events of its training, or its end."""
    metrics, wanted = output / "metrics.jsonl", f'"event":"{event}"'

    def is_there():
        told = metrics.read_text() if metrics.exists() else ""
        return told.count(wanted) >= count or '"event":"end"' in told
    wait_until(is_there, f"{count} {event}")


def sha256_of(output):
    """Of the weights that it ended with."""
    return lines_of(output)[-1]["weights_sha256"]


def run_undisturbed(folder, job):
    """The SHA-256 of the weights of workers that nobody disturbs."""
    done = Gradus(folder)("run", "-np", 2 if is_sanitized() else 4, "--output", folder / "out", job,
                          timeout=4 * TIMEOUT_S)  # it is all of the job, at whatever speed
    assert done.returncode == 0, done.stderr
    return sha256_of(folder / "out")


@pytest.fixture(scope="module")
def job(request, tmp_path_factory):
    """The digits, for as many epochs as the module says (EPOCHS, EVAL_EVERY)."""
    return write_digits(tmp_path_factory.mktemp("job"), request.module.EPOCHS,
                        getattr(request.module, "EVAL_EVERY", 10))


@pytest.fixture(scope="module")
def undisturbed(job, tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), job)


@pytest.fixture
def script(tmp_path):
    """Writes a Python program; returns the words that run it."""
    def write(text, name="worker.py"):
        path = tmp_path / name
        path.write_text(text)
        return [sys.executable, "-S", "-E", str(path)]
    return write


def sanitizer_words(library):
    """A library that was built with a sanitizer wants its runtime loaded before everything else."""
    linked = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
    runtimes = [line.split()[2] for line in linked.splitlines()
                if "libasan" in line or "libtsan" in line]
    if not runtimes:
        return []
    # Python's own leaks are not ours.
    return ["env", f"LD_PRELOAD={runtimes[0]}", "ASAN_OPTIONS=detect_leaks=0"]


def preload(gradus, name):
    """The environment in which all that is started loads such a library of the tests first; but a
    sanitizer's runtime wants to be before it."""
    runtime = [word.removeprefix("LD_PRELOAD=") for word in sanitizer_words(gradus.program)
               if word.startswith("LD_PRELOAD=")]
    return {"LD_PRELOAD": ":".join([*runtime, str(gradus.build / f"tests/{name}.so")])}


def is_sanitized():
    """Each run lasts several times as long then."""
    return bool(sanitizer_words(os.environ["GRADUS_BUILD_DIR"] + "/gradus"))


def seeds(count):
    """For parametrize: a quarter of them for ./check, the others only for ./check --full."""
    return [seed if seed % 4 == 0 else pytest.param(seed, marks=pytest.mark.long)
            for seed in range(count)]


def cases(every, *choices):
    """All combinations, for parametrize: each `every`th for ./check, the others only for ./check
    --full. `every` shares no factor with the number of values of any choice, so that ./check has
    each value."""
    return [pytest.param(*case, marks=[pytest.mark.long] if i % every else [])
            for i, case in enumerate(itertools.product(*choices))]


@pytest.fixture
def comm_script(gradus, script):
    """A Python program that finds `create()` in front of it: gr_comm_create of the built
    library."""
    def write(text, name="comm.py"):
        return sanitizer_words(gradus.library) + script(f"""
import ctypes, os, sys
library = ctypes.CDLL({gradus.library!r})
class Diag(ctypes.Structure):
    _fields_ = [("status", ctypes.c_int32), ("peer_rank", ctypes.c_int32),
                ("text", ctypes.c_char * 512)]
comm, diag = ctypes.c_void_p(), Diag()
rank = int(os.environ.get("GRADUS_RANK", -1))
def create():
    status = library.gr_comm_create(None, ctypes.byref(comm), ctypes.byref(diag))
    if status:
        print("create:", diag.text.decode(), file=sys.stderr, flush=True)
        sys.exit(1)
def barrier():
    return library.gr_barrier(comm)
""" + text, name)
    return write


def read_lines(pipe, count, timeout_s=TIMEOUT_S):
    """`count` lines of a process that goes on."""
    lines = []
    for _ in range(count):
        ready, _, _ = select.select([pipe], [], [], timeout_s)
        assert ready, "no output in time"
        line = pipe.readline()
        assert line, f"the output ended after {lines}"
        lines.append(line.rstrip("\n"))
    return lines

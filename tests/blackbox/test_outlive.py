# SPDX-License-Identifier: Apache-2.0
"""Jobs that go on without `gradus run`, and what finds them again: attach, ls, logs, wait,
stop."""
import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import socket
import struct
import subprocess

import pytest
from conftest import (LEISURELY, TIMEOUT_S, finish, lines_of, read_lines, sha256_of, unhurried,
                      wait_for_event, wait_until, write_digits)
from processes import children

EPOCHS = 12
EVAL_EVERY = 1

# Says what it reads from a FIFO that its test holds open, and ends with the code that is written
# there.
ECHO = """
import os, sys
print("up", os.getpid(), flush=True)
for line in open(sys.argv[1]):
    word, _, rest = line.strip().partition(" ")
    if word == "end":
        os._exit(int(rest))
    print(word, rest, file=sys.stderr if word == "err" else sys.stdout, flush=True)
"""


@pytest.fixture
def host(gradus, tmp_path):
    """The command, with a folder of jobs that a test can look into."""
    (tmp_path / "run").mkdir(mode=0o700)
    gradus.settings["XDG_RUNTIME_DIR"] = str(tmp_path / "run")
    yield gradus
    for job in jobs_of(gradus):
        gradus("stop", "--now", job["name"])


def jobs_of(host):
    done = host("ls", "--json")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def workers_of(host):
    return [pid for agent in host.named("gradus-agent") for pid in children(agent)]


def state_of(host, name):
    return next((job["state"] for job in jobs_of(host) if job["name"] == name), None)


def wait_for_state(host, name, *states):
    wait_until(lambda: state_of(host, name) in states, f"{name}: {states}")


def watches_a_process(pid):
    """By a descriptor of it. What is open may be closed while we look."""
    with contextlib.suppress(OSError):
        return any("[pidfd]" in os.readlink(entry.path)
                   for entry in os.scandir(f"/proc/{pid}/fd"))
    return False


def start_waiting(host, name):
    """`gradus wait`, once it has found the job, and waits for the end of its supervisor."""
    process = host.start("wait", name)
    wait_until(lambda: watches_a_process(process.pid), "its look at the job")
    return process


class Echo:
    """A job of one worker that says what it is told."""

    def __init__(self, host, script, tmp_path, *flags):
        self.path = tmp_path / "told"
        os.mkfifo(self.path)
        self.pipe = os.open(self.path, os.O_RDWR)  # so that no open waits
        self.words = ["run", "-np", 1, "--no-prefix", "--name", "echo", *flags, "--",
                      *script(ECHO, "echo.py"), str(self.path)]
        self.launcher = host.start(*self.words)
        self.worker = int(read_lines(self.launcher.stdout, 1)[0].split()[1])
        self.host = host

    def tell(self, line):
        os.write(self.pipe, f"{line}\n".encode())

    def lose_launcher(self):
        """Until its job knows: what is written before goes where the launcher wrote."""
        self.launcher.kill()
        self.launcher.wait(timeout=TIMEOUT_S)
        wait_until(lambda: state_of(self.host, "echo") not in ("running", "busy"), "the loss")


@pytest.fixture
def echo(host, script, tmp_path):
    made = []

    def start(*flags):
        made.append(Echo(host, script, tmp_path, *flags))
        return made[-1]
    yield start
    for one in made:
        os.close(one.pipe)


@contextlib.contextmanager
def behind_the_loss(folder, step):
    """--chaos that kills rank 1 in this step; the others are not through before this context is
    left, however late the supervisor hears of it from the agent."""
    (folder / "behind").mkdir()
    with unhurried(folder / "behind", step + 1) as slow:
        yield f"kill:rank=1@step={step}; {slow}"


def epochs_of(text):
    return [int(number) for number in re.findall(r"^epoch +(\d+)", text, re.M)]


# ---- The launcher is killed ----------------------------------------------------------------------

@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_killed_launcher_changes_no_bit(host, job, undisturbed, tmp_path, link):
    output = tmp_path / "out"
    with unhurried(tmp_path, step=45) as slow:
        launcher = host.start("run", "-np", 4, "--link", link, "--name", "digits", "--output",
                              output, "--chaos", slow, job)
        before = read_lines(launcher.stdout, 3)  # two epochs of 22 steps
        launcher.kill()
        before = "\n".join(before) + "\n" + launcher.communicate(timeout=TIMEOUT_S)[0]
    after = host("attach", "digits")
    assert after.returncode == 0, after.stderr
    assert sha256_of(output) == undisturbed
    text = before + after.stdout
    assert epochs_of(text) == list(range(1, EPOCHS + 1)) and f"sha256 {undisturbed}" in text
    assert jobs_of(host) == [] and not os.listdir(tmp_path / "run/gradus")


def test_output_in_between_comes_first(host, echo):
    job = echo()
    job.tell("out 1")
    assert read_lines(job.launcher.stdout, 1) == ["out 1"]
    job.lose_launcher()
    job.tell("out 2")
    job.tell("err 3")
    wait_until(lambda: "err 3" in host("logs", "echo").stderr, "the log")
    attached = host.start("attach", "echo")
    assert read_lines(attached.stdout, 1) == ["out 2"]
    job.tell("out 4")
    assert read_lines(attached.stdout, 1) == ["out 4"]
    wait_for_state(host, "echo", "running")
    job.tell("end 0")
    out, err = finish(attached)
    assert out == ""
    assert re.fullmatch(
        rf"gradus: warning: launch: the launcher \(process {job.launcher.pid}\) is gone; the job "
        rf"goes on for 600 s \(--outlive\): gradus attach echo\nerr 3\n"
        rf"gradus: warning: launch: process {attached.pid} is the launcher from now on\n", err)


def test_workers_die_and_come_again_without_a_launcher(host, job, undisturbed, tmp_path):
    output = tmp_path / "out"
    with behind_the_loss(tmp_path, 100) as loss:
        with unhurried(tmp_path) as slow:
            launcher = host.start("run", "-np", 3, "--chaos", f"{loss}; {slow}", "--output", output,
                                  "--name", "digits", job)
            read_lines(launcher.stdout, 1)
            launcher.kill()
            launcher.communicate(timeout=TIMEOUT_S)
        wait_until(lambda: "another one is started" in host("logs", "digits").stderr, "another one")
    wait_for_state(host, "digits", "ended 0")
    assert sha256_of(output) == undisturbed
    assert lines_of(output, "recovered")
    after = host("attach", "digits")
    assert after.returncode == 0 and "and another one is started" in after.stderr


def test_end_is_told_once_also_by_a_launcher_that_was_stopped(host, echo, tmp_path):
    """Meanwhile its supervisor has kept the end for another one, and is gone."""
    job = echo()
    os.kill(job.launcher.pid, signal.SIGSTOP)
    job.tell("end 3")
    wait_until(lambda: (tmp_path / "run/gradus/echo/end").exists(), "the end")
    host.kill_supervisors()
    wait_for_state(host, "echo", "ended 1")
    os.kill(job.launcher.pid, signal.SIGCONT)
    finish(job.launcher, 1)
    assert jobs_of(host) == []


def test_lost_terminal_leaves_the_job(host, script, tmp_path):
    """Of a launcher whose stdout is a terminal that is gone."""
    ours, theirs = pty.openpty()
    with open(tmp_path / "err", "w+") as err:
        launcher = host.start("run", "--name", "tty", "-np", 1, "--", *script(
            "import itertools\nfor i in itertools.count(): print(i, flush=True)"),
            stdout=theirs, stderr=err)
        os.close(theirs)
        os.read(ours, 1)
        os.close(ours)
        assert launcher.wait(timeout=TIMEOUT_S) == 75
    assert "the terminal is gone; the job goes on" in (tmp_path / "err").read_text()
    wait_for_state(host, "tty", "detached")


def is_pending(process, number):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return any(int(mask, 16) & 1 << (number - 1)
               for mask in re.findall(r"^S(?:ig|hd)Pnd:\s*(\w+)$", status, re.M))


def start_without_a_folder(host, tmp_path, *flags):
    """Its supervisor waits for the hosts; returns the launcher, and what lets them be read."""
    hosts, ran = tmp_path / "hosts", tmp_path / "ran"
    os.mkfifo(hosts)
    launcher = host.start("run", "-np", 1, "--no-prefix", *flags, "--hostfile", hosts, "--", "sh",
                          "-c", f"echo up; echo >> {ran}; exec cat {tmp_path / 'go'}")
    wait_until(lambda: host.named("gradus-job"), "the supervisor")

    def go_on():
        hosts.write_text("localhost\n")
    return launcher, go_on, ran


@pytest.mark.parametrize("flags", [[], ["--name", "up"]])
def test_launcher_that_is_killed_before_its_job_is_found_starts_nothing(host, tmp_path, flags):
    """The same line again would not find the job, and would begin a second one, or be refused."""
    launcher, _, ran = start_without_a_folder(host, tmp_path, *flags)
    launcher.kill()
    launcher.wait(timeout=TIMEOUT_S)
    host.wait_for_nothing()
    assert not ran.exists() and jobs_of(host) == []
    assert launcher.communicate(timeout=TIMEOUT_S) == ("", "")


def test_sighup_before_the_job_is_found_leaves_it_once_it_is(host, tmp_path):
    launcher, go_on, _ = start_without_a_folder(host, tmp_path)
    os.mkfifo(tmp_path / "go")
    launcher.send_signal(signal.SIGHUP)
    wait_until(lambda: launcher.poll() is not None or not is_pending(launcher, signal.SIGHUP),
               "the signal")
    go_on()
    first, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 75 and "the terminal is gone; the job goes on" in err
    (job,) = jobs_of(host)
    attached = host.start("attach", job["name"])
    (tmp_path / "go").write_text("end\n")
    rest, _ = finish(attached)
    assert first + rest == "up\nend\n"


def test_sighup_leaves_the_job(host, echo):
    job = echo()
    job.launcher.send_signal(signal.SIGHUP)
    out, err = job.launcher.communicate(timeout=TIMEOUT_S)
    assert job.launcher.returncode == 75 and "the terminal is gone; the job goes on" in err
    job.tell("out 1")
    attached = host.start("attach", "echo")
    assert read_lines(attached.stdout, 1) == ["out 1"]
    job.tell("end 0")
    finish(attached)


def test_time_without_a_launcher_is_limited(host, job, tmp_path):
    """After it, all is as after SIGTERM: a checkpoint, and 75."""
    long = write_digits(tmp_path, 10000)
    launcher = host.start("run", "-np", 2, "--outlive", "200ms", "--grace", "60s", "--name",
                          "short", "--output", tmp_path / "out", "--checkpoint-to",
                          tmp_path / "saved", "--chaos", LEISURELY, long)
    read_lines(launcher.stdout, 1)
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    wait_for_state(host, "short", "ended 75")
    assert host("checkpoint", "ls", tmp_path / "saved").returncode == 0
    after = host("attach", "short")
    assert after.returncode == 75
    assert "no launcher has attached within 0.2 s (--outlive): the workers are asked to end" in \
        after.stderr
    assert "--resume goes on from the checkpoint" in after.stderr
    assert "job short ended at " in after.stderr and "with exit code 75" in after.stderr


def test_outlive_0_ends_with_the_launcher(host, echo):
    job = echo("--outlive", "0")
    wait_for_state(host, "echo", "running")
    job.lose_launcher()
    host.wait_for_nothing()
    assert state_of(host, "echo") == "lost"


def test_output_without_a_launcher_is_bounded(host, script, tmp_path):
    """The last of it is kept, and what is missing is counted."""
    os.mkfifo(tmp_path / "go")
    lines = 400000
    launcher = host.start("run", "-np", 1, "--name", "much", "--no-prefix", "--", *script(f"""
print("up", flush=True)
open({str(tmp_path / "go")!r}).read()
for i in range({lines}):
    print(f"{{i:060}}")
print("done", flush=True)
open({str(tmp_path / "go")!r}).read()
"""))
    read_lines(launcher.stdout, 1)
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    (tmp_path / "go").write_text("")
    log = tmp_path / "run/gradus/much"

    def is_written():
        with contextlib.suppress(OSError):  # between two files
            return (log / "output").read_bytes().endswith(b"done\n")
    wait_until(is_written, "the output")
    (tmp_path / "go").write_text("")
    after = host("attach", "much")
    assert after.returncode == 0
    numbers = [int(line) for line in after.stdout.splitlines()[1:-1]]
    assert numbers and numbers == list(range(lines - len(numbers), lines))
    assert after.stdout.endswith("done\n")
    assert sum(path.stat().st_size for path in log.glob("output*")) <= 16 << 20


# ---- The end without a launcher ------------------------------------------------------------------

def test_ended_job_gives_its_exit_code_once(host, echo):
    job = echo()
    job.lose_launcher()
    job.tell("out last words")
    job.tell("end 3")
    wait_for_state(host, "echo", "ended 1")
    assert host("logs", "echo").stdout.endswith("out last words\n")
    after = host("attach", "echo")
    assert after.returncode == 1 and after.stdout == "out last words\n"
    assert f"rank 0 (pid {job.worker}) exited with code 3" in after.stderr
    assert "job echo ended at" in after.stderr
    again = host("attach", "echo")
    assert again.returncode == 2 and again.stderr == (
        'gradus: you have no job "echo" on this host; gradus ls lists those that you have\n')


@pytest.fixture
def ended(host, tmp_path):
    """A job that has left something, and ended without a launcher: its words, file and output."""
    path, output = write_digits(tmp_path, 10000), tmp_path / "out"
    words = ["run", "-np", 1, "--grace", "60s", "--output", output, path]
    launcher = host.start(*words)
    read_lines(launcher.stdout, 1)
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    [job] = jobs_of(host)
    wait_for_event(output, "epoch")
    assert host("stop", job["name"]).returncode == 0
    wait_for_state(host, job["name"], "ended 75")
    return words, path, output


def test_same_line_is_told_the_end_of_a_job_file_once(host, ended):
    words, _, output = ended
    before = (output / "metrics.jsonl").read_bytes()
    again = host(*words)
    assert again.returncode == 75, again.stderr
    assert re.search(r"ended at .* with exit code 75, without a launcher; given once more, the "
                     r"same command line starts it again\n$", again.stderr)
    assert jobs_of(host) == [] and (output / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("what", ["removed", "emptied"])
def test_job_whose_output_is_gone_begins_anew(host, ended, what):
    words, _, output = ended
    shutil.rmtree(output)
    if what == "emptied":
        output.mkdir()
    again = host.start(*words)
    assert len(read_lines(again.stdout, 2)) == 2
    wait_for_event(output, "epoch")
    assert len(jobs_of(host)) == 1  # the old one is forgotten
    again.terminate()
    _, err = finish(again, 75)
    assert re.search(rf"with exit code 75, without a launcher; what it had left in {output} is "
                     r"gone: the job begins anew\n", err)


def test_job_whose_file_was_changed_begins_anew(host, ended):
    words, path, output = ended
    path.write_text(path.read_text().replace("epochs: 10000", "epochs: 2"))
    shutil.rmtree(output / "checkpoints")
    again = host(*words)
    assert again.returncode == 0, again.stderr
    assert f"; {path} was changed since it was read: the job begins anew\n" in again.stderr
    assert epochs_of(again.stdout) == [1, 2] and jobs_of(host) == []


@pytest.mark.parametrize("changed", ["never", "while it ran", "after its end"])
def test_command_whose_script_was_changed_begins_anew(host, echo, changed):
    """What it names may be what it writes: a change while it ran says nothing."""
    job = echo()
    [path] = [word for word in job.words if str(word).endswith("echo.py")]
    said = "; given once more, the same command line starts it again\n"

    def change(when):
        if changed == when:
            with open(path, "a", encoding="ascii") as file:
                file.write("# another one\n")
    change("while it ran")
    job.lose_launcher()
    job.tell("end 3")
    wait_for_state(host, "echo", "ended 1")
    change("after its end")
    again = host.start(*job.words)
    if changed == "after its end":
        assert read_lines(again.stdout, 1)[0].startswith("up ")
        job.tell("end 4")
        said = "; a file that the command names was changed since it was read: the job begins anew"
    out, err = finish(again, 1)
    assert said in err and not out
    assert ("exited with code 4" in err) == (changed == "after its end")


def test_job_file_that_is_a_pipe_is_read_once(host, tmp_path):
    pipe = tmp_path / "piped.yaml"
    os.mkfifo(pipe)
    launcher = host.start("run", "-np", 1, "--output", tmp_path / "out", pipe)
    pipe.write_text(write_digits(tmp_path, 2).read_text())
    out, _ = finish(launcher)
    assert epochs_of(out) == [1, 2]


def test_stop_writes_a_checkpoint(host, tmp_path):
    long = write_digits(tmp_path, 10000)
    launcher = host.start("run", "-np", 2, "--grace", "60s", "--name", "long", "--output",
                          tmp_path / "out", "--checkpoint-to", tmp_path / "saved", "--chaos",
                          LEISURELY, long)
    read_lines(launcher.stdout, 1)
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    done = host("stop", "long")
    assert (done.returncode, done.stdout) == (0, "job long has ended with exit code 75\n")
    assert host("checkpoint", "ls", tmp_path / "saved").returncode == 0
    assert host("attach", "long").returncode == 75


def test_stop_now_kills_who_does_not_end(host, script, tmp_path):
    launcher = host.start("run", "-np", 1, "--name", "deaf", "--grace", "1h", "--", *script(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\nsignal.pause()"))
    read_lines(launcher.stdout, 1)
    assert host("stop", "deaf", "--now").stdout == "job deaf has ended\n"
    assert "ended by SIGTERM" in finish(launcher, 1)[1]
    done = host("stop", "deaf")
    assert done.returncode == 2 and 'you have no job "deaf"' in done.stderr


def test_attached_launcher_hands_signals_on(host, tmp_path):
    long = write_digits(tmp_path, 10000)
    launcher = host.start("run", "-np", 2, "--grace", "60s", "--name", "long", "--output",
                          tmp_path / "out", "--chaos", LEISURELY, long)
    read_lines(launcher.stdout, 1)
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    attached = host.start("attach", "long")
    read_lines(attached.stdout, 1)
    attached.terminate()
    assert "ended by SIGTERM" in finish(attached, 75)[1]
    assert jobs_of(host) == []


def test_logs_follow_to_the_end(host, echo):
    job = echo()
    log = host.start("logs", "-f", "echo")
    assert read_lines(log.stdout, 1) == [f"up {job.worker}"]
    job.tell("out 1")
    assert read_lines(log.stdout, 1) == ["out 1"]
    job.lose_launcher()
    job.tell("out 2")
    job.tell("end 0")
    assert finish(log)[0] == "out 2\n"
    assert host("attach", "echo").returncode == 0


def test_job_that_ends_while_it_is_looked_at_is_not_lost(host, echo, tmp_path):
    """Its launcher removes what was kept of it, the record first."""
    job = echo()
    folder = tmp_path / "run/gradus/over"
    folder.mkdir(mode=0o700)
    (folder / "job").write_text((tmp_path / "run/gradus/echo/job").read_text())
    os.mkfifo(folder / "end")
    looking = host.start("ls")
    with open(folder / "end", "w"):  # once it is read
        (folder / "job").unlink()
    (folder / "end").unlink()
    folder.rmdir()
    shown = finish(looking)[0].splitlines()
    assert [line.split()[0] for line in shown] == ["name", "echo"]
    job.tell("end 0")
    finish(job.launcher)


# ---- Restarts and scaling ----------------------------------------------------------------------

def test_wait_ends_with_the_job(host, echo):
    job = echo()
    attended = start_waiting(host, "echo")
    job.tell("end 5")
    finish(job.launcher, 1)
    assert finish(attended) == ("", "")  # the launcher has the exit code
    done = host("wait", "nothing")
    assert done.returncode == 2 and 'no job "nothing" on this host' in done.stderr


def test_wait_gives_the_exit_code_that_nobody_received(host, echo):
    job = echo()
    job.lose_launcher()
    waiting = host.start("wait", "echo")
    job.tell("end 5")
    wait_for_state(host, "echo", "ended 1")
    finish(waiting, 1)
    assert host("wait", "echo").returncode == 1  # it is still to be received
    assert host("attach", "echo").returncode == 1


def test_job_grows_without_a_launcher_and_with_another(host, job, undisturbed, tmp_path):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 2, "--max-workers", 4, "--name", "digits", "--output",
                              output, "--chaos", slow, job)
        read_lines(launcher.stdout, 1)
        launcher.kill()
        launcher.communicate(timeout=TIMEOUT_S)
        grown = host("scale", "digits", 3)
        assert grown.stdout == "the job goes from 2 to 3 workers\n", grown.stderr
        wait_until(lambda: len(workers_of(host)) == 3, "three workers")
        attached = host.start("attach", "digits")
        wait_for_state(host, "digits", "running")
        grown = host("scale", "--to", 4, "--job", attached.pid)
        assert grown.stdout == "the job goes from 3 to 4 workers\n", grown.stderr
        assert host("scale", "digits").stdout.startswith("the job has 4 workers")
    finish(attached)
    assert sha256_of(output) == undisturbed


def test_job_that_stands_still_for_a_while_grows(host, job, undisturbed, tmp_path):
    """What it is asked it does, sooner or later: so long its answer is waited for."""
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 2, "--max-workers", 3, "--name", "digits", "--output",
                              output, "--chaos", slow, job)
        read_lines(launcher.stdout, 1)
        supervisor, = host.named("gradus-job")
        os.kill(supervisor, signal.SIGSTOP)
        asking = host.start("scale", "digits", 3)
        with contextlib.suppress(subprocess.TimeoutExpired):
            asking.wait(timeout=3)
        os.kill(supervisor, signal.SIGCONT)
        assert finish(asking) == ("the job goes from 2 to 3 workers\n", "")
        wait_until(lambda: len(workers_of(host)) == 3, "three workers")
    finish(launcher)
    assert sha256_of(output) == undisturbed


def test_attached_job_replaces_workers(host, job, undisturbed, tmp_path):
    output = tmp_path / "out"
    with behind_the_loss(tmp_path, 200) as loss:
        with unhurried(tmp_path) as slow:
            launcher = host.start("run", "-np", 2, "--chaos", f"{loss}; {slow}", "--name", "digits",
                                  "--output", output, job)
            read_lines(launcher.stdout, 1)
            launcher.kill()
            launcher.communicate(timeout=TIMEOUT_S)
            attached = host.start("attach", "digits")
            wait_for_state(host, "digits", "running")
        wait_until(lambda: "another one is started" in host("logs", "digits").stderr, "another one")
    err = finish(attached)[1]
    assert re.search("is the launcher from now on\n.*and another one is started", err, re.S), err
    assert sha256_of(output) == undisturbed


@pytest.mark.parametrize("words, sentence", [
    (["nobody", 2], 'scale: you have no job "nobody" that runs on this host'),
    (["echo", "many"], 'scale: "many" is no number of workers from 1 to 4096'),
    (["echo", 2, 3], "does not expect")])
def test_scale_names_what_is_wrong(host, words, sentence):
    done = host("scale", *words)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def test_bad_outlive_of_the_environment_is_refused_by_its_name(host):
    done = host("run", "--", "true", env={"GRADUS_OUTLIVE": "soon"})
    assert done.returncode == 2 and "GRADUS_OUTLIVE must be a time" in done.stderr
    assert "--outlive" not in done.stderr


def test_job_that_neither_grows_nor_shrinks_says_so(host, echo):
    echo()
    for words in ["scale", "echo"], ["scale", "echo", 2]:
        done = host(*words)
        assert done.returncode == 1 and done.stderr == (
            "gradus: the job has 1 worker, and can neither grow nor shrink (--min-workers and "
            "--max-workers of gradus run)\n")
    done = host("scale")
    assert done.returncode == 2 and "no job on this host that can grow or shrink" in done.stderr


# ---- Who gets it ---------------------------------------------------------------------------------

def test_two_that_attach_at_once(host, echo):
    job = echo()
    job.lose_launcher()
    both = [host.start("attach", "echo") for _ in range(2)]
    wait_until(lambda: any(one.poll() is not None for one in both), "a refusal")
    loser, winner = sorted(both, key=lambda one: one.poll() is None)
    assert finish(loser, 2)[1] == (
        f"gradus: job echo has a launcher (process {winner.pid}), and cannot have two; gradus logs "
        "-f echo shows its output\n")
    job.tell("out 1")
    assert read_lines(winner.stdout, 1) == ["out 1"]
    job.tell("end 0")
    finish(winner)


def test_same_line_takes_over_its_job(host, echo):
    job = echo()
    refused = host(*job.words)
    assert refused.returncode == 2 and "job echo has a launcher" in refused.stderr
    job.lose_launcher()
    other = host("run", "-np", 1, "--name", "echo", "--", "true")
    assert other.returncode == 2 and 'you have a job "echo" on this host already' in other.stderr
    again = host.start(*job.words)
    job.tell("out 1")
    assert read_lines(again.stdout, 1) == ["out 1"]
    again.kill()
    again.wait(timeout=TIMEOUT_S)
    job.tell("end 3")
    wait_for_state(host, "echo", "ended 1")
    last = host(*job.words)  # as a supervisor does: it gets the exit code, and starts nothing
    assert last.returncode == 1 and "exited with code 3" in last.stderr


def test_same_line_without_a_name(host, tmp_path):
    """It is recognised by line and folder; one with a launcher is left to that."""
    words = ["run", "-np", 1, "--no-prefix", "--", "sh", "-c", "echo up; exec sleep 1000"]
    first = host.start(*words)
    read_lines(first.stdout, 1)
    second = host.start(*words)
    read_lines(second.stdout, 1)
    assert len(jobs_of(host)) == 2
    first.kill()
    first.wait(timeout=TIMEOUT_S)
    third = host.start(*words)
    wait_until(lambda: {job["launcher"] for job in jobs_of(host)} == {second.pid, third.pid},
               "the third to take over")
    for launcher in second, third:
        launcher.terminate()
        assert launcher.wait(timeout=TIMEOUT_S) == 1


# ---- Who must not --------------------------------------------------------------------------------

def test_garbage_at_the_socket_harms_nobody(host, echo, tmp_path):
    job = echo()
    path = str(tmp_path / "run/gradus/echo/socket")
    sockets = []

    def connect():
        sockets.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        with contextlib.chdir(tmp_path / "run/gradus/echo"):
            sockets[-1].connect("socket")
        return sockets[-1]
    magic = struct.pack("<I", 0x324a5247)
    for bytes_sent in b"x", b"\0" * 48, b"\xff" * 48, magic + b"\xff" * 44, b"y" * 5000:
        one = connect()
        one.send(bytes_sent)
        assert one.recv(100) == b""
    attach = magic + struct.pack("<I", 1) + b"\0" * 40
    one = connect()
    one.send(attach)  # without descriptors, and there is a launcher
    assert one.recv(100)[4:8] == struct.pack("<I", 7)
    for _ in range(40):  # who says nothing does not keep others out
        connect()
    wait_for_state(host, "echo", "running")
    assert os.path.exists(path)
    job.lose_launcher()
    one = connect()
    one.send(attach)
    assert one.recv(100)[4:8] == struct.pack("<I", 7)
    attached = host.start("attach", "echo")
    job.tell("out 1")
    assert read_lines(attached.stdout, 1) == ["out 1"]
    job.tell("end 0")
    finish(attached)
    for one in sockets:
        one.close()


@pytest.mark.parametrize("what", ["open", "link"])
def test_folder_of_others_is_refused(host, tmp_path, what):
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder = tmp_path / "run/gradus"
    if what == "open":
        folder.mkdir()
        folder.chmod(0o777)
    else:
        folder.symlink_to(tmp_path / "elsewhere")
    for words in ["run", "--", "true"], ["attach", "x"], ["logs", "x"], ["stop", "x"], ["ls"]:
        done = host(*words)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert f"{folder} is no folder of this user's alone" in done.stderr
    folder.chmod(0o700) if what == "open" else folder.unlink()


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_job_of_another_user_is_refused(host, tmp_path):
    folder = tmp_path / "run/gradus"
    folder.mkdir(mode=0o700)
    os.chown(folder, 1, 1)
    done = host("attach", "x")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "(uid 1, mode 0700): the jobs there are another user's" in done.stderr
    os.chown(folder, 0, 0)


def test_folder_of_a_job_is_its_users_alone(host, echo, tmp_path):
    job = echo()
    folder = pathlib.Path(tmp_path / "run/gradus/echo")
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        if path.name != "socket":
            assert path.stat().st_mode & 0o777 == 0o600, path
    job.tell("end 0")
    finish(job.launcher)


@pytest.mark.parametrize("flags, sentence", [
    (["--outlive", "soon"], "--outlive must be a time such as 90s, 10min or 8h"),
    (["--outlive", "-1"], "--outlive must be a time such as 90s, 10min or 8h"),
    (["--name", "../x"], '"../x" is no name of a job'),
    (["--name", ""], '"" is no name of a job'),
    (["--name", "x" * 64], "is no name of a job: it has 1 to 63")])
def test_bad_flags_are_refused(host, flags, sentence):
    done = host("run", *flags, "--", "true")
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1

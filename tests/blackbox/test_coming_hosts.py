# SPDX-License-Identifier: Apache-2.0
"""Hosts, and workers on other hosts, come and go while a job runs; no bit of its result changes."""
import contextlib
import os
import pathlib
import signal
import subprocess

import pytest
from conftest import TIMEOUT_S, finish, lines_of, sha256_of, unhurried, wait_until
from test_elastic import generations, wait_for_first_epoch
from test_ssh import both, cluster_of, two  # noqa: F401

EPOCHS = 30


def finish_as(launcher, output, sha256, epochs=EPOCHS):
    """Every epoch once, and the bits of the undisturbed job."""
    out, err = finish(launcher)
    assert sha256_of(output) == sha256
    told = [line["epoch"] for line in lines_of(output, "epoch")]
    assert told == list(range(1, epochs + 1))
    return out + err


def workers_on(cluster, host):
    """Process numbers of the workers in a host's namespace."""
    pids = subprocess.check_output(["ip", "netns", "pids", cluster.made.names[host]], text=True)
    found = []
    for pid in pids.split():
        with contextlib.suppress(OSError):
            if pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"gradus\0worker\0"):
                found.append(int(pid))
    return found


def start(cluster, job_file, slow, *flags):
    output = cluster.folder / "out"
    launcher = cluster.start("--output", output, "--chaos", slow, "--start-timeout", "120s", *flags,
                             job_file)
    wait_for_first_epoch(output, launcher)
    return launcher, output


def test_a_killed_worker_is_replaced_on_its_host(two, job, undisturbed):  # noqa: F811
    with unhurried(two.folder) as slow:
        launcher, output = start(two, job, slow, "-H", both(two))
        before = workers_on(two, 1)
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: generations(output)[-1:] == [4], "the one that is started")
        after = workers_on(two, 1)
    assert len(after) == 2 and before[0] not in after and before[1] in after
    finish_as(launcher, output, undisturbed)


def scale(cluster, launcher, workers):
    done = subprocess.run([cluster.gradus.program, "scale", "--to", str(workers), "--job",
                           str(launcher.pid)], env=cluster.environment(), capture_output=True,
                          text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr


def test_scaling_goes_to_other_hosts(two, gradus, job, undisturbed):  # noqa: F811
    with unhurried(two.folder) as slow:
        launcher, output = start(two, job, slow, "-np", 2, "--max-workers", 4, "-H", both(two))
        assert two.find(1, "gradus-serve") == []
        scale(two, launcher, 4)
        wait_until(lambda: generations(output)[-1:] == [4], "four workers")
        assert len(workers_on(two, 1)) == 2
        scale(two, launcher, 3)
        wait_until(lambda: generations(output)[-1:] == [3], "three workers")
    finish_as(launcher, output, undisturbed)
    gradus.wait_for_nothing()


@pytest.mark.parametrize("name", ["gradus-serve", "sshd"])
def test_a_lost_host_is_tried_again(two, job, undisturbed, name):  # noqa: F811
    with unhurried(two.folder) as slow:
        launcher, output = start(two, job, slow, "-H", both(two))
        daemons = {process.pid for process in two.daemons}
        os.kill(next(pid for pid in two.find(1, name) if pid not in daemons), signal.SIGKILL)
        wait_until(lambda: 2 in generations(output), "the others to go on")
        wait_until(lambda: generations(output)[-1:] == [4], "the host to be there again")
    err = finish_as(launcher, output, undisturbed)
    assert f"host {two.names[1]} was lost with its 2 workers: " in err
    assert "; it is tried again in 1 s" in err


def test_a_host_that_stays_away_is_left_alone(two, job, undisturbed):  # noqa: F811
    line = ""
    with unhurried(two.folder) as slow:
        launcher, output = start(two, job, slow, "--restarts", 1, "-H", both(two))
        two.daemons[1].terminate()
        two.daemons[1].wait(TIMEOUT_S)  # nobody listens there any more
        os.kill(two.find(1, "gradus-serve")[0], signal.SIGKILL)
        wait_until(lambda: generations(output)[-1:] == [2], "the others to go on")
        while "is left alone" not in line:
            line = launcher.stderr.readline()
            assert line, "the launcher has ended"
    assert f"host {two.names[1]} cannot be used: " in line and "Connection refused" in line
    assert generations(output)[-1] == 2
    finish_as(launcher, output, undisturbed)


class Script:
    """What --host-discovery-script runs: it prints a file, or does what `body` says."""

    def __init__(self, cluster):
        self.path, self.list = cluster.folder / "discover", cluster.folder / "list"
        self.cluster = cluster

    def does(self, body):
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{body}\n")
        new.chmod(0o755)
        new.rename(self.path)  # nobody sees half of it

    def names(self, *hosts, slots=2):
        new = self.list.with_suffix(".new")
        new.write_text("".join(f"{self.cluster.names[host]}:{slots}\n" for host in hosts))
        new.rename(self.list)
        self.does(f"cat {self.list}")


@pytest.fixture
def three(gradus, tmp_path):
    with cluster_of(3, gradus, tmp_path) as cluster:
        yield cluster


def discover(cluster, *more):
    return ["--host-discovery-script", cluster.folder / "discover", "--discovery-interval", "0.2s",
            *more]


def test_a_script_adds_hosts_and_removes_them(three, job, undisturbed):
    """The host of rank 0 among them: all that it knows has gone over by then."""
    script = Script(three)
    script.names(0)
    with unhurried(three.folder) as slow:
        launcher, output = start(three, job, slow, "-np", 2, "--max-np", 4, *discover(three))
        script.names(0, 1)
        wait_until(lambda: generations(output)[-1:] == [4], "four workers")
        script.names(1, 2)
        wait_until(lambda: "is not named any more" in launcher.stderr.readline(), "the word of it")
        wait_until(lambda: not workers_on(three, 0) and not three.find(0, "gradus-serve"),
                   "the first host to be left")
    finish_as(launcher, output, undisturbed)


@pytest.mark.parametrize("body, words", [
    ("echo oops >&2; exit 3", "ended with exit code 3; its last line: oops"),
    ("echo 'rm -rf *'", 'discover:1: "rm -rf *" is no host'),
    ("kill -9 $$", "ended with signal 9"),
    ("rm $0", "command not found"),
])
def test_a_bad_script_changes_nothing(two, job, undisturbed, body, words):  # noqa: F811
    script = Script(two)
    script.names(0)
    with unhurried(two.folder) as slow:
        launcher, output = start(two, job, slow, "-np", 2, "--max-np", 4, *discover(two))
        script.does(body)
        line = launcher.stderr.readline()
        if "rm $0" in body:
            line = launcher.stderr.readline() if words not in line else line
    assert words in line and "the job stays on the hosts that it knows" in line
    finish_as(launcher, output, undisturbed)


@pytest.mark.parametrize("body, flags, words", [
    ("echo a:1", ["-np", 2, "--max-np", 4], "names hosts for 1 workers after 1 s"),
    ("exit 1", ["-np", 2, "--max-np", 4], "ended with exit code 1"),
    ("echo a:2", ["-np", 2, "-H", "a:2"], "-H and --host-discovery-script both say"),
    ("echo a:2", ["-np", 2, "--min-np", 2], "whose workers may come and go"),
])
def test_a_script_that_is_of_no_use(gradus, job, body, flags, words):
    script = gradus.folder / "discover"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    done = gradus("run", *flags, "--host-discovery-script", script, "--start-timeout", "1s", job)
    assert done.returncode == 2 and words in done.stderr

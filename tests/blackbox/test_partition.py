# SPDX-License-Identifier: Apache-2.0
"""Ranks that are cut off from the coordinator end, unless they are more than half."""
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading

import pytest
from conftest import LEISURELY, TIMEOUT_S, wait_until, write_digits
from test_elastic import generations, wait_for_first_epoch
from test_ssh import cluster_of

sys.path.insert(0, os.path.join(os.environ["GRADUS_SOURCE_DIR"], "bench", "hosts"))
import hosts as namespaces  # noqa: E402

CONTROL, LINKS = 0, 1   # networks: by the first the coordinator is reached, by the second ranks


class Job:
    """Ranks on several hosts, and what the first of them writes of its training."""

    def __init__(self, hosts, folder, **more):
        gradus = hosts.build / "gradus"
        env = {"GRADUS_MIN_WORKERS": "1", "GRADUS_PEER_TIMEOUT": "500ms",
               "GRADUS_INTERFACE": f"eth{LINKS}"}
        self.hosts = hosts
        with tempfile.TemporaryFile() as document:
            subprocess.run([gradus, "run", "--dry-run", "--json", "--output", folder / "out",
                            "--chaos", LEISURELY, write_digits(folder, 100000)],
                           stdout=document, check=True)
            self.coordinator, self.ranks = hosts.start(
                [gradus, "worker"], env=env, stdin=document, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, errors="replace", **more)
        self.tail = subprocess.Popen(["tail", "-n", "+1", "-F", folder / "out/metrics.jsonl"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.patience = threading.Timer(TIMEOUT_S, self.tail.kill)
        self.patience.start()

    def wait_for(self, kind):
        """The next such event."""
        for line in self.tail.stdout:
            event = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind} within {TIMEOUT_S} s")

    def cut_off(self, *hosts):
        """At once: those that are left after one and then another may be most of the rest."""
        lines = "".join(f"link set p{CONTROL}x{host} down\n" for host in hosts)
        subprocess.run(["ip", "-n", self.hosts.switch, "-batch", "-"], input=lines, text=True,
                       check=True)

    def last_words(self, rank):
        """Of one that fails."""
        text = namespaces.collect([self.ranks[rank]], TIMEOUT_S)[0]
        assert self.ranks[rank].wait() != 0, text
        return text

    def close(self):
        self.patience.cancel()
        self.tail.kill()
        self.tail.communicate()
        namespaces.stop([self.coordinator, *self.ranks])


@contextlib.contextmanager
def job_on(count, folder, **more):
    hosts = namespaces.Hosts(count, build=os.environ["GRADUS_BUILD_DIR"], networks=2)
    try:
        hosts.open()
    except namespaces.Unavailable as why:
        pytest.skip(str(why))
    job = None
    try:
        job = Job(hosts, folder, **more)
        job.wait_for("epoch")
        yield job
    finally:
        if job is not None:
            job.close()
        hosts.close()


def assert_cut_off(rank, text):
    assert f"rank {rank} is cut off from the job's coordinator (" in text, text
    assert "only the ranks that the coordinator reaches go on" in text


def assert_too_few(text, left, all_of_them):
    assert f"{left} of the {all_of_them} workers of the last generation are on this side" in text


def test_no_seat_without_the_coordinator(tmp_path):
    """A host is cut off and loses a rank: half of them cannot renew by themselves."""
    with job_on(1, tmp_path, ranks_per_host=2) as job:
        job.cut_off(0)
        job.ranks[1].kill()
        assert_too_few(job.last_words(0), 1, 2)


def test_no_steps_without_the_coordinator(tmp_path):
    """A host is cut off from the coordinator alone: nothing fails there, and still it ends. The
    others go on after the step in which it said so."""
    with job_on(3, tmp_path) as job:
        job.cut_off(2)
        assert_too_few(job.last_words(2), 1, 3)
        changed = job.wait_for("changed")
        assert changed["workers"] == 2
        assert job.wait_for("epoch")["step"] > changed["step"]
        assert job.ranks[0].poll() is None and job.ranks[1].poll() is None


def test_most_go_on_without_the_coordinator(tmp_path):
    """All but the first host are cut off from the coordinator: the second one's rank takes over,
    since the first one's has no reason to. That one is alone with the coordinator, and ends."""
    with job_on(4, tmp_path) as job:
        job.cut_off(1, 2, 3)
        assert "1 of the 4 workers of the last generation are on this side" in job.last_words(0)
        changed = job.wait_for("changed")
        assert changed["workers"] == 3
        assert job.wait_for("epoch")["step"] > changed["step"]
        assert all(job.ranks[rank].poll() is None for rank in (1, 2, 3))


def test_all_go_on_when_the_coordinator_has_vanished(tmp_path):
    with job_on(2, tmp_path) as job:
        job.cut_off(0, 1)
        changed = job.wait_for("changed")
        assert changed["workers"] == 2
        assert job.wait_for("epoch")["step"] > changed["step"]


def test_a_job_of_gradus_run_goes_on(gradus, tmp_path):
    """The worker ends with its sentence and exit code 76; its host and its links are sound."""
    output = tmp_path / "out"
    with cluster_of(3, gradus, tmp_path, networks=2) as three:
        launcher = three.start("-np", 3, "-H", ",".join(three.names), "--host-timeout", "1s",
                               "--grace", "60s", "--restarts", 0, "--output", output, "--chaos",
                               LEISURELY, write_digits(tmp_path, 100000),
                               GRADUS_INTERFACE=f"10.{77 + LINKS}.0.0/24")
        wait_for_first_epoch(output, launcher)
        # What goes from there to the launcher by this network goes to nobody.
        namespaces.ip("-n", three.made.names[2], "neigh", "replace", f"10.{77 + LINKS}.0.254",
                      "lladdr", "02:00:00:00:00:99", "dev", f"eth{LINKS}", "nud", "permanent")
        wait_until(lambda: generations(output)[-1:] == [2], "the others to go on")
        said = []
        while "the job goes on with 2 workers" not in "".join(said):
            said.append(launcher.stderr.readline())
            assert said[-1], said
        launcher.terminate()
        said.append(launcher.communicate(timeout=TIMEOUT_S)[1])
    text = "".join(said)
    assert_cut_off(2, text)
    assert "ended with code 76 because it lost a peer" in text
    assert launcher.returncode == 75, text

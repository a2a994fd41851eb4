# SPDX-License-Identifier: Apache-2.0
"""Ranks that are cut off from the coordinator end, and the others go on."""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import threading

import pytest

sys.path.insert(0, os.path.join(os.environ["GRADUS_SOURCE_DIR"], "bench", "hosts"))
import hosts as namespaces  # noqa: E402

PATIENCE_S = 60
CONTROL, LINKS = 0, 1   # networks: by the first the coordinator is reached, by the second ranks


def endless_job(folder):
    source = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"]) / "examples/digits"
    text = (source / "mlp.yaml").read_text().replace("epochs: 40", "epochs: 100000")
    job = folder / "mlp.yaml"
    job.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))
    return job


class Job:
    """Ranks on several hosts, and what the first of them writes of its training."""

    def __init__(self, hosts, folder, **more):
        command = [hosts.build / "gradus", "worker", "--output", folder / "out",
                   endless_job(folder)]
        env = {"GRADUS_MIN_WORKERS": "1", "GRADUS_PEER_TIMEOUT": "500ms",
               "GRADUS_INTERFACE": f"eth{LINKS}"}
        self.hosts = hosts
        self.coordinator, self.ranks = hosts.start(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", **more)
        self.tail = subprocess.Popen(["tail", "-n", "+1", "-F", folder / "out/metrics.jsonl"],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.patience = threading.Timer(PATIENCE_S, self.tail.kill)
        self.patience.start()

    def wait_for(self, kind):
        """The next such event."""
        for line in self.tail.stdout:
            event = json.loads(line)
            if event["event"] == kind:
                return event
        raise AssertionError(f"no {kind} within {PATIENCE_S} s")

    def cut_off(self, host):
        namespaces.ip("-n", self.hosts.switch, "link", "set", f"p{CONTROL}x{host}", "down")

    def last_words(self, rank):
        """Of one that fails."""
        text = namespaces.collect([self.ranks[rank]], PATIENCE_S)[0]
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


def test_no_seat_without_the_coordinator(tmp_path):
    """A host is cut off and loses a rank: those that are left there cannot renew by themselves."""
    with job_on(1, tmp_path, ranks_per_host=2) as job:
        job.cut_off(0)
        job.ranks[1].kill()
        assert_cut_off(0, job.last_words(0))


def test_no_steps_without_the_coordinator(tmp_path):
    """A host is cut off from the coordinator alone: nothing fails there, and still it ends. The
    others go on after the step in which it said so."""
    with job_on(3, tmp_path) as job:
        job.cut_off(2)
        assert_cut_off(2, job.last_words(2))
        changed = job.wait_for("changed")
        assert changed["workers"] == 2
        assert job.wait_for("epoch")["step"] > changed["step"]
        assert job.ranks[0].poll() is None and job.ranks[1].poll() is None


def test_no_steps_when_the_coordinator_is_gone(tmp_path):
    with job_on(2, tmp_path) as job:
        job.coordinator.kill()
        for rank in range(2):
            assert "the job's coordinator has ended" in job.last_words(rank)

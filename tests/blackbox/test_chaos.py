# SPDX-License-Identifier: Apache-2.0
"""Fault injection: faults happen, and the job survives them with the same bits."""
import time

import pytest
from conftest import cases, is_sanitized, lines_of

EPOCHS = 6
# Longer than a worker on a busy machine waits for a core.
FENCE = "8s" if is_sanitized() else "3s"


def run(gradus, job, output, *flags, env=None):
    begin = time.monotonic()
    done = gradus("run", "-np", 4, "--output", output, *flags, job, env=env)
    assert done.returncode == 0, done.stderr
    lines = lines_of(output)
    return lines[-1]["weights_sha256"], lines, done, time.monotonic() - begin


def test_kill_at_a_step(gradus, job, undisturbed, tmp_path):
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--restarts", 0, "--chaos",
                                 "kill:rank=2@step=50; garbage:rank=1@step=55; kill:rank=0@step=90")
    assert sha256 == undisturbed
    recovered = [(line["step"], line["workers"]) for line in lines if line["event"] == "recovered"]
    assert recovered == [(49, 3), (89, 2)]
    assert done.stderr.count("was killed by signal 9") == 2
    gradus.wait_for_nothing()


def test_garbage_at_the_door_of_a_worker(gradus, job, undisturbed, tmp_path):
    """It stands open for some milliseconds only, while the others make their links to it."""
    for turn in range(10):
        sha256, _, done, _ = run(gradus, job, tmp_path / f"out{turn}", "--restarts", 0,
                                 "--chaos", "kill:rank=2@step=50; garbage:rank=1@step=50",
                                 env={"GRADUS_LOG": "debug"})
        assert sha256 == undisturbed
        if "[1] gradus: debug: link: closed a connection from this host: " in done.stderr:
            return
    raise AssertionError("no intruder came to the door of rank 1")


@pytest.mark.parametrize("flags", [["stop:rank=1@step=20,for=1500ms"],
                                   ["cut:rank=1@step=20,for=1500ms", "--link", "tcp"]])
def test_waiting_for_one_that_comes_back(gradus, job, undisturbed, tmp_path, flags):
    sha256, lines, _, seconds = run(gradus, job, tmp_path / "out", "--chaos", *flags)
    assert sha256 == undisturbed and seconds > 1.5
    assert not [line for line in lines if line["event"] == "recovered"]


def test_slow(gradus, job, undisturbed, tmp_path):
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--chaos",
                                 f"slow:rank=3,x{5 if is_sanitized() else 20}")
    assert sha256 == undisturbed
    assert "rank 3 kept the others waiting" in done.stdout


def test_a_command_at_a_time(gradus, comm_script):
    """The one that is killed does not end by itself, and nobody but the launcher knows of the
    time."""
    done = gradus("run", "-np", 3, "--min-workers", 1, "--chaos", "kill:rank=1@time=300ms", "--",
                  *comm_script("""
create()
if library.gr_comm_size(comm) == 3:  # else it was killed before all had met
    while barrier() == 0:
        pass
    status = library.gr_comm_renew(ctypes.byref(comm), ctypes.byref(diag))
    assert status == 0, diag.text
assert barrier() == 0 and rank != 1
library.gr_comm_destroy(comm)
"""))
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stderr and "was killed by signal 9" in done.stderr


@pytest.mark.parametrize("link, rank", cases(3, ["shm", "tcp"], [0, 2]))
def test_a_stopped_worker_is_fenced(gradus, job, undisturbed, tmp_path, link, rank):
    """Rank 0 too, which writes what the job leaves; nobody wakes up later and writes as well. Where
    all is slow another worker would come in its place before the end: none is wanted."""
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--link", link,
                                 "--fence-after", FENCE, "--restarts", 0,
                                 "--chaos", f"stop:rank={rank}@step=40,for=60s")
    assert sha256 == undisturbed
    recovered = [(line["step"], line["workers"]) for line in lines if line["event"] == "recovered"]
    assert recovered == [(39, 3)]
    assert f"rank {rank} (pid" in done.stderr and "it is fenced (--fence-after)" in done.stderr
    assert sum(line["event"] == "epoch" for line in lines) == 6
    gradus.wait_for_nothing()


def test_one_that_wakes_up_in_time_stays(gradus, job, undisturbed, tmp_path):
    """The others have given up an operation; it joins them again."""
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--fence-after", "8s",
                                 "--chaos", "stop:rank=1@step=40,for=6500ms")
    assert sha256 == undisturbed and "fenced" not in done.stderr
    assert [line["workers"] for line in lines if line["event"] == "recovered"] == [4]


@pytest.mark.parametrize("text, sentence", [
    ("kil:rank=1", '"kil:rank=1": a fault is kill:, stop:'),
    ("kill:rank=1@step=3; kill:rnk=1@step=3", 'in "kill:rnk=1@step=3": "rnk=" means nothing'),
    ("kill:rank=4@step=3", "the job has 4 workers, ranks 0 to 3"),
    ("kill:rank=1", "kill is written as kill:rank=2@step=50"),
    ("kill:rank=1@step=3,time=3s", "kill is written as"),
    ("stop:rank=1@step=3", "stop is written as stop:rank=1@step=80,for=3s"),
    ("slow:rank=1,x0", 'x: must be a number from 1 to 1000, not "0"'),
    ("kill:rank=1@step=1,step=2", "step= stands there twice"),
    ("kill", "kill is written as"),
    ("kill:nobody", '"nobody" is no part of a fault'),
    ("cut:rank=1@step=3,for=1s", "add --link tcp"),
    (";".join(["kill:rank=1@step=3"] * 65), "more than 64 faults")])
def test_wrong_orders_are_refused(gradus, job, text, sentence):
    done = gradus("run", "-np", 4, "--chaos", text, job)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr


def test_a_command_has_no_steps(gradus):
    done = gradus("run", "-np", 2, "--chaos", "kill:rank=1@step=3", "--", "true")
    assert done.returncode == 2 and "a command has no steps" in done.stderr

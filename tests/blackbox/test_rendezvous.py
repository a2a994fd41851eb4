# SPDX-License-Identifier: Apache-2.0
"""`gradus rendezvous`: the place where ranks meet that were started by something else."""
import os
import subprocess

import pytest
from conftest import TIMEOUT_S, read_lines, write_digits

# Calls in, then stays until its input ends.
STAYS = """
create()
print("in", flush=True)
sys.stdin.read()
library.gr_comm_destroy(comm)
"""


def start_coordinator(gradus, ranks, wait):
    """The process, and what the ranks need in their environment."""
    process = gradus.start("rendezvous", "-np", ranks, "--listen", "127.0.0.1", "--wait", wait,
                           "--print-secret")
    return process, dict(line.split("=", 1) for line in read_lines(process.stdout, 3))


def start_rank(gradus, words, environment, rank):
    return subprocess.Popen(words, env=gradus.environment(environment | {"GRADUS_RANK": str(rank)}),
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True)


def test_nobody_calls_in(gradus):
    done = gradus("rendezvous", "-np", 3, "--listen", "127.0.0.1", "--wait", "200ms",
                  "--print-secret")
    assert done.returncode == 1, done
    said = " ".join(done.stderr.split())
    assert "after 0.2 s 0 of 3 ranks have called in (none), but not 0, 1, 2;" in said, done
    assert "--wait" in done.stderr


def test_who_came_and_who_did_not(gradus, comm_script):
    coordinator, environment = start_coordinator(gradus, 40, "10s")
    rank = start_rank(gradus, comm_script(STAYS), environment, 1)
    _, said = coordinator.communicate(timeout=TIMEOUT_S)
    said = " ".join(said.split())
    assert coordinator.returncode == 1, said
    assert "1 of 40 ranks have called in (1), but not 0, 2, 3," in said, said
    assert "and 23 more" in said, said
    _, told = rank.communicate(timeout=TIMEOUT_S)
    assert rank.returncode == 1 and "coordinator" in told, told


def test_who_came_may_stay(gradus, comm_script):
    """The limit is for calling in, not for the job."""
    coordinator, environment = start_coordinator(gradus, 2, "5s")
    ranks = [start_rank(gradus, comm_script(STAYS), environment, rank) for rank in range(2)]
    for rank in ranks:
        assert read_lines(rank.stdout, 1) == ["in"]
    with pytest.raises(subprocess.TimeoutExpired):
        coordinator.wait(timeout=5.5)
    for rank in ranks:
        rank.communicate(timeout=TIMEOUT_S)
        assert rank.returncode == 0
    assert coordinator.wait(timeout=TIMEOUT_S) == 0


def threads_of_a_worker(gradus, job, env):
    """Of one that no launcher has started, in the midst of its training."""
    coordinator, told = start_coordinator(gradus, 1, "30s")
    rank = gradus.start_worker(gradus.document("-np", 1, job), told | env | {"GRADUS_RANK": "0"})
    while not rank.stdout.readline().startswith("epoch"):
        assert rank.poll() is None, rank.communicate()
    count = len(os.listdir(f"/proc/{rank.pid}/task"))
    rank.kill()
    coordinator.kill()
    return count


def test_a_worker_by_hand_has_the_threads_of_its_job(gradus, tmp_path):
    """And not one for each core, of which another worker has as many."""
    job = write_digits(tmp_path, 10000)
    assert threads_of_a_worker(gradus, job, {}) == \
        threads_of_a_worker(gradus, job, {"OMP_NUM_THREADS": "1"})

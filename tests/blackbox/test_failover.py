# SPDX-License-Identifier: Apache-2.0
"""Ranks that were started by hand go on when `gradus rendezvous` dies: the first of them that lives
takes over, and the bits are those of a job that nobody disturbed."""
import contextlib
import os
import signal
import socket

import pytest
from conftest import (TIMEOUT_S, cases, is_sanitized, lines_of, read_lines, sha256_of, unhurried,
                      wait_for_event, wait_until)
from test_elastic import count_sockets

EPOCHS = 12 if is_sanitized() else 40
RANKS = 4
COORDINATOR = -1


class Job:
    """A coordinator and its ranks, on this host. Who has not ended may be silent for 10 s. `slow`:
    what --chaos is."""

    def __init__(self, gradus, job, output, slow, **more):
        self.output = output
        more["GRADUS_PEER_TIMEOUT"] = "10s"
        self.coordinator = gradus.start("rendezvous", "-np", RANKS, "--min-workers", 1, "--listen",
                                        "127.0.0.1", "--print-secret", env=more)
        told = dict(line.split("=", 1) for line in read_lines(self.coordinator.stdout, 5))
        told |= more | {"OMP_NUM_THREADS": "1"}
        document = gradus.document("-np", RANKS, "--output", output, "--chaos", slow, job)
        self.gradus, self.document, self.told = gradus, document, told
        self.ranks = [self.start(rank) for rank in range(RANKS)]

    def start(self, rank, **more):
        return self.gradus.start_worker(self.document,
                                        self.told | {"GRADUS_RANK": str(rank)} | more)

    def replace(self, rank):
        """A worker comes in the place of a rank that was lost; it waits until there is one."""
        self.ranks.append(self.start(rank, GRADUS_JOINING="yes"))

    def wait_for(self, event, count=1):
        wait_for_event(self.output, event, count)

    def workers(self):
        """As many as there were after each change."""
        return [line["workers"] for line in lines_of(self.output, "changed", "recovered")]

    def kill(self, *victims):
        for victim in victims:
            (self.coordinator if victim == COORDINATOR else self.ranks[victim]).kill()

    def end(self):
        """What each rank said on stderr, and its exit code."""
        return [(rank.communicate(timeout=TIMEOUT_S)[1], rank.returncode) for rank in self.ranks]


def check_end(gradus, job, undisturbed, dead):
    for rank, (said, code) in enumerate(job.end()):
        assert code == (-9 if rank in dead else 0), f"rank {rank}: {said}"
    assert sha256_of(job.output) == undisturbed
    job.kill(COORDINATOR)
    job.coordinator.communicate()
    gradus.wait_for_nothing()


@pytest.mark.parametrize("victims", cases(
    3, [(COORDINATOR,), (COORDINATOR, 0), (0, COORDINATOR), (COORDINATOR, 2)]))
def test_killed_together(gradus, job, undisturbed, tmp_path, victims):
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        running.kill(*victims)
    check_end(gradus, running, undisturbed, victims)
    events = lines_of(tmp_path / "out", "changed", "recovered")
    assert events[-1]["workers"] == RANKS - len(victims) + 1, events


def test_killed_while_encrypted(gradus, job, undisturbed, tmp_path):
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow, GRADUS_ENCRYPT="yes", GRADUS_LINK="tcp")
        running.wait_for("epoch")
        running.kill(COORDINATOR, 0)
    check_end(gradus, running, undisturbed, (0,))


def test_successors_are_killed_as_well(gradus, job, undisturbed, tmp_path):
    """One after the other, while more than half of those that were left last live."""
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        running.kill(COORDINATOR)
        running.wait_for("changed")
        running.kill(0)
        running.wait_for("recovered")
        running.kill(1)
    check_end(gradus, running, undisturbed, (0, 1))


def test_half_of_them_do_not_go_on(gradus, job, tmp_path):
    """The others could be alive, on the other side of a break. All three die at the same time as
    far as anybody could know: nobody has gone on in between."""
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        running.coordinator.send_signal(signal.SIGSTOP)
        running.kill(1, 2)
        running.kill(COORDINATOR)
    ends = running.end()
    for rank in (0, 3):
        said, code = ends[rank]
        assert code not in (0, -9), said
        assert "2 of the 4 workers of the last generation are on this side" in said, said
    assert lines_of(tmp_path / "out")[-1]["event"] != "end"
    gradus.wait_for_nothing()


def test_half_of_them_go_on_with_their_coordinator(gradus, job, undisturbed, tmp_path):
    """That of `gradus rendezvous`, and then the rank that took over."""
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        running.kill(2, 3)
        running.wait_for("recovered")
        running.kill(COORDINATOR)
        running.wait_for("changed")
        running.kill(1)
    check_end(gradus, running, undisturbed, (1, 2, 3))


def test_lost_ranks_are_replaced(gradus, job, undisturbed, tmp_path):
    """The newcomers count as much as those that began, also when the coordinator dies."""
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        for victim in (0, 3):
            running.replace(victim)  # it waits until there is a place
        running.wait_for("epoch")
        for count, victim in enumerate((0, 3)):
            running.kill(victim)
            running.wait_for("recovered", count + 1)
            # The others may have gone on before it came.
            wait_until(lambda: running.workers()[-1] == RANKS, "the one in its place")
        running.kill(COORDINATOR, 1)
    check_end(gradus, running, undisturbed, (0, 1, 3))
    assert running.workers()[-1] == RANKS - 1


def test_worker_that_joins_a_full_job_waits_and_is_dismissed(gradus, job, undisturbed, tmp_path):
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        before = count_sockets(running.coordinator.pid)
        running.replace(2)
        wait_until(lambda: count_sockets(running.coordinator.pid) > before, "its call")
    check_end(gradus, running, undisturbed, ())
    assert not lines_of(tmp_path / "out", "changed")


def listeners_of(pid):
    """The tcp ports on which a process listens."""
    inodes = set()
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it is closed meanwhile
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    ports = []
    for name in ("tcp", "tcp6"):
        with open(f"/proc/net/{name}") as table:
            for line in list(table)[1:]:
                words = line.split()
                if words[3] == "0A" and words[9] in inodes:
                    ports.append(int(words[1].split(":")[1], 16))
    return ports


def test_worker_that_joins_nobody_ends_before_its_time(gradus, job, tmp_path):
    """The job may be over before its replacement has started."""
    document = gradus.document("-np", RANKS, "--output", tmp_path / "out", job)
    with socket.create_server(("127.0.0.1", 0)) as first, \
            socket.create_server(("127.0.0.1", 0)) as second:
        ports = [server.getsockname()[1] for server in (first, second)]
    worker = gradus.start_worker(document, {
        "GRADUS_RANK": "1", "GRADUS_WORLD_SIZE": str(RANKS), "GRADUS_SECRET": "5" * 64,
        "GRADUS_JOINING": "yes", "GRADUS_FAILOVER": "yes", "GRADUS_MIN_WORKERS": "1",
        "GRADUS_JOIN_TIMEOUT": "6s",
        "GRADUS_COORDINATOR": " ".join(f"tcp:127.0.0.1:{port}" for port in ports)})
    _, err = worker.communicate(timeout=TIMEOUT_S)
    assert worker.returncode == 76, err
    assert "there is nobody whom this worker could join" in err and "the job has ended" in err


def test_unauthenticated_peers_before_it_takes_over(gradus, job, undisturbed, tmp_path):
    """Garbage and silence wait at the door of the rank that is the next coordinator."""
    intruders = []
    with unhurried(tmp_path) as slow:
        running = Job(gradus, job, tmp_path / "out", slow)
        running.wait_for("epoch")
        ports = listeners_of(running.ranks[0].pid)
        assert len(ports) == 1, ports
        for number in range(40):
            intruders.append(socket.create_connection(("127.0.0.1", ports[0]), timeout=TIMEOUT_S))
            if number % 2 == 0:
                intruders[-1].sendall(os.urandom(200))
        running.kill(COORDINATOR)
        running.wait_for("changed")
    for intruder in intruders:
        intruder.close()
    ends = running.end()
    assert [code for _, code in ends] == [0] * RANKS, ends
    assert "connections were refused: they did not prove" in ends[0][0], ends[0][0]
    assert sha256_of(tmp_path / "out") == undisturbed

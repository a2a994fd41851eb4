# SPDX-License-Identifier: Apache-2.0
"""Four hosts with a worker each, through all that may happen to them: one is lost, the network
between two halves is lost and heals, a host is added. The weights are those of a job that nothing
has happened to, and each side says why it goes on or ends."""
import pytest
from conftest import unhurried, wait_until
from test_coming_hosts import Script, discover, finish_as, start, workers_on
from test_elastic import generations
from test_ssh import cluster_of, namespaces

EPOCHS = 30  # little is computed while hosts come, or are missed
SILENCE_S = "2.0 s"
MISSED = f"was lost with its 1 worker: nothing was heard of it for {SILENCE_S} (--host-timeout)"
ALONE = f"nothing was heard of the launcher for {SILENCE_S}: the workers here end"


class Four:
    """The cluster, what its launcher says, and what gradus says on each host."""

    def __init__(self, cluster):
        self.cluster, self.launcher, self.output, self.lines = cluster, None, None, []
        self.program = cluster.folder / "gradus-there"
        self.program.write_text(  # SSH_CONNECTION: from where, then to which address
            f"#!/bin/sh\nhere=${{SSH_CONNECTION#* * }}\nexec 2>>{cluster.folder}/${{here% *}}\n"
            f"exec {cluster.gradus.program} \"$@\"\n")
        self.program.chmod(0o755)

    def begin(self, job_file, slow):
        self.launcher, self.output = start(
            self.cluster, job_file, slow, "-np", 4, "--min-np", 1, "--max-np", 4,
            "--host-timeout", "2s", "--remote-program", self.program, *discover(self.cluster))

    def hear(self, words):
        """Reads on until the launcher has said so."""
        line = ""
        while words not in line:
            line = self.launcher.stderr.readline()
            assert line, f"the launcher has ended without {words}: {self.lines}"
            self.lines.append(line)

    def said_on(self, host):
        path = self.cluster.folder / self.cluster.names[host]
        return path.read_text() if path.exists() else ""

    def has(self, workers):
        wait_until(lambda: generations(self.output)[-1:] == [workers],
                   f"{workers} workers; {self.lines}")

    def bridge(self, *words):
        namespaces.ip("-n", self.cluster.made.switch, "link", *words)

    def nothing_on(self, host):
        return not workers_on(self.cluster, host) and not any(
            self.cluster.find(host, name)
            for name in ("gradus-agent", "gradus-serve"))


@pytest.fixture
def four(gradus, tmp_path):
    with cluster_of(4, gradus, tmp_path) as cluster:
        yield Four(cluster)


def lose_and_find_hosts(four, job, slow):
    script, names = Script(four.cluster), four.cluster.names
    script.names(0, 1, 2, 3, slots=1)
    four.begin(job, slow)

    four.bridge("set", "p0x3", "down")  # the cable of the last host, for good
    four.hear(f"host {names[3]} {MISSED}")
    four.has(3)
    script.names(0, 1, 2, slots=1)
    four.hear(f"host {names[3]} is not named any more")
    wait_until(lambda: four.nothing_on(3), "the lost host to end what it runs")
    assert ALONE in four.said_on(3)

    # The launcher and the first host on one side, two hosts that reach each other on the other.
    four.bridge("add", "half", "type", "bridge")
    four.bridge("set", "half", "up")
    for host in (1, 2):
        four.bridge("set", f"p0x{host}", "master", "half")
    for _ in (1, 2):
        four.hear(f"{MISSED}; it is tried again in 1 s")
    four.has(1)
    wait_until(lambda: four.nothing_on(1) and four.nothing_on(2), "the other half to end")
    for host in (1, 2):
        assert ALONE in four.said_on(host)
        four.bridge("set", f"p0x{host}", "master", "br0")
    four.has(3)

    four.bridge("set", "p0x3", "up")
    script.names(0, 1, 2, 3, slots=1)
    four.hear(f"host {names[3]} has come, for 1 worker")
    four.has(4)


def test_lost_cut_healed_and_added(four, gradus, job, undisturbed):
    with unhurried(four.cluster.folder) as slow:
        lose_and_find_hosts(four, job, slow)
    finish_as(four.launcher, four.output, undisturbed, EPOCHS)
    gradus.wait_for_nothing()
    assert all(four.nothing_on(host) for host in range(4))

# SPDX-License-Identifier: Apache-2.0
"""Slurm's own daemons, two nodes of them on this host: ranks that srun starts, and jobs of which
`gradus run` starts the workers on the nodes of the allocation."""
import contextlib
import os
import pathlib
import random
import re
import shlex
import signal
import socket
import subprocess

import pytest
from conftest import (TIMEOUT_S, lines_of, run_undisturbed, sha256_of, unhurried, wait_for_event,
                      wait_until, write_digits)
from test_launchers import ADDS, RANKS, check, program

NODES = ("n1", "n2")
SLURM = """ClusterName=gradus
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/none
CredType=cred/none
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
RequeueExit=75
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    """Below those that the kernel gives to others."""
    ports = []
    while len(ports) < count:
        port = random.randrange(30000, 32768)
        with socket.socket() as at:
            if port not in ports and at.connect_ex(("127.0.0.1", port)) != 0:
                ports.append(port)
    return ports


class Slurm:
    """The cluster, and the commands that a user types."""

    def __init__(self, folder):
        self.folder = folder
        host = socket.gethostname().split(".")[0]
        self.conf = folder / "slurm.conf"
        self.conf.write_text(SLURM.format(host=host, folder=folder, ports=free_ports(3)))
        self.env = {"SLURM_CONF": str(self.conf)}
        self.log = open(folder / "daemons.log", "w")
        daemons = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
        for node in NODES:
            (folder / node).mkdir()
        self.running = [subprocess.Popen([*words, "-f", self.conf], env=os.environ | self.env,
                                         cwd=folder, stdout=self.log, stderr=self.log)
                        for words in daemons]
        wait_until(lambda: self("sinfo", "-h", "-o", "%t %D") == "idle 2", "the nodes",
                   pause_ms=50)

    def __call__(self, *words):
        return subprocess.run(words, env=os.environ | self.env, text=True, capture_output=True,
                              timeout=TIMEOUT_S).stdout.strip()

    def submit(self, gradus, *words, env={}):
        """sbatch of a script that becomes this command; the job's number."""
        script = gradus.folder / "batch.sh"
        script.write_text("#!/bin/sh\nexec " + shlex.join(map(str, words)) + "\n")
        done = subprocess.run(["sbatch", "--parsable", "--requeue", "-N2", "-n4", "-o",
                               gradus.folder / "batch.out", "--open-mode=append", script],
                              env=gradus.environment(self.env | env), text=True,
                              cwd=gradus.folder, capture_output=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def state(self, number):
        return re.search(r"JobState=(\w+)", self("scontrol", "show", "job", number))[1]

    def wait(self, number, *states):
        wait_until(lambda: self.state(number) in states, f"job {number} to be {states}",
                   pause_ms=100)

    def steps(self):
        """The cluster's slurmstepd, which leave their environment to nobody: by their folder."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if ((entry / "comm").read_text() == "slurmstepd\n" and
                        (entry / "cwd").readlink() == self.folder):
                    found.append(int(entry.name))
        return found

    def close(self):
        self("scancel", "--user=root")
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            process.wait(TIMEOUT_S)
        for pid in self.steps():  # one may still want to report its end
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.log.close()


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("slurmctld and slurmd are started as root")
    for name, package in (("slurmctld",) * 2, ("slurmd",) * 2, ("srun", "slurm-client")):
        program(name, package)
    cluster = Slurm(tmp_path_factory.mktemp("slurm"))
    yield cluster
    cluster.close()


def run_alone(folder, job):
    (folder / "alone").mkdir()
    return run_undisturbed(folder / "alone", job)


def test_srun_starts_ranks(gradus, comm_script, slurm):
    check(gradus, ["srun", "-n", RANKS, "--overcommit", *comm_script(ADDS)], slurm.env)


def test_workers_of_a_batch_job_run_on_its_nodes(gradus, slurm, tmp_path):
    job = write_digits(tmp_path, 5)
    hash_alone = run_alone(tmp_path, job)
    number = slurm.submit(gradus, gradus.program, "run", "--output", "there", job)
    slurm.wait(number, "COMPLETED", "FAILED")
    out = (tmp_path / "batch.out").read_text()
    assert slurm.state(number) == "COMPLETED", out
    assert sha256_of(tmp_path / "there") == hash_alone, out


def test_launcher_in_a_step_reaches_all_nodes(gradus, slurm):
    """srun inside salloc; each worker says on which node Slurm has its agent."""
    says = "tr '\\0' '\\n' </proc/$PPID/environ | grep ^SLURMD_NODENAME="
    done = subprocess.run(["salloc", "-N2", "-n4", "srun", "-N1", "-n1", "--overlap",
                           gradus.program, "run", "-np", "4", "--", "sh", "-c", says],
                          env=gradus.environment(slurm.env), text=True, capture_output=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 0, done
    nodes = sorted(re.findall(r"SLURMD_NODENAME=(\w+)", done.stdout))
    assert nodes == ["n1", "n1", "n2", "n2"], done


@pytest.mark.parametrize("told", [["--batch"], ["--batch", "--quiet"]])
def test_exit_code_75_puts_the_job_back_into_the_queue(gradus, slurm, tmp_path, told):
    """Whether the launcher alone is told, or the agents as well, as at the end of the time."""
    job = write_digits(tmp_path, 20)
    hash_alone = run_alone(tmp_path, job)
    with unhurried(tmp_path) as slow:
        number = slurm.submit(gradus, gradus.program, "run", "--output", "there", "--resume",
                              "--checkpoint-every", "1000000 steps", "--chaos", slow, job)
        wait_for_event(tmp_path / "there", "epoch")
        for which in told:  # without --batch it is the steps, in which the agents are
            slurm("scancel", "--signal=TERM", which, number)
        slurm.wait(number, "PENDING")
    assert "Restarts=1" in slurm("scontrol", "show", "job", number)
    # Else in two minutes; in the second in which it ended slurmd would take it for the ended one.
    slurm("scontrol", "update", f"JobId={number}", "StartTime=now+2")
    slurm.wait(number, "COMPLETED", "FAILED")
    out = (tmp_path / "batch.out").read_text()
    assert slurm.state(number) == "COMPLETED", out + slurm("scontrol", "show", "job", number)
    assert "as asked" in out and sha256_of(tmp_path / "there") == hash_alone, out


def test_lost_agent_of_a_node_is_started_again(gradus, slurm, tmp_path):
    job = write_digits(tmp_path, 20)
    hash_alone = run_alone(tmp_path, job)
    with unhurried(tmp_path) as slow:
        number = slurm.submit(gradus, gradus.program, "run", "--output", "there", "--chaos", slow,
                              job)
        wait_for_event(tmp_path / "there", "epoch")
        agent, = [pid for pid, name in gradus.remains().items() if name == "gradus-serve"]
        os.kill(agent, signal.SIGKILL)
        wait_for_event(tmp_path / "there", "recovered")
    slurm.wait(number, "COMPLETED", "FAILED")
    out = (tmp_path / "batch.out").read_text()
    assert slurm.state(number) == "COMPLETED", out
    assert "host n2 was lost with its 2 workers" in out, out
    assert lines_of(tmp_path / "there", "recovered")
    assert sha256_of(tmp_path / "there") == hash_alone, out


def test_cancelled_job_leaves_nothing(gradus, slurm, tmp_path):
    number = slurm.submit(gradus, gradus.program, "run", "--", "sh", "-c",
                          "touch here.$GRADUS_RANK; exec sleep 1000")
    wait_until(lambda: len(list(tmp_path.glob("here.*"))) == 4, "four workers")
    slurm("scancel", number)
    slurm.wait(number, "CANCELLED")
    gradus.wait_for_nothing()


def test_several_launchers_of_one_step_are_refused(gradus, slurm):
    done = subprocess.run(["srun", "-N1", "-n2", gradus.program, "run", "-np", "2", "--", "true"],
                          env=gradus.environment(slurm.env), text=True, capture_output=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == 2
    assert "srun starts this launcher 2 times" in done.stderr, done


def test_no_slurm_keeps_to_this_host(gradus):
    """And a list of nodes that makes no sense is refused before anything starts."""
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}
    done = gradus("run", "-np", 2, "--no-slurm", "--", "true", env=env)
    assert done.returncode == 0, done
    done = gradus("run", "-np", 2, "--", "true", env=env)
    assert done.returncode == 2 and "SLURM_JOB_NODELIST" in done.stderr, done

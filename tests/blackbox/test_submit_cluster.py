# SPDX-License-Identifier: Apache-2.0
"""`gradus submit` on a real control plane, and on a real node where one can be started: there pods
are containers that run. The scripts that start them are no part of the project (GRADUS_KUBE, or
shared/kube beside the source)."""
import contextlib
import fcntl
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import kube_fixtures
from conftest import read_lines, wait_until
from kube_cluster import has_ended, kit, why_not

pytestmark = pytest.mark.long

NAMESPACE = pathlib.Path("/run/netns/kubekit")  # of the network that the node's script makes
LOCK = "/run/gradus-test-node.lock"  # of whoever has it: a second node would take down the first
# Writes so many lines, waits for SIGUSR1 where half of them are written if it is told so, and ends
# with a code.
PROGRAM = """
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int argc, char **argv)
{
    int count = atoi(argv[1]), number;
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    for (int i = 0; i < count; i++) {
        if (argc > 3 && strcmp(argv[3], "waits") == 0 && i == count / 2) {
            sigwait(&signals, &number);
        }
        printf("line %d of rank %s of %s\\n", i, getenv("RANK"), getenv("WORLD_SIZE"));
        fflush(stdout);
    }
    return atoi(argv[2]);
}
"""


@pytest.fixture(scope="module")
def control_plane(tmp_path_factory):
    with kube_fixtures.control_plane(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Node:
    """A node whose pods run, in a network namespace of its own."""

    def __init__(self, folder, state):
        self.script, self.state = kit() / "real.sh", state
        programs = os.environ.get("KUBEKIT_BIN", str(folder / "bin"))
        subprocess.run([kit() / "unpack.sh", programs], check=True)
        self.environment = {**os.environ, "KUBEKIT_BIN": programs, "REAL_DIR": str(state)}

    def run(self, *words):
        return subprocess.run([self.script, *map(str, words)], env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, capture_output=True)

    def gradus(self, gradus, *words):
        return gradus.start("exec", gradus.program, *words, program=str(self.script),
                            env=self.environment)

    def kill_server(self):
        """Kills the API server and starts it again, with the words that it was started with."""
        path = self.state / "run" / "pid" / "apiserver"
        pid = int(path.read_text())
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: has_ended(pid), "its end")
        program = pathlib.Path(self.environment["KUBEKIT_BIN"]) / "kube-apiserver"
        with open(self.state / "run" / "log" / "apiserver.log", "ab") as log:
            pid = subprocess.run(["sh", "-c", 'setsid "$@" >&2 & echo $!', "sh", "nsenter",
                                  f"--net={NAMESPACE}", program, *words[1:]], check=True, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=log).stdout
        path.write_text(pid)


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if why_not() or not (kit() / "real.sh").exists() or os.geteuid() != 0:
        pytest.skip("no real node: it takes root and GRADUS_KUBE, a folder with real.sh")
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if NAMESPACE.exists():
            pytest.skip(f"{NAMESPACE} is there: somebody else's node runs")
        node = Node(tmp_path_factory.mktemp("programs"), tmp_path_factory.mktemp("node"))
        up = node.run("up")
        if up.returncode != 0:
            node.run("down")
            pytest.skip(f"the real node does not start here: {up.stderr[-200:]}")
        yield node
        node.run("down")


@pytest.fixture
def program(tmp_path):
    (tmp_path / "program.c").write_text(PROGRAM)
    subprocess.run(["cc", "-O1", "-static", "-o", "quick-program", "program.c"], cwd=tmp_path,
                   check=True)
    return "./quick-program"


IMAGE = ["--image", "local.test/pause:1"]  # it has no shell, and nothing else either


def finish(process, code):
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, out + err
    return out, err


def test_program_runs_on_the_cluster_by_one_command(gradus, node, program):
    process = node.gradus(gradus, "submit", "--follow", *IMAGE, "--workers", 3, "--name", "quick",
                          "--", program, 4, 0)
    out, _ = finish(process, 0)
    assert sorted(out.splitlines()) == sorted(f"[{rank}] line {i} of rank {rank} of 3"
                                              for rank in range(3) for i in range(4))
    out, _ = finish(node.gradus(gradus, "ls", "-n", "default", "--json"), 0)
    assert json.loads(out)["state"] == "done"
    finish(node.gradus(gradus, "stop", "quick", "-n", "default"), 0)
    wait_until(lambda: "quick" not in node.run("kubectl", "get", "cm,secret,svc,pod").stdout,
               "the end of what belonged to the job", 120)


def test_exit_code_is_that_of_the_job(gradus, node, program):
    process = node.gradus(gradus, "submit", "--follow", *IMAGE, "--name", "bad", "--", program, 1,
                          3)
    out, err = finish(process, 1)
    assert out == "[0] line 0 of rank 0 of 1\n" and "failed with exit code 3" in err


# What a container needs that takes, unpacks and reads a program.
TOOLS = ("sh", "head", "sha256sum", "cut", "mv", "sleep", "tar", "gzip", "rm", "cat", "wc")


def test_large_program_goes_to_each_pod(gradus, node, tmp_path):
    """By exec, which the kubelet and the API server of Kubernetes carry."""
    image = tmp_path / "image"
    (image / "bin").mkdir(parents=True)
    for tool in TOOLS:
        path = shutil.which(tool)
        shutil.copy(path, image / "bin" / tool)
        for line in subprocess.run(["ldd", path], check=True, capture_output=True,
                                   text=True).stdout.splitlines():
            for library in (word for word in line.split() if word.startswith("/")):
                (image / library.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(library, image / library.lstrip("/"))
    assert node.run("image", "local.test/tools:1", image).returncode == 0
    code = tmp_path / "code"
    code.mkdir()
    (code / "run.sh").write_text("echo $RANK $(wc -c < data)\n")
    (code / "data").write_bytes(os.urandom(20_000_000))
    out, _ = finish(node.gradus(gradus, "submit", "--follow", "--image", "local.test/tools:1",
                                "--workers", 3, "--name", "large", "-e", "PATH=/bin", "--code",
                                "code", "--", "/bin/sh", "run.sh"), 0)
    assert sorted(out.splitlines()) == [f"[{rank}] {rank} 20000000" for rank in range(3)]


def waiting_programs():
    """Those in pods: their processes are this host's as well."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].endswith(b"quick-program") and b"waits" in words:
                found.append(int(path.parent.name))
    return found


def test_no_line_is_lost_when_the_server_is_killed(gradus, node, program):
    process = node.gradus(gradus, "submit", "--follow", *IMAGE, "--name", "long", "--workers", 2,
                          "--", program, 1000, 0, "waits")
    lines = read_lines(process.stdout, 100)  # they may all be of one pod
    wait_until(lambda: len(waiting_programs()) == 2, "the program in both pods", 120)
    node.kill_server()
    for pid in waiting_programs():
        os.kill(pid, signal.SIGUSR1)
    out, _ = finish(process, 0)
    lines += out.splitlines()
    for rank in range(2):
        assert [line for line in lines if line.startswith(f"[{rank}]")] == \
            [f"[{rank}] line {i} of rank {rank} of 2" for i in range(1000)]


def test_job_is_sent_and_awaited_without_a_node_that_runs_anything(gradus, control_plane, program):
    gradus.settings["KUBECONFIG"] = str(control_plane.kubeconfig)
    process = gradus.start("submit", "-n", "team", *IMAGE, "--workers", 2, "--name", "fake",
                           "--wait", "--", program, 1, 0)
    pods = ["-n", "team", "get", "pods", "-l", "job-name=fake", "-o", "name"]
    wait_until(lambda: len(control_plane.kubectl(*pods).split()) == 2, "its pods")
    control_plane.kubectl("-n", "team", "annotate", "pods", "-l", "job-name=fake",
                          "kubekit.test/exit-code=0")
    finish(process, 0)
    assert "fake" in gradus("ls", "-n", "team").stdout
    assert control_plane.kubectl("-n", "team", "get", "svc", "fake", "-o",
                                 "jsonpath={.metadata.ownerReferences[0].kind}") == "Job"
    assert gradus("stop", "fake", "-n", "team").returncode == 0


def test_kinds_of_operators_are_as_the_server_wants_them(gradus, control_plane, program):
    """Their schemas are there, and no operator."""
    gradus.settings["KUBECONFIG"] = str(control_plane.kubeconfig)

    def submit(kind, *flags):
        return gradus("submit", "-n", "team", *IMAGE, "--kind", kind, "--workers", 3, "--name",
                      kind.lower(), "-e", "A=b", "--memory", "1Gi", *flags, "--", program, 1, 0)

    done = submit("MPI")
    assert done.returncode == 2 and "no operator for it is installed" in done.stderr
    assert "mpi" not in control_plane.kubectl("-n", "team", "get", "cm", "-o", "name")
    for schema in ("mpijobs-v2beta1", "pytorchjobs-v1", "tfjobs-v1"):
        control_plane.kubectl("apply", "--server-side", "-f", kit() / "crds" / f"{schema}.yaml")
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all")
    for kind, flags in (("MPI", ["--launcher-cpus", 1]), ("PyTorch", []), ("TF", ["--ps", 1])):
        done = submit(kind, *flags)
        assert done.returncode == 0, done.stderr
        assert gradus("logs", kind.lower(), "-n", "team").returncode == 0
    found = {job["kind"]: job["workers"] for job in map(json.loads, gradus(
        "ls", "-n", "team", "--json").stdout.splitlines())}
    assert (found["MPIJob"], found["PyTorchJob"], found["TFJob"]) == (3, 3, 4)
    done = gradus("scale", "pytorch", 5, "-n", "team")
    assert done.stdout == "the job goes from 3 to 5 workers\n", done.stderr
    assert gradus("stop", "mpi", "-n", "team").returncode == 0
    wait_until(lambda: "mpi" not in control_plane.kubectl("-n", "team", "get", "cm", "-o", "name"),
               "the end of its program")


def test_missing_rights_are_named(gradus, control_plane, program, tmp_path):
    control_plane.kubectl("-n", "team", "create", "serviceaccount", "weak")
    token = control_plane.kubectl("-n", "team", "create", "token", "weak").strip()
    config = json.loads(control_plane.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "weak").write_text(json.dumps(config))
    done = gradus("submit", "--kubeconfig", tmp_path / "weak", "-n", "team", *IMAGE, "--", program)
    assert done.returncode == 2 and 'a role must allow "get" on jobs' in done.stderr, done.stderr

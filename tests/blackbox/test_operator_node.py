# SPDX-License-Identifier: Apache-2.0
"""MPIJobs on a real node, where pods are containers: Open MPI starts its ranks in the workers by
agents, by ssh and by `kubectl exec`, and they compute. The scripts that start the node are no part
of the project (GRADUS_KUBE, or shared/kube beside the source)."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from conftest import SOURCE
from kube_node import make_image
from test_gradusjob_cluster import IMAGE, ask
from test_submit_cluster import node  # noqa: F401: a fixture

pytestmark = pytest.mark.long

BASE = SOURCE / "deploy" / "base"
MPI, DELIVERY = "local.test/mpi:1", "local.test/delivery:1"
WAIT_S = 400
# Addresses of Services lead nowhere there.
SERVER = {"KUBERNETES_SERVICE_HOST": "10.245.0.1", "KUBERNETES_SERVICE_PORT": "26443"}
PROGRAM = """
#include <mpi.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    int rank, size, sum;
    char host[64], hosts[64 * 8];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    rank++;
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    gethostname(host, sizeof host);
    MPI_Gather(host, 64, MPI_CHAR, hosts, 64, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 1 && i < size; i++) {
        printf("%d of %d: %s\\n", sum, size, hosts + 64 * i);
    }
    return MPI_Finalize();
}
"""
PACKAGES = ["openmpi-bin", "openmpi-common", "libopenmpi3", "openssh-server", "openssh-client"]
# Waits for the workers of the hostfile, and hands kubectl over, as kubectl-delivery does.
DELIVER = f"export {' '.join(f'{key}={value}' for key, value in SERVER.items())}\n" + """
cp /usr/bin/kubectl $TARGET_DIR/kubectl
while read host slots; do
    until kubectl exec $host -- true; do sleep 0.3; done
done < /etc/mpi/hostfile
"""


def libraries(*paths):
    said = subprocess.run(["ldd", *paths], capture_output=True, text=True, check=False).stdout
    return {word for line in said.splitlines() for word in line.split()
            if word.startswith("/") and not word.endswith(":")}


def fill(folder, paths):
    """Files of this host and the libraries that they need, each at its place."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (folder / "usr" / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(f"usr/{name}")
    for path in {*map(str, paths), *libraries(*paths)}:
        target = folder / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in ("etc", "root", "tmp", "run/sshd"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n"
                                       "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n")


def make_mpi_image(folder, work):
    """Open MPI, a program, ssh and sshd, a shell."""
    (work / "rank.c").write_text(PROGRAM)
    subprocess.run(["mpicc.openmpi", "-o", work / "rank", work / "rank.c"], check=True)
    listed = subprocess.run(["dpkg", "-L", *PACKAGES], capture_output=True, text=True, check=True)
    paths = {path for path in listed.stdout.split()
             if path.startswith(("/usr/bin/", "/usr/sbin/", "/usr/lib/", "/usr/share/openmpi/",
                                 "/etc/openmpi/")) and os.path.isfile(path)}
    fill(folder, paths | {"/usr/bin/sh", "/usr/bin/cat", "/usr/bin/sleep", "/usr/bin/true",
                          os.path.realpath("/usr/bin/mpirun"), *libraries(work / "rank")})
    shutil.copy(os.path.realpath("/usr/bin/mpirun"), folder / "usr/bin/mpirun")
    shutil.copy(work / "rank", folder / "usr/bin/rank")
    ssh = folder / "etc/ssh"
    ssh.mkdir()
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f",
                    ssh / "ssh_host_ed25519_key"], check=True)
    (ssh / "ssh_config").write_text("Host *\n StrictHostKeyChecking no\n LogLevel ERROR\n")
    (ssh / "sshd_config").write_text("StrictModes no\nPermitRootLogin yes\nUsePAM no\n")


@pytest.fixture(scope="module")
def images(node, tmp_path_factory):  # noqa: F811
    if not all(map(shutil.which, ("mpicc.openmpi", "sshd", "ssh", "dpkg"))):
        pytest.skip("needs libopenmpi-dev, openssh-server and dpkg")
    work = tmp_path_factory.mktemp("images")
    for name in ("gradus", "mpi", "delivery"):
        (work / name).mkdir()
    make_image(work / "gradus", str(pathlib.Path(os.environ["GRADUS_BUILD_DIR"]) / "gradus"))
    make_mpi_image(work / "mpi", work)
    fill(work / "delivery", {"/usr/bin/sh", "/usr/bin/cp", "/usr/bin/sleep", "/usr/bin/true"})
    shutil.copy(pathlib.Path(node.environment["KUBEKIT_BIN"]) / "kubekit",
                work / "delivery/usr/bin/kubectl")
    for image, folder, command in ((IMAGE, "gradus", []), (MPI, "mpi", []),
                                   (DELIVERY, "delivery", ["/bin/sh", "-c", DELIVER])):
        made = node.run("image", image, work / folder, *command)
        assert made.returncode == 0, made.stderr
    permit(node)


def permit(node):  # noqa: F811
    """The operator's account, with the rights of deploy/base and no others."""
    ask(node, "apply", "--server-side", "-f", BASE / "role.yaml")
    ask(node, "create", "namespace", "gradus")
    ask(node, "-n", "gradus", "create", "serviceaccount", "gradus-operator")
    for role in ("gradus-operator", "gradus-operator-mpijob-v1"):
        ask(node, "create", "clusterrolebinding", role, f"--clusterrole={role}",
            "--serviceaccount=gradus:gradus-operator")


@contextlib.contextmanager
def operator_at_work(gradus, node, tmp_path, scheme, resource, *flags):  # noqa: F811
    """With that account; `resource`: the file of its kind."""
    ask(node, "apply", "--server-side", "--force-conflicts", "-f", BASE / resource)
    ask(node, "wait", "--for=condition=Established", f"crd/{resource.split('.')[0].split('-')[0]}"
        ".kubeflow.org")
    config = json.loads(ask(node, "config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {
        "token": ask(node, "-n", "gradus", "create", "token", "gradus-operator").strip()}
    (tmp_path / "config").write_text(json.dumps(config))
    process = node.gradus(gradus, "operator", "--kubeconfig", tmp_path / "config",
                          "--enable-scheme", scheme, "--leader-elect=false",
                          "--metrics-bind-address", "0", "--health-probe-bind-address", "0",
                          *flags)
    yield
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def job_of(name, version, **annotations):
    def role(**container):
        env = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", **SERVER}
        container["env"] = [{"name": key, "value": value} for key, value in env.items()]
        return {"template": {"spec": {"containers": [{"name": "mpi", "image": MPI, **container}]}}}
    return {"apiVersion": f"kubeflow.org/{version}", "kind": "MPIJob",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"mpiReplicaSpecs": {"Launcher": role(command=["mpirun", "rank"]),
                                         "Worker": {"replicas": 2, **role()}}}}


@pytest.mark.parametrize("flow, version", [("agent", "v2beta1"), ("ssh", "v2beta1"),
                                           ("exec", "v1")])
def test_ranks_of_open_mpi_compute_in_the_workers(gradus, node, images,  # noqa: F811
                                                  tmp_path, flow, version):
    notes = {"gradus/launch": flow} if flow != "exec" else {}
    resource = "mpijobs.yaml" if version == "v2beta1" else "mpijobs-v1.yaml"
    if version == "v1" and "mpijobs.kubeflow.org" in ask(node, "get", "crd"):
        ask(node, "delete", "crd", "mpijobs.kubeflow.org")
    with operator_at_work(gradus, node, tmp_path, f"mpijob.{version}", resource,
                          "--launch-agent-image", IMAGE, "--mpi-kubectl-delivery-image", DELIVERY):
        ask(node, "create", "-f", "-", text=json.dumps(job_of(flow, version, **notes)))
        done = node.run("kubectl", "wait", "--for=condition=Succeeded", f"mpijob/{flow}",
                        f"--timeout={WAIT_S}s")
        launcher = f"job/{flow}-launcher" if version == "v2beta1" else f"pod/{flow}-launcher"
        said = node.run("kubectl", "logs", launcher, "--all-containers").stdout
        assert done.returncode == 0, said + ask(node, "get", "pods") + ask(node, "get", "events")
        assert [line for line in said.splitlines() if " of 2: " in line] == [
            f"3 of 2: {flow}-worker-0", f"3 of 2: {flow}-worker-1"]
        secrets = ask(node, "get", "secrets", "-o", "name").split()
        assert [one for one in secrets if flow in one] == {
            "agent": ["secret/agent-agent"], "ssh": ["secret/ssh-ssh"], "exec": []}[flow]
        ask(node, "delete", "mpijob", flow)

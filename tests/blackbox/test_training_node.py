# SPDX-License-Identifier: Apache-2.0
"""PyTorchJobs and TFJobs on a real node, where pods are containers: PyTorch computes over gloo, and
tasks of a TFJob find each other by TF_CONFIG. The scripts that start the node are no part of the
project (GRADUS_KUBE, or shared/kube beside the source)."""
import json
import subprocess

import pytest

from test_gradusjob_cluster import ask
from test_operator_node import fill, operator_at_work, permit
from test_submit_cluster import node  # noqa: F401: a fixture

pytestmark = pytest.mark.long

IMAGE = "local.test/python:1"
WAIT_S = 400
# Programs are those of this host: its PyTorch is larger than an image that a test makes may be.
HOST = ["/usr", "/etc/alternatives"]
ADD = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
values = torch.arange(4.0) + dist.get_rank()
dist.all_reduce(values)
print("rank", dist.get_rank(), "of", dist.get_world_size(), values.tolist(), flush=True)
dist.barrier()
"""
MEET = """
import json, os, socket, threading

config = json.loads(os.environ["TF_CONFIG"])
mine = config["task"]["type"] + str(config["task"]["index"])
tasks = {f"{kind}{i}": at.rsplit(":", 1) for kind, all in config["cluster"].items()
         for i, at in enumerate(all)}
server = socket.create_server(("", int(tasks[mine][1])))
came = []

def take():
    while len(came) < len(tasks) - 1:
        connection, _ = server.accept()
        came.append(connection.makefile().readline().strip())

taking = threading.Thread(target=take)
taking.start()
for name, (host, port) in tasks.items():
    while name != mine:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(f"{mine}\\n".encode())
            break
        except OSError:
            taking.join(0.1)  # who has come listens: it does so before it goes to others
taking.join()
print(mine, "met", *sorted(came), flush=True)
"""


@pytest.fixture(scope="module")
def image(node, tmp_path_factory):  # noqa: F811
    torch = subprocess.run(["/usr/bin/python3", "-c", "import torch"], capture_output=True)
    if torch.returncode != 0:
        pytest.skip("needs PyTorch (python3-torch)")
    folder = tmp_path_factory.mktemp("image")
    fill(folder, {f"/usr/bin/{name}" for name in ("sh", "sleep", "seq", "getent")})
    lookup = folder / "usr/bin/nslookup"
    lookup.write_text("#!/bin/sh\nexec getent hosts $1\n")
    lookup.chmod(0o755)
    made = node.run("image", IMAGE, folder)
    assert made.returncode == 0, made.stderr
    permit(node)
    return IMAGE


def role(container, program, replicas=1):
    volumes = [{"name": f"host-{i}", "hostPath": {"path": path}} for i, path in enumerate(HOST)]
    mounts = [{"name": f"host-{i}", "mountPath": path, "readOnly": True}
              for i, path in enumerate(HOST)]
    return {"replicas": replicas, "restartPolicy": "Never", "template": {"spec": {
        "volumes": volumes, "containers": [{
            "name": container, "image": IMAGE, "command": ["/usr/bin/python3", "-c", program],
            "env": [{"name": "OMP_NUM_THREADS", "value": "1"}], "volumeMounts": mounts}]}}}


def run(node, job):  # noqa: F811
    """Returns what its pods have written, a line each."""
    name = f"{job['kind'].lower()}/{job['metadata']['name']}"
    ask(node, "create", "-f", "-", text=json.dumps(job))
    done = node.run("kubectl", "wait", "--for=condition=Succeeded", name, f"--timeout={WAIT_S}s")
    node.run("kubectl", "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod", "--all",
             f"--timeout={WAIT_S}s")  # the job may be over with one of them
    pods = ask(node, "get", "pods", "-o", "name").split()
    said = {pod: node.run("kubectl", "logs", pod).stdout for pod in pods}
    assert done.returncode == 0, f"{said} {ask(node, 'get', 'pods')} {ask(node, 'get', 'events')}"
    return sorted(line for text in said.values() for line in text.splitlines())


def test_pytorch_adds_over_gloo(gradus, node, image, tmp_path):  # noqa: F811
    job = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "add"},
           "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "pytorchReplicaSpecs": {
               "Master": role("pytorch", ADD), "Worker": role("pytorch", ADD, 2)}}}
    with operator_at_work(gradus, node, tmp_path, "pytorchjob", "pytorchjobs.yaml",
                          "--pytorch-init-container-image", image):
        assert run(node, job) == [f"rank {rank} of 3 {[3.0, 6.0, 9.0, 12.0]}" for rank in range(3)]
        ask(node, "delete", "pytorchjob", "add")
        ask(node, "wait", "--for=delete", "pod", "--all", f"--timeout={WAIT_S}s")


def test_tasks_find_each_other_by_tf_config(gradus, node, image, tmp_path):  # noqa: F811
    roles = {"Chief": role("tensorflow", MEET), "Worker": role("tensorflow", MEET, 2),
             "PS": role("tensorflow", MEET)}
    job = {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": {"name": "meet"},
           "spec": {"runPolicy": {"cleanPodPolicy": "None"}, "tfReplicaSpecs": roles}}
    names = ["chief0", "ps0", "worker0", "worker1"]
    with operator_at_work(gradus, node, tmp_path, "tfjob", "tfjobs.yaml"):
        assert run(node, job) == [
            " ".join([name, "met", *(one for one in names if one != name)]) for name in names]
        ask(node, "delete", "tfjob", "meet")

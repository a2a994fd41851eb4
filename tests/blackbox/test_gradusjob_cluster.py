# SPDX-License-Identifier: Apache-2.0
"""GradusJobs on a real node, where pods are containers: the bits are those of a run that nobody
disturbed, whatever becomes of the pods. The scripts that start the node are no part of the project
(GRADUS_KUBE, or shared/kube beside the source)."""
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

from conftest import SOURCE, lines_of, sha256_of, wait_until
from kube_node import make_image, processes_of
from test_submit_cluster import node  # noqa: F401: a fixture

pytestmark = pytest.mark.long

EPOCHS, EVAL_EVERY = 1500, 1500
BASE = SOURCE / "deploy" / "base"
IMAGE = "local.test/gradus:1"
WAIT_S = 400


def ask(node, *words, text=None):
    done = subprocess.run([node.script, "kubectl", *map(str, words)], env=node.environment,
                          text=True, capture_output=True, input=text)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(node, manifest):
    done = subprocess.run([node.script, "kubectl", "create", "-f", "-"], env=node.environment,
                          text=True, capture_output=True, input=json.dumps(manifest))
    assert done.returncode != 0, done.stdout
    return done.stderr


class Training:
    """What a job writes of its training, into a folder that its pods have as their output."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        shutil.copy(SOURCE / "examples/digits/digits.csv.gz", folder)

    def events(self, name):
        there = (self.folder / "metrics.jsonl").exists()
        return lines_of(self.folder, name) if there else []

    def wait_for(self, name, count=1):
        wait_until(lambda: len(self.events(name)) >= count or self.events("end"),
                   f"{count} {name}", WAIT_S)
        assert not self.events("end"), "it was through before"

    def wait_for_end(self):
        """However long it trains on a busy machine: only one that stands has failed."""
        while not self.events("end"):
            known = len(self.events("epoch"))
            wait_until(lambda most=known: len(self.events("epoch")) > most or self.events("end"),
                       f"an epoch after {known} or the end", WAIT_S)


@pytest.fixture(scope="module")
def rights(node, tmp_path_factory):  # noqa: F811
    """The image of workers, the resource, and the rights of deploy/base."""
    folder = tmp_path_factory.mktemp("image") / "root"
    make_image(folder, str(pathlib.Path(os.environ["GRADUS_BUILD_DIR"]) / "gradus"))
    assert node.run("image", IMAGE, folder).returncode == 0
    ask(node, "apply", "--server-side", "-f", BASE / "gradusjobs.yaml", "-f", BASE / "role.yaml")
    ask(node, "create", "namespace", "gradus")
    ask(node, "-n", "gradus", "create", "serviceaccount", "gradus-operator")
    ask(node, "create", "clusterrolebinding", "gradus-operator", "--clusterrole=gradus-operator",
        "--serviceaccount=gradus:gradus-operator")
    ask(node, "wait", "--for=condition=Established", "crd/gradusjobs.gradus.dev")


@pytest.fixture
def operator(gradus, node, rights, tmp_path):  # noqa: F811
    """With the rights of deploy/base and no others."""
    config = json.loads(ask(node, "config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {
        "token": ask(node, "-n", "gradus", "create", "token", "gradus-operator").strip()}
    (tmp_path / "config").write_text(json.dumps(config))
    process = node.gradus(gradus, "operator", "--kubeconfig", tmp_path / "config",
                          "--enable-scheme", "gradusjob", "--leader-elect=false",
                          "--metrics-bind-address", "0", "--health-probe-bind-address", "0",
                          "--launch-agent-image", IMAGE)
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def status_of(node, name):
    return json.loads(ask(node, "get", "gradusjob", name, "-o", "json")).get("status", {})


def kill(node, pod, space="default"):
    """As the kernel does it where memory is short."""
    uid = ask(node, "-n", space, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
    processes = processes_of(uid)
    assert processes, f"nothing runs in {pod}"
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def manifest_of(gradus, job, folder, **workers):
    settings = json.loads(gradus.document("-np", 1, job).read_text())["job"]
    del settings["output"], settings["checkpoint"]  # its folder is in the output
    settings["data"]["file"] = "/gradus/output/digits.csv.gz"
    return {"apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": "digits"},
            "spec": {"workers": {"replicas": 3, "image": IMAGE, **workers},
                     "job": settings, "checkpointVolume": {"hostPath": {"path": str(folder)}}}}


def test_job_is_scaled_suspended_and_loses_pods(gradus, node, operator, job, undisturbed,
                                                tmp_path):  # noqa: F811
    training = Training(tmp_path / "output")
    manifest = manifest_of(gradus, job, training.folder, maxReplicas=4)

    def patch(spec):
        ask(node, "patch", "gradusjob", "digits", "--type=merge", "-p", json.dumps({"spec": spec}))

    for spec, why in (({"command": ["a"]}, "must not be used with spec.job"),
                      ({"jobFrom": {"configMapKeyRef": {"name": "a"}}}, "must not be used with"),
                      ({"workers": {"replicas": 5, "maxReplicas": 4}}, "at most maxReplicas"),
                      ({"workers": {"replicas": 1, "minReplicas": 2}}, "at least minReplicas")):
        assert why in refusal(node, {**manifest, "spec": {**manifest["spec"], **spec}})
    ask(node, "create", "-f", "-", text=json.dumps(manifest))
    # Before that the loss of a pod ends the attempt, and workers train before it is known.
    ask(node, "wait", "--for=condition=Running", "gradusjob/digits", f"--timeout={WAIT_S}s")
    training.wait_for("epoch")
    ask(node, "delete", "pod", "digits-worker-0", "--grace-period=1")
    training.wait_for("recovered")
    training.wait_for("changed")  # the pod that was made in its place has joined
    assert [line["workers"] for line in training.events("changed")] == [3]
    ask(node, "scale", "gradusjob/digits", "--replicas=4")
    training.wait_for("start", 2)
    patch({"runPolicy": {"suspend": True}})
    ask(node, "wait", "--for=condition=Suspended", "gradusjob/digits", f"--timeout={WAIT_S}s")
    ask(node, "wait", "--for=delete", "pod", "-l", "training.kubeflow.org/job-name=digits",
        f"--timeout={WAIT_S}s")
    steps = [line["step"] for line in training.events("stopped")]
    patch({"runPolicy": {"suspend": False}})
    training.wait_for("start", 3)
    training.wait_for_end()
    ask(node, "wait", "--for=condition=Succeeded", "gradusjob/digits", f"--timeout={WAIT_S}s")
    assert sha256_of(training.folder) == undisturbed
    starts = [(line["workers"], line["step"]) for line in training.events("start")]
    assert starts == [(3, 0), (4, steps[0]), (4, steps[1])]
    assert status_of(node, "digits").get("restarts", 0) == 0
    assert operator.poll() is None
    ask(node, "delete", "gradusjob", "digits")
    wait_until(lambda: "digits" not in ask(node, "get", "svc,secret,pod"), "the end of all", WAIT_S)

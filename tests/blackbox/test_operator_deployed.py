# SPDX-License-Identifier: Apache-2.0
"""The operator as deploy/ installs it, on a real node: the image of deploy/Dockerfile, deploy/base
by an overlay, two pods of which one leads. The scripts that start the node are no part of the
project (GRADUS_KUBE, or shared/kube beside the source)."""
import hashlib
import io
import json
import os
import pathlib
import re
import shutil
import tarfile

import pytest

from conftest import SOURCE, sha256_of, wait_until
from test_gradusjob_cluster import (WAIT_S, Training, ask, kill, manifest_of, processes_of,
                                    status_of)
from test_operator_node import SERVER, fill, libraries
from test_submit_cluster import node  # noqa: F401: a fixture

pytestmark = pytest.mark.long

EPOCHS, EVAL_EVERY = 1500, 1500
DEPLOY = SOURCE / "deploy"
IMAGE, SHELL = "local.test/team/gradus-operator:v1", "local.test/shell:1"
OPERATORS = ("-n", "gradus", "-l", "app.kubernetes.io/name=gradus-operator")
USER = "65532"


def make_operator_image(folder, program):
    """What the last stage of deploy/Dockerfile makes, as a folder: its packages are the libraries
    of this host. Returns what the image says of its process."""
    fill(folder, {"/usr/bin/sh", *libraries(program)})
    sources, config = {"/build/gradus": program}, {"Env": ["PATH=/usr/bin:/bin"]}
    stage = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    for line in stage.replace("\\\n", " ").splitlines()[1:]:
        word, _, rest = line.partition(" ")
        if word == "COPY":
            source, target = rest.removeprefix("--from=build ").split()
            shutil.copy(sources.get(source, SOURCE / source), folder / target.lstrip("/"))
        elif word == "RUN":
            for command in map(str.split, rest.split("&&")):
                assert command[0] in ("ln", "rm", "apt-get"), f"not known here: {command}"
                if command[0] == "ln":
                    (folder / command[3].lstrip("/")).parent.mkdir(exist_ok=True)
                    (folder / command[3].lstrip("/")).symlink_to(command[2])
        elif word in ("USER", "ENTRYPOINT"):
            config[word.capitalize()] = json.loads(rest) if rest.startswith("[") else rest
        else:
            assert not word or word == "#", f"not known here: {line}"
    return config


def bring_image(node, name, folder, config, work):  # noqa: F811
    """As `docker build` and `docker push` do; the node's own script takes no entry point."""
    with tarfile.open(work / "layer.tar", "w") as layer:
        layer.add(folder, arcname=".")
    digest = hashlib.sha256((work / "layer.tar").read_bytes()).hexdigest()
    image = {"architecture": "amd64", "os": "linux", "config": config,
             "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(work / "image.tar", "w") as out:
        out.add(work / "layer.tar", arcname="layer.tar")
        for path, thing in (("config.json", image), ("manifest.json", manifest)):
            text = json.dumps(thing).encode()
            entry = tarfile.TarInfo(path)
            entry.size = len(text)
            out.addfile(entry, io.BytesIO(text))
    done = node.run("exec", "ctr", "-a", node.state / "ctr" / "containerd.sock", "-n", "k8s.io",
                    "images", "import", work / "image.tar")
    assert done.returncode == 0, done.stderr


def overlay(folder):
    """That of deploy/README.md. Addresses of Services lead nowhere on this node, which has no
    kube-proxy: so the operators are told where the API server is. All else of what a pod gets in a
    cluster is as everywhere."""
    folder.mkdir()
    name, tag = IMAGE.rsplit(":", 1)
    text = re.search(r"\n((    .*\n)*    patches:\n(    .*\n)+)",
                     (DEPLOY / "README.md").read_text())[1]
    for old, new in ((".../deploy/base", os.path.relpath(DEPLOY / "base", folder.resolve())),
                     ("REGISTRY/gradus-operator", name), ("0.1.0", tag)):
        assert old in text
        text = text.replace(old, new)
    variables = [{"name": key, "value": value} for key, value in SERVER.items()]
    more = {"op": "add", "path": "/spec/template/spec/containers/0/env", "value": variables}
    (folder / "kustomization.yaml").write_text(f"{text}        - {json.dumps(more)}\n")
    return folder


@pytest.fixture(scope="module")
def deployed(node, tmp_path_factory):  # noqa: F811
    work = tmp_path_factory.mktemp("deployed")
    program = str(pathlib.Path(os.environ["GRADUS_BUILD_DIR"]) / "gradus")
    config = make_operator_image(work / "root", program)
    assert config["User"].split(":")[0] == USER
    bring_image(node, IMAGE, work / "root", config, work)
    fill(work / "shell", {"/usr/bin/sh"})
    assert node.run("image", SHELL, work / "shell").returncode == 0
    ask(node, "apply", "--server-side", "-k", overlay(work / "overlay"))
    wait_for_both(node)
    yield
    ask(node, "-n", "gradus", "delete", "deployment", "gradus-operator")  # else its pods come back
    ask(node, "wait", "--for=delete", "pod", *OPERATORS, f"--timeout={WAIT_S}s")


def wait_for_both(node):  # noqa: F811
    done = node.run("kubectl", "-n", "gradus", "rollout", "status", "deployment/gradus-operator",
                    f"--timeout={WAIT_S}s")
    assert done.returncode == 0, done.stdout + said(node)


def said(node):  # noqa: F811
    """What the operators wrote, and what became of them."""
    return "\n".join(node.run("kubectl", *words).stdout for words in (
        ("logs", "--prefix", "--tail=50", *OPERATORS), ("get", "pods", "-o", "wide", "-A"),
        ("describe", "pods", *OPERATORS), ("get", "events", "-A")))


def leader(node):  # noqa: F811
    """The pod that holds the lease, and what says that it does; ("", ""): nobody does."""
    identity = ask(node, "-n", "gradus", "get", "lease", "mpi-operator", "--ignore-not-found", "-o",
                   "jsonpath={.spec.holderIdentity}")
    return identity.rpartition("_")[0], identity


def wait_for_leader(node, but=""):  # noqa: F811
    wait_until(lambda: leader(node)[1] not in ("", but), "a leader", WAIT_S)
    return leader(node)


def metrics(node, pod):  # noqa: F811
    return ask(node, "get", "--raw", f"/api/v1/namespaces/gradus/pods/{pod}:8080/proxy/metrics")


def test_pods_run_as_deployed(node, deployed):  # noqa: F811
    """As a user without rights, on a root file system that is only read."""
    pods = json.loads(ask(node, "get", "pods", *OPERATORS, "-o", "json"))["items"]
    assert len(pods) == 2
    leading, _ = wait_for_leader(node)
    for pod in pods:
        (pid,) = processes_of(pod["metadata"]["uid"])
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        assert f"\nUid:\t{USER}\t{USER}" in status and "\nCapEff:\t0000000000000000" in status
        mounts = pathlib.Path(f"/proc/{pid}/mounts").read_text()
        (root,) = [line for line in mounts.splitlines() if line.split()[1] == "/"]
        assert "ro" in root.split()[3].split(","), root
        name = pod["metadata"]["name"]
        assert f"\nmpi_operator_is_leader {int(name == leading)}\n" in metrics(node, name)


def test_job_goes_on_when_leaders_are_lost(gradus, node, deployed, job, undisturbed,
                                           tmp_path):  # noqa: F811
    training = Training(tmp_path / "output")
    manifest = manifest_of(gradus, job, training.folder, image=SHELL)  # gradus is not in it
    ask(node, "create", "-f", "-", text=json.dumps(manifest))
    ask(node, "wait", "--for=condition=Running", "gradusjob/digits", f"--timeout={WAIT_S}s")
    training.wait_for("epoch")
    first, first_identity = wait_for_leader(node)
    ask(node, "-n", "gradus", "delete", "pod", first, "--wait=false")
    second, second_identity = wait_for_leader(node, but=first_identity)
    assert second != first
    ask(node, "delete", "pod", "digits-worker-1", "--grace-period=1")
    training.wait_for("recovered")
    training.wait_for("changed")  # the pod that the second one has made has joined
    wait_until(lambda: "progress" in status_of(node, "digits"), "a word of a worker", WAIT_S)
    kill(node, second, "gradus")
    training.wait_for_end()
    ask(node, "wait", "--for=condition=Succeeded", "gradusjob/digits", f"--timeout={WAIT_S}s")
    assert sha256_of(training.folder) == undisturbed
    assert leader(node)[1] not in (first_identity, second_identity)
    status = status_of(node, "digits")
    assert (status["replaced"], status.get("restarts", 0)) == (1, 0), status
    assert status["progress"]["steps"] == 22 * EPOCHS, status
    wait_for_both(node)
    ask(node, "delete", "gradusjob", "digits")
    wait_until(lambda: "digits" not in ask(node, "get", "svc,secret,pod"), "the end of all", WAIT_S)

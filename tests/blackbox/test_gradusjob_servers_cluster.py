# SPDX-License-Identifier: Apache-2.0
"""GradusJobs with parameter servers on a real node, where pods are containers: the bits are those
of a run of allreduce that nobody disturbed. The scripts that start the node are no part of the
project (GRADUS_KUBE, or shared/kube beside the source)."""
import json

import pytest

from conftest import sha256_of, wait_until
from test_gradusjob_cluster import WAIT_S, Training, ask, kill, manifest_of, status_of
from test_gradusjob_cluster import operator, rights  # noqa: F401: fixtures
from test_submit_cluster import node  # noqa: F401: a fixture

pytestmark = pytest.mark.long

EPOCHS, EVAL_EVERY = 500, 500


def test_job_loses_a_server_and_a_worker(gradus, node, operator, job, undisturbed,  # noqa: F811
                                         tmp_path):
    training = Training(tmp_path / "output")
    manifest = manifest_of(gradus, job, training.folder)
    manifest["metadata"]["name"] = "ps"
    manifest["spec"]["servers"] = {"replicas": 2}
    manifest["spec"]["job"].setdefault("distribution", {})["strategy"] = "ps"
    ask(node, "create", "-f", "-", text=json.dumps(manifest))
    ask(node, "wait", "--for=condition=Running", "gradusjob/ps", f"--timeout={WAIT_S}s")
    training.wait_for("epoch")
    kill(node, "ps-server-1")  # of two, the one that the other does without
    wait_until(lambda: status_of(node, "ps").get("replacedServers") == 1, "another pod", WAIT_S)
    ask(node, "wait", "--for=create", "pod/ps-server-1", f"--timeout={WAIT_S}s")
    ask(node, "wait", "--for=condition=Ready", "pod/ps-server-1", f"--timeout={WAIT_S}s")
    kill(node, "ps-worker-1")
    training.wait_for("recovered")
    training.wait_for("changed")
    assert [line["workers"] for line in training.events("changed")] == [3]
    training.wait_for_end()
    ask(node, "wait", "--for=condition=Succeeded", "gradusjob/ps", f"--timeout={WAIT_S}s")
    assert sha256_of(training.folder) == undisturbed
    status = status_of(node, "ps")
    assert (status.get("replaced"), status.get("restarts", 0)) == (1, 0), status
    assert [line["step"] for line in training.events("start")] == [0]
    assert operator.poll() is None
    ask(node, "delete", "gradusjob", "ps")

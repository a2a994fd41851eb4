# SPDX-License-Identifier: Apache-2.0
"""Random lives of jobs of training-operator's kinds: whatever happens to pods, specs and the clock,
the operator comes to rest, makes nothing twice, and leaves nothing behind."""
import datetime
import os
import pathlib
import random

import pytest

import kube_double

OPERATOR = pathlib.Path(os.environ["GRADUS_BUILD_DIR"]) / "tests" / "operator_reconcile"
KINDS = {"PyTorchJob": ("pytorchReplicaSpecs", "pytorch", {"Master": 1, "Worker": 3}),
         "TFJob": ("tfReplicaSpecs", "tensorflow", {"Chief": 1, "PS": 2, "Worker": 3}),
         "MPIJob": ("mpiReplicaSpecs", "main", {"Launcher": 1, "Worker": 3})}
LIVES = 12


class Life:
    def __init__(self, kind, seed):
        self.random, self.kind = random.Random(f"{kind} {seed}"), kind
        self.cluster = kube_double.Cluster(OPERATOR, self.pick("", "", "volcano", "plugins"))
        self.specs, container, roles = KINDS[kind]
        policies = ("Always", "OnFailure", "Never", "ExitCode")
        replicas = {role: {"replicas": count, "restartPolicy": self.pick(*policies),
                           "template": {"spec": {"containers": [{"name": container,
                                                                 "image": "i"}]}}}
                    for role, count in roles.items()}
        policy = {"cleanPodPolicy": self.pick("All", "None", "Running")}
        for limit in ("ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit"):
            if self.pick(True, False):
                policy[limit] = self.pick(0, 3, 40)
        self.container = container
        self.cluster.create({"apiVersion": "kubeflow.org/v1", "kind": kind,
                             "metadata": {"name": "job", "namespace": "lab"},
                             "spec": {self.specs: replicas, "runPolicy": policy}})

    def pick(self, *choices):
        return self.random.choice(choices)

    def job(self):
        return self.cluster.get(self.kind, "job")

    def check_pods(self, conditions):
        """A job that goes on has the pods of its replicas, and no others but those that go."""
        spec = self.job()["spec"]
        if conditions & {"Succeeded", "Failed", "Suspended"} or \
                self.cluster.gang_scheduler == "volcano":
            return
        wanted = {f"job-{role.lower()}-{i}" for role, one in spec[self.specs].items()
                  for i in range(one["replicas"])}
        wanted = {"job-launcher" if name == "job-launcher-0" else name for name in wanted}
        there = {pod["metadata"]["name"] for pod in self.cluster.pods()}
        going = {pod["metadata"]["name"] for pod in self.cluster.pods()
                 if "deletionTimestamp" in pod["metadata"]}
        assert wanted <= there and there - going <= wanted

    def change_spec(self):
        old = self.job()
        new = {**old, "spec": {**old["spec"], "runPolicy": {**old["spec"]["runPolicy"]},
                               self.specs: {**old["spec"][self.specs]}}}
        if self.pick(True, False):
            new["spec"]["runPolicy"]["suspend"] = self.pick(True, False)
        else:
            new["spec"][self.specs]["Worker"] = {**new["spec"][self.specs]["Worker"],
                                                 "replicas": self.pick(1, 2, 11)}
        self.cluster.put(old, new)

    def change_pod(self):
        pods = self.cluster.pods()
        if not pods:
            return
        pod = self.random.choice(pods)
        what, code = self.pick("Running", "end", "restart", "going", "gone"), self.pick(0, 1, 137)
        if what == "gone":
            self.cluster.delete("Pod", pod["metadata"]["name"])
        elif what == "going":
            pod["metadata"]["deletionTimestamp"] = self.cluster.time()
        elif what == "restart":
            pod["status"] = {"phase": "Running", "containerStatuses": [{"restartCount": 2}]}
        elif what == "end":
            ended = {"name": self.container, "state": {"terminated": {"exitCode": code}}}
            pod["status"] = {"phase": "Failed" if code else "Succeeded",
                             "containerStatuses": [ended]}
        else:
            pod["status"] = {"phase": "Running"}

    def change_anything(self):
        what = self.pick("pod", "pod", "pod", "pod", "spec", "clock", "group")
        if what == "pod":
            self.change_pod()
        elif what == "spec":
            self.change_spec()
        elif what == "clock":
            self.cluster.pass_time(self.pick(1, 5, 50), self.kind, "job")
        elif self.cluster.get("PodGroup", "job"):
            self.cluster.get("PodGroup", "job")["status"] = {"phase": self.pick("Inqueue",
                                                                                "Pending")}


@pytest.mark.parametrize("seed", range(LIVES))
@pytest.mark.parametrize("kind", KINDS)
def test_operator_random_life_comes_to_rest(kind, seed):
    life = Life(kind, seed)
    cluster = life.cluster
    for _ in range(60):
        cluster.settle(kind, "job")
        if life.job() is None:
            break
        second = datetime.timedelta(seconds=1)
        if not cluster.again_at or cluster.again_at > cluster.now + second:
            cluster.now += second  # nobody asked to look again: nothing has changed
            assert cluster.look(life.job()) == 0
        conditions = {one["type"] for one in life.job()["status"]["conditions"]
                      if one["status"] == "True"}
        assert len(conditions & {"Running", "Restarting", "Succeeded", "Failed"}) < 2
        life.check_pods(conditions)
        life.change_anything()
        if life.job() is None:
            break
    if life.job() is not None:
        cluster.delete(kind, "job")
    cluster.close()
    assert cluster.objects == {}

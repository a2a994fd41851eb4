# SPDX-License-Identifier: Apache-2.0
"""A small Kubernetes API server for tests of the operator: objects by kind and name, with what the
server adds to those that are written (uid, resourceVersion, defaults, admission)."""
import copy
import datetime
import itertools
import json
import subprocess

TOKEN = "kube-api-access-RAND"
TOKEN_VOLUME = {"name": TOKEN, "projected": {"defaultMode": 420, "sources": [
    {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
    {"configMap": {"items": [{"key": "ca.crt", "path": "ca.crt"}], "name": "kube-root-ca.crt"}},
    {"downwardAPI": {"items": [{"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"},
                                "path": "namespace"}]}}]}}
TOLERATIONS = [{"effect": "NoExecute", "key": f"node.kubernetes.io/{what}", "operator": "Exists",
                "tolerationSeconds": 300} for what in ("not-ready", "unreachable")]
KEY = {"ssh-privatekey": "KEY", "ssh-publickey": "KEY"}
JOBS = ("MPIJob", "PyTorchJob", "TFJob")


def default_pod_spec(spec):
    for key, value in (("restartPolicy", "Always"), ("terminationGracePeriodSeconds", 30),
                       ("dnsPolicy", "ClusterFirst"), ("securityContext", {}),
                       ("schedulerName", "default-scheduler")):
        spec.setdefault(key, value)
    if spec.get("hostNetwork") is False:
        del spec["hostNetwork"]
    for container in spec.get("initContainers", []) + spec["containers"]:
        image = container.get("image", "")
        pull = "IfNotPresent" if ":" in image and not image.endswith(":latest") else "Always"
        for key, value in (("resources", {}), ("terminationMessagePath", "/dev/termination-log"),
                           ("terminationMessagePolicy", "File"), ("imagePullPolicy", pull)):
            container.setdefault(key, copy.copy(value))
        for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
            for key, value in (("failureThreshold", 3), ("periodSeconds", 10),
                               ("successThreshold", 1), ("timeoutSeconds", 1)):
                if probe in container:
                    container[probe].setdefault(key, value)
        for port in container.get("ports", []):
            port.setdefault("protocol", "TCP")
        for amounts in container["resources"].values():
            amounts.update({name: str(value) for name, value in amounts.items()})
    for volume in spec.get("volumes", []):
        for kind in ("secret", "configMap"):
            if kind in volume:
                volume[kind].setdefault("defaultMode", 420)


def admit_pod(spec):
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    spec["tolerations"] = spec.get("tolerations", []) + copy.deepcopy(TOLERATIONS)
    spec["volumes"] = spec.get("volumes", []) + [copy.deepcopy(TOKEN_VOLUME)]
    for container in spec.get("initContainers", []) + spec["containers"]:
        container["volumeMounts"] = container.get("volumeMounts", []) + [
            {"mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "name": TOKEN,
             "readOnly": True}]
        limits = container["resources"].get("limits")
        if limits:
            container["resources"]["requests"] = {**limits,
                                                  **container["resources"].get("requests", {})}


def complete(thing):
    """What the server makes of an object that is created."""
    kind, spec = thing["kind"], thing.get("spec")
    if kind == "Pod":
        default_pod_spec(spec)
        admit_pod(spec)
        thing["status"] = {"phase": "Pending"}
    elif kind == "Job":
        uid, name = thing["metadata"]["uid"], thing["metadata"]["name"]
        for key, value in (("backoffLimit", 6), ("completionMode", "NonIndexed"),
                           ("completions", 1), ("manualSelector", False), ("parallelism", 1),
                           ("suspend", False)):
            spec.setdefault(key, value)
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        spec["template"]["metadata"]["labels"].update({
            "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name,
            "controller-uid": uid, "job-name": name})
        default_pod_spec(spec["template"]["spec"])
        thing["status"] = {}
    elif kind == "Service":
        spec.update(clusterIPs=["None"], internalTrafficPolicy="Cluster", ipFamilies=["IPv4"],
                    ipFamilyPolicy="SingleStack", sessionAffinity="None", type="ClusterIP")
        for port in spec.get("ports", []):
            port.setdefault("protocol", "TCP")
        thing["status"] = {"loadBalancer": {}}
    elif kind == "HorizontalPodAutoscaler":
        thing["status"] = {"currentMetrics": None, "desiredReplicas": 0}
    elif kind == "MPIJob" and thing["apiVersion"] == "kubeflow.org/v2beta1":
        for key, value in (("launcherCreationPolicy", "AtStartup"),
                           ("mpiImplementation", "OpenMPI"), ("runLauncherAsWorker", False),
                           ("slotsPerWorker", 1), ("sshAuthMountPath", "/root/.ssh")):
            spec.setdefault(key, value)
    if kind in JOBS and "runPolicy" in spec:
        spec["runPolicy"].setdefault("suspend", False)
    if kind in JOBS:  # the schema knows ports
        for role in next(specs for key, specs in spec.items()
                         if key.endswith("ReplicaSpecs")).values():
            for container in role["template"]["spec"]["containers"]:
                for port in container.get("ports", []):
                    port.setdefault("protocol", "TCP")


class Cluster:
    """One namespace. `operator` is the program that looks at a job."""

    def __init__(self, operator, gang_scheduler=""):
        self.objects, self.events = {}, []
        self.writes = set()  # (verb, apiVersion, kind)
        self.versions, self.gang_scheduler = itertools.count(1), gang_scheduler
        self.now = datetime.datetime(2026, 1, 31, 12)
        self.again_at = None  # when the operator asked to look again
        self.process = subprocess.Popen([operator], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait() == 0

    def time(self):
        return self.now.isoformat() + "Z"

    def get(self, kind, name):
        return self.objects.get((kind, name))

    def pods(self):
        return [thing for (kind, _), thing in self.objects.items() if kind == "Pod"]

    def create(self, thing):
        metadata = thing["metadata"]
        key = thing["kind"], metadata["name"]
        assert key not in self.objects, f"{key} is created twice"
        version = next(self.versions)
        metadata.update(uid=f"{key[0]}/{key[1]}", resourceVersion=str(version),
                        creationTimestamp=self.time())
        if thing["kind"] in ("Pod", "Job", "PodGroup", *JOBS):
            metadata["generation"] = 1
        complete(thing)
        self.objects[key] = thing

    def replace(self, thing, status_alone=False):
        old = self.objects[thing["kind"], thing["metadata"]["name"]]
        versions = [one["metadata"]["resourceVersion"] for one in (old, thing)]
        assert versions[0] == versions[1], "409 Conflict"
        new = {**old, "status": thing.get("status", {})} if status_alone \
            else {**thing, "status": old.get("status", {})}
        if "status" not in old and not status_alone:
            del new["status"]
        self.put(old, new)

    def put(self, old, new):
        new["metadata"] = {**new["metadata"], "resourceVersion": str(next(self.versions))}
        if "generation" in old["metadata"] and new["spec"] != old["spec"]:
            new["metadata"]["generation"] = old["metadata"]["generation"] + 1
        self.objects[new["kind"], new["metadata"]["name"]] = new

    def delete(self, kind, name):
        uid = self.objects.pop((kind, name))["metadata"]["uid"]
        for key, thing in list(self.objects.items()):
            owners = thing["metadata"].get("ownerReferences", [])
            if any(owner["uid"] == uid for owner in owners) and key in self.objects:
                self.delete(*key)

    def look(self, job):
        """One look at the job, carried out. Returns how many writes there were."""
        view = {"job": job, "objects": [o for o in self.objects.values() if o is not job],
                "now": self.time(), "cluster_domain": "", "gang_scheduler": self.gang_scheduler,
                "ssh_key": KEY}
        self.process.stdin.write(json.dumps(view))
        self.process.stdin.flush()
        result = json.loads(self.process.stdout.readline())
        assert not result["retry"]
        self.events += result["events"]
        after = datetime.timedelta(seconds=result["again_after_s"])
        self.again_at = self.now + after if after else None
        for write in result["writes"]:
            thing, verb = write["object"], write["verb"]
            self.writes.add((verb, thing["apiVersion"], thing["kind"]))
            if verb == "create":
                self.create(thing)
            elif verb == "delete":
                self.delete(thing["kind"], thing["metadata"]["name"])
            else:
                self.replace(thing, status_alone=verb == "status")
        return len(result["writes"])

    def pass_time(self, seconds, kind, name):
        """The cluster's clock goes on; looks if the operator asked for it."""
        self.now += datetime.timedelta(seconds=seconds)
        if self.again_at and self.now >= self.again_at:
            self.settle(kind, name)

    def settle(self, kind, name, before_look=lambda: None):
        """Looks until nothing changes."""
        for _ in range(50):
            before_look()
            job = self.get(kind, name)
            if job is None or self.look(job) == 0:
                return
        raise AssertionError("the operator does not come to rest")

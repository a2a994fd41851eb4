# SPDX-License-Identifier: Apache-2.0
"""The operator does what mpi-operator 0.8.2 and training-operator 1.9 did in recordings of them.

The recordings are no part of the project: GRADUS_KUBE, or shared/kube beside the source, holds
recordings.tar.xz. A scenario is a manifest, steps, and all objects at some of the steps. A cluster
of tests (kube_double.py) takes the steps. The statuses of pods and batch Jobs at a step are those
of the recording; everything else must come out the same. What is meant to differ stands in the
table of docs/kubernetes.md, which is read here: an entry whose scenario does not differ is an
error, too."""
import copy
import json
import os
import pathlib
import re
import tarfile

import pytest

import kube_double

yaml = pytest.importorskip("yaml", reason="needs PyYAML (python3-yaml)")

SOURCE = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["GRADUS_BUILD_DIR"])
# Events of MPIJob v1 that come at every look, or from creating a pod twice.
NOISE = re.compile(r"is exist|already exists|SettedPodTemplateSchedulerName|/job is running|"
                   r"Created worker pod: $")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def archive():
    places = [os.environ.get("GRADUS_KUBE"), SOURCE.parent / "shared" / "kube"]
    for place in filter(None, places):
        if (pathlib.Path(place) / "recordings.tar.xz").exists():
            return pathlib.Path(place) / "recordings.tar.xz"
    return None


def scenarios():
    """{folder: {file: text}}."""
    found = {}
    if archive():
        with tarfile.open(archive()) as tar:
            for member in tar:
                match = re.match(r"recordings/((?:mpi|training)-operator-v[^/]*/[^/]+)/([^/]+)$",
                                 member.name)
                if match and member.isfile():
                    found.setdefault(match[1], {})[match[2]] = tar.extractfile(member).read()
    return {name: {file: text.decode() for file, text in files.items()}
            for name, files in sorted(found.items())}


SCENARIOS = scenarios()


def differences():
    """[(what, scenario)] of the table: "events of X", "from STEP of X"."""
    text = (SOURCE / "docs" / "kubernetes.md").read_text()
    return set(re.findall(r"`(events|from [\w-]+) of ([\w./-]+)`", text))


def documents(text):
    return [one for one in yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            if one]


def is_launcher_pod(thing):
    owners = thing["metadata"].get("ownerReferences", [])
    return thing["kind"] == "Pod" and any(owner["kind"] == "Job" for owner in owners)


def normal(things):
    """{(kind, name): object} without what differs from run to run. uids become kind and name."""
    uids = {thing["metadata"]["uid"]: f"{thing['kind']}/{thing['metadata']['name']}"
            for thing in things}

    def walk(value, key=""):
        if isinstance(value, dict):
            return {k: walk(v, k) for k, v in value.items() if k != "resourceVersion"}
        if isinstance(value, list):
            return [walk(one) for one in value]
        if key in kube_double.KEY:
            return "KEY"
        if isinstance(value, str):
            return "TIME" if TIME.fullmatch(value) else uids.get(value, value)
        return value
    return {(thing["kind"], thing["metadata"]["name"]): walk(thing) for thing in things
            if not is_launcher_pod(thing)}


def leave_chance_out(ours, theirs):
    """training-operator walks maps in Go's random order: ports of a Service change places, and the
    selector of a role is missing if the master's end came first. It writes lastReconcileTime when
    its cache lags behind, and with volcano always."""
    for key, thing in theirs.items():
        for one in (thing, ours.get(key, {})) if key[0] == "Service" else []:
            one.get("spec", {}).get("ports", []).sort(key=lambda port: port["name"])
        status = ours.get(key, {}).get("status", {})
        if key[0] in kube_double.JOBS and "lastReconcileTime" not in status:
            thing.get("status", {}).pop("lastReconcileTime", None)
        for role, counts in (thing.get("status", {}).get("replicaStatuses") or {}).items():
            if key[0] == "PyTorchJob" and "selector" not in counts:
                status.get("replicaStatuses", {}).get(role, {}).pop("selector", None)


def unlike(path, ours, theirs):
    """Sentences about where two values differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in sorted({*ours, *theirs}):
            yield from unlike(f"{path}.{key}", ours.get(key), theirs.get(key))
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for i, (a, b) in enumerate(zip(ours, theirs)):
            yield from unlike(f"{path}[{i}]", a, b)
    elif ours != theirs:
        yield f"{path}: {json.dumps(ours)}, recorded {json.dumps(theirs)}"


class Replay:
    def __init__(self, name, files):
        self.files = files
        self.manifest = documents(files["0-manifest.yaml"])[-1]
        self.name, self.kind = self.manifest["metadata"]["name"], self.manifest["kind"]
        self.is_training = self.manifest["apiVersion"] == "kubeflow.org/v1"  # training-operator's
        scheduler = re.search(r"-(volcano|scheduler-plugins)/", name)
        self.cluster = kube_double.Cluster(BUILD / "tests" / "operator_reconcile",
                                           self.gang_scheduler() if scheduler else "")
        self.space = "g-" + re.sub(r"[^a-z0-9]+", "-", name.split("/")[1].lower())[:50]

    def gang_scheduler(self):
        """The name that the operator was started with: it stands in the pods."""
        for thing in self.recorded_all():
            if thing["kind"] == "Pod" and self.is_training:
                return thing["spec"]["schedulerName"]
            if thing["kind"] == "Job":
                return thing["spec"]["template"]["spec"]["schedulerName"]
        for request in documents(self.files["requests.yaml"]):
            if request["uri"].endswith("/pods") and self.is_training:
                return request["body"]["spec"]["schedulerName"]
            if request["uri"].endswith("/jobs") and request["verb"] == "create":
                return request["body"]["spec"]["template"]["spec"]["schedulerName"]
        raise AssertionError("no pod was recorded")

    def recorded_all(self):
        for file in sorted(self.files):
            if re.match(r"[1-9]\d*-.*\.yaml$", file):
                yield from documents(self.files[file])

    def settle(self, before_look=None):
        self.cluster.settle(self.kind, self.name, before_look or (lambda: None))

    # ---- Steps ------------------------------------------------------------------------------
    def submit(self):
        if "exit 1" in self.files.get("error.txt", ""):
            return  # the schema of the CRD, or the webhook, does not let it in
        job = copy.deepcopy(self.manifest)
        job["metadata"]["namespace"] = self.space
        self.cluster.create(job)
        self.settle()

    def start(self, selector):
        """Pods start, and the launcher's, which is the batch Job's, with them."""
        launcher = self.cluster.get("Job", f"{self.name}-launcher")
        if launcher and not launcher["spec"]["suspend"] and not any(map(is_launcher_pod,
                                                                        self.cluster.pods())):
            owner = {"kind": "Job", "uid": launcher["metadata"]["uid"], "controller": True}
            self.cluster.objects["Pod", "launcher"] = {
                "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Pending"},
                "metadata": {"name": f"{self.name}-launcher-x", "ownerReferences": [owner],
                             "uid": "launcher-x"}}
        for pod in self.pods_of(selector):
            needs_volume = any("persistentVolumeClaim" in one for one in pod["spec"]["volumes"]
                               ) if self.is_training else False  # and there is none
            if pod["status"]["phase"] == "Pending" and not needs_volume:
                pod["status"] = {"phase": "Running",
                                 "conditions": [{"type": "Ready", "status": "True"}]}

    def pods_of(self, selector):
        return [pod for pod in self.cluster.pods()
                if selector == "*" or re.search(selector, pod["metadata"]["name"])]

    def go(self, selector):
        group = self.cluster.get("PodGroup", self.name)
        if group and self.is_training and self.cluster.gang_scheduler == "volcano":
            group.setdefault("status", {"phase": "Inqueue"})
            self.settle()
        for _ in range(3):  # pods that are made when others run
            self.start(selector)
            self.settle()

    def end(self, selector, code, reason=None):
        """Pods of training-operator's jobs end, one after the other; the batch Jobs of others are
        in the recording."""
        for pod in self.pods_of(selector) if self.is_training else []:
            if pod["status"]["phase"] == "Pending":
                pod["status"] = {"phase": "Running"}
                self.settle()
            if pod["status"]["phase"] == "Running":
                ended = {"state": {"terminated": {"exitCode": int(code)}}}
                pod["status"] = {"phase": "Failed" if int(code) else "Succeeded", "reason": reason,
                                 "containerStatuses": [{"name": one["name"], **ended}
                                                       for one in pod["spec"]["containers"]]}
                self.settle()

    def restart(self, selector, times, *_):
        for pod in self.pods_of(selector):
            if self.is_training:
                pod["status"]["containerStatuses"] = [{"restartCount": int(times)}]
        self.settle()

    def kill(self, selector):
        """Pods go, but not at once."""
        for pod in self.pods_of(selector) if self.is_training else []:
            pod["metadata"]["deletionTimestamp"] = self.cluster.time()
            self.settle()
            self.cluster.delete("Pod", pod["metadata"]["name"])
            self.settle()

    def patch(self, text):
        def merge(into, change):
            for key, value in change.items():
                if isinstance(value, dict):
                    merge(into.setdefault(key, {}), value)
                else:
                    into[key] = value
        old = self.cluster.get(self.kind, self.name)
        new = copy.deepcopy(old)
        merge(new, json.loads(text))
        self.cluster.put(old, new)
        self.settle()

    def delete(self):
        self.cluster.delete(self.kind, self.name)

    def take_statuses(self, recorded):
        """Pods and batch Jobs are as they were."""
        theirs = {(thing["kind"], thing["metadata"]["name"]): thing for thing in recorded}
        objects = self.cluster.objects
        job = objects.get(("Job", f"{self.name}-launcher"))
        for key in [key for key, thing in objects.items() if is_launcher_pod(thing)]:
            del objects[key]
        if job and ("Job", job["metadata"]["name"]) not in theirs:
            del objects["Job", job["metadata"]["name"]]  # its time to live was over
        for key, thing in objects.items():
            if thing["kind"] in ("Pod", "Job", "PodGroup") and key in theirs:
                if thing["kind"] == "Pod" and "nodeName" in theirs[key]["spec"]:
                    thing["spec"]["nodeName"] = "NODE"
                if "status" in theirs[key]:
                    thing["status"] = copy.deepcopy(theirs[key]["status"])
        for key, thing in theirs.items():
            if is_launcher_pod(thing) and job:
                pod = copy.deepcopy(thing)
                pod["metadata"]["ownerReferences"][0]["uid"] = job["metadata"]["uid"]
                objects[key] = pod

    def snap(self, label, is_to_differ):
        """What is not as it was recorded."""
        file = next(file for file in self.files if re.fullmatch(rf"\d+-{label}\.yaml", file))
        recorded = documents(self.files[file])
        self.settle(None if is_to_differ else lambda: self.take_statuses(recorded))
        self.take_statuses(recorded)
        ours, theirs = normal([*self.cluster.objects.values()]), normal(recorded)
        leave_chance_out(ours, theirs)
        return list(unlike(label, {"/".join(key): value for key, value in ours.items()},
                           {"/".join(key): value for key, value in theirs.items()}))

    def run(self, stop_at=None):
        """[(label of a step, what differs there)], up to the step that is meant to differ."""
        found = []
        for line in self.files["steps.txt"].splitlines():
            step, _, rest = line.split("   #")[0].partition(" ")
            if step in ("submit", "expect-error"):
                self.submit()
            elif step in ("go", "patch", "kill"):
                getattr(self, step)(rest)
            elif step in ("end", "restart"):
                getattr(self, step)(*rest.split())
            elif step == "sleep":
                self.cluster.pass_time(float(rest), self.kind, self.name)
            elif step == "delete":
                self.delete()
            elif step == "snap":
                found.append((rest, self.snap(rest, rest == stop_at)))
                if rest == stop_at:
                    break
            else:
                raise AssertionError(line)
        return found

    def unlike_events(self):
        ours = {f"{e['type']} {e['reason']} {e['message']}" for e in self.cluster.events}
        lines = re.findall(r"^(\w+ .+?) \w+/\S+ by (?:mpi-job|mpijob|tfjob|pytorchjob)-controller: "
                           "(.*)$", self.files["events.txt"], re.M)
        theirs = {f"{head} {message}" for head, message in lines}
        if self.is_training and self.kind == "MPIJob":  # see docs/kubernetes.md
            theirs = {one for one in theirs if not NOISE.search(one)}
            ours = {one for one in ours if one in theirs or one.startswith("Warning")}
        return [f"more: {one}" for one in sorted(ours - theirs)] + \
            [f"less: {one}" for one in sorted(theirs - ours)]


def permitted(kind, api_version):
    """(verb, group, resource) of the roles that an operator of this kind has."""
    names = {"gradus-operator"}
    if (kind, api_version) == ("MPIJob", "kubeflow.org/v1"):
        names.add("gradus-operator-mpijob-v1")
    roles = documents((SOURCE / "deploy" / "base" / "role.yaml").read_text())
    return {(verb, group, resource)
            for role in roles if role["metadata"]["name"] in names for rule in role["rules"]
            for verb in rule["verbs"] for group in rule["apiGroups"]
            for resource in rule["resources"]}


def right_of(write):
    verb, api_version, kind = write
    group = api_version.split("/")[0] if "/" in api_version else ""
    resource = kind.lower() + "s"
    return ("update", group, f"{resource}/status") if verb == "status" else (verb, group, resource)


@pytest.mark.skipif(not SCENARIOS, reason="no recordings.tar.xz of the reference operators "
                                          "(GRADUS_KUBE names its folder)")
@pytest.mark.parametrize("name", SCENARIOS or ["none"])
def test_operator_steps_of_recording_same_objects_and_events(name):
    meant = {what for what, scenario in differences() if scenario == name}
    begin = next((what.split()[1] for what in meant if what.startswith("from ")), None)
    replay = Replay(name, SCENARIOS[name])
    found = replay.run(begin)
    replay.cluster.close()
    for label, sentences in found:
        if label == begin:
            assert sentences, f"docs/kubernetes.md says that {name} differs from {begin} on"
        else:
            assert not sentences, "\n".join(sentences)
    if begin is None:
        assert bool(replay.unlike_events()) == ("events" in meant), replay.unlike_events()
    rights = permitted(replay.kind, replay.manifest["apiVersion"])
    assert {right_of(write) for write in replay.cluster.writes} <= rights


REFUSED = [name for name, files in SCENARIOS.items() if "webhook" in files.get("error.txt", "")]


@pytest.mark.skipif(not REFUSED, reason="no recordings")
@pytest.mark.parametrize("name", REFUSED or ["none"])
def test_operator_job_that_the_webhook_refused_validation_error(name):
    replay = Replay(name, SCENARIOS[name])
    replay.cluster.create(copy.deepcopy(replay.manifest))
    replay.settle()
    replay.cluster.close()
    field = re.search(r"denied the request: ([^:]+):", SCENARIOS[name]["error.txt"])[1]
    event, = replay.cluster.events
    assert event["reason"] == "ValidationError" and f"{field}: " in event["message"]
    assert len(replay.cluster.objects) == 1


@pytest.mark.skipif(not SCENARIOS, reason="no recordings")
def test_operator_differences_in_docs_name_recordings():
    assert {scenario for _, scenario in differences()} <= {*SCENARIOS}

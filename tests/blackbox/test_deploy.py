# SPDX-License-Identifier: Apache-2.0
"""What deploy/ installs, in a real kube-apiserver: the schemas of jobs take what those of the
reference operators take, and the roles permit what they are for.

Control plane, recordings and the reference's schemas are no part of the project: GRADUS_KUBE, or
shared/kube beside the source, holds them."""
import copy
import subprocess
import tempfile

import pytest

from conftest import wait_until
from kube_client import Client
from kube_cluster import SOURCE, kit
from kube_fixtures import control_plane
from test_operator_recordings import SCENARIOS, documents

BASE = SOURCE / "deploy" / "base"
# (kind, version): our file and the reference's.
SCHEMAS = {("MPIJob", "v2beta1"): ("mpijobs.yaml", "mpijobs-v2beta1.yaml"),
           ("MPIJob", "v1"): ("mpijobs-v1.yaml", "mpijobs-v1.yaml"),
           ("PyTorchJob", "v1"): ("pytorchjobs.yaml", "pytorchjobs-v1.yaml"),
           ("TFJob", "v1"): ("tfjobs.yaml", "tfjobs-v1.yaml")}

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if kit() is not None and not (kit() / "crds").exists():
        pytest.skip("no schemas of the reference: GRADUS_KUBE has no folder crds")
    with control_plane(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster.kubeconfig) as client:
        yield client


def kubectl(cluster, *words):
    """As cluster.kubectl, but it may fail."""
    return subprocess.run([cluster.programs / "kubectl", "--kubeconfig", cluster.kubeconfig,
                           *words], capture_output=True, text=True)


def succeeds(cluster, *words):
    return kubectl(cluster, *words).returncode == 0


@pytest.fixture(autouse=True)
def empty(cluster):
    """What a test has installed goes, also where it fails."""
    yield
    cluster.kubectl("delete", "crd", "--ignore-not-found",
                    *{f"{kind.lower()}s.kubeflow.org" for kind, _ in SCHEMAS})
    cluster.kubectl("delete", "clusterrole,clusterrolebinding", "--ignore-not-found",
                    "gradus-operator", "gradus-operator-mpijob-v1", "one", "two")


def wait_for_schema(cluster, plural):
    wait_until(lambda: succeeds(cluster, "wait", "--for=condition=Established", "--timeout=5s",
                                f"crd/{plural}.kubeflow.org"), "the resource")


def manifests(kind, version):
    found = {}
    for name, files in SCENARIOS.items():
        job = documents(files["0-manifest.yaml"])[-1]
        if (job["kind"], job["apiVersion"]) == (kind, f"kubeflow.org/{version}"):
            found[name] = job
    return found


def put(job, path, value):
    for key in path[:-1]:
        job = job.setdefault(key, {})
    job[path[-1]] = value


def spoiled(job):
    """{what: the job, with one thing changed that a schema may refuse}."""
    specs = next(key for key in job["spec"] if key.endswith("ReplicaSpecs"))
    role = next(iter(job["spec"][specs]))
    template = ["spec", specs, role, "template", "spec"]
    container = {"name": "a", "image": "b"}
    policy, metrics = ["spec", "runPolicy"], ["spec", "elasticPolicy", "metrics"]
    needed = policy + ["schedulingPolicy", "minResources"]
    changes = {
        "no replica specs": (["spec"], {}),
        "replicas as text": (["spec", specs, role, "replicas"], "2"),
        "replicas too large": (["spec", specs, role, "replicas"], 1 << 40),
        "no containers": (template, {}),
        "a container without name": (template + ["containers"], [{"image": "b"}]),
        "two containers of one name": (template + ["containers"], [container, container]),
        "containers as map": (template + ["containers"], {}),
        "suspend as text": (policy + ["suspend"], "yes"),
        "an unknown cleanPodPolicy": (policy + ["cleanPodPolicy"], "Never"),
        "a deadline as text": (policy + ["activeDeadlineSeconds"], "1h"),
        "no quantity": (needed, {"cpu": "much"}),
        "a quantity": (needed, {"cpu": 1, "memory": "1Gi"}),
        "an unknown field": (["spec", "tpusPerNode"], 4),
        "metrics without type": (metrics, [{"resource": {"name": "cpu"}}]),
        "a metric without target": (metrics, [{"type": "Resource", "resource": {"name": "cpu"}}]),
        "rdzvConf as map": (["spec", "elasticPolicy", "rdzvConf"], {"a": "b"}),
        "slots as text": (["spec", "slotsPerWorker"], "two"),
        "a status": (["status", "conditions"], [{"type": "Created"}]),
    }
    for what, (path, value) in changes.items():
        changed = copy.deepcopy(job)
        put(changed, path, value)
        yield what, changed


def without_templates(spec):
    for key, roles in spec.items():
        if key.endswith("ReplicaSpecs"):
            spec = {**spec, key: {name: {k: v for k, v in (role or {}).items() if k != "template"}
                                  for name, role in roles.items()}}
    return spec


def answers(cluster, client, file, jobs, kind, version):
    """{job: what is stored of its spec, or "refused"}, with the schema in this file."""
    plural = f"{kind.lower()}s"
    cluster.kubectl("apply", "--server-side", "-f", str(file))
    wait_for_schema(cluster, plural)
    where = {"group": "kubeflow.org", "version": version, "plural": plural}
    wait_until(lambda: client.ask("get", name="none", **where)["http"] == 404
               and client.ask("list", **where)["status"] == "GR_OK", "the resource")
    said = {}
    for name, job in jobs.items():
        made = client.ask("create", body=job, **where)
        said[name] = without_templates(made["object"]["spec"]) if made["status"] == "GR_OK" \
            else "refused"
        if made["status"] == "GR_OK":
            client.ask("delete", name=job["metadata"]["name"], **where)
    cluster.kubectl("delete", "crd", f"{plural}.kubeflow.org")
    return said


@pytest.mark.skipif(not SCENARIOS, reason="no recordings")
@pytest.mark.parametrize("kind, version", SCHEMAS)
def test_schema_takes_what_the_reference_takes(cluster, client, kind, version):
    jobs = manifests(kind, version)
    first = copy.deepcopy(next(iter(jobs.values())))
    first["metadata"]["name"] = "spoiled"
    jobs.update(spoiled(first))
    ours, theirs = SCHEMAS[kind, version]
    recorded = answers(cluster, client, kit() / "crds" / theirs, jobs, kind, version)
    said = answers(cluster, client, BASE / ours, jobs, kind, version)
    assert {name: said[name] for name in jobs if said[name] != recorded[name]} == \
        {name: recorded[name] for name in jobs if said[name] != recorded[name]}
    assert "refused" in recorded.values()


def refused(cluster, *words):
    done = kubectl(cluster, *words)
    assert done.returncode != 0, done.stdout
    return done.stderr


@pytest.mark.parametrize("folder", ["ours", "reference"])
def test_versions_of_mpijob_do_not_replace_each_other(cluster, folder):
    """Who has jobs of one version does not lose them by a careless command."""
    index = 0 if folder == "ours" else 1
    place = BASE if folder == "ours" else kit() / "crds"
    first, second = (place / SCHEMAS["MPIJob", version][index] for version in ("v2beta1", "v1"))
    cluster.kubectl("apply", "--server-side", "-f", str(first))
    said = refused(cluster, "apply", "--server-side", "--force-conflicts", "-f", str(second))
    assert "storedVersions" in said, said


def test_schema_of_training_jobs_holds_what_must_not_change(cluster):
    cluster.kubectl("apply", "--server-side", "-f", str(BASE / "tfjobs.yaml"))
    wait_for_schema(cluster, "tfjobs")
    job = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: held, namespace: team}
spec:
  runPolicy: {managedBy: kubeflow.org/training-operator, schedulingPolicy: {queue: one}}
  tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow, image: a}]}}}}
"""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(job)
        file.flush()
        wait_until(lambda: succeeds(cluster, "apply", "-f", file.name), "the resource")
    for path, value, why in (("managedBy", '"kueue.x-k8s.io/multikueue"', "who manages it"),
                             ("schedulingPolicy", '{"queue": "two"}', "immutable")):
        said = refused(cluster, "patch", "tfjob", "held", "-n", "team", "--type=merge", "-p",
                       '{"spec": {"runPolicy": {"%s": %s}}}' % (path, value))
        assert why in said, said


def test_role_of_mpijob_v1_may_give_its_launcher_its_rights(cluster):
    """Nobody gives rights that he has not: RBAC looks at what the operator writes."""
    cluster.kubectl("apply", "--server-side", "-f", str(BASE / "role.yaml"))
    role = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: job-launcher, namespace: team}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [pods/exec], verbs: [create], resourceNames: [job-worker-0]}
"""
    cluster.kubectl("create", "clusterrolebinding", "one", "--clusterrole=gradus-operator",
                    "--user=operator")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(role)
        file.flush()
        words = ("create", "--as=operator", "-f", file.name)
        wait_until(lambda: succeeds(cluster, "auth", "can-i", "create", "services",
                                    "--as=operator"), "the right")
        assert "cannot create resource" in refused(cluster, *words)
        cluster.kubectl("create", "clusterrolebinding", "two", "--user=operator",
                        "--clusterrole=gradus-operator-mpijob-v1")
        wait_until(lambda: succeeds(cluster, *words), "the role")
    cluster.kubectl("create", "rolebinding", "job-launcher", "-n", "team", "--as=operator",
                    "--role=job-launcher", "--serviceaccount=team:job-launcher")

# SPDX-License-Identifier: Apache-2.0
"""`gradus operator` on a real control plane (kube_cluster.py), as deploy/base installs it: by the
token of its service account."""
import collections
import json
import pathlib
import re
import signal
import subprocess
import tempfile

import pytest

import test_operator_recordings as recordings
from conftest import TIMEOUT_S, wait_until
from kube_cluster import SOURCE, Cluster, why_not
from kube_operator import Operator, holds, mpi_job

pytestmark = pytest.mark.long

USER = "system:serviceaccount:gradus:gradus-operator"
# But for those with a time limit: on a busy machine it ends before the step that it is to follow.
MPI = [name for name in recordings.SCENARIOS
       if re.match(r"mpi-operator-v0.8.2/(?!deadline$|ttl$)", name)]
# But for one with a HorizontalPodAutoscaler, whose status is the cluster's, and two with volumes,
# which may or may not be there when the scheduler looks.
TRAINING = [name for name in recordings.SCENARIOS
            if re.match(r"training-operator-v1.9-\w+/..-example-(?!imagenet|multi|.*summaries)",
                        name)]
MPIJOBS = "mpijobs.v2beta1.kubeflow.org"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why_not():
        pytest.skip(why_not())
    # In memory: etcd waits for the disk at each write, for minutes where others write much.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cluster = Cluster(tmp_path_factory.mktemp("cluster"), pathlib.Path(folder) / "run")
        cluster.start_for(USER)
        cluster.kubectl("apply", "--server-side", "-k", SOURCE / "deploy" / "base")
        cluster.kubectl("create", "namespace", "team")
        yield cluster
        cluster.stop()


@pytest.fixture
def config(cluster, tmp_path):
    return cluster.config_of("gradus-operator", "gradus", tmp_path / "config")


FLAGS = ("--lock-namespace", "gradus", "--leader-elect-retry-period", "1s")


def test_deployment_is_taken(cluster):
    """Pods that are not restricted would be refused by the namespace."""
    def pods():
        return cluster.get("-n", "gradus", "pods")["items"]
    wait_until(lambda: len(pods()) == 2, "both pods")
    container = pods()[0]["spec"]["containers"][0]
    assert container["securityContext"]["readOnlyRootFilesystem"]


# ---- As recorded --------------------------------------------------------------------------------
def scenario_differences(name, folder):
    """What differs from the recording, but for what docs/kubernetes.md tells."""
    meant = {what for what, scenario in recordings.differences() if scenario == name}
    begin = next((what.split()[1] for what in meant if what.startswith("from ")), None)
    files = recordings.SCENARIOS[name]
    for file in sorted(file for file in files if re.match(r"[1-9]\d*-.*\.yaml$", file)):
        label = re.match(r"\d+-(.*)\.yaml$", file)[1]
        if label == begin:
            return
        ours = recordings.normal(recordings.documents((folder / file).read_text()))
        theirs = recordings.normal(recordings.documents(files[file]))
        recordings.leave_chance_out(ours, theirs)
        yield from recordings.unlike(label, {"/".join(key): value for key, value in ours.items()},
                                     {"/".join(key): value for key, value in theirs.items()})


@pytest.mark.skipif(not MPI, reason="no recordings.tar.xz of the reference operators")
@pytest.mark.parametrize("names, kinds", [(MPI, ["mpijob"]), (TRAINING, ["pytorchjob", "tfjob"])],
                         ids=["mpi-operator", "training-operator"])
def test_jobs_live_as_recorded(cluster, config, tmp_path, names, kinds):
    out = tmp_path / "out"
    for name in names:
        folder = tmp_path / "in" / name.split("/")[1]
        folder.mkdir(parents=True)
        for file in ("0-manifest.yaml", "steps.txt"):
            (folder / file).write_text(recordings.SCENARIOS[name][file])
    with Operator(config, *FLAGS, *(f"--enable-scheme={kind}" for kind in kinds)) as operator:
        operator.wait_for("leads")
        subprocess.run(["python3", cluster.kit / "record.py", tmp_path / "in", out], check=True,
                       env={**cluster.environment, "PAR": "4"}, timeout=1500)
    found = {name: list(scenario_differences(name, out / name.split("/")[1])) for name in names}
    assert not {name: sentences for name, sentences in found.items() if sentences}


# ---- What goes wrong ----------------------------------------------------------------------------
def writes(cluster):
    """The operator's writes that the server carried out: [(verb, resource, space, name)]."""
    found = []
    for line in pathlib.Path(cluster.environment["AUDIT_LOG"]).read_text().splitlines():
        one = json.loads(line)
        if one["user"]["username"] == USER and one.get("responseStatus", {}).get("code", 0) < 300:
            about = one["objectRef"]
            found.append((one["verb"], about["resource"], about.get("namespace"),
                          about.get("name") or one.get("requestObject", {}).get("metadata", {})
                          .get("name")))
    return found


def test_leader_is_killed_and_server_restarted_nothing_twice(cluster, config):
    names = [f"chaos-{i}" for i in range(12)]

    def jobs():
        return {one["metadata"]["name"]: one for one in cluster.get("-n", "team", MPIJOBS)["items"]}

    with Operator(config, *FLAGS) as first, Operator(config, *FLAGS) as second:
        leads = "leads, by the lease"
        wait_until(lambda: leads in first.said() + second.said(), "a leader")
        leader, other = (first, second) if leads in first.said() else (second, first)
        for name in names:
            job = mpi_job(name, workers=3)
            for role, code in (("Worker", None), ("Launcher", "0")):
                note = {"kubekit.test/go": "true"}
                note.update({"kubekit.test/exit-code": code} if code else {})
                job["spec"]["mpiReplicaSpecs"][role]["template"]["metadata"] = {"annotations": note}
            cluster.apply(job, "-n", "team", "create")
            if name == names[4]:
                assert leader.stop(signal.SIGKILL) == -signal.SIGKILL
                cluster.kubectl("-n", "gradus", "patch", "lease", "mpi-operator", "--type=merge",
                                "-p", '{"spec": {"leaseDurationSeconds": 1}}')
            if name == names[8]:
                wait_until(lambda: leads in other.said(), "another leader")
                cluster.restart_server()
                wait_until(lambda: subprocess.run(
                    [cluster.programs / "kubectl", "--kubeconfig", cluster.kubeconfig, "get",
                     "--raw", "/readyz"], capture_output=True, check=False).returncode == 0,
                           "the server")
        if other.process.poll() is not None:  # it may have lost the lease while there was no server
            assert other.end() == 1
            other = Operator(config, *FLAGS)
        wait_until(lambda: all(holds(job, "Succeeded") for job in jobs().values()), "all jobs",
                   2 * TIMEOUT_S)
        assert len(jobs()) == len(names)
        assert other.stop() == 0
    made = collections.Counter((what, name) for verb, what, space, name in writes(cluster)
                               if verb == "create" and space == "team" and what != "events")
    assert made and max(made.values()) == 1, made


# ---- Rights -------------------------------------------------------------------------------------
# What deploy/base permits for each kind, but for what it asks for kinds of training-operator alone.
MPIJOB = {"mpijobs": "get list watch", "mpijobs/status": "update",
          "pods": "get list watch create delete", "services": "get list watch create update",
          "configmaps": "get list watch create update", "jobs/status": "update",
          "secrets": "get list watch create update", "jobs": "get list watch create update",
          "events": "create patch"}
PYTORCHJOB = {"pytorchjobs": "get list watch delete", "pytorchjobs/status": "update",
              "horizontalpodautoscalers": "get list watch create update delete",
              "services": "delete"}
GRADUSJOB = {"gradusjobs": "get list watch delete", "gradusjobs/status": "update"}


def without(role, group, what, verb):
    """The role, rule by rule, without one verb."""
    rules = []
    for rule in role["rules"]:
        for resource in rule["resources"]:
            for one in rule["apiGroups"]:
                is_it = (one, resource) == (group, what)
                rules.append({"apiGroups": [one], "resources": [resource],
                              "verbs": [v for v in rule["verbs"] if not (is_it and v == verb)]})
    return {**role, "rules": [rule for rule in rules if rule["verbs"]]}


def can(cluster, verb, group, what):
    resource, _, part = what.partition("/")
    words = ["auth", "can-i", verb, f"{resource}.{group}" if group else resource, "--as", USER,
             "-A"] + (["--subresource", part] if part else [])
    return subprocess.run([cluster.programs / "kubectl", "--kubeconfig", cluster.kubeconfig,
                           *words], capture_output=True, text=True,
                          check=False).stdout.strip() == "yes"


@pytest.mark.parametrize("kind, rights", [("mpijob.v2beta1", MPIJOB), ("pytorchjob", PYTORCHJOB),
                                          ("gradusjob", GRADUSJOB)])
def test_each_verb_that_is_taken_away_is_named(cluster, config, kind, rights):
    role = cluster.get("clusterrole", "gradus-operator")
    role["metadata"] = {"name": "gradus-operator"}
    groups = {what: group for rule in role["rules"] for group in rule["apiGroups"]
              for what in rule["resources"]}
    try:
        for what, verb in [(what, verb) for what, verbs in rights.items()
                           for verb in verbs.split()]:
            group = groups[what]
            cluster.apply(without(role, group, what, verb), "replace")
            wait_until(lambda: not can(cluster, verb, group, what), f"no right to {verb} {what}")
            with Operator(config, *FLAGS, "--enable-scheme", kind) as operator:
                line = operator.wait_for(f'a role must allow .*"{verb}" on {what} of API group '
                                         f'"{group}"').string
                if line.startswith("gradus: warning: "):
                    assert operator.stop() == 0
                else:
                    assert operator.end() == 2
    finally:
        cluster.apply(role, "replace")

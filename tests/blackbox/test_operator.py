# SPDX-License-Identifier: Apache-2.0
"""gradus operator --dry-run: the objects of a job, as kubectl takes them."""
import json

import pytest

JOB = """
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: train}
spec:
  slotsPerWorker: 2
  mpiReplicaSpecs:
    Launcher:
      template:
        spec:
          containers:
          - {name: main, image: mine:1, command: [mpirun, python, train.py]}
    Worker:
      replicas: 2
      template:
        spec:
          containers:
          - name: main
            image: mine:1
            env: [{name: VERSION, value: "1.10"}, {name: NOTE, value: "two\\nlines: #x"}]
          volumes: [{name: data, configMap: {name: data, defaultMode: 0440}}]
"""


def objects(gradus, *args, **more):
    done = gradus("operator", "--dry-run", "-o", "json", *args, **more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["items"], done.stderr


def refusal(gradus, tmp_path, text, *args):
    (tmp_path / "job.yaml").write_text(text)
    done = gradus("operator", "--dry-run", "-f", "job.yaml", *args)
    assert (done.returncode, done.stdout) == (2, "")
    return done.stderr


def test_dry_run_job_prints_its_objects(gradus, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    found, said = objects(gradus, "-f", "job.yaml", "-n", "lab")
    assert said == ""
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        ("Service", "train"), ("ConfigMap", "train-config"), ("Secret", "train-ssh"),
        ("Pod", "train-worker-0"), ("Pod", "train-worker-1"), ("Job", "train-launcher")]
    assert {one["metadata"]["namespace"] for one in found} == {"lab"}
    assert found[1]["data"]["hostfile"].splitlines() == [
        f"train-worker-{i}.train.lab.svc slots=2" for i in range(2)]
    assert found[2]["stringData"]["ssh-privatekey"].startswith("not shown")
    assert "data" not in found[2]
    pod = found[3]["spec"]
    assert pod["volumes"][0]["configMap"]["defaultMode"] == 0o440
    assert pod["containers"][0]["env"][0] == {"name": "VERSION", "value": "1.10"}


def test_dry_run_job_of_many_pods_prints_all(gradus, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.replace("replicas: 2", "replicas: 100"))
    found, _ = objects(gradus, "-f", "job.yaml")
    assert [one["kind"] for one in found].count("Pod") == 100 and found[-1]["kind"] == "Job"


@pytest.mark.parametrize("kind, specs, role, container", [
    ("PyTorchJob", "pytorchReplicaSpecs", "Worker", "pytorch"),
    ("TFJob", "tfReplicaSpecs", "PS", "tensorflow")])
def test_dry_run_kind_of_training_operator_pods_and_services(gradus, tmp_path, kind, specs, role,
                                                             container):
    template = {"spec": {"containers": [{"name": container, "image": "mine:1"}]}}
    job = {"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "train"},
           "spec": {specs: {role: {"replicas": 2, "template": template}}}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    found, said = objects(gradus, "-f", "job.json")
    assert said == ""
    assert [(one["kind"], one["metadata"]["name"]) for one in found] == [
        (what, f"train-{role.lower()}-{i}") for i in range(2) for what in ("Pod", "Service")]
    job["spec"][specs]["Foo"] = job["spec"][specs].pop(role)
    assert f"spec.{specs}[Foo]: Unsupported value" in refusal(gradus, tmp_path, json.dumps(job))


def test_dry_run_images_of_a_registry_of_ones_own(gradus, tmp_path):
    def role(name):
        return {"template": {"spec": {"containers": [{"name": name, "image": "mine:1"}]}}}
    jobs = [{"apiVersion": "kubeflow.org/v1", "kind": kind, "metadata": {"name": "train"},
             "spec": {specs: {one: role("pytorch") for one in roles}}}
            for kind, specs, roles in (
                ("PyTorchJob", "pytorchReplicaSpecs", ("Master", "Worker")),
                ("MPIJob", "mpiReplicaSpecs", ("Launcher",)))]
    (tmp_path / "jobs.yaml").write_text("---\n".join(json.dumps(job) + "\n" for job in jobs))
    found, _ = objects(gradus, "-f", "jobs.yaml", "--pytorch-init-container-image", "near/dns:1",
                       "--pytorch-init-container-max-tries", "7", "--mpi-kubectl-delivery-image",
                       "near/kubectl:2")
    inits = [pod["spec"]["initContainers"][0] for pod in found
             if "initContainers" in pod.get("spec", {})]
    assert [one["image"] for one in inits] == ["near/dns:1", "near/kubectl:2"]
    assert "$(seq 7)" in inits[0]["command"][2]


def test_dry_run_as_yaml_reads_back_as_the_same(gradus, tmp_path):
    yaml = pytest.importorskip("yaml", reason="needs PyYAML (python3-yaml)")
    (tmp_path / "job.yaml").write_text(JOB)
    found, _ = objects(gradus, "-f", "job.yaml")
    done = gradus("operator", "--dry-run", "-f", "job.yaml")
    assert list(yaml.safe_load_all(done.stdout)) == found


def test_dry_run_own_output_as_input_is_refused_by_kind(gradus, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB)
    printed = gradus("operator", "--dry-run", "-f", "job.yaml").stdout
    said = refusal(gradus, tmp_path, printed)
    assert 'kind "Service" of apiVersion "v1" is not supported; this version knows MPIJob of ' \
        "kubeflow.org/v2beta1" in said


def test_dry_run_several_documents_from_stdin_all_printed(gradus):
    other = JOB.replace("{name: train}", "{name: b, namespace: other}")
    text = f"%YAML 1.1\n# two jobs\n---\n{JOB}---\n# nothing\n---\n{other}"
    found, _ = objects(gradus, "-f", "-", "--cluster-domain", "here", "--gang-scheduling",
                       "volcano", input=text, stdin=None)
    assert [one["metadata"]["name"] for one in found if one["kind"] == "PodGroup"] == ["train", "b"]
    assert "b-worker-0.b.other.svc.here slots=2" in json.dumps(found)


def test_dry_run_volcano_in_any_case_of_letters_is_volcano(gradus):
    found, _ = objects(gradus, "-f", "-", "--gang-scheduler-name", "Volcano", input=JOB, stdin=None)
    assert [one["apiVersion"] for one in found
            if one["kind"] == "PodGroup"] == ["scheduling.volcano.sh/v1beta1"]


MERGED = """apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: train}
spec:
  tfReplicaSpecs:
    Worker: &worker
      replicas: 2
      template: {spec: {containers: [&c {name: tensorflow, image: i, command: [a]}]}}
    PS: {<<: *worker, replicas: 1}
    Chief:
      replicas: 1
      template: {spec: {containers: [{<<: [{image: j}, *c], command: [b]}]}}
"""


def test_dry_run_merge_keys_give_what_a_map_does_not_have(gradus, tmp_path):
    found, _ = objects(gradus, "-f", "-", input=MERGED, stdin=None)
    pods = {one["metadata"]["name"]: one["spec"]["containers"][0] for one in found
            if one["kind"] == "Pod"}
    assert {*pods} == {"train-chief-0", "train-ps-0", "train-worker-0", "train-worker-1"}
    assert (pods["train-ps-0"]["image"], pods["train-ps-0"]["command"]) == ("i", ["a"])
    chief = pods["train-chief-0"]
    assert (chief["name"], chief["image"], chief["command"]) == ("tensorflow", "j", ["b"])
    said = refusal(gradus, tmp_path, MERGED.replace("<<: *worker", "<<: [1]"))
    assert said == "gradus: job.yaml:1: a merge key (<<) stands before what is neither a map nor " \
        "a list of maps\n"


def test_dry_run_wrong_document_named_with_its_line(gradus, tmp_path):
    said = refusal(gradus, tmp_path, JOB + "---\n" + JOB.replace("slotsPerWorker: 2",
                                                                "slotsPerWorker: -2"))
    line = JOB.count("\n") + 3
    assert said == f"gradus: job.yaml:{line}: Found validation errors: spec.slotsPerWorker: " \
        "Invalid value: -2: must be greater than or equal to 0\n"


@pytest.mark.parametrize("old, new, sentence", [
    ("slotsPerWorker", "slotsPerWorkr", "spec.slotsPerWorkr: there is no such field; did you mean "
                                        "slotsPerWorker"),
    ("  slotsPerWorker", "  runPolicy: {schedulingPolicy: {colour: red}}\n  slotsPerWorker",
     "spec.runPolicy.schedulingPolicy.colour: there is no such field"),
    ("    Worker:", "    Workers:", "spec.mpiReplicaSpecs.Workers: there is no such field; did you "
                                    "mean Worker")])
def test_dry_run_unknown_field_named(gradus, tmp_path, old, new, sentence):
    said = refusal(gradus, tmp_path, JOB.replace(old, new))
    assert said == f"gradus: job.yaml:2: {sentence}\n"


def test_dry_run_broken_yaml_in_second_document_line_of_the_file(gradus, tmp_path):
    said = refusal(gradus, tmp_path, JOB + "---\na: [1\n")
    assert f"job.yaml:{JOB.count(chr(10)) + 2}" in said


def test_dry_run_job_of_another_controller_warns(gradus, tmp_path):
    policy = "  runPolicy: {managedBy: kueue.x-k8s.io/multikueue}\n"
    (tmp_path / "job.yaml").write_text(JOB.replace("  slotsPer", policy + "  slotsPer"))
    found, said = objects(gradus, "-f", "job.yaml")
    assert found == [] and "another controller manages it" in said


def test_dry_run_template_with_restart_policy_warns(gradus, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.replace(
        "        spec:\n", "        spec:\n          restartPolicy: Always\n", 1))
    found, said = objects(gradus, "-f", "job.yaml")
    assert "Restart policy in pod template overridden" in said
    assert found[-1]["spec"]["template"]["spec"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize("args, sentence", [
    (["--kubeconfig", "none"], "none: "),
    (["--dry-run"], "needs a manifest: -f FILE"),
    (["--dry-run", "-f", "no.yaml"], "no.yaml"),
    (["--dry-run", "-f", "/dev/null"], "holds no manifest")])
def test_operator_without_what_it_needs_refused(gradus, args, sentence):
    done = gradus("operator", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr

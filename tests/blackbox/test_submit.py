# SPDX-License-Identifier: Apache-2.0
"""`gradus submit`, and `gradus ls`, `logs`, `wait`, `stop`, `scale` and `top` on a cluster, against
an API server of the tests' own."""
import base64
import io
import json
import os
import re
import signal
import tarfile
import threading

import pytest

import kube_api
from conftest import TIMEOUT_S
from kube_fixtures import certificates  # noqa: F401 (a fixture)
from kube_pods import INDEX, JOBS, PODS
from submit_fixtures import api, cluster  # noqa: F401 (fixtures)

SERVICES, SECRETS, MAPS = "/v1/services", "/v1/secrets", "/v1/configmaps"
PYTORCH = "kubeflow.org/v1/pytorchjobs"


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "quick-program"
    path.write_bytes(b"\x7fELF and so on\0")
    path.chmod(0o755)
    return "./quick-program"


def sent(done):
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(done, *words, code=2):
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.startswith("gradus: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def variables(container):
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def submit(cluster, program, *flags, name="demo"):
    return sent(cluster("submit", "--name", name, "--image", "img", *flags, "--", program))


def follow(cluster, api, program, *flags, name="demo", workers=2):
    """A job that is followed, with its pods running."""
    process = cluster.start("submit", "--follow", "--name", name, "--image", "img", "--workers",
                            workers, *flags, "--", program)
    api.wait(lambda: (JOBS, "team", name) in api.objects, "the job")
    api.start_pods(name)
    return process


def read_lines(process, count, stream="stdout"):
    """That many lines of a command that goes on; it is killed when they do not come."""
    pipe = getattr(process, stream)
    timer = threading.Timer(TIMEOUT_S, process.kill)
    timer.start()
    lines = [pipe.readline() for _ in range(count)]
    timer.cancel()
    assert all(line.endswith("\n") for line in lines), lines
    return [line.rstrip("\n") for line in lines]


def finish(process, code):
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, out + err
    return out, err


# ---- What is sent -------------------------------------------------------------------------------
def test_command_becomes_a_job_with_its_program(api, cluster, program):
    out = submit(cluster, program, "--workers", 4, "--cpus", 2, "--memory", "4Gi", "--gpus", 1,
                 "-e", "A=$(b) a$$b", "--env-from", "secret/s3", "--volume", "pvc:data:/data",
                 "--node-selector", "zone=a")
    assert "job demo (Job, 4 workers) is sent to namespace team\n" in out
    assert "gradus logs -f demo -n team" in out
    job = api.get(JOBS, "demo")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    assert (pod["subdomain"], pod["restartPolicy"]) == ("demo", "Never")
    assert pod["nodeSelector"] == {"zone": "a"}
    container = pod["containers"][0]
    assert container["command"] == ["./quick-program"]
    assert container["workingDir"] == "/gradus/work"
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}
    assert container["envFrom"] == [{"secretRef": {"name": "s3"}}]
    env = variables(container)
    assert INDEX in env["RANK"]["fieldRef"]["fieldPath"]
    assert (env["WORLD_SIZE"], env["MASTER_ADDR"], env["A"]) == ("4", "demo-0.demo", "$$(b) a$$$$b")
    assert env["GRADUS_SECRET"]["secretKeyRef"] == {"name": "demo-gradus", "key": "secret"}
    assert {"name": "claim-0", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    program_bytes = api.get(MAPS, "demo-code-0")["binaryData"]["program"]
    assert base64.b64decode(program_bytes).startswith(b"\x7fELF")
    service = api.get(SERVICES, "demo")["spec"]
    assert service["clusterIP"] == "None" and service["selector"] == {"job-name": "demo"}
    assert service["publishNotReadyAddresses"]
    for resource, name in ((SERVICES, "demo"), (SECRETS, "demo-gradus"), (MAPS, "demo-code-0")):
        owner = api.get(resource, name)["metadata"]["ownerReferences"][0]
        assert (owner["kind"], owner["uid"]) == ("Job", job["metadata"]["uid"])


def test_secret_stands_in_no_output_and_no_pod(api, cluster, program):
    out = submit(cluster, program, "--workers", 2)
    secret = api.get(SECRETS, "demo-gradus")["stringData"]["secret"]
    assert re.fullmatch("[0-9a-f]{64}", secret)
    assert secret not in out and secret not in json.dumps(api.get(JOBS, "demo"))
    dry = cluster("submit", "--dry-run", "--name", "x", "--", program)
    assert 'secret: "not shown' in sent(dry)
    said = refused(cluster("submit", "--env", "=hidden", "--", "true"), "NAME=VALUE")
    assert "hidden" not in said


def test_folder_travels_in_parts_that_unpack(api, cluster, tmp_path):
    code = tmp_path / "code"
    (code / "sub").mkdir(parents=True)
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "x.pyc").write_text("x")
    (code / "train.py").write_text("print(1)")
    (code / "sub" / "large").write_bytes(os.urandom(2_000_000))
    (code / "run").write_text("#!/bin/sh\n")
    (code / "run").chmod(0o755)
    (code / "link").symlink_to("sub/large")
    long = "d" * 90 + "/" + "e" * 90
    (code / long).mkdir(parents=True)
    (code / long / "f").write_text("deep")
    sent(cluster("submit", "--name", "demo", "--image", "img", "--code", "code", "--", "python",
                 "code/train.py", "code"))
    parts = api.names(MAPS)
    assert parts == ["demo-code-0", "demo-code-1", "demo-code-2"]
    data = b"".join(base64.b64decode(api.get(MAPS, name)["binaryData"]["program"])
                    for name in parts)
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert sorted(tar.getnames()) == sorted(
            ["d" * 90, long, f"{long}/f", "link", "run", "sub", "sub/large", "train.py"])
        assert tar.extractfile("sub/large").read() == (code / "sub" / "large").read_bytes()
        assert tar.getmember("run").mode == 0o755
        assert tar.getmember("link").linkname == "sub/large"
    pod = api.get(JOBS, "demo")["spec"]["template"]["spec"]
    assert pod["containers"][0]["command"] == ["python", "./train.py", "code"]
    assert pod["initContainers"][0]["command"][2].startswith("cat /gradus/code/part-*")
    sources = next(v for v in pod["volumes"] if v["name"] == "code")["projected"]["sources"]
    assert [one["configMap"]["name"] for one in sources] == parts


def test_code_on_a_volume_stays_there(api, cluster):
    sent(cluster("submit", "--image", "img", "--name", "demo", "--code", "pvc:src:/src", "--",
                 "python", "train.py"))
    pod = api.get(JOBS, "demo")["spec"]["template"]["spec"]
    assert pod["containers"][0]["workingDir"] == "/src" and not api.names(MAPS)


def test_folders_without_end_are_refused(api, cluster, tmp_path):
    (tmp_path / "/".join(["code"] + ["d"] * 32)).mkdir(parents=True)
    refused(cluster("submit", "--image", "img", "--code", "code", "--", "true"),
            "more than 32 folders in each other at d/d/", "name the folder of the program alone")
    assert not api.requests


def test_file_of_more_than_an_archive_can_say_is_refused(api, cluster, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "data").touch()
    os.truncate(tmp_path / "code" / "data", 1 << 33)
    refused(cluster("submit", "--image", "img", "--code", "code", "--", "true"),
            "--code code: data has 8 GiB or more", "put it on a volume")
    assert not api.requests


def test_kinds_become_those_of_operators(api, cluster, program):
    submit(cluster, program, "--kind", "PyTorch", "--workers", 3, name="pt")
    roles = api.get(PYTORCH, "pt")["spec"]["pytorchReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in roles.items()} == {"Master": 1, "Worker": 2}
    assert roles["Worker"]["template"]["spec"]["containers"][0]["name"] == "pytorch"
    submit(cluster, program, "--kind", "TF", "--workers", 2, "--ps", 1, name="tf")
    roles = api.get("kubeflow.org/v1/tfjobs", "tf")["spec"]["tfReplicaSpecs"]
    assert {role: spec["replicas"] for role, spec in roles.items()} == \
        {"Chief": 1, "PS": 1, "Worker": 2}
    submit(cluster, program, "--kind", "MPI", "--gpus", 2, "-e", "A=b", "--launcher-cpus", 1,
           name="mpi")
    spec = api.get("kubeflow.org/v2beta1/mpijobs", "mpi")["spec"]
    launcher = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
    assert launcher["command"][:4] == ["mpirun", "--allow-run-as-root", "-np", "4"]
    assert launcher["command"][-3:] == ["-x", "A", "./quick-program"]
    assert launcher["resources"]["limits"] == {"cpu": "1"} and spec["slotsPerWorker"] == 2
    worker = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    assert "command" not in worker and worker["volumeMounts"]


def test_keys_of_a_file_and_of_set_are_those_of_kubeflow(api, cluster, program, tmp_path):
    (tmp_path / "dist.yaml").write_text("distribution_type: MPI\nnumber_of_workers: 4\n"
                                        'worker_cpus: "8"\nworker_memory: 32Gi\n'
                                        'launcher_cpus: "2"\nlauncher_memory: 8Gi\n')
    sent(cluster("submit", "dist.yaml", "--image", "img", "--name", "mpi", "--workers", 3, "--set",
                 "worker_memory=1Gi", "--", program))
    spec = api.get("kubeflow.org/v2beta1/mpijobs", "mpi")["spec"]["mpiReplicaSpecs"]
    worker = spec["Worker"]["template"]["spec"]["containers"][0]
    assert spec["Worker"]["replicas"] == 3  # the flag counts
    assert worker["resources"]["limits"] == {"cpu": "8", "memory": "1Gi"}
    (tmp_path / "dist.yaml").write_text("number_of_worker: 4\n")
    refused(cluster("submit", "dist.yaml", "--", program), "dist.yaml:1", "number_of_workers")
    refused(cluster("submit", "--set", "distribution_type=Horovod", "--", program), "Horovod")


def test_manifest_is_checked_before_it_is_sent(api, cluster, tmp_path):
    path = tmp_path / "job.yaml"
    good = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "pt"},
            "spec": {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "template": {"spec": {
                "containers": [{"name": "pytorch", "image": "x"}]}}}}}}
    path.write_text(json.dumps(good))
    assert sent(cluster("submit", "job.yaml", "-o", "name")) == "pt\n"
    assert api.get(PYTORCH, "pt")["metadata"]["labels"]["gradus/job"] == "pt"
    count = len(api.requests)
    for change, words in (({"kind": "Pod"}, ['kind "Pod"', "is not sent"]),
                          ({"metadata": {}}, ["metadata.name is missing"]),
                          ({"spec": {**good["spec"], "pytorchReplicaSpec": {}}},
                           ["pytorchReplicaSpecs"]),
                          ({"spec": {"pytorchReplicaSpecs": {}}}, ["job.yaml:1"])):
        path.write_text(json.dumps({**good, **change}))
        refused(cluster("submit", "job.yaml"), *words)
    path.write_text(json.dumps({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"},
                                "spec": {"completion": 1, "template": {"spec": {}}}}))
    refused(cluster("submit", "job.yaml"), "completions")
    assert len(api.requests) == count
    refused(cluster("submit", "job.yaml", "--", "true"), "has its command itself")
    path.write_text(json.dumps({**good, "metadata": {"name": "pt", "namespace": "theirs"}}))
    refused(cluster("submit", "job.yaml", "-n", "ours"),
            "job.yaml:1: metadata.namespace is theirs, and --namespace is ours; leave one out")
    path.write_text("")
    refused(cluster("submit", "job.yaml", "--", "true"), '"job.yaml" is empty; it may hold')
    path.write_text("\n---\n".join([json.dumps(good)] * 2))
    refused(cluster("submit", "job.yaml", "--follow"), "holds 2 jobs", "gradus logs -f NAME")


@pytest.mark.parametrize("flags, words", [
    (["--name", "Big_Name"], ["DNS-1123"]), (["--name", "a" * 62], ["61 are the most"]),
    (["--name", "1a"], ["a letter first"]), (["--memory", "4G1"], ["--memory 4G1"]),
    (["--cpus", "0"], ["--cpus 0"]), (["--volume", "data:/x"], ["pvc:CLAIM:/path"]),
    (["--ps", "1"], ["--kind TF"]), (["--kind", "PyTorch"], ["--image is missing"]),
    (["--kind", "MPI", "--elastic"], ["--elastic"]), (["--code", "nothing"], ["nothing"]),
])
def test_wrong_flags_are_refused_before_anything_is_sent(api, cluster, flags, words):
    image = [] if "PyTorch" in flags else ["--image", "img"]
    refused(cluster("submit", *image, *flags, "--", "true"), *words)
    assert not api.requests


def test_name_that_is_taken_is_refused(api, cluster, program):
    submit(cluster, program)
    done = cluster("submit", "--name", "demo", "--image", "img", "--", program)
    refused(done, 'there is a Job "demo"', "gradus stop demo -n team")


@pytest.mark.parametrize("resource, name", [(SERVICES, "demo"), (SECRETS, "demo-gradus"),
                                            (MAPS, "demo-code-0")])
def test_object_of_somebody_else_is_left_alone(api, cluster, program, resource, name):
    api.put(resource, {"metadata": {"name": name}, "theirs": True})
    before = set(api.objects)
    refused(cluster("submit", "--name", "demo", "--image", "img", "--", program), name,
            "somebody else")
    assert set(api.objects) == before and api.get(resource, name)["theirs"]


@pytest.mark.parametrize("method, path, words", [
    ("POST", "/jobs", ['"create" on jobs of API group "batch" in namespace team']),
    ("POST", "/configmaps", ['"create" on configmaps']),
    ("PATCH", "/services", ['"patch" on services'])])
def test_missing_right_is_named_and_nothing_is_left(api, cluster, program, method, path, words):
    api.forbidden.append((method, path))
    refused(cluster("submit", "--name", "demo", "--image", "img", "--", program), *words)
    assert not api.objects


def test_what_cannot_be_taken_back_is_in_the_exit_code(api, cluster, program):
    """2 says that nothing is in the cluster."""
    api.forbidden += [("POST", "/jobs"), ("DELETE", "/configmaps")]
    done = cluster("submit", "--name", "demo", "--image", "img", "--", program)
    assert done.returncode == 1 and "demo-code-0 was made, and is left behind" in done.stderr
    assert api.names(MAPS) == ["demo-code-0"] and not api.names(SERVICES)


def test_operator_that_is_not_there_is_told_and_nothing_is_left(api, cluster, program):
    api.fault("POST .*/pytorchjobs", kube_api.refuse(404, "the server could not find it"))
    refused(cluster("submit", "--kind", "PyTorch", "--name", "demo", "--image", "img", "--",
                    program), "no operator for it", "--kind Job needs none")
    assert not api.objects


def test_cluster_that_cannot_be_reached_or_trusted_is_told(api, cluster, program, tmp_path,
                                                            certificates):
    words = ["submit", "--image", "img", "--", program]
    api.token = "another"
    refused(cluster(*words), "expired")
    config = tmp_path / "config"
    other = base64.b64encode((certificates / "other-ca.pem").read_bytes()).decode()
    api.kubeconfig(config, certificate_authority_data=other)
    refused(cluster(*words), "certificate")
    api.kubeconfig(config, server="https://127.0.0.1:1")
    refused(cluster(*words), "127.0.0.1", code=1)
    for verb in (["ls"], ["logs", "demo"], ["wait", "demo"], ["stop", "demo"], ["top", "demo"],
                 ["scale", "demo", 2]):
        refused(cluster(*verb, "-n", "team"), "127.0.0.1", code=1)
    refused(cluster("submit", "--context", "nowhere", "--", program), "nowhere")
    refused(cluster("submit", "--kubeconfig", tmp_path / "none", "--", program), "none")
    assert not api.objects


@pytest.mark.parametrize("sent_before", [0, 2])
@pytest.mark.parametrize("trouble, code", [("a role must allow", 2), ("said by the test", 1)])
def test_several_jobs_of_which_one_is_not_sent(api, cluster, tmp_path, sent_before, trouble, code):
    """2 says that nothing was sent."""
    path = tmp_path / "jobs.yaml"
    spec = {"template": {"spec": {"restartPolicy": "Never",
                                  "containers": [{"name": "main", "image": "img"}]}}}
    spaces = {"one": "team", "two": "team", "three": "other"}
    path.write_text("\n---\n".join(
        json.dumps({"apiVersion": "batch/v1", "kind": "Job", "spec": spec,
                    "metadata": {"name": name, "namespace": spaces[name]}})
        for name in list(spaces)[2 - sent_before:]))
    api.fault("POST .*/other/jobs", kube_api.refuse(403 if code == 2 else 500), times=10)
    done = cluster("submit", "jobs.yaml")
    assert done.returncode == (1 if sent_before else code), done.stderr
    assert trouble in done.stderr
    assert ("sent before that, and not taken back: one, two" in done.stderr) == (sent_before > 0)
    assert len(api.names(JOBS)) == sent_before


# ---- Following ----------------------------------------------------------------------------------
def test_follow_shows_all_workers_until_the_end(api, cluster, program):
    process = follow(cluster, api, program)
    for i in range(3):
        for rank in range(2):
            api.say(f"demo-{rank}-x", f"line {i}\n")
    api.say("demo-0-x", "no newline")
    lines = read_lines(process, 6)
    for rank in range(2):
        api.end_pod(f"demo-{rank}-x")
    api.end_job("demo")
    out, err = finish(process, 0)
    lines += out.splitlines()
    assert [one for one in lines if one[1] == "1"] == [f"[1] line {i}" for i in range(3)]
    assert [one for one in lines if one[1] == "0"] == \
        [f"[0] line {i}" for i in range(3)] + ["[0] no newline"]
    assert "gradus: job demo (Job, 2 workers) is sent" in err


@pytest.mark.parametrize("last_bytes", [1, 4, 12, 30])
def test_follow_loses_and_doubles_no_line_when_connections_break(api, cluster, program, last_bytes):
    process = follow(cluster, api, program, workers=1)
    name, count = "demo-0-x", 300
    for i in range(count):  # the times of lines go through three seconds
        if i % 50 == 20:
            asked = len(api.logs_asked(name))
            api.break_log(name, last_bytes)
            api.say(name, f"line {i} of many\n")
            api.wait(lambda: len(api.logs_asked(name)) > asked, "another connection")
        else:
            api.say(name, f"line {i} of many\n")
    api.end_pod(name)
    api.end_job("demo")
    out, err = finish(process, 0)
    assert out.splitlines() == [f"[0] line {i} of many" for i in range(count)]
    assert err.count("cannot get pods/log") == 6, err
    assert any("sinceTime" in query for query in api.logs_asked(name))


def test_follow_reads_what_a_container_wrote_before_it_was_started_again(api, cluster, program):
    process = follow(cluster, api, program, workers=1)
    name = "demo-0-x"
    api.say(name, "one\n")
    assert read_lines(process, 1) == ["[0] one"]
    asked = len(api.logs_asked(name))
    api.fault(f"GET .*/pods/{name}/log.*previous", kube_api.refuse(500))
    api.restart_pod(name, "last words\n")
    api.wait(lambda: sum("previous" in query for query in api.logs_asked(name)[asked:]) == 2,
             "the rest, asked for again")
    api.say(name, "two\n")
    assert sorted(read_lines(process, 2)) == ["[0] last words", "[0] two"]
    api.end_pod(name)
    api.end_job("demo")
    _, err = finish(process, 0)
    assert "worker 0 (pod demo-0-x) failed with exit code 1" in err


def test_follow_reads_it_also_when_the_restart_is_shown_late(api, cluster, program):
    """The new container has written for two seconds by then."""
    process = follow(cluster, api, program, workers=1)
    name = "demo-0-x"
    api.say(name, "one\n")
    assert read_lines(process, 1) == ["[0] one"]
    asked = len(api.logs_asked(name))
    api.restart_container(name, "last words\n")
    api.wait(lambda: len(api.logs_asked(name)) > asked, "the new log to be asked for")
    for number in range(200):
        api.say(name, f"line {number}\n")
    assert read_lines(process, 200) == [f"[0] line {number}" for number in range(200)]
    api.show_restart(name)
    assert read_lines(process, 1) == ["[0] last words"]
    api.say(name, "two\n")
    assert read_lines(process, 1) == ["[0] two"]
    api.end_pod(name)
    api.end_job("demo")
    assert finish(process, 0)[0] == ""


def test_follow_goes_on_when_the_server_forgets_watches(api, cluster, program):
    process = follow(cluster, api, program, workers=1)
    api.say("demo-0-x", "one\n")
    assert read_lines(process, 1) == ["[0] one"]
    api.drop_connections()
    api.drop_watches()
    api.say("demo-0-x", "two\n")
    assert read_lines(process, 1) == ["[0] two"]
    api.end_pod("demo-0-x")
    api.end_job("demo")
    finish(process, 0)


def test_follow_tells_what_goes_wrong(api, cluster, program):
    process = follow(cluster, api, program, "--memory", "1Gi", workers=4)
    assert "is sent" in read_lines(process, 1, "stderr")[0]
    api.pod_state("demo-0-x", "Pending", {"waiting": {"reason": "ImagePullBackOff",
                                                      "message": "not found"}})
    assert read_lines(process, 1, "stderr") == ["gradus: worker 0 (pod demo-0-x) waits for its "
                                                "image img (ImagePullBackOff): not found"]
    api.pod_state("demo-1-x", "Pending", {"waiting": {}}, conditions=[
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
         "message": "0/3 nodes are available"}])
    assert read_lines(process, 1, "stderr") == ["gradus: worker 1 (pod demo-1-x) finds no node "
                                                "(FailedScheduling): 0/3 nodes are available"]
    api.put(PODS, {"metadata": {"name": "stranger"}})
    api.tell_event(PODS, "stranger", "FailedMount", "of somebody else")
    for _ in range(2):  # it comes again and again
        api.tell_event(PODS, "demo-3-x", "FailedMount", "no such volume")
    assert read_lines(process, 1, "stderr") == ["gradus: Pod demo-3-x: FailedMount: no such volume"]
    api.tell_event(JOBS, "demo", "FailedCreate", "exceeded quota")
    assert read_lines(process, 1, "stderr") == ["gradus: Job demo: FailedCreate: exceeded quota"]
    api.end_pod("demo-2-x", 137, "OOMKilled")
    assert read_lines(process, 1, "stderr") == ["gradus: worker 2 (pod demo-2-x) was killed "
                                                "(OOMKilled): it needs more memory than its limit "
                                                "of 1Gi; --memory sets that"]
    for rank in (0, 1, 3):
        with api.changed:
            api.drop(PODS, "team", f"demo-{rank}-x")
    api.end_job("demo", "it did not work")
    assert finish(process, 1)[1] == "gradus: job demo has failed: it did not work\n"


def test_follow_ends_when_the_job_is_deleted(api, cluster, program):
    process = follow(cluster, api, program)
    api.say("demo-0-x", "one\n")
    read_lines(process, 1)
    sent(cluster("stop", "demo", "-n", "team"))
    _, err = finish(process, 1)
    assert "job demo was deleted before its end" in err


def test_interrupt_detaches_and_the_job_goes_on(api, cluster, program):
    process = follow(cluster, api, program)
    api.say("demo-0-x", "one\n")
    read_lines(process, 1)
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 75)
    assert "detached; job demo goes on: gradus logs -f demo -n team shows it again" in err
    assert api.get(JOBS, "demo")


def test_interrupt_while_it_is_sent_takes_all_back(api, cluster, program):
    api.fault("POST .*/jobs", kube_api.hang)
    process = cluster.start("submit", "--name", "demo", "--image", "img", "--", program)
    api.wait(lambda: api.asked("^POST .*/jobs"), "the job")
    process.send_signal(signal.SIGINT)
    _, err = finish(process, 1)
    assert "ended by SIGINT" in err and not api.objects


@pytest.mark.parametrize("resource", [SERVICES, MAPS, JOBS])
def test_object_whose_answer_was_lost_is_known_again(api, cluster, program, resource):
    plural = resource.split("/")[-1]

    def make_and(act):
        def both(handler):
            api.put(resource, json.loads(api.requests[-1][2]))
            act(handler)
        return both

    api.fault(f"POST .*/{plural}", make_and(kube_api.close))
    submit(cluster, program)
    assert len(api.names(resource)) == 1
    sent(cluster("stop", "demo", "-n", "team"))
    assert not api.objects
    api.fault(f"POST .*/{plural}", make_and(kube_api.hang))
    count = len(api.asked(f"^POST .*/{plural}"))
    process = cluster.start("submit", "--name", "demo", "--image", "img", "--", program)
    api.wait(lambda: len(api.asked(f"^POST .*/{plural}")) > count and api.names(resource), "it")
    process.send_signal(signal.SIGINT)
    assert "ended by SIGINT" in finish(process, 1)[1]
    assert not api.objects


# ---- ls, logs, wait, stop, scale, top -----------------------------------------------------------
def test_ls_lists_jobs_of_all_kinds(api, cluster, program):
    submit(cluster, program, "--workers", 2)
    submit(cluster, program, "--kind", "PyTorch", "--workers", 3, name="pt")
    api.put(JOBS, {"metadata": {"name": "theirs"}, "spec": {}})
    api.end_job("demo", "broken")
    found = [json.loads(line) for line in
             sent(cluster("ls", "-n", "team", "--json")).splitlines()]
    assert [(one["name"], one["kind"], one["state"], one["workers"]) for one in found] == \
        [("demo", "Job", "failed", 2), ("pt", "PyTorchJob", "pending", 3)]
    assert "broken" in sent(cluster("ls", "--context", "test"))
    assert sent(cluster("ls", "-n", "other")) == ""
    api.fault("GET .*/pytorchjobs", kube_api.refuse(404))
    assert "demo" in sent(cluster("ls", "-n", "team"))
    api.denied.update(("list", what) for what in ("jobs", "mpijobs"))
    done = cluster("ls", "-n", "team")
    assert done.returncode == 0 and "pt" in done.stdout and "demo" not in done.stdout
    assert [re.search('"list" on [a-z]+', line)[0] for line in done.stderr.splitlines()] == \
        ['"list" on jobs', '"list" on mpijobs']
    api.forbidden.append(("GET", "jobs$"))
    refused(cluster("ls", "-n", "team"), '"list" on jobs')


def test_logs_come_in_order_of_ranks(api, cluster, program):
    submit(cluster, program, "--workers", 2)
    api.start_pods("demo")
    for rank in (1, 0):
        api.say(f"demo-{rank}-x", f"of {rank}\n")
    assert sent(cluster("logs", "demo", "-n", "team")) == "[0] of 0\n[1] of 1\n"
    process = cluster.start("logs", "-f", "job/demo", "-n", "team")
    assert sorted(read_lines(process, 2)) == ["[0] of 0", "[1] of 1"]
    api.end_pod("demo-0-x", 3, "Error")
    api.end_pod("demo-1-x")
    api.end_job("demo", "x")
    _, err = finish(process, 1)
    assert "worker 0 (pod demo-0-x) failed with exit code 3" in err
    api.forbidden.append(("GET", "/log$"))
    done = cluster("logs", "demo", "-n", "team")
    assert done.returncode == 1 and '"get" on pods/log' in done.stderr


def test_logs_of_another_kind_have_roles(api, cluster, program):
    submit(cluster, program, "--kind", "TF", "--ps", 1, name="tf")
    job = api.get("kubeflow.org/v1/tfjobs", "tf")
    for role in ("ps", "worker", "chief"):
        api.put_pod(f"tf-{role}-0", job, {}, labels={
            "training.kubeflow.org/job-name": "tf", "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": "0"})
        api.run_pod(f"tf-{role}-0")
        api.say(f"tf-{role}-0", "here\n")
    assert sent(cluster("logs", "tf", "-n", "team")) == \
        "[chief] here\n[worker 0] here\n[ps 0] here\n"


def test_servers_of_a_gradus_job_are_no_workers(api, cluster):
    job = {"metadata": {"name": "native"}, "spec": {"workers": {"replicas": 1},
                                                    "servers": {"replicas": 1}}}
    job = api.put("gradus.dev/v1/gradusjobs", job)
    for role in ("server", "worker"):
        api.put_pod(f"native-{role}-0", job, {}, labels={
            "training.kubeflow.org/job-name": "native", "training.kubeflow.org/replica-type": role,
            "training.kubeflow.org/replica-index": "0"})
        api.run_pod(f"native-{role}-0")
        api.say(f"native-{role}-0", "here\n")
    assert sent(cluster("logs", "native", "-n", "team")) == "[0] here\n[server 0] here\n"
    lines = sent(cluster("top", "native", "-n", "team")).splitlines()
    assert sorted(line.split("native")[0].strip() for line in lines[1:]) == ["0", "server 0"]
    process = cluster.start("wait", "native", "-n", "team")
    api.end_pod("native-server-0", 3, "Error")
    assert "server 0 (pod native-server-0) failed with exit code 3" in \
        read_lines(process, 1, "stderr")[0]


def test_wait_ends_with_the_job(api, cluster, program):
    submit(cluster, program)
    process = cluster.start("wait", "demo", "-n", "team")
    api.wait(lambda: api.watches == 3, "its watches")
    api.end_job("demo")
    assert finish(process, 0)[0] == ""
    refused(cluster("wait", "nobody", "-n", "team"), 'no job "nobody" in namespace team')


def test_stop_deletes_the_job_that_was_seen_and_all_that_is_its(api, cluster, program):
    submit(cluster, program)
    api.start_pods("demo")
    uid = api.get(JOBS, "demo")["metadata"]["uid"]
    assert "job demo is deleted" in sent(cluster("stop", "demo", "-n", "team"))
    body = json.loads(api.asked("^DELETE .*/jobs/demo")[0][2])
    assert body["preconditions"] == {"uid": uid} and body["propagationPolicy"] == "Background"
    assert not api.objects
    api.put(JOBS, {"metadata": {"name": "theirs"}, "spec": {}})
    refused(cluster("stop", "theirs", "-n", "team"), 'no job "theirs"')


def test_stop_now_gives_pods_a_second(api, cluster, program):
    submit(cluster, program)
    api.start_pods("demo")
    pod = api.get(PODS, "demo-0-x")
    del pod["metadata"]["ownerReferences"]  # as if the garbage collector were slow
    api.put(PODS, pod)
    sent(cluster("stop", "--now", "demo", "-n", "team"))
    assert json.loads(api.asked("^DELETE .*/pods/")[0][2])["gracePeriodSeconds"] == 1


def test_gradus_job_is_sent_listed_and_scaled(api, cluster, tmp_path):
    job = {"model": [{"linear": 10}], "data": {"file": "a.csv", "classes": 10}, "epochs": 1,
           "global_batch": 64, "optimizer": {"kind": "sgd", "learning_rate": 0.1}}
    manifest = {"apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": "native"},
                "spec": {"workers": {"replicas": 3}, "job": job}}
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(manifest))
    assert sent(cluster("submit", "job.yaml", "-o", "name")) == "native\n"
    listed = json.loads(sent(cluster("ls", "-n", "team", "--json")))
    assert (listed["kind"], listed["workers"], listed.get("progress")) == ("GradusJob", 3, None)
    progress = {"step": 120, "steps": 500, "epoch": 3, "loss": 0.123457, "samplesPerSecond": 12350,
                "straggler": {"rank": 2, "pod": "native-worker-2", "lateMilliseconds": 1.23}}
    told = api.get("gradus.dev/v1/gradusjobs", "native")
    told["status"] = {"progress": progress, "conditions": [{"type": "Running", "status": "True"}]}
    api.put("gradus.dev/v1/gradusjobs", told)
    assert json.loads(sent(cluster("ls", "-n", "team", "--json")))["progress"] == progress
    line = ("step 120 of 500, epoch 3, loss 0.123457, 12,350 samples/s, rank 2 is late by 1.23 ms")
    assert sent(cluster("ls", "-n", "team")).endswith(f"  {line}\n")
    assert sent(cluster("top", "native", "-n", "team")).startswith(f"{line}\nworker ")
    assert sent(cluster("scale", "native", 5, "-n", "team")) == "the job goes from 3 to 5 workers\n"
    assert api.get("gradus.dev/v1/gradusjobs", "native")["spec"]["workers"] == {"replicas": 5}
    job["epoks"] = job.pop("epochs")
    path.write_text(json.dumps(manifest))
    refused(cluster("submit", "job.yaml"), 'spec.job: unknown key "epoks"')


def test_scale_changes_jobs_that_may(api, cluster, program):
    submit(cluster, program, "--workers", 2)
    refused(cluster("scale", "demo", 3, "-n", "team"), "--elastic")
    submit(cluster, program, "--workers", 2, "--elastic", name="el")
    container = api.get(JOBS, "el")["spec"]["template"]["spec"]["containers"][0]
    assert "WORLD_SIZE" not in variables(container)
    assert sent(cluster("scale", "el", 3, "-n", "team")) == "the job goes from 2 to 3 workers\n"
    spec = api.get(JOBS, "el")["spec"]
    assert (spec["completions"], spec["parallelism"]) == (3, 3)
    submit(cluster, program, "--kind", "PyTorch", "--workers", 2, name="pt")
    sent(cluster("scale", "pt", 4, "-n", "team"))
    roles = api.get(PYTORCH, "pt")["spec"]["pytorchReplicaSpecs"]
    assert roles["Worker"]["replicas"] == 3 and roles["Master"]["replicas"] == 1
    assert sent(cluster("scale", "pt", "-n", "team")) == "the job has 4 workers\n"
    submit(cluster, program, "--kind", "TF", name="tf")
    refused(cluster("scale", "tf", 4, "-n", "team"), "TF_CONFIG")
    refused(cluster("scale", "-n", "team"), "needs the name")


def test_top_shows_what_is_measured(api, cluster, program):
    submit(cluster, program, "--workers", 2)
    api.start_pods("demo")
    metrics = "metrics.k8s.io/v1beta1/pods"
    api.put(metrics, {"metadata": {"name": "demo-1-x", "labels": {"job-name": "demo"}},
                      "containers": [{"usage": {"cpu": "1500m", "memory": "64Mi"}}]})
    lines = sent(cluster("top", "demo", "-n", "team")).splitlines()
    assert lines[1].split() == ["0", "demo-0-x", "Running", "-", "-"]
    assert lines[2].split() == ["1", "demo-1-x", "Running", "1.50", "64", "MiB"]
    api.fault("GET .*/metrics.k8s.io", kube_api.refuse(404))
    refused(cluster("top", "demo"), "metrics-server")


def test_many_pods_are_followed_at_once(api, cluster, program):
    process = follow(cluster, api, program, workers=40)
    for rank in range(40):
        api.say(f"demo-{rank}-x", "here\n")
    lines = read_lines(process, 40)
    assert sorted(lines) == sorted(f"[{rank}] here" for rank in range(40))
    for rank in range(40):
        api.end_pod(f"demo-{rank}-x")
    api.end_job("demo")
    finish(process, 0)

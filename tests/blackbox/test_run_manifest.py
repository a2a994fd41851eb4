# SPDX-License-Identifier: Apache-2.0
"""gradus run -f: jobs of Kubernetes as processes of this host."""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

import intel_mpi
from conftest import TIMEOUT_S, finish, read_lines, wait_until
from processes import children

V1, V2 = "kubeflow.org/v1", "kubeflow.org/v2beta1"
SPECS = {"PyTorchJob": ("pytorchReplicaSpecs", "pytorch"),
         "TFJob": ("tfReplicaSpecs", "tensorflow"), "MPIJob": ("mpiReplicaSpecs", "mpi")}


def role(kind, command, replicas=1, policy="Never", **more):
    container = {"name": SPECS[kind][1], "image": "mine:1"}
    if command:
        container["command"] = command
    container.update(more.pop("container", {}))
    return {"replicas": replicas, "restartPolicy": policy,
            "template": {"spec": {"containers": [container], **more}}}


def job(kind, roles, api=V1, name="train", **spec):
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name},
            "spec": {SPECS[kind][0]: roles, **spec}}


def write(gradus, *documents):
    (gradus.folder / "job.yaml").write_text("\n---\n".join(map(json.dumps, documents)))
    return "job.yaml"


def run(gradus, *documents, code=0, words=(), **more):
    done = gradus("run", *words, "-f", write(gradus, *documents), **more)
    assert done.returncode == code, done.stdout + done.stderr
    assert not gradus.remains()
    assert not list(gradus.folder.glob("gradus-run-*"))
    return done


def lines(text, pod):
    return [line.split("] ", 1)[1] for line in text.splitlines() if line.startswith(f"[{pod}] ")]


def python(program):
    return [sys.executable, "-c", program]


# ---- The kinds -----------------------------------------------------------------------------------
# The last thing that a program of three tasks does: that with which the job ends, is_last, waits
# until the others have done all that is looked at, for they are not waited for.
LAST = """
if is_last:
    all_did = os.open("all-did", os.O_RDWR)
    for _ in range(2):
        os.read(all_did, 1)
else:
    os.write(os.open("all-did", os.O_WRONLY), b"x")
"""


def test_pytorch_job_pods_know_rank_master_and_names(gradus):
    program = """
import os, socket
e = os.environ
print(e["RANK"], e["WORLD_SIZE"], e["MASTER_ADDR"], e["MASTER_PORT"], socket.gethostname(),
      flush=True)
mine, master = socket.gethostbyname(socket.gethostname()), socket.gethostbyname(e["MASTER_ADDR"])
endings = [".default", ".default.svc", ".default.svc.cluster.local"]
assert {socket.gethostbyname("train-master-0" + ending) for ending in endings} == {master}
assert mine.startswith("127.") and (mine == master) == (e["RANK"] == "0")
is_last = e["RANK"] == "0"
if is_last:
    server = socket.create_server((mine, 0))
""" + LAST
    os.mkfifo(gradus.folder / "all-did")
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", python(program)),
                                          "Worker": role("PyTorchJob", python(program), 2)}))
    for rank, pod in enumerate(["train-master-0", "train-worker-0", "train-worker-1"]):
        assert lines(done.stdout, pod) == [f"{rank} 3 train-master-0 23456 {pod}"]
    assert "PyTorchJobSucceeded       pytorchjob/train" in done.stderr
    assert "Succeeded   True" in done.stderr
    assert done.stderr.count("are processes of this host") == 1


def test_pytorch_jobs_of_two_runs_do_not_meet(gradus):
    """At their port and at the one behind it, where programs of Gradus meet. Each ends when it has
    a connection, which a pod of its own run makes."""
    serve = """
import os, socket
port = int(os.environ["MASTER_PORT"])
servers = [socket.create_server(("", port + i), family=socket.AF_INET6, dualstack_ipv6=True)
           for i in range(2)]
print("listening", flush=True)
os.read(os.open("all-listen", os.O_RDONLY), 1)
for server in servers:
    print(server.accept()[0].recv(100).decode(), flush=True)
"""
    call = """
import os, socket
os.read(os.open("all-listen", os.O_RDONLY), 1)
for port in range(2):
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + port
    socket.create_connection(address).sendall(os.environ["RUN"].encode())
"""
    os.mkfifo(gradus.folder / "all-listen")
    gate = os.open(gradus.folder / "all-listen", os.O_RDWR)
    runs = []
    for name in "first", "second":
        env = {"env": [{"name": "RUN", "value": name}]}
        asked = job("PyTorchJob", {"Master": role("PyTorchJob", python(serve)),
                                   "Worker": role("PyTorchJob", python(call), container=env)})
        (gradus.folder / f"{name}.json").write_text(json.dumps(asked))
        runs.append(gradus.start("run", "-f", f"{name}.json"))
    for process in runs:
        wait_for_line(process, "] listening")
    os.write(gate, b"xxxx")
    for process, name in zip(runs, ["first", "second"]):
        assert lines(finish(process)[0], "train-master-0") == [name] * 2
    os.close(gate)


TF_PROGRAM = """
import json, os, signal, socket
config = json.loads(os.environ["TF_CONFIG"])
role, index = config["task"]["type"], config["task"]["index"]
name, port = config["cluster"][role][index].split(":")
mine = socket.gethostbyname(name)
six = role == "worker"  # servers of gRPC listen at all addresses, and let others do so as well
server = socket.socket(socket.AF_INET6 if six else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if six:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind(("::" if six else "0.0.0.0", int(port)))
server.listen()
print("listening", flush=True)
os.read(os.open("all-listen", os.O_RDONLY), 1)
hosts = [host for role in sorted(config["cluster"]) for host in config["cluster"][role]]
for other in hosts:
    name, port = other.split(":")
    socket.create_connection((name, int(port))).sendall(other.encode())
me = config["cluster"][role][index]
for _ in hosts:
    assert server.accept()[0].recv(100).decode() == me
print(role, index, "of", len(hosts), flush=True)
is_last = (role, index) == ("worker", 0)
""" + LAST + """
if role == "ps":
    signal.pause()
"""


def run_tf_job(gradus, *command, **more):
    """Its tasks connect to each other when all of them listen."""
    os.mkfifo(gradus.folder / "all-did")
    program = python(TF_PROGRAM)
    asked = job("TFJob", {"PS": role("TFJob", program), "Worker": role("TFJob", program, 2)})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    os.mkfifo(gradus.folder / "all-listen")
    gate = os.open(gradus.folder / "all-listen", os.O_RDWR)
    process = gradus.start(*command, **more)
    for _ in range(3):
        wait_for_line(process, "] listening")
    os.write(gate, b"xxx")
    out, err = finish(process)
    os.close(gate)
    assert not gradus.remains()
    return out, err


def test_tf_job_servers_on_all_addresses_are_reached_at_their_own(gradus):
    out, err = run_tf_job(gradus, "run", "-f", "job.json")
    assert lines(out, "train-ps-0") == ["ps 0 of 3"]
    assert [lines(out, f"train-worker-{i}") for i in range(2)] == [
        [f"worker {i} of 3"] for i in range(2)]
    assert "TFJobSucceeded" in err


def test_without_namespaces_pods_find_each_other_by_address(gradus):
    script = "echo 0 >/proc/sys/user/max_user_namespaces && exec setpriv --bounding-set -all " \
        "--inh-caps -all "
    command = ["unshare", "-U", "-r", "sh", "-c"]
    if subprocess.run([*command, script + "true"], capture_output=True).returncode:
        pytest.skip("what would not permit namespaces cannot be made here")
    out, err = run_tf_job(gradus, *command[1:], script + gradus.program + " run -f job.json",
                          program=command[0])
    assert lines(out, "train-worker-1") == ["worker 1 of 3"]
    assert err.count("permits no namespaces") == 1


def test_volume_over_the_folder_of_the_run_hides_nothing(gradus):
    """A master that workers wait for, and a file of a ConfigMap, beside an emptyDir at TMPDIR."""
    program = "print(open('/etc/mine/word').read()); open('/tmp/made', 'w')"
    volumes = [{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "words"}}]
    mounts = [{"name": "a", "mountPath": tempfile.gettempdir()},
              {"name": "b", "mountPath": "/etc/mine", "readOnly": True}]
    made = {"container": {"volumeMounts": mounts}, "volumes": volumes}
    done = run(gradus, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"},
                        "data": {"word": "here"}},
               job("PyTorchJob", {"Master": role("PyTorchJob", python(program), **made),
                                  "Worker": role("PyTorchJob", python(program), **made)}))
    assert lines(done.stdout, "train-master-0") == ["here"]  # with it the job ends
    assert "train-worker-0" in done.stderr and "cannot" not in done.stderr


def test_sub_path_expression_is_a_folder_of_each_pod(gradus):
    """And one that needs what is not there is refused, as is one that leads out of the volume."""
    mount = {"name": "a", "mountPath": "/mine", "subPathExpr": "of/$(ME)"}
    me = {"name": "ME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    volume = {"name": "a", "hostPath": {"path": str(gradus.folder / "all"),
                                        "type": "DirectoryOrCreate"}}

    def master(**more):
        container = {"volumeMounts": [{**mount, **more}], "env": [me]}
        return {"Master": role("PyTorchJob", ["sh", "-c", "echo here >/mine/word"],
                               container=container, volumes=[volume])}

    run(gradus, job("PyTorchJob", master()))
    assert (gradus.folder / "all/of/train-master-0/word").read_text() == "here\n"
    for more, words in [({"subPathExpr": "$(YOU)"}, "needs variable YOU"),
                        ({"subPathExpr": "../$(ME)"}, "leads out of volume"),
                        ({"subPath": "b"}, "subPath and subPathExpr")]:
        assert words in run(gradus, job("PyTorchJob", master(**more)), code=2).stderr


def test_container_that_cannot_start_ends_the_job(gradus):
    master = role("PyTorchJob", None, policy="OnFailure")
    done = run(gradus, job("PyTorchJob", {"Master": master}, runPolicy={"backoffLimit": 1}), code=1)
    assert "needs" in done.stderr or "command" in done.stderr


@pytest.mark.parametrize("volume, more, words", [
    ({"name": "../out", "emptyDir": {}}, {}, "a volume cannot be called"),
    ({"name": "a", "persistentVolumeClaim": {"claimName": "../out"}}, {}, "cannot be called"),
    ({"name": "a", "emptyDir": {}}, {"subPath": "b/../../c"}, "leads out of volume")])
def test_names_that_lead_out_of_their_folder_are_refused(gradus, volume, more, words):
    mount = {"name": volume["name"], "mountPath": "/mine", **more}
    master = role("PyTorchJob", ["true"], container={"volumeMounts": [mount]}, volumes=[volume])
    done = run(gradus, job("PyTorchJob", {"Master": master}, runPolicy={"backoffLimit": 0}), code=2)
    assert words in done.stderr


HELLO = """
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int rank, size, sum, length;
    char host[MPI_MAX_PROCESSOR_NAME];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %d of %d on %s: %d\\n", rank, size, host, sum);
    MPI_Finalize();
    return 0;
}
"""


def compile_hello(folder, flavour):
    (folder / "hello.c").write_text(HELLO)
    if flavour == "intel":
        root = intel_mpi.find()
        intel_mpi.build(root, folder / "hello.c", folder / "hello")
        return ["env", *(f"{key}={value}" for key, value in intel_mpi.ENVIRONMENT.items()),
                f"{root}/bin/mpiexec.hydra", "-n", "4", str(folder / "hello")]
    if not shutil.which(f"mpicc.{flavour}"):
        pytest.skip(f"there is no {flavour}")
    program = folder / f"hello.{flavour}"
    subprocess.run([f"mpicc.{flavour}", folder / "hello.c", "-o", program], check=True)
    return [f"mpiexec.{flavour}", "-n", "4", str(program)]


WORKERS = ["worker-0", "worker-1"]


@pytest.mark.parametrize("api, flavour, hosts, more", [
    (V2, "openmpi", WORKERS, {}), (V2, "mpich", WORKERS, {"mpiImplementation": "MPICH"}),
    (V2, "intel", WORKERS, {"mpiImplementation": "Intel"}),
    (V2, "openmpi", ["launcher", "worker-0"], {"runLauncherAsWorker": True}),
    (V1, "openmpi", WORKERS, {})])
def test_mpi_job_ranks_compute_on_its_hosts(gradus, api, flavour, hosts, more):
    command = compile_hello(gradus.folder, flavour)
    done = run(gradus, job("MPIJob", {"Launcher": role("MPIJob", command),
                                      "Worker": role("MPIJob", None, 2)}, api,
                           slotsPerWorker=2, **more))
    said = sorted(line.split("] ", 1)[1] for line in done.stdout.splitlines())
    assert said == [f"rank {i} of 4 on train-{hosts[i // 2]}: 6" for i in range(4)]
    assert "MPIJobSucceeded" in done.stderr


def test_user_without_rights_gets_the_same(gradus):
    if os.getuid() != 0 or not os.access("/usr/bin/setpriv", os.X_OK):
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        folder = pathlib.Path(folder)
        command = compile_hello(folder, "mpich")
        asked = job("MPIJob", {"Launcher": role("MPIJob", command),
                               "Worker": role("MPIJob", None, 2)}, V2,
                    slotsPerWorker=2, mpiImplementation="MPICH")
        (folder / "job.json").write_text(json.dumps(asked))
        command = ["/usr/bin/setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
        if subprocess.run([*command, gradus.program, "version"], capture_output=True).returncode:
            pytest.skip("the program is where nobody else may go")
        if subprocess.run([*command, "unshare", "-Um", "true"], capture_output=True).returncode:
            pytest.skip("users get no namespaces here")
        done = subprocess.run([*command, gradus.program, "run", "-f", folder / "job.json"],
                              env=gradus.environment({"TMPDIR": str(folder)}), cwd=folder,
                              capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "rank 3 of 4 on train-worker-1: 6" in done.stdout
        assert not gradus.remains()


@pytest.mark.long
def test_pytorch_job_torch_reduces_over_gloo(gradus):
    python3 = "/usr/bin/python3"
    if subprocess.run([python3, "-c", "import torch.distributed"], capture_output=True).returncode:
        pytest.skip("there is no torch")
    program = """
import torch, torch.distributed as d
d.init_process_group("gloo")
t = torch.ones(3) * (d.get_rank() + 1)
d.all_reduce(t)
print(d.get_rank(), t.tolist(), flush=True)
d.barrier()
"""
    done = run(gradus, job("PyTorchJob", {
        "Master": role("PyTorchJob", [python3, "-c", program]),
        "Worker": role("PyTorchJob", [python3, "-c", program])}), timeout=300)
    assert lines(done.stdout, "train-master-0") == ["0 [3.0, 3.0, 3.0]"]
    assert lines(done.stdout, "train-worker-0") == ["1 [3.0, 3.0, 3.0]"]


# ---- Pods ----------------------------------------------------------------------------------------
def test_pod_has_what_its_manifest_says(gradus):
    """Environment from everywhere, files where they are mounted, also where the host has no such
    folder, which it has not got afterwards; init containers in order, a sidecar that ends. The ids
    are the caller's, whatever the security context says."""
    script = """
echo "$A|$B|$C|$D|$E|$F|$(pwd)|$1"
cat /etc/of-test/key /no-such-folder/of-test/word; echo
stat -L -c %a /etc/of-test/key
cat /shared/order
(echo no >/no-such-folder/of-test/word) 2>/dev/null || echo "cannot be written"
id -u
"""
    container = {
        "securityContext": {"runAsUser": os.getuid() + 1},
        "args": ["$(A)-$$(A)-$(NONE)"], "workingDir": "/usr",
        "env": [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)b"},
                {"name": "C", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "D", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "key"}}},
                {"name": "E", "valueFrom": {"secretKeyRef": {"name": "s", "key": "word"}}}],
        "envFrom": [{"configMapRef": {"name": "vars"}}],
        "volumeMounts": [{"name": "c", "mountPath": "/etc/of-test"},
                         {"name": "s", "mountPath": "/no-such-folder/of-test", "readOnly": True},
                         {"name": "e", "mountPath": "/shared"}]}
    mount = [{"name": "e", "mountPath": "/shared"}]
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["sh", "-c", script, "sh"], container=container,
        initContainers=[
            {"name": "one", "image": "x", "command": ["sh", "-c", "echo one >>/shared/order"],
             "volumeMounts": mount},
            {"name": "beside", "image": "x", "restartPolicy": "Always",
             "command": ["sh", "-c", "echo beside; exec sleep 1000"]},
            {"name": "two", "image": "x", "command": ["sh", "-c", "echo two >>/shared/order"],
             "volumeMounts": mount}],
        volumes=[{"name": "c", "configMap": {"name": "c", "defaultMode": 0o440}},
                 {"name": "s", "secret": {"secretName": "s"}}, {"name": "e", "emptyDir": {}}])})
    done = run(gradus, asked,
               {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"},
                "data": {"key": "value"}},
               {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "vars"},
                "data": {"F": "from"}},
               {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"},
                "data": {"word": "aGlkZGVu"}})
    assert lines(done.stdout, "train-master-0") == [
        "a|ab|train-master-0|value|hidden|from|/usr|a-$(A)-$(NONE)", "valuehidden", "440",
        "one", "two", "cannot be written", str(os.getuid())]
    assert "security contexts are not used" in done.stderr
    assert lines(done.stdout, "train-master-0/beside") == ["beside"]
    assert not os.path.exists("/etc/of-test") and not os.path.exists("/no-such-folder")


def test_container_without_command_fails_with_a_sentence(gradus):
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", None)}), code=1)
    assert "container pytorch cannot start: it has no command" in done.stderr
    assert "StartError" in done.stderr


# ---- The end of jobs -----------------------------------------------------------------------------
def test_failing_worker_fails_the_job(gradus):
    done = run(gradus, job("PyTorchJob", {
        "Master": role("PyTorchJob", ["sleep", "1000"]),
        "Worker": role("PyTorchJob", ["sh", "-c", "echo broken >&2; exit 3"])}), code=1)
    assert lines(done.stderr, "train-worker-0") == ["broken"]
    assert "Failed      True" in done.stderr


@pytest.mark.parametrize("code, ends", [(137, 0), (1, 1)])
def test_exit_code_policy_starts_again_after_a_signal_alone(gradus, code, ends):
    script = f"[ -e again ] && exec echo again; touch again; exit {code}"
    done = run(gradus, job("TFJob", {"Worker": role("TFJob", ["sh", "-c", script], 1, "ExitCode")}),
               code=ends)
    assert lines(done.stdout, "train-worker-0") == ["again"] * (1 - ends)
    assert ("TFJobRestarting" in done.stderr) == (ends == 0)


def test_failing_launcher_fails_after_its_backoff_limit(gradus):
    done = run(gradus, job("MPIJob", {"Launcher": role("MPIJob", ["false"]),
                                      "Worker": role("MPIJob", None)}, V2,
                           runPolicy={"backoffLimit": 0, "cleanPodPolicy": "Running"}), code=1)
    assert "BackoffLimitExceeded" in done.stderr


def test_deadline_ends_the_job(gradus):
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", ["sleep", "1000"])},
                           runPolicy={"activeDeadlineSeconds": 1}), code=1)
    assert "Failed      True" in done.stderr


def test_suspended_job_starts_nothing(gradus):
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", ["echo", "no"])},
                           runPolicy={"suspend": True}), code=75)
    assert done.stdout == "" and "waits suspended" in done.stderr


def wait_for_line(process, text, pipe=None):
    for line in pipe or process.stdout:
        if text in line:
            return
    pytest.fail(f"no line {text}: {process.stderr.read()}")


@pytest.mark.parametrize("kind, api", [("PyTorchJob", V1), ("MPIJob", V2)])
def test_watched_file_suspends_and_resumes(gradus, kind, api):
    """A file that is wrong, or half written, changes nothing."""
    program = ["sh", "-c", "[ -e up ] && exec echo again; echo >up; echo up; exec sleep 1000"]
    roles = {"PyTorchJob": {"Master": program},
             "MPIJob": {"Launcher": program, "Worker": None}}[kind]

    def write(suspend):
        (gradus.folder / "next.json").write_text(json.dumps(job(
            kind, {name: role(kind, command) for name, command in roles.items()}, api,
            runPolicy={"suspend": suspend})))
        os.replace(gradus.folder / "next.json", gradus.folder / "job.json")

    write(True)
    process = gradus.start("run", "--watch", "-f", "job.json")
    wait_for_line(process, f"{kind}Suspended", process.stderr)
    write(False)
    wait_for_line(process, "] up")
    (gradus.folder / "job.json").write_text("{")
    wait_for_line(process, "the jobs go on as they were", process.stderr)
    write(True)
    wait_for_line(process, f"{kind}Suspended", process.stderr)
    wait_until(lambda: "gradus-pod" not in gradus.remains().values(), "the end of its pods")
    write(False)
    out, err = finish(process)
    assert out.count("] again") == 1 and f"{kind}Succeeded" in err
    assert not gradus.remains()


TRAP = ["sh", "-c", "trap 'echo ended; exit 0' TERM; setsid sleep 1000 & echo ready; wait"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_all_pods_in_order(gradus, number):
    asked = job("PyTorchJob", {"Master": role("PyTorchJob", TRAP)})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    process = gradus.start("run", "-f", "job.json")
    wait_for_line(process, "ready")
    process.send_signal(number)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1, err
    assert lines(out, "train-master-0") == ["ended"]
    assert not gradus.remains()


def test_last_output_without_the_end_of_a_line_is_shown(gradus):
    """Nothing comes behind it that would take it along."""
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", ["printf", "hi"])}),
               words=["--containers", "no"])
    assert lines(done.stdout, "train-master-0") == ["hi"]


def test_long_names_are_shown_by_their_ends(gradus):
    """Role and number stand there."""
    name, master = "of-the-team-that-has-names-which-do-not-fit", role("PyTorchJob", ["echo", "a"])
    assert run(gradus, job("PyTorchJob", {"Master": master}, name=name)).stdout == \
        "[..-has-names-which-do-not-fit-master-0] a\n"
    master["template"]["spec"]["containers"].append(
        {"name": "a-second-container", "image": "mine:1", "command": ["echo", "b"]})
    assert sorted(run(gradus, job("PyTorchJob", {"Master": master}, name=name)).stdout
                  .splitlines()) == ["[..do-not-fit-master-0/..cond-container] b",
                                     "[..es-which-do-not-fit-master-0/pytorch] a"]


@pytest.mark.parametrize("size_bytes", [200_000, 370_000])
def test_signal_ends_the_wait_for_a_reader(gradus, size_bytes):
    """Who has the rest: we, or the pipe of a pod that has ended."""
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["sh", "-c", f"yes {'x' * 999} | head -c {size_bytes}"])})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    process = gradus.start("run", "-f", "job.json")
    assert "x" in read_lines(process.stdout, 1)[0]
    wait_until(lambda: not children(process.pid), "its end, and that it is known")
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=TIMEOUT_S) == 1
    assert not gradus.remains() and not list(gradus.folder.glob("gradus-run-*"))


def test_killed_supervisor_leaves_nothing(gradus):
    asked = job("PyTorchJob", {name: role("PyTorchJob", TRAP) for name in ("Master", "Worker")})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    process = gradus.start("run", "-f", "job.json")
    wait_for_line(process, "ready")
    wait_for_line(process, "ready")
    process.kill()
    gradus.wait_for_nothing()


def test_killed_pod_process_fails_its_pod_and_leaves_nothing(gradus):
    asked = job("PyTorchJob", {"Master": role("PyTorchJob", TRAP)})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    process = gradus.start("run", "-f", "job.json")
    wait_for_line(process, "ready")
    os.kill(next(pid for pid, name in gradus.remains().items() if name == "gradus-pod"),
            signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1 and "Failed      True" in err
    assert not gradus.remains()


def test_killed_pod_process_starts_again_where_nothing_is_left(gradus):
    script = """if [ -e again ]; then kill -0 $(cat again) 2>/dev/null || echo clean; exit 0; fi
setsid sleep 1000 & echo $! >again; echo ready; wait"""
    asked = job("TFJob", {"Worker": role("TFJob", ["sh", "-c", script], 1, "ExitCode")})
    (gradus.folder / "job.json").write_text(json.dumps(asked))
    process = gradus.start("run", "-f", "job.json")
    wait_for_line(process, "ready")
    os.kill(next(pid for pid, name in gradus.remains().items() if name == "gradus-pod"),
            signal.SIGKILL)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert lines(out, "train-worker-0") == ["clean"]
    assert not gradus.remains()


def test_generate_name_names_that_are_the_same_each_time(gradus):
    asked = [job("PyTorchJob", {"Master": role("PyTorchJob", ["hostname"])}) for _ in range(2)]
    for one in asked:
        one["metadata"] = {"generateName": "nightly-"}
    names = [re.findall(r"^\[(nightly-[a-z0-9]{5})-master-0\] \1-master-0$",
                        run(gradus, *asked).stdout, re.M) for _ in range(2)]
    assert len({*names[0]}) == 2 and sorted(names[0]) == sorted(names[1])
    printed = gradus("operator", "--dry-run", "-f", "job.yaml")
    assert printed.returncode == 0 and {*re.findall(r"name: (nightly-.{5})-master-0",
                                                    printed.stdout)} == {*names[0]}


# ---- What is wrong -------------------------------------------------------------------------------
@pytest.mark.parametrize("change, sentence", [
    (lambda j: j["spec"].update(runPolicie={}), "job.yaml:2: spec.runPolicie"),
    (lambda j: j["spec"]["pytorchReplicaSpecs"].update(Foo={}),
     "job.yaml:2: Found validation errors: [spec.pytorchReplicaSpecs[Foo]: Unsupported value"),
    (lambda j: j.update(kind="Deployment"), 'job.yaml:2: kind "Deployment"'),
    (lambda j: j["metadata"].pop("name"), "job.yaml:2: metadata.name is missing")])
def test_wrong_manifest_ends_with_a_sentence_and_its_line(gradus, change, sentence):
    asked = job("PyTorchJob", {"Master": role("PyTorchJob", ["echo", "no"])})
    change(asked)
    (gradus.folder / "job.yaml").write_text("# a comment\n" + json.dumps(asked))
    done = gradus("run", "-f", "job.yaml")
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert sentence in done.stderr


@pytest.mark.parametrize("spec, sentence", [
    ({"nprocPerNode": "0"}, "spec.nprocPerNode is 0"),
    ({"nprocPerNode": "-2"}, "spec.nprocPerNode is -2"),
    ({"elasticPolicy": {"nProcPerNode": 0}}, "spec.elasticPolicy.nProcPerNode is 0")])
def test_pytorch_job_without_ranks_ends_with_a_sentence(gradus, spec, sentence):
    asked = job("PyTorchJob", {"Worker": role("PyTorchJob", ["echo", "no"])}, **spec)
    done = run(gradus, asked, code=2)
    assert sentence in done.stderr and done.stdout == ""


def test_two_versions_of_a_kind_end_with_a_sentence(gradus):
    roles = {"Launcher": role("MPIJob", ["true"]), "Worker": role("MPIJob", None)}
    done = run(gradus, job("MPIJob", roles, V1), job("MPIJob", roles, V2), code=2)
    assert "MPIJobs of one apiVersion" in done.stderr


@pytest.mark.parametrize("more, sentence", [
    ({"args": ["x" * 131072]}, "a word of the command of container pytorch has 131072 bytes"),
    ({"args": ["x" * 100000] * 63}, "command and environment of container pytorch have 63"),
    ({"env": [{"name": "LONG", "value": "x" * 131072}]}, "variable LONG of container pytorch")])
def test_command_that_the_system_would_not_start_is_refused(gradus, more, sentence):
    asked = job("PyTorchJob", {"Master": role("PyTorchJob", ["true"], container=more)})
    assert sentence in run(gradus, asked, code=2).stderr


def test_command_of_many_words_reaches_another_pod_whole_or_not_at_all(gradus):
    script = """
kubectl exec train-master-0 -- sh -c 'echo $# words' $(seq 5000)
long=$(yes | head -c 120000 | tr -d '\\n')
kubectl exec train-master-0 -- echo $long $long $long
echo code $?"""
    done = run(gradus, job("PyTorchJob", {"Master": role("PyTorchJob", ["sh", "-c", script])}))
    assert lines(done.stdout, "train-master-0") == ["4999 words", "code 2"]
    assert "the command for pod train-master-0 has 18" in done.stderr


def test_missing_config_map_ends_with_a_sentence(gradus):
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["echo", "no"], container={"envFrom": [{"configMapRef": {"name": "gone"}}]})})
    done = run(gradus, asked, code=2)
    assert 'pod train-master-0 needs ConfigMap "gone"' in done.stderr


@pytest.mark.parametrize("value", [1, 2.5, True, ["a"], {"a": "b"}])
def test_variable_that_is_no_text_is_refused(gradus, value):
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["env"], container={"env": [{"name": "COUNT", "value": value}]})})
    done = run(gradus, asked, code=2)
    assert "the value of variable COUNT must be a text" in done.stderr and done.stdout == ""


def test_variable_that_is_null_is_empty(gradus):
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["sh", "-c", "echo =${COUNT-unset}="],
        container={"env": [{"name": "COUNT", "value": None}]})})
    assert lines(run(gradus, asked).stdout, "train-master-0") == ["=="]


@pytest.mark.parametrize("kind, part, value", [
    ("ConfigMap", "data", 1), ("ConfigMap", "data", None), ("ConfigMap", "binaryData", 1),
    ("Secret", "stringData", True), ("Secret", "data", 1)])
def test_key_that_is_no_text_is_refused(gradus, kind, part, value):
    asked = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "words"},
             part: {"EPOCHS": value}}
    done = run(gradus, asked, say_word("a"), code=2)
    assert (f'job.yaml:1: the value of key "EPOCHS" in {part} must be a text; write numbers'
            in done.stderr) and done.stdout == ""


@pytest.mark.parametrize("optional", [False, True])
def test_missing_key_of_a_volume_is_refused_unless_optional(gradus, optional):
    items = [{"key": key, "path": key.lower()} for key in ("WORD", "GONE")]
    asked = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["ls", "words"], volumes=[{"name": "words", "configMap": {
            "name": "words", "items": items, "optional": optional}}], container={
                "volumeMounts": [{"name": "words", "mountPath": str(gradus.folder / "words")}]})})
    done = run(gradus, WORDS, asked, code=0 if optional else 2)
    if optional:
        assert lines(done.stdout, "train-master-0") == ["word"]
    else:
        assert 'pod train-master-0 needs key "GONE" of ConfigMap "words"' in done.stderr


def test_dry_run_is_told_where_it_is(gradus):
    done = gradus("run", "-f", "job.yaml", "--dry-run")
    assert done.returncode == 2 and "gradus operator --dry-run -f job.yaml" in done.stderr


# ---- What manifests are made of ----------------------------------------------------------------
def say_word(name, **more):
    """A job that says the word of a ConfigMap."""
    return job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["sh", "-c", "echo $WORD"],
        container={"envFrom": [{"configMapRef": {"name": "words"}}]})}, name=name, **more)


WORDS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "words"},
         "data": {"WORD": "here"}}


def of_cluster(asked, owner=None, **status):
    """The object as `kubectl get -o yaml` writes it."""
    metadata = {**asked["metadata"], "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 2,
                "resourceVersion": "4711", "uid": f"uid-of-{asked['metadata']['name']}",
                "managedFields": [{"manager": "kubectl", "operation": "Update"}]}
    if owner:
        metadata["ownerReferences"] = [{"apiVersion": V1, "kind": "PyTorchJob", "name": owner,
                                        "uid": f"uid-of-{owner}", "controller": True}]
    return {**asked, "metadata": metadata, **({"status": status} if status else {})}


def test_list_of_a_cluster_runs_its_jobs_as_new_ones(gradus):
    """What the cluster has made for them is made anew: a Service, and a pod that has ended."""
    ended = {"conditions": [{"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded",
                             "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
             "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:00Z"}
    made = {"metadata": {"name": "one-master-0"}, "spec": {}}
    jobs = {"apiVersion": V1, "kind": "PyTorchJobList", "metadata": {"resourceVersion": "9"},
            "items": [of_cluster(say_word("two"), owner="of-more")]}
    done = run(gradus, {
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": [
            of_cluster(say_word("one"), **ended), jobs, of_cluster(WORDS),
            of_cluster({"apiVersion": "v1", "kind": "Service", **made}, owner="one"),
            of_cluster({"apiVersion": "v1", "kind": "Pod", **made}, owner="one", phase="Failed")]})
    for name in "one", "two":
        assert lines(done.stdout, f"{name}-master-0") == ["here"]
        assert f"pytorchjob/{name} " in done.stderr


def test_list_in_yaml_tells_the_line_of_an_item(gradus):
    (gradus.folder / "list.yaml").write_text("""apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: words}
-
  apiVersion: apps/v1
  kind: Deployment
  metadata: {name: other}
""")
    done = gradus("run", "-f", "list.yaml")
    assert done.returncode == 2 and 'list.yaml:8: kind "Deployment"' in done.stderr, done.stderr


@pytest.mark.parametrize("code", [0, 1])
def test_several_files_and_json_documents_run_together(gradus, code):
    """The two jobs meet, so neither waits for the end of the other. A failed one fails the run."""
    os.mkfifo(gradus.folder / "meeting")
    one = job("PyTorchJob", {"Master": role("PyTorchJob", ["sh", "-c", "echo met >meeting"])},
              name="one")
    two = job("PyTorchJob", {"Master": role(
        "PyTorchJob", ["sh", "-c", f"cat meeting; exit {code}"])}, name="two")
    (gradus.folder / "jobs.json").write_text(json.dumps(say_word("three")) + json.dumps(two))
    (gradus.folder / "more.yaml").write_text(json.dumps(WORDS) + "\n---\n" + json.dumps(one))
    done = gradus("run", "-f", "jobs.json", "-f", "more.yaml")
    assert done.returncode == code, done.stderr
    assert lines(done.stdout, "two-master-0") == ["met"]
    assert lines(done.stdout, "three-master-0") == ["here"]


def test_several_files_are_not_watched(gradus):
    done = gradus("run", "--watch", "-f", "a.yaml", "-f", "b.yaml")
    assert done.returncode == 2 and "--watch is for one file" in done.stderr


# ---- Recordings ----------------------------------------------------------------------------------
def recordings():
    kube = pathlib.Path(os.environ["GRADUS_SOURCE_DIR"]).parent / "shared/kube/recordings.tar.xz"
    return kube if kube.exists() else None


@pytest.mark.long
@pytest.mark.skipif(recordings() is None, reason="there are no recordings")
def test_recorded_examples_are_accepted_and_start(gradus):
    """Their programs are not here: each pod is told that it cannot start, or fails as they do."""
    subprocess.run(["tar", "-xJf", recordings(), "-C", gradus.folder, "--wildcards",
                    "*/*example*/0-manifest.yaml"], check=True)
    manifests = sorted(gradus.folder.glob("recordings/*/*/0-manifest.yaml"))
    assert len(manifests) > 10
    for manifest in manifests:
        process = gradus.start("run", "-f", manifest)
        wait_for_event(process, manifest)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in (0, 1), (manifest, err)
        assert not gradus.remains()


def wait_for_event(process, manifest):
    seen = ""
    for line in process.stderr:
        seen += line
        if "are processes of this host" in line:
            return
    pytest.fail(f"{manifest}: no pod starts: {seen}")

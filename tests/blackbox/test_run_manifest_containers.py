# SPDX-License-Identifier: Apache-2.0
"""gradus run -f: jobs of Kubernetes in containers of podman, or of docker, whose client podman
stands for."""
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tarfile

import pytest

from conftest import SOURCE, TIMEOUT_S, finish, read_lines, sha256_of, wait_until
from test_operator_node import fill
from test_run_manifest import V1, V2, lines, run, write
from test_run_manifest import job as job_of
from test_run_manifest import role as role_of

EPOCHS, EVAL_EVERY = 5, 5
IMAGE = "local.test/gradus-shell:1"
SECRET = "said-to-nobody"
# What an engine may not do inside of another sandbox: other limits than those of the caller, and
# crun's view of control groups.
CONF = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
"""

# What the first process of a container does not ask for, it does not get.
ENDLESS = "trap 'exit 0' TERM; echo ready; while :; do sleep 0.1; done"


def podman(environment, *words, **more):
    return subprocess.run(["podman", *words], env={**os.environ, **environment}, text=True,
                          capture_output=True, timeout=TIMEOUT_S, **more)


def names(environment):
    """Those of all containers, also of those that have ended."""
    return podman(environment, "ps", "--all", "--format", "{{.Names}}").stdout.split()


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """The environment in which podman has the image, and runs it."""
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    folder = tmp_path_factory.mktemp("podman")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n')
    (folder / "root").mkdir()
    fill(folder / "root", {f"/usr/bin/{name}" for name in ("sh", "cat", "sleep", "id", "python3")})
    with tarfile.open(folder / "image.tar", "w") as image:
        image.add(folder / "root", arcname=".")
    found = {"CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
             "CONTAINERS_CONF": str(folder / "containers.conf")}
    tries = ["", CONF, CONF + '[engine]\nruntime = "runc"\n']
    for text in tries:
        (folder / "containers.conf").write_text(text)
        assert podman(found, "import", folder / "image.tar", IMAGE).returncode == 0
        done = podman(found, "run", "--rm", "--network", "host", IMAGE, "sh", "-c", "exit 0")
        if done.returncode == 0:
            break
    else:
        pytest.skip(f"podman runs no containers here: {done.stderr.strip()[:300]}")
    yield found
    podman(found, "system", "reset", "--force")


@pytest.fixture
def contained(gradus, settings):
    gradus.settings.update(settings)
    yield gradus
    assert not names(settings)


def role(kind, script, replicas=1, policy="Never", container=None, **more):
    return role_of(kind, ["sh", "-c", script] if script else None, replicas, policy,
                   container={"image": IMAGE, **(container or {})}, **more)


def commands():
    """The words of all processes of this host."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            pass
    return b"\n".join(found)


def python_volumes():
    """Python's own modules, which the image does not have."""
    where = subprocess.run(["/usr/bin/python3", "-c", "import os; print(os.path.dirname(os."
                            "__file__))"], capture_output=True, text=True, check=True)
    folder = where.stdout.strip()
    return {"volumes": [{"name": "python", "hostPath": {"path": folder}}],
            "container": {"volumeMounts": [{"name": "python", "mountPath": folder,
                                            "readOnly": True}]}}


# ---- What a container gets -----------------------------------------------------------------------
def test_container_has_its_image_variables_volumes_and_user(contained):
    script = """
id -u; id -g; echo "$RANK of $WORLD_SIZE, $HOST_NAME at $MASTER_ADDR"; pwd
cat /config/text /secret/key; echo "$KEY"; test -e /usr/bin/git || echo "an image"
read line < /etc/hosts; echo ${GRADUS_TEST_MARK:-"nothing inherited"}
echo here > /empty/file && cat /empty/file; > /config/new || echo "read only"
echo kept > /claim/file
read go < /claim/go
exit 0
"""
    volumes = [{"name": "config", "configMap": {"name": "mine"}},
               {"name": "secret", "secret": {"secretName": "mine"}},
               {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
               {"name": "empty", "emptyDir": {}}]
    mounts = [{"name": one["name"], "mountPath": f"/{one['name']}", "readOnly": i == 0}
              for i, one in enumerate(volumes)]
    env = [{"name": "HOST_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
           {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "mine", "key": "key"}}},
           {"name": "HOME", "value": "/tmp"}]
    claim = contained.folder / "claim"
    claim.mkdir(mode=0o777)
    claim.chmod(0o777)
    os.mkfifo(claim / "go")
    (claim / "go").chmod(0o666)
    name = write(
        contained,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"},
         "data": {"text": "from a ConfigMap\n"}},
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine"},
         "data": {"key": base64.b64encode(f"{SECRET}\n".encode()).decode()}},
        job_of("PyTorchJob", {"Master": role(
            "PyTorchJob", script, volumes=volumes, securityContext={"runAsGroup": 1234},
            container={"volumeMounts": mounts, "env": env, "workingDir": "/tmp",
                       "securityContext": {"runAsUser": 4321}})}))
    started = contained.start("run", "-f", name)
    wait_until((claim / "file").exists, "the container")
    with open(claim / "go", "w") as go:  # it has come to its last line
        words = commands()
        go.write("\n")
    out, said = finish(started)
    assert started.returncode == 0, out + said
    assert lines(out, "train-master-0") == [
        "4321", "1234", "0 of 1, train-master-0 at train-master-0", "/tmp", "from a ConfigMap",
        SECRET, SECRET, "", "an image", "nothing inherited", "here", "read only"]
    assert b"podman\0run\0" in words and SECRET.encode() not in words
    assert SECRET not in said and "are run by podman" in said
    assert (claim / "file").read_text() == "kept\n"


def test_program_of_the_image_runs_where_no_command_stands(contained, settings):
    made = podman(settings, "import", "--change", 'ENTRYPOINT ["/usr/bin/sh", "-c"]', "--change",
                  'CMD ["echo of the image"]', "-", "local.test/gradus-entry:1",
                  stdin=open(pathlib.Path(settings["CONTAINERS_CONF"]).parent / "image.tar"))
    assert made.returncode == 0, made.stderr
    image = {"image": "local.test/gradus-entry:1"}
    done = run(contained, job_of("PyTorchJob", {
        "Master": role("PyTorchJob", None, container=image),
        "Worker": role("PyTorchJob", None, container={**image, "args": ["echo mine"]})}))
    assert lines(done.stdout, "train-master-0") == ["of the image"]
    # The job is over with its master.
    assert lines(done.stdout, "train-worker-0") in (["mine"], [])


def test_servers_of_one_port_are_at_the_addresses_of_their_pods(contained):
    """Also those that listen at all addresses: the network is that of the host."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    program = """
import json, os, socket
config = json.loads(os.environ["TF_CONFIG"])
index, hosts = config["task"]["index"], config["cluster"]["worker"]
server = socket.create_server(("", 2222))
peer, port = hosts[1 - index].rsplit(":", 1)
while True:
    try:
        out = socket.create_connection((peer, int(port)))
        break
    except OSError:
        pass
out.sendall(b"%d" % index)
got, _ = server.accept()
print("worker", index, "heard worker", got.recv(1).decode(), flush=True)
out.sendall(b"x")
got.recv(1)  # until the other has heard as well
"""
    more = python_volumes()
    more["container"]["command"] = ["python3", "-c", program]
    done = run(contained, job_of("TFJob", {"Worker": role("TFJob", None, 2, **more)}))
    assert sorted(done.stdout.splitlines()) == [
        f"[train-worker-{i}] worker {i} heard worker {1 - i}" for i in range(2)]


# ---- Commands in other pods ----------------------------------------------------------------------
@pytest.mark.parametrize("worker", (None, "/usr/sbin/sshd -De"))
def test_mpi_launcher_reaches_workers_by_ssh(contained, worker):
    launcher = """
while read host rest; do
    echo "by $host" | /usr/bin/ssh -o StrictHostKeyChecking=no $host '
        read line; cat /proc/sys/kernel/hostname; echo $line; exit 3'
    echo code $?
done < /etc/mpi/hostfile
"""
    done = run(contained, job_of("MPIJob", {"Launcher": role("MPIJob", launcher),
                                         "Worker": role("MPIJob", worker, 2,
                                                        terminationGracePeriodSeconds=1)}, V2,
                              slotsPerWorker=1, sshAuthMountPath="/root/.ssh"))
    said = [line.split("] ", 1)[1] for line in done.stdout.splitlines()]
    assert said == [line for i in range(2)
                    for line in (f"train-worker-{i}", f"by train-worker-{i}.train.default.svc",
                                 "code 3")]


def test_mpi_v1_launcher_reaches_workers_by_kubectl(contained, tmp_path):
    """Also where the engine takes its time: a worker runs when its container does."""
    engine = tmp_path / "podman"
    engine.write_text('#!/bin/sh\ncase "$*" in *"--hostname train-worker-1 "*) sleep 3;; esac\n'
                      f'exec {shutil.which("podman")} "$@"\n')
    engine.chmod(0o755)
    contained.settings["PATH"] = f"{tmp_path}:{os.environ['PATH']}"
    launcher = "/opt/kube/kubectl exec train-worker-1 -- cat /proc/sys/kernel/hostname"
    done = run(contained, job_of("MPIJob", {"Launcher": role("MPIJob", launcher),
                                         "Worker": role("MPIJob", ENDLESS, 2)}, V1))
    assert lines(done.stdout, "train-launcher") == ["train-worker-1"]


# ---- The end -------------------------------------------------------------------------------------
def test_failed_container_is_restarted(contained):
    script = "test -e /claim/once || { echo first; > /claim/once; exit 1; }; echo second"
    done = run(contained, job_of("PyTorchJob", {"Master": role(
        "PyTorchJob", script, policy="OnFailure",
        volumes=[{"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}}],
        container={"volumeMounts": [{"name": "claim", "mountPath": "/claim"}]})}))
    assert lines(done.stdout, "train-master-0") == ["first", "second"]


def test_signal_ends_containers_that_ignore_it(contained):
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    spec = role("PyTorchJob", script)
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = 1
    started = contained.start("run", "-f", write(contained, job_of("PyTorchJob", {"Master": spec})))
    assert read_lines(started.stdout, 1) == ["[train-master-0] ready"]
    started.send_signal(signal.SIGTERM)
    out, said = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1, out + said
    assert not contained.remains()


def test_nothing_runs_on_when_gradus_is_killed(contained, settings):
    started = contained.start("run", "-f", write(contained, job_of("PyTorchJob", {
        "Master": role("PyTorchJob", ENDLESS)})))
    assert read_lines(started.stdout, 1) == ["[train-master-0] ready"]
    started.kill()
    wait_until(lambda: not contained.remains(), "the end of all that was started")
    wait_until(lambda: not names(settings), "the container's removal")


def test_container_ends_with_the_process_that_stands_for_its_pod(contained):
    started = contained.start("run", "-f", write(contained, job_of("PyTorchJob", {
        "Master": role("PyTorchJob", ENDLESS)})))
    assert read_lines(started.stdout, 1) == ["[train-master-0] ready"]
    pods = [pid for pid, name in contained.remains().items() if name == "gradus-pod"]
    assert len(pods) == 1
    os.kill(pods[0], signal.SIGKILL)
    out, said = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1 and "PyTorchJobFailed" in said, out + said
    assert not contained.remains()


def test_host_path_that_is_not_there_is_not_made(contained):
    nowhere = contained.folder / "nowhere"
    done = run(contained, job_of("PyTorchJob", {"Master": role(
        "PyTorchJob", "exit 0", volumes=[{"name": "host", "hostPath": {"path": str(nowhere)}}],
        container={"volumeMounts": [{"name": "host", "mountPath": "/host"}]})}), code=1)
    assert str(nowhere) in done.stderr and not nowhere.exists()


# ---- Choice --------------------------------------------------------------------------------------
def test_engine_is_chosen_by_the_images_that_it_has(contained, tmp_path):
    master = role("PyTorchJob", "test -e /usr/bin/git && echo host || echo image")
    done = run(contained, job_of("PyTorchJob", {"Master": master}), words=["--containers", "no"])
    assert "processes of this host" in done.stderr
    other = {**master, "template": {"spec": {"containers": [
        {**master["template"]["spec"]["containers"][0], "image": "local.test/none:1"}]}}}
    done = run(contained, job_of("PyTorchJob", {"Master": other}))
    assert "info: podman does not have the image local.test/none:1; --containers podman pulls it " \
           "and runs the job in it" in done.stderr
    assert "processes of this host" in done.stderr
    done = run(contained, job_of("PyTorchJob", {"Master": other}), code=1,
               words=["--containers", "podman"])
    assert "local.test/none:1" in done.stderr and "PyTorchJobFailed" in done.stderr
    for word, sentence in (("banana", "it is auto, no, podman or docker"),
                           ("docker", "docker is not installed here")):
        if not shutil.which(word):
            done = run(contained, job_of("PyTorchJob", {"Master": master}), code=2,
                       words=["--containers", word])
            assert sentence in done.stderr
    (tmp_path / "docker").write_text('#!/bin/sh\nexec podman "$@"\n')
    (tmp_path / "docker").chmod(0o755)
    done = run(contained, job_of("PyTorchJob", {"Master": master}), words=["--containers=docker"],
               env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert "are run by docker" in done.stderr and lines(done.stdout, "train-master-0") == ["image"]


def test_job_of_gradus_has_the_bits_of_processes(contained, job, undisturbed):
    claim = contained.folder / "claim"
    claim.mkdir()
    shutil.copy(SOURCE / "examples/digits/digits.csv.gz", claim)
    settings = json.loads(contained.document("-np", 1, job).read_text())["job"]
    del settings["output"], settings["checkpoint"]  # its folder is in the output
    settings["data"]["file"] = "/gradus/output/digits.csv.gz"
    done = run(contained, {
        "apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": "digits"},
        "spec": {"workers": {"replicas": 2, "image": IMAGE}, "job": settings,
                 "checkpointVolume": {"persistentVolumeClaim": {"claimName": "claim"}}}})
    assert "are run by podman" in done.stderr and sha256_of(claim) == undisturbed

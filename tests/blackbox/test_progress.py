# SPDX-License-Identifier: Apache-2.0
"""How far a GradusJob has come: the page of a worker, and what the operator makes of it. The tests
play the kubelet, with real workers or with servers that lie; the API server is their own."""
import base64
import contextlib
import http.client
import json
import random
import re
import signal
import socket
import threading

import pytest

from conftest import SOURCE, TIMEOUT_S, wait_until, write_digits
from kube_fixtures import api, certificates, control_plane  # noqa: F401 (fixtures)
from kube_operator import PODS, Cluster, Operator, holds

GRADUSJOBS, SECRETS = "gradus.dev/v1/gradusjobs", "/v1/secrets"
PORT = 29502
OFTEN = ("--enable-scheme", "gradusjob", "--progress-interval", "100ms")


@pytest.fixture
def network():
    """The begin of addresses of this host that nobody else takes: a pod has one of its own."""
    return f"127.{random.randrange(1, 255)}.{random.randrange(256)}."


@pytest.fixture
def digits(gradus, tmp_path):
    """What spec.job says; it does not end before a test is through."""
    path = write_digits(tmp_path, 100000)
    settings = json.loads(gradus.document("-np", 1, path).read_text())["job"]
    return {key: value for key, value in settings.items() if key not in ("output", "checkpoint")}


@pytest.fixture
def slow(tmp_path):
    return f"slow:rank=0,by=20ms,again,until={tmp_path}/over"


def read_page(address, path="/progress/u1"):
    """(code, text); None: nobody listens."""
    connection = http.client.HTTPConnection(address, PORT, timeout=TIMEOUT_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
        except ConnectionRefusedError:
            return None
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


# ---- The page of a worker -----------------------------------------------------------------------
def start_alone(gradus, digits, slow, tmp_path, page, **more):
    document = {"gradus_job": 1, "path": "job.yaml",
                "job": {**digits, "output": str(tmp_path / "o")},
                "run": {"workers": 1, "all_stop": True, "chaos": slow}}
    return gradus.start("worker", env={"GRADUS_JOB": json.dumps(document), "OMP_NUM_THREADS": "1",
                                       "GRADUS_PROGRESS_PAGE": page, **more})


def test_worker_shows_how_far_it_has_come(gradus, digits, slow, tmp_path, network):
    address = network + "1"
    start_alone(gradus, digits, slow, tmp_path, f"{address}:{PORT}/progress/u1")
    wait_until(lambda: (read_page(address) or (0,))[0] == 200, "a first step")
    first = json.loads(read_page(address)[1])
    assert (first["rank"], first["workers"], first["steps"]) == (0, 1, 2200000)
    assert first["epochs"] == 100000 and 0 < first["loss"] < 100 and first["samples_per_s"] > 0
    wait_until(lambda: json.loads(read_page(address)[1])["step"] > first["step"] + 22, "an epoch")
    later = json.loads(read_page(address)[1])
    assert later["epoch"] == (later["step"] + 21) // 22
    for path in ("/progress", "/progress/u", "/progress/u11", "/progress/u1/", "/"):
        assert read_page(address, path)[0] == 404


def test_worker_that_is_asked_badly_trains_on(gradus, digits, slow, tmp_path, network):
    """Nobody who reads the page holds up a step, or ends the worker."""
    address = network + "1"
    worker = start_alone(gradus, digits, slow, tmp_path, f"{address}:{PORT}/progress/u1")
    wait_until(lambda: (read_page(address) or (0,))[0] == 200, "a first step")
    with contextlib.ExitStack() as all_open:
        for _ in range(80):  # more than it has places for
            one = all_open.enter_context(socket.create_connection((address, PORT)))
            one.sendall(b"GET /progress/u1 HT")
        assert read_page(address)[0] == 200
    for wrong, code in ((b"A" * 5000, b"431"), (b"GET\0 /\r\n\r\n", b"400"),
                        (b"PUT /progress/u1 HTTP/1.1\r\n\r\n", b"405"), (b"\r\n\r\n", b"400")):
        with socket.create_connection((address, PORT), timeout=TIMEOUT_S) as one:
            one.sendall(wrong)
            assert one.recv(100).startswith(b"HTTP/1.1 " + code)
    before = json.loads(read_page(address)[1])["step"]
    wait_until(lambda: json.loads(read_page(address)[1])["step"] > before, "a step")
    worker.send_signal(signal.SIGTERM)  # it ends as one without a page: after a step
    assert worker.wait(TIMEOUT_S) == 75


def test_worker_whose_page_nobody_can_open_trains(gradus, digits, tmp_path, network):
    with socket.create_server((network + "1", PORT)):
        worker = start_alone(gradus, {**digits, "epochs": 1}, "", tmp_path,
                             f"{network}1:{PORT}/progress/u1")
        said = worker.communicate(timeout=TIMEOUT_S)[1]
    assert worker.returncode == 0, said
    assert re.search(r"nobody sees how far .*: cannot listen at .*: Address already in use", said)
    worker = start_alone(gradus, {**digits, "epochs": 1}, "", tmp_path, network + "1:1")
    said = worker.communicate(timeout=TIMEOUT_S)[1]
    assert worker.returncode == 0 and "does not say which page to show" in said, said


# ---- Jobs of a cluster --------------------------------------------------------------------------
@pytest.fixture
def config(api, tmp_path):
    return api.kubeconfig(tmp_path / "config")


def make_job(name, job, workers=1):
    return {"apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": name},
            "spec": {"workers": {"replicas": workers}, **job}}


def progress_of(api, name):
    return ((api.objects[GRADUSJOBS, "team", name].get("status") or {}).get("progress"))


class Node:
    """Runs pods as processes of this host, each with an address of its own."""

    def __init__(self, gradus, api, network, changed):
        self.gradus, self.api, self.network, self.changed = gradus, api, network, changed
        self.cluster, self.processes = Cluster(api), {}

    def address(self, index):
        return f"{self.network}{index + 1}"

    def value(self, variable):
        if "valueFrom" in variable:
            ref = variable["valueFrom"]["secretKeyRef"]
            data = self.api.get(SECRETS, ref["name"])["data"][ref["key"]]
            return base64.b64decode(data).decode()
        return variable.get("value", "").replace("$$", "$")

    def start(self, name, index):
        container = self.api.get(PODS, name)["spec"]["containers"][0]
        env = {one["name"]: self.value(one) for one in container["env"]}
        env |= {"MASTER_ADDR": self.address(0), "OMP_NUM_THREADS": "1", "GRADUS_HOST": name,
                "GRADUS_PROGRESS_PAGE": self.address(index) + env["GRADUS_PROGRESS_PAGE"],
                "GRADUS_JOB": json.dumps(self.changed(json.loads(env["GRADUS_JOB"])))}
        assert container["command"] == ["gradus", "worker", "--resume"]
        self.processes[name] = self.gradus.start("worker", "--resume", env=env)
        self.cluster.status(PODS, name, phase="Running", podIP=self.address(index))

    def kill(self, name):
        self.processes[name].kill()
        self.processes[name].wait()
        self.cluster.status(PODS, name, phase="Failed", containerStatuses=[
            {"name": "gradus", "state": {"terminated": {"exitCode": 137}}}])


def free_ports():
    """The first of three that nobody has, below those that the kernel gives to others."""
    while True:
        first = random.randrange(20000, 30000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in (first, first + 1, first + 2):
                held.enter_context(socket.create_server(("", port)))
            return first


def test_status_follows_the_training_whichever_worker_dies(api, config, gradus, digits, slow,
                                                           tmp_path, network):
    def changed(document):
        document["job"]["output"] = str(tmp_path / "output")
        document["run"]["chaos"] = slow
        return document
    node, port = Node(gradus, api, network, changed), free_ports()
    template = {"spec": {"containers": [{"name": "gradus", "image": "a", "ports": [
        {"name": "master", "containerPort": port}]}]}}
    job = make_job("digits", {"job": digits}, 4)
    job["spec"]["workers"]["template"] = template
    pods = [f"digits-worker-{index}" for index in range(4)]

    def step():
        return (progress_of(api, "digits") or {"step": -1})["step"]

    def wait_for_straggler(pod):
        """Where others wait for a core, another one may be the latest for an epoch."""
        found = []

        def is_it():
            found[:] = [progress_of(api, "digits") or {}]
            return (found[0].get("straggler") or {}).get("pod") == pod
        api.wait(is_it, f"{pod} to be the straggler", TIMEOUT_S)
        return found[0]

    with Operator(config, *OFTEN) as operator:
        api.put(GRADUSJOBS, job)
        api.wait(lambda: set(node.cluster.pods("digits")) == set(pods), "the pods")
        uid = api.get(GRADUSJOBS, "digits")["metadata"]["uid"]
        api.wait(lambda: (SECRETS, "team", "digits-gradus") in api.objects, "the secret")
        for index, name in enumerate(pods):
            page = {one["name"]: one for one in
                    api.get(PODS, name)["spec"]["containers"][0]["env"]}["GRADUS_PROGRESS_PAGE"]
            assert page["value"] == f":{port + 2}/progress/{uid}"
            node.start(name, index)
        progress = wait_for_straggler(pods[0])
        assert progress["steps"] == 2200000 and progress["epochs"] == 100000
        assert 0 < progress["loss"] < 100 and progress["samplesPerSecond"] > 0
        assert progress["straggler"]["lateMilliseconds"] > 1
        assert progress["straggler"]["rank"] == 0
        for victim in (0, 1):  # the one that is asked, and is late
            before = step()
            node.kill(pods[victim])
            api.wait(lambda: step() > before + 44, f"steps without {pods[victim]}", TIMEOUT_S)
            wait_for_straggler(pods[victim + 1])
        assert operator.metric('gradus_progress_answers_total{result="told"}') > 2
    (tmp_path / "over").touch()


class Liar(threading.Thread):
    """A pod's page that says whatever it likes."""

    def __init__(self, address, say):
        super().__init__(daemon=True)
        self.server, self.say, self.asked = socket.create_server((address, PORT)), say, []
        self.changed = threading.Condition()
        self.start()

    def run(self):
        with contextlib.suppress(OSError):  # closed
            while True:
                connection = self.server.accept()[0]
                threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection):
        with contextlib.closing(connection), contextlib.suppress(OSError):
            request = b""
            while b"\r\n\r\n" not in request and (more := connection.recv(4096)):
                request += more
            with self.changed:
                self.asked.append(request)
                self.changed.notify_all()
                count = len(self.asked)
            self.say(connection, count)

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.asked) >= count, TIMEOUT_S)


def say(text, code="200 OK", head=""):
    data = f"HTTP/1.1 {code}\r\n{head}\r\n{text}".encode()
    return lambda connection, _: connection.sendall(data)


def flood(begin):
    """Until the other side has had enough, or for a gigabyte."""
    def send(connection, _):
        connection.sendall(begin)
        for _ in range(1 << 14):
            connection.sendall(b"1" * (1 << 16))
    return send


def stall(begin):
    def send(connection, _):
        connection.sendall(begin)
        connection.recv(1)  # the end, by the other side
    return send


def count(connection, number):
    say(json.dumps({"step": number}))(connection, number)


HEAD = b"HTTP/1.1 200 OK\r\n"
LIES = {
    "garbage": say("\x00\x07{{{"), "list": say("[]"), "no-step": say('{"loss": 1}'),
    "not-a-number": say('{"step": 1, "loss": NaN}'), "huge": say('{"step": 1' + "0" * 300 + "}"),
    "error": say('{"step": 1}', "500 Oh"), "no-http": lambda c, _: c.sendall(b'{"step": 1}'),
    "redirect": say("", "302 Found", "Location: http://{other}/progress\r\n"),
    "long": say('{"step": 1, "a": "' + "a" * 5000 + '"}'),
    "flood": flood(HEAD + b'\r\n{"step": 1'), "endless-head": flood(HEAD + b"A: "),
    "silent": stall(b""), "half": stall(HEAD + b'\r\n{"step": 1}'), "closed": lambda *_: None,
}


def test_pods_that_lie_change_nothing_but_their_figures(api, config, network):
    cluster, liars = Cluster(api), {}
    other = Liar(network + "254", count)
    for index, name in enumerate(LIES, 1):
        lie = LIES[name]
        if name == "redirect":
            lie = say("", "302 Found", f"Location: http://{network}254:{PORT}/progress\r\n")
        liars[name] = Liar(f"{network}{index}", lie)
    good = Liar(network + "200", count)
    wrong = Liar(network + "201", say(json.dumps(
        {"step": 7, "steps": "all", "loss": -1e300, "conditions": [], "phase": "Succeeded",
         "late_rank": 3, "late_us": 1e9, "late_host": "\x1b[31m"})))
    job = {"job": {"model": [{"linear": 10}], "data": {"file": "a.csv", "classes": 10}, "epochs": 1,
                   "global_batch": 64, "optimizer": {"kind": "sgd", "learning_rate": 0.1}}}
    addresses = {name: f"{network}{index}" for index, name in enumerate(LIES, 1)}
    addresses |= {"good": network + "200", "wrong": network + "201"}
    with Operator(config, *OFTEN) as operator:
        for name in addresses:
            api.put(GRADUSJOBS, make_job(name, job))
        for name, address in addresses.items():
            api.wait(lambda: cluster.pods(name), f"a pod of {name}")
            cluster.status(PODS, f"{name}-worker-0", phase="Running", podIP=address)
        for one in liars.values():
            one.wait_for(2)
        good.wait_for(4)
        api.wait(lambda: (progress_of(api, "good") or {"step": 0})["step"] >= 3, "progress")
        api.wait(lambda: progress_of(api, "wrong"), "figures")
        found = {name: progress_of(api, name) for name in LIES}
        assert not any(found.values()), found
        told = progress_of(api, "wrong")
        assert told.pop("lastUpdateTime") and told == {
            "step": 7, "straggler": {"rank": 3, "lateMilliseconds": 1000000}}
        for name in addresses:
            api.wait(lambda: holds(api.objects[GRADUSJOBS, "team", name], "Running"), "it to run")
            conditions = api.get(GRADUSJOBS, name)["status"]["conditions"]
            assert [one["type"] for one in conditions] == ["Created", "Running"]
        assert operator.page("/healthz")[0] == 200
    assert not other.asked
    uid = api.get(GRADUSJOBS, "good")["metadata"]["uid"]
    assert good.asked[0].startswith(f"GET /progress/{uid} HTTP/1.1\r\n".encode())
    for one in [other, good, wrong, *liars.values()]:
        one.server.close()


def test_status_is_written_only_when_it_changes(api, config, network):
    page = Liar(network + "1", say('{"step": 3, "loss": 0.5}'))
    cluster = Cluster(api)
    with Operator(config, *OFTEN):
        api.put(GRADUSJOBS, make_job("same", {"jobFrom": {"configMapKeyRef": {"name": "a"}}}))
        api.wait(lambda: cluster.pods("same"), "a pod")
        cluster.status(PODS, "same-worker-0", phase="Running", podIP=network + "1")
        api.wait(lambda: progress_of(api, "same"), "progress")
        version = api.get(GRADUSJOBS, "same")["metadata"]["resourceVersion"]
        page.wait_for(len(page.asked) + 5)
        assert api.get(GRADUSJOBS, "same")["metadata"]["resourceVersion"] == version
        cluster.status(PODS, "same-worker-0", phase="Succeeded")
        api.wait(lambda: holds(api.objects[GRADUSJOBS, "team", "same"], "Succeeded"), "its end")
        assert progress_of(api, "same")["step"] == 3
    page.server.close()


def test_command_and_operator_that_does_not_ask_have_no_progress(api, config, network):
    page = Liar(network + "1", count)
    cluster = Cluster(api)

    def run(name, spec):
        api.put(GRADUSJOBS, make_job(name, spec))
        api.wait(lambda: cluster.pods(name), "a pod")
        cluster.status(PODS, f"{name}-worker-0", phase="Running", podIP=network + "1")
        api.wait(lambda: holds(api.objects[GRADUSJOBS, "team", name], "Running"), "it to run")
        env = api.get(PODS, f"{name}-worker-0")["spec"]["containers"][0]["env"]
        assert "GRADUS_PROGRESS_PAGE" not in [one["name"] for one in env]
        assert not progress_of(api, name)

    template = {"spec": {"containers": [{"name": "gradus", "image": "a"}]}}
    with Operator(config, *OFTEN):
        run("mine", {"command": ["a"], "workers": {"replicas": 1, "template": template}})
    with Operator(config, "--enable-scheme", "gradusjob", "--progress-interval", "0"):
        run("native", {"jobFrom": {"configMapKeyRef": {"name": "a"}}})
    assert not page.asked
    page.server.close()


@pytest.mark.long
def test_kubectl_shows_what_the_schema_keeps(tmp_path, network):
    """On a real control plane, with the definition of deploy/base."""
    page = Liar(network + "1", say(json.dumps(
        {"step": 120, "steps": 500, "epoch": 3, "epochs": 10, "loss": 0.123456789,
         "samples_per_s": 12345.678, "late_rank": 2, "late_us": 1234,
         "late_host": "digits-worker-2"})))
    status = {"status": {"phase": "Running", "podIP": network + "1",
                         "podIPs": [{"ip": network + "1"}]}}
    with control_plane(tmp_path) as cluster:
        cluster.kubectl("apply", "--server-side", "-f", SOURCE / "deploy/base/gradusjobs.yaml")
        cluster.kubectl("wait", "--for=condition=Established", "crd/gradusjobs.gradus.dev")
        with Operator(cluster.kubeconfig, *OFTEN):
            cluster.apply(make_job("digits", {"jobFrom": {"configMapKeyRef": {"name": "a"}}}),
                          "-n", "team", "create")
            wait_until(lambda: cluster.get("-n", "team", "pods")["items"], "a pod")
            cluster.kubectl("-n", "team", "patch", "pod", "digits-worker-0",
                            "--subresource=status", "--type=merge", "-p", json.dumps(status))
            wait_until(lambda: "progress" in cluster.get("-n", "team", "gradusjob", "digits")
                       .get("status", {}), "progress")
            told = cluster.get("-n", "team", "gradusjob", "digits")
            page.wait_for(len(page.asked) + 3)
            again = cluster.get("-n", "team", "gradusjob", "digits")
            assert told["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
            assert told["status"]["progress"].pop("lastUpdateTime")
            assert told["status"]["progress"] == {
                "step": 120, "steps": 500, "epoch": 3, "epochs": 10, "loss": 0.123457,
                "samplesPerSecond": 12350,
                "straggler": {"rank": 2, "pod": "digits-worker-2", "lateMilliseconds": 1.23}}
            shown = cluster.kubectl("-n", "team", "get", "gradusjob", "-o", "wide")
            head, line = shown.splitlines()
            assert re.sub(r" {2,}", "|", head).startswith(
                "NAME|STATE|WORKERS|RUNNING|RESTARTS|STEP|STEPS|EPOCH|LOSS|SAMPLES/S|STRAGGLER|")
            assert line.split()[1:-1] == ["Running", "1", "1", "120", "500", "3", "0.123457",
                                          "12350", "digits-worker-2", "1.23"]
    page.server.close()

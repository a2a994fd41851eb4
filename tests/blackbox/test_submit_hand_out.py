# SPDX-License-Identifier: Apache-2.0
"""`gradus submit` with a program that no ConfigMap carries: each pod gets it when it runs, by a
command in the container that waits for it."""
import os
import re
import signal
import subprocess

import pytest

import kube_api
from conftest import TIMEOUT_S
from kube_fixtures import certificates  # noqa: F401 (a fixture)
from kube_pods import INDEX, JOBS, PODS, STATUS, STDERR
from submit_fixtures import api, cluster, code  # noqa: F401 (fixtures)

EXEC = re.compile(r"^GET \S+/pods/(?P<name>[^/]+)/exec\?")


def start(cluster, api, *words, workers=2):
    """A job that waits for its program, with pods that do not run yet."""
    process = cluster.start("submit", "--name", "demo", "--image", "img", "--workers", workers,
                            "--code", "code", *words, "--", "python", "code/train.py")
    api.wait(lambda: (JOBS, "team", "demo") in api.objects, "the job")
    for index in range(workers):
        api.put_pod(f"demo-{index}", api.get(JOBS, "demo"), {INDEX: str(index)})
    return process


def finish(process, code):
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code, out + err
    return out, err


def served(api):
    return [found["name"] for line, *_ in api.requests if (found := EXEC.match(line))]


def taken_back(api, err, *words):
    for word in words:
        assert word in err, err
    assert err.startswith("gradus: ") and err.count("\n") == 1, err
    assert not [key for key in api.objects if key[0] != PODS], "all of it is taken back"


def unpack(api, name, folder, code=0):
    """Does what the container of the pod does that waits; it ends with `code`."""
    container = api.get(PODS, name)["spec"]["initContainers"][0]
    (folder / name).mkdir()
    script = container["command"][2].replace("/gradus/code", str(api.pod_folder / name)).replace(
        "/gradus/work", str(folder / name))
    done = subprocess.run(["/bin/sh", "-c", script], timeout=TIMEOUT_S)
    assert min(done.returncode, 1) == code
    return folder / name


def test_each_pod_gets_the_program_when_it_runs(api, cluster, code, tmp_path):
    process = start(cluster, api)
    api.init_pod("demo-1")
    api.wait(lambda: (api.pod_folder / "demo-1" / "code.tar.gz").exists(), "the first pod")
    assert process.poll() is None, "it waits for the other pod"
    api.init_pod("demo-0")
    out, err = finish(process, 0)
    assert "job demo (Job, 2 workers) is sent" in out and not err
    assert sorted(served(api)) == ["demo-0", "demo-1"]
    (tmp_path / "work").mkdir()
    for name in ("demo-0", "demo-1"):
        work = unpack(api, name, tmp_path / "work")
        assert (work / "data").read_bytes() == (code / "data").read_bytes()
        assert (work / "train.py").read_text() == "print(1)"
    assert not [key for key in api.objects if key[0] == "/v1/configmaps"]


def test_pod_fails_where_the_program_cannot_be_unpacked(api, cluster, code, tmp_path):
    """As when its disk is full; else the job would run on half of it."""
    process = start(cluster, api, workers=1)
    api.init_pod("demo-0")
    finish(process, 0)
    archive = api.pod_folder / "demo-0" / "code.tar.gz"
    os.truncate(archive, archive.stat().st_size - 20)
    unpack(api, "demo-0", tmp_path, 1)


def test_connection_that_breaks_is_made_again(api, cluster, code):
    api.exec_faults += [kube_api.close, kube_api.close]
    process = start(cluster, api, workers=1)
    api.init_pod("demo-0")
    finish(process, 0)
    assert len(served(api)) == 3
    assert (api.pod_folder / "demo-0" / "code.tar.gz").exists()


def test_connections_that_break_at_once_are_made_again(api, cluster, code):
    """As those of a server that is restarted: that is one failure, not many."""
    api.exec_faults += [kube_api.close] * 6
    process = start(cluster, api, workers=6)
    with api.changed:  # one look sees all of them
        for index in range(6):
            api.init_pod(f"demo-{index}")
    finish(process, 0)
    assert len(served(api)) == 12


def test_server_that_is_away_is_waited_for(api, cluster, code):
    process = start(cluster, api, workers=1)
    api.wait(lambda: any("/pods?" in line for line, *_ in api.requests), "a look at the pods")
    api.close()
    said = process.stderr.readline()
    assert "127.0.0.1" in said and \
        said.endswith("; job demo waits for its program until the server answers\n")
    api.start()
    api.init_pod("demo-0")
    _, err = finish(process, 0)
    assert served(api) == ["demo-0"] and not err


def test_job_that_is_gone_is_not_waited_for(api, cluster, code):
    process = start(cluster, api, workers=1)
    api.wait(lambda: any("/pods?" in line for line, *_ in api.requests), "a look at the pods")
    api.remove(JOBS, "demo")
    assert "not found" in finish(process, 2)[1]


def test_job_that_cannot_be_taken_back_is_in_the_exit_code(api, cluster, code):
    """2 says that nothing is in the cluster."""
    api.forbidden += [("GET", "/exec$"), ("DELETE", "/jobs")]
    process = start(cluster, api)
    api.init_pod("demo-0")
    _, err = finish(process, 1)
    assert "demo was made, and is left behind" in err and "pods/exec is forbidden" in err
    assert api.get(JOBS, "demo")


def test_job_that_has_ended_waits_for_nothing(api, cluster, code):
    process = start(cluster, api)
    job = api.get(JOBS, "demo")
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "message": "no node"}]}
    api.put(JOBS, job)
    out, _ = finish(process, 0)
    assert "is sent" in out and not served(api)


def test_missing_right_takes_the_job_back(api, cluster, code):
    api.forbidden.append(("GET", "/exec$"))
    process = start(cluster, api)
    api.init_pod("demo-0")
    taken_back(api, finish(process, 2)[1], "403", "pods/exec is forbidden", "demo-0")


def test_pod_that_cannot_take_it_takes_the_job_back(api, cluster, code):
    def fail(handler):
        handler.send_frame(bytes([STDERR]) + b"sh: head: not found\n")
        handler.send_frame(bytes([STATUS]) + b'{"status": "Failure", "message": "exit code 127"}')

    api.exec_faults.append(fail)
    process = start(cluster, api)
    api.init_pod("demo-0")
    taken_back(api, finish(process, 1)[1], "demo-0 failed: exit code 127: sh: head: not found")


def test_program_that_was_changed_on_the_way_is_not_taken(api, cluster, code, tmp_path):
    """The command itself, with other bytes than were meant."""
    process = start(cluster, api, workers=1)
    api.init_pod("demo-0")
    finish(process, 0)
    words = next(line for line, *_ in api.requests if EXEC.match(line))
    query = kube_api.urllib.parse.parse_qs(words.split("?", 1)[1].split(" ")[0])
    script = query["command"][2].replace("/gradus/code", str(tmp_path))
    done = subprocess.run(["sh", "-c", script, "sh", "4", query["command"][5]], input=b"evil",
                          capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 1 and b"is not the program that was sent" in done.stderr
    assert not (tmp_path / "code.tar.gz").exists()


def garbage(data):
    def act(handler):
        handler.wfile.write(data)
        handler.wfile.flush()
        kube_api.close(handler)
    return act


@pytest.mark.parametrize("data", [
    os.urandom(1 << 16), b"\x82\x7f" + b"\xff" * 8, b"\x82\x81abcd\x03", b"\x02\x01\x03",
    b"\x82\x05\x03true", b"\x82\x03\x03{}", b"\x82\x7e\xff\xff\x03" + b"[" * 65534,
], ids=["noise", "endless", "masked", "in-parts", "no-status", "empty-status", "nested"])
def test_server_that_sends_garbage_is_told(api, cluster, code, data):
    api.exec_faults += [garbage(data)] * 10
    process = start(cluster, api, workers=1)
    api.init_pod("demo-0")
    taken_back(api, finish(process, 1)[1], "demo-0" if data[0] == 0x82 else "")


def test_server_without_websocket_is_told(api, cluster, code):
    answers = [
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
         "does not speak v4", 1),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n", "the server answers 400", 2),
        (b"SSH-2.0\r\n\r\n", "no server of HTTP/1.1", 1),
        (b"\0" * 100, "zero bytes", 1),
        (b"HTTP/1.1 101 " + b"a" * (1 << 15), "has no end", 1),
        (b"HTTP/1.1 403 No\r\nTransfer-Encoding: chunked\r\n\r\n15\r\n"
         b'{"message":"not you"}\r\n', "403: not you", 2),
    ]
    for data, words, exit_code in answers:
        api.fault("/exec", garbage(data), times=1)
        process = start(cluster, api, workers=1)
        api.init_pod("demo-0")
        taken_back(api, finish(process, exit_code)[1], words)
        api.remove(PODS, "demo-0") if (PODS, "team", "demo-0") in api.objects else None


def test_interrupt_takes_the_job_back(api, cluster, code):
    process = start(cluster, api)
    api.wait(lambda: any("/pods?" in line for line, *_ in api.requests), "a look at the pods")
    process.send_signal(signal.SIGINT)
    taken_back(api, finish(process, 1)[1], "ended by SIGINT")


def test_elastic_job_needs_another_way(api, cluster, code):
    done = cluster("submit", "--image", "img", "--elastic", "--code", "code", "--", "true")
    assert done.returncode == 2 and "--upload s3://BUCKET/FOLDER" in done.stderr
    assert not api.requests


def test_operated_jobs_count_all_their_pods(api, cluster, code):
    process = cluster.start("submit", "--name", "demo", "--image", "img", "--kind", "PyTorch",
                            "--workers", 3, "--code", "code", "--", "python", "code/train.py")
    key = ("kubeflow.org/v1/pytorchjobs", "team", "demo")
    api.wait(lambda: key in api.objects, "the job")
    roles = api.objects[key]["spec"]["pytorchReplicaSpecs"]
    for name, role in (("demo-master-0", "Master"), ("demo-worker-0", "Worker"),
                       ("demo-worker-1", "Worker")):
        owner = {"metadata": api.objects[key]["metadata"], "spec": {
            "template": roles[role]["template"]}}
        api.put_pod(name, owner, {}, labels={"training.kubeflow.org/job-name": "demo"})
        api.init_pod(name)
    finish(process, 0)
    assert sorted(served(api)) == ["demo-master-0", "demo-worker-0", "demo-worker-1"]

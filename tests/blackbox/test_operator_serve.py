# SPDX-License-Identifier: Apache-2.0
"""`gradus operator` against an API server of the tests' own (kube_api.py). The tests play kubelet
and the controller of batch Jobs (kube_operator.py)."""
import base64
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess

import pytest

import kube_api
from conftest import TIMEOUT_S, wait_until
from kube_fixtures import api, certificates  # noqa: F401 (fixtures)
from kube_operator import (BUILD, JOBS, LEASES, MPIJOBS, PODS, QUICK, SERVICES, Cluster, Operator,
                           mpi_job)


@pytest.fixture
def cluster(api):
    return Cluster(api)


@pytest.fixture
def config(api, tmp_path):
    return api.kubeconfig(tmp_path / "config")


@pytest.fixture
def operator(config):
    with Operator(config) as operator:
        yield operator


def holder(api):
    lease = api.objects.get((LEASES, "team", "mpi-operator"))
    return lease["spec"]["holderIdentity"] if lease else None


# ---- Jobs ---------------------------------------------------------------------------------------
def test_job_from_create_to_succeeded(api, cluster, operator):
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    assert cluster.job("a")["status"]["completionTime"]
    cluster.assert_once()
    assert not [one for one in api.requests if one[0].startswith("GET") and "/secrets/" in one[0]]
    assert api.get(SERVICES, "a")["spec"]["clusterIP"] == "None"
    api.wait(lambda: {one["reason"] for one in cluster.events("a")} >=
             {"MPIJobCreated", "MPIJobRunning", "MPIJobSucceeded"}, "events")
    one = cluster.events("a")[0]
    assert one["source"]["component"] == "mpi-job-controller"
    assert one["involvedObject"]["uid"] == cluster.job("a")["metadata"]["uid"]


def test_job_that_fails_is_failed(cluster, operator):
    cluster.submit(mpi_job("a", cleanPodPolicy="Running"))
    cluster.await_workers("a", 2)
    cluster.run("a")
    cluster.await_condition("a", "Running")
    cluster.end("a", "Failed", failed=1)
    cluster.await_condition("a", "Failed")
    cluster.api.wait(lambda: set(cluster.pods("a")) == {"a-launcher-x"}, "the workers' end")
    cluster.assert_once()


def test_keys_of_job_are_a_pair(api, cluster, operator, tmp_path):
    if not shutil.which("ssh-keygen"):
        pytest.skip("needs ssh-keygen")
    cluster.submit(mpi_job("a"))
    cluster.await_workers("a", 2)
    data = {key: base64.b64decode(value).decode()
            for key, value in api.get("/v1/secrets", "a-ssh")["data"].items()}
    assert data["ssh-privatekey"].startswith("-----BEGIN EC PRIVATE KEY-----\n")
    (tmp_path / "key").touch(0o600)
    (tmp_path / "key").write_text(data["ssh-privatekey"])
    public = subprocess.run(["ssh-keygen", "-y", "-f", tmp_path / "key"], check=True,
                            capture_output=True, text=True).stdout
    assert public.split()[:2] == data["ssh-publickey"].split()
    assert public.startswith("ecdsa-sha2-nistp521 ")


def test_many_jobs_at_once(cluster, operator):
    for i in range(20):
        cluster.submit(mpi_job(f"job-{i}", workers=3))
    for i in range(20):
        cluster.complete(f"job-{i}", workers=3)
    cluster.assert_once()
    for name, count in (("mpi_operator_jobs_created_total", 20), ("created_pods_total", 60),
                        ("mpi_operator_jobs_successful_total", 20)):
        wait_until(lambda: operator.metric(name) == count, f"{count} {name}")


def test_job_that_is_suspended_and_resumed(api, cluster, operator):
    def suspend(value):
        cluster.change(MPIJOBS, "a", lambda job: job["spec"]["runPolicy"].update(suspend=value))

    cluster.submit(mpi_job("a", suspend=True))
    cluster.await_condition("a", "Suspended")
    assert not cluster.pods("a") and api.get(JOBS, "a-launcher")["spec"]["suspend"]
    suspend(False)
    cluster.await_workers("a", 2)
    cluster.run("a")
    cluster.await_condition("a", "Running")
    suspend(True)
    api.wait(lambda: set(cluster.pods("a")) == {"a-launcher-x"}, "the workers' end")
    api.remove(PODS, "a-launcher-x")
    cluster.status(JOBS, "a-launcher", active=0)
    cluster.await_condition("a", "Suspended")
    suspend(False)
    cluster.complete("a")
    assert max(api.created.values()) == 2  # the workers, once each time


def test_job_that_is_deleted_is_left_alone(api, cluster, operator):
    cluster.submit(mpi_job("a"))
    cluster.await_workers("a", 2)
    cluster.run("a")
    cluster.await_condition("a", "Running")
    api.remove(MPIJOBS, "a")
    name = 'mpi_operator_job_info{launcher="a-launcher",namespace="team"}'
    wait_until(lambda: operator.metric(name) is None, "the operator to know of it")
    cluster.collect_garbage()
    cluster.submit(mpi_job("b"))
    cluster.complete("b")
    assert not cluster.pods("a") and (JOBS, "team", "a-launcher") not in api.objects
    cluster.assert_once()


def test_job_of_same_name_gets_objects_of_its_own(api, cluster, operator):
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    api.remove(MPIJOBS, "a")
    cluster.collect_garbage()
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    uid = cluster.job("a")["metadata"]["uid"]
    assert {pod["metadata"]["ownerReferences"][0]["uid"] for pod in cluster.pods("a").values()
            if "launcher" not in pod["metadata"]["name"]} == {uid}


def test_workers_lost_are_made_again(api, cluster, operator):
    cluster.submit(mpi_job("a"))
    cluster.await_workers("a", 2)
    api.remove(PODS, "a-worker-1")
    cluster.complete("a")
    assert api.created[PODS, "team", "a-worker-1"] == 2
    assert api.created[PODS, "team", "a-worker-0"] == 1


def test_job_that_is_wrong_has_event(api, cluster, operator):
    job = mpi_job("a")
    job["spec"]["slotsPerWorker"] = -1
    cluster.submit(job)
    api.wait(lambda: [one["reason"] for one in cluster.events("a")] == ["ValidationError"],
             "the event")
    made = set(api.created)
    assert not made - {("/v1/events", *key[1:]) for key in made} - {(LEASES, "team",
                                                                     "mpi-operator")}


def test_job_that_cannot_be_read_holds_up_no_other(api, cluster, operator):
    cluster.submit({**mpi_job("large"), "note": 2**64 - 1})
    cluster.submit({**mpi_job("nul"), "no\0te": 1})
    cluster.submit({**mpi_job("lost"), "note": 10**400})
    cluster.submit(mpi_job("b"))
    for name in ("large", "nul", "b"):
        cluster.await_workers(name, 2)
    operator.wait_for("mpijobs.*team/lost is passed over")
    assert not cluster.pods("lost")
    api.compact()  # they are listed, too
    api.drop_watches()
    cluster.submit(mpi_job("c"))
    cluster.await_workers("c", 2)


def test_one_namespace_alone(api, cluster, config):
    with Operator(config, "--namespace", "team") as operator:
        operator.ready()
        cluster.submit(mpi_job("far"), space="elsewhere")
        cluster.submit(mpi_job("near"))
        cluster.complete("near")
        assert not [key for key in set(api.created) if key[1] == "elsewhere"]
        reads = [one[0] for one in api.asked("^GET .*(limit|watch)=")]
        assert reads and all("/namespaces/team/" in one for one in reads)


# ---- What can go wrong --------------------------------------------------------------------------
def test_conflicts_are_looked_at_again(api, cluster, operator):
    api.fault("^PUT .*/mpijobs/a/status", kube_api.refuse(409, reason="Conflict"), times=3)
    api.fault("^PUT .*/configmaps/", kube_api.refuse(409, reason="Conflict"), times=2)
    cluster.submit(mpi_job("a"))
    cluster.await_workers("a", 2)
    cluster.change(JOBS, "a-launcher",
                   lambda job: job["metadata"].setdefault("annotations", {}).update(x="y"))
    cluster.complete("a")
    cluster.assert_once()


def make_and_forget(api):
    """The server does what is asked, and its answer is lost."""
    def act(handler):
        body = json.loads(handler.body)
        _, _, _, plural, _, _ = kube_api.PATH.match(handler.path.split("?")[0]).groups()
        with contextlib.suppress(kube_api.Refusal):
            api.write("POST", f"/v1/{plural}", "team", None, None, {}, body, None)
        kube_api.close(handler)
    return act


def test_answers_that_are_lost_make_nothing_twice(api, cluster, operator):
    api.fault("^POST .*/pods", make_and_forget(api), times=2)
    cluster.submit(mpi_job("a", workers=4))
    cluster.complete("a", workers=4)
    cluster.assert_once()


def test_event_without_an_answer_holds_up_few_others(api, cluster, operator):
    """Events of one object come in order; those of others go beside them. These jobs are wrong, so
    that they have nothing but events."""
    given_up = []

    def hang(handler):
        kube_api.hang(handler)
        given_up.append(handler)

    api.fault("^POST .*/events$", hang)
    names = [f"job-{number}" for number in range(40)]
    for name in names:
        job = mpi_job(name)
        job["spec"]["slotsPerWorker"] = -1
        cluster.submit(job)
    api.wait(lambda: sum(bool(cluster.events(name)) for name in names) >= 8, "events")
    assert not given_up
    operator.stop(signal.SIGKILL)


def test_errors_of_server_pass(api, cluster, operator):
    api.fault("^POST .*/(services|configmaps|secrets|pods|jobs)$", kube_api.refuse(500), times=6)
    api.fault("^PUT .*/status$", kube_api.refuse(500), times=2)
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    cluster.assert_once()
    operator.wait_for("cannot create services in team: InternalError: said by the test")


def test_watches_that_are_dropped_go_on(api, cluster, operator):
    operator.ready()
    cluster.submit(mpi_job("a"))
    cluster.await_workers("a", 2)
    api.drop_watches()
    cluster.complete("a")
    api.drop_watches()
    cluster.submit(mpi_job("b"))
    cluster.complete("b")
    cluster.assert_once()


def test_history_that_is_gone_is_listed_anew(api, cluster, operator):
    operator.ready()
    cluster.submit(mpi_job("a"))
    cluster.submit(mpi_job("b"))
    cluster.await_workers("a", 2)
    cluster.await_workers("b", 2)
    with api.changed:  # all at once: no watch sees any of it
        api.frozen = True
        cluster.run("a")
        api.remove(MPIJOBS, "b")
        api.compact()
        api.drop_watches()
        api.frozen = False
    cluster.await_condition("a", "Running")
    cluster.end("a")
    cluster.await_condition("a", "Succeeded")
    wait_until(lambda: len(api.asked("^GET .*/mpijobs[?]limit=500")) >= 2, "a second list")
    wait_until(lambda: "b-launcher" not in operator.page("/metrics")[1], "b to be forgotten")
    cluster.collect_garbage()
    cluster.assert_once()


def test_server_that_is_killed_and_started_again(api, cluster, config):
    with Operator(config) as operator:
        cluster.submit(mpi_job("a"))
        cluster.await_workers("a", 2)
        api.close()
        operator.wait_for("cannot watch")
        assert operator.page("/healthz") == (200, "ok\n")
        api.start()
        cluster.complete("a")
        cluster.submit(mpi_job("b"))
        cluster.complete("b")
        cluster.assert_once()


def test_objects_that_are_refused_are_told(api, cluster, operator):
    operator.ready()
    api.forbidden.append(("POST", "/pods$"))
    cluster.submit(mpi_job("a"))
    train = {"template": {"spec": {"containers": [{"name": "pytorch", "image": "i"}]}}}
    api.put("kubeflow.org/v1/pytorchjobs",
            {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "b"},
             "spec": {"pytorchReplicaSpecs": {"Worker": train}}}, "team")
    for name, reason, subject in (("a", "MPIJobFailed", "worker pod created failed"),
                                  ("b", "FailedCreatePod", "Error creating")):
        api.wait(lambda: any(one["reason"] == reason for one in cluster.events(name)), reason)
        one = next(one for one in cluster.events(name) if one["reason"] == reason)
        assert one["message"] == f'{subject}: pods is forbidden: User "test" cannot do this'
    operator.wait_for('a role must allow "create" on pods of API group "" in namespace team')
    api.forbidden.clear()
    cluster.complete("a")


def test_errors_of_server_at_a_creation_are_told(api, cluster, operator):
    """A webhook that fails answers so. The text is cut where a character ends."""
    operator.ready()
    said = "failed calling webhook: " + "\u20ac" * 400
    api.fault("^POST .*/pods$", kube_api.refuse(500, message=said), times=2)
    api.fault("^PUT .*/status$", kube_api.refuse(500), times=1)
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    api.wait(lambda: "MPIJobFailed" in {one["reason"] for one in cluster.events("a")}, "an event")
    told = {one["message"] for one in cluster.events("a") if one["reason"] == "MPIJobFailed"}
    assert told == {"worker pod created failed: " + said[:24 + (900 - 24) // 3]}
    cluster.assert_once()


# ---- Several operators --------------------------------------------------------------------------
def test_leader_that_is_killed_is_replaced(api, cluster, config):
    with Operator(config) as first:
        first.wait_for("leads, by the lease mpi-operator")
        with Operator(config) as second:
            second.wait_for('stands by: "')
            second.ready()
            assert first.metric("mpi_operator_is_leader") == 1
            assert second.metric("mpi_operator_is_leader") == 0
            cluster.submit(mpi_job("a"))
            cluster.await_workers("a", 2)
            assert first.stop(signal.SIGKILL) == -signal.SIGKILL
            cluster.change(LEASES, "mpi-operator",
                           lambda lease: lease["spec"].update(leaseDurationSeconds=1))
            cluster.run("a")
            second.wait_for("leads, by the lease")
            cluster.await_condition("a", "Running")
            cluster.end("a")
            cluster.await_condition("a", "Succeeded")
            assert second.metric("mpi_operator_is_leader") == 1
            cluster.assert_once()


def test_leader_that_ends_in_order_leaves_the_lease(api, cluster, config):
    with Operator(config) as first:
        first.wait_for("leads")
        with Operator(config) as second:
            second.wait_for("stands by")
            cluster.submit(mpi_job("a"))
            cluster.await_workers("a", 2)
            assert first.stop() == 0
            second.wait_for("leads, by the lease")  # long before that expires
            cluster.complete("a")
            cluster.assert_once()
            assert second.stop() == 0
            assert holder(api) == ""


def test_leader_that_loses_the_lease_ends(api, cluster, config):
    with Operator(config) as operator:
        operator.wait_for("leads")
        cluster.change(LEASES, "mpi-operator",
                       lambda lease: lease["spec"].update(holderIdentity="another"))
        assert operator.end() == 1
        assert re.search("gradus: this operator has lost the lease mpi-operator to another; it "
                         "ends", operator.said())
        assert holder(api) == "another"


def test_lease_lost_while_a_write_is_on_its_way(api, cluster, config):
    """The server carries the write out behind the loss, and nobody gets its answer."""
    with Operator(config) as first:
        stolen = set()

        def steal(handler):
            stolen.add(json.loads(handler.body)["metadata"]["name"])
            cluster.change(LEASES, "mpi-operator",
                           lambda lease: lease["spec"].update(holderIdentity="another"))
            first.process.wait(TIMEOUT_S)
            handler.serve(api, handler.path.split("?")[0], {}, handler.body)
        first.wait_for("leads")
        with Operator(config) as second:
            second.wait_for("stands by")
            second.ready()
            api.fault("^POST .*/pods$", steal)
            cluster.submit(mpi_job("a", workers=3))
            assert first.end() == 1
            assert "has lost the lease mpi-operator to another" in first.said()
            api.wait(lambda: stolen <= set(cluster.pods("a")), "the last write of the first")
            # What waits for the pods is never begun.
            assert (JOBS, "team", "a-launcher") not in api.objects
            cluster.change(LEASES, "mpi-operator",  # nobody renews the other's
                           lambda lease: lease["spec"].update(leaseDurationSeconds=1))
            second.wait_for("leads, by the lease")
            cluster.complete("a", workers=3)
            cluster.assert_once()


def test_leader_that_cannot_renew_ends(api, config):
    with Operator(config, *QUICK) as operator:
        operator.wait_for("leads")
        api.fault("^(GET|PUT) .*/leases", kube_api.hang, times=1000)
        assert operator.end() == 1
        assert "has lost the lease mpi-operator, which it could not renew" in operator.said()


def test_follower_writes_nothing(api, cluster, config):
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
             "metadata": {"name": "mpi-operator"},
             "spec": {"holderIdentity": "upstream", "leaseDurationSeconds": 3600,
                      "renewTime": "2026-01-01T00:00:00.000000Z"}}
    api.put(LEASES, lease)
    cluster.submit(mpi_job("a"))
    with Operator(config) as operator:
        operator.wait_for('stands by: "upstream" leads')
        operator.ready()
        assert operator.stop() == 0
    writes = [one[0] for one in api.requests if not one[0].startswith("GET")]
    assert all("selfsubjectaccessreviews" in one for one in writes)
    assert holder(api) == "upstream"


def test_operator_without_election(api, cluster, config):
    with Operator(config, "--leader-elect=false") as operator:
        cluster.submit(mpi_job("a"))
        cluster.complete("a")
        assert operator.metric("mpi_operator_is_leader") == 1
    assert not api.asked("/leases")


# ---- The end ------------------------------------------------------------------------------------
def test_operator_ends_in_order_while_it_stands_before_the_server(api, config):
    api.fault("^GET .*limit=1$", kube_api.hang, times=1000)
    with Operator(config) as operator:
        api.wait(lambda: api.asked("limit=1$"), "the first request")
        assert operator.stop() == 0


def test_writes_on_their_way_are_awaited(api, cluster, operator):
    def late(handler):
        operator.process.send_signal(signal.SIGTERM)
        handler.serve(api, handler.path.split("?")[0], {}, handler.body)
    operator.ready()
    api.fault("^POST .*/configmaps", late)
    cluster.submit(mpi_job("a"))
    assert operator.end() == 0
    assert api.get("/v1/configmaps", "a-config") and not cluster.pods("a")
    assert holder(api) == ""


# ---- Pages --------------------------------------------------------------------------------------
def test_pages(api, cluster, operator):
    operator.ready()
    assert operator.page("/healthz") == (200, "ok\n")
    assert operator.page("/healthz?verbose=1")[0] == 200
    assert operator.page("/nothing")[0] == 404
    text = operator.page("/metrics")[1]
    for name in ("mpi_operator_jobs_created_total", "mpi_operator_is_leader",
                 "training_operator_jobs_created_total", "created_pods_total",
                 "created_pod_groups_total", "failed_service_creation_total"):
        assert f"# TYPE {name} " in text, text
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    assert operator.metric('mpi_operator_job_info{launcher="a-launcher",namespace="team"}') == 1


def test_metrics_of_queues_and_requests(api, cluster, operator):
    operator.ready()
    api.fault("^POST .*/services$", kube_api.refuse(500), times=1)
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    queue, lines, values = '{name="mpijob-controller"}', [], {}

    def is_idle():  # on the page that is looked at: the next one may be of another look
        lines[:] = [line for line in operator.page("/metrics")[1].splitlines() if line[0] != "#"]
        values.update(line.rsplit(" ", 1) for line in lines)
        return all(float(values[f"workqueue_{name}{queue}"]) == 0
                   for name in ("depth", "unfinished_work_seconds"))

    wait_until(is_idle, "the end of all work")
    assert len(values) == len(lines)
    assert int(values[f"workqueue_retries_total{queue}"]) == 1
    looks = int(values[f"workqueue_work_duration_seconds_count{queue}"])
    assert int(values[f"workqueue_adds_total{queue}"]) >= looks >= 4
    assert int(values[f"workqueue_queue_duration_seconds_count{queue}"]) == looks
    assert values[f"workqueue_longest_running_processor_seconds{queue}"] == "0"
    for name in ("queue", "work"):
        buckets = [int(value) for key, value in values.items() if
                   key.startswith(f'workqueue_{name}_duration_seconds_bucket{queue[:-1]}')]
        assert len(buckets) == 13 and buckets == sorted(buckets) and buckets[-1] == looks
        assert float(values[f"workqueue_{name}_duration_seconds_sum{queue}"]) > 0
    host = api.url.split("//")[1]
    asked = f'rest_client_requests_total{{code="%s",host="{host}",method="%s"}}'
    assert int(values[asked % (500, "POST")]) == 1
    made = len([one for one in set(api.created) if one[0] != LEASES and one[0] != MPIJOBS
                and "launcher-x" not in one[2]])
    assert int(values[asked % (201, "POST")]) >= made > 5
    assert int(values[asked % (200, "GET")]) > 5 and int(values[asked % (200, "PUT")]) >= 2
    api.close()
    wait_until(lambda: operator.metric(asked % ("<error>", "GET")), "a request without an answer")
    api.start()


def test_operator_that_has_not_listed_is_not_ready(api, config):
    api.fault("^GET .*/pods[?]limit=500", kube_api.hang, times=1000)
    with Operator(config) as operator:
        operator.wait_for("leads")
        wait_until(lambda: operator.page("/readyz") == (503, "the list of pods has not come yet\n"),
                   "the other lists")
        assert operator.page("/healthz")[0] == 200


def test_operator_that_has_not_begun_has_metrics(api, config):
    api.fault("^GET /apis", kube_api.hang, times=1000)  # it looks for what is installed
    with Operator(config) as operator:
        code, text = operator.page("/metrics")
        assert code == 200 and "# TYPE created_pods_total counter\ncreated_pods_total 0\n" in text


def exchange(operator, data, end=False):
    host, port = re.match(r"http://([\d.]+):(\d+)/", operator.url("/")).groups()
    with socket.create_connection((host, int(port)), TIMEOUT_S) as one:
        one.sendall(data)
        if end:
            one.shutdown(socket.SHUT_WR)
        got = b""
        while part := one.recv(65536):
            got += part
        return got.decode()


@pytest.mark.parametrize("data, line", [
    (b"HEAD /healthz HTTP/1.1\r\n\r\n", "200 OK"),
    (b"POST /healthz HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
    (b"GET /healthz\r\n\r\n", "400 Bad Request"),
    (b"\r\n\r\n", "400 Bad Request"),
    (b"GET /\0 HTTP/1.1\r\n\r\n", "400 Bad Request"),
    (b"GET / HTTP/1.1\r\nX: " + b"x" * 4076, "431 Request Header Fields Too Large"),
])
def test_requests_without_sense(operator, data, line):
    got = exchange(operator, data)
    assert got.startswith(f"HTTP/1.1 {line}\r\n")
    if data.startswith(b"HEAD"):
        assert "Content-Length: 3\r\n" in got and got.endswith("\r\n\r\n")


def test_garbage_is_refused_and_pages_stay(operator):
    operator.ready()
    chance = random.Random(7)
    garbage = [bytes.fromhex("16030100c8010000c40303") + chance.randbytes(200),  # TLS
               b"GET /metrics HTTP/9.9\r\n\r\n", b"GET /../metrics HTTP/1.1\r\n\r\n",
               b"GET /healthz%00 HTTP/1.1\r\n\r\n", b"get /healthz HTTP/1.1\r\n\r\n",
               b"GET /healthz HTTP/1.1\r\nHost", b"GET " + b"/" * 4000 + b" HTTP/1.1\r\n\r\n",
               b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\n" * 4000, b"%s%n%s%n HTTP/1.1 \r\n\r\n"]
    garbage += [chance.randbytes(chance.randrange(1, 8192)) for _ in range(40)]
    garbage += [chance.randbytes(100) + b"\r\n\r\n" for _ in range(20)]
    for data in garbage:
        try:
            got = exchange(operator, data, end=True)
        except OSError:  # closed with bytes that nobody has read
            continue
        assert got == "" or re.match(r"HTTP/1.1 4\d\d ", got), (data, got)
    assert operator.page("/healthz") == (200, "ok\n")
    assert "workqueue_depth" in operator.page("/metrics")[1]


def test_slow_clients_hold_nobody_up(api, cluster, operator):
    host, port = re.match(r"http://([\d.]+):(\d+)/", operator.url("/")).groups()
    slow = [socket.create_connection((host, int(port)), TIMEOUT_S) for _ in range(200)]
    for one in slow:
        one.sendall(b"GET /metrics HTTP/1.1\r\n")
    assert operator.page("/healthz") == (200, "ok\n")
    cluster.submit(mpi_job("a"))
    cluster.complete("a")
    assert slow[0].recv(10) == b""  # the oldest had to go
    for one in slow:
        one.close()


# ---- What it is given ---------------------------------------------------------------------------
def refused(config, *flags, code=2):
    done = subprocess.run([BUILD / "gradus", "operator", "--kubeconfig", config,
                           "--metrics-bind-address", "0", "--health-probe-bind-address", "0",
                           "--wait-for-resources", "0s", *flags],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=TIMEOUT_S)
    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gradus: ") and not done.stdout
    return done.stderr


def test_kubeconfig_that_is_wrong(api, tmp_path):
    assert "no-such" in refused(tmp_path / "no-such")
    (tmp_path / "config").write_text("current-context: [1\n")
    assert "config:1: not valid YAML" in refused(tmp_path / "config")
    config = api.kubeconfig(tmp_path / "config")
    assert "must begin with https://" in refused(config, "--master", "http://127.0.0.1:1")
    assert 'context "other"' in refused(config, "--context", "other")


def test_server_that_is_not_there(api, tmp_path):
    config = api.kubeconfig(tmp_path / "config")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        said = refused(config, "--master", f"https://127.0.0.1:{nobody.getsockname()[1]}/")
    assert "cannot list mpijobs" in said and "127.0.0.1" in said


def test_authority_that_is_wrong(api, tmp_path, certificates):
    data = base64.b64encode((certificates / "other-ca.pem").read_bytes()).decode()
    said = refused(api.kubeconfig(tmp_path / "config", certificate_authority_data=data))
    assert "cannot list mpijobs" in said and "certificate" in said


def test_token_that_is_wrong(api, tmp_path):
    said = refused(api.kubeconfig(tmp_path / "config", user={"token": "expired"}))
    assert "the token or certificate of" in said and "is wrong or has expired" in said


ALL_KINDS = {"kubeflow.org/v2beta1/mpijobs", "kubeflow.org/v1/mpijobs", "kubeflow.org/v1/tfjobs",
             "kubeflow.org/v1/pytorchjobs", "gradus.dev/v1/gradusjobs"}


def test_kind_that_is_not_installed(api, config):
    api.absent.update(ALL_KINDS)
    assert "the cluster has no mpijobs of kubeflow.org/v2beta1" in refused(config)
    assert "the cluster has no mpijobs" in refused(config, "--enable-scheme", "mpijob.v2beta1")
    said = refused(config, "--enable-scheme", "xgboostjob")
    assert '--enable-scheme: there is no kind "xgboostjob"; this operator has MPIJob' in said


@pytest.mark.parametrize("scheduler, group, who", [
    ("volcano", "scheduling.volcano.sh/v1beta1", "volcano"),
    ("placer", "scheduling.x-k8s.io/v1alpha1", "scheduler-plugins")])
def test_pod_group_that_is_not_installed(api, config, scheduler, group, who):
    api.absent.add(f"{group}/podgroups")
    said = refused(config, "--gang-scheduling", scheduler)
    assert f"the cluster has no podgroups of {group}; " in said and who in said
    assert "leads" not in said and not api.asked("/leases")


def test_resources_that_are_installed_later_are_waited_for(api, cluster, config):
    groups = "scheduling.volcano.sh/v1beta1/podgroups"
    api.absent.update(ALL_KINDS | {groups})
    with Operator(config, "--gang-scheduling", "volcano") as operator:
        operator.wait_for("no mpijobs of kubeflow.org/v2beta1; .*; the operator waits for them")
        api.absent.difference_update(ALL_KINDS)
        operator.wait_for("no podgroups of .*; the operator waits for them")
        assert not api.asked("/leases")
        api.absent.clear()
        operator.wait_for("leads")
        cluster.submit(mpi_job("a"))
        cluster.await_workers("a", 2)
        assert api.get("scheduling.volcano.sh/v1beta1/podgroups", "a")


def test_operator_that_waits_for_resources_ends_in_order(api, config):
    api.absent.add("scheduling.volcano.sh/v1beta1/podgroups")
    with Operator(config, "--gang-scheduling", "volcano") as operator:
        operator.wait_for("the operator waits for them")
        assert operator.stop() == 0


NEEDED = [(verb, what) for what, verbs in {
    "mpijobs": "list watch", "mpijobs/status": "update", "pods": "list watch create delete",
    "services": "list watch create update", "configmaps": "list watch create update",
    "secrets": "list watch create update", "jobs": "list watch create update",
    "leases": "get create update"}.items() for verb in verbs.split()]
WANTED = [("get", "pods"), ("get", "secrets"), ("update", "jobs/status"), ("create", "events"),
          ("patch", "events")]


@pytest.mark.parametrize("verb, what", NEEDED)
def test_permission_that_is_missing(api, config, verb, what):
    api.denied.add((verb, what))
    said = refused(config, "--enable-scheme", "mpijob.v2beta1")
    assert re.search(rf'a role must allow .*"{verb}" on {what} of API group ', said)


def test_all_permissions_that_are_missing_are_told(api, config):
    api.denied.update(NEEDED[2:] + WANTED)
    said = refused(config, "--enable-scheme", "mpijob.v2beta1")
    for verb, what in NEEDED[2:] + WANTED:
        assert f'"{verb}" on {what} of API group ' in said


GROUP = {"podgroups": "list watch create update delete get", "priorityclasses": "list watch"}
PODS_AND_SERVICES = {"pods": "list watch create delete get",
                     "services": "list watch create update get delete"}


@pytest.mark.parametrize("kind, rights", [
    ("pytorchjob", {"pytorchjobs": "watch get delete", "pytorchjobs/status": "update",
                    "horizontalpodautoscalers": "list watch create update get delete",
                    **PODS_AND_SERVICES}),
    ("tfjob", {"tfjobs": "watch get delete", "tfjobs/status": "update", **PODS_AND_SERVICES}),
    ("mpijob.v1", {"mpijobs": "watch get delete", "mpijobs/status": "update",
                   "pods": PODS_AND_SERVICES["pods"], "pods/exec": "create",
                   "configmaps": "list watch create update get",
                   "serviceaccounts": "list watch create get",
                   "roles": "list watch create update get",
                   "rolebindings": "list watch create update get"}),
    ("gradusjob", {"gradusjobs": "watch get delete", "gradusjobs/status": "update",
                   "secrets": "list watch create update get",
                   "services": "list watch create update get", "pods": PODS_AND_SERVICES["pods"]})])
def test_each_permission_of_another_kind_that_is_missing_is_told(api, config, kind, rights):
    missing = [(verb, what) for what, verbs in {**rights, **GROUP}.items()
               for verb in verbs.split()]
    api.denied.update(missing)
    said = refused(config, "--enable-scheme", kind, "--gang-scheduling", "volcano")
    assert not [one for one in missing
                if f'"{one[0]}" on {one[1]} of API group ' not in said], said


def test_permission_that_it_can_do_without(api, cluster, config):
    api.denied.update(WANTED)
    with Operator(config) as operator:
        operator.wait_for("works on MPIJob of kubeflow.org/v2beta1")
        for verb, what in WANTED:
            operator.wait_for(f'a role must allow .*"{verb}" on {what} of API group .*, for all of '
                              'its work')
        cluster.submit(mpi_job("a"))
        cluster.complete("a")


def test_kinds_that_are_not_permitted_are_left_out(api, cluster, config):
    """As with the rights of mpi-operator, which knows no other kinds."""
    api.denied.update((verb, what) for what in ("tfjobs", "pytorchjobs", "tfjobs/status")
                      for verb in ("get", "list", "watch", "update"))
    with Operator(config) as operator:
        cluster.submit(mpi_job("a"))
        cluster.complete("a")
        assert "TFJob" not in operator.wait_for("works on (.*) in all namespaces")[1]


def test_address_that_is_wrong(config):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert f'cannot listen at "{where}": Address already in use' in \
            refused(config, "--metrics-bind-address", where)
    assert '"8080" is no address to listen at' in refused(config, "--metrics-bind-address", "8080")
    assert "is no address" in refused(config, "--metrics-bind-address", ":99999")


MPI_OPERATOR = ["-alsologtostderr", "-v=4", "--lock-namespace=team", "-threadiness=2",
                "-kube-api-qps=50", "-kube-api-burst=100", "-monitoring-port=0",
                "-controller-queue-rate-limit=10", "-controller-queue-burst=100",
                "-gang-scheduling=", "-cluster-domain=cluster.local", "-log_dir=/tmp", "-log_file=",
                "-log_file_max_size=1800", "-log_backtrace_at=:0", "-vmodule=", "-skip_headers",
                "-skip_log_headers=true", "-add_dir_header", "-one_output=false"]
TRAINING_OPERATOR = ["--leader-elect", "--leader-election-id", "training", "--enable-scheme=mpijob",
                     "--controller-threads=4", "--gang-scheduler-name=",
                     "--webhook-server-port=9443", "--webhook-service-name=training-operator",
                     "--zap-log-level=2", "--zap-stacktrace-level=error",
                     "--zap-time-encoding=iso8601", "--pytorch-init-container-image=alpine:3"]


@pytest.mark.parametrize("flags", [MPI_OPERATOR, TRAINING_OPERATOR])
def test_flags_of_other_operators(api, cluster, config, flags):
    with Operator(config, *flags) as operator:
        cluster.submit(mpi_job("a"))
        cluster.complete("a")
        operator.wait_for("leads, by the lease " +
                          ("training" if "training" in flags else "mpi-operator"))
    if flags is MPI_OPERATOR:
        hosts = cluster.api.get("/v1/configmaps", "a-config")["data"]["hostfile"]
        assert "a-worker-0.a.team.svc.cluster.local slots=1" in hosts


def test_kubeconfig_from_a_pipe_is_read_once(api, config):
    reader, writer = os.pipe()
    os.write(writer, config.read_bytes())
    os.close(writer)
    with Operator(f"/dev/fd/{reader}", pass_fds=[reader]) as operator:
        os.close(reader)
        operator.wait_for("leads, by the lease")


def test_flags_that_are_wrong(config):
    assert "retry period" in refused(config, "--leader-elect-retry-period", "20s")
    assert "-f is for --dry-run" in refused(config, "-f", "job.yaml")
    assert "training-operator" in refused(config, "--pytorch-init-container-template-file=x")
    done = subprocess.run([BUILD / "gradus", "operator", "-version"], capture_output=True,
                          text=True, check=True)
    assert re.fullmatch(r"gradus \d+\.\d+\.\d+\n", done.stdout)

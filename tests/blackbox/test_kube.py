# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API client against an API server of the tests' own (kube_api.py)."""
import json
import os
import socket
import subprocess

import pytest

import kube_api
from conftest import TIMEOUT_S, is_sanitized
from kube_client import BUILD, Client, pod
from kube_fixtures import api, certificates  # noqa: F401 (fixtures)

PODS = "/v1/pods"


@pytest.fixture
def client(api, tmp_path):
    with Client(api.kubeconfig(tmp_path / "config")) as client:
        yield client


def refused(path):
    """What the client says when it is not even made."""
    done = subprocess.run([BUILD / "tests" / "kube_client", path], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2
    return done.stderr


def test_objects_are_written_and_read(api, client):
    made = client.ask("create", body=pod("a"), manager="gradus")
    assert (made["status"], made["http"]) == ("GR_OK", 201)
    assert client.ask("get", name="a")["object"]["metadata"]["uid"] == \
        made["object"]["metadata"]["uid"]
    again = client.ask("create", body=pod("a"))
    assert (again["status"], again["reason"]) == ("GR_E_IN_USE", "AlreadyExists")
    assert again["said"] == 'cannot create pods in team: AlreadyExists: pods "a" already exists'
    thing = client.ask("merge", name="a", body={"metadata": {"labels": {"x": "y"}}})["object"]
    assert thing["metadata"]["labels"] == {"x": "y"}
    stale = client.ask("replace", name="a", body=made["object"])
    assert (stale["status"], stale["http"]) == ("GR_E_AGAIN", 409)
    assert "the object has been modified" in stale["said"]
    thing["status"] = {"phase": "Running"}
    done = client.ask("replace", name="a", subresource="status", body=thing)["object"]
    assert done["status"] == {"phase": "Running"}
    applied = client.ask("apply", name="b", body=pod("b"), manager="gradus", force=True)
    assert applied["status"] == "GR_OK"
    line, headers, _ = api.asked("^PATCH .*/pods/b")[0]
    assert line == "PATCH /api/v1/namespaces/team/pods/b?fieldManager=gradus&force=true"
    assert headers["Content-Type"] == "application/apply-patch+yaml"
    assert api.asked("^POST")[0][0] == "POST /api/v1/namespaces/team/pods?fieldManager=gradus"


def test_delete_has_preconditions(api, client):
    uid = api.put(PODS, pod("a"))["metadata"]["uid"]
    other = client.ask("delete", name="a", uid="another")
    assert (other["status"], other["reason"]) == ("GR_E_AGAIN", "Conflict")
    stale = client.ask("delete", name="a", uid=uid, resource_version="1")
    assert stale["status"] == "GR_E_AGAIN"
    assert client.ask("delete", name="a", uid=uid, propagation="Background")["status"] == "GR_OK"
    gone = client.ask("delete", name="a")
    assert (gone["status"], gone["said"]) == \
        ("GR_E_NOT_FOUND", 'cannot delete pods team/a: NotFound: pods "a" not found')
    sent = json.loads(api.asked("^DELETE")[-2][2])
    assert sent == {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid},
                    "propagationPolicy": "Background"}


def test_requests_without_sense_are_refused(client):
    for words in ({"do": "get"}, {"do": "get", "name": ""}, {"do": "get", "name": ".."},
                  {"do": "get", "name": "a/b"}, {"do": "create"}, {"do": "get", "plural": ""},
                  {"do": "apply", "name": "a", "body": pod("a")},
                  {"do": "delete", "name": "a", "space": "x/y"}):
        what = words.pop("do")
        answer = client.ask(what, **words)
        assert answer["status"] == "GR_E_INVALID" and answer["said"].startswith("a request to ")


def test_list_comes_in_parts_and_begins_again_when_it_has_expired(api, client):
    for i in range(10):
        api.put(PODS, pod(f"p{i}", half=str(i % 2)))
    number = client.start("list", limit=3, quiet=True)
    done = client.next(number, lambda line: "status" in line)
    assert (done["status"], done["items"], done["object"]["items"]) == ("GR_OK", 10, [])
    assert len(api.asked("limit=3")) == 4
    assert client.ask("list", labels="half=1", quiet=True)["items"] == 5

    def expire(handler):
        api.compact()
        kube_api.refuse(410, reason="Expired")(handler)

    api.fault("continue=", expire)
    number = client.start("list", limit=4, quiet=True)
    assert client.next(number)["restart"]
    assert client.next(number)["items"] == 10
    api.fault("continue=", kube_api.refuse(410, reason="Expired"), times=100)  # for ever
    assert client.ask("list", limit=4, quiet=True)["http"] == 410


def test_part_of_a_list_that_was_refused_is_asked_for_again(api, client):
    for i in range(10):
        api.put(PODS, pod(f"p{i}"))
    for start in range(1, 10):  # more refusals than one part may have
        api.fault(f"continue=[0-9]+(/|%2F){start}$", kube_api.refuse(429))
    number = client.start("list", limit=1)
    lines = [client.next(number)]
    while "status" not in lines[-1]:
        lines.append(client.next(number))
    assert (lines[-1]["status"], lines[-1]["items"]) == ("GR_OK", 10)
    assert not any("restart" in line for line in lines)
    assert len(api.asked("limit=1")) == 10 + 9


def test_list_whose_part_broke_off_begins_again(api, client):
    for i in range(4):
        api.put(PODS, pod(f"p{i}"))
    text = json.dumps({"metadata": {}, "items": [pod("p2")]})[:-2]
    api.fault("continue=", kube_api.send_text(text, length=9999))
    number = client.start("list", limit=2, quiet=True)
    assert client.next(number)["restart"]
    assert client.next(number)["items"] == 4
    api.fault("continue=", kube_api.refuse(503), times=100)
    done = client.ask("list", limit=2, quiet=True)
    assert done["http"] == 503
    assert len(api.asked("continue=")) == 2 + 6


def test_failures_are_sentences(api, client):
    api.forbidden.append(("GET", "/pods/a$"))
    said = client.ask("get", name="a")
    assert said["status"] == "GR_E_AUTH"
    assert said["said"].endswith('a role must allow "get" on pods of API group "" in namespace '
                                 'team')
    api.put("kubeflow.org/v1/mpijobs", pod("j"))
    api.forbidden.append(("PUT", "/status$"))
    said = client.ask("replace", group="kubeflow.org", plural="mpijobs", name="j",
                      subresource="status", body=pod("j"))
    assert '"update" on mpijobs/status of API group "kubeflow.org"' in said["said"]
    api.token = "another"
    said = client.ask("get", name="a")
    assert said["status"] == "GR_E_AUTH" and "does not know who asks" in said["said"]
    assert 'the token or certificate of context "test" of ' in said["said"]
    api.token = "right"
    api.fault("pods/b", kube_api.refuse(422, "spec.x: Invalid value"))
    assert client.ask("get", name="b")["said"] == \
        "cannot get pods team/b: Invalid: spec.x: Invalid value"
    api.fault("pods/b", kube_api.send_text("<html>", 404))
    assert "answers with HTTP 404 and no reason" in client.ask("get", name="b")["said"]
    for text, status in (("", "GR_E_PROTOCOL"), ("garbage", "GR_E_PROTOCOL"),
                         ('{"a":', "GR_E_PROTOCOL"), ('{"a":[}', "GR_E_PROTOCOL")):
        api.fault("pods/b", kube_api.send_text(text))
        said = client.ask("get", name="b")
        assert said["status"] == status and said["said"].startswith("cannot get pods team/b: ")


def test_what_only_reads_is_tried_again(api, client):
    api.put(PODS, pod("a"))
    api.fault("pods/a", kube_api.close)
    api.fault("pods/a", kube_api.refuse(500))
    api.fault("pods/a", kube_api.send_text('{"a":', length=100))  # closed in an object
    assert client.ask("get", name="a")["status"] == "GR_OK"
    assert len(api.asked("GET .*/pods/a")) == 4
    api.fault("POST", kube_api.send_text('{"a":', length=100))  # it may have been carried out
    assert client.ask("create", body=pod("b"))["status"] == "GR_E_PEER_LOST"
    assert len(api.asked("^POST")) == 1


def test_retry_after_is_obeyed(api, client):
    api.fault("POST", kube_api.refuse(429, headers={"Retry-After": 1}))
    api.fault("POST", kube_api.refuse(503, headers={"Retry-After": 1}))
    assert client.ask("create", body=pod("b"))["status"] == "GR_OK"
    assert len(api.asked("^POST")) == 3
    api.fault("POST", kube_api.refuse(429, "slow down"), times=100)
    said = client.ask("create", body=pod("c"))
    assert (said["status"], said["said"]) == \
        ("GR_E_PEER_SLOW", "cannot create pods in team: TooManyRequests: slow down")


def test_hanging_and_flooding_servers_are_left(api, tmp_path):
    with Client(api.kubeconfig(tmp_path / "config"), 0, 0, 0, 300, 1 << 20) as client:
        api.fault("pods/a", kube_api.hang)
        assert client.ask("get", name="a")["status"] == "GR_E_TIMEOUT"
    with Client(api.kubeconfig(tmp_path / "config"), 0, 0, 0, 0, 1 << 20) as client:
        api.fault("pods", kube_api.flood(64 << 20))
        said = client.ask("list")
        assert said["status"] == "GR_E_NO_MEMORY"
        assert said["said"] == "cannot list pods in team: an object is larger than 1048576 bytes"
        assert is_sanitized() or client.next(client.start("memory"))["peak_kib"] < 64 << 10


def test_memory_does_not_grow_with_a_list(api, client):
    for i in range(200):
        api.put(PODS, {**pod(f"p{i}"), "data": {"x": "y" * 100000}})
    before = client.next(client.start("memory"))["peak_kib"]
    assert client.ask("list", quiet=True)["items"] == 200  # 20 MB in one answer
    assert is_sanitized() or client.next(client.start("memory"))["peak_kib"] - before < 8 << 10


def test_requests_are_paced(api, tmp_path):
    with Client(api.kubeconfig(tmp_path / "config"), 50, 2) as client:
        numbers = [client.start("get", name="a") for _ in range(12)]
        for number in numbers:
            assert client.next(number)["http"] == 404
    # 10 after a burst of 2, at 50 a second: not faster, however busy the machine is.
    assert len(api.requests) == 12


def test_server_must_be_the_one_of_the_ca(api, certificates, tmp_path):
    path = tmp_path / "config"
    api.put(PODS, pod("a"))
    other = str(certificates / "other-ca.pem")
    for cluster, good in (({"certificate_authority_data": None}, False),
                          ({"certificate_authority_data": None, "certificate_authority": other},
                           False),
                          ({"tls_server_name": "api.test"}, True),
                          ({"tls_server_name": "wrong.test"}, False),
                          ({"certificate_authority_data": None,
                            "certificate_authority": str(certificates / "ca.pem")}, True)):
        with Client(api.kubeconfig(path, **cluster)) as client:
            said = client.ask("get", name="a")
        assert said["status"] == ("GR_OK" if good else "GR_E_AUTH"), (cluster, said)
        if not good:
            assert "certificate" in said["said"]
    hosts = {request[1]["Host"] for request in api.requests}
    assert hosts == {api.url.removeprefix("https://")}


def test_proxy_of_the_kubeconfig_is_taken_whatever_the_environment_says(api, tmp_path):
    api.put(PODS, pod("a"))
    without = {name: "127.0.0.1,localhost" for name in ("NO_PROXY", "no_proxy")}
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        url = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        with Client(api.kubeconfig(tmp_path / "config", proxy_url=url),
                    env={**os.environ, **without}) as client:
            asked = client.start("create", body=pod("b"))  # which is not tried again
            proxy.settimeout(TIMEOUT_S)
            with proxy.accept()[0] as connection:
                line = connection.makefile("rb").readline().decode()
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            assert line == f"CONNECT 127.0.0.1:{api.port} HTTP/1.1\r\n"
            assert client.next(asked, lambda line: "status" in line)["status"] != "GR_OK"
    assert not api.requests


def test_client_certificates_are_shown(api, certificates, tmp_path):
    api.put(PODS, pod("a"))
    user = {"client-certificate": str(certificates / "client.pem"),
            "client-key": str(certificates / "client.key")}
    with Client(api.kubeconfig(tmp_path / "config", user=user)) as client:
        assert client.ask("get", name="a")["status"] == "GR_OK"
    user["client-key"] = str(certificates / "server.key")
    with Client(api.kubeconfig(tmp_path / "config", user=user)) as client:
        said = client.ask("get", name="a")
        assert said["status"] == "GR_E_AUTH" and "check client-certificate" in said["said"]


def test_token_is_read_again_when_it_is_refused(api, tmp_path):
    (tmp_path / "token").write_text("old")
    api.put(PODS, pod("a"))
    with Client(api.kubeconfig(tmp_path / "config", user={"tokenFile": "token"})) as client:
        (tmp_path / "token").write_text("right")
        assert client.ask("get", name="a")["status"] == "GR_OK"
    (tmp_path / "token").unlink()
    assert "token" in refused(tmp_path / "config")


def test_plugin_that_fails_is_a_sentence(api, tmp_path):
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./login"}}
    path = api.kubeconfig(tmp_path / "config", user=user)
    assert "No such file" in refused(path)
    (tmp_path / "login").write_text("#!/bin/sh\necho wrong >&2\nexit 1\n")
    (tmp_path / "login").chmod(0o755)
    assert "ended with exit code 1" in refused(path)


def test_unreachable_server_is_named(api, tmp_path):
    path = api.kubeconfig(tmp_path / "config")
    url = api.url
    api.close()
    with Client(path) as client:
        said = client.ask("get", name="a")
    assert said["status"] == "GR_E_PEER_LOST" and url in said["said"]


def test_watch_follows_what_happens(api, client):
    api.put(PODS, pod("a"))
    number = client.start("watch")
    assert client.events(number, "SYNCED") == ["RESYNC", "ADDED a", "SYNCED"]
    api.wait(lambda: api.watches == 1)
    api.put(PODS, pod("b"))
    api.put(PODS, pod("a", x="y"))
    api.put("/v1/secrets", pod("s"))
    api.remove(PODS, "b")
    assert client.events(number, "DELETED") == ["ADDED b", "MODIFIED a", "DELETED b"]
    client.send("stop", number)
    api.wait(lambda: api.watches == 0)


def test_watch_goes_on_where_it_was(api, client):
    number = client.start("watch")
    client.event(number, "SYNCED")
    for name in ("a", "b", "c"):
        api.wait(lambda: api.watches == 1)
        api.drop_watches()
        api.put(PODS, pod(name))
        assert client.events(number, "ADDED") == [f"ADDED {name}"]
    assert len(api.asked("limit=")) == 1
    for thing in (kube_api.send_text('{"type":', length=99), kube_api.refuse(429)):
        api.fault("watch=1", thing)
        api.drop_watches()
        assert client.events(number, "TROUBLE") == ["TROUBLE"]
        api.wait(lambda: api.watches == 1)
    api.put(PODS, pod("d"))
    assert client.events(number, "ADDED") == ["ADDED d"]


def test_watch_lists_again_when_its_place_has_expired(api, client):
    api.put(PODS, pod("a"))
    number = client.start("watch")
    client.event(number, "SYNCED")
    api.wait(lambda: api.watches == 1)
    api.fault("watch=1", kube_api.refuse(410))  # as HTTP
    api.drop_watches()
    assert client.events(number, "SYNCED") == ["RESYNC", "ADDED a", "SYNCED"]
    api.wait(lambda: api.watches == 1)
    with api.changed:  # as an event, behind what was missed
        api.drop_watches()
        api.drop(PODS, "team", "a")
        api.store(PODS, "team", pod("b"))
        api.compact()
    assert client.events(number, "SYNCED") == ["RESYNC", "ADDED b", "SYNCED"]


def test_watch_survives_garbage(api, client):
    number = client.start("watch")
    client.event(number, "SYNCED")
    for text in (b"garbage", b'{"type":"ADDED"}\n', b'{"type":"WHAT","object":{}}\n', b"{}{}",
                 b'{"type":"ERROR","object":{"code":500,"message":"etcd is away"}}\n'):
        api.wait(lambda: api.watches == 1)
        api.send_raw(text)
        said = client.event(number, "TROUBLE")["said"]
        assert "watch" in said and "pods" in said, said
        api.drop_watches()
        api.put(PODS, pod("a"))
        assert client.next(number, lambda line: line["event"] in ("ADDED", "MODIFIED"))
        api.remove(PODS, "a")
        client.event(number, "DELETED")


def test_watch_that_says_nothing_is_taken_for_dead(api, tmp_path):
    api.bookmarks_s = 0.05
    with Client(api.kubeconfig(tmp_path / "config"), 0, 0, 1000) as client:
        number = client.start("watch")
        client.event(number, "SYNCED")
        for _ in range(3):
            client.event(number, "BOOKMARK")
        api.freeze()
        said = client.event(number, "TROUBLE")["said"]
        assert said == "the watch of pods has said nothing for 1 s; its connection is taken " \
            "for dead"
        api.put(PODS, pod("a"))
        api.freeze(False)
        assert client.events(number, "ADDED")[-1] == "ADDED a"


def test_watch_is_stopped_anywhere(api, client):
    for i in range(50):
        number = client.start("watch", quiet=True)
        if i % 2:
            client.event(number, "SYNCED")
        client.send("stop", number)
        client.next(number, lambda line: "stopped" in line)
    api.wait(lambda: api.watches == 0)


def test_many_events_in_any_cuts(api, client):
    number = client.start("watch")
    client.event(number, "SYNCED")
    api.wait(lambda: api.watches == 1)
    for i in range(300):
        api.put(PODS, {**pod(f"p{i:03}"), "data": {"x": "}{\"" * (i * 7 % 900)}})
    seen = client.events(number, "ADDED p299")
    assert seen == [f"ADDED p{i:03}" for i in range(300)]


LEASES = "coordination.k8s.io/v1/leases"


def lead(client, identity, seconds=60):
    """A busy machine holds a candidate up for seconds: it is not to lose the lease by that."""
    return client.start("lease", name="op", identity=identity, seconds=seconds)


def test_one_of_two_leads_and_the_other_takes_over(api, tmp_path):
    path = api.kubeconfig(tmp_path / "config")
    with Client(path) as one, Client(path) as two:
        first = lead(one, "one")
        assert one.next(first) == {"id": first, "leads": True, "leader": "one"}
        second = lead(two, "two")
        assert two.next(second) == {"id": second, "leads": False, "leader": "one"}
        one.send("release", first)
        assert one.next(first)["released"]
        two.next(second, lambda line: line["leads"])
        first = lead(one, "one")  # and back, when the other is killed
        assert one.next(first) == {"id": first, "leads": False, "leader": "two"}
        two.process.kill()
        two.process.wait()
        lease = api.get(LEASES, "op")
        lease["spec"]["leaseDurationSeconds"] = 1
        api.put(LEASES, lease)
        one.next(first, lambda line: line["leads"])
        spec = api.get(LEASES, "op")["spec"]
        assert spec["holderIdentity"] == "one" and spec["leaseTransitions"] >= 1
        two.process.stdin.close()
        two.close = lambda: None


def test_leader_without_a_server_leads_no_more(api, client):
    number = lead(client, "one", seconds=2)
    client.next(number, lambda line: line["leads"])  # the first answer may come too late
    api.fault("leases", kube_api.refuse(500), times=10 ** 6)
    client.next(number, lambda line: not line["leads"])
    api.faults.clear()
    client.next(number, lambda line: line["leads"])


def test_events_are_written_and_count_up(api, client):
    about = api.put("kubeflow.org/v1/mpijobs", {**pod("j"), "kind": "MPIJob"})

    def forget(handler):  # as the server does after an hour
        api.remove("/v1/events", handler.path.split("/")[-1])
        kube_api.refuse(404)(handler)

    def events():
        return sorted((thing["reason"], thing["count"], thing["involvedObject"]["uid"])
                      for key, thing in api.objects.items() if key[0] == "/v1/events")

    api.fault("^PATCH.*/events", forget)
    for _ in range(3):
        client.start("event", body=about, reason="Created", message="It is there.")
    client.start("event", body=about, reason="Failed", message="It is not.")
    uid = about["metadata"]["uid"]
    api.wait(lambda: events() == [("Created", 3, uid), ("Failed", 1, uid)], "the events")

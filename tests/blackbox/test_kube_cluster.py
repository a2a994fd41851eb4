# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes API client against a real kube-apiserver (kube_cluster.py)."""
import base64
import json

import pytest

from conftest import wait_until
from kube_client import Client, pod
from kube_fixtures import control_plane

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with control_plane(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def client(cluster):
    with Client(cluster.kubeconfig) as client:
        yield client


def config_map(name, **data):
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


MAPS = {"plural": "configmaps"}


def test_objects_are_written_and_read(client):
    made = client.ask("create", body=config_map("a", x="1"), manager="gradus", **MAPS)
    assert made["status"] == "GR_OK", made
    assert client.ask("create", body=config_map("a"), **MAPS)["status"] == "GR_E_IN_USE"
    thing = client.ask("merge", name="a", body={"data": {"y": "2"}}, **MAPS)["object"]
    assert thing["data"] == {"x": "1", "y": "2"}
    stale = client.ask("replace", name="a", body=made["object"], **MAPS)
    assert (stale["status"], stale["http"]) == ("GR_E_AGAIN", 409)
    applied = config_map("a", x="9")
    said = client.ask("apply", name="a", body=applied, manager="other", **MAPS)
    assert said["http"] == 409 and "conflict" in said["said"]
    said = client.ask("apply", name="a", body=applied, manager="other", force=True, **MAPS)
    assert said["object"]["data"] == {"x": "9", "y": "2"}
    wrong = client.ask("create", body=config_map("A_"), **MAPS)
    assert wrong["status"] == "GR_E_INVALID" and "Invalid value" in wrong["said"]
    uid = made["object"]["metadata"]["uid"]
    assert client.ask("delete", name="a", uid="other", **MAPS)["http"] == 409
    assert client.ask("delete", name="a", uid=uid, propagation="Background",
                      **MAPS)["status"] == "GR_OK"
    assert client.ask("get", name="a", **MAPS)["status"] == "GR_E_NOT_FOUND"


def test_status_is_a_resource_of_its_own(client):
    body = pod("p")
    body["spec"] = {"schedulerName": "nobody", "containers": [{"name": "c", "image": "none"}]}
    thing = client.ask("create", body=body)["object"]
    thing["status"]["message"] = "said by a test"
    said = client.ask("replace", name="p", subresource="status", body=thing)
    assert said["object"]["status"]["message"] == "said by a test"
    client.ask("delete", name="p")


def test_lists_come_in_parts(client):
    for i in range(25):
        assert client.ask("create", body=config_map(f"list-{i:02}"), **MAPS)["status"] == "GR_OK"
    number = client.start("list", limit=4, **MAPS)
    names = []
    while True:
        line = client.next(number)
        if "status" in line:
            break
        names.append(line["item"]["metadata"]["name"])
    assert [name for name in names if name.startswith("list-")] == \
        [f"list-{i:02}" for i in range(25)]
    assert line["items"] == len(names)


def test_watch_goes_on_when_the_server_is_killed(cluster, client):
    number = client.start("watch", **MAPS)
    client.event(number, "SYNCED")
    assert client.ask("create", body=config_map("w1"), **MAPS)["status"] == "GR_OK"
    assert client.events(number, "ADDED")[-1] == "ADDED w1"
    cluster.restart_server()
    wait_until(lambda: client.ask("get", name="w1", **MAPS)["status"] == "GR_OK", "the server")
    assert client.ask("create", body=config_map("w2"), **MAPS)["status"] == "GR_OK"
    client.next(number, lambda line: line["event"] == "ADDED"
                and line["object"]["metadata"]["name"] == "w2")
    client.ask("delete", name="w1", **MAPS)
    assert client.event(number, "DELETED")["object"]["metadata"]["name"] == "w1"


def test_missing_right_is_named(cluster, tmp_path):
    cluster.kubectl("-n", "team", "create", "serviceaccount", "weak")
    token = cluster.kubectl("-n", "team", "create", "token", "weak").strip()
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    config["users"][0]["user"] = {"token": token}
    (tmp_path / "config").write_text(json.dumps(config))
    with Client(tmp_path / "config") as client:
        said = client.ask("create", body=config_map("x"), **MAPS)
        assert said["status"] == "GR_E_AUTH"
        assert said["said"].endswith('a role must allow "create" on configmaps of API group "" in '
                                     "namespace team")
        number = client.start("watch", **MAPS)
        assert '"list" on configmaps' in client.event(number, "TROUBLE")["said"]
    config["users"][0]["user"] = {"token": token[:-8] + base64.b64encode(b"wrong!").decode()}
    (tmp_path / "config").write_text(json.dumps(config))
    with Client(tmp_path / "config") as client:
        said = client.ask("get", name="x", **MAPS)
        assert said["status"] == "GR_E_AUTH" and "does not know who asks" in said["said"]


def test_one_of_two_leads(cluster):
    with Client(cluster.kubeconfig) as one, Client(cluster.kubeconfig) as two:
        first = one.start("lease", name="op", identity="one", seconds=60)
        assert one.next(first)["leads"]
        second = two.start("lease", name="op", identity="two", seconds=60)
        assert two.next(second) == {"id": second, "leads": False, "leader": "one"}
        one.send("release", first)
        assert one.next(first)["released"]
        two.next(second, lambda line: line["leads"])


def test_events_are_shown(cluster, client):
    about = client.ask("create", body=config_map("told"), **MAPS)["object"]
    for _ in range(3):
        client.start("event", body=about, reason="Created", message="It is there.")

    def shown():
        events = json.loads(cluster.kubectl("-n", "team", "get", "events", "-o", "json"))["items"]
        return [(one["reason"], one["count"]) for one in events
                if one["involvedObject"]["name"] == "told"]

    wait_until(lambda: shown() == [("Created", 3)], "the event")

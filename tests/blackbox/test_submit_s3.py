# SPDX-License-Identifier: Apache-2.0
"""`gradus submit` with a program that travels by a store of objects."""
import hashlib
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile

import pytest

import s3_store
from conftest import TIMEOUT_S
from kube_fixtures import certificates  # noqa: F401 (a fixture)
from kube_pods import JOBS
from s3_store import Store
from submit_fixtures import api, cluster as cluster_alone, code  # noqa: F401 (fixtures)

SECRETS, MAPS = "/v1/secrets", "/v1/configmaps"


@pytest.fixture
def store():
    store = Store()
    yield store
    store.close()


@pytest.fixture
def cluster(cluster_alone, store, tmp_path):
    """That finds the keys of the store."""
    cluster_alone.settings["HOME"] = str(tmp_path)
    cluster_alone.settings.update(store.settings())
    return cluster_alone


def submit(cluster, *words):
    return cluster("submit", "--name", "demo", *words)


def send(cluster, *words):
    done = submit(cluster, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(api, done, *words, code=2):
    assert done.returncode == code, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.startswith("gradus: ") and done.stderr.count("\n") == 1, done.stderr
    assert "Signature=" not in done.stderr and s3_store.SECRET not in done.stderr
    assert not api.objects and not any(method == "POST" for method, *_ in api.requests)


def pod_of(api):
    return api.get(JOBS, "demo")["spec"]["template"]["spec"]


def fetch(api, folder, programs, url=None):
    """Does what the container does that fetches, with those programs alone in its image."""
    container = pod_of(api)["initContainers"][0]
    image, archive, work = folder / "image", folder / "archive", folder / "work"
    for one in (image, archive, work):
        one.mkdir(parents=True)
    for name in ("sh", "tar", "gzip", "sha256sum", "rm", *programs):
        path = sys.executable if name == "python3" else shutil.which(name)
        (image / name).symlink_to(os.path.realpath(path))
    assert container["command"][:2] == ["/bin/sh", "-c"]
    script = container["command"][2].replace("/gradus/code", str(archive)).replace(
        "/gradus/work", str(work))
    env = {"PATH": str(image)}
    for one in container["env"]:
        if "valueFrom" in one:
            key = one["valueFrom"]["secretKeyRef"]
            env[one["name"]] = api.get(SECRETS, key["name"])["stringData"][key["key"]]
        else:
            env[one["name"]] = one["value"]
    if url is not None:
        env["GRADUS_CODE_URL"] = url
    return subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True,
                          timeout=TIMEOUT_S), work


def test_uploaded_folder_is_fetched_by_pods_without_keys(api, cluster, store, code, tmp_path):
    out = send(cluster, "--workers", 2, "--code", "code", "--upload", "s3://code/jobs", "--", "cat",
               "code/train.py")
    (path, data), = store.objects.items()
    assert path == f"/code/jobs/gradus-{hashlib.sha256(data).hexdigest()[:16]}.tar.gz"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.extractfile("data").read() == (code / "data").read_bytes()
    pod = pod_of(api)
    assert pod["containers"][0]["command"] == ["cat", "./train.py"] and not api.names(MAPS)
    assert pod["containers"][0]["image"] == "docker.io/library/debian:stable-slim"
    assert pod["initContainers"][0]["image"] == "docker.io/library/python:3-slim"
    secret = api.get(SECRETS, "demo-code")
    url = secret["stringData"]["url"]
    assert url.startswith(f"{store.url}{path}?") and "X-Amz-Expires=604800" in url
    assert secret["metadata"]["ownerReferences"][0]["name"] == "demo"
    shown = out + json.dumps(api.get(JOBS, "demo"))
    assert "Signature=" not in shown and s3_store.SECRET not in shown + url
    found = [name for name in ("curl", "python3", "wget") if shutil.which(name)]
    for name in found:
        done, work = fetch(api, tmp_path / name, [name])
        assert done.returncode == 0, (name, done.stderr)
        assert (work / "data").read_bytes() == (code / "data").read_bytes(), name
    assert "python3" in found


def test_what_was_uploaded_twice_is_one_object(api, cluster, store, code):
    send(cluster, "--code", "code", "--upload", "s3://code/", "--", "true")
    api.remove(JOBS, "demo")
    done = cluster("submit", "--name", "other", "--code", "code", "--upload", "s3://code/", "--",
                   "true")
    assert done.returncode == 0, done.stderr
    assert len(store.objects) == 1


def test_other_program_than_the_uploaded_one_is_not_run(api, cluster, store, tmp_path):
    (tmp_path / "program").write_text("#!/bin/sh\n")
    send(cluster, "--upload", "s3://code/", "--", "./program")
    (path, _), = store.objects.items()
    store.objects[path] = b"something else"
    done, work = fetch(api, tmp_path / "fetch", ["python3"])
    assert done.returncode != 0 and not list(work.iterdir())
    assert "what was fetched is not the program that was uploaded" in done.stderr


def test_image_that_cannot_fetch_says_so(api, cluster, tmp_path):
    (tmp_path / "program").write_text("#!/bin/sh\n")
    send(cluster, "--image", "img", "--upload", "s3://code/", "--", "./program")
    assert pod_of(api)["initContainers"][0]["image"] == "img"
    done, _ = fetch(api, tmp_path / "fetch", [])
    assert done.returncode == 1 and "none of curl, python3 and wget" in done.stderr


@pytest.mark.parametrize("url", ["s3://code/train.tar.gz", "https://host/train.tar.gz?a=b"])
def test_archive_that_is_there_is_fetched(api, cluster, store, url):
    send(cluster, "--image", "img", "--code-image", "curl", "--code", url, "--", "python",
         "train.py")
    pod = pod_of(api)
    assert pod["initContainers"][0]["image"] == "curl" and not store.asked
    assert pod["containers"][0]["command"] == ["python", "train.py"]
    assert pod["containers"][0]["workingDir"] == "/gradus/work"
    signed = api.get(SECRETS, "demo-code")["stringData"]["url"]
    assert signed.startswith(f"{store.url}/code/train.tar.gz?X-Amz-" if url[0] == "s" else url)


def test_dry_run_uploads_nothing_and_shows_no_signature(api, cluster, store, code):
    out = send(cluster, "--dry-run", "--code", "code", "--upload", "s3://code/", "--", "true")
    assert 'url: "not shown' in out and "Signature=" not in out
    assert not store.asked and not api.requests


def test_upload_by_tls_checks_the_certificate(api, cluster, certificates, code, tmp_path):
    store = Store(certificates)
    try:
        cluster.settings.update(store.settings())
        words = ("--code", "code", "--upload", "s3://code/", "--", "true")
        refused(api, submit(cluster, *words), store.url, "ertificate")
        cluster.settings["AWS_CA_BUNDLE"] = str(certificates / "ca.pem")
        send(cluster, *words)
        assert len(store.objects) == 1
    finally:
        store.close()


def test_store_that_fails_for_a_moment_is_asked_again(cluster, store, code):
    def drop(handler):
        handler.close_connection = True

    store.faults += [lambda handler: handler.refuse(503, "SlowDown", "later"), drop]
    send(cluster, "--code", "code", "--upload", "s3://code/", "--", "true")
    assert len(store.objects) == 1 and len(store.asked) == 3


def flood(handler):
    handler.send_response(400)
    handler.end_headers()
    try:
        for _ in range(1000):
            handler.wfile.write(b"<" * 10000)
    except OSError:
        pass
    handler.close_connection = True


@pytest.mark.parametrize("fault, words", [
    (lambda handler: handler.refuse(404, "NoSuchBucket", "There is none"),
     ("404 NoSuchBucket: There is none",)),
    (lambda handler: handler.refuse(403, "Evil\x1b[2J", "x" * 5000), ("403 Evil [2J: xxx",)),
    (flood, ("400",)),
])
def test_store_that_refuses_is_told_and_nothing_is_sent(api, cluster, store, code, fault, words):
    store.faults.append(fault)
    refused(api, submit(cluster, "--code", "code", "--upload", "s3://code/a", "--", "true"),
            f"{store.url}/code/a/gradus-", *words)


def test_wrong_keys_are_told(api, cluster, code):
    cluster.settings["AWS_SECRET_ACCESS_KEY"] = "another"
    refused(api, submit(cluster, "--code", "code", "--upload", "s3://code/", "--", "true"),
            "403 SignatureDoesNotMatch")
    cluster.settings["AWS_SECRET_ACCESS_KEY"] = ""
    refused(api, submit(cluster, "--code", "code", "--upload", "s3://code/", "--", "true"),
            "there are no keys for s3://", "AWS_ACCESS_KEY_ID")


def test_store_that_is_not_there_is_told(api, cluster, code):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        cluster.settings["AWS_ENDPOINT_URL"] = url
        refused(api, submit(cluster, "--code", "code", "--upload", "s3://code/", "--", "true"),
                f"{url}/code/gradus-", code=1)


@pytest.mark.parametrize("words, sentence", [
    (("--code", "http://host/a.tar.gz"), "http:// would let anybody on the way replace it"),
    (("--code", "ftp://host/a.tar.gz"), "https://HOST/PATH or s3://BUCKET/KEY"),
    (("--code", "s3://Code/a"), "it must be s3://BUCKET/KEY"),
    (("--code", "s3://code/a", "--upload", "s3://code/b"), "--upload means nothing"),
    (("--upload", "s3://code/b"), "no file or folder travels"),
    (("--upload", "/folder"), "it must be s3://BUCKET/FOLDER"),
    (("--code", "pvc:a:/b", "--upload", "s3://code/b"), "no file or folder travels"),
])
def test_wrong_words_are_refused(api, cluster, words, sentence):
    refused(api, submit(cluster, *words, "--", "true"), sentence)


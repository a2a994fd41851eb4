# SPDX-License-Identifier: Apache-2.0
"""How far a job has come: the page of a worker."""
import contextlib
import http.client
import json
import random
import re
import signal
import socket

import pytest

from conftest import TIMEOUT_S, wait_until, write_digits

PORT = 29502


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

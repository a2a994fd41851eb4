# SPDX-License-Identifier: Apache-2.0
"""Fault injection: faults happen, and the job survives them with the same bits."""
import os
import time

import pytest
from conftest import (cases, finish, is_sanitized, lines_of, sha256_of, unhurried,
                      wait_for_event)

EPOCHS = 6
# Longer than a worker on a busy machine waits for a core.
FENCE = "8s" if is_sanitized() else "3s"


def run(gradus, job, output, *flags, env=None):
    begin = time.monotonic()
    done = gradus("run", "-np", 4, "--output", output, *flags, job, env=env)
    assert done.returncode == 0, done.stderr
    lines = lines_of(output)
    return lines[-1]["weights_sha256"], lines, done, time.monotonic() - begin


def test_kill_at_a_step(gradus, job, undisturbed, tmp_path):
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--restarts", 0, "--chaos",
                                 "kill:rank=2@step=50; garbage:rank=1@step=55; kill:rank=0@step=90")
    assert sha256 == undisturbed
    recovered = [(line["step"], line["workers"]) for line in lines if line["event"] == "recovered"]
    assert recovered == [(49, 3), (89, 2)]
    assert done.stderr.count("was killed by signal 9") == 2
    gradus.wait_for_nothing()


def test_garbage_at_the_door_of_a_worker(gradus, job, undisturbed, tmp_path):
    """It stands open for some milliseconds only, while the others make their links to it."""
    for turn in range(10):
        sha256, _, done, _ = run(gradus, job, tmp_path / f"out{turn}", "--restarts", 0,
                                 "--chaos", "kill:rank=2@step=50; garbage:rank=1@step=50",
                                 env={"GRADUS_LOG": "debug"})
        assert sha256 == undisturbed
        if "[1] gradus: debug: link: closed a connection from this host: " in done.stderr:
            return
    raise AssertionError("no intruder came to the door of rank 1")


@pytest.mark.parametrize("flags", [["stop:rank=1@step=20,for=1500ms"],
                                   ["cut:rank=1@step=20,for=1500ms", "--link", "tcp"]])
def test_waiting_for_one_that_comes_back(gradus, job, undisturbed, tmp_path, flags):
    sha256, lines, _, seconds = run(gradus, job, tmp_path / "out", "--chaos", *flags)
    assert sha256 == undisturbed and seconds > 1.5
    assert not [line for line in lines if line["event"] == "recovered"]


def test_slow(gradus, job, undisturbed, tmp_path):
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--chaos",
                                 f"slow:rank=3,x{5 if is_sanitized() else 20}")
    assert sha256 == undisturbed
    assert "rank 3 kept the others waiting" in done.stdout


def test_a_command_at_a_time(gradus, comm_script):
    """The one that is killed does not end by itself, and nobody but the launcher knows of the
    time."""
    done = gradus("run", "-np", 3, "--min-workers", 1, "--chaos", "kill:rank=1@time=300ms", "--",
                  *comm_script("""
create()
if library.gr_comm_size(comm) == 3:  # else it was killed before all had met
    while barrier() == 0:
        pass
    status = library.gr_comm_renew(ctypes.byref(comm), ctypes.byref(diag))
    assert status == 0, diag.text
assert barrier() == 0 and rank != 1
library.gr_comm_destroy(comm)
"""))
    assert done.returncode == 0, done.stderr
    assert "rank 1" in done.stderr and "was killed by signal 9" in done.stderr


# Programs that know nothing of Gradus. Rank 0 ends when rank 1 has seen what it waits for. A fault
# comes several times, since nobody knows when the program is ready for it.
def each_second(fault, count=30):
    return ";".join(fault.replace("TIME", f"{second}s") for second in range(1, count))


WORLD = """
import os, random, select, signal, socket, sys
rank, where = int(os.environ["RANK"]), ("127.0.0.1", int(os.environ["MASTER_PORT"]))
"""


def test_a_cable_of_any_program_is_cut(gradus, script, tmp_path):
    """Nothing arrives for a while, and later all of it."""
    os.mkfifo(tmp_path / "listens")
    done = gradus("run", "-np", 2, "--chaos", each_second("cut:rank=1@time=TIME,for=700ms"), "--",
                  *script(WORLD + """
if rank == 0:
    listener = socket.create_server(where)
    open("listens", "w").close()
    peer, _ = listener.accept()
    peer.settimeout(0.01)
    count = 0
    while True:
        peer.sendall(count.to_bytes(4, "little"))
        count += 1
        try:
            assert peer.recv(1) == b"!"
            sys.exit(0)
        except socket.timeout:
            pass
open("listens").close()
peer = socket.create_connection(where)
def is_cut():
    return len(peer.getsockopt(socket.SOL_SOCKET, 26, 8)) > 0  # SO_GET_FILTER
wanted, was_cut = 0, False
while not was_cut or is_cut() or wanted == before:
    if is_cut():
        was_cut, before = True, wanted
    if select.select([peer], [], [], 0.01)[0]:
        got = peer.recv(4, socket.MSG_WAITALL)
        assert int.from_bytes(got, "little") == wanted
        wanted += 1
peer.sendall(b"!")
"""))
    assert done.returncode == 0, done.stderr  # it was cut, or the loop would go on


def test_garbage_comes_to_any_program(gradus, script):
    done = gradus("run", "-np", 1, "--chaos", each_second("garbage:rank=0@time=TIME"), "--",
                  *script(WORLD + """
listener = socket.create_server(("127.0.0.1", 0), backlog=128)
sizes = []
while len(sizes) < 64:
    peer, _ = listener.accept()
    data = b""
    try:
        while part := peer.recv(8192):
            data += part
    except ConnectionResetError:
        pass
    sizes.append(len(data))
assert 0 in sizes and max(sizes) > 3000, sizes  # it may have begun to listen amidst a fault
"""))
    assert done.returncode == 0, done.stderr


def test_any_program_is_slow(gradus, script):
    """It stands still in each period, and ends when it has been woken up often enough."""
    done = gradus("run", "-np", 1, "--chaos", "slow:rank=0,x4", "--", *script(WORLD + """
wakings = 0
def wake(*_):
    global wakings
    wakings += 1
signal.signal(signal.SIGCONT, wake)
while wakings < 10:
    pass
"""))
    assert done.returncode == 0, done.stderr


def test_a_fault_that_finds_nothing_says_so(gradus, script):
    """A program without any socket."""
    done = gradus("run", "-np", 1, "--chaos",
                  "cut:rank=0@time=10ms,for=10ms; kill:rank=0@time=300ms", "--", "sleep", "60")
    assert done.returncode == 1
    assert "rank 0 has no tcp link that could be cut" in done.stderr


@pytest.mark.parametrize("link, rank", cases(3, ["shm", "tcp"], [0, 2]))
def test_a_stopped_worker_is_fenced(gradus, job, undisturbed, tmp_path, link, rank):
    """Rank 0 too, which writes what the job leaves; nobody wakes up later and writes as well. Where
    all is slow another worker would come in its place before the end: none is wanted."""
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--link", link,
                                 "--fence-after", FENCE, "--restarts", 0,
                                 "--chaos", f"stop:rank={rank}@step=40,for=60s")
    assert sha256 == undisturbed
    recovered = [(line["step"], line["workers"]) for line in lines if line["event"] == "recovered"]
    assert recovered == [(39, 3)]
    assert f"rank {rank} (pid" in done.stderr and "it is fenced (--fence-after)" in done.stderr
    assert sum(line["event"] == "epoch" for line in lines) == 6
    gradus.wait_for_nothing()


def test_one_that_wakes_up_in_time_stays(gradus, job, undisturbed, tmp_path):
    """The others have given up an operation; it joins them again."""
    sha256, lines, done, _ = run(gradus, job, tmp_path / "out", "--fence-after", "8s",
                                 "--chaos", "stop:rank=1@step=40,for=6500ms")
    assert sha256 == undisturbed and "fenced" not in done.stderr
    assert [line["workers"] for line in lines if line["event"] == "recovered"] == [4]


@pytest.mark.parametrize("text, sentence", [
    ("kil:rank=1", '"kil:rank=1": a fault is kill:, stop:'),
    ("kill:rank=1@step=3; kill:rnk=1@step=3", 'in "kill:rnk=1@step=3": "rnk=" means nothing'),
    ("kill:rank=4@step=3", "the job has 4 workers, ranks 0 to 3"),
    ("kill:rank=1", "kill is written as kill:rank=2@step=50"),
    ("kill:rank=1@step=3,time=3s", "kill is written as"),
    ("stop:rank=1@step=3", "stop is written as stop:rank=1@step=80,for=3s"),
    ("slow:rank=1,x0", 'x: must be a number from 1 to 1000, not "0"'),
    ("slow:rank=1", "slow is written as slow:rank=3,x4 or slow:rank=3,by=100ms@step=50,until="),
    ("slow:rank=1,x2,by=1s", "slow is written as"),
    ("slow:rank=1,by=1s@time=3s", "slow is written as"),
    ("slow:rank=1,by=1s,until=over", "until= is a path that begins with /"),
    ("kill:rank=1@step=3,until=/over", "kill is written as"),
    ("kill:rank=1@step=1,step=2", "step= stands there twice"),
    ("kill", "kill is written as"),
    ("kill:nobody", '"nobody" is no part of a fault'),
    ("cut:rank=1@step=3,for=1s", "add --link tcp"),
    (";".join(["kill:rank=1@step=3"] * 65), "more than 64 faults")])
def test_wrong_orders_are_refused(gradus, job, text, sentence):
    done = gradus("run", "-np", 4, "--chaos", text, job)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr


@pytest.mark.parametrize("text", ["kill:rank=1@step=3", "slow:rank=1,x2@step=3",
                                  "slow:rank=1,by=1s", "slow:rank=1,x2,until=/over",
                                  "slow:rank=1,x2,again"])
def test_a_command_has_no_steps(gradus, text):
    done = gradus("run", "-np", 2, "--chaos", text, "--", "true")
    assert done.returncode == 2 and "a command has no steps" in done.stderr
    is_slow = text.startswith("slow")
    assert is_slow == ("slow all the time" in done.stderr) != ("@time=" in done.stderr)


def test_slow_until_a_file_is_there(gradus, job, undisturbed, tmp_path):
    """From a step on, whoever is rank 0 then."""
    output = tmp_path / "out"
    begin = time.monotonic()
    with unhurried(tmp_path, step=40) as slow:
        launcher = gradus.start("run", "-np", 4, "--output", output, "--chaos",
                                f"{slow}; kill:rank=0@step=30", job)
        wait_for_event(output, "epoch", 2)  # step 44
        assert time.monotonic() - begin >= 5 * 0.25
    finish(launcher)
    assert sha256_of(output) == undisturbed

# SPDX-License-Identifier: Apache-2.0
"""`gradus run --roles`: tasks of TensorFlow, with a program in its place that checks TF_CONFIG,
listens where it says, and connects to all others."""
import json
import signal

import pytest
from conftest import read_lines
from test_ssh import two  # noqa: F401

TASK = '''
import json
import os
import socket
import sys
import threading

config = json.loads(os.environ["TF_CONFIG"])
cluster, task = config["cluster"], config["task"]
me = f"{task['type']} {task['index']}"
others = [(f"{role} {i}", at) for role in cluster for i, at in enumerate(cluster[role])]
assert len({at for _, at in others}) == len(others)
listener = None
if task["type"] != "evaluator":
    host, _, port = cluster[task["type"]][task["index"]].rpartition(":")
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("", int(port)))
    listener.listen(64)

    def serve():
        while True:
            with listener.accept()[0] as to:
                to.sendall(me.encode())
    threading.Thread(target=serve, daemon=True).start()
for name, at in others:
    host, _, port = at.rpartition(":")
    for _ in range(6000):  # until it listens
        try:
            with socket.create_connection((host, int(port)), timeout=100) as to:
                assert to.recv(100).decode() == name
                break
        except ConnectionRefusedError:
            threading.Event().wait(0.01)
    else:
        sys.exit(f"{name} does not listen at {at}")
print(me, "has met", len(others), flush=True)
folder, tasks = sys.argv[1], int(sys.argv[2])
open(os.path.join(folder, me), "w").close()
while task["type"] in ("ps", "evaluator") or len(os.listdir(folder)) < tasks:
    threading.Event().wait(0.01)  # who is through waits for the others, which connect to it
'''


def of_ranks(output):
    return sorted(line for line in output.splitlines())


@pytest.fixture
def met(tmp_path):
    """Where each task leaves a mark."""
    folder = tmp_path / "met"
    folder.mkdir()
    return folder


def test_roles_meet_and_the_job_ends_with_chief_and_workers(gradus, script, met):
    done = gradus("run", "--roles", "ps=2,evaluator=1,worker=3,chief=1", "--success-policy",
                  "all-workers", "--", *script(TASK), met, 7)
    assert done.returncode == 0, done.stderr
    names = ["chief 0", "worker 0", "worker 1", "worker 2", "ps 0", "ps 1", "evaluator 0"]
    assert of_ranks(done.stdout) == [f"[{rank}] {name} has met 6"
                                     for rank, name in enumerate(names)]


def test_roles_ports_are_of_the_range_that_is_asked_for(gradus, script, met):
    program = script('''
import os
import threading
print(os.environ["TF_CONFIG"], flush=True)
open(f"met/{os.environ['RANK']}", "w").close()
while len(os.listdir("met")) < 3:  # or the others end the parameter server
    threading.Event().wait(0.01)
''')
    done = gradus("run", "--roles", "worker=2,ps=1", "--", *program)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line.partition(" ")[2]) for line in of_ranks(done.stdout)]
    assert [line["task"] for line in lines] == [{"type": "worker", "index": 0},
                                                {"type": "worker", "index": 1},
                                                {"type": "ps", "index": 0}]
    assert all(line["cluster"] == lines[0]["cluster"] for line in lines)
    hosts = [at for role in lines[0]["cluster"].values() for at in role]
    assert len(hosts) == 3 and all(at.startswith("127.0.0.1:") for at in hosts)
    for mark in met.iterdir():
        mark.unlink()
    first = min(int(at.rpartition(":")[2]) for at in hosts)
    done = gradus("run", "--roles", "worker=2,ps=1", "--", *program,
                  env={"GRADUS_PORTS": f"{first}-{first + 20}"})
    assert done.returncode == 0, done.stderr
    config = json.loads(of_ranks(done.stdout)[0].partition(" ")[2])
    ports = {int(at.rpartition(":")[2]) for role in config["cluster"].values() for at in role}
    assert len(ports) == 3 and ports <= set(range(first, first + 21))
    done = gradus("run", "--roles", "worker=2,ps=1", "--", "true",
                  env={"GRADUS_PORTS": f"{first}-{first + 1}"})
    assert done.returncode == 1 and (f"no port of {first}-{first + 1} (GRADUS_PORTS) is free; each "
                                     "rank, each task of --roles and") in done.stderr, done.stderr


def test_roles_worker_that_fails_ends_the_job(gradus, script):
    program = script('''
import os
import sys
import threading
if '"worker","index":1' in os.environ["TF_CONFIG"]:
    sys.exit(3)
threading.Event().wait()
''')
    done = gradus("run", "--roles", "worker=2,ps=1", "--", *program)
    assert done.returncode == 1 and "rank 1 (pid" in done.stderr, done.stderr
    assert "exited with code 3" in done.stderr


def test_roles_job_that_is_asked_to_end_can_be_resumed(gradus, script):
    """Chief and workers say so; what becomes of a parameter server then does not count."""
    program = script('''
import json
import os
import signal
import sys
kind = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
if kind != "ps":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
print("up", flush=True)
while True:
    signal.pause()
''')
    launcher = gradus.start("run", "--roles", "worker=2,ps=1", "--grace", "60s", "--", *program)
    read_lines(launcher.stdout, 3)
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate()
    assert launcher.returncode == 75, err


SERVERS = '''
import json
import os
import threading
kind = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
if kind != "chief":
    threading.Event().wait()
'''


def test_roles_with_parameter_servers_end_with_the_chief(gradus, script):
    """Workers of ParameterServerStrategy are servers that never end."""
    done = gradus("run", "--roles", "chief=1,worker=2,ps=1", "--", *script(SERVERS))
    assert done.returncode == 0, done.stderr
    done = gradus("run", "--roles", "chief=1,worker=2", "--success-policy", "chief", "--",
                  *script(SERVERS))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("flags, words", [
    (["--roles", "chef=1,worker=2"], '"chef" is no role; roles are chief, master, worker, ps'),
    (["--roles", "chief=2"], "chief=2; a job has 1 of that role"),
    (["--roles", "worker=0"], "worker=0; a job has 1 to 4096 of that role"),
    (["--roles", "worker=1,worker=2"], "worker stands there twice"),
    (["--roles", "ps=2"], "names no chief and no worker"),
    (["--roles", "chief,master"], "two names of one task"),
    (["--roles", "worker=2", "-np", "3"], "2 tasks, -np 3 workers"),
    (["--roles", "worker=2", "--success-policy", "chief"], "names no chief"),
    (["--success-policy", "chief"], "--success-policy is for --roles"),
    (["--roles", "worker=2", "--min-workers", "1"], "leave --min-workers out"),
])
def test_roles_that_cannot_be_are_refused(gradus, flags, words):
    done = gradus("run", *flags, "--", "true")
    assert done.returncode == 2 and words in done.stderr, done.stderr


def test_roles_of_a_command_that_is_not_there(gradus):
    done = gradus("run", "--roles", "worker=1,ps=1", "--", "no-such-program")
    assert done.returncode == 1 and "command not found" in done.stderr, done.stderr


def test_roles_in_a_dry_run_say_who_is_who(gradus):
    done = gradus("run", "--roles", "chief=1,worker=3,ps=2", "--dry-run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "chief: rank 0\nworker: ranks 1 to 3\nps: ranks 4 to 5\n" in done.stdout


def test_roles_on_two_hosts_reach_each_other(two, script, met):  # noqa: F811
    a, b = two.names
    done = two.run("-H", f"{a}:2,{b}:2", "--roles", "chief=1,worker=2,ps=1", "--success-policy",
                   "all-workers", "--", *script(TASK), str(met), "4")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if "has met 4" in line]) == 4


def test_roles_on_the_launchers_host_and_another_reach_each_other(two, script, met):  # noqa: F811
    done = two.run("-H", f"localhost:2,{two.names[1]}:2", "--roles", "chief=1,worker=2,ps=1",
                   "--success-policy", "all-workers", "--", *script(TASK), str(met), "4")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if "has met 4" in line]) == 4

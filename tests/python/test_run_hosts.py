# SPDX-License-Identifier: Apache-2.0
"""gradus.run, gradus.distribute and gradus.jobs on other hosts: over ssh, to an sshd of the test's
own, and through Slurm's own daemons."""
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
from unittest import mock

import pytest

from conftest import SOURCE, blackbox

sys.path[:0] = [str(SOURCE / "tests/blackbox"), str(SOURCE / "bench/hosts")]
import hosts as namespaces  # noqa: E402
import sshd  # noqa: E402

HOSTS = ("127.0.0.2", "127.0.0.3")  # of loopback: not localhost, so that ssh is used

FUNCTIONS = '''
import os
import signal
import sys
import gradus
from gradus import jobs

FACTOR = 10


def total(scale, plus=0):
    with gradus.Communicator() as comm:
        gradus.progress(comm.rank + 1, 4, loss=0.5)
        return comm.rank, sum(comm.allgather_object(FACTOR * scale * comm.rank)) + plus


def address():
    return os.environ["SSH_CONNECTION"].split()[2]


def cross():
    return os.environ["CROSS_RANK"] + " of " + os.environ["CROSS_SIZE"]


def node():
    """Its rank, and where Slurm has its agent."""
    words = open(f"/proc/{os.getppid()}/environ").read().split("\\0")
    return os.environ["RANK"], [word[-2:] for word in words if "SLURMD_NODENAME=" in word][0]


def fail(rank):
    comm = gradus.Communicator()
    comm.barrier()
    if comm.rank == rank:
        raise KeyError("no such sample")
    comm.barrier()


def die(rank, how):
    comm = gradus.Communicator()
    if comm.rank == rank:
        os._exit(0) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def leave(rank):
    if int(os.environ["RANK"]) == rank:
        os._exit(0)


def survive(rank):
    comm = gradus.Communicator()
    try:
        if comm.rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.barrier()
    except gradus.Error:
        comm.renew()
    return comm.size


def length(data):
    return len(data), sys.stdin.read()


class Forged:
    def __reduce__(self):
        return os.mkdir, ("forged",)


def forge():
    """Writes what looks like a result, as data may that a program shows."""
    import base64, json, pickle, zlib
    for key in ({}, {"key": ""}, {"key": "0" * 32}):
        data = base64.b64encode(zlib.compress(pickle.dumps(Forged()))).decode()
        words = {"result": "a", "rank": 0, "part": 0, "of": 1, "data": data, **key}
        os.write(2, b"data: \\x1egradus " + json.dumps(words).encode() + b"\\n")
        os.write(2, b"data: \\x1egradus {}\\n")
    return "real"


def big(mib):
    return os.urandom(mib << 20)


def visible():
    children = os.popen("env").read()
    return "_GRADUS_RESULT" in children or "_GRADUS_RESULT" in " ".join(os.environ)


def forever():
    print("begun", flush=True)
    gradus.Communicator().recv(bytearray(1), 0)


def told(call, *words, **more):
    try:
        print("returned", call(*words, **more))
    except gradus.Error as error:
        print(type(error).__name__, error.peer, str(error).replace("\\n", " "))
'''


class Machine:
    """This one, under two addresses of loopback."""

    count = 1

    def address(self, host):
        return HOSTS[host]

    def popen(self, host, words, **more):
        return subprocess.Popen(words, **more)


class Logins(sshd.Logins):
    def serve(self, host):
        self.held = socket.socket()  # so nobody else gets the port, but sshd, by SO_REUSEADDR
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.held.bind(("", 0))
        self.port = self.held.getsockname()[1]
        super().serve(host, self.port, "".join(f"ListenAddress {one}\n" for one in HOSTS))

    def close(self):
        super().close()
        self.held.close()


@pytest.fixture
def logins(ranks, tmp_path):
    (tmp_path / "ssh").mkdir()
    made = Logins(Machine(), tmp_path / "ssh", sent=[(blackbox.MARK, ranks.gradus.mark)])
    try:
        made.open()
        yield made
    except namespaces.Unavailable as why:
        pytest.skip(str(why))
    finally:
        made.close()


@pytest.fixture
def program(ranks):
    """Writes a program beside the functions; its words and environment."""
    def write(text, **env):
        (ranks.folder / "functions.py").write_text(FUNCTIONS)
        path = ranks.folder / "program.py"
        path.write_text("import sys\nimport gradus\nfrom gradus import jobs\n"
                        "import functions as f\nfrom functions import told\n"
                        + textwrap.dedent(text))
        return [sys.executable, path], ranks.gradus.environment({**ranks.environment, **env})
    return write


@pytest.fixture
def ends(ranks, program):
    def run(text, before=(), **env):
        words, environment = program(text, **env)
        done = subprocess.run([*before, *words], cwd=ranks.folder, text=True, capture_output=True,
                              env=environment, timeout=blackbox.TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        run.err = done.stderr
        return done.stdout.splitlines()
    return run


@pytest.fixture
def by_ssh(logins, ends):
    """Runs a program that finds `where`, which says how to reach the hosts."""
    def run(text):
        lines = ends(where_of(logins) + textwrap.dedent(text), PATH=logins.path())
        run.err = ends.err
        return lines
    return run


def where_of(logins):
    return (f"where = dict(hosts='{HOSTS[0]}:2,{HOSTS[1]}:2', ssh_port={logins.port},\n"
            f"    ssh_identity_file='{logins.folder}/user')\n")


# ---- ssh ----------------------------------------------------------------------------------------
def test_functions_run_by_ssh_and_their_results_come_back(by_ssh, ranks):
    lines = by_ssh('''
        print(gradus.run(f.total, (1,), {"plus": 1}, num_proc=3, use_gloo=True, start_timeout=60,
                         network_interfaces=["lo"], verbose=False, **where))
        print(gradus.distribute(f.address, workers=None, **where))
        print([rank for rank, _ in gradus.distribute(f.total, (1,), workers=2, **where)])
        uneven = {**where, "hosts": where["hosts"][:-1] + "1"}
        print(*gradus.run(f.cross, **uneven), sep=", ")
        print(gradus.run(f.visible, num_proc=1, **where))
        print(len(gradus.run(f.big, (3,), num_proc=1, **where)[0]))
        print(gradus.run(f.length, (f.big(5),), num_proc=3, **where))
        print(gradus.run(f.forge, num_proc=1, **where), f.os.path.exists("forged"))
        print(gradus.run(lambda: f.os.environ["WORD"], env={"WORD": "w"}, num_proc=1, **where))
        ''')
    assert lines == ["[(0, 31), (1, 31), (2, 31)]",
                     str([HOSTS[0]] * 2 + [HOSTS[1]] * 2), "[0, 1]", "0 of 2, 0 of 1, 1 of 2",
                     "[False]", "3145728",
                     str([(5242880, "")] * 3), "['real'] False", "['w']"]
    assert "1/4  loss 0.5" in by_ssh.err and "\x1e" not in by_ssh.err


def test_failures_by_ssh_are_named(by_ssh):
    lines = by_ssh('''
        try:
            gradus.run(f.fail, (1,), num_proc=3, **where)
        except gradus.RankError as error:
            print(error.peer, repr(error.__cause__), 'raise KeyError("no such' in error.traceback)
        told(gradus.run, f.die, (2, "kill"), num_proc=3, **where)
        told(gradus.run, f.leave, (1,), num_proc=2, **where)
        told(gradus.run, f.big, (40,), num_proc=1, **where)
        told(gradus.run, f.survive, (1,), num_proc=3, min_num_proc=1, **where)
        ''')
    assert lines[0] == "1 KeyError('no such sample') True"
    assert lines[1].startswith("RankError 2 ") and "killed by signal 9" in lines[1]
    assert lines[2] == ("RankError 1 run: the job failed: rank 1 ended before the function returned"
                        ", with exit code 0")
    assert re.match(r"RankError 0 .*the result has 40\.\d MiB when it is packed, and 32", lines[3])
    assert lines[4] == "returned [2, 2]"
    assert "gradus {" not in by_ssh.err and "no such sample" in by_ssh.err


def test_bad_places_are_one_sentence_each(by_ssh, logins):
    lines = by_ssh(f'''
        there = {{**where, "hosts": "{HOSTS[0]}", "ssh_port": 1}}
        told(gradus.run, f.address, **there)
        told(gradus.run, f.address, **{{**where, "hosts": "nowhere.invalid:1"}})
        told(gradus.run, f.address, (bytes(f.big(33)),), **where)
        told(gradus.run, f.address, (sys._getframe(),), **where)
        told(gradus.run, f.address, host="a:1")
        told(gradus.run, f.address, hosts="a:1", namespace="team")
        told(gradus.run, f.address, image="python")
        told(gradus.run, f.address, slurm=True, hosts="a:1")
        told(gradus.run, f.address, hostfile="/nowhere")
        told(gradus.distribute, f.address, hosts="a:x")
        told(gradus.run, f.address, num_proc=1, executable="{sys.executable}-none", **where)
        ''')
    wanted = [("InvalidError", "127.0.0.2"), ("InvalidError", "nowhere.invalid"),
              ("InvalidError", " KiB when it is packed, and 32768 KiB go to other hosts"),
              ("InvalidError", "cannot be pickled"), ("InvalidError", 'did you mean "hosts"?'),
              ("InvalidError", "hosts has no meaning"), ("InvalidError", "a cluster alone uses"),
              ("InvalidError", "Slurm finds the hosts"), ("InvalidError", "/nowhere"),
              ("InvalidError", "a:x"), ("", "-none")]
    for line, (kind, words) in zip(lines, wanted):
        assert line.startswith(kind) and words in line, line
    assert len(lines) == len(wanted)


def test_ctrl_c_ends_what_ssh_started(ranks, logins, program):
    words, env = program(where_of(logins) + '''
try:
    gradus.run(f.forever, num_proc=2, **where)
except KeyboardInterrupt:
    print("interrupted", flush=True)
''', PATH=logins.path())
    process = ranks.gradus.start(*words[1:], program=words[0], env=env)
    assert process.stdout.readline().endswith("begun\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
    assert out.splitlines()[-1] == "interrupted" and process.returncode == 0, out + err
    ranks.gradus.wait_for_nothing()


def test_jobs_take_the_same_places(by_ssh, tmp_path):
    lines = by_ssh('''
        jobs.train(["sh", "-c", "echo $RANK $WORD"], None, {"number_of_workers": 3},
                   env={"WORD": "w"}, **where)
        text = "import os; print(os.environ['SSH_CONNECTION'].split()[2])"
        workers = jobs.launch_workers(3, 1, 1, code=text, **where)
        print(len(jobs.await_workers(workers)["workers"]))
        ''')
    a, b = HOSTS
    assert sorted(lines) == sorted([f"[0@{a}] 0 w", f"[1@{a}] 1 w", f"[2@{b}] 2 w", "3", *[
        line for line in lines if line.startswith("[worker-")]])
    assert sorted(line.split()[1] for line in lines if line.startswith("[worker-")) == [a, a, b]


# ---- Slurm --------------------------------------------------------------------------------------
with mock.patch.dict(sys.modules, conftest=blackbox):
    from test_slurm import slurm  # noqa: E402, F401 (a fixture)



def test_functions_run_in_a_slurm_job_of_their_own(ends, slurm):  # noqa: F811
    lines = ends('''
        print(gradus.run(f.node, num_proc=4, slurm="-N 2"))
        print(gradus.distribute(f.total, (1,), workers=None, slurm=["-N2", "-n3"]))
        told(gradus.run, f.fail, (1,), num_proc=2, slurm=True)
        told(gradus.run, f.total, (1,), slurm="-p nowhere")
        ''', **slurm.env)
    nodes = [("0", "n1"), ("1", "n1"), ("2", "n2"), ("3", "n2")]
    assert lines[:2] == [str(nodes), "[(0, 30), (1, 30), (2, 30)]"]
    assert lines[2] == "RankError 1 run: rank 1 failed: KeyError: 'no such sample'"
    assert "nowhere" in lines[3] or "partition" in lines[3]
    blackbox.wait_until(lambda: slurm("squeue", "-h") == "", "the end of the last job",
                        pause_ms=50)


def test_functions_run_on_the_nodes_of_the_job_of_the_program(ranks, program, slurm):  # noqa: F811
    words, env = program("print(gradus.run(f.node, num_proc=4))\n", **slurm.env)
    number = slurm.submit(ranks.gradus, *words, env=env)
    slurm.wait(number, "COMPLETED", "FAILED")
    out = (ranks.folder / "batch.out").read_text()
    assert "[('0', 'n1'), ('1', 'n1'), ('2', 'n2'), ('3', 'n2')]" in out, out


def test_ctrl_c_ends_the_slurm_job(ranks, program, slurm):  # noqa: F811
    words, env = program('''
        try:
            gradus.run(f.forever, num_proc=2, slurm="-N2")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        ''', **slurm.env)
    process = ranks.gradus.start(*words[1:], program=words[0], env=env)
    assert process.stdout.readline().endswith("begun\n")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=blackbox.TIMEOUT_S)
    assert out.splitlines()[-1] == "interrupted" and process.returncode == 0, out + err
    blackbox.wait_until(lambda: slurm("squeue", "-h") == "", "the end of the job", pause_ms=50)
    ranks.gradus.wait_for_nothing()

# SPDX-License-Identifier: Apache-2.0
"""`gradus run -H`: network namespaces with an sshd of their own, on keys and a port of the
test's."""
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import LEISURELY, MARK, Process, TIMEOUT_S, wait_until, write_digits

sys.path.insert(0, os.path.join(os.environ["GRADUS_SOURCE_DIR"], "bench", "hosts"))
import hosts as namespaces  # noqa: E402
import sshd  # noqa: E402
from processes import agents_of, children, kill_agent  # noqa: E402
from sshd import PORT  # noqa: E402

SLEEP = ["sh", "-c", "echo up; exec sleep 1000"]


class Cluster(sshd.Logins):
    """Hosts with sshd; the launcher runs on the bridge between them."""

    def __init__(self, gradus, made, folder):
        super().__init__(made, folder, sent=[(MARK, gradus.mark)])
        self.gradus = gradus

    def environment(self):
        return self.gradus.environment({"PATH": self.path(), "GRADUS_TEST_WORD": "it's"})

    def words(self, flags, **more):
        return super().words(self.gradus.program, flags, **more)

    def run(self, *flags, env=None, **more):
        env = self.environment() | (env or {})
        return subprocess.run(self.words(flags, **more), env=env, cwd=self.folder,
                              capture_output=True, text=True, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, check=False)

    def start(self, *flags, **env):
        process = Process(self.words(flags), env=self.environment() | env, cwd=self.folder,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)
        self.gradus.started.append(process)
        return process

    def all_up(self, *flags, workers=4):
        """A job of which every worker runs: its launcher."""
        launcher = self.start(*flags, "--", *SLEEP)
        for _ in range(workers):
            assert launcher.stdout.readline().endswith("up\n")
        return launcher

    def find(self, host, name):
        """Processes of that name in a host's namespace."""
        pids = subprocess.check_output(["ip", "netns", "pids", self.made.names[host]], text=True)
        return [int(pid) for pid in pids.split() if comm_of(pid) == name]


def comm_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.contextmanager
def cluster_of(count, gradus, folder, **more):
    made = namespaces.Hosts(count, build=os.environ["GRADUS_BUILD_DIR"], **more)
    cluster = Cluster(gradus, made, folder)
    try:
        made.open()
        cluster.open()
        yield cluster
    except namespaces.Unavailable as why:
        pytest.skip(str(why))
    finally:
        gradus.close()
        cluster.close()
        made.close()


@pytest.fixture
def two(gradus, tmp_path):
    with cluster_of(2, gradus, tmp_path) as cluster:
        yield cluster


# For --host-timeout: longer than what runs on a busy machine waits for a core.
SILENCE = "3s"


def both(cluster, slots=2):
    return ",".join(f"{name}:{slots}" for name in cluster.names)


def end_of(launcher):
    out, err = launcher.communicate(timeout=TIMEOUT_S)
    return launcher.returncode, out, err


PLACE = """echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE \\
$GRADUS_LOCAL_RANK $GRADUS_LOCAL_SIZE $GRADUS_HOSTNAME \\
$MASTER_ADDR $GRADUS_TEST_WORD $PWD; echo on stderr >&2"""


def test_places_prefixes_and_environment(two):
    done = two.run("-H", both(two), "--", "sh", "-c", PLACE)
    assert done.returncode == 0, done.stderr
    a, b = two.names
    expected = [f"[{rank}@{host}] {rank} 4 {local} 2 {local} 2 {host} {a} it's {two.folder}"
                for rank, (host, local) in enumerate([(a, 0), (a, 1), (b, 0), (b, 1)])]
    assert sorted(done.stdout.splitlines()) == expected
    assert sorted(done.stderr.splitlines()) == [
        f"[{rank}@{host}] on stderr" for rank, host in enumerate([a, a, b, b])]


def test_other_variables_stay_here_unless_they_are_exported(two):
    env = {"SECRET_OF_THE_SHELL": "s", "LC_ALL": "C", "HF_HOME": "h"}
    show = ["--", "sh", "-c", "echo ${SECRET_OF_THE_SHELL-none} ${LC_ALL-none} ${HF_HOME-none} "
            "${BATCH-none}"]

    def run(*flags):
        done = two.run("-H", two.names[0], "--no-prefix", *flags, *show, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr
    assert run() == ("none C none none", "")
    assert run("--export", "HF_*", "--export", "BATCH=64") == ("none C h 64", "")
    assert run("--export", "ALL") == ("s C h none", "")
    assert run("--export", "NONE") == ("none none none none", "")
    assert "--export: NOT_HERE is not set here" in run("--export", "NOT_HERE")[1]
    wrong = two.run("-H", two.names[0], "--export", "A-B", *show, env=env)
    assert wrong.returncode == 2 and 'export: "A-B" is no variable' in wrong.stderr


def test_the_first_rank_here_and_a_hostfile(two):
    """The rank of the launcher's host is started without ssh; the others are told its address."""
    (two.folder / "hosts").write_text(
        f"# three\nlocalhost slots=1\n\n{two.names[0]} slots=2 # two\n{two.names[1]}:4\n")
    done = two.run("-np", 4, "--hostfile", "hosts", "--", "sh", "-c", "echo $RANK $MASTER_ADDR")
    assert done.returncode == 0, done.stderr
    here = f"{namespaces.NETWORK}.254"
    assert sorted(done.stdout.splitlines()) == [
        "[0@localhost] 0 127.0.0.1", f"[1@{two.names[0]}] 1 {here}", f"[2@{two.names[0]}] 2 {here}",
        f"[3@{two.names[1]}] 3 {here}"]


def test_workers_meet(gradus, tmp_path):
    with cluster_of(4, gradus, tmp_path) as four:
        done = four.run("-H", both(four, 1), "--no-prefix", "--", gradus.program, "bench",
                        "allreduce", "--sizes", "4,100k,3m", "--iters", "5", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(rows) >= 3 and all(row["wrong"] == 0 for row in rows)
    assert rows[0]["link"] == "tcp"


def test_output_arrives_whole(two):
    script = "for i in $(seq 100000); do echo $RANK line $i; done"
    done = two.run("-H", both(two, 1), "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        begin = f"[{rank}@{two.names[rank]}] {rank} line "
        numbers = [line[len(begin):] for line in done.stdout.splitlines() if line.startswith(begin)]
        assert numbers == [str(i) for i in range(1, 100001)]


def test_a_worker_fails(two, gradus):
    done = two.run("-H", both(two), "--", "sh", "-c",
                   "echo last word; [ $RANK != 2 ] || exit 7; exec sleep 1000")
    assert done.returncode == 1
    assert "gradus: rank 2 (pid " in done.stderr and f" on {two.names[1]})" in done.stderr
    assert "exited with code 7" in done.stderr and "    last word" in done.stderr
    gradus.wait_for_nothing()


TRAIN = """
import sys
from gradus import _process, jobs


def train(word, bad):
    import os
    import socket
    from gradus import _process
    print(word, os.environ["RANK"], os.environ["WORLD_SIZE"], socket.gethostname(), flush=True)
    _process.report(rank=int(os.environ["RANK"]))
    if os.environ["RANK"] == str(bad):
        raise KeyError("no such sample")


flags, four = sys.argv[1:], {"number_of_workers": 4}
jobs.train(train, {"word": "it's \\"quoted\\"\\n", "bad": -1}, four, flags=flags)
try:
    jobs.train(train, {"word": "again", "bad": 2}, four, flags=flags)
except jobs.JobError as error:
    print(error.peer, 'raise KeyError("no such sample")' in str(error))
reports = []
process = _process.Process(["gradus", "run", *flags, "--", sys.executable, "-c",
                            "from gradus import _process; _process.report(hello=1)"],
                           _process.environment(), on_report=reports.append)
print(process.wait(), reports, list(process.lines))
"""


@pytest.mark.long
def test_a_function_of_python_becomes_a_job_of_other_hosts(two, gradus):
    (two.folder / "train.py").write_text(TRAIN)
    path = f"{gradus.build}:{two.environment()['PATH']}"
    env = two.environment() | {"PATH": path, "LIBGRADUS": gradus.library,
                               "PYTHONPATH": str(gradus.source / "python")}
    words = two.words(["-H", both(two), "--export", "PYTHONPATH,LIBGRADUS"])
    at = words.index(gradus.program)
    words[at:at + 2] = [sys.executable, "train.py"]
    done = subprocess.run(words, env=env, cwd=two.folder, capture_output=True, text=True,
                          timeout=2 * TIMEOUT_S, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in done.stdout.splitlines() if 'it\'s "quoted"' in line]
    assert len(lines) == 4 and all(line.startswith("[") for line in lines), done.stdout
    assert done.stdout.splitlines()[-2:] == ["2 True", f"0 {[{'hello': 1}] * 4} []"], done.stdout
    assert "\x1e" not in done.stdout + done.stderr


def test_a_worker_is_killed_and_the_others_go_on(two, gradus):
    for rank in range(4):
        os.mkfifo(two.folder / f"gate{rank}")
    launcher = two.start("-H", both(two), "--min-workers", 1, "--", "sh", "-c",
                         "echo up $$; read line < gate$RANK; echo done")
    pids = {}
    for _ in range(4):
        who, _, pid = launcher.stdout.readline().split()
        pids[int(who[1])] = int(pid)
    os.kill(pids[2], signal.SIGKILL)
    assert "the job goes on with 3 workers" in launcher.stderr.readline()
    for rank in (0, 1, 3):
        (two.folder / f"gate{rank}").write_text("go\n")
    code, out, _ = end_of(launcher)
    assert code == 0 and out.count("done") == 3


def test_a_program_that_is_not_there(two):
    done = two.run("-H", both(two), "--", "no-such-program")
    assert done.returncode == 2
    assert "gradus: on host " in done.stderr and "command not found" in done.stderr


@pytest.mark.parametrize("flags, words", [
    (["--remote-program", "/no/such gradus"], ["/no/such gradus", "No such file"]),
    (["-p", "1"], ["Connection refused"]),
])
def test_a_host_cannot_be_used(two, flags, words):
    done = two.run("-H", f"localhost:1,{two.names[0]}:1", *flags, "--", "touch", "started")
    assert done.returncode == 2
    assert f"gradus: host {two.names[0]} cannot be used: " in done.stderr
    for word in [*words, "nothing was started"]:
        assert word in done.stderr
    assert not (two.folder / "started").exists()


def test_a_key_that_is_not_permitted(two):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", two.folder / "other"],
                   check=True)
    done = two.run("-H", two.names[0], "--", "true", identity="other")
    assert done.returncode == 2 and "Permission denied" in done.stderr


def test_a_login_that_prints(two):
    """What a shell's start says before gradus answers is not taken for an answer."""
    two.serve(0, PORT + 1, "ForceCommand echo hello; sh -c \"$SSH_ORIGINAL_COMMAND\"")
    done = two.run("-p", PORT + 1, "-H", two.names[0], "--", "echo", "here")
    assert (done.returncode, done.stdout) == (0, "[0] here\n"), done.stderr


def test_signals(two, gradus):
    launcher = two.start("-H", both(two), "--", "sh", "-c",
                         "trap 'echo told; exit 0' TERM; echo up; while :; do sleep 0.05; done")
    for _ in range(4):
        assert launcher.stdout.readline().endswith("up\n")
    launcher.terminate()
    code, out, err = end_of(launcher)
    assert code == 1 and out.count("told") == 4, err
    gradus.wait_for_nothing()


@pytest.mark.parametrize("name", ["gradus-agent", "gradus-serve", "sshd"])
def test_what_looks_after_a_host_is_killed(two, gradus, name):
    launcher = two.all_up("-H", both(two))
    daemon = {process.pid for process in two.daemons}
    # A session of sshd is a child of the daemon.
    kill_agent(next(pid for pid in two.find(1, name) if pid not in daemon))
    code, _, err = end_of(launcher)
    assert code == 1
    assert f"gradus: host {two.names[1]} was lost with its 2 workers: " in err
    gradus.wait_for_nothing()


def test_a_host_is_lost_and_the_others_go_on(two):
    for rank in range(2):
        os.mkfifo(two.folder / f"gate{rank}")
    launcher = two.start("-H", both(two), "--min-workers", 2, "--", "sh", "-c",
                         "echo up; [ $RANK -lt 2 ] || exec sleep 1000; read line < gate$RANK")
    for _ in range(4):
        launcher.stdout.readline()
    os.kill(two.find(1, "gradus-serve")[0], signal.SIGKILL)
    lines = [launcher.stderr.readline() for _ in range(3)]
    assert f"on {two.names[1]}) was lost with its host" in lines[0]
    assert f"host {two.names[1]} was lost with its 2 workers" in lines[2]
    for rank in range(2):
        (two.folder / f"gate{rank}").write_text("go\n")
    assert end_of(launcher)[0] == 0


@pytest.mark.parametrize("where", ["here", "there"])
def test_a_killed_agent_costs_the_workers_of_its_host(two, where):
    """The others go on; the host gets another agent, and that starts other workers."""
    write_digits(two.folder, 100000)
    launcher = two.start("-H", f"localhost:2,{two.names[1]}:2", "--grace", "60s", "--chaos",
                         LEISURELY, "mlp.yaml")
    while not launcher.stdout.readline().startswith("epoch"):
        pass

    def agents():
        return [pid for pid in (agents_of(launcher.pid) if where == "here" else
                                two.find(1, "gradus-agent")) if comm_of(pid) == "gradus-agent"]
    lost, = agents()
    kill_agent(lost)
    for sentence in "2 workers go on from step", "4 workers go on from step":
        while sentence not in (line := launcher.stdout.readline()):
            assert line, launcher.communicate()[1]
    another, = agents()
    assert another != lost and len(children(another)) == 2
    launcher.terminate()
    code, _, err = end_of(launcher)
    assert code == 75 and "was killed, and they with it; it is tried again in 1 s" in err


def test_a_cable_is_cut(two, gradus):
    """Neither side hears of the other: both end, each by its own clock."""
    launcher = two.all_up("-H", both(two), "--host-timeout", SILENCE)
    namespaces.ip("-n", two.made.names[1], "link", "set", "eth0", "down")
    code, _, err = end_of(launcher)
    assert code == 1 and f"nothing was heard of it for {SILENCE[:-1]}.0 s" in err
    gradus.wait_for_nothing()


def test_a_cable_is_cut_and_the_others_go_on(two):
    """Both the ranks and their launcher notice: the ranks take --host-timeout as well."""
    write_digits(two.folder, 100000)
    launcher = two.start("-H", both(two), "--host-timeout", SILENCE, "--chaos", LEISURELY,
                         "mlp.yaml")
    while not launcher.stdout.readline().startswith("epoch"):
        pass
    namespaces.ip("-n", two.made.names[1], "link", "set", "eth0", "down")
    while "workers go on from step" not in (line := launcher.stdout.readline()):
        assert line, launcher.communicate()[1]
    assert line.startswith("2 workers")


def test_ssh_host_timeout_is_that_of_the_ranks(two):
    done = two.run("-H", two.names[0], "--host-timeout", SILENCE, "--", "sh", "-c",
                   "echo $GRADUS_PEER_TIMEOUT")
    assert done.stdout == f"[0] {SILENCE[:-1]}000ms\n", done.stderr


def test_the_launcher_is_killed(two, gradus):
    """The hosts notice by their connections: they would wait for a silent launcher for an hour."""
    launcher = two.all_up("-H", both(two), "--host-timeout", "1h", "--outlive", "0")
    launcher.kill()
    launcher.wait()
    gradus.wait_for_nothing()


OUTLIVES = """echo up; until [ -e go ]; do sleep 0.02; done; echo on
until [ -e end ]; do sleep 0.02; done"""


def test_hosts_go_on_without_their_launcher(two, gradus):
    """Another one attaches, from elsewhere on the launcher's host, with their output and end."""
    env = {"XDG_RUNTIME_DIR": str(two.folder / "run")}
    (two.folder / "run").mkdir(mode=0o700)
    launcher = two.start("-H", both(two, 1), "--name", "far", "--host-timeout", SILENCE, "--",
                         "sh", "-c", OUTLIVES, **env)
    for _ in two.names:
        assert launcher.stdout.readline().endswith("up\n")
    launcher.kill()
    launcher.wait()
    (two.folder / "go").touch()
    attached = gradus.start("attach", "far", env=env)
    said = sorted(attached.stdout.readline() for _ in two.names)
    assert said == sorted(f"[{rank}@{name}] on\n" for rank, name in enumerate(two.names))
    (two.folder / "end").touch()
    code, out, err = end_of(attached)
    assert (code, out) == (0, "") and "is the launcher from now on" in err


def test_the_secret_is_in_no_command_line(two):
    launcher = two.start("-H", both(two, 1), "--", "sh", "-c", "echo $GRADUS_SECRET; exec sleep "
                                                               "1000")
    secret = launcher.stdout.readline().split()[1].encode()
    assert len(secret) == 64
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            assert secret not in (entry / "cmdline").read_bytes()
    launcher.terminate()
    assert secret.decode() not in end_of(launcher)[2]


@pytest.mark.parametrize("flags, word", [
    (["-H", "a:1", "--hostfile", "x"], "both"),
    (["-H", "a:0"], 'a:0" is no host'),
    (["-H", "-oProxyCommand=x"], "is no host"),
    (["-np", "3", "-H", "a:1,b:1"], "slots for 2 only"),
    (["--hostfile", "hosts"], "hosts:2"),
])
def test_bad_hosts(gradus, flags, word):
    (gradus.folder / "hosts").write_text("a slots=2\nb cores=3\n")
    done = gradus("run", *flags, "--", "true")
    assert done.returncode == 2 and word in done.stderr

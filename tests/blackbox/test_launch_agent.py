# SPDX-License-Identifier: Apache-2.0
"""`gradus agent --listen` and `gradus rsh`, which take the places of sshd and ssh for launchers of
MPI."""
import ctypes
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess

import pytest

from conftest import TIMEOUT_S, wait_until

BUILD = os.environ["GRADUS_BUILD_DIR"]
GRADUS = f"{BUILD}/gradus"


class Agent:
    def __init__(self, token, program=(GRADUS,)):
        self.environment = {**os.environ, "GRADUS_JOIN_TOKEN": token, "MARK": "of the agent"}
        self.process = subprocess.Popen([*program, "agent", "--listen", "127.0.0.1:0"],
                                        env=self.environment, stdin=subprocess.DEVNULL,
                                        stderr=subprocess.PIPE, text=True)
        self.port = re.search(r":(\d+)$", self.process.stderr.readline().strip())[1]

    def words(self, *words):
        return [GRADUS, "rsh", "--port", self.port, *words]

    def run(self, *words, **how):
        return subprocess.run(self.words(*words), env=self.environment, capture_output=True,
                              timeout=TIMEOUT_S, **how)

    def end(self):
        if self.process.returncode is None:
            self.process.terminate()
            assert self.process.wait(TIMEOUT_S) == 0
        self.process.stderr.close()


@pytest.fixture
def agent():
    agent = Agent(secrets.token_hex(32))
    yield agent
    agent.end()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_command_waits_for_the_name_of_its_host(agent, tmp_path):
    """It has files of names of its own. When it has looked into one, that gets the name."""
    (tmp_path / "hosts").touch()
    (tmp_path / "switch").write_text("hosts: files\n")
    script = "mount --bind hosts /etc/hosts && mount --bind switch /etc/nsswitch.conf && exec $@"
    apart = ["unshare", "-m", *([] if os.geteuid() == 0 else ["-Ur"]), "sh", "-c", script, "sh"]
    if subprocess.run([*apart, "true"], cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    libc, in_close_nowrite = ctypes.CDLL(None), 0x10
    watch = libc.inotify_init()
    assert libc.inotify_add_watch(watch, bytes(tmp_path / "hosts"), in_close_nowrite) > 0
    process = subprocess.Popen([*apart, *agent.words("new-host", "echo", "here")], cwd=tmp_path,
                               env=agent.environment, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    assert os.read(watch, 4096)
    (tmp_path / "hosts").write_text("127.0.0.1 new-host\n")
    assert process.communicate(timeout=TIMEOUT_S) == ("here\n", "")
    assert process.returncode == 0
    os.close(watch)


def test_command_has_stdin_stdout_stderr_and_exit_code(agent):
    done = agent.run("-x", "-o", "ConnectionAttempts=10", "me@127.0.0.1",
                     "cat;", "echo 'two  words' >&2;", "exit 7", input=b"some bytes\n")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"some bytes\n", b"two  words\n")
    assert agent.run("127.0.0.1", "kill -9 $$").returncode == 128 + signal.SIGKILL
    assert agent.run("127.0.0.1", "no-such-program").returncode == 127


@pytest.mark.parametrize("bytes_", [10, 70_000, 1_000_000])
def test_command_that_reads_late_gets_all_input_and_its_end(agent, bytes_):
    done = agent.run("127.0.0.1", "echo begun >&2; read first; wc -c",
                     input=b"\n" + bytes(bytes_))
    assert (done.returncode, done.stdout.strip()) == (0, b"%d" % bytes_), done


def test_command_need_not_read_its_input(agent):
    """What it has written and its code come all the same, however much is sent to it."""
    for _ in range(20):
        done = agent.run("127.0.0.1", "head -c 3; exit 5", input=b"abc" + bytes(500_000))
        assert (done.returncode, done.stdout) == (5, b"abc"), done


def test_command_that_does_not_read_ends_with_its_caller(agent):
    caller = subprocess.Popen(agent.words("127.0.0.1", "echo $$; exec sleep 1000"),
                              env=agent.environment, stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    pid = int(caller.stdout.readline())
    room = select.poll()
    room.register(caller.stdin, select.POLLOUT)
    sent = 0
    while room.poll(500):  # until nobody takes any more
        sent += os.write(caller.stdin.fileno(), bytes(4096))
        assert sent < 1 << 26
    caller.kill()
    caller.wait()
    wait_until(lambda: not is_alive(pid), "its end")


def test_agent_ends_while_nobody_takes_output(agent, tmp_path):
    """Of a command that has ended, and has left somebody who goes on writing."""
    os.mkfifo(tmp_path / "end")
    caller = subprocess.Popen(
        agent.words("127.0.0.1", f"echo $$ >&2; yes & read line < {tmp_path}/end"),
        env=agent.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True)
    pid = int(caller.stderr.readline())
    assert caller.stdout.readline() == "y\n"
    (tmp_path / "end").write_text("\n")
    wait_until(lambda: not is_alive(pid), "the command's end")
    agent.process.terminate()
    assert agent.process.wait(TIMEOUT_S) == 0
    caller.kill()
    caller.communicate()


def test_command_has_environment_of_agent_without_the_token(agent):
    done = agent.run("127.0.0.1", "env", text=True)
    assert "MARK=of the agent" in done.stdout and "GRADUS_JOIN_TOKEN" not in done.stdout
    with open(f"/proc/{agent.process.pid}/environ", "rb") as file:
        assert agent.environment["GRADUS_JOIN_TOKEN"].encode() not in file.read()


def test_many_bytes_go_both_ways_as_they_are(agent):
    data = os.urandom(3 << 20)
    assert agent.run("127.0.0.1", "cat", input=data).stdout == data


def test_command_that_does_not_read_ends_all_the_same(agent):
    done = agent.run("127.0.0.1", "exec <&-; echo done", input=bytes(1 << 20))
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_command_in_the_background_lives_on(agent, tmp_path):
    """As orted does it, which makes itself a daemon."""
    script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' </dev/null >/dev/null 2>&1 & exit 0"
    assert agent.run("127.0.0.1", f"cd {tmp_path} && {script}").returncode == 0
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(),
               "the background process")
    pid = int((tmp_path / "pid").read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("who", ["caller", "agent"])
def test_command_ends_with_its_caller_and_with_the_agent(agent, who):
    command = "setsid -f sh -c 'echo $$; exec sleep 1000'; echo $$; exec sleep 1000"
    caller = subprocess.Popen(agent.words("127.0.0.1", command), env=agent.environment,
                              stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    pids = [int(caller.stdout.readline()) for _ in range(2)]  # one is in a session of its own
    assert all(map(is_alive, pids))
    if who == "caller":
        caller.kill()
    else:
        agent.process.terminate()
    wait_until(lambda: not any(map(is_alive, pids)), "the command's end")
    said = caller.communicate(timeout=TIMEOUT_S)[1]
    assert who == "caller" or (caller.returncode == 255 and "the connection broke" in said)


def test_who_has_another_token_runs_nothing(agent, tmp_path):
    agent.environment["GRADUS_JOIN_TOKEN"] = secrets.token_hex(32)
    done = agent.run("127.0.0.1", f"touch {tmp_path}/ran", text=True)
    assert done.returncode == 255 and "holds another token" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_strangers_are_closed_and_others_served(agent):
    for data in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
        with socket.create_connection(("127.0.0.1", int(agent.port)), TIMEOUT_S) as one:
            one.sendall(data)
            assert agent.run("127.0.0.1", "echo served").stdout == b"served\n"


@pytest.mark.parametrize("words, sentence", [
    (["127.0.0.1"], "it takes a host"), (["-x"], "it takes a host"),
    (["--port", "x", "127.0.0.1", "true"], 'rsh: --port "x" is no port')])
def test_wrong_lines_are_refused(words, sentence):
    done = subprocess.run([GRADUS, "rsh", *words], capture_output=True, text=True)
    assert done.returncode == 255 and sentence in done.stderr


def test_agent_without_token_is_refused(gradus):
    done = gradus("agent", "--listen", "127.0.0.1:0", env={"GRADUS_JOIN_TOKEN": ""})
    assert done.returncode == 2 and "GRADUS_JOIN_TOKEN" in done.stderr
    done = gradus("agent", "--listen", ":1", "--join", "a:1")
    assert done.returncode == 2 and "exclude each other" in done.stderr


def test_program_that_is_installed_needs_nothing_else(tmp_path):
    """As the init container does it: what starts has no library of the system's."""
    first, second = tmp_path / "first", tmp_path / "second"
    for program, folder in ((GRADUS, first), (GRADUS, first), (first / "gradus", second)):
        folder.mkdir(exist_ok=True)
        subprocess.run([program, "agent", "--install", folder], check=True)
    shutil.rmtree(first)
    agent = Agent(secrets.token_hex(32), (second / "gradus",))
    try:
        assert agent.run("127.0.0.1", "echo yes").stdout == b"yes\n"
        with open(f"/proc/{agent.process.pid}/maps") as file:
            mapped = {line.split()[-1] for line in file if ".so" in line}
        assert mapped and all(one.startswith(str(second)) for one in mapped), mapped
    finally:
        agent.end()
    done = subprocess.run([GRADUS, "agent", "--install", tmp_path / "no"], capture_output=True,
                          text=True)
    assert done.returncode == 2 and "cannot make" in done.stderr


@pytest.mark.skipif(not shutil.which("mpiexec.hydra"), reason="needs mpich (mpiexec.hydra)")
def test_hydra_starts_its_ranks_by_it(agent, tmp_path):
    script = tmp_path / "launch_agent.sh"
    script.write_text(f"#!/bin/sh\nexec {GRADUS} rsh --port {agent.port} \"$@\"\n")
    script.chmod(0o755)
    done = subprocess.run(
        ["mpiexec.hydra", "-n", "2", "-hosts", "127.0.0.1", "sh", "-c", "echo $PMI_RANK in $MARK"],
        env={**agent.environment, "MARK": "no", "HYDRA_LAUNCHER": "rsh",
             "HYDRA_LAUNCHER_EXEC": str(script), "HYDRA_LAUNCHER_AUTOFORK": "0"},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2

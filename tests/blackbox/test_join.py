# SPDX-License-Identifier: Apache-2.0
"""`gradus agent --join`: hosts that come by themselves, with a token and without ssh."""
import contextlib
import os
import pathlib
import secrets
import signal
import socket
import subprocess

import pytest
from conftest import TIMEOUT_S, Process, finish, unhurried, wait_until
from processes import children
from test_coming_hosts import EPOCHS  # noqa: F401 (of the job in conftest)
from test_coming_hosts import finish_as, workers_on
from test_elastic import generations, wait_for_first_epoch
from test_ssh import end_of, namespaces, two  # noqa: F401


class Join:
    """A launcher that listens, and agents in the namespaces."""

    def __init__(self, cluster, *flags, **env):
        self.cluster, self.agents = cluster, []
        self.token = cluster.folder / "token"
        self.launcher = self.popen(cluster.made.switch, "run", "--listen", ":0", *flags,
                                   **env)
        line = self.launcher.stderr.readline()
        assert "agents may join at tcp:" in line, line
        self.port = int(line.rsplit(":", 1)[1])

    def popen(self, name, *words, **env):
        gradus = self.cluster.gradus
        process = Process(
            ["ip", "netns", "exec", name, gradus.program, *map(str, words)],
            env=gradus.environment({"GRADUS_JOIN_TOKEN_FILE": str(self.token)} | env),
            cwd=self.cluster.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True)
        gradus.started.append(process)
        return process

    def agent(self, host, *flags, **env):
        agent = self.popen(self.cluster.made.names[host], "agent", "--join",
                           f"{namespaces.NETWORK}.254:{self.port}", "--slots", 2, *flags, **env)
        self.agents.append(agent)
        return agent

    def finish_agents(self):
        for agent in self.agents:
            code, out, err = end_of(agent)
            assert (code, out, err) == (0, "", "")


def test_two_agents_join_and_train(two, gradus, job, undisturbed):  # noqa: F811
    output = two.folder / "out"
    join = Join(two, "-np", 4, "--output", output, job)
    assert join.token.stat().st_mode & 0o777 == 0o600  # the launcher has made it
    join.agent(0)
    join.agent(1)
    finish_as(join.launcher, output, undisturbed)
    join.finish_agents()
    gradus.wait_for_nothing()


def test_an_agent_that_is_not_needed(two, gradus):  # noqa: F811
    (two.folder / "gate").touch()
    join = Join(two, "-np", 2, "--min-workers", 1, "--", "sh", "-c",
                "echo up; while [ -e gate ]; do sleep 0.05; done")
    join.agent(0)
    for _ in range(2):
        assert join.launcher.stdout.readline().endswith("up\n")
    join.agent(1)
    wait_until(lambda: two.find(1, "gradus-serve"), "the second agent to have joined")
    (two.folder / "gate").unlink()
    assert end_of(join.launcher)[0] == 0
    join.finish_agents()
    gradus.wait_for_nothing()


def test_agents_come_later_and_go(two, gradus, job, undisturbed):  # noqa: F811
    output = two.folder / "out"
    with unhurried(two.folder) as slow:
        join = Join(two, "-np", 2, "--max-workers", 4, "--output", output, "--chaos", slow, job)
        join.agent(0)
        wait_for_first_epoch(output, join.launcher)
        lost = join.agent(1)
        wait_until(lambda: generations(output)[-1:] == [4], "four workers")
        lost.kill()
        wait_until(lambda: generations(output)[-1:] == [2], "the others to go on")
        join.agents.remove(lost)
        join.agent(1)
        wait_until(lambda: generations(output)[-1:] == [4], "four workers again")
    text = finish_as(join.launcher, output, undisturbed)
    assert f"host {two.names[1]} was lost with its 2 workers" in text
    join.finish_agents()
    gradus.wait_for_nothing()


def kill_at_once(gradus, pids):
    """No loss is dealt with before all have happened."""
    supervisor, = gradus.named("gradus-job")
    os.kill(supervisor, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    os.kill(supervisor, signal.SIGCONT)


def test_all_workers_are_killed(two, gradus, job, undisturbed):  # noqa: F811
    """The agents are there: they offer their hosts again, and the job is restarted there."""
    output = two.folder / "out"
    with unhurried(two.folder) as slow:
        join = Join(two, "-np", 4, "--output", output, "--chaos", slow, job)
        join.agent(0)
        join.agent(1)
        wait_for_first_epoch(output, join.launcher)
        kill_at_once(gradus, workers_on(two, 0) + workers_on(two, 1))
    text = finish_as(join.launcher, output, undisturbed)
    assert "all workers are restarted (1 of at most 3 times, --restarts)" in text
    join.finish_agents()
    gradus.wait_for_nothing()


def test_all_agents_are_killed_and_others_come(two, gradus, job, undisturbed):  # noqa: F811
    output = two.folder / "out"
    with unhurried(two.folder) as slow:
        join = Join(two, "-np", 2, "--output", output, "--chaos", slow, job)
        lost = join.agent(0)
        wait_for_first_epoch(output, join.launcher)
        lost.kill()
    while "agents with slots for 2 workers are waited for" not in join.launcher.stderr.readline():
        assert join.launcher.poll() is None
    join.agents = []
    join.agent(1)
    assert "all workers are restarted" in finish_as(join.launcher, output, undisturbed)
    join.finish_agents()
    gradus.wait_for_nothing()


@pytest.mark.parametrize("end, code, words", [
    ("nobody", 1, "agents with 0 slots have joined within 12 s (--start-timeout)"),
    ("SIGTERM", 75, "ended by SIGTERM before all workers were restarted; --resume goes on"),
])
def test_no_agent_comes_back(two, gradus, job, end, code, words):  # noqa: F811
    output = two.folder / "out"
    with unhurried(two.folder) as slow:
        join = Join(two, "-np", 2, "--start-timeout", "12s" if end == "nobody" else "60s",
                    "--output", output, "--chaos", slow, job)
        lost = join.agent(0)
        wait_for_first_epoch(output, join.launcher)
        lost.kill()
    while "agents with slots for 2 workers are waited for" not in join.launcher.stderr.readline():
        assert join.launcher.poll() is None
    if end == "SIGTERM":
        join.launcher.terminate()
    done = end_of(join.launcher)
    assert done[0] == code and words in done[2]
    gradus.wait_for_nothing()


@pytest.mark.parametrize("outlive", ["0", "10min"])
def test_the_token_is_nowhere_to_be_seen(two, outlive):  # noqa: F811
    token = secrets.token_hex(32)
    join = Join(two, "-np", 2, "--outlive", outlive, "--", "sh", "-c",
                "env; echo up; exec sleep 1000", GRADUS_JOIN_TOKEN=token)
    join.agent(0, GRADUS_JOIN_TOKEN=token)
    lines, ups = [], 0
    while ups < 2:
        lines.append(join.launcher.stdout.readline())
        ups += lines[-1].endswith("up\n")
    assert token not in "".join(lines)
    for pid in two.gradus.remains():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert token.encode() not in pathlib.Path(f"/proc/{pid}/{name}").read_bytes(), name
    join.launcher.terminate()
    assert token not in "".join(end_of(join.launcher)[1:])


def test_wrong_tokens_and_other_programs_are_refused(two):  # noqa: F811
    join = Join(two, "-np", 2, "--start-timeout", "12s", "--", "true")
    wrong = join.agent(0, GRADUS_JOIN_TOKEN=secrets.token_hex(32))
    code, _, err = end_of(wrong)
    assert code == 2 and "holds another token" in err and "GRADUS_JOIN_TOKEN_FILE" in err
    join.token.chmod(0o644)
    code, _, err = end_of(join.agent(0))
    assert code == 2 and "has mode 0644" in err
    code, _, err = end_of(join.launcher)
    assert code == 2, err
    assert "agents with 0 slots have joined" in err and "the job needs 2" in err


def test_one_that_says_nothing_and_one_that_sends_garbage(gradus, tmp_path):
    launcher = gradus.start("run", "-np", 1, "--listen", "127.0.0.1:0", "--", "echo", "here",
                            env={"GRADUS_JOIN_TOKEN_FILE": str(tmp_path / "token")})
    port = int(launcher.stderr.readline().rsplit(":", 1)[1])
    with socket.create_connection(("127.0.0.1", port)), \
            socket.create_connection(("127.0.0.1", port)) as loud:
        loud.sendall(secrets.token_bytes(4096))
        agent = gradus("agent", "--join", f"127.0.0.1:{port}", "--slots", 1,
                       env={"GRADUS_JOIN_TOKEN_FILE": str(tmp_path / "token")})
        assert agent.returncode == 0, agent.stderr
        out, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 0, err
    assert out.endswith("here\n")


def test_launcher_that_waits_for_agents_leaves_nothing(gradus, tmp_path):
    """Nobody could find its job yet; and the port is free for the same line."""
    launcher = gradus.start("run", "-np", 1, "--listen", "127.0.0.1:0", "--start-timeout", 0, "--",
                            "true", env={"GRADUS_JOIN_TOKEN_FILE": str(tmp_path / "token")})
    assert "127.0.0.1:" in launcher.stderr.readline()
    assert gradus.named("gradus-job")
    launcher.kill()
    launcher.wait(timeout=TIMEOUT_S)
    gradus.wait_for_nothing()


def test_first_process_of_a_container_ends_by_a_signal(gradus, tmp_path):
    """It has no signals that would end it."""
    apart = ["--pid", "--fork", "--kill-child", *([] if os.geteuid() == 0 else ["-Ur"])]
    if subprocess.run(["unshare", *apart, "true"], capture_output=True).returncode:
        pytest.skip("there are no namespaces of processes here")
    container = gradus.start(*apart, gradus.program, "run", "-np", 1, "--listen", "127.0.0.1:0",
                             "--start-timeout", 0, "--", "true", program="unshare",
                             env={"GRADUS_JOIN_TOKEN_FILE": str(tmp_path / "token")})
    assert "127.0.0.1:" in container.stderr.readline()
    launcher, = children(container.pid)
    os.kill(launcher, signal.SIGTERM)
    _, err = container.communicate(timeout=TIMEOUT_S)
    assert container.returncode == 128 + signal.SIGTERM, err


def test_a_command_that_is_not_there(two):  # noqa: F811
    join = Join(two, "-np", 2, "--", "no-such-program")
    join.agent(0)
    code, _, err = end_of(join.launcher)
    assert code == 2 and "command not found" in err
    join.finish_agents()


def test_the_launcher_is_killed(two, gradus):  # noqa: F811
    join = Join(two, "-np", 2, "--outlive", "0", "--", "sh", "-c", "echo up; exec sleep 1000")
    agent = join.agent(0)
    for _ in range(2):
        assert join.launcher.stdout.readline().endswith("up\n")
    os.kill(join.launcher.pid, signal.SIGKILL)
    code, _, err = end_of(agent)
    assert code == 1 and "the launcher is gone" in err
    assert workers_on(two, 0) == []
    gradus.wait_for_nothing()


@pytest.mark.parametrize("words, env, sentence", [
    (["run", "-np", 1, "--listen", ":0", "--", "true"], {}, "by a token"),
    (["run", "-np", 1, "--listen", "here", "--", "true"], {"GRADUS_JOIN_TOKEN": "0" * 64},
     "write HOST:PORT"),
    (["run", "-np", 1, "--listen", "127.0.0.1:99999", "--", "true"],
     {"GRADUS_JOIN_TOKEN": "0" * 64}, '--listen 127.0.0.1:99999: "99999" is no port'),
    (["run", "-np", 1, "--listen", ":0", "-H", "a", "--", "true"], {}, "both say"),
    (["agent", "--join", "127.0.0.1:1"], {"GRADUS_JOIN_TOKEN": "short"}, "64 hexadecimal digits"),
    (["agent"], {}, "say where the launcher is"),
])
def test_what_cannot_be(gradus, words, env, sentence):
    done = gradus(*words, env=env)
    assert done.returncode == 2 and sentence in done.stderr


@pytest.mark.parametrize("name", [
    "new-host", f"{'n' * 54}-worker-0.{'n' * 60}.{'s' * 60}.svc"], ids=["short", "long"])
def test_agent_waits_for_the_name_of_its_launcher(gradus, tmp_path, name):
    """The agent has files of names of its own, of which one gets the name while it waits."""
    (tmp_path / "hosts").touch()
    (tmp_path / "switch").write_text("hosts: files\n")
    script = "mount --bind hosts /etc/hosts && mount --bind switch /etc/nsswitch.conf && exec "
    apart = ["-m", *([] if os.geteuid() == 0 else ["-Ur"]), "sh", "-c"]
    if subprocess.run(["unshare", *apart, f"{script} true"], cwd=tmp_path,
                      capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    env = {"GRADUS_JOIN_TOKEN_FILE": str(tmp_path / "token")}
    launcher = gradus.start("run", "-np", 1, "--listen", "127.0.0.1:0", "--", "echo", "here",
                            env=env)
    port = int(launcher.stderr.readline().rsplit(":", 1)[1])
    agent = gradus.start(*apart, f"{script} {gradus.program} agent --join {name}:{port}",
                         program="unshare", env=env)
    assert f'cannot find the host "{name}"' in agent.stderr.readline()
    (tmp_path / "hosts").write_text(f"127.0.0.1 {name}\n")
    assert finish(launcher)[0].endswith("here\n")
    assert finish(agent) == ("", "")


def test_nobody_listens(gradus):
    done = gradus("agent", "--join", "127.0.0.1:1", "--wait", "0s",
                  env={"GRADUS_JOIN_TOKEN": "0" * 64})
    assert done.returncode == 1 and "--join 127.0.0.1:1: " in done.stderr

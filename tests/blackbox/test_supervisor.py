# SPDX-License-Identifier: Apache-2.0
"""The process that supervises a job (gradus-job) is killed: another one restarts the job."""
import os
import re
import signal

import pytest
from conftest import TIMEOUT_S, finish, read_lines, sha256_of, unhurried, wait_until
from processes import agents_of, children, name
from test_outlive import host, jobs_of, state_of, wait_for_state, workers_of  # noqa: F401
from test_rebirth import EPOCHS, check_metrics  # noqa: F401

# Says its process number and that of what it has started, then reads what to do from a FIFO.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", os.getpid(), child.pid, flush=True)
sys.exit(int(open(sys.argv[1]).readline()))
"""


def supervisors_of(host):
    return [pid for pid, of in host.remains().items() if of == "gradus-job"]


def kill_supervisor(host):
    pid, = supervisors_of(host)
    os.kill(pid, signal.SIGKILL)
    return pid


def lose(host, launcher, job):  # noqa: F811
    """Nobody is left of the job, and nobody has its end."""
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    kill_supervisor(host)
    wait_for_state(host, job, "lost")


def wait_for_checkpoint(output):
    wait_until(lambda: list(output.glob("checkpoints/step-*")), "a checkpoint")


def is_nothing_left(host, tmp_path):
    host.wait_for_nothing()
    assert jobs_of(host) == [] and not os.listdir(tmp_path / "run/gradus")


@pytest.mark.parametrize("orphans", ["end", "finish"])
def test_from_the_newest_checkpoint(host, job, undisturbed, tmp_path, orphans):
    output = tmp_path / "out"
    launcher = host.start("run", "-np", 4, "--checkpoint-every", "20 steps", "--output", output,
                          "--name", "digits", "--orphans", orphans, job)
    with unhurried(lambda: workers_of(host)):
        wait_for_checkpoint(output)
        pid = kill_supervisor(host)
    _, err = finish(launcher)
    assert sha256_of(output) == undisturbed
    starts = check_metrics(output)
    assert len(starts) == 2 and starts[0] == 0 and starts[1] >= 20
    assert (f"gradus: the process that supervises the job (gradus-job, pid {pid}) was killed by "
            "signal 9 (Killed), and the job with it; it is restarted\n") in err
    assert f"restarted (1 of at most 3 times, --restarts); the job goes on from {output}" in err
    is_nothing_left(host, tmp_path)


def test_from_the_first_step(host, job, undisturbed, tmp_path):
    """Without checkpoints, and without a name."""
    output, logs = tmp_path / "out", tmp_path / "logs"
    logs.mkdir()
    launcher = host.start("run", "-np", 2, "--output", output, "--log-dir", logs, job)
    with unhurried(lambda: workers_of(host)):
        read_lines(launcher.stdout, 1)
        kept, = jobs_of(host)
        kill_supervisor(host)
        wait_until(lambda: [job for job in jobs_of(host) if job["state"] == "running"], "another")
        again, = jobs_of(host)
    _, err = finish(launcher)
    assert (again["name"], again["since"]) == (kept["name"], kept["since"])
    assert "the job begins from its first step" in err
    assert sha256_of(output) == undisturbed and check_metrics(output) == [0]
    assert (logs / "rank.0.out").read_text().count("digits-mlp: ") == 2
    is_nothing_left(host, tmp_path)


def test_a_command_is_restarted_if_it_may_be(host, script, tmp_path):
    """And nothing of what it was is left, whatever session that is in."""
    os.mkfifo(tmp_path / "told")
    launcher = host.start("run", "-np", 1, "--no-prefix", "--restarts", 1, "--", *script(PARENT),
                          str(tmp_path / "told"))
    before = read_lines(launcher.stdout, 1)[0].split()[1:]
    kill_supervisor(host)
    after = read_lines(launcher.stdout, 1)[0].split()[1:]
    assert not any(os.path.exists(f"/proc/{pid}") for pid in before)
    assert all(os.path.exists(f"/proc/{pid}") for pid in after)
    (tmp_path / "told").write_text("0\n")
    out, err = finish(launcher)
    assert out == "" and "all workers are restarted (1 of at most 1 times, --restarts)\n" in err
    is_nothing_left(host, tmp_path)


def test_a_command_that_may_not_ends(host, tmp_path):
    launcher = host.start("run", "-np", 1, "--no-prefix", "--", "sh", "-c",
                          "echo up; sleep 1000 & wait")
    read_lines(launcher.stdout, 1)
    pid = kill_supervisor(host)
    _, err = finish(launcher, 1)
    assert err == (f"gradus: the process that supervises the job (gradus-job, pid {pid}) was "
                   "killed by signal 9 (Killed), and the job with it\n")
    is_nothing_left(host, tmp_path)


def test_killed_again_and_again_ends(host, tmp_path):
    launcher = host.start("run", "-np", 1, "--no-prefix", "--restarts", 3, "--", "sh", "-c",
                          "echo up; exec sleep 1000")
    for _ in range(4):
        assert read_lines(launcher.stdout, 1) == ["up"]
        kill_supervisor(host)
    _, err = finish(launcher, 1)
    assert err.count("it is restarted") == 3
    assert "which was restarted 3 times already (--restarts)" in err.splitlines()[-1]
    is_nothing_left(host, tmp_path)


def test_killed_before_the_job_has_begun(host, job, undisturbed, tmp_path):
    """While it reads the job file."""
    os.mkfifo(tmp_path / "job.yaml")
    launcher = host.start("run", "-np", 2, "--output", tmp_path / "out", tmp_path / "job.yaml")
    wait_until(lambda: supervisors_of(host), "the supervisor")
    pid = kill_supervisor(host)
    wait_until(lambda: pid not in supervisors_of(host) and supervisors_of(host), "another one")
    (tmp_path / "job.yaml").write_text(job.read_text())
    assert "was killed before the job had begun; another one is started" in finish(launcher)[1]
    assert sha256_of(tmp_path / "out") == undisturbed
    is_nothing_left(host, tmp_path)


def test_children_of_before_are_left_alone(host, tmp_path):
    """Of a shell that has become gradus run by exec."""
    launcher = host.start("-c", 'sleep 1000 & echo $!; exec "$@"', "sh", host.program, "run", "-np",
                          1, "--no-prefix", "--restarts", 1, "--", "sh", "-c",
                          "echo up; exec sleep 1000", program="sh")
    other = int(read_lines(launcher.stdout, 1)[0])
    for _ in range(2):
        assert read_lines(launcher.stdout, 1) == ["up"]
        kill_supervisor(host)
    assert launcher.wait(timeout=TIMEOUT_S) == 1
    assert host.remains() == {other: "sleep"}
    os.kill(other, signal.SIGKILL)
    is_nothing_left(host, tmp_path)


def test_children_of_before_are_left_alone_by_who_supervises(host, tmp_path):  # noqa: F811
    launcher = host.start("-c", 'sleep 1000 & echo $!; exec "$@"', "sh", host.program, "run", "-np",
                          1, "--no-prefix", "--outlive", 0, "--", "sh", "-c",
                          "echo up; exec sleep 1000", program="sh")
    other, up = read_lines(launcher.stdout, 2)
    agent, = (pid for pid in children(launcher.pid) if name(pid) == "gradus-agent")
    os.kill(agent, signal.SIGKILL)
    assert up == "up" and launcher.wait(timeout=TIMEOUT_S) == 1
    assert host.remains() == {int(other): "sleep"}
    os.kill(int(other), signal.SIGKILL)
    is_nothing_left(host, tmp_path)


# ---- With another launcher, and without one ------------------------------------------------------

def test_the_same_line_goes_on(host, job, undisturbed, tmp_path):
    """When nobody was attached."""
    output = tmp_path / "out"
    words = ["run", "-np", 4, "--checkpoint-every", "20 steps", "--output", output, job]
    launcher = host.start(*words)
    with unhurried(lambda: workers_of(host)):
        wait_for_checkpoint(output)
        kept, = jobs_of(host)
        lose(host, launcher, kept["name"])
    host.wait_for_nothing()
    assert host("run", "--", "true").returncode == 0
    assert state_of(host, kept["name"]) == "lost"  # another job does not matter
    after = host(*words)
    assert after.returncode == 0, after.stderr
    assert f"job {kept['name']} is lost: the process that supervised it was killed; it is " \
        "restarted" in after.stderr
    assert f"the job goes on from {output}" in after.stderr
    assert sha256_of(output) == undisturbed and check_metrics(output)[1] >= 20
    is_nothing_left(host, tmp_path)


def test_the_same_line_may_go_on_any_number_of_times(host, tmp_path):
    words = ["run", "-np", 1, "--no-prefix", "--name", "up", "--", "sh", "-c",
             "echo up; exec sleep 1000"]
    for count in range(3):
        launcher = host.start(*words)
        assert read_lines(launcher.stdout, 1) == ["up"]
        launcher.kill()
        _, err = launcher.communicate(timeout=TIMEOUT_S)
        kill_supervisor(host)
        assert err.count("job up is lost") == (count > 0)
    wait_for_state(host, "up", "lost")
    assert host("stop", "up").stdout == "job up was lost, and is forgotten\n"
    is_nothing_left(host, tmp_path)


def test_output_of_before_the_loss_is_delivered_once(host, script, tmp_path):
    os.mkfifo(tmp_path / "told")
    words = ["run", "-np", 1, "--no-prefix", "--name", "say", "--", *script("""
import signal, sys
print("up", flush=True)
print(open(sys.argv[1]).read(), end="", flush=True)
signal.pause()
"""), str(tmp_path / "told")]
    launcher = host.start(*words)
    assert read_lines(launcher.stdout, 1) == ["up"]
    launcher.kill()
    launcher.communicate(timeout=TIMEOUT_S)
    wait_for_state(host, "say", "detached")
    (tmp_path / "told").write_text("nobody reads this\n")
    wait_until(lambda: "nobody" in host("logs", "say").stdout, "the log")
    kill_supervisor(host)
    wait_for_state(host, "say", "lost")
    launcher = host.start(*words)
    assert read_lines(launcher.stdout, 2) == ["nobody reads this", "up"]
    launcher.terminate()
    finish(launcher, 1)
    is_nothing_left(host, tmp_path)


def test_another_line_takes_the_name_of_a_lost_job(host, tmp_path):
    launcher = host.start("run", "-np", 1, "--name", "up", "--", "sh", "-c",
                          "echo up; exec sleep 1000")
    read_lines(launcher.stdout, 1)
    lose(host, launcher, "up")
    assert host("run", "-np", 1, "--name", "up", "--", "true").stderr == ""
    is_nothing_left(host, tmp_path)


def test_attached_launcher_restarts_it(host, job, undisturbed, tmp_path):
    """It knows the command line, the environment and the folder of the supervisor."""
    output = tmp_path / "out"
    launcher = host.start("run", "-np", 4, "--name", "digits", "--checkpoint-every", "20 steps",
                          "--output", "out", job, env={"GRADUS_LOG": "info"})
    with unhurried(lambda: workers_of(host)):
        wait_for_checkpoint(output)
        launcher.kill()
        launcher.communicate(timeout=TIMEOUT_S)
        (tmp_path / "elsewhere").mkdir()
        attached = host.start("attach", "digits", cwd=tmp_path / "elsewhere")
        wait_for_state(host, "digits", "running")
        kill_supervisor(host)
    out, err = finish(attached)
    assert sha256_of(output) == undisturbed and check_metrics(output)[1] >= 20
    assert "it is restarted" in err and "the job goes on from out" in err
    assert f"sha256 {undisturbed}" in out
    is_nothing_left(host, tmp_path)


def test_lost_job_is_told_of(host, tmp_path):
    launcher = host.start("run", "-np", 1, "--name", "up", "--", "sh", "-c",
                          "echo up; exec sleep 1000")
    read_lines(launcher.stdout, 1)
    lose(host, launcher, "up")
    done = host("attach", "up")
    assert done.returncode == 1 and re.fullmatch(
        "gradus: job up is lost: the process that supervised it was killed, and its workers with "
        "it; in its folder this goes on with it: gradus run -np 1 --name up -- sh -c .*\n",
        done.stderr)


# ---- An agent is killed --------------------------------------------------------------------------

def test_killed_agent_leaves_nothing(host, script, tmp_path):
    """What its worker has started ends while the job runs, and only that."""
    os.mkfifo(tmp_path / "told")
    launcher = host.start("run", "-np", 2, "--min-workers", 1, "--restarts", 1, "--no-prefix", "-H",
                          "localhost:1,127.0.0.1:1", "--", *script(PARENT), str(tmp_path / "told"))
    started = [line.split()[1:] for line in read_lines(launcher.stdout, 2)]
    victim = agents_of(launcher.pid)[1]
    started.sort(key=lambda pids: int(pids[0]) in children(victim))
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started[1]), "the end")
    assert launcher.poll() is None and all(os.path.exists(f"/proc/{pid}") for pid in started[0])
    (tmp_path / "told").write_text("0\n")
    assert "the process that looks after the workers (gradus-agent" in finish(launcher)[1]
    is_nothing_left(host, tmp_path)

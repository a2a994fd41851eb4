# SPDX-License-Identifier: Apache-2.0
"""The process that supervises a job (gradus-job) is killed: its deputy goes on in its place; where
that is gone as well, another supervisor restarts the job."""
import contextlib
import fcntl
import os
import pathlib
import re
import signal

import pytest
from conftest import (LEISURELY, TIMEOUT_S, finish, preload, read_lines, sha256_of, unhurried,
                      wait_until, write_digits)
from processes import children, kill_agent, name
from test_outlive import (echo, host, jobs_of, start_waiting, state_of,  # noqa: F401
                          wait_for_state, workers_of)
from test_rebirth import EPOCHS, check_metrics  # noqa: F401

# Says its process number and that of what it has started, then reads what to do from a FIFO.
PARENT = """
import os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", os.getpid(), child.pid, flush=True)
sys.exit(int(open(sys.argv[1]).readline()))
"""


def supervisors_of(host):
    return host.named("gradus-job")


def kill_supervisor(host):
    """And its deputy, which would go on in its place."""
    pid, = host.kill_supervisors()
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


# ---- The deputy ----------------------------------------------------------------------------------

@contextlib.contextmanager
def frozen(pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def state_of_process(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def kill_at_rest(host):
    """The supervisor alone, of a job in which nothing happens: it is not at work, and stays so."""
    wait_until(lambda: len(host.named("gradus-deputy")) == 1 == len(supervisors_of(host)),
               "a deputy with its name")
    pid, = supervisors_of(host)
    wait_until(lambda: state_of_process(pid) == "S", "rest")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: pid not in supervisors_of(host) and supervisors_of(host), "its deputy")
    return pid


@pytest.mark.parametrize("flags", [["--link", "shm"], ["--link", "tcp"],
                                   ["-H", "localhost:2,127.0.0.1:2"],
                                   ["--set", "distribution.strategy=ps",
                                    "--set", "distribution.servers=2"]])
def test_deputy_goes_on(host, job, undisturbed, tmp_path, flags):
    """Again and again, with the same workers, and without a step that is repeated."""
    output = tmp_path / "out"
    with unhurried(tmp_path, step=67) as slow, contextlib.ExitStack() as stack:
        launcher = host.start("run", "-np", 4, *flags, "--chaos", slow, "--output", output, job)
        read_lines(launcher.stdout, 3)
        workers = workers_of(host)
        stack.enter_context(frozen(workers[1:]))
        going = stack.pop_all()
    with going, frozen(workers[:1]):
        killed = [kill_at_rest(host) for _ in range(3)]
        assert workers_of(host) == workers
    out, err = finish(launcher)
    assert sha256_of(output) == undisturbed and check_metrics(output) == [0]
    assert f"sha256 {undisturbed}" in out and "restarted" not in err
    for pid in killed:
        assert (f"the process that supervises the job (gradus-job, pid {pid}) was killed; its "
                "deputy (pid ") in err
    is_nothing_left(host, tmp_path)


def test_deputy_has_output_and_exit_code(host, echo, tmp_path):  # noqa: F811
    job = echo("--grace", "1s")
    for word in ("one", "two", "three"):
        kill_at_rest(host)
        job.tell(f"say {word}")
        assert read_lines(job.launcher.stdout, 1) == [f"say {word}"]
    job.tell("end 75")
    out, _ = finish(job.launcher, 75)
    assert out == ""
    is_nothing_left(host, tmp_path)


def test_deputy_hands_signals_on(host, echo, tmp_path):  # noqa: F811
    job = echo()
    kill_at_rest(host)
    job.launcher.terminate()
    assert "SIGTERM" in finish(job.launcher, 1)[1]
    is_nothing_left(host, tmp_path)


@pytest.mark.parametrize("first", ["launcher", "supervisor"])
@pytest.mark.parametrize("again", ["run", "attach"])
def test_launcher_and_supervisor_are_killed(host, echo, tmp_path, first, again):  # noqa: F811
    """Nothing is lost, nothing is said twice, and whoever comes is heard."""
    job = echo()
    job.tell("say one")
    assert read_lines(job.launcher.stdout, 1) == ["say one"]
    if first == "supervisor":
        kill_at_rest(host)
    job.lose_launcher()
    if first == "launcher":
        kill_at_rest(host)
    assert os.path.exists(f"/proc/{job.worker}")
    job.tell("say two")
    wait_until(lambda: "two" in host("logs", "echo").stdout, "the log")
    launcher = host.start(*(job.words if again == "run" else ["attach", "echo"]))
    assert read_lines(launcher.stdout, 1) == ["say two"]
    kill_at_rest(host)
    job.tell("say three")
    assert read_lines(launcher.stdout, 1) == ["say three"]
    launcher.terminate()
    out, _ = finish(launcher, 1)
    assert out == ""
    is_nothing_left(host, tmp_path)


def test_deputy_replaces_workers(host, job, tmp_path):
    """They record for the process that supervises them now."""
    launcher = host.start("run", "-np", 3, "--grace", "60s", "--output", tmp_path / "out", "--set",
                          "epochs=100000", "--chaos", LEISURELY, job)
    read_lines(launcher.stdout, 3)
    before = workers_of(host)
    with frozen(before):
        kill_at_rest(host)
        os.kill(before[1], signal.SIGKILL)
    wait_until(lambda: {*workers_of(host)} - {*before}, "another worker")
    supervisor, = supervisors_of(host)
    new, = {*workers_of(host)} - {*before}
    wait_until(lambda: f"GRADUS_RECORD=/proc/{supervisor}/fd/".encode() in
               pathlib.Path(f"/proc/{new}/environ").read_bytes(), "its environment")
    while "3 workers go on from step" not in read_lines(launcher.stdout, 1)[0]:
        pass
    launcher.terminate()
    assert "and another one is started" in finish(launcher, 75)[1]
    is_nothing_left(host, tmp_path)


def test_killed_agent_of_a_deputy_leaves_nothing(host, script, tmp_path):
    """The launcher ends what falls to it, while the job runs."""
    os.mkfifo(tmp_path / "told")
    launcher = host.start("run", "-np", 1, "--no-prefix", "--restarts", 1, "--", *script(PARENT),
                          str(tmp_path / "told"))
    before = read_lines(launcher.stdout, 1)[0].split()[1:]
    kill_at_rest(host)
    agent, = host.named("gradus-agent")
    kill_agent(agent)
    after = read_lines(launcher.stdout, 1)[0].split()[1:]
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in before), "their end")
    assert all(os.path.exists(f"/proc/{pid}") for pid in after)
    (tmp_path / "told").write_text("0\n")
    assert "all workers are restarted (1 of at most 1 times, --restarts)\n" in finish(launcher)[1]
    is_nothing_left(host, tmp_path)


def test_killed_deputy_is_replaced(host, echo, tmp_path):  # noqa: F811
    job = echo()
    pid, = host.named("gradus-deputy")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: host.named("gradus-deputy") not in ([], [pid]), "another deputy")
    kill_at_rest(host)
    job.launcher.terminate()
    finish(job.launcher, 1)
    is_nothing_left(host, tmp_path)


# ---- Another job's folder ------------------------------------------------------------------------

def leave_folders(tmp_path, name, end=None):
    """Of jobs whose supervisors had the same process number, as after a restart of a container."""
    jobs = tmp_path / "run/gradus"
    for number in range(5):
        other = jobs / f"other-{number}"
        other.mkdir(mode=0o700)
        record = (jobs / name / "job").read_text()
        (other / "job").write_text(re.sub("^run .*", "run another", record, flags=re.M))
        for file in ("lock", "output"):
            (other / file).touch()
        if end is not None:
            (other / "end").write_text(end)
    return sorted(jobs.glob("other-*"))


def test_end_of_another_job_with_its_process_number_is_kept(host, echo, tmp_path):  # noqa: F811
    job = echo()
    others = leave_folders(tmp_path, "echo",
                           "code 3\nend 1\ndelivered 0 0\ncontent 0\noutput \n")
    job.tell("end 0")
    finish(job.launcher)
    assert [path.exists() for path in others] == [True] * 5
    assert [one["state"] for one in jobs_of(host)] == ["ended 3"] * 5, jobs_of(host)


def test_another_lost_job_with_its_process_number_is_not_restarted(host, echo,  # noqa: F811
                                                                   tmp_path):
    job = echo("--restarts", "1")
    others = leave_folders(tmp_path, "echo")
    kill_supervisor(host)
    wait_until(lambda: supervisors_of(host), "another supervisor")
    wait_for_state(host, "echo", "running")
    assert [path.exists() for path in others] == [True] * 5
    job.launcher.terminate()
    finish(job.launcher, 1)


# ---- Nobody is left of it ------------------------------------------------------------------------

@pytest.mark.parametrize("orphans", ["end", "finish"])
def test_from_the_newest_checkpoint(host, job, undisturbed, tmp_path, orphans):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 4, "--checkpoint-every", "20 steps", "--output", output,
                              "--name", "digits", "--orphans", orphans, "--chaos", slow, job)
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
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 2, "--output", output, "--log-dir", logs, "--chaos",
                              slow, job)
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


def test_restart_that_cannot_be_is_a_failed_job(host, tmp_path):
    """And no wrong line: it was right when the job began."""
    path = write_digits(tmp_path, 10000)
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 1, "--output", tmp_path / "out", "--chaos", slow, path)
        read_lines(launcher.stdout, 1)
        path.unlink()
        kill_supervisor(host)
        _, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 1 and str(path) in err, err


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


def test_who_waits_and_who_follows_go_on_with_the_restarted_job(host, script, tmp_path):
    """Also if the launcher takes its time."""
    os.mkfifo(tmp_path / "told")
    launcher = host.start("run", "-np", 1, "--no-prefix", "--restarts", 1, "--name", "up", "--",
                          *script(PARENT), str(tmp_path / "told"))
    read_lines(launcher.stdout, 1)
    waiting, following = start_waiting(host, "up"), host.start("logs", "-f", "up")
    first, = read_lines(following.stdout, 1)
    with frozen([launcher.pid]):
        kill_supervisor(host)
        wait_for_state(host, "up", "lost")
    again, = read_lines(following.stdout, 1)
    assert again.startswith("up ") and again != first
    assert waiting.poll() is None
    (tmp_path / "told").write_text("0\n")
    assert finish(launcher)[0].startswith("up ")
    assert finish(waiting) == ("", "")
    finish(following)
    is_nothing_left(host, tmp_path)


@pytest.mark.parametrize("restarts", [0, 1])
def test_who_waits_is_told_when_nobody_restarts_the_job(host, tmp_path, restarts):
    launcher = host.start("run", "-np", 1, "--no-prefix", "--restarts", restarts, "--name", "up",
                          "--", "sh", "-c", "echo up; exec sleep 1000")
    read_lines(launcher.stdout, 1)
    waiting = start_waiting(host, "up")
    with frozen([launcher.pid]):
        kill_supervisor(host)
        wait_for_state(host, "up", "lost")
        launcher.kill()
    assert "job up is lost" in finish(waiting, 1)[1]
    assert host("stop", "up").returncode == 0
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


@pytest.mark.parametrize("launcher_too", [False, True])
def test_killed_before_anything_is_started_costs_no_restart(host, tmp_path, launcher_too):
    """It has made its first log, and stands at the second one."""
    fifo, logs = tmp_path / "fifo", tmp_path / "logs"
    os.mkfifo(fifo)
    env = {**preload(host, "stop_joining_worker"), "TEST_STANDS": str(fifo)}
    words = ["run", "-np", 1, "--no-prefix", "--name", "up", "--restarts", 0, "--log-dir", logs,
             "--", "sh", "-c", "echo up"]
    launcher = host.start(*words, env=env)
    wait_until(lambda: (logs / "rank.0.out").exists(), "the first log")
    if launcher_too:
        launcher.kill()
        launcher.wait(timeout=TIMEOUT_S)
    pid = kill_supervisor(host)
    if launcher_too:
        wait_for_state(host, "up", "lost")
        launcher = host.start(*words, env=env)
    wait_until(lambda: supervisors_of(host) not in ([], [pid]), "another one")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    out, err = finish(launcher)
    os.close(reader)
    assert out == "up\n" and err == (
        "gradus: job up is lost: the process that supervised it was killed; it is restarted\n"
        if launcher_too else
        f"gradus: the process that supervises the job (gradus-job, pid {pid}) was killed before "
        "the job had begun; another one is started\n")
    is_nothing_left(host, tmp_path)


def test_killed_again_and_again_before_anything_is_started_ends(host, tmp_path):
    """As by a fault of its own: each one has made its first log, and stands at the second one."""
    logs, fifo = tmp_path / "logs", tmp_path / "fifo"
    os.mkfifo(fifo)
    launcher = host.start("run", "-np", 1, "--restarts", 100, "--log-dir", logs, "--", "true",
                          env={**preload(host, "stop_joining_worker"), "TEST_STANDS": str(fifo)})
    for _ in range(4):
        wait_until((logs / "rank.0.out").exists, "the first log")
        (logs / "rank.0.out").unlink()
        kill_supervisor(host)
    _, err = finish(launcher, 1)
    assert err.count("was killed before the job had begun; another one is started") == 3
    assert err.splitlines()[-1].endswith("was killed by signal 9 (Killed), and the job with it")
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
    agent, = host.named("gradus-agent")
    kill_agent(agent)
    assert up == "up" and launcher.wait(timeout=TIMEOUT_S) == 1
    assert host.remains() == {int(other): "sleep"}
    os.kill(int(other), signal.SIGKILL)
    is_nothing_left(host, tmp_path)


# ---- With another launcher, and without one ------------------------------------------------------

def test_the_same_line_goes_on(host, job, undisturbed, tmp_path):
    """When nobody was attached."""
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        words = ["run", "-np", 4, "--checkpoint-every", "20 steps", "--output", output, "--chaos",
                 slow, job]
        launcher = host.start(*words)
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
    with unhurried(tmp_path) as slow:
        launcher = host.start("run", "-np", 4, "--name", "digits", "--checkpoint-every", "20 steps",
                              "--output", "out", "--chaos", slow, job, env={"GRADUS_LOG": "info"})
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


@pytest.mark.long
def test_lost_job_is_waited_for_while_a_process_of_it_lives(host, tmp_path):
    """For us that is whoever holds the lock of its folder. After 10 s that is told."""
    launcher = host.start("run", "-np", 1, "--name", "up", "--", "sh", "-c",
                          "echo up; exec sleep 1000")
    read_lines(launcher.stdout, 1)
    lose(host, launcher, "up")
    with open(tmp_path / "run/gradus/up/lock", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        attached = host.start("attach", "up")
        assert "job up neither answers nor ends, and a process" in attached.stderr.readline()
    _, err = attached.communicate(timeout=TIMEOUT_S)
    assert attached.returncode == 1 and err.startswith("gradus: job up is lost"), err


# ---- An agent is killed --------------------------------------------------------------------------

@pytest.mark.parametrize("moved", ["", "takeover", "takeover that the launcher sees late"])
def test_killed_agent_leaves_nothing(host, script, tmp_path, moved):
    """What its worker has started ends while the job runs, and only that; also after a takeover."""
    os.mkfifo(tmp_path / "told")
    launcher = host.start("run", "-np", 2, "--min-workers", 1, "--restarts", 1, "--no-prefix", "-H",
                          "localhost:1,127.0.0.1:1", "--", *script(PARENT), str(tmp_path / "told"))
    started = [line.split()[1:] for line in read_lines(launcher.stdout, 2)]
    late = moved.endswith("late")
    if late:
        os.kill(launcher.pid, signal.SIGSTOP)
    if moved:
        kill_at_rest(host)
    victim = host.named("gradus-agent")[1]
    started.sort(key=lambda pids: int(pids[0]) in children(victim))
    kill_agent(victim)
    if late:
        wait_until(lambda: int(started[1][0]) not in children(victim), "its end")
        os.kill(launcher.pid, signal.SIGCONT)
    wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in started[1]), "the end")
    assert launcher.poll() is None and all(os.path.exists(f"/proc/{pid}") for pid in started[0])
    (tmp_path / "told").write_text("0\n")
    assert "the process that looks after the workers (gradus-agent" in finish(launcher)[1]
    is_nothing_left(host, tmp_path)

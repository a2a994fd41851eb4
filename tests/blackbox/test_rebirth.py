# SPDX-License-Identifier: Apache-2.0
"""Nobody is left to go on with: the job is restarted, and ends with the same bits all the same."""
import errno
import os
import signal

import pytest
from conftest import finish, is_sanitized, lines_of, sha256_of, wait_until
from processes import agent_and_guard, agents_of, kill_agent
from test_recovery import workers_of

EPOCHS = 8
HOLD = "stop:rank=1@step=60,for=60s"  # until the test has done what it must; 22 steps an epoch


def wait_for(launcher, condition, what):
    wait_until(lambda: launcher.poll() is not None or condition(), what)
    assert launcher.poll() is None, f"the job ended before {what}"


def said(path, text):
    return path.exists() and text in path.read_text()


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def wait_for_hold(launcher):
    """Who is killed before would be held in the next beginning."""
    wait_for(launcher, lambda: any(map(is_stopped, workers_of(launcher))), "the stop of rank 1")


def check_metrics(output):
    """No epoch is lost, or stands there twice."""
    lines = lines_of(output)
    epochs = [line["epoch"] for line in lines if line["event"] == "epoch"]
    assert epochs == list(range(1, EPOCHS + 1))
    assert [line["event"] for line in lines].count("end") == 1
    return [line["step"] for line in lines if line["event"] == "start"]


@pytest.mark.parametrize("victims", ["agent", "workers"])
def test_from_the_newest_checkpoint(gradus, job, undisturbed, tmp_path, victims):
    """kill -9 of the process that looks after the workers, or of all of them."""
    output, logs = tmp_path / "out", tmp_path / "logs"
    logs.mkdir()
    launcher = gradus.start("run", "-np", 4, "--checkpoint-every", "20 steps", "--output", output,
                            "--log-dir", logs, "--chaos", HOLD, job)
    wait_for(launcher, lambda: list(output.glob("checkpoints/step-*")), "the first checkpoint")
    wait_for_hold(launcher)
    is_agent = victims == "agent"
    victims = agent_and_guard(agents_of(launcher.pid)[0]) if is_agent else workers_of(launcher)
    for pid, number in [(launcher.pid, signal.SIGSTOP), *((pid, signal.SIGKILL) for pid in victims),
                        (launcher.pid, signal.SIGCONT)]:  # nobody can be replaced in between
        os.kill(pid, number)
    _, err = finish(launcher)
    assert sha256_of(output) == undisturbed
    starts = check_metrics(output)
    assert len(starts) == 2 and starts[0] == 0 and starts[1] in (20, 40)
    assert f"restarted (1 of at most 3 times, --restarts); the job goes on from {output}" in err
    if is_agent:
        assert "the process that looks after the workers (gradus-agent, pid" in err
    told = (logs / "rank.0.out").read_text()
    assert told.count("digits-mlp: ") == 2 and "epoch 1/8" in told
    gradus.wait_for_nothing()


def test_from_the_first_step(gradus, job, undisturbed, tmp_path):
    """Where no checkpoints are written."""
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 2, "--output", output, "--chaos", HOLD, job)
    wait_for_hold(launcher)
    kill_agent(agents_of(launcher.pid)[0])
    _, err = finish(launcher)
    assert "the job begins from its first step" in err
    assert sha256_of(output) == undisturbed and check_metrics(output) == [0]
    gradus.wait_for_nothing()


def try_open(path):
    """A pipe to whoever reads that file; None: nobody does."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        assert error.errno == errno.ENXIO
        return None


def is_pending(pid, number):
    """Has the process been sent a signal that it has not taken yet?"""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        pending, = (line.split()[1] for line in file if line.startswith("ShdPnd:"))
    return int(pending, 16) >> (number - 1) & 1


def test_an_end_between_two_beginnings(gradus, job, tmp_path):
    """SIGTERM while the launcher reads the job again: nothing runs, and it can be gone on from."""
    own, pipe = tmp_path / "mlp.yaml", []
    own.write_text(job.read_text())
    launcher = gradus.start("run", "-np", 2, "--output", tmp_path / "out", "--chaos", HOLD, own)
    wait_for_hold(launcher)
    os.mkfifo(tmp_path / "pipe")
    os.replace(tmp_path / "pipe", own)
    kill_agent(agents_of(launcher.pid)[0])
    wait_until(lambda: pipe.append(try_open(own)) or pipe[-1] is not None, "it to be read")
    supervisor, = gradus.named("gradus-job")
    launcher.terminate()
    wait_until(lambda: is_pending(supervisor, signal.SIGTERM), "the signal to be passed on")
    with open(pipe[-1], "w", encoding="ascii") as end:
        end.write(job.read_text())
    _, err = finish(launcher, 75)
    assert "ended by SIGTERM" in err and "--resume goes on" in err
    gradus.wait_for_nothing()


def test_an_end_while_the_rest_is_written(gradus, script, tmp_path):
    """All is lost, and whoever should read the output does not: nothing is restarted."""
    words = script("import os\nos.write(1, b'x' * 50000 + b'\\n')\n"
                   "os.write(1, b'x' * 50000 + b'\\n')\nopen('written', 'w').close()\n"
                   "os.kill(os.getpid(), 9)\n")
    launcher = gradus.start("run", "-np", 1, "--restarts", 5, "--", *words)
    wait_until(lambda: (tmp_path / "written").exists() and not agents_of(launcher.pid),
               "the end of the worker, and of its agent")
    launcher.terminate()
    wait_until(lambda: launcher.poll() is not None, "the end of the job")
    out, err = finish(launcher, 75)
    assert "ended by SIGTERM before all workers were restarted" in err
    assert out.count("x") <= 100000


def test_fewer_than_the_minimum(gradus, job, undisturbed, tmp_path):
    output = tmp_path / "out"
    done = gradus("run", "-np", 4, "--min-workers", 4, "--checkpoint-every", "20 steps", "--output",
                  output, "--chaos", "kill:rank=2@step=50; kill:rank=1@step=90", job)
    assert done.returncode == 0, done.stderr
    assert sha256_of(output) == undisturbed
    assert done.stderr.count("was killed by signal 9") == 2  # each fault happens once
    assert "(2 of at most 3 times, --restarts); the job goes on from" in done.stderr
    check_metrics(output)


def test_no_more_than_so_often(gradus, job, tmp_path):
    done = gradus("run", "-np", 1, "--restarts", 2, "--output", tmp_path / "out", "--chaos",
                  "kill:rank=0@step=30,again", job)
    assert done.returncode == 1
    assert done.stderr.count("was killed by signal 9") == 3
    assert done.stderr.count("restarted") == 2 and "(2 of at most 2 times" in done.stderr


def test_never_where_that_is_said(gradus, job, tmp_path):
    done = gradus("run", "-np", 1, "--restarts", 0, "--output", tmp_path / "out", "--chaos",
                  "kill:rank=0@step=30", job)
    assert done.returncode == 1 and "restarted" not in done.stderr


def test_a_crash_that_comes_again_ends_the_job(gradus, job, tmp_path):
    """Whoever computes step 30 crashes: the second time nobody tries once more."""
    done = gradus("run", "-np", 4, "--output", tmp_path / "out", "--chaos",
                  "kill:rank=1@step=30,signal=SEGV,again", job)
    assert done.returncode == 1
    assert "was killed by signal 11 (Segmentation fault)" in done.stderr
    assert "in step 30, as rank 1 was before; it would happen again, so the job ends" in done.stderr
    assert "restarted" not in done.stderr
    assert sum("signal 11" in line for line in done.stderr.splitlines()) == 2


def test_a_crash_alone_comes_again(gradus, job, tmp_path):
    """There is nobody to repeat the step, so the job is restarted first."""
    done = gradus("run", "-np", 1, "--output", tmp_path / "out", "--chaos",
                  "kill:rank=0@step=30,signal=ABRT,again", job)
    assert done.returncode == 1
    assert done.stderr.count("restarted") == 1
    assert "in step 30, as rank 0 was before; it would happen again" in done.stderr


def test_a_crash_that_does_not_come_again_is_survived(gradus, job, undisturbed, tmp_path):
    done = gradus("run", "-np", 2, "--output", tmp_path / "out", "--chaos",
                  "kill:rank=1@step=30,signal=SEGV; kill:rank=0@step=60,signal=SEGV", job)
    assert done.returncode == 0, done.stderr
    assert sha256_of(tmp_path / "out") == undisturbed


def test_a_command_is_restarted_if_that_is_said(gradus, script, tmp_path):
    """As often as it is killed, but not when it ends with an exit code."""
    words = script(f"""
import os, signal, sys
with open({str(tmp_path / "tries")!r}, "a+") as file:
    file.write("x")
    file.seek(0)
    tries = len(file.read())
if tries < 3:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(3)
""")
    done = gradus("run", "-np", 1, "--restarts", 5, "--", *words)
    assert done.returncode == 1 and (tmp_path / "tries").read_text() == "xxx"
    assert done.stderr.count("all workers are restarted") == 2
    assert "exited with code 3" in done.stderr
    (tmp_path / "tries").unlink()
    done = gradus("run", "-np", 1, "--", *words)
    assert done.returncode == 1 and (tmp_path / "tries").read_text() == "x"


def test_a_command_that_crashes_in_the_same_operation(gradus, comm_script):
    done = gradus("run", "-np", 2, "--restarts", 9, "--", *comm_script("""
import signal
create()
statuses = [barrier() for _ in range(5)]  # the last may fail where rank 1 is through
if rank == 1:
    assert not any(statuses)
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGABRT)
while not any(statuses):
    statuses.append(barrier())
sys.exit(76)
"""))
    assert done.returncode == 1
    assert done.stderr.count("all workers are restarted") == 1
    assert "after 5 operations, as rank 1 was before; it would happen again" in done.stderr



@pytest.mark.parametrize("late", [False] if is_sanitized() else [False, True])  # an epoch a second
def test_orphans_go_on_to_a_checkpoint(gradus, job, undisturbed, tmp_path, late):
    """kill -9 of a launcher that supervises: nobody reads what the workers say; they write a last
    checkpoint, also when they know of its death before the agent does."""
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 4, "--outlive", 0, "--orphans", "finish", "--grace",
                            "60s", "--output", output, "--chaos",
                            "slow:rank=1,x4" if late else "slow:rank=1,x10", job)
    wait_for(launcher, lambda: said(output / "metrics.jsonl", '"epoch":2'), "the second epoch")
    workers, agents = workers_of(launcher), agents_of(launcher.pid) if late else []
    for agent in agents:
        os.kill(agent, signal.SIGSTOP)
    launcher.kill()
    for agent in agents:
        wait_until(lambda: said(output / "metrics.jsonl", '"epoch":4') or
                   not any(os.path.exists(f"/proc/{pid}/exe") for pid in workers),
                   "steps of workers whose coordinator has ended")
        os.kill(agent, signal.SIGCONT)
    gradus.wait_for_nothing()
    checkpoints = [entry.name for entry in output.glob("checkpoints/step-*")]
    assert len(checkpoints) == 1 and int(checkpoints[0].removeprefix("step-")) >= 44
    done = gradus("run", "-np", 3, "--resume", "--output", output, job)
    assert done.returncode == 0, done.stderr
    assert sha256_of(output) == undisturbed
    check_metrics(output)


@pytest.mark.parametrize("flags", [[], ["--orphans", "finish", "--grace", "500ms"]])
def test_orphans_do_not_stay(gradus, job, tmp_path, flags):
    """Though one of them stands still, and the others wait for it."""
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 4, "--outlive", 0, *flags, "--output", output, "--chaos",
                            HOLD, job)
    wait_for_hold(launcher)
    launcher.kill()
    gradus.wait_for_nothing()
    assert not (output / "checkpoints").exists()


@pytest.mark.parametrize("where", [["-H", "localhost:2,other:2"], ["--listen", ":0"],
                                   ["--host-discovery-script", "true"]])
def test_orphans_on_other_hosts_cannot_know(gradus, job, where):
    done = gradus("run", "-np", 2, "--orphans", "finish", *where, job)
    assert done.returncode == 2 and "--orphans finish is for job files on one host" in done.stderr
    assert "whether gradus run has died or they are cut off from it" in done.stderr
    done = gradus("run", "-np", 2, "--orphans", "finish", "-H", "localhost:2", "--dry-run", job)
    assert done.returncode == 0, done.stderr


def test_orphans_of_a_command_have_no_checkpoint(gradus):
    done = gradus("run", "-np", 2, "--orphans", "finish", "--", "true")
    assert done.returncode == 2 and "--orphans finish is for job files on one host" in done.stderr

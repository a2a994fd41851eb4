# SPDX-License-Identifier: Apache-2.0
"""Workers come and go while a job runs, and no bit of its result changes."""
import json
import os
import random
import re
import signal

import pytest
from conftest import (LEISURELY, TIMEOUT_S, finish, lines_of, preload, seeds, sha256_of, unhurried,
                      wait_until)
from processes import stand_still
from test_recovery import kill_one, told, wait_for_moment, workers_of

EPOCHS = 30

def generations(output):
    """How many workers each later generation had."""
    metrics = output / "metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    whole = text[:text.rfind("\n") + 1]  # the job may be writing the next line
    return [line["workers"] for line in map(json.loads, whole.splitlines())
            if line["event"] in ("changed", "recovered")]


def count_sockets(pid):
    try:
        return sum(os.readlink(f"/proc/{pid}/fd/{fd}").startswith("socket:")
                   for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # one was closed meanwhile
        return 0


def goes_on(output, is_in, timeout_s):
    """Does the job write of another epoch, or of what is waited for?"""
    size = len(told(output))
    try:
        wait_until(lambda: len(told(output)) > size or is_in(), "another epoch", timeout_s)
    except AssertionError:
        return False
    return True


def wait_for_first_epoch(output, launcher):
    metrics = output / "metrics.jsonl"

    def is_there():
        ended = launcher.poll() is not None
        there = metrics.exists() and '"epoch"' in metrics.read_text()
        assert there or not ended, f"the job is over: {launcher.communicate()}"
        return there
    wait_until(is_there, "the first epoch")


def check_metrics(output, last):
    lines = lines_of(output)
    epochs = [line["epoch"] for line in lines if line["event"] == "epoch"]
    assert epochs == list(range(1, last + 1))
    told = [line["event"] for line in lines if line["event"] in ("start", "end")]
    assert told == ["start", "end"]


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_two_then_four_then_three_are_as_four(gradus, job, undisturbed, tmp_path, link):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 2, "--max-workers", 4, "--link", link,
                                "--output", output, "--chaos", slow, job)
        wait_for_first_epoch(output, launcher)
        done = gradus("scale", "--to", 4, "--job", launcher.pid)
        assert done.stdout == "the job goes from 2 to 4 workers\n", done.stderr
        wait_until(lambda: 4 in generations(output), "four workers")
        assert gradus("scale", "--to", 3, "--job", launcher.pid).returncode == 0
        wait_until(lambda: generations(output)[-1:] == [3], "three workers")
        wait_until(lambda: len(workers_of(launcher)) == 3, "the end of the fourth")
        told_so = "the job has 3 workers; it may have 1 to 4\n"
        wait_until(lambda: gradus("scale", "--job", launcher.pid).stdout == told_so,
                   "the supervisor to hear of that end")
    finish(launcher)
    assert sha256_of(output) == undisturbed
    check_metrics(output, EPOCHS)
    gradus.wait_for_nothing()


@pytest.mark.parametrize("seed", seeds(4))
def test_kills_and_changes_at_random_moments(gradus, job, undisturbed, tmp_path, seed):
    """Killed workers are replaced, others come and go meanwhile; the seed chooses what and when."""
    rng = random.Random(seed)
    output = tmp_path / "out"
    sure = rng.choice([2, 4])  # so many of the first workers live: at least one must, whoever it is
    launcher = gradus.start("run", "-np", sure, "--max-workers", 4,
                            "--spare", rng.choice([0, 0, 1]), "--output", output, job)
    moments = sorted(rng.randrange(-3, EPOCHS // 2) for _ in range(rng.choice([2, 3, 4])))
    for moment in moments:
        if not wait_for_moment(launcher, output, max(moment, -sure)):
            break
        if rng.random() < 0.5 or sure == 1:
            wanted = rng.choice([2, 3, 4])
            gradus("scale", "--to", wanted, "--job", launcher.pid)
            sure = min(sure, wanted)
        else:
            kill_one(launcher, rng.randrange(1000))
            sure -= 1
    _, err = finish(launcher)
    assert sha256_of(output) == undisturbed
    assert "restarted" not in err
    check_metrics(output, EPOCHS)
    gradus.wait_for_nothing()


def test_another_worker_comes_in_place_of_a_killed_one(gradus, job, undisturbed,
                                                       tmp_path):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 2, "--restarts", 1, "--output", output, "--chaos",
                                slow, job)
        for kills in range(1, 4):
            wait_for_first_epoch(output, launcher)
            os.kill(workers_of(launcher)[0], signal.SIGKILL)
            if kills <= 2:  # once for each of two workers
                wait_until(lambda: generations(output).count(2) == kills, "the one that is started")
    _, err = finish(launcher)
    assert sha256_of(output) == undisturbed
    workers = generations(output)  # the other one goes on alone meanwhile, if there is time
    assert workers.count(2) == 2 and workers[-1] == 1
    assert err.count("the job goes on with 1 worker, and another one is started") == 2
    assert err.count("the job goes on with 1 worker\n") == 1
    gradus.wait_for_nothing()


def is_stopped(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return False


def kill_joining_workers(gradus, launcher, output, stops_at, step):
    """Kills joining workers that stop with ever more sockets, `step` more each time, until one
    is in or is waited for. Returns the number that were killed."""
    wait_for_first_epoch(output, launcher)
    first = set(workers_of(launcher))

    def is_in():
        return generations(output)[-1:] == [3]

    assert gradus("scale", "--to", 3, "--job", launcher.pid).returncode == 0
    for killed, sockets in enumerate([*range(step, 8, step), -1]):
        wait_until(lambda: set(workers_of(launcher)) - first, "a joining worker")
        joining = [pid for pid in workers_of(launcher) if pid not in first][-1]
        wait_until(lambda: is_stopped(joining) or is_in(), "its connections")
        # What it said before it stopped may bring its generation about an epoch later. The first
        # one has said nothing.
        going = (goes_on(output, is_in, TIMEOUT_S) if killed == 0 else
                 all(goes_on(output, is_in, TIMEOUT_S / 30) for _ in range(2)))
        if is_in() or not going:
            break
        stops_at.write_text(str(sockets))
        os.kill(joining, signal.SIGKILL)
        wait_until(lambda: joining not in workers_of(launcher), "its end")
    else:
        killed += 1
    stops_at.write_text("-1")
    for pid in workers_of(launcher):
        os.kill(pid, signal.SIGCONT)
    wait_until(is_in, "the last joining worker")
    return killed


@pytest.mark.parametrize("link, step", [("shm", 6), ("tcp", 4),
                                        *(pytest.param(link, 2, marks=pytest.mark.long)
                                          for link in ("shm", "tcp"))])
def test_elastic_joining_worker_is_killed_disturbs_nobody(gradus, job, undisturbed, tmp_path, link,
                                                          step):
    """Stopped with ever more connections, and killed unless the others wait for it already."""
    output = tmp_path / "out"
    stops_at = tmp_path / "stops_at"
    stops_at.write_text("0")
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 2, "--max-workers", 3, "--restarts", 20, "--link",
                                link, "--output", output, "--chaos", slow, job,
                                env={**preload(gradus, "stop_joining_worker"),
                                     "TEST_STOPS_AT": stops_at})
        assert kill_joining_workers(gradus, launcher, output, stops_at, step) > 0
    _, err = finish(launcher)
    assert "the job goes on with 2 workers, and another one is started" in err
    assert "recovered" not in told(output)  # nobody has lost a peer, or repeated a step
    assert generations(output) == [3]
    assert sha256_of(output) == undisturbed
    gradus.wait_for_nothing()


def test_a_standby_takes_the_place_of_a_killed_worker(gradus, job, undisturbed, tmp_path):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 2, "--spare", 1, "--output", output, "--chaos", slow,
                                job)
        wait_for_first_epoch(output, launcher)
        wait_until(lambda: len(workers_of(launcher)) == 3, "the standby's process")
        standby = workers_of(launcher)[-1]
        wait_until(lambda: count_sockets(standby) > 0, "its call to the launcher")
        supervisor, = gradus.named("gradus-job")
        wait_until(lambda: stand_still([standby, supervisor]), "the standby to be known")
        os.kill(workers_of(launcher)[1], signal.SIGKILL)
        wait_until(lambda: generations(output)[:1] == [2], "the standby")
    _, err = finish(launcher)
    assert "the job goes on with 2 workers, a standby among them, and another one is started" in err
    assert generations(output)[0] == 2  # at once, not with one worker first
    assert sha256_of(output) == undisturbed
    gradus.wait_for_nothing()


def test_a_job_that_is_asked_to_end_can_go_on_though_a_standby_waits(gradus, job, tmp_path):
    output = tmp_path / "out"
    text = job.read_text()
    endless = text.replace(f"epochs: {EPOCHS}", "epochs: 1000000")
    assert endless != text
    (tmp_path / "job.yaml").write_text(endless)
    launcher = gradus.start("run", "-np", 2, "--spare", 1, "--grace", "60s", "--output", output,
                            "--chaos", LEISURELY, tmp_path / "job.yaml")
    wait_for_first_epoch(output, launcher)
    wait_until(lambda: len(workers_of(launcher)) == 3, "the standby")
    launcher.terminate()
    _, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 75, err
    gradus.wait_for_nothing()


def test_a_standby_that_dies_when_the_work_is_done_changes_nothing(gradus, job, undisturbed,
                                                                   tmp_path):
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 2, "--spare", 1, "--output", output, "--chaos", slow,
                                job)
        wait_for_first_epoch(output, launcher)
        wait_until(lambda: len(workers_of(launcher)) == 3, "the standby's process")
        standby = workers_of(launcher)[-1]
        wait_until(lambda: count_sockets(standby) > 0, "its call to the launcher")
        os.kill(standby, signal.SIGSTOP)
    wait_until(lambda: workers_of(launcher) == [standby], "the end of the work")
    os.kill(standby, signal.SIGKILL)
    _, err = finish(launcher)
    assert err == "", err
    assert sha256_of(output) == undisturbed
    check_metrics(output, EPOCHS)
    gradus.wait_for_nothing()


def test_a_job_starts_within_its_minimum_and_maximum(gradus, job, tmp_path):
    text = job.read_text()
    text = text.replace("number_of_workers: 4", "number_of_workers: {min: 3, max: 4}")
    (tmp_path / "job.yaml").write_text(text)
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "--cores", "0", "--output", output, "--chaos", slow,
                                tmp_path / "job.yaml")
        wait_for_first_epoch(output, launcher)
        said = gradus("scale", "--job", launcher.pid).stdout
        assert said == "the job has 3 workers; it may have 3 to 4\n"
        refused = gradus("scale", "--to", 5, "--job", launcher.pid)
        assert refused.returncode == 1
        assert "may have 3 to 4 workers, 5 are not possible" in refused.stderr
        assert "the slots of its hosts" in refused.stderr
        os.kill(workers_of(launcher)[0], signal.SIGKILL)  # two wait for the third
        wait_until(lambda: generations(output) == [3], "three workers")
    launcher.terminate()
    _, err = launcher.communicate(timeout=TIMEOUT_S)
    assert re.search(r"ended by SIGTERM .* (all|of) 3 workers", err), "not those before as well"


# The first joining worker stops itself when its log says that it has a link, before it is ready;
# all end when the next one has come.
HANGS = """
import signal, threading
def stop(log):
    for line in log:
        if "link to rank" in line:
            os.kill(os.getpid(), signal.SIGSTOP)
first = False
if "GRADUS_JOINING" in os.environ:
    first = not os.path.exists("MARK")
    open("MARK", "w").close()
    if first:
        log, end = os.pipe()
        os.dup2(end, 2)
        threading.Thread(target=stop, args=(open(log),), daemon=True).start()
create()
while True:
    other = "GRADUS_JOINING" in os.environ and not first
    words = (ctypes.c_int32 * 2)(library.gr_comm_change_wanted(comm), other)
    status = library.gr_allreduce(comm, words, ctypes.c_size_t(2), 4, 3)  # i32, max
    if status or words[0]:
        assert library.gr_comm_renew(ctypes.byref(comm), ctypes.byref(diag)) == 0, diag.text
    elif words[1]:
        break
library.gr_comm_destroy(comm)
"""


def run_with_one_that_hangs(gradus, comm_script, mark):
    launcher = gradus.start("run", "-np", 2, "--min-workers", 1, "--max-workers", 4, "--restarts",
                            2, "--fence-after", "1s", "--",
                            *comm_script(HANGS.replace("MARK", str(mark))),
                            env={"GRADUS_LOG": "debug"})
    wait_until(lambda: gradus("scale", "--to", 3, "--job", launcher.pid).returncode == 0,
               "the job to grow")
    _, err = finish(launcher)
    gradus.wait_for_nothing()
    return err


def test_a_joining_worker_that_hangs_keeps_nobody_out(gradus, comm_script, tmp_path):
    said = []
    sentence = "kept the others waiting for 1 s: it is fenced (--fence-after)"
    while not said or sentence not in said[-1]:  # on a busy machine it may be ready before it stops
        assert len(said) < 5, said
        said.append(run_with_one_that_hangs(gradus, comm_script, tmp_path / f"mark{len(said)}"))


@pytest.mark.parametrize("workers,sentence", [
    ("{min: 3}", "number_of_workers has a min, but no max"),
    ("{min: 3, max: 2}", "max"),
    ("{min: 3, most: 4}", "most"),
    ("many", "many"),
])
def test_wrong_numbers_of_workers_are_refused(gradus, job, tmp_path, workers, sentence):
    text = job.read_text().replace("number_of_workers: 4", f"number_of_workers: {workers}")
    (tmp_path / "job.yaml").write_text(text)
    done = gradus("run", "--dry-run", tmp_path / "job.yaml")
    assert done.returncode == 2 and sentence in done.stderr and "job.yaml:" in done.stderr


def test_scale_needs_a_job(gradus):
    done = gradus("scale", "--to", 2, "--job", os.getpid())
    assert done.returncode == 2 and f'you have no job "{os.getpid()}" that runs' in done.stderr

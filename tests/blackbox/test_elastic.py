# SPDX-License-Identifier: Apache-2.0
"""Workers come and go while a job runs, and no bit of its result changes."""
import os
import random
import signal

import pytest
from conftest import is_sanitized, seeds, wait_until
from test_recovery import (kill_one, lines_of, run_undisturbed, sha256_of, wait_for_moment,
                           workers_of, write_job)

EPOCHS = 20 if is_sanitized() else 80
# So long that what a test waits for happens before the end on a busy machine.
LONG = 2 * EPOCHS if is_sanitized() else 5 * EPOCHS


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("job"), EPOCHS)


@pytest.fixture(scope="module")
def undisturbed(job, tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), job)


@pytest.fixture(scope="module")
def long_job(tmp_path_factory):
    return write_job(tmp_path_factory.mktemp("long"), LONG)


@pytest.fixture(scope="module")
def long_undisturbed(long_job, tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), long_job)


def generations(output):
    """How many workers each later generation had."""
    metrics = output / "metrics.jsonl"
    if not metrics.exists() or not metrics.read_text().endswith("\n"):
        return []
    return [line["workers"] for line in lines_of(output)
            if line["event"] in ("changed", "recovered")]


def wait_for_first_epoch(output):
    metrics = output / "metrics.jsonl"
    wait_until(lambda: metrics.exists() and '"epoch"' in metrics.read_text(), "the first epoch")


def check_metrics(output, last):
    lines = lines_of(output)
    epochs = [line["epoch"] for line in lines if line["event"] == "epoch"]
    assert epochs == list(range(1, last + 1))
    told = [line["event"] for line in lines if line["event"] in ("start", "end")]
    assert told == ["start", "end"]


def finish(launcher):
    out, err = launcher.communicate(timeout=120)
    assert launcher.returncode == 0, out + err
    return out, err


@pytest.mark.parametrize("link", ["shm", "tcp"])
def test_two_then_four_then_three_are_as_four(gradus, long_job, long_undisturbed, tmp_path, link):
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 2, "--max-workers", 4, "--link", link,
                            "--output", output, long_job)
    wait_for_first_epoch(output)
    done = gradus("scale", "--to", 4, "--job", launcher.pid)
    assert done.returncode == 0 and done.stdout == "the job goes from 2 to 4 workers\n", done.stderr
    wait_until(lambda: 4 in generations(output), "four workers")
    assert gradus("scale", "--to", 3, "--job", launcher.pid).returncode == 0
    wait_until(lambda: generations(output)[-1:] == [3], "three workers")
    wait_until(lambda: len(workers_of(launcher)) == 3, "the end of the fourth")
    said = gradus("scale", "--job", launcher.pid).stdout
    assert said == "the job has 3 workers; it may have 1 to 4\n"
    finish(launcher)
    assert sha256_of(output) == long_undisturbed
    check_metrics(output, LONG)
    gradus.wait_for_nothing()


@pytest.mark.parametrize("seed", seeds(12))
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
    assert "started anew" not in err
    check_metrics(output, EPOCHS)
    gradus.wait_for_nothing()


def test_another_worker_comes_in_place_of_a_killed_one(gradus, long_job, long_undisturbed,
                                                       tmp_path):
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 2, "--restarts", 1, "--output", output, long_job)
    for kills in range(1, 4):
        wait_for_first_epoch(output)
        os.kill(workers_of(launcher)[0], signal.SIGKILL)
        if kills <= 2:  # once for each of two workers
            wait_until(lambda: generations(output) == [1, 2] * kills, "the one that is started")
    _, err = finish(launcher)
    assert sha256_of(output) == long_undisturbed
    assert generations(output) == [1, 2, 1, 2, 1]
    assert err.count("the job goes on with 1 worker, and another one is started") == 2
    assert err.count("the job goes on with 1 worker\n") == 1
    gradus.wait_for_nothing()


def test_a_standby_takes_the_place_of_a_killed_worker(gradus, long_job, long_undisturbed, tmp_path):
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 2, "--spare", 1, "--output", output, long_job)
    wait_for_first_epoch(output)
    wait_until(lambda: len(workers_of(launcher)) == 3, "the standby's process")
    standby = max(workers_of(launcher))
    socket_count = lambda: sum(os.readlink(f"/proc/{standby}/fd/{fd}").startswith("socket:")
                               for fd in os.listdir(f"/proc/{standby}/fd"))
    wait_until(lambda: socket_count() > 0, "its call to the launcher")
    os.kill(workers_of(launcher)[1], signal.SIGKILL)
    _, err = finish(launcher)
    assert "the job goes on with 2 workers, a standby among them, and another one is started" in err
    assert generations(output)[0] == 2  # at once, not with one worker first
    assert sha256_of(output) == long_undisturbed
    gradus.wait_for_nothing()


def test_a_job_that_is_asked_to_end_can_go_on_though_a_standby_waits(gradus, long_job, tmp_path):
    output = tmp_path / "out"
    launcher = gradus.start("run", "-np", 2, "--spare", 1, "--output", output, long_job)
    wait_for_first_epoch(output)
    wait_until(lambda: len(workers_of(launcher)) == 3, "the standby")
    launcher.terminate()
    _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, err
    gradus.wait_for_nothing()


def test_a_job_starts_within_its_minimum_and_maximum(gradus, long_job, tmp_path):
    text = long_job.read_text()
    text = text.replace("number_of_workers: 4", "number_of_workers: {min: 3, max: 4}")
    (tmp_path / "job.yaml").write_text(text)
    output = tmp_path / "out"
    launcher = gradus.start("run", "--cores", "0", "--output", output, tmp_path / "job.yaml")
    wait_for_first_epoch(output)
    said = gradus("scale", "--job", launcher.pid).stdout
    assert said == "the job has 3 workers; it may have 3 to 4\n"
    refused = gradus("scale", "--to", 5, "--job", launcher.pid)
    assert refused.returncode == 1
    assert "was started for 3 to 4 workers, 5 are not possible" in refused.stderr
    os.kill(workers_of(launcher)[0], signal.SIGKILL)  # two wait for the third
    wait_until(lambda: generations(output) == [3], "three workers")
    launcher.terminate()
    launcher.communicate(timeout=60)


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
    assert done.returncode == 2 and "is no `gradus run` of yours" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""Pods of a GradusJob that are lost are made anew and join the job that runs: it is back at its
full number of workers, and the bits are those of a run that nobody disturbed."""
import random
import signal

import pytest
from conftest import is_sanitized, lines_of, sha256_of, unhurried, wait_until
from test_gradusjob import WORKERS, Run, changes_of

EPOCHS = 40 if is_sanitized() else 300


def count(run, event):
    return len(lines_of(run.output, event))


def is_over(run):
    return count(run, "end") > 0


def kill(run, rank):
    """As soon as there is such a worker; its pod may be on its way."""
    def is_killed():
        try:
            run.signal_worker(rank, signal.SIGKILL)
        except AssertionError:
            return is_over(run)
        return True
    wait_until(is_killed, f"worker {rank}")


def wait_until_full(run):
    """And until two epochs have passed like that: none does without a worker that was killed, so
    what was killed before has been noticed."""
    known = -1
    while known != len(changes_of(run)) and not is_over(run):
        wait_until(lambda: changes_of(run)[-1:] == [WORKERS] or is_over(run), "all workers")
        known = len(changes_of(run))
        epochs = count(run, "epoch") + 2
        wait_until(lambda most=epochs: count(run, "epoch") >= most or is_over(run), "two epochs")


def check(run, undisturbed):
    said = run.end()
    assert "Restarting" not in said and "GradusJobSucceeded" in said, said
    assert sha256_of(run.output) == undisturbed
    assert count(run, "start") == 1
    assert said.count("the training starts from the beginning") <= WORKERS  # not of those that join


def test_every_worker_is_replaced_and_takes_over_in_its_turn(gradus, job, undisturbed):
    """The coordinator is with the first one, and with the next one each time: in the end with one
    that has joined."""
    with unhurried(gradus.folder, by="50ms") as slow:
        run = Run(gradus, job, chaos=slow)
        run.wait_until_known_to_run()
        for victim in (*range(WORKERS), 0):
            before = len(changes_of(run))
            kill(run, victim)
            wait_until(lambda known=before: len(changes_of(run)) > known or is_over(run), "it")
            wait_until_full(run)
        assert changes_of(run)[-1] == WORKERS and not is_over(run)
    assert count(run, "recovered") == WORKERS + 1
    check(run, undisturbed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_workers_killed_at_random_moments_are_replaced(gradus, job, undisturbed, seed):
    """Also while another one joins: more than half of those that ran last are left each time."""
    chance = random.Random(seed)
    run = Run(gradus, job)
    run.wait_until_known_to_run()
    for _ in range(6):
        run.wait_for("epoch", count(run, "epoch") + chance.randint(1, 6))
        if is_over(run):
            break
        before = len(changes_of(run))
        kill(run, chance.randrange(WORKERS))
        if chance.random() < 0.5:
            wait_until(lambda known=before: len(changes_of(run)) > known or is_over(run), "it")
            kill(run, chance.randrange(WORKERS))
        wait_until_full(run)
    check(run, undisturbed)

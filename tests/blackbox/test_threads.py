# SPDX-License-Identifier: Apache-2.0
"""Training with all its threads at work (operations move on while it computes, samples are read
ahead, checkpoints are written behind it) while workers are killed and come, short enough for
ThreadSanitizer: whatever it, or AddressSanitizer, has to say ends the job with a failure."""
import signal

import pytest
from conftest import TIMEOUT_S, lines_of, read_lines, sha256_of

EPOCHS = 2
EVAL_EVERY = 1
ENV = {"GRADUS_PROGRESS": "thread", "TSAN_OPTIONS": "halt_on_error=1"}


def check_end(done, code=0):
    assert done.returncode == code, done
    assert "Sanitizer" not in done.stderr, done.stderr


@pytest.fixture(scope="module")
def undisturbed(job, tmp_path_factory):
    from conftest import Gradus
    command = Gradus(tmp_path_factory.mktemp("undisturbed"))
    check_end(command("run", "-np", 1, "--output", command.folder / "out", job, env=ENV))
    return sha256_of(command.folder / "out")


@pytest.mark.parametrize("flags", [["--link", "shm"], ["--link", "tcp", "--encrypt"]],
                         ids=["shm", "tcp"])
def test_a_killed_worker_is_replaced(gradus, job, undisturbed, tmp_path, flags):
    """By a standby, which the other one waits for (--min-workers); the weights are those of one
    worker alone."""
    out = tmp_path / "out"
    done = gradus("run", "-np", 2, "--min-workers", 2, "--spare", 1, *flags,
                  "--checkpoint-every", "5 steps", "--checkpoint-to", tmp_path / "checkpoints",
                  "--chaos", "kill:rank=1@step=12", "--output", out, job, env=ENV)
    check_end(done)
    events = lines_of(out)
    assert [line["workers"] for line in events if line["event"] == "recovered"][-1] == 2, events
    assert sha256_of(out) == undisturbed


def test_one_that_is_asked_to_end_goes_on_later(gradus, job, undisturbed, tmp_path):
    words = ["--grace", "60s", "--checkpoint-every", "3 steps", "--checkpoint-to",
             tmp_path / "checkpoints", "--output", tmp_path / "out", job]
    first = gradus.start("run", "-np", 2, *words, env=ENV)
    read_lines(first.stdout, 2)  # the head, and the first epoch of two
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode in (75, 0), said  # 0: it was at its end already
    assert "Sanitizer" not in said, said
    if first.returncode == 75:
        check_end(gradus("run", "--resume", "-np", 3, *words, env=ENV))
    assert sha256_of(tmp_path / "out") == undisturbed

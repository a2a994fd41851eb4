# SPDX-License-Identifier: Apache-2.0
"""The job document: what `gradus run --dry-run --json` prints, and workers are given."""
import json
import os
import socket

import pytest
from conftest import SOURCE, sha256_of, write_digits

DIGITS = SOURCE / "examples/digits"


@pytest.fixture
def job(tmp_path):
    return write_digits(tmp_path, 2)


def work(gradus, text, env=None):
    """One worker of the document `text`."""
    return gradus("worker", input=text, stdin=None, env=env)


def test_explaining_a_job_needs_no_data(gradus, job, tmp_path):
    text = job.read_text().replace(f"{DIGITS}/digits.csv.gz", "elsewhere.csv")
    job.write_text(text)
    document = json.loads(gradus.document("-np", 3, job).read_text())
    assert document["gradus_job"] == 1 and document["run"]["workers"] == 3
    assert document["job"]["distribution"]["shards"] == 8
    done = gradus("run", "--dry-run", "-np", 3, job)
    assert done.returncode == 0, done
    assert "elsewhere.csv: there is no such file" in done.stdout
    assert "not known without it" in done.stdout and "8 shards of 8" in done.stdout
    assert "total" not in done.stdout and "memory  " not in done.stdout
    for flags in ([], ["--dry-run", "--resume"]):  # what needs it says so
        done = gradus("run", *flags, job)
        assert done.returncode == 2 and "there is no such file" in done.stderr, done
    job.write_text(text.replace("epochs: 2", "epochs: 2\nsteps: 3"))
    done = gradus("run", "--dry-run", "--json", job)
    assert done.returncode == 2 and done.stdout == "" and "steps: epochs says" in done.stderr, done


def test_a_document_says_what_the_flags_say(gradus, job, tmp_path):
    document = json.loads(gradus.document(
        "-np", 2, "--output", "here", "--checkpoint-every", "1 epoch", "--checkpoint-to", "there",
        "--link", "tcp", "--set", "optimizer.learning_rate=0.5", "--chaos", "slow:rank=1,x2", job
    ).read_text())
    config = document["job"]
    assert (config["output"], config["checkpoint"]["every"], config["checkpoint"]["to"]) == \
        ("here", "1 epoch", "there")
    assert config["distribution"]["link"] == "tcp" and config["optimizer"]["learning_rate"] == 0.5
    assert document["run"] == {"workers": 2, "json": False, "all_stop": False,
                               "chaos": "slow:rank=1,x2", "chaos_after": 0}


def test_no_document_of_a_run_that_cannot_be(gradus, job):
    done = gradus("run", "--dry-run", "--json", "--chaos", "slow:rank=1,x2,by=2", job)
    assert done.returncode == 2 and done.stdout == "" and "--chaos" in done.stderr, done


def test_a_worker_by_hand_has_the_bits_of_a_launched_one(gradus, job, tmp_path):
    done = gradus("run", "-np", 2, "--output", tmp_path / "launched", job)
    assert done.returncode == 0, done
    text = gradus.document("-np", 1, "--output", tmp_path / "by hand", job).read_text()
    done = work(gradus, text)  # from a pipe
    assert done.returncode == 0, done
    assert sha256_of(tmp_path / "by hand") == sha256_of(tmp_path / "launched")


def test_a_worker_goes_on_from_the_newest_checkpoint(gradus, job, tmp_path):
    flags = ["--set", "optimizer.schedule=constant", "--checkpoint-every", "1 epoch"]
    done = gradus("run", "-np", 2, "--output", tmp_path / "launched", *flags, job)
    assert done.returncode == 0, done
    for epochs, said in ((1, "starts from the beginning"), (2, "22 of them done")):
        document = gradus.document("-np", 1, "--output", tmp_path / "by hand", *flags,
                                   "--set", f"epochs={epochs}", job)
        done = gradus("worker", "--resume", env={"GRADUS_JOB": document.read_text()})
        assert done.returncode == 0 and said in done.stdout + done.stderr, done
    assert sha256_of(tmp_path / "by hand") == sha256_of(tmp_path / "launched")
    for flag, value in (("--output", "x"), ("--workers", 2)):
        done = gradus("worker", flag, value, env={"GRADUS_JOB": document.read_text()})
        assert done.returncode == 2 and f"{flag} is for a job file (--job)" in done.stderr, done
    done = gradus("worker", env={"GRADUS_JOB": "{}"})
    assert done.returncode == 2 and "job document: this is none" in done.stderr, done


@pytest.mark.parametrize("all_stop, code", [(True, 76), (False, 1)], ids=["operator", "launcher"])
def test_a_worker_whom_nobody_meets_may_be_tried_again_by_an_operator(gradus, job, all_stop, code):
    document = json.loads(gradus.document("-np", 2, job).read_text())
    document["run"]["all_stop"] = all_stop
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = gradus("worker", env={
        "GRADUS_JOB": json.dumps(document), "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port - 1),
        "TORCHELASTIC_RUN_ID": "digits", "GRADUS_SECRET": "5" * 64, "GRADUS_JOIN_TIMEOUT": "0.3s"})
    assert done.returncode == code and "GRADUS_JOIN_TIMEOUT" in done.stderr, done


def test_another_descriptor(gradus, job, tmp_path):
    document = gradus.document("-np", 1, "--output", tmp_path / "out", job)
    fd = os.open(document, os.O_RDONLY)
    done = gradus("worker", env={"GRADUS_JOB_FD": str(fd)}, pass_fds=[fd])
    os.close(fd)
    assert done.returncode == 0, done
    done = gradus("worker", env={"GRADUS_JOB_FD": "77"})
    assert done.returncode == 2 and "descriptor 77" in done.stderr, done
    # Of no concern to a job that is launched: its workers have their own.
    done = gradus("run", "-np", 2, "--output", tmp_path / "launched", job,
                  env={"GRADUS_JOB_FD": "77"})
    assert done.returncode == 0, done


@pytest.mark.parametrize("change, says", [
    (lambda text: text.replace('"gradus_job": 1', '"gradus_job": 7'), "version 7 is newer"),
    (lambda text: text[:len(text) // 2], "not valid JSON"),
    (lambda text: "", "this is none"),
    (lambda text: text.replace('"seed": ', '"seed": "x", "s": '), "seed: must be a whole number"),
    (lambda text: text.replace('"seed"', '"sed"'), 'did you mean "seed"?'),
    (lambda text: text.replace('"shards": 8', '"shards": 7'), "cannot be cut into 7 equal"),
], ids=["newer", "cut", "empty", "type", "key", "shards"])
def test_a_wrong_document_is_refused(gradus, job, change, says):
    text = gradus.document(job).read_text()
    done = work(gradus, change(text))
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done


def test_a_worker_takes_no_settings(gradus, job):
    for words in ([job], ["--output", "x"]):
        done = gradus("worker", *words)
        assert done.returncode == 2 and done.stdout == "", done

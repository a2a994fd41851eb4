# SPDX-License-Identifier: Apache-2.0
"""GradusJobs by `gradus run -f`: whatever happens to workers, the bits are those of a run that
nobody disturbed."""
import contextlib
import json
import os
import pathlib
import signal

import pytest
from conftest import (TIMEOUT_S, cases, is_sanitized, lines_of, preload, sha256_of, unhurried,
                      wait_for_event, wait_until)
from processes import children, stand_still

EPOCHS = 12 if is_sanitized() else 20
WORKERS = 4


class Run:
    """A `gradus run -f` of the digits, whose output is in a claim. `chaos`: faults of its
    workers, for which a manifest has no place (chaos_in_job.c)."""

    def __init__(self, gradus, job_file, workers=WORKERS, watch=False, chaos=None, **spec):
        settings = json.loads(gradus.document("-np", 1, job_file).read_text())["job"]
        del settings["output"], settings["checkpoint"]  # its folder is in the output
        self.gradus, self.output = gradus, gradus.folder / "claim"
        manifest = {"apiVersion": "gradus.dev/v1", "kind": "GradusJob",
                    "metadata": {"name": "digits"},
                    "spec": {"workers": {"replicas": workers}, "job": settings,
                             "checkpointVolume": {"persistentVolumeClaim": {"claimName": "claim"}},
                             **spec}}
        (gradus.folder / "job.json").write_text(json.dumps(manifest))
        more = preload(gradus, "chaos_in_job") | {"TEST_CHAOS": chaos} if chaos else {}
        self.process = gradus.start("run", *["--watch"] * watch, "-f", "job.json",
                                    env={"OMP_NUM_THREADS": "1"} | more)

    def wait_for(self, event, count=1):
        wait_for_event(self.output, event, count)

    def wait_until_known_to_run(self):
        """The loss of a worker ends the attempt where the operator does not know yet that all run.
        Pods tell it when they have begun: those that train and stand still have; and when it
        stands still as well, it has heard it."""
        launcher = self.process.pid
        self.wait_for("epoch")
        wait_until(lambda: stand_still([*children(launcher), launcher]),
                   "the operator to know that all run")

    def signal_worker(self, rank, number):
        for pid in self.gradus.remains():
            with contextlib.suppress(OSError):
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if b"worker" in words and f"RANK={rank}".encode() in variables:
                    os.kill(pid, number)
                    return
        raise AssertionError(f"no worker {rank}")

    def end(self, code=0):
        out, said = self.process.communicate(timeout=2 * TIMEOUT_S)
        assert self.process.returncode == code, out + said
        assert not self.gradus.remains()
        return out + said


def run_from_config_map(gradus, text, key="job.yaml"):
    """The digits, from a ConfigMap that stands in the manifest beside the job."""
    claim = gradus.folder / "claim"
    shared = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "digits-job"},
              "data": {"job.yaml": text}}
    manifest = {"apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": "digits"},
                "spec": {"workers": {"replicas": 2},
                         "jobFrom": {"configMapKeyRef": {"name": "digits-job", "key": key}},
                         "checkpointVolume": {"persistentVolumeClaim": {"claimName": "claim"}}}}
    (gradus.folder / "both.yaml").write_text(f"{json.dumps(shared)}\n---\n{json.dumps(manifest)}\n")
    done = gradus("run", "-f", "both.yaml", env={"OMP_NUM_THREADS": "1"})
    return claim, done


def changes_of(run):
    return [line["workers"] for line in lines_of(run.output, "changed", "recovered")]


def count_events(run, event):
    return len(lines_of(run.output, event))


@pytest.mark.parametrize("victims", cases(3, [(0,), (WORKERS - 1,), (2, 0)]))
def test_killed_workers_cost_no_restart(gradus, job, undisturbed, victims):
    with unhurried(gradus.folder) as slow:
        run = Run(gradus, job, chaos=slow)
        run.wait_until_known_to_run()
        for count, victim in enumerate(victims):
            run.signal_worker(victim, signal.SIGKILL)
            run.wait_for("recovered", count + 1)
    said = run.end()
    assert "Restarting" not in said and "GradusJobSucceeded" in said, said
    assert sha256_of(run.output) == undisturbed
    # The pod that comes in the place of one may be there by then.
    assert count_events(run, "recovered") == len(victims)
    assert count_events(run, "start") == 1


@pytest.mark.long
def test_more_than_half_killed_all_begin_anew(gradus, job, undisturbed):
    with unhurried(gradus.folder) as slow:
        run = Run(gradus, job, chaos=slow)
        run.wait_until_known_to_run()
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all in the same generation
            for victim in (1, 2, 3):
                run.signal_worker(victim, number)
    said = run.end()
    assert "GradusJobRestarting" in said and "GradusJobSucceeded" in said, said
    assert sha256_of(run.output) == undisturbed


def test_worker_asked_alone_does_not_end_the_job(gradus, job, undisturbed):
    with unhurried(gradus.folder, step=3 * 22) as slow:
        run = Run(gradus, job, chaos=slow)
        run.wait_until_known_to_run()
        run.signal_worker(1, signal.SIGTERM)
        run.wait_for("epoch", 3)
        run.signal_worker(1, signal.SIGKILL)
        run.wait_for("recovered")
    said = run.end()
    assert "Restarting" not in said and "stopped after" not in said, said
    assert sha256_of(run.output) == undisturbed
    assert count_events(run, "recovered") == 1


def test_another_number_goes_on_from_the_step_at_which_all_were_asked(gradus, job, undisturbed):
    for epochs, workers in ((1, 4), (8, 2)):
        with unhurried(gradus.folder, step=epochs * 22 + 1) as slow:
            run = Run(gradus, job, workers, chaos=slow)
            run.wait_for("epoch", epochs)
            run.process.send_signal(signal.SIGTERM)
            assert "stopped after step" in run.end(1)
        (gradus.folder / "over").unlink()
    run = Run(gradus, job, 3)
    run.end()
    assert sha256_of(run.output) == undisturbed
    starts = lines_of(run.output, "start")
    stops = lines_of(run.output, "stopped")
    assert [line["workers"] for line in starts] == [4, 2, 3]
    assert [line["step"] for line in starts] == [0, *(line["step"] for line in stops)]


def test_worker_that_cannot_begin_fails_the_job_at_once(gradus, job):
    text = job.read_text()
    other = gradus.folder / "other.yaml"
    other.write_text(text.replace("digits.csv.gz", "nowhere.csv.gz"))
    run = Run(gradus, other)
    said = run.end(1)
    assert "nowhere.csv.gz: there is no such file" in said and "GradusJobFailed" in said, said
    assert "Restarting" not in said, said


def test_job_of_a_config_map_gives_the_same_bits(gradus, job, undisturbed):
    claim, done = run_from_config_map(gradus, job.read_text())
    assert done.returncode == 0, done.stdout + done.stderr
    assert sha256_of(claim) == undisturbed


def test_wrong_job_of_a_config_map_fails_the_job_with_a_sentence(gradus):
    for text, key, sentence in (("epoks: 3\n", "job.yaml", 'unknown key "epoks"; did you mean'),
                                ("[", "job.yaml", "job.yaml:"),
                                ("epochs: 3\n", "nowhere.yaml", "nowhere.yaml: ")):
        _, done = run_from_config_map(gradus, text, key)
        said = done.stdout + done.stderr
        assert done.returncode == 1 and sentence in said and "GradusJobFailed" in said, said
        assert "Restarting" not in said, said


def test_wrong_job_is_refused_with_a_sentence(gradus, job):
    for spec, sentence in (({"job": {"epoks": 3}}, 'spec.job: unknown key "epoks"; did you mean'),
                           ({"replicas": 3}, "spec.replicas: there is no such field"),
                           ({"command": ["a"]}, "spec.command: Forbidden: must not be used with")):
        said = Run(gradus, job, **spec).end(2)
        assert "job.json:1: " in said and sentence in said, said

# SPDX-License-Identifier: Apache-2.0
"""GradusJobs with parameter servers by `gradus run -f`: whatever happens to servers, the bits are
those of a run of allreduce that nobody disturbed."""
import contextlib
import json
import os
import pathlib
import signal

import pytest
from conftest import cases, lines_of, sha256_of, unhurried, wait_until
from test_gradusjob import Run

EPOCHS, EVAL_EVERY = 40, 40
WORKERS = 2


@pytest.fixture
def with_ps(job, tmp_path):
    path = tmp_path / "ps.yaml"
    path.write_text(job.read_text().replace("distribution:\n", "distribution:\n  strategy: ps\n"))
    return path


def servers_of(gradus):
    """The servers that run: pid and words by number."""
    found = {}
    for pid in gradus.remains():
        with contextlib.suppress(OSError):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if words[1:2] == ["server"]:
                found[int(words[words.index("--number") + 1])] = (pid, words)
    return found


def start(gradus, path, servers, chaos):
    run = Run(gradus, path, WORKERS, servers={"replicas": servers}, chaos=chaos)
    run.wait_until_known_to_run()
    return run


@pytest.mark.parametrize("victim", cases(2, [1, 0]))
def test_killed_server_is_replaced_while_the_job_runs(gradus, with_ps, undisturbed, victim):
    with unhurried(gradus.folder) as slow:
        run = start(gradus, with_ps, 3, slow)
        pid, words = servers_of(gradus)[victim]
        assert "--replace" not in words
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "--replace" in servers_of(gradus).get(victim, (0, []))[1], "another one")
        assert not lines_of(run.output, "end"), "too fast"
    said = run.end()
    assert "Restarting" not in said and "GradusJobSucceeded" in said, said
    assert said.count("GradusJobServerReplaced") == 1, said
    assert sha256_of(run.output) == undisturbed
    assert len(lines_of(run.output, "start")) == 1


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 2])
def test_server_that_others_cannot_do_without_all_begin_anew(gradus, with_ps, undisturbed, servers):
    with unhurried(gradus.folder) as slow:
        run = start(gradus, with_ps, servers, slow)
        os.kill(servers_of(gradus)[0][0], signal.SIGKILL)
    said = run.end()
    assert "GradusJobRestarting" in said and "GradusJobSucceeded" in said, said
    assert sha256_of(run.output) == undisturbed


def test_suspended_job_saves_what_its_servers_keep(gradus, with_ps, undisturbed):
    """And goes on with another number of them, from the step at which it was suspended."""
    manifest = {}

    def change(is_suspended, servers):
        manifest["spec"].update(runPolicy={"suspend": is_suspended}, servers={"replicas": servers})
        (gradus.folder / "next.json").write_text(json.dumps(manifest))
        os.replace(gradus.folder / "next.json", gradus.folder / "job.json")

    with unhurried(gradus.folder, step=2 * 22 + 1) as slow:
        run = Run(gradus, with_ps, WORKERS, servers={"replicas": 2}, watch=True, chaos=slow)
        run.wait_for("epoch", 2)
        manifest.update(json.loads((gradus.folder / "job.json").read_text()))
        change(True, 2)
        run.wait_for("stopped")
    wait_until(lambda: not servers_of(gradus), "the end of the servers")
    change(False, 3)
    said = run.end()
    assert "GradusJobSuspended" in said and "GradusJobSucceeded" in said, said
    assert sha256_of(run.output) == undisturbed
    events = lines_of(run.output)
    stops = [line["step"] for line in events if line["event"] == "stopped"]
    assert [line["step"] for line in events if line["event"] == "start"] == [0, *stops]


def test_signal_ends_workers_before_their_servers(gradus, with_ps):
    """So what the servers keep is saved."""
    with unhurried(gradus.folder) as slow:
        run = start(gradus, with_ps, 2, slow)
        run.process.send_signal(signal.SIGTERM)
        said = run.end(1)
    stops = [line["step"] for line in lines_of(run.output, "stopped")]
    assert len(stops) == 1 and "SIGTERM: the pods end" in said, said
    assert gradus("checkpoint", "verify", run.output / "checkpoints").returncode == 0


def test_wrong_servers_are_refused_with_a_sentence(gradus, job, with_ps):
    for path, spec, sentence in (
            (with_ps, {}, "spec.servers: Required value: strategy: ps needs parameter servers"),
            (job, {"servers": {"replicas": 2}}, "spec.servers: Forbidden: strategy: allreduce"),
            (with_ps, {"servers": {"number": 2}}, "spec.servers.number: there is no such field")):
        said = Run(gradus, path, WORKERS, **spec).end(2)
        assert "job.json:1: " in said and sentence in said, said

# SPDX-License-Identifier: Apache-2.0
"""Workers are killed, and the others go on: with the same bits, and without a line lost or
doubled."""
import os
import random
import signal

import pytest
from conftest import (TIMEOUT_S, is_sanitized, lines_of, run_undisturbed, seeds, sha256_of,
                      unhurried, wait_for_event, wait_until)
from processes import agents_of, children, name, parent, state_of

EPOCHS = 12
EVAL_EVERY = 1


def workers_of(launcher):
    """Process ids, in the order of their start."""
    return [worker for agent in agents_of(launcher.pid) for worker in children(agent)]


def check_metrics(output):
    """Every epoch once and in order, one start, one end."""
    lines = lines_of(output)
    epochs = [line["epoch"] for line in lines if line["event"] == "epoch"]
    assert epochs == list(range(1, EPOCHS + 1))
    told = [line["event"] for line in lines if line["event"] in ("start", "end")]
    assert told == ["start", "end"]
    return [line for line in lines if line["event"] == "recovered"]


def told(output):
    """What the metrics file says so far, as text."""
    metrics = output / "metrics.jsonl"
    return metrics.read_text() if metrics.exists() else ""


def wait_in(launcher, condition, what):
    """Waits for something that happens while the job runs; False: the job has ended."""
    wait_until(lambda: launcher.poll() is not None or condition(), what)
    return launcher.poll() is None


def wait_for_moment(launcher, output, moment):
    """moment: how many epochs have ended; below 0: so many processes less than 4 have begun."""
    if moment < 0:
        return wait_in(launcher, lambda: len(workers_of(launcher)) >= 4 + moment, "processes")
    what = f'"epoch":{moment},' if moment > 0 else '"start"'
    return wait_in(launcher, lambda: what in told(output), f"{moment} epochs")


def kill_one(launcher, number):
    pids = workers_of(launcher)
    if pids:
        try:
            os.kill(pids[number % len(pids)], signal.SIGKILL)
        except ProcessLookupError:
            pass


@pytest.mark.parametrize("seed", seeds(16))
def test_killed_workers_change_no_bit(gradus, job, undisturbed, tmp_path, seed):
    """At a moment that the seed chooses. One in four loses a second one, perhaps while the others
    recover."""
    rng = random.Random(seed)
    output = tmp_path / "out"
    moment, victims = rng.randrange(-3, EPOCHS), [rng.randrange(4), rng.randrange(4)]
    second = rng.choice(["at once", '"recovered"']) if seed % 4 == 3 else "never"
    launcher = gradus.start("run", "-np", 4, "--output", output,
                            *(["--link", "tcp"] if seed % 2 else []), job)
    if wait_for_moment(launcher, output, moment):
        kill_one(launcher, victims[0])
    if second == "at once" or (second != "never" and
                               wait_in(launcher, lambda: second in told(output), "recovery")):
        kill_one(launcher, victims[1])
    out, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 0, f"{victims} at {moment}: {out}{err}"
    assert sha256_of(output) == undisturbed, f"{victims} at {moment}"
    check_metrics(output)
    assert out.count("epoch ") == EPOCHS and f"sha256 {undisturbed}" in out, err
    gradus.wait_for_nothing()


STEPS = EPOCHS * 22


@pytest.fixture(scope="module")
def local_job(job, tmp_path_factory):
    """The same with weights that are averaged every six steps, the last four of an epoch apart."""
    path = tmp_path_factory.mktemp("local") / "local.yaml"
    text = job.read_text()
    assert "  shards: 8" in text
    path.write_text(text.replace("  shards: 8", "  shards: 8\n  strategy: local\n"
                                                "  sync_every: 6 steps"))
    return path


@pytest.fixture(scope="module")
def local_undisturbed(local_job, tmp_path_factory):
    return run_undisturbed(tmp_path_factory.mktemp("undisturbed"), local_job)


@pytest.mark.parametrize("seed", seeds(8))
def test_killed_in_a_round_of_local_steps(gradus, local_job, local_undisturbed, tmp_path, seed):
    """At any step; the others begin the round again. One in two loses a second one, and in the end
    joining workers are there that came between two rounds."""
    rng = random.Random(seed)
    first = rng.randrange(1, STEPS)
    faults = [f"kill:rank={rng.randrange(3)}@step={first}"]
    if seed % 2:
        faults.append(f"kill:rank={rng.randrange(3)}@step={min(STEPS, first + rng.randrange(12))}")
    output = tmp_path / "out"
    done = gradus("run", "-np", 3, "--output", output, "--chaos", "; ".join(faults),
                  *(["--link", "tcp"] if seed % 4 > 1 else []), local_job)
    assert done.returncode == 0, f"{faults}: {done.stdout}{done.stderr}"
    assert sha256_of(output) == local_undisturbed, f"{faults}: {done.stderr}"
    assert all(line["step"] % 22 % 6 == 0 for line in check_metrics(output))  # where rounds end


@pytest.mark.skipif(is_sanitized(), reason="an agent has no guard under sanitizers")
@pytest.mark.parametrize("who", ["agent", "guard"])
def test_a_killed_agent_costs_nothing(gradus, job, undisturbed, tmp_path, who):
    """Its guard goes on in its place, with its workers, and starts others; as does an agent whose
    guard was killed."""
    output = tmp_path / "out"
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 4, "--chaos", slow, "--output", output, job)
        wait_for_event(output, "epoch")
        agent, = agents_of(launcher.pid)
        guard, before = parent(agent), workers_of(launcher)
        victim, left = (agent, guard) if who == "agent" else (guard, agent)
        wait_until(lambda: state_of(victim) == "S", "the moment at which it waits")
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: name(left) == "gradus-agent" and children(left)[-4:] == before,
                   "the one that is left, with the workers")
        os.kill(before[1], signal.SIGKILL)
        wait_until(lambda: len(set(children(left)) - {agent, *before}) == 1, "another worker")
    _, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 0, err
    assert "restarted" not in err and "another one is started" in err
    assert sha256_of(output) == undisturbed and len(check_metrics(output)) == 1
    gradus.wait_for_nothing()


def test_the_last_one_goes_on_alone(gradus, job, undisturbed, tmp_path):
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 4, "--restarts", 0, "--chaos", slow, "--output",
                                tmp_path / "out", job)
        wait_for_event(tmp_path / "out", "epoch")
        for left in (3, 2, 1):
            os.kill(workers_of(launcher)[0], signal.SIGKILL)  # rank 0, whoever that is
            wait_until(lambda: len(workers_of(launcher)) == left, "its end")
    out, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 0, err
    assert sha256_of(tmp_path / "out") == undisturbed
    recovered = check_metrics(tmp_path / "out")
    assert recovered[-1]["workers"] == 1
    assert err.count("was killed by signal 9") == 3 and "the job goes on with 1 worker" in err


def test_too_few_are_left(gradus, job, tmp_path):
    with unhurried(tmp_path) as slow:
        launcher = gradus.start("run", "-np", 4, "--min-workers", 3, "--restarts", 0, "--chaos",
                                slow, "--output", tmp_path / "out", job)
        wait_for_event(tmp_path / "out", "epoch")
        for pid in workers_of(launcher)[:2]:
            os.kill(pid, signal.SIGKILL)
    _, err = launcher.communicate(timeout=TIMEOUT_S)
    assert launcher.returncode == 1
    assert "was killed by signal 9 (Killed)" in err
    gradus.wait_for_nothing()


def test_wrong_numbers_are_refused(gradus, job):
    done = gradus("run", "-np", 2, "--min-workers", 3, job)
    assert done.returncode == 2
    assert "--min-workers 3 is more than the 2 workers that the job has" in done.stderr


@pytest.mark.parametrize("keeps", ["compression: topk", "local_state: keep"])
def test_what_a_worker_keeps_cannot_be_lost(gradus, job, local_job, tmp_path, keeps):
    text = (local_job if "local" in keeps else job).read_text()
    (tmp_path / "keeps.yaml").write_text(text.replace("  shards: 8", f"  shards: 8\n  {keeps}"))
    for flags in (["--min-workers", 1], ["--spare", 1], ["--max-workers", 4]):
        done = gradus("run", "-np", 2, *flags, tmp_path / "keeps.yaml")
        assert done.returncode == 2 and f"with {keeps} " in done.stderr
        assert "each keeps what nobody else has" in done.stderr


def test_a_command_goes_on_by_renewing(gradus, comm_script):
    """Of four members one dies; the others get a communicator of three."""
    done = gradus("run", "-np", 4, "--min-workers", 2, "--", *comm_script("""
create()
status = barrier()  # which may fail where it has ended on the rank that dies
if rank == 1:
    assert status == 0
    os.kill(os.getpid(), 9)
while status == 0:
    status = barrier()
status = library.gr_comm_renew(ctypes.byref(comm), ctypes.byref(diag))
assert status == 0, diag.text
assert barrier() == 0
print("was", rank, "is", library.gr_comm_rank(comm), "of", library.gr_comm_size(comm))
library.gr_comm_destroy(comm)
"""))
    assert done.returncode == 0, done.stderr
    assert sorted(line.split("] ")[1] for line in done.stdout.splitlines()) == [
        "was 0 is 0 of 3", "was 2 is 1 of 3", "was 3 is 2 of 3"]
    assert "the job goes on with 3 workers" in done.stderr


def test_a_command_needs_all_unless_it_says_so(gradus, comm_script):
    done = gradus("run", "-np", 2, "--", *comm_script("""
create()
assert library.gr_comm_renew(ctypes.byref(comm), ctypes.byref(diag)) == -7  # GR_E_UNSUPPORTED
print(diag.text.decode())
"""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("start it with --min-workers to go on with the others") == 2

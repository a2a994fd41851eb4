# SPDX-License-Identifier: Apache-2.0
"""Checkpoints through the command: killed, stopped and damaged jobs end with the bits of a calm
one."""

import array
import contextlib
import json
import os
import random
import signal
import struct
import subprocess

import pytest

from conftest import TIMEOUT_S, lines_of, preload, read_lines, unhurried, wait_until
from processes import variable
from test_recovery import workers_of

JOB = """
name: digits
model: [{linear: %(units)d}, relu, {dropout: 0.2}, {linear: %(units)d}, relu, {linear: 10}]
data: {file: %(data)s, classes: 10, scale: 0.0625, test_count: 360}
optimizer: {kind: %(optimizer)s, learning_rate: 0.003}
steps: %(steps)d
global_batch: %(batch)d
eval_every: 0
output: out
%(more)s
"""


# Weights that take a while to write, and steps that take longer than that: then no checkpoint is
# left out.
LARGE = {"batch": 64, "units": 512}
SLOW = ["--chaos", "slow:rank=0,by=15ms,again"]


@pytest.fixture
def job(gradus, tmp_path):
    def write(name="job.yaml", steps=80, optimizer="adam", more="distribution: {shards: 4}",
              batch=256, units=64):
        data = gradus.source / "examples" / "digits" / "digits.csv.gz"
        (tmp_path / name).write_text(JOB % locals())
        return name
    return write


def end_of(done):
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def calm_hash(gradus, name, workers=2, *more):
    return end_of(gradus("run", "-np", workers, "--json", name, "--output", "calm",
                         *more))["weights_sha256"]


def kill_all(gradus):
    for pid in gradus.remains():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_everything(gradus, run):
    """The launcher first, so that it restarts nobody; what workers said last is lost with it."""
    run.kill()
    gradus.kill_supervisors()
    kill_all(gradus)
    run.communicate()
    gradus.wait_for_nothing()


def kill_workers(gradus, run):
    """All workers; returns the messages, whose last ones the launcher prints before it ends."""
    for pid in workers_of(run):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _, message = run.communicate(timeout=TIMEOUT_S)
    gradus.wait_for_nothing()
    return message


def remove_output(gradus, out):
    """And what is kept for launchers that never came: a job that ended when its launcher had just
    been killed, and whose output another line has finished since. Its own line would be told of
    that end later, of an output that is gone."""
    for line in gradus("ls", "--json").stdout.splitlines():
        job = json.loads(line)
        if job["state"].startswith("ended"):
            assert gradus("attach", job["name"]).returncode == 0
    subprocess.run(["rm", "-r", out], check=True)


def last_step(folder):
    """The last step that is told of."""
    steps = [json.loads(line).get("step", 0)
             for line in (folder / "metrics.jsonl").read_text().splitlines(True)
             if line.endswith("\n")] if (folder / "metrics.jsonl").exists() else []
    return max(steps, default=0)


def checkpoints(folder):
    return sorted(path.name for path in folder.glob("step-*"))


# ---- Killed --------------------------------------------------------------------------------------

@pytest.mark.parametrize("kills", [6, pytest.param(40, marks=pytest.mark.long)])
def test_checkpoint_killed_at_random_moments_same_bits(gradus, job, tmp_path, kills):
    """kill -9 of all workers or of everything, again and again: the same bits, and no more steps
    are done twice than checkpoints are apart."""
    every, seed = 5, random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    name = job(steps=100, **LARGE, more="distribution: {shards: 4}\n"
               f"checkpoint: {{every: {every} steps, keep: 3}}")
    calm = calm_hash(gradus, name, 2)
    out = tmp_path / "out"
    done, ends, message = 0, 0, ""
    while done < kills or ends == 0:
        reached, names = last_step(out), checkpoints(out / "checkpoints")
        durable = int(names[-1][5:]) if names else 0
        run = gradus.start("run", "-np", dice.choice([1, 2, 3, 4]), "--restarts", 0, "--json",
                           "--resume", *SLOW, name)
        first = {"event": ""}
        while first["event"] != "start":  # what the last one had written for nobody
            line = run.stdout.readline()
            if not line:
                break
            first = json.loads(line)
        if not line:  # it was through when its launcher was killed
            _, told = run.communicate()
            assert run.returncode == 0 and "without a launcher" in told, told
            # Lines of other numbers of workers may have gone on since, and are not through.
            assert {line["weights_sha256"] for line in lines_of(out, "end")} == {calm}
            ends, message = ends + 1, ""
            remove_output(gradus, out)
            continue
        assert first["step"] == durable
        # One checkpoint may be half-written; more steps are lost only if another one was left out
        # meanwhile. A message says that one was left out; it may be lost with the launcher.
        assert message is None or reached - durable <= 2 * every or "is left out" in message
        try:
            run.wait(dice.uniform(0.0, 0.6) if done < kills else TIMEOUT_S)
        except subprocess.TimeoutExpired:
            message = dice.choice([kill_everything, kill_workers])(gradus, run)
            done += 1
            continue
        text, _ = run.communicate()
        assert run.returncode == 0
        assert json.loads(text.splitlines()[-1])["weights_sha256"] == calm
        assert not list((out / "checkpoints").glob(".*.partial"))
        ends, message = ends + 1, ""
        remove_output(gradus, out)


def test_killed_while_one_is_written(gradus, job, tmp_path):
    name = job(steps=400,
               more="distribution: {shards: 2}\ncheckpoint: {every: 5 steps, keep: 2}")
    calm = calm_hash(gradus, name)
    folder = tmp_path / "out" / "checkpoints"
    for _ in range(5):
        # Nobody reads here what it and the last one say, which is more than a pipe holds.
        run = gradus.start("run", "-np", 2, "--json", "--resume", *SLOW, name,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: run.poll() is not None or list(folder.glob(".step*")),
                   "a half-written checkpoint")
        kill_everything(gradus, run)
        verified = gradus("checkpoint", "verify", folder).returncode
        assert verified == (0 if checkpoints(folder) else 2)
    assert end_of(gradus("run", "-np", 2, "--json", "--resume", name))["weights_sha256"] == calm


def rank_pid(gradus, rank):
    return next((pid for pid in gradus.remains() if variable(pid, "GRADUS_RANK") == str(rank)),
                None)


def test_the_next_rank_0_goes_on_writing(gradus, job, tmp_path):
    """Who writes is killed while it writes: another one takes the folder over."""
    name = job(steps=60, **LARGE, more="distribution: {shards: 4}\ncheckpoint: {every: 5 steps}")
    calm = calm_hash(gradus, name)
    folder = tmp_path / "out" / "checkpoints"
    run = gradus.start("run", "-np", 3, "--json", *SLOW, name)
    wait_until(lambda: checkpoints(folder) and list(folder.glob(".step*")),
               "a half-written checkpoint")
    os.kill(rank_pid(gradus, 0), signal.SIGKILL)
    text, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, message
    assert json.loads(text.splitlines()[-1])["weights_sha256"] == calm
    assert checkpoints(folder)[-1] == "step-000000060"
    assert gradus("checkpoint", "verify", folder).returncode == 0
    assert not list(folder.glob(".step*")), "half-written ones of the dead are removed"


# ---- Stopped -------------------------------------------------------------------------------------

ENDLESS = "distribution: {shards: 4}\n"


@pytest.mark.parametrize("more", [ENDLESS, ENDLESS + "checkpoint: {every: 1 h}",
                                  "distribution: {shards: 4, strategy: local, sync_every: 4}"])
@pytest.mark.parametrize("whom", ["launcher", "worker"])
def test_sigterm_ends_with_a_checkpoint(gradus, job, tmp_path, more, whom):
    name = job(steps=300, more=more)
    calm = calm_hash(gradus, name)
    with unhurried(tmp_path) as slow:
        run = gradus.start("run", "-np", 3, "--grace", "60s", "--json", "--chaos", slow, name)
        read_lines(run.stdout, 3)
        if whom == "launcher":
            run.terminate()
        else:
            os.kill(rank_pid(gradus, 1), signal.SIGTERM)
        text, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 75, message
    assert "--resume" in message
    stopped = json.loads(text.splitlines()[-1])
    assert stopped["event"] == "stopped" and (tmp_path / stopped["checkpoint"]).is_dir()
    assert checkpoints(tmp_path / "out" / "checkpoints") == [f"step-{stopped['step']:09}"]
    gradus.wait_for_nothing()
    done = gradus("run", "-np", 2, "--json", "--resume", name)
    assert json.loads(done.stdout.splitlines()[0])["step"] == stopped["step"]
    assert end_of(done)["weights_sha256"] == calm


@pytest.mark.parametrize("whom", ["launcher", "worker"])
def test_sigterm_of_a_worker_with_kernel_threads_ends_with_a_checkpoint(gradus, job, tmp_path,
                                                                        whom):
    """The kernels' threads exist before the worker holds the signal: none of them may take it."""
    name = job(steps=10**7, more="distribution: {shards: 4, worker_threads: 2}")
    run = gradus.start("run", "-np", 1, "--grace", "60s", "--json", "--restarts", 0, name,
                       env={"OMP_WAIT_POLICY": "passive"})
    read_lines(run.stdout, 2)
    if whom == "launcher":
        run.terminate()
    else:
        os.kill(rank_pid(gradus, 0), signal.SIGTERM)
    text, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 75, message
    stopped = json.loads(text.splitlines()[-1])
    assert stopped["event"] == "stopped" and (tmp_path / stopped["checkpoint"]).is_dir()


def test_sigterm_before_the_workers_have_met_loses_nothing(gradus, job):
    run = gradus.start("run", "-np", 2, "--grace", "60s", "--resume", job(),
                       env={**preload(gradus, "stop_joining_worker"), "TEST_WAITS": "yes"})
    wait_until(lambda: rank_pid(gradus, 0) and rank_pid(gradus, 1), "the workers")
    run.terminate()
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 75, message
    assert "all 2 workers have ended" in message


@pytest.mark.parametrize("section,code", [("", 1), ("checkpoint: {every: 1 h}", 75)])
def test_ctrl_c(gradus, job, tmp_path, section, code):
    run = gradus.start("run", "-np", 2, "--grace", "60s", "--json",
                       job(steps=10**7, more=ENDLESS + section))
    read_lines(run.stdout, 3)
    run.send_signal(signal.SIGINT)
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == code and "ended by SIGINT" in message
    assert len(checkpoints(tmp_path / "out" / "checkpoints")) == (code == 75)


def test_a_second_sigterm_does_not_wait(gradus):
    run = gradus.start("run", "-np", 2, "--grace", "60s", "--", "sh", "-c",
                       "trap 'echo heard' TERM; echo up; while :; do sleep 0.1; done")
    read_lines(run.stdout, 2)
    run.terminate()
    run.terminate()  # as timeout(1) does
    heard = [line.split("] ")[1] for line in read_lines(run.stdout, 2)]
    assert heard == ["heard"] * 2  # the time in which one more means the same has begun
    with pytest.raises(subprocess.TimeoutExpired):
        run.communicate(timeout=1.5)
    run.terminate()
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 1 and "were killed" in message
    gradus.wait_for_nothing()


def test_a_command_that_can_go_on(gradus):
    """If all of its workers end with 75."""
    assert gradus("run", "-np", 2, "--", "sh", "-c", "exit 75").returncode == 75
    assert gradus("run", "-np", 2, "--", "sh", "-c", "exit $((75 + GRADUS_RANK))").returncode == 1


# ---- What is refused -----------------------------------------------------------------------------

def test_folders_are_not_mixed(gradus, job, tmp_path):
    name = job(more=ENDLESS + "checkpoint: {every: 40 steps}")
    assert gradus("run", "-np", 2, "--json", name).returncode == 0
    again = gradus("run", "-np", 2, "--json", name)
    assert again.returncode == 2 and "holds checkpoints of an earlier run" in again.stderr
    other = job("other.yaml", optimizer="sgd", more=ENDLESS + "checkpoint: {every: 40 steps}")
    refused = gradus("run", "-np", 2, "--resume", other)
    assert refused.returncode == 2
    assert "optimizer.kind is adam there and sgd in other.yaml" in refused.stderr
    assert gradus("run", "--resume", "--", "true").returncode == 2
    bad = gradus("run", "--checkpoint-every", "often", name)
    assert bad.returncode == 2 and "100 steps" in bad.stderr


def test_job_without_checkpoints_does_not_start_among_those_of_another(gradus, job, tmp_path):
    """It would write one when it is asked to end, and --resume take the other job's."""
    first = job(more=ENDLESS + "checkpoint: {every: 40 steps}")
    assert gradus("run", "-np", 2, "--json", first).returncode == 0
    refused = gradus("run", "-np", 2, job("other.yaml", optimizer="sgd", more=ENDLESS))
    assert refused.returncode == 2
    assert "optimizer.kind is adam there and sgd in other.yaml" in refused.stderr
    assert "give this job a folder of its own (checkpoint: to, --checkpoint-to)" in refused.stderr
    assert gradus("run", "-np", 2, job("same.yaml", more=ENDLESS)).returncode == 0
    elsewhere = gradus("run", "-np", 2, "--checkpoint-to", "elsewhere", "other.yaml")
    assert elsewhere.returncode == 0


def test_two_runs_at_once(gradus, job, tmp_path):
    name = job(steps=10**7, more=ENDLESS + "checkpoint: {every: 1 h, to: shared}")
    first = gradus.start("run", "-np", 1, "--json", name)
    read_lines(first.stdout, 3)
    second = gradus("run", "-np", 1, "--json", name, "--output", "other")
    assert second.returncode == 2 and "another run (process " in second.stderr
    first.kill()


def test_two_runs_without_checkpoints_at_once(gradus, job, tmp_path):
    name = job(steps=10**7, more=ENDLESS)
    first = gradus.start("run", "-np", 1, "--json", name)
    read_lines(first.stdout, 2)
    metrics = (tmp_path / "out/metrics.jsonl").stat()
    for more in ([], ["--resume"], ["--output", tmp_path / "out"]):
        second = gradus("run", "-np", 1, "--json", *more, "--set", "seed=7", name)
        assert second.returncode == 2 and "another run writes into " in second.stderr, second
    assert (tmp_path / "out/metrics.jsonl").stat().st_ino == metrics.st_ino
    first.terminate()
    _, message = first.communicate(timeout=TIMEOUT_S)
    assert first.returncode == 75, message
    assert gradus("run", "-np", 1, "--json", "--set", "steps=1", "--output", "out",
                  "--checkpoint-to", "other", name).returncode == 0


def test_resume_without_any(gradus, job):
    done = gradus("run", "-np", 2, "--json", "--resume", job())
    assert done.returncode == 0 and "starts from the beginning" in done.stderr
    assert json.loads(done.stdout.splitlines()[0])["step"] == 0


def epochs_in(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["epoch"], line["step"], line["loss"], line["accuracy"]) for line in lines
            if line["event"] == "epoch"]


def test_job_that_ended_within_an_epoch_is_made_longer_reports_it_once(gradus, job, tmp_path):
    """And whole, as a job that never ended in between does."""
    section = ENDLESS + "checkpoint: {every: 1 h}"
    calm = calm_hash(gradus, job(more=section, steps=15), 2)
    assert gradus("run", "-np", 2, job(more=section, steps=7)).returncode == 0
    assert [epoch[:2] for epoch in epochs_in(tmp_path / "out")] == [(1, 5), (2, 7)]
    longer = end_of(gradus("run", "-np", 2, "--json", "--resume", job(more=section, steps=15)))
    assert longer["weights_sha256"] == calm
    assert [epoch[:2] for epoch in epochs_in(tmp_path / "out")] == [(1, 5), (2, 10), (3, 15)]
    assert epochs_in(tmp_path / "out") == epochs_in(tmp_path / "calm")


def test_job_that_ended_within_a_round_is_made_longer_with_a_warning(gradus, job):
    """Where its last average is one that the longer job does not have."""
    local = "distribution: {shards: 4, strategy: local, sync_every: 2}\ncheckpoint: {every: 1 h}"
    within = "at step 8 the weights were averaged within a round of strategy local"
    for steps, longer, warned in ((8, 15, True), (7, 15, False), (5, 8, False), (8, 8, False)):
        where = ["--output", f"out-{steps}-{longer}"]
        assert gradus("run", "-np", 2, *where, job(more=local, steps=steps)).returncode == 0
        done = gradus("run", "-np", 2, *where, "--resume", job(more=local, steps=longer))
        assert done.returncode == 0, done.stderr
        assert (within in " ".join(done.stderr.split())) == warned, (steps, longer, done.stderr)


def test_shards_of_the_checkpoint_count(gradus, job):
    """Where the job does not say them any more."""
    section = "checkpoint: {every: 30 steps}"
    calm = calm_hash(gradus, job(more=ENDLESS + section, steps=100), 4)
    subprocess.run(["rm", "-r", gradus.folder / "calm" / "checkpoints" / "step-000000100"],
                   check=True)
    name = job(more=section, steps=100)
    for workers in (1, 3):
        done = gradus("run", "-np", workers, "--json", name, "--resume", "--output", "calm")
        assert end_of(done)["weights_sha256"] == calm
        assert end_of(done)["shards"] == 4


# ---- Damage --------------------------------------------------------------------------------------

def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_damage_is_passed_over(gradus, job, tmp_path):
    def train(steps, workers=2):
        name = job(steps=steps, more=ENDLESS + "checkpoint: {every: 1 h}")
        return gradus("run", "-np", workers, "--json", "--resume", name)

    for steps in (20, 30, 40):  # that of the last step is written, however slow the machine is
        end_of(train(steps))
    name = job(steps=40, more=ENDLESS)
    calm = calm_hash(gradus, name)
    folder = tmp_path / "out" / "checkpoints"
    assert checkpoints(folder) == ["step-000000020", "step-000000030", "step-000000040"]
    assert gradus("checkpoint", "verify", folder).returncode == 0
    flip(folder / "step-000000040" / "optimizer.safetensors", -5)
    (folder / "step-000000030" / "manifest.json").unlink()
    found = gradus("checkpoint", "verify", folder)
    assert found.returncode == 1
    assert "step-000000040/optimizer.safetensors is damaged" in found.stderr
    assert "step-000000030/manifest.json" in found.stderr and "step-000000020: ok" in found.stdout
    rows = [json.loads(line)
            for line in gradus("checkpoint", "ls", "--json", folder).stdout.splitlines()]
    assert [(row["step"], row["ok"]) for row in rows] == [(20, True), (30, False), (40, False)]
    done = train(30, 3)
    assert json.loads(done.stdout.splitlines()[0])["step"] == 20
    assert "step-000000040/optimizer.safetensors is damaged" in done.stderr
    done = train(40, 3)
    assert json.loads(done.stdout.splitlines()[0])["step"] == 30
    assert end_of(done)["weights_sha256"] == calm
    assert gradus("checkpoint", "verify", folder).returncode == 0, "damaged ones were replaced"
    for path in folder.glob("step-*"):
        flip(path / "model.safetensors", 100)
    none = train(40)
    assert none.returncode == 2 and "none of the 3 checkpoints" in none.stderr


# ---- Looking at them -----------------------------------------------------------------------------

def tensors(path):
    """A safetensors file as its definition says, without anything of Gradus."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    values = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        values[name] = (entry["shape"], array.array("f", data[8 + size + begin:8 + size + end]))
    return values


def test_folders_without_what_is_asked_for_are_named(gradus, job, tmp_path):
    (tmp_path / "empty").mkdir()
    for more in ([], ["--json"]):
        done = gradus("checkpoint", "ls", *more, "empty")
        assert done.returncode == 2 and done.stdout == "", done
        assert done.stderr == "gradus: there is no checkpoint in empty\n"
    for name, sentence in (("empty", "there is no checkpoint in empty"),
                           ("nowhere", "there is no folder nowhere")):
        done = gradus("checkpoint", "verify", name)
        assert done.returncode == 2 and done.stderr == f"gradus: {sentence}\n", done
    end_of(gradus("run", "-np", 2, "--json", job(steps=10, more="checkpoint: {every: 1 h}\n")))
    done = gradus("checkpoint", "convert", "out/checkpoints", "none/plain.safetensors")
    assert done.returncode == 2 and "there is no folder none\n" in done.stderr, done


def test_convert_and_diff(gradus, job, tmp_path):
    for steps in (10, 20):  # that of the last step is written, however slow the machine is
        name = job(steps=steps, more=ENDLESS + "checkpoint: {every: 1 h}")
        end_of(gradus("run", "-np", 2, "--json", "--resume", name))
    folder = tmp_path / "out" / "checkpoints"
    assert gradus("checkpoint", "convert", folder, tmp_path / "plain.safetensors").returncode == 0
    assert gradus("checkpoint", "convert", folder, tmp_path / "plain.safetensors").returncode == 2
    plain = tensors(tmp_path / "plain.safetensors")
    assert plain == tensors(tmp_path / "out" / "model.safetensors")
    assert {key: shape for key, (shape, _) in plain.items()} == {
        "linear1.weight": [64, 64], "linear1.bias": [64], "linear2.weight": [64, 64],
        "linear2.bias": [64], "linear3.weight": [10, 64], "linear3.bias": [10]}
    same = gradus("checkpoint", "diff", tmp_path / "plain.safetensors",
                  tmp_path / "out" / "model.safetensors")
    assert same.returncode == 0 and "all 6 tensors are equal" in same.stdout
    early = folder / "step-000000010"
    assert gradus("checkpoint", "convert", early, tmp_path / "early.safetensors").returncode == 0
    other = gradus("checkpoint", "diff", "--json", early, folder)
    assert other.returncode == 1
    told = {row["tensor"]: row for row in map(json.loads, other.stdout.splitlines())}
    assert len(told) == 18  # the optimizer's as well
    before, after = tensors(tmp_path / "early.safetensors"), plain
    largest = max(abs(a - b)
                  for a, b in zip(before["linear3.weight"][1], after["linear3.weight"][1]))
    assert told["linear3.weight"]["largest"] == pytest.approx(largest)
    assert told["linear3.weight"]["of"] == 640
    assert gradus("checkpoint", "diff", early, tmp_path / "plain.safetensors").returncode == 1
    assert gradus("checkpoint", "diff", early, tmp_path / "nothing").returncode == 2
    assert gradus("checkpoint", "verfy", folder).returncode == 2


def write_tensor(path, *values):
    header = json.dumps({"w": {"dtype": "F32", "shape": [len(values)],
                               "data_offsets": [0, 4 * len(values)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + array.array("f", values).tobytes())
    return path


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_diff_tells_values_that_are_not_finite(gradus, tmp_path, value):
    left = write_tensor(tmp_path / "left.safetensors", 1, 2, 3)
    right = write_tensor(tmp_path / "right.safetensors", 1, float(value), 4)
    row = json.loads(gradus("checkpoint", "diff", "--json", left, right).stdout)
    assert row["values"] == 2 and row["largest"] is None and row["relative"] is None, row
    told = gradus("checkpoint", "diff", left, right)
    assert told.returncode == 1 and "relatively by nan\n" in told.stdout, told


# ---- What is in the way --------------------------------------------------------------------------

@pytest.fixture
def disk(tmp_path):
    """A small disk of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = []

    def mount(*words):
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", ",".join(words), "none", folder],
                              capture_output=True)
        if done.returncode != 0:
            pytest.skip("no file system may be mounted here")
        made.append(folder)
        return folder
    yield mount
    while made:
        subprocess.run(["umount", "-l", made.pop()], capture_output=True)


def test_a_full_disk(gradus, job, disk):
    name = job(more=ENDLESS + "checkpoint: {every: 20 steps}")
    calm = calm_hash(gradus, name)
    folder = disk("size=60k")
    done = gradus("run", "-np", 2, "--json", name, "--checkpoint-to", folder)
    assert end_of(done)["weights_sha256"] == calm
    # Steps are short here: the next one may be due while this one still fails.
    warnings = [line for line in done.stderr.splitlines() if "is left out" not in line]
    assert len(warnings) == 1 and "warning" in warnings[0], done.stderr
    assert "No space left on device" in warnings[0]
    assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_disk_that_vanishes(gradus, job, disk, tmp_path):
    name = job(steps=10**7, more=ENDLESS + "checkpoint: {every: 20 steps}")
    folder = disk("size=10m")
    # Nobody reads its output here, which is soon more than a pipe holds.
    run = gradus.start("run", "-np", 2, "--json", name, "--checkpoint-to", folder,
                       stdout=subprocess.DEVNULL)
    wait_until(lambda: checkpoints(folder), "a checkpoint")
    subprocess.run(["umount", "-l", folder], check=True)
    while "is on another disk" not in (line := read_lines(run.stderr, 1)[0]):
        # Steps are short here; and one may be on its way to the disk just then.
        assert "is left out" in line or "No such file or directory; check the path" in line
    assert not list(folder.iterdir()), "nothing is written below the mount"
    reached = last_step(tmp_path / "out")
    wait_until(lambda: last_step(tmp_path / "out") > reached, "more steps")
    run.kill()


def test_a_folder_that_cannot_be_written_is_said_first(gradus, job, tmp_path):
    (tmp_path / "file").write_text("")
    done = gradus("run", "-np", 2, job(more=ENDLESS), "--checkpoint-every", "1 epoch",
                  "--checkpoint-to", "file")
    assert done.returncode == 2 and "the checkpoint folder file cannot be written" in done.stderr


def test_a_read_only_disk_is_said_first(gradus, job, disk):
    folder = disk("size=1m", "ro")
    done = gradus("run", "-np", 2, job(more=ENDLESS), "--checkpoint-every", "1 epoch",
                  "--checkpoint-to", folder)
    assert done.returncode == 2 and "Read-only file system" in done.stderr

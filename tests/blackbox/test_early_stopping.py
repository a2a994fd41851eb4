# SPDX-License-Identifier: Apache-2.0
"""early_stopping and keep_best: the same end for any number of workers, death and resume."""
import json
import random

import pytest

JOB = """
model: [{linear: 64}, relu, {linear: 1}]
data: {file: train.csv, regression: true, test_count: 200}
loss: mse
optimizer: {kind: adam, learning_rate: 0.004}
epochs: %(epochs)d
global_batch: 32
eval_every: %(every)d
distribution: {%(distribution)s}
output: out
%(more)s
"""
PER_EPOCH = 320 // 32
STOP = "early_stopping: {metric: test_mae, patience: 4}"
KEEP = "checkpoint: {keep_best: true, keep: 2, every: 1 epoch, metric: test_mae}"


@pytest.fixture
def job(tmp_path):
    """A model that learns its samples by heart: on the test samples it becomes worse."""
    dice = random.Random(5)
    lines = []
    for _ in range(520):
        x = [dice.gauss(0, 1) for _ in range(6)]
        lines.append(",".join(f"{value:.5f}" for value in [*x, x[0] + dice.gauss(0, 2)]))
    (tmp_path / "train.csv").write_text("\n".join(lines))

    def write(more="", epochs=60, every=1, distribution="shards: 4"):
        (tmp_path / "job.yaml").write_text(JOB % locals())
    return write


def train(gradus, workers, *more, code=0):
    done = gradus("run", "-np", workers, "--json", "job.yaml", *more)
    assert done.returncode == code, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return events[-1], [event for event in events if event["event"] == "epoch"]


def replay(epochs, metric, patience, min_delta=0.0, better=lambda new, old: old - new):
    """What the keys say, done by hand: the best value and its step, and the step of the end."""
    best, step, wait = None, None, 0
    for epoch in epochs:
        value = epoch[metric]
        if value is None:
            continue
        if best is None or better(value, best) > min_delta:
            best, step, wait = value, epoch["step"], 0
        else:
            wait += 1
        if patience and wait >= patience:
            return best, step, epoch["step"]
    return best, step, epochs[-1]["step"]


def steps_kept(tmp_path, folder="out"):
    return sorted(int(path.name[5:]) for path in (tmp_path / folder / "checkpoints").glob("step-*"))


def result(end):
    return [end[key] for key in ("steps", "best", "best_step", "weights_sha256", "stopped_early")]


def test_early_stopping_any_number_of_workers_same_end(gradus, job):
    job()
    _, all_epochs = train(gradus, 1)
    best, best_step, stop = replay(all_epochs, "test_mae", 4)
    assert PER_EPOCH < best_step < stop < all_epochs[-1]["step"]
    job(STOP)
    ends = [train(gradus, workers, "--output", f"out{workers}")[0] for workers in (1, 2, 3)]
    assert result(ends[0]) == result(ends[1]) == result(ends[2])
    assert result(ends[0])[:3] == [stop, best, best_step]
    assert ends[0]["metric"] == "test_mae" and ends[0]["stopped_early"] is True


@pytest.mark.parametrize("distribution", ["shards: 4, strategy: local, sync_every: 4 steps",
                                          "shards: 4, strategy: ps, servers: 1"])
def test_early_stopping_other_strategies_same_end_for_any_number(gradus, job, distribution):
    job(STOP, distribution=distribution)
    ends = [train(gradus, workers, "--output", f"out{workers}") for workers in (1, 3)]
    assert result(ends[0][0]) == result(ends[1][0])
    assert replay(ends[0][1], "test_mae", 4)[2] == ends[0][0]["steps"] < 600


def test_early_stopping_min_delta_and_every_second_epoch(gradus, job):
    job("early_stopping: {metric: loss, patience: 2, min_delta: 0.05}")
    end, epochs = train(gradus, 2)
    assert replay(epochs, "loss", 2, 0.05) == (end["best"], end["best_step"], end["steps"])
    assert end["steps"] < 600
    job("early_stopping: {metric: test_r2, patience: 2}", every=2)
    end, epochs = train(gradus, 2)
    assert (end["best"], end["best_step"], end["steps"]) == replay(
        epochs, "test_r2", 2, better=lambda new, old: new - old)
    assert end["steps"] % (2 * PER_EPOCH) == 0 and end["steps"] < 600


def test_early_stopping_patience_not_used_up_trains_to_the_end(gradus, job):
    job("early_stopping: {patience: 100}", epochs=5)
    end, _ = train(gradus, 2)
    assert (end["steps"], end["stopped_early"]) == (5 * PER_EPOCH, False)


def test_early_stopping_through_deaths_same_end(gradus, job):
    job(STOP)
    calm = result(train(gradus, 1)[0])
    stop = calm[0]
    # In the epoch of the best value, while the patience is used up, and in the last step.
    faults = f"kill:rank=0@step={calm[2] + 3}; kill:rank=1@step={stop}"
    found, _ = train(gradus, 3, "--chaos", faults, "--output", "other")
    assert result(found) == calm


def test_early_stopping_resumed_keeps_best_and_patience(gradus, job, tmp_path):
    job(STOP + "\n" + KEEP)
    calm, _ = train(gradus, 1, "--output", "calm")
    best, stop = calm["best_step"], calm["steps"]
    job(STOP + "\n" + KEEP, epochs=stop // PER_EPOCH - 1)  # the patience is used up all but one
    end, _ = train(gradus, 2)
    assert (end["steps"], end["stopped_early"]) == (stop - PER_EPOCH, False)
    job(STOP + "\n" + KEEP)
    end, epochs = train(gradus, 3, "--resume")
    assert result(end) == result(calm)
    assert len(epochs) == 1
    # It is over: nothing is trained any more, until it may wait for longer.
    again, epochs = train(gradus, 2, "--resume")
    assert result(again) == result(calm) and epochs == []
    job(STOP.replace("4", "5") + "\n" + KEEP)
    longer, epochs = train(gradus, 1, "--resume")
    assert longer["steps"] > stop and epochs[0]["step"] == stop + PER_EPOCH
    assert best in steps_kept(tmp_path) or longer["best_step"] > best


def test_keep_best_survives_retention_and_is_marked(gradus, job, tmp_path):
    job(STOP + "\n" + KEEP)
    end, _ = train(gradus, 2)
    best, last = end["best_step"], end["steps"]
    kept = steps_kept(tmp_path)  # some that were due may have been left out, to be fast
    assert kept[0] == best and kept[-1] == last == best + 4 * PER_EPOCH and len(kept) in (2, 3)
    rows = [json.loads(line) for line in
            gradus("checkpoint", "ls", "--json", "out/checkpoints").stdout.splitlines()]
    assert [row["step"] for row in rows if row["best"]] == [best]
    assert all(row["ok"] for row in rows)
    text = gradus("checkpoint", "ls", "out/checkpoints").stdout.splitlines()
    assert [line.endswith("ok, the best") for line in text[1:]] == [step == best for step in kept]
    (tmp_path / "new.csv").write_text("\n".join((tmp_path / "train.csv").read_text()
                                                .splitlines()[-200:]))
    chosen = gradus("predict", "out/checkpoints", "--best", "--data", "new.csv").stdout
    errors = [abs(float(value) - float(line.rsplit(",", 1)[1])) for value, line in
              zip(chosen.split()[1:], (tmp_path / "new.csv").read_text().split(), strict=True)]
    assert sum(errors) / 200 == pytest.approx(end["best"], rel=1e-5)


def test_best_that_is_not_kept_is_not_marked_and_named(gradus, job, tmp_path):
    job("early_stopping: {metric: test_mae, patience: 4}\ncheckpoint: {every: 1 h}")
    end, _ = train(gradus, 2)
    assert steps_kept(tmp_path) == [end["steps"]] and end["best_step"] < end["steps"]
    asked = gradus("checkpoint", "convert", "--best", "out/checkpoints", "best.safetensors")
    assert asked.returncode == 2
    assert asked.stderr == (
        "gradus: out/checkpoints has not kept its best checkpoint, after step "
        f"{end['best_step']}: its job did not say checkpoint: {{keep_best: true}}; leave out "
        "--best to take the newest\n")
    job("early_stopping: {metric: test_mae, patience: 4}\n"
        f"checkpoint: {{every: {PER_EPOCH} steps, keep: 0}}", epochs=2)
    last, _ = train(gradus, 2, "--output", "other")
    assert last["best_step"] == last["steps"]  # it is there, and will go
    rows = gradus("checkpoint", "ls", "other/checkpoints").stdout.splitlines()[1:]
    assert rows and not any("the best" in row for row in rows)
    taken = gradus("checkpoint", "convert", "--best", "other/checkpoints", "best.safetensors")
    assert taken.returncode == 0 and f"after step {last['steps']}," in taken.stdout


def test_best_is_marked_by_the_newest_sound_one(gradus, job, tmp_path):
    job(STOP + "\n" + KEEP)
    end, _ = train(gradus, 2)
    newest = tmp_path / "out" / "checkpoints" / f"step-{end['steps']:09}"
    manifest = (newest / "manifest.json").read_text()
    (newest / "manifest.json").write_text("{")
    rows = map(json.loads, gradus("checkpoint", "ls", "--json",
                                  "out/checkpoints").stdout.splitlines())
    assert [row["step"] for row in rows if row["best"]] == [end["best_step"]]
    (newest / "manifest.json").write_text(manifest)
    (newest.parent / f"step-{end['best_step']:09}").rename(tmp_path / "away")
    asked = gradus("checkpoint", "convert", "--best", "out/checkpoints", "best.safetensors")
    assert asked.returncode == 2
    assert f"after step {end['best_step']}, is gone" in asked.stderr


def test_keep_best_alone_writes_the_best_and_the_last(gradus, job, tmp_path):
    job("checkpoint: {keep_best: true, keep: 1}", epochs=20)
    end, epochs = train(gradus, 2)
    _, best, _ = replay(epochs, "test_loss", 0)
    assert end["best_step"] == best < end["steps"] == 200
    assert steps_kept(tmp_path) == [best, 200]


def test_keep_best_rank_0_dies_best_is_there(gradus, job, tmp_path):
    job("checkpoint: {keep_best: true, keep: 1}", epochs=20)
    calm, _ = train(gradus, 1)
    kept = steps_kept(tmp_path)
    found, _ = train(gradus, 3, "--output", "other",
                     "--chaos", f"kill:rank=0@step={calm['best_step'] + 1}")
    assert result(found) == result(calm)
    assert steps_kept(tmp_path, "other") == kept


@pytest.mark.parametrize("more, who", [("early_stopping: {metric: test_r2}", "early_stopping"),
                                       ("checkpoint: {keep_best: true, metric: test_r2}",
                                        "keep_best")])
def test_early_stopping_of_a_metric_that_does_not_exist_warns(gradus, job, tmp_path, more, who):
    """R2 of targets that are all equal."""
    job(more, epochs=3)
    table = tmp_path / "train.csv"
    table.write_text("\n".join(line.rsplit(",", 1)[0] + ",1.5"
                               for line in table.read_text().splitlines()))
    done = gradus("run", "-np", 2, "job.yaml")
    assert done.returncode == 0, done
    told = f"test_r2 was null in every evaluation: {who} had nothing to go by"
    assert done.stderr.count(told) == 1, done


@pytest.mark.parametrize("more, sentence", [
    ("early_stopping: {metric: test_accuracy}", "test_accuracy does not exist for a regression"),
    ("early_stopping: {metric: accuracy}", "metric"),
    ("early_stopping: {patience: 0}", "patience"),
    ("early_stopping: {patienc: 3}", "patience"),
    ("checkpoint: {metric: test_mae}", "keep_best: true"),
    (STOP + "\ncheckpoint: {keep_best: true, metric: test_r2}", "let both watch the same"),
])
def test_early_stopping_wrong_keys_refused(gradus, job, more, sentence):
    job(more)
    done = gradus("run", "job.yaml")
    assert done.returncode == 2
    assert done.stderr.startswith("gradus: job.yaml:")
    assert sentence in done.stderr


def test_early_stopping_without_what_it_needs_refused(gradus, job, tmp_path):
    job(STOP, every=0)
    assert "eval_every: 1" in gradus("run", "job.yaml").stderr
    job(STOP, distribution="strategy: ps, consistency: async, servers: 1")
    assert "set bsp" in gradus("run", "job.yaml").stderr
    job(STOP)
    text = (tmp_path / "job.yaml").read_text()
    (tmp_path / "job.yaml").write_text(text.replace(", test_count: 200", ""))
    done = gradus("run", "job.yaml")
    assert (done.returncode, "test_mae needs test samples" in done.stderr) == (2, True)

# SPDX-License-Identifier: Apache-2.0
"""What is wrong in a job is said before anything starts: exit code 2 and one sentence with file,
line and remedy."""
import gzip
import json
import os
import pathlib
import signal
import socket
import struct

import pytest
from conftest import TIMEOUT_S, read_lines, wait_until

JOB = """\
name: tiny
data:
  format: csv
  file: tiny.csv
  classes: 3
  test_count: 8
model:
  - linear: 8
  - relu
  - linear: 3
loss: cross_entropy
optimizer:
  kind: sgd
  learning_rate: 0.1
epochs: 1
global_batch: 16
seed: 1
output: out
distribution:
  number_of_workers: 2
  shards: 4
"""


@pytest.fixture
def job(tmp_path):
    """job(("old line", "new line"), ...) writes job.yaml with these replacements."""
    rows = [f"{i % 7},{i % 5},{i * 0.5},{-i},{i % 3}" for i in range(72)]
    (tmp_path / "tiny.csv").write_text("\n".join(rows) + "\n")

    def write(*changes, text=JOB):
        for old, new in changes:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        path = tmp_path / "job.yaml"
        path.write_text(text)
        return path
    return write


def expect_refused(done, *says):
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == ""
    assert done.stderr.startswith("gradus: ") and done.stderr.count("\n") == 1, done.stderr
    for words in says:
        assert words in done.stderr


def test_the_job_itself_is_fine(gradus, job):
    done = gradus("run", job())
    assert done.returncode == 0, done.stderr
    assert (gradus.folder / "out" / "model.safetensors").exists()


KEYS = [
    # what stands there, what is written instead, line, what the sentence must say
    ("epochs: 1", "epoch: 1", 15, '"epochs"'),
    ("  learning_rate: 0.1", "  learning_rte: 0.1", 14, '"learning_rate"'),
    ("  shards: 4", "  shard: 4", 21, '"shards"'),
    ("  classes: 3", "  clases: 3", 5, '"classes"'),
    ("epochs: 1", "epochs: many", 15, "many"),
    ("global_batch: 16", "global_batch: [16]", 16, "global_batch"),
    ("global_batch: 16", "global_batch: 1.5", 16, "global_batch"),
    ("  learning_rate: 0.1", "  learning_rate: fast", 14, "fast"),
    ("  kind: sgd", "  kind: sdg", 13, '"sgd"'),
    ("loss: cross_entropy", "loss: cross_entrpy", 11, "cross_entropy"),
    ("  - relu", "  - rleu", 9, "relu"),
    ("  - linear: 8", "  - linear: -8", 8, "linear"),
    ("  - linear: 8", "  - linear: eight", 8, "eight"),
    ("  - relu", "  - conv2d: {channels: 2, kernel: 3}", 9, "conv2d"),
    ("  - relu", "  - max_pool: 2", 9, "max_pool"),
    ("  - linear: 3", "  - linear: 5", 10, "3"),
    ("global_batch: 16", "global_batch: 18", 16, "16"),
    ("global_batch: 16", "global_batch: 0", 16, "global_batch"),
    ("global_batch: 16", "global_batch: -16", 16, "global_batch"),
    ("epochs: 1", "epochs: 0", 15, "epochs"),
    ("epochs: 1", "epochs: -1", 15, "epochs"),
    ("epochs: 1", "epochs: nan", 15, "epochs"),
    ("  number_of_workers: 2", "  number_of_workers: -2", 20, "number_of_workers"),
    ("  number_of_workers: 2", "  number_of_workers: 5", 21, "at most 4 workers"),
    ("  shards: 4", "  shards: -4", 21, "shards"),
    ("  test_count: 8", "  test_count: 72", 6, "test_count"),
    ("  classes: 3", "  classes: -3", 5, "classes"),
    ("seed: 1", "seed: 1\nseed: 2", 18, "seed"),
    ("  kind: sgd", "  kind: [sgd", 14, ""),
    ("  number_of_workers: 2", "  strategy: pigeons", 20, "allreduce"),
    ("  number_of_workers: 2", "  link: pigeon", 20, "shm"),
    ("  number_of_workers: 2", "  distribution_type: MPI", 20, "MPI"),
]


@pytest.mark.parametrize("old, new, line, says", KEYS, ids=[new.strip() for _, new, _, _ in KEYS])
def test_wrong_keys_and_values(gradus, job, old, new, line, says):
    path = job((old, new))
    for verb in (["run"], ["run", "--dry-run"]):
        expect_refused(gradus(*verb, path), f"job.yaml:{line}", says)
    assert sorted(entry.name for entry in gradus.folder.iterdir()) == ["job.yaml", "tiny.csv"]


def test_set_stands_over_the_file(gradus, job, tmp_path):
    """On the launcher and in the workers: the bits are those of a file that says it."""
    said = job(("  learning_rate: 0.1", "  learning_rate: 0.05"), ("epochs: 1", "epochs: 2"),
               ("output: out", "output: said\ncheckpoint: {every: 1 epoch}"))
    assert gradus("run", said).returncode == 0
    done = gradus("run", "--set", "optimizer.learning_rate=0.05", job(), "--set=epochs=2",
                  "--set", "output=flag", "--set", "checkpoint.every=1 epoch")
    assert done.returncode == 0, done.stderr
    for name in ("model.safetensors", "checkpoints/step-000000004/model.safetensors"):
        assert (tmp_path / "flag" / name).read_bytes() == (tmp_path / "said" / name).read_bytes()


@pytest.mark.parametrize("setting, says", [
    ("epochs=many", "--set epochs=many: epochs: must be a number"),
    ("optimizer.learning_rate=[1]", "--set optimizer.learning_rate=[1]: optimizer.learning_rate"),
    ("optimizer.learning_rte=1", 'did you mean "learning_rate"'),
    ("optimzer.kind=sgd", '"optimizer"'),
    ("epochs.more=1", '"epochs" holds a value, and no keys'),
    ("epochs", "must read key=value"),
    ("optimizer..kind=sgd", "must read key=value"),
    ("distribution.link=pigeon", "--set distribution.link=pigeon: distribution.link: must be"),
    ("model={", "--set model={:1: "),
])
def test_wrong_set_is_refused_by_its_flag(gradus, job, setting, says):
    expect_refused(gradus("run", job(), "--set", setting), f"--set {setting}", says)


def test_sweep_runs_each_combination_and_lists_the_best_first(gradus, job, tmp_path):
    done = gradus("sweep", job(), "--set", "optimizer.learning_rate=0.1,0.0001", "--set",
                  "global_batch=16,32", "--output", "tried", "--json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert sorted((row["set"]["optimizer.learning_rate"], row["set"]["global_batch"])
                  for row in rows) == [("0.0001", "16"), ("0.0001", "32"), ("0.1", "16"),
                                       ("0.1", "32")]
    found = [row["test_accuracy"] for row in rows]
    assert found == sorted(found, reverse=True)
    alone = gradus("run", job(), "--set", "optimizer.learning_rate=0.1", "--set",
                   "global_batch=32", "--output", "alone")
    assert alone.returncode == 0
    [same] = [row["output"] for row in rows if row["set"] == {"optimizer.learning_rate": "0.1",
                                                              "global_batch": "32"}]
    weights = "model.safetensors"
    assert (tmp_path / same / weights).read_bytes() == (tmp_path / "alone" / weights).read_bytes()
    table = gradus("sweep", job(), "--set", "epochs=1", "-np", 1)
    assert table.returncode == 0 and "out/sweep/run-001  epochs=1\n" in table.stdout, table


def test_sweep_of_what_is_wrong_starts_nothing(gradus, job, tmp_path):
    expect_refused(gradus("sweep", job(), "--set", "epochs=1,many"), "--set epochs=many: ")
    expect_refused(gradus("sweep", job()), "say which values")
    expect_refused(gradus("sweep", job(), "--set", "epochs"), "key=value,value")
    expect_refused(gradus("sweep", job(), "--set", "output=a,b"), "--set output=a,b", "--output")
    assert not (tmp_path / "out").exists()


def test_sweep_of_which_one_run_fails_goes_on_and_says_so(gradus, job, tmp_path):
    (tmp_path / "out/sweep/run-001").mkdir(parents=True)
    (tmp_path / "out/sweep/run-001/model.safetensors").symlink_to("/dev/full")
    done = gradus("sweep", job(), "--set", "optimizer.learning_rate=0.2,0.1")
    assert done.returncode == 1, done
    assert "optimizer.learning_rate=0.2; ended with 1, out/sweep/run-001/log.txt" in done.stderr
    assert "model.safetensors" in (tmp_path / "out/sweep/run-001/log.txt").read_text()
    rows = done.stdout.splitlines()[1:]
    assert "run-002" in rows[0] and "failed" in rows[1] and len(rows) == 2, done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sweep_that_is_asked_to_end_lists_what_it_has_done(gradus, job, tmp_path, number):
    sweep = gradus.start("sweep", job(), "-np", 1, "--set", "epochs=1,1000000,2")
    going = tmp_path / "out/sweep/run-002/metrics.jsonl"
    wait_until(lambda: going.exists() and '"epoch"' in going.read_text(), "the second run")
    sweep.send_signal(number)
    table, says = sweep.communicate(timeout=TIMEOUT_S)
    assert sweep.returncode == 75, (table, says)
    rows = table.splitlines()[1:]
    assert len(rows) == 2 and "run-001  epochs=1" in rows[0] and " % " in rows[0], table
    assert rows[1].split() == ["stopped", "out/sweep/run-002", "epochs=1000000"]
    assert "gradus: run 2 of 3: epochs=1000000; ended with 75" in says
    assert "gradus: asked to end: 1 of 3 runs were not begun\n" in says
    assert list((tmp_path / "out/sweep/run-002/checkpoints").glob("step-*"))
    assert not (tmp_path / "out/sweep/run-003").exists()
    gradus.wait_for_nothing()
    expect_refused(gradus("sweep", job(), "-np", 1, "--set", "epochs=1,1000000,2"),
                   "out/sweep/run-002/checkpoints holds checkpoints", "--resume", "(--output)")


CHECKPOINTS = """\
checkpoint:
  to: ck
  every: 1 epoch
"""


def test_sweep_of_a_job_with_checkpoints_gives_each_run_a_folder_and_goes_on(gradus, job, tmp_path):
    path = job(text=JOB + CHECKPOINTS)
    line = ["sweep", path, "--set", "epochs=1,2", "--json"]
    first = gradus(*line)
    assert first.returncode == 0, first
    assert not (tmp_path / "ck").exists()
    for run, steps in (("run-001", 4), ("run-002", 8)):
        assert list((tmp_path / f"out/sweep/{run}/checkpoints").glob(f"step-*{steps}")), run
    expect_refused(gradus(*line), "out/sweep/run-001/checkpoints", "--resume", "(--output)")
    metrics = tmp_path / "out/sweep/run-001/metrics.jsonl"
    metrics.write_text('{"event":"note"}\n' * (4 << 20) + metrics.read_text())
    again = gradus(*line, "--resume")
    assert again.returncode == 0, again
    results = [[(row["output"], row["test_loss"], row["test_accuracy"])
                for row in map(json.loads, done.stdout.splitlines())] for done in (first, again)]
    assert results[0] == results[1]
    log = (tmp_path / "out/sweep/run-002/log.txt").read_text()
    assert log.count("test accuracy") == 2, log


def test_sweep_places_checkpoints_by_their_key(gradus, job, tmp_path):
    done = gradus("sweep", job(text=JOB + CHECKPOINTS), "--set", "checkpoint.to=a,b")
    assert done.returncode == 0, done
    assert list((tmp_path / "a").glob("step-*")) and list((tmp_path / "b").glob("step-*"))


def test_sweep_without_test_samples_shows_no_test_loss(gradus, job):
    done = gradus("sweep", job(("  test_count: 8\n", "")), "--set", "epochs=1")
    assert done.returncode == 0, done
    row = done.stdout.splitlines()[1].split()
    assert len(row) == 4 and row[2:] == ["out/sweep/run-001", "epochs=1"], done.stdout


@pytest.mark.parametrize("words, says", [
    (["-np", 2, "none.yaml"], "none.yaml"),
    (["-np", 2, "--set", "epochs=many", "job.yaml"], "--set epochs=many: "),
    (["-np", 2, "--max-workers", 1, "job.yaml"], "--max-workers 1 is less than"),
    (["-np", 2, "--min-workers", 3, "true"], "--min-workers 3 is more than"),
    (["--spare", 1, "true"], "(--min-workers)"),
    (["--servers-file", "servers", "true"], "--servers-file is for"),
    (["--cluster", "cluster.yaml", "job.yaml"], "--cluster is for --dry-run"),
    (["--stdin", "none.txt", "true"], "none.txt"),
])
def test_what_is_wrong_is_said_before_hosts_are_waited_for(gradus, job, words, says):
    job()
    done = gradus("run", "--listen", "127.0.0.1:0", "--start-timeout", "1s", *words,
                  env={"GRADUS_JOIN_TOKEN": "0123456789abcdef0123456789abcdef"})
    expect_refused(done, says)


@pytest.mark.parametrize("flags", [
    ["--set", "epochs=1"], ["--output", "out"], ["--checkpoint-every", "1 epoch"],
    ["--checkpoint-to", "ck"], ["--json"], ["--resume"],
])
def test_flags_of_job_files_are_refused_for_commands(gradus, flags):
    expect_refused(gradus("run", *flags, "true"), f"{flags[0]} is for job files")


@pytest.mark.parametrize("variable, value, says", [
    ("GRADUS_OP_TIMOUT", "9s", '"GRADUS_OP_TIMEOUT"?'),
    ("GRADUS_TUNES", "off", "GRADUS_TUNE?"),
    ("GRADUS_FLAVOUR", "mint", "gradus info --config"),
    ("GRADUS_STALL_WARN", "soon", "a time such as"),
    ("GRADUS_ALGORITHM", "allreduce=teleport", "no allreduce algorithm"),
    ("GRADUS_ALGORITHM", "allreduce=ring", "GRADUS_EXACT=0"),
    ("GRADUS_TUNE", "none.txt", "none.txt"),
    ("GRADUS_PORTS", "9-1", "first and the last port"),
    ("GRADUS_INTERFACE", "eth77", "no interface"),
])
def test_wrong_variable_is_refused_before_the_start(gradus, job, variable, value, says):
    expect_refused(gradus("run", job(), env={variable: value}), variable, says.replace('"', ""))
    assert not (gradus.folder / "out").exists()


def test_variable_of_another_machine_is_refused_before_the_start(gradus, job):
    """A file of gradus tune is for one machine and number of ranks."""
    done = gradus("tune", "-np", 2, "--begin", "64", "--end", "64", "--time", "10us", "--rounds", 1,
                  "-o", "two.txt")
    assert done.returncode == 0, done.stderr
    expect_refused(gradus("run", "-np", 4, job(), env={"GRADUS_TUNE": "two.txt"}),
                   "measured with 2 ranks over shm, these are 4")
    assert gradus("run", "-np", 2, job(), env={"GRADUS_TUNE": "two.txt"}).returncode == 0


def test_misspelt_variable_is_refused_by_whatever_starts_ranks(gradus):
    wrong = {"GRADUS_RAIL": "2"}
    for words in (["run", "true"], ["bench", "allreduce"], ["tune"], ["server"], ["rendezvous"]):
        expect_refused(gradus(*words, env=wrong), "did you mean GRADUS_RAILS?")
        expect_refused(gradus(*words, env={"GRADUS_STREAMS": "2"}),
                       "GRADUS_STREAMS is called GRADUS_RAILS now")
    expect_refused(gradus("info", "--plan", "allreduce", "--streams", 2),
                   "--streams is called --rails now")
    expect_refused(gradus("bench", "allreduce", "-np", 2,
                          env={"GRADUS_ALGORITHM": "allreduce=no"}), "no allreduce algorithm")
    known = {"GRADUS_TEST_WORD": "1", "GRADUS_SERVER_0": "tcp:127.0.0.1:9", "GRADUS_SERVERS": "a"}
    assert gradus("run", "-np", 1, "true", env=known).returncode == 0


def test_workers_on_the_command_line(gradus, job):
    expect_refused(gradus("run", "-np", 5, job()), "5", "shards")
    expect_refused(gradus("run", "-np", 0, job()), "-np")


@pytest.mark.parametrize("data, says", [
    (None, ["tiny.csv"]),
    (b"", ["tiny.csv"]),
    (b"1,2,3,4,0\n1,2,x,4,0\n" * 20, ["tiny.csv:2", "column 3", '"x"']),
    (b"1,2,3,4,0\n1,2,3,0\n" * 20, ["tiny.csv:2"]),
    (b"1,2,3,4,0\n" * 20 + b"1,2,3,4,3\n" + b"1,2,3,4,0\n" * 20, ["tiny.csv:21", "3"]),
    (b"1,2,3,4,0\n1,2,3,4,-1\n" * 20, ["tiny.csv:2", "-1"]),
    (b"1,2,3,4,0\n1,2,3,4,0.5\n" * 20, ["tiny.csv:2", "0.5"]),
    (b"1,2,3,4,0\n1,2,3,4,\n" * 20, ["tiny.csv:2"]),
    (gzip.compress(b"1,2,3,4,0\n" * 2000)[:-20], ["tiny.csv", "truncated"]),
    (b"1,2,3,4,0\n" * 12, ["16"]),
], ids=["missing", "empty", "no number", "columns", "label too large", "label negative",
        "label no whole number", "label empty", "truncated gzip", "fewer samples than a batch"])
def test_bad_data(gradus, job, data, says):
    path = job()
    file = gradus.folder / "tiny.csv"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    expect_refused(gradus("run", path), *says)


def test_idx_that_is_shorter_than_its_header_says(gradus, job):
    (gradus.folder / "images").write_bytes(struct.pack(">IIII", 0x803, 100, 2, 2) + b"\0" * 399)
    (gradus.folder / "labels").write_bytes(struct.pack(">II", 0x801, 100) + b"\0" * 100)
    path = job(("  format: csv", "  format: idx"), ("  file: tiny.csv",
                                                    "  images: images\n  labels: labels"))
    expect_refused(gradus("run", path), "images")
    (gradus.folder / "images").write_bytes(struct.pack(">IIII", 0x804, 100, 2, 2) + b"\0" * 400)
    expect_refused(gradus("run", path), "images")
    (gradus.folder / "images").write_bytes(struct.pack(">IIII", 0x803, 99, 2, 2) + b"\0" * 396)
    expect_refused(gradus("run", path), "99", "100")


@pytest.mark.parametrize("text, says", [
    (None, "job.yaml"), ("", "job.yaml"), ("- a\n- b\n", "job.yaml"), ("\0\1\2", "job.yaml"),
    ("a: &a [*a]", "job.yaml"), ("name: x\n", "job.yaml"), ("\t- x", "job.yaml")])
def test_files_that_are_no_jobs(gradus, text, says):
    path = gradus.folder / "job.yaml"
    if text is not None:
        path.write_text(text)
    expect_refused(gradus("run", path), says)
    expect_refused(gradus("eval", path, "model.safetensors"), says)


def test_output_folder_that_cannot_be_written(gradus, job):
    (gradus.folder / "file").write_text("")
    expect_refused(gradus("run", job(("output: out", "output: file/out"))), "file/out")
    expect_refused(gradus("run", "--output", gradus.folder / "file", job()), "file")


@pytest.mark.parametrize("name, make, says", [
    ("metrics.jsonl", os.mkdir, "it is a folder"),
    ("model.safetensors", os.mkdir, "it is a folder"),
    ("metrics.jsonl", os.mkfifo, "it is a FIFO"),
    ("metrics.jsonl", lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "No such device"),
    ("checkpoints", lambda path: path.symlink_to("/nowhere"), "it is a link to nothing"),
], ids=["metrics-folder", "weights-folder", "metrics-fifo", "metrics-socket", "checkpoints-link"])
def test_what_is_in_the_way_in_the_output_folder_is_said_first(gradus, job, monkeypatch, name, make,
                                                               says):
    monkeypatch.chdir(gradus.folder)
    out = pathlib.Path("out")
    out.mkdir()
    make(out / name)
    done = gradus("run", job(("output: out", "output: out\ncheckpoint: {every: 1 h}")))
    expect_refused(done, f"out/{name}", says, "choose another one")


def test_timeline_that_cannot_be_written_is_said_first(gradus, job):
    done = gradus("run", "--timeline", "none/t.json", job())
    expect_refused(done, "none/t.json cannot be written: there is no folder none")
    done = gradus("run", "--timeline", ".", job())
    expect_refused(done, ". cannot be written: there is a folder of this name")
    assert not (gradus.folder / "out").exists()


def test_a_word_behind_the_job_file(gradus, job):
    expect_refused(gradus("run", job(), "extra"), '"extra"')
    expect_refused(gradus("run", job(), "--jsn"), '"--json"')


def test_a_dry_run_prints_and_starts_nothing(gradus, job):
    done = gradus("run", "--dry-run", job())
    assert done.returncode == 0 and done.stderr == ""
    for words in ("linear", "global 16", "2 with 1 thread"):
        assert words in done.stdout
    assert not (gradus.folder / "out" / "model.safetensors").exists()


def test_eval_needs_no_folder_that_can_be_written(gradus, job):
    assert gradus("run", "-np", 1, job()).returncode == 0
    path = job(("output: out", "output: file/out"))
    (gradus.folder / "file").write_text("in the way")
    done = gradus("eval", path, "out/model.safetensors")
    assert done.returncode == 0, done.stderr


def test_weights_that_do_not_fit(gradus, job):
    path = job()
    expect_refused(gradus("eval", path, "absent.safetensors"), "absent.safetensors")
    assert gradus("run", "-np", 1, path).returncode == 0
    weights = gradus.folder / "out" / "model.safetensors"
    assert gradus("eval", path, weights).returncode == 0
    with socket.socket(socket.AF_UNIX) as unreadable:
        unreadable.bind(str(gradus.folder / "socket"))
        expect_refused(gradus("eval", path, "socket"), "cannot open socket")
    whole = weights.read_bytes()
    (gradus.folder / "cut").write_bytes(whole[:-1])
    expect_refused(gradus("eval", path, "cut"), "cut")
    expect_refused(gradus("eval", job(("  - linear: 8", "  - linear: 9")), weights),
                   "model.safetensors")


# ---- A native job that fails while it runs -------------------------------------------------------

LONG = (("epochs: 1", "epochs: 100000"),)


@pytest.mark.parametrize("link", ["shm", "tcp"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_killed_worker_of_a_job_is_named(gradus, job, link, rank):
    run = gradus.start("run", "-np", 3, "--min-workers", 3, "--restarts", 0, "--link", link,
                       "--json",
                       job(*LONG))
    read_lines(run.stdout, 2)  # it trains
    workers = {}
    for pid in gradus.remains():
        env = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for entry in env:
            if entry.startswith(b"GRADUS_RANK="):
                workers[int(entry.split(b"=")[1])] = pid
    assert sorted(workers) == [0, 1, 2]
    os.kill(workers[rank], signal.SIGKILL)
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 1
    assert f"gradus: rank {rank} (pid {workers[rank]}) was killed by signal 9 (Killed)" in message
    assert len([line for line in message.splitlines() if line.startswith("gradus: ")]) == 1
    gradus.wait_for_nothing()


def test_a_job_is_ended_by_sigterm(gradus, job):
    run = gradus.start("run", "-np", 2, "--grace", "60s", "--json", job(*LONG))
    read_lines(run.stdout, 2)
    run.terminate()
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 75 and "ended by SIGTERM" in message and "--resume" in message
    gradus.wait_for_nothing()

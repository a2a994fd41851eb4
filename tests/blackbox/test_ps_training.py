# SPDX-License-Identifier: Apache-2.0
"""Jobs that train with parameter servers: the bits of allreduce, and workers that go their own
way."""
import json
import os
import pathlib
import re
import shutil
import signal
import tempfile

import pytest
from conftest import finish, lines_of, sha256_of, unhurried, wait_until
from test_ps import end, start_server
from test_run_servers import servers_of, wait_for_copies

EPOCHS = 6


@pytest.fixture
def with_ps(tmp_path, job):
    """The job of the digits with parameter servers, and whatever else stands under distribution."""
    def write(*lines, more=""):
        text = job.read_text().replace(
            "distribution:\n", "distribution:\n" + "".join(f"  {line}\n" for line in
                                                            ("strategy: ps", *lines)))
        path = tmp_path / "ps.yaml"
        path.write_text(text + more)
        return path
    return write


@pytest.fixture
def in_memory():
    """A folder whose files wait for no disk: else a checkpoint that is due may be left out, since
    the one before it is still being written, or not be there when a worker is killed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield pathlib.Path(folder)


def run(gradus, output, job, *flags):
    done = gradus("run", "--output", output, *flags, job)
    assert done.returncode == 0, done.stderr
    return lines_of(output), done


@pytest.mark.parametrize("workers, servers, link", [(1, 2, "auto"), (4, 3, "auto"), (3, 1, "tcp")])
def test_same_bits(gradus, with_ps, undisturbed, tmp_path, workers, servers, link):
    run(gradus, tmp_path / "out", with_ps(), "-np", workers, "--servers", servers, "--link", link)
    assert sha256_of(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("rank, step", [(2, 1), (0, 50)])
def test_a_worker_dies(gradus, with_ps, undisturbed, tmp_path, rank, step):
    lines, _ = run(gradus, tmp_path / "out", with_ps(), "-np", 4, "--servers", 2, "--restarts", 0,
                   "--chaos", f"kill:rank={rank}@step={step}; kill:rank=3@step=90")
    assert sha256_of(tmp_path / "out") == undisturbed
    recovered = [(line["step"], line["workers"]) for line in lines if line["event"] == "recovered"]
    assert recovered == [(step - 1, 3), (89, 2)]


def test_the_best_weights_are_saved_once(gradus, with_ps, tmp_path):
    """Also when a worker dies in the step behind them, and the others are there once more."""
    path = with_ps(more="checkpoint: {keep_best: true, metric: loss, keep: 0}\n")
    lines, _ = run(gradus, tmp_path / "out", path, "-np", 4, "--servers", 2, "--restarts", 0,
                   "--chaos", "kill:rank=2@step=23; kill:rank=3@step=45")
    assert [line["step"] for line in lines if line["event"] == "recovered"] == [22, 44]
    steps = steps_of(tmp_path / "out/checkpoints")
    assert steps[:2] == [22, 44] and lines[-1]["checkpoints"] == len(steps)


def test_clipped(gradus, job, with_ps, tmp_path):
    """Workers run the optimizer, on sums that come from the servers: whoever dies, and goes on."""
    def clipped(path):
        path.write_text(path.read_text().replace("optimizer:\n", "optimizer:\n  clip_norm: 0.2\n"))
        return path

    plain = tmp_path / "plain.yaml"
    plain.write_text(job.read_text())
    run(gradus, tmp_path / "plain", clipped(plain), "-np", 2)
    output = tmp_path / "out"
    path = clipped(with_ps(more="checkpoint: {every: 40 steps, keep: 0}\n"))
    run(gradus, output, path, "-np", 3, "--servers", 2, "--restarts", 0,
        "--chaos", "kill:rank=0@step=20")
    assert sha256_of(output) == sha256_of(tmp_path / "plain")
    forget_from(41, output / "checkpoints")
    _, done = run(gradus, output, path, "-np", 3, "--servers", 3, "--resume")
    assert "40 of them done" in done.stdout and sha256_of(output) == sha256_of(tmp_path / "plain")


def test_topk(gradus, job, with_ps, tmp_path, in_memory):
    """What shards have left out is in checkpoints, from which the job goes on when a worker dies,
    and with any strategy; asynchronous workers keep it to themselves."""
    ways = ["compression: topk", "compression_ratio: 0.05"]
    plain = tmp_path / "plain.yaml"
    plain.write_text(job.read_text().replace(
        "distribution:\n", "distribution:\n" + "".join(f"  {way}\n" for way in ways)))
    run(gradus, tmp_path / "plain", plain, "-np", 2)
    wanted = sha256_of(tmp_path / "plain")
    output, more = in_memory / "out", "checkpoint: {every: 40 steps, keep: 0}\n"
    _, done = run(gradus, output, with_ps(*ways, more=more), "-np", 3, "--servers", 2,
                  "--chaos", "kill:rank=1@step=60")
    assert "the job goes on from" in done.stderr and sha256_of(output) == wanted, done.stderr
    forget_from(41, output / "checkpoints")
    plain.write_text(plain.read_text() + more)
    _, done = run(gradus, output, plain, "-np", 2, "--resume")
    assert "40 of them done" in done.stdout and sha256_of(output) == wanted
    shutil.rmtree(output)
    own_way = with_ps("consistency: async", *ways, more=more)
    _, done = run(gradus, output, own_way, "-np", 3, "--servers", 2, "--restarts", 0,
                  "--chaos", "kill:rank=1@step=60")
    assert "the job goes on with 2 workers" in done.stderr, done.stderr
    forget_from(120, output / "checkpoints")
    _, done = run(gradus, output, plain, "-np", 2, "--resume")
    assert "of them done" in done.stdout


def test_another_one_comes(gradus, with_ps, undisturbed, tmp_path):
    run(gradus, tmp_path / "out", with_ps(), "-np", 3, "--servers", 2, "--spare", 1,
        "--chaos", "kill:rank=1@step=20")
    assert sha256_of(tmp_path / "out") == undisturbed


def steps_of(folder):
    return sorted(int(path.name.split("-")[1]) for path in folder.glob("step-*"))


def forget_from(step, folder):
    for path in folder.glob("step-*"):
        if int(path.name.split("-")[1]) >= step:
            shutil.rmtree(path)


def test_checkpoints_fit_any_strategy(gradus, job, with_ps, undisturbed, tmp_path):
    more = "checkpoint: {every: 50 steps, keep: 0}\n"
    output = tmp_path / "out"
    whole = output / "checkpoints"
    plain = tmp_path / "plain.yaml"
    plain.write_text(job.read_text() + more)

    run(gradus, output, with_ps(more=more), "-np", 2, "--servers", 2)
    assert sha256_of(output) == undisturbed
    forget_from(100, whole)
    _, done = run(gradus, output, plain, "-np", 3, "--resume")
    assert sha256_of(output) == undisturbed and "50 of them done" in done.stdout, done.stdout
    forget_from(101, whole)
    _, done = run(gradus, output, with_ps(more=more), "-np", 1, "--servers", 3, "--resume")
    assert sha256_of(output) == undisturbed and "100 of them done" in done.stdout, done.stdout


def test_who_is_late_is_named(gradus, with_ps, tmp_path):
    lines, done = run(gradus, tmp_path / "out", with_ps(), "-np", 3, "--servers", 1,
                      "--chaos", "stop:rank=2@step=30,for=1s")
    assert [line["late_rank"] for line in lines if line["event"] == "epoch"][1] == 2
    assert "rank 2 late by" in done.stdout


@pytest.mark.parametrize("lines", [["consistency: async"], ["consistency: ssp", "staleness: 2"],
                                   ["replicas_to_aggregate: 2"],
                                   ["consistency: async", "adapt_rate: true"]])
def test_each_its_own_way(gradus, with_ps, tmp_path, lines):
    """One worker is slow, another one dies; the job ends as well as it would have."""
    path = with_ps(*lines)
    if "replicas_to_aggregate: 2" in lines:
        path.write_text(path.read_text().replace("  shards: 8\n", ""))
    told, _ = run(gradus, tmp_path / "out", path, "-np", 4, "--servers", 2, "--restarts", 0,
                  "--chaos", "kill:rank=1@step=5; slow:rank=2,x4")
    end = told[-1]
    assert end["workers"] == 3 and end["test_accuracy"] > (0.8 if len(lines) > 1 else 0.9), end
    backup = "replicas_to_aggregate: 2" in lines
    assert (end["staleness"] is None) == backup and (end["dropped_share"] is None) != backup
    epochs = [line for line in told if line["event"] == "epoch"]
    assert epochs[-1]["epoch"] == EPOCHS
    again = gradus("eval", "--json", path, tmp_path / "out/model.safetensors")
    assert json.loads(again.stdout)["test_accuracy"] == end["test_accuracy"], again


@pytest.mark.parametrize("lines", [["consistency: bsp"], ["consistency: async"],
                                   ["consistency: ssp", "staleness: 2"]])
def test_a_server_dies(gradus, with_ps, undisturbed, tmp_path, lines):
    """While a worker stands still, without which the job does not end; another one dies."""
    metrics = tmp_path / "out/metrics.jsonl"
    running = gradus.start("run", "--output", tmp_path / "out", "-np", 3, "--servers", 3,
                           "--chaos", "stop:rank=1@step=30,for=5s; kill:rank=2@step=25",
                           with_ps(*lines))
    wait_until(lambda: metrics.exists() and '"epoch":1' in metrics.read_text(), "the first epoch")
    os.kill(servers_of(gradus)[1], signal.SIGKILL)
    _, err = finish(running)
    assert "parameter server 1" in err, err
    assert lines_of(tmp_path / "out")[-1]["test_accuracy"] > 0.8
    assert lines != ["consistency: bsp"] or sha256_of(tmp_path / "out") == undisturbed


def is_rank(pid, rank):
    try:
        return f"GRADUS_RANK={rank}\0".encode() in pathlib.Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


@pytest.mark.parametrize("servers", [2, 3])
def test_servers_die_in_turn(gradus, with_ps, undisturbed, tmp_path, servers):
    """More often than there are replicas; in the meantime one worker is stopped, so that the job
    does not end."""
    metrics, path = tmp_path / "out/metrics.jsonl", tmp_path / "job.servers"
    with unhurried(tmp_path, step=4 * 22 + 1) as slow:
        running = gradus.start("run", "--output", tmp_path / "out", "-np", 2, "--servers", servers,
                               "--servers-file", path, "--chaos", f"slow:rank=1,x10; {slow}",
                               with_ps())
        for epoch in range(1, 5):
            wait_until(lambda: metrics.exists() and f'"epoch":{epoch}' in metrics.read_text(),
                       f"epoch {epoch}")
            worker, = (pid for pid in gradus.remains() if is_rank(pid, 1))
            os.kill(worker, signal.SIGSTOP)
            lost = servers_of(gradus)[epoch % servers]
            os.kill(lost, signal.SIGKILL)
            wait_until(lambda: servers_of(gradus).get(epoch % servers, lost) != lost,
                       "another server")
            wait_for_copies(gradus, path, servers)
            os.kill(worker, signal.SIGCONT)
    _, err = finish(running)
    assert err.count("and another one is started") == 4 and "restarted" not in err, err
    assert sha256_of(tmp_path / "out") == undisturbed


@pytest.mark.parametrize("lines", [["consistency: async"], ["consistency: ssp", "staleness: 2"],
                                   ["replicas_to_aggregate: 2", "shards: 2"]])
def test_free_workers_write_checkpoints(gradus, job, with_ps, in_memory, lines):
    """The last one is the end; from any other the job goes on, by itself or step by step."""
    tmp_path = in_memory
    def write(*lines):
        path = with_ps(*lines, more="checkpoint: {every: 40 steps, keep: 0}\n")
        if "shards: 2" in lines:
            path.write_text(path.read_text().replace("  shards: 8\n", ""))
        return path

    output = tmp_path / "out"
    # Slow enough for more than one: none is begun while another one is being written.
    slow = ";".join(f"slow:rank={rank},by=20ms,again" for rank in range(3))
    told, _ = run(gradus, output, write(*lines), "-np", 3, "--servers", 2, "--chaos", slow)
    steps = steps_of(output / "checkpoints")
    assert steps[-1] == told[-1]["steps"] and len(steps) == told[-1]["checkpoints"] > 1, steps
    last = output / f"checkpoints/step-{steps[-1]:09}/model.safetensors"
    same = gradus("checkpoint", "diff", last, output / "model.safetensors")
    assert same.returncode == 0, same
    forget_from(steps[-1], output / "checkpoints")
    assert gradus("checkpoint", "verify", output / "checkpoints").returncode == 0
    others = [tmp_path / "async", tmp_path / "ps", tmp_path / "allreduce"]
    for other in others:
        shutil.copytree(output, other)
    going = f"{steps[-2]} of them done"
    told, done = run(gradus, others[0], write(*lines), "-np", 2, "--servers", 3, "--resume")
    assert going in done.stdout and told[-1]["test_accuracy"] > 0.8, done.stdout
    own = ["shards: 2"] if "shards: 2" in lines else []
    _, done = run(gradus, others[1], write(*own), "-np", 2, "--servers", 1, "--resume")
    assert going in done.stdout, done.stdout
    plain = write(*own)
    plain.write_text(plain.read_text().replace("  strategy: ps\n", ""))
    run(gradus, others[2], plain, "-np", 1, "--resume")
    assert sha256_of(others[1]) == sha256_of(others[2])


def test_free_workers_go_on_from_a_checkpoint(gradus, with_ps, in_memory):
    """First in a job that is restarted, since a server is lost; then when SIGTERM has ended it."""
    output = in_memory / "out"
    path = with_ps("consistency: async", more="checkpoint: {every: 20 steps, keep: 0}\n")
    path.write_text(path.read_text().replace(f"epochs: {EPOCHS}", "epochs: 10000"))
    running = gradus.start("run", "--output", output, "-np", 3, "--servers", 2,
                           "--server-replicas", 0, "--restarts", 1, "--grace", "60s", "--chaos",
                           ";".join(f"slow:rank={rank},by=10ms,again" for rank in range(3)), path)
    wait_until(lambda: steps_of(output / "checkpoints"), "a checkpoint")
    os.kill(servers_of(gradus)[1], signal.SIGKILL)
    starts = '"event":"start"'
    wait_until(lambda: (output / "metrics.jsonl").read_text().count(starts) == 2, "the restart")
    before = len(steps_of(output / "checkpoints"))
    wait_until(lambda: len(steps_of(output / "checkpoints")) > before, "one more checkpoint")
    running.terminate()
    _, err = finish(running, 75)
    assert "the job goes on from" in err, err
    stopped = lines_of(output)[-1]
    assert stopped["event"] == "stopped" and stopped["step"] == steps_of(output / "checkpoints")[-1]
    assert stopped["checkpoint"].endswith(f"step-{stopped['step']:09}")
    epochs = stopped["step"] // 22 + 2
    path.write_text(path.read_text().replace("epochs: 10000", f"epochs: {epochs}"))
    told, done = run(gradus, output, path, "-np", 2, "--servers", 2, "--resume")
    assert f"{stopped['step']} of them done" in done.stdout, done.stdout
    assert told[-1]["test_accuracy"] > 0.8, told[-1]


def test_servers_of_another_run_refuse_a_job(gradus, with_ps, tmp_path):
    """Workers and servers that were started by hand: the servers outlive the first run."""
    secret = tmp_path / "secret"
    server, (_, at) = start_server(gradus, secret)
    env = {"GRADUS_SECRET_FILE": str(secret), "GRADUS_SERVERS": at}
    job = with_ps()

    def work(output):
        with open(gradus.document("-np", 1, "--output", tmp_path / output, job)) as document:
            return gradus("worker", stdin=document, env=env)
    done = work("first")
    assert done.returncode == 0, done
    done = work("second")
    said = " ".join(done.stderr.split())
    assert done.returncode != 0 and re.search(
        r"keep tensors of run (\w+), and this worker is of run (?!\1)\w+: start servers anew for "
        r"each run, or set GRADUS_RUN=\1", said), done
    done = gradus("ps", "ls", env=env)
    assert done.returncode == 0 and done.stdout, done
    end(server)


def test_what_cannot_be(gradus, with_ps, job, tmp_path):
    for lines, more, says in (
            (["staleness: 3"], "", "staleness belongs to strategy: ps with consistency: ssp"),
            (["consistency: ssp"], "", "add staleness: 3"),
            (["consistency: async", "replicas_to_aggregate: 2"], "", "consistency: bsp"),
            (["adapt_rate: true"], "", "ssp or async"),
            (["replicas_to_aggregate: 3"], "", "as many shards")):
        done = gradus("run", "-np", 2, "--servers", 2, with_ps(*lines, more=more))
        assert done.returncode == 2 and says in " ".join(done.stderr.split()), (lines, done)
    done = gradus("run", "-np", 2, with_ps())
    assert done.returncode == 2 and "gradus run --servers N" in done.stderr, done
    for flags in (["-np", 2], ["-np", 1, "--max-workers", 2], ["-np", 2, "--dry-run"]):
        done = gradus("run", *flags, "--servers", 1, "--set", "global_batch=1400",
                      "--set", "distribution.shards=1", with_ps("consistency: async"))
        assert done.returncode == 2 and "start at most 1, or" in done.stderr, done
    text = job.read_text().replace("distribution:\n", "distribution:\n  consistency: async\n")
    (tmp_path / "plain.yaml").write_text(text)
    done = gradus("run", "-np", 2, tmp_path / "plain.yaml")
    assert done.returncode == 2 and "belongs to strategy: ps" in done.stderr, done

# SPDX-License-Identifier: Apache-2.0
"""`gradus simulate`: what it prints, and what it says of wrong input."""
import json

import pytest

CLUSTER = """\
hosts: 8
ranks_per_host: 2
latency_us: 50
bandwidth_gbit: 1
overhead_us: 4
gradient_bytes: 40m
bucket_bytes: 10m
forward: 100ms
backward: 200ms
update: 5ms
"""


def objects(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_an_operation_as_json(gradus):
    rows = objects(gradus("simulate", "allreduce", "--hosts", 4, "--bandwidth-gbit", 1,
                          "--latency-us", 100, "--from", "1k", "--to", "16m", "--json"))
    assert [row["size_bytes"] for row in rows] == [1024 * 4**i for i in range(8)]
    for row in rows:
        assert row["op"] == "allreduce" and row["ranks"] == 4 and row["best"]
        assert row["method"] == "simulated" and row["error"] == 0
        parts = [row[f"{part}_us"] for part in ("latency", "bandwidth", "reduction", "overhead")]
        assert sum(parts) == pytest.approx(row["time_us"], rel=1e-3)
        bound_us = 2 * 3 / 4 * row["size_bytes"] * 8e-3
        assert row["time_us"] >= bound_us
        assert row["busbw_gbps"] == pytest.approx(row["algbw_gbps"] * 1.5)
    assert rows[-1]["time_us"] < 1.02 * 2 * 3 / 4 * rows[-1]["size_bytes"] * 8e-3


def test_compare_finds_the_best(gradus):
    rows = objects(gradus("simulate", "allreduce", "--hosts", 8, "--size", "1m", "--compare",
                          "--json"))
    names = {row["algorithm"] for row in rows}
    assert {"direct", "ring", "tree"} <= names
    best = [row for row in rows if row["best"]]
    assert len(best) == 1 and best[0]["time_us"] == min(row["time_us"] for row in rows)
    table = gradus("simulate", "allreduce", "--hosts", 8, "--size", "1m", "--compare")
    assert table.returncode == 0 and "*" in table.stdout and "ring" in table.stdout
    exact = objects(gradus("simulate", "allreduce", "--hosts", 8, "--size", "64m", "--json"))
    assert exact[0]["canonical"]


def test_simulate_too_many_hosts_are_refused(gradus):
    table = gradus("simulate", "broadcast", "--hosts", 131072, "--size", "1k")
    assert table.returncode == 0 and "extrapolated from worlds of up to" in table.stdout
    table = gradus("simulate", "broadcast", "--hosts", 131073, "--size", "1k")
    assert table.returncode == 2 and "131072" in table.stderr


@pytest.mark.long
def test_simulate_hundred_thousand_ranks_few_are_simulated(gradus):
    """A bound of work, not of time."""
    cluster = ["--hosts", 12500, "--ranks-per-host", 8, "--json"]
    rows = objects(gradus("simulate", "allreduce", *cluster, "--size", "100m"))
    rows += objects(gradus("simulate", "allreduce", *cluster, "--size", "100m", "--algorithm",
                           "ring"))
    for row in rows:
        assert row["ranks"] == 100000 and row["method"] == "extrapolated"
        assert row["error"] < 0.1 and row["ranks_simulated"] < 5000
    step, = objects(gradus("simulate", "step", *cluster))
    assert step["ranks"] == 100000 and step["error"] < 0.1 and step["exposed_us"] > 0


def test_every_collective(gradus):
    for operation in ("allreduce", "reduce-scatter", "allgather", "broadcast", "barrier"):
        rows = objects(gradus("simulate", operation, "--hosts", 3, "--ranks-per-host", 2,
                              "--size", "1m", "--json"))
        assert len(rows) == 1 and rows[0]["time_us"] > 0


def test_a_training_step(gradus, tmp_path):
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    rows = objects(gradus("simulate", "step", tmp_path / "cluster.yaml", "--scaling", "--json"))
    assert [row["hosts"] for row in rows] == [1, 2, 4, 8]
    for row in rows:
        assert row["step_us"] == pytest.approx(row["compute_us"] + row["exposed_us"])
        assert row["efficiency"] == pytest.approx(row["compute_us"] / row["step_us"])
        assert row["speedup"] == pytest.approx(row["ranks"] * row["efficiency"])
    assert rows[0]["efficiency"] > rows[-1]["efficiency"]
    faster = objects(gradus("simulate", "step", tmp_path / "cluster.yaml", "--bandwidth-gbit", 100,
                            "--json"))
    assert faster[0]["step_us"] < rows[-1]["step_us"], "a flag stands over the file"
    later = objects(gradus("simulate", "step", tmp_path / "cluster.yaml", "--no-overlap", "--json"))
    assert later[0]["step_us"] > rows[-1]["step_us"]


@pytest.mark.parametrize("text, sentence", [
    ("hosts: 4\nbandwith_gbit: 10\n",
     "cluster.yaml:2: unknown key \"bandwith_gbit\"; did you mean"),
    ("hosts: -4\n", "cluster.yaml:1: hosts"),
    ("hosts: 4\nlatency_us: soon\n", "cluster.yaml:2: latency_us"),
    ("hosts: [\n", "cluster.yaml:"),
])
def test_wrong_cluster_files(gradus, tmp_path, text, sentence):
    (tmp_path / "cluster.yaml").write_text(text)
    done = gradus("simulate", "allreduce", "cluster.yaml", cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_wrong_flags(gradus):
    for arguments, sentence in (
            ((), "needs an operation"),
            (("alreduce",), 'did you mean "allreduce"?'),
            (("allreduce", "--algorithm", "magic"), 'no allreduce algorithm "magic"; there are'),
            (("allreduce", "nowhere.yaml"), "nowhere.yaml"),
            (("allreduce", "--hosts", "3000000"), "--hosts"),
            (("allreduce", "--hosts", 100000, "--ranks-per-host", 1000), "a cluster has 1 to"),
            (("allreduce", "--size", 0), "--size: must be a size"),
            (("allreduce", "--segment", 63), "segments have at least 64 bytes"),
            (("allreduce", "--from", "1m", "--to", "1k"), "--to must be at least --from"),
            (("step", "--gradients", "1g", "--bucket", 1), "--bucket: 1073741824 bytes in"),
            (("allreduce", "--host", 3), "--hosts")):
        done = gradus("simulate", *arguments)
        assert done.returncode == 2 and sentence in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1


def test_help(gradus):
    done = gradus("help", "simulate")
    assert done.returncode == 0 and "--ranks-per-host" in done.stdout
    assert "simulate" in gradus("help").stdout


def test_parameter_servers(gradus):
    rows = objects(gradus("simulate", "ps", "--hosts", 8, "--servers", 2, "--json"))
    assert [row.get("strategy") for row in rows] == ["allreduce", "bsp", "backup", "ssp", "async",
                                                     "local", None]
    for row in rows[:-1]:
        assert row["op"] == "ps" and row["workers"] == 8
        used = 7 if row["strategy"] == "backup" else 8
        assert row["samples_per_s"] == pytest.approx(used * 32 / row["step_us"] * 1e6)
        assert row["efficiency"] == pytest.approx(row["samples_per_s"] / (8 * 32 / 0.31))
        assert 0 < row["busiest_wire_share"] <= 1
    assert rows[2]["dropped"] == pytest.approx(1 / 8, abs=0.01)
    assert rows[4]["staleness_mean"] == pytest.approx(7, abs=0.5)
    advice = rows[-1]
    assert advice["op"] == "ps-advice" and advice["servers"] == 4
    assert advice["allreduce_us"] == rows[0]["step_us"]
    assert advice["sentence"].startswith("4 parameter servers balance 8 workers")
    advised = objects(gradus("simulate", "ps", "--hosts", 8, "--strategy", "bsp", "--json"))
    assert advised[0]["servers"] == 4 and advised[0]["step_us"] == advice["step_us"]
    table = gradus("simulate", "ps", "--hosts", 8)
    assert table.returncode == 0 and table.stdout.endswith("would take 347.1 ms.\n")


def test_a_slow_worker(gradus):
    """Who waits for all takes as long as the slowest, whatever the seed; the others do not."""
    flags = ["--hosts", 5, "--servers", 5, "--servers-on", "workers", "--spread", 10, "--json"]
    rows = objects(gradus("simulate", "ps", *flags))
    slowed = objects(gradus("simulate", "ps", *flags, "--slow", "3:4"))
    one = ["simulate", "ps", *flags, "--slow", "3:4", "--strategy", "async"]
    assert [slowed[4]] == objects(gradus(*one)) != objects(gradus(*one, "--seed", 2))
    speed = {row.get("strategy"): row["samples_per_s"] / before["samples_per_s"]
             for row, before in zip(slowed[:-1], rows[:-1])}
    assert max(speed["allreduce"], speed["bsp"], speed["ssp"], speed["local"]) < 0.4
    assert speed["backup"] > 0.9 and speed["async"] > 0.8


@pytest.mark.parametrize("workers, above",
                         [(128, 1.25), pytest.param(512, 1.15, marks=pytest.mark.long)])
def test_simulate_many_workers_few_steps(gradus, workers, above):
    """Few steps of large pieces: a bound of work, not of time."""
    rows = objects(gradus("simulate", "ps", "--hosts", workers, "--no-replicas", "--json"))
    by_servers = [row for row in rows if row.get("servers") and "strategy" in row]
    assert len(by_servers) == 4 and all(row["servers"] == 16 for row in by_servers)
    bound_us = workers / 16 * (100 << 20) * 8e-4
    for row in by_servers:
        assert 1 <= row["steps_simulated"] < 5120 / workers
        assert 0.99 * bound_us < row["step_us"] < above * bound_us
    curve = objects(gradus("simulate", "ps", "--hosts", 16, "--scaling", "--strategy", "async",
                           "--servers", 1, "--json"))
    assert [row["workers"] for row in curve] == [1, 2, 4, 8, 16]
    wire_is_full = 32e6 / ((100 << 20) * 8e-4)
    for row in curve:
        bound = min(row["workers"] * curve[0]["samples_per_s"], wire_is_full)
        assert row["samples_per_s"] == pytest.approx(bound, rel=0.02)


@pytest.mark.parametrize("arguments, sentence", [
    (("--slow", "2:3"), "there is no rank 2 among 2 workers"),
    (("--slow", "fast"), '"fast" is not RANK:FACTOR'),
    (("--slow", "0:0"), "is not RANK:FACTOR"),
    (("--slow", "0:2,"), "is not RANK:FACTOR"),
    (("--aggregate", 3), "cannot wait for 3 gradients of 2 workers"),
    (("--servers", 65), "--servers: must be a whole number from 0 to 64"),
    (("--ranks-per-host", 513), "for 1 to 1024 workers"),
    (("--strategy", "asynch"), 'did you mean "async"?'),
    (("--algorithm", "magic"), 'no allreduce algorithm "magic"'),
    (("--gradients", 1), "--gradients: parameter servers have 4 bytes to 512 GiB"),
    (("--gradients", "513g"), "--gradients: parameter servers have 4 bytes to 512 GiB"),
])
def test_wrong_parameter_servers(gradus, arguments, sentence):
    done = gradus("simulate", "ps", "--hosts", 2, *arguments)
    assert done.returncode == 2 and sentence in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


def test_simulate_says_what_a_job_chooses_there(gradus):
    """Two models, one choice: the one of info --plan is named, with the network of each."""
    plan = gradus("info", "--plan", "allreduce", "64m", "-np", 32, "--hosts", 8)
    assert "assumed: 9.41 Gbit/s and 50 us between hosts" in plan.stdout
    cluster = ["simulate", "allreduce", "--hosts", 8, "--ranks-per-host", 4, "--size", "64m",
               "--bandwidth-gbit", 9.41, "--latency-us", 50, "--cores", 2]
    rows = objects(gradus(*cluster, "--json", "--compare"))
    chosen = [row["algorithm"] for row in rows if row["chosen"]]
    assert chosen == ["halving-doubling"] and f"choice      {chosen[0]}:" in plan.stdout
    text = gradus(*cluster).stdout
    assert "9.41 Gbit/s and 50 us between hosts" in text
    assert "a job chooses halving-doubling here" in text
    assert "GRADUS_ALGORITHM=allreduce=hierarchical makes it the fastest" in text

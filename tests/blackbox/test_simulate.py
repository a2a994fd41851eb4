# SPDX-License-Identifier: Apache-2.0
"""`gradus simulate`: what it prints, in which time, and what it says of wrong input."""
import json
import time

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


def test_a_hundred_thousand_ranks(gradus):
    begin = time.monotonic()
    cluster = ["--hosts", 12500, "--ranks-per-host", 8, "--json"]
    rows = objects(gradus("simulate", "allreduce", *cluster, "--size", "100m", timeout=120))
    rows += objects(gradus("simulate", "allreduce", *cluster, "--size", "100m", "--algorithm",
                           "ring",
                           timeout=120))
    for row in rows:
        assert row["ranks"] == 100000 and row["method"] == "extrapolated"
        assert row["error"] < 0.1 and row["ranks_simulated"] < 5000
    step, = objects(gradus("simulate", "step", *cluster, timeout=120))
    assert step["ranks"] == 100000 and step["error"] < 0.1 and step["exposed_us"] > 0
    assert time.monotonic() - begin < 60
    table = gradus("simulate", "broadcast", "--hosts", 131072, "--size", "1k", timeout=120)
    assert table.returncode == 0 and "extrapolated from worlds of up to" in table.stdout
    table = gradus("simulate", "broadcast", "--hosts", 131073, "--size", "1k")
    assert table.returncode == 2 and "131072" in table.stderr


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
            (("allreduce", "--host", 3), "--hosts")):
        done = gradus("simulate", *arguments)
        assert done.returncode == 2 and sentence in done.stderr, (arguments, done.stderr)
        assert len(done.stderr.splitlines()) == 1


def test_help(gradus):
    done = gradus("help", "simulate")
    assert done.returncode == 0 and "--ranks-per-host" in done.stdout
    assert "simulate" in gradus("help").stdout

# SPDX-License-Identifier: Apache-2.0
"""The choice of algorithms, seen from outside: gradus info --plan, gradus tune,
GRADUS_ALGORITHM."""
import json
import os

import pytest


def plan(gradus, *arguments, env=None):
    result = gradus("info", "--plan", *arguments, "--json", env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_plan_explains(gradus):
    found = plan(gradus, "allreduce", "25M", "-np", 8, "--link", "tcp")
    assert found["size_bytes"] == 25 << 20 and found["ranks"] == 8 and found["source"] == "model"
    eligible = [c for c in found["candidates"] if c["eligible"]]
    assert eligible[0]["algorithm"] == found["algorithm"]
    assert eligible[0]["time_us"] == min(c["time_us"] for c in eligible)
    for c in eligible:
        parts = c["latency_us"] + c["bandwidth_us"] + c["reduction_us"]
        assert parts == pytest.approx(c["time_us"], rel=0.01, abs=0.01)
    assert found["bytes_sent"] >= 2 * 7 / 8 * (25 << 20) * 0.99
    text = gradus("info", "--plan", "allreduce", "25M", "-np", 8, "--link", "tcp").stdout
    assert "25 MiB" in text and found["algorithm"] in text and "latency" in text


def test_plan_knows_shared_memory(gradus, comm_script):
    few = min(2, os.cpu_count())
    many = os.cpu_count() + 1
    for size, ranks, gr_alloc, malloc in [
            ("64", few, "posted", "posted"), ("2k", few, "own shares", "posted"),
            ("1m", few, "own shares", "kernel"), ("1k", many, "posted", "posted"),
            ("2k", many, "free shares", "posted"),
            ("1m", many, "free shares", "kernel" if many <= 8 else "windows")]:
        found = plan(gradus, "allreduce", size, "-np", ranks, "--cma", "on")
        assert (found["algorithm"], found["source"], found["messages"]) == ("shm", "shared", 0)
        assert (found["gr_alloc"], found["malloc"]) == (gr_alloc, malloc), (size, ranks)
    assert plan(gradus, "barrier", "-np", 2)["algorithm"] == "shm"
    arguments = ("allreduce", "1m", "-np", 2)
    assert plan(gradus, *arguments)["malloc"] in ("kernel", "windows")  # what it costs is measured
    assert plan(gradus, *arguments, env={"GRADUS_CMA": "off"})["malloc"] == "windows"
    text = gradus("info", "--plan", *arguments, env={"GRADUS_CMA": "on"}).stdout
    assert "shm" in text and "no messages" in text and "kernel: " in text
    for what, ranks, flags in [("allreduce", 2, ["--hosts", 2]),
                               ("allreduce", 2, ["--link", "tcp"]),
                               ("allreduce", 2, ["--algorithm", "allreduce=tree"]),
                               ("broadcast", 65, []), ("allreduce", 65, [])]:
        assert plan(gradus, what, "1m", "-np", ranks, *flags)["algorithm"] != "shm", (what, flags)
    forced = plan(gradus, "allreduce", "1m", "-np", 2, "--algorithm", "allreduce=shm")
    assert (forced["algorithm"], forced["source"]) == ("shm", "rule")
    # What it says is what happens.
    for rule, name in [("", "shm"), ("allreduce=shm", "shm"),
                       ("allreduce:0-64k=tree,64k-inf=auto", "tree")]:
        said = plan(gradus, "allreduce", "4k", "-np", 2, env={"GRADUS_ALGORITHM": rule})
        done = gradus("bench", "allreduce", "-np", 2, "--sizes", "4k", "--time", "1ms", "--json",
                      env={"GRADUS_ALGORITHM": rule})
        assert json.loads(done.stdout.splitlines()[0])["algorithm"] == said["algorithm"] == name


def test_plan_follows_its_flags(gradus):
    ring = next(c for c in plan(gradus, "allreduce", "1m")["candidates"]
                if c["algorithm"] == "ring")
    assert not ring["eligible"] and "GRADUS_EXACT=0" in ring["why_not"]
    ring = next(c for c in plan(gradus, "allreduce", "1m", "--no-exact")["candidates"]
                if c["algorithm"] == "ring")
    assert ring["eligible"]
    forced = plan(gradus, "allreduce", "1m",
                  env={"GRADUS_ALGORITHM": "allreduce:0-1m=gather,1m-inf=tree"})
    assert forced["algorithm"] == "tree" and forced["source"] == "rule"
    small = plan(gradus, "allreduce", "4", "--link", "tcp", "-np", 2)["candidates"][0]
    far = plan(gradus, "allreduce", "4", "--link", "tcp", "-np", 2, "--hosts", 2)["candidates"][0]
    assert far["time_us"] > small["time_us"]


@pytest.mark.parametrize("arguments,words", [
    (["--plan", "allsum", "1m"], "there is no collective"),
    (["--plan", "allreduce", "much"], "size"),
    (["--plan", "allreduce", "1m", "-np", 2, "--hosts", 3], "--hosts"),
    (["--plan", "allreduce", "1m", "--algorithm", "allreduce:0-64k=tree"], "64k-inf=auto"),
    (["--plan", "allreduce", "1m", "--tune", "missing.json"], "missing.json"),
    (["1m"], "without --plan"),
])
def test_plan_refuses(gradus, arguments, words):
    result = gradus("info", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("gradus: ") and words in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_bad_rules_end_a_job_at_once(gradus, comm_script):
    words = comm_script("create()\n")
    for rules, place, code in [("allreduce:0-64k=tree,64k-inf=magic", "character 22", 2),
                               ("allreduce=ring", "GRADUS_EXACT=0", 1)]:
        result = gradus("run", "-np", 2, "--", *words, env={"GRADUS_ALGORITHM": rules})
        assert result.returncode == code and place in result.stderr


QUICK = ["--time", "300us", "--rounds", 1, "-b", 64, "-e", "64k"]


def read_tuning(path):
    """The keys of a tune file, with lists of its rules and of what was measured."""
    content = {"rules": [], "measured": []}
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == "rule":
            content["rules"].append(dict(zip(
                ["collective", "order", "from_bytes", "to_bytes", "algorithm", "segment_bytes"],
                value.split())))
        elif key == "measured":
            content["measured"].append(dict(zip(
                ["collective", "algorithm", "size_bytes", "segment_bytes", "time_us"],
                value.split())))
        elif key != "#":
            content[key] = value
    return content


@pytest.fixture
def tuned(gradus, tmp_path):
    path = tmp_path / "tune.txt"
    result = gradus("tune", "-np", 2, "-o", path, *QUICK)
    assert result.returncode == 0, result.stderr
    assert f"GRADUS_TUNE={path}" in result.stdout
    return path


def test_tune_writes_what_jobs_use(gradus, tuned, tmp_path, comm_script):
    content = read_tuning(tuned)
    assert content["ranks"] == "2" and content["link"] == "shm"
    for exact in (True, False):
        rules = [r for r in content["rules"] if r["order"] == ("exact" if exact else "any")
                 and r["collective"] == "allreduce"]
        assert rules[0]["from_bytes"] == "0" and rules[-1]["to_bytes"] == "inf"
        for before, after in zip(rules, rules[1:]):
            assert before["to_bytes"] == after["from_bytes"]
    # Each rule is the fastest that was measured at some size.
    for rule in rules:
        sizes = {p["size_bytes"] for p in content["measured"] if p["collective"] == "allreduce"}
        assert any(rule["algorithm"] == min((p for p in content["measured"]
                                             if p["collective"] == "allreduce"
                                             and p["size_bytes"] == size),
                                            key=lambda p: float(p["time_us"]))["algorithm"]
                   for size in sizes)
    words = comm_script("create()\nassert barrier() == 0\n")
    result = gradus("run", "-np", 2, "--", *words, env={"GRADUS_TUNE": str(tuned)})
    assert result.returncode == 0, result.stderr
    # What is measured counts where messages are sent.
    other = tmp_path / "tcp.txt"
    assert gradus("tune", "-np", 2, "--link", "tcp", "-o", other, *QUICK).returncode == 0
    found = plan(gradus, "broadcast", "4k", "-np", 2, "--link", "tcp", "--tune", other)
    assert found["source"] == "measured"
    # But not what is between hosts, of which there was one.
    told = gradus("info", "--plan", "allreduce", "1m", "-np", 2, "--hosts", 2, "--link", "tcp",
                  "--tune", other)
    assert "assumed: 9.41 Gbit/s" in told.stdout and "made on one host\n" in told.stdout, told


def test_tune_file_is_refused_where_it_does_not_fit(gradus, tuned, comm_script):
    words = comm_script("create()\n")

    def refused(in_sentence, ranks=2, link="shm", code=1):
        result = gradus("run", "-np", ranks, "--link", link, "--", *words,
                        env={"GRADUS_TUNE": str(tuned)})
        assert result.returncode == code and in_sentence in result.stderr, result.stderr

    refused("these are 3 over shm", ranks=3)
    refused("these are 2 over tcp", link="tcp")
    text = tuned.read_text()
    tuned.write_text(text.replace("\ncores ", "\ncores 1"))
    refused("checksum", code=2)
    tuned.write_text(text[:len(text) // 2])
    refused("checksum", code=2)
    tuned.unlink()
    refused("tune.txt", code=2)


def test_tune_inside_a_job(gradus, tmp_path):
    result = gradus("run", "-np", 3, "--no-prefix", "-q", "--", gradus.program, "tune", "-o",
                    "t.txt", *QUICK,
                    "--link", "tcp")
    assert result.returncode == 0, result.stderr
    assert read_tuning(tmp_path / "t.txt")["ranks"] == "3"


@pytest.mark.parametrize("arguments,words", [
    (["-np", 1], "-np"),
    (["-b", "1m", "-e", "1k"], "--end"),
    (["allreduce"], "does not expect"),
    (["--rounds", 99], "--rounds"),
])
def test_tune_refuses(gradus, arguments, words):
    result = gradus("tune", *arguments)
    assert result.returncode == 2 and words in result.stderr


def test_tune_that_cannot_write_measures_nothing(gradus, tmp_path):
    result = gradus("tune", "-np", 2, "-o", tmp_path / "missing" / "t.txt", *QUICK)
    assert result.returncode == 2 and "there is no folder" in result.stderr
    assert "missing" in result.stderr and result.stdout == "", result

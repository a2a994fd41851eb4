# SPDX-License-Identifier: Apache-2.0
"""The choice of algorithms, seen from outside: gradus info --plan, gradus tune, GRADUS_ALGORITHM."""
import json

import pytest


def plan(gradus, *arguments, env=None):
    result = gradus("info", "--plan", *arguments, "--json", env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_plan_explains(gradus):
    found = plan(gradus, "allreduce", "25M", "-np", 8)
    assert found["size_bytes"] == 25 << 20 and found["ranks"] == 8 and found["source"] == "model"
    eligible = [c for c in found["candidates"] if c["eligible"]]
    assert eligible[0]["algorithm"] == found["algorithm"]
    assert eligible[0]["time_us"] == min(c["time_us"] for c in eligible)
    for c in eligible:
        parts = c["latency_us"] + c["bandwidth_us"] + c["reduction_us"]
        assert parts == pytest.approx(c["time_us"], rel=0.01, abs=0.01)
    assert found["bytes_sent"] >= 2 * 7 / 8 * (25 << 20) * 0.99
    text = gradus("info", "--plan", "allreduce", "25M", "-np", 8).stdout
    assert "25 MiB" in text and found["algorithm"] in text and "latency" in text


def test_plan_follows_its_flags(gradus):
    ring = next(c for c in plan(gradus, "allreduce", "1m")["candidates"]
                if c["algorithm"] == "ring")
    assert not ring["eligible"] and "GRADUS_EXACT=0" in ring["why_not"]
    ring = next(c for c in plan(gradus, "allreduce", "1m", "--no-exact")["candidates"]
                if c["algorithm"] == "ring")
    assert ring["eligible"]
    forced = plan(gradus, "allreduce", "1m", env={"GRADUS_ALGORITHM": "allreduce:0-1m=gather,1m-inf=tree"})
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
    for rules, place in [("allreduce:0-64k=tree,64k-inf=magic", "character 22"),
                         ("allreduce=ring", "GRADUS_EXACT=0")]:
        result = gradus("run", "-np", 2, "--", *words, env={"GRADUS_ALGORITHM": rules})
        assert result.returncode == 1 and place in result.stderr

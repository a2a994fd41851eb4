# SPDX-License-Identifier: Apache-2.0
"""`gradus bench`: both ways to start it, its figures, and what it says of wrong input."""
import json
import xml.etree.ElementTree

import pytest

TWICE = {"allreduce"}
OTHERS = {"reduce-scatter", "allgather", "gather", "scatter", "alltoall"}
ONE = {"reduce", "broadcast", "sendrecv"}


def factor(operation, ranks):
    others = (ranks - 1) / ranks
    return 2 * others if operation in TWICE else others if operation in OTHERS else 1


QUICK = ["--time", "1ms", "--warmup", "1"]


def objects(done):
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("operation", sorted(TWICE | OTHERS | ONE))
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_json_holds_what_it_promises(gradus, operation, ranks):
    if operation == "sendrecv" and ranks == 1:
        pytest.skip("a message needs two ranks")
    root = ["--root", ranks - 1]  # of those that have one
    rows = objects(gradus("bench", operation, "-np", ranks, "--sizes", "4,1k,256k", "--json", *root,
                          *QUICK))
    assert len(rows) == 3
    for row in rows:
        assert row["op"] == operation and row["ranks"] == ranks and row["wrong"] == 0
        assert row["in_place"] is False and ("times_in_place" in row) == (operation != "sendrecv")
        assert row["algorithm"] not in ("", "auto")
        assert 0 < row["time_us_min"] <= row["time_us_median"] <= row["time_us_p99"]
        algbw = row["size_bytes"] / row["time_us_median"] / 1e3
        assert row["algbw_gbps"] == pytest.approx(algbw, rel=0.02, abs=1e-5)
        assert row["busbw_gbps"] == pytest.approx(algbw * factor(operation, ranks), rel=0.02,
                                                  abs=1e-5)


def test_inside_a_job_only_rank_0_speaks(gradus):
    done = gradus("run", "-np", 3, "--no-prefix", "--", gradus.program, "bench", "allreduce",
                  "--sizes", "4,64k", "--json", *QUICK)
    assert [row["ranks"] for row in objects(done)] == [3, 3]


def test_the_table_has_the_usual_columns(gradus):
    done = gradus("bench", "allreduce", "-np", 2, "-b", "4", "-e", "64", "-f", "2", *QUICK)
    lines = done.stdout.splitlines()
    heads = [line for line in lines if "algbw" in line]
    assert len(heads) == 1 and heads[0].count("#wrong") == 2  # out of place, in place
    for name in ("size", "count", "type", "op", "root", "algorithm", "time", "min", "p99", "busbw",
                 "#wrong"):
        assert name in heads[0]
    sizes = [int(line.split()[0]) for line in lines if not line.startswith("#")]
    assert sizes == [4, 8, 16, 32, 64]


ARITHMETIC = ["sum", "average", "min", "max", "product"]
BITWISE = ["band", "bor", "bxor"]
REDUCTIONS = {**dict.fromkeys(["f32", "f64", "f16", "bf16"], ARITHMETIC),
              **dict.fromkeys(["i32", "i64", "i8", "u8", "i16", "u16", "u32", "u64"],
                              ARITHMETIC + BITWISE),
              "bool": ["sum", "min", "max", "product", *BITWISE],
              "complex64": ["sum", "average", "product"],
              "complex128": ["sum", "average", "product"]}


@pytest.mark.parametrize("dtype", REDUCTIONS)
def test_results_are_right_for_every_type(gradus, dtype):
    for op in REDUCTIONS[dtype]:
        rows = objects(gradus("bench", "allreduce", "-np", 2, "--dtype", dtype, "--op", op,
                              "--sizes", "16,20k", "--json", *QUICK))
        assert [(row["dtype"], row["redop"], row["wrong"]) for row in rows] == [(dtype, op, 0)] * 2


@pytest.mark.parametrize("more", [["--link", "tcp"], ["--buffers", "malloc"], ["--buffers", "own"],
                                  ["--mode", "async"], ["--rounds", "3"], ["--iters", "5"],
                                  ["--compute", "1ms"], ["--algorithm", "direct"],
                                  ["--no-exact", "-a", "ring"],
                                  ["--placement", "in"], ["--placement", "out"]])
def test_the_ways_to_measure(gradus, more):
    rows = objects(gradus("bench", "allreduce", "-np", 2, "--sizes", "4,256k", "--json", *QUICK,
                          *more))
    assert [row["wrong"] for row in rows] == [0, 0]
    if more[0] == "--link":
        assert rows[0]["link"] == "tcp"
    if more[0] == "--buffers":
        assert rows[0]["buffers"] == more[1]
    if more[0] == "--algorithm":
        assert {row["algorithm"] for row in rows} == {"direct"}
    if more[0] == "--placement":
        assert rows[0]["in_place"] == (more[1] == "in") and "times_in_place" not in rows[0]
    if more[0] == "--iters":
        assert rows[0]["operations"] == 5
    if more[0] == "--compute":
        assert rows[0]["compute_speed"] > 0


def test_the_plot_is_a_drawing(gradus):
    done = gradus("bench", "allgather", "-np", 2, "-e", "64k", "--plot", "times.svg", *QUICK)
    assert done.returncode == 0, done.stderr
    root = xml.etree.ElementTree.parse(gradus.folder / "times.svg").getroot()
    assert root.tag.endswith("svg")
    assert len(root.findall("{http://www.w3.org/2000/svg}polyline")) >= 2


@pytest.mark.parametrize("words, sentence", [
    ([], "say which operation"),
    (["allreduse"], 'no operation "allreduse"'),
    (["allreduce", "--sizes", "1q"], "--sizes"),
    (["allreduce", "-b", "8", "-e", "4"], "no size to measure"),
    (["sendrecv", "-np", "1"], "needs two ranks"),
    (["allreduce", "-np", "2", "--root", "2"], "--root 2 is no rank"),
    (["allreduce", "--algorithm", "magic"], 'no allreduce algorithm "magic"'),
    (["allreduce", "--plot", "times.gif"], "must end in .svg"),
    (["allreduce", "--iters", "60000", "--rounds", "2"], "--iters times --rounds"),
    (["allreduce", "--dtype", "f31"], "f31"),
    (["allreduce", "--dtype", "complex64", "--op", "max"],
     "complex64 cannot be reduced by max, only by sum, average or product"),
    (["reduce", "--dtype", "f32", "--op", "bxor"], "f32 cannot be reduced by bxor"),
    (["reduce-scatter", "--dtype", "bool", "--op", "average"],
     "bool cannot be reduced by average"),
])
def test_wrong_input_is_said_before_anything_starts(gradus, words, sentence):
    done = gradus("bench", *words)
    assert done.returncode == 2 and sentence in done.stderr and done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_plot_that_cannot_be_written_is_refused_before_the_measurement(gradus):
    (gradus.folder / "folder.svg").mkdir()
    for path, why in (("/nowhere/at/all.svg", "no folder /nowhere/at"),
                      ("folder.svg", "a folder of this name")):
        done = gradus("bench", "barrier", "-np", 2, "--plot", path, *QUICK)
        assert done.returncode == 2 and path in done.stderr and why in done.stderr, done
        assert done.stdout == "" and done.stderr.count("\n") == 1, done


def test_np_inside_a_job_must_agree(gradus):
    done = gradus("run", "-np", 2, "--", gradus.program, "bench", "allreduce", "-np", 3)
    assert done.returncode != 0 and "inside a job of 2 ranks" in done.stderr

# SPDX-License-Identifier: Apache-2.0
"""What training and `gradus eval` say of weights, against what Python makes of the predictions."""
import csv
import gzip
import io
import json
import random

import pytest

CLASSES = """
model: [{linear: 16}, relu, {linear: 10}]
data: {file: %s, classes: 10, scale: 0.0625, test_count: 333}
optimizer: {kind: adam, learning_rate: 0.003}
epochs: 2
distribution: {shards: 4}
checkpoint: {every: 1 epoch}
output: out
"""

NUMBERS = """
model: [{linear: 16}, relu, {linear: 1}]
data: {file: train.csv, regression: true, normalize: standard, test_count: 150}
loss: mse
optimizer: {kind: adam, learning_rate: 0.003}
epochs: 3
global_batch: 32
distribution: {shards: 4}
checkpoint: {every: 1 epoch}
output: out
"""
MEASURED = ("test_accuracy", "test_loss", "test_samples", "test_rmse", "test_mae", "test_r2",
            "classes", "confusion")


@pytest.fixture
def classes(gradus, tmp_path):
    data = gradus.source / "examples" / "digits" / "digits.csv.gz"
    (tmp_path / "job.yaml").write_text(CLASSES % data)
    return gzip.open(data, "rt").read().splitlines()[-333:]


@pytest.fixture
def numbers(tmp_path):
    dice = random.Random(3)
    lines = []
    for _ in range(550):
        x = [dice.gauss(0, 1) for _ in range(3)]
        lines.append(",".join(map(str, [*x, 1e6 + 2 * x[0] - x[1] + dice.gauss(0, 0.1)])))
    # Far from 0: their variance would be lost in a sum of squares.
    (tmp_path / "train.csv").write_text("\n".join(lines))
    (tmp_path / "job.yaml").write_text(NUMBERS)
    return lines[-150:]


def train(gradus, workers, *more):
    done = gradus("run", "-np", workers, "--json", "job.yaml", "--output", f"out{workers}", *more)
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    return {key: end[key] for key in MEASURED}


def evaluate(gradus, folder):
    done = gradus("eval", "--json", "job.yaml", f"{folder}/model.safetensors")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    return {key: found["samples" if key == "test_samples" else key] for key in MEASURED}


def predictions(gradus, tmp_path, lines, folder):
    (tmp_path / "new.csv").write_text("\n".join(lines))
    done = gradus("predict", f"{folder}/checkpoints", "--data", "new.csv")
    assert done.returncode == 0, done.stderr
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_metrics_classes_any_number_of_workers_and_eval_agree(gradus, classes, tmp_path):
    ends = [train(gradus, workers) for workers in (1, 3)]
    assert ends[0] == ends[1] == evaluate(gradus, "out1")
    actual = [int(line.rsplit(",", 1)[1]) for line in classes]
    predicted = [int(row["class"]) for row in predictions(gradus, tmp_path, classes, "out1")]
    matrix = [[0] * 10 for _ in range(10)]
    for row, column in zip(actual, predicted, strict=True):
        matrix[row][column] += 1
    assert ends[0]["confusion"] == matrix
    assert ends[0]["test_accuracy"] == sum(matrix[i][i] for i in range(10)) / 333
    assert ends[0]["test_rmse"] is ends[0]["test_r2"] is None
    for digit, found in enumerate(ends[0]["classes"]):
        named = sum(row[digit] for row in matrix)
        right = matrix[digit][digit]
        assert found == {"class": str(digit), "samples": sum(matrix[digit]),
                         "precision": right / named if named else None,
                         "recall": right / sum(matrix[digit])}


def test_metrics_regression_any_number_of_workers_and_eval_agree(gradus, numbers, tmp_path):
    ends = [train(gradus, workers) for workers in (1, 3)]
    assert ends[0] == ends[1] == evaluate(gradus, "out1")
    end = ends[0]
    assert end["test_accuracy"] is end["classes"] is end["confusion"] is None
    wanted = [float(line.rsplit(",", 1)[1]) for line in numbers]
    made = [float(row["value"]) for row in predictions(gradus, tmp_path, numbers, "out1")]
    errors = [a - b for a, b in zip(made, wanted, strict=True)]
    squares, mean = sum(error * error for error in errors), sum(wanted) / len(wanted)
    around = sum((value - mean) ** 2 for value in wanted)
    assert end["test_rmse"] == pytest.approx((squares / len(errors)) ** 0.5, rel=1e-6)
    assert end["test_mae"] == pytest.approx(sum(map(abs, errors)) / len(errors), rel=1e-6)
    # Targets are kept as 32-bit numbers, and around 1e6 these are 1/16 apart.
    assert end["test_r2"] == pytest.approx(1 - squares / around, rel=1e-2)
    assert end["test_loss"] == pytest.approx(end["test_rmse"] ** 2)


def test_metrics_after_a_death_in_the_last_step_the_same(gradus, classes):
    steps = 2 * (1464 // 64)
    calm = train(gradus, 2)
    assert train(gradus, 3, "--chaos", f"kill:rank=0@step={steps}") == calm


def test_metrics_are_printed_for_people(gradus, classes):
    done = gradus("run", "-np", 2, "job.yaml")
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("class  "):done.stdout.index("weights ")]
    evaluated = gradus("eval", "job.yaml", "out/model.safetensors")
    assert evaluated.returncode == 0, evaluated.stderr
    assert evaluated.stdout.startswith(table)
    assert table.split("\n")[0].split() == ["class", "precision", "recall", "samples"]
    rows = [line.split() for line in table.split("\n")]
    assert [row[0] for row in rows[1:11]] == [str(digit) for digit in range(10)]
    assert sum(int(row[-1]) for row in rows[1:11]) == 333
    assert sum(int(count) for row in rows[12:22] for count in row[1:]) == 333
    assert table.split("\n")[22].startswith("test accuracy ")


def test_metrics_regression_printed_without_accuracy(gradus, numbers):
    assert train(gradus, 1)["test_mae"] > 0
    done = gradus("eval", "job.yaml", "out1/model.safetensors")
    assert done.returncode == 0, done.stderr
    assert "accuracy" not in done.stdout
    assert "(150 samples), RMSE " in done.stdout

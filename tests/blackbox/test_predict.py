# SPDX-License-Identifier: Apache-2.0
"""gradus predict: new samples, with what the checkpoint says of the data."""
import csv
import gzip
import io
import json
import os
import random
import struct

import pytest

DIGITS = """
model: [{linear: 32}, relu, {linear: 10}]
data: {file: %s, classes: 10, normalize: standard, test_count: 360}
optimizer: {kind: adam, learning_rate: 0.003}
epochs: 3
checkpoint: {every: 66 steps}
output: out
"""


@pytest.fixture
def digits(gradus, tmp_path):
    """A trained job; the lines of its test part."""
    data = gradus.source / "examples" / "digits" / "digits.csv.gz"
    (tmp_path / "job.yaml").write_text(DIGITS % data)
    done = gradus("run", "-np", 2, "--json", "job.yaml")
    assert done.returncode == 0, done.stderr
    lines = gzip.open(data, "rt").read().splitlines()[-360:]
    return lines, json.loads(done.stdout.splitlines()[-1])


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def predict(gradus, *more):
    done = gradus("predict", "out/checkpoints", "--data", "new.csv", *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_predict_test_samples_agrees_with_evaluation(gradus, digits, tmp_path):
    lines, end = digits
    (tmp_path / "new.csv").write_text("\n".join(lines))
    found = rows(predict(gradus))
    right = sum(row["class"] == line.split(",")[-1] for row, line in zip(found, lines))
    assert len(found) == 360
    assert right == round(end["test_accuracy"] * 360)
    for row in found:
        shares = {name: float(share) for name, share in row.items() if name != "class"}
        assert list(shares) == [f"probability_{digit}" for digit in range(10)]
        assert abs(sum(shares.values()) - 1) < 1e-4
        assert max(shares, key=shares.get) == "probability_" + row["class"]


def test_predict_without_label_or_packed_same_predictions(gradus, digits, tmp_path):
    lines, _ = digits
    (tmp_path / "new.csv").write_text("\n".join(lines))
    labelled = predict(gradus)
    bare = "\n".join(line.rsplit(",", 1)[0] for line in lines).encode()
    (tmp_path / "new.csv").write_bytes(bare)
    assert predict(gradus) == labelled
    (tmp_path / "new.csv").write_bytes(gzip.compress(bare))
    assert predict(gradus) == labelled
    newest = sorted(os.listdir(tmp_path / "out" / "checkpoints"))[-1]
    done = gradus("predict", f"out/checkpoints/{newest}", "--data", "new.csv", "--output", "p.csv")
    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "p.csv").read_text() == labelled
    objects = [json.loads(line) for line in predict(gradus, "--format", "jsonl").splitlines()]
    for row, made in zip(rows(labelled), objects, strict=True):
        assert made["class"] == row["class"]
        assert made["probability"] == made["probabilities"][row["class"]]
        assert made["probabilities"]["3"] == float(row["probability_3"])


def table(tmp_path, name, header, made):
    text = "\n".join([header, *(";".join(map(str, row)) for row in made)])
    (tmp_path / name).write_text(text + "\n")


@pytest.fixture
def prices(gradus, tmp_path):
    """A regression over a table with names, texts and a column that is left out."""
    dice = random.Random(1)
    made = []
    for number in range(120):
        colour = dice.choice(["red", "green"])
        size = dice.gauss(5, 2)
        made.append((f"note {number}", size, colour, size * (3 if colour == "red" else -2)))
    table(tmp_path, "train.csv", "note;size;colour;price", made)
    (tmp_path / "job.yaml").write_text("""
model: [{linear: 16}, relu, {linear: 1}]
data: {file: train.csv, header: true, delimiter: ";", label_column: price, skip: [note],
       categories: {colour: [red, green]}, regression: true, normalize: standard, test_count: 20}
loss: mse
optimizer: {kind: adam, learning_rate: 0.01}
epochs: 30
global_batch: 20
checkpoint: {every: 150 steps}
output: out
""")
    done = gradus("run", "-np", 1, "job.yaml")
    assert done.returncode == 0, done.stderr
    return made


def test_predict_regression_columns_found_by_name(gradus, prices, tmp_path):
    table(tmp_path, "new.csv", "note;size;colour;price", prices)
    found = [float(row["value"]) for row in rows(predict(gradus))]
    mean = sum(row[3] for row in prices) / len(prices)
    left = sum((value - row[3]) ** 2 for value, row in zip(found, prices, strict=True))
    assert left < 0.2 * sum((row[3] - mean) ** 2 for row in prices)
    table(tmp_path, "new.csv", "colour;size", [(row[2], row[1]) for row in prices])
    assert [float(row["value"]) for row in rows(predict(gradus))] == found
    objects = predict(gradus, "--format", "jsonl").splitlines()
    assert [json.loads(line)["value"] for line in objects] == found


def test_predict_class_names_in_output(gradus, tmp_path):
    made = [(number % 7, "large, really" if number % 7 > 3 else "small") for number in range(80)]
    table(tmp_path, "train.csv", "size;kind", made)
    (tmp_path / "job.yaml").write_text("""
model: [{linear: 8}, relu, {linear: 2}]
data: {file: train.csv, header: true, delimiter: ";", label_column: kind,
       class_names: [small, "large, really"], normalize: standard}
optimizer: {kind: adam, learning_rate: 0.02}
epochs: 40
global_batch: 40
checkpoint: {every: 80 steps}
output: out
""")
    done = gradus("run", "-np", 1, "job.yaml")
    assert done.returncode == 0, done.stderr
    table(tmp_path, "new.csv", "size", [(1,), (6,)])
    found = rows(predict(gradus))
    assert [row["class"] for row in found] == ["small", "large, really"]
    assert list(found[0]) == ["class", "probability_small", "probability_large, really"]


def test_predict_names_with_quotes(gradus, tmp_path):
    """They are doubled in the file that is read, and in the one that is written."""
    made = [(number % 7, '"5"" pipe"' if number % 7 > 3 else "rod") for number in range(80)]
    table(tmp_path, "train.csv", '"the ""size""";kind', made)
    (tmp_path / "job.yaml").write_text("""
model: [{linear: 2}]
data: {file: train.csv, header: true, delimiter: ";", label_column: kind,
       class_names: [rod, '5" pipe'], normalize: standard}
epochs: 1
global_batch: 40
checkpoint: {every: 1 epoch}
output: out
""")
    done = gradus("run", "-np", 1, "job.yaml")
    assert done.returncode == 0, done.stderr
    table(tmp_path, "new.csv", '"the ""size"""', [(1,), (6,)])
    found = predict(gradus)
    assert found.splitlines()[0] == 'class,probability_rod,"probability_5"" pipe"'
    assert {row["class"] for row in rows(found)} <= {"rod", '5" pipe'}


@pytest.mark.parametrize("header, row, sentence", [
    ("size", "1", 'new.csv:1: there is no column "colour", which the model needs'),
    ("size;colour;weight", "1;red;2", "new.csv:1: the data that the model was trained with has no "
                                      'column "weight"'),
    ("size;colour;size", "1;red;2", 'new.csv:1: column "size" stands there twice'),
    ("size;colour", "1;red\n2", "new.csv:3: the line has fewer columns"),
    ("size;colour", "1;red\n2;red;3", "new.csv:3: the line has more columns"),
    ("size;colour", "1;red\n2;blue", 'new.csv:3: column 2 ("colour"): "blue" is none of its '
                                     "categories (red, green)"),
    ("size;colour", "nan;red", 'new.csv:2: column 1 ("size"): "nan" is not a number'),
    ("", "", "new.csv: the file is empty"),
])
def test_predict_bad_table_one_sentence(gradus, prices, tmp_path, header, row, sentence):
    (tmp_path / "new.csv").write_text(header + "\n" + row + "\n")
    done = gradus("predict", "out/checkpoints", "--data", "new.csv", "--output", "p.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("gradus: " + sentence)
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "p.csv").exists()


def test_predict_other_width_refused(gradus, digits, tmp_path):
    lines, _ = digits
    (tmp_path / "new.csv").write_text("\n".join(line.split(",", 2)[2] for line in lines))
    done = gradus("predict", "out/checkpoints", "--data", "new.csv")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradus: new.csv:1: the line has 63 columns; the model was "
                                  "trained with 64 and the label")


def test_predict_wrong_command_lines_refused(gradus, digits, tmp_path):
    for words, sentence in [
            (["out/checkpoints"], "predict needs samples"),
            (["nowhere", "--data", "new.csv"], "there is no checkpoint in nowhere"),
            (["out/checkpoints", "--data", "none.csv"], "none.csv: there is no such file"),
            ([], "predict needs a checkpoint")]:
        done = gradus("predict", *words)
        assert done.returncode == 2
        assert sentence in done.stderr
    manifest = next((tmp_path / "out" / "checkpoints").glob("step-*/manifest.json"))
    manifest.write_text(manifest.read_text().replace("inference", "Inference"))
    done = gradus("predict", manifest.parent, "--data", "none.csv")
    assert done.returncode == 2
    assert "is damaged" in done.stderr


def test_predict_images_of_idx(gradus, tmp_path):
    """The images alone; bytes are scaled as in training."""
    dice = random.Random(2)
    images, labels = bytearray(), bytearray()
    for number in range(100):
        label = number % 2
        images += bytes(dice.randrange(120 * label, 100 + 120 * label) for _ in range(16))
        labels.append(label)
    (tmp_path / "x").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 100, 4, 4) + images)
    (tmp_path / "y").write_bytes(struct.pack(">HBBI", 0, 8, 1, 100) + labels)
    (tmp_path / "job.yaml").write_text("""
model: [{conv2d: {channels: 4, kernel: 3, padding: 1}}, relu, flatten, {linear: 2}]
data: {format: idx, images: x, labels: y, normalize: standard}
optimizer: {kind: adam, learning_rate: 0.01}
epochs: 20
global_batch: 20
checkpoint: {every: 100 steps}
output: out
""")
    done = gradus("run", "-np", 1, "job.yaml")
    assert done.returncode == 0, done.stderr
    done = gradus("predict", "out/checkpoints", "--data", "x")
    assert [int(row["class"]) for row in rows(done.stdout)] == list(labels)
    (tmp_path / "short").write_bytes((tmp_path / "x").read_bytes()[:-3])
    done = gradus("predict", "out/checkpoints", "--data", "short")
    assert done.returncode == 2
    assert "short: the file ends within sample 99" in done.stderr
    (tmp_path / "other").write_bytes(struct.pack(">HBBIII", 0, 8, 3, 1, 4, 3) + bytes(12))
    done = gradus("predict", "out/checkpoints", "--data", "other")
    assert (done.returncode, done.stdout) == (2, "")
    assert "other: a sample has 12 values; the model was trained with 16" in done.stderr

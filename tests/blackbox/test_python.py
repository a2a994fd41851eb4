# SPDX-License-Identifier: Apache-2.0
"""Weights and exit code 75 in Python, as the documentation says."""
import csv
import gzip
import io
import json
import re
import signal
import sys

import pytest

from conftest import SOURCE, TIMEOUT_S, is_sanitized

np = pytest.importorskip("numpy")

JOB = """
model: [{linear: 24}, relu, {linear: 10}]
data: {file: %s, classes: 10, normalize: standard, test_count: 100}
optimizer: {kind: adam, learning_rate: 0.003}
epochs: 2
checkpoint: {every: 1 epoch}
output: out
"""
SCRIPT = SOURCE / "examples" / "resume" / "train.py"


def test_python_weights_by_numpy_predict_as_gradus(gradus, tmp_path):
    block = re.search(r"```python\n(.*?)```", (SOURCE / "docs/training.md").read_text(), re.S)[1]
    page = {}
    exec(block, page)
    data = SOURCE / "examples" / "digits" / "digits.csv.gz"
    (tmp_path / "job.yaml").write_text(JOB % data)
    done = gradus("run", "-np", 2, "job.yaml")
    assert done.returncode == 0, done.stderr
    lines = gzip.open(data, "rt").read().splitlines()[-100:]
    (tmp_path / "new.csv").write_text("\n".join(lines))
    done = gradus("predict", "out/checkpoints", "--data", "new.csv")
    rows = list(csv.DictReader(io.StringIO(done.stdout)))

    newest = sorted((tmp_path / "out" / "checkpoints").glob("step-*"))[-1]
    told = json.loads((newest / "manifest.json").read_text())["inference"]
    w = page["load"](tmp_path / "out" / "model.safetensors")
    assert {name: tensor.shape for name, tensor in w.items()} == {
        "linear1.weight": (24, 64), "linear1.bias": (24,),
        "linear2.weight": (10, 24), "linear2.bias": (10,)}
    x = np.array([line.split(",")[:64] for line in lines], dtype=float) * told["scale"]
    x = (x - told["column_mean"]) * told["column_factor"]
    hidden = np.maximum(x @ w["linear1.weight"].T + w["linear1.bias"], 0)
    outputs = np.exp(hidden @ w["linear2.weight"].T + w["linear2.bias"])
    shares = outputs / outputs.sum(axis=1, keepdims=True)
    assert [row["class"] for row in rows] == [str(digit) for digit in shares.argmax(axis=1)]
    for digit in range(10):
        printed = [float(row[f"probability_{digit}"]) for row in rows]
        np.testing.assert_allclose(printed, shares[:, digit], rtol=1e-3, atol=1e-5)


@pytest.mark.skipif(is_sanitized(), reason="an interpreter cannot load a sanitized library")
def test_python_script_stopped_and_continued_same_weights(gradus, tmp_path):
    def command(steps):
        return ["run", "-np", 2, "--grace", "60s", "--", sys.executable, SCRIPT, steps]

    env = {"LIBGRADUS": gradus.library, "OPENBLAS_NUM_THREADS": "1"}
    run = gradus.start(*command(10**9), env=env)
    assert run.stdout.readline() == "[0] step 1\n"
    run.send_signal(signal.SIGTERM)
    _, message = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 75, message
    with np.load(tmp_path / "state.npz") as state:
        reached = int(state["step"])
    assert reached > 0
    again = gradus(*command(reached + 20), env=env)
    assert again.returncode == 0, again.stderr
    assert f"after step {reached + 20}" in again.stdout
    (tmp_path / "state.npz").unlink()
    calm = gradus(*command(reached + 20), env=env)
    assert calm.stdout.splitlines()[-1] == again.stdout.splitlines()[-1]

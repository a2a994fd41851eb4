#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What checkpoints cost the training: how long one holds up a step, and what all of them cost
together.

    bench/checkpoint.py [--turns 3] [--workers 2] [--every "10 steps"] [--to DIR]

The same job with and without checkpoints, in turns. "held up" is the time that the training stood
still for one checkpoint (telling the thread, copying what it had not copied yet), as a share of a
step; "throughput" is with checkpoints by without, the work of the writing thread included.
"""
import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
WIDE = "[{linear: 1024}, relu, {linear: 1024}, relu, {linear: 10}]"
JOBS = {"mlp, adam": (WIDE, "adam", 256), "mlp, sgd": (WIDE, "sgd", 256),
        "cnn, adam": ("[{conv2d: {channels: 16, kernel: 3, padding: 1}}, batch_norm, relu, "
                      "{conv2d: {channels: 32, kernel: 3, padding: 1}}, relu, flatten, {linear: "
                      "10}]", "adam", 256)}


def write_job(folder, model, optimizer, batch, steps):
    path = folder / "job.yaml"
    path.write_text(f"""
model: {model}
data: {{file: {ROOT}/examples/digits/digits.csv.gz, classes: 10, shape: [1, 8, 8], scale: 0.0625,
       test_count: 360}}
optimizer: {{kind: {optimizer}, learning_rate: 0.001}}
steps: {steps}
global_batch: {batch}
eval_every: 0
distribution: {{shards: 4}}
""".replace("model: [{linear", "model: [flatten, {linear"))
    return path


def train(options, job, folder, *more):
    done = subprocess.run([options.gradus, "run", "-np", str(options.workers), "--json", "--output",
                           folder / "out",
                           job, *more], capture_output=True, text=True, check=True, timeout=100)
    shutil.rmtree(folder / "out")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gradus", default=ROOT / "build" / "gradus")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", default="10 steps")
    parser.add_argument("--to", help="folder for the checkpoints; default: a temporary one")
    options = parser.parse_args()
    print(f"{'job':<12}{'step':>10}{'held up':>10}{'of a step':>11}{'throughput':>12}"
          f"{'written':>9}")
    for name, (model, optimizer, batch) in JOBS.items():
        steps, held, ratios, written = [], [], [], []
        with tempfile.TemporaryDirectory() as base:
            folder = pathlib.Path(base)
            job = write_job(folder, model, optimizer, batch, options.steps)
            for _ in range(options.turns):
                plain = train(options, job, folder)
                to = pathlib.Path(options.to or folder) / "checkpoints"
                saving = train(options, job, folder, "--checkpoint-every", options.every,
                               "--checkpoint-to", to)
                shutil.rmtree(to)
                steps.append(batch / plain["samples_per_s"])
                held.append(saving["checkpoint_wait_s"] / max(1, saving["checkpoints"]))
                ratios.append(saving["samples_per_s"] / plain["samples_per_s"])
                written.append(saving["checkpoints"])
        step, wait = statistics.median(steps), statistics.median(held)
        print(f"{name:<12}{step * 1e3:>7.2f} ms{wait * 1e3:>7.3f} ms{wait / step:>10.1%}"
              f"{statistics.median(ratios):>12.3f}{statistics.median(written):>9.0f}", flush=True)


if __name__ == "__main__":
    main()

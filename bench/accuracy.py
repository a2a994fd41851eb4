#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gradient compression, or averaging weights from time to time, does to accuracy: each kind,
several seeds, on the digits and on an MNIST folder (IDX files, gzip or not). Prints a table in
Markdown.

  bench/accuracy.py compression --mnist FOLDER [--gradus build/gradus] [--seeds 3] [--workers 2]
  bench/accuracy.py local --mnist FOLDER"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

# Lines of the distribution part, by name.
KINDS = {
    "compression": {
        "none": [],
        "bf16": ["compression: bf16"],
        "f16": ["compression: f16"],
        "topk 0.1": ["compression: topk", "compression_ratio: 0.1"],
        "topk 0.01": ["compression: topk", "compression_ratio: 0.01"],
        "sparse": ["compression: sparse"],
    },
    "local": {
        "allreduce": [],
        "1 step": ["strategy: local", "sync_every: 1 step"],
        "8 steps": ["strategy: local", "sync_every: 8 steps"],
        "epoch": ["strategy: local", "sync_every: epoch"],
        "8 steps, keep": ["strategy: local", "sync_every: 8 steps", "local_state: keep"],
        "8 steps, outer 0.5": ["strategy: local", "sync_every: 8 steps", "outer: {momentum: 0.5}"],
        "epoch, outer 0.5": ["strategy: local", "sync_every: epoch", "outer: {momentum: 0.5}"],
    },
}
ROOT = pathlib.Path(__file__).resolve().parents[1]
MNIST_CNN = """model:
  - conv2d: {{channels: 16, kernel: 5, padding: 2}}
  - relu
  - max_pool: {{kernel: 2}}
  - conv2d: {{channels: 32, kernel: 5, padding: 2}}
  - relu
  - max_pool: {{kernel: 2}}
  - flatten
  - linear: {{units: 128}}
  - relu
  - linear: {{units: 10}}
data:
  format: idx
  images: {folder}/t10k-images-idx3-ubyte.gz
  labels: {folder}/t10k-labels-idx1-ubyte.gz
  scale: 0.00392156862745098
  test_count: 2000
  split: random
optimizer:
  kind: sgd
  learning_rate: 0.05
  momentum: 0.9
distribution:
  shards: 4
global_batch: 128
epochs: 4
eval_every: 0
"""


def digits(name):
    text = (ROOT / "examples/digits" / f"{name}.yaml").read_text()
    folder = ROOT / "examples/digits"
    return re.sub(r"(?m)^(\s+file:\s*)\S+", lambda m: f"{m[1]}{folder / 'digits.csv.gz'}", text)


def with_settings(text, distribution, seed, output):
    lines = "".join(f"  {line}\n" for line in ["distribution:", *distribution]).lstrip()
    text = re.sub(r"(?m)^(seed|output|eval_every|  strategy):.*\n", "", text)
    text = text.replace("distribution:\n", lines, 1)
    return text + f"\nseed: {seed}\noutput: {output}\neval_every: 0\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--mnist", help="folder with t10k-*-ubyte.gz")
    parser.add_argument("--gradus", default=str(ROOT / "build/gradus"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    jobs = {"digits, MLP": digits("mlp"), "digits, CNN": digits("cnn")}
    if args.mnist:
        jobs["MNIST 10k, CNN"] = MNIST_CNN.format(folder=pathlib.Path(args.mnist).resolve())
    print(f"| {args.what} | " + " | ".join(jobs) + " |")
    print("| --- |" + " --- |" * len(jobs))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.yaml"
        for kind, lines in KINDS[args.what].items():
            cells = []
            for text in jobs.values():
                found = []
                for seed in range(1, args.seeds + 1):
                    path.write_text(with_settings(text, lines, seed, f"{folder}/out"))
                    done = subprocess.run([args.gradus, "run", "-np", str(args.workers), "--json",
                                           str(path)], capture_output=True, text=True, timeout=600)
                    if done.returncode != 0:
                        raise SystemExit(f"{kind}, seed {seed}:\n{done.stderr}")
                    end = json.loads(done.stdout.splitlines()[-1])
                    found.append(100 * end["test_accuracy"])
                cells.append(f"{statistics.median(found):.2f} % "
                             f"({min(found):.2f}-{max(found):.2f})")
            print(f"| {kind} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What gradient compression does to accuracy: each kind, several seeds, on the digits and on an
MNIST folder (IDX files, gzip or not). Prints a table in Markdown.

  bench/compression.py --mnist FOLDER [--gradus build/gradus] [--seeds 3] [--workers 2]"""
import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

KINDS = ["none", "bf16", "f16", "topk 0.1", "topk 0.01", "sparse"]
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


def with_settings(text, kind, seed, output):
    words = kind.split()
    lines = f"distribution:\n  compression: {words[0]}\n"
    if len(words) > 1:
        lines += f"  compression_ratio: {words[1]}\n"
    text = re.sub(r"(?m)^(seed|output|eval_every):.*\n", "", text)
    text = text.replace("distribution:\n", lines, 1)
    return text + f"\nseed: {seed}\noutput: {output}\neval_every: 0\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", help="folder with t10k-*-ubyte.gz")
    parser.add_argument("--gradus", default=str(ROOT / "build/gradus"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    jobs = {"digits, MLP": digits("mlp"), "digits, CNN": digits("cnn")}
    if args.mnist:
        jobs["MNIST 10k, CNN"] = MNIST_CNN.format(folder=pathlib.Path(args.mnist).resolve())
    print("| compression | " + " | ".join(jobs) + " |")
    print("| --- |" + " --- |" * len(jobs))
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "job.yaml"
        for kind in KINDS:
            cells = []
            for text in jobs.values():
                found = []
                for seed in range(1, args.seeds + 1):
                    path.write_text(with_settings(text, kind, seed, f"{folder}/out"))
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

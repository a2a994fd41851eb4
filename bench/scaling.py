#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How fast is a step, with one worker, with two, and beside PyTorch?

Runs whole `gradus run` jobs, one thread a worker, on the MLP 784-512-512-10 and on a CNN over 28x28
images: 1 worker, 2 workers, PyTorch in one process, PyTorch in two processes (DDP, gloo). The
candidates take turns, round after round, so that a machine that changes its mind in between treats
all alike; the table shows medians over the rounds, of the rates and of the ratios.

    bench/scaling.py                       synthetic images
    bench/scaling.py --data FOLDER         MNIST's IDX files (t10k or train; .gz or not)
"""

import argparse
import glob
import gzip
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))

MODELS = {
    "mlp": """
  - flatten
  - linear: {units: 512}
  - relu
  - linear: {units: 512}
  - relu
  - linear: {units: 10}
""",
    "cnn": """
  - conv2d: {channels: 16, kernel: 5, padding: 2}
  - relu
  - max_pool: {kernel: 2}
  - conv2d: {channels: 32, kernel: 5, padding: 2}
  - relu
  - max_pool: {kernel: 2}
  - flatten
  - linear: {units: 128}
  - relu
  - linear: {units: 10}
""",
}

JOB = """# Written by bench/scaling.py
name: {model}
model:{layers}
data:
  format: idx
  images: {images}
  labels: {labels}
  scale: 0.00392156862745098
  test_count: {test}
optimizer:
  kind: sgd
  learning_rate: 0.01
  momentum: 0.9
loss: cross_entropy
seed: 1
steps: {steps}
global_batch: {batch}
output: {output}
distribution:
  strategy: allreduce
  shards: {shards}
"""

TARGETS = {  # ratio: (model -> wanted)
    "2 workers / 1 worker": {"mlp": 1.9, "cnn": 1.9},
    "1 worker / PyTorch": {"mlp": 1.15, "cnn": 2.0},
    "2 workers / PyTorch DDP": {"mlp": 2.0, "cnn": 2.0},
}


def make_images(folder, count):
    """IDX files of random pixels: the kernels do not care what the pixels show."""
    rng = random.Random(1)
    images = os.path.join(folder, "images-idx3-ubyte")
    labels = os.path.join(folder, "labels-idx1-ubyte")
    with open(images, "wb") as file:
        file.write(struct.pack(">IIII", 0x803, count, 28, 28))
        file.write(rng.randbytes(count * 28 * 28))
    with open(labels, "wb") as file:
        file.write(struct.pack(">II", 0x801, count))
        file.write(bytes(rng.randrange(10) for _ in range(count)))
    return images, labels, count


def find_images(data, folder):
    """The IDX files of a folder, unpacked: a run is to measure training, not gunzip."""
    found = []
    for pattern in ("*images*idx3*", "*labels*idx1*"):
        paths = sorted(glob.glob(os.path.join(data, pattern)))
        if not paths:
            sys.exit(f"scaling.py: {data} has no file {pattern}: give MNIST's folder")
        path = paths[0]
        if path.endswith(".gz"):
            plain = os.path.join(folder, os.path.basename(path)[:-3])
            with gzip.open(path, "rb") as source, open(plain, "wb") as target:
                shutil.copyfileobj(source, target)
            path = plain
        found.append(os.path.abspath(path))
    with open(found[0], "rb") as file:
        count = struct.unpack(">II", file.read(8))[1]
    return found[0], found[1], count


def run_gradus(args, job, workers):
    """Median samples per second of the epochs but the first, and the share of waiting."""
    env = dict(os.environ, OMP_NUM_THREADS="1")
    # One core for each worker: else a single worker's reading ahead would have the second core.
    cores = sorted(os.sched_getaffinity(0))[:workers]
    command = [args.gradus, "run", "-np", str(workers), "--cores", ",".join(map(str, cores)),
               "--json", job]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"scaling.py: {' '.join(command)} failed:\n{done.stderr}")
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    epochs = [line for line in lines if line.get("event") == "epoch"][1:]
    return (statistics.median(e["samples_per_s"] for e in epochs), lines[-1]["comm_wait_share"])


def run_torch(args, model, batch, processes):
    command = [args.python, os.path.join(HERE, "torch_step.py"), "--model", model, "--batch",
               str(batch), "--seconds", str(args.seconds), "--json"]
    if processes > 1:
        command += ["--ddp", str(processes)]
    env = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"scaling.py: {' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])["samples_per_s"]


def has_torch(python):
    return subprocess.run([python, "-c", "import torch"], capture_output=True).returncode == 0


def measure(args, model, source, folder):
    images, labels, count = source
    test = max(64, count // 10)
    per_epoch = (count - test) // args.batch
    if per_epoch < 1:
        sys.exit(f"scaling.py: {count} images are too few for a batch of {args.batch}")
    job = os.path.join(folder, f"{model}.yaml")

    def write(steps):
        with open(job, "w") as file:
            file.write(JOB.format(model=model, layers=MODELS[model], images=images, labels=labels,
                                  test=test, steps=steps, batch=args.batch, shards=args.shards,
                                  output=os.path.join(folder, "out-" + model)))

    # A short run tells how many epochs fill the wanted time, at least four.
    write(2 * per_epoch)
    rate, _ = run_gradus(args, job, 1)
    epochs = max(4, round(args.seconds * rate / (per_epoch * args.batch)))
    write(epochs * per_epoch)

    candidates = {
        "1 worker": lambda: run_gradus(args, job, 1),
        "2 workers": lambda: run_gradus(args, job, 2),
    }
    if args.torch:
        candidates["PyTorch"] = lambda: (run_torch(args, model, args.batch, 1), None)
        # The batch is the global one: each of the two processes has half of it.
        candidates["PyTorch DDP"] = lambda: (run_torch(args, model, args.batch, 2), None)
    rates, waits = {name: [] for name in candidates}, []
    names = list(candidates)
    for turn in range(args.rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            rate, wait = candidates[name]()
            rates[name].append(rate)
            if name == "2 workers":
                waits.append(wait)
            print(f"  {model} round {turn + 1}: {name:12} {rate:12,.0f} samples/s", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in rates.items()}
    ratios = {}
    for ratio in TARGETS:
        above, below = (part.strip() for part in ratio.split("/"))
        if above in medians and below in medians:
            # Round by round: both were measured within seconds of each other.
            ratios[ratio] = statistics.median(a / b for a, b in zip(rates[above], rates[below]))
    return {"model": model, "samples_per_s": medians, "rounds": rates, "ratios": ratios,
            "comm_wait_share": statistics.median(waits)}


def print_table(results):
    for result in results:
        print(f"\n{result['model']}")
        for name, rate in result["samples_per_s"].items():
            spread = result["rounds"][name]
            print(f"  {name:24} {rate:12,.0f} samples/s   ({min(spread):,.0f} .. "
                  f"{max(spread):,.0f})")
        print(f"  {'waiting (2 workers)':24} {result['comm_wait_share'] * 100:11.1f} %")
        for name, ratio in result["ratios"].items():
            wanted = TARGETS[name][result["model"]]
            print(f"  {name:24} {ratio:12.2f}    wanted {wanted}: "
                  f"{'reached' if ratio >= wanted else 'not reached'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gradus", default=os.path.join(HERE, "..", "build", "gradus"))
    parser.add_argument("--data", help="folder with MNIST's IDX files; default: synthetic images")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--batch", type=int, default=512, help="global batch (default 512)")
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of training in a run, about")
    parser.add_argument("--python", default="/usr/bin/python3", help="the Python that has torch")
    parser.add_argument("--no-torch", dest="torch", action="store_false")
    parser.add_argument("--json", metavar="FILE", help="write all numbers there, too")
    args = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("scaling.py: two workers need two cores, and this process may use one")
    if not os.access(args.gradus, os.X_OK):
        sys.exit(f"scaling.py: {args.gradus} does not exist: build it, or name it with --gradus")
    args.torch = args.torch and has_torch(args.python)
    folder = tempfile.mkdtemp(prefix="gradus-scaling-")
    try:
        source = (find_images(args.data, folder) if args.data
                  else make_images(folder, 16 * args.batch))
        results = [measure(args, model, source, folder) for model in args.models.split(",")]
    finally:
        shutil.rmtree(folder)
    command = " ".join(["bench/scaling.py"] + sys.argv[1:])
    print_table(results)
    print(f"\nglobal batch {args.batch}, {args.shards} shards, one thread a worker, "
          f"{args.rounds} rounds, medians; once more: {command}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"command": command, "batch": args.batch, "shards": args.shards,
                       "cores": len(os.sched_getaffinity(0)), "results": results}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()

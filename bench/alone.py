#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What does a job with one worker pay for being able to have many?

Takes turns between bench_alone (a training loop that knows nothing of workers) and `gradus
run -np 1` on the same job file, one thread each, both free to read ahead on any core, and prints
the medians of the samples per second and of the ratios.

    bench/alone.py [--data FOLDER] [--models mlp,cnn] [--batch N] [--rounds N] [--seconds S]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import scaling


def lines(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [json.loads(line) for line in done.stdout.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=os.path.join(scaling.HERE, "..", "build"))
    parser.add_argument("--data", help="folder with MNIST's IDX files; default: synthetic images")
    parser.add_argument("--models", default="mlp,cnn")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="of training in a run, about")
    args = parser.parse_args()
    rates = {"mlp": 55000, "cnn": 11000}
    with tempfile.TemporaryDirectory() as folder:
        source = scaling.find_images(args.data, folder) if args.data else \
            scaling.make_images(folder, 8192)
        images, labels, count = source
        for model in args.models.split(","):
            steps = max(4, int(args.seconds * rates[model] / args.batch))
            path = os.path.join(folder, model + ".yaml")
            with open(path, "w", encoding="utf-8") as file:
                file.write(scaling.JOB.format(
                    model=model, layers=scaling.MODELS[model], images=images, labels=labels,
                    test=count % args.batch or args.batch, steps=steps, batch=args.batch, shards=1,
                    output=os.path.join(folder, "out")))
            alone, worker = [], []
            for number in range(args.rounds):
                turns = [lambda: alone.append(lines([f"{args.build}/bench/bench_alone", path])[-1]),
                         lambda: worker.append(lines([f"{args.build}/gradus", "run", "-np", "1",
                                                      "--json", path])[-1])]
                for turn in turns if number % 2 == 0 else reversed(turns):
                    turn()
            a = statistics.median(run["samples_per_s"] for run in alone)
            w = statistics.median(run["samples_per_s"] for run in worker)
            ratios = [y["samples_per_s"] / x["samples_per_s"] for x, y in zip(alone, worker)]
            print(f"{model}: alone {a:,.0f} samples/s, gradus run -np 1 {w:,.0f} samples/s, "
                  f"median ratio {statistics.median(ratios):.3f} "
                  f"({min(ratios):.3f} .. {max(ratios):.3f})", flush=True)


main()

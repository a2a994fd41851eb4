#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a slow worker costs: samples per second of jobs with parameter servers, undisturbed and with
a worker that takes 4 times as long for its gradients (--chaos slow).

    bench/straggler.py
    bench/straggler.py --rounds 1 --add rounds.json    again and again, where the machine is quiet
                                                       for short times only

All ways take turns, round after round; figures are medians over the rounds with the least and the
most, and the last column is the median of what was kept in each round. The first third of a job
does not count, in which some workers may begin before others; the worker that is spare with
replicas_to_aggregate is one more."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import scaling
from strategies import BATCH, JOB, MODELS, PATIENCE_S, ROOT, TEST

WAYS = {
    "bsp": "strategy: ps",
    "one spare": "strategy: ps, replicas_to_aggregate: {workers}",
    "ssp: 3": "strategy: ps, consistency: ssp, staleness: 3",
    "async": "strategy: ps, consistency: async",
}


def rate(options, folder, images, way, slow):
    """Samples per second."""
    workers, path, output = options.workers, folder / "job.yaml", folder / "out"
    words = WAYS[way].format(workers=workers)
    if way != "one spare":
        words += f", shards: {workers}"
    path.write_text(JOB.format(model=MODELS["CNN"], images=images[0], labels=images[1], test=TEST,
                               steps=options.steps, batch=BATCH * workers, distribution=words))
    flags = ["--chaos", f"slow:rank={workers - 1},x{options.factor}"] if slow else []
    done = subprocess.run(
        [options.gradus, "run", "-np", str(workers + (way == "one spare")), "--servers", "2",
         "--server-replicas", "0", "--output", output, *flags, path],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        sys.exit(f"{way}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    rates = [line["samples_per_s"] for line in lines if line["event"] == "epoch"]
    return statistics.harmonic_mean([one for one in rates[len(rates) // 3:] if one])


def figures(values, unit=""):
    middle = statistics.median(values)
    return f"{middle:,.0f}{unit} ({min(values):,.0f} to {max(values):,.0f})"


def table(rounds):
    print("| | undisturbed | one is slow | kept |\n| --- | ---: | ---: | ---: |")
    for way in WAYS:
        calm, slow = ([one[way][i] for one in rounds] for i in (0, 1))
        kept = [100 * b / a for a, b in zip(calm, slow)]
        print(f"| {way} | {figures(calm)} | {figures(slow)} | {figures(kept, ' %')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--factor", type=int, default=4, help="how slow the slow one is")
    parser.add_argument("--add", type=pathlib.Path, help="a file of earlier rounds, and these")
    parser.add_argument("--build", default=ROOT / "build")
    options = parser.parse_args()
    options.gradus = str(pathlib.Path(options.build).resolve() / "gradus")
    rounds = json.loads(options.add.read_text()) if options.add and options.add.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        images = scaling.make_images(folder, options.workers * BATCH * 10 + TEST)
        for _ in range(options.rounds):
            rounds.append({way: [rate(options, pathlib.Path(folder), images, way, slow)
                                 for slow in (False, True)] for way in WAYS})
            if options.add:
                options.add.write_text(json.dumps(rounds))
    print(f"{len(rounds)} rounds, {options.workers} workers and 2 servers on {os.cpu_count()} "
          f"cores, {options.steps} steps, one worker {options.factor} times as slow:\n")
    table(rounds)


if __name__ == "__main__":
    main()

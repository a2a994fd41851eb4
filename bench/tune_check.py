#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Is what Gradus chooses also what is fastest? Compares, by size, the algorithm that would be
chosen with the best one that was measured, and the predicted times with the measured ones.

    bench/tune_check.py [-n 2,4,8] [-l shm,tcp] [--time 10ms] [--end 16m]
                        [--collective allreduce] [--json FILE]

Measures with `gradus tune`: all algorithms of a size in turn, round by round, so that other load on
the machine falls on all alike. The choice is that of `gradus info --plan`, once by the usual costs
and once by those that were measured in the same run (what a communicator measures at its start).
The loss is the time of the chosen algorithm over that of the best one, less 1."""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def run(program, *words):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GRADUS_")}
    done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, env=clean,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"gradus {' '.join(map(str, words))}: {done.stderr}")
    return done.stdout


def predictions(program, collective, size, ranks, link, costs):
    words = ["info", "--plan", collective, size, "-np", ranks, "--link", link, "--json"]
    if costs:
        words += ["--tune", costs, "--no-rules"]
    found = json.loads(run(program, *words))
    return found["algorithm"], {c["algorithm"]: c["time_us"] for c in found["candidates"]
                                if c["eligible"]}


def best_segments(points, collective, size):
    """The time of each algorithm with its best segment."""
    times = {}
    for p in points:
        if p["collective"] == collective and p["size_bytes"] == size:
            times[p["algorithm"]] = min(times.get(p["algorithm"], float("inf")), p["time_us"])
    return times


def read_points(path):
    points = []
    for line in path.read_text().splitlines():
        if line.startswith("measured "):
            _, collective, algorithm, size, segment, time_us = line.split()
            points.append({"collective": collective, "algorithm": algorithm,
                           "size_bytes": int(size), "segment_bytes": int(segment),
                           "time_us": float(time_us)})
    return points


def check(program, ranks, link, options, folder):
    path = folder / f"{link}-{ranks}.txt"
    run(program, "tune", "-np", ranks, "--link", link, "-o", path, "--time", options.time, "-e",
        options.end,
        "--rounds", options.rounds)
    measured = read_points(path)
    rows = []
    for collective in options.collective.split(","):
        sizes = sorted({p["size_bytes"] for p in measured
                        if p["collective"] == collective})
        for size in sizes:
            times = best_segments(measured, collective, size)
            row = {"link": link, "ranks": ranks, "collective": collective, "size_bytes": size}
            for name, costs in (("usual", None), ("measured", path)):
                chosen, predicted = predictions(program, collective, size, ranks, link, costs)
                # Only what may be chosen counts: sums in tree order.
                allowed = {a: t for a, t in times.items() if a in predicted}
                best = min(allowed, key=allowed.get)
                if chosen not in allowed:  # given up at a smaller size: four times the best
                    row[name] = {"chosen": chosen, "loss": 3.0}
                    continue
                row[name] = {"chosen": chosen, "time_us": allowed[chosen],
                             "predicted_us": predicted[chosen],
                             "best": best, "best_us": allowed[best],
                             "loss": allowed[chosen] / allowed[best] - 1}
            rows.append(row)
            show(row)
    return rows


def show(row):
    usual, measured = row["usual"], row["measured"]
    print(f"{row['link']:3} n={row['ranks']:<2} {row['collective']:14} {row['size_bytes']:>10}  "
          f"best {usual.get('best', '?'):18} {usual.get('best_us', 0):>10.1f} us   "
          f"usual costs: {usual['chosen']:18} {100 * usual['loss']:>6.1f} %   "
          f"measured: {measured['chosen']:18} {100 * measured['loss']:>6.1f} %", flush=True)


def summary(rows, name):
    losses = [row[name]["loss"] for row in rows]
    return (f"{name:8} costs: median loss {100 * statistics.median(losses):5.1f} %, mean "
            f"{100 * statistics.mean(losses):5.1f} %, within 10 % in "
            f"{sum(x <= 0.1 for x in losses)} of {len(losses)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", default="2,4,8")
    parser.add_argument("-l", "--links", default="shm,tcp")
    parser.add_argument("--time", default="10ms", help="to measure each algorithm at each size")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--end", default="16m", help="largest size")
    parser.add_argument("--collective", default="allreduce,reduce-scatter,allgather,broadcast")
    parser.add_argument("--json", help="write all rows there")
    parser.add_argument("--gradus", default=str(ROOT / "build" / "gradus"))
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for link in options.links.split(","):
            for ranks in map(int, options.ranks.split(",")):
                rows += check(options.gradus, ranks, link, options, pathlib.Path(folder))
    for link in options.links.split(","):
        for name in ("usual", "measured"):
            print(link, summary([row for row in rows if row["link"] == link], name))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()

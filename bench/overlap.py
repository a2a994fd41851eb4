#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast the caller computes while an allreduce runs between two hosts.

    bench/overlap.py                 25 MiB at 1 Gbit/s (network namespaces: as root)

Each rank starts the operation, computes for less time than it takes, and waits. The loop's speed is
compared with the speed of the same loop alone, in the same process and in turn. In turn with all
that the same loop runs beside a plain TCP stream each way (bench_overlap): what the kernel takes
for that many bytes nobody can give back. Ends with 1 below --least of the speed."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts  # noqa: E402, from the folder beside this one


def size_bytes(text):
    unit = {"k": 1 << 10, "m": 1 << 20}.get(text[-1].lower(), 1)
    return int(text.rstrip("kmKM")) * unit


def beside_streams(two, arguments):
    """The speed of the loop beside a stream each way."""
    loops = [two.popen(host, [two.build / "bench" / "bench_overlap", two.address(host),
                              two.address(1 - host), str(size_bytes(arguments.size)), "5",
                              str(1000 * arguments.compute_ms)], stdout=subprocess.PIPE, text=True)
             for host in (0, 1)]
    try:
        texts = [loop.communicate(timeout=120)[0] for loop in loops]
    finally:
        hosts.stop(loops)
    if any(loop.returncode for loop in loops):
        raise SystemExit("overlap: a TCP stream between two hosts does not start")
    return statistics.mean(json.loads(text)["compute_speed"] for text in texts)


def one_round(two, arguments):
    return two.bench(["allreduce", "--sizes", arguments.size, "--compute",
                      f"{arguments.compute_ms}ms", "--placement", "in", "--iters", "5",
                      "--warmup", "1"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", default="25m")
    parser.add_argument("--compute-ms", type=int, default=200, help="less than the operation takes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--least", type=float, default=0.95, help="share of the speed alone")
    parser.add_argument("--build", default=str(ROOT / "build"))
    arguments = parser.parse_args()
    speeds, ceilings = [], []
    try:
        with hosts.Hosts(2, arguments.rate, "0.1ms", arguments.build) as two:
            for _ in range(arguments.rounds):
                row = one_round(two, arguments)
                speeds.append(row["compute_speed"])
                ceilings.append(beside_streams(two, arguments))
                print(f"compute at {100 * speeds[-1]:.1f} % of its speed alone, beside plain "
                      f"streams {100 * ceilings[-1]:.1f} %; the operation takes "
                      f"{row['time_us_median'] / 1e3:.1f} ms on top of {arguments.compute_ms} ms",
                      flush=True)
    except hosts.Unavailable as error:
        raise SystemExit(f"overlap: {error}") from error
    print(f"median {100 * statistics.median(speeds):.1f} %, beside plain streams "
          f"{100 * statistics.median(ceilings):.1f} %")
    return statistics.median(speeds) < arguments.least


if __name__ == "__main__":
    sys.exit(main())

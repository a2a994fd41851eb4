#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Allreduce of two ranks on each of four hosts: the hierarchical plans beside the flat ring.

    bench/two_per_host.py            25 MiB at 1 Gbit/s (network namespaces: as root)

The algorithms take turns. Beside the time stands what a host's interface sent for an operation, as
a multiple of the buffer: 2(n-1)/n, with headers, where each byte crosses the wire once in each
direction and n is the number of hosts. Ends with 1 if the hierarchical plan is not the faster."""
import argparse
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts  # noqa: E402, from the folder beside this one

ALGORITHMS = ("hierarchical", "hierarchical-any-order", "ring")
WARMUP = 2


def sent_bytes(made):
    """By the interfaces of all hosts; a packet is what leaves by one pass through the stack."""
    total = 0
    for host in range(made.count):
        reader = made.popen(host, ["cat", "/proc/net/dev"], stdout=subprocess.PIPE, text=True)
        lines = reader.communicate()[0].splitlines()
        total += sum(int(line.split()[9]) for line in lines if line.strip().startswith("eth0"))
    return total


def one_round(made, arguments, algorithm):
    """Median time in ms, and the multiple of the buffer that a host sent."""
    before = sent_bytes(made)
    row = made.bench(["allreduce", "--sizes", arguments.size, "--placement", "in", "--iters",
                      str(arguments.iterations), "--warmup", str(WARMUP), "--no-check"],
                     arguments.ranks_per_host,
                     env={"GRADUS_ALGORITHM": algorithm, "GRADUS_EXACT": "0"})
    operations = (WARMUP + arguments.iterations) * made.count
    return (row["time_us_median"] / 1e3,
            (sent_bytes(made) - before) / operations / row["size_bytes"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--ranks-per-host", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", default="25m")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--build", default=str(ROOT / "build"))
    arguments = parser.parse_args()
    found = {algorithm: [] for algorithm in ALGORITHMS}
    try:
        with hosts.Hosts(arguments.hosts, arguments.rate, "0.1ms", arguments.build) as made:
            for _ in range(arguments.rounds):
                for algorithm in ALGORITHMS:
                    found[algorithm].append(one_round(made, arguments, algorithm))
    except hosts.Unavailable as error:
        raise SystemExit(f"two_per_host: {error}") from error
    print(f"{'':24}{'median ms':>10}{'least':>8}{'most':>8}   sent by a host / buffer")
    for algorithm, rounds in found.items():
        times, sent = zip(*rounds)
        print(f"{algorithm:24}{statistics.median(times):10.1f}{min(times):8.1f}{max(times):8.1f}"
              f"{statistics.median(sent):12.3f}")
    medians = {name: statistics.median(time for time, _ in rounds)
               for name, rounds in found.items()}
    return medians["hierarchical"] >= medians["ring"]


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long jobs of many ranks take, from the start of the launcher to the end of the last rank, and
how much private memory a rank has:

    bench/many_ranks.py                                 # 256 ranks on this host, shm and tcp
    bench/many_ranks.py --ranks 1024 --hosts 4 --rounds 1   # on four network namespaces (root)

Each rank joins, meets the others in a barrier, sums 4 KiB over all of them and checks the sum
(bench_ranks.c). Exits with 1 if a run failed, or took longer or more memory than --limit-s or
--limit-mib.
"""
import argparse
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
from hosts import Hosts, Unavailable  # noqa: E402



def cpu_seconds():
    """Of all children that have ended, and theirs: what a run costs, whatever else runs here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


PRIVATE = re.compile(r"private (\d+) KiB")


def run_here(build, ranks, link, timeout_s):
    """(exit status, output)"""
    done = subprocess.run([build / "gradus", "run", "-np", str(ranks), "--link", link, "--",
                           build / "bench" / "bench_ranks"], capture_output=True, text=True,
                          errors="replace", timeout=timeout_s, check=False)
    return done.returncode, done.stdout + done.stderr


def run_hosts(build, hosts, ranks, link, timeout_s):
    with Hosts(hosts, build=build) as network:
        results = network.run([build / "bench" / "bench_ranks"], ranks // hosts,
                              env={"GRADUS_LINK": link, "GRADUS_JOIN_TIMEOUT": f"{timeout_s}s"},
                              timeout_s=timeout_s)
    return max(status for status, _ in results), "".join(text for _, text in results)


def measure(options, link):
    """One run: (seconds, processor seconds, memory of each rank in KiB), or None and why."""
    begin, cpu_begin = time.monotonic(), cpu_seconds()
    try:
        if options.hosts > 1:
            status, text = run_hosts(options.build, options.hosts, options.ranks, link,
                                     options.timeout)
        else:
            status, text = run_here(options.build, options.ranks, link, options.timeout)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return None, str(error)[-2000:]
    seconds = time.monotonic() - begin
    memory = [int(kib) for kib in PRIVATE.findall(text)]
    if status != 0 or len(memory) != options.ranks:
        return None, f"status {status}, {len(memory)} ranks are through\n{text[-2000:]}"
    return (seconds, cpu_seconds() - cpu_begin, memory), None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--hosts", type=int, default=1, help="network namespaces; 1: none")
    parser.add_argument("--links", help="shm,tcp; default: both, on several hosts auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one run")
    parser.add_argument("--limit-s", type=float, help="fail if a run takes longer")
    parser.add_argument("--limit-mib", type=float, help="fail if a rank has more memory")
    parser.add_argument("--build", type=pathlib.Path,
                        default=pathlib.Path(os.environ.get("GRADUS_BUILD_DIR", ROOT / "build")))
    options = parser.parse_args()
    links = (options.links or ("auto" if options.hosts > 1 else "shm,tcp")).split(",")
    failed = False
    print(f"{options.ranks} ranks on {options.hosts} host(s), {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}")
    for link in links:
        times, cpu, memory = [], [], []
        for number in range(options.rounds):
            result, why = measure(options, link)
            if why:
                failed = True
                print(f"{link}: run {number + 1} failed: {why}", file=sys.stderr)
                continue
            times.append(result[0])
            cpu.append(result[1])
            memory += result[2]
        if not times:
            continue
        failed |= options.limit_s is not None and max(times) > options.limit_s
        failed |= options.limit_mib is not None and max(memory) > options.limit_mib * 1024
        print(f"{link:5} {len(times)} of {options.rounds} runs passed; seconds: median "
              f"{statistics.median(times):.2f}, {min(times):.2f} to {max(times):.2f}; processor "
              f"seconds: median {statistics.median(cpu):.2f}, most {max(cpu):.2f}; private "
              f"memory of a rank in KiB: median {statistics.median(memory):.0f}, most "
              f"{max(memory)}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unavailable as error:
        sys.exit(f"many_ranks: {error}")

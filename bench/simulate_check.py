#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds `gradus simulate` against measurement: network namespaces on this machine, limited by tc.

    bench/simulate_check.py [--hosts 2,4,8] [--rate 1gbit] [--delay 0.1ms] [--sizes 1m,4m,25m]
                            [--algorithms direct,ring] [--build build] [--json]

For each number of hosts: measures latency and bandwidth over plain TCP, all of them busy both ways,
from one neighbour and from all others at once; simulates a cluster with these figures; runs `gradus bench` there; and
prints simulated and measured time and the error of each size. Exit code 1 if an error is larger than
--tolerance (10 %). Needs root.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts as harness  # noqa: E402

# Runs in every namespace at once: connects to those of argv and lets the others connect. Round
# trips of one byte with the first one, then bytes for all of them, while as many come in.
PROBE = r"""
import selectors, socket, sys, threading, time
own, share, PINGS, PIECE = sys.argv[1], int(sys.argv[2]), 300, 1 << 18
server = socket.create_server((own, 0), backlog=64)
print(server.getsockname()[1], flush=True)
words = sys.stdin.readline().split()
targets, sources = words[1:], int(words[0])
peers = [socket.create_connection((word.split(":")[0], int(word.split(":")[1]))) for word in targets]
others = [server.accept()[0] for _ in range(sources)]
for peer in peers + others:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def echo():
    for _ in range(PINGS):
        others[0].sendall(others[0].recv(1))
thread = threading.Thread(target=echo)
trips = []
if sources == 1:
    thread.start()
    for _ in range(PINGS):
        begin = time.perf_counter()
        peers[0].sendall(b"x")
        peers[0].recv(1)
        trips.append(time.perf_counter() - begin)
    thread.join()
print("ready", flush=True)
sys.stdin.readline()
def write(peer, size):
    piece = bytes(PIECE)
    while size > 0:
        peer.sendall(piece[:min(size, PIECE)])
        size -= PIECE
def exchange(size):
    threads = [threading.Thread(target=write, args=(peer, size)) for peer in peers]
    for thread in threads:
        thread.start()
    left = {other: size for other in others}
    with selectors.DefaultSelector() as selector:
        for other in others:
            selector.register(other, selectors.EVENT_READ)
        while left:
            for key, _ in selector.select():
                size = key.fileobj.recv_into(into)
                marks.append((time.perf_counter(), (marks[-1][1] if marks else 0) + size))
                left[key.fileobj] -= size
                if left[key.fileobj] == 0:
                    selector.unregister(key.fileobj)
                    del left[key.fileobj]
    for thread in threads:
        thread.join()
into, marks = bytearray(PIECE), []
exchange(share)
# The first part is what the rate limit lets pass at once, and the start of the connections.
got = marks[-1][1]
first = next(mark for mark in marks if mark[1] >= got // 4)
speed = (got - first[1]) / (marks[-1][0] - first[0])
print(sorted(trips)[PINGS // 2] / 2 * 1e6 if trips else 0, speed * 8e-9, flush=True)
"""


def traffic(net, targets_of, share):
    """All hosts send to theirs at once: medians of latency in us and received payload in Gbit/s."""
    python = ["/usr/bin/python3", "-c", PROBE]
    hosts = range(net.count)
    sources = [sum(host in targets_of(other) for other in hosts) for host in hosts]
    processes = [net.popen(host, [*python, net.address(host), str(share)], stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True) for host in hosts]
    try:
        ports = [process.stdout.readline().strip() for process in processes]
        for host, process in enumerate(processes):
            targets = [f"{net.address(to)}:{ports[to]}" for to in targets_of(host)]
            print(sources[host], *targets, file=process.stdin, flush=True)
        for process in processes:
            process.stdout.readline()
        for process in processes:
            print("go", file=process.stdin, flush=True)
        figures = [list(map(float, process.stdout.readline().split())) for process in processes]
        return [statistics.median(column) for column in zip(*figures)]
    finally:
        harness.stop(processes)
        for process in processes:
            process.stdin.close()


def probe(net, bulk_bytes):
    """Latency, payload from one host and from all others at once, each way and on all hosts."""
    # Other load on the machine only makes it look slower: the best of three.
    tries = [probe_once(net, bulk_bytes) for _ in range(3)]
    return min(a for a, _, _ in tries), max(b for _, b, _ in tries), max(c for _, _, c in tries)


def probe_once(net, bulk_bytes):
    count = net.count
    latency_us, gbit = traffic(net, lambda host: [(host + 1) % count], bulk_bytes)
    incast_gbit = gbit
    if count > 2:
        _, incast_gbit = traffic(net, lambda host: [at for at in range(count) if at != host],
                                 bulk_bytes // (count - 1))
    return latency_us, gbit, min(incast_gbit, gbit)


def simulate(gradus, options, count, figures, algorithm, size):
    latency_us, gbit, incast_gbit = figures
    done = subprocess.run(
        [gradus, "simulate", "allreduce", "--hosts", str(count), "--ranks-per-host",
         str(options.ranks_per_host), "--latency-us", str(latency_us), "--bandwidth-gbit", str(gbit),
         "--incast-gbit", str(incast_gbit), "--burst", options.burst,
         "--overhead-us", str(options.overhead_us), "--copy-gbyte", str(options.copy_gbyte),
         "--shared-cores", str(options.cores), "--algorithm", algorithm, "--size", size, "--json"],
        capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def measure(net, gradus, options, algorithm):
    """Median times in us by size."""
    results = net.run([gradus, "bench", "allreduce", "--sizes", options.sizes, "--placement", "in",
                       "--iters", str(options.iterations), "--rounds", str(options.rounds),
                       "--algorithm", algorithm, "--no-exact", "--json"], options.ranks_per_host,
                      timeout_s=300)
    times = {}
    for status, text in results:
        if status != 0:
            raise RuntimeError(f"gradus bench failed: {text.strip()}")
        for line in text.splitlines():
            if line.startswith("{"):
                row = json.loads(line)
                if row["wrong"]:
                    raise RuntimeError(f"wrong results: {line}")
                times.setdefault(row["size_bytes"], []).append(row["time_us_median"])
    return {size: statistics.median(all_times) for size, all_times in times.items()}


def check_hosts(options, gradus, count):
    """The rows of one number of hosts."""
    rows = []
    with harness.Hosts(count, options.rate, options.delay, options.build) as net:
        figures = probe(net, options.bulk_mib << 20)
        if not options.json:
            print(f"{count} hosts: latency {figures[0]:.1f} us, payload {figures[1]:.3f} Gbit/s each "
                  f"way, {figures[2]:.3f} from several at once", flush=True)
        for algorithm in options.algorithms.split(","):
            for size, measured_us in sorted(measure(net, gradus, options, algorithm).items()):
                row = simulate(gradus, options, count, figures, algorithm, str(size))
                error = row["time_us"] / measured_us - 1
                rows.append({"hosts": count, "ranks": row["ranks"], "algorithm": algorithm,
                             "size_bytes": size, "measured_us": measured_us,
                             "simulated_us": row["time_us"], "error": error})
                if options.json:
                    print(json.dumps(rows[-1]), flush=True)
                else:
                    print(f"{count:4} {algorithm:18} {size:12} {measured_us:12.0f} "
                          f"{row['time_us']:12.0f} {100 * error:+7.1f} %", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hosts", default="2,4,8")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--delay", default="0.1ms")
    parser.add_argument("--sizes", default="1m,4m,25m")
    parser.add_argument("--algorithms", default="direct,ring")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bulk-mib", type=int, default=48, help="sent to measure the bandwidth")
    parser.add_argument("--burst", default="256k", help="of the harness's token buckets")
    parser.add_argument("--overhead-us", type=float, default=8, help="of a message at each end")
    parser.add_argument("--copy-gbyte", type=float, default=2.5, help="speed of socket copies")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tolerance", type=float, default=0.10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    gradus = str(pathlib.Path(options.build).resolve() / "gradus")
    if not options.json:
        print("hosts algorithm               size B  measured us simulated us     error")
    rows = []
    try:
        for count in map(int, options.hosts.split(",")):
            rows += check_hosts(options, gradus, count)
    except harness.Unavailable as error:
        print(f"simulate_check: {error}", file=sys.stderr)
        return 2
    worst = max(abs(row["error"]) for row in rows)
    if not options.json:
        print(f"worst error {100 * worst:.1f} %, at most {100 * options.tolerance:.0f} % allowed")
    return worst > options.tolerance


if __name__ == "__main__":
    sys.exit(main())

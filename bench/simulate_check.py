#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Holds `gradus simulate` against measurement: network namespaces on this machine, limited by tc.

    bench/simulate_check.py [--hosts 2,4,8] [--rates 100mbit,1gbit] [--sizes 1m,4m]
                            [--operations allreduce,broadcast] [--algorithms direct,ring]
                            [--rows FILE [--again]] [--write docs/simulate.md]

For each rate and number of hosts: measures latency over plain TCP, and bandwidth with all hosts
busy both ways, and of one host to which all others send at once; simulates a cluster with these
figures; runs `gradus bench` there; and prints simulated and measured time and the error. Without
--algorithms all that differ where each host has one rank. --rows keeps the results in a file, one
JSON object a line, so that several runs add up to one table; other load on the machine only makes
an operation slower, so of several measurements the fastest one counts. --write puts the table into
a text. Exit code 1 if an error is larger than --tolerance (10 %). Needs root.

The network is one that loses nothing and serves connections in turn, which is what the simulator
knows: --buffer of each port, --queued of each connection in front of it, and --congestion, the
control of TCP, which must not pace (bbr does). Packets that were dropped nevertheless are told.
"""
import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts as harness  # noqa: E402

OPERATIONS = "allreduce,reduce,reduce-scatter,allgather,gather,scatter,broadcast,alltoall"
SEGMENT = "64k"     # else the library chooses it by the costs that it measures at the start
UNITS = {"k": 10, "m": 20, "g": 30}
REPEATS = 4         # of an exchange, so that it tells little who began when
BEGIN, END = "<!-- simulate_check: begin -->\n", "<!-- simulate_check: end -->\n"

# Runs in every namespace at once: connects to those of the first line and lets the others connect.
# For the line "ping", if there is one of each, round trips of one byte: us, one way. For each line
# "SHARE REPEATS" so many exchanges of SHARE bytes with each of them: seconds for one.
PROBE = r"""
import select, socket, sys, threading, time
own, PINGS, PIECE = sys.argv[1], 300, 1 << 18
server = socket.create_server((own, 0), backlog=64)
print(server.getsockname()[1], flush=True)
words = sys.stdin.readline().split()
sources, targets = int(words[0]), words[1:]
peers = [socket.create_connection((word.split(":")[0], int(word.split(":")[1])))
         for word in targets]
others = [server.accept()[0] for _ in range(sources)]
for peer in peers + others:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def echo():
    for _ in range(PINGS):
        others[0].sendall(others[0].recv(1))
def ping():
    trips = []
    for _ in range(PINGS):
        begin = time.perf_counter()
        peers[0].sendall(b"x")
        peers[0].recv(1)
        trips.append(time.perf_counter() - begin)
    return sorted(trips)[PINGS // 2] / 2 * 1e6
if sources == 1:
    thread = threading.Thread(target=echo)
    thread.start()
    sys.stdin.readline()
    print(ping(), flush=True)
    thread.join()
piece, into = memoryview(bytes(PIECE)), memoryview(bytearray(PIECE))
socks, edges = peers + others, select.epoll()
for sock in socks:
    sock.setblocking(False)
    edges.register(sock, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
number = {sock.fileno(): at for at, sock in enumerate(socks)}
def exchange(share):
    left = [share] * len(socks)
    todo = range(len(socks))
    while any(left):
        for at in todo:
            try:
                while left[at] > 0:
                    end = min(left[at], PIECE)
                    left[at] -= (socks[at].send(piece[:end]) if at < len(peers) else
                                 socks[at].recv_into(into[:end]))
            except BlockingIOError:
                pass
        todo = [number[fd] for fd, _ in edges.poll()] if any(left) else []
for line in sys.stdin:
    share, repeats = map(int, line.split())
    exchange(share)
    begin = time.perf_counter()
    for _ in range(repeats):
        exchange(share)
    print((time.perf_counter() - begin) / repeats, flush=True)
"""


class Traffic:
    """All hosts send to theirs at once, as often as asked."""

    def __init__(self, net, targets_of):
        python = ["/usr/bin/python3", "-c", PROBE]
        count = range(net.count)
        self.sources = [sum(host in targets_of(other) for other in count) for host in count]
        self.processes = [net.popen(host, [*python, net.address(host)], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE, text=True) for host in count]
        ports = self.read()
        for host, process in enumerate(self.processes):
            targets = [f"{net.address(to)}:{ports[to]}" for to in targets_of(host)]
            print(self.sources[host], *targets, file=process.stdin, flush=True)

    def read(self):
        return [process.stdout.readline().strip() for process in self.processes]

    def latency_us(self):
        """Of the median host, one after the other: cores that they share are no latency."""
        took = []
        for process in self.processes:
            print("ping", file=process.stdin, flush=True)
            took.append(float(process.stdout.readline()))
        return statistics.median(took)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        harness.stop(self.processes)
        for process in self.processes:
            process.stdin.close()

    def gbit(self, share, repeats):
        """Received payload of the median host of those that receive."""
        for process in self.processes:
            print(share, repeats, file=process.stdin, flush=True)
        rates = [sources * share / float(text) for sources, text in zip(self.sources, self.read())
                 if sources > 0]
        return statistics.median(rates) * 8e-9


def probe(net, options, rate_bytes):
    """The figures of one set of namespaces, as flags: latency, payload from one neighbour and of
    one host from all others at once. Other load on the machine only makes it look slower: the best
    of several."""
    share = int(rate_bytes * options.probe_s)
    with Traffic(net, lambda host: [(host + 1) % net.count]) as ring:
        latency_us = ring.latency_us()
        gbit = max(ring.gbit(share, REPEATS) for _ in range(3))
    incast_gbit = gbit
    if net.count > 2:
        with Traffic(net, lambda host: [0] if host > 0 else []) as traffic:
            incast_gbit = max(traffic.gbit(share // (net.count - 1), REPEATS) for _ in range(3))
    return ["--latency-us", f"{latency_us:.1f}", "--bandwidth-gbit", f"{gbit:.4f}",
            "--incast-gbit", f"{min(incast_gbit, gbit):.4f}"]


def size_of(text):
    return int(text[:-1]) << UNITS[text[-1]] if text[-1] in UNITS else int(text)


def simulate(options, count, figures, operation, size):
    """Rows of `gradus simulate`, one for each algorithm."""
    done = subprocess.run(
        [options.gradus, "simulate", operation, "--hosts", str(count), "--ranks-per-host",
         str(options.ranks_per_host), *figures, "--burst", options.burst,
         "--overhead-us", str(options.overhead_us), "--copy-gbyte", str(options.copy_gbyte),
         "--shared-cores", str(options.cores), "--segment", SEGMENT, "--size", str(size),
         "--compare", "--json"], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(net, options, operation, algorithm, size, about_us):
    """Median time in us. Before that as many operations go by: TCP's windows grow by what they are
    used for."""
    iterations = max(options.iterations, math.ceil(options.measure_s * 1e6 / about_us))
    return net.bench([operation, "--sizes", str(size), "--placement", "in", "--iters",
                      str(iterations), "--warmup", str(iterations), "--together", "--algorithm",
                      algorithm, "--no-exact"], options.ranks_per_host, timeout_s=300,
                     env={"GRADUS_SEGMENT": SEGMENT, "GRADUS_RAILS": "1"})["time_us_median"]


def wanted(options, row):
    if options.algorithms:
        return row["algorithm"] in options.algorithms.split(",")
    return options.ranks_per_host > 1 or not row["algorithm"].startswith("hierarchical")


def check_hosts(options, rate, count):
    """The rows of one rate and number of hosts."""
    settings = {"net.ipv4.tcp_congestion_control": options.congestion,
                "net.ipv4.tcp_limit_output_bytes": size_of(options.queued)}
    with harness.Hosts(count, rate, options.delay, options.build,
                       buffer_bytes=size_of(options.buffer), burst=options.burst,
                       settings=settings) as net:
        per_s = {"k": 1e3, "m": 1e6, "g": 1e9}[rate[-4]] * int(rate[:-4]) / 8
        figures = probe(net, options, per_s)
        print("#", *figures, flush=True)
        for operation in options.operations.split(","):
            for size in map(size_of, options.sizes.split(",")):
                for row in simulate(options, count, figures, operation, size):
                    if not wanted(options, row):
                        continue
                    dropped = net.dropped()
                    measured_us = measure(net, options, operation, row["algorithm"], size,
                                          row["time_us"])
                    yield {"rate": rate, "hosts": count, "ranks": row["ranks"], "op": operation,
                           "algorithm": row["algorithm"], "size_bytes": size,
                           "measured_us": measured_us, "simulated_us": row["time_us"],
                           "error": row["time_us"] / measured_us - 1,
                           "dropped": net.dropped() - dropped, "figures": figures}


def table(rows):
    """Markdown: measured milliseconds and the error, by operation, algorithm and size."""
    columns = sorted({(row["rate"], row["hosts"]) for row in rows},
                     key=lambda at: ("kmg".index(at[0][-4]), int(at[0][:-4]), at[1]))
    lines = ["| operation | algorithm | MiB | "
             + " | ".join(f"{rate[:-4]} {rate[-4].upper()}bit/s, {count}"
                          for rate, count in columns)
             + " |", "| --- | --- | --- | " + " | ".join("---:" for _ in columns) + " |"]
    cells = {(row["op"], row["algorithm"], row["size_bytes"], row["rate"], row["hosts"]):
             f"{row['measured_us'] / 1e3:.1f} ({100 * row['error']:+.0f} %)" for row in rows}
    for op, algorithm, size in dict.fromkeys(
            (row["op"], row["algorithm"], row["size_bytes"]) for row in rows):
        lines.append(f"| {op} | {algorithm} | {size / 2**20:g} | " + " | ".join(
            cells.get((op, algorithm, size, *at), "") for at in columns) + " |")
    return "\n".join(lines) + "\n"


def summary(rows, tolerance):
    errors = [abs(row["error"]) for row in rows]
    inside = sum(error <= tolerance for error in errors)
    return (f"{inside} of {len(rows)} within {100 * tolerance:.0f} %, median "
            f"{100 * statistics.median(errors):.1f} %, worst {100 * max(errors):.1f} %; "
            f"packets dropped in {sum(row['dropped'] > 0 for row in rows)}")


def write(path, rows, tolerance):
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}{summary(rows, tolerance)}.\n\n{table(rows)}{END}{after}")


def kept_rows(path):
    """Of each one that was measured several times the fastest."""
    kept = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        key = row["rate"], row["hosts"], row["op"], row["algorithm"], row["size_bytes"]
        if key not in kept or row["measured_us"] < kept[key]["measured_us"]:
            kept[key] = row
    return list(kept.values())


def best_figures(rows):
    """Of several probes of one network the fastest latency and bandwidths."""
    latency, bandwidth, incast = zip(*(map(float, row["figures"][1::2]) for row in rows))
    return ["--latency-us", str(min(latency)), "--bandwidth-gbit", str(max(bandwidth)),
            "--incast-gbit", str(max(incast))]


def simulate_again(options, rows):
    """With the figures that were probed when the rows were measured."""
    done, figures = {}, {}
    for net in {(row["rate"], row["hosts"]) for row in rows}:
        figures[net] = best_figures([row for row in rows if (row["rate"], row["hosts"]) == net])
    for row in rows:
        net = row["rate"], row["hosts"]
        key = *net, row["op"], row["size_bytes"]
        if key not in done:
            done[key] = {now["algorithm"]: now["time_us"] for now in simulate(
                options, row["hosts"], figures[net], row["op"], row["size_bytes"])}
        row["simulated_us"] = done[key][row["algorithm"]]
        row["error"] = row["simulated_us"] / row["measured_us"] - 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hosts", default="2,4,8", help="none: only the table of --rows")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--rates", default="1gbit")
    parser.add_argument("--delay")
    parser.add_argument("--sizes", default="1m,4m,25m")
    parser.add_argument("--operations", default=OPERATIONS)
    parser.add_argument("--algorithms")
    parser.add_argument("--build", default=str(ROOT / "build"))
    parser.add_argument("--congestion", default="reno", help="control of TCP")
    parser.add_argument("--queued", default="128k", help="of a connection at its host's port")
    parser.add_argument("--buffer", default="32m", help="of a port")
    parser.add_argument("--iterations", type=int, default=5, help="at least")
    parser.add_argument("--measure-s", type=float, default=0.3, help="at least")
    parser.add_argument("--probe-s", type=float, default=0.2, help="of an exchange of the probe")
    parser.add_argument("--burst", default="256k", help="of the harness's token buckets")
    parser.add_argument("--overhead-us", type=float, default=8, help="of a message at each end")
    parser.add_argument("--copy-gbyte", type=float, default=2.5, help="speed of socket copies")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tolerance", type=float, default=0.10)
    parser.add_argument("--rows", type=pathlib.Path)
    parser.add_argument("--again", action="store_true",
                        help="simulate those of --rows again, as measured")
    parser.add_argument("--write", type=pathlib.Path)
    options = parser.parse_args()
    options.gradus = str(pathlib.Path(options.build).resolve() / "gradus")
    return options


def main():
    options = parse()
    rows = []
    counts = [] if options.hosts == "none" else map(int, options.hosts.split(","))
    try:
        for rate, count in [(rate, count) for count in counts for rate in options.rates.split(",")]:
            for row in check_hosts(options, rate, count):
                rows.append(row)
                print(f"{rate:>8} {count:3} {row['op']:15} {row['algorithm']:18} "
                      f"{row['size_bytes']:10} {row['measured_us']:10.0f} us, simulated "
                      f"{row['simulated_us']:10.0f} {100 * row['error']:+6.1f} %", flush=True)
                if options.rows:
                    with options.rows.open("a") as file:
                        print(json.dumps(row), file=file)
    except harness.Unavailable as error:
        print(f"simulate_check: {error}", file=sys.stderr)
        return 2
    if options.rows:
        rows = kept_rows(options.rows)
        if options.again:
            simulate_again(options, rows)
    if options.write:
        write(options.write, rows, options.tolerance)
    print(summary(rows, options.tolerance))
    return any(abs(row["error"]) > options.tolerance for row in rows)


if __name__ == "__main__":
    sys.exit(main())

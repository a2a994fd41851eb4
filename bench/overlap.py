#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast the caller computes while an allreduce runs between two hosts.

    bench/overlap.py                 25 MiB at 1 Gbit/s (network namespaces: as root)

Each rank starts the operation, computes for less time than it takes, and waits. The loop's speed is
compared with the speed of the same loop alone, in the same process. In turn with it the same loop
runs beside a plain TCP stream each way, read and written a megabyte at a time: what the kernel
takes for that many bytes nobody can give back. Ends with 1 below --least of the speed."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts  # noqa: E402, from the folder beside this one


STREAM = """
import socket, sys, threading
own, peer = sys.argv[1:]
server = socket.create_server((own, 7000))
print("up", flush=True)
sys.stdin.readline()
to = socket.create_connection((peer, 7000))
source = server.accept()[0]
into, piece = bytearray(1 << 20), bytes(1 << 20)
def write():
    while True:
        to.sendall(piece)
threading.Thread(target=write, daemon=True).start()
source.recv_into(into)
print("runs", flush=True)
while source.recv_into(into, len(into), socket.MSG_WAITALL):
    pass
"""


def beside_streams(two, arguments):
    """The speed of the loop beside a stream each way."""
    streams = [two.popen(host, ["/usr/bin/python3", "-c", STREAM, two.address(host),
                                two.address(1 - host)], stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, text=True) for host in (0, 1)]
    loops = []
    try:
        for line in ("up", "runs"):
            if [stream.stdout.readline().strip() for stream in streams] != [line, line]:
                raise SystemExit("overlap: a TCP stream between two hosts does not start")
            for stream in streams:
                print("go", file=stream.stdin, flush=True)
        loops = [two.popen(host, [two.build / "gradus", "bench", "allreduce", "-np", "1", "--sizes",
                                  "4", "--compute", arguments.compute, "--placement", "in",
                                  "--iters", "5", "--warmup", "1", "--json"],
                           stdout=subprocess.PIPE, text=True) for host in (0, 1)]
        texts = [loop.communicate(timeout=120)[0] for loop in loops]
        return statistics.mean(json.loads(text)["compute_speed"] for text in texts)
    finally:
        for stream in streams:
            stream.stdin.close()
        hosts.stop([*streams, *loops])


def one_round(two, arguments):
    command = [two.build / "gradus", "bench", "allreduce", "--sizes", arguments.size, "--compute",
               arguments.compute, "--placement", "in", "--iters", "5", "--warmup", "1", "--json"]
    coordinator, processes = two.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       text=True)
    try:
        texts = [process.communicate(timeout=120) for process in processes]
    finally:
        hosts.stop([coordinator, *processes])
    if any(process.returncode for process in processes):
        raise SystemExit(f"overlap: {' '.join(error for _, error in texts).strip()}")
    return json.loads(texts[0][0])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", default="25m")
    parser.add_argument("--compute", default="200ms", help="less than the operation takes")
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
                      f"{row['time_us_median'] / 1e3:.1f} ms on top of {arguments.compute}",
                      flush=True)
    except hosts.Unavailable as error:
        raise SystemExit(f"overlap: {error}") from error
    print(f"median {100 * statistics.median(speeds):.1f} %, beside plain streams "
          f"{100 * statistics.median(ceilings):.1f} %")
    return statistics.median(speeds) < arguments.least


if __name__ == "__main__":
    sys.exit(main())

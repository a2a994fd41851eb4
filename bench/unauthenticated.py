#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What do unauthenticated peers on the coordinator's port cost a job?

Two ranks reduce over TCP, again and again, in turns alone and while they connect, say nothing,
send garbage, replay a recorded handshake, or claim a rank; prints the ratio of the times.

    bench/unauthenticated.py [--build FOLDER] [--rounds N] [--rate CONNECTIONS_A_SECOND] [--encrypt]
"""

import argparse
import json
import os
import random
import select
import socket
import statistics
import subprocess
import threading

CHALLENGE_BYTES, HANDSHAKE_BYTES = 56, 96
PATIENCE_S = 30
OPEN_MAX = 400  # connections that say nothing, at a time: more than get a place


def split(address):
    """What follows "tcp:" in an address, as host and port."""
    _, host, port = address.split(":")
    return host, int(port)


class Recorder(threading.Thread):
    """Passes one connection on, and keeps what the side that connects sends for its handshake."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.target = split(address)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = "tcp:127.0.0.1:%d" % self.listener.getsockname()[1]
        self.handshake = b""
        self.start()

    def run(self):
        inside, _ = self.listener.accept()
        outside = socket.create_connection(self.target)
        other = {inside: outside, outside: inside}
        while True:
            for side in select.select([inside, outside], [], [])[0]:
                try:
                    data = side.recv(65536)
                    other[side].sendall(data)
                except OSError:
                    data = b""
                if not data:
                    inside.close()
                    outside.close()
                    return
                if side is inside:
                    self.handshake += data[:HANDSHAKE_BYTES - len(self.handshake)]


class Crowd(threading.Thread):
    """Connections, so many a second (0: as fast as they come); `refused` of `sent` got no further
    than a challenge. Ends after `count` of them, or when it is stopped."""

    def __init__(self, address, handshake, count=None, rate=0):
        super().__init__(daemon=True)
        self.target, self.handshake, self.count, self.rate = split(address), handshake, count, rate
        self.ended = threading.Event()
        self.silent = []
        self.sent = self.refused = 0

    def close_oldest(self):
        """It was sent a challenge, if it was not closed before; nothing else."""
        intruder = self.silent.pop(0)
        intruder.setblocking(False)
        try:
            got = len(intruder.recv(4096))
        except OSError:
            got = 0
        intruder.close()
        self.refused += got <= CHALLENGE_BYTES

    def check(self, intruder):
        """How much does it get until it is closed?"""
        got = 0
        intruder.settimeout(PATIENCE_S)
        try:
            while data := intruder.recv(4096):
                got += len(data)
        except ConnectionError:
            pass
        intruder.close()
        self.refused += got <= CHALLENGE_BYTES

    def send_one(self, kind):
        intruder = socket.create_connection(self.target, timeout=PATIENCE_S)
        try:
            if kind == "silent":
                self.silent.append(intruder)
                while len(self.silent) > OPEN_MAX:
                    self.close_oldest()
                return
            if kind == "garbage":
                intruder.sendall(random.randbytes(200))
            elif kind == "replay":
                intruder.sendall(self.handshake)
            elif kind == "claim":
                head = self.handshake[CHALLENGE_BYTES:CHALLENGE_BYTES + 8]
                intruder.sendall(self.handshake[:CHALLENGE_BYTES] + head + random.randbytes(32))
        except ConnectionError:
            pass
        self.check(intruder)

    def run(self):
        kinds = ["silent", "garbage", "replay", "claim"]
        while not self.ended.is_set() and self.sent != self.count:
            try:
                self.send_one(kinds[self.sent % len(kinds)])
            except OSError:
                if self.ended.is_set() or not self.listens():
                    break  # the job is over
                raise
            self.sent += 1
            if self.rate:
                self.ended.wait(1 / self.rate)
        while self.silent:
            self.close_oldest()

    def listens(self):
        try:
            socket.create_connection(self.target, timeout=1).close()
        except OSError:
            return False
        return True

    def stop(self):
        self.ended.set()
        self.join()


def measure(options, crowded):
    """The median time of the reduction, in microseconds; and how many came meanwhile."""
    gradus = os.path.join(options.build, "gradus")
    flags = ["--encrypt"] if options.encrypt else []
    coordinator = subprocess.Popen([gradus, "rendezvous", "-np", "2", "--listen", "127.0.0.1",
                                    "--print-secret", *flags],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    told = dict(coordinator.stdout.readline().rstrip("\n").split("=", 1) for _ in range(3))
    recorder = Recorder(told["GRADUS_COORDINATOR"])
    words = [gradus, "bench", "allreduce", "--sizes", "1m", "--iters", str(options.iters), "--json"]
    ranks = []
    for rank in range(2):
        environment = dict(os.environ, **told, GRADUS_RANK=str(rank), GRADUS_LINK="tcp")
        environment |= {"GRADUS_ENCRYPT": "yes"} if options.encrypt else {}
        if rank == 1:
            environment["GRADUS_COORDINATOR"] = recorder.address
        ranks.append(subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True))
    crowd = None
    while crowded and len(recorder.handshake) < HANDSHAKE_BYTES:
        if ranks[1].poll() is not None:
            raise SystemExit("rank 1 ended before it had called in")
        threading.Event().wait(0.001)
    if crowded:
        crowd = Crowd(told["GRADUS_COORDINATOR"], recorder.handshake, rate=options.rate)
        crowd.start()
    lines = ranks[0].communicate()[0].splitlines()
    ranks[1].communicate()
    coordinator.wait()
    if crowd is not None:
        crowd.stop()
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    return statistics.median(row["time_us_median"] for row in rows), crowd.sent if crowd else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", default="build")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iters", type=int, default=10000)
    parser.add_argument("--rate", type=float, default=200)
    parser.add_argument("--encrypt", action="store_true")
    options = parser.parse_args()
    ratios, intruders = [], 0
    for turn in range(options.rounds):
        times = {}
        for crowded in ([False, True] if turn % 2 == 0 else [True, False]):
            times[crowded], came = measure(options, crowded)
            intruders += came
        ratios.append(times[True] / times[False])
        print(f"round {turn + 1}: alone {times[False]:.0f} us, with them {times[True]:.0f} "
              f"us: {ratios[-1]:.3f}", flush=True)
    print(f"{intruders} connections; the median ratio is {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()

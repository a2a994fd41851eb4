#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long is nothing done when the cable of a host is cut?

Starts the digits job again and again with workers on several hosts (namespaces with an sshd), cuts
the cable of one, and takes the time from the cut to the end of the first epoch of those that are
left (23 steps of about a millisecond). Needs root, iproute2 and openssh-server.

    bench/cut.py [--build FOLDER] [--cuts N] [--hosts N] [--workers N] [--host-timeout TIME]
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts as namespaces  # noqa: E402
import sshd  # noqa: E402

PATIENCE_S = 60


def write_job(folder):
    """The digits job, without an end."""
    text = (ROOT / "examples/digits/mlp.yaml").read_text()
    text = text.replace("epochs: 40", "epochs: 1000000").replace("eval_every: 10", "eval_every: 0")
    job = folder / "mlp.yaml"
    job.write_text(text.replace("file: ", f"file: {ROOT}/examples/digits/"))
    return job


class Events:
    """What a job writes to its metrics, as it comes."""

    def __init__(self, path):
        self.tail = subprocess.Popen(["tail", "-s", "0.002", "-n", "+1", "-F", path],
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.watch = threading.Timer(PATIENCE_S, self.tail.kill)
        self.watch.start()

    def wait_for(self, kind):
        for line in self.tail.stdout:
            event = json.loads(line)
            if event["event"] == kind:
                return event
        raise RuntimeError(f"no {kind} within {PATIENCE_S} s")

    def close(self):
        self.watch.cancel()
        self.tail.kill()
        self.tail.communicate()


def cut_one(options, made, logins, folder, turn):
    """Seconds from the cut to the first epoch after it, and what the job says it took."""
    output = folder / f"out{turn}"
    command = logins.words(options.build / "gradus", [
        "-H", ",".join(f"{name}:{options.workers}" for name in logins.names),
        "-np", options.workers * made.count, "--host-timeout", options.host_timeout,
        "--min-workers", 1, "--output", output, write_job(folder)])
    victim = turn % (made.count - 1) + 1
    job = subprocess.Popen(command, env={**os.environ, "PATH": logins.path()}, cwd=folder,
                           stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                           stderr=None if options.verbose else subprocess.DEVNULL)
    events = Events(output / "metrics.jsonl")
    try:
        events.wait_for("epoch")
        time.sleep(random.random() * 0.3)
        # The kernel takes its time where other networks come and go: it may be most of a second.
        namespaces.ip("-n", made.switch, "link", "set", f"p0x{victim}", "down")
        begin = time.monotonic()
        recovered = events.wait_for("recovered")
        events.wait_for("epoch")
        return time.monotonic() - begin, recovered["seconds"]
    finally:
        events.close()
        job.terminate()
        try:
            job.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            job.kill()
            job.wait()
        namespaces.ip("-n", made.switch, "link", "set", f"p0x{victim}", "up")
        made.await_carrier(made.names[victim], "eth0")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="on each host")
    parser.add_argument("--host-timeout", default="500ms")
    parser.add_argument("--verbose", action="store_true", help="what the jobs say")
    options = parser.parse_args()
    options.build = options.build.resolve()
    took, told = [], []
    try:
        with tempfile.TemporaryDirectory() as name, namespaces.Hosts(options.hosts) as made:
            logins = sshd.Logins(made, pathlib.Path(name))
            try:
                logins.open()
                for turn in range(options.cuts):
                    seconds, own = cut_one(options, made, logins, pathlib.Path(name), turn)
                    took.append(seconds)
                    told.append(own)
                    print(f"cut {turn + 1}: {seconds * 1e3:.0f} ms, of which the job tells "
                          f"{own * 1e3:.0f}", flush=True)
            finally:
                logins.close()
    except (namespaces.Unavailable, RuntimeError) as error:
        print(f"cut: {error}", file=sys.stderr)
        return 1
    took.sort()
    print(f"{len(took)} cuts, --host-timeout {options.host_timeout}: median "
          f"{statistics.median(took) * 1e3:.0f} ms, p99 "
          f"{took[min(len(took) - 1, int(0.99 * len(took)))] * 1e3:.0f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

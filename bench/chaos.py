#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills workers of a training job at random moments, run after run, and looks at what comes of it.

    bench/chaos.py --runs 200 --build build

Each run is the digits job with 4 workers, by shared memory and by tcp in turn. A worker of any rank
is killed by SIGKILL at a random moment; in a quarter of the runs a second one follows within 0.2 s.
Told in the end: how many runs ended by themselves, with the weights (SHA-256) of an undisturbed run,
what they left behind (processes, and with them
their sockets and anonymous memory; files), and how long it took from a kill until the
others were ready for the next step, as the job itself reports it. Exit code 1: a run went wrong; its
seed is named, and --first SEED --runs 1 repeats it.
"""
import argparse
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKERS = 4
RUN_MAX_S = 90
MARK = "GRADUS_CHAOS_MARK"


def children(pid):
    try:
        return [int(word) for word in
                pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def remains(mark):
    """Processes that stem from a run."""
    found = []
    wanted = f"{MARK}={mark}".encode()
    for entry in pathlib.Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


class Job:
    def __init__(self, gradus, folder, epochs):
        self.gradus, self.folder = gradus, pathlib.Path(folder)
        source = ROOT / "examples/digits"
        text = (source / "mlp.yaml").read_text().replace("epochs: 40", f"epochs: {epochs}")
        self.path = self.folder / "job.yaml"
        self.path.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))

    def run(self, seed, link, moments, victims):
        """Returns what was wrong ("" if nothing), the hash, the recoveries and the seconds."""
        output, mark = self.folder / f"out{seed}", f"{os.getpid()}-{seed}"
        begin = time.monotonic()
        process = subprocess.Popen(
            [self.gradus, "run", "-np", str(WORKERS), "--link", link, "--output", output, self.path],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | {MARK: mark, "TMPDIR": str(self.folder)})
        for moment, victim in zip(moments, victims):
            time.sleep(max(0, begin + moment - time.monotonic()))
            pids = [worker for agent in children(process.pid) for worker in children(agent)]
            if pids:
                try:
                    os.kill(pids[victim % len(pids)], signal.SIGKILL)
                except ProcessLookupError:
                    pass
        try:
            _, errors = process.communicate(timeout=RUN_MAX_S)
        except subprocess.TimeoutExpired:
            for pid in remains(mark):
                os.kill(pid, signal.SIGKILL)
            process.communicate()
            return f"did not end within {RUN_MAX_S} s", None, [], 0
        seconds = time.monotonic() - begin
        if process.returncode != 0:
            return f"exit code {process.returncode}: {errors.strip()}", None, [], seconds
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        recovered = [line["seconds"] for line in lines if line["event"] == "recovered"]
        left = remains(mark)
        wrong = f"processes {left} are left" if left else ""
        extra = {entry.name for entry in output.iterdir()} - {"metrics.jsonl", "model.safetensors"}
        wrong = wrong or (f"files {sorted(extra)} are left" if extra else "")
        return wrong, lines[-1]["weights_sha256"], recovered, seconds


def memory_files():
    return {entry.name for entry in pathlib.Path("/dev/shm").iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments = parser.parse_args()
    gradus = str(pathlib.Path(arguments.build).resolve() / "gradus")
    good, done, struck, doubles, times, begin = 0, 0, 0, 0, [], time.monotonic()
    before = memory_files()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(gradus, folder, arguments.epochs)
        wrong, sha256, _, seconds = job.run("undisturbed", "shm", [], [])
        if wrong:
            sys.exit(f"the undisturbed run: {wrong}")
        for seed in range(arguments.first, arguments.first + arguments.runs):
            if time.monotonic() - begin > arguments.seconds:
                break
            rng = random.Random(seed)
            moments = [rng.random() * seconds]
            if seed % 4 == 3:
                moments.append(moments[0] + rng.random() * 0.2)
                doubles += 1
            victims = [rng.randrange(WORKERS) for _ in moments]
            link = "tcp" if seed % 2 else "shm"
            wrong, got, recovered, _ = job.run(seed, link, moments, victims)
            wrong = wrong or ("" if got == sha256 else f"other weights: {got}")
            done += 1
            good += not wrong
            struck += bool(recovered)
            times += recovered
            if wrong:
                print(f"seed {seed}, {link}, workers {victims} at {moments}: {wrong}", flush=True)
    print(f"{done} runs, {doubles} of them with two kills: {good} ended by themselves with the weights "
          f"of the undisturbed run; in {struck} the training had to recover")
    print(f"left behind in /dev/shm: {sorted(memory_files() - before) or 'nothing'}")
    if times:
        times.sort()
        print(f"ready again after {1e3 * statistics.median(times):.0f} ms (median), "
              f"{1e3 * times[min(len(times) - 1, len(times) * 99 // 100)]:.0f} ms (p99), "
              f"{len(times)} recoveries")
    sys.exit(good != done)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a training job at random moments, run after run, and looks at what comes of
it.

    bench/chaos.py --runs 200 --build build
    bench/chaos.py --runs 50 --add --build build

Each run is the digits job with 4 workers, by shared memory and by tcp in turn, every second pair of
runs with checkpoints. A random process of it is killed by SIGKILL at a random moment: a worker of
any rank, or the agent, which is the workers' parent; in a quarter of the runs a second one follows
within 0.2 s. The launcher is never killed, and the coordinator is a part of it. With --add the job
begins with 2 workers of at most 4, half of the time with a standby, and others come and go as well
(gradus scale): 3 or 4 events a run.

Told in the end: how many runs ended by themselves, with the weights (SHA-256) of an undisturbed
run; how many were begun anew; what was left behind (processes, and with them their sockets and
anonymous memory; files); and how long it took from a kill until the others were ready for the next
step, as the job itself reports it. Exit code 1: a run went wrong; its seed is named, and --first
SEED --runs 1 repeats it.
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


class Plan:
    """What happens in a run: flags, and (moment, what, number) in the order of time."""

    def __init__(self, seed, seconds, adds):
        rng = random.Random(seed)
        self.flags = ["--link", "tcp" if seed % 2 else "shm"]
        if seed // 2 % 2:
            self.flags += ["--checkpoint-every", "40 steps"]
        if adds:
            self.flags += ["-np", "2", "--max-workers", str(WORKERS), "--spare",
                           str(rng.randrange(2))]
            moments = sorted(rng.random() * seconds for _ in range(rng.choice([3, 4])))
            self.events = [(moment, *rng.choice([("kill", rng.randrange(1000)),
                                                 ("scale", rng.choice([2, 3, 4]))]))
                           for moment in moments]
        else:
            self.flags += ["-np", str(WORKERS)]
            moments = [rng.random() * seconds]
            moments += [moments[0] + rng.random() * 0.2] if seed % 4 == 3 else []
            self.events = [(moment, "kill", rng.randrange(1000)) for moment in moments]
        self.kills = sum(what == "kill" for _, what, _ in self.events)

    def __str__(self):
        return f"{' '.join(self.flags)}: " + ", ".join(
            f"{what} {number} at {moment:.3f} s" for moment, what, number in self.events)


class Job:
    def __init__(self, gradus, folder, epochs):
        self.gradus, self.folder = gradus, pathlib.Path(folder)
        source = ROOT / "examples/digits"
        text = (source / "mlp.yaml").read_text().replace("epochs: 40", f"epochs: {epochs}")
        self.path = self.folder / "job.yaml"
        self.path.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))
        self.files = {"job.yaml"}

    def happen(self, launcher, what, number):
        """Returns the kind of what was killed."""
        if what == "scale":
            subprocess.run([self.gradus, "scale", "--to", str(number), "--job", str(launcher)],
                           capture_output=True, timeout=RUN_MAX_S)
            return ""
        agents = children(launcher)
        pids = agents + [worker for agent in agents for worker in children(agent)]
        if not pids:
            return ""
        victim = pids[number % len(pids)]
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return ""
        return "agent" if victim in agents else "worker"

    def left(self, output, mark):
        """What a run should not leave behind; "" if there is nothing of it."""
        processes = remains(mark)
        files = {entry.name for entry in output.iterdir()}
        files -= {"metrics.jsonl", "model.safetensors", "checkpoints"}
        files |= {entry.name for entry in output.glob("checkpoints/*.partial")}
        files |= {entry.name for entry in self.folder.iterdir()} - self.files
        return (f"processes {processes} are left" if processes else
                f"files {sorted(files)} are left" if files else "")

    def run(self, name, plan):
        """Returns what was wrong ("" if nothing), the hash, the recoveries, whom we killed, how
        often the job was begun anew, and the seconds."""
        output, mark = self.folder / f"out{name}", f"{os.getpid()}-{name}"
        self.files.add(output.name)
        begin = time.monotonic()
        process = subprocess.Popen(
            [self.gradus, "run", *plan.flags, "--output", output, self.path],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            env=os.environ | {MARK: mark, "TMPDIR": str(self.folder)})
        killed = []
        for moment, what, number in plan.events:
            time.sleep(max(0, begin + moment - time.monotonic()))
            killed.append(self.happen(process.pid, what, number))
        try:
            _, errors = process.communicate(timeout=RUN_MAX_S)
        except subprocess.TimeoutExpired:
            for pid in remains(mark):
                os.kill(pid, signal.SIGKILL)
            process.communicate()
            return f"did not end within {RUN_MAX_S} s", None, [], killed, 0, 0
        seconds = time.monotonic() - begin
        anew = errors.count("all workers are started anew")
        if process.returncode != 0:
            wrong = f"exit code {process.returncode}: {errors.strip()}"
            return wrong, None, [], killed, anew, seconds
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        recovered = [line["seconds"] for line in lines if line["event"] == "recovered"]
        return (self.left(output, mark), lines[-1]["weights_sha256"], recovered, killed, anew,
                seconds)


def memory_files():
    return {entry.name for entry in pathlib.Path("/dev/shm").iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--add", action="store_true", help="workers come and go as well")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments = parser.parse_args()
    gradus = str(pathlib.Path(arguments.build).resolve() / "gradus")
    good, done, doubles, begun_anew, times, killed = 0, 0, 0, 0, [], []
    begin, before = time.monotonic(), memory_files()
    with tempfile.TemporaryDirectory() as folder:
        job = Job(gradus, folder, arguments.epochs)
        quiet = Plan(0, 1, False)
        quiet.events = []
        wrong, sha256, _, _, _, seconds = job.run("undisturbed", quiet)
        if wrong:
            sys.exit(f"the undisturbed run: {wrong}")
        for seed in range(arguments.first, arguments.first + arguments.runs):
            if time.monotonic() - begin > arguments.seconds:
                break
            plan = Plan(seed, seconds, arguments.add)
            wrong, got, recovered, victims, anew, _ = job.run(seed, plan)
            wrong = wrong or ("" if got == sha256 else f"other weights: {got}")
            done += 1
            good += not wrong
            doubles += plan.kills > 1
            begun_anew += anew > 0
            times += recovered
            killed += victims
            if wrong:
                print(f"seed {seed}, {plan}: {wrong}", flush=True)
    print(f"{done} runs, {doubles} of them with two kills or more: {good} ended by themselves with "
          f"the weights of the undisturbed run")
    print(f"killed: {killed.count('worker')} workers, {killed.count('agent')} agents; {begun_anew} "
          f"runs were begun anew")
    print(f"left behind in /dev/shm: {sorted(memory_files() - before) or 'nothing'}")
    if times:
        times.sort()
        print(f"ready again after {1e3 * statistics.median(times):.0f} ms (median), "
              f"{1e3 * times[min(len(times) - 1, len(times) * 99 // 100)]:.0f} ms (p99), "
              f"{len(times)} recoveries")
    sys.exit(good != done)


if __name__ == "__main__":
    main()

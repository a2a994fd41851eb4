#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How long until a job goes on when a worker is killed, and what does a joining worker cost?

    bench/recovery.py --kills 50                    the digits job, beside PyTorch's torchrun
    bench/recovery.py --model mlp --data FOLDER     MNIST's images (t10k or train; .gz or not)

4 workers. A worker of any rank is killed by SIGKILL at a random moment. The time counts from the
kill to the end of the next step that the others finish, less what a step takes: as a worker that
was not killed noted it in its timeline (`--timeline`), whose clock is this script's. The candidates
take turns:

    shm, tcp              another worker is started in the place of the killed one (the default)
    shm-less, tcp-less    --restarts 0: the job goes on with three
    torchrun              PyTorch DDP over gloo under torchrun, which starts all workers anew; they
                          go on from a checkpoint that is written after every step
    torchrun-fast         the same with --monitor-interval 0.1 (seconds; else 5)

A joining worker's cost is what the others lose by it: from their last step without it to the end
of the first step with it, less what a step takes. --samples FILE keeps what was
measured, and adds what the file has from before.
"""
import argparse
import gzip
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

import scaling

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKERS = 4
EVENT_MAX_S = 120  # until what is waited for has happened
# torchrun 1.13 knows no plain 0 for these under Python 3.11: Debian's is broken without them.
WITH_PYTHON_3_11 = ("--redirects", "1", "--tee", "1")
DETAILS = ("detect", "meet", "agree", "step")


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for word in task.read_text().split():
                found += [int(word)] + descendants(word)
        except OSError:
            continue
    return found


def ranks_of(pid, name):
    """The worker processes below `pid` by what the environment variable `name` says."""
    found = {}
    for child in descendants(pid):
        try:
            words = pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        for word in words:
            if word.startswith(name.encode() + b"="):
                found[int(word.split(b"=")[1])] = child
    return found


def wait_for(process, condition, what):
    until = time.monotonic() + EVENT_MAX_S
    while not condition():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(f"recovery.py: {what} did not come; the job ended with {process.returncode}")
        time.sleep(0.002)


def lines_of(path):
    """Whole JSON lines; what is being written does not count yet."""
    try:
        text = path.read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text[:text.rfind("\n") + 1].splitlines()]


# ---- Gradus --------------------------------------------------------------------------------------
class Witness:
    """What one rank's timeline says; times in ns of the monotonic clock."""

    def __init__(self, trace, rank):
        base = trace["otherData"]["monotonic_ns"]
        self.ends, self.begins, self.failures, self.ops = {}, {}, [], []
        for event in trace["traceEvents"]:
            if event.get("pid") != rank or event["ph"] not in "Xi":
                continue
            begin = base + event["ts"] * 1e3
            end = begin + event.get("dur", 0) * 1e3
            if event["name"] == "step":
                self.ends[event["args"]["step"]] = end
                self.begins[event["args"]["step"]] = begin
            elif event["name"] == "failure":
                self.failures.append(begin)
            elif event.get("cat") == "comm":
                self.ops.append(begin)

    def usual(self, step):
        """What a step takes after this one, from end to end."""
        laps = [self.ends[at + 1] - self.ends[at] for at in range(step, step + 21)
                if at in self.ends and at + 1 in self.ends]
        return statistics.median(laps) if laps else 0

    def recovery(self, killed, step):
        """Milliseconds until the step behind `step` was over, and what they consist of."""
        begin, end = self.begins[step + 1], self.ends[step + 1]
        told = min((at for at in self.failures if at > killed), default=begin)
        met = min((at for at in self.ops if at > told), default=begin)
        parts = {"detect": told - killed, "meet": met - told, "agree": begin - met,
                 "step": end - begin}
        return {"ms": (end - killed - self.usual(step + 1)) / 1e6,
                **{name: value / 1e6 for name, value in parts.items()}}

    def joining(self, step):
        lost = self.ends[step + 1] - self.ends[step] - self.usual(step + 1)
        return {"ms": lost / 1e6, "still": (self.begins[step + 1] - self.ends[step]) / 1e6,
                "usual": self.usual(step + 1) / 1e6}


class Gradus:
    def __init__(self, arguments, name, folder, job):
        self.program, self.job, self.folder = arguments.gradus, job, folder / name
        link, _, less = name.partition("-")
        self.kills_a_run = 1 if less else 6
        self.flags = ["--link", link] + (["--restarts", "0", "--min-workers", "1"] if less
                                         else ["--restarts", "50"])
        self.replaces = not less
        self.runs = 0

    def measure(self, rng, kills):
        """Returns recoveries and joining workers."""
        self.runs += 1
        folder = self.folder / str(self.runs)
        output, trace = folder / "out", folder / "trace.json"
        folder.mkdir(parents=True)
        command = [self.program, "run", "-np", str(WORKERS), "--quiet", *self.flags, "--output",
                   output, "--timeline", trace, self.job]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   text=True, env=os.environ | {"TMPDIR": str(folder)})
        metrics = output / "metrics.jsonl"
        times = []

        def events(name):
            return [line for line in lines_of(metrics) if line["event"] == name]

        wait_for(process, lambda: events("epoch"), "the first epoch")
        witness = rng.randrange(WORKERS)  # its timeline must last; others may be started again
        for _ in range(min(kills, self.kills_a_run)):
            time.sleep(rng.uniform(0.05, 0.3))
            workers = ranks_of(process.pid, "GRADUS_RANK")
            victim = rng.choice([rank for rank in sorted(workers) if rank != witness])
            times.append(time.monotonic_ns())
            os.kill(workers[victim], signal.SIGKILL)
            wait_for(process, lambda: len(events("recovered")) == len(times), "the recovery")
            if self.replaces:
                wait_for(process, lambda: len(events("changed")) == len(times), "a new worker")
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=EVENT_MAX_S)
        seen = Witness(json.loads(trace.read_text()), witness)
        return ([seen.recovery(at, line["step"]) for at, line in zip(times, events("recovered"))],
                [seen.joining(line["step"]) for line in events("changed")])


def write_digits(folder):
    source = ROOT / "examples/digits"
    text = (source / "mlp.yaml").read_text().replace("epochs: 40", "epochs: 100000")
    path = folder / "digits.yaml"
    path.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))
    return path


def write_images(arguments, folder):
    images, labels, count = scaling.find_images(arguments.data, str(folder))
    path = folder / "images.yaml"
    path.write_text(scaling.JOB.format(
        model=arguments.model, layers=scaling.MODELS[arguments.model], images=images,
        labels=labels, test=count // 10, steps=1000000, batch=arguments.batch, shards=WORKERS,
        output=folder / "out"))
    return path


# ---- PyTorch -------------------------------------------------------------------------------------
class Torchrun:
    """The same network, batch and optimizer on the same file, as its users must write it."""
    kills_a_run = 3

    def __init__(self, arguments, name, folder):
        self.python, self.folder = arguments.python, folder / name
        self.flags = ["--monitor_interval", "0.1"] if name.endswith("-fast") else []
        self.runs = 0

    def measure(self, rng, kills):
        self.runs += 1
        folder = self.folder / str(self.runs)
        folder.mkdir(parents=True)
        command = [self.python, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node",
                   str(WORKERS), "--max_restarts", "50", *self.flags, "--log_dir", folder,
                   *WITH_PYTHON_3_11, __file__, "--torch-worker", folder]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=os.environ | {"OMP_NUM_THREADS": "1"})
        steps = folder / "steps.jsonl"

        def begun(life):
            return sum(line["life"] == life for line in lines_of(steps)) > 20

        wait_for(process, lambda: begun(0), "the first step")
        found = []
        for life in range(1, min(kills, self.kills_a_run) + 1):
            time.sleep(rng.uniform(0.05, 0.3))
            workers = ranks_of(process.pid, "RANK")
            killed = time.monotonic_ns()
            os.kill(workers[rng.choice(sorted(workers))], signal.SIGKILL)
            wait_for(process, lambda: begun(life), "the next step")
            ends = [line["ns"] for line in lines_of(steps) if line["life"] == life]
            usual = statistics.median(b - a for a, b in zip(ends, ends[1:]))
            found.append({"ms": (ends[0] - killed - usual) / 1e6})
        process.terminate()
        process.wait(timeout=EVENT_MAX_S)
        return found, []


def torch_worker(folder):
    import numpy
    import torch
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    with gzip.open(ROOT / "examples/digits/digits.csv.gz", "rt") as file:
        rows = numpy.loadtxt(file, delimiter=",", dtype=numpy.float32)
    x, y = torch.tensor(rows[:1437, :-1]), torch.tensor(rows[:1437, -1]).long()
    x = (x - x.mean()) / x.std()
    torch.manual_seed(7)
    nn = torch.nn
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 256),
                          nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002, weight_decay=0.01)
    saved, step = pathlib.Path(folder) / "checkpoint.pt", 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    whole = nn.parallel.DistributedDataParallel(model)
    lose = nn.CrossEntropyLoss()
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    share = 64 // WORKERS
    with open(pathlib.Path(folder) / "steps.jsonl", "a", buffering=1) as log:
        while True:
            order = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))
            mine = order[rank * share:(rank + 1) * share]
            optimizer.zero_grad(set_to_none=True)
            lose(whole(x[mine]), y[mine]).backward()
            optimizer.step()
            step += 1
            if rank == 0:
                log.write(json.dumps({"life": life, "step": step,
                                      "ns": time.monotonic_ns()}) + "\n")
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                            "step": step}, f"{saved}.new")
                os.replace(f"{saved}.new", saved)


# ---- The whole -----------------------------------------------------------------------------------
def spread(values):
    values = sorted(values)
    last = values[min(len(values) - 1, len(values) * 99 // 100)]
    return f"{statistics.median(values):,.1f} ms (median), {last:,.1f} ms (p99)"


def report(samples):
    for name in dict.fromkeys(sample["candidate"] for sample in samples):
        own = [sample for sample in samples if sample["candidate"] == name]
        lost = [sample for sample in own if sample["kind"] == "recovery"]
        text = f"{name}: {spread([s['ms'] for s in lost])} over {len(lost)} kills"
        if "detect" in lost[0]:
            text += "; medians: " + ", ".join(
                f"{part} {statistics.median(s[part] for s in lost):.1f}" for part in DETAILS)
        print(text)
        came = [sample for sample in own if sample["kind"] == "joining"]
        if came:
            print(f"    a joining worker: {spread([s['ms'] for s in came])} of the others' time, "
                  f"{statistics.median(s['still'] for s in came):.1f} ms of it before the first "
                  f"step with it; a step: {statistics.median(s['usual'] for s in came):.1f} ms; "
                  f"{len(came)} joining workers")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50, help="of each candidate")
    parser.add_argument("--candidates", default="shm,tcp,shm-less,tcp-less,torchrun,torchrun-fast")
    parser.add_argument("--model", choices=("digits", "mlp", "cnn"), default="digits")
    parser.add_argument("--data", help="folder of MNIST's images, for mlp and cnn")
    parser.add_argument("--batch", type=int, default=512, help="global batch, for mlp and cnn")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--samples", type=pathlib.Path)
    parser.add_argument("--gradus", default=str(ROOT / "build/gradus"))
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    parser.add_argument("--torch-worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.torch_worker:
        torch_worker(arguments.torch_worker)
    if arguments.model != "digits" and not arguments.data:
        parser.error("--model mlp and cnn need --data")
    rng = random.Random(arguments.seed)
    samples = lines_of(arguments.samples) if arguments.samples else []
    with tempfile.TemporaryDirectory() as place:
        folder = pathlib.Path(place)
        job = write_digits(folder) if arguments.model == "digits" \
            else write_images(arguments, folder)
        left = {}
        for name in arguments.candidates.split(","):
            if name.startswith("torchrun") and arguments.model != "digits":
                continue
            make = Torchrun(arguments, name, folder) if name.startswith("torchrun") \
                else Gradus(arguments, name, folder, job)
            left[name] = [make, arguments.kills]
        while any(kills > 0 for _, kills in left.values()):
            for name, entry in left.items():
                if entry[1] <= 0:
                    continue
                lost, came = entry[0].measure(rng, entry[1])
                entry[1] -= entry[0].kills_a_run
                new = [{"candidate": name, "kind": "recovery", **one} for one in lost] + \
                      [{"candidate": name, "kind": "joining", **one} for one in came]
                samples += new
                if arguments.samples:
                    with open(arguments.samples, "a") as file:
                        file.writelines(json.dumps(one) + "\n" for one in new)
    report(samples)


if __name__ == "__main__":
    main()

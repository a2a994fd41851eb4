#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Kills processes of a training job at random moments, run after run, and looks at what comes of
it.

    bench/chaos.py --runs 200 --build build
    bench/chaos.py --runs 50 --add --build build
    bench/chaos.py --runs 50 --coordinator --build build
    bench/chaos.py --runs 50 --launcher --build build
    bench/chaos.py --runs 300 --any --build build
    bench/chaos.py --runs 100 --servers 2 --build build
    bench/chaos.py --runs 40 --servers 3 --consistency async --build build

Each run is the digits job with 4 workers, by shared memory and by tcp in turn, every second pair of
runs with checkpoints. A random process of it is killed by SIGKILL at a random moment: a worker of
any rank, or the agent, which is the workers' parent; in a quarter of the runs a second one follows
within 0.2 s. The launcher is never killed, nor what holds the coordinator. With --launcher the
launcher is killed (`gradus run`), or the process that supervises the job (`gradus-job`), or both
within 0.2 s; in two runs of three a worker as well, at once or within 0.2 s. A launcher that was
killed is started again with the same command line within a second, as systemd would. With --add the
job begins with 2 workers of at most 4, half of the time with a standby, and others come and go as
well (gradus scale): 3 or 4 events a run. With --coordinator the workers are started by hand, and
the coordinator (gradus rendezvous) is killed: alone, together with rank 0, or with some rank within
0.2 s, which may be the one that has taken over. With --servers the job has strategy ps and so many
parameter servers, which are killed like the others; with --consistency async or ssp workers are
asynchronous.

With --any every process of a job may be killed, each kind as likely as the others: a worker, rank
0, a parameter server, an agent, what guards an agent, the launcher, the supervisor (which holds
the coordinator) and its deputy; in a quarter of the runs a second one within 0.2 s. In one of six
runs the moment is any, from the launcher's first on, else the job has begun to train. Every third
run has two parameter servers. A launcher that was killed is started again within a second. Told as
well: by kind, in runs with one kill while it trained, the time from the kill to the end of the
next step, by the job's timeline: of the longest of the next three, since the killed process may
have given its part.

Told in the end: how many runs ended by themselves, with the weights (SHA-256) of an undisturbed
run (async, ssp: with an accuracy on the test part at most one point below the least of three); how
many were restarted; what was left behind (processes, and with them their sockets and anonymous
memory; files); and how long it took from a kill until the others were ready for the next step, as
the job itself reports it. Exit code 1: a run went wrong; its seed is named, and --first
SEED --runs 1 repeats it.
"""
import argparse
import collections
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

from processes import agents_of, children, marked, name, variable, words

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKERS = 4
MARK = "GRADUS_CHAOS_MARK"
COORDINATOR = -1


class Plan:
    """What happens in a run: flags, and (moment, what, number) in the order of time."""

    def __init__(self, seed, seconds, mode, epochs=1, before_s=0):
        """With `any` the training takes `seconds`, and begins before_s after the start."""
        rng = random.Random(seed)
        self.epoch = 0  # its moments count from the end of this one on; 0: from the start on
        self.flags = ["--link", "tcp" if seed % 2 else "shm"]
        if seed // 2 % 2:
            self.flags += ["--checkpoint-every", "40 steps"]
        if mode == "add":
            self.flags += ["-np", "2", "--max-workers", str(WORKERS), "--spare",
                           str(rng.randrange(2))]
            moments = sorted(rng.random() * seconds for _ in range(rng.choice([3, 4])))
            self.events = [(moment, *rng.choice([("kill", rng.randrange(1000)),
                                                 ("scale", rng.choice([2, 3, 4]))]))
                           for moment in moments]
        elif mode == "launcher":
            self.flags += ["-np", str(WORKERS)]
            first, second = rng.random() * seconds, rng.random() * 0.2
            self.again_s = rng.random()  # until it is started again
            victims = rng.choice([["launcher"], ["supervisor"], ["launcher", "supervisor"],
                                  ["supervisor", "launcher"]])
            self.events = [(first + i * rng.random() * 0.2, f"kill {victim}", 0)
                           for i, victim in enumerate(victims)]
            if seed % 3:
                self.events.append((first + second * (seed % 3 - 1), "kill worker",
                                    rng.randrange(1000)))
            self.events.sort()
        elif mode == "any":
            self.flags += ["-np", str(WORKERS)]
            if seed % 3 == 0:
                self.flags += ["--servers", "2", "--set", "distribution.strategy=ps"]
            self.again_s = rng.random()
            self.epoch = rng.randrange(1, epochs) if rng.randrange(6) > 0 else 0
            moments = [rng.random() * (seconds / epochs if self.epoch > 0 else before_s + seconds)]
            moments += [moments[0] + rng.random() * 0.2] if seed % 4 == 3 else []
            self.events = [(moment, "kill", rng.randrange(1 << 30)) for moment in moments]
        elif mode == "coordinator":
            first, second = rng.random() * seconds, rng.random() * 0.2
            self.events = [(first, "kill", COORDINATOR)]
            if seed % 3:
                self.events.append((first, "kill", 0) if seed % 3 == 1 else
                                   (first + second, "kill", rng.randrange(WORKERS)))
        else:
            self.flags += ["-np", str(WORKERS)]
            moments = [rng.random() * seconds]
            moments += [moments[0] + rng.random() * 0.2] if seed % 4 == 3 else []
            self.events = [(moment, "kill", rng.randrange(1000)) for moment in moments]
        self.kills = sum(what.startswith("kill") for _, what, _ in self.events)

    def __str__(self):
        return f"{' '.join(self.flags)}: " + ", ".join(
            f"{what} {number} at {moment:.3f} s" for moment, what, number in self.events)


class Job:
    def __init__(self, gradus, folder, epochs, patience_s, servers, more):
        self.gradus, self.folder, self.patience_s = gradus, pathlib.Path(folder), patience_s
        source = ROOT / "examples/digits"
        text = (source / "mlp.yaml").read_text().replace("epochs: 40", f"epochs: {epochs}")
        if servers > 0:
            text = text.replace("distribution:\n",
                                f"distribution:\n  strategy: ps\n  servers: {servers}\n{more}")
        self.path = self.folder / "job.yaml"
        self.path.write_text(text.replace("file: digits.csv.gz", f"file: {source}/digits.csv.gz"))
        self.runtime = self.folder / "runtime"  # where jobs are found
        self.runtime.mkdir(mode=0o700)
        self.files = {"job.yaml", "runtime"}
        self.killed, self.also_recovered = [], None
        self.times = []  # (kind, seconds) from a kill to the end of the next step

    def start(self, flags, output, env):
        """Its processes."""
        return [subprocess.Popen(
            [self.gradus, "run", *flags, "--output", output, self.path],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)]

    def happen(self, processes, what, number):
        """Returns the kind of what was killed."""
        launcher = processes[0].pid
        if what == "scale":
            subprocess.run([self.gradus, "scale", "--to", str(number), "--job", str(launcher)],
                           capture_output=True, timeout=self.patience_s)
            return ""
        agents = agents_of(launcher)
        pids = agents + [worker for agent in agents for worker in children(agent)]
        if not pids:
            return ""
        victim = pids[number % len(pids)]
        servers = [pid for pid in pids if b"server" in words(pid)]
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            return ""
        return "agent" if victim in agents else "server" if victim in servers else "worker"

    def end(self, processes, plan):
        """All that they have said."""
        return "".join(process.communicate(timeout=self.patience_s)[1] for process in processes)

    def left(self, output, mark):
        """What a run should not leave behind; "" if there is nothing of it."""
        processes = marked(MARK, mark)
        files = {entry.name for entry in output.iterdir()}
        files -= {"metrics.jsonl", "model.safetensors", "checkpoints"}
        files |= {entry.name for entry in output.glob("checkpoints/*.partial")}
        files |= {entry.name for entry in self.folder.iterdir()} - self.files
        files |= {entry.name for entry in self.runtime.glob("gradus/*")} - self.files
        self.files |= files  # those of one run are told once
        return (f"processes {processes} are left" if processes else
                f"files {sorted(files)} are left" if files else "")

    def run(self, name, plan):
        """Returns what was wrong ("" if nothing), what was told of the end, the recoveries,
        whom we killed, how often the job was restarted, and the seconds."""
        output, mark = self.folder / f"out{name}", f"{os.getpid()}-{name}"
        self.files.add(output.name)
        processes = self.start(plan.flags, output,
                               os.environ | {MARK: mark, "TMPDIR": str(self.folder),
                                             "XDG_RUNTIME_DIR": str(self.runtime)})
        begin = time.monotonic()
        killed = []
        if plan.epoch > 0:
            self.await_epoch(processes, plan.epoch)
        trains = time.monotonic()
        self.before_s = trains - begin
        for moment, what, number in plan.events:
            time.sleep(max(0, trains + moment - time.monotonic()))
            killed.append(self.happen(processes, what, number))
        try:
            errors = self.errors = self.end(processes, plan)
        except subprocess.TimeoutExpired:
            end_all(mark)
            for process in processes:
                process.communicate()
            return f"did not end within {self.patience_s:g} s", None, [], killed, 0, 0
        seconds = time.monotonic() - trains
        restarts = errors.count("all workers are restarted")
        codes = [process.returncode for process in processes if process not in self.killed]
        if any(codes):
            wrong = f"exit codes {codes}: {errors.strip()}"
            return wrong, None, [], killed, restarts, seconds
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        recovered = [line["seconds"] for line in lines
                     if line["event"] in ("recovered", self.also_recovered)]
        return (self.left(output, mark), lines[-1], recovered, killed, restarts, seconds)


class JobByHand(Job):
    """Without a launcher: the coordinator is the last of its processes."""

    def start(self, flags, output, env):
        self.killed, self.also_recovered = [], "changed"
        coordinator = subprocess.Popen(
            [self.gradus, "rendezvous", "-np", str(WORKERS), "--min-workers", "1", "--listen",
             "127.0.0.1", "--print-secret"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
        told = dict(coordinator.stdout.readline().strip().split("=", 1) for _ in range(5))
        env = env | told | {"OMP_NUM_THREADS": "1", "GRADUS_LINK": flags[flags.index("--link") + 1]}
        more = flags[2:]
        with tempfile.TemporaryFile() as document:
            subprocess.run([self.gradus, "run", "--dry-run", "--json", *more, "--output", output,
                            self.path], stdout=document, check=True, env=env)
            workers = [subprocess.Popen(
                [self.gradus, "worker"], stdin=document, stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE, text=True, env=env | {"GRADUS_RANK": str(rank)})
                for rank in range(WORKERS)]
        metrics = output / "metrics.jsonl"
        end = time.monotonic() + self.patience_s
        while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < end:
            time.sleep(0.002)
        return [*workers, coordinator]

    def happen(self, processes, what, number):
        victim = processes[number]
        if victim.poll() is not None:
            return ""
        victim.kill()
        self.killed.append(victim)
        return "coordinator" if number == COORDINATOR else "worker"


class JobThatOutlives(Job):
    """Its launcher is killed, and started again by the same command line."""

    def happen(self, processes, what, number):
        if what == "kill launcher":
            processes[0].kill()
            return "launcher"
        pids = marked(MARK, self.env[MARK])
        if what == "kill supervisor":
            pids = [pid for pid in pids if name(pid) == "gradus-job"]
        else:
            pids = [pid for pid in pids if words(pid)[1:2] == [b"worker"]]
        if not pids:
            return ""
        try:
            os.kill(pids[number % len(pids)], signal.SIGKILL)
        except ProcessLookupError:
            return ""
        return what.split()[1]

    def start(self, flags, output, env):
        self.env, self.words = env, (flags, output)
        return super().start(flags, output, env)

    def end(self, processes, plan):
        """All that it has said. Who comes when all is over finds the exit code, or that the
        launcher of before had it."""
        first = processes[0].communicate(timeout=self.patience_s)[1]
        if not plan.events or processes[0].returncode != -signal.SIGKILL:
            return first
        if self.is_over():
            self.killed = [processes[0]]
            return first
        time.sleep(plan.again_s)
        self.killed = [processes[0]]
        processes += super().start(*self.words, self.env)
        return first + processes[1].communicate(timeout=self.patience_s)[1]


    def is_over(self):
        """It is told that it has ended, and its exit code is received."""
        metrics = self.words[1] / "metrics.jsonl"
        return metrics.exists() and '"event":"end"' in metrics.read_text() and \
            not list(self.runtime.glob("gradus/*"))


class JobOfAll(JobThatOutlives):
    """Any of its processes is killed."""

    def find(self, launcher):
        """By kind, all that run."""
        found = {}
        for pid in marked(MARK, self.env[MARK]):
            kind = {"gradus-job": "supervisor", "gradus-deputy": "deputy",
                    "gradus-agent": "agent", "gradus-guard": "guard"}.get(name(pid))
            role = words(pid)[1:2]
            if kind is None and role == [b"server"]:
                kind = "server"
            elif kind is None and role == [b"worker"]:
                kind = "rank 0" if variable(pid, "GRADUS_RANK") == "0" else "worker"
            elif kind is None and pid == launcher.pid and launcher.poll() is None:
                kind = "launcher"
            if kind is not None:
                found.setdefault(kind, []).append(pid)
        return found

    def happen(self, processes, what, number):
        found = self.find(processes[0])
        if not found:
            return ""
        rng = random.Random(number)
        kind = rng.choice(sorted(found))
        self.kills.append((kind, time.monotonic_ns(), self.has_ended(1)))
        try:
            os.kill(rng.choice(sorted(found[kind])), signal.SIGKILL)
        except ProcessLookupError:
            self.kills.pop()
            return ""
        return kind

    def has_ended(self, epoch):
        try:
            return f'"epoch":{epoch},' in (self.words[1] / "metrics.jsonl").read_text()
        except OSError:
            return False

    def await_epoch(self, processes, epoch):
        until = time.monotonic() + self.patience_s
        while not self.has_ended(epoch) and processes[0].poll() is None and \
                time.monotonic() < until:
            time.sleep(0.002)

    def start(self, flags, output, env):
        self.kills, self.trace = [], self.folder / f"{output.name}.json"
        self.files.add(self.trace.name)
        return super().start([*flags, "--export", f"GRADUS_TIMELINE={self.trace}"], output, env)

    def end(self, processes, plan):
        try:
            return super().end(processes, plan)
        finally:
            subprocess.run([self.gradus, "timeline", "-np", str(WORKERS), self.trace],
                           capture_output=True, timeout=self.patience_s)
            if self.trace.exists():
                if len(self.kills) == 1 and self.kills[0][2]:
                    self.note(*self.kills[0][:2])
                self.trace.unlink()

    def note(self, kind, killed_ns):
        """A step or two to which the killed process has given its part may end as if nothing
        were: the time is that to the end of the longest of the next three, as half of the ranks
        saw it."""
        trace = json.loads(self.trace.read_text())
        base = trace["otherData"]["monotonic_ns"]
        ends = {}
        for event in trace["traceEvents"]:
            if event["name"] == "step":
                ends.setdefault(event["pid"], []).append(base + (event["ts"] + event["dur"]) * 1e3)
        found = []
        for of_rank in ends.values():
            marks = [killed_ns, *sorted(end for end in of_rank if end > killed_ns)[:3]]
            if len(marks) == 4:
                longest = max(range(1, 4), key=lambda at: marks[at] - marks[at - 1])
                found.append(marks[longest] - killed_ns)
        if found:
            self.times.append((kind, statistics.median_low(found) / 1e9))


class Judge:
    """Of what the ends of runs have in common: all weights, or where each worker goes its own way
    the least accuracy."""

    def __init__(self, exact):
        self.exact, self.wanted = exact, None

    def learn(self, end):
        if self.exact:
            self.wanted = end["weights_sha256"]
        else:
            self.wanted = min(self.wanted or 1.0, end["test_accuracy"])

    def wrong(self, end):
        if self.exact:
            got = end["weights_sha256"]
            return "" if got == self.wanted else f"other weights: {got}"
        got = end["test_accuracy"]
        return "" if got >= self.wanted - 0.01 else f"accuracy {got:.4f}, not {self.wanted:.4f}"


def end_all(mark):
    """Those that share a memory take over from each other."""
    while pids := marked(MARK, mark):
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def memory_files():
    return {entry.name for entry in pathlib.Path("/dev/shm").iterdir()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, help="seed of the first run")
    parser.add_argument("--add", dest="mode", action="store_const", const="add", default="kill",
                        help="workers come and go as well")
    parser.add_argument("--coordinator", dest="mode", action="store_const", const="coordinator",
                        help="workers started by hand, and the coordinator is killed")
    parser.add_argument("--launcher", dest="mode", action="store_const", const="launcher",
                        help="the launcher is killed, and started again, or the supervisor is")
    parser.add_argument("--any", dest="mode", action="store_const", const="any",
                        help="any process is killed; every third run has two parameter servers")
    parser.add_argument("--servers", type=int, default=0, help="strategy ps, with so many")
    parser.add_argument("--consistency", choices=["async", "ssp"],
                        help="with servers: each worker goes its own way")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--build", default=ROOT / "build")
    parser.add_argument("--patience", type=float, default=90,
                        help="seconds in which a run must end: more for a build with a sanitizer")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    arguments = parser.parse_args()
    gradus = str(pathlib.Path(arguments.build).resolve() / "gradus")
    good, done, doubles, restarted, times, killed = 0, 0, 0, 0, [], []
    begin, before = time.monotonic(), memory_files()
    with tempfile.TemporaryDirectory() as folder:
        kind = {"coordinator": JobByHand, "launcher": JobThatOutlives,
                "any": JobOfAll}.get(arguments.mode, Job)
        more = {"async": "  consistency: async\n", None: "",
                "ssp": "  consistency: ssp\n  staleness: 3\n"}[arguments.consistency]
        job = kind(gradus, folder, arguments.epochs, arguments.patience, arguments.servers, more)
        judge = Judge(arguments.consistency is None)
        quiet = Plan(0, 1, arguments.mode if kind is JobByHand else "kill")
        quiet.events, quiet.epoch = [], int(kind is JobOfAll)
        seconds = before_s = float("inf")
        for i in range(3):  # the shortest: on a busy machine kills would come when all is over
            wrong, end, _, _, _, needed = job.run(f"undisturbed{i}", quiet)
            if wrong:
                sys.exit(f"the undisturbed run: {wrong}")
            judge.learn(end)
            seconds, before_s = min(seconds, needed), min(before_s, job.before_s)
        for seed in range(arguments.first, arguments.first + arguments.runs):
            if time.monotonic() - begin > arguments.seconds:
                break
            plan = Plan(seed, seconds, arguments.mode, arguments.epochs, before_s)
            wrong, end, recovered, victims, restarts, _ = job.run(seed, plan)
            wrong = wrong or judge.wrong(end)
            done += 1
            good += not wrong
            doubles += plan.kills > 1
            restarted += restarts > 0
            times += recovered
            killed += victims
            if wrong or restarts:
                why = wrong or f"was restarted: {job.errors.strip()}"
                print(f"seed {seed}, {plan}: killed {victims}: {why}", flush=True)
    print(f"{done} runs, {doubles} of them with two kills or more: {good} ended by themselves with "
          f"{'the weights' if judge.exact else 'the accuracy'} of the undisturbed run")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(collections.Counter(
        kind for kind in killed if kind).items()))
    print(f"killed: {kinds or 'nothing'}; {restarted} runs were restarted")
    print(f"left behind in /dev/shm: {sorted(memory_files() - before) or 'nothing'}")
    if times:
        times.sort()
        print(f"ready again after {1e3 * statistics.median(times):.0f} ms (median), "
              f"{1e3 * times[min(len(times) - 1, len(times) * 99 // 100)]:.0f} ms (p99), "
              f"{len(times)} recoveries")
    for kind in sorted({kind for kind, _ in job.times}):
        own = sorted(1e3 * seconds for of, seconds in job.times if of == kind)
        print(f"{kind}: the next step is over after {statistics.median(own):.1f} ms "
              f"(median), {own[min(len(own) - 1, len(own) * 99 // 100)]:.1f} ms (p99), "
              f"{len(own)} kills")
    sys.exit(good != done)


if __name__ == "__main__":
    main()

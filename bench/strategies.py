#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Samples per second of the ways in which gradients can meet, as the number of workers grows.

    bench/strategies.py                  this host, and network namespaces at 1 Gbit/s (as root)
    bench/strategies.py --short          less of all, within five minutes
    bench/strategies.py --docs docs      writes the tables and plots into docs/strategies.md

Jobs of `gradus run` with 64 samples a worker, one thread each: a CNN of few parameters and an MLP
of many. All strategies take turns, round after round; the figures are medians over the rounds.
Efficiency is the rate over that of one worker times the workers, or the cores if these are fewer.
`gradus simulate` continues the curves, with the measured time of one worker's step.

Where the machine is quiet for short times only, one place or model can be measured at a time:
--places, --models, --json, and --add with what was measured before."""
import argparse
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import plot
import scaling

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench" / "hosts"))
import hosts as namespaces  # noqa: E402, from the folder beside this one
import sshd  # noqa: E402

BATCH = 64  # of a worker
TEST = 64
PATIENCE_S = 120
PAYLOAD = 1448 / 1514  # of a TCP stream's frames
BEGIN, END = "<!-- strategies: begin -->", "<!-- strategies: end -->"

MODELS = {
    "CNN": """
  - conv2d: {channels: 16, kernel: 5, padding: 2}
  - relu
  - max_pool: {kernel: 2}
  - conv2d: {channels: 32, kernel: 5, padding: 2}
  - relu
  - global_pool
  - linear: {units: 10}
""",
    "MLP": """
  - flatten
  - linear: {units: 1024}
  - relu
  - linear: {units: 1024}
  - relu
  - linear: {units: 10}
""",
}

JOB = """name: strategies
model:{model}
data:
  format: idx
  images: {images}
  labels: {labels}
  scale: 0.00392156862745098
  test_count: {test}
loss: cross_entropy
optimizer: {{kind: sgd, learning_rate: 0.001, momentum: 0.9}}
steps: {steps}
global_batch: {batch}
eval_every: 0
distribution: {{{distribution}}}
"""


class Strategy:
    """Words of the distribution part; of `gradus run`; of `gradus simulate ps`."""

    def __init__(self, color, distribution, servers=0, simulated=()):
        self.color, self.distribution, self.servers = color, distribution, servers
        self.simulated = [*simulated, *(["--servers", str(servers)] if servers else [])]
        self.apart = any(word in distribution for word in ("local", "ssp", "async"))


STRATEGIES = {
    "allreduce": Strategy("#000000", "strategy: allreduce", 0, ["--strategy", "allreduce"]),
    # The momentum is averaged with the weights: as many bytes as weights alone every 5 steps.
    "local, 10 steps": Strategy("#2ca02c", "strategy: local, sync_every: 10 steps", 0,
                                ["--strategy", "local", "--sync-every", "5"]),
    **{f"ps bsp, {n} server{'s' * (n > 1)}":
       Strategy(color, "strategy: ps, consistency: bsp", n, ["--strategy", "bsp"])
       for n, color in ((1, "#9ecae1"), (2, "#4292c6"), (4, "#08519c"))},
    "ps ssp: 3, 2 servers": Strategy("#ff7f0e", "strategy: ps, consistency: ssp, staleness: 3", 2,
                                     ["--strategy", "ssp", "--staleness", "3"]),
    "ps async, 2 servers": Strategy("#d62728", "strategy: ps, consistency: async", 2,
                                    ["--strategy", "async"]),
}


class Failed(Exception):
    """A run that did not end well; the text is what it said."""


class Place:
    """This host."""
    name = "one host"

    def command(self, options, workers):
        return [options.gradus, "run", "-np", str(workers)]

    def environment(self):
        return None


class Namespaces(Place):
    """A worker on each of several hosts; a server on the first of them, the second, ..."""

    def __init__(self, made, logins, rate):
        self.made, self.logins, self.name = made, logins, rate

    def command(self, options, workers):
        names = ",".join(f"{name}:1" for name in self.logins.names[:workers])
        return self.logins.words(options.gradus, ["-H", names, "-np", workers])

    def environment(self):
        return {**os.environ, "PATH": self.logins.path()}


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        images = max(options.workers) * BATCH * 10 + TEST
        self.images, self.labels, _ = scaling.make_images(folder, images)
        self.missing = {}
        self.parameters = {}

    def job(self, model, strategy, workers, steps):
        path = os.path.join(self.folder, "job.yaml")
        words = f"{strategy.distribution}, shards: {workers}"
        if "ssp" in strategy.distribution or "async" in strategy.distribution:
            words = strategy.distribution  # no shards: each push is a worker's own
        with open(path, "w", encoding="utf-8") as file:
            file.write(JOB.format(model=MODELS[model], images=self.images, labels=self.labels,
                                  test=TEST, steps=steps, batch=BATCH * workers,
                                  distribution=words))
        return path

    def run(self, place, model, strategy, workers, steps):
        """Samples per second of all workers together, from the first step to the last one: rank 0's
        own time in steps would leave out that of others where nobody waits."""
        output = os.path.join(self.folder, "out")
        command = place.command(self.options, workers)
        if strategy.servers:
            command += ["--servers", str(strategy.servers),
                        "--server-replicas", str(int(self.options.replicas))]
        command += ["--output", output, self.job(model, strategy, workers, steps)]
        try:
            done = subprocess.run(command, env=place.environment(), cwd=self.folder,
                                  capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"not done within {PATIENCE_S} s") from error
        if done.returncode != 0:
            raise Failed(done.stderr.strip())
        lines = [json.loads(line) for line in
                 pathlib.Path(output, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        self.parameters[model] = lines[0]["parameters"]
        return steps * BATCH * workers / lines[-1]["seconds"]

    def usable(self):
        """Those that this build has; of the others it is said why they are left out."""
        for name, strategy in STRATEGIES.items():
            servers = ["--servers", str(strategy.servers)] if strategy.servers else []
            done = subprocess.run([self.options.gradus, "run", "-np", "1", "--dry-run", *servers,
                                   self.job("CNN", strategy, 1, 20)], cwd=self.folder,
                                  capture_output=True, text=True, check=False)
            if done.returncode != 0:
                line = done.stderr.strip().splitlines()[-1]
                self.missing[name] = re.sub(r"^gradus: \S*job\.yaml:\d+: ", "", line)
                print(f"strategies: without {name}: {self.missing[name]}", file=sys.stderr)
        return [name for name in STRATEGIES if name not in self.missing]

    def measure(self, place, model, names):
        """{strategy: {workers: samples per second}}; without those that fail. Where workers do not
        meet in each step, some begin before rank 0 counts: a run must be much longer than that."""
        rates = {name: {} for name in names}
        steps = {}
        for workers in self.options.workers:
            probe = self.run(place, model, STRATEGIES["allreduce"], workers, 20)
            steps[workers] = max(20, round(self.options.seconds * probe / (BATCH * workers)))
        for turn in range(self.options.rounds):
            for workers in self.options.workers:
                for name in list(rates) if turn % 2 == 0 else reversed(list(rates)):
                    where = f"{place.name}, {model}, {workers} workers, {name}"
                    try:
                        count = steps[workers]
                        count = max(60, 2 * count) if STRATEGIES[name].apart else count
                        rate = self.run(place, model, STRATEGIES[name], workers, count)
                    except Failed as error:
                        if name == "allreduce":  # what all others are compared with
                            raise Failed(f"{where}: {error}") from error
                        self.missing[where] = str(error)
                        del rates[name]
                        print(f"{where}: failed: {error}", file=sys.stderr)
                        continue
                    rates[name].setdefault(workers, []).append(rate)
                    print(f"{where}: {rate:,.0f} samples/s", file=sys.stderr)
        return {name: {workers: statistics.median(values) for workers, values in found.items()}
                for name, found in rates.items()}

    def simulate(self, model, rate, name):
        """{workers: samples per second}, a worker on each host."""
        step_us = BATCH / rate * 1e6
        done = subprocess.run(
            [self.options.gradus, "simulate", "ps", "--json", "--scaling", "--hosts",
             str(self.options.simulated), "--batch", str(BATCH), "--gradients",
             str(4 * self.parameters[model]), "--bandwidth-gbit", f"{PAYLOAD:.3f}", "--forward",
             f"{step_us / 3:.0f}us", "--backward", f"{step_us * 2 / 3:.0f}us", "--update", "0",
             "--servers-on", "workers",
             "--replicas" if self.options.replicas else "--no-replicas",
             *STRATEGIES[name].simulated],
            capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"simulate, {name}: {done.stderr.strip()}")
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        return {row["workers"]: row["samples_per_s"] for row in rows if row.get("op") == "ps"}


# ---- What is made of it --------------------------------------------------------------------------

def ideal(rates, workers, cores):
    """Of so many workers that never wait for anything but a core."""
    return rates["allreduce"][1] * min(workers, cores)


def table(rates, cores):
    counts = sorted(rates["allreduce"])
    lines = ["| strategy | " + " | ".join(f"{n} worker{'s' * (n > 1)}" for n in counts) + " |",
             "| --- |" + " ---: |" * len(counts)]
    for name, found in rates.items():
        cells = [f"{found[n]:,.0f} ({100 * found[n] / ideal(rates, n, cores):.0f} %)"
                 for n in counts]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def nice(value):
    """The next larger round number that five divides well, with room for the names above it."""
    power = 10 ** (len(str(int(value))) - 1)
    return next(power * factor for factor in (1, 1.5, 2, 2.5, 3, 4, 5, 7.5, 10, 15)
                if power * factor >= 1.3 * value)


def plot_rates(results):
    panels = []
    for number, (model, rates) in enumerate(results.items()):
        counts = sorted(rates["allreduce"])
        top = nice(max(value for found in rates.values() for value in found.values()))
        panel = plot.Panel(number, f"{model}, one host: samples/s by workers", counts, top)
        for share in range(5):
            panel.rule(top * (share + 1) / 5, f"{top * (share + 1) / 5:,.0f}")
        for name, found in rates.items():
            panel.line(name, STRATEGIES[name].color, sorted(found.items()))
            panel.dots(name, STRATEGIES[name].color, sorted(found.items()))
        panels.append(panel)
    return plot.page(panels)


def plot_hosts(results, simulated, rate):
    """What was measured as points, what was simulated as lines."""
    panels = []
    for number, (model, rates) in enumerate(results.items()):
        counts = sorted(simulated[model]["allreduce"])
        every = [value for found in [*simulated[model].values(), *rates.values()]
                 for value in found.values()]
        low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
        panel = plot.Panel(number, f"{model}, {rate}: samples/s by workers", counts, 10 ** high,
                           10 ** low)
        for power in range(low, high + 1):
            panel.rule(10 ** power, f"{10 ** power:,}")
        panel.line("nobody ever waits", "#bbb",
                   [(n, n * simulated[model]["allreduce"][1]) for n in counts])
        for name, found in simulated[model].items():
            panel.line(name, STRATEGIES[name].color, sorted(found.items()))
        for name, found in rates.items():
            panel.dots(name, STRATEGIES[name].color, sorted(found.items()))
        panels.append(panel)
    return plot.page(panels)


def markdown(results, options):
    cores = results["cores"]
    parts = [f"`{results['command']}`: samples per second of all workers (efficiency), medians of "
             f"{options.rounds} round{'s' * (options.rounds > 1)}, {cores} cores, "
             f"servers with{'' if options.replicas else 'out'} replicas."]
    for place, models in results["places"].items():
        for model, rates in models.items():
            size = 4 * results["parameters"][model] / 2 ** 20
            parts += [f"**{model}, {size:.3g} MiB of parameters, {place}**", table(rates, cores)]
    for name, why in results["missing"].items():
        parts.append(f"Without {name}: {why}")
    for model, found in results["simulated"].items():
        counts = sorted(found["allreduce"])[::3] + [max(found["allreduce"])]
        counts = sorted(set(counts))
        parts += [f"**{model}, {options.rate}, simulated, a core for each worker**",
                  table({name: {n: rows[n] for n in counts} for name, rows in found.items()},
                        math.inf)]
    return "\n\n".join(parts) + "\n"


def write_docs(results, text, options):
    folder = options.docs / "performance"
    folder.mkdir(exist_ok=True)
    pictures = {}
    if Place.name in results["places"]:
        pictures["strategies-host"] = plot_rates(results["places"][Place.name])
    if options.rate in results["places"]:
        pictures["strategies-hosts"] = plot_hosts(results["places"][options.rate],
                                                  results["simulated"], options.rate)
    for name, picture in pictures.items():
        (folder / f"{name}.svg").write_text(picture, encoding="utf-8")
        text += f"\n![{name}](performance/{name}.svg)\n"
    page = options.docs / "strategies.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN, 1)
    page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}", encoding="utf-8")


def measure_hosts(bench, names, results):
    """In namespaces; without them (no root, no tc) only this host is measured."""
    options = bench.options
    logins = None
    try:
        with namespaces.Hosts(max(options.workers), options.rate, None, options.build) as made, \
                tempfile.TemporaryDirectory() as keys:
            logins = sshd.Logins(made, pathlib.Path(keys))
            try:
                logins.open()
                place = Namespaces(made, logins, options.rate)
                found = {model: bench.measure(place, model, names) for model in options.models}
                results["places"].setdefault(place.name, {}).update(found)
            finally:
                logins.close()
    except namespaces.Unavailable as error:
        print(f"strategies: one host only: {error}", file=sys.stderr)


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")],
                        default=[1, 2, 4, 8], help="numbers of them, 1 first (default 1,2,4,8)")
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--places", choices=["all", "host", "hosts", "none"], default="all",
                        help="this one, namespaces, both, or what --add has")
    parser.add_argument("--rate", default="1gbit", help="of each namespace's port")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3, help="of a run, about")
    parser.add_argument("--simulated", type=int, default=512, help="workers of the simulation")
    parser.add_argument("--replicas", action=argparse.BooleanOptionalAction, default=True,
                        help="of what servers keep, measured and simulated")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--docs", type=pathlib.Path, help="write the page and the plots there")
    parser.add_argument("--json", type=pathlib.Path, help="write all numbers there, too")
    parser.add_argument("--add", type=pathlib.Path, help="to the numbers of an earlier run")
    options = parser.parse_args()
    if options.short:
        options.workers, options.rounds, options.seconds = [1, 4], 1, 0.7
        options.simulated = min(options.simulated, 64)
    options.build = options.build.resolve()
    options.gradus = str(options.build / "gradus")
    if 1 not in options.workers:
        parser.error("--workers: 1 is needed, all others are compared with it")
    return options


def earlier(options):
    """What --add names; JSON has texts for the numbers of workers."""
    if options.add is None:
        return {"cores": len(os.sched_getaffinity(0)), "places": {}, "simulated": {},
                "parameters": {}, "missing": {}}
    results = json.loads(options.add.read_text(encoding="utf-8"))
    for models in [*results["places"].values(), results["simulated"]]:
        for model, rates in models.items():
            models[model] = {name: {int(n): rate for n, rate in found.items()}
                             for name, found in rates.items()}
    return results


def main():
    options = parse()
    results = earlier(options)
    # Where the numbers go says nothing of what they are.
    words = re.sub(r" --(docs|json|add|models|places|build)[ =]\S+", "",
                   " ".join(["", *sys.argv[1:]]))
    results["command"] = f"bench/strategies.py{words}"
    try:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(options, folder)
            bench.parameters.update(results["parameters"])
            names = bench.usable()
            if options.places in ("all", "host"):
                found = {model: bench.measure(Place(), model, names) for model in options.models}
                results["places"].setdefault(Place.name, {}).update(found)
            if options.places in ("all", "hosts"):
                measure_hosts(bench, names, results)
            for model in options.models:
                rate = max(rates[model]["allreduce"][1] for rates in results["places"].values()
                           if model in rates)
                results["simulated"][model] = {name: bench.simulate(model, rate, name)
                                               for name in STRATEGIES}
            results["missing"], results["parameters"] = bench.missing, bench.parameters
    except Failed as error:
        print(f"strategies: {error}", file=sys.stderr)
        return 1
    text = markdown(results, options)
    print(text)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if options.docs:
        write_docs(results, text, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())

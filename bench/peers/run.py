#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives on Gradus and on its peers, taking turns: Open MPI, MPICH, Gloo, torch.distributed.

Builds the programs for the peers that are installed (scripts/install-deps bench installs them all).
In each round each backend, in random order, runs one group of processes through all sizes; what
counts is the median over the rounds of the mean (or median) time of an operation. Results are
checked.

    bench/peers/run.py --quick                about three minutes
    bench/peers/run.py                        about half an hour
    bench/peers/run.py --docs                 and writes docs/performance.md and its plots
    bench/peers/run.py --report FILE --docs   the same from a file of results
    bench/peers/run.py --operation all --quick --modes host,tcp   every other operation

Modes: host (one host, whatever the backend does best there), tcp (TCP over loopback), hosts-1gbit
and hosts-10gbit (four network namespaces, bench/hosts; as root; sizes up to 32 MiB)."""
import argparse
import itertools
import json
import os
import pathlib
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import on_hosts
import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZES = {"quick": "4,1k,16k,256k,1m,4m,25m", "full": "4,64,1k,16k,64k,256k,1m,4m,25m,100m,256m"}
HOST_RATES = {"hosts-1gbit": "1gbit", "hosts-10gbit": "10gbit"}
MODES = ("host", "tcp", *HOST_RATES)
# What "all" stands for: allreduce has a table of its own.
OPERATIONS = ("broadcast", "reduce", "allgather", "reduce-scatter", "gather", "scatter", "alltoall",
              "sendrecv", "barrier")
CEILINGS = {"host": "ceiling", "tcp": "ceiling-tcp"}  # what their results are called
AFTER_RESULTS_S = 3
CORES = len(os.sched_getaffinity(0))


def size_bytes(text):
    factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1].lower())
    return int(text[:-1]) * factor if factor else int(text)


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20).stdout
    except OSError:
        return ""


# ---- Building ------------------------------------------------------------------------------------
def build(folder):
    """The programs of the peers that are there: name and path."""
    folder.mkdir(parents=True, exist_ok=True)
    made = {}
    steps = {"openmpi": ["mpicc.openmpi", "-O2", "-o", "{}", "peer_mpi.c", "-lm"],
             "mpich": ["mpicc.mpich", "-O2", "-o", "{}", "peer_mpi.c", "-lm"],
             "gloo": ["g++", "-O2", "-std=c++17", "-o", "{}", "peer_gloo.cc", "-lgloo",
                      "-lpthread"]}
    for name, command in steps.items():
        program = folder / f"peer_{name}"
        if shutil.which(command[0]) is None:
            print(f"{name}: {command[0]} is not installed; left out", file=sys.stderr)
            continue
        done = subprocess.run([word.format(program) for word in command], cwd=HERE,
                              capture_output=True, text=True)
        if done.returncode == 0:
            made[name] = program
        else:
            print(f"{name}: does not build; left out\n{done.stderr[:500]}", file=sys.stderr)
    torch = subprocess.run(["/usr/bin/python3", "-c", "import torch.distributed"],
                           capture_output=True)
    if torch.returncode == 0:
        made["torch"] = HERE / "peer_torch.py"
    return made


def versions():
    def first(pattern, text):
        found = re.search(pattern, text)
        return found.group(1) if found else "?"
    package = output_of("dpkg-query", "-W", "-f", "${Package} ${Version}\n", "libgloo-dev",
                        "python3-torch", "libucx0")
    return {"Open MPI": first(r"\) (\S+)", output_of("mpiexec.openmpi", "--version")),
            "UCX": first(r"libucx0 (\S+)", package),
            "MPICH": first(r"MPICH Version:\s+(\S+)", output_of("mpichversion")),
            "Gloo": first(r"libgloo-dev (\S+)", package),
            "PyTorch": first(r"python3-torch (\S+)", package),
            "Gradus": output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty").strip(),
            "kernel": platform.release(), "cores": CORES}


# ---- Backends ------------------------------------------------------------------------------------
class Backend:
    """One candidate. kind: gradus, openmpi, mpich, or single (we start each rank ourselves)."""

    def __init__(self, name, kind, program, more=(), environment=None, modes=("host",)):
        self.name, self.kind, self.program, self.more = name, kind, list(program), list(more)
        self.environment, self.modes = environment or {}, modes

    def does(self, operation):
        """Gloo has one algorithm for all but allreduce; the programs for torch and for Gloo leave
        out what they have no function for."""
        if self.name.startswith(("gloo", "torch")):
            return operation == "allreduce" or (self.name == "gloo-ring" and operation in (
                "broadcast", "reduce", "allgather", "gather", "scatter", "alltoall", "barrier"))
        return True

    def task(self, operation, sizes, time_us):
        """The words behind the program."""
        listed = ",".join(map(str, sizes))
        if self.kind == "gradus":
            return ["bench", operation, "--sizes", listed, "--time", f"{time_us}us", "--warmup",
                    "1",
                    "--placement", "in", "--json", *self.more]
        return [operation, listed, str(time_us)]

    def commands(self, task, ranks, folder):
        """On this host: words and environment of each process to start."""
        over = ranks > CORES
        if self.kind == "gradus":
            return [([*self.program, *task, "-np", str(ranks)], self.environment)]
        if self.kind == "openmpi":
            idle = ["--mca", "mpi_yield_when_idle", "1"] if over else []
            return [(["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", "--bind-to",
                      "none" if over else "core", *idle, *self.more, "-np", str(ranks),
                      *self.program, *task], self.environment)]
        if self.kind == "mpich":
            bind = [] if over else ["-bind-to", "core"]
            return [(["mpiexec.hydra", *bind, *self.more, "-np", str(ranks), *self.program, *task],
                     self.environment)]
        place = {"WORLD_SIZE": str(ranks), "PEER_FOLDER": folder}
        return [([*self.program, *task], self.environment | place | {"RANK": str(rank)})
                for rank in range(ranks)]


def backends(build_dir, made):
    apart = ("tcp", *HOST_RATES)
    ours = [str(build_dir / "gradus")]
    found = [Backend("gradus", "gradus", ours, ["--buffers", "registered"]),
             Backend("gradus-malloc", "gradus", ours, ["--buffers", "malloc"]),
             Backend("gradus-tcp", "gradus", ours, ["--link", "tcp"], modes=apart)]
    if "openmpi" in made:
        mpi, tcp = [str(made["openmpi"])], ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self"]
        ring = ["--mca", "coll_tuned_use_dynamic_rules", "1", "--mca",
                "coll_tuned_allreduce_algorithm", "4"]
        found += [Backend("ompi", "openmpi", mpi),
                  # Debian's build wants to be told that shared memory is a device for UCX.
                  Backend("ompi-ucx", "openmpi", mpi,
                          ["--mca", "pml", "ucx", "--mca", "pml_ucx_tls", "any", "--mca",
                           "pml_ucx_devices", "any"]),
                  Backend("ompi-tcp", "openmpi", mpi, tcp, modes=apart),
                  Backend("ompi-tcp-ring", "openmpi", mpi, tcp + ring, modes=tuple(HOST_RATES))]
    if "mpich" in made:
        # Debian's MPICH moves everything by UCX.
        found += [Backend("mpich", "mpich", [str(made["mpich"])]),
                  Backend("mpich-tcp", "mpich", [str(made["mpich"])],
                          ["-genv", "UCX_TLS", "tcp,self", "-genv", "MPIR_CVAR_NOLOCAL", "1"],
                          modes=apart)]
    if "gloo" in made:
        for algorithm in ("ring", "bcube", "halving-doubling", "ring-chunked"):
            found.append(Backend(f"gloo-{algorithm}", "single", [str(made["gloo"])],
                                 environment={"PEER_ALGORITHM": algorithm}, modes=("host", *apart)))
    if "torch" in made:
        found.append(Backend("torch-gloo", "single", ["/usr/bin/python3", str(made["torch"])],
                             environment={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                             modes=("host", *apart)))
    return found


# ---- Running -------------------------------------------------------------------------------------
def end(processes):
    for process in processes:
        if process.poll() is None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it leads no group
                process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def start_here(backend, task, ranks, folder, files):
    return [subprocess.Popen(words, env=os.environ | extra, **files)
            for words, extra in backend.commands(task, ranks, folder)], []


def wait_for(process, deadline, out, wanted):
    """Until it ends. Once all results are there, only a little longer: MPICH's launcher does not
    always see the end of ranks on other hosts."""
    while True:
        try:
            return process.wait(1)
        except subprocess.TimeoutExpired:
            text = os.pread(out.fileno(), 1 << 20, 0)
            if text.count(b"{") >= wanted:
                deadline = min(deadline, time.monotonic() + AFTER_RESULTS_S)
            if time.monotonic() > deadline:
                return 0 if text.count(b"{") >= wanted else None


def run_group(backend, task, ranks, hosts, limit_s):
    """One group of processes through all sizes: times by size; why not, in words."""
    started, helpers, times, reason = [], [], {}, None
    wanted = max(word.count(",") for word in task) + 1
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out, \
            tempfile.TemporaryFile("w+") as errors:
        files = {"stdout": out, "stderr": errors, "stdin": subprocess.DEVNULL,
                 "process_group": 0}
        try:
            started, helpers = (on_hosts.start(hosts, backend, task, folder, files) if hosts else
                                start_here(backend, task, ranks, folder, files))
            deadline = time.monotonic() + limit_s
            for process in started:
                code = wait_for(process, deadline, out, wanted)
                if code is None:
                    reason = f"not ready after {limit_s} s"
                    break
                if code != 0:
                    errors.seek(0)
                    reason = f"ended with {code}: {errors.read()[-300:].strip()}"
        finally:
            end(started + helpers)
        out.seek(0)
        for line in out:
            if line.startswith("{"):
                row = json.loads(line)
                if row["wrong"]:
                    raise SystemExit(f"{backend.name}: wrong results: {line}")
                times[row["size_bytes"]] = {"mean": row["time_us_mean"],
                                            "median": row["time_us_median"]}
    return times, reason


def run_ceiling(build_dir, mode, ranks, sizes, time_ms):
    """The bare reduction of bench_ceiling, in shared memory or by TCP, which takes turns with
    Gradus itself."""
    done = subprocess.run([str(build_dir / "bench" / "bench_ceiling"), "-n", str(ranks), "-s",
                           ",".join(map(str, sizes)), "-r", "3", "-d", str(time_ms / 1000),
                           *(["-t"] if mode == "tcp" else [])],
                          capture_output=True, text=True, timeout=300)
    pairs = {}
    for line in done.stdout.splitlines():
        words = line.split()
        if line.startswith("n=") and len(words) >= 5:
            pairs[int(words[2])] = [float(words[3]), float(words[4])]
    return pairs


def label(size, sizes):
    """The size asked for that this one stands for: blocks round it down."""
    return min(sizes, key=lambda wanted: abs(wanted - size))


class Results:
    """operation -> mode -> ranks -> backend -> size -> the rounds' figures."""

    def __init__(self, arguments, sizes):
        self.arguments, self.sizes, self.times, self.more = arguments, sizes, {}, {}

    def add(self, operation, mode, ranks, name, times):
        rows = self.times.setdefault(operation, {}).setdefault(mode, {})
        rows = rows.setdefault(str(ranks), {}).setdefault(name, {})
        for size, figures in times.items():
            rows.setdefault(str(label(size, self.sizes)), []).append(figures)

    def whole(self):
        command = " ".join(["bench/peers/run.py"] + sys.argv[1:])
        return {"operations": self.arguments.operations, "command": command, "versions": versions(),
                "sizes": self.sizes, "rounds": self.arguments.rounds, "times_us": self.times,
                **self.more}


def run_round(arguments, candidates, mode, ranks, results, dropped, hosts, began):
    order = [(operation, c) for operation in arguments.operations for c in candidates
             if mode in c.modes and c.does(operation)]
    random.shuffle(order)
    order.sort(key=lambda turn: arguments.operations.index(turn[0]))  # rivals run close together
    sizes = [size for size in results.sizes if mode not in HOST_RATES or size <= 32 << 20]
    for operation, backend in order:
        key = (operation, mode, ranks, backend.name)
        if key in dropped or time.monotonic() - began > arguments.minutes * 60:
            continue
        task = backend.task(operation, sizes if operation != "barrier" else sizes[:1],
                            arguments.time_ms * 1000)
        times, reason = run_group(backend, task, ranks, hosts, arguments.limit_s)
        results.add(operation, mode, ranks, backend.name, times)
        if reason:
            print(f"{operation} {mode} n={ranks} {backend.name}: {reason}", file=sys.stderr)
            dropped.add(key)


def measure(arguments, candidates):
    results = Results(arguments, [size_bytes(text) for text in arguments.sizes.split(",")])
    dropped, began = set(), time.monotonic()
    build_dir = pathlib.Path(arguments.build_dir).resolve()
    with_ceiling = ("allreduce" in arguments.operations and
                    (build_dir / "bench" / "bench_ceiling").exists())
    for turn in range(arguments.rounds):
        for mode in arguments.modes:
            with on_hosts.hosts_of(HOST_RATES.get(mode), build_dir) as hosts:
                if mode in HOST_RATES and hosts is None:
                    continue
                if hosts:
                    results.more.setdefault("payload", {}).setdefault(mode, []).append(
                        on_hosts.payload_bandwidth(hosts))
                for ranks in [hosts.count] if hosts else arguments.ranks:
                    run_round(arguments, candidates, mode, ranks, results, dropped, hosts, began)
        ceilings = [mode for mode in CEILINGS if with_ceiling and mode in arguments.modes]
        for mode, ranks in itertools.product(ceilings, arguments.ranks):
            pairs = results.more.setdefault(CEILINGS[mode], {}).setdefault(str(ranks), {})
            for size, pair in run_ceiling(build_dir, mode, ranks, results.sizes,
                                          arguments.time_ms).items():
                pairs.setdefault(str(size), []).append(pair)
        print(f"round {turn + 1} of {arguments.rounds}: {time.monotonic() - began:.0f} s",
              file=sys.stderr)
    return results.whole()


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes, ranks and rounds")
    parser.add_argument("--operation", default="allreduce",
                        help=f"one or several with commas between; all: {', '.join(OPERATIONS)}")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--ranks")
    parser.add_argument("--sizes")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--time-ms", type=int, help="time to measure for each size")
    parser.add_argument("--minutes", type=float, default=40, help="starts nothing after that")
    parser.add_argument("--limit-s", type=float, default=90, help="for one group of processes")
    parser.add_argument("--backends", help="a regular expression; default: all")
    parser.add_argument("--build-dir", default=str(ROOT / "build"))
    parser.add_argument("--output", help="file for the results (JSON)")
    parser.add_argument("--report", help="take the results from this file, measure nothing")
    parser.add_argument("--figure", choices=("mean", "median"), default="mean",
                        help="of the operations of a round; median: other load matters less")
    parser.add_argument("--docs", action="store_true", help="write docs/performance.md and plots")
    arguments = parser.parse_args()
    quick = arguments.quick
    arguments.sizes = arguments.sizes or SIZES["quick" if quick else "full"]
    arguments.rounds = arguments.rounds or (2 if quick else 5)
    arguments.time_ms = arguments.time_ms or (20 if quick else 50)
    arguments.ranks = [int(n)
                       for n in (arguments.ranks or ("2,4" if quick else "2,4,8")).split(",")]
    arguments.operations = (list(OPERATIONS) if arguments.operation == "all" else
                            arguments.operation.split(","))
    arguments.modes = arguments.modes.split(",")
    unknown = set(arguments.operations) - {"allreduce", "reduce-broadcast", *OPERATIONS}
    if unknown:
        parser.error(f"there is no operation {', '.join(unknown)}; there are allreduce, "
                     f"{', '.join(OPERATIONS)}")
    unknown = set(arguments.modes) - set(MODES)
    if unknown:
        parser.error(f"there is no mode {', '.join(unknown)}; there are {', '.join(MODES)}")
    return arguments


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and the peers with us
    arguments = parse()
    if arguments.report:
        results = json.loads(pathlib.Path(arguments.report).read_text())
    else:
        build_dir = pathlib.Path(arguments.build_dir).resolve()
        candidates = backends(build_dir, build(build_dir / "peers"))
        if arguments.backends:
            candidates = [c for c in candidates if re.search(arguments.backends, c.name)]
        results = measure(arguments, candidates)
        if arguments.output:
            pathlib.Path(arguments.output).write_text(json.dumps(results, indent=1) + "\n")
    results = report.choose(results, arguments.figure)
    text = report.markdown(results)
    print(text)
    if arguments.docs:
        report.write_docs(results, text, ROOT / "docs")


if __name__ == "__main__":
    main()

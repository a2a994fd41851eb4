#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One operation on Gradus and on its peers, taking turns: Open MPI, MPICH, Gloo, torch.distributed.

Builds the programs for the peers that are installed (scripts/install-deps bench installs them all).
In each round each backend, in random order, runs one group of processes through all sizes; what
counts is the median over the rounds of the mean (or median) time of an operation. Results are
checked.

    bench/peers/run.py --quick                about three minutes
    bench/peers/run.py                        about half an hour
    bench/peers/run.py --docs                 and writes docs/performance.md and its plots
    bench/peers/run.py --report FILE --docs   the same from a file of results

Modes: host (one host, whatever the backend does best there), tcp (TCP over loopback)."""
import argparse
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

import report

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SIZES = {"quick": "4,1k,16k,256k,1m,4m,25m", "full": "4,64,1k,16k,64k,256k,1m,4m,25m,100m,256m"}
MODES = ("host", "tcp")


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
             "gloo": ["g++", "-O2", "-std=c++17", "-o", "{}", "peer_gloo.cc", "-lgloo", "-lpthread"]}
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
            "kernel": platform.release(), "cores": len(os.sched_getaffinity(0))}


# ---- Backends ------------------------------------------------------------------------------------
class Backend:
    """How to run one candidate: commands with their environment, all of which end by themselves."""

    def __init__(self, name, words, environment=None, each_rank=False, modes=("host",)):
        self.name, self.words, self.modes = name, words, modes
        self.environment = environment or {}
        self.each_rank = each_rank  # one process a rank, started by us

    def commands(self, operation, sizes, ranks, time_us, folder):
        words = self.words(operation, sizes, ranks, time_us)
        if not self.each_rank:
            return [(words, self.environment)]
        place = {"WORLD_SIZE": str(ranks), "PEER_FOLDER": folder}
        return [(words, self.environment | place | {"RANK": str(rank)}) for rank in range(ranks)]


def gradus(build_dir, *more):
    def words(operation, sizes, ranks, time_us):
        return [str(build_dir / "gradus"), "bench", operation, "-np", str(ranks), "--sizes",
                ",".join(map(str, sizes)), "--time", f"{time_us}us", "--warmup", "1", "--placement",
                "in", "--json", *more]
    return words


def openmpi(program, cores, *more):
    def words(operation, sizes, ranks, time_us):
        over = ranks > cores
        bind = ["--bind-to", "none" if over else "core"]
        idle = ["--mca", "mpi_yield_when_idle", "1"] if over else []
        return ["mpiexec.openmpi", "--allow-run-as-root", "--oversubscribe", *bind, *idle, *more,
                "-np", str(ranks), str(program), operation, ",".join(map(str, sizes)), str(time_us)]
    return words


def mpich(program, cores):
    def words(operation, sizes, ranks, time_us):
        bind = [] if ranks > cores else ["-bind-to", "core"]
        return ["mpiexec.hydra", *bind, "-np", str(ranks), str(program), operation,
                ",".join(map(str, sizes)), str(time_us)]
    return words


def single(*command):
    def words(operation, sizes, ranks, time_us):
        return [*command, operation, ",".join(map(str, sizes)), str(time_us)]
    return words


def backends(build_dir, made, cores):
    both = ("host", "tcp")
    found = [Backend("gradus", gradus(build_dir, "--buffers", "registered")),
             Backend("gradus-malloc", gradus(build_dir, "--buffers", "malloc")),
             Backend("gradus-tcp", gradus(build_dir, "--link", "tcp"), modes=("tcp",))]
    if "openmpi" in made:
        mpi = made["openmpi"]
        found += [Backend("ompi", openmpi(mpi, cores)),
                  Backend("ompi-ucx", openmpi(mpi, cores, "--mca", "pml", "ucx", "--mca",
                                              "pml_ucx_tls", "any", "--mca", "pml_ucx_devices",
                                              "any")),
                  Backend("ompi-tcp", openmpi(mpi, cores, "--mca", "pml", "ob1", "--mca", "btl",
                                              "tcp,self"), modes=("tcp",))]
    if "mpich" in made:
        # Debian's MPICH moves everything by UCX.
        tcp = {"UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"}
        found += [Backend("mpich", mpich(made["mpich"], cores)),
                  Backend("mpich-tcp", mpich(made["mpich"], cores), tcp, modes=("tcp",))]
    if "gloo" in made:
        for algorithm in ("ring", "bcube", "halving-doubling", "ring-chunked"):
            found.append(Backend(f"gloo-{algorithm}", single(str(made["gloo"])),
                                 {"PEER_ALGORITHM": algorithm}, each_rank=True, modes=both))
    if "torch" in made:
        found.append(Backend("torch-gloo", single("/usr/bin/python3", str(made["torch"])),
                             {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}, each_rank=True,
                             modes=both))
    return found


# ---- Running -------------------------------------------------------------------------------------
def end(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run_group(backend, operation, sizes, ranks, time_us, limit_s):
    """One group of processes through all sizes: times by size; why not, in words."""
    started, times, reason = [], {}, None
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out, \
            tempfile.TemporaryFile("w+") as errors:
        try:
            for words, extra in backend.commands(operation, sizes, ranks, time_us, folder):
                started.append(subprocess.Popen(words, env=os.environ | extra, stdout=out,
                                                stderr=errors, stdin=subprocess.DEVNULL,
                                                start_new_session=True))
            deadline = time.monotonic() + limit_s
            for process in started:
                process.wait(max(deadline - time.monotonic(), 0.1))
                if process.returncode != 0:
                    errors.seek(0)
                    reason = f"ended with {process.returncode}: {errors.read()[-300:].strip()}"
        except subprocess.TimeoutExpired:
            reason = f"not ready after {limit_s} s"
        finally:
            end(started)
        out.seek(0)
        for line in out:
            if line.startswith("{"):
                row = json.loads(line)
                if row["wrong"]:
                    raise SystemExit(f"{backend.name}: wrong results: {line}")
                times[row["size_bytes"]] = {"mean": row["time_us_mean"],
                                            "median": row["time_us_median"]}
    return times, reason


def label(size, sizes):
    """The size asked for that this one stands for: blocks round it down."""
    return min(sizes, key=lambda wanted: abs(wanted - size))


def measure(arguments, candidates):
    sizes = [size_bytes(text) for text in arguments.sizes.split(",")]
    results, dropped = {}, set()
    began = time.monotonic()
    for turn in range(arguments.rounds):
        for mode in arguments.modes:
            for ranks in arguments.ranks:
                order = [c for c in candidates if mode in c.modes]
                random.shuffle(order)
                for backend in order:
                    key = (mode, ranks, backend.name)
                    if key in dropped or time.monotonic() - began > arguments.minutes * 60:
                        continue
                    times, reason = run_group(backend, arguments.operation, sizes, ranks,
                                              arguments.time_ms * 1000, arguments.limit_s)
                    for size, figures in times.items():
                        rows = results.setdefault(mode, {}).setdefault(str(ranks), {})
                        rows.setdefault(backend.name, {}).setdefault(
                            str(label(size, sizes)), []).append(figures)
                    if reason:
                        print(f"{mode} n={ranks} {backend.name}: {reason}", file=sys.stderr)
                        dropped.add(key)
        print(f"round {turn + 1} of {arguments.rounds}: {time.monotonic() - began:.0f} s",
              file=sys.stderr)
    return {"operation": arguments.operation, "command": " ".join(["bench/peers/run.py"] +
                                                                  sys.argv[1:]),
            "versions": versions(), "sizes": sizes, "rounds": arguments.rounds, "times_us": results}


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--quick", action="store_true", help="fewer sizes, ranks and rounds")
    parser.add_argument("--operation", default="allreduce")
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
    arguments.ranks = [int(n) for n in (arguments.ranks or ("2,4" if quick else "2,4,8")).split(",")]
    arguments.modes = arguments.modes.split(",")
    unknown = set(arguments.modes) - set(MODES)
    if unknown:
        parser.error(f"there is no mode {', '.join(unknown)}; there are {', '.join(MODES)}")
    return arguments


def main():
    arguments = parse()
    if arguments.report:
        results = json.loads(pathlib.Path(arguments.report).read_text())
    else:
        build_dir = pathlib.Path(arguments.build_dir)
        cores = len(os.sched_getaffinity(0))
        candidates = backends(build_dir, build(build_dir / "peers"), cores)
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

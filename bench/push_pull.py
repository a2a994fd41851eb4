#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The time of a push-pull beside that of others: two workers push a gradient each to two servers,
which add them up, and pull the new values.

    bench/push_pull.py                       on this host, a minute or two
    bench/push_pull.py --ps-lite FOLDER      and ps-lite, a checkout of github.com/dmlc/ps-lite
                                             (needs libzmq3-dev, libprotobuf-dev, protobuf-compiler)
    bench/push_pull.py --hosts               four network namespaces at 1 Gbit/s (as root)

Rounds of each candidate in turn; medians over the rounds of each one's median. On this host the
bare reduction of the same bytes (bench/bare.h) runs in turns with the push-pulls, in the same
processes. Between hosts the bound is what goes over the busiest wire in one direction, at the speed
of a bulk TCP stream over it: each worker's gradient, or, with replicas, at each server half of both
gradients and the half of their sum that is led by the other one."""
import argparse
import json
import os
import pathlib
import re
import secrets
import shutil
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE / "hosts"), str(HERE / "peers")]
import hosts  # noqa: E402, from the folder beside this one
import on_hosts  # noqa: E402

NODES = 2  # workers, and servers
LIMIT_S = 60
READY_S = 20


def size_bytes(text):
    factor = {"k": 1 << 10, "m": 1 << 20}.get(text[-1])
    return int(text[:-1]) * factor if factor else int(text)


# ---- Building what is not ours -------------------------------------------------------------------
def build_mpi(folder):
    if shutil.which("mpicc.openmpi") is None:
        print("Open MPI is not installed; left out", file=sys.stderr)
        return None
    program = folder / "peer_openmpi"
    subprocess.run(["mpicc.openmpi", "-O2", "-o", program, HERE / "peers" / "peer_mpi.c", "-lm"],
                   check=True)
    return program


def build_ps_lite(source, folder):
    """Its own files are compiled into our folder; the checkout stays as it is."""
    made = folder / "pslite"
    made.mkdir(exist_ok=True)
    subprocess.run(["protoc", f"--cpp_out={made}", f"--proto_path={source / 'src'}",
                    source / "src" / "meta.proto"], check=True)
    program = folder / "peer_pslite"
    files = [source / "src" / name for name in ("customer.cc", "postoffice.cc", "van.cc")]
    subprocess.run(["g++", "-std=c++17", "-O3", "-w", f"-I{source / 'include'}", f"-I{made}",
                    f"-I{source / 'src'}", "-o", program, HERE / "peers" / "peer_pslite.cc",
                    *files, made / "meta.pb.cc", "-lzmq", "-lprotobuf-lite", "-lpthread"],
                   check=True)
    return program


# ---- Running -------------------------------------------------------------------------------------
def finish(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout:
            process.stdout.close()


def results_of(processes, name):
    """The lines of JSON that they print, once all have ended."""
    rows = []
    for process in processes:
        text = process.communicate(timeout=LIMIT_S)[0]
        if process.returncode != 0:
            raise SystemExit(f"{name} ended with {process.returncode}")
        rows += [json.loads(line) for line in (text or "").splitlines() if line.startswith("{")]
    if not rows or any(row["wrong"] for row in rows):
        raise SystemExit(f"{name}: wrong results")
    return {row["size_bytes"]: row["time_us_median"] for row in rows}


def parse_ours(text):
    """Medians by size, and those of the bare reduction."""
    times, bare = {}, {}
    for line in text.splitlines():
        found = re.match(r" *(\d+) bytes +([\d.]+) us .*?(?:bare +([\d.]+) us)?$", line)
        if found:
            times[int(found[1])] = float(found[2])
            if found[3]:
                bare[int(found[1])] = float(found[3])
    return times, bare


def run_ours(arguments, *options):
    done = subprocess.run([arguments.build_dir / "bench" / "bench_ps", "-i", "-s", arguments.sizes,
                           "-d", str(arguments.seconds), *options],
                          capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return parse_ours(done.stdout)


def run_mpi(arguments, program):
    words = ["mpiexec.openmpi", "--allow-run-as-root", "--bind-to", "core", "-np", str(NODES),
             program, "reduce-broadcast", arguments.listed, str(int(arguments.seconds * 1e6))]
    return results_of([subprocess.Popen(words, stdout=subprocess.PIPE, text=True)], "Open MPI")


def run_ps_lite(arguments, program, environment, start):
    """`start(role, number, words, environment)` gives a process."""
    words = [program, arguments.listed, str(int(arguments.seconds * 1e6))]
    environment = {"DMLC_NUM_SERVER": str(NODES), "DMLC_NUM_WORKER": str(NODES),
                   "DMLC_PS_ROOT_PORT": str(20000 + os.getpid() % 10000), **environment}
    started = []
    try:
        for role, count in (("scheduler", 1), ("server", NODES), ("worker", NODES)):
            started += [start(role, i, words, {**environment, "DMLC_ROLE": role})
                        for i in range(count)]
        return results_of(started, "ps-lite")
    finally:
        finish(started)


def start_here(_role, _number, words, environment):
    return subprocess.Popen(words, env={**os.environ, **environment}, stdout=subprocess.PIPE,
                            text=True)


# ---- On this host --------------------------------------------------------------------------------
def measure_here(arguments, mpi, ps_lite):
    found = {}
    for _ in range(arguments.rounds):
        ours, bare = run_ours(arguments, "-c")
        round_of = {"bare": bare, "gradus": ours, "replicas": run_ours(arguments, "-r")[0]}
        if mpi:
            round_of["Open MPI"] = run_mpi(arguments, mpi)
        if ps_lite:
            for name, local in (("ps-lite tcp", "0"), ("ps-lite local", "1")):
                round_of[name] = run_ps_lite(arguments, ps_lite, {
                    "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_LOCAL": local}, start_here)
        for name, times in round_of.items():
            for size, time_us in times.items():
                found.setdefault(name, {}).setdefault(size, []).append(time_us)
    return {name: {size: statistics.median(times) for size, times in rows.items()}
            for name, rows in found.items()}


def print_here(found, sizes):
    print(f"{'us':16}" + "".join(f"{size:>14}" for size in sizes))
    for name, rows in found.items():
        print(f"{name:16}" + "".join(f"{rows.get(size, float('nan')):14.1f}" for size in sizes))
    print(f"{'gradus / bare':16}" + "".join(
        f"{found['gradus'][size] / found['bare'][size]:14.2f}" for size in sizes))


# ---- Between hosts -------------------------------------------------------------------------------
def start_servers(four, replicas, environment):
    """On hosts 0 and 1: processes, and what workers have to know."""
    started, addresses = [], []
    for number in range(NODES):
        server = four.popen(number, [four.build / "gradus", "server", "--servers", NODES,
                                     "--number", number, "--replicas", int(replicas), "--link",
                                     "tcp", "--listen", four.address(number)], environment,
                            stdout=subprocess.PIPE, text=True)
        started.append(server)
        line = server.stdout.readline().strip()
        addresses.append(line.partition("=")[2])
        if not line.startswith("GRADUS_SERVER"):
            finish(started)
            raise SystemExit(f"hosts: a server does not start: {line}")
    return started, {"GRADUS_SERVERS": ",".join(addresses), **environment}


def run_on_hosts(four, arguments, replicas):
    environment = {"GRADUS_SECRET": secrets.token_hex(32), "GRADUS_LINK": "tcp"}
    started, known = start_servers(four, replicas, environment)
    try:
        workers = [four.popen(NODES + i, [four.build / "bench" / "bench_ps", "-n", NODES, "-w", i,
                                          "-s", arguments.sizes, "-d", arguments.seconds], known,
                              stdout=subprocess.PIPE, text=True) for i in range(NODES)]
        started += workers
        both = [parse_ours(worker.communicate(timeout=LIMIT_S)[0])[0] for worker in workers]
    finally:
        finish(started)
    return {size: max(times[size] for times in both) for size in both[0]}


def measure_hosts(arguments, ps_lite):
    found, speeds = {}, []
    with hosts.Hosts(2 * NODES, arguments.rate, None, arguments.build_dir) as four:
        for _ in range(arguments.rounds):
            speeds.append(on_hosts.payload_bandwidth(four))
            round_of = {"gradus": run_on_hosts(four, arguments, False),
                        "replicas": run_on_hosts(four, arguments, True)}
            if ps_lite:
                def start(role, number, words, environment):
                    host = {"scheduler": 0, "server": number, "worker": NODES + number}[role]
                    return four.popen(host, words, {
                        **environment, "DMLC_PS_ROOT_URI": four.address(0),
                        "DMLC_NODE_HOST": four.address(host)}, stdout=subprocess.PIPE, text=True)
                round_of["ps-lite tcp"] = run_ps_lite(arguments, ps_lite, {}, start)
            for name, times in round_of.items():
                for size, time_us in times.items():
                    found.setdefault(name, {}).setdefault(size, []).append(time_us)
    return found, statistics.median(speeds)


def print_hosts(found, speed, sizes):
    print(f"a bulk stream: {speed / 1e6:.1f} MB/s")
    for name, rows in found.items():
        for size in sizes:
            bound_us = size * (1.5 if name == "replicas" else 1) / speed * 1e6
            time_us = statistics.median(rows[size])
            print(f"{name:16}{size:>10} bytes {time_us / 1e3:10.2f} ms, bound {bound_us / 1e3:.2f}"
                  f" ms: {time_us / bound_us:.3f} times")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", default="4k,256k,25m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of each size")
    parser.add_argument("--ps-lite", type=pathlib.Path, help="its source")
    parser.add_argument("--hosts", action="store_true", help="four of them, of namespaces")
    parser.add_argument("--rate", default="1gbit", help="of each host's wire")
    parser.add_argument("--build-dir", type=pathlib.Path, default=ROOT / "build")
    arguments = parser.parse_args()
    arguments.build_dir = arguments.build_dir.resolve()
    arguments.listed = ",".join(str(size_bytes(size)) for size in arguments.sizes.split(","))
    return arguments


def main():
    arguments = parse()
    folder = arguments.build_dir / "peers"
    folder.mkdir(exist_ok=True)
    ps_lite = build_ps_lite(arguments.ps_lite, folder) if arguments.ps_lite else None
    sizes = [int(size) for size in arguments.listed.split(",")]
    began = time.monotonic()
    if arguments.hosts:
        print_hosts(*measure_hosts(arguments, ps_lite), sizes)
    else:
        print_here(measure_here(arguments, build_mpi(folder), ps_lite), sizes)
    print(f"{arguments.rounds} rounds in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

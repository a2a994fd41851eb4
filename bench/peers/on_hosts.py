# SPDX-License-Identifier: Apache-2.0
"""Starts the candidates of run.py with one rank on each of several hosts (bench/hosts)."""
import contextlib
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hosts"))
import hosts  # noqa: E402, from the folder beside this one

AGENT = """#!/bin/sh
# What ssh is between real hosts: "agent [options] ADDRESS command ...", with its own host name.
while case $1 in -*) true ;; *) false ;; esac; do shift; done
address=$1
shift
case $address in
{cases}
*) exit 1 ;;
esac
exec ip netns exec "$name" unshare --uts sh -c "hostname $name; $*"
"""

# The receiver says how many bytes a second arrived between its first and its last byte.
SINK = """
import socket, sys, time
door = socket.create_server((sys.argv[1], 5201))
print("ready", flush=True)
link, _ = door.accept()
count, buffer = link.recv_into(bytearray(1 << 20)), bytearray(1 << 20)
start, count = time.perf_counter(), 0
while got := link.recv_into(buffer):
    count += got
    last = time.perf_counter()
print(count / (last - start), flush=True)
"""
SOURCE = """
import socket, sys, time
link = socket.create_connection((sys.argv[1], 5201))
data, end = bytes(1 << 20), time.perf_counter() + 1
while time.perf_counter() < end:
    link.sendall(data)
"""


@contextlib.contextmanager
def hosts_of(rate, build_dir):
    """Four hosts with that rate; None without a rate, and, with a word on stderr, where such hosts
    cannot be made."""
    if rate is None:
        yield None
        return
    made = hosts.Hosts(4, rate, "0.1ms", build_dir)
    try:
        made.__enter__()
    except hosts.Unavailable as error:
        print(f"hosts: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield made
    finally:
        made.close()


def payload_bandwidth(four):
    """Bytes a second of one bulk TCP stream from one host to another."""
    address = four.address(1)
    sink = four.popen(1, [sys.executable, "-c", SINK, address], stdout=subprocess.PIPE, text=True)
    try:
        sink.stdout.readline()
        source = four.popen(0, [sys.executable, "-c", SOURCE, address])
        source.wait(30)
        return float(sink.stdout.readline())
    finally:
        sink.kill()
        sink.wait()
        sink.stdout.close()


def write_agent(four, folder):
    cases = "\n".join(f"{four.address(i)}) name={name} ;;" for i, name in enumerate(four.names))
    path = pathlib.Path(folder) / "agent"
    path.write_text(AGENT.format(cases=cases))
    path.chmod(0o755)
    return str(path)


def openmpi_words(four, agent, program, more):
    where = ",".join(f"{four.address(i)}:1" for i in range(four.count))
    return ["mpiexec.openmpi", "--allow-run-as-root", "--mca", "plm_rsh_agent", agent, "--host",
            where, "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include", "eth0",
            "--mca", "mpi_yield_when_idle", "1",
            "--bind-to", "none", *more, "-np", str(four.count), *program]


def mpich_words(four, agent, program, more):
    where = ",".join(four.address(i) for i in range(four.count))
    return ["mpiexec.hydra", "-launcher", "ssh", "-launcher-exec", agent, "-hosts", where, "-iface",
            "eth0", "-genv", "UCX_NET_DEVICES", "eth0", *more, "-np", str(four.count), *program]


def start(four, backend, task, folder, files):
    """`task`: the words behind the program. Returns the processes that end by themselves, and the
    helpers that do not."""
    if backend.kind == "gradus":
        coordinator, processes = four.start([*backend.program, *task], **files)
        return processes, [coordinator]
    if backend.kind in ("openmpi", "mpich"):
        words = {"openmpi": openmpi_words, "mpich": mpich_words}[backend.kind](
            four, write_agent(four, folder), backend.program, backend.more)
        # A host name of its own for the first host too: the same name would mean the same host.
        words = ["unshare", "--uts", "sh", "-c", f'hostname {four.names[0]}; exec "$@"', "sh",
                 *words, *task]
        return [four.popen(0, words, backend.environment, **files)], []
    started = []
    for rank in range(four.count):
        env = backend.environment | {"RANK": str(rank), "WORLD_SIZE": str(four.count),
                                     "PEER_FOLDER": folder, "PEER_HOST": four.address(rank),
                                     "GLOO_SOCKET_IFNAME": "eth0"}
        started.append(four.popen(rank, [*backend.program, *task], env, **files))
    return started, []

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces joined by a bridge, with a rate and a delay.

    bench/hosts/hosts.py --hosts 4 --rate 1gbit --delay 0.1ms -- build/gradus bench allreduce -b 25m

starts the command once per rank (--ranks-per-host of them in each namespace) with the environment
of a job, a coordinator (`gradus rendezvous`) on the bridge, and removes everything in the end, also
after a failure or a signal. As a module: `with Hosts(...) as hosts: hosts.run([...])`.

Needs root, iproute2, and for a delay the kernel's netem (without it: a warning, and no delay).
"""
import argparse
import contextlib
import itertools
import json
import os
import pathlib
import re
import secrets
import selectors
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
from processes import Process  # noqa: E402

PREFIX = "grhost"
NETWORK = "10.77.0"
NUMBERS = itertools.count()
SWITCH_BUFFER_BYTES = 1 << 20   # of a port of the bridge, before it drops


class Unavailable(Exception):
    """Namespaces, bridges or rate limits cannot be made here; the text says why."""


def ip(*words, check=True):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise Unavailable(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done


def batch(namespace, lines):
    """Several commands of ip(8) in a namespace, by one process."""
    done = subprocess.run(["ip", "-n", namespace, "-batch", "-"], input="\n".join(lines),
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"ip -n {namespace} -batch: {done.stderr.strip()}")


def tc(namespace, *words):
    return subprocess.run(["ip", "netns", "exec", namespace, "tc", *words],
                          capture_output=True, text=True, check=False)


def remove_stale():
    """What runs that were killed left behind: their process is gone."""
    for name in re.findall(rf"^({PREFIX}(\d+)-\S+)", ip("netns", "list", check=False).stdout, re.M):
        if not pathlib.Path(f"/proc/{name[1]}").exists():
            remove_namespace(name[0])


def remove_namespace(name):
    for pid in ip("netns", "pids", name, check=False).stdout.split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    ip("netns", "del", name, check=False)


class Hosts:
    """`count` namespaces; rate ("1gbit") and delay ("0.1ms", one way) of each one's port, what a
    port keeps before it drops, what it passes at once after a pause, and kernel settings of the
    namespaces where they differ."""

    def __init__(self, count, rate=None, delay=None, build=None, networks=1,
                 buffer_bytes=SWITCH_BUFFER_BYTES, burst="256k", settings=None):
        if not 1 <= count <= 64:
            raise ValueError("1 to 64 hosts")
        self.count, self.rate, self.delay, self.networks = count, rate, delay, networks
        self.buffer_bytes, self.burst, self.settings = buffer_bytes, burst, settings or {}
        self.build = pathlib.Path(build or os.environ.get("GRADUS_BUILD_DIR", ROOT / "build"))
        mark = f"{PREFIX}{os.getpid()}-{next(NUMBERS)}"
        self.switch = f"{mark}-bridge"
        self.names = [f"{mark}-{i}" for i in range(count)]
        self.delayed = False

    def open(self):
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        for tool in ("ip", "tc"):
            if shutil.which(tool) is None:
                raise Unavailable(f"there is no `{tool}`: install iproute2")
        remove_stale()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        self.open()
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for name in [*self.names, self.switch]:
            remove_namespace(name)

    def address(self, host, network=0):
        return f"10.{77 + network}.0.{host + 1}"

    def _make(self):
        for name in [self.switch, *self.names]:
            ip("netns", "add", name)
        lines = ["link set lo up"]
        for network in range(self.networks):
            lines += [f"link add br{network} type bridge",
                      f"address add 10.{77 + network}.0.254/24 dev br{network}",
                      f"link set br{network} up"]
            for host, name in enumerate(self.names):
                port = f"p{network}x{host}"
                lines += [f"link add {port} type veth peer name eth{network} netns {name}",
                          f"link set {port} master br{network} up"]
        batch(self.switch, lines)
        for host, name in enumerate(self.names):
            lines = ["link set lo up"]
            for network in range(self.networks):
                lines += [f"address add {self.address(host, network)}/24 dev eth{network}",
                          f"link set eth{network} up"]
            for setting, value in self.settings.items():
                self._set(name, setting, value)
            batch(name, lines)
            for network in range(self.networks):
                self._slow_down(host, name, network)
        for name in self.names:
            for network in range(self.networks):
                self.await_carrier(name, f"eth{network}")

    @staticmethod
    def await_carrier(name, device):
        """A wire is up a little after both of its ends are; until then nobody would use it."""
        deadline = time.monotonic() + 10
        while "state UP" not in ip("-n", name, "-o", "link", "show", "dev", device).stdout:
            if time.monotonic() > deadline:
                raise Unavailable(f"{device} of {name} does not come up")
            time.sleep(0.02)

    def _slow_down(self, host, name, network):
        port, near = f"p{network}x{host}", f"eth{network}"
        if self.rate:
            self._limit(name, near)
            self._limit(self.switch, port)
        if self.delay:
            self._delay(name, near)

    def _limit(self, namespace, device):
        done = tc(namespace, "qdisc", "add", "dev", device, "root", "handle", "1:", "tbf", "rate",
                  self.rate, "burst", self.burst, "limit", str(self.buffer_bytes))
        if done.returncode != 0:
            raise Unavailable(f"tc cannot limit the rate: {done.stderr.strip()}")

    @staticmethod
    def _set(namespace, setting, value):
        done = subprocess.run(["ip", "netns", "exec", namespace, "sysctl", "-qw",
                               f"{setting}={value}"], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Unavailable(f"{setting} cannot be {value}: {done.stderr.strip()}")

    def dropped(self):
        """Packets that found a queue full, of all ports since they were made."""
        texts = [tc(name, "-s", "qdisc", "show").stdout for name in [*self.names, self.switch]]
        return sum(int(number) for number in re.findall(r"\(dropped (\d+)", "".join(texts)))

    def _delay(self, namespace, device):
        where = ["parent", "1:"] if self.rate else ["root"]
        done = tc(namespace, "qdisc", "add", "dev", device, *where, "netem", "delay", self.delay,
                  "limit", "10000")
        self.delayed = done.returncode == 0
        if not self.delayed:
            print(f"hosts: no delay of {self.delay}: tc: {done.stderr.strip()}", file=sys.stderr)

    def popen(self, host, command, env=None, **rest):
        """`command` in that host's namespace (None: on the bridge)."""
        name = self.switch if host is None else self.names[host]
        return Process(["ip", "netns", "exec", name, *map(str, command)],
                       env={**os.environ, **(env or {})}, **rest)

    def coordinate(self, ranks, secret, env=None):
        """A coordinator on the bridge: its process, and what the ranks need."""
        process = self.popen(None, [self.build / "gradus", "rendezvous", "-np", ranks, "--listen",
                                    f"{NETWORK}.254"],
                             env={"GRADUS_SECRET": secret, **(env or {})},
                             stdout=subprocess.PIPE, text=True)
        elastic = 0 < int((env or {}).get("GRADUS_MIN_WORKERS", 0)) < ranks
        env = {"GRADUS_SECRET": secret}
        names = ["GRADUS_WORLD_SIZE", "GRADUS_COORDINATOR"]
        if elastic:
            names += ["GRADUS_MIN_WORKERS", "GRADUS_FAILOVER"]
        for name in names:
            line = process.stdout.readline().strip()
            if not line.startswith(name + "="):
                process.kill()
                process.wait()
                raise RuntimeError("`gradus rendezvous` did not start")
            env[name] = line.partition("=")[2]
        return process, env

    def start(self, command, ranks_per_host=1, env=None, env_of=None, **rest):
        """All ranks: (coordinator, [process of each rank]). env_of(rank) adds to one's."""
        ranks = self.count * ranks_per_host
        coordinator, base = self.coordinate(ranks, secrets.token_hex(32), env)
        base = {**base, **(env or {})}
        processes = []
        for rank in range(ranks):
            own = {**base, "GRADUS_RANK": str(rank), "OMP_NUM_THREADS": "1",
                   **(env_of(rank) if env_of else {})}
            words = command(rank) if callable(command) else command
            processes.append(self.popen(rank // ranks_per_host, words, own, **rest))
        return coordinator, processes

    def run(self, command, ranks_per_host=1, env=None, env_of=None, timeout_s=120):
        """Runs all ranks to their end: [(exit status, output)] by rank."""
        coordinator, processes = self.start(command, ranks_per_host, env, env_of,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                            text=True, errors="replace")
        try:
            outputs = collect(processes, timeout_s)
            return [(process.wait(), text) for process, text in zip(processes, outputs)]
        finally:
            stop([coordinator, *processes])

    def bench(self, words, ranks_per_host=1, env=None, timeout_s=120):
        """`gradus bench` with these words on all ranks: what it says of the first size."""
        results = self.run([self.build / "gradus", "bench", *words, "--json"], ranks_per_host, env,
                           timeout_s=timeout_s)
        rows = [json.loads(line) for _, text in results for line in text.splitlines()
                if line.startswith("{")]
        if any(status != 0 for status, _ in results) or any(row["wrong"] for row in rows):
            raise RuntimeError(f"gradus bench {' '.join(map(str, words))} failed:\n" +
                               "\n".join(text for _, text in results))
        return rows[0]


def collect(processes, timeout_s, tell=None):
    """All output of all processes, by process; RuntimeError after timeout_s."""
    texts = [[] for _ in processes]
    end = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for at, process in enumerate(processes):
            selector.register(process.stdout, selectors.EVENT_READ, at)
        while selector.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise RuntimeError(f"not done within {timeout_s} s:\n" +
                                   "\n".join("".join(text) for text in texts))
            for key, _ in selector.select(left):
                data = os.read(key.fd, 65536).decode(errors="replace")
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                texts[key.data].append(data)
                if tell:
                    tell(key.data, data)
    return ["".join(text) for text in texts]


def stop(processes):
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        if process.stdout:
            process.stdout.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--networks", type=int, default=1, help="interfaces of each host")
    parser.add_argument("--rate", help="of each host's port both ways, 1gbit say")
    parser.add_argument("--delay", help="one way, 0.1ms say")
    parser.add_argument("--build", help="build folder with gradus")
    parser.add_argument("--timeout", type=float, default=600, help="seconds")
    parser.add_argument("--rank", type=int, help="show this rank's output only")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()

    def leave(*_):
        raise SystemExit(130)
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGHUP, leave)

    def tell(rank, text):
        if options.rank is None or options.rank == rank:
            sys.stdout.write(text)
            sys.stdout.flush()

    try:
        with Hosts(options.hosts, options.rate, options.delay, options.build,
                   options.networks) as hosts:
            coordinator, processes = hosts.start(options.command, options.ranks_per_host,
                                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            try:
                collect(processes, options.timeout, tell)
                return max(process.wait() for process in processes)
            finally:
                stop([coordinator, *processes])
    except (Unavailable, RuntimeError) as error:
        print(f"hosts: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What `gradus operator` takes for many MPIJobs on a real control plane: memory, time of a look,
time until it is in step after a restart.

    bench/operator_cluster.py --jobs 1000 --workers 2

GRADUS_KUBE, or shared/kube beside the source, holds cluster.sh, which starts etcd, kube-apiserver,
its controllers and kwok, which says of pods that they run. All of it shares this host with the
operator. A look's time is that of the histogram workqueue_work_duration_seconds, with the answers
of the API server to its writes; the processor's time is all that the operator took. "In step" is
when all jobs have been looked at after a start, and nothing waits.
"""
import argparse
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
QUEUE = r'name="[^"]*mpijob[^"]*"'


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class ControlPlane:
    def __init__(self, kit, folder):
        self.kit, self.bin = kit, pathlib.Path(os.environ.get("KUBEKIT_BIN", folder / "bin"))
        subprocess.run([kit / "unpack.sh", self.bin], check=True)
        self.config = folder / "run" / "admin.kubeconfig"
        self.environment = {**os.environ, "KUBEKIT_BIN": str(self.bin),
                            "KUBEKIT_RUN": str(folder / "run"),
                            "KUBEKIT_PORT": str(20000 + os.getpid() % 1000 * 10)}

    def script(self, word):
        subprocess.run([self.kit / "cluster.sh", word], env=self.environment, check=True,
                       stdin=subprocess.DEVNULL)

    def kubectl(self, *words, text=None):
        return subprocess.run([self.bin / "kubectl", "--kubeconfig", self.config, *words],
                              check=True, input=text, stdout=subprocess.PIPE, text=True).stdout


def job(number, workers):
    def role(count):
        return {"replicas": count, "template": {"spec": {"containers": [
            {"name": "main", "image": "trainer:1", "command": ["train"],
             "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}]}}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob",
            "metadata": {"name": f"train-{number}"},
            "spec": {"mpiReplicaSpecs": {"Launcher": role(1), "Worker": role(workers)}}}


class Operator:
    def __init__(self, plane):
        self.port, self.begin = free_port(), time.monotonic()
        self.process = subprocess.Popen(
            [ROOT / "build" / "gradus", "operator", "--kubeconfig", plane.config,
             "--enable-scheme", "mpijob", "--leader-elect=false", "--kube-api-qps", "500",
             "--kube-api-burst", "1000", "--controller-threads", "8", "--metrics-bind-address",
             f"127.0.0.1:{self.port}", "--health-probe-bind-address", "0"],
            stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def page(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode()
        except OSError:
            return ""

    def metric(self, name):
        found = re.findall(rf"^{name}\{{{QUEUE}\}} (\S+)$", self.page(), re.M)
        return float(found[0]) if found else 0

    def seconds_until_in_step(self, jobs):
        while self.metric("workqueue_adds_total") < jobs or self.metric("workqueue_depth") > 0:
            assert self.process.poll() is None, "the operator has ended"
            time.sleep(0.05)
        return time.monotonic() - self.begin

    def look_limit_s(self, part):
        """The limit below which this part of the looks lies."""
        name = rf'^workqueue_work_duration_seconds_bucket\{{{QUEUE},le="(\S+)"\}} (\d+)'
        counts = re.findall(name, self.page(), re.M)
        whole = int(counts[-1][1])
        return next(limit for limit, count in counts if int(count) >= part * whole), whole

    def processor_s(self):
        words = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mib(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return [int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1024 for key in ("VmRSS", "VmHWM")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def running(plane):
    last = "jsonpath={range .items[*]}{.status.conditions[-1:].type}{'\\n'}{end}"
    return plane.kubectl("get", "mpijobs", "-o", last).split().count("Running")


def measure(plane, jobs, workers):
    plane.kubectl("apply", "--server-side", "-f", ROOT / "deploy/base/mpijobs.yaml")
    plane.kubectl("wait", "--for=condition=Established", "crd/mpijobs.kubeflow.org")
    with Operator(plane) as operator:
        begin = time.monotonic()
        for first in range(0, jobs, 500):
            items = [job(number, workers) for number in range(first, min(first + 500, jobs))]
            plane.kubectl("create", "--validate=false", "-f", "-",
                          text=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
        print(f"{jobs} jobs of {workers} workers created in {time.monotonic() - begin:.0f} s",
              flush=True)
        while (count := running(plane)) < jobs:
            assert operator.process.poll() is None, "the operator has ended"
            print(f"{time.monotonic() - begin:.0f} s: {count} run", flush=True)
            time.sleep(5)
        print(f"all run after {time.monotonic() - begin:.0f} s")
        half, most = (operator.look_limit_s(part)[0] for part in (0.5, 0.99))
        looks = operator.look_limit_s(1)[1]
        print(f"{looks} looks, with the answers to their writes: half within {half} s, 99 % within "
              f"{most} s; {1000 * operator.processor_s() / looks:.2f} ms of the processor each")
        print("memory: {:.1f} MiB, {:.1f} MiB at most".format(*operator.memory_mib()))
    with Operator(plane) as operator:
        print(f"restart: in step after {operator.seconds_until_in_step(jobs):.2f} s")
        print("memory: {:.1f} MiB, {:.1f} MiB at most".format(*operator.memory_mib()))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    kit = pathlib.Path(os.environ.get("GRADUS_KUBE", ROOT.parent / "shared" / "kube"))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        plane = ControlPlane(kit, pathlib.Path(folder))
        plane.script("up")
        try:
            measure(plane, options.jobs, options.workers)
        finally:
            plane.script("down")


main()

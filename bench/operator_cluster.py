#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""What an operator takes for many jobs on a real control plane: memory, time of a look, time until
it is in step after a restart.

    bench/operator_cluster.py --jobs 1000 --workers 2
    bench/operator_cluster.py --jobs 1000 --workers 2 --operator PATH/mpi-operator
    bench/operator_cluster.py --jobs 1000 --kind PyTorchJob --operator PATH/training-operator
    bench/operator_cluster.py --jobs 1000 --workers 2 --rate 2
    bench/operator_cluster.py --jobs 10000 --workers 1 --beside PATH/mpi-operator

GRADUS_KUBE, or shared/kube beside the source, holds cluster.sh, which starts etcd, kube-apiserver,
its controllers and kwok, which says of pods that they run. All of it shares this host with the
operator. Jobs come as fast as one connection creates them, or --rate of them a second.

A look's time is that of the histogram workqueue_work_duration_seconds, with the answers of the API
server to its writes; mpi-operator has none, and says it in its log. "In step" is when as many looks
have ended after a start as there are jobs, and nothing waits.
"""
import argparse
import base64
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
LIMITS_S = (0.001, 0.01, 0.1, 1, 10, 100)
SETTLE_S = 10
# Kind: version, roles, of which the first has one replica, container, manifest of the resource.
KINDS = {"MPIJob": ("v2beta1", "mpiReplicaSpecs", "Launcher", "main", "mpijobs"),
         "PyTorchJob": ("v1", "pytorchReplicaSpecs", "Master", "pytorch", "pytorchjobs"),
         "TFJob": ("v1", "tfReplicaSpecs", "Chief", "tensorflow", "tfjobs")}
# Where training-operator takes the certificate of its webhook from; a kubelet puts it there.
CERTIFICATES = pathlib.Path("/tmp/k8s-webhook-server/serving-certs")
WEBHOOK = {"apiVersion": "admissionregistration.k8s.io/v1",
           "kind": "ValidatingWebhookConfiguration",
           "metadata": {"name": "validator.training-operator.kubeflow.org"},
           "webhooks": [{"name": "nothing.training-operator.kubeflow.org", "sideEffects": "None",
                         "admissionReviewVersions": ["v1"],
                         "clientConfig": {"url": "https://127.0.0.1:9/"},
                         "rules": [{"apiGroups": ["kubeflow.org"], "apiVersions": ["v1"],
                                    "operations": ["CREATE"], "resources": ["nothings"]}]}]}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def processor_s(pid):
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS


def memory_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return [int(re.search(rf"{key}:\s+(\d+)", text)[1]) / 1024 for key in ("VmRSS", "VmHWM")]


class ControlPlane:
    def __init__(self, kit, folder, controllers):
        self.kit, self.bin, self.run = kit, folder / "bin", folder / "run"
        subprocess.run([kit / "unpack.sh", self.bin], check=True)
        if controllers:
            self.choose(controllers)
        self.port = 20000 + os.getpid() % 1000 * 10
        self.config = self.run / "admin.kubeconfig"
        self.environment = {**os.environ, "KUBEKIT_BIN": str(self.bin),
                            "KUBEKIT_RUN": str(self.run), "KUBEKIT_PORT": str(self.port)}
        self.connection = None

    def choose(self, controllers):
        """The controller-manager runs these alone."""
        name = "kube-controller-manager"
        (self.bin / "all").mkdir()
        (self.bin / name).rename(self.bin / "all" / name)
        (self.bin / "all" / "kubekit").symlink_to(self.bin / "kubekit")
        (self.bin / name).write_text(f'#!/bin/sh\nexec {self.bin}/all/{name} "$@" '
                                     f"--controllers={controllers}\n")
        (self.bin / name).chmod(0o755)

    def script(self, word):
        subprocess.run([self.kit / "cluster.sh", word], env=self.environment, check=True,
                       stdin=subprocess.DEVNULL)

    def kubectl(self, *words, text=None):
        return subprocess.run([self.bin / "kubectl", "--kubeconfig", self.config, *words],
                              check=True, input=text, stdout=subprocess.PIPE, text=True).stdout

    def ask(self, method, path, body=None):
        if self.connection is None:
            context = ssl.create_default_context(cafile=self.run / "pki" / "ca.crt")
            context.load_cert_chain(self.run / "pki" / "admin.crt", self.run / "pki" / "admin.key")
            self.connection = http.client.HTTPSConnection("127.0.0.1", self.port, context=context)
        self.connection.request(method, path, json.dumps(body) if body else None,
                                {"Content-Type": "application/json"})
        answer = self.connection.getresponse()
        text = answer.read()
        assert answer.status < 300, text
        return text

    def processor_s(self):
        return {file.name: processor_s(int(file.read_text()))
                for file in sorted((self.run / "pid").iterdir())}

    def writes(self):
        """{resource: how many} that the API server was asked for."""
        counts = {}
        for labels, count in re.findall(r"^apiserver_request_total\{(.*)\} (\S+)$",
                                        self.ask("GET", "/metrics").decode(), re.M):
            words = dict(re.findall(r'(\w+)="([^"]*)"', labels))
            if words["verb"] in ("POST", "PUT", "PATCH", "DELETE", "APPLY"):
                name = "/".join(filter(None, (words["resource"], words["subresource"])))
                counts[name] = counts.get(name, 0) + int(float(count))
        return counts


class Jobs:
    def __init__(self, plane, kind, count, workers):
        self.plane, self.kind, self.count, self.workers = plane, kind, count, workers
        self.version, self.specs, self.leader, self.container, self.resource = KINDS[kind]
        self.path = f"/apis/kubeflow.org/{self.version}/namespaces/default/{self.resource}"

    def install(self):
        self.plane.kubectl("apply", "--server-side", "-f",
                           ROOT / "deploy" / "base" / f"{self.resource}.yaml")
        self.plane.kubectl("wait", "--for=condition=Established",
                           f"crd/{self.resource}.kubeflow.org")

    def job(self, number):
        def role(count):
            return {"replicas": count, "template": {"spec": {"containers": [
                {"name": self.container, "image": "trainer:1", "command": ["train"],
                 "resources": {"requests": {"cpu": "1m", "memory": "1Mi"}}}]}}}
        return {"apiVersion": f"kubeflow.org/{self.version}", "kind": self.kind,
                "metadata": {"name": f"train-{number}"},
                "spec": {self.specs: {self.leader: role(1), "Worker": role(self.workers)}}}

    def create(self, rate, limit_s):
        """As many as there is time for."""
        begin = time.monotonic()
        for number in range(self.count):
            due = begin + number / rate if rate else 0
            time.sleep(max(0, due - time.monotonic()))
            if time.monotonic() - begin > limit_s:
                self.count = number
                return
            self.plane.ask("POST", self.path, self.job(number))

    def running(self):
        """From the API server's memory, which costs it less than etcd does."""
        items = json.loads(self.plane.ask("GET", self.path + "?resourceVersion=0"))["items"]
        return sum(item.get("status", {}).get("conditions", [{}])[-1].get("type") == "Running"
                   for item in items)


class Operator:
    """One that has workqueue_* on its page; this one, unless a subclass says otherwise."""
    def __init__(self, jobs, options, folder):
        self.jobs, self.options, self.port = jobs, options, free_port()
        self.log = folder / "operator.log"
        self.begin = time.monotonic()
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stderr=log, stdout=log,
                env={**os.environ, "KUBECONFIG": str(jobs.plane.config)})

    @staticmethod
    def install(plane):
        """What it needs beside the jobs' resource: nothing."""

    def manager_flags(self):
        return ["--enable-scheme", self.jobs.kind.lower(), "--leader-elect=false",
                "--kube-api-qps", str(self.options.qps), "--kube-api-burst",
                str(self.options.burst), "--controller-threads", str(self.options.threads),
                "--metrics-bind-address", f"127.0.0.1:{self.port}",
                "--health-probe-bind-address", "0"]

    def command(self):
        return [ROOT / "build" / "gradus", "operator", *self.manager_flags()]

    def page(self):
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics").read().decode()
        except OSError:
            return ""

    def metric(self, page, name, more=""):
        queue = rf'[^}}]*name="[^"]*{self.jobs.kind.lower()}[^"]*"{more}[^}}]*'
        found = re.findall(rf"^{name}\{{{queue}\}} (\S+)$", page, re.M)
        return int(float(found[0])) if found else 0

    def looks(self):
        """How many looks have ended, and {limit: how many of them within it}."""
        page = self.page()
        name = "workqueue_work_duration_seconds"
        limits = {}
        for limit in LIMITS_S:
            # Of bounds that are products: 0.1 is 0.09999999999999999 there.
            texts = [text for text in re.findall(rf'{name}_bucket{{.*le="([^"+]*)"}}', page)
                     if abs(float(text) / limit - 1) < 1e-6]
            more = f',le="{re.escape(texts[0])}"' if texts else ""
            limits[limit] = self.metric(page, name + "_bucket", more) if texts else 0
        return self.metric(page, name + "_count"), limits

    def is_idle(self):
        return self.metric(self.page(), "workqueue_depth") == 0

    def seconds_until_in_step(self):
        while self.looks()[0] < self.jobs.count or not self.is_idle():
            self.check()
            time.sleep(0.05)
        return time.monotonic() - self.begin

    def check(self):
        assert self.process.poll() is None, "the operator has ended: " + self.log.read_text()

    def print_looks(self, what):
        count, within = self.looks()
        shares = ", ".join(f"{100 * number / max(count, 1):.1f} % within {limit:g} s"
                           for limit, number in within.items() if limit <= 10)
        used_s = processor_s(self.process.pid)
        print(f"{what}: {count} looks, with the answers to their writes: {shares}; "
              f"{used_s:.1f} s of the processor, {1000 * used_s / max(count, 1):.2f} ms a look")
        print("memory: {:.1f} MiB, {:.1f} MiB at most".format(*memory_mib(self.process.pid)),
              flush=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


class TrainingOperator(Operator):
    def command(self):
        return [self.options.operator, *self.manager_flags(), "--webhook-server-port",
                str(free_port())]

    def __enter__(self):
        """What a kubelet does: the Secret that the operator fills becomes files."""
        plane = self.jobs.plane
        secret = "/api/v1/namespaces/kubeflow/secrets/training-operator-webhook-cert"
        while "tls.crt" not in (data := json.loads(plane.ask("GET", secret)).get("data", {})):
            self.check()
            time.sleep(0.05)
        CERTIFICATES.mkdir(parents=True, exist_ok=True)
        for name, text in data.items():
            (CERTIFICATES / name).write_bytes(base64.b64decode(text))
        return self

    def __exit__(self, *_):
        super().__exit__()
        shutil.rmtree(CERTIFICATES.parent, ignore_errors=True)

    @staticmethod
    def install(plane):
        secret = {"apiVersion": "v1", "kind": "Secret",
                  "metadata": {"name": "training-operator-webhook-cert"}}
        plane.kubectl("create", "namespace", "kubeflow")
        plane.ask("POST", "/api/v1/namespaces/kubeflow/secrets", secret)
        plane.kubectl("create", "-f", "-", text=json.dumps(WEBHOOK))


class MpiOperator(Operator):
    """Its page has no workqueue_*: its log has each look, once it has ended. It rests when it has
    said nothing for a second."""
    UNITS_S = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}

    def command(self):
        return [self.options.operator, "-threadiness", str(self.options.threads),
                "-kube-api-qps", str(self.options.qps), "-kube-api-burst", str(self.options.burst),
                "-controller-queue-rate-limit", str(self.options.qps),
                "-controller-queue-burst", str(self.options.burst), "-lock-namespace", "default"]

    def looks(self):
        times_s = [sum(float(number) * self.UNITS_S[unit]
                       for number, unit in re.findall(r"([\d.]+)(ms|µs|ns|h|m|s)", text))
                   for text in re.findall(r"Finished syncing job \"[^\"]*\" \((.*)\)",
                                          self.log.read_text(encoding="utf-8"))]
        return len(times_s), {limit: sum(one <= limit for one in times_s) for limit in LIMITS_S}

    def is_idle(self):
        return True

    def __exit__(self, *_):
        """The next one would wait for its lease."""
        super().__exit__()
        self.jobs.plane.kubectl("delete", "lease", "mpi-operator", "--ignore-not-found")


def operator_of(options):
    name = pathlib.Path(options.operator).name
    return {"gradus": Operator, "mpi-operator": MpiOperator}.get(name, TrainingOperator)


def print_costs(plane, before, jobs, operator):
    used = {name: used_s - before[0][name] for name, used_s in plane.processor_s().items()}
    used["the operator"] = processor_s(operator.process.pid)
    print("processor: " + ", ".join(f"{name} {used_s:.0f} s" for name, used_s in used.items()))
    writes = {name: (count - before[1].get(name, 0)) / jobs.count
              for name, count in plane.writes().items()}
    print(f"writes a job, of all that write: {sum(writes.values()):.1f}: " + ", ".join(
        f"{name} {count:.1f}" for name, count in sorted(writes.items(), key=lambda one: -one[1])
        if count > 0.05), flush=True)


def restart(jobs, options, folder):
    with operator_of(options)(jobs, options, folder) as operator:
        name = pathlib.Path(options.operator).name
        print(f"restart of {name}: in step after {operator.seconds_until_in_step():.2f} s")
        operator.print_looks("restart")


def measure(plane, options, folder):
    jobs = Jobs(plane, options.kind, options.jobs, options.workers)
    kind = operator_of(options)
    jobs.install()
    kind.install(plane)
    before = plane.processor_s(), plane.writes()
    with kind(jobs, options, folder) as operator:
        begin = time.monotonic()
        jobs.create(options.rate, options.limit)
        print(f"{jobs.count} jobs of {jobs.workers} workers created in "
              f"{time.monotonic() - begin:.0f} s", flush=True)
        while (count := jobs.running()) < jobs.count:
            operator.check()
            print(f"{time.monotonic() - begin:.0f} s: {count} run", flush=True)
            if time.monotonic() - begin > options.limit + options.wait:
                break
            time.sleep(max(2, jobs.count / 400))
        print(f"{count} run after {time.monotonic() - begin:.0f} s")
        time.sleep(SETTLE_S)
        print_costs(plane, before, jobs, operator)
        operator.print_looks("from the first job on")
    for _ in range(options.restarts):
        restart(jobs, options, folder)
    if options.beside:
        options.operator = options.beside
        operator_of(options).install(plane)
        restart(jobs, options, folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, default="MPIJob")
    parser.add_argument("--operator", default="gradus",
                        help="gradus, or the path of an mpi-operator or a training-operator")
    parser.add_argument("--beside", help="the path of another operator, which is then started on "
                        "the jobs that the first one has made run")
    parser.add_argument("--rate", type=float, default=0, help="jobs a second; 0: no limit")
    parser.add_argument("--qps", type=int, default=500)
    parser.add_argument("--burst", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--limit", type=float, default=3600,
                        help="seconds after which no more jobs are created")
    parser.add_argument("--wait", type=float, default=600,
                        help="seconds behind that after which it goes on though not all jobs run")
    parser.add_argument("--controllers", help="those of kube-controller-manager; all, if not given")
    parser.add_argument("--folder", default="/dev/shm", help="where the control plane's state is")
    options = parser.parse_args()
    kit = pathlib.Path(os.environ.get("GRADUS_KUBE", ROOT.parent / "shared" / "kube"))
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = pathlib.Path(folder)
        plane = ControlPlane(kit, folder, options.controllers)
        plane.script("up")
        try:
            measure(plane, options, folder)
        finally:
            plane.script("down")


main()

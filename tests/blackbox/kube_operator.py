# SPDX-License-Identifier: Apache-2.0
"""`gradus operator` in a process of its own, and what tests of it have in common."""
import os
import pathlib
import re
import signal
import subprocess
import threading
import urllib.error
import urllib.request

from conftest import TIMEOUT_S, wait_until

BUILD = pathlib.Path(os.environ["GRADUS_BUILD_DIR"])
PODS, JOBS, SERVICES = "/v1/pods", "batch/v1/jobs", "/v1/services"
MPIJOBS = "kubeflow.org/v2beta1/mpijobs"
LEASES = "coordination.k8s.io/v1/leases"
# A busy machine holds an operator up for seconds: it is not to lose the lease by that.
LEASE = ("--leader-elect-lease-duration", "60s", "--leader-elect-renew-deadline", "50s",
         "--leader-elect-retry-period", "200ms")
QUICK = ("--leader-elect-lease-duration", "5s", "--leader-elect-renew-deadline", "4s")


class Operator:
    def __init__(self, kubeconfig, *flags, **how):
        self.process = subprocess.Popen(
            [BUILD / "gradus", "operator", "--kubeconfig", kubeconfig, "--metrics-bind-address",
             "127.0.0.1:0", "--health-probe-bind-address", "0", "--lock-namespace", "team",
             *LEASE, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, **how)
        self.lines, self.came, self.code = [], threading.Condition(), None
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            with self.came:
                self.lines.append(line.rstrip("\n"))
                self.came.notify_all()
        with self.came:
            self.lines.append(None)
            self.came.notify_all()

    def said(self):
        with self.came:
            return "\n".join(filter(None, self.lines))

    def wait_for(self, pattern):
        def found():
            return next((match for line in self.lines
                         if line and (match := re.search(pattern, line))), None)
        with self.came:
            self.came.wait_for(lambda: found() or None in self.lines, TIMEOUT_S)
            match = found()
            assert match, f"waited for \"{pattern}\": {self.lines}"
            return match

    def url(self, path):
        return f"http://{self.wait_for('are at ([0-9.:]+)')[1]}{path}"

    def page(self, path):
        """(HTTP code, text)."""
        try:
            with urllib.request.urlopen(self.url(path), timeout=TIMEOUT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, name):
        lines = re.findall(rf"^{re.escape(name)} (\S+)$", self.page("/metrics")[1], re.M)
        return float(lines[0]) if lines else None

    def ready(self):
        wait_until(lambda: self.page("/readyz")[0] == 200, "a list of all there is")
        return self

    def end(self):
        self.code = self.process.wait(TIMEOUT_S)
        self.reader.join()
        self.process.stderr.close()
        return self.code

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.end()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if self.code is None:  # it works, or has ended when it was not to
            code = self.stop(signal.SIGKILL if kind else signal.SIGTERM)
            assert kind or code == 0, self.said()
        if kind:
            print(self.said())


def mpi_job(name, workers=2, **policy):
    def role(replicas):
        return {"replicas": replicas, "template": {"spec": {"containers": [
            {"name": "c", "image": "trainer"}]}}}
    return {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "metadata": {"name": name},
            "spec": {"runPolicy": policy, "mpiReplicaSpecs": {"Launcher": role(1),
                                                              "Worker": role(workers)}}}


def holds(job, kind):
    """Has the job (or batch Job) this condition?"""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return any(one["type"] == kind and one["status"] == "True" for one in conditions)


class Cluster:
    """What else runs in a cluster: kubelets, the controller of batch Jobs, the garbage collector;
    all of it when a test wants it."""

    def __init__(self, api):
        self.api = api

    def submit(self, job, space="team"):
        return self.api.put(MPIJOBS, job, space)

    def job(self, name, space="team"):
        return self.api.objects.get((MPIJOBS, space, name))

    def pods(self, name):
        with self.api.changed:
            return {key[2]: thing for key, thing in self.api.objects.items() if key[0] == PODS
                    and thing["metadata"]["labels"].get("training.kubeflow.org/job-name") == name}

    def change(self, resource, name, what):
        """what(object): to an object, as if by somebody else."""
        with self.api.changed:
            thing = self.api.get(resource, name)
            what(thing)
            return self.api.store(resource, "team", thing)

    def status(self, resource, name, **status):
        self.change(resource, name, lambda thing: thing.setdefault("status", {}).update(status))

    def await_workers(self, name, count):
        self.api.wait(lambda: len(self.pods(name)) == count
                      and (JOBS, "team", f"{name}-launcher") in self.api.objects,
                      f"{count} workers and a launcher of {name}")

    def await_condition(self, name, kind):
        self.api.wait(lambda: holds(self.job(name), kind), f"{name} to be {kind}")

    def run(self, name):
        """All pods run, and that of the launcher."""
        launcher = self.api.get(JOBS, f"{name}-launcher")
        with self.api.changed:
            for pod in list(self.pods(name)):
                self.status(PODS, pod, phase="Running",
                            conditions=[{"type": "Ready", "status": "True"}])
        self.api.put(PODS, {
            "apiVersion": "v1", "kind": "Pod", "status": {"phase": "Running"}, "spec": {},
            "metadata": {"name": f"{name}-launcher-x",
                         "labels": launcher["spec"]["template"]["metadata"]["labels"],
                         "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job",
                                              "name": f"{name}-launcher", "controller": True,
                                              "uid": launcher["metadata"]["uid"]}]}})
        self.status(JOBS, f"{name}-launcher", active=1, startTime="2026-01-01T00:00:00Z")

    def end(self, name, kind="Complete", **status):
        self.status(PODS, f"{name}-launcher-x",
                    phase="Succeeded" if kind == "Complete" else "Failed")
        self.status(JOBS, f"{name}-launcher", active=0, completionTime="2026-01-01T00:01:00Z",
                    conditions=[{"type": kind, "status": "True", "reason": "said",
                                 "message": "by the test"}], **status)

    def collect_garbage(self):
        with self.api.changed:
            while True:
                alive = {thing["metadata"]["uid"] for thing in self.api.objects.values()}
                dead = [key for key, thing in self.api.objects.items()
                        for owner in thing["metadata"].get("ownerReferences", [])
                        if owner["uid"] not in alive]
                if not dead:
                    return
                for key in set(dead):
                    self.api.drop(*key)

    def complete(self, name, workers=2):
        """From its workers to its end."""
        self.await_workers(name, workers)
        self.run(name)
        self.await_condition(name, "Running")
        self.end(name)
        self.await_condition(name, "Succeeded")

    def assert_once(self):
        """No object was made twice but for one that was deleted, and nobody tried to."""
        with self.api.changed:
            twice = {key: count for key, count in self.api.created.items()
                     if count > 1 and not key[0].endswith("/events")}
        assert not twice

    def events(self, name):
        with self.api.changed:
            return [thing for key, thing in self.api.objects.items() if key[0] == "/v1/events"
                    and thing["involvedObject"]["name"] == name]

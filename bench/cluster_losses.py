#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Takes pods away from GradusJobs on a real node at random moments, job after job, and looks at
what comes of it.

    bench/cluster_losses.py --losses 50 --first 1

Each job is the digits with 4 workers, every second one with checkpoints. In a quarter of the jobs
the moment is one before all workers run (as long as it took the job that was not disturbed), in the
others one of the training, by its epoch; in a quarter of the jobs another worker is lost within
2 s. A loss of a worker is one of these:

    delete   the pod is deleted, with 0, 1 or 5 s until SIGKILL
    kill     the worker's processes are killed
    node     all of the pod is killed, what holds its network included

Worker 0, which is rank 0 and holds the coordinator when the job begins, is the victim of two losses
in five. A job that ends before its loss counts as none. The operator has the rights of deploy/base
and no others. Each job must succeed with the weights (SHA-256) of a run that nobody disturbs.
Exit code 1: one did not; --first SEED --losses 1 repeats it. The node: see bench/kube_node.py.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from kube_node import ROOT, Node, make_image, processes_of

WORKERS, IMAGE = 4, "local.test/gradus:1"
BASE, DIGITS = ROOT / "deploy" / "base", ROOT / "examples" / "digits"
PATIENCE_S = 600
WAYS = ("delete", "kill", "node")


def lines_of(output):
    """Whole lines of what a job writes of its training."""
    path = output / "metrics.jsonl"
    text = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def hash_of(output):
    lines = lines_of(output)
    return lines[-1].get("weights_sha256") if lines else None


def settings_of(program, folder, epochs):
    """The digits as a job document, and the weights that they end with."""
    text = (DIGITS / "mlp.yaml").read_text()
    text = text.replace("epochs: 40", f"epochs: {epochs}").replace("eval_every: 10",
                                                                   f"eval_every: {epochs}")
    (folder / "mlp.yaml").write_text(text)
    shutil.copy(DIGITS / "digits.csv.gz", folder)
    words = [program, "run", "-np", str(WORKERS), "--output", folder / "undisturbed",
             folder / "mlp.yaml"]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    said = subprocess.run([*words[:2], "--dry-run", "--json", *words[2:]], check=True,
                          stdout=subprocess.PIPE)
    settings = json.loads(said.stdout)["job"]
    del settings["output"], settings["checkpoint"]  # its folder is in the output
    settings["data"]["file"] = "/gradus/output/digits.csv.gz"
    return settings, hash_of(folder / "undisturbed")


class Plan:
    """What happens to a job. `start_s`: what it takes until all workers run; None: nothing is to
    happen."""

    def __init__(self, seed, epochs, start_s):
        rng = random.Random(seed)
        self.checkpoints = bool(seed % 2)
        self.after_s, self.epoch = None, rng.randrange(epochs)
        if start_s is not None and rng.random() < 0.25:
            self.after_s = rng.uniform(0, start_s)
        self.losses = [(rng.random() * 0.1, *self.loss(rng))]
        if rng.random() < 0.25:
            self.losses.append((rng.uniform(0, 2), *self.loss(rng)))
        if start_s is None:
            self.losses = []

    @staticmethod
    def loss(rng):
        """(worker, way, grace)"""
        worker = 0 if rng.random() < 0.4 else rng.randrange(1, WORKERS)
        return worker, rng.choice(WAYS), rng.choice((0, 1, 5))

    def is_time(self, since_s, output):
        if self.after_s is not None:
            return since_s >= self.after_s
        return any(line["event"] == "epoch" and line["epoch"] >= self.epoch
                   for line in lines_of(output)) or (self.epoch == 0 and lines_of(output))


class Losses:
    def __init__(self, node, folder, settings):
        self.node, self.folder, self.settings = node, folder, settings

    def create(self, name, checkpoints):
        output = self.folder / name
        output.mkdir()
        shutil.copy(DIGITS / "digits.csv.gz", output)
        job = {**self.settings, **({"checkpoint": {"every": "50 steps"}} if checkpoints else {})}
        self.node.kubectl("create", "-f", "-", text=json.dumps(
            {"apiVersion": "gradus.dev/v1", "kind": "GradusJob", "metadata": {"name": name},
             "spec": {"workers": {"replicas": WORKERS, "image": IMAGE}, "job": job,
                      "checkpointVolume": {"hostPath": {"path": str(output)}},
                      "runPolicy": {"backoffLimit": 5}}}))
        return output

    def status(self, name):
        return self.node.get("gradusjob", name).get("status", {})

    @staticmethod
    def state(status):
        true = [one["type"] for one in status.get("conditions", []) if one["status"] == "True"]
        states = ("Succeeded", "Failed", "Restarting", "Running")
        return next((one for one in states if one in true), "Created")

    def lose(self, name, worker, way, grace_s):
        """What the job did then; None: it was through, or there was no such pod."""
        pod = f"{name}-worker-{worker}"
        state = self.state(self.status(name))
        if state in ("Succeeded", "Failed"):
            return None
        found = self.node.kubectl("get", "pod", pod, "--ignore-not-found", "-o",
                                  "jsonpath={.metadata.uid}").strip()
        if not found:
            return None
        if way == "delete":
            force = ["--force"] if grace_s == 0 else []
            self.node.kubectl("delete", "pod", pod, "--ignore-not-found", "--wait=false",
                              f"--grace-period={grace_s}", *force)
            return state
        processes = processes_of(found, way == "node")
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return state if processes else None

    def run(self, name, plan):
        """(how it ended, its output, its restarts, the losses that took place, seconds until all
        workers ran, seconds)."""
        begin, lost, to_come, start_s = time.monotonic(), [], list(plan.losses), None
        output = self.create(name, plan.checkpoints)
        state, restarts, is_time = "Created", 0, False
        while state not in ("Succeeded", "Failed") and time.monotonic() < begin + PATIENCE_S:
            if to_come and (is_time or plan.is_time(time.monotonic() - begin, output)):
                is_time = True
                later_s, worker, way, grace_s = to_come.pop(0)
                time.sleep(later_s)
                at = self.lose(name, worker, way, grace_s)
                step = max((line.get("step", 0) for line in lines_of(output)), default=0)
                if at is not None:
                    how = f"{way} {grace_s} s" if way == "delete" else way
                    lost.append((worker, how, at, step))
            elif not to_come or plan.after_s is None:
                status = self.status(name)
                state, restarts = self.state(status), status.get("restarts", 0)
                if start_s is None and state == "Running":
                    start_s = time.monotonic() - begin
            time.sleep(0.05)
        return state, output, restarts, lost, start_s, time.monotonic() - begin

    def tell(self, name):
        """All that a reader needs to see what went wrong."""
        for words in (("get", "gradusjob,pod", "-o", "wide"),
                      ("get", "gradusjob", name, "-o", "yaml"),
                      ("get", "events"), ("logs", "--prefix", "--tail=50", "-l",
                                          f"training.kubeflow.org/job-name={name}")):
            print(self.node.kubectl(*words, check=False))

    def delete(self, name):
        self.node.kubectl("delete", "gradusjob", name)
        self.node.kubectl("delete", "pod", "--ignore-not-found", "--grace-period=1", "-l",
                          f"training.kubeflow.org/job-name={name}")


def start_operator(node, program, folder):
    make_image(folder / "image", program)
    node.run("image", IMAGE, folder / "image")
    node.kubectl("apply", "--server-side", "-f", BASE / "gradusjobs.yaml", "-f", BASE / "role.yaml")
    node.kubectl("create", "namespace", "gradus")
    node.kubectl("-n", "gradus", "create", "serviceaccount", "gradus-operator")
    node.kubectl("create", "clusterrolebinding", "gradus-operator", "--clusterrole=gradus-operator",
                 "--serviceaccount=gradus:gradus-operator")
    node.kubectl("wait", "--for=condition=Established", "crd/gradusjobs.gradus.dev")
    config = node.config_of("gradus-operator", "gradus", folder / "config")
    return node.start(program, "operator", "--kubeconfig", config, "--enable-scheme", "gradusjob",
                      "--leader-elect=false", "--metrics-bind-address", "0",
                      "--health-probe-bind-address", "0", "--launch-agent-image", IMAGE,
                      stderr=open(folder / "operator.log", "w"))


def measure(losses, wanted, options):
    plan = Plan(0, options.epochs, None)
    state, output, _, _, start_s, seconds = losses.run("undisturbed-job", plan)
    if state != "Succeeded" or hash_of(output) != wanted:
        losses.tell("undisturbed-job")
        sys.exit("cluster_losses.py: the job fails undisturbed")
    losses.delete("undisturbed-job")
    print(f"undisturbed: all run after {start_s:.1f} s, {seconds:.1f} s, {wanted}", flush=True)
    done, seed, wrong, counts, took = 0, options.first, [], collections.Counter(), []
    while done < options.losses:
        name, plan = f"digits-{seed}", Plan(seed, options.epochs, start_s)
        state, output, restarts, lost, _, took_s = losses.run(name, plan)
        right = state == "Succeeded" and hash_of(output) == wanted
        recovered = sum(line["event"] == "recovered" for line in lines_of(output))
        what = ", ".join(f"{way} worker {worker} ({at}, step {step})"
                         for worker, way, at, step in lost)
        print(f"{name}: {what or 'nothing lost'}; recovered {recovered}, restarts {restarts}, "
              f"{took_s:.1f} s{'' if right else f'; WRONG: {state}, {hash_of(output)}'}",
              flush=True)
        if not right:
            wrong.append(seed)
            losses.tell(name)
        if lost:
            done += 1
            took.append(took_s)
            counts["pods"] += len(lost)
            counts["worker 0"] += sum(worker == 0 for worker, *_ in lost)
            counts["restarts"] += restarts
            counts["not yet Running"] += lost[0][2] != "Running"
        losses.delete(name)
        shutil.rmtree(output)
        seed += 1
    print(f"{done} jobs lost {counts['pods']} pods, worker 0 {counts['worker 0']} times, "
          f"{counts['not yet Running']} before all ran; {counts['restarts']} attempts were made "
          f"anew; a job took {sum(took) / len(took):.1f} s, at most {max(took):.1f} s; "
          f"{done - len(wrong)} of {done} have the weights of an undisturbed run")
    if wrong:
        sys.exit(f"cluster_losses.py: wrong: seeds {wrong}")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--losses", type=int, default=50, help="jobs that lose pods")
    parser.add_argument("--first", type=int, default=1, help="the seed of the first one")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--build", default=ROOT / "build")
    options = parser.parse_args()
    os.environ.pop("GRADUS_KUBE", None)  # Gradus refuses variables that it does not know
    program = str(pathlib.Path(options.build).resolve() / "gradus")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("cluster_losses.py: was told to end"))
    with tempfile.TemporaryDirectory() as name, Node(pathlib.Path(name)) as node:
        folder = pathlib.Path(name)
        settings, wanted = settings_of(program, folder, options.epochs)
        operator = start_operator(node, program, folder)
        try:
            measure(Losses(node, folder, settings), wanted, options)
        finally:
            operator.send_signal(signal.SIGTERM)
            operator.wait(60)
            print((folder / "operator.log").read_text()[-4000:])


main()

# SPDX-License-Identifier: Apache-2.0
"""Workers of this session, each a job of its own, and clusters of TensorFlow: the functions that
notebooks of Cloudera know."""
import atexit
import os
import secrets
import threading
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from ._jobs import Job, JobError, threads_of
from ._place import Place, settings_of
from ._process import Deadline
from .errors import Error, InvalidError, TimeoutError

_LOOK_S = 1.0  # between two looks at the jobs of a cluster
_KERNELS = ("python3",)

Worker = Dict[str, Any]


class _Session:
    """The workers of this process; they end with it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.workers: Dict[str, Tuple[Job, Place, Worker]] = {}

    def add(self, job: Job, place: Place, worker: Worker) -> Worker:
        with self.lock:
            if not self.workers:
                atexit.register(stop_workers)
            self.workers[worker["id"]] = job, place, worker
        return worker

    def find(self, ids: Sequence[Union[str, Worker]]) -> List[str]:
        """The ids. InvalidError: one is not of this session."""
        names = [one["id"] if isinstance(one, Mapping) else one for one in ids]
        for name in names:
            if name not in self.workers:
                raise InvalidError(f"there is no worker {name!r} in this session; list_workers() "
                                   "has them", operation="workers")
        return names

    def look(self, names: Sequence[str]) -> List[Worker]:
        """The workers as they are now."""
        places = {tuple(place.flags): place for _, place, _ in
                  (self.workers[name] for name in names)}
        states = {flags: place.states() for flags, place in places.items() if flags}
        return [self._describe(name, states) for name in names]

    def _describe(self, name: str, states: Dict[Tuple[str, ...], Dict[str, str]]) -> Worker:
        job, place, worker = self.workers[name]
        state = job.state() if job.code is not None or not place.is_cluster else \
            states[tuple(place.flags)].get(name, "pending")
        status = {"done": "succeeded", "pending": "scheduling"}.get(state, state)
        address = f"{name}-0.{name}" if place.is_cluster else "127.0.0.1"
        found = {**worker, "status": status,
                 "ip_address": "unknown" if status == "scheduling" else address}
        if status == "failed":
            found["message"] = job.errors()
        return found


_session = _Session()
_MASTER = secrets.token_hex(4)


def launch_workers(n: int, cpu: float, memory: float, nvidia_gpu: int = 0,
                   kernel: str = "python3", script: str = "", code: str = "",
                   env: Optional[Mapping[str, str]] = None, *, name: str = "worker",
                   image: Optional[str] = None, namespace: Optional[str] = None,
                   context: Optional[str] = None, kubeconfig: Optional[str] = None,
                   flags: Sequence[str] = (), **place: Any) -> List[Worker]:
    """Starts n workers, which know nothing of each other (train() starts those that do), and
    returns a dict for each: id, status (scheduling, running, succeeded, failed, stopped),
    ip_address, and what was given.

    cpu, memory, nvidia_gpu  cores, GiB and GPUs of each, on a cluster; on this host `cpu` says how
                             many threads a worker has
    script, code             a file that Python runs, or else the text of a program; "!command"
                             is one for a shell
    env                      more of their environment; besides they find CDSW_ENGINE_ID and
                             CDSW_MASTER_ID, and on this host CDSW_IP_ADDRESS and CDSW_MASTER_IP
    image, namespace,        as for train(): a cluster
    context, kubeconfig
    flags                    more words for gradus run, or gradus submit
    place                    hosts="host1:4,host2:4": the workers take turns on these slots, by ssh;
                             slurm=True: each in a Slurm job of its own; and the other arguments of
                             gradus.run that say where

    What they write is shown here behind their ids. They end with this program."""
    if n < 1:
        raise InvalidError(f"n is {n}; it is 1 or more", operation="launch_workers")
    hosts = _slots_of(place.pop("hosts", None))
    there = [Place(launch_workers, namespace, context, kubeconfig, **place,
                   **({"hosts": hosts[index % len(hosts)]} if hosts else {})) for index in range(n)]
    words = _words(kernel, script, code, there[0])
    told = {"cpu": cpu, "memory": memory, "nvidia_gpu": nvidia_gpu, "kernel": kernel,
            "script": script, "code": code, "env": dict(env or {})}
    settings = {"worker_cpus": str(cpu), "worker_memory": f"{memory:g}Gi",
                "worker_gpus": nvidia_gpu or None, "image": image}
    # A wrong number is refused before the first one is started.
    Place(launch_workers).ask("submit", "--dry-run", "--image", "none", *settings_of(settings),
                              "--", "true", operation="launch_workers")
    group = secrets.token_hex(3)
    return [_launch(f"{name}-{group}-{index}", one, words, told, settings, flags)
            for index, one in enumerate(there)]


def _slots_of(hosts: Union[None, str, Sequence[str]]) -> List[str]:
    """A host for each slot of "host1:4,host2:4"."""
    words = hosts.split(",") if isinstance(hosts, str) else hosts or []
    found = []
    for word in filter(None, words):
        host, _, slots = word.partition(":")
        if slots and not slots.isdecimal():
            raise InvalidError(f"hosts has \"{word}\"; write host:slots",
                               operation="launch_workers")
        found += [host] * int(slots or 1)
    return found


def _words(kernel: str, script: str, code: str, place: Place) -> List[str]:
    if kernel not in _KERNELS:
        raise InvalidError(f"kernel is {kernel!r}; it is python3; another program is started by "
                           "code=\"!program\"", operation="launch_workers")
    if script:
        if not os.path.exists(script):
            raise InvalidError(f"the script {script} does not exist", operation="launch_workers")
        return [place.python, script]
    if not code.strip():
        raise InvalidError("neither script nor code is given", operation="launch_workers")
    return ["sh", "-c", code[1:]] if code.startswith("!") else [place.python, "-c", code]


def _launch(name: str, place: Place, words: Sequence[str], told: Mapping[str, Any],
            settings: Mapping[str, Any], flags: Sequence[str]) -> Worker:
    env = {"CDSW_ENGINE_ID": name, "CDSW_MASTER_ID": _MASTER, **told["env"]}
    if place.is_cluster:
        command = place.submit_words({**settings, "name": name}, env)
    else:
        if not place.is_remote(flags):
            env = {"CDSW_IP_ADDRESS": "127.0.0.1", "CDSW_MASTER_IP": "127.0.0.1", **env}
        env = {**place.env, **env}
        command = [*place.run_words(1, env), "-np", "1", "--outlive", "0",
                   *threads_of(told["cpu"])]
    job = Job(name, place, [*command, *flags, "--", *words], env, prefix=f"[{name}] ")
    _session.add(job, place, {"id": name, **told})
    return _session.look([name])[0] if not place.is_cluster else \
        {"id": name, "status": "scheduling", "ip_address": "unknown", **told}


def list_workers() -> List[Worker]:
    """The workers of this session, in the order in which they were launched."""
    return _session.look(list(_session.workers))


def await_workers(ids: Sequence[Union[str, Worker]], wait_for_completion: bool = True,
                  timeout_seconds: Optional[float] = 60) -> Dict[str, List[Worker]]:
    """Waits until the workers have ended, or with wait_for_completion=False until they run.

    ids              what launch_workers returned, or ids
    timeout_seconds  0 and None: for ever

    Returns {"workers": [...], "failures": [...]}: failures are those that failed, were stopped, or
    were not so far when the time was over; these go on."""
    names = _session.find(ids)
    deadline = Deadline(timeout_seconds or None)
    for name in names:
        job, place, _ = _session.workers[name]
        if wait_for_completion:
            job.wait_quietly(deadline.left())
        while not wait_for_completion and place.is_cluster and job.state() == "pending" and \
                deadline.left() != 0:
            left = deadline.left()
            job.wait_quietly(_LOOK_S if left is None else min(_LOOK_S, left))
    good = ("succeeded",) if wait_for_completion else ("succeeded", "running")
    workers = _session.look(names)
    return {"workers": [one for one in workers if one["status"] in good],
            "failures": [one for one in workers if one["status"] not in good]}


def stop_workers(*ids: Union[str, Worker]) -> List[Worker]:
    """Ends these workers, or all of this session, and returns them as they are then."""
    names, refused = _session.find(ids) if ids else list(_session.workers), []
    for name in names:
        try:
            _session.workers[name][0].begin_to_stop()
        except Error as error:  # the others are ended nevertheless
            refused.append(error)
    for name in names:
        _session.workers[name][0].stop()
    if refused:
        raise refused[0]
    return _session.look(names)


# ---- Clusters of TensorFlow ----------------------------------------------------------------------

# Each task of run_cluster. TF_CONFIG comes from the launcher; the pods of a Job make their own.
_TASK = """\
import importlib.util, json, os, sys
path, workers, servers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if "TF_CONFIG" not in os.environ:
    job, rank = os.environ["MASTER_ADDR"].partition(".")[2], int(os.environ["RANK"])
    hosts = ["%s-%d.%s:2222" % (job.split(".")[0], at, job) for at in range(workers + servers)]
    cluster = {"worker": hosts[:workers], **({"ps": hosts[workers:]} if servers else {})}
    task = {"type": "worker", "index": rank} if rank < workers else \\
        {"type": "ps", "index": rank - workers}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": task})
import tensorflow as tf
def report(**values):
    sys.stderr.flush()
    os.write(2, ("\\x1egradus " + json.dumps(values) + "\\n").encode())
told = json.loads(os.environ["TF_CONFIG"])
role, index = told["task"]["type"], told["task"]["index"]
cluster = tf.train.ClusterSpec(told["cluster"])
server = getattr(tf.distribute, "Server", None) or tf.train.Server
server = server(cluster, job_name=role, task_index=index)
if role == "worker" and index == 0:
    report(cluster=told["cluster"])
if role == "ps" or not path:
    server.join()
spec = importlib.util.spec_from_file_location("worker_script", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
module.run(cluster, server, index)
report(done=index)
"""


def run_cluster(n_workers: int, n_ps: int, cpu: float, memory: float, nvidia_gpu: int = 0,
                worker_script: Optional[str] = None, timeout_seconds: Optional[float] = 60, *,
                flags: Sequence[str] = (), **place: Any
                ) -> Tuple[Optional[Dict[str, List[str]]], Optional[str]]:
    """A cluster of TensorFlow: n_workers workers and n_ps parameter servers, each a server of
    tf.distribute, by `gradus run --roles`, or on Kubernetes as the pods of a Job.

    worker_script    a file of Python with run(cluster, server, task_index), which each worker
                     calls. It is waited for, and (None, None) is returned. Without it the servers
                     go on until stop_workers(), or the end of this program; (cluster,
                     "grpc://host:port") is returned, the addresses by role and that of the first
                     worker
    timeout_seconds  until the first worker's server is there; 0 and None: any
    flags            more words for gradus run, or gradus submit
    place            hosts, slurm, namespace, context, image and the other arguments of gradus.run
                     that say where; the image has TensorFlow, and needs nothing of Gradus

    cpu is the number of threads of each; memory and nvidia_gpu are as for launch_workers. Raises
    JobError: a task failed. TimeoutError: the cluster was ended."""
    told = {"cpu": cpu, "memory": memory, "nvidia_gpu": nvidia_gpu, "script": worker_script or ""}
    if n_workers < 1 or n_ps < 0:
        raise InvalidError(f"{n_workers} workers and {n_ps} parameter servers; there is a worker "
                           "at least", operation="run_cluster")
    if worker_script and not os.path.exists(worker_script):
        raise InvalidError(f"the script {worker_script} does not exist", operation="run_cluster")
    there = Place(run_cluster, **place)
    ready, found, done = threading.Event(), {}, set()

    def take(report: Dict[str, Any]) -> None:
        if "done" in report:
            done.add(report["done"])
            if there.is_cluster and len(done) == n_workers:  # pods of servers do not end
                threading.Thread(target=job.begin_to_stop, daemon=True).start()
            return
        found.update(report["cluster"])
        ready.set()
    name = f"cluster-{secrets.token_hex(3)}"
    job = Job(name, there, _cluster_words(name, there, told, n_workers, n_ps, flags), there.env,
              on_report=take)
    _session.add(job, there, {"id": name, **told})
    _await_cluster(job, ready, Deadline(timeout_seconds or None))
    if worker_script:
        try:
            job.wait()
        except JobError:
            if len(done) < n_workers:
                raise
        except BaseException:
            job.stop()
            raise
        return None, None
    return found, f"grpc://{found['worker'][0]}"


def _cluster_words(name: str, place: Place, told: Mapping[str, Any], workers: int, servers: int,
                   flags: Sequence[str]) -> List[str]:
    script = told["script"]
    counts = [str(workers), str(servers)]
    if place.is_cluster:
        settings = {"name": name, "number_of_workers": workers + servers,
                    "worker_cpus": str(told["cpu"]), "worker_memory": f"{told['memory']:g}Gi",
                    "worker_gpus": told["nvidia_gpu"] or None,
                    "code": os.path.abspath(script) if script else None}
        return [*place.submit_words(settings, place.env), *flags, "--", place.python, "-c", _TASK,
                os.path.basename(script), *counts]
    roles = f"worker={workers}" + (f",ps={servers}" if servers else "")
    return [*place.run_words(workers + servers, place.env), "--roles", roles, "--outlive", "0",
            *threads_of(told["cpu"]), *flags, "--", place.python, "-c", _TASK, script, *counts]


def _await_cluster(job: Job, ready: threading.Event, deadline: Deadline) -> None:
    """Until the first worker's server is there, or the job has ended."""
    try:
        while job.code is None and not ready.wait(min(_LOOK_S, _some(deadline.left()))):
            if deadline.left() == 0:
                raise TimeoutError("the first worker's server has not started in time; the cluster "
                                   "is ended", operation="run_cluster")
    except BaseException:
        job.stop()
        raise
    if job.code is not None:
        job.wait()  # until all of its output is read
    if not ready.is_set():
        raise JobError(f"the cluster ended before it was ready:\n{job.errors()}", job=job,
                       operation="run_cluster")


def _some(left: Optional[float]) -> float:
    return _LOOK_S if left is None else left

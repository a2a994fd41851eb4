# SPDX-License-Identifier: Apache-2.0
"""Jobs of the command `gradus`: where they run, what they are given, how they end."""
import math
import os
import re
import signal
from typing import Any, Dict, List, Mapping, Optional, Sequence

from . import _specification
from ._place import Place, make_name, sentence_of, settings_of
from ._process import Process, environment, errors_of
from .errors import Error, InvalidError, Status, TimeoutError

_IMAGE = "none"  # where a specification is checked for this host, which uses none


class JobError(Error):
    """A job failed, or was ended.

    job   the Job
    peer  the rank that failed, where that is known
    code  its exit code: 1, or 75 if it was ended and can go on
    """

    status = Status.COMM_BROKEN

    def __init__(self, sentence: str, *, job: Optional["Job"] = None, code: int = 1,
                 **more: Any) -> None:
        super().__init__(sentence, **more)
        self.job, self.code = job, code


class Job:
    """A job that train() has started. What it writes is shown here.

    name  by which gradus ls, logs, stop and attach know it
    """

    def __init__(self, name: str, place: Place, words: Sequence[str],
                 env: Optional[Mapping[str, str]] = None, cwd: Optional[str] = None,
                 **more: Any) -> None:
        self.name, self._place, self._stopped = name, place, False
        self._process = Process(words, environment(dict(env or {})), cwd=cwd, **more)

    def __repr__(self) -> str:
        return f"<gradus.jobs.Job {self.name}: {self.state()}>"

    @property
    def code(self) -> Optional[int]:
        """Its exit code, None before its end: that of gradus run, or of gradus submit --follow."""
        return self._process.code

    def state(self) -> str:
        """pending (a cluster has no place for it yet), running, done, failed or stopped."""
        if self.code is not None:
            return "stopped" if self._stopped else "done" if self.code == 0 else "failed"
        return self._place.states().get(self.name, "pending") if self._place.is_cluster else \
            "running"

    def logs(self) -> str:
        """What it has written so far: its last 10,000 lines."""
        return "".join(f"{line}\n" for line in list(self._process.lines))

    def errors(self) -> str:
        """The last of it that is of stderr."""
        return sentence_of(errors_of(self._process))

    def wait(self, timeout: Optional[float] = None) -> None:
        """Until it has ended well. Ctrl-C ends a job of this host, and leaves one of a cluster
        running. JobError: it failed or was ended; the text is the last of what it wrote to stderr,
        with the traceback. TimeoutError after so many seconds: it goes on."""
        code = self._process.finish(timeout)
        if code is None:
            raise TimeoutError(f"job {self.name} has not ended within {timeout:g} s; it goes on",
                               operation="wait")
        if code == 2:
            raise InvalidError(self.errors(), operation="train")
        if code != 0:
            how = "was ended" if self._stopped else "failed"
            text = self.errors()
            rank = re.search(r"^rank (\d+) \(pid|^worker (\d+) \(pod", text, re.M)
            raise JobError(f"job {self.name} {how}:\n{text}", job=self, code=code,
                           operation="wait", peer=int(rank[1] or rank[2]) if rank else None)

    def wait_quietly(self, timeout: Optional[float] = None) -> Optional[int]:
        """The exit code, or None when the time is over."""
        return self._process.wait(timeout)

    def stop(self) -> None:
        """Ends it, as gradus stop does, and waits for its end; one that has ended stays as it
        is."""
        self.begin_to_stop()
        self._process.wait()

    def begin_to_stop(self) -> None:
        if self._stopped or self.code is not None:
            return
        self._stopped = True
        if self._place.is_cluster:
            try:
                self._place.ask("stop", self.name, operation="stop")
            except InvalidError:
                if self.code is None:  # it is not there yet: nobody follows it any more
                    self._process.signal(signal.SIGTERM)
                    raise
        else:
            self._process.signal(signal.SIGTERM)


# ---- Specifications ------------------------------------------------------------------------------

def flags_here(distribution: Mapping[str, Any]) -> List[str]:
    """The flags of gradus run that mean the same on this host. What is said of images, memory,
    GPUs and the launcher has no meaning there."""
    settings = {key: value for key, value in distribution.items() if key != "code"}  # stays here
    Place(train).ask("submit", "--dry-run", "--image", _IMAGE, *settings_of(settings), "--",
                     "true", operation="train")
    kind = distribution.get("distribution_type") or "Job"
    workers = int(distribution.get("number_of_workers") or (1 if kind == "Job" else 2))
    servers = int(distribution.get("number_of_ps") or 0)
    if kind == "TF":
        chief = f"chief=1,worker={workers},ps={servers}" if servers else f"worker={workers}"
        flags = ["--roles", chief]
    else:
        slots = distribution.get("slots_per_worker") or distribution.get("worker_gpus") or 1
        flags = ["-np", str(workers * (int(slots) if kind == "MPI" else 1))]
    return [*flags, *threads_of(distribution.get("worker_cpus"))]


def threads_of(cpus: Any) -> List[str]:
    """So many threads has a worker as it may use cores: "2", "500m", 1.5."""
    if cpus in (None, ""):
        return []
    text = str(cpus)
    cores = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    return ["--threads", str(max(1, math.ceil(cores)))]


def _code_folder(distribution: Mapping[str, Any]) -> Optional[str]:
    """Where the command runs on this host."""
    code = distribution.get("code")
    if not code:
        return None
    if not os.path.exists(code):
        raise InvalidError(f"the code {code} is not on this host; give a file or a folder",
                           operation="train")
    return str(code) if os.path.isdir(code) else os.path.dirname(os.path.abspath(code))


def train(train_specification: _specification.Specification,
          train_parameters: Optional[Mapping[str, Any]] = None,
          distribution_specification: Optional[Mapping[str, Any]] = None, *,
          namespace: Optional[str] = None, context: Optional[str] = None,
          kubeconfig: Optional[str] = None, flags: Sequence[str] = (),
          env: Optional[Mapping[str, str]] = None, wait: bool = True, **place: Any) -> Job:
    """Starts a job, shows what its workers write, and waits until it has ended well.

    train_specification         what each worker runs: a function, whose text travels, so that it
                                imports and defines within itself what it uses; a component as
                                func_to_component_text of Kubeflow Pipelines makes it (YAML, a file
                                of it, or a dict); or a command, as a list of words
    train_parameters            the function's arguments, which JSON can carry; the component's
                                inputs and outputs, by their names (paths are used as they are); or
                                for a command flags, --name value
    distribution_specification  distribution_type (Job, MPI, TF, PyTorch), number_of_workers,
                                worker_cpus, worker_memory, worker_gpus, number_of_ps,
                                launcher_cpus, image, name, code and the other keys of gradus
                                submit, which docs/reference.md lists
    namespace, context,         one of them: the job goes to that cluster
    kubeconfig
    flags                       more words for gradus run (["--cores", "0-3"]), or for gradus submit
                                (["--volume", "pvc:data:/data"])
    env                         more variables of the workers, on all hosts
    wait                        False: returns at once
    place                       without a cluster it runs here, or on other hosts: hosts, hostfile,
                                slurm, ssh_port and the other arguments of gradus.run that say where

    Returns the Job. Without a cluster MPI has number_of_workers x slots_per_worker ranks, TF the
    roles of --roles, and worker_cpus says how many threads a worker has; memory, GPUs, images and
    the launcher's share mean nothing there. All kinds find RANK, WORLD_SIZE, MASTER_ADDR, ....

    Raises JobError: the job failed. InvalidError: a key or a value is wrong; nothing has
    started."""
    there = Place(train, namespace, context, kubeconfig, **place)
    distribution = dict(distribution_specification or {})
    words = _specification.words_of(train_specification, train_parameters or {}, there.python)
    name = str(distribution.get("name") or make_name(_stem(train_specification)))
    distribution["name"] = name
    env = {**there.env, **(env or {})}
    if there.is_cluster:
        job = Job(name, there, [*there.submit_words(distribution, env), *flags, "--", *words])
    else:
        here = flags_here(distribution)
        count = int(here[here.index("-np") + 1]) if "-np" in here else None
        job = Job(name, there, [*there.run_words(count, env), "--name", name, *here, *flags, "--",
                                *words], env, _code_folder(distribution))
    if wait:
        job.wait()
    return job


def _stem(specification: Any) -> str:
    name: Any = getattr(specification, "__name__", None)
    if name is None and isinstance(specification, Mapping):
        name = specification.get("name")
    return str(name or "train")



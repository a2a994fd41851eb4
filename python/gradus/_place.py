# SPDX-License-Identifier: Apache-2.0
"""Where a job runs: on this host, on others by ssh or Slurm, or on a Kubernetes cluster."""
import difflib
import inspect
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from ._command import program
from .errors import Error, InvalidError, NotFoundError

_STEM = 24  # characters of a name that say what the job is
# Arguments of horovod.run that are flags of gradus run.
_FLAGS = {"hosts": "--hosts", "hostfile": "--hostfile", "ssh_port": "--ssh-port",
          "ssh_identity_file": "--ssh-identity-file", "start_timeout": "--start-timeout",
          "output_filename": "--log-dir", "min_num_proc": "--min-workers",
          "max_num_proc": "--max-workers", "reset_limit": "--restarts",
          "host_discovery_script": "--host-discovery-script", "slots": "--slots-per-host"}
# Those that mean nothing here: there is neither MPI nor a cache of hosts.
_IGNORED = ("use_gloo", "use_mpi", "mpi_args", "disable_cache", "cooldown_range")
_OTHERS = ("namespace", "context", "kubeconfig", "image", "slurm", "verbose", "executable",
           "network_interface", "network_interfaces")
_COUNTS = ("num_proc", "workers")  # how many workers: of run, of distribute
# Flags of gradus run by which workers may come to other hosts.
_REMOTE = ("-H", "--hosts", "--hostfile", "--host-discovery-script", "--listen")


class Place:
    """This host and those that it reaches, or a cluster. `caller` is the function that was given
    the arguments.

    flags      words for the commands that ask the cluster
    run_flags  words for `gradus run`
    env        variables of the workers
    """

    def __init__(self, caller: Callable[..., Any], /, namespace: Optional[str] = None,
                 context: Optional[str] = None, kubeconfig: Optional[str] = None, *,
                 image: Optional[str] = None,
                 slurm: Union[None, bool, str, Sequence[str]] = None,
                 verbose: Optional[bool] = None, executable: Optional[str] = None,
                 network_interface: Union[None, str, Sequence[str]] = None,
                 network_interfaces: Union[None, str, Sequence[str]] = None,
                 start_timeout: Optional[float] = None, **more: Any) -> None:
        given = {"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig and
                 os.path.abspath(os.fspath(kubeconfig))}
        self.flags = [word for flag, value in given.items() if value is not None
                      for word in (flag, value)]
        self.image, self.operation = image, caller.__name__
        self.start_timeout_s = start_timeout
        if start_timeout is not None and not self.is_cluster:
            more["start_timeout"] = start_timeout
        self.run_flags = self._flags_of(more, caller)
        self.slurm = None if slurm is None or slurm is False else \
            [] if slurm is True else shlex.split(slurm) if isinstance(slurm, str) else \
            [str(word) for word in slurm]
        self.env: Dict[str, str] = {"GRADUS_LOG": "info"} if verbose else {}
        interfaces = network_interfaces if network_interface is None else network_interface
        if interfaces:
            self.env["GRADUS_INTERFACE"] = interfaces if isinstance(interfaces, str) else \
                ",".join(interfaces)
        self.python = executable or ("python3" if self.is_cluster else sys.executable)
        self._check()

    def _flags_of(self, arguments: Mapping[str, Any], caller: Callable[..., Any]) -> List[str]:
        words = []
        for name, value in arguments.items():
            if name not in _FLAGS and name not in _IGNORED:
                raise self._refuse(f"there is no argument \"{name}\"" + _meant(name, caller))
            if name in _FLAGS and value is not None:
                text = value if isinstance(value, str) or not isinstance(value, Sequence) else \
                    ",".join(value)
                words += [_FLAGS[name], f"{text}s" if name == "start_timeout" else str(text)]
        return words

    def _refuse(self, sentence: str) -> InvalidError:
        return InvalidError(sentence, operation=self.operation)

    def _check(self) -> None:
        if self.is_cluster and (self.run_flags or self.slurm is not None):
            which = self.run_flags[0].lstrip("-") if self.run_flags else "slurm"
            raise self._refuse("namespace, context or kubeconfig say that the job goes to a "
                               f"cluster, where {which} has no meaning; give one of them")
        if self.slurm is not None and {*self.run_flags} & {*_REMOTE}:
            raise self._refuse("slurm says that Slurm finds the hosts; give no others")
        if self.image and not self.is_cluster:
            raise self._refuse(f"image is {self.image}, which a cluster alone uses; give namespace "
                               "or context as well")

    @property
    def is_cluster(self) -> bool:
        return bool(self.flags)

    def names_hosts(self, flags: Sequence[str] = ()) -> bool:
        """Whether it is said here or in more flags of `gradus run` which hosts there are."""
        return self.slurm is not None or any(
            word.split("=")[0] in _REMOTE or word.startswith("-H")
            for word in [*self.run_flags, *flags])

    def is_remote(self, flags: Sequence[str] = ()) -> bool:
        """Whether workers may be on other hosts."""
        return self.is_cluster or self.names_hosts(flags) or "SLURM_JOB_ID" in os.environ

    def run_words(self, count: Optional[int], env: Mapping[str, str]) -> List[str]:
        """The command `gradus run` up to its flags, in an allocation of its own where Slurm is
        asked for one; `env` comes to the workers of all hosts."""
        before: List[str] = []
        if self.slurm is not None:
            if shutil.which("salloc") is None:
                raise NotFoundError("slurm is asked for, and salloc is not on PATH; install "
                                    "Slurm's commands (Debian: slurm-client)",
                                    operation=self.operation)
            before = ["salloc", "-Q", *(["-n", str(count)] if count else []), *self.slurm]
        names = [word for name in env for word in ("--export", name)]
        if "LIBGRADUS" in os.environ:
            names += ["--export", "LIBGRADUS"]
        return [*before, program(), "run", *self.run_flags, *names]

    def submit_words(self, settings: Mapping[str, Any], env: Mapping[str, str]) -> List[str]:
        """The command `gradus submit` up to its flags."""
        pairs = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
        if self.image is not None:
            settings = {**settings, "image": settings.get("image") or self.image}
        return [program(), "submit", "--follow", *settings_of(settings), *pairs, *self.flags]

    def ask(self, verb: str, *words: str, operation: str) -> str:
        """What a command of gradus prints for the cluster. InvalidError: it refuses; Error."""
        done = subprocess.run([program(), verb, *words, *self.flags], capture_output=True,
                              text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            kind = InvalidError if done.returncode == 2 else Error
            raise kind(sentence_of(done.stderr), operation=operation)
        return done.stdout

    def states(self) -> Dict[str, str]:
        """Of the jobs of a cluster: pending, running, suspended, done or failed."""
        lines = self.ask("ls", "--json", operation="ls").splitlines()
        return {one["name"]: one["state"] for one in map(json.loads, lines)}


def _meant(name: str, caller: Callable[..., Any]) -> str:
    """The nearest argument of the function."""
    own = [one.name for one in inspect.signature(caller).parameters.values()
           if one.kind != one.VAR_KEYWORD]
    known = {one: one for one in [*own, *_FLAGS, *_OTHERS, *_IGNORED]}
    known.update({other: one for one in _COUNTS if one in own for other in _COUNTS})
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean \"{known[near[0]]}\"?" if near else ""


def sentence_of(text: str) -> str:
    """What the command says, without its name, and with ours for its flag."""
    text = re.sub(r"^gradus: ", "", text.strip(), flags=re.M)
    return re.sub(r"^(?:submit: )?--set ", "distribution_specification: ", text, flags=re.M)


def make_name(stem: str) -> str:
    """One that gradus run and a cluster take, and that no other job has."""
    stem = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:_STEM].strip("-")
    stem = stem if stem[:1].isalpha() else f"job-{stem}".strip("-")
    return f"{stem}-{secrets.token_hex(3)}"


def settings_of(distribution: Mapping[str, Any]) -> List[str]:
    """As flags of gradus submit, which knows the keys and what they may be."""
    return [word for key, value in distribution.items() if value is not None
            for word in ("--set", f"{key}={_value(key, value)}")]


def _value(key: str, value: Any) -> str:
    """As YAML. Text stands in quotes, or gradus would take some for a number."""
    if not isinstance(key, str) or not re.fullmatch(r"\w+", key):
        raise InvalidError(f"distribution_specification has the key {key!r}; keys are names such "
                           "as number_of_workers", operation="train")
    if not isinstance(value, (str, int, float)):
        raise InvalidError(f"{key} is a {type(value).__name__}; it is a number or a text",
                           operation="train")
    return json.dumps(value)

# SPDX-License-Identifier: Apache-2.0
"""Where a job runs: on this host and those that it reaches, or on a Kubernetes cluster."""
import json
import os
import re
import secrets
import subprocess
from typing import Any, Dict, List, Mapping, Optional

from ._command import program
from .errors import Error, InvalidError

_STEM = 24  # characters of a name that say what the job is


class Place:
    """This host and those that it reaches, or a cluster."""

    def __init__(self, namespace: Optional[str] = None, context: Optional[str] = None,
                 kubeconfig: Optional[str] = None) -> None:
        given = {"--namespace": namespace, "--context": context, "--kubeconfig": kubeconfig}
        self.flags = [word for flag, value in given.items() if value is not None
                      for word in (flag, os.fspath(value))]

    @property
    def is_cluster(self) -> bool:
        return bool(self.flags)

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

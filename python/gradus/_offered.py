# SPDX-License-Identifier: Apache-2.0
"""Slots of Ray or Spark for a job that goes on without those that are lost: an agent in each joins
the launcher, `gradus run --listen`, which runs beside the caller."""
import ctypes
import re
import secrets
import signal
import subprocess
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence

from . import _process, _run
from ._command import program
from ._place import Place
from .errors import InvalidError

MOST = 4096  # workers of a job without a limit
RESTARTS = 100  # for each worker, without a limit
# Whoever knows the launcher's address finds it listening, unless the job is over.
WAIT_S = 5

_PR_SET_PDEATHSIG = 1
_NEEDS_TOKEN = "GRADUS_JOIN_TOKEN"
_LISTENS = r"gradus: agents may join at tcp:(\S+)"


class Launcher(NamedTuple):
    """Where agents join. The token is the job's secret."""

    address: str
    token: str


def serve(launcher: Launcher) -> int:
    """What a slot does: it runs an agent until the job is over, and another one when that is
    killed. The agent ends with this process, and writes where this writes. Returns its exit code:
    0 the job is over, 1 the launcher is lost, 2 it was refused."""
    libc = ctypes.CDLL(None)

    def follow() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    while True:
        done = subprocess.run(
            [program(), "agent", "--join", launcher.address, "--slots", "1",
             "--wait", f"{WAIT_S}s"],
            env=_process.environment({_NEEDS_TOKEN: launcher.token}), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, preexec_fn=follow)
        if done.returncode >= 0:
            return done.returncode


def run(fn: Callable[..., Any], args: Sequence[Any], kwargs: Optional[Dict[str, Any]], host: str,
        begin: Callable[[Launcher], None], *, num_proc: int, min_num_proc: Optional[int],
        max_num_proc: Optional[int], reset_limit: Optional[int],
        start_timeout: Optional[float], env: Optional[Mapping[str, str]],
        nics: Optional[Sequence[str]], on_report: Callable[[Dict[str, Any]], None]) -> List[Any]:
    """gradus.run on the slots that begin() asks for, which serve() the launcher that it is given
    in a thread. The launcher listens at this host's address."""
    least = min_num_proc or num_proc
    most = max_num_proc or MOST
    if not 1 <= least <= num_proc <= most:
        raise InvalidError(f"there are {num_proc} workers, at least {least} and at most {most}; "
                           "it is least, workers, most, and 1 or more",
                           operation="run_elastic")
    token, lock = secrets.token_hex(32), threading.Lock()

    def look(process: _process.Process, line: str) -> None:
        found = re.fullmatch(_LISTENS, line)
        if found and lock.acquire(blocking=False):  # once
            begin(Launcher(found[1], token))
    place = Place(run, min_num_proc=least, max_num_proc=most,
                  reset_limit=RESTARTS if reset_limit is None else reset_limit,
                  start_timeout=start_timeout, network_interfaces=nics or None)
    name = f"[{host}]" if ":" in host else host
    return _run.call(fn, args, kwargs, num_proc, ["--listen", f"{name}:0"], env, place, on_report,
                     own_env={_NEEDS_TOKEN: token}, on_error=look, hidden=_LISTENS)

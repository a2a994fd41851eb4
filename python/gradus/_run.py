# SPDX-License-Identifier: Apache-2.0
"""A function becomes a job of this host: gradus.run, and what its workers do."""
import os
import pathlib
import pickle
import re
import sys
import tempfile
import time
import traceback
from typing import Any, Callable, Dict, List, Optional, Sequence

from ._command import program
from ._process import Process, environment
from .errors import Error, InvalidError

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

# What follows from another rank's failure, and is not its cause.
FOLLOWS = ("PeerLostError", "BrokenError", "AbortedError")


class RankError(Error):
    """A function failed on a rank, or the rank died.

    peer       the rank
    traceback  what Python said there, "" if it said nothing
    __cause__  the exception of the rank, where it can travel
    """

    traceback: str = ""


def run(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: int = 1, *, flags: Sequence[str] = (),
        env: Optional[Dict[str, str]] = None) -> List[Any]:
    """Runs fn(*args, **kwargs) on `num_proc` processes of this host, by `gradus run`, and returns
    their results in the order of the ranks. Each may make a gradus.Communicator(), or torch's
    process group.

    fn     travels with its arguments by cloudpickle where that is installed, and so do lambdas and
           functions of a notebook; else by pickle, which wants a function of a module that can be
           imported. They lie in a file that only this user can read, and never pass a network
    flags  more words for `gradus run` (["--cores", "0-3"])
    env    more of the environment of the ranks

    What the ranks write is shown as `gradus run` shows it. Ctrl-C ends the job, a second one at
    once.

    Raises RankError, a gradus.Error: the first rank that failed ends the others; it has the rank's
    traceback. InvalidError: the function, or a result, cannot be pickled; num_proc is less than 1.
    NotFoundError: no command."""
    return call(fn, args, kwargs, num_proc, flags, env, Process)


def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Optional[Dict[str, Any]],
         num_proc: int, flags: Sequence[str], env: Optional[Dict[str, str]],
         start: Callable[..., Process]) -> List[Any]:
    """What run() does; start(words, environment) starts the command."""
    if num_proc < 1:
        raise InvalidError(f"num_proc is {num_proc}; it is 1 or more", operation="run")
    try:
        job = _pickler.dumps((fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise InvalidError(f"{fn!r} or its arguments cannot be pickled: {error}"
                           + ("" if _pickler is not pickle else "; cloudpickle (Debian: "
                              "python3-cloudpickle) pickles more"), operation="run") from error
    if _pickler is pickle and getattr(fn, "__module__", None) == "__main__":
        raise InvalidError(f"{fn!r} is a function of the program itself, which pickle cannot "
                           "carry; move it to a module, or install cloudpickle (Debian: "
                           "python3-cloudpickle)", operation="run")
    with tempfile.TemporaryDirectory(prefix="gradus-run-") as name:  # of mode 0700
        folder = pathlib.Path(name)
        _write(folder / "job", job)
        words = [program(), "run", "-np", str(num_proc), "--outlive", "0", *flags, "--",
                 sys.executable, "-c", "from gradus import _run; _run.work()", str(folder)]
        process = start(words, environment(env))
        code = process.finish()
        results = {rank: _read(folder / f"result.{rank}") for rank in range(num_proc)}
        return _judge(results, code, list(process.errors), num_proc)


def _judge(results: Dict[int, Any], code: int, lines: Sequence[str], num_proc: int) -> List[Any]:
    """The results, or the error of the rank that failed first."""
    failed = [(result["kind"] in FOLLOWS, result["at"], rank, result)
              for rank, result in results.items() if result and not result["ok"]]
    silent = re.findall(r"^gradus: rank (\d+) \(pid \d+\) was killed by .*", "\n".join(lines), re.M)
    if failed and not (silent and all(entry[0] for entry in failed)):
        _, _, rank, result = min(failed, key=lambda entry: entry[:3])
        raise error_of_rank(rank, result)
    missing = [rank for rank, result in results.items() if result is None]
    if code != 0 or missing:
        told = "\n".join(lines) or f"gradus run ended with exit code {code}"
        peer = int(silent[0]) if silent else missing[0] if len(missing) == 1 else None
        raise RankError(f"the job failed: {told}", peer=peer, operation="run")
    return [pickle.loads(results[rank]["value"]) for rank in range(num_proc)]


def error_of_rank(rank: int, result: Dict[str, Any]) -> RankError:
    """Of what failure_of() has said there."""
    error = RankError(f"rank {rank} failed: {result['text']}", peer=rank, operation="run")
    error.traceback = result["traceback"]
    if result["error"] is not None:
        error.__cause__ = pickle.loads(result["error"])
    return error


def dumps(value: Any) -> bytes:
    return _pickler.dumps(value)


def _write(path: pathlib.Path, data: bytes) -> None:
    """As a whole or not at all; only for this user."""
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


def _read(path: pathlib.Path) -> Optional[Dict[str, Any]]:
    try:
        return pickle.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def failure_of(error: BaseException) -> Dict[str, Any]:
    try:
        travels = _pickler.dumps(error)
        pickle.loads(travels)
    except Exception:
        travels = None
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return {"ok": False, "kind": type(error).__name__, "at": time.monotonic_ns(), "text": text,
            "traceback": traceback.format_exc(), "error": travels}


def work() -> None:
    """What a worker does: the job of the folder that its command line names."""
    sys.exit(_worker(pathlib.Path(sys.argv[1])))


def _worker(folder: pathlib.Path) -> int:
    rank = int(os.environ["GRADUS_RANK"])
    code = 0
    try:
        fn, args, kwargs = pickle.loads((folder / "job").read_bytes())
        value = fn(*args, **kwargs)
        try:
            data = _pickler.dumps(value)
        except Exception as error:
            raise InvalidError(f"the result, a {type(value).__name__}, cannot be pickled: {error}",
                               rank=rank) from error
        result = {"ok": True, "value": data}
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        traceback.print_exc()
        result, code = failure_of(error), 1
        if result["kind"] in FOLLOWS:
            code = 76  # the launcher looks for the rank that failed first
    _write(folder / f"result.{rank}", pickle.dumps(result))
    return code

# SPDX-License-Identifier: Apache-2.0
"""A function becomes a job: gradus.run, and what its workers do."""
import base64
import contextlib
import os
import pathlib
import pickle
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
import traceback
import zlib
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from . import _process
from ._place import Place, make_name, sentence_of
from .errors import (AbortedError, BrokenError, CancelledError, Error, InvalidError, PeerLostError,
                     TimeoutError)

try:
    import cloudpickle as _pickler
except ImportError:
    _pickler = pickle

# What follows from another rank's failure, and is not its cause.
FOLLOWING = (PeerLostError, BrokenError, AbortedError, CancelledError)

_KEY = "_GRADUS_RESULT_KEY"  # what a result from another host begins with, or it is none
# What programs of Horovod read, and the variables of `gradus run` that say the same.
HOROVOD = {"HOROVOD_RANK": "RANK", "HOROVOD_SIZE": "WORLD_SIZE",
           "HOROVOD_LOCAL_RANK": "LOCAL_RANK", "HOROVOD_LOCAL_SIZE": "LOCAL_WORLD_SIZE",
           "HOROVOD_HOSTNAME": "GRADUS_HOSTNAME",
           "HOROVOD_CROSS_RANK": "CROSS_RANK", "HOROVOD_CROSS_SIZE": "CROSS_SIZE"}

_CALL_BYTES = 32 << 20  # of a function that goes to other hosts, packed
_POD_CALL_BYTES = 600 << 10  # to a cluster, in a ConfigMap, of which the API server takes 1 MiB
_RESULT_BYTES = 32 << 20  # of a result that comes back from other hosts, packed
_POD_RESULT_BYTES = 4 << 20  # from a cluster, which keeps 10 MiB of what a pod writes
_LINE = 2304  # bytes of a result in one line, which is one write of 4096 bytes at most

# Sentences of gradus submit on an image that no time will bring.
_HOPELESS = re.compile(r"^gradus: .*(?:waits for its image .*(?:not found|unknown|denied|"
                       r"unauthorized|does not exist)|cannot start: (?:InvalidImageName|"
                       r"ErrImageNeverPull))", re.I)

_DETACHED = r"gradus: detached; job .*"  # what it says at Ctrl-C; here the job is deleted then
_SENT = re.compile(r"gradus: job \S+ \(.*\) is sent to ")

# Words of Python in front of a worker, where it may lack what it needs.
_WORKER = """\
import sys
if "%d.%d" % sys.version_info[:2] != "{version}":
    sys.exit("gradus.run: %s is Python %d.%d, and the function comes from {version}, whose code "
             "it cannot read; take an image, or executable=, of that version"
             % (sys.executable, *sys.version_info[:2]))
try:
    from gradus import _run
except Exception as error:
    sys.exit("gradus.run: %s has no gradus (%s); install the wheel where the workers run, or name "
             "an image that has it" % (sys.executable, error))
_run.work()
"""


class RankError(Error):
    """A function failed on a rank, or the rank died.

    peer       the rank
    traceback  what Python said there, "" if it said nothing
    __cause__  the exception of the rank, where it can travel
    """

    traceback: str = ""


def run(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: Optional[int] = None, *, flags: Sequence[str] = (),
        env: Optional[Mapping[str, str]] = None, **place: Any) -> List[Any]:
    """Runs fn(*args, **kwargs) on `num_proc` processes, and returns their results in the order of
    the ranks: on this host, on others by ssh, on the nodes of a Slurm job, or on a Kubernetes
    cluster. Each may make a gradus.Communicator(), or torch's process group.

    fn         travels with its arguments by cloudpickle where that is installed, and so do lambdas
               and functions of a notebook; else by pickle, which wants a function of a module that
               can be imported
    num_proc   otherwise 1, and with hosts, hostfile or slurm one for each slot there
    flags      more words for `gradus run` (["--cores", "0-3"]), or `gradus submit` on a cluster
               (["--memory", "4Gi"])
    env        more of the environment of the ranks, on all hosts

    Where it runs; with none of these on this host, or on the nodes of the Slurm job in which the
    program runs:

    hosts              "host1:4,host2:4", by ssh; `hostfile`: a file with lines "host1 slots=4"
    slurm              True, or words of salloc ("-N 2 -p batch"): in a Slurm job of its own
    namespace          one of these: on a cluster, by `gradus submit`; of the context, if not given
    context            of the kubeconfig; otherwise its current one
    kubeconfig         a file; otherwise KUBECONFIG, else ~/.kube/config
    image              of its pods; it has the wheel, and this version of Python

    ssh_port, ssh_identity_file, start_timeout (seconds), network_interfaces (names), verbose,
    output_filename (a folder), executable, host_discovery_script and slots are as in horovod.run,
    for `gradus run`; use_gloo, use_mpi, mpi_args, disable_cache and cooldown_range mean nothing.
    With min_num_proc the job goes on without workers that are lost, with reset_limit each is
    started again so often, and with max_num_proc others may come: the results are those of the
    workers that ended well, in their order.

    On this host the function lies in a file that only this user can read. To other hosts it goes
    over ssh or Slurm, to a cluster through the API server; results come back the same way.

    What the ranks write is shown as `gradus run` shows it. Ctrl-C ends the job wherever it runs, a
    second one at once.

    Raises RankError, a gradus.Error: the first rank that failed, or was lost, ends the others; it
    has the rank's traceback. InvalidError: an argument is wrong, a host or the cluster cannot be
    reached, or the function cannot be pickled. TimeoutError: pods have not begun within
    start_timeout. NotFoundError: no command."""
    return call(fn, args, kwargs, num_proc, flags, env, Place(run, **place))


def call(fn: Callable[..., Any], args: Sequence[Any], kwargs: Optional[Dict[str, Any]],
         num_proc: Optional[int], flags: Sequence[str], env: Optional[Mapping[str, str]],
         place: Place, on_report: Callable[[Dict[str, Any]], None] = lambda values: None,
         on_show: Callable[[], None] = lambda: None, *,
         own_env: Optional[Mapping[str, str]] = None, **start: Any) -> List[Any]:
    """What run() does; the workers' reports go to on_report. own_env is of `gradus run` alone;
    `start` are further arguments of _process.Process."""
    if num_proc is not None and num_proc < 1:
        raise InvalidError(f"num_proc is {num_proc}; it is 1 or more", operation="run")
    is_remote = place.is_remote(flags)
    if num_proc is None and not place.names_hosts(flags):
        num_proc = 1
    job = _pickle(fn, args, kwargs, place, is_remote)
    key = secrets.token_hex(16)
    env = {**place.env, **(env or {}), **({_KEY: key} if is_remote else {})}
    results = _Results(key, on_report)
    start.update(on_report=results.take, on_show=on_show)
    with tempfile.TemporaryDirectory(prefix="gradus-run-") as name:  # of mode 0700
        folder = pathlib.Path(name)
        if place.is_cluster:
            process = _submit(fn, job, num_proc or 1, flags, env, place, folder, results, start)
        else:
            process = _start(job, num_proc, flags, env, own_env or {}, place, folder, is_remote,
                             start)
        if not is_remote:
            results.of_ranks = {int(path.suffix[1:]): pickle.loads(path.read_bytes())
                                for path in folder.glob("result.*[0-9]")}
    elastic = bool({*place.run_flags, *flags} & {"--min-workers", "--restarts"})
    return _judge(results.of_ranks, process, num_proc, elastic)


def _pickle(fn: Callable[..., Any], args: Sequence[Any], kwargs: Optional[Dict[str, Any]],
            place: Place, is_remote: bool) -> bytes:
    """The function with its arguments; packed, if it goes to other hosts."""
    try:
        with _by_value() if place.is_cluster else contextlib.nullcontext():
            job = _pickler.dumps((fn, tuple(args), dict(kwargs or {})))
    except Exception as error:
        raise InvalidError(f"{fn!r} or its arguments cannot be pickled: {error}"
                           + ("" if _pickler is not pickle else "; cloudpickle (Debian: "
                              "python3-cloudpickle) pickles more"), operation="run") from error
    if _pickler is pickle and getattr(fn, "__module__", None) == "__main__":
        raise InvalidError(f"{fn!r} is a function of the program itself, which pickle cannot "
                           "carry; move it to a module, or install cloudpickle (Debian: "
                           "python3-cloudpickle)", operation="run")
    if is_remote:
        job = zlib.compress(job)
        limit, where = (_POD_CALL_BYTES, "a cluster") if place.is_cluster else \
            (_CALL_BYTES, "other hosts")
        if len(job) > limit:
            raise InvalidError(
                f"the function with its arguments has {len(job) >> 10} KiB when it is packed, and "
                f"{limit >> 10} KiB go to {where}; let it read large data from a file or a volume",
                operation="run")
    return job


@contextlib.contextmanager
def _by_value() -> Iterator[None]:
    """What modules of the program define travels with the function, as far as it uses that: pods
    have none of them. Installed ones they are to have."""
    own = []
    if hasattr(_pickler, "register_pickle_by_value"):
        own = [module for name, module in list(sys.modules.items())
               if name not in ("__main__", "__mp_main__") and _is_own(module)]
    for module in own:
        _pickler.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            _pickler.unregister_pickle_by_value(module)


def _is_own(module: Any) -> bool:
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py"):
        return False
    path = pathlib.Path(file).absolute()
    return not {"site-packages", "dist-packages"} & {*path.parts} and not any(
        one in path.parents for one in (pathlib.Path(os.__file__).parent,
                                        pathlib.Path(__file__).absolute().parent))


def _words(place: Place, *arguments: str) -> List[str]:
    return [place.python, "-c", _WORKER.format(version="%d.%d" % sys.version_info[:2]), *arguments]


def _start(job: bytes, num_proc: Optional[int], flags: Sequence[str], env: Mapping[str, str],
           own_env: Mapping[str, str], place: Place, folder: pathlib.Path, is_remote: bool,
           start: Mapping[str, Any]) -> _process.Process:
    """By `gradus run`, until it has ended. The function goes by the folder, or, to other hosts, as
    the standard input of the workers, which no other user sees and no command line shows."""
    _write(folder / "job", base64.b64encode(job) if is_remote else job)
    words, how = place.run_words(num_proc, env), str(folder)
    if is_remote:
        words += ["--stdin", str(folder / "job")]
        how = "stdin"
    count = ["-np", str(num_proc)] if num_proc else []
    words += [*count, "--outlive", "0", *flags, "--", *_words(place, how)]
    process = _process.Process(words, _process.environment({**env, **own_env}), **start)
    process.finish()
    return process


def _submit(fn: Callable[..., Any], job: bytes, num_proc: int, flags: Sequence[str],
            env: Mapping[str, str], place: Place, folder: pathlib.Path, results: "_Results",
            start: Mapping[str, Any]) -> _process.Process:
    """By `gradus submit`, until it has ended; nothing of it stays on the cluster."""
    _write(folder / "call", job)
    name = make_name(getattr(fn, "__name__", "").strip("<>") or "run")
    settings = {"name": name, "number_of_workers": num_proc, "code": str(folder / "call")}
    words = [*place.submit_words(settings, env), *flags, "--", *_words(place, "call")]
    process: Optional[_process.Process] = None
    try:
        process = _process.Process(words, _process.environment(), on_error=_end_if_hopeless,
                                   hidden=_DETACHED, **start)
        late = process.finish_within(place.start_timeout_s,
                                     lambda: len(results.begun) == num_proc)
        if late:
            raise TimeoutError(
                f"{len(results.begun)} of {num_proc} workers have begun within "
                f"{place.start_timeout_s:g} s: "
                f"{sentence_of(_process.errors_of(process)).splitlines()[-1]}", operation="run")
    finally:
        if process is None or process.code != 2:  # else it has not been sent
            with contextlib.suppress(Error):
                place.ask("stop", name, operation="run")
    return process


def _end_if_hopeless(process: _process.Process, line: str) -> None:
    """A cluster would try again for ever."""
    if _HOPELESS.search(line):
        process.signal(signal.SIGINT)


class _Results:
    """What the workers report at their end, in parts; other reports are passed on. A result is
    unpickled, which runs what it says: only what begins with the key of this job is one, and not
    what a program happens to write."""

    def __init__(self, key: str, on_report: Callable[[Dict[str, Any]], None]) -> None:
        self.of_ranks: Dict[int, Dict[str, Any]] = {}
        self.begun: Set[int] = set()  # ranks
        self._key, self._on_report = key, on_report
        self._parts: Dict[Tuple[int, str], Dict[int, bytes]] = {}  # by rank and worker

    def take(self, report: Dict[str, Any]) -> None:
        """A worker that was started again begins again."""
        if "begun" in report:
            self.begun.add(report["begun"])
            return
        if "result" not in report:
            self._on_report(report)
            return
        if not secrets.compare_digest(str(report.get("key")).encode(), self._key.encode()):
            return
        key = report["rank"], report["result"]
        parts = self._parts.setdefault(key, {})
        parts[report["part"]] = base64.b64decode(report["data"])
        if len(parts) == report["of"]:
            whole = b"".join(parts[at] for at in range(report["of"]))
            self.of_ranks[report["rank"]] = pickle.loads(zlib.decompress(whole))
            del self._parts[key]


def _judge(results: Mapping[int, Dict[str, Any]], process: _process.Process,
           num_proc: Optional[int], elastic: bool) -> List[Any]:
    """The results, or the error of the rank that failed first."""
    lines = [line for line in process.errors if not _SENT.match(line)]
    code, told = process.code or 0, sentence_of("\n".join(lines))
    there = dict(sorted(results.items()))
    good = {rank: result for rank, result in there.items() if result["ok"]}
    if code == 0 and elastic and good:
        return [pickle.loads(result["value"]) for result in good.values()]
    first = first_failure(there)
    silent = re.findall(r"^rank (\d+) \(pid \d+.*?\) (?:was|exited)|"
                        r"^worker (\d+) \(pod ", told, re.M)
    lost = [int(one or other) for one, other in silent if int(one or other) not in there]
    if lost:  # a cluster may tell first of those that failed since it was lost
        said = told.splitlines()
        own = [line for line in said if line.startswith(f"worker {lost[0]} (pod ")]
        told = "\n".join([*own, *(line for line in said if line not in own)])
    size = num_proc or max((result["size"] for result in there.values()), default=1)
    missing = [rank for rank in range(size) if rank not in there]
    if first is not None and not ((lost or missing) and there[first]["follows"]):
        raise error_of_rank(first, there[first])
    hopeless = [line for line in process.errors if _HOPELESS.search(line)]
    if hopeless and not there:
        raise InvalidError(sentence_of(hopeless[0]), operation="run")
    if code == 2 and not there:
        raise InvalidError(told, operation="run")
    if code != 0 or missing:
        peer = lost[0] if lost else missing[0] if len(missing) == 1 else None
        said = [line for line in process.lines if "gradus.run: " in line]
        if said:  # by a worker that could not begin
            told = said[0].partition("gradus.run: ")[2]
        elif first is not None and not lost:  # the others say what they know of it
            peer = missing[0]
            told = f"rank {peer} was lost: {there[first]['text']}"
        elif code == 0:
            told = f"rank {missing[0]} ended before the function returned, with exit code 0"
            peer = missing[0]
        raise RankError(f"the job failed: {told or f'gradus ended with exit code {code}'}",
                        peer=peer, operation="run")
    return [pickle.loads(good[rank]["value"]) for rank in range(size)]


def first_failure(outcomes: Mapping[int, Dict[str, Any]]) -> Optional[int]:
    """The rank that failed by itself, not since another one did; the first one of several."""
    failed = [(one["follows"], one["at"], rank) for rank, one in outcomes.items() if not one["ok"]]
    return min(failed)[2] if failed else None


def error_of_rank(rank: int, result: Dict[str, Any]) -> RankError:
    """Of what failure_of() has said there."""
    error = RankError(f"rank {rank} failed: {result['text']}", peer=rank, operation="run")
    error.traceback = result["traceback"]
    if result["error"] is not None:
        with contextlib.suppress(Exception):  # of a package that only its host has, say
            error.__cause__ = pickle.loads(result["error"])
    return error


def dumps(value: Any) -> bytes:
    return _pickler.dumps(value)


def _write(path: pathlib.Path, data: bytes) -> None:
    """As a whole or not at all; only for this user."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # one before may have died
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
    os.replace(partial, path)


def _follows(error: Optional[BaseException]) -> bool:
    """Whether another rank's failure is among its causes: that of a HorovodInternalError is."""
    while error is not None:
        if isinstance(error, FOLLOWING):
            return True
        error = error.__cause__
    return False


def failure_of(error: BaseException) -> Dict[str, Any]:
    try:
        travels = _pickler.dumps(error)
        pickle.loads(travels)
    except Exception:
        travels = None
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    return {"ok": False, "follows": _follows(error), "at": time.time_ns(), "text": text,
            "traceback": traceback.format_exc(), "error": travels}


def work() -> None:
    """What a worker does: the function of the folder or file that its command line names, or that
    it reads."""
    sys.exit(_worker(sys.argv[1]))


def _job_of(how: str) -> bytes:
    if how == "stdin":
        job = base64.b64decode(sys.stdin.buffer.read())
        nothing = os.open(os.devnull, os.O_RDONLY)  # for programs that the function starts
        os.dup2(nothing, 0)
        os.close(nothing)
        return zlib.decompress(job)
    path = pathlib.Path(how)
    return (path / "job").read_bytes() if path.is_dir() else zlib.decompress(path.read_bytes())


def _send(result: Dict[str, Any], rank: int, limit: int, key: str) -> int:
    """To the caller, in lines of stderr. The exit code."""
    data = zlib.compress(pickle.dumps(result), 1)
    if len(data) > limit:
        error = InvalidError(
            f"the result has {len(data) / 2**20:.1f} MiB when it is packed, and "
            f"{limit >> 20} MiB come back from there; let the function write it to a file, or to "
            "a volume", rank=rank)
        data = zlib.compress(pickle.dumps({**failure_of(error), "size": result["size"]}))
        result = {"ok": False}
    name, count = secrets.token_hex(4), -(-len(data) // _LINE)
    for part in range(count):
        _process.report(key=key, result=name, rank=rank, part=part, of=count, data=base64.b64encode(
            data[part * _LINE:(part + 1) * _LINE]).decode())
    return 0 if result["ok"] else 1


def _worker(how: str) -> int:
    rank = int(os.environ.get("GRADUS_RANK") or os.environ["RANK"])
    size = int(os.environ.get("GRADUS_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    code, key = 0, os.environ.pop(_KEY, "")  # programs that the function starts do not inherit it
    if "HOROVOD_CONTROLLER" in os.environ:
        own = {"GRADUS_HOSTNAME": socket.gethostname(), **os.environ}
        os.environ.update({name: own[ours] for name, ours in HOROVOD.items() if ours in own})
    if not os.path.isdir(how):
        _process.report(begun=rank)
    try:
        fn, args, kwargs = pickle.loads(_job_of(how))
        value = fn(*args, **kwargs)
        try:
            data = _pickler.dumps(value)
        except Exception as error:
            raise InvalidError(f"the result, a {type(value).__name__}, cannot be pickled: {error}",
                               rank=rank) from error
        result = {"ok": True, "value": data}
    except _process.WorkerExit as end:
        return end.code
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        result, code = failure_of(error), 1
        if result["follows"]:
            code = 76  # the launcher looks for the rank that failed first
    result["size"] = size
    if os.path.isdir(how):
        _write(pathlib.Path(how) / f"result.{rank}", pickle.dumps(result))
    else:
        limit = _RESULT_BYTES if how == "stdin" else _POD_RESULT_BYTES
        code = max(code, _send(result, rank, limit, key))
    # Last: the launcher repeats the last lines of a rank that failed.
    sys.stderr.write(result.get("traceback", ""))
    return code

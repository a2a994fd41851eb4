# SPDX-License-Identifier: Apache-2.0
"""A function on the tasks of a Spark cluster: Spark places them, as one barrier stage, and Gradus
communicates.

    import gradus.spark
    print(gradus.spark.run(train, args=(0.1,), num_proc=4))

run_elastic() is for functions that go on when tasks are lost, and when others come.

gradus.Communicator() is that of the tasks there, and so is `gradus.torch.init()`. Importing this
does not import pyspark."""
import re
import secrets
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence

from . import _offered, _placed
from ._run import RankError
from .errors import InvalidError

__all__ = ["run", "run_elastic"]

_END_S = 2.0  # so long tasks have to see that the job is over


def run(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: Optional[int] = None, env: Optional[Dict[str, str]] = None, *,
        spark: Any = None) -> List[Any]:
    """Runs fn(*args, **kwargs) on num_proc tasks at the same time, and returns the results by rank.

    num_proc  how many; otherwise as many as Spark runs at a time (spark.default.parallelism)
    env       more of the environment of the tasks
    spark     a SparkSession; otherwise the active one, or one that is made

    Raises RankError, with the rank's traceback: it failed there, or its task was lost; Spark ends
    all others then. InvalidError: Spark has not so many slots for tasks, which must all run at
    once."""
    from py4j.protocol import Py4JJavaError
    context = _context_of(spark)
    size = context.defaultParallelism if num_proc is None else num_proc
    if size < 1:
        raise InvalidError(f"num_proc is {size}; it is 1 or more", operation="run")
    _check_slots(context, size)
    task = _task(fn, tuple(args), dict(kwargs or {}), size, dict(env or {}))
    try:
        outcomes = context.parallelize(range(size), size).barrier().mapPartitions(task).collect()
    except Py4JJavaError as error:
        raise _lost(error) from error
    return _placed.values_of(outcomes)


def _context_of(session: Any) -> Any:
    from pyspark.sql import SparkSession
    session = session or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    return session.sparkContext


def _task(fn: Callable[..., Any], args: Sequence[Any], kwargs: Dict[str, Any], size: int,
          env: Dict[str, str]) -> Callable[[Any], Iterator[_placed.Outcome]]:
    def task(_: Any) -> Iterator[_placed.Outcome]:
        from pyspark import BarrierTaskContext
        told = BarrierTaskContext.get()
        rank = told.partitionId()
        hosts = [one.address.rpartition(":")[0] for one in told.getTaskInfos()]
        here = {"LOCAL_RANK": str(hosts[:rank].count(hosts[rank])),
                "LOCAL_WORLD_SIZE": str(hosts.count(hosts[rank]))}

        def gather(mine: bytes) -> List[bytes]:  # Spark gathers text
            return [bytes.fromhex(part) for part in told.allGather(mine.hex())]
        rounds = _placed.Rounds(gather)
        with _placed.rank_of(rank, size, rounds.gather, {**here, **env}):
            outcome = _placed.outcome_of(fn, args, kwargs, rank, leave=True)
        rounds.end(outcome)  # a task that failed would be run again by Spark, with all others
        yield outcome
    return task


def _check_slots(context: Any, size: int) -> None:
    """A stage that can never run at once is tried by Spark for ten minutes."""
    inner = context._jsc.sc()
    slots = inner.maxNumConcurrentTasks(inner.resourceProfileManager().defaultResourceProfile())
    if 0 < slots < size:
        raise InvalidError(f"num_proc is {size}, and Spark runs {slots} tasks at a time; all of "
                           "them must run at once: give it more cores (--master local[N], "
                           "spark.executor.instances, spark.executor.cores)", operation="run")


def _lost(error: Any) -> RankError:
    """The sentence of Spark is in the first line of the Java exception, or it is all there is."""
    text = str(error.java_exception.getMessage() or error).strip()
    found = re.search(r"barrier task \w+\(\d+, (\d+)\)", text)
    peer = int(found[1]) if found else None
    who = "a task" if peer is None else f"rank {peer}"
    return RankError(f"{who} failed: Spark lost its task: {text.splitlines()[0]}", peer=peer,
                     operation="run")


# ---- Jobs that go on without workers that are lost -----------------------------------------------

def run_elastic(fn: Callable[..., Any], args: Sequence[Any] = (),
                kwargs: Optional[Dict[str, Any]] = None, num_proc: Optional[int] = None, *,
                min_num_proc: Optional[int] = None, max_num_proc: Optional[int] = None,
                reset_limit: Optional[int] = None, start_timeout: float = 600,
                env: Optional[Mapping[str, str]] = None, nics: Optional[Sequence[str]] = None,
                on_report: Callable[[Dict[str, Any]], None] = lambda values: None,
                spark: Any = None) -> List[Any]:
    """Runs fn(*args, **kwargs), with a loop of hvd.elastic say, on tasks of a Spark cluster, and
    returns the results of those that ended well, in the order of their ranks.

    num_proc       workers at the start; otherwise as many as Spark runs tasks at a time
    min_num_proc   the job goes on with so many; otherwise with num_proc
    max_num_proc   and takes no more than these; otherwise num_proc
    reset_limit    so often each worker is started again, else 100 times
    start_timeout  seconds for the first num_proc to begin
    env, nics      variables of the workers; network interfaces to use
    spark          a SparkSession; otherwise the active one, or one that is made

    A task of Spark holds the slot of a worker, which `gradus run`, beside the caller, starts there:
    each worker is a host of its own, with LOCAL_RANK 0. A worker that is lost is started again; a
    task that is lost is tried again by Spark (spark.task.maxFailures), and its worker joins then.

    Raises RankError, InvalidError, as gradus.run does."""
    context = _context_of(spark)
    size = num_proc or max(min_num_proc or 1, context.defaultParallelism if num_proc is None else 0)
    tasks = _Tasks(context, max_num_proc or size)
    try:
        return _offered.run(fn, args, kwargs, context.getConf().get("spark.driver.host"),
                            tasks.begin, num_proc=size, min_num_proc=min_num_proc,
                            max_num_proc=max_num_proc or size, reset_limit=reset_limit,
                            start_timeout=start_timeout, env=env, nics=nics, on_report=on_report)
    finally:
        tasks.close()


class _Tasks:
    """A stage with a task for each worker that the job may have; Spark starts those that have
    room."""

    def __init__(self, context: Any, count: int) -> None:
        self._context, self._count = context, count
        self._group = f"gradus-{secrets.token_hex(4)}"
        self._thread: Optional[threading.Thread] = None

    def begin(self, launcher: _offered.Launcher) -> None:
        self._thread = threading.Thread(target=self._serve, args=(launcher,), daemon=True)
        self._thread.start()

    def _serve(self, launcher: _offered.Launcher) -> None:
        from py4j.protocol import Py4JJavaError

        def serve(_: Iterable[int]) -> Iterator[int]:
            yield _offered.serve(launcher)
        self._context.setJobGroup(self._group, "agents of a job of gradus", True)
        try:
            self._context.parallelize(range(self._count), self._count).mapPartitions(
                serve).collect()
        except Py4JJavaError:  # Spark has said so; the launcher says what it means for the job
            pass

    def close(self) -> None:
        if self._thread is not None:
            self._thread.join(_END_S)
            self._context.cancelJobGroup(self._group)  # tasks that had no room
            self._thread.join()

# SPDX-License-Identifier: Apache-2.0
"""A function on the tasks of a Spark cluster: Spark places them, as one barrier stage, and Gradus
communicates.

    import gradus.spark
    print(gradus.spark.run(train, args=(0.1,), num_proc=4))

gradus.Communicator() is that of the tasks there, and so is `gradus.torch.init()`. Importing this
does not import pyspark."""
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import _placed
from ._run import RankError
from .errors import InvalidError

__all__ = ["run"]


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
    from pyspark.sql import SparkSession
    session = spark or SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()
    context = session.sparkContext
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
        with _placed.rank_of(rank, size, gather, {**here, **env}):
            yield _placed.outcome_of(fn, args, kwargs, rank, leave=True)
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

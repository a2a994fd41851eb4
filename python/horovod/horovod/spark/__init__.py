# SPDX-License-Identifier: Apache-2.0
"""horovod.spark: functions on the tasks of a Spark cluster, by gradus.spark."""
from typing import Any, Callable, Dict, List, Optional, Sequence

import gradus.spark


def run(fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: Optional[int] = None, start_timeout: Optional[int] = None,
        use_mpi: Optional[bool] = None, use_gloo: Optional[bool] = None,
        extra_mpi_args: Optional[str] = None, env: Optional[Dict[str, str]] = None,
        stdout: Any = None, stderr: Any = None, verbose: int = 1,
        nics: Optional[Sequence[str]] = None, prefix_output_with_timestamp: bool = False,
        executable: Optional[str] = None) -> List[Any]:
    """Runs fn(*args, **kwargs) on num_proc tasks at the same time, and returns the results by rank,
    as gradus.spark.run does. `nics` are the network interfaces to use. All else is ignored: tasks
    write where Spark's do, with its Python, and a cluster without room for all is told at once.

    Raises gradus.RankError: it failed there, or its task was lost. gradus.InvalidError: Spark has
    not so many slots."""
    more = {"GRADUS_INTERFACE": ",".join(nics)} if nics else {}
    return gradus.spark.run(fn, args, kwargs, num_proc, {**more, **(env or {})})


def run_elastic(fn: Callable[..., Any], args: Sequence[Any] = (),
                kwargs: Optional[Dict[str, Any]] = None, num_proc: Optional[int] = None,
                min_num_proc: Optional[int] = None, max_num_proc: Optional[int] = None,
                start_timeout: Optional[int] = None, elastic_timeout: Optional[int] = None,
                reset_limit: Optional[int] = None, env: Optional[Dict[str, str]] = None,
                stdout: Any = None, stderr: Any = None, verbose: int = 1,
                nics: Optional[Sequence[str]] = None, prefix_output_with_timestamp: bool = False,
                min_np: Optional[int] = None, max_np: Optional[int] = None) -> List[Any]:
    """Runs fn(*args, **kwargs), a loop of hvd.elastic, as gradus.spark.run_elastic does, and gives
    the results of those that ended well. What says where output goes is ignored: it is shown here,
    with the rank in front.

    Raises gradus.RankError, gradus.InvalidError."""
    return gradus.spark.run_elastic(
        fn, args, kwargs, num_proc, min_num_proc=min_num_proc or min_np,
        max_num_proc=max_num_proc or max_np, reset_limit=reset_limit,
        start_timeout=start_timeout or elastic_timeout or 600, env=env, nics=nics)


__all__ = ["run", "run_elastic"]

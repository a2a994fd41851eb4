# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a function on several ranks."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import gradus

RESTARTS = 100  # of an elastic job without a limit of resets, for each worker
MOST = 4096  # workers of an elastic job without a limit
# How Horovod's errors of a job begin, which programs look for.
FAILED = "Horovod detected that one or more processes exited with non-zero status"


def run(func: Callable[..., Any], args: Sequence[Any] = (), kwargs: Optional[Dict[str, Any]] = None,
        num_proc: Optional[int] = None, min_num_proc: Optional[int] = None,
        max_num_proc: Optional[int] = None, slots: Optional[int] = None,
        reset_limit: Optional[int] = None,
        cooldown_range: Optional[Tuple[int, int]] = None, hosts: Optional[str] = None,
        hostfile: Optional[str] = None, host_discovery_script: Optional[str] = None,
        start_timeout: Optional[int] = None, ssh_port: Optional[int] = None,
        ssh_identity_file: Optional[str] = None, disable_cache: Optional[bool] = None,
        output_filename: Optional[str] = None, verbose: Optional[bool] = None,
        use_gloo: Optional[bool] = None, use_mpi: Optional[bool] = None,
        mpi_args: Optional[str] = None, network_interface: Optional[str] = None,
        network_interfaces: Optional[Sequence[str]] = None, executable: Optional[str] = None,
        np: Optional[int] = None, min_np: Optional[int] = None,
        max_np: Optional[int] = None) -> List[Any]:
    """Runs func(*args, **kwargs) on num_proc processes (1, if it is not given), here or on other
    hosts, by gradus.run, and returns their results in the order of the ranks. What concerns MPI or
    a cache has no meaning.

    With min_num_proc, max_num_proc or host_discovery_script the job is elastic: it starts with
    num_proc workers, goes on with min_num_proc (else num_proc) of them, and starts another one in
    the place of one that is lost, reset_limit times for each (else 100). The results are those of
    all workers that ended well, where Horovod gives the first min_num_proc.

    Raises gradus.RankError, a RuntimeError, with the traceback of the rank that failed first.
    InvalidError: an argument is wrong, a host cannot be reached, or the function cannot be
    pickled."""
    least, most = min_num_proc or min_np, max_num_proc or max_np
    count = num_proc or np or least or 1
    env = {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
    elastic: Dict[str, Any] = {"reset_limit": reset_limit}
    if least or most or host_discovery_script:
        env["HOROVOD_ELASTIC"] = "1"
        elastic = {"min_num_proc": least or count, "max_num_proc": most or MOST,
                   "reset_limit": RESTARTS if reset_limit is None else reset_limit}
    try:
        return gradus.run(
            func, args, kwargs, count, env=env, hosts=hosts, hostfile=hostfile, slots=slots,
            host_discovery_script=host_discovery_script,
            start_timeout=start_timeout, ssh_port=ssh_port, ssh_identity_file=ssh_identity_file,
            output_filename=output_filename, verbose=verbose, network_interface=network_interface,
            network_interfaces=network_interfaces, executable=executable, **elastic)
    except gradus.RankError as error:
        error.sentence = f"{FAILED}: {error.sentence}"
        raise


def __getattr__(name: str) -> Any:
    if name != "_HorovodArgs":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .launch import HorovodArgs  # which imports this module
    return HorovodArgs


__all__ = ["run"]

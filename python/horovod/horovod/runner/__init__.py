# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a function on several ranks."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import gradus


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
    """Runs func(*args, **kwargs) on num_proc processes, here or on other hosts, by gradus.run, and
    returns their results in the order of the ranks. What concerns MPI or a cache has no meaning.

    Raises gradus.RankError with the traceback of the rank that failed first. InvalidError: an
    argument is wrong, a host cannot be reached, or the function cannot be pickled."""
    return gradus.run(
        func, args, kwargs, num_proc or np, min_num_proc=min_num_proc or min_np,
        max_num_proc=max_num_proc or max_np, slots=slots, reset_limit=reset_limit, hosts=hosts,
        hostfile=hostfile, host_discovery_script=host_discovery_script,
        start_timeout=start_timeout, ssh_port=ssh_port, ssh_identity_file=ssh_identity_file,
        output_filename=output_filename, verbose=verbose, network_interface=network_interface,
        network_interfaces=network_interfaces, executable=executable)


__all__ = ["run"]

# SPDX-License-Identifier: Apache-2.0
"""horovod.run: a function on several ranks."""
import socket
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import gradus
from gradus.errors import InvalidError

_HERE = ("localhost", "127.0.0.1")


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
    """Runs func(*args, **kwargs) on num_proc processes of this host, by gradus.run, and returns
    their results in the order of the ranks. It travels by a file that only this user can read.

    Raises gradus.RankError with the traceback of the rank that failed first. InvalidError: other
    hosts, elastic jobs and another executable, for which there is horovodrun. What concerns MPI,
    ssh or a cache has no meaning here."""
    count = num_proc or np or 1
    least, most = min_num_proc or min_np or count, max_num_proc or max_np or count
    if host_discovery_script or (least, most) != (count, count):
        raise InvalidError("horovod.run runs no elastic job; use horovodrun --min-np --max-np",
                           operation="run")
    names = [word.partition(":")[0] for word in (hosts or "").split(",") if word]
    if hostfile or any(name not in (*_HERE, socket.gethostname()) for name in names):
        raise InvalidError("horovod.run runs on this host alone; use horovodrun -H for others",
                           operation="run")
    if executable not in (None, sys.executable):
        raise InvalidError(f"executable is {executable}; horovod.run uses {sys.executable}",
                           operation="run")
    flags, env = [], {}
    if start_timeout:
        flags += ["--start-timeout", f"{start_timeout}s"]
    if output_filename:
        flags += ["--log-dir", output_filename]
    interfaces = [network_interface] if isinstance(network_interface, str) else \
        list(network_interface or network_interfaces or [])
    if interfaces:
        env["GRADUS_INTERFACE"] = ",".join(interfaces)
    if verbose:
        env["GRADUS_LOG"] = "info"
    return gradus.run(func, tuple(args), dict(kwargs or {}), count, flags=flags, env=env)


__all__ = ["run"]

# SPDX-License-Identifier: Apache-2.0
"""horovod.ray.RayExecutor: functions on the workers of a Ray cluster, by gradus.ray."""
from typing import Any, Callable, List, Mapping, NamedTuple, Optional, Sequence

import gradus.ray
from gradus import InvalidError, UnsupportedError


class Settings(NamedTuple):
    """What RayExecutor.create_settings makes."""

    timeout_s: float = 100
    nics: Sequence[str] = ()


class RayExecutor(gradus.ray.RayExecutor):
    """As Horovod's, with num_workers, or with num_hosts nodes and num_workers_per_host workers on
    each. Workers get a placement group of their own: use_current_placement_group is ignored.

    A job that goes on with other workers is none of Ray's actors: min_workers and max_workers are
    refused."""

    def __init__(self, settings: Optional[Settings] = None, num_workers: Optional[int] = None,
                 num_hosts: Optional[int] = None, num_workers_per_host: int = 1,
                 cpus_per_worker: float = 1, use_gpu: bool = False,
                 gpus_per_worker: Optional[float] = None, use_current_placement_group: bool = True,
                 min_workers: Optional[int] = None, max_workers: Optional[int] = None,
                 **elastic: Any) -> None:
        if min_workers is not None or max_workers is not None or elastic:
            raise UnsupportedError(
                "min_workers, max_workers and what belongs to them are for elastic jobs, which a "
                "launcher keeps whole: start them by horovodrun --min-np, with a host discovery "
                "script say", operation="RayExecutor")
        if (num_workers is None) == (num_hosts is None):
            raise InvalidError("give num_workers or num_hosts", operation="RayExecutor")
        super().__init__(settings or Settings(), num_workers or 1, cpus_per_worker, use_gpu,
                         gpus_per_worker or 0, num_hosts=num_hosts,
                         num_workers_per_host=num_workers_per_host)

    @classmethod
    def create_settings(cls, timeout_s: float = 30, ssh_identity_file: Optional[str] = None,
                        ssh_str: Optional[str] = None, placement_group_timeout_s: float = 100,
                        nics: Optional[Sequence[str]] = None) -> Settings:
        """How long the cluster has to find room, and which network interfaces are used. There is
        no ssh, and workers that have room come: the rest is ignored."""
        return Settings(placement_group_timeout_s, tuple(nics or ()))

    def start(self, executable_cls: Optional[Callable[..., Any]] = None,
              executable_args: Optional[Sequence[Any]] = None,
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        nics = getattr(self.settings, "nics", ())
        more = {"GRADUS_INTERFACE": ",".join(nics)} if nics else {}
        super().start(executable_cls, executable_args or (), executable_kwargs,
                      {**more, **(extra_env_vars or {})})

    def run_remote(self, fn: Callable[..., Any], args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """Begins what run() does. Returns an ObjectRef of Ray for each rank's result; ray.get of it
        raises what the rank raised as a RankError."""
        import ray
        value = ray.remote(num_cpus=0)(gradus.ray.value_of)
        return [value.remote(rank, ref) for rank, ref in
                enumerate(self._start(fn, args, kwargs, False))]


__all__ = ["RayExecutor", "Settings"]

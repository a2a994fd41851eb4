# SPDX-License-Identifier: Apache-2.0
"""horovod.ray: functions on the workers of a Ray cluster, by gradus.ray."""
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

    A job that goes on without workers that are lost is ElasticRayExecutor's: min_workers and
    max_workers are refused."""

    def __init__(self, settings: Optional[Settings] = None, num_workers: Optional[int] = None,
                 num_hosts: Optional[int] = None, num_workers_per_host: int = 1,
                 cpus_per_worker: float = 1, use_gpu: bool = False,
                 gpus_per_worker: Optional[float] = None, use_current_placement_group: bool = True,
                 min_workers: Optional[int] = None, max_workers: Optional[int] = None,
                 **elastic: Any) -> None:
        if min_workers is not None or max_workers is not None or elastic:
            raise UnsupportedError(
                "min_workers, max_workers and what belongs to them are for elastic jobs; use "
                "ElasticRayExecutor, or gradus.ray.run_elastic", operation="RayExecutor")
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

    def run(self, fn: Callable[..., Any], args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None,
            callbacks: Optional[Sequence[Callable[..., Any]]] = None) -> List[Any]:
        """As gradus.ray.RayExecutor.run(). Callbacks are of elastic jobs, and are never called, as
        in Horovod."""
        return super().run(fn, args, kwargs)

    def execute(self, fn: Callable[[Any], Any],
                callbacks: Optional[Sequence[Callable[..., Any]]] = None) -> List[Any]:
        """As gradus.ray.RayExecutor.execute(); callbacks are never called."""
        return super().execute(fn)

    def run_remote(self, fn: Callable[..., Any], args: Optional[Sequence[Any]] = None,
                   kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """Begins what run() does. Returns an ObjectRef of Ray for each rank's result; ray.get of it
        raises what the rank raised as a RankError."""
        import ray
        value = ray.remote(num_cpus=0)(gradus.ray.value_of)
        return [value.remote(rank, ref) for rank, ref in
                enumerate(self._start(fn, args, kwargs, False))]


class ElasticSettings(NamedTuple):
    """What ElasticRayExecutor.create_settings makes."""

    min_num_proc: int = 1
    max_num_proc: Optional[int] = None
    reset_limit: Optional[int] = None
    elastic_timeout: float = 600
    nics: Sequence[str] = ()


class ElasticRayExecutor:
    """Runs a loop of hvd.elastic on what a Ray cluster has room for, by gradus.ray.run_elastic.

    settings       of create_settings()
    cpus_per_slot, gpus_per_slot   what Ray reserves for a worker; use_gpu: one GPU, unless
                   gpus_per_slot says more
    env_vars       more variables of the workers"""

    def __init__(self, settings: Optional[ElasticSettings] = None, use_gpu: bool = False,
                 cpus_per_slot: float = 1, gpus_per_slot: Optional[float] = None,
                 env_vars: Optional[Mapping[str, str]] = None,
                 override_discovery: bool = True) -> None:
        if not override_discovery:
            raise UnsupportedError("override_discovery=False: the workers are where Ray has room, "
                                   "and no other discovery is asked",
                                   operation="ElasticRayExecutor")
        self.settings = settings or ElasticSettings()
        self._need = {"cpus_per_worker": cpus_per_slot,
                      "gpus_per_worker": gpus_per_slot or float(use_gpu)}
        self._env = dict(env_vars or {})

    @classmethod
    def create_settings(cls, min_num_proc: int = 1, max_num_proc: Optional[int] = None,
                        reset_limit: Optional[int] = None, elastic_timeout: float = 600,
                        timeout_s: float = 30, ssh_identity_file: Optional[str] = None,
                        nics: Optional[Sequence[str]] = None, min_np: Optional[int] = None,
                        max_np: Optional[int] = None, **more: Any) -> ElasticSettings:
        """The job starts with min_num_proc workers, within elastic_timeout seconds, and has up to
        max_num_proc, else what the cluster has room for; reset_limit is how often each is started
        again. There is no ssh: the rest is ignored."""
        return ElasticSettings(min_np or min_num_proc, max_np or max_num_proc, reset_limit,
                               elastic_timeout, tuple(nics or ()))

    def start(self) -> None:
        """Ray must be there; the workers begin with run()."""
        import ray
        if not ray.is_initialized():
            raise InvalidError("there is no Ray yet; call ray.init()",
                               operation="ElasticRayExecutor")

    def run(self, worker_fn: Callable[[], Any],
            callbacks: Optional[Sequence[Callable[[Mapping[str, Any]], None]]] = None
            ) -> List[Any]:
        """worker_fn() on the workers: the results of those that ended well, by rank. Each of the
        callbacks gets what ray_logger.log(...) says on a worker. Raises gradus.RankError."""
        settings = self.settings

        def tell(values: Mapping[str, Any]) -> None:
            for callback in callbacks or () if "log" in values else ():
                callback(values["log"])
        return gradus.ray.run_elastic(
            worker_fn, min_num_proc=settings.min_num_proc, max_num_proc=settings.max_num_proc,
            reset_limit=settings.reset_limit, start_timeout=settings.elastic_timeout,
            env=self._env, nics=settings.nics, on_report=tell, **self._need)


__all__ = ["ElasticRayExecutor", "ElasticSettings", "RayExecutor", "Settings"]

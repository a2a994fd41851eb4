# SPDX-License-Identifier: Apache-2.0
"""Functions on the workers of a Ray cluster: Ray places them, Gradus communicates.

    from gradus.ray import RayExecutor
    with RayExecutor(num_workers=4) as executor:
        print(executor.run(train, args=(0.1,)))

run_elastic() is for functions that go on when workers are lost, and when others come.

gradus.Communicator() is that of the workers there, and so is `gradus.torch.init()`. Importing this
does not import ray."""
import asyncio
import collections
import itertools
import pickle
import re
import threading
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from . import _offered, _placed
from ._run import error_of_rank
from .errors import InvalidError, TimeoutError

__all__ = ["RayExecutor", "Settings", "run_elastic"]

_CAUSE_S = 30.0  # so long the cause is waited for, when ranks say that another one is lost
_LOOK_S = 1.0  # between looks at the slots of a job that is elastic
_ROUNDING = 1e-6  # of a resource, of which Ray counts ten-thousandths
_CALLS = 1000  # of an actor at a time, which is Ray's own number


class Settings(NamedTuple):
    """What RayExecutor.create_settings makes."""

    timeout_s: float = 30


class _Meeting:
    """An actor that gathers bytes of all workers."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rounds: Dict[int, Tuple[Dict[int, bytes], asyncio.Event]] = {}

    async def gather(self, number: int, rank: int, part: bytes) -> List[bytes]:
        parts, full = self.rounds.setdefault(number, ({}, asyncio.Event()))
        parts[rank] = part
        if len(parts) == self.size:
            self.rounds.pop(number)
            full.set()
        await full.wait()
        return [parts[peer] for peer in range(self.size)]


class _Worker:
    """An actor that is a rank."""

    def __init__(self) -> None:
        self.executable: Any = None

    def where(self) -> str:
        import ray
        return ray.get_runtime_context().get_node_id()

    def begin(self, meeting: Any, rank: int, size: int, env: Mapping[str, str]) -> None:
        import ray
        numbers = itertools.count()

        def gather(mine: bytes) -> List[bytes]:
            return ray.get(meeting.gather.remote(next(numbers), rank, mine))
        self.rank = rank
        # For the life of the process: it is this rank and no other one.
        self.place = _placed.rank_of(rank, size, gather, env)
        self.place.__enter__()

    def make(self, kind: Callable[..., Any], args: Sequence[Any],
             kwargs: Mapping[str, Any]) -> _placed.Outcome:
        def make() -> None:
            self.executable = kind(*args, **kwargs)
        return _placed.outcome_of(make, (), {}, self.rank)

    def run(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
            with_executable: bool) -> _placed.Outcome:
        first = (self.executable,) if with_executable else ()
        return _placed.outcome_of(fn, (*first, *args), kwargs, self.rank)


class RayExecutor:
    """Workers of a Ray cluster, which are the ranks of one job.

    settings          of create_settings(timeout_s): so long the cluster has to find room for all
    num_workers       how many; or
    num_hosts,        so many nodes, with num_workers_per_host on each
    num_workers_per_host
    cpus_per_worker,  what Ray reserves for each
    gpus_per_worker
    use_gpu           one GPU for each, unless gpus_per_worker says more
    strategy          PACK (as few nodes as possible), SPREAD, STRICT_PACK or STRICT_SPREAD

    Ranks of a node follow each other. ray.init() has been called, or is called by Ray itself."""

    def __init__(self, settings: Optional[Settings] = None, num_workers: int = 1,
                 cpus_per_worker: float = 1, use_gpu: bool = False, gpus_per_worker: float = 0,
                 strategy: str = "PACK", *, num_hosts: Optional[int] = None,
                 num_workers_per_host: int = 1) -> None:
        if num_hosts is not None:
            num_workers, strategy = num_hosts * num_workers_per_host, "STRICT_SPREAD"
        if num_workers < 1:
            raise InvalidError(f"there are {num_workers} workers; there is 1 or more",
                               operation="RayExecutor")
        self.settings = settings or Settings()
        self.num_workers = num_workers
        self._per_bundle = 1 if num_hosts is None else num_workers_per_host
        self._bundle = {"CPU": cpus_per_worker, "GPU": gpus_per_worker or float(use_gpu)}
        self._bundle = {kind: count for kind, count in self._bundle.items() if count}
        self._strategy = strategy
        self._group: Any = None
        self._actors: List[Any] = []  # by rank; then the meeting

    @staticmethod
    def create_settings(timeout_s: float = 30) -> Settings:
        return Settings(timeout_s)

    def __enter__(self) -> "RayExecutor":
        self.start()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.shutdown()

    # ---- Beginning and end -----------------------------------------------------------------------

    def start(self, executable_cls: Optional[Callable[..., Any]] = None,
              executable_args: Sequence[Any] = (),
              executable_kwargs: Optional[Mapping[str, Any]] = None,
              extra_env_vars: Optional[Mapping[str, str]] = None) -> None:
        """Starts the workers. executable_cls is made once on each, for execute(). TimeoutError:
        the cluster has no room for all of them. RankError: executable_cls failed."""
        if self._actors:
            raise InvalidError("the workers have been started already", operation="start")
        try:
            self._reserve()
            self._place(dict(extra_env_vars or {}))
            if executable_cls is not None:
                self._collect([worker.make.remote(executable_cls, tuple(executable_args),
                                                  dict(executable_kwargs or {}))
                               for worker in self._workers()])
        except BaseException:
            self.shutdown()
            raise

    def _reserve(self) -> None:
        import ray
        from ray.util import placement_group
        count = self._per_bundle
        bundle = {kind: each * count for kind, each in self._bundle.items()}
        self._group = placement_group([bundle] * (self.num_workers // count),
                                      strategy=self._strategy)
        if not self._group.wait(self.settings.timeout_s):
            free = ray.available_resources()
            left = {kind: free.get(kind, 0) for kind in self._bundle}
            raise TimeoutError(
                f"Ray had no room for {self.num_workers} workers with {self._bundle} each within "
                f"{self.settings.timeout_s:g} s; it has {left} left", operation="start")

    def _place(self, env: Dict[str, str]) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        kind = ray.remote(_Worker)
        workers = [kind.options(
            num_cpus=self._bundle.get("CPU", 0), num_gpus=self._bundle.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=self._group,
                placement_group_bundle_index=index // self._per_bundle)).remote()
            for index in range(self.num_workers)]
        self._actors = list(workers)
        nodes = ray.get([worker.where.remote() for worker in workers])
        order = sorted(range(self.num_workers), key=lambda index: (nodes.index(nodes[index]),
                                                                   index))
        meeting = ray.remote(_Meeting).options(
            num_cpus=0, max_concurrency=max(_CALLS, self.num_workers)).remote(self.num_workers)
        self._actors = [*(workers[index] for index in order), meeting]
        seen: Dict[str, int] = collections.Counter()
        sizes = collections.Counter(nodes)
        begun = []
        for rank, index in enumerate(order):
            node = nodes[index]
            here = {"LOCAL_RANK": str(seen[node]), "LOCAL_WORLD_SIZE": str(sizes[node])}
            seen[node] += 1
            begun.append(workers[index].begin.remote(meeting, rank, self.num_workers,
                                                     {**here, **env}))
        ray.get(begun)

    def _workers(self) -> List[Any]:
        if not self._actors:
            raise InvalidError("there are no workers; call start()", operation="RayExecutor")
        return self._actors[:self.num_workers]

    def shutdown(self) -> None:
        """Ends the workers. A second time does nothing."""
        import ray
        actors, self._actors = self._actors, []
        for actor in actors:
            ray.kill(actor)
        group, self._group = self._group, None
        if group is not None:
            ray.util.remove_placement_group(group)

    # ---- Functions -------------------------------------------------------------------------------

    def run(self, fn: Callable[..., Any], args: Optional[Sequence[Any]] = None,
            kwargs: Optional[Mapping[str, Any]] = None) -> List[Any]:
        """fn(*args, **kwargs) on every worker: the results, by rank. RankError, with the rank's
        traceback: it failed there, or the worker was lost, which ends all of them."""
        return self._collect(self._start(fn, args, kwargs, False))

    def execute(self, fn: Callable[[Any], Any]) -> List[Any]:
        """fn(executable) on every worker, of the executable_cls of start()."""
        return self._collect(self._start(fn, None, None, True))

    def execute_single(self, fn: Callable[[Any], Any]) -> Any:
        """The same on rank 0 alone."""
        return self._collect([self._workers()[0].run.remote(fn, (), {}, True)])[0]

    def _start(self, fn: Callable[..., Any], args: Optional[Sequence[Any]],
               kwargs: Optional[Mapping[str, Any]], with_executable: bool) -> List[Any]:
        return [worker.run.remote(fn, tuple(args or ()), dict(kwargs or {}), with_executable)
                for worker in self._workers()]

    def _collect(self, refs: Sequence[Any]) -> List[Any]:
        """The results, as soon as all have ended or the cause of a failure is known."""
        import ray
        outcomes: Dict[Any, _placed.Outcome] = {}
        waiting, follows = list(refs), False
        try:
            while waiting:
                ended, waiting = ray.wait(waiting, timeout=_CAUSE_S if follows else None)
                if not ended:
                    break
                outcomes[ended[0]] = self._outcome(ended[0], refs.index(ended[0]))
                if not outcomes[ended[0]]["ok"]:
                    follows = True
                    if not outcomes[ended[0]]["follows"]:
                        break
        except BaseException:
            self.shutdown()  # Ctrl-C: Ray does not end what an actor does
            raise
        failed = [rank for rank, ref in enumerate(refs) if not outcomes.get(ref, {}).get("ok")]
        if failed:
            self.shutdown()
        rest = _placed.failure("it did not end", follows=True)
        return _placed.values_of([outcomes.get(ref, rest) for ref in refs])

    def _outcome(self, ref: Any, rank: int) -> _placed.Outcome:
        import ray
        try:
            return ray.get(ref)
        except ray.exceptions.RayActorError as error:
            return _placed.failure(_sentence_of(str(error)), follows=False)


def value_of(rank: int, outcome: _placed.Outcome) -> Any:
    """The result of a rank. Raises RankError."""
    if not outcome["ok"]:
        raise error_of_rank(rank, outcome)
    return pickle.loads(outcome["value"])


def _sentence_of(text: str) -> str:
    """Of what Ray says of an actor that has died, which is a page."""
    found = [re.search(pattern, text) for pattern in
             (r"pid: (\d+)", r"ip: (\S+)", r"exit detail: ([^.]+)")]
    pid, host, why = (one[1] if one else None for one in found)
    where = f" (pid {pid} on {host})" if pid else ""
    return f"Ray lost its worker{where}: {why or text.strip().splitlines()[0]}"


# ---- Jobs that go on without workers that are lost -----------------------------------------------

def run_elastic(fn: Callable[..., Any], args: Sequence[Any] = (),
                kwargs: Optional[Dict[str, Any]] = None, num_proc: Optional[int] = None, *,
                min_num_proc: Optional[int] = None, max_num_proc: Optional[int] = None,
                reset_limit: Optional[int] = None, start_timeout: float = 600,
                cpus_per_worker: float = 1, gpus_per_worker: float = 0,
                env: Optional[Mapping[str, str]] = None, nics: Optional[Sequence[str]] = None,
                on_report: Callable[[Dict[str, Any]], None] = lambda values: None) -> List[Any]:
    """Runs fn(*args, **kwargs), with a loop of hvd.elastic say, on workers of a Ray cluster, and
    returns the results of those that ended well, in the order of their ranks.

    num_proc         workers at the start; otherwise min_num_proc, else 1
    min_num_proc     the job goes on with so many; otherwise with num_proc
    max_num_proc     and takes no more than these; otherwise what the cluster has room for
    reset_limit      so often each worker is started again, else 100 times
    start_timeout    seconds for the first num_proc to begin
    cpus_per_worker, gpus_per_worker   what Ray reserves for each
    env, nics        variables of the workers; network interfaces to use

    An actor of Ray reserves the room of a worker, which `gradus run`, beside the caller, starts
    there: each worker is a host of its own, with LOCAL_RANK 0. A worker, an actor or a node that is
    lost is replaced while the job runs, as soon as the cluster has room. Nodes that come bring
    workers.

    Raises RankError, InvalidError, as gradus.run does."""
    import ray
    size = num_proc or min_num_proc or 1
    slots = _Slots({"CPU": cpus_per_worker, "GPU": gpus_per_worker}, size, max_num_proc)
    try:
        here = ray.get_runtime_context().get_node_id()
        host = next(node["NodeManagerAddress"] for node in ray.nodes() if node["NodeID"] == here)
        return _offered.run(fn, args, kwargs, host, slots.begin, num_proc=size,
                            min_num_proc=min_num_proc, max_num_proc=max_num_proc,
                            reset_limit=reset_limit, start_timeout=start_timeout, env=env,
                            nics=nics, on_report=on_report)
    finally:
        slots.close()


class _Slot:
    """An actor in whose room a worker runs."""

    def serve(self, launcher: _offered.Launcher) -> int:
        return _offered.serve(launcher)


class _Slots:
    """As many actors as the job may have workers; Ray starts those that have room. They ask for
    room for the first workers, where no node has it."""

    def __init__(self, need: Mapping[str, float], least: int, most: Optional[int]) -> None:
        self._need = {kind: count for kind, count in need.items() if count}
        self._least, self._most = least, most
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None

    def begin(self, launcher: _offered.Launcher) -> None:
        self._thread = threading.Thread(target=self._keep, args=(launcher,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _wanted(self) -> int:
        """What all nodes could have, as long as there is no limit."""
        import ray
        if self._most is not None:
            return self._most
        # As a float 1 // 0.1 is 9.
        room = sum(min(int(node["Resources"].get(kind, 0) / count + _ROUNDING)
                       for kind, count in self._need.items())
                   for node in ray.nodes() if node["Alive"]) if self._need else 1
        return max(room, self._least)

    def _keep(self, launcher: _offered.Launcher) -> None:
        import ray
        kind = ray.remote(_Slot).options(num_cpus=self._need.get("CPU", 0),
                                         num_gpus=self._need.get("GPU", 0))
        actors: Dict[Any, Any] = {}  # by what they return
        while not self._over.is_set():
            for ref in ray.wait(list(actors), num_returns=len(actors), timeout=0)[0] \
                    if actors else ():
                ray.kill(actors.pop(ref))  # the actor, its node or its agent is lost
            while len(actors) < min(self._wanted(), _offered.MOST):
                actor = kind.remote()
                actors[actor.serve.remote(launcher)] = actor
            self._over.wait(_LOOK_S)
        for actor in actors.values():
            ray.kill(actor)

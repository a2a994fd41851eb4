# SPDX-License-Identifier: Apache-2.0
"""Horovod's beginning and end: init, ranks, process sets. Each process set has a communicator and
an engine of its own, so that ranks outside of it need not take part in its cycles."""
import atexit
import math
import os
import sys
import threading
from typing import Any, Dict, List, Optional, Sequence, Union

from ._communicator import Communicator
from ._engine import Engine, HorovodInternalError, Request, Settings, Signature
from ._process import WorkerExit
from ._timeline import Timeline
from .errors import CancelledError, Error, InvalidError

_LEAVE_S = 10.0  # shutdown waits for so long until the other ranks know
# What the environment says of the job does not concern a process set.
_SET_SETTINGS = {"GRADUS_JOINING": "no", "GRADUS_MIN_WORKERS": 0, "GRADUS_MAX_WORKERS": 0,
                 "GRADUS_FAILOVER": "no"}


class ProcessSet:
    """Some ranks of the job, which run collectives of their own. add_process_set or init makes it
    usable."""

    process_set_id: Optional[int] = None
    mpi_comm = None

    def __init__(self, ranks_or_comm: Any) -> None:
        if not hasattr(ranks_or_comm, "__iter__"):
            raise ValueError("a process set is made of a list of ranks; communicators of MPI are "
                             "not supported")
        self.ranks: Optional[List[int]] = sorted(int(rank) for rank in ranks_or_comm)
        if len(set(self.ranks)) != len(self.ranks) or not self.ranks:
            raise ValueError(f"a process set of the ranks {self.ranks}; it has one or more, and "
                             "each once")
        self._engine: Optional[Engine] = None

    def _check(self) -> None:
        if self.process_set_id is None:
            raise ValueError(f"{self!r} is not registered; call hvd.add_process_set, or pass it to "
                             "hvd.init")

    def included(self) -> bool:
        """Whether this process belongs to it, registered or not."""
        return world.comm().rank in self.ranks

    def size(self) -> Optional[int]:
        """How many ranks it has, None as long as it is not registered."""
        return None if self.process_set_id is None else len(self.ranks)

    def rank(self) -> Optional[int]:
        """This process's number in it, None as long as it is not registered."""
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError(f"rank {world.comm().rank} does not belong to {self!r}")
        return self.ranks.index(world.comm().rank)

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _Global(ProcessSet):
    """All ranks."""

    process_set_id = 0

    def __init__(self) -> None:
        self.ranks = None
        self._engine = None


global_process_set = _Global()


class World:
    """What hvd.init() has made. The communicator outlives hvd.shutdown(), since the environment
    gives the job's secret once."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._comm: Optional[Communicator] = None
        self._ready = False
        self.timeline = Timeline()
        self.sets: Dict[int, ProcessSet] = {}
        self.wanted: List[ProcessSet] = []  # sets of init, which come again after an elastic change
        self._next_id = 1
        self.cross_rank = self.cross_size = 0
        self.homogeneous = True
        self._settings: Optional[Settings] = None
        self._renewed = "GRADUS_JOINING" in os.environ  # the ranks are not those of the start
        self.elastic = os.environ.get("GRADUS_MIN_WORKERS", "0") != "0"  # ranks come and go

    def comm(self) -> Communicator:
        """The communicator, if hvd.init() was called."""
        if not self._ready:
            raise ValueError("Horovod has not been initialized; call hvd.init()")
        return self._comm

    def is_ready(self) -> bool:
        return self._ready

    def _refuse_if_forked(self, operation: str) -> None:
        """Before a lock is taken, which a thread may hold that is not there."""
        self.comm()._refuse_if_forked(operation)

    def _is_forked(self) -> bool:
        return self._comm is not None and self._comm._pid != os.getpid()

    def engine(self, process_set: ProcessSet) -> Engine:
        """That of a process set."""
        self._refuse_if_forked("a collective")
        engine = process_set._engine
        if engine is None:
            process_set._check()
            raise ValueError(f"rank {self._comm.rank} does not belong to {process_set!r}; only its "
                             "members call collectives of it")
        return engine

    # ---- Beginning -------------------------------------------------------------------------------

    def init(self, comm: Any = None, process_sets: Any = None) -> None:
        with self.lock:
            if self._ready:
                return
            if isinstance(process_sets, str):
                if process_sets.lower() != "dynamic":
                    raise ValueError(f"process_sets is {process_sets!r}; it is a list of "
                                     "ProcessSet, or \"dynamic\"")
                process_sets = None
            if comm is not None and not isinstance(comm, (list, tuple)):
                raise ValueError("comm is a communicator of MPI, which is not supported; pass a "
                                 "list of ranks, or nothing")
            if self._comm is None or self._comm._closed:
                self._comm = _connect()
            if comm and sorted(comm) != list(range(self._comm.size)):
                raise ValueError(f"comm names the ranks {sorted(comm)} of {self._comm.size}; start "
                                 "as many processes as are wanted, or use a process set")
            self.wanted = list(process_sets or [])
            self._meet()

    def _meet(self) -> None:
        """Begins, once more where ranks die meanwhile and the job may go on without them."""
        while True:
            try:
                self._begin([one for one in self.wanted if one.ranks[-1] < self._comm.size]
                            if self.elastic else self.wanted)
                return
            except Error as error:
                if error.usable or not self.elastic:
                    raise
                for process_set in [one for one in self.wanted if one.process_set_id]:
                    self._unmake(process_set)
                self._renewed = True
                self._comm.renew()

    def _begin(self, process_sets: Sequence[ProcessSet]) -> None:
        comm = self._comm
        told = comm.allgather_object((comm.local_rank, comm.local_size, _settings()))
        self._settings = told[0][2]
        alike = [rank for rank, one in enumerate(told) if one[0] == comm.local_rank]
        self.cross_rank, self.cross_size = alike.index(comm.rank), len(alike)
        self.homogeneous = len({one[1] for one in told}) == 1
        path = os.environ.get("HOROVOD_TIMELINE", "")
        if path and path.upper() != "DYNAMIC" and comm.rank == 0:
            self.timeline.start(path, _flag("HOROVOD_TIMELINE_MARK_CYCLES"))
        global_process_set.ranks = list(range(comm.size))
        self._next_id = 1
        if not self._renewed:  # later a set may happen to be all that are left
            self._check_all(process_sets)
        for process_set in process_sets:
            self._make(process_set)
        global_process_set._engine = Engine(comm, self._settings, self.timeline)
        self.sets[0] = global_process_set
        self._ready = True

    # ---- Process sets ----------------------------------------------------------------------------

    def add(self, process_set: ProcessSet) -> None:
        """All ranks call it with the same ranks."""
        self._refuse_if_forked("add_process_set")
        with self.lock:
            self.comm()
            self._check_ranks(process_set)
            self._agree(f"add_process_set.{process_set.ranks}", lambda: self._make(process_set))

    def remove(self, process_set: ProcessSet) -> bool:
        """All ranks call it. False: it is that of all ranks, or none any more."""
        self._refuse_if_forked("remove_process_set")
        with self.lock:
            self.comm()
            number = process_set.process_set_id
            if not number or self.sets.get(number) is not process_set:
                return False
            self._agree(f"remove_process_set.{number}", lambda: self._unmake(process_set))
            return True

    def _agree(self, name: str, run: Any) -> None:
        engine = global_process_set._engine
        engine.wait(engine.submit(Request(name, Signature("call"), [], [], None, run=run), False))

    def _check_ranks(self, process_set: ProcessSet) -> None:
        if process_set.process_set_id is not None:
            raise ValueError(f"{process_set!r} is registered already")
        if process_set.ranks[0] < 0 or process_set.ranks[-1] >= self._comm.size:
            raise ValueError(f"a process set of the ranks {process_set.ranks}, where there are "
                             f"{self._comm.size} ranks")
        for known in [global_process_set, *self.sets.values()]:
            if known.ranks == process_set.ranks:
                raise ValueError(f"a process set of the ranks {process_set.ranks} exists already; "
                                 "use that one")

    def _check_all(self, process_sets: Sequence[ProcessSet]) -> None:
        """Before the first one is made, since all ranks make them together."""
        for index, process_set in enumerate(process_sets):
            self._check_ranks(process_set)
            if any(other.ranks == process_set.ranks for other in process_sets[:index]):
                raise ValueError(f"two process sets of the ranks {process_set.ranks}; give one")

    def _make(self, process_set: ProcessSet) -> None:
        """Its ranks meet by the communicator of all ranks, which all use for it at this point."""
        comm, ranks = self._comm, process_set.ranks
        number, self._next_id = self._next_id, self._next_id + 1
        mine = comm.rank in ranks

        def gather(part: bytes) -> List[bytes]:
            every = comm.allgather_object(part)
            return [every[rank] for rank in ranks]
        own = None
        if len(ranks) == 1:  # nobody is to be met
            gather = lambda part: [part]  # noqa: E731
        if mine:
            own = Communicator(rank=ranks.index(comm.rank), size=len(ranks), allgather=gather,
                               op_timeout=math.inf, settings=_SET_SETTINGS)
        elif len(ranks) > 1:
            comm.allgather_object(b"")
            comm.allgather_object(b"")
        process_set.process_set_id = number
        if own is not None:
            process_set._engine = Engine(own, self._settings, self.timeline, ranks)
        self.sets[number] = process_set

    def _unmake(self, process_set: ProcessSet) -> None:
        self.sets.pop(process_set.process_set_id, None)
        engine, process_set._engine = process_set._engine, None
        process_set.process_set_id = None
        if engine is not None:
            engine.stop("the process set was removed")
            # What is under way would be waited for, if the communicator stayed for the arrays.
            engine.comm.close(keep_arrays=False)
            engine.release()

    # ---- End -------------------------------------------------------------------------------------

    def shutdown(self, limit_s: float = _LEAVE_S) -> None:
        """Ends Horovod on all ranks: what waits there fails. In a process that was forked nothing
        is to be ended, and locks may be held by threads that are not there."""
        if self._is_forked():
            return
        with self.lock:
            if not self._ready:
                return
            engine = self._stop(limit_s)
            engine.release()

    def _stop(self, limit_s: float) -> Engine:
        for process_set in [one for number, one in self.sets.items() if number]:
            self._unmake(process_set)
        engine, global_process_set._engine = global_process_set._engine, None
        self.sets, self._ready = {}, False
        agreed = engine.leave(limit_s) if limit_s else False
        engine.stop("Horovod has been shut down")
        self.timeline.stop()
        if limit_s and not agreed:  # what the others began cannot be known
            self._comm.close(keep_arrays=False)
        return engine

    def renew(self) -> None:
        """Goes on with the ranks that live, and with those that have come. Process sets of init
        come again where all their ranks are there."""
        self._refuse_if_forked("renew")
        with self.lock:
            engine = self._stop(0)
            self._renewed = True
            try:
                self._comm.renew()
            finally:
                engine.release()
            self._meet()

    def leave(self) -> None:
        """At the end of the process: waits for nobody."""
        if self._ready and not self._is_forked():
            engine = self._stop(0)
            self._comm.close(keep_arrays=False)
            engine.release()


world = World()
atexit.register(world.leave)


def _connect() -> Communicator:
    try:
        return Communicator(op_timeout=math.inf)
    except CancelledError:
        if "GRADUS_JOINING" in os.environ:
            raise WorkerExit(0) from None  # the job has ended before it could join
        raise
    except InvalidError as error:
        # The secret is given once: somebody else has made a communicator of it.
        c10d = sys.modules.get("gradus.torch._c10d")
        job = None if c10d is None else c10d._job.communicator
        if job is None or job._closed:
            raise
        try:
            return Communicator(rank=job.rank, size=job.size, op_timeout=math.inf,
                                settings=_SET_SETTINGS, allgather=c10d._gather_by_job(
                                    job, list(range(job.size))))
        except InvalidError:
            raise error from None


def _flag(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on")


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    try:
        number = float(text) if text else default
        if number >= 0:
            return number
    except ValueError:
        pass
    raise ValueError(f"{name} is {text!r}; it is a number, 0 or more")


def _settings() -> Settings:
    warn = 0.0 if _flag("HOROVOD_STALL_CHECK_DISABLE") else \
        _number("HOROVOD_STALL_CHECK_TIME_SECONDS", 60)
    return Settings(fusion_bytes=int(_number("HOROVOD_FUSION_THRESHOLD", 128 << 20)),
                    cycle_s=_number("HOROVOD_CYCLE_TIME", 1) / 1e3,
                    capacity=int(_number("HOROVOD_CACHE_CAPACITY", 1024)), stall_warn_s=warn,
                    stall_end_s=_number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", 0) if warn else 0)


# ---- hvd.* ---------------------------------------------------------------------------------------

def init(comm: Optional[Sequence[int]] = None,
         process_sets: Union[None, str, Sequence[ProcessSet]] = None) -> None:
    """Joins the job; every rank calls it. process_sets: those that are to be there from the
    beginning; "dynamic" says that some may come later, which they always may."""
    world.init(comm, process_sets)


def shutdown() -> None:
    """Ends Horovod. init() may follow, when all ranks have called this."""
    world.shutdown()


def is_initialized() -> bool:
    """Whether init() was called, and not shutdown() since."""
    return world.is_ready()


def rank() -> int:
    """This process's number, 0 to size() - 1."""
    return world.comm().rank


def size() -> int:
    """How many processes there are."""
    return world.comm().size


def local_rank() -> int:
    """Its number among those of this host."""
    return world.comm().local_rank


def local_size() -> int:
    """How many there are on this host."""
    return world.comm().local_size


def cross_rank() -> int:
    """The number of this host among those that have a process of this local rank."""
    world.comm()
    return world.cross_rank


def cross_size() -> int:
    """How many such hosts there are."""
    world.comm()
    return world.cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have equally many processes."""
    world.comm()
    return world.homogeneous


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Registers a process set; every rank of the job calls it."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    world.add(process_set)
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Ends a process set; every rank of the job calls it. False: there is nothing to end."""
    return world.remove(process_set)


def _get_process_set_ids_and_ranks() -> Dict[int, List[int]]:
    """The ranks of each process set, by its number."""
    world.comm()
    return {number: list(one.ranks) for number, one in world.sets.items()}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Rank 0 writes from now on when each tensor was submitted and reduced."""
    if rank() == 0:
        world.timeline.start(file_path, mark_cycles)


def stop_timeline() -> None:
    """Ends the file of start_timeline."""
    world.comm()
    world.timeline.stop()


def _says(answer: Any, name: str, what: str):
    def told(*_: Any, **__: Any):
        return answer
    told.__name__ = name
    told.__doc__ = what
    return told


# Gradus takes the place of gloo; nothing else is in it.
gloo_built = _says(True, "gloo_built", "True: collectives on the CPU without MPI.")
gloo_enabled = _says(True, "gloo_enabled", "True: collectives on the CPU without MPI.")
mpi_threads_supported = _says(True, "mpi_threads_supported", "True: any thread may submit.")
mpi_built, mpi_enabled, ddl_built, ccl_built, cuda_built, rocm_built = (
    _says(False, name, "False.") for name in
    ("mpi_built", "mpi_enabled", "ddl_built", "ccl_built", "cuda_built", "rocm_built"))
nccl_built = _says(0, "nccl_built", "0: there is no NCCL.")

__all__ = ["HorovodInternalError", "ProcessSet", "add_process_set", "ccl_built", "cross_rank",
           "cross_size", "cuda_built", "ddl_built", "global_process_set", "gloo_built",
           "gloo_enabled", "init", "is_homogeneous", "is_initialized", "local_rank", "local_size",
           "mpi_built", "mpi_enabled", "mpi_threads_supported", "nccl_built", "rank",
           "remove_process_set", "rocm_built", "shutdown", "size", "start_timeline",
           "stop_timeline"]

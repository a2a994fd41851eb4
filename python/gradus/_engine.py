# SPDX-License-Identifier: Apache-2.0
"""Collectives of named tensors, which ranks may submit in any order.

An Engine moves through cycles. In a cycle each rank gives a row of bits, of which one small
allreduce makes the bits that all ranks have set:

    bit of a signature (name, kind, shape, type, ...)   this rank has submitted it, and not only now
    FRESH       a rank has submitted what has no bit yet: all exchange what each has
    STALLED     a rank waits for long: all exchange everything, and rank 0 tells who misses what
    GIVE_UP     a rank has waited for too long
    LEAVING     a rank shuts down
    BLOCKED     all threads of the rank wait for this engine

What all ranks have submitted is executed by all in the same order; small allreduces of one type
become one. A cycle begins on a rank when it has submitted something, and now and then otherwise
(_HEARTBEAT_S). It is moved on by the thread that waits for a tensor, else by the engine's own
thread: whichever holds _drive."""
import ctypes
import logging
import threading
import time
from collections import deque
from ctypes import byref, c_uint64, c_void_p
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from . import _execute
from ._communicator import Communicator
from ._future import SLICE_S, Held, take
from ._library import Call, lib, quick
from ._timeline import Timeline
from .errors import Error, Status

_HEARTBEAT_S = 1.0  # an idle rank takes part in a cycle at least so often
_STALE_S = 0.5  # what has waited with its bit for so long may have another signature elsewhere
_PAUSE_S = 50e-6  # between cycles in which nothing was ready: this, then twice that, ...
_FREE_CYCLES = 3  # but not between the first ones
_NAMES_SHOWN = 5
_FRESH, _STALLED, _GIVE_UP, _LEAVING = 1, 2, 4, 8  # a rank says so; inverted on the way
_ANY, _BLOCKED, _WORD = 0xff, 0x100, 64

_log = logging.getLogger("gradus.torch")
handles: Dict[int, Tuple["Engine", "Request"]] = {}  # what nobody has synchronized yet
ended_handles: Set[int] = set()  # whose engine has ended before somebody synchronized them


class HorovodInternalError(RuntimeError):
    """An operation failed, because a rank was lost or ranks have submitted different things."""


class HostsUpdatedInterrupt(RuntimeError):
    """Workers are to join or to leave. skip_sync: the state need not be sent again."""

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("workers are to join the job or to leave it")
        self.skip_sync = skip_sync


class Settings(NamedTuple):
    """Rank 0's count."""

    fusion_bytes: int
    cycle_s: float
    capacity: int
    stall_warn_s: float  # 0: never
    stall_end_s: float


class Signature(NamedTuple):
    """What a rank has submitted under a name."""

    kind: str
    op: str = ""
    root: int = -1
    prescale: float = 1.0
    postscale: float = 1.0
    parts: Tuple[Tuple[str, Tuple[int, ...]], ...] = ()  # type, shape
    splits: Tuple[int, ...] = ()

    def common(self) -> Tuple:
        """What must be alike on all ranks."""
        if self.kind in ("allgather", "alltoall"):  # the first dimension may differ
            parts = tuple((dtype, shape[1:]) for dtype, shape in self.parts)
            return self._replace(parts=parts, splits=())
        return self

    def __str__(self) -> str:
        words = self.kind + (f" ({self.op})" if self.op else "")
        if self.root >= 0:
            words += f" from rank {self.root}"
        if self.parts:
            shown = ", ".join(str(list(shape)) for _, shape in self.parts[:3])
            more = f" and {len(self.parts) - 3} more" if len(self.parts) > 3 else ""
            types = "/".join(sorted({dtype for dtype, _ in self.parts}))
            words += f" of {types} {shown}{more}"
        if (self.prescale, self.postscale) != (1.0, 1.0):
            words += f" scaled by {self.prescale} and {self.postscale}"
        return words


class Request:
    """A collective that this rank has submitted.

    inputs, outputs  dense arrays, whose data_ptr() says where they are; those of a reduction may be
                     the same
    finish           makes the result when it is over; or the result itself
    run              instead of arrays: what all ranks call at the same point
    arrays           makes the outputs whose shape depends on other ranks
    """

    __slots__ = ("name", "signature", "inputs", "outputs", "finish", "run", "unnamed", "over",
                 "error", "entry", "since", "result", "arrays")

    def __init__(self, name: str, signature: Signature, inputs: List[Any], outputs: List[Any],
                 finish: Any, unnamed: bool = False, run: Optional[Callable[[], Any]] = None,
                 arrays: Optional[_execute.Arrays] = None) -> None:
        self.name = str(name)
        self.signature = signature
        self.inputs = inputs
        self.outputs = outputs
        self.finish = finish
        self.run = run
        self.arrays = arrays
        self.unnamed = unnamed  # it may wait for an earlier one of its name
        self.over = False
        self.error: Optional[BaseException] = None
        self.entry: Optional[Entry] = None
        self.since = 0.0
        self.result: Any = None


class Entry:
    """A signature that all ranks know by the number of a bit."""

    __slots__ = ("slot", "name", "signature", "signatures", "used", "small")

    def __init__(self, slot: int, name: str, signature: Signature,
                 signatures: Dict[int, Signature]) -> None:
        self.slot = slot
        self.name = name
        self.signature = signature  # this rank's own
        self.signatures = signatures  # of each rank; of those that have not joined
        self.used = 0
        self.small: Optional[_execute.Small] = None


class _Row:
    """What is known of a name that not all ranks have submitted."""

    __slots__ = ("signatures", "since")

    def __init__(self, since: float) -> None:
        self.signatures: Dict[int, Signature] = {}
        self.since = since  # of the rank that was first


class Engine:
    """The collectives of the ranks of a communicator, which belongs to it."""

    _threads = 0  # of all engines; guarded by _threads_lock
    _threads_lock = threading.Lock()

    def __init__(self, comm: Communicator, settings: Settings, timeline: Timeline,
                 ranks: Optional[Sequence[int]] = None) -> None:
        """`ranks` are the members' in the job, where these are not all."""
        self.comm = comm
        self.rank, self.size = comm.rank, comm.size
        self.settings = settings
        self.timeline = timeline
        self.unnamed: Dict[str, Any] = {}  # how many of each kind had no name
        self._ranks = list(ranks or range(comm.size))
        self._label = f"process set {self._ranks}: " if ranks else ""
        self._drive = threading.Lock()  # held by the thread that moves the engine on
        self._mutex = threading.Lock()  # guards what follows
        self._cond = threading.Condition(self._mutex)
        self._inbox: List[Request] = []
        self._names: Dict[str, Request] = {}  # under way
        self._later: Dict[str, "deque[Request]"] = {}
        self._awaited: List[Request] = []  # by threads in wait()
        self._waiters = 0  # of these threads, those that do not move the engine on
        self._pausing = False
        self._stop = False
        self._leaving = False  # not guarded: whoever moves the engine on tells it
        self._ended: Optional[HorovodInternalError] = None
        # Guarded by _drive:
        self._pending: Dict[str, Request] = {}
        self._bits = 0
        self._fresh: List[Request] = []
        self._slots: List[Optional[Entry]] = []
        self._entries: Dict[Tuple[str, Signature], Entry] = {}
        self._table: Dict[str, _Row] = {}
        self._joined: List[int] = []
        self._cycles = self._empty = self._stuck = 0
        self._warned: Set[str] = set()
        self._posted = False
        self._posted_at = self._check_at = time.monotonic()
        self._check_every = min(_STALE_S, settings.stall_warn_s or _STALE_S) / 2
        self._heartbeat_s = min(_HEARTBEAT_S, settings.stall_warn_s / 4 or _HEARTBEAT_S)
        self._silence_told = False
        self._words = comm.alloc(1 + (settings.capacity + _WORD - 1) // _WORD, "u64")
        self._view = memoryview(self._words).cast("B")
        self._all_bits = (1 << 8 * (len(self._view) - 8)) - 1
        self._executor = _execute.Executor(comm, settings.fusion_bytes, timeline)
        call = Call(coll=0, dtype=12, op=6, out=ctypes.addressof(self._words),
                    count=len(self._words), name=b"which tensors are ready", site=b"cycle")
        self._op = c_void_p()
        comm._check(lib.gr_op_create(comm._handle, byref(call), byref(self._op)), "init")
        with Engine._threads_lock:
            Engine._threads += 1
        self._thread = threading.Thread(target=self._run, name="gradus-engine", daemon=True)
        self._thread.start()

    # ---- What programs do ------------------------------------------------------------------------

    def submit(self, request: Request, wake: bool = True) -> Request:
        """Begins a collective. Without `wake` the caller waits for it at once."""
        self.comm._refuse_if_forked(request.signature.kind)
        request.since = time.monotonic()
        with self._mutex:
            if self._ended is not None:
                raise HorovodInternalError(str(self._ended)) from self._ended
            if request.name in self._names:
                if not request.unnamed:
                    raise ValueError(f"{request.signature.kind} of {request.name!r}: a tensor of "
                                     "this name is under way; wait for it first, or give another "
                                     "name")
                self._later.setdefault(request.name, deque()).append(request)
            else:
                self._names[request.name] = request
                self._inbox.append(request)
            if wake or self._pausing:
                self._cond.notify_all()
        return request

    def wait(self, request: Request) -> Any:
        """Returns its result, or raises its error."""
        if not request.over:
            self.comm._refuse_if_forked(request.signature.kind)
            try:
                with self._mutex:
                    self._awaited.append(request)
                while not request.over:
                    self._wait_once(request)
            finally:
                with self._mutex:
                    if request in self._awaited:
                        self._awaited.remove(request)
                    if self._waiters or self._inbox or self._pending:
                        self._cond.notify_all()  # somebody else moves it on
        if request.error is not None:
            raise request.error
        return request.result

    def _wait_once(self, request: Request) -> None:
        held: Held = []
        try:
            if not self._stop:
                take(self._drive, held, 0.0)
            while held and not request.over and not self._stop:
                self._cycle()
        finally:
            for leave in held:
                leave()
        if not held:
            with self._mutex:
                self._waiters += 1
                try:
                    if not request.over:
                        self._cond.wait(SLICE_S)
                finally:
                    self._waiters -= 1

    def leave(self, limit_s: float) -> bool:
        """Tells all ranks that this one shuts down, which ends the engine on all. False: they have
        not heard of it in time."""
        end = time.monotonic() + limit_s
        self._leaving = True
        while self._ended is None and time.monotonic() < end:
            held: Held = []
            try:
                take(self._drive, held, SLICE_S)
                if held:
                    self._cycle()
            finally:
                for leave in held:
                    leave()
        return self._ended is not None and self._ended.__cause__ is None

    def stop(self, reason: str) -> None:
        """Ends it on this rank alone, and its thread. The communicator stays."""
        with self._mutex:
            self._stop = True
            self._cond.notify_all()
        self._thread.join()
        with Engine._threads_lock:
            Engine._threads -= 1
        with self._drive:
            self._end(HorovodInternalError(reason))

    def release(self) -> None:
        """Gives back what belongs to the communicator, which is closed or replaced."""
        for handle, (engine, _) in handles.copy().items():
            if engine is self:
                handles.pop(handle, None)
                ended_handles.add(handle)
        lib.gr_op_destroy(self._op)
        self._executor.release()
        for entry in self._slots:
            if entry is not None and entry.small is not None:
                entry.small.release()

    @property
    def ended(self) -> bool:
        """Whether it takes no more collectives."""
        return self._ended is not None

    # ---- The engine's own thread -----------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._mutex:
                left = self._posted_at + self._heartbeat_s - time.monotonic()
                if not (self._stop or self._inbox or self._pending or self._posted) and left > 0:
                    self._cond.wait(left)
                    left = self._posted_at + self._heartbeat_s - time.monotonic()
                if self._stop:
                    return
                if not (self._inbox or self._pending or self._posted) and left > 0:
                    continue
            # Tensors that are submitted one shortly after the other go together.
            gap = self._posted_at + self.settings.cycle_s - time.monotonic()
            if not self._posted and gap > 0 and not self._awaited:
                time.sleep(gap)
            if self._drive.acquire(False):
                try:
                    if self._ended is not None:
                        return
                    self._cycle()
                finally:
                    self._drive.release()
            else:  # who waits for a tensor moves it on
                with self._mutex:
                    if not self._stop:
                        self._cond.wait(SLICE_S)

    # ---- A cycle ---------------------------------------------------------------------------------

    def _cycle(self) -> None:
        """Moves the cycle on, with _drive held; waits for peers for a slice."""
        if self._ended is not None:
            return
        held: Held = []
        try:
            if not self.comm._enter(held):
                self._end(HorovodInternalError("the communicator is closed"))
                return
            if not self._posted:
                self._post()
            status = lib.gr_wait_for(self._op, int(SLICE_S * 1e6))
            if status == Status.TIMEOUT:
                self._look_at_clock()
                return
            self._posted = False
            if status != Status.OK:
                raise self.comm._failure(status, "a cycle")
            self._process()
        except Error as error:
            self._break(error)
        except BaseException as error:  # this rank is out of step with the others
            self._break(error)
            raise
        finally:
            for leave in held:
                leave()

    def _break(self, error: BaseException) -> None:
        text = f"{self._label}{error}"
        ended = HorovodInternalError(text)
        ended.__cause__ = error
        self._end(ended)

    def _end(self, error: HorovodInternalError) -> None:
        """All that is under way fails, and so does what comes later. With _drive held."""
        with self._mutex:
            if self._ended is None:
                self._ended = error
            failed = [*self._names.values(),
                      *(one for queue in self._later.values() for one in queue)]
            self._inbox, self._names, self._later = [], {}, {}
            self._pending, self._fresh, self._table, self._bits = {}, [], {}, 0
            for request in failed:
                request.error = HorovodInternalError(str(self._ended))
                request.error.__cause__ = self._ended
                request.over = True
            self._cond.notify_all()

    def _take(self) -> None:
        """What was submitted since the last cycle gets its bit, or waits for an exchange."""
        with self._mutex:
            inbox, self._inbox = self._inbox, []
        for request in inbox:
            self._pending[request.name] = request
            entry = self._entries.get((request.name, request.signature))
            if entry is not None and request.name not in self._table:
                request.entry = entry
                self._bits |= 1 << entry.slot
            else:
                self._fresh.append(request)
        self._empty = 0

    def _post(self) -> None:
        if self._inbox:
            self._take()
        elif self._empty > _FREE_CYCLES and self._pending:
            self._pause()
        flags, now = 0, time.monotonic()
        if now >= self._check_at:
            self._check_at = now + self._check_every
            self._tell_stale(now)
            flags = self._stall_flags(now)
        if self._fresh:
            flags |= _FRESH
        if self._leaving:
            flags |= _LEAVING
        bits = self._all_bits if self.rank in self._joined else self._bits
        word = _ANY & ~flags
        if self._empty and self._is_blocked():
            word |= _BLOCKED
        self._view[:] = (bits << _WORD | word).to_bytes(len(self._view), "little")
        self._posted, self._silence_told = True, False
        self._posted_at = now
        self.timeline.cycle()
        status = quick.gr_op_start(self._op)
        if status != Status.OK:
            self._posted = False
            raise self.comm._failure(status, "a cycle")

    def _pause(self) -> None:
        """Nothing of what the ranks have submitted was ready: more has to come first."""
        seconds = min(_PAUSE_S * 2 ** min(self._empty - _FREE_CYCLES, 10),
                      max(self.settings.cycle_s, _PAUSE_S))
        with self._mutex:
            if not self._inbox and not self._stop:
                self._pausing = True
                self._cond.wait(seconds)
                self._pausing = False
        if self._inbox:
            self._take()

    def _tell_stale(self, now: float) -> None:
        """What waits with its bit may wait for ranks that have the name with another signature."""
        for request in self._pending.values():
            if request.entry is not None and now - request.since > _STALE_S:
                self._take_bit(request)

    def _take_bit(self, request: Request) -> None:
        self._bits &= ~(1 << request.entry.slot)
        request.entry = None
        self._fresh.append(request)

    def _stall_flags(self, now: float) -> int:
        warn, end = self.settings.stall_warn_s, self.settings.stall_end_s
        if not warn or not self._pending:
            return 0
        flags = 0
        for request in self._pending.values():
            if request.signature.kind == "join":
                continue
            if now - request.since > warn and request.name not in self._warned:
                flags |= _STALLED
            if end and now - request.since > end:
                flags |= _GIVE_UP
        return flags

    def _is_blocked(self) -> bool:
        """Whether no thread of the program can submit anything before something is over."""
        with self._mutex:  # a thread whose request is over only has to wake up
            inside = sum(not request.over for request in self._awaited)
        return inside > 0 and inside == threading.active_count() - Engine._threads

    def _process(self) -> None:
        """Every rank has posted the cycle: what all have set is in _view."""
        result = int.from_bytes(self._view, "little")
        flags = ~result & _ANY
        ready = result >> _WORD
        self._cycles += 1
        if not flags and ready and not ready & (ready - 1):  # what latency depends on
            entry = self._slots[ready.bit_length() - 1]
            if entry.small is not None and not self._joined:
                entry.used = self._cycles
                request, started = self._done_with(entry.name), time.monotonic()
                entry.small.reduce(request)
                self.timeline.done(request, started)
                self._complete(request)
                self._empty = self._stuck = 0
                return
        if len(self._joined) == self.size:
            ready = 0
        work: List[_execute.Response] = []
        while ready:
            lowest = ready & -ready
            ready ^= lowest
            entry = self._slots[lowest.bit_length() - 1]
            if entry is None:  # only ranks that have joined set it
                continue
            entry.used = self._cycles
            work += self._response(entry.name, entry.signatures, entry)
        blocked = bool(result & _BLOCKED) and not work and not flags
        self._stuck = self._stuck + 1 if blocked else 0
        if self._stuck == 2:  # all ranks see the same numbers
            flags |= _STALLED
        if flags:
            work += self._exchange(flags)
        if self._stuck > 2 and not work and self._table:
            self._refuse_deadlock()
            self._stuck = 0
        if self._ended is not None:
            return
        self._empty = 0 if work else self._empty + 1
        if work:
            self._stuck = 0
            self._execute(work)

    def _done_with(self, name: str) -> Optional[Request]:
        """This rank's request of that name leaves the negotiation."""
        request = self._pending.pop(name, None)
        if request is not None and request.entry is not None:
            self._bits &= ~(1 << request.entry.slot)
        self._warned.discard(name)
        return request

    # ---- Exchange of signatures ------------------------------------------------------------------

    def _exchange(self, flags: int) -> List["_execute.Response"]:
        """All ranks tell what they have submitted and has no bit; with STALLED or GIVE_UP what has
        one as well. Returns what is ready now."""
        if flags & (_STALLED | _GIVE_UP):
            for request in list(self._pending.values()):
                if request.entry is not None:
                    self._take_bit(request)
        now = time.monotonic()
        mine = [(request.name, request.signature, now - request.since) for request in self._fresh]
        self._fresh = []
        told = self.comm.allgather_object((mine, self._leaving))
        for rank, (signatures, leaves) in enumerate(told):
            if leaves:
                self._end(HorovodInternalError(
                    f"{self._label}rank {self._ranks[rank]} has shut down"))
                return []
            for name, signature, age in signatures:
                if signature.kind == "join":
                    self._joined.append(rank)
                else:
                    row = self._table.setdefault(name, _Row(now))
                    row.signatures[rank] = signature
                    row.since = min(row.since, now - age)
        work = [work for name in list(self._table) for work in self._ready(name)]
        self._finish_join()
        for name in self._table:  # others have it with another signature, or new
            request = self._pending.get(name)
            if request is not None and request.entry is not None:
                self._take_bit(request)
        if flags & _STALLED:
            self._warn_of_stall()
        if flags & _GIVE_UP:
            self._end(HorovodInternalError(
                f"{self._label}ranks have not submitted these tensors for "
                f"{self.settings.stall_end_s:g} s (HOROVOD_STALL_SHUTDOWN_TIME_SECONDS): "
                + self._missing(self._older(self.settings.stall_end_s))))
        return work

    def _ready(self, name: str) -> List["_execute.Response"]:
        row = self._table[name]
        if len({*row.signatures, *self._joined}) < self.size:
            return []
        del self._table[name]
        entry = None
        if self._problem(name, row.signatures) is None:
            own = row.signatures.get(self.rank, next(iter(row.signatures.values())))
            if own.kind != "call" and self.settings.capacity:
                entry = self._remember(name, own, row.signatures)
        return self._response(name, row.signatures, entry)

    def _response(self, name: str, signatures: Dict[int, Signature],
                  entry: Optional[Entry]) -> List["_execute.Response"]:
        """What is to be executed; nothing where the ranks cannot do it together."""
        request = self._done_with(name)
        problem = self._problem(name, signatures)
        if problem is None:
            return [_execute.Response(name, signatures, request, entry)]
        if request is not None:
            request.error = HorovodInternalError(problem)
            self._complete(request)
        return []

    def _problem(self, name: str, signatures: Dict[int, Signature]) -> Optional[str]:
        """Why the ranks cannot do it together."""
        first, wanted = min(signatures.items())
        for rank, signature in sorted(signatures.items()):
            if signature.common() != wanted.common():
                return (f"{self._label}{name!r}: rank {self._ranks[first]} has submitted {wanted}, "
                        f"rank {self._ranks[rank]} {signature}; they must be alike")
        if self._joined and wanted.kind not in ("allreduce", "barrier"):
            return (f"{self._label}{name!r}: {wanted.kind} needs all ranks, but rank "
                    f"{self._ranks[self._joined[0]]} has joined, and gives zeros to allreduces "
                    "alone")
        return None

    def _remember(self, name: str, own: Signature, signatures: Dict[int, Signature]) -> Entry:
        """Gives it a bit; the same on all ranks, who remember and forget in the same order."""
        if self._joined:  # it counts for those who have joined
            signatures = {rank: own for rank in range(self.size)}
        known = self._entries.get((name, own))
        if known is not None and known.signatures == signatures:
            return known
        for entry in self._slots:  # a rank may keep its part, where another's is new
            if entry is not None and entry.name == name and any(
                    entry.signatures.get(rank) == one for rank, one in signatures.items()):
                self._forget(entry)
        if None in self._slots:
            slot = self._slots.index(None)
        elif len(self._slots) < self.settings.capacity:
            slot = len(self._slots)
            self._slots.append(None)
        else:
            oldest = min(self._slots, key=lambda entry: (entry.used, entry.slot))
            slot = oldest.slot
            self._forget(oldest)
        entry = Entry(slot, name, own, signatures)
        entry.used = self._cycles
        self._slots[slot] = entry
        self._entries[name, own] = entry
        return entry

    def _forget(self, entry: Entry) -> None:
        self._slots[entry.slot] = None
        self._entries.pop((entry.name, entry.signature), None)
        request = self._pending.get(entry.name)
        if request is not None and request.entry is entry:
            self._take_bit(request)
        if entry.small is not None:
            entry.small.release()

    def _finish_join(self) -> None:
        if len(self._joined) < self.size:
            return
        last = self._joined[-1]
        self._joined = []
        self.unnamed.clear()  # ranks had others to number: those with less data had fewer
        for name, request in list(self._pending.items()):
            if request.signature.kind == "join":
                self._done_with(name)
                request.finish = last
                self._complete(request)

    # ---- Who waits for whom ----------------------------------------------------------------------

    def _missing(self, names: Sequence[str]) -> str:
        """Which ranks have not submitted what others have."""
        told = []
        for name in names[:_NAMES_SHOWN]:
            row = self._table[name]
            absent = [self._ranks[rank] for rank in range(self.size)
                      if rank not in row.signatures and rank not in self._joined]
            ranks = "rank " if len(absent) == 1 else "ranks "
            told.append(f"{name!r} ({ranks}{', '.join(map(str, absent))})")
        more = len(names) - _NAMES_SHOWN
        return ", ".join(told) + (f" and {more} more" if more > 0 else "")

    def _older(self, seconds: float) -> List[str]:
        """What some ranks wait for since then."""
        now = time.monotonic()
        return [name for name, row in self._table.items() if now - row.since > seconds]

    def _warn_of_stall(self) -> None:
        old = [name for name in self._older(self.settings.stall_warn_s)
               if name not in self._warned]
        self._warned.update(old)
        if old and self.rank == 0:
            _log.warning("%sranks have not submitted tensors that others wait for since %g s "
                         "(HOROVOD_STALL_CHECK_TIME_SECONDS): %s; all ranks submit the same names",
                         self._label, self.settings.stall_warn_s, self._missing(old))

    def _look_at_clock(self) -> None:
        """A rank does not take part in the cycle: it is stopped, say, or its lock is held."""
        warn = 2 * self.settings.stall_warn_s
        waiting = list(self._pending)
        if warn and waiting and not self._silence_told and \
                time.monotonic() - self._posted_at > warn:
            self._silence_told = True
            _log.warning("%srank %d waits for a rank that does not answer for %g s, with %s",
                         self._label, self._ranks[self.rank], warn,
                         ", ".join(waiting[:_NAMES_SHOWN]))

    def _refuse_deadlock(self) -> None:
        """All threads of all ranks wait, and nothing is wanted by all: no order can help."""
        told = []
        for name, row in list(self._table.items())[:_NAMES_SHOWN]:
            rank, signature = min(row.signatures.items())
            told.append(f"rank {self._ranks[rank]} waits for {name!r} ({signature})")
        text = (f"{self._label}ranks wait for each other in different operations: "
                f"{', '.join(told)}; missing: {self._missing(list(self._table))}")
        for name in list(self._table):
            del self._table[name]
            request = self._done_with(name)
            if request is not None:
                request.error = HorovodInternalError(text)
                self._complete(request)

    # ---- Execution -------------------------------------------------------------------------------

    def _execute(self, work: List["_execute.Response"]) -> None:
        for response in work:
            entry = response.entry  # another one may have got its bit meanwhile
            if entry is not None and entry.small is None and self._slots[entry.slot] is entry and \
                    response.request is not None and not self._joined:
                entry.small = _execute.small_of(self.comm, response)
        started = time.monotonic()
        self._executor.run(work)
        for response in work:
            if response.request is not None:
                self.timeline.done(response.request, started)
                self._complete(response.request)

    def _complete(self, request: Request) -> None:
        """Its result is there. What has waited for the name comes next."""
        if request.error is None:
            try:
                request.result = request.finish() if callable(request.finish) else request.finish
            except Exception as error:
                request.error = error
        request.inputs = request.outputs = []
        with self._mutex:
            self._names.pop(request.name, None)
            queue = self._later.get(request.name)
            if queue:
                following = queue.popleft()
                if not queue:
                    del self._later[request.name]
                self._names[following.name] = following
                self._inbox.append(following)
            request.over = True
            if self._waiters:
                self._cond.notify_all()

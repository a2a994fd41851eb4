# SPDX-License-Identifier: Apache-2.0
"""Parameter servers, as their clients see them (docs/ps.md). Servers keep tensors of f32, and
update them; a client declares tensors, pushes gradients and pulls values:

    with gradus.ps.Client() as client:
        weight = client.declare("weight", 4096, shards=4, optimizer={"kind": "sgd"})
        weight.set(initial)
        values, version = weight.pull()
        values, version = weight.push_pull(gradient, values, first=shard, rate=0.1)

What is pushed and pulled is anything with memory of f32 elements in C order, as for collectives:
array.array, numpy, tensors of PyTorch on the CPU, __array_interface__, DLPack."""
import array
import atexit
import collections
import ctypes
import itertools
import json
import math
import os
import sys
import threading
import time
import weakref
from ctypes import byref, c_int, c_uint64, c_void_p
from typing import (Any, Callable, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Set,
                    Union)

from . import _library
from ._buffers import Buffer, DType, borrow, dtype_of
from ._communicator import _interruptibly, _peer
from ._future import SLICE_S, Future, Held, check_timeout, take
from ._library import (Diag, PsConfig, PsCounters, PsEntry, PsGradient, PsScan, PsSpec,
                       bytes_or_none, lib, status_text, text_of)
from .errors import Error, InvalidError, NotFoundError, Status, TimeoutError, error_of

__all__ = ["Client", "Counters", "Entry", "Rows", "State", "Table", "Tensor", "Values"]

CONSISTENCIES = ("bsp", "backup", "async", "ssp")
_SECRET_BYTES = 32
_REAP = 64  # so many operations under way, and those that are over are looked for
_LONGEST_US = 10**15
_SCAN_BYTES = 1 << 20  # what a call of the library brings at most

Optimizer = Union[None, str, Mapping[str, Any]]


class Values(NamedTuple):
    """What a pull gives: the memory that was filled, and how many updates are in it, the fewest of
    all blocks."""

    values: Any
    version: int


class State(NamedTuple):
    """A tensor with its optimizer's vectors of state, all of one version."""

    values: Any
    states: List[Any]
    version: int


class Rows(NamedTuple):
    """Rows of a table: their numbers (u32), values row by row, the optimizer's vectors of state,
    and the fewest updates."""

    rows: Any
    values: Any
    states: List[Any]
    version: int


class Entry(NamedTuple):
    """A tensor, as the servers have it. `elements` / `columns` rows make a table, of which `rows`
    exist; of any other tensor `columns` is 0."""

    name: str
    elements: int
    consistency: str
    shards: int
    aggregate: int
    total: int
    staleness: int
    adapt_rate: bool
    refuse_not_finite: bool
    optimizer: str
    gradient_type: DType
    columns: int
    seed: int
    std: float
    states: int
    blocks: int
    rows: int
    version: int
    version_most: int


class Counters(NamedTuple):
    """What one server has done since it started: gr_ps_counters in include/gradus/ps.h says what
    each number is. Bytes are bytes; pushes and pulls are of blocks."""

    clients: int
    tensors: int
    blocks: int
    bytes: int
    pushes: int
    pulls: int
    updates: int
    duplicates: int
    late: int
    refused: int
    bytes_in: int
    bytes_out: int
    staleness_sum: int
    staleness_most: int
    unreplicated: int


class _Operation(Future):
    """A push or a pull that is under way. Its result is Values for what pulls, None for a push."""

    def __init__(self, tensor: "_Declared", what: str, buffers: List[Buffer], out: Any = None, *,
                 step: Optional[int] = None, current: bool = True) -> None:
        super().__init__(tensor.client, f'{what} of "{tensor.name}"', buffers, out)
        self._tensor = tensor
        self._version = c_uint64()
        self._step = step
        self._current = current  # what comes is what the next gradient is computed from

    def _statuses(self, timeout_us: int) -> Iterator[int]:
        if not self._op:  # Ctrl-C came before it began
            return map(int, (Status.CANCELLED,))
        return map(lib.gr_ps_wait, (self._op,), (max(1, timeout_us),), (byref(self._version),))

    def _finish(self, status: int) -> None:
        if status == Status.OK:
            if self._step is not None:  # it is acknowledged when the step is done
                self._tensor.version = max(self._tensor.version, self._step + 1)
            if self._value is not None and not isinstance(self._value, Values):
                if self._current:
                    self._tensor.version = self._version.value
                self._value = Values(self._value, self._version.value)
        super()._finish(status)


class _Threads:
    """Operations of a client have no descriptor to wait for: callbacks take a thread each."""

    @staticmethod
    def watch(future: Future) -> None:
        threading.Thread(target=future._wait_out, name="gradus-callback", daemon=True).start()


class _Memory:
    """Arrays of Client.alloc(). They go at any moment, on any thread: whoever has the connection
    next frees them. The last one closes a connection that waits for it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards all below
        self.freed: "collections.deque[int]" = collections.deque()
        self.arrays = 0
        self.handle: Optional[c_void_p] = None  # to be closed with the last array
        self.lent: List[Any] = []  # buffers of operations that are under way on it
        self.pid = os.getpid()

    def free(self, memory: int) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            self.arrays -= 1
            self.freed.append(memory)
            if self.arrays == 0 and self.handle is not None:
                handle, self.handle = self.handle, None
                lib.gr_ps_close(handle)
                self.lent.clear()


_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    """Servers see a client that leaves, not one that dies."""
    for client in list(_clients):
        client.close(keep_arrays=False)


class Client:
    """A connection to all servers of a job. Without arguments the environment says everything:
    GRADUS_SERVERS, GRADUS_SECRET or GRADUS_SECRET_FILE, GRADUS_RANK, GRADUS_RUN, as `gradus run
    --servers` sets them.

    servers   addresses, as `gradus server` prints them: one string with commas between, or a list
    secret    the job's, 64 hexadecimal digits. One of GRADUS_SECRET is wiped there: a process that
              makes a Communicator() as well reads it before, and names it here
    worker    this worker's number, 0 to 191, which no other living client has; -1: a client that
              pulls but does not push. None: GRADUS_RANK, or -1
    timeout   seconds to wait for the servers; None: 30
    encrypt   TLS on what goes by tcp; the same as the servers'
    run       the run that this worker belongs to, up to 47 characters: servers that keep another
              run's tensors refuse it; "": none; None: GRADUS_RUN, or none

    Raises InvalidError (malformed, servers in the wrong order, of another run), TimeoutError (the
    sentence names the server that does not answer), AuthError (another secret), InUseError (another
    client is this worker), PeerLostError.

    Any thread may call any method. They take turns: while one waits, others get theirs within
    0.05 s. Ctrl-C ends a wait, not what it waits for; what has no form with _start (declare, set,
    restore) has the connection until the servers have answered. In errors `rank` is the worker and
    `peer` the server. A lost server concerns the tensors alone that had blocks there and nowhere
    else: PeerLostError, again and again; where blocks have replicas calls take longer, and go on. A
    process that was forked from the one that made it cannot use it: InvalidError.

    `with Client() as client:` closes it at the end; so does the end of the program.
    """

    _renewing = False  # what is closed stays so

    def __init__(self, *, servers: Union[None, str, Sequence[str]] = None,
                 secret: Optional[str] = None, worker: Optional[int] = None,
                 timeout: Optional[float] = None, encrypt: bool = False,
                 run: Optional[str] = None) -> None:
        self._handle: Optional[c_void_p] = None
        if servers is not None and not isinstance(servers, str):
            servers = ",".join(servers)
        config = PsConfig(servers=bytes_or_none(servers), run=bytes_or_none(run),
                          secret=None if secret is None else _secret_of(secret),
                          worker=_worker_of(worker), encrypt=1 if encrypt else 0,
                          timeout_us=min(_LONGEST_US, check_timeout(timeout, "timeout")))
        if timeout == math.inf:
            config.timeout_us = _LONGEST_US
        self._worker = config.worker
        handle, diag = c_void_p(), Diag()
        status = _interruptibly(
            lambda: lib.gr_ps_connect(byref(config), byref(handle), byref(diag)),
            lambda: lib.gr_ps_close(handle), config)
        if status != Status.OK:
            sentence = text_of(diag)
            if secret is None and _library.had_secret and "GRADUS_SECRET_FILE" not in os.environ:
                sentence += ("; this process had it and has wiped it: read "
                             "os.environ[\"GRADUS_SECRET\"] before the first Communicator() or "
                             "Client(), and pass secret=")
            raise error_of(status, sentence, rank=self.rank, operation="Client",
                           peer=_peer(diag))
        if secret is None:
            _library.forget_secret()
        self._handle = handle
        self._pid = os.getpid()
        self._servers = lib.gr_ps_servers(handle)
        self._entry = threading.Lock()  # whoever has it is the next one that gets _turn
        self._turn = threading.Lock()  # whoever has it may call the library
        self._closed = False
        self._calling = False  # a call that cannot be left has the turn
        self._inflight: Set[Future] = set()
        self._context = _Threads
        self._memory = _Memory()
        _clients.add(self)

    # ---- What it is ------------------------------------------------------------------------------

    @property
    def servers(self) -> int:
        """How many servers there are, lost ones included."""
        return self._servers

    @property
    def worker(self) -> int:
        """This worker's number; -1: a client that only pulls."""
        return self._worker

    @property
    def rank(self) -> Optional[int]:
        """The worker's number for errors, None for a client that only pulls."""
        return None if self._worker < 0 else self._worker

    def __repr__(self) -> str:
        return f"<gradus.ps.Client worker {self._worker} of {self._servers} servers>"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle is not None and not sys.is_finalizing():
            self.close()

    def close(self, *, keep_arrays: bool = True) -> None:
        """Leaves. Operations under way end with CancelledError: what was not acknowledged may have
        been applied or not. Waits for nobody, but for calls of other threads to notice it (0.05 s).
        Arrays of alloc() stay valid: with them the client leaves when the last one goes, or the
        program ends; without `keep_arrays` it leaves now, and they must not be used any more. A
        second time does nothing."""
        if self._handle is None or os.getpid() != self._pid:
            return
        self._keep = keep_arrays
        self._closed = True
        while not self._turn.acquire(timeout=SLICE_S):
            if self._calling:  # it closes when the servers have answered
                return
        self._finish_close()

    def _finish_close(self) -> None:
        """With the turn, which it releases."""
        try:
            handle, self._handle = self._handle, None
            if handle is None:
                return
            memory = self._memory
            with memory.lock:
                if self._keep and memory.arrays > 0:
                    memory.handle = handle
                    for future in self._inflight:  # the library goes on writing there
                        memory.lent.append(future._buffers)
                        future._buffers = []
                else:
                    lib.gr_ps_close(handle)
        finally:
            self._turn.release()
        for future in list(self._inflight):
            future._cancel()

    # ---- Memory ----------------------------------------------------------------------------------

    def alloc(self, count: int) -> Any:
        """An array of `count` zeros (f32) that servers on this host read, and write, without a
        copy. It is a ctypes array: it has the buffer protocol (numpy.asarray(array), memoryview,
        torch.frombuffer), and is freed when it and the last view of it are gone. Raises
        InvalidError (count is 0), NoMemoryError."""
        if count < 1:
            raise self._invalid("alloc", f"an array of {count} elements; it has 1 or more")
        memory = c_void_p()
        held: Held = []
        try:
            self._enter_or_raise("alloc", held)
            status = lib.gr_ps_alloc(self._handle, 4 * count, byref(memory))
            if status != Status.OK:
                raise self._failure(status, "alloc")
            with self._memory.lock:  # before close() can have the turn
                self._memory.arrays += 1
        finally:
            for leave in held:
                leave()
        made = (ctypes.c_float * count).from_address(memory.value)
        weakref.finalize(made, self._memory.free, memory.value).atexit = False
        return made

    # ---- Tensors ---------------------------------------------------------------------------------

    def declare(self, name: str, elements: int, *, consistency: str = "bsp", shards: int = 1,
                aggregate: int = 0, total: int = 0, staleness: int = 0, adapt_rate: bool = False,
                refuse_not_finite: bool = False, optimizer: Optimizer = None,
                gradient_type: Union[DType, str, Any] = DType.F32) -> "Tensor":
        """Tells all servers of a tensor, and waits for their answers. Whoever comes first makes it;
        all that declare it say the same.

        name           1 to 127 printable characters
        elements       f32 values, 1 or more
        consistency    when a push changes the values: "bsp": a step is done when all of its shards
                       have come, added in a fixed order; "backup": when the first `aggregate` of
                       `total` workers have pushed; "async": each push as it comes; "ssp": the same,
                       but a pull waits while the caller's clock() is more than `staleness` ahead of
                       the slowest worker's
        shards         bsp: how many make a step
        adapt_rate     async, ssp: the learning rate is divided by 1 + staleness
        refuse_not_finite  a push with NaN or infinity changes nothing: NotFiniteError
        optimizer      settings as under `optimizer:` in a job file: a dictionary ({"kind": "sgd",
                       "momentum": 0.9}), or their text; None: factor times the gradient is added to
                       the values; "sum": values are the sum of the step's gradients
        gradient_type  "f16", "bf16": gradients are rounded to it, and travel as it

        Raises InvalidError (malformed; declared by another client as something else: the sentence
        says both), NoMemoryError, PeerLostError."""
        return Tensor(self, PsSpec(
            name=name.encode(), elements=elements, consistency=self._mode(name, consistency),
            shards=shards, aggregate=aggregate, total=total, staleness=staleness,
            adapt_rate=adapt_rate, refuse_not_finite=refuse_not_finite,
            optimizer=_optimizer_text(optimizer), gradient_type=dtype_of(gradient_type)))

    def declare_table(self, name: str, rows: int, columns: int, *, seed: int = 0, std: float = 0.0,
                      consistency: str = "bsp", shards: int = 1, aggregate: int = 0, total: int = 0,
                      staleness: int = 0, adapt_rate: bool = False, refuse_not_finite: bool = False,
                      optimizer: Optimizer = None) -> "Table":
        """As declare(), but a table, an embedding say, of `rows` (up to 2^31) by `columns` (up to
        65,536), of which servers keep the rows that somebody has pushed. Before its first push a
        row is normal numbers times `std`, which follow from the seed and the row's number."""
        return Table(self, PsSpec(
            name=name.encode(), elements=max(0, rows) * columns, columns=columns, seed=seed,
            deviation=std, consistency=self._mode(name, consistency), shards=shards,
            aggregate=aggregate, total=total, staleness=staleness, adapt_rate=adapt_rate,
            refuse_not_finite=refuse_not_finite, optimizer=_optimizer_text(optimizer)))

    def find(self, name: str) -> Union["Tensor", "Table"]:
        """The tensor, or table, that others have declared by this name. Raises NotFoundError."""
        for found in self.entries():
            if found.name == name:
                same = dict(consistency=found.consistency, shards=found.shards,
                            aggregate=found.aggregate, total=found.total,
                            staleness=found.staleness, adapt_rate=found.adapt_rate,
                            refuse_not_finite=found.refuse_not_finite, optimizer=found.optimizer)
                if found.columns > 0:
                    return self.declare_table(name, found.elements // found.columns, found.columns,
                                              seed=found.seed, std=found.std, **same)
                return self.declare(name, found.elements, gradient_type=found.gradient_type, **same)
        raise NotFoundError(f'no client has declared a tensor "{name}"; `gradus ps ls` lists them',
                            rank=self.rank, operation="find")

    def entries(self) -> List[Entry]:
        """All tensors, in the order of their declaration."""
        found: List[Entry] = []

        def listed(handle: c_void_p) -> int:
            entry = PsEntry()
            while True:
                status = lib.gr_ps_list(handle, len(found), byref(entry))
                if status != Status.OK:
                    return Status.OK if status == Status.NOT_FOUND else status
                found.append(_entry_of(entry))
        self._call("entries", listed)
        return found

    def counters(self, server: int) -> Counters:
        """What server number `server` has done. Raises InvalidError (there is no such server),
        PeerLostError."""
        numbers = PsCounters()
        self._call("counters", lib.gr_ps_read_counters, server, byref(numbers))
        return Counters(*(getattr(numbers, name) for name in Counters._fields))

    # ---- Workers ---------------------------------------------------------------------------------

    def clock(self, clock: int) -> None:
        """ssp: this worker has finished so many steps. The first call makes it one of those that
        are waited for; when it leaves, or dies, it is none any more. Never less than before."""
        self._call("clock", lib.gr_ps_clock, clock)

    def barrier(self, name: str, members: int, member: Optional[int] = None,
                timeout: Optional[float] = None) -> None:
        """Waits until all `members` have come here, each under a number of its own, 0 to
        members - 1 (None: this worker's); it may be used again. It is a tensor of this name, and
        outlives a server where blocks have replicas. Raises TimeoutError when `timeout` seconds
        have passed: this member is there, and the next call waits on; InvalidError,
        PeerLostError."""
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left = min(SLICE_S, max(0.0, end - time.monotonic()))
            try:
                return self._call("barrier", lib.gr_ps_barrier, name.encode(), members,
                                  self._worker if member is None else member,
                                  max(1, int(left * 1e6)))
            except TimeoutError:
                if time.monotonic() >= end:
                    raise

    # ---- Inside ----------------------------------------------------------------------------------

    def _mode(self, name: str, consistency: str) -> int:
        if consistency not in CONSISTENCIES:
            raise self._invalid(f'declaration of "{name}"', f"consistency is {consistency!r}; it "
                                f"is one of {', '.join(CONSISTENCIES)}")
        return CONSISTENCIES.index(consistency)

    def _enter(self, held: Held) -> bool:
        """A thread gets its turn, unless the client is closed, until it calls what is in `held`
        then (_future.take says how)."""
        if os.getpid() != self._pid:
            raise self._invalid("", "the client belongs to the process that this one was forked "
                                "from; make one of its own here, or use it there")
        with self._entry:
            take(self._turn, held)
        if self._closed:
            return False
        freed = self._memory.freed
        while freed:
            lib.gr_ps_free(self._handle, freed.popleft())
        return True

    def _enter_or_raise(self, operation: str, held: Held) -> None:
        if not self._enter(held):
            raise self._invalid(operation, "the client is closed")

    def _call(self, operation: str, function: Callable[..., int], *arguments: Any) -> None:
        """function(handle, *arguments), which waits for servers and cannot be left: where Ctrl-C
        may come it goes on without the caller, and the connection is its own until it is over."""
        failed: List[Error] = []

        def work() -> int:
            held: Held = []
            status = Status.CANCELLED
            try:
                if self._enter(held):
                    self._calling = True
                    status = function(self._handle, *arguments)
                if status != Status.OK:
                    failed.append(self._failure(status, operation))
            finally:
                self._calling, called = False, self._calling
                if called and self._closed:
                    self._finish_close()
                else:
                    for leave in held:
                        leave()
            return status
        _interruptibly(work, lambda: None)
        if failed:
            raise failed[0]

    def _submit(self, operation: _Operation, start: Callable[..., int], *arguments: Any) -> Future:
        if len(self._inflight) >= _REAP:
            for other in list(self._inflight):
                other.done()
        held: Held = []
        try:
            self._enter_or_raise(operation.operation, held)
            self._inflight.add(operation)  # before it begins: KeyboardInterrupt may come any moment
            status = start(self._handle, *arguments, byref(operation._op))
            if status != Status.OK:
                operation._finish(status)
                raise operation._error
        finally:
            for leave in held:
                leave()
        return operation

    def _failure(self, status: int, operation: str) -> Error:
        if status == Status.CANCELLED:
            return error_of(status, "the client is closed", rank=self.rank, operation=operation)
        diag = lib.gr_ps_last_error(self._handle).contents
        return error_of(status, text_of(diag) or status_text(status), rank=self.rank,
                        peer=_peer(diag), operation=operation)

    def _invalid(self, operation: str, sentence: str) -> InvalidError:
        return InvalidError(sentence, rank=self.rank, operation=operation)


class _Declared:
    """What tensors and tables have in common.

    client, name
    elements   of all rows
    version    how many updates are in the values that this client has pulled last, or knows of by
               a push that was acknowledged: what pushes refer to that say nothing else
    """

    def __init__(self, client: Client, spec: PsSpec) -> None:
        self.client = client
        self.name: str = spec.name.decode()
        self.elements: int = spec.elements
        self.consistency: str = CONSISTENCIES[spec.consistency]
        self.optimizer: str = (spec.optimizer or b"").decode()
        self.version = 0
        self._columns: int = spec.columns
        self._sequences = itertools.count(time.time_ns())  # larger than before a restart
        self._states: Optional[int] = None
        number = c_int()
        client._call(f'declaration of "{self.name}"', lib.gr_ps_declare, byref(spec), byref(number))
        self._id = number.value

    def __repr__(self) -> str:
        return f'<gradus.ps.{type(self).__name__} "{self.name}">'

    @property
    def states(self) -> int:
        """How many vectors of state the optimizer has. Asks the servers once."""
        if self._states is None:
            self._states = next(entry.states for entry in self.client.entries()
                                if entry.name == self.name)
        return self._states

    def _floats(self, what: str, thing: Any, count: int, writable: bool, role: str) -> Buffer:
        """The memory of `thing`, which has to be `count` values."""
        operation = f'{what} of "{self.name}"'
        try:
            buffer = borrow(thing, writable, role)
        except InvalidError as error:
            raise self.client._invalid(operation, error.sentence) from None
        kind, found = buffer.dtype, buffer.count
        if kind == DType.F32 and found == count:
            return buffer
        buffer.release()
        if kind != DType.F32:
            raise self.client._invalid(operation, f"{role} is of {kind.name.lower()}; servers keep "
                                       "f32: convert it before")
        raise self.client._invalid(operation, f"{role} has {found} elements, where {count} belong "
                                   f"({self._shape()})")

    def _shape(self) -> str:
        return f'tensor "{self.name}" has {self.elements}'

    def _gradient(self, what: str, step: Optional[int], first: int, count: int,
                  version: Optional[int], sequence: Optional[int], rate: Optional[float],
                  factor: float, sparse: bool = False) -> PsGradient:
        operation = f'{what} of "{self.name}"'
        if rate is None:
            if self.optimizer not in ("", "sum"):
                raise self.client._invalid(operation, "no rate is given, which the optimizer of "
                                           "the tensor needs: rate=0.1 say")
            rate = 0.0
        if factor == 0:
            raise self.client._invalid(operation, "factor is 0, with which nothing would count")
        numbers = {"step": self.version if step is None else step,
                   "version": self.version if version is None else version,
                   "sequence": next(self._sequences) if sequence is None else sequence}
        for name, number in numbers.items():
            if not 0 <= number < 1 << 64:
                raise self.client._invalid(operation, f"{name} is {number}; it is 0 or more")
        return PsGradient(first=first, count=count, rate=rate, factor=factor, sparse=sparse,
                          **numbers)

    def _step(self, push: PsGradient) -> Optional[int]:
        return push.step if self.consistency in ("bsp", "backup") else None

    def _vectors(self, what: str, states: Sequence[Any], count: int, writable: bool):
        """Buffers of vectors of state, and their addresses."""
        buffers = [self._floats(what, state, count, writable, f"states[{index}]")
                   for index, state in enumerate(states)]
        return buffers, (c_void_p * max(1, len(buffers)))(*(buffer.address for buffer in buffers))


class Tensor(_Declared):
    """A tensor on the servers, of Client.declare(). An operation covers all of it. Each has a form
    with _start that returns a gradus.Future, of which 256 may be under way on a client. Buffers are
    borrowed until the operation is over, also if Ctrl-C has ended the wait for it.

    All raise InvalidError, NoMemoryError (a server is at its limit), PeerLostError."""

    def set(self, values: Any) -> None:
        """Initial values, `elements` of them. The first client's count, what others give is
        dropped. Before that nothing can be pushed, and pulls wait. Waits for the servers'
        answers."""
        buffer = self._floats("set", values, self.elements, False, "values")
        self.client._call(f'set of "{self.name}"', _holding(lib.gr_ps_set, buffer), self._id,
                          buffer.address)

    def push_start(self, gradient: Any, *, step: Optional[int] = None, first: int = 0,
                   count: int = 1, version: Optional[int] = None, sequence: Optional[int] = None,
                   rate: Optional[float] = None, factor: float = 1.0,
                   sparse: bool = False) -> Future:
        """Begins to push a gradient of `elements` values. It is over when the servers will not lose
        it: in bsp and backup when its step is done.

        step          bsp, backup: the step that it belongs to, from 0 on; None: `version` of the
                      tensor. A step that is done already is acknowledged and dropped
        first, count  bsp: the shards that it is the sum of, a node of the shard tree
        version       async, ssp: that of the values that it was computed from; None: `version`
        sequence      async, ssp: larger with each push of this worker, also when it has started
                      again: what came already is dropped. None: numbers that begin with the time
        rate          the learning rate, for the optimizer
        factor        the gradient (bsp, backup: the sum of the step) is multiplied by it
        sparse        most values are zero, and do not travel

        Raises InvalidError (a step of the future; shards that are no node); the future raises also
        NotFiniteError (refused, and nothing changed)."""
        return self._push("push", gradient, None, step, first, count, version, sequence, rate,
                          factor, sparse)

    def push(self, gradient: Any, *, step: Optional[int] = None, first: int = 0, count: int = 1,
             version: Optional[int] = None, sequence: Optional[int] = None,
             rate: Optional[float] = None, factor: float = 1.0, sparse: bool = False) -> None:
        """push_start, and waits."""
        self.push_start(gradient, step=step, first=first, count=count, version=version,
                        sequence=sequence, rate=rate, factor=factor, sparse=sparse).result()

    def pull_start(self, out: Any = None, *, version: int = 0) -> Future:
        """Begins to pull the values into `out` (None: an array.array). `version`: waits until at
        least so many updates have been applied; 0: takes what is there. The result is Values."""
        return self._pull("pull", lib.gr_ps_pull_start, out, version)

    def pull(self, out: Any = None, *, version: int = 0) -> Values:
        """pull_start, and waits."""
        return self.pull_start(out, version=version).result()

    def push_pull_start(self, gradient: Any, out: Any = None, *, step: Optional[int] = None,
                        first: int = 0, count: int = 1, version: Optional[int] = None,
                        sequence: Optional[int] = None, rate: Optional[float] = None,
                        factor: float = 1.0, sparse: bool = False) -> Future:
        """Both in one round trip: the result is Values behind the push, in bsp and backup of
        version step + 1. `out` (None: an array.array) may be the gradient's memory only if nobody
        pushes it again."""
        out = _floats_of(self.elements) if out is None else out
        return self._push("push_pull", gradient, out, step, first, count, version, sequence, rate,
                          factor, sparse)

    def push_pull(self, gradient: Any, out: Any = None, *, step: Optional[int] = None,
                  first: int = 0, count: int = 1, version: Optional[int] = None,
                  sequence: Optional[int] = None, rate: Optional[float] = None,
                  factor: float = 1.0, sparse: bool = False) -> Values:
        """push_pull_start, and waits."""
        return self.push_pull_start(gradient, out, step=step, first=first, count=count,
                                    version=version, sequence=sequence, rate=rate, factor=factor,
                                    sparse=sparse).result()

    def pull_state_start(self, state: int, out: Any = None, *, version: int = 0) -> Future:
        """As pull_start, but of the optimizer's vector number `state`. A block that is at a later
        version than asked for has other states: InvalidError, unless `version` is 0."""
        return self._pull("pull_state", lib.gr_ps_pull_state_start, out, version, state)

    def pull_state(self, state: int, out: Any = None, *, version: int = 0) -> Values:
        """pull_state_start, and waits."""
        return self.pull_state_start(state, out, version=version).result()

    def pull_whole(self, *, version: int = 0) -> State:
        """Values and all vectors of state, each block's from one moment, whatever others push
        meanwhile. ssp: it waits for nobody. Waits for the servers' answers."""
        values = _floats_of(self.elements)
        states = [_floats_of(self.elements) for _ in range(self.states)]
        buffers, addresses = self._vectors("pull_whole", states, self.elements, True)
        buffers.append(self._floats("pull_whole", values, self.elements, True, "values"))
        came = c_uint64()
        self.client._call(f'pull_whole of "{self.name}"',
                          _holding(lib.gr_ps_pull_whole_run, buffers), self._id, version,
                          buffers[-1].address, addresses, len(states), byref(came))
        self.version = came.value
        return State(values, states, came.value)

    def restore(self, values: Any, states: Sequence[Any] = (), version: int = 0) -> None:
        """In place of set(): the tensor goes on as it was at `version`, with what pull_whole()
        gave: bsp and backup with the step of that number. The first client's count, what others
        give is dropped. Waits for the servers' answers. Raises InvalidError: another number of
        states; the tensor has values of an earlier version."""
        buffers, addresses = self._vectors("restore", states, self.elements, False)
        buffers.append(self._floats("restore", values, self.elements, False, "values"))
        self.client._call(f'restore of "{self.name}"', _holding(lib.gr_ps_restore, buffers),
                          self._id, version, buffers[-1].address, addresses, len(states))
        self.version = max(self.version, version)

    def _push(self, what: str, gradient: Any, out: Any, step: Optional[int], first: int, count: int,
              version: Optional[int], sequence: Optional[int], rate: Optional[float], factor: float,
              sparse: bool) -> Future:
        push = self._gradient(what, step, first, count, version, sequence, rate, factor, sparse)
        buffers = [self._floats(what, gradient, self.elements, False, "gradient")]
        push.values = buffers[0].address
        operation = _Operation(self, what, buffers, out, step=self._step(push))
        if out is None:
            return self.client._submit(operation, lib.gr_ps_push_start, self._id, byref(push))
        buffers.append(self._floats(what, out, self.elements, True, "out"))
        return self.client._submit(operation, lib.gr_ps_push_pull_start, self._id, byref(push),
                                   buffers[1].address)

    def _pull(self, what: str, start: Callable[..., int], out: Any, version: int,
              *state: int) -> Future:
        out = _floats_of(self.elements) if out is None else out
        buffer = self._floats(what, out, self.elements, True, "out")
        operation = _Operation(self, what, [buffer], out, current=not state)
        return self.client._submit(operation, start, self._id, *state, version, buffer.address)


class Table(_Declared):
    """A table on the servers, of Client.declare_table(): rows are pushed and pulled by their
    numbers, in any order. `rows` is a list of numbers, or memory of integers; of 32 bits it is not
    copied. What one call moves is bounded (16 MiB): InvalidError says so.

    All raise InvalidError (a row that there is not: nothing is sent), NoMemoryError,
    PeerLostError."""

    def __init__(self, client: Client, spec: PsSpec) -> None:
        super().__init__(client, spec)
        self.columns: int = self._columns
        self.rows: int = self.elements // self.columns

    def push_start(self, rows: Any, gradients: Any, *, step: Optional[int] = None, first: int = 0,
                   count: int = 1, version: Optional[int] = None, sequence: Optional[int] = None,
                   rate: Optional[float] = None, factor: float = 1.0) -> Future:
        """Begins to push the gradients of these rows, len(rows) x columns values. A row that stands
        there more than once counts as the sum. The rest is as in Tensor.push_start. bsp, backup: a
        worker without rows pushes an empty list, since the step waits for all."""
        push = self._gradient("push", step, first, count, version, sequence, rate, factor)
        numbers, buffer = self._buffers("push", rows, gradients, False, "gradients")
        push.values = buffer.address
        operation = _Operation(self, "push", [numbers, buffer], step=self._step(push))
        return self.client._submit(operation, lib.gr_ps_push_rows_start, self._id, byref(push),
                                   numbers.address, numbers.count)

    def push(self, rows: Any, gradients: Any, *, step: Optional[int] = None, first: int = 0,
             count: int = 1, version: Optional[int] = None, sequence: Optional[int] = None,
             rate: Optional[float] = None, factor: float = 1.0) -> None:
        """push_start, and waits."""
        self.push_start(rows, gradients, step=step, first=first, count=count, version=version,
                        sequence=sequence, rate=rate, factor=factor).result()

    def pull_start(self, rows: Any, out: Any = None, *, version: int = 0) -> Future:
        """Begins to pull these rows, which may repeat, into `out`: len(rows) x columns values
        (None: an array.array). `version` is as in Tensor.pull_start. The result is Values."""
        numbers = self._numbers("pull", rows)
        out = _floats_of(numbers.count * self.columns) if out is None else out
        buffer = self._floats("pull", out, numbers.count * self.columns, True, "out")
        operation = _Operation(self, "pull", [numbers, buffer], out)
        return self.client._submit(operation, lib.gr_ps_pull_rows_start, self._id, version,
                                   numbers.address, numbers.count, buffer.address)

    def pull(self, rows: Any, out: Any = None, *, version: int = 0) -> Values:
        """pull_start, and waits."""
        return self.pull_start(rows, out, version=version).result()

    def scan(self, *, version: int = 0, states: bool = True) -> Iterator[Rows]:
        """All rows that somebody has pushed or restored, some at a time, each once, in no order,
        with their vectors of state if `states`. Rows that come to be meanwhile may be missing; with
        `version` exactly this one is wanted. Raises InvalidError (a later version), AgainError (a
        server was lost meanwhile: begin again)."""
        count = self.states if states else 0
        room = max(1, _SCAN_BYTES // (4 + 4 * self.columns * (1 + count)))
        numbers = array.array("I", bytes(4 * room))
        vectors = [_floats_of(room * self.columns) for _ in range(1 + count)]
        buffers, addresses = self._vectors("scan", vectors[1:], room * self.columns, True)
        buffers += [borrow(numbers, True, "rows"), borrow(vectors[0], True, "values")]
        scan = PsScan(version=version, room=room, rows=buffers[-2].address,
                      values=buffers[-1].address, states=addresses, state_count=count)
        while True:
            self.client._call(f'scan of "{self.name}"', _holding(lib.gr_ps_scan_rows, buffers),
                              self._id, byref(scan))
            if scan.count == 0:
                return
            values, *more = (vector[:scan.count * self.columns] for vector in vectors)
            yield Rows(numbers[:scan.count], values, more, scan.version_least)

    def restore(self, rows: Any, values: Any, states: Sequence[Any] = (), version: int = 0) -> None:
        """A table that nobody has pushed to has these rows, each once, and no others, as they were
        at `version`. One client does it; meanwhile pulls wait, and pushes are refused. Raises
        AgainError: another client restores it."""
        numbers, buffer = self._buffers("restore", rows, values, False, "values")
        buffers, addresses = self._vectors("restore", states, numbers.count * self.columns, False)
        self.client._call(f'restore of "{self.name}"',
                          _holding(lib.gr_ps_restore_rows, numbers, buffer, buffers), self._id,
                          version, numbers.address, numbers.count, buffer.address, addresses,
                          len(states))
        self.version = max(self.version, version)

    def _shape(self) -> str:
        return f'table "{self.name}" has {self.columns} columns'

    def _buffers(self, what: str, rows: Any, values: Any, writable: bool, role: str):
        numbers = self._numbers(what, rows)
        return numbers, self._floats(what, values, numbers.count * self.columns, writable, role)

    def _numbers(self, what: str, rows: Any) -> Buffer:
        """Numbers of rows, as the library takes them."""
        operation = f'{what} of "{self.name}"'
        try:
            if not isinstance(rows, (list, tuple, range)):
                buffer = borrow(rows, False, "rows")
                if buffer.dtype in (DType.I32, DType.U32):
                    return buffer
                if buffer.dtype not in _INTEGERS:
                    raise InvalidError(f"rows is of {buffer.dtype.name.lower()}; give integers")
                rows = (_INTEGERS[buffer.dtype] * buffer.count).from_address(buffer.address)
            return borrow(array.array("I", rows), False, "rows")
        except (OverflowError, TypeError) as error:
            raise self.client._invalid(operation, f"rows are numbers from 0 to {self.rows - 1}: "
                                       f"{error}") from None
        except InvalidError as error:
            raise self.client._invalid(operation, error.sentence) from None


_INTEGERS = {DType.I64: ctypes.c_int64, DType.U64: ctypes.c_uint64, DType.I16: ctypes.c_int16,
             DType.U16: ctypes.c_uint16, DType.I8: ctypes.c_int8, DType.U8: ctypes.c_uint8}


def _holding(function: Callable[..., int], *buffers: Any) -> Callable[..., int]:
    """The function; what it works with lives as long, also if Ctrl-C has ended the wait."""
    def call(*arguments: Any) -> int:
        status = function(*arguments)
        buffers  # noqa: B018
        return status
    return call


def _floats_of(count: int) -> "array.array[float]":
    return array.array("f", bytes(4 * count))


def _optimizer_text(optimizer: Optimizer) -> bytes:
    if optimizer is None:
        return b""
    return (optimizer if isinstance(optimizer, str) else json.dumps(dict(optimizer))).encode()


def _secret_of(text: str) -> bytes:
    try:
        secret = bytes.fromhex(text)
    except (TypeError, ValueError):
        secret = b""
    if len(secret) != _SECRET_BYTES:
        raise InvalidError(f"the secret is not {2 * _SECRET_BYTES} hexadecimal digits; `gradus "
                           "server --secret-file FILE` makes one", operation="Client")
    return secret


def _worker_of(worker: Optional[int]) -> int:
    if worker is not None:
        return worker
    text = os.environ.get("GRADUS_RANK", "-1")
    try:
        return int(text)
    except ValueError:
        raise InvalidError(f"GRADUS_RANK is {text!r}, which is no number",
                           operation="Client") from None


def _entry_of(entry: PsEntry) -> Entry:
    spec = entry.tensor
    return Entry(spec.name.decode(), spec.elements, CONSISTENCIES[spec.consistency], spec.shards,
                 spec.aggregate, spec.total, spec.staleness, bool(spec.adapt_rate),
                 bool(spec.refuse_not_finite), (spec.optimizer or b"").decode(),
                 DType(spec.gradient_type), spec.columns, spec.seed, spec.deviation, entry.states,
                 entry.blocks, entry.rows, entry.version_least, entry.version_most)

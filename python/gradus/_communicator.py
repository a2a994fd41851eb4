# SPDX-License-Identifier: Apache-2.0
"""Communicators: the ranks of a job, and what they do together."""
import atexit
import ctypes
import os
import pickle
import sys
import threading
import time
import weakref
from ctypes import byref, c_char_p, c_int, c_void_p
from functools import partial
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Set, Union

from . import _library
from ._buffers import Buffer, DType, borrow, dtype_of, size_array
from ._future import SLICE_S, Future, Held, Watcher, check_timeout, take
from ._library import BOOTSTRAP, Call, CommConfig, Diag, MessageSource, bytes_or_none, lib, text_of
from .errors import Error, InvalidError, Status, error_of

ANY_SOURCE = -1
ANY_TAG = 0xFFFFFFFF
OPS = {"sum": 0, "average": 1, "min": 2, "max": 3, "product": 4, "band": 6, "bor": 7, "bxor": 8}

_ALLREDUCE, _REDUCE_SCATTER, _ALLGATHER, _BROADCAST, _BARRIER, _REDUCE = 0, 1, 2, 3, 4, 5
_GATHER, _SCATTER, _ALLTOALL, _SEND, _RECV = 6, 7, 8, 9, 10
_ANY_FACTOR = 2.0  # the library checks a call that scales by it as one that scales by 0
_LOOK_S = 0.001  # between two looks whether other threads have left the library
_REAP = 64  # so many unfinished futures, and those that are over are looked for

_SIDES = {"in": "data", "out": "out"}  # how a user calls the buffers
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_sites: Dict[Any, bytes] = {}


class Message(NamedTuple):
    """Where a message came from."""

    source: int
    tag: int


class _Context:
    """What the communicators of one Communicator() share: memory, the thread of callbacks, an
    end."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # guards all below
        self.handles: List[Any] = []  # of open communicators, and of one that waits for its arrays
        self.arrays = 0
        self.watcher: Optional[Watcher] = None
        self.root: Any = None  # a weak reference
        self.ending = False  # all are closed; the handle that is left goes with the last array
        self.pid = os.getpid()

    def watch(self, future: Future) -> None:
        """Its callbacks are called when it is over; by close(), where that has come before."""
        while True:
            held: Held = []
            try:
                if not future._comm._enter(held):
                    return
                with self.lock:
                    if self.watcher is None:
                        self.watcher = Watcher(future._comm)
                    watcher = self.watcher
            finally:
                for leave in held:
                    leave()
            if watcher.add(future):
                return

    def free(self, memory: int) -> None:
        if os.getpid() != self.pid:
            return
        with self.lock:
            self.arrays -= 1
            if self.handles:
                lib.gr_free(self.handles[0], memory)
            if self.ending and self.arrays == 0 and self.handles:
                lib.gr_comm_destroy(self.handles.pop())


_open: "weakref.WeakSet[Communicator]" = weakref.WeakSet()
_contexts: "weakref.WeakSet[_Context]" = weakref.WeakSet()


# What Communicator() is given where another system than a launcher has placed this process.
_placement: Optional[Dict[str, Any]] = None


def place(placement: Optional[Dict[str, Any]]) -> None:
    """Communicator() without arguments is made of rank, size and allgather of this from now on;
    None: of the environment."""
    global _placement
    _placement = placement


def open_now() -> "Set[Communicator]":
    """The communicators of this process that are open."""
    return {comm for comm in _open if not comm._closed}


@atexit.register
def _leave_all() -> None:
    """Peers see a rank that leaves, not one that dies."""
    for comm in list(_open):
        comm.close()
    for context in list(_contexts):
        if context.handles and os.getpid() == context.pid:
            lib.gr_comm_destroy(context.handles.pop())


class Communicator:
    """The ranks of a job. Every rank makes it, and calls the same operations in the same order,
    with the same counts and types.

    Without arguments the environment describes the job (`gradus run`, torchrun, mpirun, srun), or
    gradus.ray or gradus.spark, which runs this function; a process that nobody started as a rank is
    alone, with size 1. With `size` and `rank` the ranks find each other

        by `coordinator` ("tcp:host:port") and `secret` (64 hexadecimal digits, or in
        GRADUS_SECRET), by `store`: set(key, value) and get(key), which waits;
        torch.distributed.TCPStore is one. It must be
            trusted: a fresh secret passes through it. `prefix` keeps the keys of several
            communicators apart, or
        by `allgather`: a function that gathers equally long bytes of all ranks, and is called
        twice.

    join_timeout, op_timeout  seconds for all ranks to come, and for an operation that waits;
                              math.inf: no limit
    link                      "auto", "shm" or "tcp", alike on all ranks
    host                      ranks with the same name share memory
    exact                     False: sums may be added in any order, whatever is fastest
    settings                  {"GRADUS_SPIN": "50us"}: more settings, as docs/reference.md lists
                              them

    Raises the errors of gr_comm_create: InvalidError, TimeoutError and PeerLostError (the sentence
    names the rank that did not come), AuthError, InUseError. Any thread may call any method;
    operations start in the order of the calls. A process that was forked from the one that made it
    cannot use it: InvalidError.

    `with Communicator() as comm:` closes it at the end; so does the end of the program.
    """

    _handle: Optional[c_void_p] = None  # of one that could not be made

    def __init__(self, *, rank: Optional[int] = None, size: Optional[int] = None,
                 coordinator: Optional[str] = None, secret: Optional[str] = None,
                 store: Any = None, prefix: str = "",
                 allgather: Optional[Callable[[bytes], Sequence[bytes]]] = None,
                 join_timeout: Optional[float] = None, op_timeout: Optional[float] = None,
                 link: Optional[str] = None, host: Optional[str] = None, exact: bool = True,
                 settings: Optional[Dict[str, Any]] = None) -> None:
        if _placement is not None and (rank, size, coordinator, store, allgather) == (None,) * 5:
            rank, size, allgather = (_placement[name] for name in ("rank", "size", "allgather"))
        if (rank is None) != (size is None):
            raise InvalidError("rank and size are given both, or neither", operation="Communicator")
        ways = [name for name, value in (("coordinator", coordinator), ("store", store),
                                         ("allgather", allgather)) if value is not None]
        if len(ways) > 1 or (ways and size is None):
            raise InvalidError(f"{' and '.join(ways)} given; give rank and size, and one of "
                               "coordinator, store and allgather", operation="Communicator")
        config = CommConfig()
        lib.gr_comm_config_init(byref(config))
        if size is not None:
            config.rank, config.size = rank, size
        config.coordinator, config.secret = bytes_or_none(coordinator), bytes_or_none(secret)
        config.link, config.host = bytes_or_none(link), bytes_or_none(host)
        config.join_timeout_us = check_timeout(join_timeout, "join_timeout")
        config.op_timeout_us = check_timeout(op_timeout, "op_timeout")
        config.inexact = 0 if exact else 1
        words = [f"{name}={value}".encode() for name, value in (settings or {}).items()]
        array = (c_char_p * (len(words) + 1))(*words, None)
        config.settings = ctypes.cast(array, type(config.settings))
        failed: List[BaseException] = []
        if store is not None:
            allgather = _gather_by_store(store, prefix, rank, size)
        if allgather is not None:
            config.bootstrap = _bootstrap(allgather, size, failed)
        handle, diag = c_void_p(), Diag()
        status = _interruptibly(
            lambda: lib.gr_comm_create(byref(config), byref(handle), byref(diag)),
            lambda: lib.gr_comm_destroy(handle), config, array)
        if status != Status.OK:
            why = f": {failed[0]}" if failed else ""
            raise error_of(status, text_of(diag) + why, rank=rank, operation="Communicator",
                           peer=_peer(diag)) from (failed[0] if failed else None)
        if size is None:
            _library.forget_secret()
        self._begin(handle, _Context())

    def _begin(self, handle: c_void_p, context: _Context) -> None:
        self._handle = handle
        self._context = context
        with context.lock:
            context.handles.append(handle)
        self._pid = os.getpid()
        self._closing = threading.Lock()  # guards that _closed is set once
        self._closed = self._renewing = False
        self._calls: Set[Any] = set()  # a thing for each call of the library that a thread is in
        self._inflight: Set[Future] = set()
        self._rank, self._size = lib.gr_comm_rank(handle), lib.gr_comm_size(handle)
        self._local_rank = lib.gr_comm_local_rank(handle)
        self._local_size = lib.gr_comm_local_size(handle)
        _open.add(self)
        _contexts.add(context)

    # ---- What it is ------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's number, 0 to size - 1."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    @property
    def local_rank(self) -> int:
        """Its number among those of this host."""
        return self._local_rank

    @property
    def local_size(self) -> int:
        """How many there are on this host."""
        return self._local_size

    def __repr__(self) -> str:
        return f"<gradus.Communicator rank {self._rank} of {self._size}>"

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind, error, trace) -> None:
        self.close()

    def __reduce__(self):  # what a copy and pickle ask for
        raise InvalidError("a communicator belongs to its process, and cannot be copied or pickled;"
                           " each process makes one", rank=self.rank, operation="Communicator")

    def __del__(self) -> None:
        if self._handle is not None and not sys.is_finalizing():
            self.close()

    def close(self, *, keep_arrays: bool = True) -> None:
        """Leaves. Operations under way end with CancelledError; peers that still need this rank for
        them fail. Waits for nobody, but for calls of other threads to notice it (0.05 s). Arrays of
        alloc() stay valid: with them the rank leaves when the last one goes, or the program ends.
        Without `keep_arrays`, or where an operation is under way, it leaves now, and they must not
        be used any more. A second time does nothing."""
        if self._handle is None or os.getpid() != self._pid:
            return
        begun = set(self._inflight)
        for future in begun if not self._closed else ():
            future._advance(0.0)  # it may be over: then it holds no array
        with self._closing:
            if self._closed:
                return
            self._closed = True
        self._await_calls()
        context, watcher = self._context, None
        with context.lock:
            last = len(context.handles) == 1
            if context.watcher is not None and (last or context.watcher._comm is self):
                watcher, context.watcher = context.watcher, None
        if watcher is not None:
            watcher.stop()
        with context.lock:
            if keep_arrays and last and context.arrays and not self._inflight:
                context.ending = True
            else:
                context.handles.remove(self._handle)
                lib.gr_comm_destroy(self._handle)
        for future in begun | self._inflight:
            future._cancel()

    def abort(self, reason: str = "") -> None:
        """Ends the communicator on all ranks: whoever waits gets AbortedError with the reason (300
        characters of it), later calls BrokenError. Any thread, also while others wait."""
        held: Held = []
        try:
            self._enter_or_raise("abort", held)
            self._check(lib.gr_comm_abort(self._handle, reason.encode()), "abort")
        finally:
            for leave in held:
                leave()

    # ---- Members that come and go ----------------------------------------------------------------

    def change_wanted(self) -> bool:
        """Whether workers are to join the job or to leave it. Costs a microsecond. Ranks learn of
        it at different moments: they agree, in a sum say, and all call renew() after the same
        step."""
        held: Held = []
        try:
            self._enter_or_raise("change_wanted", held)
            return bool(lib.gr_comm_change_wanted(self._handle))
        finally:
            for leave in held:
                leave()

    def renew(self) -> None:
        """Goes on with the members that live, in a job that was started for it (`gradus run
        --min-workers`): after a PeerLostError, or when change_wanted() says so. Every survivor
        calls it; it returns when all have come. rank and size are new; joining workers come behind.

        The old operations end with CancelledError. Arrays of alloc() are gone: no view of one may
        be used. Sub-groups must have been closed. If it fails the communicator is closed, unless
        nothing has happened (InvalidError). Raises UnsupportedError (the job cannot go on without a
        member), CancelledError (this rank is not needed any more, and should end), BrokenError
        (fewer are left than the job needs), TimeoutError, PeerLostError."""
        self._refuse_unless_open("renew")
        self._renewing = self._closed = True  # for other threads, until it is new
        self._await_calls()
        context, handle, diag = self._context, c_void_p(self._handle.value), Diag()
        with context.lock:
            watcher, context.watcher = context.watcher, None
        if watcher is not None:
            watcher.stop()
        with context.lock:  # nobody frees its arrays any more, or ends it when the program ends
            context.handles.remove(self._handle)
        status = _interruptibly(lambda: lib.gr_comm_renew(byref(handle), byref(diag)),
                                lambda: None, self, diag)
        inflight = self._inflight
        if handle:  # else it stays closed
            self._begin(handle, _Context() if status == Status.OK else context)
        self._renewing = False
        if handle and status != Status.OK:
            self._inflight = inflight  # nothing has happened
            for future in list(inflight):
                if future._callbacks:
                    context.watch(future)
        else:
            for future in list(inflight):
                future._cancel()
        if status != Status.OK:
            raise error_of(status, text_of(diag), rank=self._rank, peer=_peer(diag),
                           operation="renew")

    # ---- Memory ----------------------------------------------------------------------------------

    def alloc(self, count: int, dtype: Union[DType, str, Any] = DType.F32) -> Any:
        """An array of `count` zeros that peers on this host read without a copy. It is a ctypes
        array: it has the buffer protocol (numpy.asarray(array), memoryview, torch.frombuffer), and
        is freed when it and the last view of it are gone. f16 and bf16 look like u16 there, complex
        numbers like pairs; Gradus knows their type when it gets the array itself. Raises
        InvalidError (count is 0), NoMemoryError."""
        kind = dtype_of(dtype)
        if count < 1:
            raise InvalidError(f"an array of {count} elements; it has 1 or more", operation="alloc",
                               rank=self._rank)
        memory, held = c_void_p(), []
        try:
            self._enter_or_raise("alloc", held)
            context = self._context  # renew() may make another one
            self._check(lib.gr_alloc(self._handle, count * kind.itemsize, byref(memory)), "alloc")
            with context.lock:  # before close() can look
                context.arrays += 1
        finally:
            for leave in held:
                leave()
        array = _array_type(kind, count).from_address(memory.value)
        weakref.finalize(array, context.free, memory.value).atexit = False
        return array

    # ---- Collectives -----------------------------------------------------------------------------
    # `data` and `out` are anything with memory of elements in C order: the buffer protocol (numpy,
    # array.array, bytearray), tensors of PyTorch, __array_interface__, DLPack. Without `out` an
    # operation is in place. `dtype` reads the memory as that type. `name` is shown in errors and
    # must agree. A block is what belongs to one rank.

    def allreduce_start(self, data: Any, out: Any = None, op: str = "sum", *,
                        prescale: float = 1.0, postscale: float = 1.0, name: Optional[str] = None,
                        dtype: Any = None) -> Future:
        """Begins the reduction over all ranks of `data`: `out`, of the same shape, has it on all
        ranks.

        op                   "sum", "average", "min", "max", "product", "band", "bor", "bxor"
        prescale, postscale  multiply contributions, and the result; not of bool. 0 makes them
                             zeros, whatever they are

        Sums are added in a fixed order: the same bits for any link and algorithm. Raises
        InvalidError; the future raises MismatchError, PeerLostError, PeerSlowError, AbortedError,
        BrokenError."""
        return self._start(_ALLREDUCE, "allreduce", data, out, op=op, name=name, dtype=dtype,
                           prescale=prescale, postscale=postscale)

    def allreduce(self, data: Any, out: Any = None, op: str = "sum", *, prescale: float = 1.0,
                  postscale: float = 1.0, name: Optional[str] = None, dtype: Any = None) -> Any:
        """allreduce_start, and waits. Returns `out`, or `data` in place."""
        return self.allreduce_start(data, out, op, prescale=prescale, postscale=postscale,
                                    name=name, dtype=dtype).result()

    def allreduce_shards_start(self, partials: Sequence[Any], shards: int, op: str = "sum", *,
                               name: Optional[str] = None, dtype: Any = None) -> Future:
        """Begins the sum over `shards` contributions, with the same bits for any number of ranks:
        gr_allreduce_shards in include/gradus/shards.h says which partial sums a rank passes. They
        may be overwritten; the first one has the result, on all ranks. `op` is "sum" or "average",
        which divides by `shards`. Raises as allreduce_start."""
        call = Call(coll=_ALLREDUCE, site=_site(), shards=shards, prescale=1.0, postscale=1.0,
                    name=None if name is None else name.encode())
        buffers: List[Buffer] = []
        try:
            if op not in OPS:
                raise InvalidError(f"op is {op!r}; it is one of sum, average")
            kind = None if dtype is None else dtype_of(dtype)
            for partial in partials:
                buffers.append(borrow(partial, True, "a partial sum", kind))
            if len({(buffer.dtype, buffer.count) for buffer in buffers}) != 1:
                raise InvalidError("the partial sums are not of one type and size, or there are "
                                   "none")
        except InvalidError as error:
            for buffer in buffers:
                buffer.release()
            raise InvalidError(error.sentence, rank=self._rank, operation="allreduce") from None
        call.op, call.dtype, call.count = OPS[op], buffers[0].dtype, buffers[0].count
        array = (c_void_p * len(buffers))(*[buffer.address for buffer in buffers])
        call.partials = ctypes.addressof(array)
        call._partials = array
        return self._submit(call, Future(self, "allreduce", buffers, partials[0]))

    def broadcast_start(self, data: Any, root: int = 0, *, name: Optional[str] = None,
                        dtype: Any = None) -> Future:
        """Every rank ends with root's `data`, which only root's is read from and the others'
        written to."""
        if root == self._rank:  # it may be read-only
            return self._start(_BROADCAST, "broadcast", data, None, root=root, name=name,
                               dtype=dtype, reads=True)
        return self._start(_BROADCAST, "broadcast", None, data, root=root, name=name, dtype=dtype)

    def broadcast(self, data: Any, root: int = 0, *, name: Optional[str] = None,
                  dtype: Any = None) -> Any:
        """broadcast_start, and waits. Returns `data`."""
        return self.broadcast_start(data, root, name=name, dtype=dtype).result()

    def reduce_start(self, data: Any, out: Any = None, root: int = 0, op: str = "sum", *,
                     name: Optional[str] = None, dtype: Any = None) -> Future:
        """As allreduce_start, but only root has the result, in `out`, which the others leave
        None."""
        if root != self._rank:
            return self._start(_REDUCE, "reduce", data, None, op=op, root=root, name=name,
                               dtype=dtype, reads=True)
        return self._start(_REDUCE, "reduce", data, out, op=op, root=root, name=name, dtype=dtype)

    def reduce(self, data: Any, out: Any = None, root: int = 0, op: str = "sum", *,
               name: Optional[str] = None, dtype: Any = None) -> Any:
        """reduce_start, and waits. Returns the result at root, `data` elsewhere."""
        return self.reduce_start(data, out, root, op, name=name, dtype=dtype).result()

    def allgather_start(self, data: Any, out: Any = None, counts: Optional[Sequence[int]] = None, *,
                        name: Optional[str] = None, dtype: Any = None) -> Future:
        """`out` receives the blocks `data` of all ranks, in their order: size times as many
        elements; with `counts` (elements of each rank's block, alike on all ranks) their sum. In
        place `data` holds all blocks, of which this rank gives its own."""
        return self._start(_ALLGATHER, "allgather", data, out, counts=counts, name=name,
                           dtype=dtype, blocks="out")

    def allgather(self, data: Any, out: Any = None, counts: Optional[Sequence[int]] = None, *,
                  name: Optional[str] = None, dtype: Any = None) -> Any:
        """allgather_start, and waits. Returns `out`, or `data` in place."""
        return self.allgather_start(data, out, counts, name=name, dtype=dtype).result()

    def gather_start(self, data: Any, out: Any = None, root: int = 0,
                     counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
                     dtype: Any = None) -> Future:
        """As allgather_start, but only root has `out`, which the others leave None."""
        if root != self._rank:
            return self._start(_GATHER, "gather", data, None, counts=counts, root=root, name=name,
                               dtype=dtype, reads=True)
        return self._start(_GATHER, "gather", data, out, counts=counts, root=root, name=name,
                           dtype=dtype, blocks="out")

    def gather(self, data: Any, out: Any = None, root: int = 0,
               counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
               dtype: Any = None) -> Any:
        """gather_start, and waits. Returns the blocks at root, `data` elsewhere."""
        return self.gather_start(data, out, root, counts, name=name, dtype=dtype).result()

    def scatter_start(self, data: Any, out: Any = None, root: int = 0,
                      counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
                      dtype: Any = None) -> Future:
        """Rank r ends with block r of root's `data` in `out`; the others' `data` is ignored and may
        be None. At root `out` may be None: its block stays where it is."""
        if root != self._rank:
            return self._start(_SCATTER, "scatter", None, out, counts=counts, root=root, name=name,
                               dtype=dtype)
        if out is None:
            return self._start(_SCATTER, "scatter", data, None, counts=counts, root=root, name=name,
                               dtype=dtype, blocks="in")
        return self._start(_SCATTER, "scatter", data, out, counts=counts, root=root, name=name,
                           dtype=dtype, blocks="in")

    def scatter(self, data: Any, out: Any = None, root: int = 0,
                counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
                dtype: Any = None) -> Any:
        """scatter_start, and waits. Returns `out`, or `data` at root without it."""
        return self.scatter_start(data, out, root, counts, name=name, dtype=dtype).result()

    def reduce_scatter_start(self, data: Any, out: Any = None, op: str = "sum",
                             counts: Optional[Sequence[int]] = None, *, prescale: float = 1.0,
                             postscale: float = 1.0, name: Optional[str] = None,
                             dtype: Any = None) -> Future:
        """Rank r ends with block r of the reduction of all ranks' `data` (a block for each) in
        `out`. In place block `rank` of `data` is the result, the others are undefined."""
        return self._start(_REDUCE_SCATTER, "reduce_scatter", data, out, op=op, counts=counts,
                           name=name, dtype=dtype, prescale=prescale, postscale=postscale,
                           blocks="in")

    def reduce_scatter(self, data: Any, out: Any = None, op: str = "sum",
                       counts: Optional[Sequence[int]] = None, *, prescale: float = 1.0,
                       postscale: float = 1.0, name: Optional[str] = None,
                       dtype: Any = None) -> Any:
        """reduce_scatter_start, and waits. Returns `out`, or `data` in place."""
        return self.reduce_scatter_start(data, out, op, counts, prescale=prescale,
                                         postscale=postscale, name=name, dtype=dtype).result()

    def alltoall_start(self, data: Any, out: Any = None, counts: Optional[Sequence[int]] = None,
                       recv_counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
                       dtype: Any = None) -> Future:
        """Block b of `data` goes to rank b, block b of `out` comes from rank b. With `counts` and
        `recv_counts`: so many elements go to, and come from, each rank."""
        return self._start(_ALLTOALL, "alltoall", data, out, counts=counts, recv_counts=recv_counts,
                           name=name, dtype=dtype, blocks="both")

    def alltoall(self, data: Any, out: Any = None, counts: Optional[Sequence[int]] = None,
                 recv_counts: Optional[Sequence[int]] = None, *, name: Optional[str] = None,
                 dtype: Any = None) -> Any:
        """alltoall_start, and waits. Returns `out`, or `data` in place."""
        return self.alltoall_start(data, out, counts, recv_counts, name=name, dtype=dtype).result()

    def barrier_start(self, *, name: Optional[str] = None) -> Future:
        """Begins a barrier: its future is over when every rank has called it."""
        return self._start(_BARRIER, "barrier", None, None, name=name)

    def barrier(self, *, name: Optional[str] = None) -> None:
        """Returns when every rank has called it."""
        self.barrier_start(name=name).result()

    # ---- Messages --------------------------------------------------------------------------------

    def send_start(self, data: Any, to: int, tag: int = 0, *, name: Optional[str] = None,
                   dtype: Any = None) -> Future:
        """A message to rank `to`, which receives as many elements of the same type. Messages match
        by sender, tag and communicator, in the order of the sends. Up to 256 KiB are kept until
        somebody receives them."""
        return self._start(_SEND, "send", data, None, root=to, tag=tag, name=name, dtype=dtype,
                           reads=True)

    def send(self, data: Any, to: int, tag: int = 0, *, name: Optional[str] = None,
             dtype: Any = None) -> None:
        """send_start, and waits until `data` may be used again."""
        self.send_start(data, to, tag, name=name, dtype=dtype).result()

    def recv_start(self, out: Any, source: int = ANY_SOURCE, tag: int = 0, *,
                   name: Optional[str] = None, dtype: Any = None) -> Future:
        """Receives a message into `out`, from rank `source` (ANY_SOURCE: whoever sends first) with
        `tag` (ANY_TAG: any). The future's result is a Message(source, tag)."""
        return self._start(_RECV, "recv", None, out, root=source, tag=tag, name=name, dtype=dtype)

    def recv(self, out: Any, source: int = ANY_SOURCE, tag: int = 0, *, name: Optional[str] = None,
             dtype: Any = None) -> Message:
        """recv_start, and waits. Returns a Message(source, tag)."""
        return self.recv_start(out, source, tag, name=name, dtype=dtype).result()

    # ---- Objects ---------------------------------------------------------------------------------
    # They travel as pickles. Unpickling runs what the pickle says: the ranks of a job trust each
    # other, who hold its secret. Each takes one small exchange of sizes before.

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Returns root's `value` on all ranks."""
        data = bytearray(pickle.dumps(value)) if root == self._rank else None
        size = (ctypes.c_uint64 * 1)(len(data or b""))
        self.broadcast(size, root, name="size of an object")
        data = bytearray(size[0]) if data is None else data
        self.broadcast(data, root, name="object")
        return value if root == self._rank else pickle.loads(data)

    def allgather_object(self, value: Any) -> List[Any]:
        """Returns the values of all ranks, in their order."""
        data = pickle.dumps(value)
        sizes = self._sizes(len(data))
        out = bytearray(sum(sizes))
        self.allgather(data, out, sizes, name="objects")
        return _unpickle(out, sizes)

    def gather_object(self, value: Any, root: int = 0) -> Optional[List[Any]]:
        """Returns the values of all ranks at root, None elsewhere."""
        data = pickle.dumps(value)
        sizes = self._sizes(len(data))
        out = bytearray(sum(sizes)) if root == self._rank else None
        self.gather(data, out, root, sizes, name="objects")
        return None if out is None else _unpickle(out, sizes)

    def scatter_object(self, values: Optional[Sequence[Any]] = None, root: int = 0) -> Any:
        """Returns the rank's own of root's `values`, one for each rank; the others' are ignored."""
        parts = None
        if root == self._rank:
            if values is None or len(values) != self._size:
                raise InvalidError(f"{0 if values is None else len(values)} values for "
                                   f"{self._size} ranks; give one for each", rank=self._rank,
                                   operation="scatter_object")
            parts = [pickle.dumps(value) for value in values]
        sizes = (ctypes.c_uint64 * self._size)(*map(len, parts or []))
        self.broadcast(sizes, root, name="sizes of objects")
        out = bytearray(sizes[self._rank])
        self.scatter(b"".join(parts) if parts else None, out, root, list(sizes), name="objects")
        return pickle.loads(out)

    def send_object(self, value: Any, to: int, tag: int = 0) -> None:
        """Sends an object to rank `to`: two messages with this tag, its size and its pickle."""
        data = pickle.dumps(value)
        self.send((ctypes.c_uint64 * 1)(len(data)), to, tag, name="size of an object")
        self.send(data, to, tag, name="object")

    def recv_object(self, source: int = ANY_SOURCE, tag: int = 0) -> Any:
        """Receives what send_object has sent. One thread at a time for each source and tag."""
        size = (ctypes.c_uint64 * 1)()
        found = self.recv(size, source, tag, name="size of an object")
        data = bytearray(size[0])
        self.recv(data, found.source, found.tag, name="object")
        return pickle.loads(data)

    def _sizes(self, mine: int) -> List[int]:
        sizes = (ctypes.c_uint64 * self._size)()
        sizes[self._rank] = mine
        return list(self.allgather(sizes, name="sizes of objects"))

    # ---- Sub-groups ------------------------------------------------------------------------------

    def split(self, color: int, key: int = 0) -> Optional["Communicator"]:
        """Ranks that pass the same `color` become one communicator, ordered by `key`, then by rank;
        with a negative color none. All ranks call it. Waits for them; Ctrl-C is noticed when they
        have come."""
        return self._sub("split", lambda handle, diag: lib.gr_comm_split(
            self._handle, color, key, byref(handle), byref(diag)))

    def subgroup(self, ranks: Sequence[int]) -> Optional["Communicator"]:
        """The ranks of the list become a communicator in this order. All ranks call it with the
        same list; who is not in it gets None."""
        array = (c_int * len(ranks))(*ranks)
        return self._sub("subgroup", lambda handle, diag: lib.gr_comm_subgroup(
            self._handle, array, len(ranks), byref(handle), byref(diag)))

    def _sub(self, operation: str,
             make: Callable[[c_void_p, Diag], int]) -> Optional["Communicator"]:
        handle, diag, held = c_void_p(), Diag(), []
        try:
            self._enter_or_raise(operation, held)
            status = make(handle, diag)
        finally:
            for leave in held:
                leave()
        if status != Status.OK:
            raise error_of(status, text_of(diag), rank=self._rank, peer=_peer(diag),
                           operation=operation)
        if not handle:
            return None
        comm = Communicator.__new__(Communicator)
        comm._begin(handle, self._context)
        return comm

    # ---- Inside ----------------------------------------------------------------------------------

    def _start(self, coll: int, operation: str, data: Any, out: Any, *, op: Optional[str] = None,
               root: int = 0, tag: int = 0, counts: Optional[Sequence[int]] = None,
               recv_counts: Optional[Sequence[int]] = None, name: Optional[str] = None,
               dtype: Any = None, prescale: float = 1.0, postscale: float = 1.0,
               blocks: str = "", reads: bool = False) -> Future:
        """`blocks` says which of the buffers has a block for each rank; `reads`: without `out`,
        `data` is not written."""
        call = Call(coll=coll, root=root, tag=tag, site=_site(), prescale=prescale,
                    postscale=postscale, name=None if name is None else name.encode())
        in_place = out is None and not reads
        buffers: List[Buffer] = []
        try:
            if op is not None:
                if op not in OPS:
                    raise InvalidError(f"op is {op!r}; it is one of {', '.join(OPS)}")
                call.op = OPS[op]
            kind = None if dtype is None else dtype_of(dtype)
            source = target = None
            if data is not None:
                source = borrow(data, in_place, "data", kind)
                buffers.append(source)
            elif coll in (_ALLREDUCE, _REDUCE, _REDUCE_SCATTER, _ALLGATHER, _GATHER, _ALLTOALL,
                          _SEND) or (coll == _SCATTER and root == self._rank):
                raise InvalidError("data is None; give this rank's elements")
            if out is not None:
                target = borrow(out, True, "out", kind)
                buffers.append(target)
            elif coll == _RECV or (coll == _SCATTER and root != self._rank):
                raise InvalidError("out is None; give memory for what comes")
            self._fill(call, source, target, counts, recv_counts, blocks, in_place)
        except InvalidError as error:
            for buffer in buffers:
                buffer.release()
            raise InvalidError(error.sentence, rank=self._rank, operation=operation) from None
        value = out if out is not None else data
        if prescale == 0 or postscale == 0:
            value = self._scale_by_zero(call, (target or source).dtype.itemsize, counts, in_place,
                                        value)
        elif coll == _RECV:
            came = MessageSource()
            call.source_out = ctypes.pointer(came)
            value = lambda: Message(came.rank, came.tag)  # noqa: E731
        return self._submit(call, Future(self, operation, buffers, value))

    def _scale_by_zero(self, call: Call, itemsize: int, counts: Optional[Sequence[int]],
                       in_place: bool, value: Any) -> Any:
        """The library takes a factor of 0 as "not scaled". It gets zeros as this rank's
        contribution, and the result is cleared when it is there. Returns the future's value."""
        whole, mine, before = call.count, call.count, 0
        if call.coll == _REDUCE_SCATTER:
            blocks = [call.count] * self._size if counts is None else list(counts)
            whole, mine, before = sum(blocks), blocks[self._rank], sum(blocks[:self._rank])
        result = (call.out or 0) + (before * itemsize if in_place else 0)
        zero, call.prescale = call.prescale == 0, call.prescale or _ANY_FACTOR
        if zero:
            call._zeros = (ctypes.c_uint8 * (whole * itemsize))()
            call.in_, call.out = ctypes.addressof(call._zeros), result
        if call.postscale != 0:
            return value
        call.postscale = _ANY_FACTOR

        def clear() -> Any:
            ctypes.memset(result, 0, mine * itemsize)
            return value
        return clear

    def _fill(self, call: Call, source: Optional[Buffer], target: Optional[Buffer],
              counts: Optional[Sequence[int]], recv_counts: Optional[Sequence[int]], blocks: str,
              in_place: bool) -> None:
        """Addresses and counts of a call, checked against one another."""
        first = source or target
        if first is None:
            return  # barrier
        if source and target and source.dtype != target.dtype:
            raise InvalidError(f"data is of {source.dtype.name.lower()}, out of "
                               f"{target.dtype.name.lower()}; they are of one type")
        call.dtype = first.dtype
        if source and not in_place and call.coll != _BROADCAST:
            call.in_ = source.address
        if target or in_place or call.coll == _BROADCAST:
            call.out = (target or source).address
        if recv_counts is not None and counts is None:
            raise InvalidError("recv_counts without counts; give both")
        if counts is not None:
            self._fill_counts(call, source, target, counts, recv_counts, blocks, in_place)
            return
        sizes = {"in": source, "out": target}
        for side, buffer in sizes.items():
            many = in_place and blocks != "" or blocks in (side, "both")
            if buffer is None:
                continue
            if many and buffer.count % self._size:
                raise InvalidError(f"{_SIDES[side]} has {buffer.count} elements, not a block for "
                                   f"each of {self._size} ranks")
            one = buffer.count // self._size if many else buffer.count
            if side == "out" and source and one != call.count:
                raise InvalidError(f"data has {source.count} elements, out {target.count}; "
                                   f"{_relation(blocks, self._size)}")
            call.count = one

    def _fill_counts(self, call: Call, source: Optional[Buffer], target: Optional[Buffer],
                     counts: Sequence[int], recv_counts: Optional[Sequence[int]], blocks: str,
                     in_place: bool) -> None:
        for words, name in ((counts, "counts"), (recv_counts, "recv_counts")):
            if words is not None and len(words) != self._size:
                raise InvalidError(f"{name} has {len(words)} numbers for {self._size} ranks")
            if words is not None and min(words) < 0:
                raise InvalidError(f"{name} has a negative number")
        if call.coll == _ALLTOALL and recv_counts is None:
            raise InvalidError("counts without recv_counts; give both")
        whole, mine = sum(counts), counts[self._rank]
        wanted = {"in": whole if in_place or blocks in ("in", "both") else mine,
                  "out": sum(recv_counts) if recv_counts is not None else
                  whole if blocks == "out" else mine}
        for side, buffer in (("in", source), ("out", target)):
            if buffer is not None and buffer.count != wanted[side]:
                raise InvalidError(f"{_SIDES[side]} has {buffer.count} elements, where the counts "
                                   f"say {wanted[side]}")
        call._counts = size_array(counts)
        call.counts = ctypes.cast(call._counts, type(call.counts))
        if recv_counts is not None:
            call._recv_counts = size_array(recv_counts)
            call.recv_counts = ctypes.cast(call._recv_counts, type(call.recv_counts))

    def _submit(self, call: Call, future: Future) -> Future:
        if len(self._inflight) >= _REAP:
            for other in list(self._inflight):
                other.done()
        future._call = call  # source_out is written until it is over
        held: Held = []
        locked: Held = []
        try:
            self._enter_or_raise(future.operation, held)
            try:
                take(future._lock, locked)  # nobody moves it on before it has begun
                self._inflight.add(future)  # before: KeyboardInterrupt may come at any moment
                status = lib.gr_start(self._handle, byref(call), 1, byref(future._op))
                if status != Status.OK:
                    future._finish(status)
                    raise future._error
            finally:
                for leave in locked:
                    leave()
        finally:
            for leave in held:
                leave()
        return future

    def _enter(self, held: Held) -> bool:
        """A thread goes into the library, unless the communicator is closed, until it calls what is
        in `held` then (_future.take says how). close() waits for it."""
        call = object()
        held.append(partial(self._calls.discard, call))
        self._calls.add(call)
        return not self._closed  # asked behind the add: close() sets it, and then looks at _calls

    def _await_calls(self) -> None:
        while self._calls:
            time.sleep(_LOOK_S)

    def _enter_or_raise(self, operation: str, held: Held) -> None:
        self._refuse_unless_open(operation)
        if not self._enter(held):
            raise InvalidError("the communicator is closed", rank=self._rank, operation=operation)

    def _refuse_unless_open(self, operation: str) -> None:
        self._refuse_if_forked(operation)
        if self._closed:
            raise InvalidError("the communicator is closed", rank=self._rank, operation=operation)

    def _refuse_if_forked(self, operation: str) -> None:
        if os.getpid() != self._pid:
            raise InvalidError("the communicator belongs to the process that this one was forked "
                               "from; make one of its own here, or use it there",
                               rank=self._rank, operation=operation)

    def _check(self, status: int, operation: str) -> None:
        if status != Status.OK:
            raise self._failure(status, operation)

    def _failure(self, status: int, operation: str) -> Error:
        if status == Status.CANCELLED:
            return error_of(status, "the communicator was closed", rank=self._rank,
                            operation=operation)
        diag = (lib.gr_comm_last_error if status > -20 else lib.gr_comm_diag)(self._handle).contents
        sentence = text_of(diag) or _library.status_text(status)
        error = error_of(status, sentence, rank=self._rank, peer=_peer(diag), operation=operation)
        if status == Status.COMM_BROKEN and diag.status not in (Status.OK, status):
            error.__cause__ = error_of(diag.status, sentence, rank=self._rank, peer=_peer(diag))
        return error


def alloc(comm: Communicator, count: int, dtype: Union[DType, str, Any] = DType.F32) -> Any:
    """comm.alloc(count, dtype): an array that peers on this host read without a copy."""
    return comm.alloc(count, dtype)


def _relation(blocks: str, size: int) -> str:
    return {"": "they are equal", "in": f"data has {size} times as many",
            "out": f"out has {size} times as many", "both": "they are equal"}[blocks]


def _peer(diag: Diag) -> Optional[int]:
    return diag.peer_rank if diag.peer_rank >= 0 else None


def _unpickle(data: bytearray, sizes: Sequence[int]) -> List[Any]:
    values, at = [], 0
    for size in sizes:
        values.append(pickle.loads(memoryview(data)[at:at + size]))
        at += size
    return values


def _site() -> bytes:
    """Where the program called: "train.py:88"."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    key = (frame.f_code, frame.f_lineno)
    site = _sites.get(key)
    if site is None:
        if len(_sites) >= 4096:  # a program that makes code as it goes
            _sites.clear()
        site = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}".encode()
        _sites[key] = site
    return site


_C_TYPES = {DType.F32: ctypes.c_float, DType.F64: ctypes.c_double, DType.F16: ctypes.c_uint16,
            DType.BF16: ctypes.c_uint16, DType.I32: ctypes.c_int32, DType.I64: ctypes.c_int64,
            DType.I8: ctypes.c_int8, DType.U8: ctypes.c_uint8, DType.I16: ctypes.c_int16,
            DType.BOOL: ctypes.c_bool, DType.U16: ctypes.c_uint16, DType.U32: ctypes.c_uint32,
            DType.U64: ctypes.c_uint64, DType.COMPLEX64: ctypes.c_float * 2,
            DType.COMPLEX128: ctypes.c_double * 2}


def _array_type(kind: DType, count: int):
    base = _C_TYPES[kind] * count
    if kind in (DType.F16, DType.BF16, DType.COMPLEX64, DType.COMPLEX128):
        return type("Array", (base,), {"gradus_dtype": kind})
    return base


def _gather_by_store(store: Any, prefix: str, rank: int, size: int):
    rounds = iter(range(2))

    def gather(mine: bytes) -> List[bytes]:
        number = next(rounds)
        store.set(f"gradus/{prefix}/{number}/{rank}", mine)
        return [bytes(store.get(f"gradus/{prefix}/{number}/{peer}")) for peer in range(size)]
    return gather


def _bootstrap(gather: Callable[[bytes], Sequence[bytes]], size: int, failed: List[BaseException]):
    def run(_, mine, length, out) -> int:
        try:
            parts = list(gather(ctypes.string_at(mine, length)))
            if len(parts) != size or any(len(part) != length for part in parts):
                raise ValueError(f"allgather returned {[len(part) for part in parts]} bytes, where "
                                 f"{size} times {length} were wanted")
            ctypes.memmove(out, b"".join(parts), size * length)
            return 0
        except BaseException as error:  # it must not pass through the library
            failed.append(error)
            return 1
    return BOOTSTRAP(run)


def _interruptibly(call: Callable[[], int], undo: Callable[[], None], *kept: Any) -> int:
    """call() on a thread of its own where Ctrl-C could not end it; if it comes, undo() when call()
    has succeeded after all. What call() raises is raised. `kept` lives as long as that thread."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    over, lock, state = threading.Event(), threading.Lock(), {}

    def run() -> None:
        status = None
        try:
            status = call()
        except BaseException as error:  # it is the caller's
            state["error"] = error
        with lock:
            state["status"] = status
            left = state.get("left") and status == Status.OK
        over.set()
        if left:
            undo()
        kept  # noqa: B018
    try:
        threading.Thread(target=run, name="gradus-join", daemon=True).start()
        while not over.wait(SLICE_S):
            pass
    except BaseException:
        with lock:
            state["left"] = True
            late = state.get("status") == Status.OK
        if late:
            undo()
        raise
    if "error" in state:
        raise state["error"]
    return state["status"]

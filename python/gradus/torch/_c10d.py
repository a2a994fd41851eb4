# SPDX-License-Identifier: Apache-2.0
"""The backend "gradus" of torch.distributed, for tensors on the CPU: importing this module
registers it.

    import gradus.torch
    torch.distributed.init_process_group("gradus")

Under `gradus run` the ranks meet at the job's coordinator, and everything is authenticated.
Elsewhere (torchrun, any init_method) they meet through the store of torch.distributed, through
which a fresh secret passes: it is as trustworthy as that store."""
import collections
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, List, Optional, Sequence, Set

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Work as _WorkBase

from .._communicator import ANY_SOURCE, Communicator, Message
from .._future import Future
from ..errors import Error, InvalidError, TimeoutError
from . import _sparse, _tensors

__all__ = ["ProcessGroup", "Work"]

_OPS = [(dist.ReduceOp.SUM, "sum"), (dist.ReduceOp.AVG, "average"), (dist.ReduceOp.MIN, "min"),
        (dist.ReduceOp.MAX, "max"), (dist.ReduceOp.PRODUCT, "product"),
        (dist.ReduceOp.BAND, "band"), (dist.ReduceOp.BOR, "bor"), (dist.ReduceOp.BXOR, "bxor")]
_BARRIER_TAG = 1 << 30  # and above: the tags of monitored barriers
_LOOKED = 4  # works that each new one looks at: more than come, so that none stays for long
_KEPT = 4096  # works that are over, and that C++ may still ask


def _op_name(opts: Any) -> str:
    """Of options of torch's, of an operation itself, which a group may be given in their place."""
    op = dist.ReduceOp.SUM if opts is None else getattr(opts, "reduceOp", opts)
    for known, name in _OPS:
        if op == known:
            return name
    given = str(getattr(op, "op", op)).rpartition(".")[2]  # PREMUL_SUM has a factor besides
    raise InvalidError(f"the operation {given} is not one of "
                       f"{', '.join(name for _, name in _OPS)}")


def _root(opts: Any) -> int:
    """Of options of torch's, or a rank in their place."""
    return 0 if opts is None else getattr(opts, "rootRank", opts)


class Work(_WorkBase):
    """One or more operations under way, as torch.distributed hands them out with async_op=True.

    wait() raises what went wrong; get_future() gives a torch.futures.Future of `tensors`. Any
    thread."""

    def __init__(self, futures: List[Future], tensors: List[torch.Tensor],
                 finish: Optional[Callable[[], None]] = None, works: "Optional[_Works]" = None,
                 is_collective: bool = True) -> None:
        super().__init__()
        self.is_collective = is_collective  # no message
        self._works = works
        self._futures = futures
        self._tensors: List[Any] = tensors  # weak references, when it has let go of them
        self._finish = finish  # copies results to where they belong; once
        self._lock = threading.Lock()
        self._torch_future: Optional[torch.futures.Future] = None
        self._error: Optional[Error] = None  # both when it has let go of its futures
        self._source = -1
        self._limit_s: Optional[float] = None  # of a timeout of its own, from _begin_s on
        self._begin_s = 0.0

    def limit(self, seconds: float) -> None:
        """wait() without a timeout ends so many seconds from now."""
        self._limit_s, self._begin_s = seconds, time.monotonic()

    def _complete(self) -> None:
        with self._lock:
            finish, self._finish = self._finish, None
            if finish is not None:
                finish()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        seconds, begin_s = self._limit_s, self._begin_s
        if timeout.total_seconds() > 0:
            seconds, begin_s = timeout.total_seconds(), time.monotonic()
        try:
            for future in self._futures:
                left = None if seconds is None else max(0.0, begin_s + seconds - time.monotonic())
                if not future.wait(left):
                    raise TimeoutError(f"it is not over after {seconds:g} s, and goes on",
                                       operation=future.operation)
            if self._error is not None:
                raise self._error
            self._complete()
        finally:
            if self._works is not None and all(future.done() for future in self._futures):
                self._works.discard(self)  # whoever has begun it knows that it is over
        return True

    synchronize = wait

    def let_go(self) -> None:
        """It is over, and nobody in Python has it: what it keeps is for C++, which has the
        tensors."""
        self._error = self.exception()
        if self._error is None:
            self._source = self.source_rank()
        self._tensors = [weakref.ref(tensor) for tensor in self._tensors]
        self._futures, self._finish = [], None

    def _outputs(self) -> List[torch.Tensor]:
        tensors = [one() if isinstance(one, weakref.ref) else one for one in self._tensors]
        if any(one is None for one in tensors):
            raise InvalidError("the tensors of this operation are gone: nobody kept them, or the "
                               "work, until it was asked")
        return tensors

    def is_completed(self) -> bool:
        """Whether the results, or the error, are there: whoever asks need not call wait()."""
        if not all(future.done() for future in self._futures):
            return False
        if self.exception() is None:
            self._complete()
        return True

    def is_success(self) -> bool:
        return self.is_completed() and self.exception() is None

    def exception(self) -> Optional[Error]:
        """What went wrong, None as long as nothing has."""
        ended = [future.exception() for future in self._futures if future.done()]
        return next((one for one in ended if one), self._error)

    def result(self) -> List[torch.Tensor]:
        self.wait()
        return self._outputs()

    def source_rank(self) -> int:
        if self.is_collective or not self._futures:
            return self._source
        message = self._futures[0].result()
        return message.source if isinstance(message, Message) else -1

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        with self._lock:
            if self._torch_future is not None:
                return self._torch_future
            over = torch.futures.Future()

            def result(_: Any) -> List[torch.Tensor]:
                return self.result()  # it is over: this raises its error
            # set_exception is known to Python alone; what then() raises C++ sees as well.
            self._torch_future = over.then(result)
        futures = self._futures
        left = [len(futures)]
        lock = threading.Lock()

        def one_is_over(_: Future) -> None:
            with lock:
                left[0] -= 1
                last = left[0] == 0
            if last:
                over.set_result(None)
        for future in futures:
            future.add_done_callback(one_is_over)
        if not futures:  # of no tensors, or over
            over.set_result(None)
        return self._torch_future


_sample = [[object()]]
_ALONE = sys.getrefcount(_sample[0][0]) + 1  # of a work in two lists


class _Works:
    """The works of a group that are under way, or that nobody has asked since they are over. C++
    holds only its own half of a work: Python's must live until C++ has asked it. The lock guards
    both collections, and is never held while a work is asked, which may run callbacks that begin
    others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By id: those come first that have not been looked at for longest; and those that have let
        # go, of which the oldest are forgotten when there are too many.
        self._works: "collections.OrderedDict[int, Work]" = collections.OrderedDict()
        self._for_cpp: "collections.OrderedDict[int, Work]" = collections.OrderedDict()

    def add(self, work: Work) -> None:
        with self._lock:
            looked = list(itertools.islice(self._works.values(), _LOOKED))
            self._works[id(work)] = work
        over = [one.is_completed() for one in looked]
        left = []
        with self._lock:
            for index, is_over in enumerate(over):
                key, is_alone = id(looked[index]), sys.getrefcount(looked[index]) == _ALONE
                if key not in self._works:  # it was asked meanwhile
                    continue
                if is_over and is_alone:
                    left.append(self._works.pop(key))
                else:
                    self._works.move_to_end(key)
            self._for_cpp.update((id(one), one) for one in left)
            while len(self._for_cpp) > _KEPT:
                self._for_cpp.popitem(last=False)
        for one in left:
            one.let_go()

    def discard(self, work: Work) -> None:
        with self._lock:
            self._works.pop(id(work), None)
            self._for_cpp.pop(id(work), None)

    def collectives(self) -> List[Work]:
        """Those under way."""
        with self._lock:
            works = [one for one in self._works.values() if one.is_collective]
        return [one for one in works if not one.is_completed()]


def _dense(tensors: Sequence[torch.Tensor]) -> List[torch.Tensor]:
    """One that is given twice is a copy the second time: two operations never use its memory."""
    found = [_tensors.dense(tensor) for tensor in tensors]
    seen: Set[int] = set()
    for index, one in enumerate(found if len(found) > 1 else []):
        if one.numel() and one.data_ptr() in seen:
            found[index] = one.clone()
        seen.add(one.data_ptr())
    return found


def _listed(tensors: Any) -> Any:
    """A group may be given a tensor in place of a list of one."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _put_back(memory: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]):
    """What copies results back, None where nothing was copied."""
    pairs = _tensors.copied(tensors, memory)
    return (lambda: _tensors.put_back(pairs)) if pairs else None


def _joined(tensors: Sequence[torch.Tensor], fill: bool) -> torch.Tensor:
    """A flat tensor of all elements; without `fill` only as long."""
    if fill:
        return torch.cat([tensor.reshape(-1) for tensor in _dense(tensors)])
    return torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)


def _spread(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Callable[[], None]:
    def spread() -> None:
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        _tensors.put_back([(tensor, part.view(tensor.shape))
                           for tensor, part in zip(tensors, parts)])
    return spread


def _counts(tensors: Sequence[torch.Tensor]) -> Optional[List[int]]:
    """Elements of each, None if they are alike."""
    counts = [tensor.numel() for tensor in tensors]
    return None if len(set(counts)) == 1 else counts


def _one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise InvalidError(f"{len(tensors)} tensors were given; one for each process is supported")
    return tensors[0]


def _limited(begin: Callable[..., Work]) -> Callable[..., Work]:
    """A call of a group that takes `timeout` by name, as the last argument, or in its options."""
    @functools.wraps(begin)
    def call(self: "ProcessGroup", *args: Any, timeout: Optional[timedelta] = None,
             **more: Any) -> Work:
        if args and isinstance(args[-1], timedelta):
            *args, timeout = args
        if timeout is None:
            timeout = getattr(more.get("opts", args[-1] if args else None), "timeout", None)
        work = begin(self, *args, **more)
        if timeout is not None and timeout.total_seconds() > 0:  # torch's options: -1 ms for none
            work.limit(timeout.total_seconds())
        return work
    return call


class ProcessGroup(dist.ProcessGroup):
    """A group of torch.distributed over a gradus.Communicator, which is `communicator`."""

    supports_splitting = supports_coalescing = _supports_time_estimate = False

    def __init__(self, communicator: Communicator, timeout_s: float) -> None:
        super().__init__(communicator.rank, communicator.size)
        self.communicator = communicator
        self._timeout_s = timeout_s
        self._barriers = 0
        self._sequence = 0
        self._names = {"name": "", "desc": ""}
        self._works = _Works()

    def getBackendName(self) -> str:  # noqa: N802
        return "gradus"

    name = _get_backend_name = getBackendName

    def _work(self, futures: List[Future], tensors: Sequence[torch.Tensor], finish=None,
              is_collective: bool = False) -> Work:
        self._sequence += 1
        work = Work(futures, list(tensors), finish, self._works, is_collective)
        self._works.add(work)
        return work

    def _collective(self, futures: List[Future], tensors: Sequence[torch.Tensor],
                    finish=None) -> Work:
        """A work that barriers behind it wait for, since the program may have thrown it away."""
        return self._work(futures, tensors, finish, True)

    # torch 2 keeps names in the group's backends, which one of Python's does not have. C++ asks for
    # the long names of methods, Python for the others.
    def _set_group_name(self, name: str) -> None:
        self._names["name"] = name

    def _set_group_desc(self, desc: str) -> None:
        self._names["desc"] = desc

    def getGroupName(self) -> str:  # noqa: N802
        return self._names["name"]

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._names["desc"]

    setGroupName, setGroupDesc = _set_group_name, _set_group_desc  # noqa: N815
    group_name, group_desc = property(getGroupName), property(getGroupDesc)

    def _get_backend(self, device: Any) -> "ProcessGroup":
        """Newer versions of torch ask the backend of a device what it can do."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"gradus is for tensors on the CPU, not on {device}")
        return self

    def supports_tensor_alloc(self, device: Any) -> bool:
        return False

    def _set_sequence_number_for_group(self) -> None:
        self._sequence = 0

    def _get_sequence_number_for_group(self) -> int:
        """How many operations were begun: alike on all ranks, but for messages."""
        return self._sequence

    # Programs that hold a group call these as torch's own: with lists and options, or with one
    # tensor (of outputs or inputs one list), a root, an operation and a timeout.

    @_limited
    def broadcast(self, tensors, opts=None, *, root=None):
        tensors, root = _listed(tensors), _root(opts if root is None else root)
        memory = _dense(tensors)
        futures = [self.communicator.broadcast_start(tensor, root) for tensor in memory]
        return self._collective(futures, tensors, _put_back(memory, tensors))

    @_limited
    def allreduce(self, tensors, opts=None, *, op=None):
        tensors, op = _listed(tensors), _op_name(opts if op is None else op)
        if any(tensor.layout == torch.sparse_coo for tensor in tensors):
            return self._allreduce_sparse(tensors, op)
        memory = _dense(tensors)
        futures = [self.communicator.allreduce_start(tensor, op=op) for tensor in memory]
        return self._collective(futures, tensors, _put_back(memory, tensors))

    allreduce_coalesced = allreduce

    def _allreduce_sparse(self, tensors, op):
        if not all(tensor.layout == torch.sparse_coo for tensor in tensors):
            raise InvalidError("dense and sparse tensors in one list; give them apart",
                               operation="allreduce")
        begun = [_sparse.allreduce_start(self.communicator, tensor, op) for tensor in tensors]
        return self._collective([future for futures, _ in begun for future in futures], tensors,
                          lambda: [finish() for _, finish in begun])

    @_limited
    def reduce(self, tensors, opts=None, op=None, *, root=None):
        tensors, memory = _listed(tensors), _dense(_listed(tensors))
        if op is None and not isinstance(opts, int):
            op = opts
        root, op = _root(opts if root is None else root), _op_name(op)
        futures = [self.communicator.reduce_start(tensor, None, root, op) for tensor in memory]
        mine = root == self.communicator.rank
        return self._collective(futures, tensors, _put_back(memory, tensors) if mine else None)

    @_limited
    def allgather(self, outputs, inputs, opts=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        out, data = _one(outputs), _dense([_one(inputs)])[0]
        flat = _joined(out, fill=False)
        future = self.communicator.allgather_start(data, flat, _counts(out))
        return self._collective([future], out, _spread(flat, out))

    @_limited
    def allgather_coalesced(self, outputs, inputs, opts=None):
        """outputs[rank][i] is what `rank` gave as inputs[i]."""
        futures, spreads = [], []
        for index, data in enumerate(_dense(inputs)):
            out = [of_rank[index] for of_rank in outputs]
            flat = _joined(out, fill=False)
            futures.append(self.communicator.allgather_start(data, flat))
            spreads.append(_spread(flat, out))
        return self._collective(futures, sum(outputs, []), lambda: [spread() for spread in spreads])

    @_limited
    def _allgather_base(self, output, data, opts=None):
        return self.allgather_into_tensor_coalesced([output], [data])

    @_limited
    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        out = _dense(outputs)
        futures = [self.communicator.allgather_start(data, one)
                   for data, one in zip(_dense(inputs), out)]
        return self._collective(futures, outputs, _put_back(out, outputs))

    @_limited
    def gather(self, outputs, inputs, opts=None, *, root=None):
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        root = _root(opts if root is None else root)
        data = _dense([_one(inputs)])[0]
        if root != self.communicator.rank:
            return self._collective([self.communicator.gather_start(data, None, root)], [])
        out = _one(outputs)
        flat = _joined(out, fill=False)
        future = self.communicator.gather_start(data, flat, root)
        return self._collective([future], out, _spread(flat, out))

    @_limited
    def scatter(self, outputs, inputs, opts=None, *, root=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        target, root = _one(outputs), _root(opts if root is None else root)
        out = _dense([target])
        data = None
        if root == self.communicator.rank:
            data = _joined(_one(inputs), fill=True)
        future = self.communicator.scatter_start(data, out[0], root)
        return self._collective([future], [target], _put_back(out, [target]))

    @_limited
    def reduce_scatter(self, outputs, inputs, opts=None, *, op=None):
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        target, parts = _one(outputs), _one(inputs)
        out = _dense([target])
        future = self.communicator.reduce_scatter_start(_joined(parts, fill=True), out[0],
                                                        _op_name(opts if op is None else op),
                                                        _counts(parts))
        return self._collective([future], [target], _put_back(out, [target]))

    @_limited
    def _reduce_scatter_base(self, output, data, opts=None):
        return self.reduce_scatter_tensor_coalesced([output], [data], opts)

    @_limited
    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        out = _dense(outputs)
        futures = [self.communicator.reduce_scatter_start(data, one, _op_name(opts))
                   for data, one in zip(_dense(inputs), out)]
        return self._collective(futures, outputs, _put_back(out, outputs))

    @_limited
    def alltoall(self, outputs, inputs, opts=None):
        flat = _joined(outputs, fill=False)
        future = self.communicator.alltoall_start(
            _joined(inputs, fill=True), flat, [tensor.numel() for tensor in inputs],
            [tensor.numel() for tensor in outputs])
        return self._collective([future], outputs, _spread(flat, outputs))

    @_limited
    def alltoall_base(self, output, data, output_splits, input_splits, opts=None):
        """Splits count rows; empty ones mean equal parts."""
        out, source = _dense([output]), _dense([data])[0]
        counts = [_elements(tensor, splits, self.communicator.size)
                  for tensor, splits in ((source, input_splits), (out[0], output_splits))]
        future = self.communicator.alltoall_start(source, out[0], *counts)
        return self._collective([future], [output], _put_back(out, [output]))

    # As newer versions of torch call the same.
    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    @_limited
    def barrier(self, opts=None):
        """It is over when all collectives before it are, as with gloo. Messages may go on."""
        before = self._works.collectives()
        futures = [future for one in before for future in one._futures]
        return self._collective([*futures, self.communicator.barrier_start()], [],
                                lambda: [one._complete() for one in before])

    @_limited
    def send(self, tensors, to, tag=0):
        future = self.communicator.send_start(_dense([_one(tensors)])[0], to, tag)
        return self._work([future], tensors)

    @_limited
    def recv(self, tensors, source, tag=0):
        memory = _dense([_one(tensors)])
        future = self.communicator.recv_start(memory[0], source, tag)
        return self._work([future], tensors, _put_back(memory, tensors))

    @_limited
    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, ANY_SOURCE, tag)

    def monitored_barrier(self, timeout: Optional[timedelta] = None,
                          wait_all_ranks: bool = False) -> None:
        """Waits for all ranks, as torch.distributed.monitored_barrier of gloo: rank 0 names those
        that have not come in time, the first one or, with `wait_all_ranks`, all. `timeout` None is
        that of the group."""
        comm, seconds = self.communicator, self._timeout_s
        if timeout is not None and timeout.total_seconds() > 0:
            seconds = timeout.total_seconds()
        self._barriers += 1
        tag = _BARRIER_TAG + self._barriers % _BARRIER_TAG
        name = "monitored barrier"
        if comm.rank != 0:
            comm.send_start(bytes(1), 0, tag, name=name)
            if not comm.recv_start(bytearray(1), 0, tag, name=name).wait(seconds):
                raise TimeoutError(f"rank 0 has not let rank {comm.rank} go on from the monitored "
                                   f"barrier within {seconds:g} s; it says which has not come",
                                   rank=comm.rank, peer=0, operation="monitored_barrier")
            return
        end = time.monotonic() + seconds
        missing = []
        words = [(peer, comm.recv_start(bytearray(1), peer, tag, name=name))
                 for peer in range(1, comm.size)]
        for peer, came in words:
            if not came.wait(max(0.0, end - time.monotonic())):
                missing.append(peer)
                if not wait_all_ranks:
                    break
        if missing:
            listed = ", ".join(str(peer) for peer in missing)
            raise TimeoutError(f"rank{'s' if len(missing) > 1 else ''} {listed} did not come to "
                               f"the monitored barrier within {seconds:g} s", rank=0,
                               peer=missing[0], operation="monitored_barrier")
        for peer in range(1, comm.size):
            comm.send_start(bytes(1), peer, tag, name=name)

    def abort(self) -> None:
        self.communicator.abort("torch.distributed ended the group")

    def shutdown(self) -> None:
        self.communicator.close()


def _elements(tensor: torch.Tensor, splits: Sequence[int], size: int) -> List[int]:
    rows = tensor.shape[0] if tensor.dim() else 0
    splits = list(splits) or [rows // size] * size
    if sum(splits) != rows:
        raise InvalidError(f"splits {splits} for a tensor of {rows} rows; they are as many "
                           "together")
    row = tensor.numel() // rows if rows else 0
    return [rows_of * row for rows_of in splits]


class _Job:
    """The communicator of the job that `gradus run` has started. All groups come from it; it lives
    as long as the process, since the environment gives its secret once. One of a job of Ray or
    Spark is closed when its function ends, and another job may follow."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.communicator: Optional[Communicator] = None

    def open(self) -> Optional[Communicator]:
        """It, unless it is closed. With the lock."""
        if self.communicator is not None and self.communicator._closed:
            self.communicator = None
        return self.communicator

    def get(self, timeout_s: float) -> Optional[Communicator]:
        with self.lock:
            if self.open() is None and os.environ.get("GRADUS_COORDINATOR") \
                    and (os.environ.get("GRADUS_SECRET") or os.environ.get("GRADUS_SECRET_FILE")):
                self.communicator = Communicator(op_timeout=timeout_s)
            return self.communicator


_job = _Job()


def job_communicator() -> Communicator:
    """That of all processes of the job; alone, where nobody has started one."""
    with _job.lock:
        if _job.open() is None:
            _job.communicator = Communicator()
        return _job.communicator


def _gather_by_job(job: Communicator, ranks: Sequence[int]):
    """Gathers bytes of these ranks by messages of the job."""
    def gather(mine: bytes) -> List[bytes]:
        sent = [job.send_start(mine, peer, name="group") for peer in ranks if peer != job.rank]
        parts = []
        for peer in ranks:
            part = bytearray(mine)
            if peer != job.rank:
                job.recv(part, peer, name="group")
            parts.append(bytes(part))
        for future in sent:
            future.result()
        return parts
    return gather


def _create(told: Any, _: Any = None) -> ProcessGroup:
    """What torch.distributed calls for init_process_group("gradus") and new_group, on the members
    alone. `told` has the store, group_rank, group_size, timeout, and the ranks in the job, none for
    all."""
    _refuse_others(sys._getframe(1))
    seconds = told.timeout.total_seconds()
    ranks = list(told.global_ranks_in_group) or list(range(told.group_size))
    job = _job.get(seconds)
    if job is not None and max(ranks) < job.size and ranks[told.group_rank] == job.rank:
        way = {"allgather": _gather_by_job(job, ranks)}
    else:
        way = {"store": told.store}
    return ProcessGroup(Communicator(rank=told.group_rank, size=told.group_size,
                                     op_timeout=seconds, **way), seconds)


def _refuse_others(caller: Any) -> None:
    """torch takes a group of Python's for all devices, whatever "cpu:gradus,cuda:nccl" says, and
    tells nobody whom it asks for a part of a group which the others are. It does no harm where no
    tensor can be on the other devices."""
    config = caller.f_locals.get("backend_config")
    named = config.get_device_backend_map() if config is not None else {"cpu": "gradus"}
    if named.get("cpu") != "gradus":
        raise InvalidError(f"gradus is named for {', '.join(sorted(named))}; it is for tensors on "
                           "the CPU: say \"gradus\", or \"cpu:gradus\"")
    backends = {backend for device, backend in named.items() if _is_there(device)}
    if len(backends) > 1:
        raise InvalidError(f"one group cannot have the backends {' and '.join(sorted(backends))}; "
                           "make a group of gradus for tensors on the CPU, and another one "
                           "(torch.distributed.new_group(backend=...)) for the devices")


def _is_there(device: str) -> bool:
    """Whether a tensor may be on such a device."""
    asked = getattr(getattr(torch, device, None), "is_available", None)
    return device == "cpu" or asked is None or asked()


def monitored_barrier(group: Any = None, timeout: Optional[timedelta] = None,
                      wait_all_ranks: bool = False) -> None:
    """torch.distributed.monitored_barrier, which torch itself gives to gloo alone."""
    group = dist.distributed_c10d._get_default_group() if group is None else group
    group.monitored_barrier(timeout, wait_all_ranks)


def _register() -> None:
    if hasattr(dist.Backend, "GRADUS"):  # the module was loaded a second time
        return
    try:
        dist.Backend.register_backend("gradus", _create, extended_api=True, devices=["cpu"])
    except TypeError:  # torch before 2.0
        dist.Backend.register_backend("gradus", _create, extended_api=True)


_register()

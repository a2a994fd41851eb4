# SPDX-License-Identifier: Apache-2.0
"""How collectives are done that all ranks have submitted. Every rank executes the same list."""
import ctypes
from ctypes import byref, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ._buffers import DType, dtype_of
from ._communicator import OPS, Communicator
from ._future import SLICE_S
from ._library import Call, lib, quick
from .errors import Error, Status

_DIRECT = 256 << 10  # so many bytes are reduced where they are, not together with others
_SMALL = 4 << 10  # a lone tensor of so many bytes has an operation of its own
_CALLS = 64  # of one operation, at most
_ALIGN = 64

_kinds: Dict[str, DType] = {}


def kind_of(dtype: str) -> DType:
    """Gradus's type of elements."""
    kind = _kinds.get(dtype)
    if kind is None:
        kind = _kinds[dtype] = dtype_of(dtype)
    return kind


class Arrays:
    """How a framework makes arrays; they have data_ptr()."""

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        """A dense one."""
        raise NotImplementedError

    def adasum(self, every: Any, out: Any, prescale: float, postscale: float) -> None:
        """Combines what all ranks have given, a row of `every` for each, into `out`."""
        raise NotImplementedError


class Memory:
    """Elements at an address, as collectives take them, in memory that belongs to `owner`."""

    __slots__ = ("owner", "address")

    def __init__(self, owner: Any, address: int) -> None:
        self.owner = owner
        self.address = address

    def data_ptr(self) -> int:
        """Where they are."""
        return self.address


def _view(array: Any, size: int) -> Any:
    """So many bytes of it, for calls of a communicator."""
    view = (ctypes.c_uint8 * size).from_address(array.data_ptr())
    view.owner = array
    return view


def numel(shape: Sequence[int]) -> int:
    """How many elements there are."""
    count = 1
    for extent in shape:
        count *= extent
    return count


class Response(NamedTuple):
    """Something to be done by all ranks now.

    signatures  of each rank that has not joined
    request     this rank's, None if it has joined
    entry       its bit, if it has one
    """

    name: str
    signatures: Dict[int, Any]
    request: Any
    entry: Any


def _wait(comm: Communicator, op: c_void_p) -> None:
    status = Status.TIMEOUT
    while status == Status.TIMEOUT:  # in slices, so that Python sees signals
        status = lib.gr_wait_for(op, int(SLICE_S * 1e6))
    if status != Status.OK:
        raise comm._failure(status, "a collective")


class Small:
    """The allreduce of a lone small tensor, prepared once."""

    def __init__(self, comm: Communicator, signature: Any, name: str) -> None:
        (dtype, shape), = signature.parts
        self._comm = comm
        kind = kind_of(dtype)
        count = numel(shape)
        self._bytes = count * kind.itemsize
        self._memory = comm.alloc(count, kind)
        self._address = ctypes.addressof(self._memory)
        call = Call(coll=0, dtype=kind, op=OPS[signature.op], out=self._address, count=count,
                    prescale=signature.prescale, postscale=signature.postscale,
                    name=name.encode(), site=b"tensor")
        self._op = c_void_p()
        comm._check(lib.gr_op_create(comm._handle, byref(call), byref(self._op)), "allreduce")

    def reduce(self, request: Any) -> None:
        """Sums request.inputs into request.outputs."""
        ctypes.memmove(self._address, request.inputs[0].data_ptr(), self._bytes)
        status = quick.gr_op_start(self._op)
        if status == Status.OK:
            status = lib.gr_wait_for(self._op, int(SLICE_S * 1e6))
        if status == Status.TIMEOUT:
            _wait(self._comm, self._op)
        elif status != Status.OK:
            raise self._comm._failure(status, "allreduce")
        ctypes.memmove(request.outputs[0].data_ptr(), self._address, self._bytes)

    def release(self) -> None:
        """Its operation ends, and the memory goes."""
        lib.gr_op_destroy(self._op)
        self._memory = None


def small_of(comm: Communicator, response: Response) -> Optional[Small]:
    """An operation of its own for a collective that is a lone small allreduce."""
    signature = response.request.signature
    if signature.kind != "allreduce" or signature.op == "adasum" or len(signature.parts) != 1:
        return None
    (dtype, shape), = signature.parts
    if not 0 < numel(shape) * kind_of(dtype).itemsize <= _SMALL:
        return None
    try:
        return Small(comm, signature, response.name)
    except Error as error:
        if not error.usable:
            raise
        return None  # the type cannot be reduced so: the execution tells


class _Batch:
    """Small tensors of one type that are reduced as one."""

    def __init__(self, dtype: str, call: Dict[str, Any], name: str) -> None:
        self.dtype = dtype
        self.call = call
        self.name = name
        self.count = 0
        self.parts: List[Tuple[Response, int, int]] = []
        self.address = 0


class Executor:
    """Does the work of one engine."""

    def __init__(self, comm: Communicator, fusion_bytes: int, timeline: Any) -> None:
        self._comm = comm
        self._fusion = fusion_bytes
        self._buffer: Any = None
        self._kept: List[Any] = []  # what operations under way use

    def release(self) -> None:
        """Gives its memory back."""
        self._buffer = None

    def run(self, work: Sequence[Response]) -> None:
        """Does all of it. An error that is the caller's goes to the request."""
        sums = [response for response in work if self._is_sum(response)]
        if sums:
            self._reduce(sums)
        for response in work:
            if not self._is_sum(response):
                try:
                    getattr(self, "_" + self._signature(response).kind)(response)
                except Error as error:
                    if not error.usable or response.request is None:
                        raise
                    response.request.error = error

    @staticmethod
    def _signature(response: Response) -> Any:
        return next(iter(response.signatures.values()))

    def _is_sum(self, response: Response) -> bool:
        signature = self._signature(response)
        return signature.kind == "allreduce" and signature.op != "adasum"

    # ---- Sums ------------------------------------------------------------------------------------

    def _reduce(self, work: Sequence[Response]) -> None:
        calls: List[Tuple[Call, Any]] = []
        batches: Dict[Any, _Batch] = {}
        full: List[_Batch] = []
        for response in work:
            signature = self._signature(response)
            words = {"op": OPS[signature.op], "prescale": signature.prescale,
                     "postscale": signature.postscale}
            for index, (dtype, shape) in enumerate(signature.parts):
                count = numel(shape)
                size = count * kind_of(dtype).itemsize
                if size >= min(_DIRECT, self._fusion):
                    if size:
                        calls.append(self._direct(response, index, dtype, count, words))
                    continue
                key = (dtype, signature.op, signature.prescale, signature.postscale)
                batch = batches.get(key)
                if batch is None or (batch.count + count) * kind_of(dtype).itemsize > self._fusion:
                    if batch is not None:
                        full.append(batch)
                    batch = batches[key] = _Batch(dtype, words, response.name)
                batch.parts.append((response, index, count))
                batch.count += count
        self._fuse(full + list(batches.values()), calls)

    def _direct(self, response: Response, index: int, dtype: str, count: int,
                words: Dict[str, Any]) -> Tuple[Call, Any]:
        """A large tensor is not copied."""
        request, kind = response.request, kind_of(dtype)
        if request is None:
            zeros = (ctypes.c_uint8 * (count * kind.itemsize))()
            source = target = Memory(zeros, ctypes.addressof(zeros))
        else:
            source, target = request.inputs[index], request.outputs[index]
        self._kept += [source, target]
        call = Call(coll=0, dtype=kind, out=target.data_ptr(), count=count,
                    name=response.name.encode(), site=b"tensor", **words)
        if source.data_ptr() != target.data_ptr():
            call.in_ = source.data_ptr()
        return call, [response]

    def _fuse(self, batches: Sequence[_Batch], calls: List[Tuple[Call, Any]]) -> None:
        total = sum(-(-batch.count * kind_of(batch.dtype).itemsize // _ALIGN) * _ALIGN
                    for batch in batches)
        address = ctypes.addressof(self._memory(total))
        for batch in batches:
            kind = kind_of(batch.dtype)
            if not batch.count:
                continue
            batch.address = at = address
            for response, index, count in batch.parts:
                size = count * kind.itemsize
                if response.request is None:
                    ctypes.memset(at, 0, size)
                elif count:
                    ctypes.memmove(at, response.request.inputs[index].data_ptr(), size)
                at += size
            parts = len(batch.parts)
            name = batch.name if parts == 1 else f"{batch.name[:40]}+{parts - 1}"
            calls.append((Call(coll=0, dtype=kind, out=address, count=batch.count,
                               name=name.encode(), site=b"tensor", **batch.call),
                          [part[0] for part in batch.parts]))
            address += -(-batch.count * kind.itemsize // _ALIGN) * _ALIGN
        for first in range(0, len(calls), _CALLS):
            self._start(calls[first:first + _CALLS])
        self._kept = []
        for batch in batches:
            at = batch.address
            for response, index, count in batch.parts:
                size = count * kind_of(batch.dtype).itemsize
                if response.request is not None and count:
                    # copy_ of PyTorch refuses tensors of the inference mode of another thread.
                    ctypes.memmove(response.request.outputs[index].data_ptr(), at, size)
                at += size

    def _memory(self, size: int) -> Any:
        if self._buffer is None or ctypes.sizeof(self._buffer) < size:
            self._buffer = None
            self._buffer = self._comm.alloc(1 << max(16, (size - 1).bit_length()), "u8")
        return self._buffer

    def _start(self, calls: Sequence[Tuple[Call, Any]]) -> None:
        """They run at the same time. If they are refused, each is tried alone, to find which."""
        comm = self._comm
        array = (Call * len(calls))(*(call for call, _ in calls))
        op = c_void_p()
        status = lib.gr_start(comm._handle, array, len(calls), byref(op))
        if status == Status.INVALID and len(calls) > 1:
            for call in calls:
                self._start([call])
        elif status == Status.INVALID:
            for response in calls[0][1]:
                if response.request is not None:
                    response.request.error = comm._failure(status, "allreduce")
        elif status != Status.OK:
            raise comm._failure(status, "allreduce")
        else:
            _wait(comm, op)

    # ---- Other collectives -----------------------------------------------------------------------

    def _allreduce(self, response: Response) -> None:
        """Adasum: pairs of contributions are combined, then pairs of these, ..."""
        comm, request, signature = self._comm, response.request, self._signature(response)
        for index, (dtype, shape) in enumerate(signature.parts):
            kind = kind_of(dtype)
            size = numel(shape) * kind.itemsize
            if not size:
                continue
            if request is None:
                comm.allgather(bytearray(size), bytearray(size * comm.size), name=response.name,
                               dtype=kind)
                continue
            every = request.arrays.empty((comm.size, *shape), dtype)
            comm.allgather(_view(request.inputs[index], size), _view(every, size * comm.size),
                           name=response.name, dtype=kind)
            request.arrays.adasum(every, request.outputs[index], signature.prescale,
                                  signature.postscale)

    def _allgather(self, response: Response) -> None:
        comm, request = self._comm, response.request
        for index, (dtype, shape) in enumerate(request.signature.parts):
            kind, row = kind_of(dtype), numel(shape[1:])
            rows = [response.signatures[rank].parts[index][1][0] for rank in range(comm.size)]
            out = request.arrays.empty((sum(rows), *shape[1:]), dtype)
            request.outputs.append(out)
            if sum(rows) * row:
                unit = row * kind.itemsize
                comm.allgather(_view(request.inputs[index], shape[0] * unit),
                               _view(out, sum(rows) * unit), [count * row for count in rows],
                               name=response.name, dtype=kind)

    def _broadcast(self, response: Response) -> None:
        request = response.request
        for index, (dtype, shape) in enumerate(request.signature.parts):
            kind = kind_of(dtype)
            size = numel(shape) * kind.itemsize
            if size:
                self._comm.broadcast(_view(request.outputs[index], size), request.signature.root,
                                     name=response.name, dtype=kind)

    def _alltoall(self, response: Response) -> None:
        """The outputs are the rows, and how many came from each rank."""
        comm, request = self._comm, response.request
        (dtype, shape), = request.signature.parts
        kind, row = kind_of(dtype), numel(shape[1:])
        received = [response.signatures[rank].splits[comm.rank] for rank in range(comm.size)]
        out = request.arrays.empty((sum(received), *shape[1:]), dtype)
        request.outputs += [out, received]
        if row and any(sum(one.splits) for one in response.signatures.values()):
            unit = row * kind.itemsize
            comm.alltoall(_view(request.inputs[0], shape[0] * unit),
                          _view(out, sum(received) * unit),
                          [rows * row for rows in request.signature.splits],
                          [rows * row for rows in received], name=response.name, dtype=kind)

    def _reducescatter(self, response: Response) -> None:
        comm, request = self._comm, response.request
        signature = request.signature
        for index, (dtype, shape) in enumerate(signature.parts):
            kind, row = kind_of(dtype), numel(shape[1:])
            rows = [shape[0] // comm.size + (rank < shape[0] % comm.size)
                    for rank in range(comm.size)]
            out = request.arrays.empty((rows[comm.rank], *shape[1:]), dtype)
            request.outputs.append(out)
            if shape[0] * row:
                unit = row * kind.itemsize
                comm.reduce_scatter(_view(request.inputs[index], shape[0] * unit),
                                    _view(out, rows[comm.rank] * unit), signature.op,
                                    [count * row for count in rows], name=response.name,
                                    prescale=signature.prescale, postscale=signature.postscale,
                                    dtype=kind)

    def _barrier(self, response: Response) -> None:
        """All ranks have come: that is all."""

    def _call(self, response: Response) -> None:
        response.request.finish = response.request.run()


def adasum(parts: List[Any]) -> Any:
    """Each pair loses of its sum what both have in common; the last of an odd number waits. The
    parts are arrays of double precision."""
    while len(parts) > 1:
        pairs = []
        for a, b in zip(parts[::2], parts[1::2]):
            dot, of_a, of_b = (a * b).sum(), (a * a).sum(), (b * b).sum()
            pairs.append((1 - dot / (2 * of_a) if of_a else 1) * a
                         + (1 - dot / (2 * of_b) if of_b else 1) * b)
        parts = pairs + parts[len(pairs) * 2:]
    return parts[0]

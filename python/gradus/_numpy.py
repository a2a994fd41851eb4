# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of numpy arrays: those of TensorFlow and JAX are made of them."""
import threading
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy

from ._engine import HorovodInternalError, Request, Signature
from ._execute import Arrays, Memory, adasum, kind_of
from ._submit import Adasum, Made, ReduceOp, check_types, name_of, root_of, splits_of
from ._world import ProcessSet, world
from .errors import InvalidError

_types: Dict[str, numpy.dtype] = {}  # bfloat16 is no name that numpy knows


class _Arrays(Arrays):
    def empty(self, shape: Sequence[int], dtype: str) -> Memory:
        return _memory(numpy.empty(shape, _types[dtype]))

    def adasum(self, every: Memory, out: Memory, prescale: float, postscale: float) -> None:
        rows = every.owner.astype(numpy.float64) * prescale
        out.owner[...] = adasum(list(rows)) * postscale


_arrays = _Arrays()


def _memory(array: numpy.ndarray) -> Memory:
    return Memory(array, array.__array_interface__["data"][0])


def _dense(value: Any, kind: str) -> numpy.ndarray:
    array = numpy.asarray(value, order="C")
    if not array.dtype.isnative:  # the name of the type does not say so
        array = array.astype(array.dtype.newbyteorder("="))
    try:
        kind_of(array.dtype.name)
    except InvalidError:
        raise ValueError(f"{kind} of an array of {array.dtype}, which Gradus does not have; convert"
                         " it to float32 say") from None
    _types[array.dtype.name] = array.dtype
    return array


def _signature(kind: str, arrays: Sequence[numpy.ndarray], **words: Any) -> Signature:
    return Signature(kind, parts=tuple((array.dtype.name, array.shape) for array in arrays),
                     **words)


def _request(name: str, signature: Signature, inputs: Sequence[numpy.ndarray],
             outputs: List[Memory], finish: Callable[[], Any]) -> Request:
    return Request(name, signature, [_memory(array) for array in inputs], outputs, finish,
                   isinstance(name, Made), arrays=_arrays)


def _rows(array: numpy.ndarray, kind: str) -> numpy.ndarray:
    if array.ndim == 0:
        raise ValueError(f"{kind} of an array without a dimension; reshape it to one element")
    return array


def allreduce(values: Sequence[Any], name: Optional[str], op: ReduceOp, prescale: float,
              postscale: float, process_set: ProcessSet) -> Request:
    """Reduces arrays of one group; the result is a list."""
    kind = "allreduce" if len(values) == 1 else "grouped_allreduce"
    arrays = [_dense(value, kind) for value in values]
    check_types(op, kind, (array.dtype.name for array in arrays))
    results = [numpy.empty_like(array, order="C") for array in arrays]
    zero = 0 in (prescale, postscale)  # the library takes 0 as "not scaled"

    def finish() -> List[numpy.ndarray]:
        return [numpy.zeros_like(one) for one in results] if zero else results
    signature = _signature("allreduce", arrays, op=op.op, prescale=prescale, postscale=postscale)
    return _request(name_of(kind, name, process_set), signature, arrays,
                    [_memory(one) for one in results], finish)


def allgather(values: Sequence[Any], name: Optional[str], process_set: ProcessSet) -> Request:
    """Gathers arrays of one group along the first dimension; the result is a list."""
    kind = "allgather" if len(values) == 1 else "grouped_allgather"
    arrays = [_rows(_dense(value, kind), kind) for value in values]
    outputs: List[Memory] = []
    return _request(name_of(kind, name, process_set), _signature("allgather", arrays), arrays,
                    outputs, lambda: [one.owner for one in outputs])


def broadcast(value: Any, root_rank: int, name: Optional[str], process_set: ProcessSet) -> Request:
    """The result is root's array."""
    root = root_of(root_rank, process_set)
    array = _dense(value, "broadcast")
    mine = world.engine(process_set).rank == root
    result = array.copy() if mine else numpy.empty_like(array, order="C")
    return _request(name_of("broadcast", name, process_set),
                    _signature("broadcast", [array], root=root), [array], [_memory(result)],
                    lambda: result)


def alltoall(value: Any, splits: Optional[Sequence[int]], name: Optional[str],
             process_set: ProcessSet) -> Request:
    """The result is what came, and how many rows from each rank."""
    array = _rows(_dense(value, "alltoall"), "alltoall")
    parts = splits_of(splits, array.shape[0], process_set)
    outputs: List[Any] = []
    return _request(name_of("alltoall", name, process_set),
                    _signature("alltoall", [array], splits=tuple(parts)), [array], outputs,
                    lambda: (outputs[0].owner, numpy.array(outputs[1], numpy.int32)))


def reducescatter(values: Sequence[Any], name: Optional[str], op: ReduceOp, prescale: float,
                  postscale: float, process_set: ProcessSet) -> Request:
    """Reduces arrays of one group, of which each rank gets rows; the result is a list."""
    kind = "reducescatter" if len(values) == 1 else "grouped_reducescatter"
    if op is Adasum:
        raise NotImplementedError(f"{kind} with Adasum is not supported")
    arrays = [_rows(_dense(value, kind), kind) for value in values]
    outputs: List[Memory] = []
    zero = 0 in (prescale, postscale)  # the library takes 0 as "not scaled"

    def finish() -> List[numpy.ndarray]:
        found = [one.owner for one in outputs]
        return [numpy.zeros_like(one) for one in found] if zero else found
    signature = _signature("reducescatter", arrays, op=op.op, prescale=prescale,
                           postscale=postscale)
    return _request(name_of(kind, name, process_set), signature, arrays, outputs, finish)


def run(requests: Sequence[Request], process_set: ProcessSet,
        labels: Optional[Sequence[str]] = None) -> List[Any]:
    """Submits all, and waits for all. Ranks match them by name. `labels` are what the program calls
    the arrays, for errors."""
    # A thread of a framework counts as one: whoever may still submit something is not blocked.
    threading.current_thread()
    engine = world.engine(process_set)
    for request in requests:
        engine.submit(request, wake=False)
    results: List[Any] = []
    failed: Optional[Tuple[int, BaseException]] = None
    for index, request in enumerate(requests):
        try:
            results.append(engine.wait(request))
        except HorovodInternalError as error:
            failed = failed or (index, error)
    if failed is not None:
        index, error = failed
        if labels is None:
            raise error
        raise HorovodInternalError(f"{error} (here {labels[index]})") from error
    return results


def broadcast_all(values: Sequence[Any], root_rank: int, process_set: ProcessSet,
                  labels: Sequence[str]) -> List[numpy.ndarray]:
    """Root's values of variables, which ranks match by their numbers."""
    return run([broadcast(value, root_rank, Made(f"variable.{index}"), process_set)
                for index, value in enumerate(values)], process_set, labels)

# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of TensorFlow's tensors. Inside of tf.function each is an operation of the
graph, which runs the collective of numpy arrays when its turn comes. Ranks match tensors by name;
without one by the tensor's name in the graph, and in eager code by their order."""
import itertools
from typing import Any, Callable, List, Optional, Sequence

import numpy
import tensorflow as tf

from .. import _numpy
from .._engine import HorovodInternalError
from .._submit import Adasum, Average, Made, Max, Min, Product, ReduceOp, Sum, op_of
from .._world import ProcessSet, global_process_set, local_rank, local_size, rank, world
from ._compression import Compression

# Autograph has nothing to do here: what depends on the rank is known when a graph is made.
plain = tf.autograph.experimental.do_not_convert


class FailedPreconditionError(HorovodInternalError, tf.errors.FailedPreconditionError):
    def __init__(self, message: str) -> None:
        tf.errors.FailedPreconditionError.__init__(self, None, None, message)


class InvalidArgumentError(ValueError, tf.errors.InvalidArgumentError):
    def __init__(self, message: str) -> None:
        tf.errors.InvalidArgumentError.__init__(self, None, None, message)


def _now_or_error(function: Callable[..., List[numpy.ndarray]],
                  tensors: Sequence[Any]) -> List[numpy.ndarray]:
    """Errors are such of TensorFlow as well, as those of Horovod's operations are."""
    try:
        return function(*(numpy.asarray(tensor) for tensor in tensors))
    except HorovodInternalError as error:
        raise FailedPreconditionError(str(error)) from error
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


_TWO_RUNS = ("a collective takes part in two runs of a session at a time; let one run end before "
             "the next begins")


def call(function: Callable[..., List[numpy.ndarray]], tensors: Sequence[Any], types: Sequence[Any],
         shapes: Sequence[Any]) -> List[tf.Tensor]:
    """Runs a collective of numpy arrays now, or makes an operation of it."""
    if tf.executing_eagerly():
        return [tf.convert_to_tensor(found) for found in _now_or_error(function, tensors)]
    if tf.inside_function():  # tf.function runs such operations one by one, as the program has them
        results = tf.numpy_function(function, list(tensors), list(types))
    else:
        results = _call_in_session(function, tensors, types)
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return results


def _call_in_session(function: Callable[..., List[numpy.ndarray]], tensors: Sequence[Any],
                     types: Sequence[Any]) -> List[tf.Tensor]:
    """A session runs what is ready in any order, on as many threads as there are cores. If these
    waited for their collectives, others could not be submitted for which other ranks wait. So each
    has a thread of its own: that of a dataset, of which a run of the session takes one element."""
    runs = itertools.count()
    given: List[Any] = []  # the number and the arrays of the run that began last, until it is taken

    def begin(*arrays: numpy.ndarray) -> numpy.ndarray:
        run = numpy.int64(next(runs))
        given[:] = run, arrays
        return run

    def end(_: numpy.ndarray) -> List[numpy.ndarray]:
        if not given:
            raise ValueError(_TWO_RUNS)
        run, arrays = given
        given.clear()
        return [run, *function(*arrays)]
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False  # it has a thread for which a session's end may wait forever
    options.experimental_optimization.apply_default_optimizations = False
    elements = tf.data.Dataset.from_tensors(0).repeat().map(
        lambda one: tuple(tf.numpy_function(end, [one], [tf.int64, *types])))
    mine = tf.numpy_function(begin, list(tensors), tf.int64)
    with tf.control_dependencies([mine]):
        run, *results = tf.compat.v1.data.make_one_shot_iterator(
            elements.with_options(options)).get_next()
    alone = tf.raw_ops.Assert(condition=tf.equal(run, mine), data=[tf.constant(_TWO_RUNS)])
    with tf.control_dependencies([alone]):
        return [tf.identity(result) for result in results]


def _name(name: Optional[str], tensor: tf.Tensor) -> Optional[str]:
    if name is not None or tf.executing_eagerly():
        return name
    return Made(tensor.name)


def _run(make: Callable[..., Any], tensors: Sequence[tf.Tensor], shapes: Sequence[Any],
         process_set: ProcessSet) -> List[tf.Tensor]:
    """`make` returns the request of a collective whose result is a list of arrays."""
    return call(lambda *arrays: _numpy.run([make(arrays)], process_set)[0], tensors,
                [tensor.dtype for tensor in tensors], shapes)


def _gradient_op(op: ReduceOp, what: str) -> None:
    if op in (Min, Max, Product, Adasum):
        raise NotImplementedError(f"{what} with {op!r} has no gradient here; those of Average and "
                                  "Sum have")


def _reduce(tensors: Sequence[tf.Tensor], name: Optional[str], op: ReduceOp, prescale: float,
            postscale: float, process_set: ProcessSet) -> List[tf.Tensor]:
    name = _name(name, tensors[0])
    return _run(lambda arrays: _numpy.allreduce(arrays, name, op, prescale, postscale, process_set),
                tensors, [tensor.shape for tensor in tensors], process_set)


def _allreduce(tensors: Sequence[Any], name: Optional[str], op: ReduceOp, prescale: float,
               postscale: float, process_set: ProcessSet) -> List[tf.Tensor]:
    """The gradient of a sum over ranks is that sum of the gradients."""
    @tf.custom_gradient
    def run(*inputs):
        def gradient(*upstream):
            _gradient_op(op, "allreduce")
            return _reduce(upstream, None, op, prescale, postscale, process_set)
        return _reduce(inputs, name, op, prescale, postscale, process_set), gradient
    return run(*(tf.convert_to_tensor(tensor) for tensor in tensors))


def _now(function: Callable[[], int]) -> tf.Tensor:
    """A number of this rank when the graph runs: the ranks may be others than when it was made."""
    if tf.executing_eagerly():
        return tf.constant(numpy.int32(function()))
    found = tf.numpy_function(lambda: numpy.int32(function()), [], tf.int32)
    found.set_shape(())
    return found


def _members(process_set: ProcessSet) -> tf.Tensor:
    return _now(lambda: len(process_set.ranks))


def _sparse(every: Sequence[tf.IndexedSlices], name: Optional[str], op: ReduceOp, factor: float,
            process_set: ProcessSet) -> List[tf.IndexedSlices]:
    if op not in (Average, Sum):
        raise NotImplementedError(f"allreduce of tf.IndexedSlices with {op!r}; use "
                                  "tf.convert_to_tensor before")
    names = [None if name is None else f"{name}.{part}" for part in ("values", "indices")]
    gathered = grouped_allgather([one.values for one in every], names[0], process_set=process_set)
    indices = grouped_allgather([one.indices for one in every], names[1], process_set=process_set)
    results = []
    for one, values, rows in zip(every, gathered, indices):
        if factor != 1.0:
            values = values * tf.cast(factor, values.dtype)
        if op is Average:
            values = values / tf.cast(_members(process_set), values.dtype)
        results.append(tf.IndexedSlices(values, rows, one.dense_shape))
    return results


@plain
def allreduce(tensor: Any, average: Optional[bool] = None, device_dense: str = "",
              device_sparse: str = "", compression: Any = Compression.none,
              op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
              postscale_factor: float = 1.0, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set,
              ignore_name_scope: bool = False) -> Any:
    """Returns the reduction over all ranks of the process set: of a tensor, a variable, or
    tf.IndexedSlices, which are gathered. It is differentiable. op: Average (as without one), Sum,
    Adasum, Min, Max, Product. Devices and ignore_name_scope are ignored."""
    found, = grouped_allreduce([tensor], average, "", "", compression, op, prescale_factor,
                               postscale_factor, process_set, name=name)
    return found


@plain
def grouped_allreduce(tensors: Sequence[Any], average: Optional[bool] = None,
                      device_dense: str = "", device_sparse: str = "",
                      compression: Any = Compression.none, op: Optional[ReduceOp] = None,
                      prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set,
                      ignore_name_scope: bool = False, name: Optional[str] = None) -> List[Any]:
    """allreduce of several tensors, which are reduced when every rank has submitted them all;
    those that are tf.IndexedSlices are gathered together."""
    op = op_of(op, average)
    slices = [tensor for tensor in tensors if isinstance(tensor, tf.IndexedSlices)]
    pairs = [compression.compress(tf.convert_to_tensor(tensor))
             for tensor in tensors if not isinstance(tensor, tf.IndexedSlices)]
    sparse = dense = iter(())
    if slices:
        sparse = iter(_sparse(slices, name, op, prescale_factor * postscale_factor, process_set))
    if pairs:
        found = _allreduce([travels for travels, _ in pairs], name, op, prescale_factor,
                           postscale_factor, process_set)
        dense = (compression.decompress(one, context) for one, (_, context) in zip(found, pairs))
    return [next(sparse if isinstance(tensor, tf.IndexedSlices) else dense) for tensor in tensors]


def _gathered(tensor: tf.Tensor) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(tensor.shape[1:])


def _gather(tensors: Sequence[tf.Tensor], name: Optional[str],
            process_set: ProcessSet) -> List[tf.Tensor]:
    name = _name(name, tensors[0])
    return _run(lambda arrays: _numpy.allgather(arrays, name, process_set), tensors,
                [_gathered(tensor) for tensor in tensors], process_set)


@plain
def grouped_allgather(tensors: Sequence[Any], name: Optional[str] = None,
                      ignore_name_scope: bool = False,
                      process_set: ProcessSet = global_process_set) -> List[tf.Tensor]:
    """Returns of each tensor those of all ranks, one behind the other along the first dimension,
    which may differ by rank. It is differentiable."""
    @tf.custom_gradient
    def run(*inputs):
        def gradient(*upstream):
            totals = _reduce(upstream, None, Average, 1.0, 1.0, process_set)
            rows = tf.stack([tf.shape(tensor)[0] for tensor in inputs])
            every, = _gather([rows[None]], None, process_set)
            first = tf.reduce_sum(every[:_now(lambda: world.engine(process_set).rank)], 0)
            return [total[first[index]:first[index] + rows[index]]
                    for index, total in enumerate(totals)]
        return _gather(inputs, name, process_set), gradient
    return list(run(*(tf.convert_to_tensor(tensor) for tensor in tensors)))


@plain
def allgather(tensor: Any, name: Optional[str] = None, ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """grouped_allgather of one tensor."""
    found, = grouped_allgather([tensor], name, process_set=process_set)
    return found


@plain
def broadcast(tensor: Any, root_rank: int, name: Optional[str] = None,
              ignore_name_scope: bool = False,
              process_set: ProcessSet = global_process_set) -> tf.Tensor:
    """Returns root's tensor; root_rank is a number in the job, also with a process set. It is
    differentiable."""
    @tf.custom_gradient
    def run(value):
        def gradient(upstream):
            total, = _reduce([upstream], None, Average, 1.0, 1.0, process_set)
            return total * tf.cast(_now(lambda: rank() == root_rank), total.dtype)
        words = _name(name, value)
        found, = _run(lambda arrays: _as_list(_numpy.broadcast(arrays[0], root_rank, words,
                                                               process_set)),
                      [value], [value.shape], process_set)
        return found, gradient
    return run(tf.convert_to_tensor(tensor))


def _as_list(request: Any) -> Any:
    finish = request.finish
    request.finish = lambda: [finish()]
    return request


@plain
def broadcast_(variables: Sequence[Any], root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> List[Any]:
    """Gives variables root's values. In a session that is done by running what is returned."""
    found = []
    for index, variable in enumerate(variables):
        words = None if name is None else f"{name}.{index}"
        given = variable.assign(broadcast(variable, root_rank, words, process_set=process_set))
        found.append(variable if tf.executing_eagerly() else given)
    return found


@plain
def alltoall(tensor: Any, splits: Any = None, name: Optional[str] = None,
             ignore_name_scope: bool = False,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends rows to each rank: equally many, or as `splits` says. Returns the rows that came from
    all ranks, in their order; with splits also how many came from each. It is differentiable."""
    tensor = tf.convert_to_tensor(tensor)
    if splits is None:
        members = _members(process_set)
        rows = tf.repeat(tf.shape(tensor)[:1], members)
        parts = rows // members + tf.cast(rows % members > 0, tf.int32)  # refused where uneven
    else:
        parts = tf.cast(tf.convert_to_tensor(splits), tf.int32)

    @tf.custom_gradient
    def run(value, parts):
        found, received = _exchange(value, parts, _name(name, value), process_set)

        def gradient(upstream, _):
            back, _ = _exchange(upstream, received, _name(None, upstream), process_set)
            return back, None
        return (found, received), gradient
    found, received = run(tensor, parts)
    return found if splits is None else (found, received)


def _exchange(value: tf.Tensor, parts: tf.Tensor, name: Optional[str],
              process_set: ProcessSet) -> List[tf.Tensor]:
    return call(lambda array, splits: list(_numpy.run(
        [_numpy.alltoall(array, splits.tolist(), name, process_set)], process_set)[0]),
        [value, parts], [value.dtype, tf.int32],
        [_gathered(value), [None]])


@plain
def grouped_reducescatter(tensors: Sequence[Any], device_dense: str = "",
                          compression: Any = Compression.none, op: Optional[ReduceOp] = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                          name: Optional[str] = None) -> List[tf.Tensor]:
    """Returns of each tensor this rank's rows of the reduction over all ranks; the first ranks have
    one more where the rows do not divide. It is differentiable; the gradient of Sum is multiplied
    by the number of ranks, as Horovod's is."""
    op = op_of(op, None)
    factor = prescale_factor * postscale_factor

    @tf.custom_gradient
    def run(*inputs):
        def gradient(*upstream):
            _gradient_op(op, "reducescatter")
            members = _members(process_set) if op is Sum else 1
            return _gather([one * tf.cast(factor, one.dtype) * tf.cast(members, one.dtype)
                            for one in upstream], None, process_set)
        words = _name(name, inputs[0])
        found = _run(lambda arrays: _numpy.reducescatter(
            arrays, words, op, prescale_factor, postscale_factor, process_set), inputs,
            [_gathered(tensor) for tensor in inputs], process_set)
        return found, gradient
    pairs = [compression.compress(tf.convert_to_tensor(tensor)) for tensor in tensors]
    found = run(*(pair[0] for pair in pairs))
    return [compression.decompress(one, pair[1]) for one, pair in zip(found, pairs)]


@plain
def reducescatter(tensor: Any, device_dense: str = "", compression: Any = Compression.none,
                  op: Optional[ReduceOp] = Average, name: Optional[str] = None,
                  process_set: ProcessSet = global_process_set, ignore_name_scope: bool = False,
                  prescale_factor: float = 1.0, postscale_factor: float = 1.0) -> tf.Tensor:
    """grouped_reducescatter of one tensor."""
    found, = grouped_reducescatter([tensor], "", compression, op, process_set, prescale_factor,
                                   postscale_factor, name)
    return found


def _set_of(process_set_id: int) -> ProcessSet:
    world.comm()
    if process_set_id not in world.sets:
        raise ValueError(f"there is no process set {process_set_id}; add_process_set makes one, and"
                         " its process_set_id is the number")
    return world.sets[process_set_id]


@plain
def rank_op(name: Optional[str] = None) -> tf.Tensor:
    """rank(), when the graph runs."""
    return _now(rank)


@plain
def local_rank_op(name: Optional[str] = None) -> tf.Tensor:
    """local_rank(), when the graph runs."""
    return _now(local_rank)


@plain
def local_size_op(name: Optional[str] = None) -> tf.Tensor:
    """local_size(), when the graph runs."""
    return _now(local_size)


@plain
def size_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """The number of ranks of a process set, when the graph runs."""
    return _now(lambda: _set_of(process_set_id).size())


@plain
def process_set_included_op(process_set_id: int = 0, name: Optional[str] = None) -> tf.Tensor:
    """1 if this rank belongs to the process set, else 0, when the graph runs."""
    return _now(lambda: _set_of(process_set_id).included())


__all__ = ["allgather", "allreduce", "alltoall", "broadcast", "broadcast_", "grouped_allgather",
           "grouped_allreduce", "grouped_reducescatter", "local_rank_op", "local_size_op",
           "process_set_included_op", "rank_op", "reducescatter", "size_op"]

# SPDX-License-Identifier: Apache-2.0
"""DistributedGradientTape, DistributedOptimizer, and values that all ranks begin with."""
from typing import Any, List, Sequence

import tensorflow as tf

from .. import _numpy
from .._gradients import (Part, Reduction, check_sparse, exchange, label_of, part_of, reduction_of)
from .._submit import Average, Made, ReduceOp
from .._world import ProcessSet, global_process_set
from ._compression import Compression
from ._ops import call, plain


@plain
def reduce_gradients(gradients: Sequence[Any], labels: Sequence[str],
                     reduction: Reduction) -> List[Any]:
    """Returns the gradients over all ranks. None stays None, tf.IndexedSlices stay such."""
    if not reduction.process_set.included():
        return list(gradients)
    parts: List[Part] = []
    travels: List[tf.Tensor] = []
    contexts: List[Any] = []

    def add(index: int, tensor: Any, kind: str, what: str = "") -> None:
        parts.append(part_of(reduction, index, labels[index], kind, what))
        travels.append(tensor)

    for index, gradient in enumerate(gradients):
        if gradient is None:
            continue
        if isinstance(gradient, tf.IndexedSlices) and not reduction.sparse_as_dense:
            check_sparse(reduction, labels[index])
            add(index, gradient.values, "allgather", ".values")
            add(index, gradient.indices, "allgather", ".indices")
        else:
            tensor, context = reduction.compression.compress(tf.convert_to_tensor(gradient))
            contexts.append(context)
            add(index, tensor, "allreduce")
    if not parts:
        return list(gradients)
    shapes = [tf.TensorShape([None]).concatenate(tensor.shape[1:]) if part.kind == "allgather" else
              tensor.shape for part, tensor in zip(parts, travels)]
    found = iter(call(lambda *arrays: exchange(parts, arrays, reduction), travels,
                      [tensor.dtype for tensor in travels], shapes))
    return _put_together(gradients, found, iter(contexts), reduction)


def _put_together(gradients: Sequence[Any], found: Any, contexts: Any,
                  reduction: Reduction) -> List[Any]:
    results: List[Any] = []
    for gradient in gradients:
        if gradient is None:
            results.append(None)
        elif isinstance(gradient, tf.IndexedSlices) and not reduction.sparse_as_dense:
            values, indices = next(found), next(found)
            factor = reduction.prescale * reduction.postscale
            if reduction.op is Average:
                factor /= reduction.process_set.size()
            results.append(tf.IndexedSlices(values * tf.cast(factor, values.dtype), indices,
                                            gradient.dense_shape))
        else:
            results.append(reduction.compression.decompress(next(found), next(contexts)))
    return results


def _copy_of(thing: Any, kind: type) -> Any:
    """The same object, with methods of `kind` in front of its own."""
    wrapped = type(type(thing).__name__, (kind, type(thing)), {"__module__": kind.__module__})
    copy = wrapped.__new__(wrapped)
    copy.__dict__.update(thing.__dict__)
    return copy


class _Tape:
    def gradient(self, target: Any, sources: Any, *more: Any, **words: Any) -> Any:
        """As the tape's, over all ranks."""
        gradients = super().gradient(target, sources, *more, **words)
        labels = [label_of(source) for source in tf.nest.flatten(sources)]
        found = reduce_gradients(tf.nest.flatten(gradients), labels, self._hvd_reduction)
        return tf.nest.pack_sequence_as(gradients, found)


def DistributedGradientTape(  # noqa: N802
        gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
        compression: Any = Compression.none, sparse_as_dense: bool = False,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Any = None, process_set: ProcessSet = global_process_set) -> Any:
    """Returns a tape whose gradient() is that over all ranks. The gradients of a call are reduced
    together: devices, num_groups and groups have no meaning."""
    tape = _copy_of(gradtape, _Tape)
    tape._hvd_reduction = reduction_of("tape", op, gradient_predivide_factor, compression,
                                       sparse_as_dense, process_set)
    return tape


class _Optimizer:
    def compute_gradients(self, *arguments: Any, **words: Any) -> Any:
        """As the optimizer's, over all ranks."""
        pairs = super().compute_gradients(*arguments, **words)
        found = reduce_gradients([gradient for gradient, _ in pairs],
                                 [label_of(variable) for _, variable in pairs],
                                 self._hvd_reduction)
        return [(gradient, variable) for gradient, (_, variable) in zip(found, pairs)]


def DistributedOptimizer(  # noqa: N802
        optimizer: Any, name: Any = None, use_locking: bool = False, device_dense: str = "",
        device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0,
        average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
        process_set: ProcessSet = global_process_set) -> Any:
    """Returns an optimizer of the same kind that uses the gradients of all ranks: of Keras as
    gradus.keras has it, or one of tf.compat.v1.train. Devices, num_groups and groups have no
    meaning."""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        if backward_passes_per_step != 1:
            raise ValueError("backward_passes_per_step is for the optimizers of Keras 3")
        wrapped = _copy_of(optimizer, _Optimizer)
        wrapped._hvd_reduction = reduction_of(
            name or type(optimizer).__name__, op, gradient_predivide_factor, compression,
            sparse_as_dense, process_set)
        return wrapped
    from ..keras import DistributedOptimizer as of_keras
    return of_keras(optimizer, name, compression=compression, sparse_as_dense=sparse_as_dense,
                    backward_passes_per_step=backward_passes_per_step, op=op,
                    gradient_predivide_factor=gradient_predivide_factor,
                    average_aggregated_gradients=average_aggregated_gradients,
                    process_set=process_set)


@plain
def broadcast_variables(variables: Sequence[Any], root_rank: int,
                        process_set: ProcessSet = global_process_set) -> Any:
    """All ranks end with root's values of the variables; of a graph of TensorFlow 1 an operation
    that does it is returned."""
    variables = list(variables)
    if not variables:
        return None
    values = [tf.convert_to_tensor(variable) for variable in variables]
    labels = [label_of(variable) for variable in variables]

    def send(*arrays: Any) -> List[Any]:
        return _numpy.run([_numpy.broadcast(array, root_rank, Made(f"variable.{index}"),
                                            process_set)
                           for index, array in enumerate(arrays)], process_set, labels)
    found = call(send, values, [value.dtype for value in values],
                 [value.shape for value in values])
    done = [variable.assign(value) for variable, value in zip(variables, found)]
    return None if tf.executing_eagerly() or tf.inside_function() else tf.group(*done)


@plain
def broadcast_global_variables(root_rank: int) -> Any:
    """broadcast_variables of all variables of a graph of TensorFlow 1; TensorFlow 2 knows of no
    such."""
    if tf.executing_eagerly() or tf.inside_function():
        raise RuntimeError("broadcast_global_variables is for graphs of TensorFlow 1; call "
                           "broadcast_variables(model.variables, root_rank), or give model.fit the "
                           "callback BroadcastGlobalVariablesCallback")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)

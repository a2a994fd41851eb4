# SPDX-License-Identifier: Apache-2.0
"""DistributedGradientTape, and DistributedOptimizer for optimizers of TensorFlow 1."""
from typing import Any, Callable, List, Optional, Sequence, Tuple

import tensorflow as tf

from .._gradients import (Part, Reduction, check_groups, check_sparse, exchange, label_of, numbered,
                          part_of, reduction_of, variables_of_layers)
from .._submit import Adasum, Average, ReduceOp
from .._world import ProcessSet, global_process_set
from ._compression import Compression
from ._ops import call, plain


def _is_sparse(gradient: Any, reduction: Reduction) -> bool:
    return isinstance(gradient, tf.IndexedSlices) and not reduction.sparse_as_dense


@plain
def reduce_gradients(gradients: Sequence[Any], variables: Sequence[Any],
                     reduction: Reduction) -> List[Any]:
    """Returns the gradients over all ranks. None stays None, tf.IndexedSlices stay such. Those of
    local variables take the same way, so that none of a step is applied before all are there."""
    parts: List[Part] = []
    travels: List[tf.Tensor] = []
    contexts: List[Any] = []
    there = []
    for index, number in numbered(gradients, variables, reduction):
        gradient, variable = gradients[index], variables[index]
        there.append(index)
        if _is_sparse(gradient, reduction):
            if number is None:
                kinds = ("local",)
            else:
                check_sparse(reduction, label_of(variable))
                kinds = ("values", "indices")
            for kind, tensor in zip(kinds, (gradient.values, gradient.indices)):
                parts.append(part_of(reduction, number, variable, kind, f".{kind}"))
                travels.append(tensor)
        else:
            tensor, context = reduction.compression.compress(tf.convert_to_tensor(gradient))
            contexts.append(context)
            parts.append(part_of(reduction, number, variable,
                                 "allreduce" if number is not None else "local"))
            travels.append(tensor)
    if not parts:
        return list(gradients)
    shapes = [tf.TensorShape([None]).concatenate(tensor.shape[1:])
              if part.kind in ("values", "indices") else tensor.shape
              for part, tensor in zip(parts, travels)]
    found = call(lambda *arrays: exchange(parts, arrays, reduction), travels,
                 [tensor.dtype for tensor in travels], shapes)
    results, found, rest = list(gradients), iter(zip(parts, found)), iter(contexts)
    for index in there:
        part, tensor = next(found)
        if _is_sparse(gradients[index], reduction):
            indices = gradients[index].indices if part.kind == "local" else next(found)[1]
            results[index] = tf.IndexedSlices(tensor, indices, gradients[index].dense_shape)
        else:
            results[index] = reduction.compression.decompress(tensor, next(rest))
    return results


def _copy_of(thing: Any, kind: type) -> Any:
    """The same object, with methods of `kind` in front of its own."""
    wrapped = type(type(thing).__name__, (kind, type(thing)), {"__module__": kind.__module__})
    copy = wrapped.__new__(wrapped)
    copy.__dict__.update(thing.__dict__)
    return copy


# ---- Tapes ---------------------------------------------------------------------------------------

class _Tape:
    def register_local_source(self, source: Any) -> None:
        """The gradient of this variable stays with its rank."""
        self._hvd_reduction.register_local(source)

    def gradient(self, target: Any, sources: Any, output_gradients: Any = None,
                 use_generic_names: bool = False, **words: Any) -> Any:
        """As the tape's, over all ranks. use_generic_names is ignored: ranks match gradients by
        their numbers."""
        gradients = super().gradient(target, sources, output_gradients, **words)
        found = reduce_gradients(tf.nest.flatten(gradients), tf.nest.flatten(sources),
                                 self._hvd_reduction)
        return tf.nest.pack_sequence_as(gradients, found)

    def get_local_and_global_gradients(
            self, target: Any, sources: Sequence[Any], output_gradients: Any = None,
            use_generic_names: bool = False) -> Tuple[List[Any], List[Any]]:
        """gradient() as two lists of (variable, gradient): of the local variables, and of the
        others."""
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients)))
        return ([pair for pair in pairs if self._hvd_reduction.is_local(pair[0])],
                [pair for pair in pairs if not self._hvd_reduction.is_local(pair[0])])


def DistributedGradientTape(  # noqa: N802
        gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
        compression: Any = Compression.none, sparse_as_dense: bool = False,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Any = None, process_set: ProcessSet = global_process_set,
        scale_local_gradients: bool = True) -> Any:
    """Returns a tape whose gradient() is that over all ranks. The gradients of a call are reduced
    together: devices and groups have no meaning.

    scale_local_gradients  the gradients of variables for which register_local_source was called are
                           divided by the number of ranks"""
    check_groups(num_groups, groups)
    tape = _copy_of(gradtape, _Tape)
    tape._hvd_reduction = reduction_of("tape", op, gradient_predivide_factor, compression,
                                       sparse_as_dense, process_set,
                                       scale_local=scale_local_gradients)
    return tape


def PartialDistributedGradientTape(  # noqa: N802
        gradtape: tf.GradientTape, device_dense: str = "", device_sparse: str = "",
        compression: Any = Compression.none, sparse_as_dense: bool = False,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Any = None, process_set: ProcessSet = global_process_set, local_layers: Any = None,
        scale_local_gradients: bool = True) -> Any:
    """DistributedGradientTape, of which the gradients of `local_layers`, a layer of Keras or
    several, stay with their rank."""
    tape = DistributedGradientTape(gradtape, device_dense, device_sparse, compression,
                                   sparse_as_dense, op, gradient_predivide_factor, num_groups,
                                   groups, process_set, scale_local_gradients)
    for variable in variables_of_layers(local_layers):
        tape.register_local_source(variable)
    return tape


# ---- Steps of optimizers -------------------------------------------------------------------------

def _behind(operations: Sequence[Any]) -> Any:
    return tf.control_dependencies([one for one in operations if one is not None])


@plain
def adasum_step(step: Callable[[], Any], variables: Sequence[Any], reduction: Reduction) -> Any:
    """Makes a step of this rank, of which Adasum combines what it has changed. Variables that are
    local keep it."""
    before = [variable.read_value() for variable in variables]
    with _behind(before):
        done = step()
    with _behind([done]):
        changed = [variable.read_value() - old for variable, old in zip(variables, before)]
    found = reduce_gradients(changed, variables, reduction)
    with _behind(found):
        return tf.group(*[variable.assign(old + change) for variable, old, change in
                          zip(variables, before, found) if not reduction.is_local(variable)])


class Passes:
    """Gradients that add up over so many passes, of which the last one makes a step."""

    def __init__(self, count: int, average: bool) -> None:
        if count < 1:
            raise ValueError(f"backward_passes_per_step is {count}; it is 1 or more")
        self.count = count
        self.average = average
        self.variables: List[Any] = []  # the sums, and how many passes there were
        self._known: List[Any] = []

    def build(self, variables: Sequence[Any]) -> None:
        """Makes the sums, once."""
        if self.variables:
            return
        graph = not tf.executing_eagerly() and not tf.inside_function()
        # Of a graph of TensorFlow 1 they are no part of the model: local_variables_initializer.
        words = {"collections": [tf.compat.v1.GraphKeys.LOCAL_VARIABLES],
                 "use_resource": True} if graph else {}
        make = tf.compat.v1.Variable if graph else tf.Variable
        with tf.init_scope():
            self.variables = [make(tf.zeros(variable.shape, variable.dtype), trainable=False,
                                   **words) for variable in variables]
            self.variables.append(make(tf.zeros([], tf.int64), trainable=False, **words))
        self._known = list(variables)

    @plain
    def run(self, pairs: Sequence[Tuple[Any, Any]], reduction: Reduction,
            step: Callable[[List[Any], List[Any]], Any]) -> Any:
        """Adds gradients; `step` gets the sums and their variables."""
        pairs = [pair for pair in pairs if pair[0] is not None]
        for gradient, variable in pairs:
            if _is_sparse(gradient, reduction):
                raise ValueError(f"the gradient of {label_of(variable)} is sparse, which cannot add"
                                 " up over backward_passes_per_step; say sparse_as_dense=True")
        self.build([variable for _, variable in pairs])
        sums = [self.variables[next(index for index, known in enumerate(self._known)
                                    if known is variable)] for _, variable in pairs]
        added = [one.assign_add(tf.convert_to_tensor(gradient))
                 for one, (gradient, _) in zip(sums, pairs)]
        with _behind(added):
            passes = self.variables[-1].assign_add(1)

        def last() -> tf.Tensor:
            totals = [one.read_value() for one in sums]
            if self.average:
                totals = [one / tf.cast(self.count, one.dtype) for one in totals]
            done = step(totals, [variable for _, variable in pairs])
            with _behind([done, *totals]):
                zeros = [one.assign(tf.zeros_like(one)) for one in sums]
            with _behind(zeros):
                return tf.constant(True)
        return tf.cond(tf.equal(passes % self.count, 0), last, lambda: tf.constant(False))


class _Optimizer:
    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays with its rank."""
        self._hvd_reduction.register_local(var)

    def compute_gradients(self, *arguments: Any, **words: Any) -> Any:
        """As the optimizer's, over all ranks; with backward_passes_per_step, and with Adasum, those
        of this rank, which apply_gradients is to get."""
        pairs = super().compute_gradients(*arguments, **words)
        if self._hvd_passes.count > 1 or self._hvd_reduction.op is Adasum:
            return pairs
        found = reduce_gradients([gradient for gradient, _ in pairs],
                                 [variable for _, variable in pairs], self._hvd_reduction)
        return [(gradient, variable) for gradient, (_, variable) in zip(found, pairs)]

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **words: Any) -> Any:
        """As the optimizer's. With backward_passes_per_step the last pass makes a step."""
        apply, reduction = super().apply_gradients, self._hvd_reduction

        def step(gradients: Any, variables: Any) -> Any:
            if reduction.op is Adasum:
                return adasum_step(lambda: apply(zip(gradients, variables), *arguments, **words),
                                   variables, reduction)
            found = reduce_gradients(gradients, variables, reduction)
            return apply(zip(found, variables), *arguments, **words)
        pairs = list(grads_and_vars)
        if self._hvd_passes.count > 1:
            return self._hvd_passes.run(pairs, reduction, step)
        if reduction.op is Adasum:
            pairs = [pair for pair in pairs if pair[0] is not None]
            return step([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
        return apply(pairs, *arguments, **words)


def DistributedOptimizer(  # noqa: N802
        optimizer: Any, name: Optional[str] = None, use_locking: bool = False,
        device_dense: str = "", device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, backward_passes_per_step: int = 1,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0,
        average_aggregated_gradients: bool = False, num_groups: int = 0, groups: Any = None,
        process_set: ProcessSet = global_process_set, scale_local_gradients: bool = True) -> Any:
    """Returns an optimizer of the same kind that uses the gradients of all ranks: of Keras as
    gradus.keras has it, or one of tf.compat.v1.train. Devices and groups have no meaning.

    op                     Average, Sum, Min, Max, Product, or Adasum: each rank's step is combined
    backward_passes_per_step
                           gradients add up so often before they are reduced
    scale_local_gradients  the gradients of variables for which register_local_var was called are
                           divided by the number of ranks"""
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        check_groups(num_groups, groups)
        passes = Passes(backward_passes_per_step, average_aggregated_gradients)
        wrapped = _copy_of(optimizer, _Optimizer)
        wrapped._hvd_passes = passes
        wrapped._hvd_reduction = reduction_of(
            name or type(optimizer).__name__, op, gradient_predivide_factor, compression,
            sparse_as_dense, process_set, scale_local=scale_local_gradients)
        return wrapped
    from ..keras import DistributedOptimizer as of_keras
    return of_keras(optimizer, name, compression=compression, sparse_as_dense=sparse_as_dense,
                    backward_passes_per_step=backward_passes_per_step, op=op,
                    gradient_predivide_factor=gradient_predivide_factor,
                    average_aggregated_gradients=average_aggregated_gradients,
                    num_groups=num_groups, groups=groups, process_set=process_set,
                    scale_local_gradients=scale_local_gradients)

# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer of Keras that uses the gradients of all ranks."""
from typing import Any, Dict, List, Optional, Sequence

from .._gradients import label_of, reduction_of
from .._submit import Adasum, Average, ReduceOp
from .._world import ProcessSet, global_process_set
from ._backends import Compression, reduce_gradients
from ._framework import IS_3, keras


def _reduce(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> List[Any]:
    return reduce_gradients(gradients, [label_of(one) for one in variables],
                            optimizer._hvd_reduction)


class _Distributed:
    """Of Keras 3. Gradients are reduced before anything else is done with them; those that add up
    over several passes when the step is made of them."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if grads and not self.gradient_accumulation_steps:
            grads = _reduce(self, grads, trainable_variables or self._trainable_variables)
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads: Any, trainable_variables: Any,
                             learning_rate: Any) -> Any:
        if self.gradient_accumulation_steps:
            grads = _reduce(self, grads, trainable_variables)
        return super()._backend_update_step(grads, trainable_variables, learning_rate)


class _DistributedKeras2:
    """Of tf-keras, and its optimizers of before."""

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **words: Any) -> Any:
        pairs = list(grads_and_vars)
        variables = [variable for _, variable in pairs]
        found = _reduce(self, [gradient for gradient, _ in pairs], variables)
        return super().apply_gradients(zip(found, variables), *arguments, **words)


_classes: Dict[type, type] = {}


def _class_of(kind: type) -> type:
    """A class that Keras writes into files as it writes `kind`: they load without Gradus."""
    if kind not in _classes:
        base = _Distributed if IS_3 else _DistributedKeras2
        _classes[kind] = type(kind.__name__, (base, kind), {"__module__": kind.__module__,
                                                            "__doc__": kind.__doc__})
    return _classes[kind]


def _check(optimizer: Any, op: ReduceOp) -> None:
    if not hasattr(optimizer, "apply" if IS_3 else "apply_gradients") or \
            not hasattr(optimizer, "get_config"):
        raise ValueError(f"DistributedOptimizer of a {type(optimizer).__name__}, which is no "
                         f"optimizer of {keras.__name__} {keras.__version__}; model.compile makes "
                         "one of a name, keras.optimizers.get does so too")
    if isinstance(optimizer, (_Distributed, _DistributedKeras2)):
        raise ValueError("DistributedOptimizer of an optimizer that is distributed already")
    policy = keras.mixed_precision.global_policy() if not IS_3 else keras.config.dtype_policy()
    if hasattr(optimizer, "inner_optimizer") or policy.name == "mixed_float16":
        raise ValueError("DistributedOptimizer with mixed_float16: each rank would skip other "
                         "steps, where its own gradients overflow; use mixed_bfloat16")
    if op is Adasum:
        raise ValueError("DistributedOptimizer with op=Adasum is not supported for Keras; use "
                         "Average")


def DistributedOptimizer(  # noqa: N802
        optimizer: Any, name: Optional[str] = None, device_dense: str = "",
        device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, *, gradient_predivide_factor: float = 1.0,
        op: ReduceOp = Average, num_groups: int = 0, groups: Any = None,
        process_set: ProcessSet = global_process_set, backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False) -> Any:
    """Returns an optimizer of the same kind, with the same settings and state, that uses the
    gradients of all ranks. The optimizer that is given is not to be used besides.

    name              ranks match gradients by it and by their numbers; else by the kind's name
    op                Average, Sum, Min, Max or Product
    gradient_predivide_factor
                      gradients are divided by it before they are added, and by the number of ranks
                      over it behind that; with Average
    sparse_as_dense   tf.IndexedSlices become dense before they travel
    backward_passes_per_step
                      gradients add up so often before they are reduced (Keras 3)
    average_aggregated_gradients
                      they are divided by that number

    Devices, num_groups and groups have no meaning: the gradients of a step are reduced together."""
    _check(optimizer, op)
    passes = backward_passes_per_step
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; it is 1 or more")
    if passes > 1:
        if not IS_3:
            raise ValueError("backward_passes_per_step is for Keras 3; tf-keras has no gradients "
                             "that add up")
        if optimizer.built or optimizer.gradient_accumulation_steps:
            raise ValueError("backward_passes_per_step for an optimizer that has made steps, or "
                             "has gradient_accumulation_steps; give one of them, at the beginning")
    factor = 1.0 if average_aggregated_gradients else float(passes)
    kind = _class_of(type(optimizer))
    wrapped = kind.__new__(kind)
    wrapped.__dict__.update(optimizer.__dict__)
    if passes > 1:
        wrapped.gradient_accumulation_steps = passes
    # Not by an assignment, of which TensorFlow makes an object of its own.
    wrapped.__dict__["_hvd_reduction"] = reduction_of(
        name or type(optimizer).__name__, op, gradient_predivide_factor, compression,
        sparse_as_dense, process_set, factor)
    return wrapped


def load_model(filepath: Any, custom_optimizers: Optional[Sequence[type]] = None,
               custom_objects: Optional[Dict[str, Any]] = None,
               compression: Any = Compression.none, **words: Any) -> Any:
    """Loads a model as keras.models.load_model does, with its optimizer and the optimizer's state;
    the optimizer uses the gradients of all ranks from then on.

    custom_optimizers  classes of optimizers that are not of Keras
    custom_objects     other classes and functions that are not of Keras, by name"""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known or None, **words)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model

# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: an optimizer of Keras that uses the gradients of all ranks."""
from typing import Any, Dict, List, Optional, Sequence

from .._gradients import check_groups, reduction_of, variables_of_layers
from .._submit import Adasum, Average, ReduceOp
from .._world import ProcessSet, global_process_set
from ._backends import Compression, reduce_gradients
from ._framework import IS_3, keras


class _Common:
    @classmethod
    def from_config(cls, config: Any, *arguments: Any, **words: Any) -> Any:
        """The optimizer without Gradus, as of a file: what distributes it is no part of the
        configuration."""
        return cls.__bases__[1].from_config(config, *arguments, **words)

    def register_local_var(self, var: Any) -> None:
        """The gradient of this variable stays with its rank."""
        self._hvd_reduction.register_local(var)

    def _hvd_reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> List[Any]:
        return reduce_gradients(gradients, variables, self._hvd_reduction)


class _Distributed(_Common):
    """Of Keras 3. Gradients are reduced before anything else is done with them; those that add up
    over several passes when the step is made of them."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
        grads = list(grads)
        if trainable_variables is not None:
            trainable_variables = list(trainable_variables)
        if grads and not self.gradient_accumulation_steps and self._hvd_reduction.op is not Adasum:
            grads = self._hvd_reduce(grads, trainable_variables or self._trainable_variables)
        return super().apply(grads, trainable_variables)

    def _backend_update_step(self, grads: Any, trainable_variables: Any,
                             learning_rate: Any) -> Any:
        if self._hvd_reduction.op is Adasum:
            self._hvd_adasum_step(grads, trainable_variables, learning_rate)
            return
        if self.gradient_accumulation_steps:
            grads = self._hvd_reduce(grads, trainable_variables)
        super()._backend_update_step(grads, trainable_variables, learning_rate)

    def _hvd_adasum_step(self, grads: Any, variables: Any, learning_rate: Any) -> None:
        """A step of this rank, of which Adasum combines what it has changed."""
        before = [keras.ops.copy(variable.value) for variable in variables]
        super()._backend_update_step(grads, variables, learning_rate)
        changed = [variable.value - old for variable, old in zip(variables, before)]
        for variable, old, change in zip(variables, before, self._hvd_reduce(changed, variables)):
            if not self._hvd_reduction.is_local(variable):
                variable.assign(old + change)


class _DistributedKeras2(_Common):
    """Of tf-keras, and its optimizers of before."""

    def apply_gradients(self, grads_and_vars: Any, *arguments: Any, **words: Any) -> Any:
        from ..tensorflow._gradients import adasum_step
        pairs = list(grads_and_vars)
        apply = super().apply_gradients

        def step(gradients: Any, variables: Any) -> Any:
            if self._hvd_reduction.op is Adasum:
                return adasum_step(lambda: apply(zip(gradients, variables), *arguments, **words),
                                   variables, self._hvd_reduction)
            return apply(zip(self._hvd_reduce(gradients, variables), variables), *arguments,
                         **words)
        if self._hvd_passes.count > 1:
            return self._hvd_passes.run(pairs, self._hvd_reduction, step)
        return step([gradient for gradient, _ in pairs], [variable for _, variable in pairs])


_classes: Dict[type, type] = {}


def _class_of(kind: type) -> type:
    """A class that Keras writes into files as it writes `kind`: they load without Gradus."""
    if kind not in _classes:
        base = _Distributed if IS_3 else _DistributedKeras2
        _classes[kind] = type(kind.__name__, (base, kind), {"__module__": kind.__module__,
                                                            "__doc__": kind.__doc__})
    return _classes[kind]


def _check(optimizer: Any) -> None:
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


def DistributedOptimizer(  # noqa: N802
        optimizer: Any, name: Optional[str] = None, device_dense: str = "",
        device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
        op: ReduceOp = Average, *, num_groups: int = 0, groups: Any = None,
        process_set: ProcessSet = global_process_set, backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False, scale_local_gradients: bool = True) -> Any:
    """Returns an optimizer of the same kind, with the same settings and state, that uses the
    gradients of all ranks. The optimizer that is given is not to be used besides.

    name              ranks match gradients by it and by their numbers; else by the kind's name
    op                Average, Sum, Min, Max, Product, or Adasum: each rank's step is combined
    gradient_predivide_factor
                      gradients are divided by it before they are added, and by the number of ranks
                      over it behind that; with Average
    sparse_as_dense   tf.IndexedSlices become dense before they travel
    backward_passes_per_step
                      gradients add up so often before they are reduced
    average_aggregated_gradients
                      they are divided by that number
    scale_local_gradients
                      the gradients of variables for which register_local_var was called are divided
                      by the number of ranks

    Devices and groups have no meaning: the gradients of a step are reduced together."""
    _check(optimizer)
    check_groups(num_groups, groups)
    passes = backward_passes_per_step
    if passes < 1:
        raise ValueError(f"backward_passes_per_step is {passes}; it is 1 or more")
    if passes > 1 and IS_3 and (optimizer.built or optimizer.gradient_accumulation_steps):
        raise ValueError("backward_passes_per_step for an optimizer that has made steps, or has "
                         "gradient_accumulation_steps; give one of them, at the beginning")
    factor = 1.0 if average_aggregated_gradients or not IS_3 else float(passes)
    kind = _class_of(type(optimizer))
    wrapped = kind.__new__(kind)
    wrapped.__dict__.update(optimizer.__dict__)
    # Not by an assignment, of which TensorFlow makes an object of its own.
    wrapped.__dict__["_hvd_reduction"] = reduction_of(
        name or type(optimizer).__name__, op, gradient_predivide_factor, compression,
        sparse_as_dense, process_set, factor, scale_local_gradients)
    if not IS_3:
        from ..tensorflow._gradients import Passes
        wrapped.__dict__["_hvd_passes"] = Passes(passes, average_aggregated_gradients)
    elif passes > 1:
        wrapped.gradient_accumulation_steps = passes
    return wrapped


def PartialDistributedOptimizer(  # noqa: N802
        optimizer: Any, name: Optional[str] = None, device_dense: str = "",
        device_sparse: str = "", compression: Any = Compression.none,
        sparse_as_dense: bool = False, gradient_predivide_factor: float = 1.0,
        op: ReduceOp = Average, backward_passes_per_step: int = 1,
        average_aggregated_gradients: bool = False, groups: Any = None,
        process_set: ProcessSet = global_process_set, local_layers: Any = None,
        scale_local_gradients: bool = True) -> Any:
    """DistributedOptimizer, of which the gradients of `local_layers`, a layer or several, stay with
    their rank."""
    wrapped = DistributedOptimizer(
        optimizer, name, device_dense, device_sparse, compression, sparse_as_dense,
        gradient_predivide_factor, op, groups=groups, process_set=process_set,
        backward_passes_per_step=backward_passes_per_step,
        average_aggregated_gradients=average_aggregated_gradients,
        scale_local_gradients=scale_local_gradients)
    for variable in variables_of_layers(local_layers):
        wrapped.register_local_var(variable)
    return wrapped


def load_model(filepath: Any, custom_optimizers: Optional[Sequence[type]] = None,
               custom_objects: Optional[Dict[str, Any]] = None,
               compression: Any = Compression.none, legacy_opts: bool = False,
               **words: Any) -> Any:
    """Loads a model as keras.models.load_model does, with its optimizer and the optimizer's state;
    the optimizer uses the gradients of all ranks from then on.

    custom_optimizers  classes of optimizers that are not of Keras
    custom_objects     other classes and functions that are not of Keras, by name
    legacy_opts        is ignored: the file says which optimizer it is"""
    known = {kind.__name__: kind for kind in custom_optimizers or ()}
    known.update(custom_objects or {})
    model = keras.models.load_model(filepath, custom_objects=known or None, **words)
    if getattr(model, "optimizer", None) is not None:
        model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model

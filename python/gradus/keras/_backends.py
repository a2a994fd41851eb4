# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step over all ranks, for each backend of Keras."""
from typing import Any, Callable, List, Sequence

import numpy

from .. import _numpy
from .._compression import HalfCompressor, NoneCompressor
from .._engine import HorovodInternalError
from .._gradients import Reduction, exchange, label_of, numbered, part_of
from .._submit import Sum
from .._world import global_process_set
from ._framework import BACKEND


class _JaxFP16Compressor(HalfCompressor):
    """Floating-point numbers travel with 16 bits, and are summed so."""

    @staticmethod
    def halve(tensor: Any) -> Any:
        from jax import numpy as jnp
        return tensor.astype("float16") if jnp.issubdtype(tensor.dtype, jnp.floating) else tensor

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tensor.astype(dtype)


class _JaxCompression:
    """The compressors."""

    none = NoneCompressor
    fp16 = _JaxFP16Compressor


def _call_jax(function: Callable[..., List[numpy.ndarray]], tensors: Sequence[Any]) -> List[Any]:
    """Runs a function of numpy arrays, whose results have the shapes of these, now or with the
    compiled step."""
    import jax
    from jax.experimental import io_callback

    def run(*arrays: Any) -> List[numpy.ndarray]:
        return function(*(numpy.asarray(array) for array in arrays))
    if any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):
        shapes = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in tensors]
        return io_callback(run, shapes, *tensors, ordered=True)
    return [jax.numpy.asarray(array) for array in run(*tensors)]


def _reduce_jax(gradients: Sequence[Any], variables: Sequence[Any],
                reduction: Reduction) -> List[Any]:
    there = list(numbered(gradients, variables, reduction))
    pairs = [reduction.compression.compress(gradients[index]) for index, _ in there]
    parts = [part_of(reduction, number, variables[index],
                     "allreduce" if number is not None else "local") for index, number in there]
    found = _call_jax(lambda *arrays: exchange(parts, arrays, reduction),
                      [pair[0] for pair in pairs])
    results = list(gradients)
    for (index, _), tensor, (_, context) in zip(there, found, pairs):
        results[index] = reduction.compression.decompress(tensor, context)
    return results


def _sum_jax(tensor: Any) -> Any:
    import jax

    def add(tensor: Any) -> Any:
        found, = _call_jax(lambda array: _numpy.run(
            [_numpy.allreduce([array], None, Sum, 1.0, 1.0, global_process_set)],
            global_process_set)[0], [tensor])
        return found
    total = jax.custom_vjp(add)
    total.defvjp(lambda tensor: (add(tensor), None), lambda _, gradient: (add(gradient),))
    return total(tensor)


def _reduce_torch(gradients: Sequence[Any], variables: Sequence[Any],
                  reduction: Reduction) -> List[Any]:
    import gradus.torch as hvd
    if not reduction.process_set.included():
        return list(gradients)
    results, under_way, failed = list(gradients), [], None
    for index, number in numbered(gradients, variables, reduction):
        gradient = gradients[index].detach()
        if number is None:
            results[index] = gradient * reduction.factor(reduction.scale_local)
            continue
        tensor, context = reduction.compression.compress(gradient)
        handle = hvd.allreduce_async(
            tensor, name=part_of(reduction, number, "").name, op=reduction.op,
            prescale_factor=reduction.prescale, postscale_factor=reduction.postscale,
            process_set=reduction.process_set)
        under_way.append((index, handle, context))
    for index, handle, context in under_way:
        try:
            results[index] = reduction.compression.decompress(hvd.synchronize(handle), context)
        except HorovodInternalError as error:
            failed = failed or (error, label_of(variables[index]))
    if failed is not None:
        raise HorovodInternalError(f"{failed[0]} (here {failed[1]})") from failed[0]
    return results


def _sum_by(allreduce: Callable[..., Any]) -> Callable[[Any], Any]:
    return lambda tensor: allreduce(tensor, op=Sum)


# sum_over_ranks: a tensor's, whose gradient is the sum of the gradients.
if BACKEND == "tensorflow":
    from ..tensorflow import Compression, allreduce
    from ..tensorflow._gradients import reduce_gradients
    sum_over_ranks = _sum_by(allreduce)
elif BACKEND == "torch":
    from ..torch import Compression, allreduce
    reduce_gradients = _reduce_torch
    sum_over_ranks = _sum_by(allreduce)
else:
    Compression = _JaxCompression
    reduce_gradients = _reduce_jax
    sum_over_ranks = _sum_jax

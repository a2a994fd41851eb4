# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step over all ranks, for each backend of Keras."""
from typing import Any, List, Sequence

import numpy

from .._compression import HalfCompressor, NoneCompressor
from .._engine import HorovodInternalError
from .._gradients import Reduction, exchange, part_of
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


def _reduce_jax(gradients: Sequence[Any], labels: Sequence[str],
                reduction: Reduction) -> List[Any]:
    import jax
    from jax.experimental import io_callback
    there = [index for index, gradient in enumerate(gradients) if gradient is not None]
    pairs = [reduction.compression.compress(gradients[index]) for index in there]
    travels = [pair[0] for pair in pairs]
    parts = [part_of(reduction, index, labels[index]) for index in there]

    def reduce(*arrays: Any) -> List[numpy.ndarray]:
        return exchange(parts, [numpy.asarray(array) for array in arrays], reduction)
    if any(isinstance(tensor, jax.core.Tracer) for tensor in travels):
        shapes = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in travels]
        found = io_callback(reduce, shapes, *travels, ordered=True)
    else:
        found = [jax.numpy.asarray(array) for array in reduce(*travels)]
    results = list(gradients)
    for index, tensor, (_, context) in zip(there, found, pairs):
        results[index] = reduction.compression.decompress(tensor, context)
    return results


def _reduce_torch(gradients: Sequence[Any], labels: Sequence[str],
                  reduction: Reduction) -> List[Any]:
    import gradus.torch as hvd
    results, under_way, failed = list(gradients), [], None
    for index, gradient in enumerate(gradients):
        if gradient is not None:
            tensor, context = reduction.compression.compress(gradient.detach())
            handle = hvd.allreduce_async(
                tensor, name=part_of(reduction, index, "").name, op=reduction.op,
                prescale_factor=reduction.prescale, postscale_factor=reduction.postscale,
                process_set=reduction.process_set)
            under_way.append((index, handle, context))
    for index, handle, context in under_way:
        try:
            results[index] = reduction.compression.decompress(hvd.synchronize(handle), context)
        except HorovodInternalError as error:
            failed = failed or (error, labels[index])
    if failed is not None:
        raise HorovodInternalError(f"{failed[0]} (here {failed[1]})") from failed[0]
    return results


if BACKEND == "tensorflow":
    from ..tensorflow import Compression
    from ..tensorflow._gradients import reduce_gradients as _reduce
elif BACKEND == "torch":
    from ..torch import Compression
    _reduce = _reduce_torch
else:
    Compression = _JaxCompression
    _reduce = _reduce_jax


def reduce_gradients(gradients: Sequence[Any], labels: Sequence[str],
                     reduction: Reduction) -> List[Any]:
    """Returns the gradients over all ranks; None stays None."""
    if not reduction.process_set.included():
        return list(gradients)
    return _reduce(gradients, labels, reduction)

# SPDX-License-Identifier: Apache-2.0
"""Batch normalization over the batches of all ranks."""
from types import SimpleNamespace
from typing import Any, Tuple

from .._world import is_initialized
from ._backends import sum_over_ranks
from ._framework import IS_3, keras

if IS_3:
    _ops = keras.ops
else:
    import tensorflow as tf
    _ops = SimpleNamespace(sum=tf.reduce_sum, cast=tf.cast, ones_like=tf.ones_like, stack=tf.stack,
                           where=tf.where, square=tf.square, maximum=tf.maximum,
                           expand_dims=tf.expand_dims, squeeze=tf.squeeze,
                           stop_gradient=tf.stop_gradient)


def _moments(inputs: Any, axes: Any, mask: Any) -> Tuple[Any, Any]:
    """Mean and variance of what all ranks have, with the dimensions of `inputs`. The sums are
    differentiable: a gradient goes to the samples of all ranks."""
    weights = _ops.ones_like(inputs)
    if mask is not None:
        weights = weights * _ops.cast(_ops.expand_dims(mask, -1), inputs.dtype)
        inputs = _ops.where(weights > 0, inputs, _ops.ones_like(inputs) * 0)
    own = _ops.stack([_ops.sum(one, axes, True) for one in (inputs, weights)])
    sums = sum_over_ranks(own)
    count = _ops.maximum(_ops.stop_gradient(sums[1]), 1.0)
    mean = sums[0] / count
    centred = (inputs - mean) * weights
    return mean, sum_over_ranks(_ops.sum(_ops.square(centred), axes, True)) / count


@keras.utils.register_keras_serializable(package="gradus")
class SyncBatchNormalization(keras.layers.BatchNormalization):
    """A BatchNormalization whose mean and variance in training are those of all ranks' batches
    together."""

    def __init__(self, *arguments: Any, fused: bool = False, **words: Any) -> None:
        if fused in (True, None):
            raise ValueError("SyncBatchNormalization with fused=True; a fused operation computes "
                             "mean and variance of this rank alone: say fused=False")
        if not IS_3:
            words["fused"] = False
        super().__init__(*arguments, **words)

    def _hvd_moments(self, inputs: Any, axes: Any, mask: Any, keep: bool) -> Tuple[Any, ...]:
        kind = inputs.dtype
        wide = inputs if "64" in str(kind) else _ops.cast(inputs, "float32")
        found = _moments(wide, axes, mask)
        if not keep:
            found = [_ops.squeeze(one, axes) for one in found]
        return tuple(_ops.cast(one, kind) for one in found)

    if IS_3:
        def _moments(self, inputs: Any, mask: Any) -> Any:
            if not is_initialized():
                return super()._moments(inputs, mask)
            return self._hvd_moments(inputs, self._reduction_axes, mask, False)
    else:
        def _moments(self, inputs: Any, reduction_axes: Any, keep_dims: bool,
                     mask: Any = None) -> Any:
            if not is_initialized():
                return super()._moments(inputs, reduction_axes, keep_dims, mask)
            return self._hvd_moments(inputs, reduction_axes, mask, keep_dims)

# SPDX-License-Identifier: Apache-2.0
"""What tensors travel as."""
from typing import Any

import tensorflow as tf

from .._compression import HalfCompressor, NoneCompressor


class FP16Compressor(HalfCompressor):
    """Floating-point numbers travel with 16 bits, and are summed so."""

    @staticmethod
    def halve(tensor: Any) -> Any:
        return tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        return tf.cast(tensor, dtype)


class Compression:
    """The compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor

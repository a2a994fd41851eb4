# SPDX-License-Identifier: Apache-2.0
"""What tensors travel as."""
from typing import Any, Tuple

import tensorflow as tf


class Compressor:
    """Programs may derive their own."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        """Returns what travels, and what decompress needs besides."""
        raise NotImplementedError

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        """Returns the tensor as it was before compress."""
        raise NotImplementedError


class NoneCompressor(Compressor):
    """Tensors travel as they are."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tensor


class FP16Compressor(Compressor):
    """Floating-point numbers travel with 16 bits, and are summed so."""

    @staticmethod
    def compress(tensor: Any) -> Tuple[Any, Any]:
        return (tf.cast(tensor, tf.float16) if tensor.dtype.is_floating else tensor), tensor.dtype

    @staticmethod
    def decompress(tensor: Any, context: Any) -> Any:
        return tf.cast(tensor, context)


class Compression:
    """The compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor

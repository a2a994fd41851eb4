# SPDX-License-Identifier: Apache-2.0
"""What tensors travel as, whatever framework they are of."""
from typing import Any, Tuple


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


class HalfCompressor(Compressor):
    """Floating-point numbers travel with 16 bits, and are summed so. A framework says by halve()
    and cast() how it converts."""

    @classmethod
    def compress(cls, tensor: Any) -> Tuple[Any, Any]:
        return cls.halve(tensor), tensor.dtype

    @classmethod
    def decompress(cls, tensor: Any, context: Any) -> Any:
        return cls.cast(tensor, context)

    @staticmethod
    def halve(tensor: Any) -> Any:
        """Returns the tensor with 16 bits, or as it is if its elements are no such numbers."""
        raise NotImplementedError

    @staticmethod
    def cast(tensor: Any, dtype: Any) -> Any:
        """Returns the tensor with another type."""
        raise NotImplementedError

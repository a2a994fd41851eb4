# SPDX-License-Identifier: Apache-2.0
"""What gradients travel as."""
import torch

from .._compression import HalfCompressor, NoneCompressor


class FP16Compressor(HalfCompressor):
    """Floating-point numbers travel with 16 bits, and are summed so."""

    @staticmethod
    def halve(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.half() if tensor.is_floating_point() else tensor

    @staticmethod
    def cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return tensor.to(dtype)


class Compression:
    """The compressors."""

    none = NoneCompressor
    fp16 = FP16Compressor

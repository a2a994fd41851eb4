# SPDX-License-Identifier: Apache-2.0
"""Batch norm over the batches of all ranks."""
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from .._world import is_initialized, size
from ._ops import Sum, allreduce


class SyncBatchNorm(_BatchNorm):
    """A batch norm whose mean and variance are those of all ranks' batches together. In evaluation,
    and alone, it is torch's."""

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1,
                 affine: bool = True, track_running_stats: bool = True) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def _check_input_dim(self, data: torch.Tensor) -> None:
        if data.dim() < 2:
            raise ValueError(f"SyncBatchNorm of a tensor with {data.dim()} dimensions; it has two "
                             "or more")

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        self._check_input_dim(data)
        training = self.training or not self.track_running_stats
        if not training or not is_initialized() or size() == 1:
            return super().forward(data)
        dims = [0, *range(2, data.dim())]
        shape = [1, -1] + [1] * (data.dim() - 2)
        kind, count = data.dtype, data.numel() // data.shape[1]
        data = data.to(torch.promote_types(kind, torch.float32))  # float16 ends at 65504
        # The sums are differentiable: a gradient goes to the samples of all ranks.
        sums = allreduce(torch.cat([data.sum(dims), data.new_tensor([float(count)])]), op=Sum)
        total = sums[-1].detach()
        mean = sums[:-1] / total
        centred = data - mean.view(shape)
        var = allreduce((centred * centred).sum(dims), op=Sum) / total
        if self.track_running_stats and self.training:
            self._track(mean.detach(), var.detach() * total / (total - 1).clamp(min=1))
        out = centred * torch.rsqrt(var + self.eps).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(kind)

    def _track(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        with torch.no_grad():
            self.num_batches_tracked += 1
            factor = self.momentum if self.momentum is not None else \
                1.0 / float(self.num_batches_tracked)
            for running, new in ((self.running_mean, mean), (self.running_var, var)):
                running.copy_(running.to(new.dtype).lerp(new, factor).to(running.dtype))

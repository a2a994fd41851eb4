# SPDX-License-Identifier: Apache-2.0
"""Tensors as the library reads and writes them: memory of elements, one behind the other."""
from typing import Any, Callable, List, Sequence, Tuple

import torch

from ..errors import InvalidError


def dense(tensor: torch.Tensor, operation: str = "", remedy: str = "tensor.to_dense()"
          ) -> torch.Tensor:
    """Its elements, one behind the other: the tensor's own memory where they stand so, else a
    copy."""
    if tensor.layout != torch.strided:
        raise InvalidError(f"a tensor has the layout {tensor.layout}; only dense ones are "
                           f"supported: use {remedy}", operation=operation)
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.is_conj() or tensor.is_neg():  # its memory has other values
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def copied(tensors: Sequence[torch.Tensor],
           memory: Sequence[torch.Tensor]) -> List[Tuple[torch.Tensor, torch.Tensor]]:
    """Which of the tensors dense() has copied: what put_back takes."""
    return [(tensor, one) for tensor, one in zip(tensors, memory)
            if tensor.data_ptr() != one.data_ptr()]


def put_back(pairs: Sequence[Tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Results go from copies into tensors, which may be of inference mode."""
    with torch.inference_mode():
        for tensor, one in pairs:
            tensor.detach().copy_(one)


def call_after_gradient(parameter: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls `hook` with the parameter whenever a backward pass has added to parameter.grad. The
    caller keeps what it returns. A hook that holds the parameter itself would keep it for ever:
    torch's references among tensors are no cycles that Python finds."""
    if hasattr(parameter, "register_post_accumulate_grad_hook"):  # torch 2.1
        return parameter.register_post_accumulate_grad_hook(hook)
    with torch.enable_grad():
        accumulator = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
    accumulator.register_hook(lambda *_: hook(parameter))
    return accumulator

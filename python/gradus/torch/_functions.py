# SPDX-License-Identifier: Apache-2.0
"""What ranks send each other at the beginning: parameters, the optimizer's state."""
from typing import Any, Dict, Iterable, List, Optional, Tuple, Union

import torch

from .._objects import broadcast_object
from .._world import ProcessSet, global_process_set, rank
from ._ops import broadcast_async_, synchronize


def broadcast_parameters(params: Union[Dict[str, Any], Iterable[Any]], root_rank: int = 0,
                         process_set: ProcessSet = global_process_set) -> None:
    """All ranks end with root's values: of model.state_dict(), of model.named_parameters(), or of
    model.parameters()."""
    pairs = list(params.items()) if isinstance(params, dict) else \
        [(None, one) if isinstance(one, torch.Tensor) else one for one in params]
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise ValueError("params is neither a dictionary nor a sequence of tensors or of (name, "
                         "tensor)")
    handles = [broadcast_async_(value, root_rank, name, process_set)
               for name, value in pairs if isinstance(value, torch.Tensor)]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0,
                              model: Optional[torch.nn.Module] = None,
                              process_set: ProcessSet = global_process_set) -> None:
    """All ranks end with root's state of the optimizer, and with its settings. `model` is not
    needed."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("the state of LBFGS cannot be broadcast: it is not of tensors alone")
    state, tensors = optimizer.state_dict(), []
    if rank() == root_rank:
        state, tensors = _taken_apart(state)
        sent = (state, [(tensor.dtype, tensor.shape) for tensor in tensors])
    else:
        sent = None
    state, kinds = broadcast_object(sent, root_rank, "optimizer_state", process_set)
    if rank() != root_rank:
        tensors = [torch.empty(shape, dtype=dtype) for dtype, shape in kinds]
    broadcast_parameters([(f"optimizer_state.{index}", tensor)
                          for index, tensor in enumerate(tensors)], root_rank, process_set)
    if rank() != root_rank:
        optimizer.load_state_dict(_put_together(state, tensors))
    for group in optimizer.param_groups:  # as Horovod leaves them
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


class _Tensor:
    """Stands for a tensor, by its number."""

    def __init__(self, number: int) -> None:
        self.number = number


def _taken_apart(state: Any) -> Tuple[Any, List[torch.Tensor]]:
    """The state without its tensors, and these."""
    tensors: List[torch.Tensor] = []

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tensors.append(value.detach())
            return _Tensor(len(tensors) - 1)
        if isinstance(value, dict):
            return {key: walk(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)([walk(one) for one in value])
        return value
    return walk(state), tensors


def _put_together(state: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(state, _Tensor):
        return tensors[state.number]
    if isinstance(state, dict):
        return {key: _put_together(one, tensors) for key, one in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)([_put_together(one, tensors) for one in state])
    return state

# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives of tensors. Each has a form that returns a handle at once (_async) and one
that waits; a `_` at the end means in place. Ranks may submit names in any order."""
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

import torch

from .._engine import Request, Signature
from .._execute import Arrays, adasum, kind_of
from .._submit import *  # noqa: F401,F403
from .._submit import (Adasum, Average, Handle, Made, Max, Min, Product, ReduceOp, Sum,
                       check_types, name_of, op_of, root_of, splits_of, submit, synchronize)
from .._submit import __all__ as _names_of_submit
from .._world import ProcessSet, global_process_set, world
from ..errors import InvalidError
from . import _tensors
from ._compression import Compression

_names: Dict[torch.dtype, str] = {}


def _type_of(dtype: torch.dtype) -> str:
    """Its name, which other frameworks have as well."""
    name = _names.get(dtype)
    if name is None:
        name = str(dtype).rpartition(".")[2]
        kind_of(name)
        _names[dtype] = name
    return name


class _Tensors(Arrays):
    def empty(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        return torch.empty(shape, dtype=getattr(torch, dtype))

    def adasum(self, every: torch.Tensor, out: torch.Tensor, prescale: float,
               postscale: float) -> None:
        every = every * prescale if prescale != 1.0 else every
        total = adasum(list(every.double())).to(every.dtype)
        with torch.inference_mode():  # it may be a tensor of that mode
            out.copy_(total * postscale if postscale != 1.0 else total)


_arrays = _Tensors()


def _dense(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Its memory, if this can be an operand."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{kind} of a {type(tensor).__name__}; pass a tensor")
    if tensor.device.type != "cpu":
        raise ValueError(f"{kind} of a tensor on {tensor.device}; only memory of the host is "
                         "supported: use tensor.cpu()")
    try:
        _type_of(tensor.dtype)
    except InvalidError:
        raise ValueError(f"{kind} of a tensor of {tensor.dtype}, which Gradus does not have; use "
                         "tensor.float() say") from None
    return _tensors.dense(tensor, kind, "tensor.to_dense(), or sparse_allreduce_async")


def _parts(tensors: Sequence[torch.Tensor]) -> Tuple:
    return tuple((_type_of(tensor.dtype), tuple(tensor.shape)) for tensor in tensors)


def _wants_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


# ---- allreduce -----------------------------------------------------------------------------------

def _reduce(tensors: Sequence[torch.Tensor], targets: Optional[Sequence[torch.Tensor]], name: str,
            op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet,
            single: bool, wake: bool) -> Any:
    """Allreduces into `targets`, or into new tensors."""
    dense = [_dense(tensor, "allreduce") for tensor in tensors]
    parts = _parts(dense)
    check_types(op, "allreduce", (dtype for dtype, _ in parts))
    if targets is None:
        outputs = results = [torch.empty_like(tensor) for tensor in dense]
        put_back: List[Tuple[torch.Tensor, torch.Tensor]] = []
    else:
        results, outputs = list(targets), dense  # in place, or in a copy of what has gaps
        put_back = _tensors.copied(results, dense)
    zero = 0 in (prescale, postscale)  # the library takes 0 as "not scaled"
    result = results[0] if single else results
    if zero or put_back:
        value = result

        def result():
            with torch.inference_mode():  # they may be of that mode
                for output in outputs if zero else ():
                    output.zero_()
            _tensors.put_back(put_back)
            return value
    request = Request(name, Signature("allreduce", op.op, -1, prescale, postscale, parts), dense,
                      outputs, result, isinstance(name, Made), arrays=_arrays)
    return submit(request, process_set, wake)


def _reduce_gradient(op: ReduceOp, what: str) -> ReduceOp:
    if op in (Min, Max, Product, Adasum):
        raise NotImplementedError(f"{what} with {op!r} has no gradient here; those of Average and "
                                  "Sum have")
    return op


class _Allreduce(torch.autograd.Function):
    """The gradient of a sum over ranks is that sum of the gradients."""

    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, single, *tensors):
        ctx.words = (op, prescale, postscale, process_set, single)
        kind = "allreduce" if single else "grouped_allreduce"
        found = _reduce(tensors, None, name_of(kind, name, process_set), op, prescale, postscale,
                        process_set, False, False)
        return tuple(found)

    @staticmethod
    def backward(ctx, *gradients):
        op, prescale, postscale, process_set, single = ctx.words
        kind = "allreduce" if single else "grouped_allreduce"
        _reduce_gradient(op, kind)
        found = _reduce(gradients, None, name_of(kind, None, process_set), op, prescale,
                        postscale, process_set, False, False)
        return (None,) * 6 + tuple(found)


def allreduce(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
              compression: Any = Compression.none, op: Optional[ReduceOp] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns the reduction over all ranks of the process set, of the tensor's shape. It is
    differentiable. op: Average (as without one), Sum, Adasum, Min, Max, Product. The factors
    multiply contributions, and the result."""
    return _compressed([tensor], name, compression, op_of(op, average), prescale_factor,
                       postscale_factor, process_set, True)[0]


def _compressed(tensors: Sequence[torch.Tensor], name: Optional[str], compression: Any,
                op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet,
                single: bool) -> List[torch.Tensor]:
    """Allreduces into new tensors, with gradients where they are wanted."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    travels = [pair[0] for pair in pairs]
    if _wants_gradient(travels):
        found = _Allreduce.apply(name, op, prescale, postscale, process_set, single, *travels)
    else:
        kind = "allreduce" if single else "grouped_allreduce"
        found = _reduce(travels, None, name_of(kind, name, process_set), op, prescale, postscale,
                        process_set, False, False)
    return [compression.decompress(one, pair[1]) for one, pair in zip(found, pairs)]


def allreduce_async(tensor: torch.Tensor, average: Optional[bool] = None,
                    name: Optional[str] = None, op: Optional[ReduceOp] = None,
                    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """allreduce that returns a handle. The tensor is not changed until synchronize()."""
    return _reduce([tensor], None, name_of("allreduce", name, process_set), op_of(op, average),
                   prescale_factor, postscale_factor, process_set, True, True)


def allreduce_(tensor: torch.Tensor, average: Optional[bool] = None, name: Optional[str] = None,
               op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
               postscale_factor: float = 1.0,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """allreduce into the tensor itself."""
    return _reduce([tensor], [tensor], name_of("allreduce", name, process_set),
                   op_of(op, average), prescale_factor, postscale_factor, process_set, True, False)


def allreduce_async_(tensor: torch.Tensor, average: Optional[bool] = None,
                     name: Optional[str] = None, op: Optional[ReduceOp] = None,
                     prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """allreduce_ that returns a handle."""
    return _reduce([tensor], [tensor], name_of("allreduce", name, process_set),
                   op_of(op, average), prescale_factor, postscale_factor, process_set, True, True)


def _group(tensors: Sequence[torch.Tensor], kind: str) -> List[torch.Tensor]:
    tensors = list(tensors)
    if not tensors:
        raise ValueError(f"{kind} of no tensors; give one or more")
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"{kind} of tensors of several types; they are of one")
    return tensors


def grouped_allreduce(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                      name: Optional[str] = None, compression: Any = Compression.none,
                      op: Optional[ReduceOp] = None, prescale_factor: float = 1.0,
                      postscale_factor: float = 1.0,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """allreduce of several tensors, which are reduced when every rank has submitted them all."""
    return _compressed(_group(tensors, "grouped_allreduce"), name, compression,
                       op_of(op, average), prescale_factor, postscale_factor, process_set, False)


def grouped_allreduce_async(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                            name: Optional[str] = None, op: Optional[ReduceOp] = None,
                            prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """grouped_allreduce that returns a handle."""
    return _reduce(_group(tensors, "grouped_allreduce"), None,
                   name_of("grouped_allreduce", name, process_set), op_of(op, average),
                   prescale_factor, postscale_factor, process_set, False, True)


def grouped_allreduce_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                       name: Optional[str] = None, op: Optional[ReduceOp] = None,
                       prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                       process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """grouped_allreduce into the tensors themselves."""
    return synchronize(grouped_allreduce_async_(tensors, average, name, op, prescale_factor,
                                                postscale_factor, process_set))


def grouped_allreduce_async_(tensors: Sequence[torch.Tensor], average: Optional[bool] = None,
                             name: Optional[str] = None, op: Optional[ReduceOp] = None,
                             prescale_factor: float = 1.0, postscale_factor: float = 1.0,
                             process_set: ProcessSet = global_process_set) -> Handle:
    """grouped_allreduce_ that returns a handle."""
    tensors = _group(tensors, "grouped_allreduce")
    return _reduce(tensors, tensors, name_of("grouped_allreduce", name, process_set),
                   op_of(op, average), prescale_factor, postscale_factor, process_set, False, True)


def sparse_allreduce_async(tensor: torch.Tensor, name: Optional[str] = None,
                           op: Optional[ReduceOp] = None,
                           process_set: ProcessSet = global_process_set) -> Callable[[], Any]:
    """The sum or average of sparse tensors, by allgathers of indices and values. Returns a function
    that waits for it, and returns a sparse tensor."""
    op = op_of(op, None)
    if op not in (Average, Sum):
        raise ValueError(f"sparse_allreduce_async with {op!r}; it is Average or Sum")
    tensor = tensor.detach().coalesce()
    names = [None if name is None else f"{name}.{part}" for part in ("indices", "values")]
    indices = allgather_async(tensor.indices().t().contiguous(), names[0], process_set)
    values = allgather_async(tensor.values(), names[1], process_set)
    members = len(process_set.ranks)

    def wait() -> torch.Tensor:
        every, total = synchronize(indices).t(), synchronize(values)
        if op is Average:
            total = total / members
        return torch.sparse_coo_tensor(every, total, tensor.shape)
    wait.handles = indices, values
    return wait


# ---- allgather -----------------------------------------------------------------------------------

def _gather(tensors: Sequence[torch.Tensor], name: Optional[str], process_set: ProcessSet,
            single: bool, wake: bool) -> Any:
    kind = "allgather" if single else "grouped_allgather"
    dense = [_dense(tensor, kind) for tensor in tensors]
    for tensor in dense:
        if tensor.dim() == 0:
            raise ValueError(f"{kind} of a tensor without a dimension; use tensor.reshape(1)")
    outputs: List[torch.Tensor] = []
    request = Request(name_of(kind, name, process_set),
                      Signature("allgather", parts=_parts(dense)), dense, outputs,
                      lambda: outputs[0] if single else outputs, name is None, arrays=_arrays)
    return submit(request, process_set, wake)


class _Allgather(torch.autograd.Function):
    """The gradient of a rank's part is that of the ranks' averages."""

    @staticmethod
    def forward(ctx, name, process_set, single, *tensors):
        ctx.rows = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors]
        ctx.words = process_set, single
        found = _gather(tensors, name, process_set, single, False)
        return (found,) if single else tuple(found)

    @staticmethod
    def backward(ctx, *gradients):
        process_set, single = ctx.words
        kind = "allreduce" if single else "grouped_allreduce"
        total = _reduce(gradients, None, name_of(kind, None, process_set), Average, 1.0, 1.0,
                        process_set, False, False)
        rows = allgather(torch.tensor([ctx.rows]), process_set=process_set)
        me = _index(process_set)
        parts = []
        for index, gradient in enumerate(total):
            first = int(rows[:me, index].sum())
            parts.append(gradient[first:first + ctx.rows[index]])
        return (None, None, None, *parts)


def _index(process_set: ProcessSet) -> int:
    return world.engine(process_set).rank


def allgather(tensor: torch.Tensor, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns the tensors of all ranks, one behind the other along the first dimension, which may
    differ by rank. It is differentiable."""
    if _wants_gradient([tensor]):
        return _Allgather.apply(name, process_set, True, tensor)[0]
    return _gather([tensor], name, process_set, True, False)


def allgather_async(tensor: torch.Tensor, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """allgather that returns a handle."""
    return _gather([tensor], name, process_set, True, True)


def grouped_allgather(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                      process_set: ProcessSet = global_process_set) -> List[torch.Tensor]:
    """allgather of several tensors, when every rank has submitted them all."""
    tensors = _group(tensors, "grouped_allgather")
    if _wants_gradient(tensors):
        return list(_Allgather.apply(name, process_set, False, *tensors))
    return _gather(tensors, name, process_set, False, False)


def grouped_allgather_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                            process_set: ProcessSet = global_process_set) -> Handle:
    """grouped_allgather that returns a handle."""
    return _gather(_group(tensors, "grouped_allgather"), name, process_set, False, True)


# ---- broadcast -----------------------------------------------------------------------------------

def _send(tensor: torch.Tensor, root_rank: int, name: Optional[str], process_set: ProcessSet,
          in_place: bool, wake: bool) -> Any:
    root = root_of(root_rank, process_set)
    dense = _dense(tensor, "broadcast")
    if in_place:
        output, result = dense, tensor
        put_back = _tensors.copied([tensor], [dense])
        if put_back:
            def result():
                _tensors.put_back(put_back)
                return tensor
    else:
        output = result = dense.clone() if _index(process_set) == root else \
            torch.empty_like(dense)
    request = Request(name_of("broadcast", name, process_set),
                      Signature("broadcast", root=root, parts=_parts([dense])), [dense], [output],
                      result, name is None)
    return submit(request, process_set, wake)


class _Broadcast(torch.autograd.Function):
    """The gradient is the ranks' average at the root, nothing elsewhere."""

    @staticmethod
    def forward(ctx, tensor, root_rank, name, process_set):
        ctx.words = root_rank, process_set
        return _send(tensor, root_rank, name, process_set, False, False)

    @staticmethod
    def backward(ctx, gradient):
        root_rank, process_set = ctx.words
        total, = _reduce([gradient], None, name_of("allreduce", None, process_set), Average, 1.0,
                         1.0, process_set, False, False)
        if world.comm().rank != root_rank:
            total = torch.zeros_like(total)  # 0 times what is not finite would not be 0
        return total, None, None, None


def broadcast(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """Returns root's tensor; root_rank is a number in the job, also with a process set. It is
    differentiable."""
    if _wants_gradient([tensor]):
        return _Broadcast.apply(tensor, root_rank, name, process_set)
    return _send(tensor, root_rank, name, process_set, False, False)


def broadcast_async(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                    process_set: ProcessSet = global_process_set) -> Handle:
    """broadcast that returns a handle."""
    return _send(tensor, root_rank, name, process_set, False, True)


def broadcast_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
               process_set: ProcessSet = global_process_set) -> torch.Tensor:
    """broadcast into the tensor itself."""
    return _send(tensor, root_rank, name, process_set, True, False)


def broadcast_async_(tensor: torch.Tensor, root_rank: int, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Handle:
    """broadcast_ that returns a handle."""
    return _send(tensor, root_rank, name, process_set, True, True)


# ---- alltoall ------------------------------------------------------------------------------------

Splits = Union[None, torch.Tensor, Sequence[int]]


def _exchange(tensor: torch.Tensor, splits: Splits, name: Optional[str], process_set: ProcessSet,
              wake: bool) -> Any:
    dense = _dense(tensor, "alltoall")
    if dense.dim() == 0:
        raise ValueError("alltoall of a tensor without a dimension; use tensor.reshape(1)")
    parts = splits_of(_list_of(splits), dense.shape[0], process_set)
    outputs: List[Any] = []

    def result():
        rows, received = outputs
        return rows if splits is None else (rows, torch.tensor(received, dtype=torch.int32))
    request = Request(name_of("alltoall", name, process_set),
                      Signature("alltoall", parts=_parts([dense]), splits=tuple(parts)), [dense],
                      outputs, result, name is None, arrays=_arrays)
    return submit(request, process_set, wake)


def _list_of(splits: Splits) -> Optional[Sequence[int]]:
    if not isinstance(splits, torch.Tensor):
        return splits
    if splits.is_floating_point() or splits.is_complex():
        raise ValueError(f"splits are of {splits.dtype}; they are whole numbers")
    return splits.tolist()


class _Alltoall(torch.autograd.Function):
    """Gradients go back to where the rows came from."""

    @staticmethod
    def forward(ctx, tensor, splits, name, process_set):
        if splits is None and tensor.dim():
            splits = splits_of(None, tensor.shape[0], process_set)
        out, received = _exchange(tensor, splits, name, process_set, False)
        ctx.words = received, process_set
        ctx.mark_non_differentiable(received)
        return out, received

    @staticmethod
    def backward(ctx, gradient, _):
        received, process_set = ctx.words
        found, _ = _exchange(gradient, received, None, process_set, False)
        return found, None, None, None


def alltoall(tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None,
             process_set: ProcessSet = global_process_set) -> Any:
    """Sends rows to each rank: equally many, or as `splits` says. Returns the rows that came from
    all ranks, in their order; with splits also how many came from each. It is differentiable."""
    if _wants_gradient([tensor]):
        out, received = _Alltoall.apply(tensor, splits, name, process_set)
        return out if splits is None else (out, received)
    return _exchange(tensor, splits, name, process_set, False)


def alltoall_async(tensor: torch.Tensor, splits: Splits = None, name: Optional[str] = None,
                   process_set: ProcessSet = global_process_set) -> Handle:
    """alltoall that returns a handle."""
    return _exchange(tensor, splits, name, process_set, True)


# ---- reducescatter -------------------------------------------------------------------------------

def _scatter(tensors: Sequence[torch.Tensor], name: Optional[str], op: Optional[ReduceOp],
             prescale: float, postscale: float, process_set: ProcessSet, single: bool,
             wake: bool) -> Any:
    kind = "reducescatter" if single else "grouped_reducescatter"
    op = op_of(op, None)
    if op is Adasum:
        raise NotImplementedError(f"{kind} with Adasum is not supported")
    dense = [_dense(tensor, kind) for tensor in tensors]
    for tensor in dense:
        if tensor.dim() == 0:
            raise ValueError(f"{kind} of a tensor without a dimension; use tensor.reshape(1)")
    outputs: List[torch.Tensor] = []
    zero = 0 in (prescale, postscale)  # the library takes 0 as "not scaled"

    def result():
        for output in outputs if zero else ():
            output.zero_()
        return outputs[0] if single else outputs
    request = Request(name_of(kind, name, process_set),
                      Signature("reducescatter", op.op, -1, prescale, postscale, _parts(dense)),
                      dense, outputs, result, name is None, arrays=_arrays)
    return submit(request, process_set, wake)


class _Reducescatter(torch.autograd.Function):
    """The gradients of the parts are gathered."""

    @staticmethod
    def forward(ctx, name, op, prescale, postscale, process_set, single, *tensors):
        ctx.words = op, prescale, postscale, process_set, single
        found = _scatter(tensors, name, op, prescale, postscale, process_set, single, False)
        return (found,) if single else tuple(found)

    @staticmethod
    def backward(ctx, *gradients):
        op, prescale, postscale, process_set, single = ctx.words
        _reduce_gradient(op, "reducescatter")
        factor = prescale * postscale
        if op is Sum:
            factor *= world.engine(process_set).size
        scaled = [gradient * factor for gradient in gradients]
        found = _gather(scaled, None, process_set, single, False)
        return (None,) * 6 + ((found,) if single else tuple(found))


def reducescatter(tensor: torch.Tensor, name: Optional[str] = None,
                  compression: Any = Compression.none, op: Optional[ReduceOp] = Average,
                  process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                  postscale_factor: float = 1.0) -> torch.Tensor:
    """Returns this rank's rows of the reduction over all ranks; the first ranks have one more where
    the rows do not divide. It is differentiable; the gradient of Sum is multiplied by the number of
    ranks, as Horovod's is."""
    return _scatter_compressed([tensor], name, compression, op, prescale_factor, postscale_factor,
                               process_set, True)[0]


def _scatter_compressed(tensors: Sequence[torch.Tensor], name: Optional[str], compression: Any,
                        op: Optional[ReduceOp], prescale: float, postscale: float,
                        process_set: ProcessSet, single: bool) -> List[torch.Tensor]:
    """Reduces and scatters, with gradients where they are wanted."""
    pairs = [compression.compress(tensor) for tensor in tensors]
    travels = [pair[0] for pair in pairs]
    words = name, op_of(op, None), prescale, postscale, process_set, single
    if _wants_gradient(travels):
        found = _Reducescatter.apply(*words, *travels)
    else:
        found = _scatter(travels, *words, False)
        found = [found] if single else found
    return [compression.decompress(one, pair[1]) for one, pair in zip(found, pairs)]


def reducescatter_async(tensor: torch.Tensor, name: Optional[str] = None,
                        op: Optional[ReduceOp] = Average,
                        process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
                        postscale_factor: float = 1.0) -> Handle:
    """reducescatter that returns a handle."""
    return _scatter([tensor], name, op, prescale_factor, postscale_factor, process_set, True, True)


def grouped_reducescatter(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                          compression: Any = Compression.none, op: Optional[ReduceOp] = Average,
                          process_set: ProcessSet = global_process_set,
                          prescale_factor: float = 1.0,
                          postscale_factor: float = 1.0) -> List[torch.Tensor]:
    """reducescatter of several tensors, when every rank has submitted them all."""
    return _scatter_compressed(_group(tensors, "grouped_reducescatter"), name, compression, op,
                               prescale_factor, postscale_factor, process_set, False)


def grouped_reducescatter_async(tensors: Sequence[torch.Tensor], name: Optional[str] = None,
                                op: Optional[ReduceOp] = Average,
                                process_set: ProcessSet = global_process_set,
                                prescale_factor: float = 1.0,
                                postscale_factor: float = 1.0) -> Handle:
    """grouped_reducescatter that returns a handle."""
    return _scatter(_group(tensors, "grouped_reducescatter"), name, op, prescale_factor,
                    postscale_factor, process_set, False, True)


__all__ = [*_names_of_submit]
__all__ += [name for name, value in list(globals().items())
            if callable(value) and getattr(value, "__module__", "") == __name__
            and not name.startswith("_") and not isinstance(value, type)]

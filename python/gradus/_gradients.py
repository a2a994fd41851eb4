# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step, as DistributedOptimizer and DistributedGradientTape of Keras and
TensorFlow reduce them: all are submitted at once, each by its number, and ranks match the names."""
from typing import Any, List, NamedTuple, Sequence

from . import _numpy
from ._submit import Average, Made, ReduceOp, Sum
from ._world import ProcessSet


class Reduction(NamedTuple):
    """How gradients are reduced."""

    name: str
    op: ReduceOp
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet


class Part(NamedTuple):
    """An array of a step. `label` is what the program calls it."""

    kind: str
    name: Made
    label: str


def reduction_of(name: str, op: ReduceOp, predivide: float, compression: Any,
                 sparse_as_dense: bool, process_set: ProcessSet,
                 factor: float = 1.0) -> Reduction:
    """That of the arguments, which it checks. The result is multiplied by `factor`."""
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op is {op!r}; it is Average, Sum, Adasum, Min, Max or Product")
    if predivide != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor goes with op=Average alone")
    if not hasattr(compression, "compress"):
        raise ValueError(f"compression is {compression!r}; it is Compression.none, Compression.fp16"
                         " or a class that has compress and decompress")
    return Reduction(name, op, 1.0 / predivide, predivide * factor, compression, sparse_as_dense,
                     process_set)


def part_of(reduction: Reduction, index: int, label: str, kind: str = "allreduce",
            what: str = "") -> Part:
    """One of the gradient with that number."""
    return Part(kind, Made(f"{reduction.name}.{index}{what}"), label)


def check_sparse(reduction: Reduction, label: str) -> None:
    """Sparse gradients are gathered, not reduced."""
    if reduction.op not in (Average, Sum):
        raise ValueError(f"the gradient of {label} is sparse, which op={reduction.op!r} cannot "
                         "combine; say sparse_as_dense=True")


def exchange(parts: Sequence[Part], arrays: Sequence[Any], reduction: Reduction) -> List[Any]:
    """Reduces and gathers numpy arrays over the ranks."""
    requests = []
    for part, array in zip(parts, arrays):
        if part.kind == "allgather":
            requests.append(_numpy.allgather([array], part.name, reduction.process_set))
        else:
            requests.append(_numpy.allreduce([array], part.name, reduction.op, reduction.prescale,
                                             reduction.postscale, reduction.process_set))
    results = _numpy.run(requests, reduction.process_set, [part.label for part in parts])
    return [result for result, in results]


def label_of(variable: Any) -> str:
    """What a program calls a variable."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor")

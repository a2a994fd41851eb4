# SPDX-License-Identifier: Apache-2.0
"""The gradients of a step, as DistributedOptimizer and DistributedGradientTape of Keras and
TensorFlow reduce them: all are submitted at once, each by its number, and ranks match the names."""
import warnings
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from . import _numpy
from ._submit import Average, Made, ReduceOp, Sum
from ._world import ProcessSet


class Reduction(NamedTuple):
    """How gradients are reduced. Those of `local` variables stay with their rank; scale_local
    divides them by the number of ranks."""

    name: str
    op: ReduceOp
    prescale: float
    postscale: float
    compression: Any
    sparse_as_dense: bool
    process_set: ProcessSet
    scale_local: bool
    local: Dict[int, Any]  # by id

    def register_local(self, variable: Any) -> None:
        """Its gradients are not reduced from now on."""
        # What a variable of Keras 3 holds is a variable of TensorFlow.
        for one in (variable, getattr(variable, "_value", None)):
            if one is not None:
                self.local[id(one)] = one

    def is_local(self, variable: Any) -> bool:
        return id(variable) in self.local

    def factor(self, average: bool) -> float:
        """What is not reduced is multiplied by it."""
        members = len(self.process_set.ranks) if average else 1
        return self.prescale * self.postscale / members


class Part(NamedTuple):
    """An array of a step. `label` is what the program calls it. Kinds: "allreduce"; "values" and
    "indices" of a sparse gradient; "local"."""

    kind: str
    name: Made
    label: str


def reduction_of(name: str, op: ReduceOp, predivide: float, compression: Any,
                 sparse_as_dense: bool, process_set: ProcessSet,
                 factor: float = 1.0, scale_local: bool = True) -> Reduction:
    """That of the arguments, which it checks. The result is multiplied by `factor`."""
    if not isinstance(op, ReduceOp):
        raise ValueError(f"op is {op!r}; it is Average, Sum, Adasum, Min, Max or Product")
    if predivide != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor goes with op=Average alone")
    if not hasattr(compression, "compress"):
        raise ValueError(f"compression is {compression!r}; it is Compression.none, Compression.fp16"
                         " or a class that has compress and decompress")
    return Reduction(name, op, 1.0 / predivide, predivide * factor, compression, sparse_as_dense,
                     process_set, scale_local, {})


def check_groups(num_groups: int, groups: Any) -> None:
    """Gradients of a step are reduced together, so that groups have nothing to do."""
    if num_groups:
        warnings.warn("num_groups is deprecated; say groups", DeprecationWarning, stacklevel=3)
    if groups is None or isinstance(groups, int) and groups >= 0:
        return
    if not isinstance(groups, (list, tuple)) or any(
            not isinstance(one, (list, tuple)) for one in groups):
        raise ValueError(f"groups is {groups!r}; it is a number of groups, or a list of lists of "
                         "variables")


def variables_of_layers(layers: Any) -> List[Any]:
    """The trainable weights of the argument local_layers: a layer, or several."""
    if layers is None:
        return []
    found: List[Any] = []
    for layer in [layers] if hasattr(layers, "trainable_weights") else list(layers):
        if not hasattr(layer, "trainable_weights"):
            raise ValueError(f"local_layers has a {type(layer).__name__}, which is no layer of "
                             "Keras")
        if not getattr(layer, "built", True):
            raise ValueError(f"the layer {layer.name} of local_layers has no weights yet; build the"
                             " model before")
        found += layer.trainable_weights
    return found


def numbered(gradients: Sequence[Any], variables: Sequence[Any],
             reduction: Reduction) -> Iterator[Tuple[int, Optional[int]]]:
    """Yields of each gradient that is there its index, and the number that ranks match it by: None
    for one of a local variable, of which ranks may have others."""
    number = 0
    for index, (gradient, variable) in enumerate(zip(gradients, variables)):
        local = reduction.is_local(variable)
        if gradient is not None:
            yield index, None if local else number
        number += not local


def part_of(reduction: Reduction, number: Optional[int], variable: Any, kind: str = "allreduce",
            what: str = "") -> Part:
    """One of the gradient with that number."""
    return Part(kind, Made(f"{reduction.name}.{number}{what}"), label_of(variable))


def check_sparse(reduction: Reduction, label: str) -> None:
    """Sparse gradients are gathered, not reduced."""
    if reduction.op not in (Average, Sum):
        raise ValueError(f"the gradient of {label} is sparse, which op={reduction.op!r} cannot "
                         "combine; say sparse_as_dense=True")


def exchange(parts: Sequence[Part], arrays: Sequence[Any], reduction: Reduction) -> List[Any]:
    """Reduces and gathers numpy arrays over the ranks. What depends on the ranks is asked here,
    when a step runs: a compiled step stays when the ranks change."""
    if not reduction.process_set.included():
        return list(arrays)
    requests, labels = [], []
    for part, array in zip(parts, arrays):
        if part.kind == "local":
            continue
        labels.append(part.label)
        if part.kind != "allreduce":
            requests.append(_numpy.allgather([array], part.name, reduction.process_set))
        else:
            requests.append(_numpy.allreduce([array], part.name, reduction.op, reduction.prescale,
                                             reduction.postscale, reduction.process_set))
    found = iter(_numpy.run(requests, reduction.process_set, labels))
    results = []
    for part, array in zip(parts, arrays):
        result = array if part.kind == "local" else next(found)[0]
        if part.kind == "local":
            result = _scaled(result, reduction.factor(reduction.scale_local))
        elif part.kind == "values":
            result = _scaled(result, reduction.factor(reduction.op is Average))
        results.append(result)
    return results


def _scaled(array: Any, factor: float) -> Any:
    """Another array, since a framework may use the memory of this one again."""
    return array.copy() if factor == 1.0 else (array * factor).astype(array.dtype)


def label_of(variable: Any) -> str:
    """What a program calls a variable."""
    if isinstance(variable, str):
        return variable
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "a tensor")

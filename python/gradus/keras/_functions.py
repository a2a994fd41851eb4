# SPDX-License-Identifier: Apache-2.0
"""Values of programs of Keras, over all ranks."""
from typing import Any, List, Optional, Sequence, Tuple

from .. import _numpy
from .._gradients import label_of
from .._submit import Average, ReduceOp, op_of
from .._world import ProcessSet, global_process_set, rank
from ._backends import Compression
from ._framework import BACKEND, IS_3, keras, value_of


def send_variables(named: Sequence[Tuple[str, Any]], root_rank: int,
                   process_set: ProcessSet = global_process_set) -> None:
    """All ranks end with root's values of the variables."""
    if not process_set.included():
        return
    found = _numpy.broadcast_all([value_of(variable) for _, variable in named], root_rank,
                                 process_set, [label for label, _ in named])
    if rank() != root_rank:
        for (_, variable), value in zip(named, found):
            variable.assign(value)


def broadcast_variables(variables: Sequence[Any], root_rank: int = 0,
                        process_set: ProcessSet = global_process_set) -> None:
    """All ranks end with root's values: of model.weights, of optimizer.variables."""
    send_variables([(label_of(one), one) for one in variables], root_rank, process_set)


def broadcast_global_variables(root_rank: int) -> Any:
    """broadcast_variables of all variables of a graph of TensorFlow 1, the only ones that are
    known without their model."""
    if BACKEND == "tensorflow":
        from ..tensorflow import broadcast_global_variables as of_graph
        return of_graph(root_rank)
    raise RuntimeError("broadcast_global_variables is for graphs of TensorFlow 1; call "
                       "broadcast_variables(model.weights, root_rank), or give model.fit the "
                       "callback BroadcastGlobalVariablesCallback")


def _run(request: Any, process_set: ProcessSet) -> Any:
    found, = _numpy.run([request], process_set)
    return found


def _tensor(value: Any) -> Any:
    if IS_3:
        return keras.ops.convert_to_tensor(value)
    import tensorflow as tf
    return tf.convert_to_tensor(value)


def _array(value: Any) -> Any:
    return value_of(value) if hasattr(value, "shape") else value


def allreduce(value: Any, name: Optional[str] = None, average: Optional[bool] = None,
              prescale_factor: float = 1.0, postscale_factor: float = 1.0,
              op: Optional[ReduceOp] = None, compression: Any = Compression.none,
              process_set: ProcessSet = global_process_set) -> Any:
    """Returns the reduction over all ranks of a number, an array or a tensor, as numpy has it. op:
    Average (as without one), Sum, Adasum, Min, Max, Product."""
    travels, context = value, None
    if compression is not Compression.none:  # which is of tensors
        travels, context = compression.compress(_tensor(value))
    found = _run(_numpy.allreduce([_array(travels)], name, op_of(op, average), prescale_factor,
                                  postscale_factor, process_set), process_set)[0]
    if compression is not Compression.none:
        found = value_of(compression.decompress(_tensor(found), context))
    return found


def allgather(value: Any, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """Returns the arrays of all ranks, one behind the other along the first dimension, which may
    differ by rank."""
    return _run(_numpy.allgather([_array(value)], name, process_set), process_set)[0]


def broadcast(value: Any, root_rank: int, name: Optional[str] = None,
              process_set: ProcessSet = global_process_set) -> Any:
    """Returns root's array."""
    return _run(_numpy.broadcast(_array(value), root_rank, name, process_set), process_set)


def reducescatter(value: Any, name: Optional[str] = None, op: ReduceOp = Average,
                  process_set: ProcessSet = global_process_set) -> Any:
    """Returns this rank's rows of the reduction over all ranks; the first ranks have one more where
    the rows do not divide."""
    return _run(_numpy.reducescatter([_array(value)], name, op, 1.0, 1.0, process_set),
                process_set)[0]


__all__: List[str] = ["allgather", "allreduce", "broadcast", "broadcast_global_variables",
                      "broadcast_variables", "reducescatter"]

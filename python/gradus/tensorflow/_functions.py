# SPDX-License-Identifier: Apache-2.0
"""Values that all ranks begin with, and objects."""
from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from .. import _numpy, _objects
from .._gradients import label_of
from .._world import ProcessSet, global_process_set
from ._ops import call, plain


@plain
def broadcast_variables(variables: Sequence[Any], root_rank: int,
                        process_set: ProcessSet = global_process_set,
                        inplace: bool = False) -> Any:
    """All ranks end with root's values of the variables; of a graph of TensorFlow 1 an operation
    that does it is returned. inplace is ignored."""
    variables = list(variables)
    if not variables:
        return None
    values = [tf.convert_to_tensor(variable) for variable in variables]
    labels = [label_of(variable) for variable in variables]

    def send(*arrays: Any) -> List[Any]:
        return _numpy.broadcast_all(arrays, root_rank, process_set, labels)
    found = call(send, values, [value.dtype for value in values],
                 [value.shape for value in values])
    done = [variable.assign(value) for variable, value in zip(variables, found)]
    return None if tf.executing_eagerly() or tf.inside_function() else tf.group(*done)


@plain
def broadcast_global_variables(root_rank: int) -> Any:
    """broadcast_variables of all variables of a graph of TensorFlow 1; TensorFlow 2 knows of no
    such."""
    if tf.executing_eagerly() or tf.inside_function():
        raise RuntimeError("broadcast_global_variables is for graphs of TensorFlow 1; call "
                           "broadcast_variables(model.variables, root_rank), or give model.fit the "
                           "callback BroadcastGlobalVariablesCallback")
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """broadcast_global_variables when a session of TensorFlow 1 begins. The device is ignored."""

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op: Any = None

    def begin(self) -> None:
        graph = tf.compat.v1.get_default_graph()
        if self.bcast_op is None or self.bcast_op.graph is not graph:
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session: Any, coord: Any) -> None:
        if self.bcast_op is not None:
            session.run(self.bcast_op)


def broadcast_object(obj: Any = None, root_rank: int = 0, session: Any = None,
                     name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> Any:
    """Returns root's object, which travels as a pickle: ranks trust each other. No session is
    needed, also in a graph."""
    return _objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(root_rank: int = 0, session: Any = None, name: Optional[str] = None,
                        process_set: ProcessSet = global_process_set) -> Callable[..., Any]:
    """Returns broadcast_object with these arguments."""
    def send(obj: Any) -> Any:
        return broadcast_object(obj, root_rank, session, name, process_set)
    return send


def allgather_object(obj: Any, session: Any = None, name: Optional[str] = None,
                     process_set: ProcessSet = global_process_set) -> List[Any]:
    """Returns the objects of all ranks, in their order; they travel as pickles. No session is
    needed, also in a graph."""
    return _objects.allgather_object(obj, name, process_set)


__all__ = ["BroadcastGlobalVariablesHook", "allgather_object", "broadcast_global_variables",
           "broadcast_object", "broadcast_object_fn", "broadcast_variables"]

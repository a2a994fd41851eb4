# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when workers die, leave and join: hvd.elastic.

    @hvd.elastic.run
    def train(state):
        ...
        state.commit()

    train(hvd.elastic.TensorFlowState(variables, step=0))

TensorFlowKerasState is that of a model of Keras. docs/keras.md is the guide."""
from typing import Any, List, Optional, Sequence

import numpy
import tensorflow as tf

from .. import _numpy
from .._elastic import ObjectState, State, broadcast_state, run
from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._gradients import label_of
from .._world import global_process_set, rank


class TensorFlowState(ObjectState):
    """Variables, and attributes that pickle. In a graph of TensorFlow 1 the variables are those of
    the graph, where none are given, and have their values in `session`."""

    def __init__(self, variables: Optional[Sequence[Any]] = None, session: Any = None,
                 **kwargs: Any) -> None:
        self.variables = list(variables or tf.compat.v1.global_variables())
        self.session = session or tf.compat.v1.get_default_session()
        if not self.variables:
            raise ValueError("TensorFlowState has no variables; pass them: model.variables say")
        if self.session is not None:  # later the graph may be finalized
            self._feeds = [tf.compat.v1.placeholder(one.dtype.base_dtype, one.shape)
                           for one in self.variables]
            self._assign = [one.assign(feed) for one, feed in zip(self.variables, self._feeds)]
        self._values = self._read()
        super().__init__(broadcast_state, rank, **kwargs)

    def _read(self) -> List[numpy.ndarray]:
        found = [one.numpy() for one in self.variables] if self.session is None else \
            self.session.run(self.variables)
        return [numpy.array(one) for one in found]

    def _write(self) -> None:
        if self.session is not None:
            self.session.run(self._assign, dict(zip(self._feeds, self._values)))
            return
        for variable, value in zip(self.variables, self._values):
            variable.assign(value)

    def save(self) -> None:
        self._values = self._read()
        super().save()

    def restore(self) -> None:
        self._write()
        super().restore()

    def sync(self) -> None:
        self._values = _numpy.broadcast_all(self._read(), 0, global_process_set,
                                            [label_of(one) for one in self.variables])
        self._write()
        super().sync()


def __getattr__(name: str) -> Any:
    """Which Keras it is the program may say until then."""
    if name == "TensorFlowKerasState":
        from ..keras.elastic import KerasState
        return KerasState
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "ObjectState", "State",
           "TensorFlowState", "run"]

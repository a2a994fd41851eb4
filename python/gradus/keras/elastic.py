# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when workers die, leave and join: hvd.elastic, for model.fit and for loops
of one's own.

    @hvd.elastic.run
    def train(state):
        model.fit(..., epochs=10 - state.epoch, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state)])

    train(hvd.elastic.KerasState(model, epoch=0, batch=0))

docs/keras.md is the guide."""
from typing import Any, Dict, List, Optional

import numpy

from .._elastic import ObjectState, State, broadcast_state, run
from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._world import rank
from ._framework import attach, keras, state_of, value_of, variables_of
from ._functions import send_variables


class KerasState(ObjectState):
    """A model, its optimizer or another one, and attributes that pickle. `backend` is ignored."""

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None,
                 **kwargs: Any) -> None:
        if not model.built:
            raise ValueError("KerasState of a model that has no weights yet; give it a keras.Input,"
                             " or call model.build(shape)")
        self.model = model
        self.optimizer = optimizer if optimizer is not None else getattr(model, "optimizer", None)
        self._named = state_of(model, self.optimizer)
        self._keep()
        super().__init__(broadcast_state, rank, **kwargs)

    def _variables(self) -> List[Any]:
        """More than ranks have alike: dropout goes on where it was, on each."""
        return [*self.model.variables, *(variables_of(self.optimizer) if self.optimizer else ())]

    def _keep(self) -> None:
        self._kept = [numpy.array(value_of(one)) for one in self._variables()]

    def save(self) -> None:
        attach(self.model)
        self._keep()
        super().save()

    def restore(self) -> None:
        for variable, value in zip(self._variables(), self._kept):
            variable.assign(value)
        super().restore()

    def sync(self) -> None:
        send_variables(self._named, 0)
        self._keep()
        super().sync()

    def check_host_updates(self) -> None:
        attach(self.model)
        super().check_host_updates()


TensorFlowKerasState = KerasState


class CommitStateCallback(keras.callbacks.Callback):
    """Commits the state behind each batch, or behind so many, and at the end of an epoch."""

    def __init__(self, state: State, batches_per_commit: int = 1) -> None:
        super().__init__()
        if batches_per_commit < 1:
            raise ValueError(f"batches_per_commit is {batches_per_commit}; it is 1 or more")
        self.state = state
        self.batches_per_commit = batches_per_commit
        self.batches_remaining = batches_per_commit

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.batches_remaining = self.batches_per_commit  # as on a worker that has come

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.batches_remaining -= 1
        if self.batches_remaining == 0:
            self.batches_remaining = self.batches_per_commit
            self.state.commit()

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """state.batch is the number of the batch that was last, within its epoch; between epochs it is
    0. Where fit begins with another one, batches are counted from there: a program that goes on
    within an epoch says steps_per_epoch=steps - state.batch."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.first_batch = 0

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.first_batch = self.state.batch

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.batch = self.first_batch + batch

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.batch = self.first_batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """state.epoch is how many epochs are done, of this fit and of those before it: epochs of fit
    begin with 0."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state
        self.initial_epoch = state.epoch

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        self.initial_epoch = self.state.epoch

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.state.epoch = self.initial_epoch + epoch + 1


__all__ = ["CommitStateCallback", "HorovodInternalError", "HostsUpdatedInterrupt", "KerasState",
           "ObjectState", "State", "TensorFlowKerasState", "UpdateBatchStateCallback",
           "UpdateEpochStateCallback", "run"]

# SPDX-License-Identifier: Apache-2.0
"""Callbacks for model.fit, as horovod.keras.callbacks has them."""
from typing import Any, Callable, Dict, Optional, Union

import numpy

from .. import _numpy
from .._submit import Average
from .._world import ProcessSet, global_process_set, rank, size
from ._framework import attach, keras, learning_rate_of, momentum_of, state_of
from ._functions import send_variables


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """All ranks begin with root's weights and state of the optimizer: before the first step, or
    behind it where the model has no weights until then. local_variables stay as they are."""

    def __init__(self, root_rank: int, device: str = "", local_variables: Any = None,
                 process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.root_rank = root_rank
        self.process_set = process_set
        self.broadcast_done = False
        self._local: Dict[int, Any] = {}
        one = local_variables is not None and hasattr(local_variables, "assign")
        for variable in [local_variables] if one else local_variables or ():
            self.register_local_var(variable)

    def register_local_var(self, var: Any) -> None:
        """This variable stays as it is on each rank."""
        if not hasattr(var, "assign"):
            raise ValueError(f"local_variables has a {type(var).__name__}, which is no variable")
        self._local[id(var)] = var

    def _send(self) -> None:
        if self.broadcast_done:
            return
        named = state_of(self.model)
        if named is not None:
            named = [pair for pair in named if id(pair[1]) not in self._local]
        # Whether a model is built already may depend on the rank: it was loaded on one, say.
        ready, = _numpy.run([_numpy.allreduce([numpy.int32(named is not None)], "weights_are_there",
                                              Average, 1.0, float(self.process_set.size()),
                                              self.process_set)], self.process_set)
        if int(ready[0]) == self.process_set.size():
            send_variables(named, self.root_rank, self.process_set)
            self.broadcast_done = True

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.process_set.included():
            self._send()

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if not self.broadcast_done and self.process_set.included():
            attach(self.model)
            self._send()


class MetricAverageCallback(keras.callbacks.Callback):
    """The metrics at the end of an epoch are the averages over all ranks, for callbacks behind this
    one and for the history."""

    def __init__(self, device: str = "", process_set: ProcessSet = global_process_set) -> None:
        super().__init__()
        self.process_set = process_set

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if not logs or not self.process_set.included():
            return
        names = sorted(name for name, value in logs.items()
                       if not isinstance(value, (str, bytes, dict)))
        requests = [_numpy.allreduce([numpy.float64(logs[name])], f"metric.{name}", Average, 1.0,
                                     1.0, self.process_set) for name in names]
        for name, (value,) in zip(names, _numpy.run(requests, self.process_set, names)):
            logs[name] = float(value)


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """The learning rate is `initial_lr` times `multiplier` from start_epoch until before
    end_epoch: times a function of the epoch, or a number to the power of the epochs since
    start_epoch.

    staircase            it changes between epochs; else with each batch
    momentum_correction  the momentum is multiplied by the new rate over the old one for the batch
                         in which the rate changes, where the optimizer lets it: with the torch
                         backend, and with the older optimizers of tf-keras
    steps_per_epoch      number of batches, where fit does not know it"""

    def __init__(self, initial_lr: float, multiplier: Union[float, Callable[[float], float]],
                 start_epoch: int = 0, end_epoch: Optional[int] = None, staircase: bool = True,
                 momentum_correction: bool = True,
                 steps_per_epoch: Optional[int] = None) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("initial_lr is None; it is the learning rate, a number")
        self.initial_lr = initial_lr
        self.multiplier = multiplier if callable(multiplier) else \
            lambda epoch: multiplier ** (epoch - start_epoch)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.current_epoch = 0
        self._momentum: Optional[float] = None

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        learning_rate_of(self.model.optimizer)  # refused at once, where it cannot be changed
        if not self.staircase and not self.steps_per_epoch:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__}: fit does not know the number of batches; "
                                 "pass steps_per_epoch to the callback")

    def on_epoch_begin(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        self.current_epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.current_epoch < self.start_epoch or (
                self.end_epoch is not None and self.current_epoch >= self.end_epoch):
            return
        if not self.staircase:
            self._adjust(self.current_epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._adjust(self.current_epoch)

    def _adjust(self, epoch: float) -> None:
        attach(self.model)
        optimizer = self.model.optimizer
        old, new = learning_rate_of(optimizer), self.initial_lr * self.multiplier(epoch)
        optimizer.learning_rate = new
        momentum = momentum_of(optimizer) if self.momentum_correction else None
        if momentum and old:
            self._momentum = momentum
            optimizer.momentum = momentum * new / old

    def on_train_batch_end(self, batch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if self._momentum is not None:
            self.model.optimizer.momentum, self._momentum = self._momentum, None

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        if logs is not None:
            logs["lr"] = learning_rate_of(self.model.optimizer)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """The learning rate grows from initial_lr over size() to initial_lr in `warmup_epochs`."""

    def __init__(self, initial_lr: float, warmup_epochs: int = 5,
                 momentum_correction: bool = True, steps_per_epoch: Optional[int] = None,
                 verbose: int = 0) -> None:
        def multiplier(epoch: float) -> float:
            epoch += 1 / self.steps_per_epoch  # the last batch of an epoch ends at a whole number
            return (1 + epoch * (size() - 1) / warmup_epochs) / size()
        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction,
                         steps_per_epoch)
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Optional[Dict[str, Any]] = None) -> None:
        super().on_epoch_end(epoch, logs)
        if self.verbose and epoch == self.end_epoch - 1 and rank() == 0:
            print(f"\nEpoch {epoch + 1}: the learning rate has warmed up to "
                  f"{learning_rate_of(self.model.optimizer):g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Writes the model to `filepath` each time that the metric is better than ever before. The path
    may also be set later, as the attribute. It is for rank 0 alone."""

    def __init__(self, monitor: str = "val_loss", verbose: int = 0, *,
                 save_weights_only: bool = False, mode: str = "auto",
                 save_freq: Union[str, int] = "epoch", filepath: Optional[str] = None) -> None:
        ending = ".weights.h5" if save_weights_only else ".keras"
        super().__init__(filepath or f"unnamed{ending}", monitor=monitor, verbose=verbose,
                         save_best_only=True, save_weights_only=save_weights_only, mode=mode,
                         save_freq=save_freq)
        self.filepath = filepath

    def on_train_begin(self, logs: Optional[Dict[str, Any]] = None) -> None:
        if self.filepath is None:
            raise ValueError("BestModelCheckpoint has no path; set callback.filepath before fit")
        super().on_train_begin(logs)


__all__ = ["BestModelCheckpoint", "BroadcastGlobalVariablesCallback",
           "LearningRateScheduleCallback", "LearningRateWarmupCallback", "MetricAverageCallback"]

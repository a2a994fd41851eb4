# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when workers die, leave and join: hvd.elastic.

    @hvd.elastic.run
    def train(state):
        ...
        state.commit()

    train(hvd.elastic.TorchState(model, optimizer, epoch=0))

The processes of the survivors stay; only the group of ranks becomes another one. The job was
started for it: `gradus run --min-workers`, or horovodrun --min-np."""
import copy
import functools
import logging
import math
import random
import sys
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Type

import torch

from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._objects import allgather_object, broadcast_object
from .._world import rank, size, world
from ..errors import CancelledError, Error, UnsupportedError
from ._functions import broadcast_optimizer_state, broadcast_parameters
from ._ops import Max, allreduce

_LOST_PEERS = 76  # the launcher looks for the rank that failed first

_log = logging.getLogger("gradus.torch")


class State:
    """What survives a change of the workers. save, restore and sync say how."""

    def __init__(self, bcast_object: Optional[Callable[..., Any]] = None,
                 get_rank: Optional[Callable[[], int]] = None) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: List[Callable[[], None]] = []
        self._hosts_updated = False

    def register_reset_callbacks(self, callbacks: Sequence[Callable[[], None]]) -> None:
        """They are called after each change, to adapt the learning rate to size() say."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """The workers are others now."""
        self._hosts_updated = False
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, *_: Any) -> None:
        """Makes the next commit raise HostsUpdatedInterrupt on all ranks."""
        self._hosts_updated = True

    def commit(self) -> None:
        """save(), and check_host_updates()."""
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt on all ranks if one knows of workers that are to join or to
        leave. One small allreduce."""
        wanted = self._hosts_updated or world.comm().change_wanted()
        if allreduce(torch.tensor([int(wanted)]), name="elastic.hosts_updated", op=Max)[0]:
            raise HostsUpdatedInterrupt()

    def save(self) -> None:
        """Keeps the state in the memory of this worker."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings back what save() has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all workers the state of rank 0, which has survived."""
        raise NotImplementedError

    def reset(self) -> None:
        """The workers are others now; before the callbacks."""


class ObjectState(State):
    """A state of attributes that pickle: ObjectState(hvd.broadcast_object, hvd.rank, epoch=0)."""

    def __init__(self, bcast_object: Callable[..., Any], get_rank: Callable[[], int],
                 **kwargs: Any) -> None:
        super().__init__(bcast_object, get_rank)
        self._saved_state: Dict[str, Any] = kwargs
        self._set()

    def _set(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, copy.deepcopy(value))

    def save(self) -> None:
        self._saved_state = {name: copy.deepcopy(getattr(self, name))
                             for name in self._saved_state}

    def restore(self) -> None:
        self._set()

    def sync(self) -> None:
        if self._saved_state:
            self.save()
            self._saved_state = self._bcast_object(self._saved_state, name="elastic.state")
            self._set()


class StateHandler:
    """How a value of one type is kept."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps it."""
        raise NotImplementedError

    def restore(self) -> None:
        """Brings it back."""
        raise NotImplementedError

    def sync(self) -> None:
        """Gives all workers that of rank 0."""
        raise NotImplementedError

    def set_value(self, value: Any) -> None:
        """Another one takes its place."""
        self.value = value
        self.save()


class _StateDictHandler(StateHandler):
    """What has a state_dict() and a load_state_dict()."""

    def __init__(self, value: Any) -> None:
        super().__init__(value)
        self.save()

    def save(self) -> None:
        self._saved = copy.deepcopy(self.value.state_dict())

    def restore(self) -> None:
        self.value.load_state_dict(copy.deepcopy(self._saved))  # it may keep parts of it

    def sync(self) -> None:
        self._share()
        self.save()

    def _share(self) -> None:
        """All workers get that of rank 0."""
        raise NotImplementedError


class ModelStateHandler(_StateDictHandler):
    """A torch.nn.Module."""

    def _share(self) -> None:
        broadcast_parameters(self.value.state_dict(), 0)


class OptimizerStateHandler(_StateDictHandler):
    """A torch.optim.Optimizer."""

    def _share(self) -> None:
        broadcast_optimizer_state(self.value, 0)


class ElasticSampler(torch.utils.data.Sampler):
    """Shares the samples of an epoch among the ranks. What record_batch has named is not given
    again in this epoch, also when the workers change."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_indices: set = set()
        self.indices: List[int] = []
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: at its start, not when it is resumed."""
        self.epoch = epoch
        self.processed_indices = set()
        self.reset()

    @property
    def processed_num(self) -> int:
        """So many samples of this epoch are known to be done."""
        return len(self.processed_indices)

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """A batch of this rank is done."""
        self.record_indices(self.get_indices(batch_idx, batch_size))

    def record_indices(self, indices: Sequence[int]) -> None:
        """Samples are done."""
        self.processed_indices.update(indices)

    def get_indices(self, batch_idx: int, batch_size: int) -> List[int]:
        """The samples of a batch of this rank."""
        return self.indices[batch_idx * batch_size:(batch_idx + 1) * batch_size]

    def state_dict(self) -> Dict[str, Any]:
        """The epoch, and what of it is done."""
        return {"epoch": self.epoch, "processed_indices": set(self.processed_indices)}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on where state_dict() was."""
        self.epoch = state_dict["epoch"]
        self.processed_indices = set(state_dict["processed_indices"])
        self.reset()

    def reset(self) -> None:
        """Shares what is left among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        left = [index for index in range(len(self.dataset))
                if index not in self.processed_indices]
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(left)
        self.remaining_indices = left
        self.num_samples = math.ceil(len(left) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        left = self.remaining_indices
        # All ranks have equally many: the first samples are given twice.
        more = self.total_size - len(left)
        whole = left + (left * math.ceil(more / len(left)))[:more] if left else []
        # What record_batch counts in, until the next iteration.
        self.indices = whole[self.rank::self.num_replicas]
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples


class SamplerStateHandler(_StateDictHandler):
    """An ElasticSampler, of which each rank has done other samples."""

    def _share(self) -> None:
        states = allgather_object(self.value.state_dict(), "elastic.sampler")
        epoch = states[0]["epoch"]
        done = [state["processed_indices"] for state in states if state["epoch"] == epoch]
        self.value.load_state_dict({"epoch": epoch, "processed_indices": set().union(*done)})


_registry: List[Tuple[Type, Type[StateHandler]]] = [
    (torch.nn.Module, ModelStateHandler), (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler)]


def get_handler_registry() -> List[Tuple[Type, Type[StateHandler]]]:
    """Which handler keeps values of which type; the first one that fits counts."""
    return _registry


def set_handler_registry(registry: List[Tuple[Type, Type[StateHandler]]]) -> None:
    """Replaces it, for programs with types of their own."""
    global _registry
    _registry = registry


def _handler_of(value: Any) -> Optional[StateHandler]:
    return next((handler(value) for kind, handler in _registry if isinstance(value, kind)), None)


class TorchState(ObjectState):
    """A model, an optimizer, samplers, and attributes that pickle."""

    def __init__(self, model: Optional[torch.nn.Module] = None,
                 optimizer: Optional[torch.optim.Optimizer] = None, **kwargs: Any) -> None:
        kwargs.update({name: value for name, value in (("model", model), ("optimizer", optimizer))
                       if value is not None})
        handlers = {name: _handler_of(value) for name, value in kwargs.items()}
        self._handlers: Dict[str, StateHandler] = {
            name: handler for name, handler in handlers.items() if handler is not None}
        for name in self._handlers:
            object.__setattr__(self, name, kwargs.pop(name))
        for name, value in (("model", model), ("optimizer", optimizer)):
            if value is None:
                object.__setattr__(self, name, None)
        super().__init__(broadcast_object, rank, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        handler = self.__dict__.get("_handlers", {}).get(name)
        if handler is not None:
            handler.set_value(value)

    def save(self) -> None:
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def reset(self) -> None:
        for handler in self._handlers.values():
            if isinstance(handler, SamplerStateHandler):
                handler.value.reset()


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of a function whose first argument is a State. When a worker is lost the state of
    the last commit is restored, when workers join or leave it goes on as it is; in both cases the
    workers meet anew, all get the state of rank 0, and the function is called again."""
    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **named: Any) -> Any:
        skip_sync = False
        while True:
            try:
                if not skip_sync:
                    state.sync()
                return func(state, *arguments, **named)
            except HorovodInternalError as error:
                _log.warning("rank %d goes back to the last commit: %s", rank(), error)
                _renew(error)
                state.restore()
                skip_sync = False
            except HostsUpdatedInterrupt as interrupt:
                _renew(interrupt)
                skip_sync = interrupt.skip_sync
            state.on_reset()
    return wrapper


def _renew(cause: Exception) -> None:
    """The workers that live, and those that have come, become the ranks."""
    try:
        world.renew()
    except CancelledError:
        sys.exit(0)  # this worker is not needed any more
    except UnsupportedError as error:
        raise cause from error
    except Error as error:
        _log.error("the job cannot go on here: %s", error)
        sys.exit(_LOST_PEERS)


__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ModelStateHandler",
           "ObjectState", "OptimizerStateHandler", "SamplerStateHandler", "State", "StateHandler",
           "TorchState", "get_handler_registry", "run", "set_handler_registry"]

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
import itertools
import math
import random
from typing import Any, Dict, Iterator, List, Optional, Tuple, Type

import torch

from .._elastic import ObjectState, State, broadcast_state, run
from .._engine import HorovodInternalError, HostsUpdatedInterrupt
from .._objects import broadcast_object
from .._world import rank, size
from ._functions import broadcast_optimizer_state, broadcast_parameters


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
    """Shares the samples of an epoch among the ranks. Those that record_batch has counted are not
    given again in this epoch, also when the workers change."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # so many samples of this epoch are done, of all ranks
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins an epoch: at the end of the one before, not when one is resumed."""
        self.load_state_dict({"epoch": epoch, "processed_num": 0})

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """A batch is done, on all ranks: they go on at the same pace."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> Dict[str, Any]:
        """The epoch, and how much of it is done."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Goes on where state_dict() was."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Shares what is left among the ranks that there are now."""
        self.num_replicas, self.rank = size(), rank()
        samples = list(range(len(self.dataset)))
        if self.shuffle:
            random.Random(self.seed + self.epoch).shuffle(samples)
        self.remaining_indices = samples[self.processed_num:]
        self.num_samples = math.ceil(len(self.remaining_indices) / self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """All ranks have equally many: the first samples are given twice, where that is needed."""
        left = itertools.cycle(self.remaining_indices)
        return itertools.islice(left, self.rank, self.total_size, self.num_replicas)

    def __len__(self) -> int:
        return self.num_samples


class SamplerStateHandler(_StateDictHandler):
    """An ElasticSampler."""

    def _share(self) -> None:
        self.value.load_state_dict(broadcast_object(self.value.state_dict(), 0, "elastic.sampler"))


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
        super().__init__(broadcast_state, rank, **kwargs)

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


__all__ = ["ElasticSampler", "HorovodInternalError", "HostsUpdatedInterrupt", "ModelStateHandler",
           "ObjectState", "OptimizerStateHandler", "SamplerStateHandler", "State", "StateHandler",
           "TorchState", "get_handler_registry", "run", "set_handler_registry"]

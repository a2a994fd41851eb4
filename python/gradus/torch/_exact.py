# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose training has the same bits for any number of workers.

The global batch is cut into shards, and each worker computes the gradients of some of them. They
are added in the order of a fixed tree over the shards (include/gradus/shards.h), so that neither
the number of workers nor the way of the bytes changes a bit of the sum."""
import ctypes
import math
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional

import torch

from .._communicator import Communicator
from .._library import lib
from ..errors import InvalidError
from . import _tensors
from ._c10d import job_communicator

__all__ = ["ExactOptimizer"]

_ALIGNMENT = 64  # bytes: a kernel may add up otherwise where memory begins otherwise


class _Flat(NamedTuple):
    """The parameters of one type, and memory for their gradients: one array a slot."""

    params: List[torch.nn.Parameter]
    slots: List[torch.Tensor]
    views: List[List[torch.Tensor]]  # [slot][param]


class ExactOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer of PyTorch. Every worker sees the same global batch, and computes the
    gradients of its shards of it:

        optimizer = ExactOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shards=8)
        for x, y in batches:                       # the same on all workers
            for part in optimizer.shards(len(x)):  # slices: this worker's
                loss(model(x[part]), y[part]).backward()
            optimizer.step()

    optimizer      the weights are rank 0's from here on, on all workers
    shards         into so many a batch is cut; the result depends on it. With fewer shards than
                   workers some have nothing to do
    communicator   a gradus.Communicator; None: the job's
    op             "average": the gradient of the mean over the shards, each of which counts alike;
                   "sum": of the sum
    seed           the random numbers of a shard, for dropout, come from it, the step and the
                   shard's number; None: from whatever the worker drew before. Outside of the loop
                   torch's generator is as it was
    threads        that torch computes with: how a kernel cuts its sums depends on it, so it is the
                   same for all workers, and has to be the same in runs that are to be equal

    `param_groups`, `state`, `state_dict()` and `load_state_dict()` are those of `optimizer`.
    Gradients are views of arrays that peers on this host read where they lie. A parameter that has
    no gradient in a shard has zeros there."""

    def __init__(self, optimizer: torch.optim.Optimizer, shards: int, *,
                 communicator: Optional[Communicator] = None, op: str = "average",
                 seed: Optional[int] = 0, threads: int = 1) -> None:
        if op not in ("average", "sum"):
            raise InvalidError(f"op is {op!r}; it is average or sum", operation="ExactOptimizer")
        if shards < 1:
            raise InvalidError(f"{shards} shards; there is 1 or more", operation="ExactOptimizer")
        torch.set_num_threads(threads)
        self.optimizer = optimizer
        self._ready = False
        super().__init__([{"params": list(group["params"])} for group in optimizer.param_groups],
                         optimizer.defaults)
        self._share()
        self._shards, self._op, self._seed = shards, op, seed
        self._steps = 0
        self._communicator = communicator if communicator is not None else job_communicator()
        self._threads = threads
        self._check_alike()
        self._allocate()
        self._broadcast_weights(0)
        self._ready = True

    # ---- As the wrapped one ----------------------------------------------------------------------

    def _share(self) -> None:
        self.param_groups, self.state = self.optimizer.param_groups, self.optimizer.state
        self.defaults = self.optimizer.defaults

    def state_dict(self) -> Dict[str, Any]:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state_dict)
        self._share()

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if self._ready:
            raise InvalidError("parameters are added to the optimizer before ExactOptimizer wraps "
                               "it", operation="ExactOptimizer")
        super().add_param_group(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Does nothing: every shard begins with zeros."""

    # ---- Shards ----------------------------------------------------------------------------------

    @property
    def communicator(self) -> Communicator:
        return self._communicator

    @property
    def steps(self) -> int:
        """How many steps were done."""
        return self._steps

    def use(self, communicator: Communicator) -> None:
        """Goes on with the workers of another communicator, after the loss of one say. Who had not
        come as far as the others gets the weights and the optimizer's state from one of them; then
        `steps` is the same for all, and the batch of that number is computed (again)."""
        self._communicator = communicator
        self._check_alike()
        steps = communicator.allgather_object(self._steps)
        if min(steps) != max(steps):
            root = steps.index(max(steps))
            self._broadcast_weights(root)
            mine = communicator.rank == root
            state = communicator.broadcast_object(self.state_dict() if mine else None, root)
            if not mine:
                self.load_state_dict(state)
            self._steps = max(steps)
        self._allocate()

    def shards(self, batch: int) -> Iterator[slice]:
        """Which samples of a batch of that size are this worker's, a slice for each of its shards,
        in order. Where the loop goes on, the gradients of the shard are taken."""
        if self._op == "average" and batch % self._shards:
            raise InvalidError(f"a batch of {batch} samples in {self._shards} shards: they would "
                               "not count alike; use another number, or op=\"sum\" and a loss that "
                               "is a sum", operation="ExactOptimizer")
        self._pending = True
        first, count = ctypes.c_int(), ctypes.c_int()
        merges = ctypes.c_int()
        comm, total = self._communicator, self._shards
        lib.gr_shard_range(total, comm.size, comm.rank, ctypes.byref(first), ctypes.byref(count))
        generator = torch.random.get_rng_state()
        try:
            for shard in range(first.value, first.value + count.value):
                slot = lib.gr_shard_slot(total, comm.size, comm.rank, shard, ctypes.byref(merges))
                self._point_to(slot)
                part = slice(batch * shard // total, batch * (shard + 1) // total)
                if self._seed is not None:
                    torch.manual_seed(_mixed(self._seed, self._steps, shard))
                if part.start < part.stop:
                    yield part
                self._collect(slot)
                for right in range(slot, slot - merges.value, -1):
                    for flat in self._flats:
                        flat.slots[right - 1].add_(flat.slots[right])
        finally:
            if self._seed is not None:
                torch.random.set_rng_state(generator)

    def synchronize(self) -> None:
        """Adds up the gradients of all workers, where step() has not done it: between it and step()
        every parameter's `grad` is that of the whole batch, to be clipped, say."""
        if not self._pending:
            return
        futures = [self._communicator.allreduce_shards_start(
            flat.slots[:self._partials], self._shards, self._op, name="gradients")
            for flat in self._flats]
        for future in futures:
            future.result()
        self._point_to(0, zero=False)
        self._pending = False

    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Adds up the gradients of all workers, and does the optimizer's step. A step that fails
        for a lost worker has changed nothing."""
        if closure is not None:
            raise InvalidError("ExactOptimizer takes no closure: the shards of a batch are "
                               "computed before the step", operation="ExactOptimizer")
        self.synchronize()
        result = self.optimizer.step()
        self._steps += 1
        return result

    # ---- Inside ----------------------------------------------------------------------------------

    def _check_alike(self) -> None:
        """What decides over bits, and may differ from worker to worker."""
        mine = (str(torch.__version__), self._threads, self._shards, self._op, self._seed)
        for rank, other in enumerate(self._communicator.allgather_object(mine)):
            if other != mine:
                raise InvalidError(f"rank {rank} has torch, threads, shards, op and seed {other}, "
                                   f"rank {self._communicator.rank} {mine}; they are the same on "
                                   "all workers", operation="ExactOptimizer")

    def _broadcast_weights(self, root: int) -> None:
        params = [param for group in self.param_groups for param in group["params"]]
        memory = [_tensors.dense(param) for param in params]
        for one in memory:
            self._communicator.broadcast(one, root, name="weights")
        _tensors.put_back(_tensors.copied(params, memory))

    def _allocate(self) -> None:
        comm = self._communicator
        count = max(1, lib.gr_shard_buffers(self._shards, comm.size, comm.rank))
        self._partials = lib.gr_shard_partials(self._shards, comm.size, comm.rank)
        self._pending = False
        kinds: Dict[torch.dtype, List[torch.nn.Parameter]] = {}
        for group in self.param_groups:
            for param in group["params"]:
                if param.requires_grad:
                    kinds.setdefault(param.dtype, []).append(param)
        self._flats = []
        for kind, params in kinds.items():
            unit = max(1, _ALIGNMENT // params[0].element_size())
            places, size = [], 0
            for param in params:
                places.append(size)
                size += math.ceil(param.numel() / unit) * unit
            slots = [torch.frombuffer(comm.alloc(max(1, size), kind), dtype=kind)
                     for _ in range(max(count, self._partials))]
            views = [[slot[at:at + param.numel()].view(param.shape)
                      for at, param in zip(places, params)] for slot in slots]
            self._flats.append(_Flat(params, slots, views))

    def _point_to(self, slot: int, zero: bool = True) -> None:
        for flat in self._flats:
            if zero:
                flat.slots[slot].zero_()
            for param, view in zip(flat.params, flat.views[slot]):
                param.grad = view

    def _collect(self, slot: int) -> None:
        """Gradients that backward, or the program, has put elsewhere come into the slot."""
        for flat in self._flats:
            for param, view in zip(flat.params, flat.views[slot]):
                if param.grad is None:
                    view.zero_()
                elif param.grad is not view and param.grad.data_ptr() != view.data_ptr():
                    view.copy_(param.grad.to_dense() if param.grad.is_sparse else param.grad)


def _mixed(seed: int, step: int, shard: int) -> int:
    """A number of 63 bits that differs for neighbours (the finalizer of SplitMix64)."""
    value = (seed * 0x9E3779B97F4A7C15 + step * 0xD1B54A32D192ED03 + shard * 0x8CB92BA72F3D8DD7)
    value &= (1 << 64) - 1
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = ((value ^ (value >> shift)) * factor) & ((1 << 64) - 1)
    return (value ^ (value >> 31)) >> 1

# SPDX-License-Identifier: Apache-2.0
"""Models whose parameters are on parameter servers (docs/ps.md): workers push gradients, the
servers run the optimizer, workers pull the values.

    optimizer = gradus.torch.ps.Optimizer(model, {"kind": "sgd", "momentum": 0.9}, lr=0.1)
    for x, y in batches:                       # this worker's
        optimizer.zero_grad()
        loss_of(model(x), y).backward()
        optimizer.step()

    gradus run -np 4 --servers 2 -- python3 train.py

An Embedding has its rows on the servers alone: those that a batch uses travel."""
import collections
import os
import weakref
from typing import Any, Callable, Deque, Dict, List, NamedTuple, Optional, Set, Tuple

import torch

from .._future import Future
from ..errors import Error, InvalidError, NotFiniteError
from ..ps import Client, Table, Tensor
from . import _tensors

__all__ = ["Embedding", "Optimizer"]

_UNDER_WAY = 128  # operations of a step: a client has room for 256
_EARLY = 100  # parameters that are pushed during a backward pass; fewer, so none of them waits
_OVER = 1 << 62  # the clock of a worker that has ended


class Embedding(torch.nn.Module):
    """As torch.nn.Embedding with sparse gradients, but the rows are a table on the servers: a
    forward pass pulls each row that it uses once, and Optimizer pushes the gradients of these rows
    alone. So a table may be larger than a worker's memory. It works once an Optimizer has been made
    of a model that contains it, or attach() has named a table.

    num_embeddings  rows, up to 2^31
    embedding_dim   f32 values of each
    padding_idx     a row that is zero and never changes
    std, seed       a row begins as normal numbers times `std`, which follow from `seed`, alike on
                    any number of servers

    Pulls are as fresh as the optimizer's other values; without gradients (torch.no_grad) nothing is
    noted for a push."""

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: Optional[int] = None,
                 *, std: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InvalidError(f"padding_idx is {padding_idx}; the rows are 0 to "
                               f"{num_embeddings - 1}", operation="Embedding")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.std, self.seed = std, seed
        self._table: Optional[Table] = None
        # Of the backward passes since the last step: rows, gradients, version of the values.
        self._gradients: List[Tuple[torch.Tensor, torch.Tensor, int]] = []

    def __getstate__(self) -> Dict[str, Any]:  # a copy, or a file, has no connection
        return {**self.__dict__, "_table": None, "_gradients": []}

    def extra_repr(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"

    def attach(self, table: Table) -> None:
        """The rows are those of this table, of client.find("words") say: for programs that only
        read what others train. Raises InvalidError: another number of rows or columns."""
        if (table.rows, table.columns) != (self.num_embeddings, self.embedding_dim):
            raise InvalidError(f'table "{table.name}" has {table.rows} rows by {table.columns}, '
                               f"the embedding {self.num_embeddings} by {self.embedding_dim}",
                               rank=table.client.rank, operation="Embedding")
        self._table = table

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002
        """The rows of these numbers. Raises InvalidError (a row that there is not, numbers
        that are not whole), PeerLostError."""
        if self._table is None:
            raise InvalidError("the embedding has no table yet; make a gradus.torch.ps.Optimizer "
                               "of the model first, or attach() one", operation="Embedding")
        if input.dtype not in (torch.int32, torch.int64):
            raise InvalidError(f"the rows are named by {input.dtype}; take torch.int32 or "
                               "torch.int64", rank=self._table.client.rank, operation="Embedding")
        used, places = torch.unique(input, return_inverse=True)  # in ascending order
        used = used.cpu()
        if len(used) and not (0 <= used[0] and used[-1] < self.num_embeddings):
            raise InvalidError(f"rows {int(used[0])} to {int(used[-1])} are asked for; there are "
                               f"0 to {self.num_embeddings - 1}", rank=self._table.client.rank,
                               operation="Embedding")
        numbers = used.to(torch.int32)
        rows = torch.empty(len(used), self.embedding_dim)
        version = self._table.pull(numbers, rows).version
        if self.padding_idx is not None:
            padding = used == self.padding_idx
            rows[padding] = 0
        if torch.is_grad_enabled():
            gradients, padding_idx = self._gradients, self.padding_idx

            def note(gradient: torch.Tensor) -> None:
                gradient = gradient.detach().clone()
                if padding_idx is not None:
                    gradient[padding] = 0
                gradients.append((numbers, gradient, version))
            rows.requires_grad_().register_hook(note)
        return torch.nn.functional.embedding(places, rows.to(input.device))


class _Item(NamedTuple):
    """A parameter, and its tensor on the servers."""

    param: torch.nn.Parameter
    tensor: Tensor


class Optimizer(torch.optim.Optimizer):
    """The parameters of a model on servers, which run the optimizer.

    Every worker makes it with the same arguments; the initial values are those of the worker that
    comes first, and all others get them. step() pushes the gradients and fills the parameters with
    the values that the servers have made of them.

    model     all of its parameters that need a gradient, of any floating type and on any device
              (servers keep f32), and all Embeddings in it. Buffers stay as they are: running
              statistics of a batch norm are the worker's own
    rule      the servers' optimizer: settings as under `optimizer:` in a job file, {"kind": "adam"}
              or {"kind": "sgd", "momentum": 0.9, "weight_decay": 1e-4} say
    lr        the learning rate; param_groups[0]["lr"] is pushed with each gradient, so torch's
              schedulers work
    client    a gradus.ps.Client with a worker's number; None: by the environment
    workers   how many workers there are; None: GRADUS_WORLD_SIZE, or 1

    consistency  "bsp": a step is made of the gradients of all workers, 0 to workers - 1, added in
                 the order of their numbers: all have the same values, and step() waits for all.
                 "async": each gradient is applied as it comes, with the whole learning rate; nobody
                 waits. "ssp": the same, but a worker waits while it is more than `staleness` steps
                 ahead of the slowest
    replicas_to_aggregate  with "bsp": a step is made of the first so many gradients; the other
                 workers are backup workers, whose gradients of that step are dropped
    adapt_rate   async, ssp: the rate of a gradient is divided by 1 + its staleness
    op           "average" or "sum" of a step's gradients; async and ssp do not care
    refuse_not_finite  a gradient with NaN or infinity changes nothing: NotFiniteError
    gradient_type      "f16", "bf16": gradients travel as that (not those of an Embedding)
    overlap      gradients are pushed while the backward pass goes on, each when it is there (of the
                 100 largest parameters). There is one backward pass to a step then, and gradients
                 are not changed, clipped say, before step()
    prefix       of the tensors' names on the servers, which are those of named_parameters()
    state        what state_dict() gave: servers that do not have the tensors yet go on from there

    Raises the errors of Client, and InvalidError: another worker says something else (a parameter
    of another size: the sentence has both). A worker that has died may be started again under its
    number, and goes on with the others' step; where servers have replicas one of them may die.

    One thread at a time. Ctrl-C ends a wait; the next call of step() or zero_grad() first finishes
    what was begun."""

    def __init__(self, model: torch.nn.Module, rule: Any, *, lr: float,
                 client: Optional[Client] = None, workers: Optional[int] = None,
                 consistency: str = "bsp", replicas_to_aggregate: Optional[int] = None,
                 staleness: int = 0, adapt_rate: bool = False, op: str = "average",
                 refuse_not_finite: bool = False, gradient_type: Any = "f32",
                 overlap: bool = False, prefix: str = "",
                 state: Optional[Dict[str, Any]] = None) -> None:
        named = [(name, param) for name, param in model.named_parameters()
                 if param.requires_grad and param.numel()]
        modules = [(name or "embedding", module) for name, module in model.named_modules()
                   if isinstance(module, Embedding)]
        self.client = client if client is not None else Client()
        workers = int(os.environ.get("GRADUS_WORLD_SIZE", "1")) if workers is None else workers
        self._ready = False
        self._prefix, self._workers = prefix, workers
        self._worker = self.client.worker
        self._check(named, modules, workers, consistency, replicas_to_aggregate, op)
        backup = replicas_to_aggregate is not None
        self._by_steps = consistency == "bsp"
        self._shard = self._worker if self._by_steps and not backup else 0
        self._factor = 1.0
        if self._by_steps and op == "average":
            self._factor = 1.0 / (replicas_to_aggregate or workers)
        same = {"consistency": "backup" if backup else consistency,
                "shards": workers if self._by_steps and not backup else 1,
                "aggregate": replicas_to_aggregate or 0, "total": workers if backup else 0,
                "staleness": staleness, "adapt_rate": adapt_rate, "optimizer": rule,
                "refuse_not_finite": refuse_not_finite}
        # Those of parameters that were pushed, whose values have not come.
        self._pending: Deque[Tuple[Future, Optional[Callable[[], Any]]]] = collections.deque()
        self._items = [_Item(param, self.client.declare(prefix + name, param.numel(),
                                                        gradient_type=gradient_type, **same))
                       for name, param in named]
        # What is pushed early is the same on all workers: each waits for the others' only when all
        # of its own are under way, whatever the order in which its gradients have come.
        by_size = sorted(self._items, key=lambda item: -item.param.numel())
        self._early = {item.tensor.name: item for item in by_size[:_EARLY] if overlap}
        self._pushed: Set[str] = set()  # of these, in this step
        self._words: Dict[str, Any] = {}  # of all pushes of a step, once it has begun
        self._embeddings = [module for _, module in modules]
        for name, module in modules:
            module.attach(self.client.declare_table(
                prefix + name, module.num_embeddings, module.embedding_dim, seed=module.seed,
                std=module.std, **same))
        super().__init__([param for _, param in named] or [torch.zeros(0)], {"lr": lr})
        self._ready = True
        if state is None:
            for param, tensor in self._items:
                tensor.set(_plain(param))
        else:
            self._restore(state)
        self.pull()
        self._hooks = [self._push_when_there(item) for item in self._early.values()]
        self._clock: Optional[int] = None
        if consistency == "ssp":  # who comes later begins about where the others are
            self._clock = self.version // workers
            self.client.clock(self._clock)

    def _check(self, named: List[Any], modules: List[Any], workers: int, consistency: str,
               replicas_to_aggregate: Optional[int], op: str) -> None:
        wrong = None
        names = [name for name, _ in named + modules]
        kinds = [name for name, param in named if not param.is_floating_point()]
        if consistency not in ("bsp", "async", "ssp"):
            wrong = f"consistency is {consistency!r}; it is bsp, async or ssp"
        elif op not in ("average", "sum"):
            wrong = f"op is {op!r}; it is average or sum"
        elif replicas_to_aggregate is not None and consistency != "bsp":
            wrong = f"replicas_to_aggregate is for consistency bsp, not {consistency}"
        elif replicas_to_aggregate is not None and not 1 <= replicas_to_aggregate <= workers:
            wrong = f"replicas_to_aggregate is {replicas_to_aggregate}; there are {workers} workers"
        elif self._worker < 0:
            wrong = ("the client only pulls; connect with a worker's number (Client(worker=0)), or "
                     "under gradus run")
        elif consistency == "bsp" and self._worker >= workers:
            wrong = f"this is worker {self._worker} of {workers}; they have the numbers from 0 on"
        elif kinds:
            wrong = f"parameter {kinds[0]} is not of a real floating type; servers keep f32"
        elif not names:
            wrong = "the model has no parameter that needs a gradient, and no Embedding"
        elif len(set(names)) < len(names):
            wrong = "a parameter and an Embedding have one name; rename one of them"
        if wrong is not None:
            raise InvalidError(wrong, rank=self.client.rank, operation="Optimizer")

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        if self._ready:
            raise InvalidError("all parameters are those of the model", rank=self.client.rank,
                               operation="Optimizer")
        super().add_param_group(param_group)

    # ---- Steps -----------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Updates that are in all values that this worker has: in bsp the number of steps."""
        return min([item.tensor.version for item in self._items] +
                   [module._table.version for module in self._embeddings])

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._drain()
        super().zero_grad(set_to_none)
        for module in self._embeddings:
            module._gradients.clear()

    @torch.no_grad()
    def step(self, closure: Optional[Callable[[], Any]] = None) -> Any:
        """Pushes the gradients, and fills the parameters with the new values. bsp: waits until all
        workers, or as many as are aggregated, have pushed theirs. Raises NotFiniteError,
        PeerLostError, NoMemoryError."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        try:
            self._exchange(self._begin())
        finally:
            self._pushed.clear()
            self._words = {}
        self._drain()
        if self._clock is not None:
            self._clock += 1
            self.client.clock(self._clock)
        return loss

    def _exchange(self, push: Dict[str, Any]) -> None:
        """Begins what is left of a step."""
        for name, item in self._early.items():
            if name not in self._pushed and (self._by_steps or item.param.grad is not None):
                self._push_early(item)
        for module in self._embeddings:
            self._push_rows(module, push)
        if self._early and not self._by_steps:
            self._drain()  # this worker's gradients are in what it pulls
        for item in self._items:
            if item.tensor.name in self._early:
                self._pull(item, push["step"] + 1 if self._by_steps else 0)
            else:
                self._push(item, push)

    def pull(self) -> None:
        """Fills the parameters with the values that the servers have now: those of other workers'
        pushes as well, for an evaluation say."""
        self._drain()
        for item in self._items:
            self._pull(item)
        for module in self._embeddings:
            self._add(module._table.pull_start([]))  # its version
        self._drain()

    def finish(self) -> None:
        """Behind the last step: waits until all `workers` have come here, each with a number below
        that, and fills the parameters with the last values, which are the same for all."""
        self._drain()
        if self._clock is not None:  # nobody waits for it any more
            self.client.clock(_OVER)
        self._meet("finished")
        self.pull()

    def _meet(self, what: str) -> None:
        tensors = [item.tensor for item in self._items]
        tables = [module._table for module in self._embeddings]
        self.client.barrier(f"{what} {[*tensors, *tables][0].name}", self._workers)

    def _begin(self) -> Dict[str, Any]:
        """The first push of a step finishes what an interrupted one has left."""
        if not self._words:
            self._drain()
            self._words = {"first": self._shard, "rate": float(self.param_groups[0]["lr"]),
                           "factor": self._factor}
            if self._by_steps:
                self._words["step"] = self.version
        return self._words

    def _push_when_there(self, item: _Item) -> Any:
        reference = weakref.ref(self)  # the parameter may outlive this optimizer
        name = item.tensor.name

        def hook(_: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is None:
                return
            if name in optimizer._pushed:
                raise InvalidError(f'the gradient of "{name}" has come a second time, and was '
                                   "pushed the first time; call step() behind each backward pass, "
                                   "or do without overlap=True", rank=optimizer.client.rank,
                                   operation="Optimizer")
            try:
                optimizer._push_early(optimizer._early[name])
            except NotFiniteError:  # so it is for step(), which raises it
                pass
        return _tensors.call_after_gradient(item.param, hook)

    @torch.no_grad()
    def _push_early(self, item: _Item) -> None:
        gradient, sparse = self._gradient(item)
        push = self._begin()
        future = item.tensor.push_start(gradient, sparse=sparse, **push)
        self._pushed.add(item.tensor.name)
        self._add(future)

    def _pull(self, item: _Item, version: int = 0) -> None:
        out = _place(item.param)
        self._add(item.tensor.pull_start(out, version=version), item.param, out)

    def _gradient(self, item: _Item) -> Tuple[torch.Tensor, bool]:
        """As servers take it, and whether most of it is zero."""
        gradient = item.param.grad
        if gradient is None:
            return torch.zeros(item.param.numel()), True
        sparse = gradient.is_sparse
        return _plain(gradient.to_dense() if sparse else gradient), sparse

    def _push(self, item: _Item, push: Dict[str, Any]) -> None:
        if item.param.grad is None and not self._by_steps:
            self._pull(item)
            return
        gradient, sparse = self._gradient(item)  # in bsp others wait for it
        out = _place(item.param)
        self._add(item.tensor.push_pull_start(gradient, out, sparse=sparse, **push), item.param,
                  out)

    def _push_rows(self, module: Embedding, push: Dict[str, Any]) -> None:
        rows, gradients, version = torch.zeros(0, dtype=torch.int32), torch.zeros(0), None
        if module._gradients:
            rows = torch.cat([one[0] for one in module._gradients])
            gradients = torch.cat([one[1] for one in module._gradients])
            version = min(one[2] for one in module._gradients)
            module._gradients.clear()
        elif not self._by_steps:
            return
        self._add(module._table.push_start(rows, gradients, version=version, **push))

    def _add(self, future: Future, param: Optional[torch.Tensor] = None,
             out: Optional[torch.Tensor] = None) -> None:
        fill = None
        if param is not None and out is not param.data and out.data_ptr() != param.data_ptr():
            fill = lambda: param.data.copy_(out.view(param.shape))  # noqa: E731
        self._pending.append((future, fill))
        if len(self._pending) >= _UNDER_WAY:
            self._drain_one()

    def _drain_one(self) -> None:
        future, fill = self._pending[0]
        future.exception()  # Ctrl-C leaves it where it is
        self._pending.popleft()
        future.result()
        if fill is not None:
            fill()

    def _drain(self) -> None:
        failed: Optional[Error] = None
        while self._pending:
            try:
                self._drain_one()
            except Error as error:  # the others are finished nevertheless
                failed = failed or error
        if failed is not None:
            raise failed

    # ---- Checkpoints -----------------------------------------------------------------------------

    def state_dict(self) -> Dict[str, Any]:
        """What torch keeps of an optimizer, and in "servers" the values, the rows of Embeddings
        that were pushed, and the servers' states of the optimizer: for Optimizer(state=...) with
        new servers, of any number. In bsp any worker calls it between two of its steps, and gets
        all of one version; else each tensor is as it is at that moment."""
        self._drain()
        version = self.version if self._by_steps else 0
        kept: Dict[str, Any] = {}
        for _, tensor in self._items:
            before = tensor.version
            values, states, came = tensor.pull_whole(version=version)
            tensor.version = before  # the parameters have the values of that one
            kept[self._name_of(tensor)] = {
                "values": torch.tensor(values), "version": came,
                "states": [torch.tensor(state) for state in states]}
        for module in self._embeddings:
            table = module._table
            parts = list(table.scan(version=version))
            kept[self._name_of(table)] = {
                "rows": _joined([part.rows for part in parts], torch.int64),
                "values": _joined([part.values for part in parts], torch.float32),
                "states": [_joined([part.states[i] for part in parts], torch.float32)
                           for i in range(table.states)],
                "version": min((part.version for part in parts), default=table.version)}
        return {**super().state_dict(), "servers": kept}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Takes the learning rate alone. Servers that have values keep them: a training goes on
        from a state by Optimizer(state=...) with new servers."""
        super().load_state_dict({name: part for name, part in state_dict.items()
                                 if name != "servers"})

    def _name_of(self, tensor: Any) -> str:
        return tensor.name[len(self._prefix):]

    def _restore(self, state: Dict[str, Any]) -> None:
        kept = state.get("servers", {})
        tensors = [tensor for _, tensor in self._items]
        tables = [module._table for module in self._embeddings]
        for name in map(self._name_of, [*tensors, *tables]):
            if name not in kept:
                raise InvalidError(f'the state has no "{name}", which the model has; it is of '
                                   "another model, or not of state_dict()", rank=self.client.rank,
                                   operation="Optimizer")
        for tensor in tensors:
            old = kept[self._name_of(tensor)]
            tensor.restore(_plain(old["values"]), old["states"], old["version"])
        for table in tables if self._worker == 0 else ():
            old = kept[self._name_of(table)]
            table.restore(old["rows"], _plain(old["values"]), old["states"], old["version"])
        self._meet("restored")  # nobody pulls rows before they are there
        self.load_state_dict(state)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """As servers take it."""
    return tensor.detach().to("cpu", torch.float32).contiguous()


def _place(param: torch.nn.Parameter) -> torch.Tensor:
    """Memory that values come to: the parameter's own, where that can be."""
    data = param.data
    if data.device.type == "cpu" and data.dtype == torch.float32 and data.is_contiguous():
        return data
    return torch.empty(data.numel())


def _joined(parts: List[Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.zeros(0, dtype=dtype), *(torch.tensor(part, dtype=dtype)
                                                    for part in parts)])

# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: gradients are averaged over the ranks while backward goes on."""
import contextlib
import warnings
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple, Union

import torch

from .._engine import HorovodInternalError
from .._objects import broadcast_object
from .._submit import forget
from .._world import ProcessSet, global_process_set, size, world
from . import _tensors
from ._compression import Compression
from ._ops import (Adasum, Average, ReduceOp, allreduce_async, allreduce_async_,
                   grouped_allreduce_async_, sparse_allreduce_async, synchronize)

Groups = Union[None, int, Sequence[Sequence[torch.Tensor]]]


class _Wrapper:
    """What both forms share: names, and the optimizer whose attributes they have."""

    def _names_of(self, named_parameters: Optional[Iterable[Tuple[str, Any]]]) -> None:
        parameters = [one for group in self.param_groups for one in group["params"]]
        if named_parameters is None:
            named = [(f"noname.{i}.{j}", one) for i, group in enumerate(self.param_groups)
                     for j, one in enumerate(group["params"])]
        else:
            named = list(named_parameters)
            if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in named):
                raise ValueError("named_parameters is no sequence of (name, parameter); pass "
                                 "model.named_parameters()")
        names = [name for name, _ in named]
        twice = sorted({name for name in names if names.count(name) > 1}) \
            if len(set(names)) < len(names) else []
        if twice:
            raise ValueError(f"parameters have the same names: {', '.join(twice)}; with several "
                             "models put something in front of each name")
        known = {id(parameter) for _, parameter in named}
        without = sum(id(one) not in known for one in parameters)
        if without:
            raise ValueError(f"{without} of the optimizer's {len(parameters)} parameters have no "
                             "name in named_parameters; name all, or pass none")
        self._parameter_names: Dict[torch.Tensor, str] = {one: name for name, one in named}

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        """As the optimizer's; all ranks add the same. Parameters that named_parameters has not
        named have the name of their place."""
        super().add_param_group(param_group)
        at = len(self.param_groups) - 1
        for j, one in enumerate(self.param_groups[at]["params"]):
            self._parameter_names.setdefault(one, f"noname.{at}.{j}")


class _Distributed(_Wrapper):
    """In front of the class of the optimizer, whose attributes it shares: its own begin with
    _hvd_."""

    def _hvd_begin(self, named_parameters: Any, compression: Any, backward_passes_per_step: int,
                   op: ReduceOp, predivide: float, groups: Groups, sparse_as_dense: bool,
                   process_set: ProcessSet) -> None:
        self._names_of(named_parameters)
        self._hvd_compression = compression
        self._hvd_op = op
        self._hvd_predivide = predivide
        self._hvd_sparse_as_dense = sparse_as_dense
        self._hvd_set = process_set
        self.backward_passes_per_step = backward_passes_per_step
        self._hvd_handles: Dict[torch.Tensor, Tuple[Any, Any]] = {}
        self._hvd_synchronized = False
        self._hvd_should_synchronize = True
        self._hvd_hooks: List[Any] = []  # they must live
        self._hvd_left: Dict[torch.Tensor, int] = {}  # passes, of all that are reduced
        self._hvd_groups: Dict[torch.Tensor, Tuple[str, List[torch.Tensor]]] = {}
        self._hvd_come: Dict[str, set] = {}
        self._hvd_sparse_dims: Dict[torch.Tensor, int] = {}  # of those whose gradients are sparse
        # As in Horovod gradients of a process that stays alone are its own, as often as they come.
        self._hvd_reduces = process_set.included() and (size() > 1 or world.elastic)
        self._hvd_take()
        if process_set.included():
            self._hvd_make_groups(groups)

    def _hvd_take(self) -> None:
        """Parameters that are new, or need a gradient since now, are reduced."""
        for one in [one for group in self.param_groups for one in group["params"]]:
            if one.requires_grad and one not in self._hvd_left:
                self._hvd_left[one] = self.backward_passes_per_step
                if self._hvd_reduces:
                    self._hvd_hook(one)

    def add_param_group(self, param_group: Dict[str, Any]) -> None:
        super().add_param_group(param_group)
        self._hvd_take()

    def _hvd_make_groups(self, groups: Groups) -> None:
        """A group is reduced when all of its gradients are there."""
        if not groups:
            return
        if isinstance(groups, int):
            if groups < 0:
                raise ValueError(f"groups is {groups}; it is a number of groups, or a list of "
                                 "lists of parameters")
            by_name = {self._parameter_names[one]: one for one in self._hvd_left}
            # Rank 0's order counts: the sets of names may be ordered differently elsewhere.
            order = broadcast_object(list(by_name), self._hvd_set.ranks[0], name="hvd.groups",
                                     process_set=self._hvd_set)
            least, more = divmod(len(order), groups)
            lists, at = [], 0
            for index in range(groups):
                end = at + least + (index < more)
                lists.append([by_name[name] for name in order[at:end]])
                at = end
        else:
            lists = [list(one) for one in groups]
        for members in lists:
            members = [one for one in members if one in self._hvd_left]
            for kind in {one.dtype for one in members}:
                alike = [one for one in members if one.dtype == kind]
                name = f"group.{self._parameter_names[alike[0]]}"
                for one in alike:
                    if one in self._hvd_groups:
                        raise ValueError(f"parameter {self._parameter_names[one]} is in two groups")
                    self._hvd_groups[one] = (name, alike)

    def _hvd_hook(self, parameter: torch.Tensor) -> None:
        reference = weakref.ref(self)  # the parameter may outlive this optimizer

        def hook(parameter: torch.Tensor) -> None:
            optimizer = reference()
            if optimizer is not None:
                optimizer._hvd_ready(parameter)
        self._hvd_hooks.append(_tensors.call_after_gradient(parameter, hook))

    def _hvd_ready(self, parameter: torch.Tensor) -> None:
        """Its gradient has come, once more."""
        if self._hvd_left[parameter] <= 0:
            raise AssertionError(
                f"the gradient of {self._parameter_names[parameter]} was computed more than "
                f"{self.backward_passes_per_step} times (backward_passes_per_step) without step() "
                "or synchronize(); raise that number, or call one of them")
        self._hvd_left[parameter] -= 1
        if self._hvd_left[parameter] == 0:
            self._hvd_submit(parameter)

    def _hvd_submit(self, parameter: torch.Tensor) -> None:
        if parameter.grad is None:
            parameter.grad = self._hvd_zeros(parameter)
        if parameter.grad.is_sparse:
            self._hvd_sparse_dims[parameter] = parameter.grad.sparse_dim()
            if self._hvd_sparse_as_dense:
                parameter.grad = parameter.grad.to_dense()
        name = self._parameter_names[parameter]
        if parameter.grad.is_sparse and parameter in self._hvd_groups:
            raise ValueError(f"the gradient of {name} is sparse, and a group is reduced as one "
                             "dense tensor; leave it out of groups, or say sparse_as_dense=True")
        if parameter.grad.is_sparse:
            self._hvd_handles[parameter] = sparse_allreduce_async(
                parameter.grad, name, self._hvd_op, self._hvd_set), None
            return
        factors = {"prescale_factor": 1 / self._hvd_predivide,
                   "postscale_factor": self._hvd_predivide} if self._hvd_predivide != 1 else {}
        if parameter in self._hvd_groups:
            self._hvd_submit_group(parameter, factors)
            return
        travels, context = self._hvd_compression.compress(parameter.grad)
        handle = allreduce_async_(travels, name=name, op=self._hvd_op, process_set=self._hvd_set,
                                  **factors)
        self._hvd_handles[parameter] = handle, (travels, context)

    def _hvd_zeros(self, parameter: torch.Tensor) -> torch.Tensor:
        """A gradient, of the kind that this parameter has had."""
        dims = self._hvd_sparse_dims.get(parameter)
        if dims is None:
            return torch.zeros_like(parameter)
        shape = parameter.shape
        return torch.sparse_coo_tensor(torch.zeros(dims, 0, dtype=torch.int64),
                                       parameter.new_zeros(0, *shape[dims:]), shape)

    def _hvd_submit_group(self, parameter: torch.Tensor, factors: Dict[str, float]) -> None:
        name, members = self._hvd_groups[parameter]
        come = self._hvd_come.setdefault(name, set())
        come.add(parameter)
        self._hvd_handles[parameter] = None, None
        if len(come) < len(members):
            return
        del self._hvd_come[name]
        pairs = [self._hvd_compression.compress(one.grad) for one in members]
        handle = grouped_allreduce_async_([pair[0] for pair in pairs], name=name, op=self._hvd_op,
                                          process_set=self._hvd_set, **factors)
        for one, pair in zip(members, pairs):
            self._hvd_handles[one] = handle, pair
            handle = None  # it is synchronized once

    def synchronize(self) -> None:
        """Waits until all gradients are the ranks' averages. Those that backward has not reached
        count as zeros: sparse ones where an earlier one of the parameter was sparse."""
        if not self._hvd_reduces:
            self._hvd_synchronized = True
            return
        self._hvd_take()
        for parameter in self._hvd_left:
            if parameter not in self._hvd_handles:
                self._hvd_submit(parameter)
        try:
            # All of a group have been waited for when the first one of it has.
            for parameter, (handle, travelled) in self._hvd_handles.items():
                self._hvd_wait(parameter, handle)
                self._hvd_handles[parameter] = None, travelled  # after Ctrl-C it goes on from here
            for parameter, (_, travelled) in self._hvd_handles.items():
                if travelled is not None:
                    found = self._hvd_compression.decompress(*travelled)
                    if found is not parameter.grad:
                        parameter.grad.copy_(found)
                if self._hvd_sparse_as_dense and parameter in self._hvd_sparse_dims:
                    # Its optimizer may want nothing else.
                    parameter.grad = parameter.grad.to_sparse(self._hvd_sparse_dims[parameter])
        except Exception:
            self._hvd_reset()
            raise
        self._hvd_reset()
        self._hvd_synchronized = True

    def _hvd_wait(self, parameter: torch.Tensor, handle: Any) -> None:
        try:
            if callable(handle):
                parameter.grad = handle()
            elif handle is not None:
                synchronize(handle)
        except HorovodInternalError as error:
            name = self._parameter_names[parameter]
            if f"'allgather.{name}." not in str(error):
                raise
            raise HorovodInternalError(
                f"{error}; the gradient of {name} is sparse on some ranks, and others, which have "
                "had none of it yet, do not know: say sparse_as_dense=True") from error

    def _hvd_reset(self) -> None:
        """What is under way is waited for, and counts no more."""
        for handle, _ in self._hvd_handles.values():
            forget(handle)
        self._hvd_handles, self._hvd_come = {}, {}
        self._hvd_left = dict.fromkeys(self._hvd_left, self.backward_passes_per_step)

    @contextlib.contextmanager
    def skip_synchronize(self):
        """step() inside does not wait: for a program that has called synchronize() itself, to clip
        gradients say."""
        self._hvd_should_synchronize = False
        try:
            yield
        finally:
            self._hvd_should_synchronize = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """So many backward passes come before each step() from now on."""
        self.backward_passes_per_step = passes
        self._hvd_left = dict.fromkeys(self._hvd_left, passes)

    def step(self, closure: Any = None) -> Any:
        """Waits for the gradients, and makes the step of the optimizer. Those that a closure makes
        are waited for behind each call of it. An optimizer that decides by the loss, as LBFGS does,
        wants the same one on all ranks: the closure returns hvd.allreduce(loss)."""
        if self._hvd_should_synchronize:
            if self._hvd_synchronized:
                warnings.warn("optimizer.step() called without optimizer.skip_synchronize() after "
                              "optimizer.synchronize(): gradients are reduced a second time; call "
                              "it in `with optimizer.skip_synchronize():`")
            if closure is None:
                self.synchronize()
            else:
                closure = self._hvd_synchronizing(closure)
        try:
            return super().step() if closure is None else super().step(closure)
        finally:
            self._hvd_synchronized = False

    def _hvd_synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            loss = closure()
            self.synchronize()
            return loss
        return run

    step.hooked = True  # for torch: its hooks of a step are called by the step within this one

    def zero_grad(self, *arguments: Any, **named: Any) -> None:
        """As the optimizer's; not while gradients are under way."""
        if self._hvd_handles:
            raise AssertionError("zero_grad() between backward() and step(): the gradients are "
                                 "under way; call step() or synchronize() before")
        super().zero_grad(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> None:
        """As the optimizer's. Gradients that are under way are waited for, and forgotten."""
        self._hvd_reset()
        self._hvd_synchronized = False
        super().load_state_dict(*arguments, **named)


class _DistributedAdasum(_Wrapper):
    """Each rank makes a step of its own; what the steps have changed is combined by Adasum."""

    def _hvd_begin(self, named_parameters: Any, compression: Any, backward_passes_per_step: int,
                   process_set: ProcessSet) -> None:
        self._names_of(named_parameters)
        self._hvd_compression = compression
        self._hvd_set = process_set
        self.backward_passes_per_step = backward_passes_per_step

    def synchronize(self) -> None:
        """Gradients stay as they are: there is nothing to wait for."""

    @contextlib.contextmanager
    def skip_synchronize(self):
        """Cannot be: what is combined is the step."""
        raise AssertionError("skip_synchronize() with op=Adasum: the steps are combined, not the "
                             "gradients")
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Has no effect: gradients add up until step()."""
        self.backward_passes_per_step = passes

    def step(self, closure: Any = None) -> Any:
        """A local step, of which the ranks' changes are combined."""
        parameters = [one for group in self.param_groups for one in group["params"]
                      if one.requires_grad]
        before = [one.detach().clone() for one in parameters]
        loss = super().step() if closure is None else super().step(closure)
        if not self._hvd_set.included():
            return loss
        under_way = []
        for parameter, start in zip(parameters, before):
            delta, context = self._hvd_compression.compress(parameter.detach() - start)
            under_way.append((allreduce_async(
                delta, name=f"delta.{self._parameter_names[parameter]}", op=Adasum,
                process_set=self._hvd_set), context))
        with torch.no_grad():
            for parameter, start, (handle, context) in zip(parameters, before, under_way):
                delta = self._hvd_compression.decompress(synchronize(handle), context)
                parameter.copy_(start + delta)
        return loss

    step.hooked = True  # as above


def DistributedOptimizer(  # noqa: N802
        optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
        compression: Any = Compression.none, backward_passes_per_step: int = 1,
        op: ReduceOp = Average, gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Groups = None, sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set) -> Any:
    """Returns an optimizer of the same kind, with the same parameters and state, whose step()
    uses the gradients of all ranks.

    named_parameters  model.named_parameters(): ranks match gradients by these names
    backward_passes_per_step
                      gradients add up so often before they are reduced
    op                Average, Sum, or Adasum: each rank's step is combined
    gradient_predivide_factor
                      gradients are divided by it before they are added, and by the number of ranks
                      over it behind that; with Average
    groups            number of groups, or lists of parameters: a group is reduced as one
    sparse_as_dense   sparse gradients become dense before they travel
    """
    if gradient_predivide_factor != 1.0 and op is not Average:
        raise ValueError("gradient_predivide_factor goes with op=Average alone")
    if num_groups:
        warnings.warn("num_groups is deprecated; say groups", DeprecationWarning)
        groups = groups or num_groups
    if groups is not None and not isinstance(groups, (int, list, tuple)):
        raise ValueError(f"groups is a {type(groups).__name__}; it is a number, or a list of lists "
                         "of parameters")
    base = _DistributedAdasum if op is Adasum else _Distributed
    kind = type(optimizer.__class__.__name__, (base, optimizer.__class__), {})
    wrapped = kind.__new__(kind)
    wrapped.__dict__.update(optimizer.__dict__)
    wrapped.__dict__.pop("step", None)  # a scheduler of the optimizer has put it there
    words = (named_parameters, compression, backward_passes_per_step)
    if op is Adasum:
        wrapped._hvd_begin(*words, process_set)
    else:
        wrapped._hvd_begin(*words, op, gradient_predivide_factor, groups, sparse_as_dense,
                           process_set)
    return wrapped

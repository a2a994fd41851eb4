# SPDX-License-Identifier: Apache-2.0
"""What Horovod's collectives have in common for all frameworks: operations, names, handles."""
import contextlib
import itertools
import threading
from typing import Any, Iterable, List, Optional, Sequence, Tuple

from ._engine import HorovodInternalError, Request, Signature
from ._engine import ended_handles as _ended
from ._engine import handles as _handles
from ._world import ProcessSet, global_process_set, world

Handle = int


class ReduceOp:
    """How contributions become one."""

    def __init__(self, name: str, op: str) -> None:
        self.name = name
        self.op = op

    def __repr__(self) -> str:
        return f"horovod.{self.name}"

    def __reduce__(self):
        return self.name


Average = ReduceOp("Average", "average")
Sum = ReduceOp("Sum", "sum")
Adasum = ReduceOp("Adasum", "adasum")
Min = ReduceOp("Min", "min")
Max = ReduceOp("Max", "max")
Product = ReduceOp("Product", "product")

_UNNAMED = 16  # so many tensors without a name are under way at a time; more wait
_handles_made = 0
_lock = threading.Lock()


def op_of(op: Optional[ReduceOp], average: Optional[bool]) -> ReduceOp:
    """That of the arguments `op` and `average`."""
    if op is not None and average is not None:
        raise ValueError("op and average are given; give op alone")
    if op is not None:
        if not isinstance(op, ReduceOp):
            raise ValueError(f"op is {op!r}; it is Average, Sum, Adasum, Min, Max or Product")
        return op
    return Sum if average is False else Average


def check_types(op: ReduceOp, kind: str, dtypes: Iterable[str]) -> None:
    """Adasum projects vectors of real numbers onto each other."""
    wrong = next((one for one in dtypes if one.startswith("complex")), None) \
        if op is Adasum else None
    if wrong is not None:
        raise ValueError(f"{kind} of {wrong} with Adasum, which is of real numbers; use Average or "
                         "Sum")


class Made(str):
    """A name that is made here: a tensor waits for an earlier one of its name. Those without a name
    meet in the order in which they are submitted."""


def name_of(kind: str, name: Optional[str], process_set: ProcessSet) -> str:
    """The name that ranks meet by."""
    if name is not None:
        return Made(f"{kind}.{name}") if isinstance(name, Made) else f"{kind}.{name}"
    engine = world.engine(process_set)
    with _lock:
        count = engine.unnamed.setdefault(kind, itertools.count())
        return Made(f"{kind}.noname.{next(count) % _UNNAMED}")


def root_of(root_rank: int, process_set: ProcessSet) -> int:
    """The number in the process set of a rank of the job."""
    world.engine(process_set)
    if root_rank not in process_set.ranks:
        raise ValueError(f"broadcast from rank {root_rank}, which is none of the ranks "
                         f"{process_set.ranks}")
    return process_set.ranks.index(root_rank)


def splits_of(splits: Optional[Sequence[int]], rows: int, process_set: ProcessSet) -> List[int]:
    """How many rows of an alltoall go to each rank: equally many, where nothing is said."""
    members = world.engine(process_set).size
    if splits is None:
        if rows % members:
            raise ValueError(f"alltoall of {rows} rows among {members} ranks without splits; say "
                             "how many go to each")
        return [rows // members] * members
    parts = [int(part) for part in splits]
    if len(parts) != members or min(parts) < 0 or sum(parts) != rows:
        raise ValueError(f"splits {parts} of {rows} rows; there is one for each of {members} ranks,"
                         f" none is negative, and together they are {rows}")
    return parts


def submit(request: Request, process_set: ProcessSet, wake: bool) -> Any:
    """Returns a handle; without `wake` the result, for which it waits."""
    engine = world.engine(process_set)
    engine.submit(request, wake)
    if not wake:
        return engine.wait(request)
    global _handles_made
    with _lock:
        handle = _handles_made
        _handles_made += 1
    _handles[handle] = (engine, request)
    return handle


def poll(handle: Handle) -> bool:
    """Whether it is over, so that synchronize does not wait."""
    return _entry(handle)[1].over


def synchronize(handle: Handle) -> Any:
    """Waits, and returns what the form without _async returns; None a second time."""
    if isinstance(handle, int) and 0 <= handle < _handles_made and \
            handle not in _handles and handle not in _ended:
        return None
    engine, request = _entry(handle)
    try:
        return engine.wait(request)
    finally:
        if request.over:
            _handles.pop(handle, None)


def _entry(handle: Handle) -> Tuple[Any, Request]:
    if callable(handle):
        raise ValueError("the handle of sparse_allreduce_async is called, not synchronized")
    if handle not in _handles:
        raise ValueError(f"{handle!r} is no handle of an operation, or its process set was removed")
    return _handles[handle]


def forget(handle: Any) -> None:
    """Nobody is going to synchronize it. Waits until it is over, so that its name and its memory
    are free, whatever has come of it."""
    for one in getattr(handle, "handles", (handle,)):
        engine, request = _handles.pop(one, (None, None))
        if engine is not None:
            with contextlib.suppress(HorovodInternalError):
                engine.wait(request)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the process set has called it."""
    request = Request(name_of("barrier", None, process_set), Signature("barrier"), [], [], None,
                      True)
    submit(request, process_set, False)


def join(device: int = -1) -> int:
    """This rank has no more data: it gives zeros to the allreduces of the others until all have
    called it. Returns the rank that was last. `device` is ignored."""
    return submit(Request("join", Signature("join"), [], [], None), global_process_set, False)


__all__ = ["Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum", "barrier", "join",
           "poll", "synchronize"]

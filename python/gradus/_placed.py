# SPDX-License-Identifier: Apache-2.0
"""Workers that another system has placed, Ray or Spark: how they become ranks, and what is said of
a function that failed there."""
import contextlib
import os
import pickle
import sys
import time
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

from . import _communicator, _run
from .errors import AbortedError, InvalidError

Outcome = Dict[str, Any]
Gather = Callable[[bytes], Sequence[bytes]]


class Rounds:
    """Gathers for communicators as long as all ranks come. A rank whose function has ended takes
    part in all rounds, until the others have ended as well: it does not keep those waiting that
    make a communicator, and they hear why it makes none."""

    def __init__(self, gather: Gather) -> None:
        self._gather = gather

    def gather(self, part: bytes) -> List[bytes]:
        parts = self._gather(b"+" + part)
        for rank, one in enumerate(parts):
            if one[:1] == b"-":
                raise AbortedError(f"rank {rank} {one[1:].decode()}", peer=rank)
        return [one[1:] for one in parts]

    def end(self, outcome: Outcome) -> None:
        """Returns when all ranks have called it."""
        why = "has returned, and makes no communicator" if outcome["ok"] else \
            f"failed: {outcome['text']}"
        while any(one[:1] == b"+" for one in self._gather(b"-" + why.encode())):
            pass


@contextlib.contextmanager
def rank_of(rank: int, size: int, gather: Gather, env: Mapping[str, str]) -> Iterator[None]:
    """Within it Communicator() is one of these ranks, and the environment says so as well."""
    told = {"RANK": str(rank), "WORLD_SIZE": str(size), **env}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    _communicator.place({"rank": rank, "size": size, "allgather": gather})
    try:
        yield
    finally:
        _communicator.place(None)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def outcome_of(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], rank: int,
               *, leave: bool = False) -> Outcome:
    """What the function does on a worker: its result, or its failure. That ends what peers wait
    for in communicators of the function, since the process lives on. With `leave` the process will
    run other functions, and nothing of this one stays open."""
    before = _communicator.open_now()
    try:
        value = fn(*args, **kwargs)
        try:
            return {"ok": True, "value": _run.dumps(value)}
        except Exception as error:
            raise InvalidError(f"the result, a {type(value).__name__}, cannot be pickled: {error}",
                               rank=rank) from error
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        for comm in _communicator.open_now() - before:
            with contextlib.suppress(InvalidError):  # another thread closes it
                comm.abort(f"rank {rank} failed: {type(error).__name__}: {error}")
        return _run.failure_of(error)
    finally:
        if leave:
            world = sys.modules.get("gradus._world")
            if world is not None:
                world.world.leave()
            for comm in _communicator.open_now() - before:
                comm.close()


def failure(text: str, *, follows: bool) -> Outcome:
    """That of a worker which has not said anything."""
    return {"ok": False, "follows": follows, "at": time.time_ns(), "text": text, "traceback": "",
            "error": None}


def values_of(outcomes: Sequence[Outcome]) -> List[Any]:
    """The results. RankError: the rank that failed by itself, not since another one did."""
    rank = _run.first_failure(dict(enumerate(outcomes)))
    if rank is not None:
        raise _run.error_of_rank(rank, outcomes[rank])
    return [pickle.loads(one["value"]) for one in outcomes]

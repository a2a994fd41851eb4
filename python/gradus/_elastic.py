# SPDX-License-Identifier: Apache-2.0
"""Training that goes on when workers die, leave and join, whatever framework it uses: states, and
hvd.elastic.run. The processes of the survivors stay; only the group of ranks becomes another
one."""
import copy
import functools
import logging
from typing import Any, Callable, Dict, List, Optional, Sequence

from ._engine import HorovodInternalError, HostsUpdatedInterrupt
from ._objects import any_of, broadcast_object
from ._process import WorkerExit
from ._world import rank, world
from .errors import CancelledError, Error, UnsupportedError

_LOST_PEERS = 76  # the launcher looks for the rank that failed first

_log = logging.getLogger("gradus.elastic")


broadcast_state = functools.partial(broadcast_object, name="elastic.state")


class _HostMessages:
    """In the place of a queue of Horovod's states, by which programs wait for a change."""

    def __init__(self, state: "State") -> None:
        self._state = state

    def empty(self) -> bool:
        """Whether this rank knows of no change."""
        return not (self._state._hosts_updated or world.comm().change_wanted())


class State:
    """What survives a change of the workers. save, restore and sync say how."""

    def __init__(self, bcast_object: Optional[Callable[..., Any]] = None,
                 get_rank: Optional[Callable[[], int]] = None) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._reset_callbacks: List[Callable[[], None]] = []
        self._hosts_updated = False
        self._host_messages = _HostMessages(self)

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
        if any_of(not self._host_messages.empty(), "elastic.hosts_updated"):
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
    """A state of attributes that pickle: ObjectState(hvd.broadcast_object, hvd.rank, epoch=0).
    `bcast_object` is called with what rank 0 has for all."""

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
            self._saved_state = self._bcast_object(self._saved_state)
            self._set()


def _is_failure(error: Exception) -> bool:
    """Whether a collective has failed. Where one runs inside of a compiled step, the framework
    raises an error of its own with the text of ours."""
    return isinstance(error, HorovodInternalError) or HorovodInternalError.__name__ in str(error)


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of a function whose first argument is a State. When a worker is lost the state of
    the last commit is restored, when workers join or leave it goes on as it is; in both cases the
    workers meet anew, all get the state of rank 0, and the function is called again."""
    @functools.wraps(func)
    def wrapper(state: State, *arguments: Any, **named: Any) -> Any:
        was_reset = skip_sync = False
        while True:
            try:
                if was_reset:
                    state.on_reset()
                if not skip_sync:
                    state.sync()
                return func(state, *arguments, **named)
            except HostsUpdatedInterrupt as interrupt:
                _renew(interrupt)
                skip_sync = interrupt.skip_sync
            except Exception as error:
                if not _is_failure(error):
                    raise
                _log.warning("rank %d goes back to the last commit: %s", rank(), error)
                _renew(error)
                state.restore()
                skip_sync = False
            was_reset = True
    return wrapper


def _renew(cause: Exception) -> None:
    """The workers that live, and those that have come, become the ranks."""
    try:
        world.renew()
    except CancelledError:
        raise WorkerExit(0) from None  # this worker is not needed any more
    except UnsupportedError as error:
        raise cause from error
    except Error as error:
        _log.error("the job cannot go on here: %s", error)
        raise WorkerExit(_LOST_PEERS) from error

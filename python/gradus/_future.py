# SPDX-License-Identifier: Apache-2.0
"""Operations under way, and the thread that calls what was asked to be called at their end."""
import logging
import os
import select
import threading
import time
from ctypes import byref, c_int, c_void_p
from itertools import compress
from typing import Any, Callable, Iterator, List, Optional

from ._library import lib
from .errors import Error, InvalidError, Status, TimeoutError

SLICE_S = 0.05  # how long a wait goes on before Python looks for signals, Ctrl-C say


Held = List[Callable[[], Any]]  # what gives back what a thread has taken


def take(lock: Any, held: Held, seconds: float = -1.0) -> None:
    """Takes the lock, if that is possible within so many seconds, and notes in `held` how it is
    given back. Ctrl-C comes before both or behind both, so that whoever writes

        held: Held = []
        try:
            take(lock, held)
            ...
        finally:
            for leave in held:
                leave()

    does not keep it."""
    held.extend(compress((lock.release,), map(lock.acquire, (True,), (seconds,))))


class Future:
    """An operation that goes on while the program does something else.

    Its buffers are borrowed until it is over: they must not be read, written or resized. Any thread
    may call any method, and several at a time.
    """

    def __init__(self, comm: Any, operation: str, buffers: List[Any], value: Any) -> None:
        self._comm = comm
        self._op = c_void_p()
        self._buffers = buffers
        self._value = value  # or a function that makes it
        self._error: Optional[Error] = None
        self._over = False
        self._lock = threading.Lock()  # one thread at a time waits for an operation
        self._status: List[int] = []
        self._callbacks: List[Callable[["Future"], Any]] = []
        self.operation = operation

    def done(self) -> bool:
        """Whether it is over, well or not. Moves all operations of the communicator on; waits for
        nobody."""
        if not self._over:
            self._advance(0.0)
        if self._over:
            self._call_back()
        return self._over

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits until it is over, for at most `timeout` seconds (None: without limit). Ctrl-C ends
        the wait, not the operation.

        Returns True, or False when the time has passed. Raises the operation's error, and
        CancelledError as soon as the communicator is being closed; then the buffers are borrowed
        until close() returns.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._over:
            left = SLICE_S if end is None else min(SLICE_S, max(0.0, end - time.monotonic()))
            self._advance(left)
            if not self._over and self._comm._closed:
                self._wait_for_close(left)
            if not self._over and end is not None and time.monotonic() >= end:
                return False
        self._call_back()
        if self._error is not None:
            raise self._error
        return True

    def _wait_for_close(self, timeout_s: float) -> None:
        """close() waits for callbacks, and so does renew(), which others wait for: where it is
        refused the operation goes on."""
        if not self._comm._renewing or getattr(_calling, "depth", 0) > 0:
            raise self._comm._failure(Status.CANCELLED, self.operation)
        time.sleep(timeout_s)

    def result(self, timeout: Optional[float] = None) -> Any:
        """What the operation gives: its `out`, or for recv the Message that came. Raises its error,
        and gradus.TimeoutError when `timeout` seconds have passed; then it goes on."""
        if not self.wait(timeout):
            raise TimeoutError(f"it is not over after {timeout} s, and goes on",
                               rank=self._comm.rank, operation=self.operation)
        return self._value

    def exception(self, timeout: Optional[float] = None) -> Optional[Error]:
        """Its error, None if it went well. Waits as result() does."""
        try:
            self.result(timeout)
        except TimeoutError as error:
            if not self._over:
                raise
            return error
        except Error as error:
            return error
        return None

    def add_done_callback(self, function: Callable[["Future"], Any]) -> None:
        """Calls function(future) once when it is over: at once if it is, else on a thread of the
        communicator's or in somebody's wait. It may start operations, and wait for them, which
        holds up the callbacks of operations that it has not started. What it raises is logged
        ("gradus")."""
        self._callbacks.append(function)
        if self._over:
            self._call_back()
        elif getattr(_calling, "depth", 0) > 0:  # the callback may wait for it
            threading.Thread(target=self._wait_out, name="gradus-callback", daemon=True).start()
        else:
            self._comm._context.watch(self)

    def _wait_out(self) -> None:
        try:
            self.wait()
        except Error:  # whoever wants to know it asks
            pass

    def _advance(self, timeout_s: float) -> bool:
        """Waits for so long, first for a thread that does the same. False: that one still does, and
        may have looked before the end."""
        held: Held = []
        try:
            take(self._lock, held, timeout_s)
            if held and not self._over:
                self._move_on(timeout_s)
            return bool(held)
        finally:
            for leave in held:
                leave()

    def _move_on(self, timeout_s: float) -> None:
        """With the lock held."""
        held: Held = []
        try:
            if not self._comm._enter(held):
                return
            # The status is in the list before Python can raise KeyboardInterrupt, and stays there
            # until _finish() is through: the library gives it once.
            if not self._status:
                self._status.extend(self._statuses(int(timeout_s * 1e6)))
            if self._status[0] == Status.TIMEOUT:
                self._status.clear()
            else:
                self._finish(self._status[0])
        finally:
            for leave in held:
                leave()

    def _statuses(self, timeout_us: int) -> Iterator[int]:
        """An iterator whose one item is what the wait returns."""
        return map(lib.gr_wait_for, (self._op,), (timeout_us,))

    def _finish(self, status: int) -> None:
        """May be called again, where Ctrl-C came in between."""
        if status != Status.OK:
            self._error = self._comm._failure(status, self.operation)
        elif callable(self._value):
            self._value = self._value()
        self._comm._inflight.discard(self)
        for buffer in self._buffers:
            buffer.release()
        self._buffers = []
        self._over = True

    def _cancel(self) -> None:
        """Its communicator is closed."""
        with self._lock:
            if not self._over:
                self._finish(Status.CANCELLED)
        self._call_back()

    def _call_back(self) -> None:
        while self._over and self._callbacks:
            try:
                function = self._callbacks.pop(0)
            except IndexError:  # another thread was quicker
                return
            _call(function, self)


_calling = threading.local()


def _call(function: Callable[[Future], Any], future: Future) -> None:
    _calling.depth = getattr(_calling, "depth", 0) + 1
    try:
        function(future)
    except Exception:
        logging.getLogger("gradus").exception("a callback of %s failed", future.operation)
    finally:
        _calling.depth -= 1


class Watcher:
    """A thread that waits for the ends of futures which have callbacks, by the communicator's
    descriptor."""

    def __init__(self, comm: Any) -> None:
        fd = c_int()
        status = lib.gr_comm_event_fd(comm._handle, byref(fd))
        if status != Status.OK:
            raise comm._failure(status, "add_done_callback")
        self._comm = comm
        self._event = fd.value
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._lock = threading.Lock()  # guards _futures and _stopped
        self._futures: List[Future] = []
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="gradus-callbacks", daemon=True)
        self._thread.start()

    def add(self, future: Future) -> bool:
        """False: it has been stopped."""
        with self._lock:
            if not self._stopped:
                self._futures.append(future)
                os.write(self._wake_write, b"x")
            return not self._stopped

    def stop(self) -> None:
        """No callback runs on this thread any more when it returns, but one that calls it. Other
        communicators' futures get another thread."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
            os.write(self._wake_write, b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        all_looked = True
        while True:
            for fd, _ in poll.poll(None if all_looked else SLICE_S * 1e3):
                if fd == self._event:
                    lib.gr_comm_event_clear(self._comm._handle)
                else:
                    try:
                        os.read(self._wake_read, 4096)
                    except BlockingIOError:
                        pass
            with self._lock:
                if self._stopped:
                    break
                futures = self._futures
                self._futures = []
            all_looked = all([future._over or future._advance(0.0) for future in futures])
            left = [future for future in futures if not future._over]
            for future in futures:
                future._call_back()
            with self._lock:
                self._futures = left + self._futures
                if self._stopped:
                    break
        os.close(self._wake_read)
        os.close(self._wake_write)
        for future in self._futures:  # of communicators that stay
            future._comm._context.watch(future)


def check_timeout(seconds: Optional[float], what: str) -> int:
    """Microseconds of a setting in seconds, as gr_comm_config has them: None is as the environment
    says."""
    if seconds is None:
        return 0
    if not seconds > 0:
        raise InvalidError(f"{what} is {seconds}; it is more than 0 seconds, or math.inf for none")
    return -1 if seconds == float("inf") else max(1, int(seconds * 1e6))



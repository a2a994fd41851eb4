# SPDX-License-Identifier: Apache-2.0
"""Functions in threads."""
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, Optional, Sequence


def in_thread(target: Callable[..., Any], args: Sequence[Any] = (), name: Optional[str] = None,
              daemon: bool = True, silent: bool = False) -> threading.Thread:
    """Starts target(*args) in a thread. A silent one does not say what went wrong in it."""
    if not isinstance(args, (tuple, list)):
        raise ValueError(f"args is {args!r}; it is a tuple, such as (value,)")

    def call() -> None:
        try:
            target(*args)
        except Exception:
            if not silent:
                raise
    thread = threading.Thread(target=call, name=name, daemon=daemon)
    thread.start()
    return thread


def on_event(event: threading.Event, func: Callable[..., Any], args: Sequence[Any] = (),
             stop: Optional[threading.Event] = None, check_stop_interval_s: float = 1.0,
             daemon: bool = True, silent: bool = False) -> threading.Thread:
    """Calls func(*args) in a thread when the event is set. Without that the thread ends within
    check_stop_interval_s of `stop`."""
    if event is None:
        raise ValueError("event is None; it is what the thread waits for")

    def wait() -> None:
        while not event.wait(None if stop is None else check_stop_interval_s):
            if stop is not None and stop.is_set():
                return
        func(*args)
    return in_thread(wait, daemon=daemon, silent=silent)


def execute_function_multithreaded(fn: Callable[..., Any], args_list: Sequence[Sequence[Any]],
                                   block_until_all_done: bool = True,
                                   max_concurrent_executions: int = 1000
                                   ) -> Optional[Dict[int, Any]]:
    """Calls fn(*args) for each of args_list, in up to so many threads, and returns the results by
    their place in args_list. Without block_until_all_done it returns None at once."""
    if not args_list:
        return {}
    pool = ThreadPoolExecutor(min(len(args_list), max_concurrent_executions))
    futures = [pool.submit(fn, *args) for args in args_list]
    pool.shutdown(wait=block_until_all_done)
    return {index: one.result() for index, one in enumerate(futures)} \
        if block_until_all_done else None

# SPDX-License-Identifier: Apache-2.0
"""A process of the command `gradus`: its output is shown, its last lines are kept, and what its
workers report to this program is taken out of it."""
import collections
import contextlib
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, IO, Iterator, List, Optional, Sequence

from .errors import InvalidError

_LOOK_S = 0.2  # a wait lets Python look so often for signals that have come before it began
_ERRORS = 40  # lines of stderr that are kept, for errors
_LINES = 10000  # lines of both that are kept, for logs
_MARK = "\x1egradus "  # in front of a report, which is JSON
_RANK = r"\[\d+(?:@[^\]]*)?\] "  # what the launcher writes in front of a line
# Behind the rank, and what the worker has begun to write.
_REPORT = re.compile(f"(?:{_RANK})?([^\\n]*?){_MARK}(\\{{.*\\}})\\n")

# A report among the last lines of a rank that failed, which the launcher repeats.
_REPEATED = r"\s*\?gradus \{.*"


class WorkerExit(SystemExit):
    """The job goes on, or ends, without this worker: it ends with this code and has no result."""


def report(**values: Any) -> None:
    """A worker says it to the program that has started the job. One write, so that it is one line
    whatever other threads write."""
    data = f"{_MARK}{json.dumps(values)}\n".encode()
    sys.stderr.flush()
    os.write(2, data)


def environment(more: Optional[Dict[str, str]] = None) -> Dict[str, str]:
    """That of this process, in which Python finds what it finds here."""
    for name, value in (more or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidError(f"the variable {name!r} of env is {value!r}; names and values are "
                               "texts", operation="run")
    path = [str(pathlib.Path(__file__).resolve().parent.parent), *filter(None, sys.path)]
    return {**os.environ, **(more or {}), "PYTHONPATH": os.pathsep.join(path)}


@contextlib.contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Ctrl-C within it waits until what this gives is called behind it."""
    came: List[Any] = []
    before: Any = None

    def interrupt() -> None:
        if came and callable(before):
            before(*came[0])
    if threading.current_thread() is not threading.main_thread():  # it gets none
        yield interrupt
        return
    before = signal.signal(signal.SIGINT, lambda *words: came.append(words))
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)


class Process:
    """Runs the words. `prefix` stands in front of each line that is shown, instead of what the
    command writes there. Threads call on_report(values), on_show() before a line is shown, and
    on_error(process, line) for one of stderr, as it was written; one at a time. `hidden`: a pattern
    of lines that are not shown."""

    def __init__(self, words: Sequence[str], env: Dict[str, str], *, cwd: Optional[str] = None,
                 prefix: Optional[str] = None,
                 on_report: Callable[[Dict[str, Any]], None] = lambda values: None,
                 on_show: Callable[[], None] = lambda: None,
                 on_error: Callable[["Process", str], None] = lambda process, line: None,
                 hidden: str = _REPEATED) -> None:
        self.errors: "collections.deque[str]" = collections.deque(maxlen=_ERRORS)
        self.lines: "collections.deque[str]" = collections.deque(maxlen=_LINES)
        self._prefix, self._on_report, self._on_show = prefix, on_report, on_show
        self._on_error = on_error
        self._hidden = re.compile(f"(?:{hidden})\n?")
        self._lock = threading.Lock()  # held while something is shown
        with _interrupts_held() as interrupt:
            # A group of its own: Ctrl-C comes to it from here, once.
            self._process = subprocess.Popen(words, env=env, cwd=cwd, stdin=subprocess.DEVNULL,
                                             stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                             start_new_session=True)
            self._readers = [threading.Thread(target=self._read, args=pair, daemon=True)
                             for pair in ((self._process.stdout, "stdout"),
                                          (self._process.stderr, "stderr"))]
            for reader in self._readers:
                reader.start()
        try:
            interrupt()
        except BaseException:
            self._end()
            raise

    def _read(self, pipe: IO[bytes], stream: str) -> None:
        with io.TextIOWrapper(pipe, "utf-8", "replace", newline="\n") as text:
            for line in text:
                found = _REPORT.fullmatch(line)
                with self._lock:
                    if found:
                        with contextlib.suppress(Exception):  # of another writer: it goes on
                            self._on_report(json.loads(found[2]))
                    elif stream == "stderr":
                        self._on_error(self, line.rstrip("\n"))
                    if found[1] if found else not self._hidden.fullmatch(line):
                        self._show((found[1] if found else line).rstrip("\n"), stream)

    def _show(self, line: str, stream: str) -> None:
        if self._prefix is not None:
            line = self._prefix + re.sub("^" + _RANK, "", line)
        self.lines.append(line)
        if stream == "stderr":
            self.errors.append(line)
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: the job goes on
            self._on_show()
            out = getattr(sys, stream)  # that of a notebook may be another one each time
            out.write(line + "\n")
            out.flush()

    @property
    def code(self) -> Optional[int]:
        """The exit code, None while it runs."""
        return self._process.poll()

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def wait(self, timeout: Optional[float] = None) -> Optional[int]:
        """The exit code, when all output is shown; None when the time is over."""
        deadline = Deadline(timeout)
        for reader in self._readers:  # they end with it
            while reader.is_alive():
                left = deadline.left()
                reader.join(_LOOK_S if left is None else min(_LOOK_S, left))
                if reader.is_alive() and left == 0:
                    return None
        try:
            return self._process.wait(deadline.left())
        except subprocess.TimeoutExpired:
            return None

    def finish(self, timeout: Optional[float] = None) -> Optional[int]:
        """As wait(). Ctrl-C ends the process, a second one at once."""
        try:
            return self.wait(timeout)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self.signal(signal.SIGINT)
        try:
            self.wait()
        except BaseException:
            self.signal(signal.SIGINT)  # a second one: gradus run kills at once
            self.wait()
            raise

    def finish_within(self, seconds: Optional[float], has_begun: Callable[[], bool]) -> bool:
        """As finish(). True: it had not begun within so many seconds, and was ended."""
        if seconds is None or self.finish(seconds) is not None or has_begun():
            self.finish()
            return False
        self.signal(signal.SIGINT)
        self.wait()
        return True


class Deadline:
    """So many seconds from now on; None: no end."""

    def __init__(self, seconds: Optional[float]) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    def left(self) -> Optional[float]:
        return None if self._at is None else max(0.0, self._at - time.monotonic())


def errors_of(process: Process) -> str:
    """What it has said last, for the text of an exception."""
    return "\n".join(process.errors) or f"gradus ended with exit code {process.code}"


__all__: List[str] = ["Deadline", "Process", "environment", "errors_of", "report"]

# SPDX-License-Identifier: Apache-2.0
"""When each tensor was submitted and reduced, for chrome://tracing and ui.perfetto.dev."""
import contextlib
import json
import logging
import threading
import time
from typing import Any, Dict, Optional

_log = logging.getLogger("gradus.torch")


class Timeline:
    """A file of events, which rank 0 writes; of other ranks nothing. It ends where it cannot be
    written, on a full disk say, and the training goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: Any = None
        self._rows: Dict[str, int] = {}
        self._cycles = False
        self._zero = 0.0

    def start(self, path: str, mark_cycles: bool) -> None:
        """Begins a file. One that was begun before ends."""
        self.stop()
        with self._lock:
            self._file = open(path, "w")
            self._rows, self._cycles, self._zero = {}, mark_cycles, time.monotonic()
            self._put("[\n" + json.dumps(
                {"name": "process_name", "ph": "M", "pid": 0,
                 "args": {"name": "gradus", "start_time_since_epoch_in_micros":
                          int(time.time() * 1e6)}}))

    def stop(self) -> None:
        """Ends the file."""
        with self._lock:
            self._put("\n]\n")
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # it has been flushed, or was told of
                file.close()

    def cycle(self) -> None:
        """A cycle begins."""
        if self._file is not None and self._cycles:
            self._write("CYCLE_START", time.monotonic(), row="cycles")

    def done(self, request: Any, started: float) -> None:
        """A collective is over, which has begun to be executed at `started`."""
        if self._file is None:
            return
        kind = request.signature.kind.upper()
        row, since, now = request.name, request.since, time.monotonic()
        self._write(f"NEGOTIATE_{kind}", since, row, started - since)
        self._write(kind, started, row, now - started)

    def _write(self, name: str, at: float, row: str, seconds: Optional[float] = None) -> None:
        with self._lock:
            events = []
            number = self._rows.get(row)
            if number is None:
                number = self._rows[row] = len(self._rows) + 1
                events.append({"name": "thread_name", "ph": "M", "pid": 0, "tid": number,
                               "args": {"name": row}})
            event = {"name": name, "pid": 0, "tid": number, "ts": (at - self._zero) * 1e6}
            event.update({"ph": "i", "s": "p"} if seconds is None else
                         {"ph": "X", "dur": seconds * 1e6})
            self._put("".join(",\n" + json.dumps(one) for one in [*events, event]))

    def _put(self, text: str) -> None:
        if self._file is None:
            return
        try:
            self._file.write(text)
            self._file.flush()  # it is read while the job runs, and when it has died
        except OSError as error:
            _log.warning("the timeline %s ends here: %s", self._file.name, error.strerror)
            self._close()

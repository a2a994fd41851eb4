# SPDX-License-Identifier: Apache-2.0
"""gradus.distribute: a function on several workers, with a progress bar and what they report."""
import os
import sys
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from . import _process, _run
from ._place import Place

_VARIABLE = "_GRADUS_PROGRESS"  # no setting of the library: workers whose reports are read have it
_REPORT_S = 0.1  # between two reports of a worker
_DRAW_S = 0.1  # between two pictures of the bar
_LINE_S = 10.0  # between two lines, where there is no terminal and the end is not known
_WIDTH = 20

_next_s = 0.0  # when this worker may report again


def progress(step: int, total: Optional[int] = None, **values: float) -> None:
    """Reports how far this worker is, from within a function that gradus.distribute runs:

        gradus.progress(step, steps, loss=loss)

    step    so many steps are done, of `total` if that is known
    values  numbers to be shown, of any name: anything that float() takes

    It costs next to nothing: ten times a second at most something is sent, and nothing where nobody
    reads it, so that the same function runs elsewhere."""
    global _next_s
    if _VARIABLE not in os.environ:
        return
    now = time.monotonic()
    if now < _next_s and step != total:
        return
    _next_s = now + _REPORT_S
    _process.report(rank=int(os.environ.get("GRADUS_RANK") or os.environ["RANK"]), step=int(step),
                    total=None if total is None else int(total),
                    values={name: float(value) for name, value in values.items()})


class Board:
    """What the workers have reported, as one line: the step of the slowest of those that report,
    and the mean of each value over the workers that have reported it."""

    def __init__(self) -> None:
        self.reports: Dict[int, Dict[str, Any]] = {}
        self._begin_s, self._first = 0.0, 0  # when the first report came, and its step
        self._next_s = 0.0

    def take(self, report: Dict[str, Any]) -> None:
        now = time.monotonic()
        if not self.reports:
            self._begin_s, self._first = now, report["step"]
        self.reports[report["rank"]] = report
        if self.is_due(now):
            self._next_s = now + _DRAW_S
            self.draw()

    def is_due(self, now: float) -> bool:
        return now >= self._next_s or self.step == self.total

    @property
    def step(self) -> int:
        return min((report["step"] for report in self.reports.values()), default=0)

    @property
    def total(self) -> Optional[int]:
        return next((report["total"] for report in self.reports.values() if report["total"]), None)

    def means(self) -> Dict[str, float]:
        names = dict.fromkeys(name for report in self.reports.values() for name in report["values"])
        every = {name: [report["values"][name] for report in self.reports.values()
                        if name in report["values"]] for name in names}
        return {name: sum(values) / len(values) for name, values in every.items()}

    def words(self) -> str:
        steps, seconds = self.step - self._first, time.monotonic() - self._begin_s
        done = f"{self.step}/{self.total}" if self.total else f"step {self.step}"
        shown = [f"{name} {value:.4g}" for name, value in self.means().items()]
        speed = [f"{steps / seconds:.3g} steps/s"] if steps > 0 and seconds > 0 else []
        return "  ".join([done, *shown, *speed])

    def text(self) -> str:
        if not self.total:
            return self.words()
        full = min(_WIDTH, _WIDTH * self.step // self.total)
        return f"[{'#' * full}{'.' * (_WIDTH - full)}] {self.words()}"

    def draw(self) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        """Before something else is written."""

    def end(self) -> None:
        """The last picture."""
        if self.reports:
            self.draw()


class LineBoard(Board):
    """A line for each tenth of the way: into a file, or a pipe. The last one comes in the end: some
    worker may not have reported anything when another one is through."""

    _tenth = -1

    def is_due(self, now: float) -> bool:
        if not self.total:
            return super().is_due(now - _LINE_S)
        return self._tenth < 10 * self.step // self.total < 10

    def draw(self) -> None:
        if self.total:
            self._tenth = 10 * self.step // self.total
        print(self.text(), file=sys.stderr, flush=True)


class TerminalBoard(Board):
    """One line that is written again and again."""

    _drawn = False

    def draw(self) -> None:
        print(f"\r\033[K{self.text()}", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def clear(self) -> None:
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._drawn = False

    def end(self) -> None:
        super().end()
        if self.reports:
            print(file=sys.stderr, flush=True)


class NotebookBoard(Board):
    """An element below the cell."""

    _handle: Any = None

    def _repr_html_(self) -> str:
        import html
        bar = f'<progress value="{self.step}" max="{self.total}"></progress> ' if self.total else ""
        return f"<div>{bar}<code>{html.escape(self.words())}</code></div>"

    def __repr__(self) -> str:
        return self.text()

    def draw(self) -> None:
        if self._handle is None:
            from IPython.display import display
            self._handle = display(self, display_id=True)
        else:
            self._handle.update(self)


def _make_board() -> Board:
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is not None and getattr(shell, "kernel", None) is not None:
        return NotebookBoard()
    return TerminalBoard() if sys.stderr.isatty() else LineBoard()


def distribute(fn: Callable[..., Any], args: Sequence[Any] = (),
               kwargs: Optional[Dict[str, Any]] = None, workers: Optional[int] = 4, *,
               flags: Sequence[str] = (), env: Optional[Mapping[str, str]] = None,
               **place: Any) -> List[Any]:
    """Runs fn(*args, **kwargs) on so many workers, as gradus.run does, and shows how far they are:
    a progress bar, and the numbers that they report by gradus.progress(). In a notebook it stands
    below the cell, on a terminal it is a line, elsewhere a line for each tenth.

    Returns the results in the order of the ranks. Everything else is as in gradus.run: arguments,
    also those that say where it runs (hosts, slurm, namespace, context, image, ...), exceptions,
    Ctrl-C (in a notebook: interrupt the kernel)."""
    board = _make_board()
    try:
        return _run.call(fn, args, kwargs, workers, flags, {**(env or {}), _VARIABLE: "1"},
                         Place(distribute, **place), board.take, board.clear)
    finally:
        board.end()

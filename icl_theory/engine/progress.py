"""How far a long computation is, on standard error: a live line or bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

SILENT = 0.5  # seconds before anything is shown of what is to be shown
PATIENT = 2.0  # the same where nobody said whether it is
INTERVALS = (0.1, 5.0)  # seconds between two changes of a line in a terminal, and between two lines elsewhere

T = TypeVar("T")
_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)
_WORK: ContextVar[Work | None] = ContextVar("work", default=None)
_DRAWING = threading.RLock()  # one thread at a time writes or draws
_GONE = (OSError, ValueError)  # a stream that is broken or closed: no reason to end


class _Shown:
    """Something to look at, drawn at times; a context manager.

    Parameters
    ----------
    shown : bool, optional
        Show it after half a second; or else nothing at all, neither of what is computed within. Unless given, it is
        shown after two seconds, and not by workers.
    """

    def __init__(self, shown: bool | None) -> None:
        self._shown = shown
        self._start = time.monotonic()
        self._next = self._start + (SILENT if shown else PATIENT)
        self._display: tuple[Progress, TaskID] | None = None
        self._token: Token[bool] | None = None

    def __enter__(self) -> Self:
        if self._shown is False:
            self._token = _QUIET.set(True)
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        if self._token is not None:
            _QUIET.reset(self._token)

    def _close(self) -> None:
        """Take from the terminal what is drawn."""
        if self._display is not None:
            with _DRAWING, contextlib.suppress(*_GONE):
                self._display[0].stop()
            self._display = None

    def _show(self, line: str, make: Callable[[], Progress], **fields: Any) -> None:
        """Draw in a terminal, or write a line."""
        import multiprocessing  # slow to load

        worker = self._shown is None and multiprocessing.parent_process() is not None
        if worker or _QUIET.get() or sys.stderr is None:
            self._next = math.inf
            return
        try:
            with _DRAWING:
                self._draw(line, make, fields)
        except _GONE:
            self._next = math.inf

    def _draw(self, line: str, make: Callable[[], Progress], fields: dict[str, Any]) -> None:
        work = _WORK.get()
        if work is not None and work is not self:
            work.rest()
        live = self._display is not None or (_is_terminal(sys.stderr) and not _is_drawn())
        self._next = time.monotonic() + INTERVALS[0 if live else 1]
        if not live:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
            return
        if self._display is None:
            display = make()
            display.start()
            self._display = display, display.add_task("", total=None, rate="")
        display, task = self._display
        display.update(task, **fields)


class StepProgress(_Shown):
    """Show step, loss and speed of a run; a context manager that is a callback of `descend`.

    Parameters
    ----------
    callback : callable, optional
        Another callback, called as well.
    shown : bool, optional
        Show it after half a second; after two seconds, and not in workers, if None.

    Examples
    --------
    >>> from icl_theory.engine.progress import StepProgress
    >>> with StepProgress() as shown:
    ...     shown(1, 0.5)
    """

    def __init__(self, callback: Callable[[int, float], None] | None = None, shown: bool | None = True) -> None:
        super().__init__(shown)
        self._callback = callback
        self._last = 0

    def __call__(self, step: int, loss: float) -> None:
        """Take note of a step, and call the other callback."""
        if self._callback is not None:
            self._callback(step, loss)
        self.beat(step, loss)

    def beat(self, step: int, loss: float) -> None:
        """Take note of a step; a smaller one than the last begins another run."""
        now = time.monotonic()
        if step < self._last:
            self._start = now
        self._last = step
        if now >= self._next:
            known = "" if math.isnan(loss) else f", loss {loss:.4g}"
            line = f"step {step:,}{known}, {step / max(now - self._start, 1e-9):,.3g} steps/s"
            self._show(line, _line, description=line)


class CountProgress(_Shown):
    """Points done, points per second and time left; a context manager whose `update` takes note.

    Parameters
    ----------
    shown : bool, optional
        Show anything at all: after half a second, or after two seconds, and not in workers, if None.
    unit : str
        What is counted, in the plural.

    Examples
    --------
    >>> from icl_theory.engine.progress import CountProgress
    >>> with CountProgress(shown=True) as progress:
    ...     progress.update(0, 2)
    ...     progress.update(1, 2)
    """

    def __init__(self, shown: bool | None = True, unit: str = "points") -> None:
        super().__init__(shown)
        self._unit = unit
        self._before: int | None = None
        self._at = 0, 0

    def update(self, done: int, total: int) -> None:
        """Take note of the points done; the first call says how many were done before."""
        self._at = done, total
        now = time.monotonic()
        if self._before is None:
            self._before, self._start = done, now
            return
        if self._shown is False or (now < self._next and not (self._display and done == total)):
            return
        rate = (done - self._before) / max(now - self._start, 1e-9)
        left = f", {duration((total - done) / rate)} left" if rate > 0 else ""
        line = f"{done:,} of {total:,} {self._unit}, {rate:,.3g} {self._unit}/s{left}"
        self._show(line, self._bar, completed=done, total=total, rate=f"{rate:,.3g}")

    def add(self, count: int = 1) -> None:
        """Take note of more points done, of the total that was given to `update`."""
        self.update(self._at[0] + count, self._at[1])

    def _bar(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        speed = TextColumn(f"{{task.fields[rate]}} {self._unit}/s")
        return _drawn(BarColumn(), MofNCompleteColumn(), speed, TimeRemainingColumn())


def counted(items: Sequence[T], unit: str) -> Iterator[T]:
    """Yield some things, and say how many are done once this takes longer than two seconds.

    Examples
    --------
    >>> from icl_theory.engine.progress import counted
    >>> [*counted("ab", "letters")]
    ['a', 'b']
    """
    with CountProgress(None, unit) as shown:
        for done, item in enumerate(items):
            shown.update(done, len(items))
            yield item


class Work(_Shown):
    """What is being done, and for how long, where nothing else is shown; `working` makes it.

    A thread looks at the clock, so that the work itself need not say how far it is.
    """

    def __init__(self, words: str) -> None:
        super().__init__(None)
        self.words, self.parts = words, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=copy_context().run, args=(self._watch,), daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(RuntimeError):  # there can be no more threads: it is silent
            self._thread.start()
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        try:
            if self._thread.ident is not None:
                self._thread.join()
        finally:
            super().__exit__(*error)

    def rest(self) -> None:
        """Stop drawing, and be silent for a while: something else is shown."""
        self._close()
        self._next = time.monotonic() + (PATIENT if _is_terminal(sys.stderr) else 2.0 * INTERVALS[1])

    def _watch(self) -> None:
        while not self._over.wait(min(max(self._next - time.monotonic(), INTERVALS[0]), INTERVALS[1])):
            with _DRAWING:
                if time.monotonic() >= self._next and (self._display is not None or not _is_drawn()):
                    self._beat()

    def _beat(self) -> None:
        parts = f", {self.parts:,} parts computed" if self.parts else ""
        line = f"{self.words}{parts}, {duration(time.monotonic() - self._start)}"
        self._show(line, _spinner, description=line)


@contextlib.contextmanager
def working(words: str) -> Iterator[Work]:
    """Say what is being done, within or in a function, where nothing else was shown for two seconds.

    Inside another `working`, only the words change.

    Examples
    --------
    >>> from icl_theory.engine.progress import working
    >>> @working("adding numbers")
    ... def total(numbers):
    ...     return sum(numbers)
    >>> total([1, 2])
    3
    """
    work = _WORK.get()
    if work is not None:
        before, work.words = work.words, words
        try:
            yield work
        finally:
            work.words = before
        return
    with Work(words) as work:
        token = _WORK.set(work)
        try:
            yield work
        finally:
            _WORK.reset(token)


def _is_terminal(stream: Any) -> bool:
    """Whether somebody looks at a stream; a program without a console has none."""
    return stream is not None and hasattr(stream, "isatty") and bool(stream.isatty())


def _is_drawn() -> bool:
    """Whether something is drawn in the terminal: rich stands in for the stream then."""
    return hasattr(sys.stderr, "rich_proxied_file")


def _line() -> Progress:
    from rich.progress import TimeElapsedColumn

    return _spinner(TimeElapsedColumn())


def _spinner(*columns: Any) -> Progress:
    from rich.progress import SpinnerColumn, TextColumn

    return _drawn(SpinnerColumn(), TextColumn("{task.description}", markup=False), *columns)


def _drawn(*columns: Any) -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    # rich puts what is printed above the bar; it must not take what goes into a file
    above = _is_terminal(sys.stdout)
    return Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=above)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

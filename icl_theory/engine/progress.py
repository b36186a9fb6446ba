"""How far long work is, on standard error: rich's live display in a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

T = TypeVar("T")


class Work:
    """Something that may last, and is then shown; ``quiet`` silences what is done within instead."""

    def __init__(self, words: str = "", unit: str = "", quiet: bool = False) -> None:
        self.words, self.quiet = words, quiet
        self.start = time.monotonic()
        self.done, self.total = -1, -1  # unknown
        self._unit, self._loss, self._since = unit, math.nan, (self.start, 0)

    def __enter__(self) -> Self:
        SCREEN.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        SCREEN.leave(self)

    def update(self, done: int, total: int = -1, loss: float = math.nan) -> None:
        """Take note of what is done: cheap. The first call says how much was done before, as does one with less."""
        now = time.monotonic()
        if done < self.done or self.done < 0:
            self._since = now, done
        self.done, self.total, self._loss = done, total, loss
        if now >= SCREEN.due:
            SCREEN.show()

    def add(self, count: int = 1) -> None:
        """Take note of more that is done."""
        self.update(self.done + count, self.total)

    def line(self) -> str:
        """Say how far it is; nothing where that is not known."""
        now, (begun, before) = time.monotonic(), self._since
        if self.done < 0:
            return f"{self.words}, {duration(now - self.start)}" if self.words else ""
        loss = "" if math.isnan(self._loss) else f", loss {self._loss:.4g}"
        rate = (self.done - before) / max(now - begun, 1e-9)
        total = f" of {self.total:,}" if self.total >= 0 else ""
        left = f", {duration((self.total - self.done) / rate)} left" if rate > 0 and total else ""
        return f"{self.done:,}{total} {self._unit}{loss}, {rate:,.3g} {self._unit}/s{left}"


class CountProgress(Work):
    """Things done of a total, their speed and the time left; ``shown = False`` shows nothing instead."""

    def __init__(self, shown: bool | None = None, unit: str = "points") -> None:
        super().__init__("", unit, shown is False)


class StepProgress(Work):
    """Step, loss and speed of a run: a callback of `descend` that calls another one as well."""

    def __init__(self, callback: Callable[[int, float], None] | None = None, shown: bool | None = None) -> None:
        super().__init__("before the first step", "steps", shown is False)
        self._callback = callback

    def __call__(self, step: int, loss: float) -> None:
        """Call the other callback, and take note of a step."""
        if self._callback is not None:
            self._callback(step, loss)
        self.beat(step, loss)

    def beat(self, step: int, loss: float) -> None:
        """Take note of a step."""
        self.update(step, loss=loss)


def counted(items: Sequence[T], unit: str) -> Iterator[T]:
    """Yield some things, and show how many are done."""
    with CountProgress(None, unit) as shown:
        for done, item in enumerate(items):
            shown.update(done, len(items))
            yield item


@contextlib.contextmanager
def working(words: str) -> Iterator[Work]:
    """Show what is being done, within or in a function, and for how long."""
    with Work(words) as work:
        yield work


class Screen:
    """Shows what is being done in this process, once the outermost work has lasted for ``delay`` seconds.

    A file gets a line every ``pause`` seconds.
    """

    def __init__(self, delay: float = 1.0, pause: float = 5.0) -> None:
        self._delay, self._pause = delay, pause
        self.due = math.inf  # when something is shown next
        self._works: list[Work] = []
        self._quiet = 0
        self._live: Live | None = None
        self._timer: threading.Timer | None = None
        self._lock = threading.RLock()

    def enter(self, work: Work) -> None:
        """Add work, inside of what is there already."""
        if work.quiet:
            self._quiet += 1
        elif not self._quiet:
            self._works.append(work)
            if len(self._works) == 1:
                self.due = work.start + self._delay
                self._wake()

    def leave(self, work: Work) -> None:
        """Take away work that is over."""
        if work.quiet:
            self._quiet -= 1
        elif work in self._works:
            self._works.remove(work)
            self._clear()

    def show(self) -> None:
        """Open a display, or write a line where there can be none."""
        self.due = math.inf
        processes = sys.modules.get("multiprocessing")
        if sys.stderr is None or (processes is not None and processes.parent_process() is not None):
            return  # who waits for a worker speaks
        with self._lock, contextlib.suppress(OSError, ValueError):  # a broken stream is no reason to end
            # above what another program draws there are lines: rich has put itself in place of the stream
            if _is_terminal(sys.stderr) and not hasattr(sys.stderr, "rich_proxied_file"):
                self._open()
            elif self._live is None:
                lines = self._lines().values()
                self.due = time.monotonic() + (self._pause if lines else 0.0)
                sys.stderr.write(": ".join(lines) + "\n" if lines else "")
                sys.stderr.flush()

    def _wake(self) -> None:
        """Look again when something is due: work that is one call of a library cannot."""
        if self._timer is None and self.due < math.inf:
            self._timer = threading.Timer(max(self.due - time.monotonic(), 0.01), self._look)
            self._timer.daemon = True
            with contextlib.suppress(RuntimeError):  # there can be no more threads
                self._timer.start()

    def _look(self) -> None:
        self._timer = None
        if time.monotonic() >= self.due:
            self.show()
        self._wake()

    def _open(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # what is printed goes above the display, but what goes into a file must get there
        above, console = _is_terminal(sys.stdout), Console(stderr=True)
        self._live = Live(get_renderable=self._drawn, console=console, transient=True, redirect_stdout=above)
        self._live.start(refresh=True)
        self._clear()  # if all was over meanwhile

    def _clear(self) -> None:
        if not self._works:
            self.due = math.inf
            if self._live is not None:
                with self._lock, contextlib.suppress(OSError, ValueError):  # it may only be opened just now
                    self._live.stop()
                self._live = None

    def _lines(self) -> dict[Work, str]:
        """Return what is said of work that lasts, the outermost first."""
        old = time.monotonic() - self._delay
        return {work: line for work in [*self._works] if work.start <= old and (line := work.line())}

    def _drawn(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for work, line in self._lines().items():
            bar = ProgressBar(work.total, max(work.done, 0), width=20, pulse=work.total < 0)
            grid.add_row(bar, Text(line, no_wrap=True, overflow="ellipsis"))
        return grid


SCREEN = Screen()


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", bool)())  # a program without a console has None


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

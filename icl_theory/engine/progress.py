"""The progress of a long computation, drawn in a terminal after the first second.

A computation that may take long runs within a `Progress`, which it updates, or iterates
over `counted` items. All of them share one `Display`, which draws with rich. The
display starts no thread to watch the clock: it looks at the clock when a computation
begins, is updated or ends.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterable, Iterator, Sized
from itertools import takewhile
from typing import Any, Self, TypeVar

from icl_theory.engine.interrupts import SWALLOWED, raise_swallowed

T = TypeVar("T")


class Progress(contextlib.ContextDecorator):
    """A computation that is shown if it takes long.

    It is a context, or a decorator of a function.

    Parameters
    ----------
    words : str
        The text that is shown, with the time, until the first update.
    unit : str
        The plural noun of the things that are counted by updates.
    quiet : bool
        Whether neither this computation nor any computation within it is shown.
    """

    def __init__(
        self, words: str = "", unit: str = "points", quiet: bool = False
    ) -> None:
        self.words = words
        self.unit = unit
        self.quiet = quiet
        # The numbers of things that are done and of all things; negative if unknown.
        self.done = -1
        self.total = -1
        self._loss = math.nan
        self.start = 0.0
        self._first_update = 0.0
        self._done_before = 0

    def __enter__(self) -> Self:
        if SWALLOWED:
            raise_swallowed()
        self.start = time.monotonic()
        DISPLAY.works.append(self)
        DISPLAY.look()
        return self

    def __exit__(self, *_: object) -> None:
        DISPLAY.works.remove(self)
        DISPLAY.look()

    def update(self, done: int, total: int = -1, loss: float = math.nan) -> None:
        """Record how many things are done, in little time.

        The first call says how many things were done before this computation began.
        They do not count in the speed.
        """
        if self.done < 0:
            self._first_update = time.monotonic()
            self._done_before = done
        self.done = done
        self.total = total
        self._loss = loss
        DISPLAY.look()

    def add(self, count: int = 1) -> None:
        """Record that ``count`` more things are done."""
        self.update(self.done + count, self.total)

    def line(self) -> str:
        """Return the text that shows the progress; empty if there is none to show."""
        now = time.monotonic()
        if self.done < 0:
            return f"{self.words}, {duration(now - self.start)}" if self.words else ""
        elapsed = max(now - self._first_update, 1e-9)
        rate = (self.done - self._done_before) / elapsed
        text = f"{self.done:,}"
        if self.total >= 0:
            text += f" of {self.total:,}"
        text += f" {self.unit}"
        if not math.isnan(self._loss):
            text += f", loss {self._loss:.4g}"
        text += f", {rate:,.3g} {self.unit}/s"
        if self.total >= 0 and rate > 0:
            text += f", {duration((self.total - self.done) / rate)} left"
        return text


def counted(items: Iterable[T], unit: str) -> Iterator[T]:
    """Yield the items, and show how many of them are done."""
    total = len(items) if isinstance(items, Sized) else -1
    with Progress("", unit) as progress:
        for done, item in enumerate(items):
            progress.update(done, total)
            yield item


class Display:
    """Draws a line for each computation that has lasted ``delay`` seconds.

    The outermost computation comes first. `look` is called whenever a computation
    begins, is updated or ends.
    """

    def __init__(self, delay: float = 1.0) -> None:
        self.delay = delay
        # The running computations, the outermost first.
        self.works = list[Progress]()
        # The display of rich while something is drawn; False if nothing can be drawn,
        # and None as long as nothing has been drawn.
        self.live: Any = None

    def look(self) -> None:
        """Begin to draw once the outermost computation has lasted long enough.

        When this computation is over, end the display.
        """
        if SWALLOWED:
            raise_swallowed()
        # The stream may be broken, or rich may get no thread. A computation must not
        # fail because its progress cannot be shown.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if not self.works:
                # The display is given up before it is stopped, because stopping it may
                # fail.
                live = self.live
                self.live = None
                if live:
                    live.stop()
            elif self.live is None and self._lasts(self.works[0]):
                self.live = False
                if self.shown() and _is_terminal(sys.stderr) and not _is_taken():
                    self.live = self._started_live()

    def shown(self) -> list[Progress]:
        """Return the computations outside the first quiet one, the outermost first."""
        # The list is copied, because another thread may end a computation meanwhile.
        return [*takewhile(lambda work: not work.quiet, [*self.works])]

    def _lasts(self, work: Progress) -> bool:
        """Whether a computation has lasted long enough to be shown."""
        return time.monotonic() >= work.start + self.delay

    def _started_live(self) -> Any:
        """Start a display of rich on standard error, and return it."""
        from rich.console import Console
        from rich.live import Live

        # Text printed to the terminal appears above the display. Text printed to a file
        # must not be redirected, or it would never get there.
        live = Live(
            get_renderable=self._table,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=_is_terminal(sys.stdout),
        )
        live.start(refresh=True)
        return live

    def _table(self) -> Any:
        """Return what is drawn: a bar and a line of text for each computation."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for work in self.shown():
            line = work.line() if self._lasts(work) else ""
            if line:
                done = max(work.done, 0)
                bar = ProgressBar(work.total, done, width=20, pulse=work.total < 0)
                grid.add_row(bar, Text(line, no_wrap=True, overflow="ellipsis"))
        return grid


DISPLAY = Display()


def _is_terminal(stream: Any) -> bool:
    # In a program without a console the stream is None, and bool() is False.
    return bool(getattr(stream, "isatty", bool)())


def _is_taken() -> bool:
    """Whether another display of rich draws here, or this process is a worker."""
    from multiprocessing import parent_process

    # While a display of rich is drawn, a proxy is in the place of the stream.
    has_display = hasattr(sys.stderr, "rich_proxied_file")
    is_worker = parent_process() is not None
    return has_display or is_worker


def duration(seconds: float) -> str:
    """Return a time as "hours:minutes:seconds"."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"

"""How far a long computation is, drawn in a terminal once it has lasted a second.

A computation that may last runs within a `Progress`, which it updates, or iterates over
`counted` items. All of them share one `Display`, which draws with rich. It looks at the
clock only when something is updated: there is no thread.
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
    """A computation that is shown if it lasts: a context, or a decorator of a function.

    Before it is updated its line shows ``words`` and the time, and afterwards how many
    of its ``unit`` are done. A ``quiet`` one is not shown, nor is any within it.
    """

    def __init__(
        self, words: str = "", unit: str = "points", quiet: bool = False
    ) -> None:
        self.words = words
        self.unit = unit
        self.quiet = quiet
        # negative: not known
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
        """Take note of how much is done, cheaply.

        The first call says how much was done before: the speed does not count it.
        """
        if self.done < 0:
            self._first_update = time.monotonic()
            self._done_before = done
        self.done = done
        self.total = total
        self._loss = loss
        DISPLAY.look()

    def add(self, count: int = 1) -> None:
        """Take note that ``count`` more are done."""
        self.update(self.done + count, self.total)

    def line(self) -> str:
        """Say how far the computation is; the empty text if there is nothing to say."""
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
    """Yield the items, and show how many are done."""
    total = len(items) if isinstance(items, Sized) else -1
    with Progress("", unit) as progress:
        for done, item in enumerate(items):
            progress.update(done, total)
            yield item


class Display:
    """Draws a line for each computation that has lasted ``delay`` seconds.

    The outermost comes first. `look` is called whenever one begins, is updated or ends.
    """

    def __init__(self, delay: float = 1.0) -> None:
        self.delay = delay
        self.works = list[Progress]()
        # rich's display while something is drawn, and False if nothing can be drawn
        self.live: Any = None

    def look(self) -> None:
        """Begin to draw once the outermost computation has lasted long enough.

        End when it is over.
        """
        if SWALLOWED:
            raise_swallowed()
        # a broken stream, or no more threads
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            if not self.works:
                # forgotten first: stopping it may fail
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
        # a copy, because a thread may end one meanwhile
        return [*takewhile(lambda work: not work.quiet, [*self.works])]

    def _lasts(self, work: Progress) -> bool:
        return time.monotonic() >= work.start + self.delay

    def _started_live(self) -> Any:
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
    # in a program without a console the stream is None
    return bool(getattr(stream, "isatty", bool)())


def _is_taken() -> bool:
    """Whether another display of rich draws here, or this process is a worker."""
    from multiprocessing import parent_process

    # a display of rich puts a proxy in place of the stream
    has_display = hasattr(sys.stderr, "rich_proxied_file")
    is_worker = parent_process() is not None
    return has_display or is_worker


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"

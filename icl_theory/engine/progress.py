"""How far long work is: drawn by rich in a terminal once it has lasted a second."""

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
    """Something that may last, within or in a function, and is then shown; ``quiet`` hides what is done there."""

    def __init__(
        self, words: str = "", unit: str = "points", quiet: bool = False
    ) -> None:
        self.words = words
        self.unit = unit
        self.quiet = quiet
        # unknown
        self.done = -1
        self.total = -1
        self._loss = math.nan
        self.start = 0.0
        self._counting = 0.0
        self._before = 0

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
        """Take note of what is done: cheap. The first call says how much was done before."""
        if self.done < 0:
            self._counting = time.monotonic()
            self._before = done
        self.done = done
        self.total = total
        self._loss = loss
        DISPLAY.look()

    def add(self, count: int = 1) -> None:
        """Take note of more that is done."""
        self.update(self.done + count, self.total)

    def line(self) -> str:
        """Say how far it is; nothing where that is not known."""
        now = time.monotonic()
        if self.done < 0:
            return f"{self.words}, {duration(now - self.start)}" if self.words else ""
        loss = "" if math.isnan(self._loss) else f", loss {self._loss:.4g}"
        rate = (self.done - self._before) / max(now - self._counting, 1e-9)
        total = f" of {self.total:,}" if self.total >= 0 else ""
        left = (
            f", {duration((self.total - self.done) / rate)} left"
            if rate > 0 and total
            else ""
        )
        return (
            f"{self.done:,}{total} {self.unit}{loss}, {rate:,.3g} {self.unit}/s{left}"
        )


def counted(items: Iterable[T], unit: str) -> Iterator[T]:
    """Yield some things, and show how many are done."""
    total = len(items) if isinstance(items, Sized) else -1
    with Progress("", unit) as shown:
        for done, item in enumerate(items):
            shown.update(done, total)
            yield item


class Display:
    """Draws a line for each work that has lasted ``delay`` seconds, the outermost first.

    It looks when work is added or updated: no thread watches what says nothing.
    """

    def __init__(self, delay: float = 1.0) -> None:
        self.delay = delay
        self.works = list[Progress]()
        self.live: Any = None  # False where nothing can be drawn

    def look(self) -> None:
        """Begin to draw once the outermost work has lasted long enough, and end when it is over."""
        if SWALLOWED:
            raise_swallowed()
        with contextlib.suppress(
            OSError, ValueError, RuntimeError
        ):  # a broken stream, or no more threads
            if not self.works:
                live, self.live = self.live, None
                if live:
                    live.stop()
            elif self.live is None and self._lasts(self.works[0]):
                self.live = False
                if self.shown() and _is_terminal(sys.stderr) and not _is_taken():
                    self.live = self._begun()

    def shown(self) -> list[Progress]:
        """Return what is not hidden, the outermost first."""
        return [*takewhile(lambda work: not work.quiet, [*self.works])]

    def _lasts(self, work: Progress) -> bool:
        return time.monotonic() >= work.start + self.delay

    def _begun(self) -> Any:
        from rich.console import Console
        from rich.live import Live

        # what is printed goes above the display, but what goes into a file must get
        # there
        above = _is_terminal(sys.stdout)
        console = Console(stderr=True)
        live = Live(
            get_renderable=self._drawn,
            console=console,
            transient=True,
            redirect_stdout=above,
        )
        live.start(refresh=True)
        return live

    def _drawn(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for work in filter(self._lasts, self.shown()):
            if line := work.line():
                bar = ProgressBar(
                    work.total, max(work.done, 0), width=20, pulse=work.total < 0
                )
                grid.add_row(bar, Text(line, no_wrap=True, overflow="ellipsis"))
        return grid


DISPLAY = Display()


def _is_terminal(stream: Any) -> bool:
    # a program without a console has None
    return bool(getattr(stream, "isatty", bool)())


def _is_taken() -> bool:
    """Whether another program of rich draws here, which puts itself in place of the stream, or this is a worker."""
    from multiprocessing import parent_process

    return hasattr(sys.stderr, "rich_proxied_file") or parent_process() is not None


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"

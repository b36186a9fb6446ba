"""How far long work is: drawn by rich in a terminal once it has lasted a second, elsewhere a line now and then."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

T = TypeVar("T")


class Work:
    """Something that may last, and is then shown; ``quiet`` hides what is done within instead."""

    def __init__(self, words: str = "", unit: str = "points", quiet: bool = False) -> None:
        self.words, self.unit, self.quiet = words, unit, quiet
        self.start = time.monotonic()
        self.done, self.total = -1, -1  # unknown
        self._loss, self._since = math.nan, (self.start, 0)

    def __enter__(self) -> Self:
        DISPLAY.enter(self)
        return self

    def __exit__(self, *_: object) -> None:
        DISPLAY.leave(self)

    def update(self, done: int, total: int = -1, loss: float = math.nan) -> None:
        """Take note of what is done: cheap. The first call says how much was done before, as does one with less."""
        if done < self.done or self.done < 0:
            self._since = time.monotonic(), done
        self.done, self.total, self._loss = done, total, loss

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
        return f"{self.done:,}{total} {self.unit}{loss}, {rate:,.3g} {self.unit}/s{left}"


def counted(items: Sequence[T], unit: str) -> Iterator[T]:
    """Yield some things, and show how many are done."""
    with Work("", unit) as shown:
        for done, item in enumerate(items):
            shown.update(done, len(items))
            yield item


@contextlib.contextmanager
def working(words: str) -> Iterator[None]:
    """Show what is being done, within or in a function, and for how long."""
    with Work(words):
        yield


class Display:
    """Draws a line for each work of this process that has lasted for ``delay`` seconds, the outermost first.

    A file or pipe gets a line every ``pause`` seconds.
    """

    def __init__(self, delay: float = 1.0, pause: float = 5.0) -> None:
        self._delay, self._pause = delay, pause
        self._works: list[Work] = []
        self._live: Live | None = None
        self._timer: threading.Timer | None = None  # most work is over before it looks, and one serves all
        self._lock = threading.Lock()
        self._stream: Any = self
        self._can = self._mute = False

    def enter(self, work: Work) -> None:
        """Add work, inside of what is there already."""
        self._works.append(work)
        if sys.stderr is not self._stream:  # it is slow to say what it is
            # above what another program draws nothing is drawn: rich has put itself in place of the stream
            proxied = hasattr(sys.stderr, "rich_proxied_file")
            self._stream, self._can = sys.stderr, _is_terminal(sys.stderr)
            self._mute = sys.stderr is None or proxied
        if self._timer is None and not self._mute:
            self._look_after(self._delay)

    def leave(self, work: Work) -> None:
        """Take away work that is over."""
        self._works.remove(work)
        if not self._works and self._timer is not None:
            with self._lock, contextlib.suppress(OSError, ValueError):  # it may only be opened just now
                live, self._live = self._live, None
                if live is not None:
                    self._timer = None
                    live.stop()

    def _look_after(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._look)
        self._timer.daemon = True
        with contextlib.suppress(RuntimeError):  # there can be no more threads
            self._timer.start()

    def _look(self) -> None:
        from multiprocessing import parent_process  # most work is over before

        with self._lock, contextlib.suppress(OSError, ValueError):  # a broken stream is no reason to end
            left = [work.start + self._delay - time.monotonic() for work in self._shown()[:1]]
            if not left:
                self._timer = None
            elif left[0] > 0:
                self._look_after(left[0])
            elif parent_process() is not None:  # who waits for a worker speaks
                self._timer = None
            elif self._can:
                self._open()
            else:
                lines = [line for work in self._shown() if (line := self._said(work))]
                sys.stderr.write(": ".join(lines) + "\n" if lines else "")
                sys.stderr.flush()
                self._look_after(self._pause)

    def _said(self, work: Work) -> str:
        return work.line() if work.start + self._delay <= time.monotonic() else ""

    def _shown(self) -> list[Work]:
        return [*takewhile(lambda work: not work.quiet, [*self._works])]

    def _open(self) -> None:
        from rich.console import Console
        from rich.live import Live

        # what is printed goes above the display, but what goes into a file must get there
        above, console = _is_terminal(sys.stdout), Console(stderr=True)
        live = Live(get_renderable=self._drawn, console=console, transient=True, redirect_stdout=above)
        live.start(refresh=True)
        self._live = live

    def _drawn(self) -> Table:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        grid = Table.grid(padding=(0, 1))
        for work in self._shown():
            if line := self._said(work):
                bar = ProgressBar(work.total, max(work.done, 0), width=20, pulse=work.total < 0)
                grid.add_row(bar, Text(line, no_wrap=True, overflow="ellipsis"))
        return grid


DISPLAY = Display()


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", bool)())  # a program without a console has None


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"

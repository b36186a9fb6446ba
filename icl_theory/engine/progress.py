"""The progress of a long computation, drawn in a terminal after the first second.

A long computation runs within a `Progress` and updates it, or it iterates over
`counted` items. All computations share one `Display`, which draws with rich. The
display has no thread that watches the clock: whenever a computation begins, is updated
or ends, `Display.react` looks at the clock, and begins or ends the drawing.
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

    Use it as the context of a block, or as the decorator of a function.

    Parameters
    ----------
    words : str
        The text that is shown, with the time, until the first update.
    unit : str
        The plural noun of the things that are counted by updates.
    quiet : bool
        Whether to hide this computation and all computations within it.
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
        # NaN if no loss is shown.
        self._loss = math.nan
        # The times of the beginning and of the first update, by the monotonic clock.
        self.start = 0.0
        self._first_update = 0.0
        # The number of things that were done at the first update.
        self._done_before = 0

    def __enter__(self) -> Self:
        # Python may have ignored a Ctrl-C (`interrupts.none_swallowed`). Raise it
        # before the next long computation begins. The list is checked first because
        # this is much faster than a call.
        if SWALLOWED:
            raise_swallowed()
        self.start = time.monotonic()
        DISPLAY.computations.append(self)
        DISPLAY.react()
        return self

    def __exit__(self, *_: object) -> None:
        # A loop over `counted` that an exception has left may be closed late, when its
        # display has been replaced.
        if self in DISPLAY.computations:
            DISPLAY.computations.remove(self)
        # After the last computation this ends the display.
        DISPLAY.react()

    def update(self, done: int, total: int = -1, loss: float = math.nan) -> None:
        """Record how many things are done.

        A negative ``total`` stands for an unknown one, and a ``loss`` of NaN is not
        shown. A run calls this method at every step, so it must be fast. The speed is
        measured from the first call on, so things that are done by then do not count.
        """
        # Before the first update ``done`` is negative.
        if self.done < 0:
            self._first_update = time.monotonic()
            self._done_before = done
        self.done = done
        self.total = total
        self._loss = loss
        DISPLAY.react()

    def add(self, count: int = 1) -> None:
        """Record that ``count`` more things are done."""
        # Before the first update ``done`` is negative.
        self.update(max(self.done, 0) + count, self.total)

    def line(self) -> str:
        """Return the text that shows the progress.

        It is empty before the first update of a computation without words.
        """
        now = time.monotonic()
        is_updated = self.done >= 0
        if not is_updated and not self.words:
            return ""
        if not is_updated:
            return f"{self.words}, {duration(now - self.start)}"
        # The bound avoids a division by zero right after the first update.
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

    The outermost computation comes first. `react` is called whenever a computation
    begins, is updated or ends.
    """

    def __init__(self, delay: float = 1.0) -> None:
        self.delay = delay
        # The running computations, the outermost first.
        self.computations = list[Progress]()
        # The display of rich while something is drawn; False if nothing can be drawn,
        # and None as long as nothing has been drawn.
        self.live: Any = None

    def react(self) -> None:
        """Begin to draw if the outermost computation has lasted long enough.

        If no computation is left, end the display.
        """
        # Also raise a Ctrl-C that Python has ignored: no other function is called as
        # regularly during a long computation.
        if SWALLOWED:
            raise_swallowed()
        if not self.computations:
            act = self._end
        elif self.live is None and self._has_lasted(self.computations[0]):
            act = self._begin
        else:
            return  # nothing to do at nearly all steps of a run
        # The stream may be broken, or rich may get no thread. A computation must not
        # fail because its progress cannot be shown.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            act()

    def _begin(self) -> None:
        """Start to draw, unless there is nothing to show or no free terminal.

        If nothing is drawn, ``live`` becomes False, so that the display of rich is not
        attempted again before all computations have ended.
        """
        # This is set first: if rich raises an error when it starts, False remains.
        self.live = False
        if self.shown() and _is_terminal(sys.stderr) and not _is_taken():
            self.live = self._start_live()

    def _end(self) -> None:
        """Stop drawing."""
        # `live` is reset before the display is stopped, because stopping it may fail.
        live = self.live
        self.live = None
        if live:
            live.stop()

    def shown(self) -> list[Progress]:
        """Return the computations that are not within a quiet one, outermost first.

        A quiet computation itself is not returned either.
        """
        # The list is copied, because another thread may end a computation meanwhile.
        running = [*self.computations]
        return [*takewhile(lambda computation: not computation.quiet, running)]

    def _has_lasted(self, computation: Progress) -> bool:
        """Whether a computation has lasted long enough to be shown."""
        return time.monotonic() >= computation.start + self.delay

    def _start_live(self) -> Any:
        """Start a display of rich on standard error, and return it."""
        from rich.console import Console
        from rich.live import Live

        # Rich prints text for the terminal above the display. Text for a file must not
        # be redirected to rich, or it would never reach the file.
        live = Live(
            # Rich calls this method from a thread of its own, several times a second.
            get_renderable=self._table,
            console=Console(stderr=True),
            transient=True,  # the lines disappear when the display is stopped
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
        for computation in self.shown():
            if not self._has_lasted(computation):
                continue
            line = computation.line()
            if not line:
                continue
            # If the total is unknown, `pulse` makes the bar move to and fro. The width
            # of 20 columns leaves most of a line of 80 columns to the text.
            bar = ProgressBar(
                computation.total,
                max(computation.done, 0),
                width=20,
                pulse=computation.total < 0,
            )
            grid.add_row(bar, Text(line, no_wrap=True, overflow="ellipsis"))
        return grid


DISPLAY = Display()


def _is_terminal(stream: Any) -> bool:
    """Whether a stream is a terminal.

    In a program without a console the stream is None.
    """
    has_isatty = hasattr(stream, "isatty")
    return has_isatty and bool(stream.isatty())


def _is_taken() -> bool:
    """Whether another display of rich, or a parent process, may draw in the terminal.

    Two displays in one terminal would overwrite each other.
    """
    from multiprocessing import parent_process

    # While a display of rich is drawn, a proxy takes the place of the stream.
    has_display = hasattr(sys.stderr, "rich_proxied_file")
    # A worker shares the terminal of its parent process.
    is_worker = parent_process() is not None
    return has_display or is_worker


def duration(seconds: float) -> str:
    """Return a time as "hours:minutes:seconds"."""
    all_minutes, rest_of_seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(all_minutes, 60)
    return f"{hours}:{minutes:02}:{rest_of_seconds:02}"

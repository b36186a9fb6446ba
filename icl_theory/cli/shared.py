"""What the commands share: checks of their files and numbers, and the progress of a run."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from icl_theory._validate import refuse
from icl_theory.engine.trajectory import Trajectory

if TYPE_CHECKING:
    from rich.progress import Progress

FORMATS = (".png", ".pdf", ".svg")
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Write the figure (png, pdf or svg).")]


def check_targets(plot: Path | None, **others: Path | None) -> None:
    """Refuse files that cannot be written before anything is computed."""
    for name, path in {"plot": plot, **others}.items():
        if path is not None and not path.absolute().parent.is_dir():
            raise refuse(name, str(path), "in a folder that exists")
    if plot is not None and plot.suffix.lower() not in FORMATS:
        raise refuse("plot", str(plot), "a file name ending in " + ", ".join(FORMATS))


def print_facts(run: Trajectory) -> None:
    """Print the summary of a run as a table."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in run.facts().items():
        table.add_row(name, value)
    Console(highlight=False).print(table)


class LossProgress:
    """Progress on standard error after a second: a live line in a terminal, plain lines elsewhere."""

    def __init__(self) -> None:
        self._next = time.monotonic() + 1.0
        self._display: Progress | None = None

    def __enter__(self) -> LossProgress:
        return self

    def update(self, step: int, loss: float) -> None:
        """Take note of a step and its loss."""
        if time.monotonic() < self._next:
            return
        if not sys.stderr.isatty():
            print(f"step {step:,}  loss {loss:.4g}", file=sys.stderr, flush=True)
            self._next = time.monotonic() + 10.0
            return
        if self._display is None:
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # short runs need none

            self._display = Progress(
                SpinnerColumn(),
                TextColumn("step {task.fields[step]:,}  loss {task.fields[loss]:.4g}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._display.start()
            self._task = self._display.add_task("", total=None, step=0, loss=loss)
        self._display.update(self._task, step=step, loss=loss)
        self._next = time.monotonic() + 0.1

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.stop()

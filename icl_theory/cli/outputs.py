"""What the commands write of a sweep: tables in four formats, a figure, or a table in the terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import choice, refuse
from icl_theory.cli.shared import check_targets
from icl_theory.grids.grid import FAILED
from icl_theory.results.columns import dimension, symbol, with_role
from icl_theory.results.numbers import goes_right, number
from icl_theory.results.plots.style import save
from icl_theory.results.plots.sweeps import plot_sweep
from icl_theory.results.reading import count, first_part
from icl_theory.results.tables import check_parquet, contents, phase_table, point_facts, write_table
from icl_theory.results.transitions import transition_notes

if TYPE_CHECKING:
    import xarray

ENDINGS = {"table": ".md", "csv": ".csv", "latex": ".tex", "parquet": ".parquet"}
NOTED = 10**6  # points up to which transitions are said below a table
MOST_ROWS = 60  # printed in a terminal
IMPORTANT = ("steps", "status", "word", "exponent", "phase", "verdict", "boundary", "predicted")  # roles


Over = Annotated[
    str | None, typer.Option("--over", help="Swept parameter whose values follow one another; the first.")
]
TableFile = Annotated[Path | None, typer.Option("--table", help="Write the table as Markdown (.md).")]
CsvFile = Annotated[Path | None, typer.Option("--csv", help="Write the table as CSV.")]
LatexFile = Annotated[Path | None, typer.Option("--latex", help="Write the table as LaTeX, booktabs (.tex).")]
ParquetFile = Annotated[Path | None, typer.Option("--parquet", help="Write the table as Parquet.")]


class Outputs(NamedTuple):
    """Files to be written, None for those that were not asked for."""

    table: Path | None = None
    csv: Path | None = None
    latex: Path | None = None
    parquet: Path | None = None
    plot: Path | None = None

    def check(self, over: str | None, swept: list[str]) -> None:
        """Refuse what cannot be written or drawn, before anything is computed."""
        check_targets(**self._asdict())
        for name, ending in ENDINGS.items():
            path = getattr(self, name)
            if path is not None and path.suffix.lower() != ending:
                raise refuse(name, str(path), f"a file name ending in {ending}")
        if self.parquet is not None:
            check_parquet(self.parquet)
        if over is not None:
            choice("over", over, swept)
        if not swept and any(self):
            raise refuse("sweep", "a single point", "over one parameter at least to make a table or a figure")
        if self.plot is not None and len(swept) > 2:
            raise refuse(
                "plot", str(self.plot), f"left out with {len(swept)} swept parameters: it draws one or two"
            )

    def write(self, dataset: xarray.Dataset, over: str | None) -> None:
        """Write the files."""
        for path in (self.table, self.csv, self.latex, self.parquet):
            if path is not None:
                write_table(dataset, path, over)
        if self.plot is not None:
            save(plot_sweep(dataset, over), self.plot)

    def show(self, dataset: xarray.Dataset, over: str | None, done: int) -> None:
        """Print the table where there are no files, and what stands out. ``done`` points are computed."""
        if not dataset.dims:
            _print_point(dataset)
            return
        if not any(self):
            _print_table(dataset, over, done)
        if dataset["status"].size <= NOTED:
            for note in transition_notes(dataset, over):
                print(note)


def report_failures(dataset: xarray.Dataset) -> int:
    """Say how many points failed and why the first did; return the exit status that is due."""
    failures = count(dataset, "failed")
    if not failures:
        return 0
    first = dataset[["status", "message"]]
    if dataset.dims:
        first = first_part(first, str(list(first.dims)[-1]), [FAILED])
    message = first["message"].values[first["status"].values == "failed"].flat[0]
    size = dataset["status"].size
    whole = f"{failures} of {size} point{'' if size == 1 else 's'}"
    print(f"icl-theory: {whole} failed; the first: {message}", file=sys.stderr)
    return 3


def _print_table(dataset: xarray.Dataset, over: str | None, done: int) -> None:
    """Print as many columns as fit, the most important ones first."""
    important = with_role(dataset, *IMPORTANT)
    table = phase_table(first_part(dataset[["status", *important]], dimension(dataset, over)), over)
    head = table.head(MOST_ROWS)
    left = done - len(head)
    rows = contents(head)
    cells = {name: [number(value) for value in values] for name, values in rows.items()}
    console = Console(highlight=False)
    names = [name for name in cells if name in dataset.dims]
    room = console.width - sum(_width(name, cells[name]) for name in names)
    for name in (symbol(dataset, name) for name in important):
        width = _width(name, cells.get(name, []))
        if any(cells.get(name, [])) and width <= room:
            names, room = [*names, name], room - width
    shown = Table(box=box.SIMPLE, pad_edge=False)
    names = sorted(dict.fromkeys(names), key=list(cells).index)
    for name in names:
        shown.add_column(name, justify="right" if goes_right(rows[name]) else "left", no_wrap=True)
    for row in zip(*(cells[name] for name in names), strict=True):
        shown.add_row(*row)
    console.print(shown)
    if left > 0:
        console.print(f"... and {number(left)} rows more: --table or --csv writes them all.")


def _width(name: str, cells: list[str]) -> int:
    return max(map(len, (name, *cells))) + 3


def _print_point(dataset: xarray.Dataset) -> None:
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, value in point_facts(dataset).items():
        shown.add_row(name, number(value))
    Console(highlight=False).print(shown)

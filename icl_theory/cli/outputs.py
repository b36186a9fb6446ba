"""What the commands write of a sweep: tables in four formats, a figure, or a table in the terminal."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import choice, refuse
from icl_theory.cli.shared import check_targets

if TYPE_CHECKING:
    import xarray

ENDINGS = {"table": ".md", "csv": ".csv", "latex": ".tex", "parquet": ".parquet"}
MOST_ROWS = 60  # printed in a terminal
IMPORTANT = (
    "T_ε", "status", "regime", "exponent", "T_I", "T_II", "T_III", "Thm 1", "Thm 2", "certified", "L*",
    "predicted T_ε",
)  # fmt: skip


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
            from icl_theory.tables import check_parquet

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
        """Write the files; print the table where there are none."""
        from icl_theory.points import point_table
        from icl_theory.tables import transition_notes, write_table

        if not dataset.dims:
            _print_point(dataset)
            return
        table, notes = point_table(dataset, over), transition_notes(dataset, over)
        for path in (self.table, self.csv, self.latex, self.parquet):
            if path is not None:
                write_table(table, path, notes)
        if self.plot is not None:
            from icl_theory.diagrams import plot_sweep
            from icl_theory.plotting import save

            save(plot_sweep(dataset, over), str(self.plot))
        if not any(self):
            _print_table(table, [str(name) for name in dataset.dims])
        for note in notes:
            print(note)


def report_failures(dataset: xarray.Dataset) -> int:
    """Say how many points failed and why the first did; return the exit status that is due."""
    failed = (dataset["status"].values == "failed").ravel()
    count = int(failed.sum())
    if not count:
        return 0
    message = dataset["message"].values.ravel()[failed.argmax()]
    plural = "" if count == 1 else "s"
    print(f"icl-theory: {count} of {failed.size} point{plural} failed; the first: {message}", file=sys.stderr)
    return 3


def _print_table(table: Any, dimensions: list[str]) -> None:
    shown = Table(box=box.SIMPLE, pad_edge=False)
    rows = table.head(MOST_ROWS)
    cells = {name: [_short(value) for value in rows[name]] for name in table.columns}
    console = Console(highlight=False)
    names = [name for name in table.columns if name in dimensions]
    room = console.width - sum(_width(name, cells[name]) for name in names)
    for name in filter(cells.__contains__, IMPORTANT):
        width = _width(name, cells[name])
        if any(cells[name]) and width <= room:
            names, room = [*names, name], room - width
    names.sort(key=list(table.columns).index)
    for name in names:
        right = table[name].dtype.kind in "iuf"
        shown.add_column(str(name), justify="right" if right else "left", no_wrap=True)
    for row in zip(*(cells[name] for name in names), strict=True):
        shown.add_row(*row)
    console.print(shown)
    if len(table) > MOST_ROWS:
        console.print(f"... and {len(table) - MOST_ROWS:,} rows more: --table or --csv writes them all.")


def _width(name: str, cells: list[str]) -> int:
    return max(len(name), *(len(cell) for cell in cells)) + 3


def _print_point(dataset: xarray.Dataset) -> None:
    shown = Table(box=None, show_header=False, pad_edge=False)
    shown.add_column(style="bold")
    shown.add_column(overflow="fold")
    for name, value in dataset.data_vars.items():
        if value.item() not in ("", -1) and value.item() == value.item():
            shown.add_row(str(name), _short(value.item()))
    Console(highlight=False).print(shown)


def _short(value: Any) -> str:
    """Four digits at most, for a terminal."""
    if isinstance(value, str):
        return value
    if value is None or str(value) == "<NA>" or value != value:
        return ""
    number = float(value)
    if math.isfinite(number) and number == int(number) and abs(number) < 1e6:
        return f"{int(number)}"
    return f"{number:.3g}"

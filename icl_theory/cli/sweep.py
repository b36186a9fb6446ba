"""`icl-theory sweep`, `sweep` of every family, and `icl-theory table`.

``sweep`` plans a sweep from its options and computes it, and ``table`` loads one from a
store. Either command then writes the tables and figures of the sweep, and prints a
table with the columns that fit into the terminal.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory._validate import argument_error, choice, integer
from icl_theory.cli.options import (
    Config,
    help_text,
    options_of,
    parse_axis,
    require,
    with_options,
)
from icl_theory.cli.shared import (
    INTERRUPTED,
    Over,
    PlotFile,
    Quiet,
    check_targets,
    print_facts,
    print_json,
    say_left_out,
)
from icl_theory.engine.progress import Progress
from icl_theory.families import Family
from icl_theory.families.parameters import is_mse
from icl_theory.results.columns import (
    dimension,
    meanings,
    point_facts,
    symbol,
    with_role,
)
from icl_theory.results.numbers import is_right_aligned, number
from icl_theory.results.plots.style import save
from icl_theory.results.plots.sweeps import plot_sweep
from icl_theory.results.reading import count, first_part, places_of
from icl_theory.results.tables import check_format, contents, phase_table, write_table
from icl_theory.results.transitions import transition_notes
from icl_theory.sweeps.estimate import estimate
from icl_theory.sweeps.grid import FAILED, PENDING
from icl_theory.sweeps.sweep import load_sweep, plan, run_with
from icl_theory.sweeps.workers import cluster

if TYPE_CHECKING:
    import xarray

# The ending of each file, by the name of its option.
ENDINGS = {"table": ".md", "csv": ".csv", "latex": ".tex", "parquet": ".parquet"}
# Quantities with these roles are printed, in this order of importance; in a narrow
# terminal only the first ones. The role of a quantity is an attribute in the dataset
# that says how tables use the quantity.
IMPORTANT = (
    "steps",
    "status",
    "set",
    "word",
    "exponent",
    "phase",
    "verdict",
    "boundary",
    "predicted",
)
# A sentence in the help of the command.
SPELLING = "Numbers may be lists 1,2,5 or ranges 0.1:10:log:25 (or lin)."
# The number of characters that a printed table puts between two columns.
COLUMN_GAP = 3
# The largest number of rows of a printed table, about a screen.
MOST_ROWS = 60
# The largest number of points of a sweep whose transitions are found within seconds.
MOST_POINTS = 10**6
# The exit status if points failed. It differs from 1, by which other commands say that
# a target or a check was missed, and from 2, the status of wrong input.
POINTS_FAILED = 3
# The largest number of processes of --workers. No single machine runs so many, so a
# larger number is a typing error.
MOST_WORKERS = 10_000


class Outputs(NamedTuple):
    """The files that a command writes; None for a file whose option is not given."""

    table: Annotated[
        Path | None, typer.Option("--table", help="Write the table as Markdown (.md).")
    ] = None
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write the table as CSV.")
    ] = None
    latex: Annotated[
        Path | None,
        typer.Option("--latex", help="Write the table as LaTeX, booktabs (.tex)."),
    ] = None
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write the table as Parquet.")
    ] = None
    plot: PlotFile = None

    def check(self, over: str | None, swept: list[str], points: int) -> None:
        """Refuse files that cannot be written or drawn, before anything is computed.

        ``swept`` has the names of the swept parameters, and ``points`` is the number of
        points.
        """
        check_targets(**self._asdict())
        for name, ending in ENDINGS.items():
            path = getattr(self, name)
            if path is None:
                continue
            if path.suffix.lower() != ending:
                raise argument_error(name, str(path), f"a file name ending in {ending}")
            check_format(path, points)
        if over is not None:
            choice("over", over, swept)
        # Each field of this tuple is a file, or None if the file is not given.
        has_files = any(self)
        if not swept and has_files:
            raise ValueError(
                "a single point makes no table or figure: give a list or a range of"
                " some parameter"
            )
        if self.plot is not None and len(swept) > 2:
            raise ValueError(
                f"plot = {str(self.plot)!r}: a figure has one or two swept parameters;"
                f" with {len(swept)} swept parameters use --store and draw slices in"
                " Python"
            )

    def write(self, dataset: xarray.Dataset, over: str | None) -> None:
        """Write the tables and the figure for which there is a file."""
        for path in (self.table, self.csv, self.latex, self.parquet):
            if path is not None:
                write_table(dataset, path, over)
        if self.plot is not None:
            save(plot_sweep(dataset, over), self.plot)

    def show(
        self,
        dataset: xarray.Dataset,
        over: str | None,
        done_count: int,
        most_points: int = MOST_POINTS,
    ) -> None:
        """Print the table of a sweep, unless it goes into files, and its transitions.

        A note says so if the loss is the mean squared error. ``done_count`` is the
        number of computed points. Finding the transitions of a sweep of more than
        ``most_points`` points would take minutes, so the transitions of such a sweep
        are left out.
        """
        # Without a swept parameter there is a single point, which has no table.
        if not dataset.dims:
            facts = point_facts(dataset)
            print_facts({name: number(value) for name, value in facts.items()})
            return
        has_files = any(self)
        if not has_files:
            _print_table(dataset, over, done_count)
        if is_mse(json.loads(dataset.attrs.get("arguments", "{}"))):
            print(
                "Learning rates, targets and losses are for the mean squared error,"
                " without the factor 1/2."
            )
        if dataset["status"].size <= most_points:
            for note in transition_notes(dataset, over):
                print(note)


# The options of `Outputs` by name, which `with_options` adds to a command.
OUTPUTS = get_type_hints(Outputs, include_extras=True)


def sweep_command(family: type[Family]) -> Callable[..., int]:
    """Return the command that sweeps a family.

    Its docstring, which is the help of the command, is made from the family's title.
    """
    declared = family.parameters()

    def sweep(
        given: dict[str, str],
        context: typer.Context,
        config: Config = None,
        over: Over = None,
        store: Annotated[
            Path | None,
            typer.Option(
                "--store",
                help="Folder for finished chunks; the same command continues from it.",
            ),
        ] = None,
        workers: Annotated[
            int | None, typer.Option("--workers", help="Start this many processes.")
        ] = None,
        dask: Annotated[
            str | None,
            typer.Option("--dask", help="Address of a running Dask scheduler."),
        ] = None,
        as_json: Annotated[
            bool,
            typer.Option(
                "--json",
                help="Print the dataset, or the estimate of --dry-run, as JSON.",
            ),
        ] = False,
        dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Only estimate time and memory.")
        ] = False,
        quiet: Quiet = False,
        *,
        outputs: dict[str, Path],
    ) -> int:
        files = Outputs(**outputs)
        if workers is not None:
            integer("workers", workers, minimum=1, maximum=MOST_WORKERS)
            if dask is not None:
                raise ValueError(
                    "give --workers or --dask, not both: a scheduler has its own"
                    " workers"
                )
        settings = {
            name: parse_axis(declared[name], text) for name, text in given.items()
        }
        require(family, settings)
        with Progress(quiet=quiet):
            # Before the first point is computed, `plan` and `check` refuse options that
            # cannot work.
            planned = plan(family, settings)
            swept = [axis.name for axis in planned.grid.axes if axis.swept]
            files.check(over, swept, planned.grid.size)
            if dry_run:
                _print_estimate(estimate(planned, workers or 1), as_json)
                return 0
            with _executor(dask) as executor:
                dataset = run_with(
                    *planned,
                    executor=executor,
                    workers=workers,
                    store=store,
                    command=context.obj,
                )
            status = _show(dataset, files, over, as_json)
            if dataset.attrs["interrupted"]:
                _say_interrupted(dataset, store)
                return INTERRUPTED
            return status

    sweep.__doc__ = (
        f"Simulate {family.title} over a grid of parameters, and make tables."
        f" {SPELLING} Status 3 if points failed."
    )
    return with_options(sweep, given=options_of(family, help_text), outputs=OUTPUTS)


def _executor(address: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context that provides the executor of a Dask scheduler.

    Without an ``address`` of a scheduler it provides None.
    """
    return contextlib.nullcontext() if address is None else cluster(address)


def _print_estimate(lines: Iterator[str], as_json: bool) -> None:
    """Print the lines of an estimate as text or JSON.

    The estimate is made while its lines are read.
    """
    if as_json:
        print_json({"estimate": [*lines]})
        return
    # The estimate takes seconds: show each line as soon as it is known.
    for line in lines:
        print(line, flush=True)


def _say_interrupted(dataset: xarray.Dataset, store: Path | None) -> None:
    """Print how many points were computed, and how the sweep can be continued."""
    size = dataset["status"].size
    done_count = size - count(dataset, PENDING)
    if store is None:
        way_to_continue = "with --store the same command could continue the sweep"
    else:
        way_to_continue = "the same command continues the sweep"
    print(
        f"icl-theory: interrupted after {done_count} of {size} points;"
        f" {way_to_continue}",
        file=sys.stderr,
    )


def _show(
    dataset: xarray.Dataset, outputs: Outputs, over: str | None, as_json: bool = False
) -> int:
    """Write and print the results of a sweep, and return the exit status.

    If points failed, the message of the first one is printed. ``over`` is the parameter
    that varies fastest in tables.
    """
    # The notes name ignored files of a store, and columns without values.
    say_left_out(dataset.attrs.get("notes", "").splitlines())
    size = dataset["status"].size
    done_count = size - count(dataset, PENDING)
    # After Ctrl-C, tables have the points that were computed before it.
    if done_count:
        outputs.write(dataset, over)
    if as_json:
        print_json(dataset.to_dict())
    elif done_count:
        outputs.show(dataset, over, done_count)
    # A table is written even if points failed, so the exit status has to show that
    # some points failed.
    failures = count(dataset, FAILED)
    if not failures:
        return 0
    first_failure = next(places_of(dataset["status"] == FAILED))
    message = dataset["message"][first_failure].values.item()
    points = "point" if size == 1 else "points"
    print(
        f"icl-theory: {failures} of {size} {points} failed; the first: {message}",
        file=sys.stderr,
    )
    return POINTS_FAILED


@partial(with_options, outputs=OUTPUTS)
def table(
    store: Annotated[Path, typer.Argument(help="Folder written by --store.")],
    over: Over = None,
    quiet: Quiet = False,
    *,
    outputs: dict[str, Path],
) -> int:
    """Make tables and figures of a stored sweep, finished or not."""
    files = Outputs(**outputs)
    with Progress(quiet=quiet):
        dataset = load_sweep(store)
        size = dataset["status"].size
        files.check(over, [str(name) for name in dataset.dims], size)
        pending = count(dataset, PENDING)
        if pending == size:
            print(f"icl-theory: {store} holds no points yet", file=sys.stderr)
        elif pending:
            print(
                f"icl-theory: {pending} of {size} points are not computed yet",
                file=sys.stderr,
            )
        return _show(dataset, files, over)


class Columns(NamedTuple):
    """How the columns of a table are printed.

    Attributes
    ----------
    shown : list of str
        Columns of the printed table, in its order.
    constant : dict of str to str
        Columns with the same cell in all rows; a sentence below the table names them.
    unshown : list of str
        Columns for which there is no room.
    """

    shown: list[str]
    constant: dict[str, str]
    unshown: list[str]


def _print_table(
    dataset: xarray.Dataset, over: str | None, done_count: int, most: int = MOST_ROWS
) -> None:
    """Print up to ``most`` rows, with the columns that fit, and their meanings.

    ``done_count`` is the number of computed points, which is the number of rows of the
    whole table.
    """
    # Without --over this is the first swept parameter.
    over = dimension(dataset, over)
    quantities = _important_quantities(dataset, over)
    # Of a large sweep only the part that has the first rows is read.
    table = phase_table(first_part(dataset[["status", *quantities]], over), over)
    head = table.head(most)
    # The values of each column by its heading; ``cells`` has their texts.
    values = dict(contents(head))
    cells = {}
    for name, column in values.items():
        cells[name] = [number(value) for value in column]
    console = Console(highlight=False)
    symbols = [symbol(dataset, name) for name in quantities]
    axes = [name for name in cells if name in dataset.dims]
    columns = _fitted(cells, axes, symbols, console.width)
    _print_cells(console, columns.shown, cells, values)
    _print_remarks(console, columns, len(head), done_count)
    printed = {*columns.shown, *columns.constant}
    explained = [name for name in quantities if symbol(dataset, name) in printed]
    for sentence in meanings(dataset, explained):
        console.print(sentence)
    if columns.unshown:
        console.print(
            f"No room for {', '.join(columns.unshown)}: --table or --csv writes them,"
            " too."
        )


def _print_cells(
    console: Console,
    names: list[str],
    cells: dict[str, list[str]],
    values: dict[str, list[Any]],
) -> None:
    """Print the columns ``names`` as a table.

    ``cells`` has the texts of each column, and ``values`` the values themselves.
    Columns of numbers are right-aligned.
    """
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in names:
        justify: Any = "right" if is_right_aligned(values[name]) else "left"
        table.add_column(name, justify=justify, no_wrap=True)
    for row in zip(*(cells[name] for name in names), strict=True):
        table.add_row(*row)
    console.print(table)


def _print_remarks(
    console: Console, columns: Columns, rows: int, done_count: int
) -> None:
    """Print the number of rows that are not shown, and the constant columns.

    The table shows ``rows`` of ``done_count`` computed points.
    """
    if done_count > rows:
        console.print(
            f"... and {number(done_count - rows)} rows more: --table or --csv writes"
            " them all."
        )
    if columns.constant:
        facts = ", ".join(f"{name} = {cell}" for name, cell in columns.constant.items())
        described_rows = "rows" if done_count == rows else "rows shown"
        console.print(f"The same in all {described_rows}: {facts}.")


def _important_quantities(dataset: xarray.Dataset, over: str) -> list[str]:
    """Return the quantities of a table in order of importance.

    Of the local exponents, only the one along the parameter ``over`` is among them.
    """
    of_other_parameters = set()
    for name in with_role(dataset, "exponent"):
        # The attribute "of" is the parameter along which the exponent is taken.
        if dataset[name].attrs.get("of") != over:
            of_other_parameters.add(name)
    important = with_role(dataset, *IMPORTANT)
    return [name for name in important if name not in of_other_parameters]


def _fitted(
    cells: dict[str, list[str]], axes: list[str], symbols: list[str], width: int
) -> Columns:
    """Choose the columns that fit into a width.

    All columns of swept parameters are shown, and then as many quantities as fit, the
    most important ones first. If not all fit, a quantity with the same cell in all rows
    is moved to a sentence below the table, which leaves its width to other quantities.

    Parameters
    ----------
    cells : dict of str to list of str
        The cells of each column, by the symbol of the column.
    axes : list of str
        The columns of the swept parameters.
    symbols : list of str
        The other columns, the most important ones first.
    width : int
        The width of the terminal, in characters.
    """
    column_widths = {}
    for name, column in cells.items():
        column_widths[name] = max(len(text) for text in (name, *column)) + COLUMN_GAP
    free_width = width - sum(column_widths[name] for name in axes)
    # Columns without a value are left out. Two quantities may have the same symbol,
    # which `dict.fromkeys` keeps once.
    candidates = [
        name
        for name in dict.fromkeys(symbols)
        if name not in axes and any(cells.get(name, []))
    ]
    constant: dict[str, str] = {}
    if sum(column_widths[name] for name in candidates) > free_width:
        constant = _constant_cells(cells, candidates)
    shown = [*axes]
    unshown = []
    for name in candidates:
        if name in constant:
            continue
        # If a column is too wide, a later, narrower one may still fit.
        if column_widths[name] <= free_width:
            shown.append(name)
            free_width -= column_widths[name]
        else:
            unshown.append(name)
    table_order = list(cells)
    return Columns(sorted(shown, key=table_order.index), constant, unshown)


def _constant_cells(cells: dict[str, list[str]], names: list[str]) -> dict[str, str]:
    """Return the common cell of each column whose cells are all the same.

    With a single row the result is empty, because all columns would be in it.
    """
    constant = {}
    for name in names:
        column = cells[name]
        if len(column) > 1 and len(set(column)) == 1:
            constant[name] = column[0]
    return constant

"""`icl-theory sweep`, `sweep` of every family, and `icl-theory table`: grids with their tables and figures."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_type_hints

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
from icl_theory.results.columns import (
    dimension,
    meanings,
    point_facts,
    symbol,
    with_role,
)
from icl_theory.results.numbers import goes_right, number
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

ENDINGS = {"table": ".md", "csv": ".csv", "latex": ".tex", "parquet": ".parquet"}
# roles of quantities; the first ones are printed even where there is little room
IMPORTANT = (
    "steps",
    "status",
    "word",
    "exponent",
    "phase",
    "verdict",
    "boundary",
    "predicted",
)
SPELLING = "Numbers may be lists 1,2,5 or ranges 0.1:10:log:25 (or lin)."


class Outputs(NamedTuple):
    """Files to write, or None for those that were not asked for."""

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
        """Refuse what cannot be written or drawn, before anything is computed."""
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
        if not swept and any(self):
            raise ValueError(
                "a single point makes no table or figure: give a list or a range of some parameter"
            )
        if self.plot is not None and len(swept) > 2:
            many = f"with {len(swept)} swept parameters use --store and draw slices in Python"
            raise ValueError(
                f"plot = {str(self.plot)!r}: a figure has one or two swept parameters; {many}"
            )

    def write(self, dataset: xarray.Dataset, over: str | None) -> None:
        """Write the files."""
        for path in (self.table, self.csv, self.latex, self.parquet):
            if path is not None:
                write_table(dataset, path, over)
        if self.plot is not None:
            save(plot_sweep(dataset, over), self.plot)

    def show(
        self,
        dataset: xarray.Dataset,
        over: str | None,
        done: int,
        most_points: int = 10**6,
    ) -> None:
        """Print the table of ``done`` points unless there are files, and transitions where they take no minutes."""
        if not dataset.dims:
            print_facts(
                {name: number(value) for name, value in point_facts(dataset).items()}
            )
            return
        if not any(self):
            _print_table(dataset, over, done)
        if dataset["status"].size <= most_points:
            for note in transition_notes(dataset, over):
                print(note)


OUTPUTS = get_type_hints(Outputs, include_extras=True)


def sweep_command(family: type[Family]) -> Callable[..., int]:
    """Return the command that sweeps a family."""
    known = family.parameters()

    def sweep(
        given: dict[str, str],
        context: typer.Context,
        config: Config = None,
        over: Over = None,
        store: Annotated[
            Path | None,
            typer.Option(
                "--store", help="Folder that keeps finished chunks, to go on from."
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
            bool, typer.Option("--dry-run", help="Only say how much work it would be.")
        ] = False,
        quiet: Quiet = False,
        *,
        outputs: dict[str, Path],
    ) -> int:
        files = Outputs(**outputs)
        if workers is not None:
            integer("workers", workers, minimum=1, maximum=10_000)
            if dask is not None:
                raise ValueError(
                    "give --workers or --dask, not both: a scheduler has its own workers"
                )
        settings = {name: parse_axis(known[name], text) for name, text in given.items()}
        require(family, settings)
        with Progress(quiet=quiet):
            made = plan(family, settings)
            files.check(
                over,
                [axis.name for axis in made.grid.axes if axis.swept],
                made.grid.size,
            )
            if dry_run:
                _print_estimate(estimate(made, workers or 1), as_json)
                return 0
            with (
                contextlib.nullcontext() if dask is None else cluster(dask) as executor
            ):
                dataset = run_with(
                    *made,
                    executor=executor,
                    workers=workers,
                    store=store,
                    command=context.obj,
                )
            status = _show(dataset, files, over, as_json)
            if not dataset.attrs["interrupted"]:
                return status
            how = "the same command continues from there"
            if store is None:
                how = "with --store the same command could continue"
            size = dataset["status"].size
            done = size - count(dataset, PENDING)
            print(
                f"icl-theory: interrupted after {done} of {size} points; {how}",
                file=sys.stderr,
            )
            return 130

    sweep.__doc__ = f"Simulate {family.title} over a grid of parameters, and make tables. {SPELLING} Status 3 if points failed."
    return with_options(sweep, given=options_of(family, help_text), outputs=OUTPUTS)


def _print_estimate(said: Iterator[str], as_json: bool) -> None:
    if as_json:
        print_json({"estimate": [*said]})
    else:
        for line in said:
            print(line, flush=True)


def _show(
    dataset: xarray.Dataset, outputs: Outputs, over: str | None, as_json: bool = False
) -> int:
    """Write and print what a sweep has found, say why points failed, and return the exit status."""
    say_left_out(dataset.attrs.get("notes", "").splitlines())
    size = dataset["status"].size
    done = size - count(dataset, PENDING)
    if done:
        outputs.write(dataset, over)
    if as_json:
        print_json(dataset.to_dict())
    elif done:
        outputs.show(dataset, over, done)
    failures = count(dataset, FAILED)
    if not failures:
        return 0
    message = dataset["message"][
        next(places_of(dataset["status"] == FAILED))
    ].values.item()
    whole = f"{failures} of {size} point{'' if size == 1 else 's'}"
    print(f"icl-theory: {whole} failed; the first: {message}", file=sys.stderr)
    return 3


@partial(with_options, outputs=OUTPUTS)
def table(
    store: Annotated[Path, typer.Argument(help="Folder written by --store.")],
    over: Over = None,
    quiet: Quiet = False,
    *,
    outputs: dict[str, Path],
) -> int:
    """Make the tables and figures of a stored sweep again, also of one that is not finished."""
    files = Outputs(**outputs)
    with Progress(quiet=quiet):
        dataset = load_sweep(store)
        size = dataset["status"].size
        files.check(over, [str(name) for name in dataset.dims], size)
        if pending := count(dataset, PENDING):
            few = f"{pending} of {size} points are not computed yet"
            print(
                f"icl-theory: {few if pending < size else f'{store} holds no points yet'}",
                file=sys.stderr,
            )
        return _show(dataset, files, over)


def _print_table(
    dataset: xarray.Dataset, over: str | None, done: int, most: int = 60
) -> None:
    """Print ``most`` rows, about a screen, with the columns that fit, and say what the headings mean.

    If not all columns fit, those that have the same value in all rows become a sentence
    below the table.
    """
    over = dimension(dataset, over)
    elsewhere = [
        name
        for name in with_role(dataset, "exponent")
        if dataset[name].attrs.get("of") != over
    ]
    important = [
        name for name in with_role(dataset, *IMPORTANT) if name not in elsewhere
    ]
    table = phase_table(first_part(dataset[["status", *important]], over), over)
    head = table.head(most)
    rows = dict(contents(head))
    cells = {name: [number(value) for value in values] for name, values in rows.items()}
    widths = {name: max(map(len, (name, *words))) + 3 for name, words in cells.items()}
    console = Console(highlight=False)
    names = [name for name in cells if name in dataset.dims]
    room = console.width - sum(widths[name] for name in names)
    symbols = dict.fromkeys(symbol(dataset, each) for each in important)
    columns = [
        name for name in symbols if name not in names and any(cells.get(name, []))
    ]
    constant: dict[str, str] = {}
    if sum(widths[name] for name in columns) > room and len(head) > 1:
        constant = {
            name: cells[name][0] for name in columns if len(set(cells[name])) == 1
        }
    left_out = []
    for name in columns:
        if name in constant:
            continue
        if widths[name] <= room:
            names = [*names, name]
            room = room - widths[name]
        else:
            left_out.append(name)
    shown = Table(box=box.SIMPLE, pad_edge=False)
    names = sorted(dict.fromkeys(names), key=list(cells).index)
    for name in names:
        shown.add_column(
            name, justify="right" if goes_right(rows[name]) else "left", no_wrap=True
        )
    for row in zip(*(cells[name] for name in names), strict=True):
        shown.add_row(*row)
    console.print(shown)
    if done > len(head):
        console.print(
            f"... and {number(done - len(head))} rows more: --table or --csv writes them all."
        )
    if constant:
        values = ", ".join(f"{name} = {value}" for name, value in constant.items())
        console.print(
            f"The same in all {'rows' if done == len(head) else 'rows shown'}: {values}."
        )
    explained = [
        each for each in important if symbol(dataset, each) in (*names, *constant)
    ]
    for sentence in meanings(dataset, explained):
        console.print(sentence)
    if left_out:
        console.print(
            f"No room for {', '.join(left_out)}: --table or --csv writes them, too."
        )

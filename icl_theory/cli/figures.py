"""`icl-theory figures`, and the command line of each figure's script."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory import figures as recipes
from icl_theory._validate import choice
from icl_theory.cli.shared import say_left_out
from icl_theory.families import left_out
from icl_theory.results.plots.style import release

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(
    names: Annotated[list[str] | None, typer.Argument(help="Names of figures; all unless given.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files, PDF and PNG.")] = Path("figures"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer and shorter runs.")] = False,
    animate: Annotated[bool, typer.Option("--animate", help="Attention maps over training, as a film.")] = False,
    show: Annotated[bool, typer.Option("--list", help="Print the names and titles.")] = False,
) -> int:
    """Reproduce the figures of the papers and of the documentation."""
    available = recipes.available()
    failures: list[str] = []
    say_left_out(recipes.recipes()[1])
    for name in names or []:
        choice("figure", name, available)
    console = Console(highlight=False)
    if show:
        table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        for name in names or available:
            table.add_row(name, available[name])
        console.print(table)
        return 0
    recipes.check_folder(out)
    if animate:
        for name in names or []:
            choice("figure", name, ["maps"])
        for path in recipes.animate(out, quick=quick):
            print(path)
        return 0
    for name in names or available:
        try:
            with left_out(f"the figure {name}", failures):
                for path in recipes.write(recipes.draw(name, quick=quick), out, name):
                    print(path, flush=True)
        except KeyboardInterrupt:
            print(f"icl-theory: interrupted at {name}; the figures before it are complete", file=sys.stderr)
            return 130
    say_left_out(failures)
    return 1 if failures else 0


def script(file: str, figure: Callable[..., Figure], quick: dict[str, Any]) -> None:
    """Run the script of a figure as a command; with --quick its function gets the parameters ``quick``."""
    parser = argparse.ArgumentParser(description=recipes.available().get(Path(file).stem))
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder for the files, PDF and PNG")
    given = parser.parse_args()
    try:
        recipes.check_folder(given.out)
    except ValueError as error:
        parser.error(str(error))
    try:
        drawn = figure(**(quick if given.quick else {}))
        paths = recipes.write(drawn, given.out, Path(file).stem)
        release(drawn)
    except KeyboardInterrupt:
        parser.exit(130, "interrupted\n")
    for path in paths:
        print(path)

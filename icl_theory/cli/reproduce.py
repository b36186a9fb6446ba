"""`icl-theory reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from icl_theory import figures
from icl_theory.cli.shared import say_left_out
from icl_theory.papers import reproduction
from icl_theory.papers.audit import known


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Name of a paper; without one all are listed.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pages and pictures.")] = Path("reproduced"),
    only: Annotated[str | None, typer.Option("--only", help="One statement, by its name.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller grids and shorter runs.")] = False,
) -> int:
    """Measure every statement of a paper and write a page of it; status 1 if an exact claim is violated."""
    console = Console(highlight=False)
    table = Table(box=box.SIMPLE, pad_edge=False, show_header=name is not None)
    say_left_out(known()[1])
    if name is None:
        for paper in reproduction.papers().values():
            table.add_row(paper.name, paper.reference)
        console.print(table)
        return 0
    figures.check_folder(out)
    found = reproduction.reproduce(name, only=only, quick=quick)
    paths = found.write(out)
    for heading in ("statement", "tested by", "verdict"):
        table.add_column(heading)
    for row in zip(*(found.overview[column.header] for column in table.columns), strict=True):  # type: ignore[index]
        table.add_row(*row)
    console.print(table)
    for path in paths:
        print(path)
    say_left_out(found.failures)
    return 1 if found.violations or found.failures else 0

"""`icl-theory report`, `explore` and `reproduce`: the commands that write pages."""

from __future__ import annotations

import datetime
import tempfile
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from icl_theory import figures
from icl_theory._validate import refuse
from icl_theory.cli.shared import Over, Quiet, check_targets, print_rows, say_left_out
from icl_theory.engine.progress import Work
from icl_theory.engine.trajectory import Trajectory
from icl_theory.explorer import page, panels
from icl_theory.families.saved import load
from icl_theory.files import replacing
from icl_theory.grids.sweep import load_sweep
from icl_theory.papers import reproduction
from icl_theory.papers.audit import known
from icl_theory.results.report import html_report


def report(
    found: Annotated[
        Path,
        typer.Argument(
            metavar="STORE|RUN",
            help="Folder written by --store, or file written by --save.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write (.html).")],
    over: Over = None,
    quiet: Quiet = False,
) -> int:
    """Write a report of a run or a sweep, finished or not: one HTML file that needs no other file.

    Example: icl-theory report run.npz --out run.html
    """
    check_targets(None, out=out)
    if out.suffix != ".html" or out.resolve() == found.resolve():
        raise refuse(
            "out",
            str(out),
            "a file name ending in .html, other than the one that is read",
        )
    if not found.exists():
        raise refuse(
            "path",
            str(found),
            "a run written with --save, or a folder written with --store",
        )
    with Work(quiet=quiet):
        read = load(str(found)) if found.is_file() else load_sweep(found)
        if not isinstance(read, Trajectory):
            say_left_out(read.attrs.get("notes", "").splitlines())
        text = html_report(
            read, over=over, source=str(found), date=datetime.date.today()
        )
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return 0


def explore(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the page; a temporary file unless given."),
    ] = None,
    browser: Annotated[
        bool, typer.Option(help="Open the page in the web browser.")
    ] = True,
) -> None:
    """Write the explorer, one page of HTML that needs no network, and open it in the web browser."""
    check_targets(None, out=out)
    # A folder of its own: under a name that is known in advance another user might have
    # put a link.
    chosen = (
        Path(tempfile.mkdtemp(prefix="icl-theory-"), "explorer.html")
        if out is None
        else out
    )
    target = chosen.absolute()
    say_left_out(panels()[1])
    with warnings.catch_warnings(action="ignore"), replacing(target) as temporary:
        temporary.write_text(page(), encoding="utf-8")
    print(target)
    if browser and not webbrowser.open(target.as_uri()):
        print("No web browser was found; open the file in one.")


def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="Name of a paper; without one all are listed.")
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the pages and pictures.")
    ] = Path("reproduced"),
    only: Annotated[
        str | None, typer.Option("--only", help="One statement, by its name.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Smaller grids and shorter runs.")
    ] = False,
) -> int:
    """Measure every statement of a paper and write a page of it; status 1 if an exact claim is violated.

    Example: icl-theory reproduce nonlinear-regression --quick --out reproduced
    """
    say_left_out(known()[1])
    if name is None:
        print_rows(
            (paper.name, paper.reference) for paper in reproduction.papers().values()
        )
        return 0
    figures.check_folder(out)
    found = reproduction.reproduce(name, only=only, quick=quick)
    paths = found.write(out)
    headings = ("statement", "tested by", "verdict")
    print_rows(
        zip(*(found.overview[heading] for heading in headings), strict=True), *headings
    )
    for path in paths:
        print(path)
    say_left_out(found.failures)
    return 1 if found.violations or found.failures else 0

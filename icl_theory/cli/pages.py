"""`icl-theory report` and `reproduce`: the commands that write pages."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated

import typer

from icl_theory import figures
from icl_theory._validate import argument_error
from icl_theory.cli import completion
from icl_theory.cli.shared import Over, Quiet, check_targets, print_rows, say_left_out
from icl_theory.engine.progress import Progress
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.saved import load
from icl_theory.files import replacing
from icl_theory.results import reproduction
from icl_theory.results.report import html_report
from icl_theory.statements.audit import all_claims
from icl_theory.sweeps.sweep import load_sweep


def report(
    source: Annotated[
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
    """Write a report of a run or a sweep, finished or not, as one HTML file.

    Example: icl-theory report run.npz --out run.html
    """
    # Before anything is read, refuse all arguments that cannot work.
    check_targets(None, out=out)
    if out.suffix != ".html" or out.resolve() == source.resolve():
        raise argument_error(
            "out",
            str(out),
            "a file name ending in .html, other than the one that is read",
        )
    if not source.exists():
        raise argument_error(
            "path",
            str(source),
            "a run written with --save, or a folder written with --store",
        )
    with Progress(quiet=quiet):
        # A run is a file, and the store of a sweep is a folder.
        result = load(str(source)) if source.is_file() else load_sweep(source)
        # The notes of a sweep name ignored files and columns without values.
        if not isinstance(result, Trajectory):
            say_left_out(result.attrs.get("notes", "").splitlines())
        text = html_report(
            result, over=over, source=str(source), date=datetime.date.today()
        )
    # A crash while the page is written leaves an earlier page as it was.
    with replacing(out) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return 0


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of a paper; without it, all papers are listed.",
            autocompletion=completion.of_words(completion.papers),
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder for the pages and pictures.")
    ] = Path("reproduced"),
    only: Annotated[
        str | None,
        typer.Option("--only", help="Name of the only statement to measure."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Use smaller grids and shorter runs.")
    ] = False,
) -> int:
    """Measure every statement of a paper; status 1 if an exact claim is violated.

    Example: icl-theory reproduce nonlinear-regression --quick --out reproduced
    """
    _claims, messages = all_claims()
    say_left_out(messages)
    if name is None:
        print_rows(
            (paper.name, paper.reference) for paper in reproduction.papers().values()
        )
        return 0
    # A folder that cannot be written is refused before minutes of measurements.
    figures.check_folder(out)
    reproduced = reproduction.reproduce(name, only=only, quick=quick)
    paths = reproduced.write(out)
    headings = ("statement", "verdict", "source")
    columns = [reproduced.overview[heading] for heading in headings]
    print_rows(zip(*columns, strict=True), *headings)
    for path in paths:
        print(path)
    return 1 if reproduced.violations else 0

"""`icl-theory report`."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from icl_theory._validate import refuse
from icl_theory.cli.shared import Quiet, check_targets, silent
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.saved import load
from icl_theory.files import replacing
from icl_theory.grids.sweep import load_sweep
from icl_theory.results.report import html_report

if TYPE_CHECKING:
    import xarray


def report(
    found: Annotated[
        Path, typer.Argument(metavar="STORE|RUN", help="Folder written by --store, or file written by --save.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The file to write (.html).")],
    over: Annotated[
        str | None, typer.Option("--over", help="Swept parameter whose values follow one another.")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Write a report of a run or a sweep, finished or not: one HTML file that needs no other file."""
    check_targets(None, out=out)
    if out.suffix != ".html" or out.resolve() == found.resolve():
        raise refuse("out", str(out), "a file name ending in .html, other than the one that is read")
    with silent(quiet):
        page = html_report(_read(found), over=over, source=str(found), date=datetime.date.today())
    with replacing(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return 0


def _read(path: Path) -> Trajectory | xarray.Dataset:
    if not path.exists():
        raise refuse("path", str(path), "a run written with --save, or a folder written with --store")
    if path.is_file():
        return load(path)
    return load_sweep(path)

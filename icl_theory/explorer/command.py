"""`icl-theory explore`: write the explorer and open it in the web browser."""

from __future__ import annotations

import tempfile
import warnings
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from icl_theory.cli.shared import check_targets, say_left_out
from icl_theory.explorer import page, panels
from icl_theory.files import replacing


def explore(
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File for the page; a temporary file unless given."),
    ] = None,
    browser: Annotated[
        bool, typer.Option(help="Open the page in the web browser.")
    ] = True,
) -> None:
    """Write the explorer, one page of HTML, and open it in the web browser."""
    # Refuse a file in a folder that does not exist. This command makes no plot.
    check_targets(plot=None, out=out)
    if out is None:
        # The file is in a new folder, because another user might have put a link at a
        # path that is known in advance.
        out = Path(tempfile.mkdtemp(prefix="icl-theory-"), "explorer.html")
    target = out.absolute()
    _modules, messages = panels()
    say_left_out(messages)
    # `page` would warn of the same panels that `say_left_out` has just named.
    with warnings.catch_warnings(action="ignore"), replacing(target) as temporary:
        temporary.write_text(page(), encoding="utf-8")
    print(target)
    if browser and not webbrowser.open(target.as_uri()):
        print("No web browser was found; open the file in one.")

"""The page on the command line, which typer writes from the commands themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx


def _write(app: Sphinx) -> None:
    page = Path(app.srcdir, "api", "generated", "command-line.md")
    page.parent.mkdir(exist_ok=True)
    made = [
        "utils",
        "docs",
        "--name",
        "icl-theory",
        "--title",
        "Command line",
        "--output",
        str(page),
    ]
    subprocess.run(
        [sys.executable, "-m", "typer", "icl_theory.cli", *made],
        check=True,
        stdout=subprocess.DEVNULL,
    )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write the page before the sources are read."""
    app.connect("builder-inited", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

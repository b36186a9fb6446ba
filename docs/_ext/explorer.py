"""The explorer, written into the site as one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from icl_theory.explorer import page


def _write(app: Sphinx, failed: Exception | None) -> None:
    if failed is None and app.builder.format == "html":
        Path(app.outdir, "_static", "explorer.html").write_text(
            page(), encoding="utf-8"
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Write it once the folder is there."""
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

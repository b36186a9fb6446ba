"""The gallery runs the command that a reader would, and shows the picture that it wrote."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from sphinx_gallery.scrapers import figure_rst


def _folder(gallery_conf: dict[str, Any]) -> Path:
    return Path(gallery_conf["src_dir"], "_build", "figures")


def arguments(gallery_conf: dict[str, Any], script_vars: dict[str, Any]) -> list[str]:
    """Return the command line of a figure's script; `make docs QUICK=1` draws with fewer and shorter runs."""
    script_vars["example_globals"]["__file__"] = script_vars[
        "src_file"
    ]  # which the gallery leaves out
    quick = ["--quick"] if os.environ.get("QUICK", "0") not in ("", "0") else []
    return [
        "--out",
        os.path.relpath(_folder(gallery_conf), Path(script_vars["src_file"]).parent),
        *quick,
    ]


def written_picture(
    block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]
) -> str:
    """Return the reStructuredText that shows what the script has written by now."""
    picture = _folder(gallery_conf) / f"{Path(block_vars['src_file']).stem}.png"
    if not picture.exists():
        return ""
    target = next(block_vars["image_path_iterator"])
    shutil.move(picture, target)
    shown, place = (
        figure_rst([target], gallery_conf["src_dir"]),
        block_vars["example_globals"].get("EXPLORER"),
    )
    if place is None:
        return shown
    return f"{shown}\n\n`The nearest setting in the explorer <../_static/explorer.html#{place}>`__\n\n"

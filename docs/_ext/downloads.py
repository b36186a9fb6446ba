"""Pages of the guide as notebooks: made from the pages, and linked at the top of each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import notebooks


def _link(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a line with the notebook below the title."""
    for name in [
        name for name, pages in notebooks.NOTEBOOKS.items() if f"{page}.md" in pages
    ]:
        title, rest = source[0].split("\n", 1)
        place = "../" * page.count("/") + f"_static/notebooks/{name}.ipynb"
        links = [f'<a href="{place}" download>This page as a notebook</a>']
        repository = notebooks.ADDRESSES["repository"]
        hosts = {
            "Binder": notebooks.binder(name, repository),
            "Colab": notebooks.colab(name, repository),
        }
        for host, address in hosts.items():
            if address:
                links.append(f'<a href="{address}">Run it on {host}</a>')
        source[0] = f'{title}\n\n<p class="notebook">{" · ".join(links)}</p>\n{rest}'


def _write(app: Sphinx, failed: Exception | None) -> None:
    if failed is None and app.builder.format == "html":
        notebooks.write(Path(app.outdir, "_static", "notebooks"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Link before pages are read, write when the folder is there."""
    app.connect("source-read", _link)
    app.connect("build-finished", _write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

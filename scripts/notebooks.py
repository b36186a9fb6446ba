"""Write pages of the guide as notebooks.

python scripts/notebooks.py

Blocks of python and sh become cells of code, and the prose between them becomes text.
"""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

# The pages of each notebook, as paths below docs.
NOTEBOOKS = {
    "first-hour": ("tutorial.md", "guide/finite-prompts.md", "guide/methods.md"),
    "your-own-bound": ("guide/your-own-bound.md",),
    "twenty-lines": ("guide/twenty-lines.md",),
}
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
# The folder of the notebooks in the repository, where Binder and Colab find them.
FOLDER = "docs/notebooks"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# The addresses of the repository and of the documentation's site; either may be empty.
ADDRESSES = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com"
# A link [words](page.md#anchor) to another page, which is no web address.
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)#\s]+)\.md(#[^)]*)?\)")
# The first cell, if the address of the repository is known.
INSTALL = """try:
    import icl_theory
except ImportError:
    %pip install --quiet {source}
"""
# A block of code on a page, with its language.
FENCED = re.compile(r"^```(python|sh|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def notebook(*pages: str) -> dict[str, Any]:
    """Return the notebook of some pages.

    The output that the pages show is left out, because running the cells makes it.

    Parameters
    ----------
    *pages : str
        Paths below ``docs``, in their order.

    Returns
    -------
    dict
        The notebook, in the format 4.5 of Jupyter.
    """
    texts = []
    for page in pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        texts.append(linked(text, page, ADDRESSES["documentation"]))
    text = "\n".join(texts)
    # The first piece is prose. Then come language, block and prose in turn.
    first_prose, *pieces = FENCED.split(text)
    cells = [cell("code", installation(ADDRESSES["repository"]))]
    cells.append(cell("markdown", first_prose))
    for language, block, prose in zip(
        pieces[::3], pieces[1::3], pieces[2::3], strict=True
    ):
        if language == "python":
            cells.append(cell("code", block))
        elif language == "sh":
            cells.append(cell("code", _shell(block)))
        cells.append(cell("markdown", prose))
    # Between two blocks there may be no prose, and an empty cell is left out.
    cells = [
        one_cell | {"id": f"cell-{number}"}
        for number, one_cell in enumerate(cells)
        if one_cell["source"]
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {
        "cells": cells,
        "metadata": {"kernelspec": kernel},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def installation(repository: str) -> str:
    """Return the cell that installs the package on a machine without it, such as Colab.

    Without the address of a repository, the cell only imports the package, with a
    comment on how to install it.
    """
    if repository:
        return INSTALL.format(source=f"git+{repository}")
    return "import icl_theory  # in a checkout: pip install ."


def linked(text: str, page: str, documentation: str) -> str:
    """Return a page whose links to other pages lead to the documentation's site.

    ``page`` is the path of the page below docs, and ``documentation`` the address of
    the site. Beside a notebook there are no other pages, so that relative links would
    lead nowhere. Without an address, a link is replaced by its words.
    """

    def replacement(link: re.Match[str]) -> str:
        """Return the link to the site, or its words."""
        words, target, anchor = link.groups()
        if not documentation:
            return words
        # The target is relative to the folder of the page.
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        return f"[{words}]({documentation.rstrip('/')}/{place}.html{anchor or ''})"

    return LINK.sub(replacement, text)


def binder(name: str, repository: str) -> str:
    """Return the address at which Binder runs a notebook.

    Binder builds the repository and installs the package. It needs a public repository
    on GitHub; the address is empty for any other repository.
    """
    place = on_github(repository)
    if not place:
        return ""
    file = posixpath.join(FOLDER, f"{name}.ipynb").replace("/", "%2F")
    return f"https://mybinder.org/v2/gh/{place}/HEAD?labpath={file}"


def colab(name: str, repository: str) -> str:
    """Return the address at which Colab opens a notebook.

    Colab reads the notebook from a public repository on GitHub, and the first cell of
    the notebook installs the package. The address is empty for any other repository.
    """
    place = on_github(repository)
    if not place:
        return ""
    return f"{COLAB}/github/{place}/blob/HEAD/{FOLDER}/{name}.ipynb"


def on_github(repository: str) -> str:
    """Return "owner/name" of a repository on GitHub, and "" for any other address."""
    if not repository.startswith(GITHUB):
        return ""
    return repository.removeprefix(GITHUB).strip("/").removesuffix(".git")


def cell(kind: str, text: str) -> dict[str, Any]:
    """Return a cell of a kind, "code" or "markdown"."""
    fields: dict[str, Any] = {
        "cell_type": kind,
        "metadata": {},
        "source": text.strip("\n"),
    }
    if kind == "code":
        fields |= {"execution_count": None, "outputs": []}
    return fields


def _shell(block: str) -> str:
    """Return commands of the package as code of IPython, with "!" before each."""
    return re.sub(r"^(?=icl-theory)", "!", block, flags=re.MULTILINE)


def write(folder: Path) -> list[Path]:
    """Write the notebooks into a folder, and return their paths.

    A missing folder is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.ipynb" for name in NOTEBOOKS]
    for pages, path in zip(NOTEBOOKS.values(), paths, strict=True):
        path.write_text(
            json.dumps(notebook(*pages), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--out", type=Path, default=ROOT / FOLDER, help="folder for the notebooks"
    )
    for written in write(parser.parse_args().out):
        print(written)

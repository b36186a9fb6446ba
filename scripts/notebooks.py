"""Pages of the guide as notebooks: blocks of python and sh become cells, the prose between them text."""

from __future__ import annotations

import argparse
import json
import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

NOTEBOOKS = {
    "first-hour": ("tutorial.md", "guide/finite-prompts.md", "guide/methods.md"),
    "your-own-bound": ("guide/your-own-bound.md",),
    "twenty-lines": ("guide/twenty-lines.md",),
}
ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
FOLDER = "docs/notebooks"  # of the repository, where Binder and Colab find them
ADDRESSES = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
    "tool"
]["hatch"]["metadata"]["hooks"]["custom"]
GITHUB = "https://github.com/"
COLAB = "https://colab.research.google.com"
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?!https?:)([^)#\s]+)\.md(#[^)]*)?\)")
INSTALL = """try:
    import icl_theory
except ImportError:
    %pip install --quiet {source}
"""
FENCED = re.compile(r"^```(python|sh|text)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def notebook(*pages: str) -> dict[str, Any]:
    """Return the notebook of some pages: shown output is left out, for running the cells makes it.

    Parameters
    ----------
    *pages : str
        Paths below ``docs``, in their order.

    Returns
    -------
    dict
        The notebook, format 4.5.
    """
    texts = []
    for page in pages:
        text = (DOCS / page).read_text(encoding="utf-8")
        texts.append(linked(text, page, ADDRESSES["documentation"]))
    text = "\n".join(texts)
    pieces = FENCED.split(text)  # prose, language, block, prose, ...
    cells = [cell("code", installation(ADDRESSES["repository"]))]
    cells.append(cell("markdown", pieces[0]))
    for language, block, prose in zip(
        pieces[1::3], pieces[2::3], pieces[3::3], strict=True
    ):
        if language != "text":
            cells.append(cell("code", block if language == "python" else _shell(block)))
        cells.append(cell("markdown", prose))
    cells = [
        each | {"id": f"cell-{number}"}
        for number, each in enumerate(cells)
        if each["source"]
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

    Without the address of a repository it can only say what is missing.
    """
    if repository:
        return INSTALL.format(source=f"git+{repository}")
    return "import icl_theory  # in a checkout: pip install ."


def linked(text: str, page: str, documentation: str) -> str:
    """Return a page whose links to other pages lead to the documentation's site.

    A notebook lies beside no other page. Without the address of a site the words of a
    link stay, and the link goes.
    """

    def whole(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        if not documentation:
            return words
        place = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        return f"[{words}]({documentation.rstrip('/')}/{place}.html{anchor or ''})"

    return LINK.sub(whole, text)


def binder(name: str, repository: str) -> str:
    """Return the address at which Binder runs a notebook, or the empty text.

    Binder builds the repository and installs the package. It needs a public repository
    on GitHub.
    """
    place = on_github(repository)
    if not place:
        return ""
    file = posixpath.join(FOLDER, f"{name}.ipynb").replace("/", "%2F")
    return f"https://mybinder.org/v2/gh/{place}/HEAD?labpath={file}"


def colab(name: str, repository: str) -> str:
    """Return the address at which Colab opens a notebook, or the empty text.

    Colab reads the notebook from a public repository on GitHub, and its first cell
    installs the package.
    """
    place = on_github(repository)
    if not place:
        return ""
    return f"{COLAB}/github/{place}/blob/HEAD/{FOLDER}/{name}.ipynb"


def on_github(repository: str) -> str:
    """Return owner and name of a repository on GitHub, otherwise the empty text."""
    if not repository.startswith(GITHUB):
        return ""
    return repository.removeprefix(GITHUB).strip("/").removesuffix(".git")


def cell(kind: str, text: str) -> dict[str, Any]:
    """Return a cell of a kind, "code" or "markdown"."""
    made: dict[str, Any] = {
        "cell_type": kind,
        "metadata": {},
        "source": text.strip("\n"),
    }
    return made | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _shell(block: str) -> str:
    return re.sub(r"^(?=icl-theory)", "!", block, flags=re.MULTILINE)


def write(folder: Path) -> list[Path]:
    """Write the notebooks into a folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.ipynb" for name in NOTEBOOKS]
    for pages, path in zip(NOTEBOOKS.values(), paths, strict=True):
        path.write_text(
            json.dumps(notebook(*pages), indent=1, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / FOLDER, help="folder for the notebooks"
    )
    for written in write(parser.parse_args().out):
        print(written)

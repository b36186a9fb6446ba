"""Figures where people look at them: below the cell of a notebook, and in the window of pyplot."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import notebooks
import pytest

from tests.processes import PATIENCE

ROOT = Path(__file__).parents[1]
ENVIRONMENT = os.environ | {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONPATH": os.pathsep.join(
        map(str, [Path(__file__).parents[1], os.environ.get("PYTHONPATH", "")])
    ),
    "COLUMNS": "80",
}


def executed(book: dict[str, Any], folder: Path) -> list[Any]:
    """Return the code cells of a notebook after a kernel of Jupyter has run them from top to bottom."""
    made = nbformat.from_dict(book)
    client = nbclient.NotebookClient(
        made, timeout=PATIENCE, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=ENVIRONMENT)
    return [cell for cell in made.cells if cell.cell_type == "code"]


def pictures(cell: Any) -> int:
    return sum("image/png" in output.get("data", {}) for output in cell.outputs)


@pytest.mark.slow
def test_figures_show_once_in_a_notebook_where_nobody_imported_pyplot(
    tmp_path: Path,
) -> None:
    cells = {
        "import icl_theory as icl; run = icl.simulate(2.0, 1.0, 4.0); run.plot()": 1,
        "icl.plot_sweep(icl.sweep(L=[0.1, 1.0], delta=1.0, eta=4.0, epsilon=1e-2, progress=False))": 1,
        "from icl_theory.results.plots import draw_maps; draw_maps({'a': [[[1.0]]]}, ['b'])": 1,
        "icl.answer('linear', quick=True).plot()": 1,
        "page = len(run._repr_html_())": 0,  # made for a page, not for the notebook
        "import matplotlib.pyplot as plt; plt.get_fignums()": 0,
    }
    book = {
        "cells": [notebooks.cell("code", source) for source in cells],
        "metadata": {},
    }
    found = executed({**book, "nbformat": 4, "nbformat_minor": 4}, tmp_path)
    assert dict(zip(cells, map(pictures, found), strict=True)) == cells
    assert found[-1].outputs[0].data["text/plain"] == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NOTEBOOKS)
def test_a_notebook_runs_from_top_to_bottom(name: str, tmp_path: Path) -> None:
    """Some have commands of a shell; tests/test_package.py compares what the code of all pages prints."""
    cells = executed(notebooks.notebook(*notebooks.NOTEBOOKS[name]), tmp_path)
    assert len(cells) >= 5
    assert not any(
        output.output_type == "error" for cell in cells for output in cell.outputs
    )


def test_notebooks_install_the_package_from_the_address_of_the_project() -> None:
    address = "https://github.com/someone/icl-theory"
    assert f"%pip install --quiet git+{address}" in notebooks.installation(address)
    # without an address nothing is promised
    assert "pip install ." in notebooks.installation("")


@pytest.mark.parametrize("ending", ["", "/", ".git"])
def test_binder_and_colab_open_notebooks_of_the_repository(ending: str) -> None:
    address = f"https://github.com/someone/icl-theory{ending}"
    assert notebooks.binder("first-hour", address) == (
        "https://mybinder.org/v2/gh/someone/icl-theory/HEAD"
        "?labpath=docs%2Fnotebooks%2Ffirst-hour.ipynb"
    )
    assert notebooks.colab("first-hour", address) == (
        "https://colab.research.google.com/github/someone/icl-theory"
        "/blob/HEAD/docs/notebooks/first-hour.ipynb"
    )


@pytest.mark.parametrize("repository", ["", "https://example.org/icl-theory"])
def test_without_a_repository_on_github_a_page_links_to_its_file_alone(
    repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(notebooks.ADDRESSES, "repository", repository)
    assert notebooks.binder("first-hour", repository) == ""
    assert notebooks.colab("first-hour", repository) == ""
    assert re.findall(r'href="([^"]*)"', top_of("guide/methods")) == [
        "../_static/notebooks/first-hour.ipynb"
    ]


def test_a_page_links_to_its_notebook_on_binder_and_colab(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = "https://github.com/someone/icl-theory"
    monkeypatch.setitem(notebooks.ADDRESSES, "repository", address)
    for name, pages in notebooks.NOTEBOOKS.items():
        for page in pages:
            found = re.findall(r'href="([^"]*)"', top_of(page.removesuffix(".md")))
            assert found[1:] == [
                notebooks.binder(name, address),
                notebooks.colab(name, address),
            ]


def top_of(page: str) -> str:
    """The top of a page as the documentation is built."""
    sys.path.insert(0, str(ROOT / "docs" / "_ext"))
    downloads = pytest.importorskip("downloads")
    source = [(ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")]
    downloads._link(None, page, source)
    return str(source[0].split("</p>")[0])


def test_committed_notebooks_are_those_of_the_pages() -> None:
    """Colab reads them from the repository. `python scripts/notebooks.py` writes them."""
    for name, pages in notebooks.NOTEBOOKS.items():
        written = (ROOT / notebooks.FOLDER / f"{name}.ipynb").read_text(
            encoding="utf-8"
        )
        assert json.loads(written) == notebooks.notebook(*pages), name


def test_links_of_a_notebook_lead_to_the_site_or_nowhere() -> None:
    text = "See [A](b.md), [C](../d.md#e) and [F](https://example.org/f.md)."
    assert notebooks.linked(text, "guide/a.md", "https://docs.org/") == (
        "See [A](https://docs.org/guide/b.html), [C](https://docs.org/d.html#e)"
        " and [F](https://example.org/f.md)."
    )
    assert notebooks.linked(text, "guide/a.md", "") == (
        "See A, C and [F](https://example.org/f.md)."
    )
    # no other kind of link to a file of the documentation is on these pages
    for pages in notebooks.NOTEBOOKS.values():
        written = json.dumps(notebooks.notebook(*pages))
        assert not re.search(r"\]\((?!https?:)|href=", written)


def test_figures_are_those_of_pyplot_in_a_script_that_uses_it_and_of_nobody_where_it_is_not(
    tmp_path: Path,
) -> None:
    """A report makes figures of its own, which pyplot does not keep."""
    script = """
import sys, warnings
import icl_theory as icl
warnings.simplefilter("error")
run = icl.simulate(2.0, 1.0, 4.0)
run.plot()
print("matplotlib.pyplot" in sys.modules)
import matplotlib.pyplot as plt
run._repr_html_()
print(plt.get_fignums())
axes = run.plot()
print(plt.gcf() is axes.figure, plt.get_fignums())
"""
    command = [sys.executable, "-c", script]
    found = subprocess.run(
        command,
        env=ENVIRONMENT | {"MPLBACKEND": "Agg"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split("\n") == ["False", "[]", "True [1]", ""]

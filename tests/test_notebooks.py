"""Figures where people look at them: below the cell of a notebook, and in the window of pyplot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import notebooks
import pytest

from tests.processes import PATIENCE

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
    assert notebooks.launch("first-hour", address) == (
        "https://mybinder.org/v2/gh/someone/icl-theory/HEAD"
        "?labpath=notebooks%2Ffirst-hour.ipynb"
    )
    # without an address nothing is promised
    assert "pip install ." in notebooks.installation("")
    assert notebooks.launch("first-hour", "") == ""
    assert notebooks.launch("first-hour", "https://example.org/icl-theory") == ""


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

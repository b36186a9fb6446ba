"""A family that the package has never heard of: words on an axis, phases and regimes of its own."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory.results import notebook
from icl_theory.results.numbers import number
from icl_theory.results.tables import write_table
from icl_theory.results.transitions import transition_notes
from tests.pages import Page

RESULTS = Path(icl.__file__).parent / "results"
WIDTH = np.geomspace(0.01, 100.0, 33)
MIXERS = ["linear", "softmax", "<b>$\\frac$"]
CRITICAL = np.array([2.0, 0.5, 1.0])


def quantity(
    role: str,
    values: Any,
    dims: tuple[str, ...] = ("mixer", "width"),
    **attributes: Any,
) -> Any:
    return (dims, values, {"role": role, "description": f"a {role}", **attributes})


@pytest.fixture
def found() -> xarray.Dataset:
    """T = 10⁶ (1 + width/critical), with exponents from 0 to 1."""
    search = np.full((3, len(WIDTH)), 10**6)
    settle = (1e6 * WIDTH / CRITICAL[:, None]).round().astype(np.int64)
    steps = search + settle
    steps[0, -1] = -1
    status = np.where(steps < 0, "not reached", "reached").astype("U12")
    slopes = (WIDTH / CRITICAL[:, None]) / (1 + WIDTH / CRITICAL[:, None])
    boundary = np.broadcast_to(CRITICAL[:, None], steps.shape)
    variables = {
        "count": quantity("steps", steps, units="epochs", symbol="τ", tex=r"\tau"),
        "search": quantity("phase", search, phase="search"),
        "settle": quantity("phase", settle, phase="settle"),
        "mood": quantity("word", np.where(settle > search, "slow", "quick"), table=1),
        "how": quantity("word", np.full(steps.shape, "by hand")),
        "lemma": quantity(
            "verdict", np.where(settle > search, 1, -1), symbol="Lemma 7"
        ),
        "guess": quantity("predicted", 1.0 * steps, symbol="guessed τ"),
        "w_half": quantity(
            "boundary", boundary, of="width", half_way=["width"], definition="half-way"
        ),
        "w_tail": quantity(
            "boundary", 3.0 * boundary, of="width", definition="onset of settling"
        ),
        "exponent_width": quantity("exponent", slopes, of="width"),
        "residue": quantity("detail", 0.1 / steps),
        "status": quantity("status", status),
        "message": quantity("detail", np.full(steps.shape, "", dtype=object)),
    }
    coords = {
        "mixer": (
            "mixer",
            MIXERS,
            {"symbol": "mixer", "description": "how tokens are mixed"},
        ),
        "width": (
            "width",
            WIDTH,
            {"symbol": "ω", "tex": r"\omega", "units": "nm", "limits": [0.0, 1.0]},
        ),
        "depth": ((), 3, {"symbol": "d", "tex": "d"}),
    }
    attributes = {
        "family": "toy",
        "title": "a toy",
        "arguments": "{}",
        "version": "1",
        "seed": 0,
        "interrupted": 0,
    }
    return xarray.Dataset(variables, coords=coords, attrs=attributes)


def test_its_table_has_its_own_words_and_symbols(found: xarray.Dataset) -> None:
    table = icl.phase_table(found, "width")
    assert list(table.columns) == [
        "mixer",
        "width",
        "mood",
        "search",
        "settle",
        "τ",
        "exponent_width",
        "guessed τ",
        "w_half",
        "w_tail",
        "Lemma 7",
        "status",
    ]
    assert set(table["Lemma 7"]) == {"✓", ""}
    assert table["τ"].isna().sum() == 1
    assert "residue" in icl.phase_table(found, every=True)
    assert set(icl.phase_table(found.isel(mixer=[1]), "width").columns) == set(
        table.columns
    ) - {"status"}
    assert table.attrs["tex"] == {"τ": r"$\tau$", "width": r"$\omega$"}
    found["mood"].attrs["symbol"] = (
        "width"  # as a parameter is called: then it has its own name
    )
    found["residue"].attrs["table"] = 1
    found["residue"].values[0, 0] = np.nan
    found["status"].values[found["status"].values != "reached"] = "pending"
    table = icl.phase_table(found, "width", every=True)
    assert list(table.columns) == [
        "mixer",
        "width",
        "mood",
        "search",
        "settle",
        "τ",
        "exponent_width",
        "guessed τ",
        "w_half",
        "w_tail",
        "residue",
        "Lemma 7",
        "how",
    ]
    assert len(table) == found["status"].size - 1
    assert "exponent_width" not in icl.phase_table(found, "mixer")


def test_its_transitions_are_measured_and_compared_with_its_own_half_way_point(
    found: xarray.Dataset,
) -> None:
    table = icl.transition_table(found, "width")
    assert list(table.columns) == [
        "mixer",
        "measured",
        "error",
        "predicted",
        "onset of settling",
    ]
    assert (abs(table["measured"] - CRITICAL) < table["error"]).all()
    np.testing.assert_allclose(table["predicted"], CRITICAL, rtol=1e-12)
    assert transition_notes(found, "width")[1].startswith(
        "mixer = softmax: measured half-way point ω = 0.5"
    )
    assert transition_notes(found, "mixer") == ()
    with pytest.raises(
        ValueError,
        match=r"over = 'mixer': must be a swept parameter .* two limits \(width\)",
    ):
        icl.transition_table(found)


def test_it_is_written_in_every_format(found: xarray.Dataset, tmp_path: Path) -> None:
    for ending in (".md", ".tex", ".csv", ".parquet"):
        write_table(found, tmp_path / f"a{ending}", "width")
    read = pd.read_csv(tmp_path / "a.csv")
    assert list(read.columns)[:3] == ["mixer", "width", "depth"]
    assert read["mixer"].tolist() == [word for word in MIXERS for _ in WIDTH]
    assert set(read["lemma"].dropna()) == {1.0}
    text = (tmp_path / "a.tex").read_text(encoding="utf-8")
    assert r"mixer & $\omega$ & mood" in text
    assert r"\textbackslash{}frac\$" in text


@pytest.mark.parametrize("over", ["width", "mixer", None])
def test_it_is_drawn_with_words_as_curves_and_as_marks(
    found: xarray.Dataset, over: str | None
) -> None:
    few = found.isel(width=[3, 16, 30])
    one = [found.isel(mixer=0), found.isel(width=0)]
    # Without a choice the parameter is the only one, or one of two.
    for dataset in one if over is None else (found, few, *one, found.isel(mixer=[0])):
        if over is None or over in dataset.dims:
            icl.plot_sweep(dataset, over).figure.draw_without_rendering()


def test_its_axes_and_curves_have_its_own_symbols_and_words(
    found: xarray.Dataset,
) -> None:
    ax = icl.plot_sweep(found)
    assert sorted(text.get_text() for text in ax.texts) == sorted(
        word.replace("$", r"\$") for word in MIXERS
    )
    assert ax.figure.axes[1].get_xlabel() == r"$\omega$"
    marks = icl.plot_sweep(found.isel(width=[3, 16, 30]), "mixer")
    assert [label.get_text() for label in marks.get_xticklabels()][:2] == [
        "linear",
        "softmax",
    ]
    assert {
        line.get_linestyle()
        for line in marks.lines
        if line.get_label() != "not reached"
    } == {"None"}


@pytest.mark.usefixtures("no_figures")
def test_it_is_reported(found: xarray.Dataset) -> None:
    page = Page(icl.html_report(found, over="width"))
    assert page.text.count("Sweep of a toy over mixer, ω") == 2
    assert (
        "99 points are computed: 98 reached the target, 1 did not reach it."
        in page.text
    )
    assert page.images == ["Steps over ω and mixer."]
    assert page.column(page.about("Lemma 7"), "τ")[0] == "1,005,000"
    assert "mixer = linear: measured half-way point ω = 2" in page.text
    assert page.column(page.about("quantity"), "quantity")[0] == "τ"
    one = Page(icl.html_report(found.isel(mixer=0, width=0)))
    assert one.text.count("One point of a toy") == 2


def test_a_prediction_in_words_is_left_out_of_a_figure() -> None:
    """The basin of a chain is a word, and has no place on the axis of the steps."""
    dataset = icl.sweep(
        "fixed-chain", e=[0.2, 0.4, 0.7, 0.8, 0.9, 1.6], p=0.4, q=0.3, progress=False
    )
    assert {*dataset["basin"].values} <= {"bigram", "unigram"}
    labels = icl.plot_sweep(dataset).get_legend_handles_labels()[1]
    assert not any("basin" in label for label in labels)


def test_results_have_no_names_of_models() -> None:
    """No file imports a model, but for the statements of the theory that a run's report is asked for."""
    allowed = {"icl_theory.papers.regression.theorems.checks"}
    for path in RESULTS.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        imported = {
            node.module or ""
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.ImportFrom)
        }
        others = {
            name for name in imported if not name.startswith("icl_theory.results")
        }
        models = {
            name
            for name in others
            if re.search(r"\.(regression|recall|sweep|recall_sweep|cli)\b", name)
        }
        assert models <= allowed, path
        code = re.sub(r'""".*?"""|#.*', "", text, flags=re.DOTALL)
        assert not re.search(
            r"Delta|T_I|L_star|epsilon\"|\"delta|\"K\"|\"Q\"|theorem", code
        ), path


def test_functions_import_nothing_of_the_package() -> None:
    for path in RESULTS.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                inner = [
                    node.module
                    for node in ast.walk(function)
                    if isinstance(node, ast.ImportFrom)
                ]
                assert not [
                    name for name in inner if name and name.startswith("icl_theory.")
                ], path


@pytest.mark.usefixtures("no_figures")
def test_values_that_print_alike_are_told_apart(found: xarray.Dataset) -> None:
    close = found.assign_coords(
        width=("width", 1.0 + 1e-6 * np.arange(len(WIDTH)), found["width"].attrs)
    )
    two = xarray.concat([close.isel(mixer=0)] * 2, dim="copy").assign_coords(
        copy=[0.1, 0.1000001]
    )
    page = Page(icl.html_report(two, over="width"))
    assert "0.1, 0.1000001" in page.column(page.about("parameter"), "values")
    assert {text.get_text() for text in icl.plot_sweep(two, "width").texts} == {
        "copy = 0.1",
        "copy = 0.1000001",
    }


def test_numbers_in_html_are_written_in_the_one_way() -> None:
    shown = Page(
        notebook.facts({"a": 1187646524, "b": 1 / 3, "c": None, "d": True})
    ).tables[0]
    assert [row[1] for row in shown] == [
        number(value) for value in (1187646524, 1 / 3, None, True)
    ]

"""Small parts of tables, reports and figures, each against what one writes down by hand."""

from __future__ import annotations

import base64
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory.results import columns, reading, report, tables, transitions
from icl_theory.results.notebook import paragraph, picture
from icl_theory.results.numbers import (
    distinct_texts,
    is_right_aligned,
    markdown,
    number,
)
from icl_theory.results.plots.runs import _wrapped, plot_run
from icl_theory.results.plots.style import styled
from icl_theory.sweeps.exponents import local_exponent
from tests.pages import Page


def swept(**axes: Any) -> xarray.Dataset:
    return icl.sweep(
        **{
            "L": 1.0,
            "delta": 1.0,
            "eta": 0.1,
            "epsilon": 1e-4,
            "progress": False,
            **axes,
        }
    )


def test_values_have_four_digits_or_as_many_as_tell_them_apart() -> None:
    assert distinct_texts([1 / 3, 2 / 3]) == ["0.3333", "0.6667"]
    assert distinct_texts([1.00001, 1.00002, 3.0]) == ["1.00001", "1.00002", "3"]
    assert distinct_texts([0.1, np.nextafter(0.1, 1.0)]) == [
        "0.10000000000000001",
        "0.10000000000000002",
    ]
    assert distinct_texts([2.0, 2.0, "flat"]) == ["2", "2", "flat"]


def test_integers_have_separators_from_ten_thousand_on() -> None:
    given = (
        9999,
        10_000,
        -9999,
        -10_000,
        0,
        -1,
        np.int64(12_345),
        0.5,
        -np.inf,
        False,
        pd.NA,
        np.str_("a"),
    )
    said = [
        "9999",
        "10,000",
        "-9999",
        "-10,000",
        "0",
        "-1",
        "12,345",
        "0.5",
        "−∞",
        "✗",
        "",
        "a",
    ]
    assert [number(value) for value in given] == said
    assert [
        is_right_aligned(x)
        for x in ([1.0, None], [None], [], [1.0, "a"], [True, 1], [np.nan, 2])
    ] == [
        True,
        False,
        False,
        False,
        False,
        True,
    ]


def test_a_small_table_in_markdown_and_in_latex() -> None:
    table = pd.DataFrame(
        {
            "a_b": [1.5, 12_345.678],
            "word": ["x & y|z", ""],
            "n": [3, 20_000],
            "ok": ["✓", "✗"],
        }
    )
    assert markdown(tables.contents(table)).splitlines() == [
        "| a_b | word | n | ok |",
        "|--:|---|--:|---|",
        r"| 1.5 | x & y\|z | 3 | ✓ |",
        "| 1.235e+04 |  | 20,000 | ✗ |",
    ]
    assert tables.to_latex(table, ("One of 10 %.", "Two.")).splitlines() == [
        r"% \usepackage{booktabs,amssymb}",
        r"\begin{tabular}{rlrl}",
        r"\toprule",
        r"a\_b & word & n & ok \\",
        r"\midrule",
        r"1.5 & x \& y|z & 3 & $\checkmark$ \\",
        r"1.235e+04 &  & 20,000 & $\times$ \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\par One of 10 \%.",
        r"\par Two.",
    ]
    assert paragraph("a < b") == "<p>a &lt; b</p>"


@pytest.mark.parametrize(
    ("values", "there"),
    [
        ([1, 1], True),
        ([0], True),
        ([-1, 2], True),
        ([-1, -1], False),
        ([np.nan, 0.0], True),
        ([np.nan], False),
        (["", "a"], True),
        ([""], False),
    ],
)
def test_a_column_has_values_unless_all_are_missing(
    values: list[Any], there: bool
) -> None:
    for kind in (None, object) if isinstance(values[0], str) else (None,):
        assert (
            columns.has_values(xarray.DataArray(np.array(values, dtype=kind))) is there
        )


@pytest.mark.parametrize("over", ["a", "b", "c"])
@pytest.mark.parametrize("most", [1, 2, 5, 7, 12, 100])
def test_parts_follow_one_another_in_the_order_of_tables(over: str, most: int) -> None:
    """Also where what follows along the first parameter is more than a part."""
    names, sizes = ("a", "b", "c"), (2, 3, 4)
    status = (names, np.full(sizes, "reached"))
    dataset = xarray.Dataset(
        {"x": (names, np.arange(24).reshape(sizes)), "status": status}
    )
    order = [*(name for name in names if name != over), over]
    found = [
        part["x"].transpose(*order).values.ravel()
        for part in reading.parts(dataset, over, most)
    ]
    assert max(map(len, found)) <= most
    np.testing.assert_array_equal(
        np.concatenate(found), dataset["x"].transpose(*order).values.ravel()
    )


@pytest.mark.parametrize("slab", [1, 5, 12, 100])
def test_points_with_a_status_are_found_in_order_whatever_is_read_at_a_time(
    slab: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SLAB", slab)
    holds = np.arange(24).reshape(4, 3, 2) % 5 == 1
    found = xarray.DataArray(holds, dims=("a", "b", "c"))
    assert [*reading.places_of(found)] == [
        tuple(each) for each in np.argwhere(holds).tolist()
    ]
    assert [*reading.places_of(found[0, 0, 1])] == [()]
    assert [*reading.places_of(found[0, 0, 0])] == []


def test_what_is_below_a_table_says_what_its_headings_mean() -> None:
    """Up to the first comma; of a boundary its definition; verdicts are explained once, if there are any."""
    attributes = {
        "T": {"symbol": "T", "description": "steps, to the target", "role": "steps"},
        "edge": {
            "symbol": "x*",
            "description": "an edge; far away",
            "definition": "exact onset",
            "role": "boundary",
        },
        "holds": {"symbol": "(1)", "description": "a statement", "role": "verdict"},
        "also": {"symbol": "(2)", "description": "another", "role": "verdict"},
        "silent": {"symbol": "s", "description": "", "role": "detail"},
        "bare": {"description": "no symbol", "role": "detail"},
    }
    dataset = xarray.Dataset(
        {name: ("L", [1.0, 2.0], said) for name, said in attributes.items()}
    )
    verdicts = "✓: the statement holds; ✗: it fails; blank: it does not apply."
    assert columns.meanings(dataset, attributes) == (
        f"T: steps. x*: boundary, exact onset. {verdicts}",
    )
    assert columns.meanings(dataset, ["L", "T"]) == ("T: steps.",)
    assert columns.meanings(dataset, ["silent", "bare"]) == ()


def test_transitions_are_the_same_line_by_line_and_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = swept(L=np.geomspace(0.03, 30.0, 21), K=[10, 20], eta=[0.01, 0.02])
    whole = icl.transition_table(dataset)
    assert whole[["eta", "K"]].values.tolist() == [
        [0.01, 10],
        [0.01, 20],
        [0.02, 10],
        [0.02, 20],
    ]
    for slab in (5, 21, 50):
        monkeypatch.setattr(transitions, "SLAB", slab)
        monkeypatch.setattr(reading, "SLAB", slab)
        pd.testing.assert_frame_equal(icl.transition_table(dataset), whole)


def test_exponents_of_few_steps_count_from_one() -> None:
    found = local_exponent(np.array([8, 4, 2, 1]), np.array([1.0, 2.0, 4.0, 8.0]), 0)
    np.testing.assert_allclose(found, -1.0, rtol=1e-12)
    assert np.isnan(
        local_exponent(np.array([2, 1, 0]), np.array([1.0, 2.0, 4.0]), 0)
    ).tolist() == [
        False,
        True,
        True,
    ]


def test_points_that_need_no_step_have_reached_their_target() -> None:
    at_once = swept(L=[1.0, 2.0], epsilon=[10.0, 1e-2])
    assert at_once.steps.values[:, 0].tolist() == [0, 0]
    assert (at_once.status == "reached").all()
    assert (at_once.message == "").all()
    ended = swept(L=[1.0, 2.0], max_steps=3)
    assert set(ended.status.values) == {"not reached"}
    assert set(ended.message.values) == {
        "took all 3 steps without reaching epsilon = 0.0001"
    }


@pytest.mark.parametrize("many", [0, 1, 4, 5, 7])
def test_a_figure_names_four_of_the_values_that_it_leaves_out(many: int) -> None:
    dataset = swept(L=[1.0, 2.0, *np.arange(3.0, 3.0 + many)])
    dataset = dataset.assign_coords(
        L=("L", [1.0, 2.0, *(10.0 ** (101 + i) for i in range(many))], dataset.L.attrs)
    )
    page = Page(report._figure(dataset, "L", ["L"], ""))
    named = [f"L = 1e+{101 + i}" for i in range(many)]
    said = ", ".join(named[:4]) + (f" and {many - 4} more" if many > 4 else "")
    assert page.text.strip() == f"Steps over L{', without ' if many else ''}{said}."


def test_points_that_need_no_step_have_no_figure() -> None:
    said = Page(report._figure(swept(L=[1.0, 2.0], epsilon=10.0), "L", ["L"], "")).text
    assert (
        said
        == "Steps over L: no figure, because no computed point took a step or more to its target."
    )


def test_a_report_names_its_source_and_a_picture_is_the_same_each_time() -> None:
    assert (
        "some folder/store"
        in Page(icl.html_report(swept(epsilon=10.0), source="some folder/store")).text
    )
    run = icl.recall.simulate(V=20, alpha=0.1, H=9, max_steps=5)
    pictures = [picture(plot_run(run)) for _ in range(2)]
    assert pictures[0] == pictures[1]
    assert b"<svg" in base64.b64decode(pictures[0].partition(",")[2])
    with styled({"svg.hashsalt": "a", "font.size": 7.0}):
        assert (mpl.rcParams["svg.hashsalt"], mpl.rcParams["font.size"]) == ("a", 7.0)
        assert mpl.rcParams["savefig.dpi"] == 200


def test_lines_across_a_figure_are_at_the_target_and_the_floor() -> None:
    """The target is dashed, the floor dotted; each has its name beside it."""
    run = icl.simulate(2.0, 1.0, 2.0, K=4, N=20, noise=0.5, epsilon=0.3)
    assert 0.0 < run.floor < run.epsilon
    ax = plot_run(run)
    above = "excess" in run.observed
    target = run.epsilon - run.floor if above else run.epsilon
    across = {
        float(line.get_ydata()[0]): line
        for line in ax.lines
        if np.ptp(line.get_ydata()) == 0.0
    }
    assert across[target].get_linestyle() == "--"
    assert above or across[run.floor].get_linestyle() == ":"
    names = {text.xy[1]: text.get_text() for text in ax.texts if hasattr(text, "xy")}
    assert names[target] == (r"$\epsilon$ − floor" if above else r"$\epsilon$")


def test_words_are_wrapped_as_soon_as_a_line_is_full() -> None:
    words = [(f"w{i}", "x" * n) for i, n in enumerate((10, 10, 9, 40, 3, 60, 1))]
    assert _wrapped(words, 44) == ["w0, w1, w2", "w3", "w4", "w5", "w6"]

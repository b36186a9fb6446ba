from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Callable
from functools import cache
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import xarray

import icl_theory as icl
from icl_theory.results.notebook import picture
from icl_theory.results.numbers import number
from icl_theory.results.report import html_report
from icl_theory.statements.paper import Claims
from tests.pages import Page
from tests.problems import Bowl
from tests.results.test_notebook import HOSTILE


def swept(**axes: object) -> xarray.Dataset:
    return icl.sweep(
        **{
            "L": 1.0,
            "delta": 1.0,
            "eta": 0.1,
            "epsilon": 1e-4,
            "progress": False,
            **axes,
        }
    )  # type: ignore[arg-type]


def incomplete(dataset: xarray.Dataset, done: int) -> xarray.Dataset:
    """As an interrupted sweep leaves it: the points after the first ones are not computed."""
    dataset = dataset.copy(deep=True)
    for name, variable in dataset.data_vars.items():
        blank = {
            "f": np.nan,
            "i": -1,
            "U": "pending" if name == "status" else "",
            "O": "",
        }[variable.dtype.kind]
        variable.values.reshape(-1)[done:] = blank
    return dataset


FOUND: dict[str, Callable[[], object]] = {
    "run": lambda: icl.simulate(2.0, 1.0, 4.0, imbalance=0.1),
    "run with queries": lambda: icl.simulate(
        2.0, 1.0, 4.0, K=4, probs=[0.4, 0.3, 0.2, 0.1], epsilon=1e-2
    ),
    "run of no step": lambda: icl.simulate(2.0, 1.0, 4.0, epsilon=10.0),
    "run of recall": lambda: icl.recall.simulate(
        V=20, alpha=0.1, attention="softmax", H=9, max_steps=5
    ),
    "one parameter": lambda: swept(L=np.geomspace(0.03, 30.0, 9), imbalance=0.1),
    "two parameters": lambda: swept(L=np.geomspace(0.03, 30.0, 9), K=[5, 20]),
    "infinite values": lambda: swept(L=[1.0, 2.0], N=[40, math.inf], K=4, epsilon=0.1),
    "a point": lambda: swept(),
    "one value": lambda: swept(L=[2.0]),
    "all failed": lambda: swept(L=[1e199, 1e300]),
    "far out": lambda: swept(L=np.geomspace(1e-150, 1e300, 7), K=[5, 6]),
    "nothing to learn": lambda: swept(L=[1e-4, 1e-3]),
    "recall": lambda: icl.sweep(
        icl.Recall, triggers=[4, 16], V=[50, 60], counts=1, progress=False
    ),
    "recall, infinite": lambda: icl.sweep(icl.Recall, M=[4, math.inf], progress=False),
    "incomplete": lambda: incomplete(
        swept(L=np.geomspace(0.03, 30.0, 9), K=[5, 20]), 7
    ),
    "empty": lambda: incomplete(swept(L=np.geomspace(0.03, 30.0, 9), K=[5, 20]), 0),
    "empty point": lambda: incomplete(swept(), 0),
    "empty recall": lambda: incomplete(
        icl.sweep(icl.Recall, triggers=[4, 16], progress=False), 0
    ),
}


DAY = datetime.date(2026, 11, 21)


@cache
def first_report(name: str) -> tuple[object, str]:
    found = FOUND[name]()
    return found, html_report(found, date=DAY)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FOUND)
def test_a_report_is_a_whole_page_that_fetches_nothing_and_names_its_command(
    name: str,
) -> None:
    found, source = first_report(name)
    page = Page(source)
    assert source.startswith("<!DOCTYPE html>\n<html lang")
    command = (
        found.command if isinstance(found, icl.Trajectory) else found.attrs["command"]
    )  # type: ignore[attr-defined]
    assert command in page.text
    assert f"report made on 2026-11-21 with icl-theory {icl.__version__}" in page.text


@pytest.mark.parametrize("name", ["run with queries", "two parameters"])
def test_a_report_is_the_same_every_time(name: str) -> None:
    found = FOUND[name]()
    assert html_report(found, date=DAY) == first_report(name)[1]  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_figures")
def test_a_run_shows_its_summary_phases_steps_and_theorems() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, imbalance=0.1)
    page = Page(icl.html_report(run))
    assert dict(page.tables[0]) == run.facts()
    assert page.column(page.about("first step"), "last step") == ["69", "235", "1413"]
    checks = icl.check_bounds(run)
    assert page.column(page.about("holds"), "name") == [check.name for check in checks]
    steps = page.column(page.about("loss"), "step")
    assert (steps[0], steps[-1]) == ("0", "1413")
    assert len(page.images) == 1
    assert "report made with" in page.text


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_a_check_that_raises_leaves_a_line_and_the_rest_of_the_report(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def broken(run: icl.Trajectory) -> None:
        raise error("no such table")

    run = icl.simulate(2.0, 1.0, 4.0)
    monkeypatch.setattr(icl.Regression, "claims", Claims(check=broken))
    page = Page(html_report(run))
    assert (
        f"the check of the statements is left out: {error.__name__}: no such table"
        in page.text
    )
    assert page.column(page.about("loss"), "step")[-1] == "1413"


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_no_statement_covers_has_neither_theorems_nor_a_message() -> None:
    for run in (
        icl.descend(Bowl(), 0.1, steps=4),
        icl.recall.simulate(V=20, alpha=0.1, attention="softmax", H=9, max_steps=5),
    ):
        with pytest.raises(ValueError, match="run = "):
            icl.check_bounds(run)
        text = Page(html_report(run)).text
        assert "Theorems" not in text
        assert "left out: " not in text


@pytest.mark.usefixtures("no_figures")
def test_a_long_run_has_some_of_its_steps_and_says_so() -> None:
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-9)
    page = Page(html_report(run))
    assert len(page.column(page.about("loss"), "step")) == 40
    assert f"40 of {len(run.t)} saved steps" in page.text


@pytest.mark.usefixtures("no_figures")
def test_a_loaded_run_keeps_theorems_command_and_version(tmp_path: Path) -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.command, run.version = "icl-theory simulate --L '2 & <3>'", "0.0.1"
    run.save(tmp_path / "a.npz")
    page = Page(html_report(icl.load(tmp_path / "a.npz"), source="a.npz"))
    assert run.command in page.text
    assert (
        page.text.count("Theorem 2")
        == Page(html_report(run)).text.count("Theorem 2")
        > 0
    )
    assert "Computed with icl-theory 0.0.1; read from a.npz" in page.text


@pytest.mark.usefixtures("no_figures")
def test_a_run_of_unknown_making_says_so(tmp_path: Path) -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.command = run.version = None
    page = Page(html_report(run))
    assert "The command is not known" in page.text
    assert "a version that is not recorded" in page.text


@pytest.mark.usefixtures("no_figures")
def test_observations_of_several_numbers_a_step_are_named_and_left_out() -> None:
    class Two(icl.Risk):
        initial = np.ones(2)

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 0.5 * float(params @ params), params

        def observe(self, params: np.ndarray, step: int = 0) -> dict[str, np.ndarray]:
            return {"x": params, "y": np.array(1.0)}

    page = Page(html_report(icl.descend(Two(), 0.1, steps=4)))
    assert "with several numbers a step: x." in page.text
    assert page.tables[page.about("loss")][0] == ["step", "loss", "y"]


@pytest.mark.usefixtures("no_figures")
def test_a_sweep_shows_the_phase_table_and_the_transition() -> None:
    found = swept(L=np.geomspace(0.03, 30.0, 25))
    page = Page(html_report(found))
    assert "25 of 25 points are computed: 25 reached the target." in page.text
    assert [
        int(cell.replace(",", "")) for cell in page.column(page.about("regime"), "T_ε")
    ] == found.steps.values.tolist()
    assert (
        "Measured half-way point L = 0.1425 ± 0.001, predicted 0.143; other boundaries: 0.1991 (exact"
        in page.text
    )
    assert page.column(page.about("meaning"), "values")[:2] == [
        "25 from 0.03 to 30",
        "1",
    ]
    assert len(page.images) == 1


def test_rows_follow_the_chosen_parameter() -> None:
    found = swept(L=[0.5, 1.0, 2.0], K=[5, 20])
    source = html_report(found, over="K")
    page = Page(source)
    assert page.tables[page.about("regime")][0][:2] == ["L", "K"]
    assert source.count(picture(icl.plot_sweep(found, "K"))) == 1


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("done", "words"),
    [
        (
            7,
            "7 of 18 points are computed: 7 reached the target. 11 are missing: the sweep is not complete.",
        ),
        (
            17,
            "17 of 18 points are computed: 17 reached the target. 1 is missing: the sweep is not complete.",
        ),
        (0, "0 of 18 points are computed. 18 are missing: the sweep is not complete."),
    ],
)
def test_an_incomplete_sweep_says_how_much_is_missing_and_shows_what_is_there(
    done: int, words: str
) -> None:
    found = incomplete(swept(L=np.geomspace(0.03, 30.0, 9), K=[5, 20]), done)
    page = Page(html_report(found))
    assert words in page.text
    again = "The same command with this store computes them."
    assert again not in page.text
    if not done:  # a page without figures takes no time
        assert f"{words} {again}" in Page(html_report(found, source="store")).text
    assert len(page.images) == (done > 0)
    if done:
        assert len(page.column(page.about("regime"), "T_ε")) == done


@pytest.mark.usefixtures("no_figures")
def test_points_that_failed_are_listed_first_and_boundedly_with_their_messages() -> (
    None
):
    found = swept(L=np.geomspace(1e200, 1e220, 30), epsilon=[1e-4, 1e-12], max_steps=10)
    found["status"].values[0, :] = "not reached"
    found["message"].values[1, 0] = HOSTILE
    found["message"].values[2, 0] = "x" * 5000
    page = Page(html_report(found))
    table = page.about("message")
    messages = page.column(table, "message")
    assert len(messages) == 20
    assert set(page.column(table, "status")) == {"failed"}
    assert "<script>alert(1)</script>" in messages[0]
    assert messages[2] == "x" * 500
    assert "1e+200: must be" not in messages[1]
    assert messages[1].startswith("L = ")
    assert f"{60 - 20} more are left out" in page.text
    assert "60 of 60 points are computed: 2 did not reach it, 58 failed." in page.text


def test_hostile_arguments_are_escaped() -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    run.info |= {"task": HOSTILE, "K": HOSTILE}
    run.notes["<i>"] = HOSTILE
    run.command = run.version = run.stop_reason = HOSTILE
    page = Page(html_report(run, source=HOSTILE))
    assert page.text.count("<script>alert(1)</script>") >= 6
    found = swept(L=[1.0, 2.0])
    arguments = json.loads(found.attrs["arguments"]) | {
        "model": HOSTILE,
        "task": HOSTILE,
        HOSTILE: HOSTILE,
    }
    found.attrs |= {
        "command": HOSTILE,
        "version": HOSTILE,
        "arguments": json.dumps(arguments),
    }
    found["L"].attrs["description"] = HOSTILE
    page = Page(html_report(found, source=HOSTILE))
    assert page.text.count("<script>alert(1)</script>") >= 4


@pytest.mark.usefixtures("no_figures")
def test_a_large_table_has_some_of_its_rows_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = swept(L=np.geomspace(0.01, 10.0, 60), K=[5, 7, 20, 100, 1000])
    page = Page(html_report(found, source="my runs"))
    assert len(page.column(page.about("regime"), "T_ε")) == 200
    assert "The first 200 of 300 rows; 100 are left out." in page.text
    assert "icl-theory table 'my runs' --over L --csv all.csv has them all" in page.text
    assert (
        "icl_theory.phase_table(dataset, 'K') has them all"
        in Page(html_report(found, over="K")).text
    )
    assert len(page.column(page.about("leading order in K"), "K")) == 5
    monkeypatch.setattr(
        "icl_theory.results.reading.SLAB", 240
    )  # so that not all rows are read
    assert (
        "The first 200 of 300 rows; 100 are left out."
        in Page(html_report(found, over="L")).text
    )
    four = Page(html_report(found.isel(K=slice(1, None)))).text
    assert (
        four.count("easured half-way point") + four.count("o transition in this range")
        == 4
    )


@pytest.mark.parametrize(
    ("noise", "figures", "drawn"),
    [([0.0, 0.1], 4, True), ([0.0, 0.1, 0.2, 0.3], 6, False)],
)
def test_more_parameters_than_two_have_a_figure_for_each_slice_up_to_some(
    noise: list[float], figures: int, drawn: bool, request: pytest.FixtureRequest
) -> None:
    if not drawn:  # four figures are enough to draw
        request.getfixturevalue("no_figures")
    found = swept(L=[0.5, 1.0, 2.0], K=[5, 6], epsilon=[1e-4, 1e-2], noise=noise)
    page = Page(html_report(found))
    assert len(page.images) == figures
    assert page.images[1] == "Steps over L and K, σ = 0, ε = 0.01."
    assert ("2 more slices have no figure" in page.text) == (figures == 6)


@pytest.mark.usefixtures("no_figures")
def test_many_lines_without_a_transition_are_one_sentence() -> None:
    page = Page(html_report(swept(L=[1.0, 2.0, 4.0, 8.0], K=[5, 6, 7, 8, 9])))
    assert "None of the 5 lines along L has a measured transition." in page.text


@pytest.mark.usefixtures("no_figures")
def test_many_lines_of_which_some_have_a_transition_are_a_table() -> None:
    found = swept(
        L=np.geomspace(0.03, 30.0, 9),
        delta=[1e-3, 0.5, 1.0, 1.5, 2.0],
        K=20,
        eta=0.01,
        epsilon=1e-4,
    )
    measured = icl.transition_table(found)["measured"]
    assert measured.isna().tolist() == [True] + [False] * 4
    page = Page(html_report(found))
    assert "has a measured transition" not in page.text
    assert all(number(each) in page.text for each in measured[1:])


def test_what_is_no_run_and_no_sweep_is_refused() -> None:
    for other in (None, "run.npz", xarray.Dataset()):
        with pytest.raises(
            ValueError, match="must be a run, or the dataset of a sweep"
        ):
            html_report(other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="over = 'K': a run has no swept parameter"):
        html_report(icl.simulate(2.0, 1.0, 4.0), over="K")
    with pytest.raises(ValueError, match="over = 'K': must be one of L"):
        html_report(swept(L=[1.0, 2.0]), over="K")


@pytest.mark.parametrize("name", ["run", "run with queries", "run of recall"])
def test_every_cell_of_the_tables_of_a_run_is_the_run(name: str) -> None:
    run, source = first_report(name)
    assert isinstance(run, icl.Trajectory)
    page = Page(source)
    if run.phases is not None:
        spans = run.phases.present()
        table = [
            [phase, *(number(each) for each in (a, b, b - a))]
            for phase, (a, b) in spans.items()
        ]
        assert page.tables[page.about("first step")][1:] == table
    rows = page.tables[page.about("loss")]
    shown = [run.t.tolist().index(int(row[0].replace(",", ""))) for row in rows[1:]]
    assert (shown[0], shown[-1]) == (0, len(run.t) - 1)
    assert len(shown) == min(40, len(run.t))
    assert np.diff(shown).max() <= -(-len(run.t) // 39)  # evenly spread
    columns = {"step": run.t, "loss": run.loss} | {
        k: v for k, v in run.observed.items() if v.ndim == 1
    }
    if run.observed.get("attention", run.loss).ndim > 1:
        columns["attention (mean)"] = run.attention.mean(axis=1)
    assert rows[0] == list(columns)
    for row, i in zip(rows[1:], shown, strict=True):
        assert row == [number(values[i]) for values in columns.values()]


@pytest.mark.usefixtures("no_figures")
def test_every_cell_of_the_tables_of_a_sweep_is_the_sweep() -> None:
    found = swept(
        L=np.geomspace(0.05, 20, 12),
        epsilon=[1e-12, 1e-3],
        eta=[0.1],
        K=[5],
        max_steps=10**6,
    )
    page = Page(html_report(found))
    reached = int((found.status == "reached").sum())
    assert (
        f"24 of 24 points are computed: {reached} reached the target, {24 - reached} did not reach it."
        in page.text
    )
    table = icl.phase_table(found, "L", every=True)
    if len(table.columns) > 14:
        table = icl.phase_table(found, "L")
    rows = page.tables[page.about("regime")]
    for heading in rows[0]:
        assert [row[rows[0].index(heading)] for row in rows[1:]] == [
            number(each) for each in table[heading]
        ], heading
    left_out = [name for name in table.columns if name not in rows[0]]
    assert all(not any(map(number, table[name])) for name in left_out)
    # those that did not arrive, with the reason, and what was swept and measured
    places = np.argwhere(found.status.values == "not reached")
    listed = page.tables[page.about("message")]
    for row, place in zip(listed[1:], places, strict=False):
        values = [
            found[name].values[i]
            for name, i in zip(found.status.dims, place, strict=True)
        ]
        assert row == [
            *map(number, values),
            "not reached",
            str(found.message.values[tuple(place)]),
        ]
    assert ("more are left out" in page.text) == (len(places) > 20)
    head, *parameters = page.tables[page.about("values")]
    said = {
        row[head.index("parameter")]: dict(zip(head, row, strict=True))
        for row in parameters
    }
    assert said.keys() == {*map(str, found.coords)}
    for name, entry in said.items():
        attributes = found[name].attrs
        assert (entry["unit"], entry["meaning"]) == (
            attributes.get("units", ""),
            attributes.get("description", ""),
        )
        assert entry["symbol"] == attributes.get("symbol", "")
    assert said["L"]["values"] == "12 from 0.05 to 20"
    assert said["epsilon"]["values"] == "1e-12, 0.001"
    head, *quantities = page.tables[page.about("name")]
    there = [
        str(name)
        for name, x in found.data_vars.items()
        if name != "message" and _given(x.values)
    ]
    assert [row[head.index("name")] for row in quantities] == there


def _given(values: np.ndarray) -> bool:
    return any(
        each == each and each not in (-1, "") for each in values.ravel().tolist()
    )


@pytest.mark.usefixtures("no_figures")
def test_a_loaded_run_has_the_same_theorems_as_the_run_that_was_saved(
    tmp_path: Path,
) -> None:
    run = icl.simulate(L=2.0, delta=1.0, eta=0.5, K=5, epsilon=1e-3)
    run.save(tmp_path / "run.npz")
    loaded = icl.load(tmp_path / "run.npz")
    assert loaded.risk is not None
    assert icl.check_bounds(loaded) == icl.check_bounds(run)
    assert "Theorems" in icl.html_report(loaded)


def test_the_statement_is_the_first_column_of_the_theorems_and_wraps() -> None:
    """In a narrow window the last columns are cut off, and without the statement the others say nothing."""
    checks = icl.check_bounds(icl.simulate(L=2.0, delta=1.0, eta=4.0, epsilon=1e-4))
    page = checks._repr_html_()
    head, _, body = page.partition("</thead>")
    assert re.findall(r"<th class=\"(\w+)\"[^>]*>(\w+)</th>", head)[0] == (
        "long",
        "statement",
    )
    first = re.findall(r"<tr><td[^>]*>(.*?)</td>", body)
    assert [unescape(text) for text in first] == [check.statement for check in checks]

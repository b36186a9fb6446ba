from __future__ import annotations

import io
import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory.regression import crossover, half_way
from icl_theory.tables import (
    half_way_value,
    predicted_transition,
    to_latex,
    to_markdown,
    transition,
    transition_notes,
    write_table,
)


def swept(**axes: Any) -> xarray.Dataset:
    return icl.sweep(**{"L": 1.0, "delta": 1.0, "eta": 0.01, "epsilon": 1e-4, "progress": False, **axes})


@pytest.fixture(scope="module")
def over_L() -> xarray.Dataset:
    return swept(L=np.geomspace(0.02, 20.0, 61), K=[10, 20, 100], imbalance=0.1)


def test_table_says_what_the_sweep_found(over_L: xarray.Dataset) -> None:
    table = icl.phase_table(over_L)
    assert list(table.columns) == [
        "K", "L", "regime", "T_I", "T_II", "T_III", "T_ε", "exponent", "predicted T_ε", "L*", "certified", "Thm 1",
        "Thm 2",
    ]  # fmt: skip
    assert len(table) == 183
    row = table[(table["K"] == 20)].iloc[40]
    point = over_L.sel(K=20, L=row["L"])
    assert row["T_ε"] == int(point.steps) == row["T_I"] + row["T_II"] + row["T_III"]
    assert row["regime"] == "sharp"
    assert row["L*"] == pytest.approx(crossover(1e-4, 1.0, 20))
    assert set(table["certified"]) == {"✓"}
    assert set(table["Thm 1"]) == {"✓", "✗", ""}


def test_rows_follow_the_chosen_parameter(over_L: xarray.Dataset) -> None:
    table = icl.phase_table(over_L, over="K")
    assert list(table.columns[:2]) == ["L", "K"]
    assert table["K"].tolist()[:4] == [10, 20, 100, 10]
    with pytest.raises(ValueError, match="over = 'eta': must be one of L, K"):
        icl.phase_table(over_L, over="eta")
    with pytest.raises(ValueError, match="single point"):
        icl.phase_table(swept())


def test_points_that_failed_or_did_not_reach_their_target_are_told_apart() -> None:
    table = icl.phase_table(swept(L=[1e-4, 1.0, 1e200], epsilon=1e-12, max_steps=10**9))
    assert (
        table["status"].tolist() == ["not reached", "not reached", "failed"] or table["status"].iloc[2] == "failed"
    )
    assert table["T_ε"].isna().tolist()[2]
    assert not np.isfinite(table["exponent"]).any()


@pytest.mark.parametrize("K", [10, 20, 100])
def test_measured_transition_is_the_half_way_point_of_gradient_flow(over_L: xarray.Dataset, K: int) -> None:
    row = icl.transition_table(over_L).set_index("K").loc[K]
    expected = half_way(1e-4, 1.0, K)
    assert abs(row["measured"] - expected) < row["error"] < 0.01 * expected
    assert row["predicted"] == pytest.approx(crossover(1e-4, 1.0, K), rel=1e-12)
    assert row["leading order"] == pytest.approx(crossover(1e-4, 1.0, K, leading_order=True), rel=1e-12)


def test_error_of_a_transition_covers_its_error_on_any_grid() -> None:
    expected = half_way(1e-4, 1.0, 20)
    for count in (11, 16, 25, 40, 80):
        for shift in (1.0, 1.05, 1.1):
            L = shift * np.geomspace(0.02, 20.0, count)
            found = transition(swept(L=L)["steps"].values, L, -1.0)
            assert abs(found.measured - expected) < found.error, (count, shift)


def test_transition_over_other_parameters_is_where_L_is_critical() -> None:
    gap = swept(delta=np.geomspace(0.02, 20.0, 61))
    [row] = icl.transition_table(gap).to_dict("records")
    assert abs(row["measured"] - half_way(1e-4, 1.0, 20)) < row["error"]
    assert row["predicted"] == pytest.approx(crossover(1e-4, 1.0, 20))
    target = swept(epsilon=np.geomspace(1e-6, 1e-1, 41))
    [row] = icl.transition_table(target, over="epsilon").to_dict("records")
    assert crossover(row["predicted"], 1.0, 20) == pytest.approx(1.0)
    assert half_way(row["measured"], 1.0, 20) == pytest.approx(1.0, rel=2 * row["error"] / row["measured"])
    features = swept(L=0.5, K=np.unique(np.round(np.geomspace(10, 5000, 60))))
    [row] = icl.transition_table(features, over="K").to_dict("records")
    assert crossover(1e-4, 1.0, round(row["predicted"])) == pytest.approx(0.5, rel=0.01)
    with pytest.raises(ValueError, match="over = 'eta': must be one of L, delta, K, epsilon"):
        icl.transition_table(swept(eta=[0.1, 0.2]))


def test_half_way_depends_on_the_learning_rate_and_the_coordinates() -> None:
    assert half_way_value(swept(L=[1.0, 2.0]), "L") == -1.0
    assert half_way_value(swept(L=[1.0, 2.0], eta="auto"), "L") == 1.0
    assert half_way_value(swept(delta=[1.0, 2.0], coordinates="embedding"), "delta") == -5.0
    embedded = swept(delta=np.geomspace(0.02, 20.0, 61), coordinates="embedding", eta=1e-3)
    assert icl.transition_table(embedded)["measured"][0] == pytest.approx(half_way(1e-4, 1.0, 20), rel=0.01)
    automatic = swept(L=np.geomspace(0.02, 2.0, 61), eta="auto", epsilon=1e-4, K=200)
    found = icl.transition_table(automatic).iloc[0]
    assert abs(found["measured"] - half_way(1e-4, 1.0, 200)) < found["error"] + 0.02 * half_way(1e-4, 1.0, 200)


def test_there_is_no_transition_where_the_exponent_does_not_pass() -> None:
    few = icl.transition_table(swept(L=np.geomspace(0.02, 20.0, 61), K=5)).iloc[0]
    assert math.isnan(few["measured"])
    assert few["predicted"] == pytest.approx(crossover(1e-4, 1.0, 5))
    sharp = icl.transition_table(swept(L=np.geomspace(2.0, 20.0, 9))).iloc[0]
    assert math.isnan(sharp["measured"])
    assert math.isnan(transition(np.array([-1, -1, -1]), np.array([1.0, 2.0, 3.0]), -1.0).measured)


def test_prediction_needs_no_grid_point_near_but_a_law() -> None:
    finite = swept(L=[1.0, 2.0], N=30, epsilon=0.1, K=3, eta=1.0)
    assert math.isnan(predicted_transition(finite, "L", "L_star"))
    assert math.isnan(predicted_transition(swept(L=5.0, K=[10, 20]), "K", "L_star"))


def test_notes_say_measured_and_predicted(over_L: xarray.Dataset) -> None:
    notes = transition_notes(over_L)
    assert len(notes) == 3
    assert re.fullmatch(
        r"K = 20: measured transition L = 0\.14\d+ ± \S+, predicted 0\.1991 \(leading order 0\.1298\)\.", notes[1]
    )
    assert transition_notes(swept(eta=[0.1, 0.2, 0.3, 0.4])) == ()


def test_markdown_and_csv_and_parquet_hold_the_table(over_L: xarray.Dataset, tmp_path: Path) -> None:
    table = icl.phase_table(over_L)
    for ending in (".md", ".csv", ".parquet", ".tex"):
        write_table(table, tmp_path / f"a{ending}", ("a note",))
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "a.parquet"), table, check_dtype=False)
    read = pd.read_csv(tmp_path / "a.csv", keep_default_na=True)
    assert read["T_ε"].tolist() == table["T_ε"].tolist()
    np.testing.assert_array_equal(read["exponent"], table["exponent"])
    lines = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2 + 183 + 2
    assert {line.count("|") for line in lines[:-2]} == {14}
    cells = pd.read_csv(io.StringIO("\n".join(lines[2:-2])), sep="|", header=None)
    assert cells[7].tolist() == table["T_ε"].tolist()
    assert not list(tmp_path.glob(".*"))


def test_latex_is_balanced_and_escaped() -> None:
    table = pd.DataFrame(
        {"L": [1.0, math.nan], "T_ε": pd.array([5, None], dtype="Int64"), "status": ["ok_1 & 2 %", "✓"]}
    )
    text = to_latex(table, ("L = 1 ± 0.1",))
    assert r"$L$ & $T_\varepsilon$ & status \\" in text
    assert r"1 & 5 & ok\_1 \& 2 \% \\" in text
    assert r" &  & $\checkmark$ \\" in text
    assert r"$\pm$" in text
    assert text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    assert text.isascii()
    assert r"a\|b" in to_markdown(pd.DataFrame({"x": ["a|b"]}))


def test_files_of_other_kinds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"x": [1.0]})
    with pytest.raises(ValueError, match=r"ending in \.md, \.csv, \.tex, \.parquet"):
        write_table(table, tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'icl-theory\[parquet\]'"):
        write_table(table, tmp_path / "a.parquet")
    assert not list(tmp_path.iterdir())

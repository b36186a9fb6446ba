from __future__ import annotations

import contextlib
import io
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory.regression import crossover, half_way
from icl_theory.results.tables import check_format, to_latex, to_markdown, write_table


def swept(**axes: Any) -> xarray.Dataset:
    return icl.sweep(
        **{
            "L": 1.0,
            "delta": 1.0,
            "eta": 0.01,
            "epsilon": 1e-4,
            "progress": False,
            **axes,
        }
    )


@pytest.fixture(scope="module")
def over_L() -> xarray.Dataset:
    return swept(L=np.geomspace(0.02, 20.0, 61), K=[10, 20, 100], imbalance=0.1)


def test_table_says_what_the_sweep_found(over_L: xarray.Dataset) -> None:
    table = icl.phase_table(over_L)
    assert list(table.columns) == [
        "K",
        "L",
        "regime",
        "T_I",
        "T_II",
        "T_III",
        "T_ε",
        "exponent",
        "predicted T_ε",
        "L½",
        "L*",
        "leading-order L*",
        "certified",
        "Thm 1",
        "Thm 2",
    ]
    assert len(table) == 183
    row = table[(table["K"] == 20)].iloc[40]
    point = over_L.sel(K=20, L=row["L"])
    assert row["T_ε"] == int(point.steps) == row["T_I"] + row["T_II"] + row["T_III"]
    assert row["regime"] == "sharp"
    assert row["L½"] == pytest.approx(half_way(1e-4, 1.0, 20))
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
        table["status"].tolist() == ["not reached", "not reached", "failed"]
        or table["status"].iloc[2] == "failed"
    )
    assert table["T_ε"].isna().tolist()[2]
    assert not np.isfinite(table["exponent"]).any()


def test_markdown_and_latex_hold_the_table_and_the_transitions(
    over_L: xarray.Dataset, tmp_path: Path
) -> None:
    table = icl.phase_table(over_L, "K")
    for ending in (".md", ".tex"):
        write_table(over_L, tmp_path / f"a{ending}", "K")
    lines = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()
    rows = lines[2:-2]
    assert len(rows) == 183
    assert {line.count("|") for line in lines[:-2]} == {16}
    assert "T_ε: first step at the target. " in lines[-1]
    assert lines[-1].endswith(
        "✓: the statement holds; ✗: it fails; blank: it does not apply."
    )
    cells = pd.read_csv(
        io.StringIO("\n".join(rows)), sep="|", header=None, thousands=","
    )
    assert cells[7].tolist() == table["T_ε"].tolist()
    write_table(over_L, tmp_path / "a.md")
    lines = (tmp_path / "a.md").read_text(encoding="utf-8").splitlines()
    assert lines[-1].startswith("K = 100: measured half-way point L = ")
    assert not list(tmp_path.glob(".*"))


def test_files_for_machines_have_plain_names_every_parameter_and_numbers_alone(
    over_L: xarray.Dataset, tmp_path: Path
) -> None:
    for ending in (".csv", ".parquet"):
        write_table(over_L, tmp_path / f"a{ending}")
    text = (tmp_path / "a.csv").read_text(encoding="utf-8")
    assert text.isascii()
    read, parquet = (
        pd.read_csv(tmp_path / "a.csv"),
        pd.read_parquet(tmp_path / "a.parquet"),
    )
    assert list(read.columns) == list(parquet.columns)
    assert set(read.columns) == {*over_L.coords, *over_L.data_vars}
    assert read["delta"].eq(1.0).all()
    assert read["imbalance"].eq(0.1).all()
    assert np.isinf(read["N"]).all()
    flat = over_L.transpose("K", "L")
    digits = pd.read_csv(
        tmp_path / "a.csv", dtype=str
    )  # pandas rounds the last one when it reads numbers
    for name in ("steps", "T_III", "exponent_L", "L_half"):
        np.testing.assert_array_equal(
            digits[name].astype(float), flat[name].values.ravel()
        )
    for name in ("certified", "theorem_1", "theorem_2"):
        values = flat[name].values.ravel()
        np.testing.assert_array_equal(read[name], np.where(values < 0, np.nan, values))
        assert parquet[name].isna().tolist() == (values < 0).tolist()
    assert set(read["theorem_1"].dropna()) == {0.0, 1.0}


def test_latex_is_balanced_and_escaped() -> None:
    table = pd.DataFrame(
        {
            "L": [1.0, math.nan],
            "T_ε": pd.array([5, None], dtype="Int64"),
            "status": ["ok_1 & 2 %", "✓"],
        }
    )
    table.attrs["tex"] = {"T_ε": r"$T_\varepsilon$"}
    text = to_latex(table, ("L = 1 ± 0.1",))
    assert r"L & $T_\varepsilon$ & status \\" in text
    assert r"1 & 5 & ok\_1 \& 2 \% \\" in text
    assert r" &  & $\checkmark$ \\" in text
    assert r"$\pm$" in text
    assert (
        text.index(r"\toprule") < text.index(r"\midrule") < text.index(r"\bottomrule")
    )
    assert text.isascii()
    alike = pd.DataFrame([[1, "x", 2]], columns=["a", "a", 1]).assign(**{"1": 3})
    assert (
        "\\begin{tabular}{rlrr}\n\\toprule\na & a & 1 & 1 \\\\\n\\midrule\n1 & x & 2 & 3"
        in to_latex(alike)
    )
    assert to_markdown(alike).splitlines()[1:] == [
        "|--:|---|--:|--:|",
        "| 1 | x | 2 | 3 |",
    ]
    assert r"a\|b" in to_markdown(pd.DataFrame({"x": ["a|b"]}))


def test_files_of_other_kinds_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = swept(L=[1.0, 2.0])
    with pytest.raises(ValueError, match=r"ending in \.md, \.csv, \.tex, \.parquet"):
        write_table(found, tmp_path / "a.xlsx")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"pip install 'filelock>=3.32' 'pyarrow>=17'"):
        write_table(found, tmp_path / "a.parquet")
    monkeypatch.undo()
    for name, rows in (
        ("a.tex", 100_000),
        ("a.md", 100_000),
        ("a.csv", 10**9),
        ("a.parquet", 10**9),
    ):
        check_format(tmp_path / name, rows)
    with pytest.raises(
        ValueError, match=r"100,001 rows are too many for LaTeX; write CSV or Parquet"
    ):
        check_format(tmp_path / "a.tex", 100_001)
    long = found.isel(L=np.zeros(100_001, dtype=int))
    with pytest.raises(ValueError, match="100,001 rows are too many for Markdown"):
        write_table(long, tmp_path / "a.md")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("role", ["word", "detail"])
@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("given", [[], [1], [0, 1, 2]])
def test_details_are_in_a_table_where_they_are_meant_to_be_and_any_point_has_one(
    role: str, listed: bool, given: list[int]
) -> None:
    """A word is there also without a value; ``every`` has all, each once."""
    found = swept(L=[1.0, 2.0, 4.0])
    values: Any = np.full(3, "", dtype="U4") if role == "word" else np.full(3, np.nan)
    values[given] = "a" if role == "word" else 7.0
    found["extra"] = (
        "L",
        values,
        {
            "role": role,
            "symbol": "X",
            "description": "extra",
            **({"table": 1} if listed else {}),
        },
    )
    assert ("X" in icl.phase_table(found)) == (
        listed and (role == "word" or bool(given))
    )
    assert list(icl.phase_table(found, every=True)).count("X") == 1


def test_headings_in_latex_are_the_tex_of_their_quantities(
    over_L: xarray.Dataset,
) -> None:
    table = icl.phase_table(over_L)
    head = to_latex(table).splitlines()[3].removesuffix(r" \\").split(" & ")
    assert len(table.attrs["tex"]) > 3
    expected = [
        table.attrs["tex"].get(name, heading)
        for name, heading in zip(table.columns, head, strict=True)
    ]
    assert head == expected


@pytest.mark.parametrize("ending", [".md", ".csv", ".tex", ".parquet"])
def test_endings_may_be_capitals(ending: str, tmp_path: Path) -> None:
    """As the command line takes them."""
    found = swept(L=[0.5, 1.0])
    for name in (f"a{ending}", f"b{ending.upper()}"):
        write_table(found, tmp_path / name)
    small, large = (path.read_bytes() for path in sorted(tmp_path.iterdir()))
    assert small == large
    with (
        pytest.raises(ValueError, match="too many")
        if ending in (".md", ".tex")
        else contextlib.nullcontext()
    ):
        check_format(Path(f"a{ending.upper()}"), 100_001)

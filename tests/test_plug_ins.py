"""Plug-ins: what they may say, and what the core makes of their claims and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families import plug_ins
from icl_theory.families.plug_ins import PlugIn, TheoryColumns, discover
from icl_theory.statements import Claim, Claims, row
from icl_theory.sweeps.grid import Column


def half_time(run: icl.Trajectory) -> dict[str, Any]:
    half = run.loss[0] / 2
    return {"half_time": run.first(lambda state: state.loss <= half)}


HALF_TIME = TheoryColumns(
    (Column("half_time", "i8", "steps", "first step at half the initial loss"),),
    half_time,
)


def constant(name: str, value: float, *, batch: bool) -> TheoryColumns:
    """A column that has one value at all points."""
    return TheoryColumns(
        (Column(name, "f8", "", name),),
        lambda run: {name: value},
        (lambda runs: {name: np.full(runs, value)}) if batch else None,
    )


@dataclass(frozen=True, eq=False)
class HalfTimes(icl.Regression):
    """Regression with a column that needs a run."""

    name: ClassVar[str] = "half-times"
    theory_columns: ClassVar[Any] = HALF_TIME


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"families": {"a": "no place"}}, "a = 'no place': must be a place like"),
        ({"families": {"a": 3}}, "a = 3: must be a place like"),
        ({"families": 0.5}, "families = 0.5: must be"),
        ({"slots": {"regression": "x:y"}}, "regression = 'x:y': must be"),
        ({"slots": {"regression": {"colour": "x:y"}}}, "slot = 'colour': must be one"),
        ({"order": "first"}, "order = 'first': must be a finite number"),
        ({"order": float("nan")}, "order = nan: must be a finite number"),
    ],
)
def test_a_wrong_plug_in_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PlugIn(**arguments)


class Point:
    """An entry point of the group of plug-ins."""

    def __init__(self, value: str) -> None:
        self.name = "bowl"
        self.value = value


def discovered_beside_the_papers(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[PlugIn], list[str]]:
    """Return what an entry point with a package adds to the papers, and the messages."""
    papers, _ = discover()
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [Point(package)]
    )
    all_plug_ins, lines = discover.__wrapped__()
    added = [plug_in for plug_in in all_plug_ins if plug_in not in papers]
    return added, list(lines)


def test_a_package_that_an_entry_point_names_is_read_but_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package_of_bowls"
    (folder / "drawn").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError", encoding="utf-8")
    (folder / "plug_in.toml").write_text(
        'order = -1\nfigures = "drawn"\nfamilies.bowl = "package_of_bowls.family:Bowl"',
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    added, lines = discovered_beside_the_papers("package_of_bowls", monkeypatch)
    families = {"bowl": "package_of_bowls.family:Bowl"}
    assert added == [PlugIn(families, figures=folder / "drawn", order=-1.0)]
    assert not lines


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "FileNotFoundError: its folder has no plug_in.toml"),
        ("order 3", r"TOMLDecodeError: .*line 1.*"),
        (
            "colour = 3",
            "ValueError: key = 'colour': must be one of families, slots, .*",
        ),
        (
            'families.bowl = "Bowl"',
            "ValueError: bowl = 'Bowl': must be a place like .*",
        ),
        ('figures = "drawn"', "ValueError: figures = 'drawn': must be a folder"),
        ("figures = 3", "ValueError: figures = 3: must be .*"),
    ],
)
def test_a_plug_in_with_a_wrong_file_is_left_out_with_a_line(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "package_of_bowls"
    folder.mkdir()
    (folder / "__init__.py").write_text("", encoding="utf-8")
    if text is not None:
        (folder / "plug_in.toml").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    added, [line] = discovered_beside_the_papers("package_of_bowls", monkeypatch)
    assert not added
    start = r"the plug-in bowl \(package_of_bowls\) is left out: "
    assert re.fullmatch(start + message, line)


@pytest.mark.parametrize("package", ["no_such_package", "json.no_such_module:PLUG_IN"])
def test_a_plug_in_of_no_package_is_left_out_with_a_line(
    package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, lines = discovered_beside_the_papers(package, monkeypatch)
    assert not added
    assert lines == [
        f"the plug-in bowl ({package}) is left out: "
        f"ModuleNotFoundError: there is no package {package}"
    ]


def test_the_papers_of_the_package_are_found_and_sound() -> None:
    found, lines = discover()
    assert not lines
    assert len(found) >= 11
    orders = [plug_in.order for plug_in in found]
    assert orders == sorted(orders)


def test_claims_of_two_plug_ins_are_joined() -> None:
    @row("one")
    def first(quick: bool) -> Claim:
        """One is positive"""
        return Claim.of(True, "1", "1")

    @row("two")
    def second(quick: bool) -> Claim:
        """Two is positive"""
        return Claim.of(True, "2", "2")

    joined = Claims(rows=(first,)) + Claims(rows=(second,), check=len)
    assert joined.rows == (first, second)
    assert joined.check is len


def test_columns_of_two_theories_are_joined_and_batched_if_both_are() -> None:
    one = constant("one", 1.0, batch=True)
    two = constant("two", 2.0, batch=True)
    run = icl.simulate(2.0, 1.0, 4.0)
    both = one + two
    assert [column.name for column in both.columns] == ["one", "two"]
    assert both.measure(run) == {"one": 1.0, "two": 2.0}
    assert both.batch is not None
    assert both.batch(2)["two"].tolist() == [2.0, 2.0]
    assert (one + constant("three", 3.0, batch=False)).batch is None


def test_points_are_simulated_if_a_column_of_theory_needs_their_runs() -> None:
    sizes = [1.0, 2.0]
    swept = icl.sweep(HalfTimes, L=sizes, delta=1.0, eta=1.0, epsilon=1e-2)
    plain = icl.sweep(L=sizes, delta=1.0, eta=1.0, epsilon=1e-2)
    for index, L in enumerate(sizes):
        run = icl.simulate(L, 1.0, 1.0, epsilon=1e-2)
        assert swept.half_time.values[index] == half_time(run)["half_time"]
    assert swept.steps.values.tolist() == plain.steps.values.tolist()


def test_a_second_panel_for_one_family_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Panels are tuples: adding two of them would make a longer tuple."""
    panel = icl.Regression.explorer
    monkeypatch.setattr(plug_ins, "contributions", lambda name, slot: (panel, panel))
    with pytest.raises(ValueError, match=r"^explorer = 'given to regression by 2"):
        _ = icl.Regression.explorer


def test_columns_of_theory_that_cannot_be_loaded_are_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = PlugIn(slots={"regression": {"theory_columns": "no_such_module:COLUMNS"}})
    monkeypatch.setattr(plug_ins, "discover", lambda: ((broken,), ()))
    with pytest.warns(UserWarning, match="no_such_module:COLUMNS is left out"):
        swept = icl.sweep(L=[1.0, 2.0], delta=1.0, eta=1.0, epsilon=1e-2)
    assert (swept.steps.values > 0).all()


@pytest.mark.parametrize("seeds", [2**53 + 1, [3, 2**53 + 1], np.array([3, 2**53 + 1])])
def test_an_integer_that_float64_would_round_is_refused_in_a_sweep(seeds: Any) -> None:
    with pytest.raises(ValueError, match=f"^seed = {2**53 + 1}: must be at most"):
        icl.sweep("single-location", seed=seeds, eta=0.1, max_steps=3)

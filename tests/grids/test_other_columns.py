"""Stores with other columns than the present code: of a family that has gained some, and lost some."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import xarray

import icl_theory as icl
from icl_theory._version import __version__
from icl_theory.sweeps import store
from icl_theory.sweeps import sweep as sweeps
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.grid import Column
from icl_theory.sweeps.manifest import FORMAT
from icl_theory.sweeps.stored_columns import ColumnMatch
from tests.grids.test_damage import forged
from tests.test_cli import run_main

OLD = Column("width", "f8", "m", "how wide it is", "w", "w")
NEW = (
    Column("area", "f8", "m²", "a number that was added"),
    Column("corners", "i8", "", "a count that was added"),
    Column("shape", "U9", "", "a word that was added"),
    Column("remark", "O", "", "a text that was added"),
)
SHARED = Column("height", "f8", "m", "how high it is")
ETA = np.linspace(0.1, 0.9, 20)


class Risk(icl.Risk):
    """A parabola."""

    initial = np.ones(1)

    def evaluate(self, params: Any, step: int = 0) -> tuple[float, Any]:
        return 0.5 * float(params @ params), params


def family(*columns: Column, interrupts: float = -1.0) -> type[icl.Family]:
    """The family "parabola" as it is with these columns."""

    class Parabola(icl.Family):
        """A parabola."""

        name = "parabola"
        title = "A parabola"
        goal = ("epsilon", 1e-3)

        def risk(self) -> icl.Risk:
            return Risk()

        def measure(self, run: Any) -> dict[str, Any]:
            if run.eta == interrupts:
                raise KeyboardInterrupt
            every = {"width": run.eta, "height": 2.0 * run.eta, "area": 3.0}
            every |= {"corners": 4, "shape": "square", "remark": "said"}
            return {column.name: every[column.name] for column in columns}

    Parabola.columns = columns
    return Parabola


@pytest.fixture(params=[False, True], ids=["in memory", "on disk"])
def large(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(sweeps, "is_large", lambda *_: request.param)
    return bool(request.param)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., type[icl.Family]]:
    """Make the family "parabola" one with some columns."""

    def become(*columns: Column, **settings: float) -> type[icl.Family]:
        made = family(*columns, **settings)
        monkeypatch.setattr(sweeps, "find", lambda name: made)
        return made

    return become


def swept(made: type[icl.Family], path: Path, **given: Any) -> xarray.Dataset:
    return icl.sweep(made, **{"eta": ETA} | given, store=path, progress=False)


def same(dataset: xarray.Dataset, other: xarray.Dataset) -> bool:
    return dataset.compute(scheduler="synchronous").identical(
        other.compute(scheduler="synchronous")
    )


@pytest.mark.usefixtures("large")
def test_a_store_is_read_after_a_column_was_added_and_one_was_removed(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    path = tmp_path / "a"
    before = swept(known(SHARED, OLD), path)
    known(*NEW, SHARED)
    found = icl.load_sweep(path)
    assert found["width"].attrs == {
        "units": "m",
        "description": "how wide it is",
        "symbol": "w",
        "tex": "w",
        "role": "detail",
    }
    assert found["width"].values.tolist() == ETA.tolist()
    assert found["height"].values.tolist() == before["height"].values.tolist()
    assert np.isnan(found["area"].values).all()
    assert (found["corners"].values == -1).all()
    assert (found["shape"].values == "").all()
    assert (found["remark"].values == "").all()
    assert found["area"].attrs["description"] == "a number that was added"
    assert [*found.data_vars][-6:] == [
        *("remark", "height", "width", "status", "message", "exponent_eta")
    ]
    assert found.attrs["notes"].splitlines() == [
        f"store {str(path)!r}: kept the values of width: they are in the store, and "
        "the family does not compute them now",
        f"store {str(path)!r}: the values of area, corners, shape, remark are missing: "
        "they were not computed when the store was made",
    ]


@pytest.mark.usefixtures("large")
def test_the_same_columns_are_read_without_a_note(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    swept(known(SHARED, OLD), tmp_path / "a")
    assert "notes" not in icl.load_sweep(tmp_path / "a").attrs


@pytest.mark.usefixtures("large")
def test_a_finished_store_is_gone_on_with_as_it_is_read(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    path = tmp_path / "a"
    swept(known(SHARED, OLD), path)
    files = {file.name: file.read_bytes() for file in path.iterdir()}
    again = swept(known(*NEW, SHARED), path)
    assert same(again, icl.load_sweep(path))
    assert {file.name: file.read_bytes() for file in path.iterdir()} == files


@pytest.mark.usefixtures("large")
def test_an_interrupted_store_is_read_and_gone_on_with_in_its_own_columns(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    path = tmp_path / "a"
    assert swept(known(SHARED, OLD, interrupts=ETA[10]), path).interrupted
    kept = (icl.load_sweep(path)["status"] == "reached").values
    assert 0 < kept.sum() < 20
    made = known(*NEW, SHARED)
    part = icl.load_sweep(path)
    assert part.attrs["interrupted"] == 1
    assert part["width"].values[kept].tolist() == ETA[kept].tolist()
    assert np.isnan(part["width"].values[~kept]).all()
    whole = swept(made, path)
    assert not whole.attrs["interrupted"]
    assert (whole["status"] == "reached").all()
    assert whole["width"].values[kept].tolist() == ETA[kept].tolist()
    assert np.isnan(whole["width"].values[~kept]).all()  # not computed any more
    assert whole["height"].values.tolist() == (2.0 * ETA).tolist()
    assert np.isnan(whole["area"].values).all()  # the store cannot keep it
    assert same(whole, icl.load_sweep(path))
    known(SHARED, OLD)
    back = icl.load_sweep(path)
    assert "notes" not in back.attrs
    assert back["height"].values.tolist() == (2.0 * ETA).tolist()


def test_workers_go_on_with_an_interrupted_store_too(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    """Whoever computes the chunks, they are kept in the columns of the store."""
    path = tmp_path / "a"
    swept(known(SHARED, OLD, interrupts=ETA[10]), path)
    with ThreadPoolExecutor(2) as threads:
        whole = icl.sweep(
            known(*NEW, SHARED), eta=ETA, store=path, progress=False, executor=threads
        )
    assert (whole["status"] == "reached").all()
    assert same(whole, icl.load_sweep(path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"description": "how high it is today"}, "height = 'how high it is' there"),
        ({"unit": "km"}, "height = 'how high it is' there"),
        ({"dtype": "i8"}, "height = 'how high it is' there"),
    ],
)
def test_a_store_in_which_a_column_means_something_else_is_not_gone_on_with(
    tmp_path: Path,
    known: Callable[..., type[icl.Family]],
    change: dict[str, Any],
    words: str,
) -> None:
    swept(known(SHARED, OLD), tmp_path / "a")
    with pytest.raises(ValueError, match=words):
        swept(known(SHARED._replace(**change)), tmp_path / "a")


def test_a_column_in_another_unit_keeps_the_one_that_its_values_have(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    swept(known(SHARED), tmp_path / "a")
    known(SHARED._replace(unit="km", description="how high it is today"))
    found = icl.load_sweep(tmp_path / "a")["height"]
    assert found.attrs["units"] == "m"
    assert found.attrs["description"] == "how high it is"


def test_a_column_that_was_a_number_and_is_text_now_is_refused_by_both_types(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    swept(known(SHARED), tmp_path / "a")
    known(SHARED._replace(dtype="U6"))
    with pytest.raises(
        ValueError, match="one whose column height is text, not a real number"
    ):
        icl.load_sweep(tmp_path / "a")


@pytest.mark.usefixtures("large")
def test_a_damaged_part_is_refused_whatever_the_columns(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    path = tmp_path / "a"
    swept(known(SHARED, OLD), path)
    file = min(path.glob("part-*"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    made = known(*NEW, SHARED)
    for use in (lambda: icl.load_sweep(path), lambda: swept(made, path)):
        with pytest.raises(
            ValueError, match="it is damaged, or belongs to another sweep"
        ):
            use()["width"].compute(scheduler="synchronous")


def test_a_manifest_from_which_a_column_is_cut_is_refused(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    """Its parts are those of a sweep with other columns."""
    path = tmp_path / "a"
    swept(known(SHARED, OLD), path)

    def cut(said: dict[str, Any]) -> None:
        said["columns"] = [each for each in said["columns"] if each["name"] != "width"]

    forged(path, cut)
    with pytest.raises(ValueError, match="it is damaged, or belongs to another sweep"):
        icl.load_sweep(path)


@pytest.mark.parametrize("name", ["steps", "loss"])
def test_a_store_without_what_every_sweep_has_is_refused(
    tmp_path: Path, known: Callable[..., type[icl.Family]], name: str
) -> None:
    made = sweeps.plan(known(SHARED), {"eta": [0.1, 0.2]})
    columns = tuple(column for column in made.model.columns if column.name != name)
    with store.opened(tmp_path / "a", made.grid, columns, made.arguments):
        pass
    with pytest.raises(ValueError, match=f"which has a column {name}$"):
        icl.load_sweep(tmp_path / "a")


@pytest.mark.parametrize(
    "change",
    [
        {"description": 3},
        {"unit": None},
        {"role": []},
        {"extra": [["description", "another"]]},
        {"extra": [["units", "another"]]},
        {"extra": [["of", {"a": 1}]]},
        {"extra": [[3, "word"]]},
        {"extra": ["abc"]},
        {"extra": {"of": 1}},
    ],
)
def test_an_unknown_column_that_describes_itself_by_anything_is_refused(
    tmp_path: Path,
    known: Callable[..., type[icl.Family]],
    change: dict[str, Any],
) -> None:
    path = tmp_path / "a"
    made = sweeps.plan(known(OLD), {"eta": [0.1, 0.2]})
    with store.opened(path, made.grid, made.model.columns, made.arguments):
        pass
    known()
    assert "width" in icl.load_sweep(path)

    def describe(said: dict[str, Any]) -> None:
        [column] = [each for each in said["columns"] if each["name"] == "width"]
        column.update(change)

    forged(path, describe)
    with pytest.raises(ValueError, match="it is damaged, or no sweep has written it"):
        icl.load_sweep(path)


@pytest.mark.parametrize("form", [1, FORMAT + 1])
def test_a_store_of_another_format_is_refused_by_both_formats_and_versions(
    tmp_path: Path, known: Callable[..., type[icl.Family]], form: int
) -> None:
    path = tmp_path / "a"
    made = known(SHARED)
    swept(made, path)

    def change(said: dict[str, Any]) -> None:
        said["format"] = form
        said["arguments"]["version"] = "77.1"

    forged(path, change)
    words = (
        f"it has format {form}, written by version 77.1; this version of the package, "
        f"{__version__}, reads format {FORMAT}"
    )
    for use in (lambda: icl.load_sweep(path), lambda: swept(made, path)):
        with pytest.raises(ValueError, match=re.escape(words) + "$"):
            use()


def test_the_command_reads_such_a_store_and_prints_the_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A store from a version that had a column of its own and lacked one of today's."""
    path = tmp_path / "a"
    made = sweeps.plan(icl.Recall, {"triggers": [4, 16], "counts": 1})
    columns = (*made.model.columns[:-1], OLD)
    with store.opened(path, made.grid, columns, made.arguments) as kept:
        evaluate(made.grid, made.model, storage=kept)
    status, _, err = run_main(capsys, "table", str(path), "--csv", f"{path}.csv")
    assert (status, err.count("icl-theory: store ")) == (0, 2)
    assert "kept the values of width" in err
    assert f"the values of {made.model.columns[-1].name} are missing" in err
    assert Path(f"{path}.csv").exists()
    assert "<html" in icl.html_report(icl.load_sweep(path))


def test_a_note_names_a_few_of_many_columns() -> None:
    many = tuple(OLD._replace(name=f"c{i}") for i in range(8))
    [note] = ColumnMatch(stored=many, computed=()).notes(Path("a"))
    assert "the values of c0, c1, c2, c3, c4 and 3 more: they" in note


def test_the_parts_are_a_table_of_the_columns_of_the_store(
    tmp_path: Path, known: Callable[..., type[icl.Family]]
) -> None:
    path = tmp_path / "a"
    swept(known(SHARED, OLD, interrupts=ETA[10]), path)
    swept(known(*NEW, SHARED), path)
    table = pd.read_parquet(path)
    assert len(table) == 20
    assert "area" not in table
    names = [
        each["name"]
        for each in json.loads((path / "_sweep.json").read_text())["columns"]
    ]
    assert [*table.columns][-len(names) :] == names

"""Stores that were damaged, or made by a stranger: they are refused, and nothing is run or allocated."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from icl_theory import memory
from icl_theory.cli import main
from icl_theory.families import find
from icl_theory.grids import layout, store
from icl_theory.grids.codec import SEAL, encode
from icl_theory.grids.evaluate import evaluate
from icl_theory.grids.grid import MESSAGE, STATUS, Axis, Column, Grid
from icl_theory.grids.layout import Layout
from icl_theory.grids.sweep import load_sweep, plan
from tests.grids.test_grid import equal
from tests.grids.test_store import ARGUMENTS, run
from tests.models import SQUARE, Squares, grid

SMALL = grid(4)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run(tmp_path / "a.zarr", made=SMALL)
    return tmp_path / "a.zarr"


def refused(path: Path, made: Grid = SMALL, **arguments: Any) -> str:
    """The error when a store is read, which is that of going on with it, in one line."""
    with pytest.raises(ValueError, match=r"^store = .*: must be ") as reading:
        store.read(path)
    with pytest.raises(ValueError, match=r"^store = .*: must be ") as going_on:
        run(path, made=made, **arguments)
    assert str(reading.value).split(": must be ")[0] == str(going_on.value).split(": must be ")[0]
    assert "\n" not in str(reading.value) + str(going_on.value)
    return str(reading.value)


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file() and each.name != "lock")


def test_no_flip_of_a_bit_in_any_file_goes_unnoticed(path: Path) -> None:
    rng = np.random.default_rng(0)
    tried = 0
    for file in files(path):
        content = file.read_bytes()
        for place in rng.choice(len(content), min(len(content), 12), replace=False):
            flipped = bytearray(content)
            flipped[place] ^= 1 << rng.integers(8)
            file.write_bytes(flipped)
            name = file.relative_to(path).as_posix()
            assert f"its file {name} is not: " in refused(path) or "format" in refused(path), (name, place)
            tried += 1
        file.write_bytes(content)
    assert tried > 250
    assert equal(store.read(path).values, evaluate(SMALL, Squares()).values)


@pytest.mark.slow
def test_no_flip_of_a_bit_in_the_main_file_goes_unnoticed(path: Path) -> None:
    content = (path / "zarr.json").read_bytes()
    rng = np.random.default_rng(1)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match=r"damaged|format"):
            layout.parsed(bytes(flipped))


@pytest.mark.parametrize("column", ["square", "word"])
def test_chunks_that_changed_places_are_refused_by_name(path: Path, column: str) -> None:
    one, two = path / column / "c.1.0", path / column / "c.2.0"
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    assert f"its file {column}/c.1.0 is not: it is that of other points" in refused(path)


def test_chunks_that_changed_places_with_their_marks_are_refused(path: Path) -> None:
    for column in ("square", "whole", "word", "status"):
        for name in ("c.1.0", "c.2.0"):
            (path / column / name).rename(path / column / (name + "x"))
        (path / column / "c.1.0x").rename(path / column / "c.2.0")
        (path / column / "c.2.0x").rename(path / column / "c.1.0")
    marks = [path / "_sweep" / "mark" / f"c.{i}.0.0.0" for i in (1, 2)]
    first, second = (mark.read_bytes() for mark in marks)
    marks[0].write_bytes(second)
    marks[1].write_bytes(first)
    assert "its file square/c.1.0 is not: it is that of other points" in refused(path)


@pytest.mark.parametrize("change", [{"seed": 7}, {"version": "2"}])
def test_a_chunk_of_another_sweep_is_refused_with_its_mark(path: Path, change: dict[str, Any]) -> None:
    other = path.with_name("b.zarr")
    run(other, Squares(fails=1.0), made=SMALL, **change)
    for file in other.rglob("c.1.0*"):
        shutil.copy(file, path / file.relative_to(other))
    assert re.search("its file (square|message)/c.1.0 is not", refused(path))


def test_a_column_that_took_the_place_of_another_is_refused(tmp_path: Path) -> None:
    columns = (Column("low", "f8", "", "x"), Column("high", "f8", "", "2 x"))
    made = Grid((Axis("x", np.arange(4.0), "", "", True),), 2)

    class Two:
        def __init__(self) -> None:
            self.columns = columns

        def evaluate(self, points: Any) -> Any:
            texts = {"status": np.array(["done"] * 2), "message": np.array([""] * 2, dtype=object)}
            return {"low": points["x"], "high": 2 * points["x"]} | texts

    path = tmp_path / "a.zarr"
    with store.opened(path, made, columns, ARGUMENTS) as kept:
        evaluate(made, Two(), storage=kept)
    shutil.copy(path / "low" / "c.1", path / "high" / "c.1")
    with pytest.raises(ValueError, match=r"its file high/c.1 is not: it is that of other points"):
        store.read(path)


def test_a_chunk_that_is_removed_as_said_is_computed_again(path: Path) -> None:
    file = path / "square" / "c.1.0"
    file.write_bytes(bytes(reversed(file.read_bytes())))
    said = re.search("if (.*) is removed, the same call computes these points again", refused(path))
    assert said is not None
    (path / said[1]).unlink()
    assert equal(run(path, made=SMALL).values, evaluate(SMALL, Squares()).values)


@pytest.mark.parametrize("left", [0, 3])
def test_a_chunk_whose_file_ends_too_early_is_computed_again(path: Path, left: int) -> None:
    """As a power cut leaves it: the mark of the chunk is on the disk, and the end of a column's file is not."""
    os.truncate(path / "square" / "c.1.0", left)
    assert equal(run(path, made=SMALL).values, evaluate(SMALL, Squares()).values)


def test_a_record_of_commands_that_is_damaged_is_refused_and_one_that_is_gone_is_none(path: Path) -> None:
    record = path / "_sweep" / "zarr.json"
    record.write_text("{half")
    assert "its file _sweep/zarr.json is not: it is damaged; without this file" in refused(path)
    record.unlink()
    assert store.read(path).commands == []


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads((path / "zarr.json").read_text())
    change(document)
    (path / "zarr.json").write_text(json.dumps(document, sort_keys=True))


class Runs:
    """What pickle runs when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_store_that_has_zarr_unpickle_is_refused_and_runs_nothing(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An array of Zarr v2 with the codec ``pickle``, declared where xarray and zarr look first."""
    proof = path.with_name("ran")
    array = {
        "zarr_format": 2, "shape": [4, 2], "chunks": [4, 2], "dtype": "|O", "fill_value": "", "order": "C",
        "filters": [{"id": "vlen-utf8"}], "compressor": {"id": "pickle"}, "attributes": {},
    }  # fmt: skip

    def consolidated(document: dict[str, Any]) -> None:
        document["consolidated_metadata"]["metadata"]["square"] = array

    rewritten(path, consolidated)
    shutil.rmtree(path / "square")
    (path / "square").mkdir()
    (path / "square" / ".zarray").write_text(json.dumps(array))
    (path / "square" / "0.0").write_bytes(pickle.dumps(Runs(proof)))
    assert "its file zarr.json is not: it is damaged, or no sweep has written it" in refused(path)
    with pytest.raises(SystemExit) as stop:
        main(["table", str(path)])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not proof.exists()


def one_codec(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda array: array.update(codecs=[{"name": name, "configuration": {}}])


@pytest.mark.parametrize(
    "change",
    [
        one_codec("numcodecs.pickle"),
        one_codec("sharding_indexed"),
        one_codec("gzip"),
        lambda array: array.update(zarr_format=2),
        lambda array: array.update(storage_transformers=[{"name": "redirect"}]),
        lambda array: array.update(data_type="object"),
        lambda array: array.update(shape=[10**9, 10**9]),
        lambda array: array["chunk_grid"]["configuration"].update(chunk_shape=[10**9, 10**9]),
        lambda array: array.update(fill_value=7),
        lambda array: array.update(attributes={"scale_factor": 2.0}),
        lambda array: array.update(extra={"must_understand": False}),
    ],
)
@pytest.mark.parametrize("name", ["square", "x"])
def test_an_array_that_differs_from_those_of_a_sweep_is_refused(
    path: Path, name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    file = path / name / "zarr.json"
    document = json.loads(file.read_text())
    change(document)
    file.write_text(json.dumps(document, sort_keys=True))
    assert f"its file {name}/zarr.json is not: " in refused(path)
    file.unlink()
    rewritten(path, lambda root: root["consolidated_metadata"]["metadata"].update({name: document}))
    assert "its file zarr.json is not: " in refused(path)


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and make its digest fit, as a stranger would."""

    def both(document: dict[str, Any]) -> None:
        known = document["attributes"]["icl_theory"]
        del known["digest"]
        change(known)
        known["digest"] = layout.digest(json.dumps(known, sort_keys=True).encode()).hex()

    rewritten(path, both)


def test_a_forged_manifest_that_is_that_of_the_store_fits(path: Path) -> None:
    forged(path, lambda known: None)
    assert store.read(path).finished


@pytest.mark.parametrize(
    "change",
    [
        lambda known: known.update(chunk=0),
        lambda known: known.update(chunk=-1),
        lambda known: known.update(chunk=2.5),
        lambda known: known.update(chunk=10**40),
        lambda known: known.update(chunk=10**9),
        lambda known: known["axes"][0].update(values=[*map(float, range(10**6))]) or known.update(chunk=1),
        lambda known: known["axes"].extend({**known["axes"][0], "name": f"a{i}"} for i in range(9)),
        lambda known: known["axes"].extend(
            {**known["axes"][0], "name": f"a{i}", "values": [1.0, 2.0]} for i in range(28)
        ),
        lambda known: known.update(axes=[]),
        lambda known: known.update(axes={}),
        lambda known: known.update(axes=None),
        lambda known: known.update(columns=[]),
        lambda known: known.update(columns=[3]),
        lambda known: known.update(arguments=[1]),
        lambda known: known.pop("chunk"),
        lambda known: known["axes"].append(known["axes"][0]),
        lambda known: known["axes"].extend({**known["axes"][2], "name": f"a{i}"} for i in range(100)),
        lambda known: known["axes"][0].update(values=[]),
        lambda known: known["axes"][0].update(values=[[1.0], [2.0]]),
        lambda known: known["axes"][0].update(values=["0x1p3"] * 4),
        lambda known: known["axes"][0].update(values=[10**400] * 4),
        lambda known: known["axes"][0].update(values=10**9),
        lambda known: known["axes"][0].update(type="object"),
        lambda known: known["axes"][0].update(type=[]),
        lambda known: known["axes"][0].update(name="../../x"),
        lambda known: known["axes"][0].update(name="_sweep"),
        lambda known: known["axes"][0].update(name=3),
        lambda known: known["axes"][0].update(swept=False),
        lambda known: known["axes"][0].pop("unit"),
        lambda known: known["axes"][0].update(unit=3),
        lambda known: known["columns"][0].update(name="x"),
        lambda known: known["columns"][0].update(dtype="U1000000000"),
        lambda known: known["columns"][0].update(dtype="V8"),
        lambda known: known["columns"][0].update(dtype=""),
        lambda known: known["columns"][0].update(more=1),
        lambda known: known.update(columns=known["columns"][:-1]),
        lambda known: known.update(format=1),
        lambda known: known.update(format=99),
        lambda known: known.update(format=[]),
    ],
)
def test_a_forged_manifest_is_refused_in_one_line(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    forged(path, change)
    refused(path)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"null", b"[]", b"3", b"{}", b'{"attributes": 3}', b"{half", b"\xff\xfe", b'{"attributes": NaN}',
        b"[" * 100_000, b'{"attributes":' * 100_000, b'{"attributes": {"icl_theory": {"format": 2}}}',
        b'{"zarr_format": 3, "node_type": "group", "attributes": {}}', b"9" * 10_000,
    ],
)  # fmt: skip
def test_other_json_is_refused_in_one_line(path: Path, content: bytes) -> None:
    (path / "zarr.json").write_bytes(content)
    refused(path)


def test_a_store_of_the_format_before_is_refused_by_a_sentence(tmp_path: Path) -> None:
    """What the first format wrote: tables of reals, wholes and texts beside their marks."""
    path = tmp_path / "a.zarr"
    for name in ("real", "whole", "text", "done"):
        (path / name / "c").mkdir(parents=True)
        (path / name / "zarr.json").write_text("{}")
    known = {"format": 1, "arguments": ARGUMENTS, "axes": {"x": {"values": [1.0], "swept": True}}, "chunk": 8}
    document = {"attributes": {"icl_theory": known | {"columns": ["a"]}}, "zarr_format": 3, "node_type": "group"}
    (path / "zarr.json").write_text(json.dumps(document))
    (path / ".lock").write_text("")
    said = refused(path)
    assert "must be one that this version of the package can read: it has format 1, and this version" in said
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "done", "real", "text", "whole", "zarr.json"]


def test_claimed_sizes_are_refused_before_anything_of_them_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is right but for its size: more points than there is memory for."""
    path = tmp_path / "a.zarr"
    axes = tuple(Axis(f"a{i}", np.arange(1000.0), "", "", True) for i in range(3))
    claimed = Layout(Grid(axes, 10**6), (*SQUARE, STATUS, MESSAGE), ARGUMENTS)
    path.mkdir()
    (path / "zarr.json").write_bytes(claimed.root)
    monkeypatch.setattr(memory, "free", lambda: 2e9)
    tracemalloc.start()
    with pytest.raises(ValueError, match="points = 1000000000: must be smaller: this takes"):
        store.read(path)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "file", ["zarr.json", "square/zarr.json", "square/c.1.0", "_sweep/mark/c.1.0.0.0", "x/c.0"]
)
def test_files_larger_than_they_can_be_are_not_read(path: Path, file: str) -> None:
    os.truncate(path / file, 2**40)
    tracemalloc.start()
    assert f"its file {file} is not: it has 1099511627776 bytes" in refused(path)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def sealed(path: Path, chunk: int, column: int, content: bytes) -> None:
    """Put a file into a store with a mark that fits, as a stranger would."""
    made = Layout(SMALL, (*SQUARE, STATUS, MESSAGE), ARGUMENTS)
    name = made.columns[column].name
    (path / name / f"c.{chunk}.0").write_bytes(content)
    place = f"{chunk},0".encode()
    bound = layout.digest(made.digest, name.encode(), place, b"%d" % len(content), content[-SEAL:])
    mark = path / "_sweep" / "mark" / f"c.{chunk}.0.0.0"
    rows = np.frombuffer(mark.read_bytes()[:-SEAL], dtype="<u8").reshape(-1, 2).copy()
    rows[column] = len(content), int.from_bytes(bound, "little")
    mark.write_bytes(encode(rows))


@pytest.mark.parametrize(
    "body",
    [
        b"", b"\x02", b"\x03\x00\x00\x00", b"\xff\xff\xff\xff", b"\x02\x00\x00\x00\xff\xff\xff\xff",
        b"\x02\x00\x00\x00\x01\x00\x00\x00a\x09\x00\x00\x00b",
        b"\x02\x00\x00\x00\x01\x00\x00\x00\xff\x00\x00\x00\x00",
        b"\x02\x00\x00\x00\x01\x00\x00\x00",
    ],
)  # fmt: skip
def test_forged_texts_are_refused_in_one_line(path: Path, body: bytes) -> None:
    content = encode(np.frombuffer(body, dtype=np.uint8))
    sealed(path, 1, 2, content)
    assert "its file word/c.1.0 is not: " in refused(path)


def test_forged_numbers_of_the_wrong_length_are_refused_in_one_line(path: Path) -> None:
    sealed(path, 1, 0, encode(np.array([1.0])))
    assert "its file square/c.1.0 is not: it does not hold 2 numbers" in refused(path)


@pytest.mark.parametrize("shape", [(2**17,), (360, 360), (2,) * 17])
def test_the_smallest_chunks_that_may_be_are_read_in_little_memory_where_none_is_done(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "a.zarr"
    axes = tuple(Axis(f"a{i}", np.arange(float(n)), "", "", True) for i, n in enumerate(shape))
    path.mkdir()
    (path / "zarr.json").write_bytes(Layout(Grid(axes, 1), (*SQUARE, STATUS, MESSAGE), ARGUMENTS).root)
    tracemalloc.start()
    found = store.read(path).values
    assert tracemalloc.get_traced_memory()[1] < 60e6
    tracemalloc.stop()
    assert (found["status"] == "pending").all()


@pytest.mark.parametrize("change", [{"family": {"a": 1}}, {"family": None}, {"family": [1]}, {"version": ...}])
def test_arguments_of_a_stranger_are_refused_by_name(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "a.zarr"
    made = plan(find("regression"), {"L": [1.0, 2.0], "delta": 1.0, "eta": 1.0})
    arguments = {name: value for name, value in {**made.arguments, **change}.items() if value is not ...}
    path.mkdir()
    (path / "zarr.json").write_bytes(Layout(made.grid, (*made.model.columns, STATUS, MESSAGE), arguments).root)
    with pytest.raises(ValueError, match=r"^(family|store) = .*: must be "):
        load_sweep(path)

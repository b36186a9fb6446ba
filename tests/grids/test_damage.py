"""Stores that were damaged, or made by a stranger: they are refused, and nothing is run or allocated."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow.parquet import read_table, write_table

from icl_theory import memory
from icl_theory.families.registry import find
from icl_theory.sweeps import manifest, store
from icl_theory.sweeps.evaluate import evaluate
from icl_theory.sweeps.grid import MESSAGE, REACHED, STATUS, Axis, Grid
from icl_theory.sweeps.manifest import Manifest
from icl_theory.sweeps.sweep import load_sweep, plan
from tests.grids.test_grid import equal
from tests.grids.test_store import ARGUMENTS, part, read, run
from tests.models import SQUARE, Squares, grid

SMALL = grid(4)
SAID = "_sweep.json"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    run(tmp_path / "a", made=SMALL)
    return tmp_path / "a"


def refused(path: Path, **arguments: Any) -> str:
    """The error when a store is read, which is that of going on with it, in one line."""
    with pytest.raises(ValueError, match=r"^store .*: ") as reading:
        read(path)
    with pytest.raises(ValueError, match=r"^store .*: ") as going_on:
        run(path, made=SMALL, **arguments)
    assert "\n" not in str(reading.value) + str(going_on.value)
    return str(reading.value)


def test_no_flip_of_a_bit_in_any_file_goes_unnoticed(path: Path) -> None:
    rng = np.random.default_rng(0)
    for file in [path / SAID, *path.glob("part-*")]:
        content = file.read_bytes()
        for place in rng.choice(len(content), 15, replace=False):
            flipped = bytearray(content)
            flipped[place] ^= 1 << rng.integers(8)
            file.write_bytes(flipped)
            assert f"its file {file.name} cannot be used: " in refused(path), (
                file.name,
                place,
            )
        file.write_bytes(content)
    assert equal(read(path), evaluate(SMALL, Squares()).values)


@pytest.mark.slow
def test_no_flip_of_a_bit_in_the_json_file_goes_unnoticed(path: Path) -> None:
    content = (path / SAID).read_bytes()
    rng = np.random.default_rng(1)
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.integers(8)
        with pytest.raises(ValueError, match=r"damaged|format"):
            manifest.parsed(bytes(flipped))


@pytest.mark.parametrize("at", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_a_flip_of_a_bit_anywhere_in_a_part_is_noticed(path: Path, at: float) -> None:
    file = part(path, 1)
    content = bytearray(file.read_bytes())
    content[round(at * (len(content) - 1))] ^= 1
    file.write_bytes(content)
    assert "it is damaged, or belongs to another sweep or place" in refused(path)


def test_a_part_that_is_renamed_to_another_place_is_refused(path: Path) -> None:
    one, two = part(path, 1), part(path, 2)
    two.unlink()
    one.rename(path / one.name.replace("part-000001", "part-000002"))
    assert "it is damaged, or belongs to another sweep or place" in refused(path)


def test_parts_whose_contents_changed_places_are_refused(path: Path) -> None:
    one, two = part(path, 1), part(path, 3)
    first, second = one.read_bytes(), two.read_bytes()
    assert len(first) == len(second)
    one.write_bytes(second)
    two.write_bytes(first)
    assert (
        f"its file {one.name} cannot be used: it is damaged, or belongs to another"
        in refused(path)
    )


@pytest.mark.parametrize("change", [{"seed": 7}, {"version": "2"}])
def test_a_part_of_another_sweep_is_refused(path: Path, change: dict[str, Any]) -> None:
    run(path.with_name("b"), made=SMALL, **change)
    part(path, 1).unlink()
    shutil.copy(part(path.with_name("b"), 1), path)
    assert "it is damaged, or belongs to another sweep or place" in refused(path)


def test_a_part_that_is_removed_as_said_is_computed_again(path: Path) -> None:
    file = part(path, 1)
    file.write_bytes(bytes(reversed(file.read_bytes())))
    assert "without this file the same call computes its points again" in refused(path)
    file.unlink()
    assert equal(run(path, made=SMALL).values, evaluate(SMALL, Squares()).values)


def test_a_chunk_that_is_there_twice_is_refused(path: Path) -> None:
    name = part(path, 1).name
    (path / f"{name[:-10]}00.parquet").write_bytes(b"x" * 10_000)
    assert (
        "cannot be used: no sweep has written a file of this name in this folder"
        in refused(path)
    )


@pytest.mark.parametrize(
    "name",
    [
        "more.parquet",
        "MORE.PARQUET",
        "part-1.parquet",
        f"part-000099-00000000-{'0' * 16}.parquet",
        "d.parquet",
    ],
)
def test_what_would_be_taken_for_more_of_the_table_is_refused(
    path: Path, name: str
) -> None:
    (path / name).mkdir() if name == "d.parquet" else (path / name).write_text("")
    assert (
        f"its file {name} cannot be used: no sweep has written a file of this name in this folder"
        in refused(path)
    )


@pytest.mark.parametrize(
    "name", ["Thumbs.db", "desktop.ini", "more.csv", "notes.txt~", "folder", "Icon\r"]
)
def test_a_foreign_file_is_ignored_with_a_note(path: Path, name: str) -> None:
    (path / name).mkdir() if name == "folder" else (path / name).write_text("mine")
    assert equal(read(path), evaluate(SMALL, Squares()).values)
    part(path, 1).unlink()
    assert equal(run(path, made=SMALL).values, evaluate(SMALL, Squares()).values)
    note = store.existing(path).note()
    assert note == f"store {str(path)!r}: ignored {name!r}, which no sweep has written"
    assert (path / name).exists()


def test_a_note_names_a_few_of_many_foreign_files(path: Path) -> None:
    for i in range(1005):
        (path / f"{i:04}").touch()
    note = store.existing(path).note()
    assert "ignored '0000', '0001', '0002' and 1,002 more" in note


@pytest.mark.parametrize("name", [".DS_Store", "._part-000001", "_notes"])
def test_what_file_browsers_hide_is_no_obstacle(path: Path, name: str) -> None:
    (path / name).write_text("")
    assert (read(path)["status"] == REACHED).all()
    assert not store.existing(path).note()


def test_a_link_to_another_json_file_is_refused(path: Path) -> None:
    (path / SAID).rename(path.with_name("elsewhere"))
    (path / SAID).symlink_to(path.with_name("elsewhere"))
    assert f"its file {SAID} cannot be used: it is no plain file" in refused(path)


def test_a_link_is_no_part_and_its_target_is_left_alone(path: Path) -> None:
    file, elsewhere = part(path, 1), path.with_name("elsewhere")
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    before = elsewhere.stat().st_mtime_ns, elsewhere.read_bytes()
    assert (read(path)["status"] == "pending").sum() == 2
    assert not run(path, made=SMALL).interrupted
    assert not file.is_symlink()
    assert (elsewhere.stat().st_mtime_ns, elsewhere.read_bytes()) == before


def test_the_folder_itself_may_be_a_link(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path)
    assert equal(read(link), read(path))
    assert not run(link, made=SMALL).interrupted


@pytest.mark.skipif(
    not hasattr(os, "mkfifo"), reason="there are no pipes with names here"
)
def test_a_pipe_is_refused_and_not_waited_for(path: Path) -> None:
    (path / SAID).unlink()
    os.mkfifo(path / SAID)
    assert "it is no plain file" in refused(path)


def forged(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the JSON file and make its digest fit, as a stranger would."""
    said = json.loads((path / SAID).read_text())
    del said["digest"]
    change(said)
    said["digest"] = manifest.digest(json.dumps(said, sort_keys=True).encode())
    (path / SAID).write_text(json.dumps(said, sort_keys=True))


def test_a_forged_file_that_is_that_of_the_store_fits(path: Path) -> None:
    content = (path / SAID).read_bytes()
    forged(path, lambda said: None)
    assert (path / SAID).read_bytes() == content


@pytest.mark.parametrize(
    "change",
    [
        lambda said: said.update(chunk=0),
        lambda said: said.update(chunk=-1),
        lambda said: said.update(chunk=2.5),
        lambda said: said.update(chunk=10**40),
        lambda said: said.update(chunk=10**9),
        lambda said: (
            said["axes"][0].update(values=[*map(float, range(2 * 10**5))])
            or said.update(chunk=1)
        ),
        lambda said: said["axes"].extend(
            {**said["axes"][0], "name": f"a{i}"} for i in range(9)
        ),
        lambda said: said["axes"].extend(
            {**said["axes"][0], "name": f"a{i}", "values": [1.0, 2.0]}
            for i in range(28)
        ),
        lambda said: said["axes"].extend(
            {**said["axes"][0], "name": f"a{i}", "values": [1.0, 2.0]}
            for i in range(15)
        ),
        lambda said: said.update(axes=[]),
        lambda said: said.update(axes={}),
        lambda said: said.update(axes=None),
        lambda said: said.update(columns=[]),
        lambda said: said.update(columns=[3]),
        lambda said: said.update(arguments=[1]),
        lambda said: said.update(commands=[1]),
        lambda said: said.update(commands="text"),
        lambda said: said.pop("chunk"),
        lambda said: said["axes"].append(said["axes"][0]),
        lambda said: said["axes"].extend(
            {**said["axes"][2], "name": f"a{i}"} for i in range(100)
        ),
        lambda said: said["axes"][0].update(values=[]),
        lambda said: said["axes"][0].update(values=[[1.0], [2.0]]),
        lambda said: said["axes"][0].update(values=["0x1p3"] * 4),
        lambda said: said["axes"][0].update(values=[10**400] * 4),
        lambda said: said["axes"][0].update(values=10**9),
        lambda said: said["axes"][0].update(
            values=["x" * 10**5, *map(str, range(10**5))], type="str"
        ),
        lambda said: said["axes"][0].update(type="object"),
        lambda said: said["axes"][0].update(type=[]),
        lambda said: said["axes"][0].update(name="../../x"),
        lambda said: said["axes"][0].update(name=3),
        lambda said: said["axes"][0].update(swept=False),
        lambda said: said["axes"][0].pop("unit"),
        lambda said: said["axes"][0].update(unit=3),
        lambda said: said["columns"][0].update(name="x"),
        lambda said: said["columns"][0].update(dtype="U1000000000"),
        lambda said: said["columns"][0].update(dtype="V8"),
        lambda said: said["columns"][0].update(dtype=""),
        lambda said: said["columns"][0].update(more=1),
        lambda said: said.update(columns=said["columns"][:-1]),
        lambda said: said.update(format=99),
        lambda said: said.update(format=[]),
    ],
)
def test_a_forged_file_is_refused_in_one_line(
    path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    forged(path, change)
    tracemalloc.start()
    assert "cannot be used: " in refused(path)
    assert tracemalloc.get_traced_memory()[1] < 200e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b"{}",
        b'{"format": 3}',
        b"{half",
        b"\xff\xfe",
        b'{"format": NaN}',
        b"[" * 100_000,
        b'{"format":' * 100_000,
        b"9" * 10_000,
        b'{"format": 1}',
    ],
)
def test_other_json_is_refused_in_one_line(path: Path, content: bytes) -> None:
    (path / SAID).write_bytes(content)
    refused(path)


def claimed(path: Path, shape: tuple[int, ...], chunk: int) -> Path:
    """A store that is right but for its size, and has no points."""
    axes = tuple(
        Axis(f"a{i}", np.arange(float(n)), "", "", True) for i, n in enumerate(shape)
    )
    path.mkdir()
    (path / SAID).write_bytes(
        Manifest(Grid(axes, chunk), (*SQUARE, STATUS, MESSAGE), ARGUMENTS).written([])
    )
    return path


def test_claimed_sizes_are_refused_before_anything_of_them_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = claimed(tmp_path / "a", (1000, 1000, 1000), 10**6)
    monkeypatch.setattr(memory, "free", lambda: 2e9)
    tracemalloc.start()
    with pytest.raises(
        ValueError, match="points = 1000000000: must be smaller: this takes"
    ):
        read(path)
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2**17,), (360, 360), (2,) * 15])
def test_the_smallest_chunks_that_may_be_are_read_in_little_memory_where_none_is_done(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = claimed(tmp_path / "a", shape, 1)
    tracemalloc.start()
    found = read(path)
    assert tracemalloc.get_traced_memory()[1] < 60e6
    tracemalloc.stop()
    assert (found["status"] == "pending").all()


@pytest.mark.parametrize("chunk", [None, 1])
def test_files_larger_than_they_can_be_are_not_read(
    path: Path, chunk: int | None
) -> None:
    file = path / SAID if chunk is None else part(path, chunk)
    os.truncate(file, 2**40)
    tracemalloc.start()
    assert (
        f"its file {file.name} cannot be used: it has 1099511627776 bytes"
        in refused(path)
    )
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()


def planted(path: Path, content: bytes) -> None:
    """Put a file in the place of a part, with a name that fits, as a stranger would."""
    part(path, 1).unlink()
    (path / store.part_name(store.existing(path).manifest, 1, content)).write_bytes(
        content
    )


def with_status(table: pa.Table, word: str) -> pa.Table:
    place = table.column_names.index("status")
    return table.set_column(place, "status", pa.array([REACHED, word]))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda table: table.slice(0, 1), "does not hold 2 points"),
        (lambda table: table.drop(["square"]), "square"),
        (
            lambda table: table.set_column(3, "square", pa.array([1, 2])),
            "square has another type",
        ),
        (
            lambda table: table.set_column(3, "square", pa.array([1.0, None])),
            "square has no value for each point",
        ),
        (
            lambda table: table.set_column(5, "word", pa.array(["x" * 10**6, ""])),
            "texts that are too long",
        ),
        (
            lambda table: table.set_column(5, "word", pa.array([None, "a"])),
            "word has no value for each point",
        ),
        (
            lambda table: table.set_column(5, "word", pa.array([1, 2])),
            "cannot be used: no sweep",
        ),
        (
            lambda table: with_status(table, "evil"),
            "status = 'evil': must be one of reached, not reached, failed",
        ),
        (
            lambda table: with_status(table, "pending"),
            "status = 'pending': must be one of reached",
        ),
        (lambda table: with_status(table, ""), "status = '': must be one of reached"),
    ],
)
def test_forged_parts_are_refused_in_one_line(
    path: Path, change: Callable[[pa.Table], pa.Table], words: str
) -> None:
    table = read_table(part(path, 1), partitioning=None)
    assert table.column_names[3:6] == ["square", "whole", "word"]
    buffer = pa.BufferOutputStream()
    write_table(change(table), buffer, compression="none")
    planted(path, buffer.getvalue().to_pybytes())
    assert words in refused(path)


def test_other_files_in_the_place_of_a_part_are_refused_in_one_line(path: Path) -> None:
    table = read_table(part(path, 1), partitioning=None)
    buffer = pa.BufferOutputStream()
    write_table(table, buffer, compression="zstd")  # of which little may become much
    whole = part(path, 1).read_bytes()
    for content in (
        buffer.getvalue().to_pybytes(),
        b"PAR1",
        b"x" * 1000,
        whole[:-30] + whole[-20:],
    ):
        planted(path, content)
        assert "cannot be used: no sweep has written it (" in refused(path)


@pytest.mark.parametrize(
    "change",
    [{"family": {"a": 1}}, {"family": None}, {"family": [1]}, {"version": ...}],
)
def test_arguments_of_a_stranger_are_refused_by_name(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "a"
    made = plan(find("regression"), {"L": [1.0, 2.0], "delta": 1.0, "eta": 1.0})
    arguments = {
        name: value
        for name, value in {**made.arguments, **change}.items()
        if value is not ...
    }
    path.mkdir()
    (path / SAID).write_bytes(
        Manifest(made.grid, (*made.model.columns, STATUS, MESSAGE), arguments).written(
            []
        )
    )
    with pytest.raises(ValueError, match=r"^(family|store) = .*: must be "):
        load_sweep(path)

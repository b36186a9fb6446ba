"""Stores as others see them: zarr and xarray read what this package writes, and write the same bytes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
import xarray
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec

from icl_theory.grids import store
from icl_theory.grids.codec import decode, encode
from icl_theory.grids.evaluate import evaluate
from icl_theory.grids.grid import Axis, Column, Grid, Values, assembled, blank
from tests.models import SQUARE, Squares, grid

ARGUMENTS = {"version": "1", "model": "squares", "seed": 0}


class Words:
    """Lengths of words, over an axis of them."""

    columns = (
        Column("length", "f8", "letters", "how long the word is", "ℓ", r"\ell"),
        Column("certain", "i1", "", "1 where it is"),
        Column("twice", "U20", "", "the word twice"),
    )

    def evaluate(self, points: Mapping[str, Any]) -> Values:
        values = blank(self.columns, len(points["word"]))
        values["length"][:] = np.char.str_len(points["word"]) * points["factor"]
        values["certain"][points["factor"] > 1.0] = 1
        values["twice"][:] = np.char.multiply(points["word"], 2)
        values["status"][:] = "done"
        return values


def words(chunk: int = 2) -> Grid:
    return Grid(
        (
            Axis("language", np.array(["en"]), "", "a fixed word", False),
            Axis("word", np.array(["relu", "söftmax", "linear"]), "", "a word", True, "w", r"\omega"),
            Axis("factor", np.array([1.0, np.inf, 3.0, 2.0, 0.1]), "", "a number", True),
            Axis("count", np.array([3]), "", "a fixed whole number", False),
            Axis("whole", np.array([2**60 + 1, 5]), "", "whole numbers", True),
        ),
        chunk,
    )


def kept(path: Path, made: Grid, model: Any) -> Values:
    with store.opened(path, made, model.columns, ARGUMENTS) as storage:
        return evaluate(made, model, storage=storage).values


CASES = [
    (words(2), Words()),
    (words(1), Words()),
    (words(11), Words()),
    (words(1000), Words()),
    (grid(), Squares()),
]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("made", "model"), CASES)
def test_xarray_opens_a_store_as_the_labelled_dataset(tmp_path: Path, made: Grid, model: Any) -> None:
    path = tmp_path / "a.zarr"
    wanted = assembled(made, model.columns, kept(path, made, model), {})
    for options in ({}, {"chunks": {}}, {"chunks": None}):
        found = xarray.open_zarr(path, **options)
        assert found.attrs["version"] == "1"
        assert set(found.coords) == set(wanted.coords)
        assert set(found.data_vars) == set(wanted.data_vars)
        xarray.testing.assert_equal(found.load(), wanted)
        for name in wanted.variables:
            assert found[name].attrs == wanted[name].attrs
            assert found[name].dtype.kind in (wanted[name].dtype.kind, "T", "O")
    assert found["z" if "z" in found else "language"].ndim == 0


def test_a_store_larger_than_memory_would_be_read_chunk_by_chunk(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    values = kept(path, words(11), Words())
    found = xarray.open_zarr(path, chunks={})
    assert found["length"].chunks == ((1, 1, 1), (5,), (2,))
    assert float(found["length"].sel(word="relu").isel(factor=[0, 2]).sum().compute()) == 2 * 4 * (1.0 + 3.0)
    assert found["length"].values.ravel().tolist() == values["length"].tolist()


def test_points_that_are_not_computed_yet_have_fill_values(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    with store.opened(path, grid(), SQUARE, ARGUMENTS) as storage:
        evaluate(grid(), Squares(interrupts=10.0), storage=storage)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = xarray.open_zarr(path).load()
    assert np.isnan(found["square"].values[10:]).all()
    assert (found["whole"].values[10:] == -1).all()
    assert (found["word"].values[10:] == "").all()
    assert found["square"].values[9].tolist() == [81.0, 243.0]


@pytest.mark.filterwarnings("error")
def test_zarr_finds_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    kept(path, words(), Words())
    group = zarr.open_group(path, mode="r", use_consolidated=False)
    assert group.metadata.zarr_format == 3
    members = dict(group.members(max_depth=None))
    assert {name for name in members if not name.startswith("_sweep")} == {
        "language", "word", "factor", "count", "whole", "length", "certain", "twice", "status", "message",
    }  # fmt: skip
    marks = members["_sweep/mark"]
    assert isinstance(marks, zarr.Array)
    assert marks.shape == (3, 5, 1, 5, 2)
    sizes = np.asarray(marks[..., 0])
    for place in np.ndindex(3, 5, 1):
        name = "c." + ".".join(map(str, place))
        for i, column in enumerate(("length", "certain", "twice", "status", "message")):
            file = path / column / name
            assert sizes[(*place, i)] == (file.stat().st_size if file.exists() else 0)
            assert file.exists() or column in ("certain", "message")


def test_consolidated_metadata_are_those_of_the_arrays(tmp_path: Path) -> None:
    path = tmp_path / "a.zarr"
    kept(path, words(), Words())
    whole, each = (zarr.open_group(path, mode="r", use_consolidated=use) for use in (True, False))
    assert sorted(name for name, _ in whole.arrays()) == sorted(name for name, _ in each.arrays())
    for name, array in whole.arrays():
        assert repr(array.metadata.to_dict()) == repr(each[name].metadata.to_dict())


@pytest.mark.parametrize(
    ("values", "fill"),
    [
        (np.array([[1.5, np.nan], [-0.0, np.inf]]), np.nan),
        (np.array([[2**62 + 1, -1], [0, -(2**63)]]), -1),
        (np.array([[1, -1], [0, 1]], dtype=np.int8), -1),
        (np.array([["sharp", ""], ["φlat", "\x00x"]]), ""),
        (np.array([["φlat", "φlat"], ["φlat", "φlat"]]), ""),
    ],
)
def test_a_chunk_has_the_bytes_that_zarr_writes(tmp_path: Path, values: Any, fill: Any) -> None:
    text = values.dtype.kind == "U"
    array = zarr.create_array(
        tmp_path / "b.zarr", shape=(2, 2), chunks=(2, 2), dtype=str if text else values.dtype, fill_value=fill,
        compressors=[Crc32cCodec()], **({} if text else {"serializer": BytesCodec(endian="little")}),
    )  # fmt: skip
    array[:] = values.astype(object) if text else values
    content = (tmp_path / "b.zarr" / "c" / "0" / "0").read_bytes()
    assert encode(values) == content
    assert decode(content, values.dtype, 4).tobytes() == values.tobytes()


@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (40, 1, 1), (1, 30, 1), (1, 1, 20), (40, 30, 1), (40, 1, 20), (1, 30, 20)]
)
@pytest.mark.parametrize("dtype", ["U5", "O"])
def test_texts_that_repeat_along_axes_have_the_bytes_of_the_whole(shape: tuple[int, ...], dtype: str) -> None:
    words = np.array(["sharp", "flat", "", "φ"], dtype=dtype)
    some = words[np.random.default_rng(0).integers(4, size=shape)]
    whole = np.broadcast_to(some, (40, 30, 20))
    assert encode(whole) == encode(np.array(whole))
    assert (decode(encode(whole), whole.dtype, whole.size) == whole.ravel()).all()


def test_the_checksum_is_that_of_the_literature() -> None:
    """RFC 3720, B.4: 32 bytes of zeros, and the usual check value of CRC-32C."""
    assert encode(np.zeros(4))[-4:] == bytes.fromhex("aa36918a")
    assert google_crc32c.value(b"123456789") == 0xE3069283

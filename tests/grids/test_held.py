"""Results in memory: the same bits as a plain array, at one value where points are alike."""

from __future__ import annotations

import numpy as np
import pytest

from icl_theory.grids import held as module
from icl_theory.grids.grid import Axis, Column, Grid, blank
from icl_theory.grids.held import Held

SHAPE = (5, 4, 6)
WORDS = Column("word", "U3", "", "a word")
AXES = tuple(
    Axis(name, np.arange(float(size)), "", "a number", True) for name, size in zip("xyz", SHAPE, strict=True)
)


@pytest.mark.parametrize("chunk", [1, 4, 6, 10, 24, 50, 120])
@pytest.mark.parametrize("left", [0, 1])
def test_columns_are_those_of_plain_arrays_however_they_vary(
    monkeypatch: pytest.MonkeyPatch, chunk: int, left: int
) -> None:
    monkeypatch.setattr(module, "SMALL", 0)
    rng, grid = np.random.default_rng(chunk), Grid(AXES, chunk)
    shapes = [tuple(n**kept for n, kept in zip(SHAPE, which, strict=True)) for which in np.ndindex(2, 2, 2)]
    columns = (*(Column(f"c{i}", "f8", "", "a number") for i in range(len(shapes))), WORDS)
    values = {f"c{i}": np.broadcast_to(rng.normal(size=shape), SHAPE) for i, shape in enumerate(shapes)}
    values["word"] = np.broadcast_to(rng.choice(["a", "bcd"], size=(5, 1, 6)), SHAPE)
    values["c0"] = np.where(np.arange(120).reshape(SHAPE) == 77, -0.0, 0.0)  # equal, but not to the bit
    held, chunks = Held(columns, grid), rng.permutation(grid.chunks)
    missing = chunks[: left * (grid.chunks // 2)]
    for each in chunks[len(missing) :].tolist():
        part = {name: value[grid.region(each)].ravel() for name, value in values.items()}
        held.place(each, blank(columns, part["c0"].size) | part)
    found = held.values()
    done = np.ones(grid.size, dtype=bool)
    for each in missing.tolist():
        done[grid.where(each)] = False
    for name, value in values.items():
        np.testing.assert_array_equal(found[name].ravel()[done], value.ravel()[done])
        assert found[name].shape == SHAPE
    assert (np.signbit(found["c0"]).ravel() == np.signbit(values["c0"]).ravel())[done].all()
    assert (found["status"] == "pending").ravel().tolist() == (~done).tolist()
    assert np.isnan(found["c7"].ravel()[~done]).all()
    if not missing.size and chunk >= 24:  # a tile has whole lines of y and z
        for i, shape in enumerate(shapes[1:], 1):
            assert [step == 0 for step in found[f"c{i}"].strides] == [n == 1 for n in shape]


def test_few_points_are_plain_arrays_that_can_be_written_to() -> None:
    held = Held((WORDS,), Grid(AXES, 120))
    held.place(0, blank((WORDS,), 120))
    found = held.values()
    assert {name: value.shape for name, value in found.items()} == dict.fromkeys(
        ("word", "status", "message"), (120,)
    )
    assert all(value.flags.writeable for value in found.values())

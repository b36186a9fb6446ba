"""Arrays of numbers from files and from short texts."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.families import NumberOrArray, Numbers, WordOrArray
from icl_theory.families.array_files import read_array
from icl_theory.families.parameters import parsed_array

MATRIX = np.array([[1.0, -0.25], [0.1, 1e-300]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one matrix in files of all formats."""
    np.save(tmp_path / "a.npy", MATRIX)
    np.savez(tmp_path / "a.npz", MATRIX)
    np.savetxt(tmp_path / "a.csv", MATRIX, delimiter=",")
    np.savetxt(tmp_path / "a.txt", MATRIX)
    return tmp_path


@pytest.mark.parametrize("ending", ["npy", "npz", "csv", "txt"])
def test_each_format_keeps_every_bit(folder: Path, ending: str) -> None:
    assert np.array_equal(read_array("start", str(folder / f"a.{ending}")), MATRIX)


def test_arrays_of_one_shape_are_stacked(tmp_path: Path) -> None:
    np.savez(tmp_path / "kq.npz", W_K=MATRIX, W_Q=2.0 * MATRIX)
    factors = read_array("start", str(tmp_path / "kq.npz"))
    assert np.array_equal(factors, [MATRIX, 2.0 * MATRIX])


def test_a_row_or_a_column_of_text_is_a_vector(tmp_path: Path) -> None:
    (tmp_path / "row.csv").write_text("1,2,3\n")
    (tmp_path / "column.txt").write_text("# mean\n1\n2\n3\n")
    for name in ("row.csv", "column.txt"):
        assert read_array("start", str(tmp_path / name)).tolist() == [1, 2, 3]
    # If only matrices are allowed, a row stays one.
    assert read_array("tasks", str(tmp_path / "row.csv"), (2,)).shape == (1, 3)


def _write_header(path: Path, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    facts = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, facts)
    path.write_bytes(header.getvalue())


def test_files_without_an_array_are_refused_in_one_line(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}]), allow_pickle=True)
    np.save(tmp_path / "nan.npy", [1.0, math.nan])
    np.save(tmp_path / "complex.npy", [1j, 2.0])
    np.save(tmp_path / "words.npy", ["1", "2"])
    np.save(tmp_path / "number.npy", 3.0)
    np.save(tmp_path / "empty.npy", np.zeros((0, 2)))
    np.savez(tmp_path / "shapes.npz", a=MATRIX, b=MATRIX[0])
    (tmp_path / "damaged.npy").write_text("no array")
    (tmp_path / "damaged.npz").write_text("no archive")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "words.csv").write_text("a,b\n1,2\n")
    (tmp_path / "ragged.csv").write_text("1,2\n3\n")
    (tmp_path / "folder.npy").mkdir()
    _write_header(tmp_path / "huge.npy", (10**7, 10**7))
    _write_header(tmp_path / "short.npy", (3, 3))
    reasons = {
        "objects.npy": "allow_pickle",
        "nan.npy": "finite",
        "complex.npy": "real numbers",
        "words.npy": "real numbers",
        "number.npy": "not with a single number",
        "empty.npy": "with entries",
        "shapes.npz": "arrays of one shape",
        "damaged.npy": "file of numbers",
        "damaged.npz": "file of numbers",
        "empty.csv": "it is empty",
        "words.csv": "could not convert",
        "ragged.csv": "file of numbers",
        "folder.npy": "file that exists",
        "none.npy": "file that exists",
        "huge.npy": "GB of memory",
        "short.npy": "file of numbers",
    }
    kind = Numbers()
    for name, reason in reasons.items():
        path = str(tmp_path / name)
        with pytest.raises(ValueError, match=r"start = ") as error:
            kind.check("start", path)
        text = str(error.value)
        assert reason in text, name
        assert "\n" not in text


def test_texts_are_vectors_and_matrices() -> None:
    assert parsed_array("start", "1,-2e3") == [1.0, -2000.0]
    assert parsed_array("start", "1,2;3,4") == [[1.0, 2.0], [3.0, 4.0]]
    assert parsed_array("start", "1,2;") == [[1.0, 2.0]]
    with pytest.raises(ValueError, match=r"start = '1,x': must be a file"):
        parsed_array("start", "1,x")


def test_kinds_tell_arrays_from_their_other_values() -> None:
    number = NumberOrArray(zero=True, maximum=10.0)
    assert number.check("start", 3) == 3.0
    assert number.check("start", [-20.0]) == (-20.0,)
    assert number.parse("start", "0.5") == 0.5
    with pytest.raises(ValueError, match=r"start = -1"):
        number.check("start", -1.0)
    with pytest.raises(ValueError, match=r"or a file of an array"):
        number.parse("start", "half")
    word = WordOrArray(words=("sphere",), ndim=(2,))
    assert word.check("start", "sphere") == "sphere"
    assert word.check("start", MATRIX) == tuple(map(tuple, MATRIX.tolist()))
    with pytest.raises(ValueError, match=r"array of 2 dimensions"):
        word.check("start", [1.0, 2.0])
    with pytest.raises(ValueError, match=r"must be one of sphere"):
        word.check("start", "shpere")


def test_a_saved_run_names_no_files(tmp_path: Path) -> None:
    """A run of a stranger must not make this program open a file."""
    problem = icl.LinearAttention(d=2, start=[0.1, 0.2])
    run = problem.simulate()
    path = tmp_path / "run.npz"
    run.save(path)
    arrays = dict(np.load(path))
    meta = str(arrays["meta"])
    assert '"start": [0.1, 0.2]' in meta
    arrays["meta"] = np.array(meta.replace('"start": [0.1, 0.2]', '"start": "a.npy"'))
    np.savez(path, **arrays)
    assert "not the name of a file" in icl.load(path).notes["family"]

"""Files of arrays, whose names may be given as the values of parameters.

A file may come from anyone: its size is checked before it is read, and pickled Python
objects in it are refused.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np

from icl_theory._validate import Array, argument_error, floats
from icl_theory.files import checked_path
from icl_theory.memory import check_fits

# Reading a text takes at most this many bytes of memory for each byte of its file: a
# generous estimate.
MEMORY_PER_CHARACTER = 16.0
# Reading an array takes at most this many bytes of memory for each number: for its
# value, and for the tuples that a problem keeps.
MEMORY_PER_NUMBER = 64.0
# An error shows this many characters of the reason at most, so that it stays short.
SHOWN_CHARACTERS = 120


def read_array(name: str, path: str, ndim: tuple[int, ...] = ()) -> Array:
    """Read a file with one array of real numbers.

    A ``.npz`` file holds one array, or several arrays of one shape, such as the factors
    of a matrix. Several arrays are stacked in the order in which they were saved. A
    text file holds a matrix, one row in each line. A single row or column is read as a
    vector, unless only matrices are allowed.

    Parameters
    ----------
    name : str
        The name of the parameter, for error messages.
    path : str
        The file, whose name ends in ``.npy``, ``.npz``, ``.csv`` or ``.txt``. A path
        without a folder names a file in the working directory.
    ndim : tuple of int
        The allowed numbers of dimensions; any number if the tuple is empty. This
        argument only decides how a text file is read. The dimensions of the returned
        array are not checked.

    Returns
    -------
    ndarray
        The numbers, as float64. They may be NaN or infinite.

    Raises
    ------
    ValueError
        The file does not exist or cannot be read, it does not hold real numbers, its
        arrays have different shapes, or the numbers would not fit into memory.
    """
    file = checked_path(path, name)
    # A pipe could make the program wait forever, so only an ordinary file is read.
    if not file.is_file():
        raise argument_error(name, path, "a file that exists")
    # Callers pass only names that end in one of the keys of `_READERS`.
    read = _READERS[file.suffix.lower()]
    try:
        array = read(name, file, ndim)
    except OSError as error:
        reason = error.strerror or str(error)
        raise argument_error(
            name, path, f"a file that can be read ({reason})"
        ) from None
    numbers = floats(array)
    # `floats` returns None if the entries are not real numbers.
    if numbers is None:
        raise argument_error(
            name, path, f"a file of real numbers (it has {array.dtype} entries)"
        )
    return numbers


def _read_npy(name: str, file: Path, ndim: tuple[int, ...]) -> Any:
    """Read an array as NumPy saves it."""
    del ndim  # an argument of all readers, which only `_read_text` uses
    _check_header(name, file)
    return _loaded(name, file)


def _check_header(name: str, file: Path) -> None:
    """Refuse a file whose header claims more numbers than fit into memory."""
    try:
        with open(file, "rb") as stream:
            version = np.lib.format.read_magic(stream)
            # Any other version of the format raises a KeyError here, which is reported
            # below.
            read_header = {
                (1, 0): np.lib.format.read_array_header_1_0,
                (2, 0): np.lib.format.read_array_header_2_0,
            }[version]
            shape, _fortran_order, _dtype = read_header(stream)
    except OSError:
        # `read_array` turns this error into one with a reason.
        raise
    # A damaged file can raise any exception.
    except Exception as error:
        raise _unreadable(name, file, error) from None
    # Multiply floats: a product of int64, as from np.prod, would overflow silently.
    size = 1.0
    for length in shape:
        size *= length
    check_fits(name, str(file), MEMORY_PER_NUMBER * size)


def _read_npz(name: str, file: Path, ndim: tuple[int, ...]) -> Any:
    """Read an archive of arrays of one shape."""
    del ndim  # an argument of all readers, which only `_read_text` uses
    try:
        with ZipFile(file) as archive:
            # The sizes of the arrays after decompression, as the archive claims.
            claimed_bytes = sum(member.file_size for member in archive.infolist())
    except BadZipFile as error:
        raise _unreadable(name, file, error) from None
    # Most numbers take eight bytes in the file.
    numbers = claimed_bytes / 8.0
    check_fits(name, str(file), MEMORY_PER_NUMBER * numbers)
    arrays = list(_loaded(name, file).values())
    shapes = [np.shape(array) for array in arrays]
    if len(set(shapes)) != 1:
        raise argument_error(
            name,
            str(file),
            f"a file with one array, or with arrays of one shape (it has {shapes})",
        )
    return arrays[0] if len(arrays) == 1 else np.stack(arrays)


def _loaded(name: str, file: Path) -> Any:
    """Return the array of a file, or the arrays of an archive by name."""
    try:
        loaded = np.load(file, allow_pickle=False)
        # The arrays of an archive are read only when they are looked up, so dict(),
        # which looks up all of them, is called before the file is closed.
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return dict(loaded)
        return loaded
    except OSError:
        # `read_array` turns this error into one with a reason.
        raise
    # A damaged file can raise any exception.
    except Exception as error:
        raise _unreadable(name, file, error) from None


def _read_text(name: str, file: Path, ndim: tuple[int, ...]) -> Any:
    """Read a matrix, or a vector from a single row or column if that is allowed."""
    check_fits(name, str(file), MEMORY_PER_CHARACTER * os.path.getsize(file))
    # For np.loadtxt, None stands for any white space.
    delimiter = "," if file.suffix.lower() == ".csv" else None
    try:
        with warnings.catch_warnings():
            # NumPy warns of an empty file; it is refused below.
            warnings.simplefilter("ignore")
            array = np.loadtxt(file, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise _unreadable(name, file, error) from None
    if not array.size:
        raise argument_error(name, str(file), "a file with numbers (it is empty)")
    # A single row or column is a vector unless only matrices are allowed.
    if 1 in array.shape and ndim != (2,):
        return array.ravel()
    return array


def _unreadable(name: str, file: Path, error: BaseException) -> ValueError:
    """Return the error for a file that NumPy cannot read."""
    reason = " ".join(str(error).split())[:SHOWN_CHARACTERS]
    return argument_error(name, str(file), f"a file of numbers ({reason})")


_READERS = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_text,
    ".txt": _read_text,
}

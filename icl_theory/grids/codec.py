"""Parts of an array as bytes and back, as Zarr writes them: numbers or UTF-8 texts, and their checksum at the end.

The codecs are three of Zarr's: ``bytes`` (little endian) or ``vlen-utf8``, then ``crc32c``. They stand here because
an array of Zarr takes a millisecond a part to write, which is long for parts of eight points.
"""

from __future__ import annotations

import math
import struct
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEAL = 4  # bytes of a checksum
TEXT = 4  # bytes of a length before each text, and of the number of texts
WORTH = 16  # texts that are put together quicker than one by one
NEEDED = "a store needs filelock, google-crc32c and numcodecs: pip install 'icl-theory[distributed]'"


def check_libraries() -> None:
    """Ask for the libraries of a store where one is missing."""
    for name in ("filelock", "google_crc32c", "numcodecs.vlen"):
        try:
            import_module(name)
        except ModuleNotFoundError:
            raise ValueError(NEEDED) from None


def encode(values: NDArray[Any]) -> bytes:
    """Return numbers or texts as the bytes of a chunk.

    Examples
    --------
    >>> import numpy as np
    >>> from icl_theory.grids.codec import decode, encode
    >>> encode(np.array([1, 2], dtype=np.int8)).hex()
    '0102529ff803'
    >>> decode(encode(np.array(["sharp", ""])), np.dtype("U6"), 2)
    array(['sharp', ''], dtype='<U6')
    """
    if values.dtype.kind in "UO":
        content = struct.pack("<I", values.size) + _encoded(values)
        return content + _checksum(content)
    numbers = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("<"))
    return b"".join((numbers.data, _checksum(numbers)))


def _encoded(texts: NDArray[Any]) -> bytes:
    """Return texts, each after its length: once what is a view of the same along an axis, and then repeated."""
    for axis, (stride, length) in enumerate(zip(texts.strides, texts.shape, strict=True)):
        if stride == 0 and length > 1 and math.prod(texts.shape[:axis]) * WORTH <= texts.size:
            return b"".join(_encoded(texts[place][:1]) * length for place in np.ndindex(texts.shape[:axis]))
    return bytes(_texts().encode(texts.ravel().astype(object)))[TEXT:]


def decode(content: bytes, dtype: np.dtype[Any], count: int) -> NDArray[Any]:
    """Return what the bytes of a chunk say, (count,); raise ValueError if they say something else."""
    body = memoryview(content)[:-SEAL]
    if not is_sealed(content):
        raise ValueError("its checksum does not fit")
    if dtype.kind in "UO":
        if len(body) < TEXT or struct.unpack("<I", body[:TEXT])[0] != count:
            raise ValueError(f"it does not hold {count} texts")
        try:
            return np.asarray(_texts().decode(body)).astype(dtype)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"its texts cannot be read ({error})") from None
    if len(body) != count * dtype.itemsize:
        raise ValueError(f"it does not hold {count} numbers")
    return np.frombuffer(body, dtype=dtype.newbyteorder("<")).astype(dtype)


def most_bytes(dtype: np.dtype[Any], count: int, longest: int) -> int:
    """Return how large a chunk can be, whose free texts have ``longest`` characters at most."""
    if dtype.kind in "UO":
        characters = dtype.itemsize // 4 if dtype.kind == "U" else longest
        return TEXT + count * (TEXT + 4 * characters) + SEAL
    return count * dtype.itemsize + SEAL


def is_sealed(content: bytes) -> bool:
    """Whether the last bytes are the checksum of the others."""
    return len(content) >= SEAL and content[-SEAL:] == _checksum(content[:-SEAL])


def is_blank(values: NDArray[Any]) -> bool:
    """Whether no point has a value: such a chunk has no file."""
    if values.dtype.kind == "f":
        return bool(np.isnan(values).all())
    return bool((values == ("" if values.dtype.kind in "UO" else -1)).all())


def _checksum(content: bytes | NDArray[Any]) -> bytes:
    """CRC-32C, little endian."""
    import google_crc32c

    return struct.pack("<I", google_crc32c.value(content))


def _texts() -> Any:
    from numcodecs.vlen import VLenUTF8

    return VLenUTF8()

"""Files that are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from icl_theory._validate import argument_error


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Provide a temporary file that replaces the file at ``path`` in the end.

    The with block gets the path of the temporary file and writes to it. If the block
    raises an error, the temporary file is removed, and the file at ``path`` stays as it
    is. The temporary file has the ending of ``path``, because libraries choose the
    format by the ending. The new file has the permissions of the old one. If ``path``
    is a link, the file to which it points is replaced. A terminal, a pipe or
    ``/dev/null`` is not replaced: the contents of the temporary file are written to it.

    Raises
    ------
    ValueError
        A file cannot have this path, or it is the path of a disk or a socket.
    OSError
        The file cannot be written. The error names ``path``, and not the temporary
        file.
    """
    target = checked_path(path)
    # The mode says what kind of file there is, and its permissions. It is 0 if there is
    # no file yet. For 0 the functions of `stat` below return False.
    mode = os.stat(target).st_mode if os.path.exists(target) else 0
    # A terminal or /dev/null is a character device (CHR), and a pipe is a FIFO.
    is_stream = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
    # A disk is a block device (BLK).
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise argument_error("path", str(target), "a file, a pipe or a terminal")
    final = Path(os.path.realpath(target))
    # A file can be replaced only by one on the same disk, so the temporary file is made
    # in the folder of the final one.
    folder = Path(tempfile.gettempdir()) if is_stream else final.parent
    # Random bytes make the name unique, so that two processes do not share it.
    temporary = folder / f".{target.stem}.{os.urandom(6).hex()}{target.suffix}"
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        if is_stream:
            target.write_bytes(temporary.read_bytes())
            return
        _put_in_place(temporary, final, mode)
    except Exception as error:
        os_error = _causing_os_error(error)
        # Report the user's path. The system names the temporary file, or no file at all
        # if the disk is full. An error that names any other file is passed on.
        if os_error is None or os_error.filename not in (None, str(temporary)):
            raise
        raise OSError(os_error.errno, os_error.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _put_in_place(temporary: Path, final: Path, mode: int) -> None:
    """Move a temporary file to its final path, with the permissions of the old file.

    ``mode`` is the file mode of the old file, or 0 if there is no old file.
    """
    # Write the contents to the disk before the old file is replaced. Otherwise a crash
    # of the system might leave an empty file.
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    if mode != 0:
        temporary.chmod(stat.S_IMODE(mode))
    temporary.replace(final)


def _causing_os_error(error: BaseException) -> OSError | None:
    """Return the OSError of the system that led to an error, or None.

    A library that writes a file may turn an OSError into an error of its own. Python
    then keeps the OSError as the context of this error.
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        # `raise ... from None` and `raise ... from other` suppress the context. Whoever
        # raises an error in this way has chosen what it reports. So the caller passes
        # the error on as it is, and `__cause__` is not followed either.
        cause = None if cause.__suppress_context__ else cause.__context__
    # An OSError that a library makes itself has no error number (errno) of the system.
    if cause is None or cause.errno is None:
        return None
    return cause


def checked_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """Return ``path`` if a file can have this path; otherwise refuse it."""
    if isinstance(path, str | os.PathLike) and str(path) and "\0" not in str(path):
        try:
            # The system may be unable to encode some characters.
            os.fsencode(path)
        except UnicodeEncodeError:
            raise argument_error(name, path, "a path") from None
        return Path(path)
    raise argument_error(name, path, "a path")

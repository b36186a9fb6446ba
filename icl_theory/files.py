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
    """Give a temporary path that takes the place of ``path`` if the block succeeds.

    If the block fails, the temporary file is removed. Its name keeps the ending, by
    which libraries choose the format. The new file has the permissions of the old one.
    At a link, the file at its end is replaced. A terminal, a pipe or ``/dev/null`` is
    written to as it is; a disk or a socket is a ValueError. An OSError names ``path``.
    """
    target = checked_path(path)
    mode = os.stat(target).st_mode if os.path.exists(target) else 0
    is_stream = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise argument_error("path", str(target), "a file, a pipe or a terminal")
    final = Path(os.path.realpath(target))
    folder = Path(tempfile.gettempdir()) if is_stream else final.parent
    temporary = folder / f".{target.stem}.{os.urandom(6).hex()}{target.suffix}"
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        if is_stream:
            target.write_bytes(temporary.read_bytes())
            return
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        if mode:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(final)
    except Exception as error:
        refusal = _refusal_of_the_system(error)
        # Report the user's path. The system names the temporary file, or no file at all
        # if the disk is full.
        if refusal is None or refusal.filename not in (None, str(temporary)):
            raise
        raise OSError(refusal.errno, refusal.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)


def _refusal_of_the_system(error: BaseException) -> OSError | None:
    """Return the OSError with a number over which a library may have stumbled."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = None if cause.__suppress_context__ else cause.__context__
    return None if cause is None or cause.errno is None else cause


def checked_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """Return ``path`` if a file can have it."""
    if isinstance(path, str | os.PathLike) and str(path) and "\0" not in str(path):
        with contextlib.suppress(UnicodeEncodeError):
            os.fsencode(path)
            return Path(path)
    raise argument_error(name, path, "a path")

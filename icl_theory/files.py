"""Files that are written whole or not at all."""

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
    """Give a temporary path that takes the place of ``path`` if the block succeeds, and is removed if not.

    The temporary name keeps the ending, by which libraries choose the format; the new
    file has the permissions of the old one. The file at the end of links is replaced. A
    terminal, a pipe or ``/dev/null`` is written to as it is; a disk or a socket is a
    ValueError. An OSError names ``path``.
    """
    target = checked_path(path)
    mode = os.stat(target).st_mode if os.path.exists(target) else 0
    flows = stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise argument_error("path", str(target), "a file, a pipe or a terminal")
    final = Path(os.path.realpath(target))
    folder = Path(tempfile.gettempdir()) if flows else final.parent
    temporary = folder / f".{target.stem}.{os.urandom(6).hex()}{target.suffix}"
    try:
        temporary.touch(exist_ok=False)
        yield temporary
        if flows:
            target.write_bytes(temporary.read_bytes())
            return
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        if mode:
            temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(final)
    except Exception as error:
        first: BaseException | None = (
            error  # what the system refused, before a library stumbled over it
        )
        while not (first is None or isinstance(first, OSError)):
            first = None if first.__suppress_context__ else first.__context__
        # report the user's path: the system names the temporary file, or no file if the
        # disk is full
        if (
            first is None
            or first.errno is None
            or first.filename not in (None, str(temporary))
        ):
            raise
        raise OSError(first.errno, first.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)


def checked_path(path: str | os.PathLike[str], name: str = "path") -> Path:
    """Return a path that can be one of a file."""
    if isinstance(path, str | os.PathLike) and str(path) and "\0" not in str(path):
        with contextlib.suppress(UnicodeEncodeError):
            os.fsencode(path)
            return Path(path)
    raise argument_error(name, path, "a path")

"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from icl_theory._validate import refuse


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path that takes the place of ``path`` if the block succeeds, and is removed if not.

    A crash, a full disk or an interrupt therefore leaves an existing file as it was. The temporary name keeps the
    ending, by which libraries choose the format. The file at the end of a link is replaced, and the link stays; the
    new file has the permissions of the old one. A terminal, a pipe or ``/dev/null`` is written to as it is.

    Raises
    ------
    ValueError
        The path is a disk or a socket.
    OSError
        The file cannot be written; it is named.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from icl_theory.files import replacing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "a.txt"
    ...     with replacing(path) as temporary:
    ...         _ = temporary.write_text("whole")
    ...     path.read_text()
    'whole'
    """
    target = checked_path(path)
    mode = _mode(target)
    flows = mode is not None and (stat.S_ISCHR(mode) or stat.S_ISFIFO(mode))
    if mode is not None and (stat.S_ISBLK(mode) or stat.S_ISSOCK(mode)):
        raise refuse("path", str(target), "a file, a pipe or a terminal")
    final = Path(os.path.realpath(target))
    folder = Path(tempfile.gettempdir()) if flows else final.parent
    temporary = folder / f".{target.stem}.{os.urandom(6).hex()}{target.suffix}"
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # a name that nobody else has
        yield temporary
        if flows:
            with open(temporary, "rb") as written, open(target, "wb") as through:
                shutil.copyfileobj(written, through)
            return
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        if mode is not None and stat.S_ISREG(mode):
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, final)
    except Exception as error:
        # nobody has heard of the temporary file, and a full disk names none
        first = _refusal(error)
        if first is None or first.errno is None or first.filename not in (None, str(temporary)):
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
    raise refuse(name, path, "a path")


def _refusal(error: BaseException | None) -> OSError | None:
    """Return what the system refused, also where a library stumbled while it cleared up after that."""
    while error is not None and not isinstance(error, OSError):
        error = None if error.__suppress_context__ else error.__context__
    return error


def _mode(path: Path) -> int | None:
    """Return type and permissions of what is at a path, or at the end of its links; None if nothing is."""
    try:
        return os.stat(path).st_mode
    except OSError:
        return None

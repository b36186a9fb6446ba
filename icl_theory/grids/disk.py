"""Files of a store: read within bounds, written whole or not at all, and never through a link.

A store may come from a stranger. What is read here is a regular file of bounded size; what is written stays within
the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path

from icl_theory._validate import refuse

LOCK = "lock"
PARTIAL = "partial"
RUN = "run"
_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class Folder:
    """The folder of a store.

    Parameters
    ----------
    path : Path
        As the user names it.
    private : str
        Folder in it where the lock is, and where a file is before it is whole.
    run : str, optional
        Word of the run for which a worker writes here, see `locked`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> from icl_theory.grids.disk import Folder
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = Folder(pathlib.Path(name), "private")
    ...     with folder.locked():
    ...         folder.write("part/c.0", b"whole")
    ...     folder.read("part/c.0", 100), folder.read("part/c.1", 100)
    (b'whole', None)
    """

    def __init__(self, path: Path, private: str, run: str | None = None) -> None:
        self.path = path
        self.private = private
        self._run = run
        self._partial = path / private / (PARTIAL if run is None else f"{PARTIAL}.{uuid.uuid4().hex}")
        self._known: set[Path] = set()  # folders that are no links

    def read(self, name: str, most: int) -> bytes | None:
        """Return the content of a file, None if there is none; refuse one of more than ``most`` bytes."""
        path = self.path / name
        self._check(path.parent)
        try:
            handle = os.open(path, _FLAGS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.EISDIR):
                raise self.damaged(name, "it is no plain file") from None
            raise
        with open(handle, "rb") as file:
            found = os.fstat(handle)
            if not stat.S_ISREG(found.st_mode):
                raise self.damaged(name, "it is no plain file")
            if found.st_size > most:
                raise self.damaged(name, f"it has {found.st_size} bytes, and {most} at most are right")
            return file.read(found.st_size)

    def size(self, name: str) -> int:
        """Return how many bytes a file has, 0 if there is none."""
        try:
            return os.lstat(self.path / name).st_size
        except (FileNotFoundError, NotADirectoryError):
            return 0

    def write(self, name: str, content: bytes, *, durable: bool = False) -> None:
        """Put a file in its place whole; ``durable`` waits until the disk has it."""
        path = self.path / name
        self._make(path.parent)
        with open(self._partial, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(self._partial, path)

    def remove(self, name: str) -> None:
        """Remove a file if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path / name)

    def names(self, folder: str = "") -> list[str]:
        """Return what is in a folder, nothing if there is none."""
        self._check(self.path / folder)
        try:
            return sorted(os.listdir(self.path / folder))
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise self.damaged(folder, "it is no folder") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[str]:
        """Keep other runs out; a run that was killed keeps nobody out, nor do its workers.

        Yields a word that is in the folder for as long as the run has it.
        """
        import filelock

        self._make(self.path / self.private)
        lock, run = filelock.FileLock(self.path / self.private / LOCK, timeout=0), uuid.uuid4().hex
        try:
            lock.acquire()
        except filelock.Timeout:
            raise refuse("store", str(self.path), "used by one run at a time, and another has it open") from None
        try:
            self._clear()
            with contextlib.suppress(OSError):  # workers that do not find it send what they have computed
                self.write(f"{self.private}/{RUN}", run.encode())
            yield run
        finally:
            with contextlib.suppress(OSError):
                self._clear()
            lock.release()

    def is_of_run(self) -> bool:
        """Whether the run for which this worker writes has the folder: not if the worker sees another folder."""
        with contextlib.suppress(OSError, ValueError):
            return self._run is not None and self.read(f"{self.private}/{RUN}", 100) == self._run.encode()
        return False

    def is_strange(self) -> bool:
        """Whether the folder has files that are neither the lock nor half of a first one."""
        private = self.path / self.private
        files = (Path(where) / name for where, _, found in os.walk(self.path) for name in found)
        return any(file.parent != private or not _is_passing(file.name, LOCK) for file in files)

    def _clear(self) -> None:
        """Remove what a run needs only while it has the folder."""
        for name in self.names(self.private):
            if _is_passing(name):
                self.remove(f"{self.private}/{name}")

    def damaged(self, name: str, why: str) -> ValueError:
        """Return the error for a file that is not what was written."""
        return refuse("store", str(self.path), f"unchanged since it was written; its file {name} is not: {why}")

    def _make(self, folder: Path) -> None:
        if folder not in self._known:
            self._check(folder)
            folder.mkdir(parents=True, exist_ok=True)
            self._check(folder)

    def _check(self, folder: Path) -> None:
        """Refuse folders of the store that are links to elsewhere."""
        if folder in self._known or folder == self.path:
            return
        self._check(folder.parent)
        try:
            found = os.lstat(folder)
        except (FileNotFoundError, NotADirectoryError):
            return
        name = folder.relative_to(self.path).as_posix()
        if stat.S_ISLNK(found.st_mode):
            raise self.damaged(name, "it is a link")
        self._known.add(folder)


def _is_passing(name: str, *others: str) -> bool:
    return name in (RUN, *others) or name.startswith(PARTIAL)


@contextlib.contextmanager
def plain_errors(path: Path) -> Iterator[None]:
    """Say what the system refused and where."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ChildProcessError) or getattr(error, "icl_theory_said", False):
            raise
        reason = os.strerror(error.errno) if error.errno else str(error)
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "; what it had is safe, and the same call goes on from it" if full else ""
        said = OSError(f"store {str(path)!r} cannot be used: {reason}{hint}")
        said.errno, said.icl_theory_said = error.errno, True  # type: ignore[attr-defined]
        raise said from None

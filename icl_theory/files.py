"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place if the block succeeds, and is removed if not.

    A crash, a full disk or an interrupt therefore leaves an existing file as it was. The temporary name keeps the
    ending, by which libraries choose the format.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}.{threading.get_ident()}{target.suffix}")
    try:
        yield temporary
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except OSError as error:
        # nobody has heard of the temporary one, and a full disk names none
        if error.errno is None or error.filename not in (None, str(temporary)):
            raise
        raise OSError(error.errno, error.strerror, str(target)) from None
    finally:
        temporary.unlink(missing_ok=True)

"""What a computation needs, compared with what is free, before any of it is allocated."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

from icl_theory._validate import argument_error

SMALL = 2**26  # bytes that are always there
CGROUP = Path("/sys/fs/cgroup")


def free() -> float:
    """Return how many bytes are left on the machine, to its control group, and up to the limit of this process."""
    found = [math.inf]
    with contextlib.suppress(OSError, ValueError, IndexError):
        found.append(
            1024.0
            * int(
                Path("/proc/meminfo").read_text().split("MemAvailable:")[1].split()[0]
            )
        )
    with contextlib.suppress(OSError, ValueError):
        most, used = (
            int((CGROUP / f"memory.{name}").read_text()) for name in ("max", "current")
        )
        found.append(most - used)
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        page = resource.getpagesize()
        if limit != resource.RLIM_INFINITY:
            found.append(
                limit - page * int(Path("/proc/self/statm").read_text().split()[0])
            )
    return max(min(found), 0.0)


def blocks(rows: int, columns: int, numbers: int) -> list[slice]:
    """Split an array into blocks of rows with up to so many numbers each, a row at least."""
    size = max(1, numbers // columns)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def check_fits(name: str, value: object, needed: float) -> None:
    """Refuse an argument for which more bytes would be allocated at once than are free, with both numbers."""
    if needed > SMALL and needed > (there := free()):
        said = f"smaller: this takes {needed / 1e9:.3g} GB of memory, and {there / 1e9:.3g} GB are free"
        raise argument_error(name, value, said)

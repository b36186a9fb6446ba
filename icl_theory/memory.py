"""What a computation needs, compared with what is free, before any of it is allocated."""

from __future__ import annotations

import contextlib
import ctypes
import math
from pathlib import Path

from icl_theory._validate import refuse

SMALL = 2**26  # bytes that are always there
CGROUP = Path("/sys/fs/cgroup")


def free() -> float:
    """Return how many bytes this process may still allocate, infinity where the system does not say.

    The least of what is available on the machine, to its control group, and up to the limit of its address space.
    """
    found = math.inf
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        found = 1024.0 * int(lines["MemAvailable"].split()[0])
    with contextlib.suppress(OSError, ValueError):
        most, used = ((CGROUP / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        found = min(found, float(most.replace("max", "inf")) - float(used))
    with contextlib.suppress(ImportError, OSError, ValueError, IndexError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found = min(found, float(limit - pages * resource.getpagesize()))
    return max(found, 0.0)


def check_fits(name: str, value: object, needed: float) -> None:
    """Refuse an argument for which more bytes would be allocated at once than are free, with both numbers."""
    if needed > SMALL and needed > (there := free()):
        raise refuse(name, value, f"smaller: this takes {size(needed)} of memory, and {size(there)} are free")


def size(count: float) -> str:
    """Return a number of bytes in a unit in which it is short: 512 bytes, 3.2 GB, 1e+18 TB."""
    if count < 1e3:
        return f"{count:.0f} bytes"
    power = min(int(math.log10(count * 1.0005) / 3), 4)
    return f"{count / 1e3**power:.3g} {('kB', 'MB', 'GB', 'TB')[power - 1]}"


def keep_freed(most: int) -> None:
    """Have glibc keep freed arrays of up to ``most`` bytes for the next ones, which Dask has its workers give back.

    To ask the system for them again, page by page, would take longer than what is computed in them.
    """
    trim_threshold, mmap_threshold = -1, -3  # options of malloc.h
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(mmap_threshold, most)
        ctypes.CDLL(None).mallopt(trim_threshold, 2 * most)

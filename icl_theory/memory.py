"""The memory that a computation needs, compared with the memory that is free.

`check_fits` is called before anything large is allocated.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np

from icl_theory._validate import argument_error

SMALL = 2**26  # bytes, which are taken to be free always
CGROUP = Path("/sys/fs/cgroup")


def free() -> float:
    """Return the free memory in bytes.

    It is the least of the free memory of the machine, of this process's control group,
    and of the limit of this process, as far as the system tells them.
    """
    limits = [math.inf]
    with contextlib.suppress(OSError, ValueError, IndexError):
        limits.append(_free_on_machine())
    with contextlib.suppress(OSError, ValueError):
        limits.append(_free_in_control_group())
    with contextlib.suppress(ImportError, OSError, ValueError):
        limits.append(_free_in_process())
    return max(min(limits), 0.0)


def _free_on_machine() -> float:
    """Return the bytes that Linux says are available."""
    text = Path("/proc/meminfo").read_text()
    kilobytes = int(text.split("MemAvailable:")[1].split()[0])
    return 1024.0 * kilobytes


def _free_in_control_group() -> int:
    """Return the bytes that are free in the control group of this process."""
    # Without a limit the file has the word "max", which int() refuses.
    limit = int((CGROUP / "memory.max").read_text())
    used = int((CGROUP / "memory.current").read_text())
    return limit - used


def _free_in_process() -> float:
    """Return the bytes of address space that this process may still take."""
    import resource  # which Windows does not have

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY:
        return math.inf
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * resource.getpagesize()


def blocks(rows: int, columns: int, numbers: int) -> list[slice]:
    """Split an array into blocks of rows of up to ``numbers`` each, at least a row."""
    size = max(1, numbers // columns)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def keep_freed() -> None:
    """Let the C library keep freed memory for later arrays.

    Otherwise it returns arrays of 128 kB or more to the system, and to get them again
    takes as long as the arithmetic in a loop that makes many of them.
    """
    # glibc learns from the size of an array that is freed: it then keeps arrays of up
    # to this size, which is 16 MiB.
    np.empty(2**21)


def check_fits(name: str, value: object, needed: float) -> None:
    """Refuse an argument for which more memory would be allocated than is free.

    ``needed`` is in bytes; the error states both numbers.
    """
    if needed <= SMALL:
        return
    available = free()
    if needed > available:
        raise argument_error(
            name,
            value,
            f"smaller: this takes {needed / 1e9:.3g} GB of memory, and"
            f" {available / 1e9:.3g} GB are free",
        )

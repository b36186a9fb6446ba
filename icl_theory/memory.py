"""The memory that a computation needs, compared with the memory that is free.

`check_fits` is called before anything large is allocated.
"""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import numpy as np

from icl_theory._validate import argument_error

# Up to this many bytes, 64 MiB, are assumed to be free without asking the system.
# Larger arrays take so long to compute that asking takes no time in comparison.
SMALL = 2**26
# The folder in which Linux states the limits of the control group of this process.
CGROUP = Path("/sys/fs/cgroup")
# glibc keeps freed arrays of up to this many bytes, 16 MiB, after `keep_freed`.
KEPT_BYTES = 2**24


def free() -> float:
    """Return the free memory in bytes.

    It is the smallest of three numbers: the memory that is free on the machine, the
    memory that the control group of this process may still take, and the address space
    that this process may still take. A number that the system does not report is left
    out. If it reports none, the result is infinite.
    """
    # The suppressed errors occur on systems without these files or limits. Without any
    # limit, the infinite one remains.
    limits = [math.inf]
    with contextlib.suppress(OSError, ValueError, IndexError):
        limits.append(_free_on_machine())
    with contextlib.suppress(OSError, ValueError):
        limits.append(_free_in_control_group())
    with contextlib.suppress(ImportError, OSError, ValueError):
        limits.append(_free_in_process())
    # A process may already use more than a limit that was lowered.
    return max(min(limits), 0.0)


def _free_on_machine() -> float:
    """Return the bytes that are available on the machine, as Linux estimates them."""
    # A line is "MemAvailable:  123456 kB", and the kB of Linux has 1024 bytes.
    _, _, after_label = Path("/proc/meminfo").read_text().partition("MemAvailable:")
    kilobytes = int(after_label.split()[0])
    return 1024.0 * kilobytes


def _free_in_control_group() -> int:
    """Return the bytes that are free in the control group of this process."""
    # If there is no limit, the file has the word "max", which int() refuses.
    limit = int((CGROUP / "memory.max").read_text())
    used = int((CGROUP / "memory.current").read_text())
    return limit - used


def _free_in_process() -> float:
    """Return the bytes of address space that this process may still take."""
    import resource  # which Windows does not have

    # The soft limit is in force. A process may raise it up to the hard limit.
    limit, _hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return math.inf
    # The first number of statm is the size of the address space, in pages.
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return limit - pages * resource.getpagesize()


def blocks(rows: int, columns: int, numbers: int) -> list[slice]:
    """Split the rows of an array into blocks of up to ``numbers`` numbers each.

    A block has at least one row, even if a row has more than ``numbers`` numbers.
    """
    block_rows = max(1, numbers // columns)
    starts = range(0, rows, block_rows)
    return [slice(start, min(start + block_rows, rows)) for start in starts]


def keep_freed() -> None:
    """Let the C library keep freed memory for later arrays.

    By default it returns freed arrays of 128 kB or more to the system. In a loop that
    makes many such arrays, allocating them again takes as long as the arithmetic.
    """
    # glibc learns from the size of an array that is freed: from then on it keeps freed
    # arrays of up to this size. So make one array, which is freed at once because
    # nothing refers to it. A float64 number has 8 bytes.
    np.empty(KEPT_BYTES // 8)


def check_fits(name: str, value: object, needed: float) -> None:
    """Refuse an argument for which more memory would be allocated than is free.

    Parameters
    ----------
    name, value : str, object
        The argument, which is too large if the memory does not suffice.
    needed : float
        Bytes that would be allocated.
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

"""How far a run may be from the iterates, as seen from its shadow."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import NamedTuple

NOTED, NEAR = 4096, 2  # comparisons with the shadow that are kept, and on either side of a step those that count


class _Note(NamedTuple):
    """When the shadow was looked at, the estimated error of the scores, and how many steps the two were apart."""

    t: float
    error: float
    late: float


class Notes:
    """Comparisons of a run with its shadow.

    Attributes
    ----------
    worst : float
        Estimated error of the scores, at worst.
    """

    def __init__(self) -> None:
        self.worst = 0.0
        self._noted: deque[_Note] = deque([_Note(0.0, 0.0, 0.0)], maxlen=NOTED)

    def add(self, t: float, error: float, apart: float, pace: float) -> None:
        """Note an error at a time, and how late the run may be: the distance over the pace of the faster one."""
        while self._noted and self._noted[-1].t >= t:
            self._noted.pop()
        late = max(self._noted[-1].late if self._noted else 0.0, apart / pace if pace > 0.0 else 0.0)
        self._noted.append(_Note(t, error, late))
        self.worst = max(self.worst, error)

    def at(self, t: int) -> tuple[float, float]:
        """Estimated error of the scores at a time, and steps by which the run may be late.

        The shadow is looked at now and then, and either side may be the worse one; behind a drop both are at rest,
        and agree again. A run that was late before a drop is so behind it.
        """
        i = bisect_left([note.t for note in self._noted], t)
        near = [*self._noted][max(i - NEAR, 0) : i + NEAR]
        return max(note.error for note in near), near[min(NEAR, i) - 1 if i else 0].late

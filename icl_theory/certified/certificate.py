"""What is proved of a run: intervals, and what each rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import refuse


class Steps(NamedTuple):
    """The first step that may be meant, and the last one."""

    low: int
    high: int


@dataclass(frozen=True, eq=False)
class Proved:
    """A quantity, the interval that is proved to hold it, and what the proof rests on.

    Attributes
    ----------
    name : str
        What is enclosed.
    ball : flint.arb, ndarray of flint.arb, or Steps
        All numbers that it may be; of a number of steps the first and the last, ``low`` and ``high``.
    basis : str
        What the proof rests on, and which numbers it takes as exact.
    double : float, int, ndarray or None
        What the package computed without proof.
    stated : float
        By how much the package says that ``double`` may be off.
    """

    name: str
    ball: Any
    basis: str
    double: Any = None
    stated: float = 0.0

    @property
    def error(self) -> float | None:
        """Proved bound on the error of ``double``, the largest of an array; None without one."""
        if self.double is None:
            return None
        if isinstance(self.ball, Steps):
            return float(max(self.ball.high - self.double, self.double - self.ball.low))
        apart = np.ravel(np.asarray(self.ball, dtype=object) - self.double)
        return max(float(abs(each).upper()) for each in apart) * (1.0 + 2.0**-50)

    @property
    def interval(self) -> str:
        """The interval in decimal digits, rounded outward."""
        if isinstance(self.ball, Steps):
            low, high = self.ball
            return f"{low:,}" if low == high else f"{low:,} to {high:,}"
        if np.ndim(self.ball):
            return f"{self.ball.size} entries to within {max(float(each.rad()) for each in self.ball.flat):.1e}"
        return str(self.ball.str(30))

    def __str__(self) -> str:
        off, error = "", self.error
        if error is not None and isinstance(self.ball, Steps):
            wrong = f" and that it may be off by {self.stated:g}" if error <= self.stated else ", which is wrong"
            inside = self.ball.low <= self.double <= self.ball.high
            off = f" (the run says {self.double:,}{'' if inside else wrong})"
        elif error is not None:
            off = f" (the double is off by at most {error:.1e})"
        return f"{self.name}: proved, {self.interval}{off}\n    rests on {self.basis}"


class Certificate(tuple[Proved, ...]):
    """What is proved of a run; `str` has a line or two for each quantity, and entries are found by their names."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def named(self, name: str) -> Proved:
        """Return the quantity of a name."""
        for each in self:
            if each.name == name:
                return each
        raise refuse("name", name, "one of " + ", ".join(each.name for each in self))

    def to_dict(self) -> list[dict[str, str | None]]:
        """Return names, intervals and what they rest on as text."""
        return [{"name": each.name, "proved": each.interval, "rests on": each.basis} for each in self]

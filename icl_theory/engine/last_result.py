"""The last result of a slow function, kept because a run needs each result twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from icl_theory._validate import Array

Result = TypeVar("Result")


class LastResult(Generic[Result]):
    """Remembers the last result of a function of an array.

    A run asks a risk twice at each saved step: for the loss, and for the observations.
    All calls of ``of`` must pass the same function, and arrays of one shape and type,
    because only the bytes of the arrays are compared. A caller must not change a
    result, because a later call may return it again.
    """

    def __init__(self) -> None:
        self._last: tuple[bytes, Result] | None = None

    def of(self, function: Callable[[Array], Result], array: Array) -> Result:
        """Return ``function(array)``; compute it unless the last array was equal."""
        key = array.tobytes()
        # The attribute is read once, because another thread may replace it.
        last = self._last
        if last is not None and last[0] == key:
            return last[1]
        result = function(array)
        self._last = (key, result)
        return result

"""How numbers are written for people everywhere, and tables of them in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def number(value: Any, digits: int = 4) -> str:
    """Return a value as text: integers in full, other numbers to some digits, missing ones as nothing.

    Examples
    --------
    >>> from icl_theory.results.numbers import number
    >>> [number(value) for value in (1187646524, 0.123456, float("nan"), None, float("inf"), True, "flat")]
    ['1,187,646,524', '0.1235', '', '', '∞', '✓', 'flat']
    """
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        finite = math.isfinite(value)
        return (
            f"{value:.{digits}g}"
            if finite
            else ""
            if value != value
            else "∞"
            if value > 0
            else "−∞"
        )
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return "" if value is None or str(value) == "<NA>" or value != value else str(value)


def told_apart(values: Sequence[Any]) -> list[str]:
    """Return values as text, with at least four digits and as many as it takes to tell different values apart."""
    for digits in range(4, 18):  # 17 digits tell any two doubles apart
        words = [number(value, digits) for value in values]
        if len(set(words)) == len(set(values)):
            break
    return words


def goes_right(values: Sequence[Any]) -> bool:
    """Return whether a column is right-aligned: it has numbers and no words."""
    given = [value for value in values if number(value)]
    return bool(given) and not any(isinstance(value, str | bool) for value in given)


def markdown(
    columns: Mapping[str, Sequence[Any]] | Iterable[tuple[str, Sequence[Any]]],
) -> str:
    """Return a table in Markdown from its columns: a mapping by heading, or pairs of heading and values."""
    headings, values = zip(
        *(columns.items() if isinstance(columns, Mapping) else columns), strict=True
    )

    def line(cells: Iterable[Any]) -> str:
        return (
            "| " + " | ".join(number(cell).replace("|", r"\|") for cell in cells) + " |"
        )

    rule = (
        "|"
        + "|".join("--:" if goes_right(column) else "---" for column in values)
        + "|"
    )
    return "\n".join([line(headings), rule, *map(line, zip(*values, strict=True))])

"""The one way in which numbers are written for people, and tables of them in Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

MOST_DIGITS = 17  # tell any two numbers in double precision apart


def number(value: Any, digits: int = 4) -> str:
    """Return a value as it is shown: integers in full, other numbers to some digits, what is missing as nothing.

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
        return f"{value:.{digits}g}" if finite else "" if value != value else "∞" if value > 0 else "−∞"
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    return "" if value is None or str(value) == "<NA>" or value != value else str(value)


def told_apart(values: Sequence[Any]) -> list[str]:
    """Return values as they are shown, with as many digits, four at least, as tell different ones apart.

    Examples
    --------
    >>> from icl_theory.results.numbers import told_apart
    >>> told_apart([0.1, 0.100001]), told_apart([1 / 3, 0.5])
    (['0.1', '0.100001'], ['0.3333', '0.5'])
    """
    for digits in range(4, MOST_DIGITS + 1):
        words = [number(value, digits) for value in values]
        if len(set(words)) == len(set(values)):
            break
    return words


def goes_right(values: Sequence[Any]) -> bool:
    """Return whether a column is set to the right: it holds numbers, and no words."""
    shown = [value for value in values if number(value)]
    return bool(shown) and not any(isinstance(value, str | bool) for value in shown)


def markdown(columns: Mapping[str, Sequence[Any]]) -> str:
    """Return a table in Markdown, from its columns by heading.

    Examples
    --------
    >>> from icl_theory.results.numbers import markdown
    >>> print(markdown({"L": [0.5], "regime": ["flat"]}))
    | L | regime |
    |--:|---|
    | 0.5 | flat |
    """
    return "\n".join(markdown_lines(list(columns), [*columns.values()], list(map(goes_right, columns.values()))))


def markdown_lines(headings: Sequence[str], columns: Sequence[Sequence[Any]], right: Sequence[bool]) -> list[str]:
    """Return the lines of a table in Markdown, of which the first two are its head; ``right`` are set to the right.

    Examples
    --------
    >>> from icl_theory.results.numbers import markdown_lines
    >>> markdown_lines(["a", "a"], [[1], [2]], [True, False])
    ['| a | a |', '|--:|---|', '| 1 | 2 |']
    """

    def line(cells: Sequence[Any]) -> str:
        return "| " + " | ".join(number(cell).replace("|", r"\|") for cell in cells) + " |"

    rule = "|" + "|".join("--:" if side else "---" for side in right) + "|"
    return [line(headings), rule, *map(line, zip(*columns, strict=True))]

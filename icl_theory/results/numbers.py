"""Numbers as text for readers, and tables of them in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def number(value: Any, digits: int = 4) -> str:
    """Return a value as text.

    Integers are written in full, other numbers to ``digits`` significant digits, and
    True and False as ✓ and ✗. A missing value gives the empty text.

    Examples
    --------
    >>> from icl_theory.results.numbers import number
    >>> [number(value) for value in (1187646524, 0.123456, float("nan"), None)]
    ['1,187,646,524', '0.1235', '', '']
    >>> [number(value) for value in (float("inf"), True, "flat")]
    ['∞', '✓', 'flat']
    """
    # A scalar of NumPy becomes a number of Python.
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return _real_number(value, digits)
    # Test for bool before int, because True and False are integers of Python, too.
    if isinstance(value, bool):
        return "✓" if value else "✗"
    if isinstance(value, int):
        # Numbers of four digits, such as 1234, are easy to read without a comma.
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    # A missing value is None, or NA or NaT of pandas. A comparison with NA has no truth
    # value, so NA is recognised by its text. NaT differs from itself.
    is_missing = value is None or str(value) == "<NA>" or value != value
    return "" if is_missing else str(value)


def _real_number(value: float, digits: int) -> str:
    """Return a float to ``digits`` significant digits, infinity as ∞ and NaN as ""."""
    if math.isfinite(value):
        return f"{value:.{digits}g}"
    if math.isnan(value):
        return ""
    return "∞" if value > 0 else "−∞"


def distinct_texts(values: Sequence[Any]) -> list[str]:
    """Return values as text, such that different values have different texts.

    All have the same number of significant digits: the least from 4 to 17 that
    suffices. With 17 digits any two numbers of float64 differ.
    """
    for digits in range(4, 18):
        texts = [number(value, digits) for value in values]
        if len(set(texts)) == len(set(values)):
            break
    return texts


def is_right_aligned(values: Sequence[Any]) -> bool:
    """Whether a column of a table is right-aligned: it has numbers and no words."""
    # A missing value, whose text is empty, may be among numbers as well as words.
    present = [value for value in values if number(value)]
    has_words = any(isinstance(value, str | bool) for value in present)
    return bool(present) and not has_words


def markdown(
    columns: Mapping[str, Sequence[Any]] | Iterable[tuple[str, Sequence[Any]]],
) -> str:
    """Return a table in Markdown from its columns.

    The columns are a mapping by heading, or pairs of heading and values. If they are
    pairs, two columns may have the same heading.
    """
    pairs = columns.items() if isinstance(columns, Mapping) else columns
    headings, values = zip(*pairs, strict=True)
    # In Markdown "--:" aligns a column at the right.
    alignments = ["--:" if is_right_aligned(column) else "---" for column in values]
    rows = zip(*values, strict=True)
    return "\n".join(
        [
            _markdown_line(headings),
            f"|{'|'.join(alignments)}|",
            *(_markdown_line(row) for row in rows),
        ]
    )


def _markdown_line(cells: Iterable[Any]) -> str:
    """Return a row of a table in Markdown.

    Bars within cells are escaped, because a bar in Markdown ends a cell.
    """
    escaped = (number(cell).replace("|", r"\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"

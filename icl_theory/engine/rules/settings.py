"""Checks of the numbers that rules have."""

from __future__ import annotations

from icl_theory._validate import number, refuse


def below_one(name: str, value: float) -> float:
    """Return a number from 0 to below 1, or refuse it by name."""
    allowed = "a number from 0 to below 1"
    try:
        checked = number(name, value, zero=True)
    except ValueError:
        raise refuse(name, value, allowed) from None
    if checked >= 1.0:
        raise refuse(name, value, allowed)
    return checked

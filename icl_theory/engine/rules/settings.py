"""Checks of the numbers that rules have."""

from __future__ import annotations

from icl_theory._validate import number, refuse


def below_one(name: str, value: float) -> float:
    """Return a number from 0 to below 1, or refuse it by name."""
    checked = number(name, value, zero=True)
    if checked >= 1.0:
        raise refuse(name, value, "a number from 0 to below 1")
    return checked

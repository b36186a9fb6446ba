"""What the parameters of a run are called."""

from __future__ import annotations

import math

from icl_theory.engine.trajectory import Label, Trajectory
from icl_theory.results.numbers import number


def label(run: Trajectory, name: str) -> Label:
    """Return the label of a parameter, its name where it has none."""
    return run.labels.get(name) or Label(name, "", "", "")


def parameters(run: Trajectory) -> list[tuple[Label, str]]:
    """Return the numbers that describe a run, with their labels: those with a symbol, or all where none has one.

    Numbers that are zero or infinite are left out.
    """
    named = {name: value for name, value in run.info.items() if _is_number(value)}
    with_symbol = [name for name in named if label(run, name).tex]
    return [(label(run, name), number(named[name])) for name in with_symbol or named]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value != 0 and math.isfinite(value)

"""Bounds of Theorems 1 and 2 as columns of a sweep.

Here steps is the number of steps of a run, and T_I is the step at which its Phase I
ends. The theorems bound steps - T_I by 1 + O(scale). The module ``orderwise`` has the
scale, an expression in the parameters of the run. The constant of this order is fitted
on many runs, and the constant times the scale is compared with steps - T_I - 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.plug_ins import TheoryColumns
from icl_theory.regression.closed.runs import CountedRuns
from icl_theory.sweeps.grid import Column, Values

# The meaning of the verdicts, in the description of their columns.
VERDICTS = "1 if it holds, 0 if it fails, -1 if its hypotheses fail"
THEOREMS = (1, 2)
# No verdict is given if the scale is below this number, near the end of the range of
# float64. The module `orderwise` has the same limit, but it is loaded only when it is
# needed, see `measure`.
SMALLEST_SCALE = 1e-290


def _columns(number: int) -> tuple[Column, Column]:
    """Return the columns of a theorem: its bound on a run, and the verdict."""
    bound = Column(
        f"theorem_{number}_bound",
        dtype="f8",
        unit="steps",
        description=f"bound of Theorem {number} on steps - T_I - 1, constant fitted",
    )
    verdict = Column(
        f"theorem_{number}",
        dtype="i1",
        unit="",
        description=f"whether it bounds steps - T_I - 1 up to a factor 2: {VERDICTS}",
        symbol=f"Thm {number}",
        role="verdict",
    )
    return bound, verdict


def measure(run: Trajectory) -> dict[str, Any]:
    """Return the bounds on a run and whether they hold, by column.

    Columns of a theorem that does not apply to the run are left out.
    """
    # Loaded only when a sweep asks for these columns, because the constants of the
    # theorems are fitted to many runs.
    from icl_theory.papers.regression.theorems.orderwise import by_name

    values: dict[str, Any] = {}
    for number in THEOREMS:
        check = by_name(f"Theorem {number}").check(run)
        # A verdict of None means that the theorem does not apply.
        if check.holds is not None:
            values[f"theorem_{number}_bound"] = check.bound
            values[f"theorem_{number}"] = int(check.holds)
    return values


def batch(runs: CountedRuns) -> Values:
    """Return the bounds on many runs at once, as `measure` does for each of them.

    Where a theorem does not apply, its bound is NaN and its verdict -1.
    """
    # Loaded late, as in `measure`.
    from icl_theory.papers.regression.theorems.orderwise import (
        BOUNDED,
        by_name,
        fitted_constants,
        measured_ratios,
    )

    values: Values = {}
    for number in THEOREMS:
        statement = by_name(f"Theorem {number}")
        scale = statement.scale(runs)
        fitted_constant = fitted_constants()[statement.name].highest
        # steps - T_I - 1, divided by the scale; NaN for runs to which the theorem does
        # not apply. A run has one number of steps, so its least and its largest ratio
        # are equal.
        ratio = measured_ratios(statement, runs).high
        bound = scale * fitted_constant
        # The theorems are stated for class coordinates, in which scores are trained.
        applies = runs.in_class_coordinates & ~np.isnan(ratio)
        applies &= (scale > SMALLEST_SCALE) & np.isfinite(bound)
        # A ratio may exceed the fitted constant by the factor BOUNDED, which is 2.
        holds = ratio <= BOUNDED * fitted_constant
        values[f"theorem_{number}_bound"] = np.where(applies, bound, np.nan)
        values[f"theorem_{number}"] = np.where(applies, holds, -1).astype(np.int8)
    return values


COLUMNS = TheoryColumns(
    columns=tuple(column for number in THEOREMS for column in _columns(number)),
    measure=measure,
    batch=batch,
)

"""`simulate` and `descend` for measurements, see `icl_theory.engine.interrupts`."""

from __future__ import annotations

from typing import Any

from icl_theory.engine import descent
from icl_theory.engine.interrupts import whole
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression import simulate as simulation


def simulate(*arguments: Any, **options: Any) -> Trajectory:
    """`simulate`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return whole(simulation.simulate(*arguments, **options))


def descend(*arguments: Any, **options: Any) -> Trajectory:
    """`descend`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return whole(descent.descend(*arguments, **options))

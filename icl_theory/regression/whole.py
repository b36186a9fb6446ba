"""`simulate` and `descend` for measurements, see `icl_theory.whole`."""

from __future__ import annotations

from typing import Any

from icl_theory import descent
from icl_theory.regression import simulate as simulation
from icl_theory.trajectory import Trajectory
from icl_theory.whole import whole


def simulate(*arguments: Any, **options: Any) -> Trajectory:
    """`simulate`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return whole(simulation.simulate(*arguments, **options))


def descend(*arguments: Any, **options: Any) -> Trajectory:
    """`descend`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return whole(descent.descend(*arguments, **options))

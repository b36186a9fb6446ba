"""Runs for measurements: an interrupt ends the measurement instead of giving it half a run."""

from __future__ import annotations

from typing import Any

from icl_theory import descent
from icl_theory.regression import simulate as simulation
from icl_theory.trajectory import Trajectory


def simulate(*arguments: Any, **options: Any) -> Trajectory:
    """`simulate`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return _whole(simulation.simulate(*arguments, **options))


def descend(*arguments: Any, **options: Any) -> Trajectory:
    """`descend`, but raise KeyboardInterrupt where it would return an interrupted run."""
    return _whole(descent.descend(*arguments, **options))


def _whole(run: Trajectory) -> Trajectory:
    if run.stop_reason.startswith("interrupted"):
        raise KeyboardInterrupt
    return run

"""Runs for measurements: an interrupt ends the measurement instead of giving it half a run."""

from __future__ import annotations

from icl_theory.trajectory import Trajectory


def whole(run: Trajectory) -> Trajectory:
    """Return the run, but raise KeyboardInterrupt where it was interrupted."""
    if run.stop_reason.startswith("interrupted"):
        raise KeyboardInterrupt
    return run

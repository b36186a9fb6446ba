"""Runs read from files; a run goes on from its file if its problem can be made again."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.descent import attach
from icl_theory.engine.progress import Work
from icl_theory.engine.reading import read_run
from icl_theory.engine.risk import Solution
from icl_theory.engine.rules import rule_of
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import find
from icl_theory.families.family import Family


@Work("making the problem of the run")
def load(path: str | os.PathLike[str]) -> Trajectory:
    """Read a run written by `Trajectory.save`.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    Trajectory
        As saved. The file of a run says which problem was trained if its parameters are numbers and words. Such a
        run carries its risk and knows every step; other runs know only their saved steps, and if the problem cannot
        be made here, ``notes["family"]`` says why. A family with a `simulate` of its own runs it again for a step
        that was not saved.

    Raises
    ------
    ValueError
        The file is not a saved run.

    Examples
    --------
    >>> import icl_theory as icl, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.npz")
    >>> icl.simulate(2.0, 1.0, 4.0).save(path)
    >>> again = icl.load(path)
    >>> again.steps, again.at(10**9).loss == icl.simulate(2.0, 1.0, 4.0).at(10**9).loss
    (1413, True)
    """
    return revived(read_run(path), find)


def revived(run: Trajectory, find: Callable[[str], type[Family]]) -> Trajectory:
    """Return a run as `read_run` gives it, with its problem if that can be made here."""
    said, run.family = run.family, None
    if said is None:
        return run
    try:
        problem = _problem(find(said["name"]), said)
        if type(problem).simulate is Family.simulate:
            rule = rule_of(problem.update())
            if rule.name != run.rule:
                raise ValueError(f"the run was trained by {run.rule}, and its problem is by {rule.name}")
            attach(run, problem.risk(), rule=rule)
        else:  # only the family knows how its runs go on
            run.risk, run.solution = problem.risk(), _Again(problem.simulate)
        run.family = problem
    # a family that is not installed, one of another version, or a problem too large for this machine
    except (ValueError, TypeError, KeyError, MemoryError, OverflowError) as error:
        run.notes["family"] = f"not available here, so only saved steps are known: {error}"
    return run


class _Again(Solution):
    """The iterates of a run that is made again when one of them is first asked for."""

    def __init__(self, simulate: Callable[[], Trajectory]) -> None:
        self._run = functools.cache(simulate)

    def states(self, steps: NDArray[np.int64]) -> Array:
        return np.stack([self._run().at(t).params for t in steps.tolist()])

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float | None]:
        found = self._run().first(lambda state: state.loss <= epsilon)
        return (found, None) if found is not None and found <= last else (None, None)


def _problem(family: type[Family], said: Mapping[str, Any]) -> Family:
    known = family.parameters()
    family.refuse_unknown(said["parameters"])
    values: dict[str, Any] = {
        name: math.inf if value == "inf" and known[name].kind.numeric else value
        for name, value in said["parameters"].items()
    }
    return family(**values)

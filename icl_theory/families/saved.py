"""Runs read from files, which go on where their problem can be made again."""

from __future__ import annotations

import contextlib
import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from icl_theory.engine.descent import attach
from icl_theory.engine.progress import working
from icl_theory.engine.reading import read_run
from icl_theory.engine.rules import rule_of
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families import find
from icl_theory.families.family import Family


@working("making the problem of the run")
def load(path: str | os.PathLike[str]) -> Trajectory:
    """Read a run written by `Trajectory.save`.

    Parameters
    ----------
    path : path-like
        The file.

    Returns
    -------
    Trajectory
        As saved. Files of runs of a family say what was trained if its parameters are numbers and words. Such a run
        answers for any step and carries its risk; any other answers for its saved steps. If the family has a
        `simulate` of its own, that is run again when a step is asked for that was not saved.

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
    """Return a run as `read_run` gives it with the problem that it describes, if this can be made here."""
    said, run.family = run.family, None
    if said is not None:
        # of another version, or more than fits here
        with contextlib.suppress(ValueError, TypeError, KeyError, MemoryError, OverflowError):
            problem = _problem(find(said["name"]), said)
            if type(problem).simulate is Family.simulate:
                rule = rule_of(problem.update())
                if rule.name != run.rule:
                    raise ValueError(f"the run was trained by {run.rule}, and its problem is by {rule.name}")
                attach(run, problem.risk(), rule=rule)
            else:  # only the family knows how its runs go on
                again = functools.cache(problem.simulate)
                run.risk, run.resume = problem.risk(), lambda t: again().at(t)
            run.family = problem
    return run


def _problem(family: type[Family], said: Mapping[str, Any]) -> Family:
    """Return the problem that a file describes."""
    known = family.parameters()
    family.refuse_unknown(said["parameters"])
    values: dict[str, Any] = {
        name: math.inf if value == "inf" and known[name].kind.numeric else value
        for name, value in said["parameters"].items()
    }
    return family(**values)

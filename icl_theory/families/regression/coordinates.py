"""The same training run in class, embedding and factored coordinates, side by side."""

from __future__ import annotations

from typing import Any

from icl_theory._validate import refuse
from icl_theory.engine.pullback import COORDINATES
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression.simulate import simulate


def compare_coordinates(L: float, delta: float, eta: float, **arguments: Any) -> dict[str, Trajectory]:
    """Run `simulate` once in each of the three coordinates.

    Parameters
    ----------
    L, delta, eta : float
        As for `simulate`.
    **arguments
        Other arguments of `simulate` but ``coordinates``.

    Returns
    -------
    dict of Trajectory
        By the name of the coordinates, after Ctrl-C those that were begun; draw them with
        `icl_theory.results.plots.compare_runs`.

    Raises
    ------
    ValueError
        An argument out of range, named in the message.

    References
    ----------
    docs/theory.md, "Coordinates".

    Examples
    --------
    >>> import icl_theory as icl
    >>> runs = icl.regression.compare_coordinates(2.0, 1.0, 4.0, K=4, epsilon=1e-2)
    >>> {name: run.steps for name, run in runs.items()}
    {'class': 27, 'embedding': 111, 'factored': 36}
    """
    if "coordinates" in arguments:
        raise refuse("coordinates", arguments["coordinates"], "left out: there is a run in each")
    found: dict[str, Trajectory] = {}
    for name in COORDINATES:
        found[name] = simulate(L, delta, eta, coordinates=name, **arguments)
        if found[name].interrupted:
            break
    return found

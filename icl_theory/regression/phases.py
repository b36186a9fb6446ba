r"""Phases and regimes, defined on the exact solution.

Phase I lasts until the target attention is ½, Phase III is the tail in which the loss falls like 1/t, Phase II lies
between. In the tail t·(ℓ − ℓ_∞)·4η/(K−1) → 1; it begins where this *tail ratio* falls to 2 for good, that is, where
the term of the flow solution that grows like 1/s² makes up half of the elapsed time.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from icl_theory._validate import MOST_FEATURES, integer, number
from icl_theory.regression.exchangeable import flow_difference
from icl_theory.trajectory import Phases, Trajectory

TAIL_RATIO = 2.0


@cache
def tail_start(K: int) -> float:
    r"""Attention deficit s* = 1 - a at which Phase III begins in the exchangeable case with N = ∞.

    The smaller root of :math:`\frac{1}{2s^2} = \frac12\,[F(1 - s) - F(1/K)]`, see `flow_time`; it lies near
    :math:`1/\sqrt{2K}`. For K = 2 there is no root: the tail term dominates from the start, and s* = 1/2.

    Parameters
    ----------
    K : int
        Number of features.

    Returns
    -------
    float
        Between 0 and 1 - 1/K.

    References
    ----------
    docs/theory.md, "Phases and regimes".

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.tail_start(20), 4)
    0.0979
    """
    from scipy.optimize import brentq

    K = integer("K", K, minimum=2, maximum=MOST_FEATURES)
    if K == 2:
        return 0.5

    def excess(s: float) -> float:
        u = math.log(K - 1.0) + math.log1p(-s) - math.log(s)
        return 1.0 / s**2 - float(flow_difference(np.zeros(()), np.asarray(u), K))

    return float(brentq(excess, 0.1 / math.sqrt(K), 0.5, xtol=1e-15))


def crossover(epsilon: float, delta: float, K: int = 20, *, leading_order: bool = False) -> float:
    r"""Lipschitz constant L* between the flat and the sharp regime.

    Below it the loss reaches ``epsilon`` before the tail begins. At leading order in K, where learning to attend
    and the tail take equally long, :math:`L^*\Delta = \sqrt{8\epsilon K^2/(K-1)}`; exactly, the loss is
    ``epsilon`` at the attention deficit s* of `tail_start`:
    :math:`L^*\Delta = \sqrt{4\epsilon (K-1)/(K s^{*2})}`.

    Parameters
    ----------
    epsilon : float
        Target loss, squared label units.
    delta : float
        Feature gap.
    K : int
        Number of features.
    leading_order : bool
        Return the first expression instead of the second.

    Returns
    -------
    float
        L*, label units per feature unit.

    References
    ----------
    docs/theory.md, "Phases and regimes".

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.crossover(1e-3, 1.0), 4)
    0.6296
    >>> round(icl.regression.crossover(1e-3, 1.0, leading_order=True), 4)
    0.4104
    """
    K, epsilon, delta = integer("K", K, minimum=2), number("epsilon", epsilon), number("delta", delta)
    if leading_order:
        return math.sqrt(8.0 * epsilon) * K / math.sqrt(K - 1.0) / delta
    return math.sqrt(4.0 * epsilon * (K - 1.0) / K) / tail_start(K) / delta


def run_phases(run: Trajectory, tail: float | None, tail_deficit: float | None = None) -> Phases:
    """Phases of any run, from its states; the attention is that of the slowest query.

    Parameters
    ----------
    run : Trajectory
        With `attention` among its observations.
    tail : float or None
        Limit of t·(loss − floor), ``(K-1)/(4η)`` in class coordinates; None where none is known, and then
        Phase II goes on to the end.
    tail_deficit : float, optional
        Attention deficit at which Phase III begins, where the model knows it (see `tail_start`).

    Returns
    -------
    Phases
        Intervals of steps; they cover the run.
    """
    last = int(run.t[-1])
    first = run.first(lambda state: bool(np.min(state.attention) >= 0.5))
    if first is None or first == last:
        return Phases((0, last), None, None)
    if tail_deficit is not None:
        second = run.first(lambda state: bool(np.min(state.attention) >= 1.0 - tail_deficit))
    elif tail is not None:
        limit = TAIL_RATIO * tail
        above = np.flatnonzero(run.t * (run.loss - run.floor) > limit)
        begin = int(run.t[above[-1]]) if above.size else 0
        second = run.first(lambda state: state.t * (state.loss - run.floor) <= limit, after=begin)
    else:
        second = None
    if second is None or second == last:
        return Phases((0, first), (first, last), None)
    second = max(first, second)
    return Phases((0, first), (first, second), (second, last))

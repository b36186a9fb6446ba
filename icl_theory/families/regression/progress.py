"""Certified progress of single queries for N = ∞, any task and all probabilities; and the tail law on a run."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import LARGEST, Array, instance, number, refuse
from icl_theory.engine.pullback import Pullback
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression.flow import flow_difference
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.stability import curvature_bound
from icl_theory.families.regression.tails import tail_limit

VISIBLE = 1e-8  # a fall of the loss in one step, beside the loss, that rounding leaves seven digits of
APART = 0.05  # weight of a token beside one of the level above it at which the tail law is judged
LOST = 1e-10  # of the floor: an excess below it is not judged
MOST = 200  # features
UNEQUAL = f"for gradient descent on the scores of up to {MOST} single features, N = inf"


def step_rate(risk: PopulationRisk, eta: float) -> Array:
    r"""Certified growth of 1/ℓ_k in one step of gradient descent where all attention is right, (K,); N = ∞.

    .. math:: \frac{1}{\ell_k(n+1)} \ge \frac{1}{\ell_k(n)} + g_k\,a_k(n)^2, \qquad
        g_k = \Bigl(1 - \frac{\eta\lambda_k}{2}\Bigr) \frac{4\eta p_k K}{K-1}, \quad
        \lambda_k = \kappa\,p_k \max\Gamma

    for every task and all probabilities, with κ of `curvature_bound`, where :math:`\eta\lambda_k < 2`.

    Returns
    -------
    ndarray, (K,)
        Per squared label unit; not positive where the learning rate is too large to certify anything.

    References
    ----------
    docs/tail-laws.md, "One step".
    """
    p, K = instance("risk", risk, PopulationRisk, "a PopulationRisk").features.probs, risk.features.K
    eta = number("eta", eta, maximum=LARGEST)
    bend = curvature_bound(float(risk.task.variogram(risk.features).max()), 1.0 / p)
    return np.asarray((1.0 - 0.5 * eta * bend) * 4.0 * eta * p * K / (K - 1.0))


def tail_steps(start: float, end: float, c: float, rate: float) -> float:
    r"""Certified bound on the steps in which a query's loss falls from ``start``, below c/2, to ``end``; N = ∞.

    With :math:`a \ge 1 - s`, :math:`s = \sqrt{2\ell/c}`, and F of `flow_time`,

    .. math:: n \le \frac{4}{c\,g} \bigl[F(1 - s_n) - F(1 - s_0)\bigr] + 2 \ln\frac{1 - s_n}{1 - s_0}.

    Parameters
    ----------
    start, end : float
        Losses ℓ_k of the query, squared label units.
    c : float
        Its non-degeneracy constant, see `Task.nondegeneracy`.
    rate : float
        Certified growth g of 1/ℓ in a step, see docs/tail-laws.md.

    Returns
    -------
    float
        Steps.

    References
    ----------
    docs/tail-laws.md, "One step".

    Examples
    --------
    Two features, whose flow the bound follows:

    >>> import icl_theory as icl
    >>> round(icl.regression.tail_steps(start=0.5, end=1e-3, c=4.0, rate=0.08), 1)
    13698.3
    """
    start, end, c, rate = number("start", start), number("end", end), number("c", c), number("rate", rate)
    if not end <= start < 0.5 * c:
        raise refuse("start", start, f"at least end = {end:g} and below c/2 = {0.5 * c:g}")
    first, last = math.sqrt(2.0 * start / c), math.sqrt(2.0 * end / c)
    near, far = (np.asarray(math.log1p(-s) - math.log(s)) for s in (first, last))
    return float(4.0 / (c * rate) * flow_difference(near, far, 2.0)) + 2.0 * (
        math.log1p(-last) - math.log1p(-first)
    )


def least_progress(run: Trajectory) -> float | str:
    """Smallest growth of 1/ℓ_k in a step from a saved state, over what is certified; or why there is none."""
    risk = _single(run)
    if risk is None:
        return UNEQUAL
    rate = step_rate(risk, run.eta)
    least = math.inf
    for scores in run.states:
        before = risk.loss_per_query(scores)
        after = risk.loss_per_query(scores - run.eta * risk.gradient(scores))
        attention = np.diagonal(risk.attention(scores))
        use = (rate > 0) & (before > 1e-280) & (np.abs(before - after) > VISIBLE * before) & (after > 1e-280)
        growth = (before - after)[use] / before[use] / after[use]
        least = min(least, float(np.min(growth / (rate * attention**2)[use], initial=math.inf)))
    if math.isinf(least):
        return "no step is short enough to be certified and long enough to be seen"
    return least


def slowest_tail(run: Trajectory) -> tuple[float, float] | str:
    """Steps of the query that comes nearest to the bound of `tail_steps`, and that bound, or why there is none."""
    risk = _single(run)
    if risk is None:
        return UNEQUAL
    c, rate = risk.task.nondegeneracy(risk.features), step_rate(risk, run.eta)
    losses = run.observed["loss_per_query"]
    found = []
    for k in np.flatnonzero((c > 0) & (rate > 0)):
        inside = np.flatnonzero((losses[:, k] <= c[k] / 8.0) & (losses[:, k] > 1e-280))
        if inside.size > 1:
            steps = float(run.t[inside[-1]] - run.t[inside[0]])
            first, last = (float(losses[i, k]) for i in inside[[0, -1]])
            found.append((steps, tail_steps(first, last, float(c[k]), float(rate[k]))))
    if not found:
        return "no query with a certified rate has two saved states with a loss below c_k/8"
    return max(found, key=lambda pair: pair[0] / max(pair[1], 1e-300))


def tail_ratio(run: Trajectory) -> tuple[float, float] | str:
    """``t (loss - floor)`` at the end over its limit, and how far from 1 it may be, or why neither is known."""
    limit = tail_limit(run.risk, run.eta) if run.risk is not None and run.rule == "gd" else None
    if limit is None:
        return "no tail law is known for this problem, or the excess falls faster"
    if run.phases is None or run.phases.III is None:
        return "the run does not reach Phase III"
    if isinstance(run.risk, Pullback):
        return "over embeddings profiles of attention may settle too slowly to be judged"
    begin, end = run.phases.III
    start = run.at(begin)
    # the law is 1/excess = t/limit + const: t must outgrow the constant, which large first steps make large
    own = limit / max(start.loss - run.floor, 1e-300)
    missed = 1.0 - float(np.min(run.attention[-1]))
    if isinstance(run.risk, PopulationRisk) and math.isfinite(run.risk.N):
        missed = _beside(run.risk, run.params)
        if missed > APART:
            return "the features have not come far enough apart"
    elif isinstance(run.risk, PopulationRisk):
        each = run.risk.features.probs * start.observed["loss_per_query"]
        own = limit / len(each) / max(float(each.min()), 1e-300)
    if end < 100.0 * max(begin, own, 1.0):
        return "Phase III has not lasted for two decades of its own time scale"
    excess = float(run.loss[-1]) - run.floor
    if excess < LOST * run.floor:
        return "the excess over the floor is lost in rounding"
    return float(run.t[-1]) * excess / limit, 0.05 + 8.0 * missed


def _single(run: Trajectory) -> PopulationRisk | None:
    """Risk of a run of gradient descent over single scores with N = ∞."""
    risk = run.risk
    stepped = run.rule == "gd" and run.method != "flow"
    single = isinstance(risk, PopulationRisk) and math.isinf(risk.N) and risk.features.K <= MOST
    return risk if stepped and single else None  # type: ignore[return-value]


def _beside(risk: PopulationRisk, scores: Array) -> float:
    """Largest weight of a token beside the lightest one of the level above it."""
    largest = 0.0
    assert risk.levels is not None
    for levels, column in zip(risk.levels, scores.T, strict=True):
        for upper, lower in zip(levels.classes, levels.classes[1:], strict=False):
            largest = max(largest, float(np.exp(column[lower].max() - column[upper].min())))
    return largest

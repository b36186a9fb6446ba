"""Certified quantities: bounds on step counts by flow time, and the worst function for given attention."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array, integer, number, real_array, refuse
from icl_theory.families.regression.flow import flow_difference


def step_bounds(K: int, c: float, u: float) -> tuple[float, float]:
    r"""Certified bounds on the number n of steps ``u <- u + c a s²`` from 0 to the n-th iterate ``u``.

    Up to a = 1/3 the growth g = a s² increases and each step takes at most one unit of flow time, beyond it
    decreases and takes at least one. With τ the flow time, the peak at u_p, and :math:`R = e^{2 c\,4/27}` above
    any one-step ratio of g,

    .. math:: \tau(0, u_p) + \tau(u_p + c g_p, u) - \rho\ln\frac{g_p}{g(u)} \le n \le
        \tau(0, u) + \ln\frac{g_p}{g_0} + 1, \quad \rho = \frac{R - 1}{\ln R};

    where the run ends before the peak, :math:`\tau \le n \le \tau + \ln(g(u)/g_0)`.

    Parameters
    ----------
    K : int
        Number of features.
    c : float
        Step constant, ``η γ K/(K-1)²``.
    u : float
        The iterate reached.

    Returns
    -------
    tuple of float
        Lower and upper bound, steps.

    References
    ----------
    docs/theory.md, "Steps in closed form" (certified bounds).

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1, epsilon=1e-6)
    >>> low, high = icl.regression.step_bounds(20, 0.1 * 2 * 20 / 19**2, float(run.params))
    >>> low <= run.steps <= high, high - low < 20
    (True, True)
    """
    K, c, u = integer("K", K, minimum=2), number("c", c, minimum=1e-300), number("u", u, zero=True, maximum=300.0)
    low, high = step_bounds_of(*(np.array([float(value)]) for value in (K, c, u)))
    return float(low[0]), float(high[0])


def step_bounds_of(K: Array, c: Array, u: Array) -> tuple[Array, Array]:
    """`step_bounds` of many points, elementwise and without checks."""
    none = np.zeros(K.size)
    peak = np.maximum(0.0, np.log(K - 1.0) - np.log(2.0))  # a = 1/3, or the start where a is larger there
    before = u <= peak

    def log_growth(position: Array) -> Array:
        # ln(a s²), with ln a = -ln(1 + w) and ln s = ln w + ln a
        log_w = np.log(K - 1.0) - position
        return 2.0 * log_w - 3.0 * np.logaddexp(0.0, log_w)

    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):

        def tau(start: Array, end: Array) -> Array:
            time = flow_difference(start, end, K)
            return np.where(np.isnan(time), np.inf, time) / c

        total, top, reached, started = tau(none, u), log_growth(peak), log_growth(u), log_growth(none)
        log_ratio = 2.0 * c * 4.0 / 27.0
        rho = np.where(log_ratio < 700.0, np.expm1(log_ratio) / log_ratio, np.inf)
        overshoot = np.where(peak > 0, peak + c * np.exp(top), 0.0)
        after = np.maximum(0.0, tau(overshoot, np.maximum(u, overshoot)) - rho * (top - reached))
        low = np.where(before, total, tau(none, peak) + np.where(u > overshoot, after, 0.0))
        rise = np.where(before, reached - started, np.where(peak > 0, top - started + 1.0, 0.0))
        rounding = 1e-12 * (1.0 + total)
        return np.maximum(0.0, low - rounding), total + rise + rounding


def phase_one_bounds(K: int, c: float) -> tuple[float, float]:
    r"""Certified bounds on the duration T₁ of Phase I, the first step with attention ½; exchangeable case, N = ∞.

    .. math:: \frac{F(\tfrac13) - F(\tfrac1K)}{c} \le T_1 \le \frac{3 K^2}{2 \eta\gamma} + \ln\frac K3 + 2

    for every K >= 3 and every learning rate; :math:`T_1 = 0` for K = 2.

    Parameters
    ----------
    K : int
        Number of features.
    c : float
        Step constant, ``η γ K/(K-1)²``.

    Returns
    -------
    tuple of float
        Lower and upper bound, steps.

    References
    ----------
    docs/theory.md, "Bounds with constants".

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1)
    >>> low, high = icl.regression.phase_one_bounds(20, 0.1 * 2 * 20 / 19**2)
    >>> round(low), run.phases.I[1], round(high)
    (2276, 2724, 3004)
    """
    each, step = np.array([float(integer("K", K, minimum=2))]), np.array([number("c", c)])
    low, high = phase_one_bounds_of(each, step)
    return float(low[0]), float(high[0])


def phase_one_bounds_of(K: Array, c: Array) -> tuple[Array, Array]:
    """`phase_one_bounds` of many points, elementwise and without checks."""
    with np.errstate(over="ignore", divide="ignore"):
        peak = np.maximum(0.0, np.log(K - 1.0) - math.log(2.0))
        low = flow_difference(np.zeros(K.shape), peak, K) / c
        high = 1.5 * K**3 / ((K - 1.0) ** 2 * c) + np.log(K / 3.0) + 2.0
    return np.where(K > 2, low, 0.0), np.where(K > 2, high, 0.0)


def after_phase_one(K: int, eta: float, epsilon: float) -> float:
    r"""Certified upper bound on the steps from the end of Phase I to the loss ε; exchangeable case, N = ∞.

    .. math:: T - T_1 \le \tfrac{7}{16}\,\frac{K-1}{\eta\epsilon} + 1

    for every K >= 2, every learning rate and every variogram. As ε falls the constant tends to 1/4.

    Parameters
    ----------
    K : int
        Number of features.
    eta : float
        Learning rate (in embedding coordinates times Δ⁴/4).
    epsilon : float
        Target loss, squared label units.

    Returns
    -------
    float
        Steps.

    References
    ----------
    docs/theory.md, "Bounds with constants".

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1, epsilon=1e-3)
    >>> run.steps - run.phases.I[1], round(icl.regression.after_phase_one(20, 0.1, 1e-3))
    (53833, 83126)
    """
    each = np.array([float(integer("K", K, minimum=2))])
    bound = after_phase_one_of(each, np.array([number("eta", eta)]), np.array([number("epsilon", epsilon)]))
    return float(bound[0])


def after_phase_one_of(K: Array, eta: Array, epsilon: Array) -> Array:
    """`after_phase_one` of many points, elementwise and without checks."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(7.0 / 16.0 * (K - 1.0) / eta / epsilon + 1.0)


def worst_prediction(attention: Array, distances: Array, L: float) -> tuple[float, Array]:
    r"""Largest prediction error of fixed attention over all L-Lipschitz functions, by linear programming.

    .. math:: \max_f \sum_m a_m (f_m - f_k) \quad\text{subject to}\quad |f_m - f_j| \le L\,d_{mj}

    for the query k that ``distances`` is measured from in the first row; only differences matter, so f_k = 0.

    Parameters
    ----------
    attention : ndarray, (K,)
        Attention on the features, the query's own first.
    distances : ndarray, (K, K)
        Distances between the features, in the same order.
    L : float
        Lipschitz constant.

    Returns
    -------
    float
        The largest error, label units.
    ndarray, (K,)
        Values of a function that attains it.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> features = icl.Features.simplex(3, delta=1.0)
    >>> error, f = icl.regression.worst_prediction(np.array([0.8, 0.15, 0.05]), features.distances, 2.0)
    >>> round(float(error), 12), abs(f).round(12).tolist()
    (0.4, [0.0, 2.0, 2.0])
    """
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    attention, distances = real_array("attention", attention, 1), real_array("distances", distances, 2)
    K = len(attention)
    if distances.shape != (K, K):
        raise refuse("distances", distances.shape, f"of shape ({K}, {K})")
    L = number("L", L)
    first, second = np.nonzero(~np.eye(K, dtype=bool))
    rows = np.arange(len(first))
    signs = np.concatenate([np.ones(len(first)), -np.ones(len(first))])
    differences = coo_array(
        (signs, (np.concatenate([rows, rows]), np.concatenate([first, second]))), shape=(len(first), K)
    )
    # in units of L times the largest distance, so that the solver's absolute tolerances mean the same everywhere
    unit = L * distances.max()
    if unit == 0.0:
        return 0.0, np.zeros(K)
    bounds = [(0.0, 0.0), *[(None, None)] * (K - 1)]
    limits = L * distances[first, second] / unit
    found = linprog(-attention, A_ub=differences.tocsr(), b_ub=limits, bounds=bounds, method="highs")
    return -float(found.fun) * float(unit), np.asarray(found.x) * unit


def flow_time_between(start: float, end: float, K: int) -> float:
    """Return the flow time from one gap u to another, in units of 1/c; infinite beyond the range of float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        value = float(flow_difference(np.asarray(start), np.asarray(end), K))
    return value if not math.isnan(value) else math.inf

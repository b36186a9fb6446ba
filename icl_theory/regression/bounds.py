"""Certified bounds on steps, on the progress of queries, and on prediction errors.

`step_bounds`, `phase_one_bounds` and `after_phase_one` bound the steps of the
exchangeable case. `step_rate` and `tail_steps` bound the steps of a query for any task,
and `worst_prediction` is the largest error of fixed attention.

In the exchangeable case with K features and N = ∞, a step of descent is
u ← u + c g with the growth g = a s². Here u is the gap between the score of the target
(the query's own feature) and the other scores, a the attention on the target and
s = 1 − a. With the learning rate η and the variogram γ, c = η γ K/(K−1)².
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import (
    LARGEST,
    MOST_FEATURES,
    Array,
    argument_error,
    instance,
    number,
    plain_numbers,
    real_array,
)
from icl_theory.regression.closed.flow import flow_difference
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.stability import curvature_bound

# The step constant c lies between these numbers, and eta and epsilon are at least the
# first one, so that all of them and their inverses stay within float64.
SMALLEST_CONSTANT = 1e-300
LARGEST_CONSTANT = 1e300
# The largest iterate u. Times grow like e^(2u), which is then below 1e261.
LARGEST_ITERATE = 300.0
# The logarithm of the largest ratio R of `step_bounds` that is computed: e^709 is about
# the largest number of float64.
LOG_LARGEST_RATIO = 700.0
# The relative error that is allowed for the time of gradient flow. It is thousands of
# times the rounding unit, and widens the bounds by far less than the distance between
# them.
TIME_ROUNDING = 1e-12


def step_bounds(
    K: float | Array, c: float | Array, u: float | Array
) -> tuple[Array, Array]:
    r"""Certified bounds on the number n of steps from 0 to an iterate u.

    A step is ``u <- u + c a s²``, with the gap u between the score of the target and
    the other scores, the attention a on the target, and s = 1 - a. The growth g = a s²
    is :math:`g_0` at the start, and has its peak :math:`g_p` at a = 1/3, where u is
    :math:`u_p`. Let :math:`\tau(u, u')` be the time from u to u' of gradient flow,
    which has the velocity c g. Before the peak, g increases, so each step takes at most
    one unit of this time. After the peak, g decreases, and each step takes at least one
    unit. With :math:`R = e^{2 c\,4/27}`, which bounds the ratio of g before and after a
    step,

    .. math:: \tau(0, u_p) + \tau(u_p + c g_p, u) - \rho\ln\frac{g_p}{g(u)} \le n \le
        \tau(0, u) + \ln\frac{g_p}{g_0} + 1, \quad \rho = \frac{R - 1}{\ln R}.

    If the run ends before the peak, :math:`\tau(0, u) \le n \le \tau(0, u) +
    \ln(g(u)/g_0)`.
    See docs/theory.md, "Steps in closed form" (certified bounds).

    Parameters
    ----------
    K : int or ndarray
        Number of features; all arguments broadcast against each other.
    c : float or ndarray
        Step constant, ``η γ K/(K-1)²``.
    u : float or ndarray
        The iterate, at most 300.

    Returns
    -------
    lower, upper : ndarray
        Bounds on n, in steps.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1, epsilon=1e-6)
    >>> c = 0.1 * 2 * 20 / 19**2
    >>> low, high = icl.regression.step_bounds(20, c, float(run.params))
    >>> bool(low <= run.steps <= high), bool(high - low < 20)
    (True, True)
    """
    K = plain_numbers("K", K, least=2.0, most=MOST_FEATURES)
    c = plain_numbers("c", c, least=SMALLEST_CONSTANT, most=LARGEST_CONSTANT)
    u = plain_numbers("u", u, least=0.0, most=LARGEST_ITERATE)
    log_other_features = np.log(K - 1.0)
    start = np.zeros(())
    # The peak of g at a = 1/3, where e^u = (K - 1)/2, or u = 0 if the run starts beyond
    # it
    peak = np.maximum(0.0, log_other_features - np.log(2.0))

    # Numbers of steps beyond float64 are returned as infinity.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        log_growth_at_peak = _log_growth(peak, log_other_features)
        log_growth_at_start = _log_growth(start, log_other_features)
        log_growth_at_end = _log_growth(u, log_other_features)
        ends_before_peak = u <= peak
        time = flow_difference(start, u, K) / c
        time_to_peak = flow_difference(start, peak, K) / c
        # A run passes the peak by at most one step of the largest growth. If the run
        # begins at the peak or beyond, its first iterate after the peak is its start,
        # u = 0.
        after_peak = np.where(peak > 0, peak + c * np.exp(log_growth_at_peak), 0.0)
        log_fall = log_growth_at_peak - log_growth_at_end
        correction = _correction_after_peak(c, log_fall)
        time_after_peak = flow_difference(after_peak, np.maximum(u, after_peak), K) / c
        # The correction may exceed the time, but no number of steps is negative.
        steps_after_peak = np.where(
            u > after_peak, np.maximum(0.0, time_after_peak - correction), 0.0
        )
        exact_lower = np.where(ends_before_peak, time, time_to_peak + steps_after_peak)
        # The upper bound exceeds the time by `excess`. A run that starts beyond the
        # peak takes no more steps than its time.
        excess_with_peak = np.where(
            peak > 0, log_growth_at_peak - log_growth_at_start + 1.0, 0.0
        )
        excess = np.where(
            ends_before_peak, log_growth_at_end - log_growth_at_start, excess_with_peak
        )
        # The bounds are widened, so that rounding of the times cannot falsify them.
        rounding = TIME_ROUNDING * (1.0 + time)
        lower = np.maximum(0.0, exact_lower - rounding)
        upper = time + excess + rounding
        # The empty index turns an array without dimensions into a number.
        return lower[()], upper[()]


def _log_growth(u: Array, log_other_features: Array) -> Array:
    """The logarithm ln(a s²) of the growth g at the gap u.

    ``log_other_features`` is ln(K - 1). With the weight w = (K - 1) e^(-u) of the wrong
    features, ln a = -ln(1 + w) and ln s = ln w + ln a.
    """
    log_w = log_other_features - u
    return np.asarray(2.0 * log_w - 3.0 * np.logaddexp(0.0, log_w))


def _correction_after_peak(c: Array, log_fall: Array) -> Array:
    """The term ρ ln(g_p / g(u)) of the lower bound in `step_bounds`.

    ``log_fall`` is ln(g_p / g(u)), the fall of the growth after the peak.
    """
    # R bounds the ratio of g before and after a step. If R may overflow, ρ counts as
    # infinite.
    log_R = 2.0 * c * 4.0 / 27.0
    rho = np.where(log_R < LOG_LARGEST_RATIO, np.expm1(log_R) / log_R, np.inf)
    # If ρ is infinite, its product with zero would be NaN.
    return np.where(np.isinf(rho), rho, rho * log_fall)


def phase_one_bounds(K: float | Array, c: float | Array) -> tuple[Array, Array]:
    r"""Certified bounds on the duration T₁ of Phase I; exchangeable case, N = ∞.

    Phase I ends at the first step at which the target attention is at least ½. Its
    duration satisfies

    .. math:: \frac{F(\tfrac13) - F(\tfrac1K)}{c} \le T_1 \le
        \frac{3 K^2}{2 \eta\gamma} + \ln\frac K3 + 2

    for every K >= 3 and every learning rate η, with F of `flow_time` and
    :math:`\eta\gamma = c (K-1)^2/K`. For K = 2, :math:`T_1 = 0`. See docs/theory.md,
    "Bounds with constants".

    Parameters
    ----------
    K, c
        As for `step_bounds`.

    Returns
    -------
    lower, upper : ndarray
        Bounds on T₁, in steps.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1)
    >>> low, high = icl.regression.phase_one_bounds(20, 0.1 * 2 * 20 / 19**2)
    >>> round(low), run.phases.I[1], round(high)
    (2276, 2724, 3004)
    """
    K = plain_numbers("K", K, least=2.0, most=MOST_FEATURES)
    c = plain_numbers("c", c, least=SMALLEST_CONSTANT, most=LARGEST_CONSTANT)
    # For a tiny c the bounds may be infinite.
    with np.errstate(over="ignore", divide="ignore"):
        # the gap at which a = 1/3
        peak = np.maximum(0.0, np.log(K - 1.0) - math.log(2.0))
        low = flow_difference(np.zeros(K.shape), peak, K) / c
        # ηγ = c (K-1)²/K
        high = 1.5 * K**3 / ((K - 1.0) ** 2 * c) + np.log(K / 3.0) + 2.0
    # The empty index turns an array without dimensions into a number.
    return np.where(K > 2, low, 0.0)[()], np.where(K > 2, high, 0.0)[()]


def after_phase_one(
    K: float | Array, eta: float | Array, epsilon: float | Array
) -> Array:
    r"""Certified upper bound on the steps from the end of Phase I to the loss ε.

    .. math:: T - T_1 \le \tfrac{7}{16}\,\frac{K-1}{\eta\epsilon} + 1

    in the exchangeable case with N = ∞, for every K >= 2, every learning rate η and
    every variogram. Here T is the first step with a loss of at most ε, and :math:`T_1`
    the end of Phase I. As ε tends to 0, T grows like (K-1)/(4ηε). See docs/theory.md,
    "Bounds with constants".

    Parameters
    ----------
    K, eta, epsilon
        As for `simulate`; in embedding coordinates multiply eta by Δ⁴/4, with the
        distance Δ between the features.

    Returns
    -------
    ndarray
        Upper bound on T - T₁, in steps.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 0.1, epsilon=1e-3)
    >>> bound = icl.regression.after_phase_one(20, 0.1, 1e-3)
    >>> run.steps - run.phases.I[1], round(bound)
    (53833, 83126)
    """
    K = plain_numbers("K", K, least=2.0, most=MOST_FEATURES)
    eta = plain_numbers("eta", eta, least=SMALLEST_CONSTANT)
    epsilon = plain_numbers("epsilon", epsilon, least=SMALLEST_CONSTANT)
    # A bound beyond float64 is returned as infinity.
    with np.errstate(over="ignore"):
        steps = 7.0 / 16.0 * (K - 1.0) / eta / epsilon + 1.0
    # The empty index turns an array without dimensions into a number.
    return np.asarray(steps)[()]


def worst_prediction(
    attention: Array, distances: Array, L: float
) -> tuple[float, Array]:
    r"""Largest prediction error of fixed attention over all L-Lipschitz functions.

    .. math:: \max_f \sum_m a_m (f_m - f_k) \quad\text{subject to}\quad
        |f_m - f_j| \le L\,d_{mj}

    The maximum is found by linear programming, for the query k whose feature is the
    first. Only differences of values matter, so that :math:`f_k = 0` may be assumed.

    Parameters
    ----------
    attention : ndarray, (K,)
        Attention on the features, the feature of the query first.
    distances : ndarray, (K, K)
        Distances between the features, in the same order.
    L : float
        Lipschitz constant.

    Returns
    -------
    float
        The largest error, in label units.
    ndarray, (K,)
        Values of a function that attains it.

    Examples
    --------
    >>> import numpy as np, icl_theory as icl
    >>> features = icl.Features.simplex(3, delta=1.0)
    >>> attention = np.array([0.8, 0.15, 0.05])
    >>> error, f = icl.regression.worst_prediction(attention, features.distances, 2.0)
    >>> round(float(error), 12), abs(f).round(12).tolist()
    (0.4, [0.0, 2.0, 2.0])
    """
    # SciPy is slow to load, and most runs do not need it.
    from scipy.optimize import linprog
    from scipy.sparse import eye_array

    attention = real_array("attention", attention, 1)
    distances = real_array("distances", distances, 2)
    K = len(attention)
    if distances.shape != (K, K):
        raise argument_error("distances", distances.shape, f"of shape ({K}, {K})")
    L = number("L", L)
    # Values are measured in units of L times the largest distance, so that the absolute
    # tolerances of the solver become relative ones.
    unit = L * distances.max()
    if unit == 0.0:
        # All values are equal.
        return 0.0, np.zeros(K)
    # All ordered pairs of different features: two inequalities bound |f_m - f_j|.
    first, second = np.nonzero(~np.eye(K, dtype=bool))
    # Row m of the identity matrix selects the value f_m.
    identity = eye_array(K, format="csr")
    value_of_query = (0.0, 0.0)
    unbounded = (None, None)
    # `linprog` minimises, so the error is taken with the opposite sign.
    result = linprog(
        -attention,
        A_ub=identity[first] - identity[second],
        b_ub=L * distances[first, second] / unit,
        bounds=[value_of_query, *[unbounded] * (K - 1)],
        method="highs",
    )
    return -float(result.fun) * float(unit), np.asarray(result.x) * unit


def step_rate(risk: PopulationRisk, eta: float) -> Array:
    r"""Certified rate g_k at which 1/ℓ_k grows in a step of gradient descent.

    Here ℓ_k is the loss of query k, and p_k is the probability of its feature. At the
    attention a_k a step adds at least g_k times the square of a_k to 1/ℓ_k,

    .. math:: \frac{1}{\ell_k(n+1)} \ge \frac{1}{\ell_k(n)} + g_k\,a_k(n)^2, \qquad
        g_k = \Bigl(1 - \frac{\eta\lambda_k}{2}\Bigr) \frac{4\eta p_k K}{K-1}, \quad
        \lambda_k = \kappa\,p_k \max\Gamma

    for N = ∞, every task over K features and all probabilities, with the variogram Γ of
    the task and κ of `curvature_bound`, if :math:`\eta\lambda_k < 2`. See
    docs/tail-laws.md, "One step".

    Parameters
    ----------
    risk : PopulationRisk
        The risk, with N = ∞.
    eta : float
        The learning rate η.

    Returns
    -------
    ndarray, (K,)
        g_k, per squared label unit. If the learning rate is too large for the bound,
        g_k is zero or negative and says nothing.
    """
    instance("risk", risk, PopulationRisk, "a PopulationRisk")
    p = risk.features.probs
    K = risk.features.K
    eta = number("eta", eta, maximum=LARGEST)
    largest_gamma = float(risk.task.variogram(risk.features).max())
    # `curvature_bound` is for K equally likely features, of probability 1/K. For a
    # feature of probability p_k it takes 1/p_k in place of K.
    curvature = curvature_bound(largest_gamma, 1.0 / p)
    return np.asarray((1.0 - 0.5 * eta * curvature) * 4.0 * eta * p * K / (K - 1.0))


def tail_steps(start: float, end: float, c: float, rate: float) -> float:
    r"""Certified bound on the number of steps between two losses of a run; N = ∞.

    The losses are ``start``, which is below c/2, and ``end``. At the loss ℓ the
    attention a is at least 1 - s with :math:`s = \sqrt{2\ell/c}`. With F of
    `flow_time`, and with :math:`s_0` and :math:`s_n` at the first and the last loss,

    .. math:: n \le \frac{4}{c\,g} \bigl[F(1 - s_n) - F(1 - s_0)\bigr]
        + 2 \ln\frac{1 - s_n}{1 - s_0}.

    If ``end`` is a target and not itself a loss of the run, add 1: the first step with
    a loss of at most ``end`` comes at most one step after the bound, because the loss
    one step earlier is larger than ``end``. See docs/tail-laws.md, "One step".

    Parameters
    ----------
    start, end : float
        Losses ℓ_k of the query at two steps of the run, in squared label units.
    c : float
        Non-degeneracy constant of the query; see `Task.nondegeneracy`.
    rate : float
        Certified rate g at which 1/ℓ_k grows; see `step_rate`.

    Returns
    -------
    float
        Largest number of steps between the two losses.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.tail_steps(start=0.5, end=1e-3, c=4.0, rate=0.08), 1)
    13698.3
    """
    start = number("start", start)
    end = number("end", end)
    c = number("c", c)
    rate = number("rate", rate)
    if not end <= start < 0.5 * c:
        raise argument_error(
            "start", start, f"at least end = {end:g} and below c/2 = {0.5 * c:g}"
        )
    s_first = math.sqrt(2.0 * start / c)
    s_last = math.sqrt(2.0 * end / c)
    # A difference of F depends on the two attentions alone, so that any K will do. For
    # two features the gap is ln((1 - s)/s).
    time = flow_difference(_gap_of_two(s_first), _gap_of_two(s_last), K=2.0)
    log_attention_ratio = math.log1p(-s_last) - math.log1p(-s_first)
    return float(4.0 / (c * rate) * time) + 2.0 * log_attention_ratio


def _gap_of_two(s: float) -> Array:
    """The gap u of two features at which the wrong one has the attention s."""
    return np.asarray(math.log1p(-s) - math.log(s))

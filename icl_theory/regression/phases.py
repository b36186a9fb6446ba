r"""Phases and regimes of a run.

The target attention a is the attention on the query's own feature, as a mean over the
prompts that contain this feature. Phase I lasts until a is ½. Phase III is the tail,
in which the loss ℓ falls like 1/t, with the step t, towards its limit ℓ_∞. Phase II
lies between the two. With K features, infinite prompts and the learning rate η, the
*tail ratio* t·(ℓ − ℓ_∞)·4η/(K−1) tends to 1. The tail begins when this ratio falls to 2
for good. In gradient flow one term of the elapsed time grows like 1/s², with the
attention deficit s = 1 − a. When the tail begins, this term is half of the time.

A run is *flat* if it reaches its target before the tail, and *sharp* otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np

from icl_theory._validate import (
    MOST_FEATURES,
    Array,
    argument_error,
    flag,
    fraction,
    instance,
    integer,
    number,
)
from icl_theory.engine.pullback import core_risk
from icl_theory.engine.risk import Risk
from icl_theory.engine.scope import DESCENT_OR_FLOW
from icl_theory.engine.trajectory import Phases, State, Trajectory
from icl_theory.regression.closed.flow import flow_to
from icl_theory.regression.risks.exchangeable import ExchangeableRisk

# In Phase III the tail ratio is at most this number. It is 2, because at the tail ratio
# 2 the term that grows like 1/s² is half of the elapsed time.
TAIL_RATIO = 2.0
# Newton's method for the tail start ends if a step is not above this share of the
# variable w = 1/s². The share is a few times the rounding unit.
NEWTON_TOLERANCE = 1e-15


def tail_start(K: int) -> float:
    r"""Attention deficit s* = 1 - a at which Phase III begins.

    In the exchangeable case with N = ∞ it is the smaller root of :math:`\frac{1}{2s^2}
    = \frac12\,[F(1 - s) - F(1/K)]`, with the function F of `flow_time`, and lies near
    :math:`1/\sqrt{2K}`. The left side is the term of the tail in the elapsed time, and
    the right side is half of this time. For K = 2 there is no root: the tail dominates
    from the start, and s* = 1/2.

    See docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    K : int
        Number of features.

    Returns
    -------
    float
        The deficit s*, between 0 and 1 - 1/K.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.tail_start(20), 4)
    0.0979
    """
    return _tail_start(integer("K", K, minimum=2, maximum=MOST_FEATURES))


@cache
def _tail_start(K: int) -> float:
    """Return the attention deficit s* of `tail_start`, computed once for each K."""
    if K == 2:
        return 0.5
    # With w = 1/s² and Φ(s) = F(1 - s) - F(1/K), the equation is w = Φ. It is nearly
    # linear in w, with d(w - Φ)/dw = 1 - 1/(2a²), so Newton's method solves it. The
    # method starts near the root, which is about 2K for large K. (`flow_to` is Φ.)
    w = 2.0 * K + 8.0
    step = math.inf
    size_before = math.inf
    while abs(step) > NEWTON_TOLERANCE * w:
        s = 1.0 / math.sqrt(w)
        slope = 1.0 - 0.5 / (1.0 - s) ** 2
        step = (w - flow_to(s, K)) / slope
        # If a step of the method is not smaller than the step before it, both steps are
        # due to rounding.
        if abs(step) >= size_before:
            break
        w = w - step
        size_before = abs(step)
    return 1.0 / math.sqrt(w)


def crossover(
    epsilon: float, delta: float, K: int = 20, *, leading_order: bool = False
) -> float:
    r"""Lipschitz constant L* between the flat and the sharp regime.

    Below L* the loss reaches ``epsilon`` before the tail begins. At L* the loss is
    ``epsilon`` at the attention deficit s* of `tail_start`, :math:`L^*\Delta =
    \sqrt{4\epsilon (K-1)/(K s^{*2})}`. At leading order in K, learning to attend takes
    as long as the tail at :math:`L^*\Delta = \sqrt{8\epsilon K^2/(K-1)}`. See
    docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    epsilon, delta, K
        As for `simulate`.
    leading_order : bool
        Return the second expression instead of the first.

    Returns
    -------
    float
        L*, in label units per feature unit.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.crossover(1e-3, 1.0), 4)
    0.6296
    >>> round(icl.regression.crossover(1e-3, 1.0, leading_order=True), 4)
    0.4104
    """
    K = integer("K", K, minimum=2)
    epsilon = number("epsilon", epsilon)
    delta = number("delta", delta)
    if flag("leading_order", leading_order):
        return math.sqrt(8.0 * epsilon) * K / math.sqrt(K - 1.0) / delta
    return math.sqrt(4.0 * epsilon * (K - 1.0) / K) / tail_start(K) / delta


def half_way(epsilon: float, delta: float, K: int = 20) -> float:
    r"""Lipschitz constant at which the exponent d ln T/d ln L of gradient flow is -1.

    T is the time to the target loss, and F the function of `flow_time`. Along the flow
    :math:`c\,T = \Phi(s) = F(1 - s) - F(1/K)`, with the attention deficit :math:`s
    \propto 1/L` at the target and the step constant :math:`c \propto L^2`. Therefore
    :math:`d\ln T/d\ln L = 1/(a^2 s^2 \Phi) - 2`, with a = 1 - s. The exponent is
    half-way between its limits -2 and 0 if :math:`a^2 s^2 \Phi(s) = 1`. With the root s
    of this equation, the Lipschitz constant L has :math:`L\Delta = \sqrt{4\epsilon
    (K-1)/(K s^2)}`. (In `crossover` s is the tail start, which solves :math:`s^2
    \Phi(s) = 1`.) See docs/theory.md, "Where the transition lies".

    Parameters
    ----------
    epsilon, delta : float
        As for `crossover`.
    K : int
        Number of features, at least 7: for fewer the exponent is always above -1.

    Returns
    -------
    float
        The constant, in label units per feature unit.

    Examples
    --------
    >>> import icl_theory as icl
    >>> crossover = icl.regression.crossover(1e-4, 1.0, 20)
    >>> round(icl.regression.half_way(1e-4, 1.0, 20) / crossover, 3)
    0.718
    """
    K = integer("K", K, minimum=7, maximum=MOST_FEATURES)
    epsilon = number("epsilon", epsilon)
    delta = number("delta", delta)
    return math.sqrt(4.0 * epsilon * (K - 1.0) / K) / _half_way_deficit(K) / delta


@cache
def _half_way_deficit(K: int) -> float:
    """Attention deficit at which ``a² s² Φ(s) = 1``, by bisection.

    a = 1 - s is the attention, and Φ(s) = F(1 - s) - F(1/K) is `flow_to`.
    """
    # The left side is a² < 1 at the tail start and, for K >= 7, above 1 at s = 1/3. It
    # crosses 1 once.
    low = tail_start(K)
    high = 1.0 / 3.0
    s = 0.5 * (low + high)
    # The loop ends when low and high are neighbouring numbers of float64.
    while low < s < high:
        if ((1.0 - s) * s) ** 2 * flow_to(s, K) < 1.0:
            low = s
        else:
            high = s
        s = 0.5 * (low + high)
    return high


def papers_regime(L: float, delta: float, imbalance: float) -> str:
    """Regime by the paper's own criterion: "flat" for ``L <= 1/(Δδ)``, else "sharp".

    Unlike `crossover`, this threshold depends neither on the target loss nor on K. It
    depends on the gap Δ between the features and on the imbalance δ of the prompts. The
    first version of the paper states only the order 1/(Δδ) of the threshold; the
    constant 1 is a choice of this library. See docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    L, delta
        As for `simulate`.
    imbalance : float
        δ of the concentration event; see `concentration_probability`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.regression.papers_regime(2.0, 1.0, 0.1)
    'flat'
    >>> icl.regression.papers_regime(20.0, 1.0, 0.1)
    'sharp'
    """
    delta = number("delta", delta)
    imbalance = fraction("imbalance", imbalance)
    return "flat" if number("L", L) * delta * imbalance <= 1.0 else "sharp"


def query_phases(run: Trajectory) -> list[Phases]:
    r"""Phases of every query of a run in which queries differ.

    If the features form groups, these are the phases of one query of every group. For
    query k, Phase I ends at the first step at which the attention on its feature, as a
    mean over the prompts that contain this feature, is at least ½: :math:`E[a_k \mid
    n_k \ge 1] = E[a_k]/(1 - (1 - p_k)^N) \ge 1/2`. The feature has the probability
    :math:`p_k`, and :math:`n_k` tokens of the prompt have it. If the class scores (one
    for each feature and query) are trained, :math:`\eta\,t\,p_k (\ell_k - \inf
    \ell_k)` tends to a constant, which is (K-1)/(4K) for N = ∞ (see `tail_constant`).
    Phase III begins when this quantity, divided by its limit, falls to 2 for good. See
    docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    run : Trajectory
        A run that has an ``attention`` for each query, (T, K). If prompts are finite,
        it must also have its risk.

    Returns
    -------
    list of Phases
        The phases of each query. A query has no Phase III if no tail law is known for
        it, or if its excess falls faster than 1/t.

    Raises
    ------
    ValueError
        All queries of the run have the same phases (see ``run.phases``); or prompts are
        finite, and the run does not have its risk.

    Examples
    --------
    >>> import icl_theory as icl
    >>> run = icl.simulate(2.0, 1.0, 4.0, K=3, probs=[0.6, 0.3, 0.1], epsilon=1e-3)
    >>> [phases.I[1] for phases in icl.regression.query_phases(run)]
    [0, 1, 10]
    """
    instance("run", run, Trajectory, "a run")
    if run.attention.ndim != 2:
        raise argument_error(
            "run",
            run.attention.shape,
            "a run with one attention per query; the phases of this run are in"
            " run.phases",
        )
    if run.risk is None and not math.isinf(run.info.get("N", math.nan)):
        raise argument_error(
            "run",
            "loaded from a file",
            "one with its risk, unless prompts are infinite",
        )
    # Imported here because runs in closed form do not need it.
    from icl_theory.regression.tails import infima_of, tail_limits

    n_queries = run.attention.shape[1]
    # The limits of t times the excess of each query's loss over its floor, the infimum
    # that the run approaches. They are known for gradient descent and its flow only.
    tails = None
    floors = np.zeros(n_queries)
    if run.risk is not None and DESCENT_OR_FLOW.applies(run):
        tails = tail_limits(run.risk, run.eta)
        if tails is not None:
            floors = infima_of(run.risk)
    # The attention of a run is a mean over all prompts. It is compared with half of the
    # probability that a prompt contains the query's feature.
    half_attention = np.broadcast_to(0.5 * _presence(run.risk), (n_queries,))
    phases = []
    for k in range(n_queries):
        tail = None if tails is None else float(tails[k])
        phases.append(
            _phases_of_query(run, k, float(half_attention[k]), floors[k], tail)
        )
    return phases


def _phases_of_query(
    run: Trajectory, k: int, half_attention: float, floor: float, tail: float | None
) -> Phases:
    """Return the phases of query k.

    Phase I ends when the attention of the query reaches ``half_attention``. The excess
    of its loss over ``floor``, times t, tends to ``tail``; ``tail`` is None if this
    limit is not known.
    """

    def excess(state: State) -> float:
        return float(state.observed["loss_per_query"][k] - floor)

    attends = run.first(lambda state: bool(state.attention[k] >= half_attention))
    tail_begins = None
    if tail is not None and tail > 0.0:
        saved_excess = run.observed["loss_per_query"][:, k] - floor
        tail_begins = _tail_begins(run, saved_excess, excess, tail)
    return phases_of(int(run.t[-1]), attends, tail_begins)


def _tail_begins(
    run: Trajectory, saved_excess: Array, excess: Callable[[State], float], tail: float
) -> int | None:
    """First step from which t times an excess is at most twice its limit ``tail``.

    ``saved_excess`` has the excess at the saved steps ``run.t``, and ``excess`` returns
    the excess of any state. If t times the excess rises above twice the limit again,
    this rise is noticed only if it lasts to a saved step.
    """
    steps_above = run.t[run.t * saved_excess > TAIL_RATIO * tail]
    last_above = 0
    if steps_above.size:
        last_above = int(steps_above[-1])
    # `first` finds the first step, also between two saved ones, at which the condition
    # holds; None if there is none.
    return run.first(
        lambda state: bool(state.t * excess(state) <= TAIL_RATIO * tail),
        after=last_above,
    )


def _presence(risk: Risk | None) -> Array:
    """Probability that a prompt contains the query's feature.

    It is an array of shape (K,) for K features and (G,) for G groups. It has the shape
    () for exchangeable queries, whose probabilities are equal, and is 1 for a risk that
    is not over features.
    """
    # Imported here because runs in closed form do not need them.
    from icl_theory.regression.risks.population import PopulationRisk
    from icl_theory.regression.risks.prompts import presence
    from icl_theory.regression.risks.symmetric import SymmetricRisk

    core = core_risk(risk)  # the risk inside all changes of coordinates
    if isinstance(core, ExchangeableRisk):
        return presence(np.asarray(1.0 / core.K), core.N)
    if isinstance(core, PopulationRisk | SymmetricRisk):
        return presence(core.probs, core.N)
    return np.ones(())


def phases_of(last: int, attends: int | None, tail_begins: int | None) -> Phases:
    """Return the phases of a run that ends at step ``last``.

    Parameters
    ----------
    last : int
        The last step.
    attends : int or None
        The step at which Phase I ends; None if it lasts to the end of the run. Steps
        after ``last`` count as ``last``, here and below.
    tail_begins : int or None
        The step at which Phase III begins; None if the run has no Phase III.
    """
    end_of_phase_1 = last if attends is None else min(attends, last)
    # A missing Phase III is taken to begin where the run ends. If the tail begins
    # before Phase I ends, Phase II has no steps, and Phase III follows Phase I.
    start_of_phase_3 = last
    if tail_begins is not None:
        start_of_phase_3 = max(end_of_phase_1, min(tail_begins, last))
    phase_2 = None
    if end_of_phase_1 < last:
        phase_2 = (end_of_phase_1, start_of_phase_3)
    phase_3 = None
    if start_of_phase_3 < last:
        phase_3 = (start_of_phase_3, last)
    return Phases(I=(0, end_of_phase_1), II=phase_2, III=phase_3)


def run_phases(
    run: Trajectory, tail: float | None, tail_deficit: float | None = None
) -> Phases:
    """Return the phases of any run, found from its states.

    At each step, the attention of the run is the least attention of a query, as a mean
    over the prompts that contain its feature.

    Parameters
    ----------
    run : Trajectory
        A run with ``attention`` among its observations.
    tail : float or None
        Limit of t times the excess of the loss; see ``tail_limit``. If it and
        ``tail_deficit`` are None, Phase II lasts to the end of the run.
    tail_deficit : float, optional
        Attention deficit 1 - a at which Phase III begins, if it is known; see
        `tail_start`. It is used instead of ``tail``.

    Returns
    -------
    Phases
        Intervals of steps that cover the run.
    """
    if tail is not None:
        tail = number("tail", tail, zero=True)
    if tail_deficit is not None:
        tail_deficit = fraction("tail_deficit", tail_deficit)
    if not instance("run", run, Trajectory, "a run").attention.size:
        raise argument_error("run", run.stop_reason, "one with an attention")
    presence = _presence(run.risk)

    def first_with_attention(a: float) -> int | None:
        # A run records the mean attention over all prompts. Divided by the probability
        # that a prompt contains the feature, it is the mean over these prompts.
        return run.first(lambda state: bool(np.min(state.attention / presence) >= a))

    attends = first_with_attention(0.5)
    tail_begins = None
    if attends is not None and tail_deficit is not None:
        tail_begins = first_with_attention(1.0 - tail_deficit)
    elif attends is not None and tail is not None:
        # Imported here because runs in closed form do not need it.
        from icl_theory.regression.tails import resting_loss

        # The loss that the run tends to, which may be above the floor
        rest = resting_loss(run.risk, run.floor)
        tail_begins = _tail_begins(
            run, run.loss - rest, lambda state: state.loss - rest, tail
        )
    return phases_of(int(run.t[-1]), attends, tail_begins)

r"""Phases and regimes, defined on the exact solution.

Phase I lasts until the target attention, on prompts that contain the query's feature,
is ½. Phase III is the tail in which the loss falls like 1/t, and Phase II lies between
the two. In the tail t·(ℓ − ℓ_∞)·4η/(K−1) → 1; the tail begins when this *tail ratio*
falls to 2 for good. In the flow solution the term that grows like 1/s² then makes up
half of the elapsed time.
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

TAIL_RATIO = (
    2.0  # times its limit the loss may be in Phase III: see the head of the module
)


def tail_start(K: int) -> float:
    r"""Attention deficit s* = 1 - a at which Phase III begins in the exchangeable case with N = ∞.

    The smaller root of :math:`\frac{1}{2s^2} = \frac12\,[F(1 - s) - F(1/K)]`, see
    `flow_time`; it lies near :math:`1/\sqrt{2K}`. For K = 2 there is no root: the tail
    term dominates from the start, and s* = 1/2.

    See docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    K : int
        Number of features.

    Returns
    -------
    float
        Between 0 and 1 - 1/K.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.tail_start(20), 4)
    0.0979
    """
    return _tail_start(integer("K", K, minimum=2, maximum=MOST_FEATURES))


@cache
def _tail_start(K: int) -> float:
    if K == 2:
        return 0.5
    # Newton's method in w = 1/s², in which the equation is nearly linear: d(w - Φ)/dw =
    # 1 - 1/(2a²)
    w = 2.0 * K + 8.0
    step = math.inf
    before = math.inf
    while abs(step) > 1e-15 * w:
        s = 1.0 / math.sqrt(w)
        step = (w - flow_to(s, K)) / (1.0 - 0.5 / (1.0 - s) ** 2)
        if abs(step) >= before:  # only rounding is left
            break
        w = w - step
        before = abs(step)
    return 1.0 / math.sqrt(w)


def crossover(
    epsilon: float, delta: float, K: int = 20, *, leading_order: bool = False
) -> float:
    r"""Lipschitz constant L* between the flat and the sharp regime.

    Below L* the loss reaches ``epsilon`` before the tail begins: at L* the loss is
    ``epsilon`` at the attention deficit s* of `tail_start`, :math:`L^*\Delta =
    \sqrt{4\epsilon (K-1)/(K s^{*2})}`. At leading order in K learning to attend and the
    tail take equally long at :math:`L^*\Delta = \sqrt{8\epsilon K^2/(K-1)}`. See
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
        L*, label units per feature unit.

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
    r"""Lipschitz constant at which the local exponent d ln T/d ln L of gradient flow is -1.

    Along the flow :math:`c\,T = \Phi(s) = F(1 - s) - F(1/K)` with :math:`s \propto 1/L`
    and :math:`c \propto L^2`, so that :math:`d\ln T/d\ln L = 1/(a^2 s^2 \Phi) - 2`,
    half-way between its limits -2 and 0 where :math:`a^2 s^2 \Phi(s) = 1`. The tail
    start of `crossover` solves :math:`s^2 \Phi(s) = 1`. See docs/theory.md, "Where the
    transition lies".

    Parameters
    ----------
    epsilon, delta : float
        As for `crossover`.
    K : int
        Number of features, at least 7: for fewer the exponent is always above -1.

    Returns
    -------
    float
        Label units per feature unit.

    Examples
    --------
    >>> import icl_theory as icl
    >>> round(icl.regression.half_way(1e-4, 1.0, 20) / icl.regression.crossover(1e-4, 1.0, 20), 3)
    0.718
    """
    K = integer("K", K, minimum=7, maximum=MOST_FEATURES)
    epsilon = number("epsilon", epsilon)
    delta = number("delta", delta)
    return math.sqrt(4.0 * epsilon * (K - 1.0) / K) / _half_way(K) / delta


@cache
def _half_way(K: int) -> float:
    """Attention deficit at which ``a² s² Φ(s) = 1``, by bisection down to neighbouring numbers."""
    # the left side is a² < 1 at the tail start and, for K >= 7, above 1 at s = 1/3; it
    # crosses 1 once
    low = tail_start(K)
    high = 1.0 / 3.0
    while low < (s := 0.5 * (low + high)) < high:
        low, high = (
            (s, high) if ((1.0 - s) * s) ** 2 * flow_to(s, K) < 1.0 else (low, s)
        )
    return high


def papers_regime(L: float, delta: float, imbalance: float) -> str:
    """Regime by the paper's own criterion with the constant 1: "flat" for ``L <= 1/(Δδ)``, else "sharp".

    Unlike `crossover` it depends neither on the target loss nor on K: it compares L
    with the imbalance of the prompts. The first version of the paper states the order
    1/(Δδ) of the threshold; the constant 1 is ours. See docs/theory.md, "Phases and
    regimes".

    Parameters
    ----------
    L, delta
        As for `simulate`.
    imbalance : float
        δ of the concentration event, see `concentration_probability`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.regression.papers_regime(2.0, 1.0, 0.1), icl.regression.papers_regime(20.0, 1.0, 0.1)
    ('flat', 'sharp')
    """
    delta = number("delta", delta)
    imbalance = fraction("imbalance", imbalance)
    return "flat" if number("L", L) * delta * imbalance <= 1.0 else "sharp"


def query_phases(run: Trajectory) -> list[Phases]:
    r"""Phases of every query, or of one query of every group, of a run in which queries differ.

    Query k attends from the first step with :math:`E[a_k \mid n_k \ge 1] = E[a_k]/(1 -
    (1 - p_k)^N) \ge 1/2`, the attention on prompts that contain its feature. Over class
    scores :math:`\eta\,t\,p_k (\ell_k - \inf \ell_k)` tends to a constant, which is
    (K-1)/(4K) for N = ∞ (see `tail_constant`); Phase III begins when its ratio to that
    constant falls to 2 for good. See docs/theory.md, "Phases and regimes".

    Parameters
    ----------
    run : Trajectory
        A run with ``attention`` per query, (T, K), and with its risk if prompts are
        finite.

    Returns
    -------
    list of Phases
        One entry for each query, without Phase III if no tail law is known or the
        excess falls faster.

    Raises
    ------
    ValueError
        All queries of the run are alike (see ``run.phases``), or it is of finite
        prompts and without its risk.

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
            "one with an attention per query; for this one see run.phases",
        )
    if run.risk is None and not math.isinf(run.info.get("N", math.nan)):
        raise argument_error(
            "run",
            "loaded from a file",
            "one with its risk, unless prompts are infinite",
        )
    from icl_theory.regression.tails import infima_of, tail_limits

    tail = (
        tail_limits(run.risk, run.eta)
        if run.risk is not None and DESCENT_OR_FLOW.applies(run)
        else None
    )
    floors = (
        infima_of(run.risk)
        if run.risk is not None and tail is not None
        else np.zeros(run.attention.shape[1])
    )
    half = np.broadcast_to(0.5 * _presence(run.risk), run.attention.shape[1:])

    def phases(k: int) -> Phases:
        def excess(state: State) -> float:
            return float(state.observed["loss_per_query"][k] - floors[k])

        first = run.first(lambda state: bool(state.attention[k] >= half[k]))
        second = None
        if tail is not None and tail[k] > 0.0:
            second = _tail_begins(
                run, run.observed["loss_per_query"][:, k] - floors[k], excess, tail[k]
            )
        return phases_of(int(run.t[-1]), first, second)

    return [phases(k) for k in range(run.attention.shape[1])]


def _tail_begins(
    run: Trajectory, saved: Array, excess: Callable[[State], float], tail: float
) -> int | None:
    """First step from which t times an excess is at most twice its limit; ``saved`` is the excess at ``run.t``."""
    above = run.t[run.t * saved > TAIL_RATIO * tail]
    last = int(above[-1]) if above.size else 0
    return run.first(
        lambda state: bool(state.t * excess(state) <= TAIL_RATIO * tail), after=last
    )


def _presence(risk: Risk | None) -> Array:
    """Probability that a prompt contains the query's feature, (K,), (G,) or (); 1 for other risks."""
    from icl_theory.regression.risks.population import PopulationRisk
    from icl_theory.regression.risks.prompts import presence
    from icl_theory.regression.risks.symmetric import SymmetricRisk

    risk = core_risk(risk)
    if isinstance(risk, ExchangeableRisk):
        return presence(np.asarray(1.0 / risk.K), risk.N)
    return (
        presence(risk.probs, risk.N)
        if isinstance(risk, PopulationRisk | SymmetricRisk)
        else np.ones(())
    )


def phases_of(last: int, first: int | None, second: int | None) -> Phases:
    """Make phases of the end of Phase I and the start of Phase III; None means after the end of the run."""
    first = last if first is None else min(first, last)
    second = last if second is None else max(first, min(second, last))
    further = (first, second) if first < last else None
    tail = (second, last) if second < last else None
    return Phases(I=(0, first), II=further, III=tail)


def run_phases(
    run: Trajectory, tail: float | None, tail_deficit: float | None = None
) -> Phases:
    """Phases of any run, from its states; the attention is that of the slowest query on prompts with its feature.

    Parameters
    ----------
    run : Trajectory
        With ``attention`` among its observations.
    tail : float or None
        Limit of t·(loss − floor), see `tail_constant`; if None, Phase II lasts to the
        end.
    tail_deficit : float, optional
        Attention deficit at which Phase III begins, if known (see `tail_start`).

    Returns
    -------
    Phases
        Intervals of steps that cover the run.
    """
    tail = None if tail is None else number("tail", tail, zero=True)
    tail_deficit = (
        None if tail_deficit is None else fraction("tail_deficit", tail_deficit)
    )
    if not instance("run", run, Trajectory, "a run").attention.size:
        raise argument_error("run", run.stop_reason, "one with an attention")
    present = _presence(run.risk)
    first = run.first(lambda state: bool(np.min(state.attention / present) >= 0.5))
    second = None
    if first is not None and tail_deficit is not None:
        second = run.first(
            lambda state: bool(np.min(state.attention / present) >= 1.0 - tail_deficit)
        )
    elif first is not None and tail is not None:
        from icl_theory.regression.tails import resting_loss

        rest = resting_loss(run.risk, run.floor)
        second = _tail_begins(
            run, run.loss - rest, lambda state: state.loss - rest, tail
        )
    return phases_of(int(run.t[-1]), first, second)

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

# In Phase III the loss is at most this many times its limit, see above.
TAIL_RATIO = 2.0


def tail_start(K: int) -> float:
    r"""Attention deficit s* = 1 - a at which Phase III begins.

    In the exchangeable case with N = ∞ it is the smaller root of
    :math:`\frac{1}{2s^2} = \frac12\,[F(1 - s) - F(1/K)]`, see `flow_time`, and lies
    near :math:`1/\sqrt{2K}`. For K = 2 there is no root: the tail term dominates from
    the start, and s* = 1/2.

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
    # Newton's method for w = Φ in w = 1/s², in which the equation is nearly linear:
    # d(w - Φ)/dw = 1 - 1/(2a²).
    w = 2.0 * K + 8.0
    step = math.inf
    size_before = math.inf
    while abs(step) > 1e-15 * w:
        s = 1.0 / math.sqrt(w)
        slope = 1.0 - 0.5 / (1.0 - s) ** 2
        step = (w - flow_to(s, K)) / slope
        # Steps that no longer shrink are rounding.
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
    r"""Lipschitz constant at which the exponent d ln T/d ln L of gradient flow is -1.

    Along the flow :math:`c\,T = \Phi(s) = F(1 - s) - F(1/K)` with :math:`s \propto 1/L`
    and :math:`c \propto L^2`, so that :math:`d\ln T/d\ln L = 1/(a^2 s^2 \Phi) - 2`.
    This is half-way between its limits -2 and 0 if :math:`a^2 s^2 \Phi(s) = 1`. The
    tail start of `crossover` solves :math:`s^2 \Phi(s) = 1`. See docs/theory.md, "Where
    the transition lies".

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
    >>> crossover = icl.regression.crossover(1e-4, 1.0, 20)
    >>> round(icl.regression.half_way(1e-4, 1.0, 20) / crossover, 3)
    0.718
    """
    K = integer("K", K, minimum=7, maximum=MOST_FEATURES)
    epsilon = number("epsilon", epsilon)
    delta = number("delta", delta)
    return math.sqrt(4.0 * epsilon * (K - 1.0) / K) / _half_way(K) / delta


@cache
def _half_way(K: int) -> float:
    """Attention deficit at which ``a² s² Φ(s) = 1``, by bisection."""
    # The left side is a² < 1 at the tail start and, for K >= 7, above 1 at s = 1/3. It
    # crosses 1 once.
    low = tail_start(K)
    high = 1.0 / 3.0
    s = 0.5 * (low + high)
    # until the two are neighbouring numbers
    while low < s < high:
        if ((1.0 - s) * s) ** 2 * flow_to(s, K) < 1.0:
            low = s
        else:
            high = s
        s = 0.5 * (low + high)
    return high


def papers_regime(L: float, delta: float, imbalance: float) -> str:
    """Regime by the paper's own criterion: "flat" for ``L <= 1/(Δδ)``, else "sharp".

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

    If features form groups, they are the phases of one query of every group. Query k
    attends from the first step with :math:`E[a_k \mid n_k \ge 1] = E[a_k]/(1 - (1 -
    p_k)^N) \ge 1/2`, the attention on prompts that contain its feature. Over class
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
        One entry for each query. It has no Phase III if no tail law is known, or if the
        excess falls faster than 1/t.

    Raises
    ------
    ValueError
        All queries of the run have the same phases (see ``run.phases``), or the run is
        of finite prompts and without its risk.

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

    queries = run.attention.shape[1]
    tails = None
    floors = np.zeros(queries)
    if run.risk is not None and DESCENT_OR_FLOW.applies(run):
        tails = tail_limits(run.risk, run.eta)
        if tails is not None:
            floors = infima_of(run.risk)
    half = np.broadcast_to(0.5 * _presence(run.risk), run.attention.shape[1:])
    phases = []
    for k in range(queries):
        tail = None if tails is None else float(tails[k])
        phases.append(_phases_of_query(run, k, float(half[k]), floors[k], tail))
    return phases


def _phases_of_query(
    run: Trajectory, k: int, half: float, floor: float, tail: float | None
) -> Phases:
    """Phases of query k.

    It attends when its attention is ``half``. Its excess over ``floor`` times t tends
    to ``tail``, if that is known.
    """

    def excess(state: State) -> float:
        return float(state.observed["loss_per_query"][k] - floor)

    attends = run.first(lambda state: bool(state.attention[k] >= half))
    tail_begins = None
    if tail is not None and tail > 0.0:
        saved_excess = run.observed["loss_per_query"][:, k] - floor
        tail_begins = _tail_begins(run, saved_excess, excess, tail)
    return phases_of(int(run.t[-1]), attends, tail_begins)


def _tail_begins(
    run: Trajectory, saved: Array, excess: Callable[[State], float], tail: float
) -> int | None:
    """First step from which t times an excess is at most twice its limit, for good.

    ``saved`` is the excess at ``run.t``.
    """
    above = run.t[run.t * saved > TAIL_RATIO * tail]
    last_above = int(above[-1]) if above.size else 0
    return run.first(
        lambda state: bool(state.t * excess(state) <= TAIL_RATIO * tail),
        after=last_above,
    )


def _presence(risk: Risk | None) -> Array:
    """Probability that a prompt contains the query's feature, (K,), (G,) or ().

    It is 1 for risks that are not over features.
    """
    from icl_theory.regression.risks.population import PopulationRisk
    from icl_theory.regression.risks.prompts import presence
    from icl_theory.regression.risks.symmetric import SymmetricRisk

    core = core_risk(risk)
    if isinstance(core, ExchangeableRisk):
        return presence(np.asarray(1.0 / core.K), core.N)
    if isinstance(core, PopulationRisk | SymmetricRisk):
        return presence(core.probs, core.N)
    return np.ones(())


def phases_of(last: int, first: int | None, second: int | None) -> Phases:
    """Make phases of a run that ends at step ``last``.

    Parameters
    ----------
    last : int
        The last step.
    first, second : int or None
        End of Phase I and start of Phase III; None if the run ends before.
    """
    first = last if first is None else min(first, last)
    second = last if second is None else max(first, min(second, last))
    return Phases(
        I=(0, first),
        II=(first, second) if first < last else None,
        III=(second, last) if second < last else None,
    )


def run_phases(
    run: Trajectory, tail: float | None, tail_deficit: float | None = None
) -> Phases:
    """Phases of any run, from its states.

    The attention is that of the slowest query, on prompts with its feature.

    Parameters
    ----------
    run : Trajectory
        A run with ``attention`` among its observations.
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
    if tail_deficit is not None:
        tail_deficit = fraction("tail_deficit", tail_deficit)
    if not instance("run", run, Trajectory, "a run").attention.size:
        raise argument_error("run", run.stop_reason, "one with an attention")
    present = _presence(run.risk)

    def first_with_attention(a: float) -> int | None:
        return run.first(lambda state: bool(np.min(state.attention / present) >= a))

    attends = first_with_attention(0.5)
    tail_begins = None
    if attends is not None and tail_deficit is not None:
        tail_begins = first_with_attention(1.0 - tail_deficit)
    elif attends is not None and tail is not None:
        from icl_theory.regression.tails import resting_loss

        rest = resting_loss(run.risk, run.floor)
        tail_begins = _tail_begins(
            run, run.loss - rest, lambda state: state.loss - rest, tail
        )
    return phases_of(int(run.t[-1]), attends, tail_begins)

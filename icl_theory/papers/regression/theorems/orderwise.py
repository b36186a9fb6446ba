"""Order-of-magnitude statements of the regression paper, tested on random runs.

A statement compares a *measured* quantity of a run with a *scale*, the expression
inside O(...) or Θ(...), which we reconstructed. A rate is how far a score moves in some
steps, divided by their number; it is measured at several points of a phase. Runs are
drawn from a law of their parameters: `fitted_constants` fits the constants to runs from
the inner part of the law (`INNER`), and `survey` tests them on runs of the whole law
(`WHOLE`).

Letters: K features have the smallest distance Δ, called their gap, and functions are
L-Lipschitz. In the exchangeable class all pairs of features have the same variogram
γ = L²Δ²/2, half of the mean squared difference of two values. In a step at the learning
rate η, the score S_kk of the own feature of query k grows by η α_k, and its score S_mk
of another feature m by η β_mk. The gap between the two scores is u, and the attention
on the query's own feature is Attn. The step constant is c = ηγK/(K-1)². Prompts have N
tokens, and their imbalance is δ: the paper calls the regime flat for L <= 1/(Δδ), and
sharp for larger L. Phase I ends at T₁, the first step with Attn >= ½. A run ends at T,
the first step with a loss of at most ε. T is called T_f in the flat regime and T_s in
the sharp one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, wraps
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory import regression
from icl_theory._validate import INT64_MAX, Array, set_fields
from icl_theory.engine.scope import DESCENT, Scope
from icl_theory.statements.statement import (
    BoundCheck,
    Statement,
    Status,
    UnstatedError,
    require,
)

if TYPE_CHECKING:
    from icl_theory.regression.closed.runs import CountedRuns

# A ratio may be beyond the fitted constants by this factor and still count as bounded.
# The factor, the ranges of the laws and the seeds were fixed before the first runs.
BOUNDED = 2.0
# How many runs are drawn of a law, and the seeds of both laws.
DRAWS = 400
SEED = 0
INNER_SEED = 1
# Names of the ranges of a `Law`, in their order.
PARAMETERS = ("K", "δ", "ε/loss(0)", "c", "LΔδ")

# A rate is measured at this many values of the gap u in a phase, both ends among them.
# In a phase a rate rises and falls at most once, so fewer values would be enough.
RATE_NODES = 17
# A rate is measured over about this distance in u, or over one step if steps are
# longer. The rounding error of u, up to some 1e-14, is 1e-11 of this distance, and the
# rate changes by at most 0.2 % over it. The first rate of a phase is always measured
# over one step.
RATE_WINDOW = 1e-3
# The rates of one phase are kept for this many sets of runs. There is a set for the
# whole law, one for its inner part, and one for each value of a limit in which a
# statement about these rates fails: at most 14 sets.
KEPT_RESULTS = 16
# Scales below this are near the end of the range of float64.
SMALLEST_SCALE = 1e-290


# ---- laws of runs


class Law(NamedTuple):
    """Ranges from which runs are drawn, uniformly in logarithms.

    Attributes
    ----------
    K : tuple of float
        Least and largest number of features.
    imbalance : tuple of float
        Least and largest δ.
    target : tuple of float
        Least and largest ε, divided by the loss at the start.
    step : tuple of float
        Least and largest step constant c = η γ K/(K-1)².
    product : tuple of float
        Least and largest L Δ δ. The product is below 1 in every second run, and above 1
        in all others.
    """

    K: tuple[float, float]
    imbalance: tuple[float, float]
    target: tuple[float, float]
    step: tuple[float, float] = (1e-3, 1.0)
    product: tuple[float, float] = (1e-3, 1e2)

    def __str__(self) -> str:
        """Return the ranges in words, as "K = 2..30, ..."."""
        ranges = []
        for name, (low, high) in zip(PARAMETERS, self, strict=True):
            ranges.append(f"{name} = {low:g}..{high:g}")
        return ", ".join(ranges)


WHOLE = Law(K=(2, 1e4), imbalance=(1e-3, 0.3), target=(1e-9, 0.2))
INNER = Law(K=(2, 30), imbalance=(3e-2, 0.3), target=(1e-3, 0.2))


def draw(law: Law, seed: int) -> CountedRuns:
    """Draw ``DRAWS`` runs of a law, and count their steps in closed form."""
    rng = np.random.default_rng(seed)

    def log_uniform(low: Array | float, high: Array | float) -> Array:
        """Draw a number for each run, uniformly in its logarithm, (DRAWS,)."""
        return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), DRAWS)))

    K = np.floor(log_uniform(*law.K))
    imbalance = log_uniform(*law.imbalance)
    # L Δ δ = 1 separates the flat regime from the sharp one: draw both equally often.
    is_flat = np.arange(DRAWS) % 2 == 0
    lowest_product, highest_product = law.product
    product = log_uniform(
        np.where(is_flat, lowest_product, 1.0), np.where(is_flat, 1.0, highest_product)
    )
    size = product / imbalance  # LΔ
    gamma = 0.5 * size**2
    # η follows from c = η γ K/(K-1)². ε follows from the loss at the start, where the
    # attention is 1/K: it is ½ γ (K-1)/K.
    eta = log_uniform(*law.step) * (K - 1.0) ** 2 / (K * gamma)
    epsilon = log_uniform(*law.target) * 0.5 * gamma * (K - 1.0) / K
    return counted_runs(size, eta, K, epsilon, imbalance)


def counted_runs(
    size: Array, eta: Array, K: Array, epsilon: Array, imbalance: Array
) -> CountedRuns:
    """Count the steps of runs in closed form.

    All arguments are (runs,); ``size`` is L Δ. The runs are on exchangeable tasks with
    γ = L²Δ²/2 and N = ∞, and train the scores themselves.
    """
    # Loaded here, because a list of the statements does not need them.
    from icl_theory.regression.closed.runs import (
        CountedRuns,
        closed_runs,
        step_constant,
    )

    gamma = 0.5 * size**2
    # The factor on η for trained coordinates; for the scores themselves it is 1.
    speed = 1.0
    counter = regression.StepCounter(K, step_constant(eta, speed, gamma, K))
    # `closed_runs` takes the deficit 1 - Attn at which the tail begins. The step at
    # which it begins is not used here, so any deficit will do.
    tail = np.full(K.size, 0.5)
    counts = closed_runs(counter, gamma, epsilon, INT64_MAX, tail)
    return CountedRuns(
        size=size,
        eta=eta,
        K=K,
        epsilon=epsilon,
        imbalance=imbalance,
        counter=counter,
        attends=counts.attends,
        steps=counts.hit,
    )


@cache
def law_runs() -> CountedRuns:
    """Return the runs of the whole law, on which the audit tests the constants."""
    return draw(WHOLE, SEED)


# ---- what a statement is


class Range(NamedTuple):
    """Least and largest value of a measured quantity in a phase, for each run."""

    low: Array  # (runs,)
    high: Array  # (runs,)


class Ratios(NamedTuple):
    """Least and largest ratio of the measured quantity to the scale, for each run.

    These ratios are the extremes over the phase of the run. The ratios are NaN for runs
    to which the statement does not apply.
    """

    low: Array  # (runs,)
    high: Array  # (runs,)


class Constants(NamedTuple):
    """The fitted constants of an order of magnitude.

    They are the smallest and the largest ratio of the measured quantity to the scale,
    over the runs to which they are fitted.
    """

    lowest: float
    highest: float


class Extremes(NamedTuple):
    """Least and largest ratio over the phases of many runs."""

    least: float
    largest: float


class Limit(NamedTuple):
    """A limit in which an order of magnitude fails as an upper or as a lower bound.

    Attributes
    ----------
    words : str
        The limit, for example "ε ≪ (LΔδ)²", and possibly why the statement fails in it.
    quantity : str
        The quantity that tends to the limit, for example "ε/(LΔδ)²".
    values : tuple of float
        Values of the quantity at which ratios are measured, the last one nearest to the
        limit.
    at : callable
        Takes runs and a value, and returns the runs with this value of the quantity.
    """

    words: str
    quantity: str
    values: tuple[float, ...]
    at: Callable[[CountedRuns, float], CountedRuns]


Measure = Callable[["CountedRuns"], Range]


@dataclass(frozen=True)
class OrderStatement(Statement):
    """One statement: the measured quantity, its scale, and the regime of the claim.

    Attributes
    ----------
    upper_only : bool
        Whether the statement is O(...) and not Θ(...).
    measure : callable
        Takes runs, and returns the `Range` of the measured quantity.
    scale : callable
        Takes runs, and returns the expression in O(...) or Θ(...), (runs,).
    flat : bool, optional
        The statement is claimed for L <= 1/(Δδ) if True, for L > 1/(Δδ) if False, and
        for every L if None.
    rises : Limit, optional
        The limit in which the ratio of the measured quantity to the scale grows without
        bound. None if there is no such limit.
    falls : Limit, optional
        The limit in which this ratio tends to zero. None if there is no such limit.
    """

    kind: str = field(default="order-wise", kw_only=True)
    status: Status = field(default=Status.ORDER, kw_only=True)
    scope: Scope | None = field(default=DESCENT, kw_only=True)
    upper_only: bool
    measure: Measure
    scale: Callable[[CountedRuns], Array]
    flat: bool | None = None
    rises: Limit | None = field(default=None, kw_only=True)
    falls: Limit | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        # `Statement.check` calls ``sides`` to measure the statement on a run.
        set_fields(self, sides=lambda run: _sides(self, run))


# ---- measured quantities


def _gap(K: Array, deficit: Array) -> Array:
    """Return the gap u at which 1 - Attn is equal to ``deficit``.

    Attn = 1/(1 + (K-1) e^-u) is solved for u.
    """
    return np.log(K - 1.0) + np.log1p(-deficit) - np.log(deficit)


def _rates(
    runs: CountedRuns, begin: NDArray[np.int64], end: NDArray[np.int64], top: Array
) -> Range:
    """Return the least and the largest rate in a phase, η α_k, for each run.

    A rate is the move of the score of the query's own feature in a step. The phase
    consists of the steps in [begin, end) with u < top; all three are (runs,). A rate is
    measured over one step, or over a small distance in u if steps are shorter than
    that. Runs without a step in the phase have NaN.
    """
    windows = _rate_windows(runs, begin, end, top)
    counter = runs.counter
    # INT64_MAX stands for the number of a step that a run never reaches.
    is_inside = (windows.last > windows.first) & (windows.last < INT64_MAX)
    # Windows outside of the phase are replaced by the window from step 0 to step 1,
    # whose rate is not used.
    first = np.where(is_inside, windows.first, 0)
    last = np.where(is_inside, windows.last, 1)
    # `position` returns the gaps u after numbers of steps.
    gap_move = counter.position(last) - counter.position(first)
    # The score of the query's own feature is S_kk = u (K-1)/K.
    rate = (runs.K - 1.0) / runs.K * gap_move / (last - first)

    least = np.where(is_inside, rate, np.inf).min(axis=0)
    largest = np.where(is_inside, rate, -np.inf).max(axis=0)
    has_phase = is_inside.any(axis=0)
    return Range(
        np.where(has_phase, least, np.nan), np.where(has_phase, largest, np.nan)
    )


class _Windows(NamedTuple):
    """First and last step between which rates are measured, (RATE_NODES, runs)."""

    first: NDArray[np.int64]
    last: NDArray[np.int64]


def _rate_windows(
    runs: CountedRuns, begin: NDArray[np.int64], end: NDArray[np.int64], top: Array
) -> _Windows:
    """Return steps of the phase between which rates are measured.

    The arguments have the same meaning as in ``_rates``. Each window belongs to a node,
    which is one of several equidistant gaps u. The window of the first node is the
    first step of the phase. Every other window ends at the first iterate at or beyond
    its node, and is about ``RATE_WINDOW`` long in u, because the rate over a single
    short step would lose digits to cancellation. If steps are longer, it is one step.
    """
    counter = runs.counter
    start = counter.position(begin)
    fractions = np.linspace(0.0, 1.0, RATE_NODES)[:, None]
    nodes = start + fractions * (top - start)  # (RATE_NODES, runs)

    # `steps_to` returns the first steps at which the gap is at least these gaps. No
    # window begins before the phase or ends after it.
    phase_end = np.minimum(counter.steps_to(top).steps, end)
    last_step_of_phase = np.maximum(phase_end - 1, begin)
    window_begin = counter.steps_to(nodes - RATE_WINDOW).steps
    # The first node is at `begin`, so that its window is clipped to one step.
    first = np.clip(window_begin, begin, last_step_of_phase)
    last = np.maximum(counter.steps_to(nodes).steps, first + 1)
    return _Windows(first, np.minimum(last, phase_end))


def _kept(measure: Measure) -> Measure:
    """Return a measure that keeps its results for ``KEPT_RESULTS`` sets of runs.

    Several statements are about the same rates of the same runs, and each rate takes
    long to measure. Sets of runs count as the same set only if they are the same
    object.
    """
    results: list[tuple[CountedRuns, Range]] = []

    @wraps(measure)
    def kept_measure(runs: CountedRuns) -> Range:
        for kept_runs, kept_result in results:
            if kept_runs is runs:
                return kept_result
        result = measure(runs)
        results.append((runs, result))
        del results[:-KEPT_RESULTS]
        return result

    return kept_measure


@_kept
def _phase_one_rate(runs: CountedRuns) -> Range:
    """Return the rates from the start until Attn = ½."""
    first_step = np.zeros_like(runs.attends)
    top = _gap(runs.K, np.full(runs.K.size, 0.5))
    return _rates(runs, first_step, runs.attends, top)


@_kept
def _late_rate(runs: CountedRuns) -> Range:
    """Return the rates from Attn = ½ until the loss is ε."""
    top = runs.counter.position(runs.steps)
    return _rates(runs, runs.attends, runs.steps, top)


@_kept
def _rate_until_imbalance(runs: CountedRuns) -> Range:
    """Return the rates from Attn = ½ until 1 - Attn = δ, or until the loss is ε."""
    top = _gap(runs.K, runs.imbalance)
    return _rates(runs, runs.attends, runs.steps, top)


def _cross_terms(own_rate: Measure) -> Measure:
    """Return the measure of the size of η β, the move of another feature's score.

    ``own_rate`` measures η α, the move of the score of the query's own feature. This
    score is S_kk = u (K-1)/K, and each other score is S_mk = -u/K. So the size of the
    move of another score is the move of the own score, divided by K - 1.
    """

    def measure(runs: CountedRuns) -> Range:
        """Return the least and the largest size of η β, for each run."""
        own = own_rate(runs)
        return Range(own.low / (runs.K - 1.0), own.high / (runs.K - 1.0))

    return measure


def _steps_beyond_one(count: NDArray[np.int64]) -> Range:
    """Return the number of steps minus 1, or 0 if there are no steps.

    The theorems have the form count <= 1 + O(...), because a run may need one step even
    if the expression inside O(...) is below 1. So this expression is compared with
    count - 1. A run has one such number, which is both the least and the largest value.
    """
    # T₁ is 0 for K = 2, because Attn is ½ at the start.
    beyond = np.maximum(count - 1, 0).astype(np.float64)
    return Range(beyond, beyond)


def _phase_one_steps(runs: CountedRuns) -> Range:
    """Return T₁ - 1, the number of steps of Phase I minus 1."""
    return _steps_beyond_one(runs.attends)


def _further_steps(runs: CountedRuns) -> Range:
    """Return T - T₁ - 1, the number of steps after Phase I minus 1."""
    return _steps_beyond_one(runs.steps - runs.attends)


def _power(
    runs: CountedRuns, K_exponent: float, imbalance_exponent: float = 0.0
) -> Array:
    """Return ``η L²Δ² K^a δ^b`` for the exponents a of K and b of the imbalance δ."""
    return (
        runs.eta
        * runs.size**2
        * runs.K**K_exponent
        * runs.imbalance**imbalance_exponent
    )


def logarithm(runs: CountedRuns) -> Array:
    """Return ``ln(K LΔ ε^-½)``, the logarithm of the theorems.

    The paper's text has ln(K ε^-½), whose argument has the unit of an inverse label.
    Here labels are measured in units of LΔ, which makes the argument a pure number.
    """
    return np.asarray(np.log(runs.K * runs.size / np.sqrt(runs.epsilon)))


# ---- limits in which statements break


def _with(runs: CountedRuns, K: Array, imbalance: Array) -> CountedRuns:
    """Return runs with other K and δ.

    Three numbers of each run stay the same: the step constant c, the product LΔδ, and
    the target ε divided by the loss at the start.
    """
    size = runs.size * runs.imbalance / imbalance
    gamma = 0.5 * size**2
    eta = runs.counter.c * (K - 1.0) ** 2 / (K * gamma)
    # The loss at the start is ¼ L²Δ² (K-1)/K. The factor ¼ cancels, and is left out.
    share = runs.epsilon / (runs.size**2 * (runs.K - 1.0) / runs.K)
    epsilon = share * size**2 * (K - 1.0) / K
    return counted_runs(size, eta, K, epsilon, imbalance)


def _with_features(runs: CountedRuns, K: float) -> CountedRuns:
    """Return runs that all have K features."""
    return _with(runs, np.full(runs.K.size, K), runs.imbalance)


def _with_imbalance(runs: CountedRuns, imbalance: float) -> CountedRuns:
    """Return runs that all have the same δ."""
    return _with(runs, runs.K, np.full(runs.K.size, imbalance))


def _with_target(runs: CountedRuns, epsilon: Array) -> CountedRuns:
    """Return runs with other targets ε."""
    return counted_runs(runs.size, runs.eta, runs.K, epsilon, runs.imbalance)


def _with_target_over_size(runs: CountedRuns, share: float) -> CountedRuns:
    """Return runs that all have the same ε/(LΔ)²."""
    return _with_target(runs, share * runs.size**2)


def _with_target_over_product(runs: CountedRuns, share: float) -> CountedRuns:
    """Return runs that all have the same ε/(LΔδ)²."""
    return _with_target(runs, share * (runs.size * runs.imbalance) ** 2)


# The paper claims for a whole phase the rate that is right at one end of it. In these
# limits the rate at the other end is of another order of magnitude.
_MANY_FEATURES = Limit(
    "K ≫ 1, because the rate of the start is carried on to Attn = ½",
    "K",
    (10.0, 100.0, 1000.0, 10_000.0),
    _with_features,
)
_SMALL_IMBALANCE = Limit(
    "δ ≪ 1, because the rate at 1 - Attn = δ is carried back to Attn = ½",
    "δ",
    (0.3, 0.1, 1e-2, 1e-3),
    _with_imbalance,
)
_SMALL_TARGET = Limit(
    "ε ≪ L²Δ², because the rate of the end is carried back to Attn = ½",
    "ε/(LΔ)²",
    (1e-2, 1e-3, 1e-4, 1e-6),
    _with_target_over_size,
)
_TARGET_BEYOND_IMBALANCE = Limit(
    "ε ≪ (LΔδ)²",
    "ε/(LΔδ)²",
    (0.1, 1e-2, 1e-3, 1e-4),
    _with_target_over_product,
)


# ---- the statements

_PROPOSITION = "paper, Prop. {} (reconstructed)"
_THEOREM = "paper, Thm {} (reconstructed)"
STATEMENTS: tuple[OrderStatement, ...] = (
    OrderStatement(
        "Phase I growth",
        _PROPOSITION.format(2),
        "η α_k = Θ(η L²Δ²/K²) at every step until Attn = ½",
        upper_only=False,
        measure=_phase_one_rate,
        scale=lambda runs: _power(runs, -2.0),
        rises=_MANY_FEATURES,
    ),
    OrderStatement(
        "Phase I cross terms",
        _PROPOSITION.format(2),
        "η |β_mk| = O(η L²Δ²/K³) at every step until Attn = ½",
        upper_only=True,
        measure=_cross_terms(_phase_one_rate),
        scale=lambda runs: _power(runs, -3.0),
        rises=_MANY_FEATURES,
    ),
    OrderStatement(
        "Phase I duration",
        _PROPOSITION.format(2),
        "T₁ <= 1 + O(K² ln K / (η L²Δ²))",
        upper_only=True,
        measure=_phase_one_steps,
        scale=lambda runs: np.log(runs.K) / _power(runs, -2.0),
    ),
    OrderStatement(
        "Phase II growth",
        _PROPOSITION.format(3),
        "η α_k = Θ(η L²Δ²δ²/K) at every step after T₁ with 1 - Attn_k > δ, L <= 1/(Δδ)",
        upper_only=False,
        measure=_rate_until_imbalance,
        scale=lambda runs: _power(runs, -1.0, 2.0),
        flat=True,
        rises=_SMALL_IMBALANCE,
    ),
    OrderStatement(
        "Phase II growth to ε",
        _PROPOSITION.format(3),
        "η α_k = Θ(η L²Δ²δ²/K) at every step from T₁ to T_f, L <= 1/(Δδ)",
        upper_only=False,
        measure=_late_rate,
        scale=lambda runs: _power(runs, -1.0, 2.0),
        flat=True,
        rises=_SMALL_IMBALANCE,
        falls=_TARGET_BEYOND_IMBALANCE,
    ),
    OrderStatement(
        "Phase II cross terms",
        _PROPOSITION.format(3),
        "η |β_mk| = O(η L²Δ²δ²/K²) at every step after T₁ with 1 - Attn_k > δ, L <="
        " 1/(Δδ)",
        upper_only=True,
        measure=_cross_terms(_rate_until_imbalance),
        scale=lambda runs: _power(runs, -2.0, 2.0),
        flat=True,
        rises=_SMALL_IMBALANCE,
    ),
    OrderStatement(
        "Theorem 1",
        _THEOREM.format(1),
        "T_f - T₁ <= 1 + O(K ln(K LΔ ε^-½) / (η L²Δ²δ²)), L <= 1/(Δδ)",
        upper_only=True,
        measure=_further_steps,
        scale=lambda runs: logarithm(runs) / _power(runs, -1.0, 2.0),
        flat=True,
        rises=_TARGET_BEYOND_IMBALANCE,
    ),
    OrderStatement(
        "Phase III growth",
        _PROPOSITION.format(4),
        "η α_k = Θ(η ε/K) at every step from T₁ to T_s, L > 1/(Δδ)",
        upper_only=False,
        measure=_late_rate,
        scale=lambda runs: runs.eta * runs.epsilon / runs.K,
        flat=False,
        rises=_SMALL_TARGET,
    ),
    OrderStatement(
        "Phase III cross terms",
        _PROPOSITION.format(4),
        "η |β_mk| = O(η ε/K²) at every step from T₁ to T_s, L > 1/(Δδ)",
        upper_only=True,
        measure=_cross_terms(_late_rate),
        scale=lambda runs: runs.eta * runs.epsilon / runs.K**2,
        flat=False,
        rises=_SMALL_TARGET,
    ),
    OrderStatement(
        "Theorem 2",
        _THEOREM.format(2),
        "T_s - T₁ <= 1 + O(K ln(K LΔ ε^-½) / (η ε)), L > 1/(Δδ)",
        upper_only=True,
        measure=_further_steps,
        scale=lambda runs: runs.K * logarithm(runs) / (runs.eta * runs.epsilon),
        flat=False,
    ),
)


def by_name(name: str) -> OrderStatement:
    """Return the statement with a name, for example "Theorem 1"."""
    return next(statement for statement in STATEMENTS if statement.name == name)


# ---- ratios and constants


def measured_ratios(statement: OrderStatement, runs: CountedRuns) -> Ratios:
    """Return the ratios of the measured quantity to the scale, for each run."""
    # A run that reaches ε within Phase I has no whole phase to measure.
    applies = runs.steps > runs.attends
    if statement.flat is not None:
        is_flat = runs.size * runs.imbalance <= 1.0
        applies &= is_flat == statement.flat
        # The statements on a regime are about runs that reach ε. For any other run
        # INT64_MAX stands for the number of steps.
        applies &= runs.steps < INT64_MAX
    low, high = statement.measure(runs)
    scale = statement.scale(runs)
    return Ratios(
        np.where(applies, low / scale, np.nan), np.where(applies, high / scale, np.nan)
    )


@cache
def _runs_at(limit: Limit, value: float) -> CountedRuns:
    """Return the runs of the law with this value of the quantity of a limit."""
    return limit.at(law_runs(), value)


def extremes_along(statement: OrderStatement, limit: Limit) -> list[Extremes]:
    """Return the least and the largest ratio at each value of a limit.

    All runs of the law are given this value of the limit's quantity. The extremes are
    taken over the runs to which the statement then applies.
    """
    extremes = []
    for value in limit.values:
        ratios = measured_ratios(statement, _runs_at(limit, value))
        least = float(np.nanmin(ratios.low))
        largest = float(np.nanmax(ratios.high))
        extremes.append(Extremes(least, largest))
    return extremes


@cache
def fitted_constants() -> dict[str, Constants]:
    """Fit the constants of every statement on 400 runs of the inner law.

    The runs are drawn from the inner part of the law of problems: K <= 30, δ >= 0.03,
    and ε is at least 10⁻³ times the initial loss. See docs/theory.md, "The paper's
    orders of magnitude".

    Returns
    -------
    dict
        From the statement's name to its `Constants`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> constants = icl.papers.regression.fitted_constants()
    >>> constants["Theorem 2"].highest < 7 / 16
    True
    """
    runs = draw(INNER, seed=INNER_SEED)
    constants = {}
    for statement in STATEMENTS:
        ratios = measured_ratios(statement, runs)
        lowest = float(np.nanmin(ratios.low))
        highest = float(np.nanmax(ratios.high))
        constants[statement.name] = Constants(lowest, highest)
    return constants


class BoundedSides(NamedTuple):
    """Whether ratios are bounded by the fitted constants, from below and from above."""

    below: bool
    above: bool


def bounded_sides(statement: OrderStatement, low: float, high: float) -> BoundedSides:
    """Compare the least and the largest ratio with the fitted constants.

    Ratios count as bounded if they are beyond the constants by at most the factor
    `BOUNDED`.
    """
    constants = fitted_constants()[statement.name]
    return BoundedSides(
        below=low >= constants.lowest / BOUNDED,
        above=high <= constants.highest * BOUNDED,
    )


# ---- the check of one run


def _check_applies(statement: OrderStatement, run: icl.Trajectory) -> None:
    """Raise `UnstatedError` with the reason if a statement does not apply to a run."""
    risk = run.risk
    size = float(run.info["L"] * run.info["delta"])  # LΔ
    imbalance = run.info["imbalance"]  # δ, or None
    # `require` raises the error with the reason if its condition is false.
    if not isinstance(risk, icl.ExchangeableRisk) or math.isfinite(risk.N):
        raise UnstatedError("stated here for the exchangeable case with N = inf")
    saturates_L = math.isclose(risk.gamma, 0.5 * size**2, rel_tol=1e-9)
    require(saturates_L, "stated for a class that saturates L: γ = L²Δ²/2")
    require(risk.speed == 1.0, "stated here for class coordinates")
    assert run.phases is not None  # runs on this risk have phases
    _, end_of_phase_one = run.phases.I
    require(end_of_phase_one < run.t[-1], "the run ends within Phase I")
    # Statements for both regimes are about Phase I. Statements for one regime are about
    # the phases after it, and some of them about the time until epsilon.
    if statement.flat is None:
        return
    require(run.converged, "the run did not reach epsilon")
    require(
        imbalance is not None, "needs the imbalance δ of the prompts (imbalance=...)"
    )
    regime = "flat" if statement.flat else "sharp"
    sign = "<=" if statement.flat else ">"
    is_flat = size * imbalance <= 1.0
    require(
        statement.flat == is_flat, f"claimed for the {regime} regime, L {sign} 1/(Δδ)"
    )


def _as_counted_runs(run: icl.Trajectory) -> CountedRuns:
    """Return a ``CountedRuns`` that has only this run."""

    def one_entry(value: float) -> Array:
        """Return a number as an array with one entry, (1,)."""
        return np.array([float(value)])

    info = run.info
    return counted_runs(
        size=one_entry(info["L"] * info["delta"]),
        eta=one_entry(run.eta),
        K=one_entry(info["K"]),
        epsilon=one_entry(run.epsilon),
        # A run without an imbalance gets δ = 1. Only statements that are claimed for
        # every L are then measured, and they do not use it.
        imbalance=one_entry(info["imbalance"] or 1.0),
    )


def _sides(statement: OrderStatement, run: icl.Trajectory) -> BoundCheck:
    """Measure a statement on one run, and compare it with the fitted constants.

    Raise `UnstatedError` if the statement says nothing about the run.
    """
    _check_applies(statement, run)
    # In extreme runs numbers exceed the range of float64. Such a run is refused below,
    # or by `Statement.check` if a side of the statement is not finite.
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        runs = _as_counted_runs(run)
        ratios = measured_ratios(statement, runs)
        low = float(ratios.low[0])
        high = float(ratios.high[0])
        scale = float(statement.scale(runs)[0])
    require(not math.isnan(low), "no step of the run lies in the phase")
    require(scale > SMALLEST_SCALE, "beyond the range of float64")
    if statement.upper_only:
        return _upper_check(statement, scale, high)
    return _two_sided_check(statement, scale, low, high)


_ALLOWED = f"a factor {BOUNDED:g} beyond is allowed"


def _upper_check(statement: OrderStatement, scale: float, high: float) -> BoundCheck:
    """Compare the largest ratio of a run (``high``) with the fitted constant.

    ``scale`` is the expression inside O(...) for this run.
    """
    highest = fitted_constants()[statement.name].highest
    # Only the upper side is used, so any number may stand for the lower ratio.
    is_bounded = bounded_sides(statement, low=high, high=high).above
    # The bound divided by the measured number, if that is not 0.
    slack = highest / high if high > 0 else None
    note = f"constant {highest:.3g} fitted on a law of runs; {_ALLOWED}"
    return BoundCheck.of(scale * high, scale * highest, is_bounded, slack, note)


def _two_sided_check(
    statement: OrderStatement, scale: float, low: float, high: float
) -> BoundCheck:
    """Compare the extreme ratios of a run with the fitted constants.

    The check shows the ratio that is nearer to its constant, or, if a constant is
    exceeded, the ratio that is farther beyond. ``scale`` is the expression inside
    Θ(...) for this run.
    """
    constants = fitted_constants()[statement.name]
    sides = bounded_sides(statement, low, high)
    # A factor above 1 says how far a ratio is beyond the constant on its side.
    factor_above = high / constants.highest
    factor_below = constants.lowest / low
    worst_ratio = high if factor_above > factor_below else low
    slack = 1.0 / max(factor_above, factor_below)
    bound = (scale * constants.lowest, scale * constants.highest)
    note = (
        f"over the phase the ratio runs from {low:.3g} to {high:.3g};"
        f" {constants.lowest:.3g} to {constants.highest:.3g} on a law of runs,"
        f" {_ALLOWED}"
    )
    return BoundCheck.of(
        scale * worst_ratio, bound, sides.below and sides.above, slack, note
    )


# ---- the survey of many runs


class Survey(NamedTuple):
    """Range and trends of the ratios of a statement over the runs of a law.

    Attributes
    ----------
    runs : int
        Number of runs to which the statement applies.
    low, high : float
        Least ratio that is not 0, and largest ratio, over the phases of all runs.
    typical : float
        The geometric mean, over the runs, of √(least ratio · largest ratio).
    rise, fall : dict
        For each parameter, the factor by which the largest ratio of a run (``rise``) or
        its least ratio (``fall``) changes if the parameter grows tenfold. The factors
        are fitted by least squares in logarithms.
    where : tuple of str
        The parameters of the run with the least ratio, and of the run with the largest.
    rising : tuple of float
        The largest ratios at the values of the limit ``statement.rises``, if it has
        one.
    falling : tuple of float
        The least ratios at the values of the limit ``statement.falls``, if it has one.
    """

    runs: int
    low: float
    high: float
    typical: float
    rise: dict[str, float]
    fall: dict[str, float]
    where: tuple[str, str]
    rising: tuple[float, ...] = ()
    falling: tuple[float, ...] = ()


def _parameters(runs: CountedRuns) -> Array:
    """Return the values of the five ``PARAMETERS``, (5, runs)."""
    # The loss at the start is ½ γ (K-1)/K with γ = L²Δ²/2.
    first_loss = 0.25 * runs.size**2 * (runs.K - 1.0) / runs.K
    return np.array(
        [
            runs.K,
            runs.imbalance,
            runs.epsilon / first_loss,
            runs.counter.c,
            runs.size * runs.imbalance,
        ]
    )


def _factors_per_decade(ratio: Array, parameters: Array) -> dict[str, float]:
    """Return the factors by which a ratio changes if a parameter grows tenfold.

    The result has a factor for each name in ``PARAMETERS``. ``ratio`` has a number for
    each run, and ``parameters`` the values of the parameters, (5, runs). The logarithm
    of the ratio is fitted by a linear function of the logarithms of all parameters.
    Ratios of 0 have no logarithm, and are left out.
    """
    is_positive = ratio > 0
    design = np.column_stack([np.ones(ratio.size), *np.log10(parameters)])
    coefficients, *_ = np.linalg.lstsq(
        design[is_positive], np.log10(ratio[is_positive]), rcond=None
    )
    _, *slopes = coefficients  # without the constant
    factors = {}
    for name, slope in zip(PARAMETERS, slopes, strict=True):
        factors[name] = float(10.0**slope)
    return factors


def _run_in_words(parameters: Array) -> str:
    """Return the values of the ``PARAMETERS`` of one run in words, with their names."""
    values = zip(PARAMETERS, parameters.tolist(), strict=True)
    return ", ".join(f"{name} = {value:.3g}" for name, value in values)


def survey(statement: OrderStatement) -> Survey:
    """Measure a statement on the runs of the whole law."""
    runs = law_runs()
    ratios = measured_ratios(statement, runs)
    applies = np.isfinite(ratios.high)
    low = ratios.low[applies]
    high = ratios.high[applies]
    parameters = _parameters(runs)[:, applies]

    middle = np.sqrt(low * high)
    typical = float(np.exp(np.mean(np.log(middle[middle > 0]))))
    # A ratio of 0 means that no step beyond the first was needed. Such a ratio is no
    # evidence against a lower bound, and is left out.
    least_run = int(np.argmin(np.where(low > 0, low, np.inf)))
    largest_run = int(np.argmax(high))

    rising: tuple[float, ...] = ()
    falling: tuple[float, ...] = ()
    if statement.rises is not None:
        extremes = extremes_along(statement, statement.rises)
        rising = tuple(extreme.largest for extreme in extremes)
    if statement.falls is not None:
        extremes = extremes_along(statement, statement.falls)
        falling = tuple(extreme.least for extreme in extremes)
    return Survey(
        runs=high.size,
        low=float(low[low > 0].min()),
        high=float(high.max()),
        typical=typical,
        rise=_factors_per_decade(high, parameters),
        fall=_factors_per_decade(low, parameters),
        where=(
            _run_in_words(parameters[:, least_run]),
            _run_in_words(parameters[:, largest_run]),
        ),
        rising=rising,
        falling=falling,
    )

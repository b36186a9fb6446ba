"""Order-of-magnitude statements of the regression paper, tested on runs of a law.

A statement compares a *measured* quantity of a run with a *scale*, the expression
inside O(...) or Θ(...); the expressions are our reconstruction. Rates are measured on
the iterates, as the move of the score divided by its number of steps, at several steps
of the phase. `fitted_constants` fits a constant to runs from the inner part of the law
(`INNER`), and `survey` tests it on runs of the whole law (`WHOLE`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array, set_fields
from icl_theory.engine.scope import DESCENT, Scope
from icl_theory.engine.trajectory import Trajectory
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.runs import CountedRuns, closed_runs, step_constant
from icl_theory.regression.risks.exchangeable import ExchangeableRisk
from icl_theory.statements.statement import (
    BoundCheck,
    Statement,
    Status,
    UnstatedError,
    require,
)

# A ratio may exceed the fitted constants by this factor and still counts as bounded.
BOUNDED = 2.0
DRAWS = 400
SEED = 0
PARAMETERS = ("K", "δ", "ε/loss(0)", "c", "LΔδ")

# A rate is measured at this many values of the gap u in a phase, ...
RATE_NODES = 17
# ... and over at least this distance in u.
RATE_WINDOW = 1e-3


# ---- laws of runs


class Law(NamedTuple):
    """Ranges from which runs are drawn, uniformly in logarithms.

    Attributes
    ----------
    K, imbalance : tuple of float
        Number of features, and δ.
    target : tuple of float
        ε over the loss at the start.
    step : tuple of float
        The step constant c = η γ K/(K-1)².
    product : tuple of float
        L Δ δ. It is below 1 in every second run, and above 1 in the rest.
    """

    K: tuple[float, float]
    imbalance: tuple[float, float]
    target: tuple[float, float]
    step: tuple[float, float] = (1e-3, 1.0)
    product: tuple[float, float] = (1e-3, 1e2)

    def __str__(self) -> str:
        ranges = []
        for name, (low, high) in zip(PARAMETERS, self, strict=True):
            ranges.append(f"{name} = {low:g}..{high:g}")
        return ", ".join(ranges)


WHOLE = Law(K=(2, 1e4), imbalance=(1e-3, 0.3), target=(1e-9, 0.2))
INNER = Law(K=(2, 30), imbalance=(3e-2, 0.3), target=(1e-3, 0.2))


def draw(law: Law, seed: int) -> CountedRuns:
    """Draw runs of a law, with their step counts in closed form."""
    rng = np.random.default_rng(seed)

    def log_uniform(low: Array | float, high: Array | float) -> Array:
        return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), DRAWS)))

    K = np.floor(log_uniform(*law.K))
    imbalance = log_uniform(*law.imbalance)
    # L Δ δ = 1 separates the flat regime from the sharp one: draw both equally often.
    is_flat = np.arange(DRAWS) % 2 == 0
    lowest_product = np.where(is_flat, law.product[0], 1.0)
    highest_product = np.where(is_flat, 1.0, law.product[1])
    product = log_uniform(lowest_product, highest_product)
    size = product / imbalance
    gamma = 0.5 * size**2
    eta = log_uniform(*law.step) * (K - 1.0) ** 2 / (K * gamma)
    epsilon = log_uniform(*law.target) * 0.5 * gamma * (K - 1.0) / K
    return counted_runs(size, eta, K, epsilon, imbalance)


def counted_runs(
    size: Array, eta: Array, K: Array, epsilon: Array, imbalance: Array
) -> CountedRuns:
    """Count the steps of runs in closed form; ``size`` is L Δ."""
    gamma = 0.5 * size**2
    counter = StepCounter(K, step_constant(eta, 1.0, gamma, K))
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
    """The runs on which the audit tests the constants."""
    return draw(WHOLE, SEED)


# ---- what a statement is


class Range(NamedTuple):
    """Least and largest value of a measured quantity over the phase of each run."""

    low: Array
    high: Array


class Ratios(NamedTuple):
    """Least and largest ratio of measured to scale over the phase of each run.

    Both are NaN for runs to which the statement does not apply.
    """

    low: Array
    high: Array


class Constants(NamedTuple):
    """Smallest and largest ratio of measured to scale over the fitted runs."""

    lowest: float
    highest: float


class Extremes(NamedTuple):
    """Least and largest ratio over many runs."""

    least: float
    largest: float


class Limit(NamedTuple):
    """A limit in which one side of an order of magnitude breaks.

    Attributes
    ----------
    words : str
        The limit, "ε ≪ (LΔδ)²" say, and why the side breaks in it.
    quantity : str
        The quantity that tends to the limit.
    values : tuple of float
        Values of the quantity at which ratios are measured, in the direction of the
        limit.
    at : callable
        Takes runs and a value, and returns runs that have this value of the quantity.
    """

    words: str
    quantity: str
    values: tuple[float, ...]
    at: Callable[[CountedRuns, float], CountedRuns]


Measure = Callable[[CountedRuns], Range]


@dataclass(frozen=True)
class OrderStatement(Statement):
    """One statement: the measured quantity, its scale, and the regime of the claim.

    Attributes
    ----------
    upper_only : bool
        Whether the statement is O(...) and not Θ(...).
    measure, scale : callable
        Take runs, and return the measured quantity and the expression in O(...).
    flat : bool, optional
        The statement is claimed for L <= 1/(Δδ) if True, for L > 1/(Δδ) if False, and
        for every L if None.
    rises, falls : Limit, optional
        The limits in which the ratio of measured to scale grows without bound and tends
        to zero. None if that side holds.
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
        set_fields(self, sides=lambda run: _sides(self, run))


# ---- measured quantities


def _gap(K: Array, deficit: Array) -> Array:
    """Return the gap u at which 1 - Attn is equal to ``deficit``."""
    return np.log(K - 1.0) + np.log1p(-deficit) - np.log(deficit)


def _rates(
    runs: CountedRuns, begin: NDArray[np.int64], end: NDArray[np.int64], top: Array
) -> Range:
    """Least and largest move of the target score in a step of a phase.

    The phase consists of the steps in [begin, end) with u < top. A rate is measured
    over one step, or over a small distance in u if steps are shorter than that.
    """
    counter = runs.counter
    start = counter.position(begin)
    fractions = np.linspace(0.0, 1.0, RATE_NODES)[:, None]
    nodes = start + fractions * (top - start)

    # Rates of neighbouring steps lose digits to cancellation if the step is short:
    # hence the window.
    phase_end = np.minimum(counter.steps_to(top).steps, end)
    last_first_step = np.maximum(phase_end - 1, begin)
    window_begin = counter.steps_to(nodes - RATE_WINDOW).steps
    first = np.clip(window_begin, begin, last_first_step)
    last = np.maximum(counter.steps_to(nodes).steps, first + 1)
    last = np.minimum(last, phase_end)

    # INT64_MAX is the count of steps that never come.
    is_inside = (last > first) & (last < INT64_MAX)
    first = np.where(is_inside, first, 0)
    last = np.where(is_inside, last, 1)
    gap_move = counter.position(last) - counter.position(first)
    # The score of the query's own feature is S_kk = u (K-1)/K.
    rate = (runs.K - 1.0) / runs.K * gap_move / (last - first)

    least = np.where(is_inside, rate, np.inf).min(axis=0)
    largest = np.where(is_inside, rate, -np.inf).max(axis=0)
    has_phase = is_inside.any(axis=0)
    return Range(
        np.where(has_phase, least, np.nan), np.where(has_phase, largest, np.nan)
    )


def _phase_one_rate(runs: CountedRuns) -> Range:
    first_step = np.zeros_like(runs.attends)
    top = _gap(runs.K, np.full(runs.K.size, 0.5))
    return _rates(runs, first_step, runs.attends, top)


def _late_rate(runs: CountedRuns) -> Range:
    top = runs.counter.position(runs.steps)
    return _rates(runs, runs.attends, runs.steps, top)


def _rate_until_imbalance(runs: CountedRuns) -> Range:
    top = _gap(runs.K, runs.imbalance)
    return _rates(runs, runs.attends, runs.steps, top)


def _cross_terms(own_rate: Measure) -> Measure:
    """Moves of the scores of other features, from those of the own: S_mk = -u/K."""

    def measure(runs: CountedRuns) -> Range:
        own = own_rate(runs)
        return Range(own.low / (runs.K - 1.0), own.high / (runs.K - 1.0))

    return measure


def _steps_beyond_one(count: NDArray[np.int64]) -> Range:
    """Number of steps less one.

    A run cannot take fewer than one step, even if the order is below 1.
    """
    beyond = np.maximum(count - 1, 0).astype(np.float64)
    return Range(beyond, beyond)


def _phase_one_steps(runs: CountedRuns) -> Range:
    return _steps_beyond_one(runs.attends)


def _further_steps(runs: CountedRuns) -> Range:
    return _steps_beyond_one(runs.steps - runs.attends)


def _power(
    runs: CountedRuns, K_exponent: float, imbalance_exponent: float = 0.0
) -> Array:
    """``η L²Δ² K^a δ^b``."""
    return (
        runs.eta
        * runs.size**2
        * runs.K**K_exponent
        * runs.imbalance**imbalance_exponent
    )


def logarithm(runs: CountedRuns) -> Array:
    """``ln(K LΔ ε^-½)``, the logarithm of the theorems.

    This is the only reading of the theorems in which the units cancel.
    """
    return np.asarray(np.log(runs.K * runs.size / np.sqrt(runs.epsilon)))


# ---- limits in which statements break


def _with(runs: CountedRuns, K: Array, imbalance: Array) -> CountedRuns:
    """Return runs with other K and δ.

    The step constant, LΔδ, and the share of the first loss at the end stay the same.
    """
    size = runs.size * runs.imbalance / imbalance
    gamma = 0.5 * size**2
    eta = runs.counter.c * (K - 1.0) ** 2 / (K * gamma)
    share = runs.epsilon / (runs.size**2 * (runs.K - 1.0) / runs.K)
    epsilon = share * size**2 * (K - 1.0) / K
    return counted_runs(size, eta, K, epsilon, imbalance)


def _with_features(runs: CountedRuns, K: float) -> CountedRuns:
    return _with(runs, np.full(runs.K.size, K), runs.imbalance)


def _with_imbalance(runs: CountedRuns, imbalance: float) -> CountedRuns:
    return _with(runs, runs.K, np.full(runs.K.size, imbalance))


def _with_target(runs: CountedRuns, epsilon: Array) -> CountedRuns:
    return counted_runs(runs.size, runs.eta, runs.K, epsilon, runs.imbalance)


def _with_target_over_size(runs: CountedRuns, share: float) -> CountedRuns:
    return _with_target(runs, share * runs.size**2)


def _with_target_over_product(runs: CountedRuns, share: float) -> CountedRuns:
    return _with_target(runs, share * (runs.size * runs.imbalance) ** 2)


# The paper claims for a whole phase the rate that is right at one end of it. The
# limits say where that breaks.
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
    """Return the statement with a name, "Theorem 1" say."""
    return next(statement for statement in STATEMENTS if statement.name == name)


# ---- ratios and constants


def measured_ratios(statement: OrderStatement, runs: CountedRuns) -> Ratios:
    """Measured over scale, NaN for runs to which the statement does not apply."""
    applies = runs.steps > runs.attends
    if statement.flat is not None:
        is_flat = runs.size * runs.imbalance <= 1.0
        applies &= is_flat == statement.flat
        applies &= runs.steps < INT64_MAX
    low, high = statement.measure(runs)
    scale = statement.scale(runs)
    return Ratios(
        np.where(applies, low / scale, np.nan), np.where(applies, high / scale, np.nan)
    )


def extremes_along(statement: OrderStatement, limit: Limit) -> list[Extremes]:
    """Least and largest ratio at each value of a limit.

    Both are taken over the runs that have the phase, after all runs of the law are
    moved to this value.
    """
    extremes = []
    for value in limit.values:
        ratios = measured_ratios(statement, limit.at(law_runs(), value))
        least = float(np.nanmin(ratios.low))
        largest = float(np.nanmax(ratios.high))
        extremes.append(Extremes(least, largest))
    return extremes


@cache
def fitted_constants() -> dict[str, Constants]:
    """Fit the constant of every statement on 400 runs of the inner law.

    The runs are drawn from the inner part of the law of problems: K <= 30, δ >= 0.03,
    and ε is at least 10⁻³ times the initial loss. See
    docs/theory.md, "The paper's orders of magnitude".

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
    runs = draw(INNER, seed=1)
    constants = {}
    for statement in STATEMENTS:
        ratios = measured_ratios(statement, runs)
        lowest = float(np.nanmin(ratios.low))
        highest = float(np.nanmax(ratios.high))
        constants[statement.name] = Constants(lowest, highest)
    return constants


class BoundedSides(NamedTuple):
    """Whether ratios are bounded from below and from above."""

    below: bool
    above: bool


def bounded_sides(statement: OrderStatement, low: float, high: float) -> BoundedSides:
    """Whether ratios stay within a factor `BOUNDED` of the fitted constants."""
    constants = fitted_constants()[statement.name]
    return BoundedSides(
        below=low >= constants.lowest / BOUNDED,
        above=high <= constants.highest * BOUNDED,
    )


# ---- the check of one run


def _check_applies(statement: OrderStatement, run: Trajectory) -> None:
    """Raise `UnstatedError` with the reason if a statement does not apply to a run."""
    risk = run.risk
    size = float(run.info["L"] * run.info["delta"])
    imbalance = run.info["imbalance"]
    if not isinstance(risk, ExchangeableRisk) or math.isfinite(risk.N):
        raise UnstatedError("stated here for the exchangeable case with N = inf")
    saturated = math.isclose(risk.gamma, 0.5 * size**2, rel_tol=1e-9)
    require(saturated, "stated for a class that saturates L: γ = L²Δ²/2")
    require(risk.speed == 1.0, "stated here for class coordinates")
    assert run.phases is not None
    require(run.phases.I[1] < run.t[-1], "the run ends within Phase I")
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


def _as_columns(run: Trajectory) -> CountedRuns:
    """The run as the only one of `CountedRuns`."""

    def column(value: float) -> Array:
        return np.array([float(value)])

    info = run.info
    return counted_runs(
        size=column(info["L"] * info["delta"]),
        eta=column(run.eta),
        K=column(info["K"]),
        epsilon=column(run.epsilon),
        # Statements that are claimed for every L do not use δ.
        imbalance=column(info["imbalance"] or 1.0),
    )


def _sides(statement: OrderStatement, run: Trajectory) -> BoundCheck:
    """Measure a statement on one run, and compare it with the fitted constants."""
    _check_applies(statement, run)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        runs = _as_columns(run)
        ratios = measured_ratios(statement, runs)
        low = float(ratios.low[0])
        high = float(ratios.high[0])
        scale = float(statement.scale(runs)[0])
    require(not math.isnan(low), "no step of the run lies in the phase")
    require(scale > 1e-290, "beyond the range of float64")
    if statement.upper_only:
        return _upper_check(statement, scale, high)
    return _two_sided_check(statement, scale, low, high)


_ALLOWED = f"a factor {BOUNDED:g} beyond is allowed"


def _upper_check(statement: OrderStatement, scale: float, high: float) -> BoundCheck:
    """Compare the largest ratio of a run with the fitted constant."""
    highest = fitted_constants()[statement.name].highest
    # An upper bound does not ask for a smallest ratio.
    is_bounded = bounded_sides(statement, high, high).above
    slack = highest / high if high > 0 else None
    note = f"constant {highest:.3g} fitted on a law of runs; {_ALLOWED}"
    return BoundCheck.of(scale * high, scale * highest, is_bounded, slack, note)


def _two_sided_check(
    statement: OrderStatement, scale: float, low: float, high: float
) -> BoundCheck:
    """Compare both ratios of a run with the fitted constants; show the worse one."""
    constants = fitted_constants()[statement.name]
    sides = bounded_sides(statement, low, high)
    # How far the ratio comes to either constant; above 1 it is beyond it.
    excess_above = high / constants.highest
    excess_below = constants.lowest / low
    worst_ratio = high if excess_above > excess_below else low
    slack = 1.0 / max(excess_above, excess_below)
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
        The geometric mean of the ratios in the middle of the runs' ranges.
    rise, fall : dict
        By parameter, the factor on the largest and on the smallest ratio of a phase
        when the parameter grows tenfold, by least squares in logarithms.
    where : tuple of str
        The runs with the least and the largest ratio.
    rising, falling : tuple of float
        The largest ratios at the values of ``statement.rises``, and the least at the
        values of ``statement.falls``.
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
    """The values of `PARAMETERS`, (5, runs)."""
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
    """Factor on a ratio when a parameter grows tenfold, by parameter."""
    is_positive = ratio > 0
    design = np.column_stack([np.ones(ratio.size), *np.log10(parameters)])
    coefficients = np.linalg.lstsq(
        design[is_positive], np.log10(ratio[is_positive]), rcond=None
    )[0]
    slopes = coefficients[1:]
    factors = {}
    for name, slope in zip(PARAMETERS, slopes, strict=True):
        factors[name] = float(10.0**slope)
    return factors


def _run_in_words(parameters: Array) -> str:
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
    # A ratio of 0 means a phase without a step: no evidence against a lower bound.
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

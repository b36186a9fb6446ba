"""Order-of-magnitude statements of the regression paper, in our formulas, over whole phases of runs of a law.

A statement compares a *measured* quantity of a run with a *scale*, the expression
inside O(...) or Θ(...). Rates are measured on the iterates, as the move of the score
divided by its number of steps, at several steps of the phase. A constant is fitted on
runs drawn from the inner part of the law, and tested on runs of the whole law.
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

BOUNDED = 2.0  # factor beyond the fitted constants that still counts as bounded
DRAWS, SEED = 400, 0
PARAMETERS = ("K", "δ", "ε/loss(0)", "c", "LΔδ")


class Law(NamedTuple):
    """Ranges from which runs are drawn, uniformly in logarithms."""

    K: tuple[float, float]
    imbalance: tuple[float, float]
    target: tuple[float, float]  # ε over the loss at the start
    step: tuple[float, float] = (1e-3, 1.0)  # the step constant c = η γ K/(K-1)²
    # L Δ δ: below 1 in every other run, above 1 in the rest
    product: tuple[float, float] = (
        1e-3,
        1e2,
    )

    def __str__(self) -> str:
        named = zip(PARAMETERS, self, strict=True)
        return ", ".join(f"{name} = {low:g}..{high:g}" for name, (low, high) in named)


WHOLE = Law(K=(2, 1e4), imbalance=(1e-3, 0.3), target=(1e-9, 0.2))
INNER = Law(K=(2, 30), imbalance=(3e-2, 0.3), target=(1e-3, 0.2))


def draw(law: Law, seed: int) -> CountedRuns:
    """Draw runs of a law, with their step counts in closed form."""
    rng = np.random.default_rng(seed)

    def between(low: Array | float, high: Array | float) -> Array:
        return np.asarray(np.exp(rng.uniform(np.log(low), np.log(high), DRAWS)))

    K = np.floor(between(law.K[0], law.K[1]))
    imbalance = between(*law.imbalance)
    flat = np.arange(DRAWS) % 2 == 0
    product = between(
        np.where(flat, law.product[0], 1.0), np.where(flat, 1.0, law.product[1])
    )
    gamma = 0.5 * (product / imbalance) ** 2
    eta = between(*law.step) * (K - 1.0) ** 2 / (K * gamma)
    epsilon = between(*law.target) * 0.5 * gamma * (K - 1.0) / K
    return closed(product / imbalance, eta, K, epsilon, imbalance)


def closed(
    size: Array, eta: Array, K: Array, epsilon: Array, imbalance: Array
) -> CountedRuns:
    """Find the step counts of runs in closed form."""
    gamma = 0.5 * size**2
    counter = StepCounter(K, step_constant(eta, 1.0, gamma, K))
    found = closed_runs(counter, gamma, epsilon, INT64_MAX, np.full(K.size, 0.5))
    return CountedRuns(
        size, eta, K, epsilon, imbalance, counter, found.attends, found.hit
    )


@cache
def law_runs() -> CountedRuns:
    """The runs on which the audit tests the constants."""
    return draw(WHOLE, SEED)


class Ratios(NamedTuple):
    """Smallest and largest ratio of measured to scale over the phase of each run, or
    NaN.
    """

    low: Array
    high: Array


class Constants(NamedTuple):
    """Smallest and largest ratio of measured to scale over the runs used for fitting."""

    lowest: float
    highest: float


class Limit(NamedTuple):
    """A limit in which one side of an order of magnitude breaks.

    Attributes
    ----------
    words : str
        The limit, "ε ≪ (LΔδ)²" say, and why it breaks there.
    quantity : str
        The quantity that tends to it.
    values : tuple of float
        Of the quantity, at which ratios are measured, in the direction of the limit.
    at : callable
        Takes runs and a value, and returns runs that have this value of the quantity.
    """

    words: str
    quantity: str
    values: tuple[float, ...]
    at: Callable[[CountedRuns, float], CountedRuns]


@dataclass(frozen=True)
class OrderStatement(Statement):
    """One statement: the measured quantity, its scale, and the regime in which it is claimed.

    ``rises`` is the limit in which the ratio of measured to scale grows without bound,
    ``falls`` the one in which it tends to zero. None where that side holds.
    """

    kind: str = field(default="order-wise", kw_only=True)
    status: Status = field(default=Status.ORDER, kw_only=True)
    scope: Scope | None = field(default=DESCENT, kw_only=True)
    upper_only: bool
    measure: Callable[[CountedRuns], tuple[Array, Array]]
    scale: Callable[[CountedRuns], Array]
    flat: bool | None = (
        # claimed for L <= 1/(Δδ) (True), for L > 1/(Δδ) (False), or for every L (None)
        None
    )
    rises: Limit | None = field(default=None, kw_only=True)
    falls: Limit | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        set_fields(self, sides=lambda run: _sides(self, run))


def _gap(K: Array, deficit: Array) -> Array:
    return np.log(K - 1.0) + np.log1p(-deficit) - np.log(deficit)


def _rates(
    runs: CountedRuns,
    begin: NDArray[np.int64],
    end: NDArray[np.int64],
    top: Array,
    nodes: int = 17,
    window: float = 1e-3,
) -> tuple[Array, Array]:
    """Least and largest move of the target score in a step, among the steps [begin, end) with u < top.

    It is measured at ``nodes`` values of u, each time over one step or, if steps are
    short, over ``window`` in u.
    """
    counter = runs.counter
    start = runs.counter.position(begin)
    places = start + np.linspace(0.0, 1.0, nodes)[:, None] * (top - start)
    # the first step beyond the phase
    after = np.minimum(counter.steps_to(top).steps, end)
    first = np.clip(
        counter.steps_to(places - window).steps, begin, np.maximum(after - 1, begin)
    )
    last = np.minimum(np.maximum(counter.steps_to(places).steps, first + 1), after)
    inside = (last > first) & (last < INT64_MAX)
    first = np.where(inside, first, 0)
    last = np.where(inside, last, 1)
    move = counter.position(last) - counter.position(first)
    rate = (runs.K - 1.0) / runs.K * move / (last - first)  # S_kk = u (K-1)/K
    some = inside.any(axis=0)
    low, high = (np.where(inside, rate, fill) for fill in (np.inf, -np.inf))
    return np.where(some, low.min(axis=0), np.nan), np.where(
        some, high.max(axis=0), np.nan
    )


def _phase_one_rate(runs: CountedRuns) -> tuple[Array, Array]:
    return _rates(
        runs,
        np.zeros_like(runs.attends),
        runs.attends,
        _gap(runs.K, np.full(runs.K.size, 0.5)),
    )


def _late_rate(runs: CountedRuns) -> tuple[Array, Array]:
    return _rates(runs, runs.attends, runs.steps, runs.counter.position(runs.steps))


def _rate_until_imbalance(runs: CountedRuns) -> tuple[Array, Array]:
    return _rates(runs, runs.attends, runs.steps, _gap(runs.K, runs.imbalance))


def _others(
    rate: Callable[[CountedRuns], tuple[Array, Array]],
) -> Callable[[CountedRuns], tuple[Array, Array]]:
    """The moves of the other scores, S_mk = -u/K."""

    def measure(runs: CountedRuns) -> tuple[Array, Array]:
        low, high = rate(runs)
        return low / (runs.K - 1.0), high / (runs.K - 1.0)

    return measure


def _whole_steps(count: NDArray[np.int64]) -> tuple[Array, Array]:
    """A number of steps less one: a run cannot take fewer than one step, even if the
    order is below 1.
    """
    beyond = np.maximum(count - 1, 0).astype(np.float64)
    return beyond, beyond


def _further_steps(runs: CountedRuns) -> tuple[Array, Array]:
    return _whole_steps(runs.steps - runs.attends)


def _power(runs: CountedRuns, K: float, imbalance: float = 0.0) -> Array:
    """``η L²Δ² K^. δ^.``."""
    return runs.eta * runs.size**2 * runs.K**K * runs.imbalance**imbalance


def logarithm(runs: CountedRuns) -> Array:
    """``ln(K LΔ ε^-½)``, the theorems' logarithm: the only reading in which the units
    cancel.
    """
    return np.asarray(np.log(runs.K * runs.size / np.sqrt(runs.epsilon)))


def _with(runs: CountedRuns, K: Array, imbalance: Array) -> CountedRuns:
    """Return runs with other K and δ, and the same step constant, LΔδ and share of the
    first loss at the end.
    """
    size = runs.size * runs.imbalance / imbalance
    gamma = 0.5 * size**2
    eta = runs.counter.c * (K - 1.0) ** 2 / (K * gamma)
    share = runs.epsilon / (runs.size**2 * (runs.K - 1.0) / runs.K)
    return closed(size, eta, K, share * size**2 * (K - 1.0) / K, imbalance)


def _with_features(runs: CountedRuns, K: float) -> CountedRuns:
    return _with(runs, np.full(runs.K.size, K), runs.imbalance)


def _with_imbalance(runs: CountedRuns, imbalance: float) -> CountedRuns:
    return _with(runs, runs.K, np.full(runs.K.size, imbalance))


def _with_target_over_size(runs: CountedRuns, share: float) -> CountedRuns:
    return closed(runs.size, runs.eta, runs.K, share * runs.size**2, runs.imbalance)


def _with_target_over_product(runs: CountedRuns, share: float) -> CountedRuns:
    epsilon = share * (runs.size * runs.imbalance) ** 2
    return closed(runs.size, runs.eta, runs.K, epsilon, runs.imbalance)


# A rate that is right at one end of its phase is claimed for all of it. The limits say
# where that breaks.
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

_PROPOSITION = "paper, Prop. {} (reconstructed)"
_THEOREM = "paper, Thm {} (reconstructed)"
STATEMENTS: tuple[OrderStatement, ...] = (
    OrderStatement(
        "Phase I growth",
        _PROPOSITION.format(2),
        "η α_k = Θ(η L²Δ²/K²) at every step until Attn = ½",
        False,
        _phase_one_rate,
        lambda runs: _power(runs, -2.0),
        rises=_MANY_FEATURES,
    ),
    OrderStatement(
        "Phase I cross terms",
        _PROPOSITION.format(2),
        "η |β_mk| = O(η L²Δ²/K³) at every step until Attn = ½",
        True,
        _others(_phase_one_rate),
        lambda runs: _power(runs, -3.0),
        rises=_MANY_FEATURES,
    ),
    OrderStatement(
        "Phase I duration",
        _PROPOSITION.format(2),
        "T₁ <= 1 + O(K² ln K / (η L²Δ²))",
        True,
        lambda runs: _whole_steps(runs.attends),
        lambda runs: np.log(runs.K) / _power(runs, -2.0),
    ),
    OrderStatement(
        "Phase II growth",
        _PROPOSITION.format(3),
        "η α_k = Θ(η L²Δ²δ²/K) at every step after T₁ with 1 - Attn_k > δ, L <= 1/(Δδ)",
        False,
        _rate_until_imbalance,
        lambda runs: _power(runs, -1.0, 2.0),
        True,
        rises=_SMALL_IMBALANCE,
    ),
    OrderStatement(
        "Phase II growth to ε",
        _PROPOSITION.format(3),
        "η α_k = Θ(η L²Δ²δ²/K) at every step from T₁ to T_f, L <= 1/(Δδ)",
        False,
        _late_rate,
        lambda runs: _power(runs, -1.0, 2.0),
        True,
        rises=_SMALL_IMBALANCE,
        falls=_TARGET_BEYOND_IMBALANCE,
    ),
    OrderStatement(
        "Phase II cross terms",
        _PROPOSITION.format(3),
        "η |β_mk| = O(η L²Δ²δ²/K²) at every step after T₁ with 1 - Attn_k > δ, L <="
        " 1/(Δδ)",
        True,
        _others(_rate_until_imbalance),
        lambda runs: _power(runs, -2.0, 2.0),
        True,
        rises=_SMALL_IMBALANCE,
    ),
    OrderStatement(
        "Theorem 1",
        _THEOREM.format(1),
        "T_f - T₁ <= 1 + O(K ln(K LΔ ε^-½) / (η L²Δ²δ²)), L <= 1/(Δδ)",
        True,
        _further_steps,
        lambda runs: logarithm(runs) / _power(runs, -1.0, 2.0),
        True,
        rises=_TARGET_BEYOND_IMBALANCE,
    ),
    OrderStatement(
        "Phase III growth",
        _PROPOSITION.format(4),
        "η α_k = Θ(η ε/K) at every step from T₁ to T_s, L > 1/(Δδ)",
        False,
        _late_rate,
        lambda runs: runs.eta * runs.epsilon / runs.K,
        False,
        rises=_SMALL_TARGET,
    ),
    OrderStatement(
        "Phase III cross terms",
        _PROPOSITION.format(4),
        "η |β_mk| = O(η ε/K²) at every step from T₁ to T_s, L > 1/(Δδ)",
        True,
        _others(_late_rate),
        lambda runs: runs.eta * runs.epsilon / runs.K**2,
        False,
        rises=_SMALL_TARGET,
    ),
    OrderStatement(
        "Theorem 2",
        _THEOREM.format(2),
        "T_s - T₁ <= 1 + O(K ln(K LΔ ε^-½) / (η ε)), L > 1/(Δδ)",
        True,
        _further_steps,
        lambda runs: runs.K * logarithm(runs) / (runs.eta * runs.epsilon),
        False,
    ),
)


def by_name(name: str) -> OrderStatement:
    """Return the statement with a name, "Theorem 1" say."""
    return next(statement for statement in STATEMENTS if statement.name == name)


def measured_ratios(statement: OrderStatement, runs: CountedRuns) -> Ratios:
    """Measured over scale for each run, NaN for those to which the statement does not
    apply.
    """
    applies = runs.steps > runs.attends
    if statement.flat is not None:
        applies &= ((runs.size * runs.imbalance <= 1.0) == statement.flat) & (
            runs.steps < INT64_MAX
        )
    low, high = statement.measure(runs)
    scale = statement.scale(runs)
    return Ratios(
        np.where(applies, low / scale, np.nan), np.where(applies, high / scale, np.nan)
    )


def along(statement: OrderStatement, limit: Limit) -> list[tuple[float, float]]:
    """Least and largest ratio at each value of a limit, over the runs of the law that
    have the phase there.
    """
    extremes = []
    for value in limit.values:
        ratios = measured_ratios(statement, limit.at(law_runs(), value))
        extremes.append((float(np.nanmin(ratios.low)), float(np.nanmax(ratios.high))))
    return extremes


@cache
def fitted_constants() -> dict[str, Constants]:
    """Fit the constant of every statement on 400 runs with K <= 30, δ >= 0.03 and ε >= 10⁻³ of the first loss.

    See docs/theory.md, "The paper's orders of magnitude".

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
    result = {}
    for statement in STATEMENTS:
        ratios = measured_ratios(statement, runs)
        result[statement.name] = Constants(
            float(np.nanmin(ratios.low)), float(np.nanmax(ratios.high))
        )
    return result


def bounded_sides(
    statement: OrderStatement, low: float, high: float
) -> tuple[bool, bool]:
    """Whether ratios stay within a factor `BOUNDED` of the fitted constants, below and
    above.
    """
    constants = fitted_constants()[statement.name]
    return (low >= constants.lowest / BOUNDED, high <= constants.highest * BOUNDED)


def _check_applies(statement: OrderStatement, run: Trajectory) -> None:
    """Raise `UnstatedError` with the reason if a statement does not apply to a run."""
    risk = run.risk
    size = float(run.info["L"] * run.info["delta"])
    delta = run.info["imbalance"]
    if not isinstance(risk, ExchangeableRisk) or math.isfinite(risk.N):
        raise UnstatedError("stated here for the exchangeable case with N = inf")
    saturated = math.isclose(risk.gamma, 0.5 * size**2, rel_tol=1e-9)
    require(saturated, "stated for a class that saturates L: γ = L²Δ²/2")
    require(risk.speed == 1.0, "stated here for class coordinates")
    assert run.phases is not None
    require(run.phases.I[1] < run.t[-1], "the run ends within Phase I")
    if statement.flat is not None:
        require(run.converged, "the run did not reach epsilon")
        require(
            delta is not None, "needs the imbalance δ of the prompts (imbalance=...)"
        )
        regime, sign = ("flat", "<=") if statement.flat else ("sharp", ">")
        fits = statement.flat == (size * delta <= 1.0)
        require(fits, f"claimed for the {regime} regime, L {sign} 1/(Δδ)")


def _sides(statement: OrderStatement, run: Trajectory) -> BoundCheck:
    """Measure one statement on one run, and hold it against the fitted constants."""
    _check_applies(statement, run)
    info = run.info
    given = (
        info["L"] * info["delta"],
        run.eta,
        info["K"],
        run.epsilon,
        info["imbalance"] or 1.0,
    )
    size, eta, K, epsilon, imbalance = (np.array([float(value)]) for value in given)
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        runs = closed(size, eta, K, epsilon, imbalance)
        low, high = (float(ratio[0]) for ratio in measured_ratios(statement, runs))
        scale = float(statement.scale(runs)[0])
    require(not math.isnan(low), "no step of the run lies in the phase")
    constants = fitted_constants()[statement.name]
    require(scale > 1e-290, "beyond the range of float64")
    not_below, not_above = bounded_sides(statement, low, high)
    allowed = f"a factor {BOUNDED:g} beyond is allowed"
    if statement.upper_only:
        slack = constants.highest / high if high > 0 else None
        note = f"constant {constants.highest:.3g} fitted on a law of runs; {allowed}"
        return BoundCheck.of(
            scale * high, scale * constants.highest, not_above, slack, note
        )
    above = high / constants.highest
    below = constants.lowest / low
    worst = high if above > below else low
    note = (
        f"over the phase the ratio runs from {low:.3g} to {high:.3g};"
        f" {constants.lowest:.3g} to {constants.highest:.3g} on a law of runs,"
        f" {allowed}"
    )
    bound = (scale * constants.lowest, scale * constants.highest)
    return BoundCheck.of(
        scale * worst, bound, not_below and not_above, 1.0 / max(above, below), note
    )


class Survey(NamedTuple):
    """Range and trends of the ratios of a statement over the runs of a law."""

    runs: int
    low: float  # least ratio that is not 0, over the phases of all runs
    high: float
    typical: float  # their geometric mean
    # factors on the largest ratio of a phase when a parameter grows tenfold
    rise: dict[str, float]
    fall: dict[str, float]  # the same for the smallest, by least squares in logarithms
    where: tuple[str, str]  # the runs with the extremes
    rising: tuple[
        float, ...
    ] = ()  # the largest ratios at the values of ``statement.rises``
    falling: tuple[
        float, ...
    ] = ()  # the least ratios at the values of ``statement.falls``


def survey(statement: OrderStatement) -> Survey:
    """Measure a statement on the runs of the whole law."""
    runs = law_runs()
    ratios = measured_ratios(statement, runs)
    kept = np.isfinite(ratios.high)
    low = ratios.low[kept]
    high = ratios.high[kept]
    loss = 0.25 * runs.size**2 * (runs.K - 1.0) / runs.K
    values = (
        runs.K,
        runs.imbalance,
        runs.epsilon / loss,
        runs.counter.c,
        runs.size * runs.imbalance,
    )
    parameters = np.array(values)[:, kept]
    design = np.column_stack([np.ones(high.size), *np.log10(parameters)])

    def per_decade(ratio: Array) -> dict[str, float]:
        positive = ratio > 0
        slopes = np.linalg.lstsq(
            design[positive], np.log10(ratio[positive]), rcond=None
        )[0][1:]
        return {
            name: float(10.0**slope)
            for name, slope in zip(PARAMETERS, slopes, strict=True)
        }

    def place(index: int) -> str:
        each = zip(PARAMETERS, parameters[:, index].tolist(), strict=True)
        return ", ".join(f"{name} = {value:.3g}" for name, value in each)

    middle = np.sqrt(low * high)
    typical = float(np.exp(np.mean(np.log(middle[middle > 0]))))
    where = (
        place(int(np.argmin(np.where(low > 0, low, np.inf)))),
        place(int(np.argmax(high))),
    )
    rising: tuple[float, ...] = ()
    falling: tuple[float, ...] = ()
    if statement.rises is not None:
        rising = tuple(largest for _, largest in along(statement, statement.rises))
    if statement.falls is not None:
        falling = tuple(least for least, _ in along(statement, statement.falls))
    return Survey(
        high.size,
        float(low[low > 0].min()),
        float(high.max()),
        typical,
        per_decade(high),
        per_decade(low),
        where,
        rising,
        falling,
    )

"""The paper's order-of-magnitude statements, reconstructed: constants fitted once, ratios and drifts measured.

A statement compares a *measured* quantity of a run with a *scale*, the expression inside O(...) or Θ(...). The
constant is the largest ratio over a small reference grid; elsewhere the ratio divided by that constant must stay
bounded, and its drift with each parameter says whether the scale has the right powers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims import BoundCheck
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.reduction import expanded
from icl_theory.regression.whole import simulate
from icl_theory.trajectory import State, Trajectory

BOUNDED = 2.0  # factor beyond the reference grid's constant that still counts as bounded
PARAMETERS = ("L", "delta", "eta", "K", "epsilon", "imbalance")


class OrderStatement(NamedTuple):
    """One statement: what is measured on a run, the scale it is compared with, and where it is claimed."""

    name: str
    source: str
    statement: str
    upper_only: bool
    measure: Callable[[Trajectory], float]
    scale: Callable[[Trajectory], float]
    refusal: Callable[[Trajectory], str]


def lipschitz_gap(run: Trajectory) -> float:
    """``L Δ`` of a run."""
    return float(run.info["L"] * run.info["delta"])


def growth_rate(run: Trajectory, state: State) -> float:
    """Step of the target score, ``η α_k``, at a state of an exchangeable run."""
    risk = run.risk
    assert isinstance(risk, ExchangeableRisk)
    # du = -η/metric dℓ/du, and S_kk = (K-1)/K u
    slope = float(risk.gradient(state.params)) / risk.metric
    return -run.eta * slope * (risk.K - 1.0) / risk.K


def cross_term(run: Trajectory) -> float:
    """Largest ``|β_mk|`` at the start, from the gradient over all scores."""
    risk = run.risk
    assert isinstance(risk, ExchangeableRisk)
    full = expanded(risk)
    growth = full.gradient(full.initial)
    return float(np.abs(growth[~np.eye(risk.K, dtype=bool)]).max())


def _power(run: Trajectory, K: float = 0.0, imbalance: float = 0.0) -> float:
    """``η L²Δ² K^. δ^.`` of a run."""
    delta = run.info["imbalance"] or 1.0
    return run.eta * lipschitz_gap(run) ** 2 * float(run.info["K"] ** K) * float(delta**imbalance)


def _logarithm(run: Trajectory) -> float:
    return math.log(run.info["K"] / math.sqrt(run.epsilon))


def _phase_one(run: Trajectory) -> int:
    assert run.phases is not None
    return run.phases.I[1]


def _after_phase_one(run: Trajectory) -> float:
    assert run.steps is not None
    return float(run.steps - _phase_one(run))


def _at_imbalance(run: Trajectory) -> State:
    """The first state at which the attention deficit is at most δ."""
    target = 1.0 - run.info["imbalance"]
    step = run.first(lambda state: bool(state.attention >= target))
    assert step is not None
    return run.at(step)


def _stated(run: Trajectory) -> str:
    """Why the statements do not apply to a run at all, or nothing."""
    risk = run.risk
    if not isinstance(risk, ExchangeableRisk) or math.isfinite(risk.N):
        return "stated here for the exchangeable case with N = inf"
    if not math.isclose(risk.gamma, 0.5 * lipschitz_gap(run) ** 2, rel_tol=1e-9):
        return "stated for a class that saturates L: γ = L²Δ²/2"
    if risk.speed != 1.0 or run.rule != "gd" or run.method == "flow":
        return "stated here for gradient descent in class coordinates"
    return ""


def _expandable(run: Trajectory) -> str:
    return _stated(run) or ("" if run.info["K"] <= 60 else "measured for K <= 60")


def _learns(run: Trajectory) -> str:
    if _stated(run):
        return _stated(run)
    return "" if _phase_one(run) < run.t[-1] else "the run ends within Phase I"


def _needs(run: Trajectory, *, flat: bool | None = None, converged: bool = True) -> str:
    if _learns(run):
        return _learns(run)
    if converged and not run.converged:
        return "the run did not reach epsilon"
    if run.epsilon > 1.0:
        return "ln(K ε^-½) presumes ε <= 1"
    delta = run.info["imbalance"]
    if flat is None:
        return ""
    if delta is None:
        return "needs the imbalance δ of the prompts (imbalance=...)"
    if flat != (lipschitz_gap(run) * delta <= 1.0):
        return f"claimed for the {'flat' if flat else 'sharp'} regime, L {'<=' if flat else '>'} 1/(Δδ)"
    return ""


def _reaches_imbalance(run: Trajectory) -> str:
    reason = _needs(run, flat=True, converged=False)
    if reason:
        return reason
    if run.info["imbalance"] >= 0.5:
        return "δ >= 1/2: the deficit δ is passed in Phase I"
    return "" if run.attention[-1] >= 1.0 - run.info["imbalance"] else "the run ends before 1 - Attn = δ"


STATEMENTS: tuple[OrderStatement, ...] = (
    OrderStatement(
        "Phase I growth",
        "paper, Prop. 2 (reconstructed)",
        "η α_k = Θ(η L²Δ²/K²) at the start",
        False,
        lambda run: growth_rate(run, run.at(0)),
        lambda run: _power(run, K=-2.0),
        _stated,
    ),
    OrderStatement(
        "Phase I cross terms",
        "paper, Prop. 2 (reconstructed)",
        "η |β_mk| = O(η L²Δ²/K³) at the start",
        True,
        lambda run: run.eta * cross_term(run),
        lambda run: _power(run, K=-3.0),
        _expandable,
    ),
    OrderStatement(
        "Phase I duration",
        "paper, Prop. 2 (reconstructed)",
        "T₁ = O(K² ln K / (η L²Δ²))",
        True,
        lambda run: float(max(1, _phase_one(run))),
        lambda run: math.log(run.info["K"]) / _power(run, K=-2.0),
        _learns,
    ),
    OrderStatement(
        "Phase II growth",
        "paper, Prop. 3 (reconstructed)",
        "η α_k = Θ(η L²Δ²δ²/K) where 1 - Attn_k = δ",
        False,
        lambda run: growth_rate(run, _at_imbalance(run)),
        lambda run: _power(run, K=-1.0, imbalance=2.0),
        _reaches_imbalance,
    ),
    OrderStatement(
        "Theorem 1",
        "paper, Thm 1 (reconstructed)",
        "T_f = T₁ + O(K ln(K ε^-½) / (η L²Δ²δ²)), L <= 1/(Δδ)",
        True,
        _after_phase_one,
        lambda run: _logarithm(run) / _power(run, K=-1.0, imbalance=2.0),
        lambda run: _needs(run, flat=True),
    ),
    OrderStatement(
        "Phase III growth",
        "paper, Prop. 4 (reconstructed)",
        "η α_k = Θ(η ε/K) at loss ε, L > 1/(Δδ)",
        False,
        lambda run: growth_rate(run, run.at(int(run.t[-1]))),
        lambda run: run.eta * run.epsilon / run.info["K"],
        lambda run: _needs(run, flat=False),
    ),
    OrderStatement(
        "Theorem 2",
        "paper, Thm 2 (reconstructed)",
        "T_s = T₁ + O(K ln(K ε^-½) / (η ε)), L > 1/(Δδ)",
        True,
        _after_phase_one,
        lambda run: run.info["K"] * _logarithm(run) / (run.eta * run.epsilon),
        lambda run: _needs(run, flat=False),
    ),
)


class Constants(NamedTuple):
    """Smallest and largest ratio of measured to scale over the reference grid."""

    lowest: float
    highest: float


@cache
def fitted_constants() -> dict[str, Constants]:
    """Fit the constant of every statement on a grid of 32 runs, K = 5, 20 and ε = 10⁻³, 0.3.

    Returns
    -------
    dict
        From the statement's name to its `Constants`.

    Examples
    --------
    >>> import icl_theory as icl
    >>> constants = icl.regression.fitted_constants()
    >>> 1.9 < constants["Phase III growth"].highest <= 2.0
    True
    """
    grid = [
        simulate(lipschitz, 1.0, eta, K=K, epsilon=epsilon, imbalance=imbalance)
        for lipschitz, eta, K, epsilon, imbalance in itertools.product(
            (0.7, 1.5, 7.0, 15.0), (0.003, 0.006), (5, 20), (1e-3, 0.3), (0.2,)
        )
    ]
    result = {}
    for statement in STATEMENTS:
        values = list(ratios(statement, grid))
        result[statement.name] = Constants(min(values), max(values))
    return result


def ratios(statement: OrderStatement, runs: Iterable[Trajectory]) -> Iterable[float]:
    """Measured over scale, for the runs to which a statement applies."""
    return (statement.measure(run) / statement.scale(run) for run in runs if not statement.refusal(run))


def is_bounded(statement: OrderStatement, lowest: float, highest: float) -> bool:
    """Whether ratios of measured to bound between these two are bounded as the statement says."""
    constants = fitted_constants()[statement.name]
    floor = 0.0 if statement.upper_only else constants.lowest / constants.highest / BOUNDED
    return highest <= BOUNDED and lowest >= floor


def check_order(statement: OrderStatement, run: Trajectory) -> BoundCheck:
    """Evaluate one statement on one run, with the fitted constant."""
    head = (statement.name, statement.source, statement.statement, "order-wise")
    reason = statement.refusal(run)
    if reason:
        return BoundCheck(*head, None, None, None, None, reason)
    constants = fitted_constants()[statement.name]
    scale = statement.scale(run)
    measured, bound = statement.measure(run), constants.highest * scale
    if not min(measured, bound) > 1e-290:
        return BoundCheck(*head, None, None, None, None, "below the range of float64")
    holds = is_bounded(statement, measured / bound, measured / bound)
    note = f"constant {constants.highest:.3g} fitted on a reference grid; a factor {BOUNDED:g} beyond it is allowed"
    return BoundCheck(*head, measured, bound, holds, bound / measured, note)


class Drift(NamedTuple):
    """How the ratio measured/(constant × scale) moves over a wide grid.

    ``per_decade`` is the factor by which it changes when a parameter grows tenfold (least squares in logarithms),
    ``worst`` the largest ratio and ``where`` the run that has it, ``lowest`` the smallest; ``ranges`` says where
    the ``runs`` to which the statement applies lie. There are no drifts from fewer than 20 runs.
    """

    per_decade: dict[str, float]
    worst: float
    lowest: float
    where: str
    runs: int
    ranges: str


def measure_drift(statement: OrderStatement, runs: Iterable[Trajectory]) -> Drift:
    """Fit ln(ratio) against the logarithms of the parameters that vary among the runs."""
    applicable = [run for run in runs if not statement.refusal(run)]
    constants = fitted_constants()[statement.name]
    ratio = np.array(list(ratios(statement, applicable))) / constants.highest
    logs: Array = np.log10([[float(run.info[name]) for name in PARAMETERS] for run in applicable])
    varying = np.ptp(logs, axis=0) > 0
    design = np.column_stack([np.ones(len(ratio)), logs[:, varying]])
    slopes = np.linalg.lstsq(design, np.log10(ratio), rcond=None)[0][1:]
    names = [name for name, varies in zip(PARAMETERS, varying, strict=True) if varies]
    worst = int(np.argmax(ratio))
    where = ", ".join(f"{name}={applicable[worst].info[name]:.3g}" for name in names)
    per_decade = {name: float(10.0**slope) for name, slope in zip(names, slopes, strict=True)}
    low, high = 10.0 ** logs.min(axis=0), 10.0 ** logs.max(axis=0)
    ranges = ", ".join(f"{name} = {a:.2g}..{b:.2g}" for name, a, b in zip(PARAMETERS, low, high, strict=True))
    enough = per_decade if len(applicable) >= 20 else {}
    return Drift(enough, float(ratio[worst]), float(ratio.min()), where, len(applicable), ranges)


@cache
def wide_grid(size: int, seed: int = 0) -> tuple[Trajectory, ...]:
    """Runs at log-uniform parameters over several decades of each, every other one with L > 1/(Δδ)."""
    rng = np.random.default_rng(seed)
    runs = []
    for index in range(size):
        delta, imbalance = 10.0 ** rng.uniform(-1, 1), float(10.0 ** rng.uniform(-3, -0.7))
        K = int(10.0 ** rng.uniform(0.7, 4))
        if index % 2:
            lipschitz = 10.0 ** rng.uniform(0.1, 1.5) / (delta * imbalance)
            epsilon = float(10.0 ** rng.uniform(-4, 0))
        else:
            lipschitz = 10.0 ** rng.uniform(-1, 2)
            epsilon = (lipschitz * delta) ** 2 / 2 * float(10.0 ** rng.uniform(-9, -1))
        # small steps: c = η γ K/(K-1)² << 1
        eta = float(10.0 ** rng.uniform(-3, -0.5)) * K / ((lipschitz * delta) ** 2 / 2)
        runs.append(simulate(lipschitz, delta, eta, K=K, epsilon=epsilon, imbalance=imbalance))
    return tuple(runs)

"""Rows on the paper's orders of magnitude, and on the bounds with constants that replace them."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.families.regression.theorems import checks as bounds
from icl_theory.families.regression.theorems.certified import after_phase_one_of, phase_one_bounds_of
from icl_theory.families.regression.theorems.orderwise import (
    BOUNDED,
    DRAWS,
    SEED,
    STATEMENTS,
    WHOLE,
    OrderStatement,
    Survey,
    bounded_sides,
    fitted_constants,
    law_runs,
    survey,
)  # fmt: skip
from icl_theory.papers.claim import Found, Row, row
from icl_theory.papers.regression.common import iterated_after_phase_one, iterated_steps


def order_statement(statement: OrderStatement) -> Row:
    """Make the row of one of the paper's order-of-magnitude statements."""

    @row(statement)
    def order(quick: bool) -> Found:
        found, constants = survey(statement), fitted_constants()[statement.name]
        upper, largest = statement.upper_only, _moving(found.rise)
        sides = f"<= {constants.highest:.2g}" if upper else "{:.2g}..{:.2g}".format(*constants)
        return Found(
            True,
            f"{found.runs} of {DRAWS} runs (seed {SEED}), log-uniform in {WHOLE}",
            f"measured/scale {found.low:.2g}..{found.high:.2g} over the phases, mean {found.typical:.2g}; drift per"
            f" decade: {largest if upper else f'largest {largest}; smallest {_moving(found.fall)}'}",
            verdict(statement, found),
            f"{sides} on the inner law, times {BOUNDED:g}",
        )

    return order


def verdict(statement: OrderStatement, found: Survey) -> str:
    """Say which sides of an order of magnitude hold over the law."""
    below, above = bounded_sides(statement, found.low, found.high)
    if statement.upper_only and above:
        loose = fitted_constants()[statement.name].highest / found.low
        return f"holds, loose by up to {loose:.2g}" if loose > 2.0 * BOUNDED else "holds"
    if statement.upper_only:
        return f"fails: counterexample {found.where[1]}"
    if below and above:
        return "holds"
    if below:
        return f"holds only as a lower bound: the ratio rises to {found.high:.2g} at {found.where[1]}"
    if above:
        return f"holds only as an upper bound: the ratio falls to {found.low:.2g} at {found.where[0]}"
    return f"fails: counterexample {found.where[0]} (ratio {found.low:.2g})"


def _moving(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} ×{rate:.2g}" for name, rate in rates.items() if not 0.87 < rate < 1.15) or "none"


ORDERS: dict[str, Row] = {statement.name: order_statement(statement) for statement in STATEMENTS}


@row(bounds.PHASE_ONE, bound="1; the upper one attained to 5 %")
def phase_one_explicit(quick: bool) -> Found:
    """By plain iteration, and over the law in closed form."""
    sizes = (2, 3, 7, 10, 30) if quick else (2, 3, 4, 7, 10, 30, 100, 300)
    K, c = np.array([*itertools.product(sizes, (0.01, 1.0, 30.0, 1e3, 1e6))]).T
    runs, iterated = law_runs(), [iterated_steps(*case, (0.5,))[0] for case in zip(K, c, strict=True)]
    counts = np.append(iterated, runs.attends)
    lower, upper = phase_one_bounds_of(np.append(K, runs.K), np.append(c, runs.counter.c))
    low, high = (counts[lower > 0] / lower[lower > 0]).min(), (counts[upper > 0] / upper[upper > 0]).max()
    return Found(
        low >= 1.0 - 1e-9 and 1.0 + 1e-9 >= high > 0.95 and not counts[upper == 0].any(),
        f"{len(K)} runs iterated, K = 2..{sizes[-1]}, c = ηγK/(K-1)² = 0.01..1e6; {DRAWS} runs of the law in closed"
        " form",
        f"T₁ over the lower bound at least {low:.3f}, over the upper one at most {high:.3f}",
    )


@row(bounds.THEOREM_2, bound="1, attained to 1 %")
def after_phase_one_explicit(quick: bool) -> Found:
    """By plain iteration, and over the law in closed form."""
    deficits = (0.245, 0.05) if quick else (0.45, 0.3, 0.245, 0.1, 0.05, 0.02)
    K, c, s = np.array([*itertools.product((2, 3, 20, 100), (0.01, 3.0, 100.0, 1e6), deficits)]).T
    high = max(_over_bound(K, c, s), _over_bound_of_law())
    return Found(
        high <= 1.0 + 1e-9 and high > 0.99,
        f"{len(K)} runs iterated, K = 2..100, c = 0.01..1e6, deficits {min(deficits)}..{max(deficits)};"
        f" {DRAWS} runs of the law in closed form",
        f"T - T₁ - 1 over (7/16)(K-1)/(ηε) at most {high:.4f}",
    )


def _over_bound(K: Array, c: Array, deficit: Array) -> float:
    """Largest ``T - T₁ - 1`` over its bound, by plain iteration; in units of γ, η from c and ε from the deficit."""
    beyond = np.maximum([*map(iterated_after_phase_one, K, c, deficit)], 1) - 1.0
    eta, epsilon = c * (K - 1.0) ** 2 / K, 0.5 * K / (K - 1.0) * deficit**2
    return float(np.max(beyond / (after_phase_one_of(K, eta, epsilon) - 1.0)))


def _over_bound_of_law(epsilon: Array | None = None, among: NDArray[np.bool_] | None = None) -> float:
    """The same for runs of the law in closed form, at their own ε or with the bound for another."""
    runs = law_runs()
    bound = after_phase_one_of(runs.K, runs.eta, runs.epsilon if epsilon is None else epsilon) - 1.0
    return float(np.max((runs.steps - runs.attends - 1.0) / bound, where=among is None or among, initial=0.0))


@row(bounds.THEOREM_1, bound="1, attained to 1 %")
def theorem_1_explicit(quick: bool) -> Found:
    """For targets that leave a deficit of order δ."""
    K, c = np.array([*itertools.product((3, 20, 100), (0.01, 1.0, 100.0))]).T
    runs = law_runs()
    power = (runs.size * runs.imbalance) ** 2
    stated = (power <= 1.0) & (runs.epsilon >= power / 4.0)
    # iterated, the target ε = L²Δ²δ²/4 is the deficit 0.245
    high = max(_over_bound(K, c, np.full(K.shape, 0.245)), _over_bound_of_law(power / 4.0, stated))
    return Found(
        high <= 1.0 + 1e-9 and high > 0.99,
        f"{len(K)} runs iterated with ε = L²Δ²δ²/4, K = 3..100, c = 0.01..100; the {int(stated.sum())} runs of the"
        " law with L <= 1/(Δδ) and such an ε",
        f"T_f - T₁ - 1 over (7/4)(K-1)/(ηL²Δ²δ²) at most {high:.4f}",
    )

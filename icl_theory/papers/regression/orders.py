"""Rows on the paper's orders of magnitude, and on the bounds with constants that replace them."""

from __future__ import annotations

import itertools
from typing import Any

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
from icl_theory.papers.claim import Found, Outcome, Row, Verdict, row
from icl_theory.papers.regression.common import iterated_after_phase_one, iterated_steps


def order_statement(statement: OrderStatement) -> Row:
    """Make the row of one of the paper's order-of-magnitude statements."""

    @row(statement)
    def order(quick: bool) -> Found:
        found, constants = survey(statement), fitted_constants()[statement.name]
        if statement.upper_only:
            drift, sides = _moving(found.rise), f"<= {constants.highest:.2g}"
        else:
            drift = f"largest {_moving(found.rise)}; smallest {_moving(found.fall)}"
            sides = "{:.2g}..{:.2g}".format(*constants)
        return Found(
            verdict(statement, found),
            f"{found.runs} of {DRAWS} runs (seed {SEED}), log-uniform in {WHOLE}",
            f"measured/scale {found.low:.2g}..{found.high:.2g} over the phases, mean {found.typical:.2g}; drift per"
            f" decade: {drift}",
            bound=f"{sides} on the inner law, times {BOUNDED:g}",
        )

    return order


def verdict(statement: OrderStatement, found: Survey) -> Verdict:
    """Say which sides of an order of magnitude hold over the law."""
    below, above = bounded_sides(statement, found.low, found.high)
    if statement.upper_only and above:
        loose = fitted_constants()[statement.name].highest / found.low
        return Verdict(Outcome.LOOSE, f" by up to {loose:.2g}") if loose > 2.0 * BOUNDED else Verdict(Outcome.HOLDS)
    if statement.upper_only:
        return Verdict(Outcome.COUNTEREXAMPLE, f" {found.where[1]}")
    if below and above:
        return Verdict(Outcome.HOLDS)
    if below:
        return Verdict(Outcome.ONLY, f" as a lower bound: the ratio rises to {found.high:.2g} at {found.where[1]}")
    if above:
        return Verdict(Outcome.ONLY, f" as an upper bound: the ratio falls to {found.low:.2g} at {found.where[0]}")
    return Verdict(Outcome.COUNTEREXAMPLE, f" {found.where[0]} (ratio {found.low:.2g})")


def _moving(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} ×{rate:.2g}" for name, rate in rates.items() if not 0.87 < rate < 1.15) or "none"


ORDERS: dict[str, Row] = {statement.name: order_statement(statement) for statement in STATEMENTS}


@row(bounds.PHASE_ONE, bound="1; the upper one attained to 5 %")
def phase_one_explicit(quick: bool) -> Found:
    """By plain iteration, and over the law in closed form."""
    sizes = (2, 3, 7, 10, 30) if quick else (2, 3, 4, 7, 10, 30, 100, 300)
    K, c = np.array([*itertools.product(sizes, (0.01, 1.0, 30.0, 1e3, 1e6))]).T
    runs, iterated = law_runs(), [iterated_steps(*case, (0.5,))[0] for case in zip(K, c, strict=True)]
    both = phase_one_bounds_of(np.append(K, runs.K), np.append(c, runs.counter.c))
    inside, low, high = _inside(np.append(iterated, runs.attends), *both)
    return Found(
        inside and high > 0.95,
        f"{len(K)} runs iterated, K = 2..{sizes[-1]}, c = ηγK/(K-1)² = 0.01..1e6; {len(runs.K)} runs of the law in"
        " closed form",
        f"T₁ over the lower bound at least {low:.3f}, over the upper one at most {high:.3f}",
    )


@row(bounds.THEOREM_2, bound="1, attained to 1 %")
def after_phase_one_explicit(quick: bool) -> Found:
    """By plain iteration, and over the law in closed form."""
    deficits = (0.245, 0.05) if quick else (0.45, 0.3, 0.245, 0.1, 0.05, 0.02)
    K, c, s = np.array([*itertools.product((2, 3, 20, 100), (0.01, 3.0, 100.0, 1e6), deficits)]).T
    beyond, runs = np.maximum([*map(iterated_after_phase_one, K, c, s)], 1) - 1.0, law_runs()
    # of the iterated runs in units of γ: η from c, ε from the deficit
    eta, epsilon = c * (K - 1.0) ** 2 / K, 0.5 * K / (K - 1.0) * s**2
    cases = ((K, runs.K), (eta, runs.eta), (epsilon, runs.epsilon))
    bound = after_phase_one_of(*(np.append(*case) for case in cases)) - 1.0
    inside, _, high = _inside(np.append(beyond, runs.steps - runs.attends - 1.0), 0.0 * bound, bound)
    return Found(
        inside and high > 0.99,
        f"{len(K)} runs iterated, K = 2..100, c = 0.01..1e6, deficits {min(deficits)}..{max(deficits)};"
        f" {len(runs.K)} runs of the law in closed form",
        f"T - T₁ - 1 over (7/16)(K-1)/(ηε) at most {high:.4f}",
    )


@row(bounds.THEOREM_1, bound="1, attained to 1 %")
def theorem_1_explicit(quick: bool) -> Found:
    """For targets that leave a deficit of order δ."""
    K, c = np.array([*itertools.product((3, 20, 100), (0.01, 1.0, 100.0))]).T
    imbalance = 0.245 * np.sqrt(K / (K - 1.0))  # the target ε = L²Δ²δ²/4 is then the deficit 0.245
    beyond = np.maximum([iterated_after_phase_one(*case, 0.245) for case in zip(K, c, strict=True)], 1) - 1.0
    bound = after_phase_one_of(K, c * (K - 1.0) ** 2 / K, 0.5 * imbalance**2) - 1.0  # L²Δ² = 2γ, in units of γ
    runs = law_runs()
    power = (runs.size * runs.imbalance) ** 2
    stated = (power <= 1.0) & (runs.epsilon >= power / 4.0)
    later = (after_phase_one_of(runs.K, runs.eta, power / 4.0) - 1.0)[stated]
    bound, counts = np.append(bound, later), np.append(beyond, (runs.steps - runs.attends)[stated] - 1.0)
    inside, _, high = _inside(counts, 0.0 * bound, bound)
    return Found(
        inside and high > 0.99,
        f"{len(K)} runs iterated with ε = L²Δ²δ²/4, K = 3..100, c = 0.01..100; the {int(stated.sum())} runs of the"
        " law with L <= 1/(Δδ) and such an ε",
        f"T_f - T₁ - 1 over (7/4)(K-1)/(ηL²Δ²δ²) at most {high:.4f}",
    )


def _inside(counts: NDArray[Any], low: Array, high: Array) -> tuple[bool, float, float]:
    """Whether counts lie between bounds, their least ratio to a lower and largest to an upper one that is not 0."""
    inside = (low * (1.0 - 1e-9) <= counts) & (counts <= high * (1.0 + 1e-9))
    least = np.divide(counts, low, where=low > 0, out=np.full(counts.shape, np.inf)).min()
    largest = np.divide(counts, high, where=high > 0, out=np.zeros(counts.shape)).max()
    return bool(inside.all()), float(least), float(largest)

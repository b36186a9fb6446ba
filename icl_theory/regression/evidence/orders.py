"""Audit rows on the paper's orders of magnitude."""

from __future__ import annotations

import math

from icl_theory.claims import Claim
from icl_theory.regression.evidence.common import OURS, Row
from icl_theory.regression.orderwise import BOUNDED, OrderStatement, measure_drift, wide_grid


def order_statement(statement: OrderStatement) -> Row:
    """Return the row of one of the paper's order-of-magnitude statements."""

    def row(quick: bool) -> Claim:
        drift = measure_drift(statement, wide_grid(60 if quick else 300))
        moving = {name: rate for name, rate in drift.per_decade.items() if not 0.87 < rate < 1.15}
        rates = ", ".join(f"{name} ×{rate:.2g}" for name, rate in moving.items()) or "none above 15 %"
        if drift.worst > BOUNDED:
            verdict = f"fails: counterexample {drift.where}"
        elif drift.lowest < 0.5 / BOUNDED:
            verdict = f"holds, loose by up to {1 / drift.lowest:.2g}; drift per decade: {rates}"
        else:
            verdict = "holds"
        return Claim(
            statement.name,
            statement.source,
            statement.statement,
            "order-wise",
            f"{drift.runs} runs, L = 0.1..100, Δ = 0.1..10, K = 5..10⁴, ε/γ = 1e-9..0.1, δ = 1e-3..0.2",
            f"measured/bound {drift.lowest:.2g}..{drift.worst:.2g}; drift per decade: {rates}",
            f"bounded by {BOUNDED:g}",
            verdict,
            False,
        )

    return row


def theorem_1_where_it_holds(quick: bool) -> Claim:
    """Theorem 1 restricted to targets that the imbalance lets one reach, without its logarithm."""
    worst, count = 0.0, 0
    for run in wide_grid(60 if quick else 300):
        delta, scale = run.info["imbalance"], (run.info["L"] * run.info["delta"]) ** 2
        if run.phases is None or run.phases.II is None or not run.converged or run.epsilon < scale * delta**2 / 4:
            continue
        bound = run.info["K"] / (run.eta * scale * delta**2)
        worst, count = max(worst, (run.t[-1] - run.phases.I[1]) / bound), count + 1
    # the flow takes at most [1/(2s²) + 2/s + 3 ln(1/s)] K/(ηγ) with s >= δ, plus one step and a logarithm
    limit = 1.0 + 4.0 * 0.2 + 6.0 * 0.04 * math.log(5.0) + 0.5
    return Claim(
        "Theorem 1, restricted",
        OURS,
        "T_f - T₁ <= C K/(η L²Δ²δ²) where ε >= L²Δ²δ²/4, no logarithm",
        "order-wise",
        f"{count} runs of the same grid",
        f"largest C = {worst:.3g}",
        f"{limit:.2f}",
        "holds" if worst <= limit else "fails: see measured",
        False,
    )

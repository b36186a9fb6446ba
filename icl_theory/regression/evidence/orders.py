"""Audit rows on the paper's orders of magnitude."""

from __future__ import annotations

import math

from icl_theory.claims import Claim
from icl_theory.regression.evidence.common import OURS, Row
from icl_theory.regression.orderwise import BOUNDED, OrderStatement, is_bounded, measure_drift, wide_grid


def order_statement(statement: OrderStatement) -> Row:
    """Return the row of one of the paper's order-of-magnitude statements."""

    def row(quick: bool) -> Claim:
        drift = measure_drift(statement, wide_grid(100 if quick else 400))
        moving = {name: rate for name, rate in drift.per_decade.items() if not 0.87 < rate < 1.15}
        rates = ", ".join(f"{name} ×{rate:.2g}" for name, rate in moving.items()) or "none above 15 %"
        rates = f"drift per decade: {rates}" if drift.per_decade else "too few runs for drifts"
        if not is_bounded(statement, drift.lowest, drift.worst):
            verdict = f"fails: counterexample {drift.where}"
        elif drift.lowest < 0.5 / BOUNDED:
            verdict = f"holds, loose by up to {1 / drift.lowest:.2g}; {rates}"
        else:
            verdict = "holds"
        return Claim(
            statement.name,
            statement.source,
            statement.statement,
            "order-wise",
            f"{drift.runs} runs, {drift.ranges}",
            f"measured/bound {drift.lowest:.2g}..{drift.worst:.2g}; {rates}",
            f"bounded by {BOUNDED:g}" if statement.upper_only else f"bounded by {BOUNDED:g} from both sides",
            verdict,
        )

    return row


def theorem_1_where_it_holds(quick: bool) -> Claim:
    """Theorem 1 restricted to targets that the imbalance lets one reach, without its logarithm."""
    worst, count = 0.0, 0
    for run in wide_grid(100 if quick else 400):
        delta, scale = run.info["imbalance"], (run.info["L"] * run.info["delta"]) ** 2
        if run.phases is None or run.phases.II is None or not run.converged or run.epsilon < scale * delta**2 / 4:
            continue
        bound = run.info["K"] / (run.eta * scale * delta**2)
        worst, count = max(worst, (run.t[-1] - run.phases.I[1]) / bound), count + 1
    # the flow takes at most [1/(2s²) + 2/s + 3 ln(1/s)] (K-1)²/(ηγK) with s >= δ √((K-1)/K), plus a few steps
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
    )

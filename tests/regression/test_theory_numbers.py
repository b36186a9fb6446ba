"""Numbers in the text of docs/theory, computed anew."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import icl_theory as icl

PAGES = Path(__file__).parents[2] / "docs" / "theory"


def says(page: str, *parts: str) -> None:
    """The page has these parts, up to line breaks."""
    text = " ".join((PAGES / page).read_text(encoding="utf-8").split())
    for part in parts:
        assert part in text


def test_constants_of_the_explicit_bounds() -> None:
    longest = minimize_scalar(
        lambda y: -((1 - y) ** 2) * (4 / 3 + 4.76 * y),
        bounds=(0, 0.5),
        options={"xatol": 1e-9},
    )
    says("bounds.md", f"at $y = {longest.x:.3f}$, is ${-longest.fun:.4f} < \\tfrac32$")

    K = np.arange(2.0, 1000.0)
    x = 1.0 / (K - 1.0)
    times = (
        (1.0 - 1.0 / K) ** 2 * (K + 1.5 - 3.0 * np.log(x) - 3.0 * x - 0.5 * x**2) / K
    )
    assert 1.43 < times.max() < -longest.fun

    def h(s: float) -> float:
        return (
            0.5
            + 2 * s
            + 3 * s**2 * float(np.log((1 - s) / s))
            - s**2 / (1 - s)
            - 4 * s**2
        )

    best = minimize_scalar(lambda s: -h(s), bounds=(0.01, 0.5), options={"xatol": 1e-9})
    says("bounds.md", f"attained at $s = {best.x:.4f}$")
    assert 0.002 < 0.875 / -best.fun - 1.0 < 0.003

    above = minimize_scalar(
        lambda s: -(0.5 + 3 * s - 5.593 * s**2 - 16 / 9 * s**3), bounds=(0, 0.5)
    )
    says("bounds.md", f"at $s = {above.x:.4f}$, is ${-above.fun:.4f} <")


def test_a_rare_query_turns_to_the_other_rare_features_first() -> None:
    K = 50
    features = icl.Features(
        icl.Features.simplex(K, 1.0).vectors, [0.5] + [0.5 / (K - 1)] * (K - 1)
    )
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    scores, rare, own = np.zeros((K, K)), [], []
    for step in range(600):
        if step >= 400:
            attention = risk.attention(scores)[:, 1]
            rare.append(float(attention[2:].sum()))
            own.append(float(attention[1]))
        scores -= 4.0 * risk.gradient(scores)
    most = int(np.argmax(rare))
    assert own[most] < 0.05
    assert rare[most] > 0.8


@pytest.mark.slow
def test_excess_with_label_noise_over_its_tail() -> None:
    features = icl.Features([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]], [0.3, 0.3, 0.4])
    risk = icl.PopulationRisk(features, icl.tasks.Linear(1.0), 4, 0.7)
    run = icl.descend(risk, 0.5, steps=2 * 10**6, method="fast")
    excess = run.observed["loss_per_query"][-1] - risk.floor_per_query()
    says("phases.md", f"${2e6 * excess[0]:.4f}$ and ${2e6 * excess[2]:.4f}$ at $t = ")

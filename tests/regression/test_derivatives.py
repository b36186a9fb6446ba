"""Gradients and products with the Hessian of every risk, and reduced problems, against their losses."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import regression, tasks
from icl_theory.papers.regression.theorems.enumeration import differences
from icl_theory.regression.risks.exchangeable import expanded

PLANE = icl.Features(
    [[0.0, 1.0], [1.0, 0.3], [-0.4, 0.2], [0.6, -1.0]], [0.4, 0.3, 0.2, 0.1]
)
PAIRS = np.array([[1.0, 1.7, 2.0], [1.7, 1.5, 1.2], [2.0, 1.2, 0.0]])


def risks(N: float, noise: float) -> dict[str, icl.Risk]:
    """Risks of all kinds, none of them symmetric."""
    linear, quadratic = (
        icl.PopulationRisk(PLANE, law(1.3), N, noise)
        for law in (tasks.Linear, tasks.Quadratic)
    )
    return {
        "one number": icl.ExchangeableRisk(5, 1.7, N, noise),
        "a factor": linear,
        "a variogram": quadratic,
        "groups": icl.SymmetricRisk(
            np.array([2.0, 3, 1]), np.array([0.1, 0.2, 0.2]), PAIRS, N, noise
        ),
        "embedding": icl.in_coordinates(linear, "embedding", PLANE.vectors),
        "Gaussian": regression.GaussianRisk(regression.QuadraticLaw(3, 0.4, 0.7)),
    }


@pytest.mark.parametrize(("N", "noise"), [(math.inf, 0.3), (6, 0.0), (6, 0.8)])
@pytest.mark.parametrize("name", risks(1, 0.0))
def test_gradients_and_hessians_are_the_slopes_of_losses_and_gradients(
    name: str, N: float, noise: float
) -> None:
    """In any direction, at equal scores, near them, and where wrong features have most of the attention."""
    risk, rng = risks(N, noise)[name], np.random.default_rng(4)
    for size in (0.0, 0.5, -2.0):
        params = risk.initial + size * np.abs(rng.normal(size=np.shape(risk.initial)))
        toward = rng.normal(size=np.shape(risk.initial))
        slope = float(differences(lambda x: risk.evaluate(x)[0], params, toward))
        found = float(np.sum(risk.evaluate(params)[1] * toward))
        assert found == pytest.approx(slope, rel=1e-8, abs=1e-11)
        bend = differences(lambda x: risk.evaluate(x)[1], params, toward)
        product = risk.hessian_product(params, toward)
        np.testing.assert_allclose(
            product, bend, rtol=1e-7, atol=1e-9 * float(np.abs(bend).max())
        )


SHIFTED = icl.Features(np.column_stack([1.2 * np.eye(4), np.full(4, 0.8)]))
ALIKE: dict[str, dict[str, Any]] = {
    "simplex": {"task": "linear", "delta": 1.3},
    "basis": {
        "features": icl.Features.orthonormal(4, 0.9),
        "delta": 0.9 * math.sqrt(2.0),
    },
    "shifted basis": {"features": SHIFTED, "delta": SHIFTED.gap, "task": "quadratic"},
}


@pytest.mark.parametrize("N", [math.inf, 7])
@pytest.mark.parametrize("coordinates", ["class", "embedding"])
@pytest.mark.parametrize("name", ALIKE)
def test_one_number_takes_the_steps_of_all_scores(
    name: str, coordinates: str, N: float
) -> None:
    problem = icl.Regression(
        L=1.6, eta=1.1, K=4, N=N, noise=0.3, coordinates=coordinates, **ALIKE[name]
    )
    one = problem.risk()
    assert isinstance(one, icl.ExchangeableRisk)
    whole, rate = expanded(one), 1.1
    u, scores, losses = one.initial, whole.initial, []
    for _ in range(5):
        loss, slope = one.evaluate(u)
        losses.append(loss)
        total, gradient = whole.evaluate(scores)
        assert total == pytest.approx(loss, rel=1e-9)
        np.testing.assert_allclose(
            whole.observe(scores)["attention"], one.attention(float(u)), rtol=1e-9
        )
        u, scores = (
            u - rate * slope / one.metric,
            scores - rate * gradient / whole.metric,
        )
    assert losses[-1] < losses[0]

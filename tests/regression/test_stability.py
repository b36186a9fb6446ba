"""The bound on the curvature against Hessians by finite differences, and what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.regression import curvature_bound, stable_rate

TASKS = {
    "exchangeable": icl.tasks.Exchangeable(2.0),
    "cosine": icl.tasks.RandomCosine(2.0),
    "linear": icl.tasks.Linear(2.0),
    "quadratic": icl.tasks.Quadratic(1.0),
    "halfspace": icl.tasks.Halfspace(2.0),
}


def largest_curvature(risk: icl.PopulationRisk, scores: np.ndarray) -> float:
    """Largest eigenvalue of the Hessian, from differences of gradients."""
    K, h = len(scores), 1e-5
    columns = []
    for index in np.ndindex(K, K):
        step = np.zeros((K, K))
        step[index] = h
        columns.append((risk.gradient(scores + step) - risk.gradient(scores - step)).ravel() / (2 * h))
    return float(np.linalg.eigvalsh(0.5 * (np.array(columns) + np.array(columns).T)).max())


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("N", "noise"), [(math.inf, 0.0), (3, 0.0), (12, 1.0)])
def test_curvature_is_bounded_at_random_scores(name: str, N: float, noise: float) -> None:
    features = icl.Features.simplex(4, delta=1.0)
    risk = icl.PopulationRisk(features, TASKS[name], N, noise)
    bound = float(curvature_bound(TASKS[name].variogram(features).max(), 4, noise=noise, N=N))
    rng = np.random.default_rng(3)
    found = [largest_curvature(risk, scale * rng.normal(size=(4, 4))) for scale in (0.0, 0.5, 1.0, 2.0, 4.0)]
    assert max(found) <= bound


@pytest.mark.parametrize("name", TASKS)
def test_loss_falls_at_every_step_at_the_stable_rate(name: str) -> None:
    features = icl.Features.simplex(4, delta=1.0)
    risk = icl.PopulationRisk(features, TASKS[name], 10, 0.5)
    eta = float(stable_rate(TASKS[name].variogram(features).max(), 4, noise=0.5, N=10))
    scores = risk.initial
    losses = []
    for _ in range(100):
        loss, gradient = risk.evaluate(scores)
        losses.append(loss)
        scores = scores - eta * gradient
    assert (np.diff(losses) < 0).all()


def test_embedding_coordinates_divide_the_rate_by_their_speed() -> None:
    assert stable_rate(2.0, 20, speed=2.0**4 / 4) == pytest.approx(stable_rate(2.0, 20) / 4)

"""The bound on the curvature against finite differences, the steps of its proof, and what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.families.regression import curvature_bound, stable_rate
from icl_theory.families.regression.risks.stability import CURVATURE

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


def test_two_features_attain_the_bound() -> None:
    features = icl.Features.simplex(2, delta=1.0)
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    wrong = (15.0 - math.sqrt(33.0)) / 24.0
    scores = math.log((1.0 - wrong) / wrong) * np.eye(2)
    bound = float(curvature_bound(risk.task.variogram(features).max(), 2))
    assert largest_curvature(risk, scores) == pytest.approx(bound, rel=1e-8)


def second_derivative(attention: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Hessian in the scores of half the squared length of a mean of points, from a softmax's derivatives."""
    K, unit = len(attention), np.eye(len(attention))
    first = np.diag(attention) - np.outer(attention, attention)  # da_m/dS_i
    second = np.empty((K, K, K))  # d²a_m/dS_i dS_j
    for m, i, j in np.ndindex(K, K, K):
        second[m, i, j] = attention[m] * ((unit[m, i] - attention[i]) * (unit[m, j] - attention[j]) - first[i, j])
    mean = attention @ points
    velocity = first @ points
    return np.asarray(velocity @ velocity.T + np.einsum("mij,mr,r->ij", second, points, mean))


def softmax(scores: np.ndarray) -> np.ndarray:
    weight = np.exp(scores - scores.max())
    return np.asarray(weight / weight.sum())


@pytest.mark.parametrize(("K", "r"), [(2, 1), (3, 2), (4, 3)])
def test_no_law_and_no_scores_found_by_search_exceed_the_bound(K: int, r: int) -> None:
    """With noise the query's own point need not be the origin, so that here no point is."""

    def ratio(flat: np.ndarray) -> float:
        points = flat[K:].reshape(K, r)
        with_origin = np.vstack([points, np.zeros(r)])
        widest = np.sum((with_origin[:, None] - with_origin) ** 2, axis=-1).max()
        hessian = second_derivative(softmax(flat[:K]), points / math.sqrt(widest))
        return -float(np.linalg.eigvalsh(hessian)[-1]) / (0.5 * CURVATURE)

    rng = np.random.default_rng(K + 10 * r)
    options = {"maxfev": 1000, "adaptive": True}
    starts = [np.concatenate([rng.normal(size=K), rng.normal(size=K * r)]) for _ in range(4)]
    found = [-minimize(ratio, start, method="Nelder-Mead", options=options).fun for start in starts]
    assert max(found) <= 1.0 + 1e-12
    assert max(found) > 0.8


def test_entries_of_the_hessian_are_those_of_the_proof() -> None:
    rng = np.random.default_rng(0)
    attention, points = softmax(rng.normal(size=5)), rng.normal(size=(5, 3))
    hessian, mean = second_derivative(attention, points), attention @ points
    for m, j in ((0, 1), (2, 4), (3, 1)):
        x, g = points[m], points[j]
        sides = x @ x + g @ g + (x - g) @ (x - g)
        off = mean - (x + g) / 3.0
        expected = -attention[m] * attention[j] * (sides / 6.0 - 3.0 * off @ off)
        assert hessian[m, j] == pytest.approx(expected, rel=1e-12)


def test_row_sums_are_linear_in_six_distances() -> None:
    rng = np.random.default_rng(1)
    a, b = 0.3, 0.55
    rho = 1.0 - a - b
    x, g, y = rng.normal(size=(3, 4))
    mean = a * x + b * g + rho * y
    direct = 2.0 * (x + g) @ mean - x @ g - 3.0 * mean @ mean
    linear = (
        (0.5 - a) * x @ x
        + (0.5 - b) * g @ g
        - rho * y @ y
        + (0.5 - a - b + 3.0 * a * b) * (x - g) @ (x - g)
        + rho * (3.0 * a - 1.0) * (x - y) @ (x - y)
        + rho * (3.0 * b - 1.0) * (g - y) @ (g - y)
    )
    assert linear == pytest.approx(direct, rel=1e-12)


def test_the_proofs_bound_on_a_row_is_largest_for_two_features() -> None:
    a, b = np.meshgrid(np.linspace(0.0, 1.0, 1501), np.linspace(0.0, 1.0, 1501))
    a, b = a[(a <= b) & (a + b <= 1.0)], b[(a <= b) & (a + b <= 1.0)]
    rho, over = np.maximum(1.0 - a - b, 0.0), np.maximum(b - 0.5, 0.0)
    lost = np.divide(over, over + rho, out=np.zeros_like(a), where=over > 0.0)
    terms = (
        0.5 - a,
        0.5 - b,
        0.5 - a - b + 3.0 * a * b,
        rho * (3.0 * a - 1.0),
        rho * (3.0 * b - 1.0 - lost),
    )
    bound = a * b * sum(np.maximum(term, 0.0) for term in terms)
    assert 0.999 * CURVATURE / 4.0 < bound.max() <= CURVATURE / 4.0
    assert a[bound.argmax()] + b[bound.argmax()] == pytest.approx(1.0)


def test_noise_and_short_prompts_found_by_search_stay_below_the_bound() -> None:
    features = icl.Features.simplex(2, delta=1.0)
    for N, noise in ((1, 1.0), (2, 3.0), (4, 10.0)):
        risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(1.0), N, noise)
        bound = float(curvature_bound(0.5, 2, noise=noise, N=N))
        curvatures = [risk.sharpness(gap * np.eye(2)) for gap in np.linspace(-8.0, 8.0, 81)]
        assert max(curvatures) <= bound


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
def test_auto_is_below_the_inverse_curvature_for_frequent_features_too(coordinates: str) -> None:
    """The rate was that of equally likely features: up to K times the largest probability too large."""
    problem = icl.Regression(
        L=2.0, delta=1.0, eta="auto", K=3, probs=[0.98, 0.01, 0.01], task="linear", coordinates=coordinates
    )
    risk, rng = problem.risk(), np.random.default_rng(3)
    most = max(risk.sharpness(scale * rng.normal(size=risk.initial.shape)) for scale in np.geomspace(0.5, 8.0, 200))
    assert 0.5 / problem.rate() < most <= 1.0 / problem.rate()

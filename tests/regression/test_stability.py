"""The bound on the curvature against finite differences, the steps of its proof, and what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.engine.capabilities import gain_at
from icl_theory.regression import curvature_bound, stable_rate
from icl_theory.regression.risks.stability import CURVATURE, embedding_stretch

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
        columns.append(
            (risk.gradient(scores + step) - risk.gradient(scores - step)).ravel()
            / (2 * h)
        )
    return float(
        np.linalg.eigvalsh(0.5 * (np.array(columns) + np.array(columns).T)).max()
    )


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize(("N", "noise"), [(math.inf, 0.0), (3, 0.0), (12, 1.0)])
def test_curvature_is_bounded_at_random_scores(
    name: str, N: float, noise: float
) -> None:
    features = icl.Features.simplex(4, delta=1.0)
    risk = icl.PopulationRisk(features, TASKS[name], N, noise)
    bound = float(
        curvature_bound(TASKS[name].variogram(features).max(), 4, noise=noise, N=N)
    )
    rng = np.random.default_rng(3)
    found = [
        largest_curvature(risk, scale * rng.normal(size=(4, 4)))
        for scale in (0.0, 0.5, 1.0, 2.0, 4.0)
    ]
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
    assert stable_rate(2.0, 20, speed=2.0**4 / 4) == pytest.approx(
        stable_rate(2.0, 20) / 4
    )


def test_two_features_attain_the_bound() -> None:
    features = icl.Features.simplex(2, delta=1.0)
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    wrong = (15.0 - math.sqrt(33.0)) / 24.0
    scores = math.log((1.0 - wrong) / wrong) * np.eye(2)
    bound = float(curvature_bound(risk.task.variogram(features).max(), 2))
    assert largest_curvature(risk, scores) == pytest.approx(bound, rel=1e-8)


def second_derivative(attention: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Hessian in the scores of half the squared length of a mean of points, from a softmax's derivatives."""
    away = np.eye(len(attention)) - attention  # [m, i]: (da_m/dS_i) / a_m
    first = np.diag(attention) - np.outer(attention, attention)  # da_m/dS_i
    # d²a_m/dS_i dS_j, [m, i, j]
    products = away[:, :, None] * away[:, None, :]
    second = attention[:, None, None] * (products - first)
    velocity = first @ points
    along = points @ (attention @ points)
    return np.asarray(velocity @ velocity.T + np.tensordot(along, second, 1))


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
    starts = [
        np.concatenate([rng.normal(size=K), rng.normal(size=K * r)]) for _ in range(4)
    ]
    found = [
        -minimize(ratio, start, method="Nelder-Mead", options=options).fun
        for start in starts
    ]
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
        curvatures = [
            risk.sharpness(gap * np.eye(2)) for gap in np.linspace(-8.0, 8.0, 41)
        ]
        assert max(curvatures) <= bound


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
def test_auto_is_below_the_inverse_curvature_for_frequent_features_too(
    coordinates: str,
) -> None:
    """The rate was that of equally likely features: up to K times the largest probability too large."""
    problem = icl.Regression(
        L=2.0,
        delta=1.0,
        eta="auto",
        K=3,
        probs=[0.98, 0.01, 0.01],
        task="linear",
        coordinates=coordinates,
    )
    risk, rng = problem.risk(), np.random.default_rng(3)
    most = max(
        risk.sharpness(scale * rng.normal(size=risk.initial.shape))
        for scale in np.geomspace(0.5, 8.0, 200)
    )
    assert 0.5 / problem.rate() < most <= 1.0 / problem.rate()


def random_embedded_problem(index: int) -> icl.Regression:
    """Features of any number, dimension, length, position and probabilities, in embedding coordinates."""
    rng = np.random.default_rng(1000 + index)
    K, d = int(rng.integers(2, 8)), int(rng.integers(1, 6))
    vectors = math.exp(rng.normal()) * rng.normal(size=(K, d))
    if index % 2:
        vectors += 3.0 * rng.normal(size=d)
    probs = 0.9 * rng.dirichlet(np.ones(K)) + 0.1 / K if index % 3 == 0 else None
    features = icl.Features(vectors, probs)
    return icl.Regression(
        L=math.exp(rng.normal()),
        delta=features.gap,
        eta="auto",
        features=features,
        task=("linear", "cosine", "fourier", "quadratic", "halfspace", "exchangeable")[
            index % 6
        ],
        N=(math.inf, 3, 20)[index % 5 % 3],
        noise=float(index % 4 == 0),
        coordinates="embedding",
        epsilon=1e-9,
    )


def steps_that_raise_the_loss(problems: range) -> list[int]:
    raised = []
    for index in problems:
        problem = random_embedded_problem(index)
        risk = problem.risk()
        before, gradient = risk.evaluate(risk.initial)
        after, _ = risk.evaluate(risk.initial - problem.rate() * gradient / risk.metric)
        if after > before * (1.0 + 1e-14):
            raised.append(index)
    return raised


def test_no_first_step_over_embeddings_of_any_features_raises_the_loss_at_the_automatic_rate() -> (
    None
):
    assert steps_that_raise_the_loss(range(40)) == []


@pytest.mark.slow
def test_no_first_step_over_embeddings_of_300_feature_sets_raises_the_loss() -> None:
    assert steps_that_raise_the_loss(range(40, 340)) == []


def test_curvature_over_embeddings_is_within_the_bound_at_random_matrices() -> None:
    largest = []
    for index in range(20):
        problem, rng = random_embedded_problem(index), np.random.default_rng(index)
        risk = problem.risk()
        for size in (0.5, 2.0, 6.0):
            params = rng.normal(size=np.shape(risk.initial))
            params *= size / gain_at(risk, params)
            largest.append(problem.rate() * risk.sharpness(params))
    assert max(largest) <= 1.0
    assert max(largest) > 0.3


def test_ten_points_on_a_line_have_the_bound_of_their_sums_of_squares() -> None:
    """The gap alone gave 1/4, and a rate 3000 times as large as the largest stable one."""
    features = icl.Features(np.arange(10.0)[:, None])
    problem = icl.Regression(
        L=1.0,
        delta=1.0,
        eta="auto",
        features=features,
        task="linear",
        coordinates="embedding",
        epsilon=1e-2,
    )
    in_class_coordinates = problem.changed(coordinates="class").rate()
    assert problem.rate() == pytest.approx(
        in_class_coordinates / (82.5 * 285.0), rel=1e-12
    )
    run = icl.descend(problem.risk(), problem.rate(), steps=50)
    assert (np.diff(run.loss) < 0.0).all()


@pytest.mark.parametrize("K", [2, 5, 40])
def test_simplex_and_orthogonal_features_keep_the_rate_of_their_gap(K: int) -> None:
    for features in (icl.Features.simplex(K, 0.7), icl.Features.orthonormal(K, 3.0)):
        problem = icl.Regression(
            L=2.0,
            delta=features.gap,
            eta="auto",
            features=features,
            task="linear",
            coordinates="embedding",
        )
        expected = problem.changed(coordinates="class").rate() / (features.gap**4 / 4.0)
        assert problem.rate() == pytest.approx(expected, rel=1e-13)


def test_features_on_a_line_in_many_dimensions_have_a_rate() -> None:
    line = np.outer(np.arange(20.0), np.full(30, 0.1))
    centred = np.arange(20.0) - 9.5
    expected = (0.3 * centred @ centred) * (0.3 * np.arange(20.0) @ np.arange(20.0))
    assert embedding_stretch(line) == pytest.approx(expected, rel=1e-10)


def test_no_automatic_rate_in_factored_coordinates() -> None:
    with pytest.raises(ValueError, match="eta = 'auto': must be a number"):
        icl.Regression(
            L=2.0, delta=1.0, eta="auto", K=3, task="linear", coordinates="factored"
        ).rate()

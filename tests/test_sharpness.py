"""Hessians against differences of gradients, the stability limit against runs on either side of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.engine.risk import largest_eigenvalue


def sixth_order(
    risk: icl.Risk, params: np.ndarray, direction: np.ndarray
) -> np.ndarray:
    h = 1e-3
    ahead = [
        risk.gradient(params + i * h * direction)
        - risk.gradient(params - i * h * direction)
        for i in (1, 2, 3)
    ]
    return (45.0 * ahead[0] - 9.0 * ahead[1] + ahead[2]) / (60.0 * h)


def make(N: float, noise: float) -> icl.PopulationRisk:
    features = icl.Features.random(5, 3, 0.3, seed=1, probs=[0.4, 0.25, 0.2, 0.1, 0.05])
    return icl.PopulationRisk(features, tasks.RandomFourier(2.0), N, noise)


@pytest.mark.parametrize("coordinates", ["class", "embedding", "factored"])
@pytest.mark.parametrize(
    ("N", "noise"), [(math.inf, 0.0), (2, 0.3), (3, 0.0), (7, 1.0), (50, 0.2)]
)
def test_hessian_product_is_the_change_of_the_gradient(
    N: float, noise: float, coordinates: str
) -> None:
    risk = make(N, noise)
    model = icl.in_coordinates(
        risk, coordinates, risk.features.vectors, rank=2, scale=1.0
    )
    rng = np.random.default_rng(3)
    params, direction = rng.normal(size=(2, *model.initial.shape))
    found = model.hessian_product(params, direction)
    np.testing.assert_allclose(
        found, sixth_order(model, params, direction), atol=1e-10 * np.abs(found).max()
    )


@pytest.mark.parametrize(("N", "noise"), [(math.inf, 0.0), (30, 0.0), (30, 0.7)])
def test_second_derivative_of_the_exchangeable_risk(N: float, noise: float) -> None:
    risk, u = icl.ExchangeableRisk(6, 2.0, N, noise), np.asarray(0.7)
    one = np.asarray(1.0)
    assert float(risk.hessian_product(u, one)) == pytest.approx(
        float(sixth_order(risk, u, one)), rel=1e-9
    )


def test_a_user_s_risk_has_a_hessian_by_differences() -> None:
    class Quartic(icl.Risk):
        initial = np.array([1.0, 2.0])

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return float(np.sum(params**4)) / 4.0, params**3

    risk = Quartic()
    found = risk.hessian_product(risk.initial, np.array([1.0, 1.0]))
    np.testing.assert_allclose(found, 3.0 * risk.initial**2, rtol=1e-8)
    assert risk.sharpness(risk.initial) == pytest.approx(12.0, rel=1e-8)


@pytest.mark.parametrize("coordinates", ["class", "embedding", "factored"])
def test_lanczos_finds_the_largest_eigenvalue_of_the_whole_hessian(
    coordinates: str,
) -> None:
    risk = make(20, 0.5)
    model = icl.in_coordinates(
        risk, coordinates, risk.features.vectors, rank=3, scale=1.0
    )
    params = np.random.default_rng(0).normal(size=model.initial.shape)
    columns = [
        model.hessian_product(params, unit.reshape(params.shape)).ravel()
        for unit in np.eye(params.size)
    ]
    assert model.sharpness(params) == pytest.approx(
        np.linalg.eigvalsh(np.array(columns))[-1], rel=1e-9
    )


def test_reduced_coordinates_have_the_sharpness_of_symmetric_directions() -> None:
    """The Hessian of u in its metric is that of S along the direction that u stands for."""
    risk = icl.ExchangeableRisk(6, 2.0, 30, 0.7)
    full = icl.PopulationRisk(
        icl.Features.simplex(6, 1.0), tasks.Exchangeable(2.0), 30, 0.7
    )
    along = risk.scores(1.0)
    curvature = np.sum(along * full.hessian_product(risk.scores(0.7), along)) / np.sum(
        along**2
    )
    assert risk.sharpness(np.asarray(0.7)) == pytest.approx(curvature, rel=1e-9)
    assert full.sharpness(risk.scores(0.7)) >= curvature * (1.0 - 1e-12)


class Near(icl.Risk):
    """A risk started elsewhere."""

    initial = np.zeros(())

    def __init__(self, risk: icl.Risk, start: np.ndarray) -> None:
        self.risk, self.initial = risk, start

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        return self.risk.evaluate(params)

    @property
    def metric(self) -> float | np.ndarray:
        return self.risk.metric


@pytest.mark.parametrize(
    "risk",
    [
        icl.PopulationRisk(
            icl.Features.simplex(4, 1.0, [0.4, 0.3, 0.2, 0.1]),
            tasks.Exchangeable(2.0),
            20,
            1.0,
        ),
        icl.SymmetricRisk([1, 5], [0.5, 0.1], 2.0, N=20, noise=1.0),
        icl.ExchangeableRisk(20, 2.0, 100, 1.0),
    ],
    ids=lambda risk: type(risk).__name__,
)
def test_runs_just_below_the_stability_limit_stay_and_just_above_leave(
    risk: icl.Risk,
) -> None:
    found = icl.largest_stable_eta(risk)
    assert found.loss == pytest.approx(risk.floor(), rel=1e-9)
    mode = largest_eigenvalue(
        lambda direction: risk.hessian_product(found.params, direction),
        np.shape(found.params),
        risk.metric,
    )[1]
    start = found.params + 1e-4 * mode
    above = Near(risk, start).evaluate(start)[0] - found.loss
    for factor, stays in ((0.99, True), (1.01, False)):
        last = icl.descend(Near(risk, start), factor * found.eta, steps=300)
        assert bool(last.loss[-1] - found.loss < 1e-3 * above) is stays


@pytest.mark.parametrize("N", [math.inf, 5])
def test_without_noise_there_is_no_minimum_at_finite_scores(N: float) -> None:
    with pytest.raises(ValueError, match="minimum at finite parameters"):
        icl.largest_stable_eta(
            icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Exchangeable(2.0), N)
        )


def test_a_score_that_runs_away_despite_label_noise_is_no_minimum() -> None:
    """Without the first feature the second alone is best, more than noise makes it worth to ask the third."""
    points = np.array([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]])
    features = icl.Features(points, [0.3, 0.3, 0.4])
    risk = icl.PopulationRisk(
        features, tasks.KernelTask(points @ points.T), N=4, noise=0.7
    )
    with pytest.raises(ValueError, match="minimum at finite parameters"):
        icl.largest_stable_eta(risk)
    scores = np.array([[5.0, 0.0, 0.0], [3.5, 0.0, 0.0], [0.0, 0.0, 0.0]])
    slopes = []
    for gap in (
        5.0,
        10.0,
        15.0,
        20.0,
    ):  # the further it is, the lower the loss, by the weight that is left
        scores[2, 0] = -gap
        slopes.append(risk.gradient(scores)[2, 0] * math.exp(gap))
    np.testing.assert_allclose(slopes, slopes[-1], rtol=2e-3)
    assert slopes[-1] > 0.0


class Wall(icl.Risk):
    """A parabola in one direction and a wall at infinity in another, with a third that changes nothing."""

    initial = np.array([1.0, 0.0, 0.0])

    def __init__(self, steepness: float) -> None:
        self.steepness = steepness

    def evaluate(self, params: np.ndarray, step: int = 0) -> tuple[float, np.ndarray]:
        wall = self.steepness * math.exp(-params[1])
        return 0.5 * params[0] ** 2 + wall, np.array([params[0], -wall, 0.0])

    def hessian_product(self, params: np.ndarray, direction: np.ndarray) -> np.ndarray:
        return np.array(
            [direction[0], self.steepness * math.exp(-params[1]) * direction[1], 0.0]
        )


@pytest.mark.parametrize("steepness", [1.0, 1e-3, 1e-6])
def test_a_minimum_at_infinity_is_refused_beside_one_that_is_not(
    steepness: float,
) -> None:
    with pytest.raises(ValueError, match="minimum at finite parameters"):
        icl.largest_stable_eta(Wall(steepness))
    assert icl.largest_stable_eta(Wall(0.0)).sharpness == 1.0


@pytest.mark.parametrize("p", [1e-3, 1e-6])
def test_rare_features_have_a_minimum_too(p: float) -> None:
    features = icl.Features.simplex(3, 1.0, [0.6, 0.4 - p, p])
    found = icl.largest_stable_eta(
        icl.PopulationRisk(features, tasks.Exchangeable(2.0), N=20, noise=1.0)
    )
    assert np.abs(found.params).max() < 30.0


def test_sharpness_along_a_run_is_that_of_its_states() -> None:
    run = icl.simulate(
        2.0,
        1.0,
        100.0,
        K=3,
        N=20,
        noise=1.0,
        probs=[0.5, 0.3, 0.2],
        max_steps=900,  # the rarest feature is learned by then
    )
    steps, values = icl.engine.sharpness_along(run, points=4)
    assert len(steps) == 4
    assert run.risk is not None
    assert values[-1] == run.risk.sharpness(run.params)
    limit = icl.largest_stable_eta(run.risk)
    assert values[-1] == pytest.approx(limit.sharpness, rel=0.05)


def test_a_flat_point_has_no_sharpness() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Exchangeable(2.0))
    assert risk.sharpness(1e6 * np.eye(4)) == 0.0


def test_refuses_what_has_no_hessian(tmp_path_factory: pytest.TempPathFactory) -> None:
    risk = make(10, 0.0)
    with pytest.raises(ValueError, match="params = "):
        risk.sharpness(np.zeros((2, 2)))
    sampled = icl.SampledRisk(risk.features, risk.task, N=10, batch=4, seed=0)
    with pytest.raises(ValueError, match="draws its data"):
        icl.engine.sharpness_along(icl.descend(sampled, 0.1, steps=3))
    path = tmp_path_factory.mktemp("run") / "a.npz"
    icl.descend(risk, 0.1, steps=3).save(path)
    with pytest.raises(ValueError, match="loaded from a file"):
        icl.engine.sharpness_along(icl.load(path))


@pytest.mark.parametrize("scale", [1e3, 1e300])
def test_scores_that_run_away_beside_huge_ones_are_no_minimum(scale: float) -> None:
    """No step is short because other entries are huge, and their squares do not overflow."""
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, [0.6, 0.3, 0.1]),
        icl.tasks.RandomCosine(2.0),
        5,
        0.1,
    )
    with pytest.raises(ValueError, match="one with a minimum at finite parameters"):
        icl.largest_stable_eta(risk, start=-scale * np.eye(3))


@pytest.mark.parametrize("size", [4, 12, 13, 30])
@pytest.mark.parametrize("shift", [-3.0, 0.0, 3.0])
def test_the_largest_eigenvalue_is_not_the_largest_in_size(
    size: int, shift: float
) -> None:
    """Of matrices with known eigenvalues, most of them negative where they are shifted down."""
    rng = np.random.default_rng(size)
    basis, values = (
        np.linalg.qr(rng.normal(size=(size, size)))[0],
        shift + np.linspace(-2.0, 1.0, size),
    )
    metric = rng.uniform(0.5, 2.0, size)
    root = np.sqrt(metric)
    matrix = root[:, None] * ((basis * values) @ basis.T) * root
    found, direction = largest_eigenvalue(lambda v: matrix @ v, (size,), metric)
    assert found == pytest.approx(shift + 1.0, abs=1e-8)
    np.testing.assert_allclose(
        np.abs(root * direction), np.abs(basis[:, -1]), atol=1e-7
    )


def test_the_search_for_a_minimum_says_its_loss(heard: list[str]) -> None:
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0), N=9, noise=0.5
    )
    icl.largest_stable_eta(risk)
    assert any(f"loss {risk.loss(risk.initial):.4g}" in line for line in heard)


def test_sharpness_along_a_long_run_is_beside_its_steps() -> None:
    run = icl.descend(
        icl.ExchangeableRisk(5, 2.0, 20, 0.3), 1.0, steps=10_000, method="fast"
    )
    steps, values = icl.engine.sharpness_along(run, points=6)
    assert {*steps.tolist()} <= {*run.t.tolist()}
    assert (steps[0], steps[-1]) == (0, run.t[-1])
    assert run.risk is not None
    assert run.t[-1] > len(run.t)
    for step, value in zip(steps.tolist(), values, strict=True):
        assert value == pytest.approx(
            icl.ExchangeableRisk(5, 2.0, 20, 0.3).sharpness(run.at(step).params),
            rel=1e-9,
        )

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine.capabilities import gain_at, series_at
from icl_theory.engine.pullback import (
    Affine,
    Embedding,
    Factored,
    Linear,
    Map,
    Pullback,
)
from tests.references import slopes


@pytest.fixture
def features() -> icl.Features:
    return icl.Features.random(4, d=3, delta=1.0, seed=5, probs=[0.4, 0.3, 0.2, 0.1])


@pytest.fixture
def risk(features: icl.Features) -> icl.PopulationRisk:
    return icl.PopulationRisk(features, icl.tasks.Quadratic(2.0))


@pytest.mark.parametrize("coordinates", ["class", "embedding", "factored"])
def test_gradient_is_that_of_finite_differences(
    risk: icl.PopulationRisk, features: icl.Features, coordinates: str
) -> None:
    model = icl.in_coordinates(risk, coordinates, features.vectors, rank=2)
    params = np.random.default_rng(0).normal(size=model.initial.shape)
    np.testing.assert_allclose(
        model.gradient(params), slopes(model.loss, params), rtol=1e-6, atol=1e-9
    )


def test_embedding_is_descent_on_the_matrix_of_the_scores(
    risk: icl.PopulationRisk, features: icl.Features
) -> None:
    eta, steps = 0.5, 30
    run = icl.descend(
        icl.in_coordinates(risk, "embedding", features.vectors), eta, steps=steps
    )
    scores = np.zeros((4, 4))
    for _ in range(steps):
        scores = scores - eta * features.gram @ risk.gradient(scores) @ features.gram
    reached = features.vectors @ run.params @ features.vectors.T
    np.testing.assert_allclose(reached, scores, rtol=1e-12, atol=1e-13)


def test_factored_of_full_rank_moves_the_product_by_both_factors(
    risk: icl.PopulationRisk, features: icl.Features
) -> None:
    model = icl.in_coordinates(
        risk, "factored", features.vectors, rank=3, scale=0.5, seed=1
    )
    eta = 1e-6
    run = icl.descend(model, eta, steps=1)
    key, query = model.initial
    q = key.T @ query
    gradient = icl.in_coordinates(risk, "embedding", features.vectors).gradient(q)
    first_order = -(key.T @ key @ gradient + gradient @ query.T @ query)
    moved = (run.params[0].T @ run.params[1] - q) / eta
    np.testing.assert_allclose(moved, first_order, rtol=1e-4, atol=1e-8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"coordinates": "polar"}, "coordinates = 'polar'"),
        ({"coordinates": "factored", "rank": 0}, "rank = 0"),
        ({"coordinates": "factored", "rank": 4}, "rank = 4"),
        ({"coordinates": "factored", "scale": -1.0}, "scale = -1.0"),
        ({"coordinates": "factored", "scale": 1e300}, "scale = 1e\\+300"),
        (
            {"coordinates": "factored", "start": np.full((2, 1, 3), 1e200)},
            "start = .* up to 1e\\+150",
        ),
        ({"coordinates": "embedding", "vectors": np.zeros((3, 3))}, "vectors"),
    ],
)
def test_refuses_wrong_coordinates(
    risk: icl.PopulationRisk,
    features: icl.Features,
    arguments: dict[str, object],
    words: str,
) -> None:
    given: dict[str, object] = {"vectors": features.vectors, **arguments}
    with pytest.raises(ValueError, match=words):
        icl.in_coordinates(risk, **given)  # type: ignore[arg-type]


def test_a_user_class_with_initial_and_evaluate_is_a_risk() -> None:
    class Well(icl.Risk):
        initial = np.array([1.0, -2.0])

        def evaluate(
            self, params: np.ndarray, step: int = 0
        ) -> tuple[float, np.ndarray]:
            return 0.5 * float(params @ params), params

    run = icl.descend(Well(), 0.25, epsilon=1e-10)
    assert run.converged
    np.testing.assert_allclose(run.params, Well.initial * 0.75 ** run.t[-1], rtol=1e-14)
    with pytest.raises(ValueError, match="attention"):
        _ = run.attention


class Dated(icl.Risk):
    """A trainer whose loss and observations say which step it is at."""

    initial = np.zeros(2)

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return 0.5 * float(params @ params) + step, params + 1.0

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        return {"date": np.asarray(float(step)), "params": params}


def test_what_is_observed_in_other_coordinates_is_that_of_the_step() -> None:
    run = icl.descend(
        icl.in_coordinates(Dated(), "linear", 2.0 * np.eye(2)), 0.1, steps=4
    )
    np.testing.assert_array_equal(run.observed["date"], run.t)
    np.testing.assert_array_equal(run.observed["params"], 2.0 * run.states)


@pytest.mark.parametrize("coordinates", [False, True])
def test_what_depends_on_the_step_is_asked_for_at_that_step(coordinates: bool) -> None:
    """Along a run, between its saved steps, beyond its end, and for many states at once."""
    risk = (
        icl.in_coordinates(Dated(), "linear", 2.0 * np.eye(2))
        if coordinates
        else Dated()
    )
    run = icl.descend(risk, 0.1, steps=60)
    between = next(t for t in range(60) if t not in run.t)
    asked = [0, *run.t[-2:].tolist(), between, 70]
    states = [run.at(t) for t in asked]
    losses, observed = series_at(
        risk, np.stack([state.params for state in states]), np.array(asked)
    )
    for t, state, loss, date in zip(
        asked, states, losses, observed["date"], strict=True
    ):
        inner = 2.0 * state.params if coordinates else state.params
        assert state.observed["date"] == date == state.t == t
        assert state.loss == loss == pytest.approx(0.5 * inner @ inner + t, rel=1e-14)


@pytest.mark.parametrize("unit", [1.0, 1e4, 1e9])
def test_products_by_differences_are_as_exact_for_large_parameters(unit: float) -> None:
    class Quartic(icl.Risk):
        initial = unit * np.array([1.0, -2.0, 0.5])

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            x = params / unit
            return 0.25 * float(np.sum(x**4)), x**3 / unit

    direction = np.array([0.3, -1.0, 2.0])
    found = Quartic().hessian_product(Quartic.initial, direction)
    np.testing.assert_allclose(
        found * unit**2, 3.0 * (Quartic.initial / unit) ** 2 * direction, rtol=1e-8
    )
    for size in (1e-9, 1e9):
        product = Quartic().hessian_product(Quartic.initial, size * direction)
        np.testing.assert_allclose(product, size * found, rtol=1e-8)
    assert Quartic().sharpness(Quartic.initial) * unit**2 == pytest.approx(
        12.0, rel=1e-8
    )


DRAWN = np.random.default_rng(8)
MAPS: dict[
    str, tuple[Map, float]
] = {  # and by how much the stretch may exceed the norm of the derivative
    "embedding": (Embedding(DRAWN.normal(size=(4, 3))), 1.0),
    "embedding, queries": (
        Embedding(DRAWN.normal(size=(4, 3)), 9.0 * DRAWN.normal(size=(5, 3))),
        1.0,
    ),
    "embedding, short queries": (
        Embedding(DRAWN.normal(size=(4, 3)), 0.1 * DRAWN.normal(size=(2, 3))),
        1.0,
    ),
    "linear": (Linear(DRAWN.normal(size=(4, 5, 3)), DRAWN.normal(size=3)), 1.0),
    "linear, a matrix": (
        Linear(DRAWN.normal(size=(6, 2, 3)), DRAWN.normal(size=(2, 3))),
        1.0,
    ),
    "factored": (Factored.random(4, rank=2, scale=1.0, seed=1), np.sqrt(2.0)),
    "affine": (
        Affine(
            DRAWN.normal(size=5),
            csc_array(DRAWN.normal(size=(5, 6)) * (DRAWN.random((5, 6)) < 0.5)),
            (1, 3, 2),
        ),
        np.sqrt(6.0),
    ),
}


@pytest.mark.parametrize("name", MAPS)
def test_maps_of_coordinates_are_consistent_with_their_derivatives(name: str) -> None:
    chart, slack = MAPS[name]
    rng = np.random.default_rng(9)
    params = chart.initial + 0.3 * rng.normal(size=chart.initial.shape)
    v, h = rng.normal(size=params.shape), 1e-5
    g = rng.normal(size=chart.inward(params).shape)
    ahead, behind = chart.inward(params + h * v), chart.inward(params - h * v)
    np.testing.assert_allclose(
        chart.push(params, v), (ahead - behind) / (2 * h), rtol=1e-7, atol=1e-8
    )
    assert chart.outward(params, g).shape == params.shape
    assert np.sum(chart.outward(params, g) * v) == pytest.approx(
        np.sum(g * chart.push(params, v)), rel=1e-12
    )
    turned = (chart.outward(params + h * v, g) - chart.outward(params - h * v, g)) / (
        2 * h
    )
    bent = np.broadcast_to(chart.bend(params, v, g), turned.shape)
    np.testing.assert_allclose(bent, turned, rtol=1e-7, atol=1e-8)
    units = np.eye(params.size).reshape(-1, *params.shape)
    norm = np.linalg.norm(
        np.stack([chart.push(params, unit).ravel() for unit in units]), 2
    )
    assert norm * (1.0 - 1e-12) <= chart.stretch(params) <= slack * norm * (1.0 + 1e-12)
    numbers = np.arange(float(params.size)).reshape(params.shape)
    blocks = [np.asarray(block).ravel().tolist() for block in chart.blocks(numbers)]
    assert [number for block in blocks for number in block] == numbers.ravel().tolist()
    if name == "affine":
        assert [len(block) for block in blocks] == [1, 3, 2]


@pytest.mark.parametrize("wrap", [False, True])
def test_parameters_of_the_same_size_but_another_shape_are_refused(
    wrap: bool, features: icl.Features
) -> None:
    plain = icl.PopulationRisk(features, icl.tasks.Quadratic(2.0))
    model = (
        icl.in_coordinates(plain, "factored", features.vectors, rank=2)
        if wrap
        else plain
    )
    params = np.random.default_rng(0).normal(size=model.initial.shape)
    for ask in (model.loss, model.gradient, model.excess, model.sharpness):
        for other in (
            params.ravel(),
            params[None],
            params.reshape(-1, 2),
            np.swapaxes(params, -1, -2)[..., :1],
        ):
            with pytest.raises(ValueError, match=r"^params = "):
                ask(other)


def test_random_factors_are_those_of_size_rank_and_seed(
    risk: icl.PopulationRisk, features: icl.Features
) -> None:
    for rank, scale, seed in ((1, 0.5, 0), (2, 0.5, 3), (3, 2.0, 3)):
        options: Any = {"rank": rank, "scale": scale, "seed": seed}
        model = icl.in_coordinates(risk, "factored", features.vectors, **options)
        drawn = (
            np.random.default_rng(seed).normal(size=(2, rank, 3))
            * scale
            / np.sqrt(rank)
        )
        np.testing.assert_allclose(model.initial, drawn, rtol=1e-14)


def test_a_risk_in_other_coordinates_has_the_floor_the_excess_and_the_gain_of_the_risk(
    features: icl.Features,
) -> None:
    plain = icl.PopulationRisk(features, icl.tasks.Quadratic(2.0), N=20, noise=0.5)
    params = 3.0 * np.eye(3)
    once = icl.in_coordinates(plain, "embedding", features.vectors)
    inside = features.vectors @ params @ features.vectors.T
    assert once.floor() == plain.floor() > 0.0
    assert (
        once.excess(params)
        == plain.excess(inside)
        < once.loss(params)
        == plain.loss(inside)
    )
    twice = Pullback(once, Linear(2.0 * np.eye(9).reshape(3, 3, 9), np.zeros(9)))
    assert gain_at(twice, params.ravel()) == pytest.approx(
        2.0 * gain_at(once, params), rel=1e-12
    )
    assert twice.excess(0.5 * params.ravel()) == pytest.approx(
        once.excess(params), rel=1e-12
    )


def test_a_loss_that_is_no_number_is_refused_where_it_is_asked_for() -> None:
    class Lost(icl.Risk):
        initial = np.ones(2)

        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            return float(np.sqrt(params[0])), params / params[1]

    for name, params in (("loss", [-1.0, 1.0]), ("gradient", [0.0, 0.0])):
        with pytest.raises(ValueError, match=r"^params = .*: must be less extreme"):
            getattr(Lost(), name)(params)
    assert Lost().loss([4.0, 1.0]) == 2.0


def test_scores_of_another_shape_than_their_derivatives_are_refused() -> None:
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), icl.tasks.Linear(2.0))
    with pytest.raises(
        ValueError, match=r"^vectors = \(3, 2\): must be of shape \(3, 3, k\)$"
    ):
        icl.in_coordinates(risk, "linear", np.ones((3, 2)))

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.memory import blocks
from icl_theory.regression.sampled import layer
from tests.references import slopes

FEATURES = icl.Features.random(4, d=3, delta=1.0, seed=1, probs=[0.1, 0.2, 0.3, 0.4])


def sampled(**changes: object) -> icl.SampledRisk:
    arguments: dict[str, object] = {
        "features": FEATURES,
        "task": tasks.Quadratic(1.5),
        "N": 6,
        "batch": 32,
        "seed": 3,
        **changes,
    }
    return icl.SampledRisk(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"noise": 0.4},
        {"token_noise": 0.3},
        {"token_noise": 0.3, "task": tasks.Halfspace(1.0), "noise": 0.1},
        {"dataset": 50},
        {"dataset": 10},
    ],
    ids=str,
)
@pytest.mark.parametrize("step", [0, 5])
def test_backward_pass_is_the_derivative_of_the_forward_pass(
    changes: dict[str, object], step: int
) -> None:
    risk = sampled(**changes)
    params = np.random.default_rng(0).normal(size=risk.initial.shape)
    expected = slopes(lambda x: risk.evaluate(x, step)[0], params)
    np.testing.assert_allclose(
        risk.evaluate(params, step)[1], expected, rtol=1e-6, atol=1e-10
    )


@pytest.mark.parametrize("coordinates", ["embedding", "factored"])
def test_other_coordinates_have_their_derivatives(coordinates: str) -> None:
    risk = icl.in_coordinates(sampled(), coordinates, FEATURES.vectors, scale=1.0)
    params = np.random.default_rng(0).normal(size=risk.initial.shape)
    np.testing.assert_allclose(
        risk.gradient(params), slopes(risk.loss, params), rtol=1e-6, atol=1e-10
    )


def test_factors_of_a_model_with_token_noise_have_their_derivatives() -> None:
    risk = icl.engine.Pullback(
        sampled(token_noise=0.2),
        icl.engine.Factored.random(3, rank=2, scale=1.0, seed=0),
    )
    params = risk.initial
    np.testing.assert_allclose(
        risk.gradient(params), slopes(risk.loss, params), rtol=1e-6, atol=1e-10
    )


def test_vanishing_token_noise_is_the_embedding_without_it() -> None:
    Q = np.random.default_rng(0).normal(size=(3, 3))
    noisy = sampled(token_noise=1e-9, task=tasks.Linear(1.0), batch=4000)
    plain = icl.in_coordinates(
        sampled(task=tasks.Linear(1.0), batch=4000), "embedding", FEATURES.vectors
    )
    assert noisy.loss(Q) == pytest.approx(plain.loss(Q), rel=0.1)
    prompts = noisy.prompts()
    assert prompts.key is not None
    scores = np.einsum("bnd,bd->bn", prompts.key, prompts.asked @ Q.T)
    exact = (FEATURES.vectors @ Q @ FEATURES.vectors.T)[
        prompts.token, prompts.query[:, None]
    ]
    np.testing.assert_allclose(scores, exact, atol=1e-7)


def test_prompts_have_the_law_they_should() -> None:
    prompts = sampled(
        batch=20_000, noise=0.5, task=tasks.FiniteTask([[1.0, 2.0, 3.0, 4.0]])
    ).prompts()
    frequency = np.bincount(prompts.token.ravel(), minlength=4) / prompts.token.size
    np.testing.assert_allclose(frequency, FEATURES.probs, atol=0.01)
    np.testing.assert_allclose(
        np.bincount(prompts.query, minlength=4) / 20_000, FEATURES.probs, atol=0.02
    )
    np.testing.assert_array_equal(prompts.answer, prompts.query + 1.0)
    residual = prompts.label - (prompts.token + 1.0)
    assert abs(residual.mean()) < 0.01
    assert residual.std() == pytest.approx(0.5, rel=0.02)


def test_same_seed_same_bits_other_step_other_prompts() -> None:
    first, again = sampled(), sampled()
    S = np.ones((4, 4))
    for step in (0, 7):
        np.testing.assert_array_equal(
            first.evaluate(S, step)[1], again.evaluate(S, step)[1]
        )
    assert first.evaluate(S, 0)[0] != first.evaluate(S, 1)[0]
    assert sampled(seed=4).loss(S) != first.loss(S)
    runs = [icl.descend(sampled(), 1.0, steps=30).params for _ in range(2)]
    np.testing.assert_array_equal(*runs)


def test_fixed_dataset_is_the_same_at_every_step_or_drawn_from() -> None:
    whole = sampled(dataset=20, batch=20)
    S = np.zeros((4, 4))
    assert whole.evaluate(S, 0)[0] == whole.evaluate(S, 1)[0]
    part = sampled(dataset=20, batch=8)
    answers = set(part.prompts(0).answer) | set(part.prompts(1).answer)
    assert answers <= set(whole.prompts().answer)
    assert len(set(part.prompts(0).answer)) == 8


def test_training_on_a_fixed_dataset_fits_it_better_than_fresh_prompts() -> None:
    risk = sampled(dataset=12, batch=12, task=tasks.Exchangeable(2.0), noise=0.5)
    run = icl.descend(risk, 2.0, steps=3000)
    population = icl.PopulationRisk(FEATURES, tasks.Exchangeable(2.0), N=6, noise=0.5)
    assert run.loss[-1] < 0.9 * population.loss(run.params)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"N": 0}, "N = 0"),
        ({"N": float("inf")}, "N = inf"),
        ({"batch": 0}, "batch = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"dataset": 0}, "dataset = 0"),
        ({"noise": -0.1}, "noise = -0.1"),
        ({"token_noise": float("nan")}, "token_noise = nan"),
        ({"task": None}, "task = None"),
        ({"features": None}, "features = None"),
        ({"task": tasks.KernelTask(np.eye(3))}, "matrix"),
    ],
)
def test_refuses_wrong_arguments(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        sampled(**changes)


def test_held_out_prompts_are_the_same_at_every_call_and_no_steps() -> None:
    risk = sampled(dataset=20, batch=20)
    first, again = risk.held_out(50), risk.held_out(50)
    np.testing.assert_array_equal(first.label, again.label)
    np.testing.assert_array_equal(first.query, np.repeat(np.arange(4), 50))
    trained = {*risk.prompts().answer, *sampled(batch=500).prompts().answer}
    assert not trained & set(first.answer)


def test_held_out_prompts_have_the_law_of_the_others() -> None:
    prompts = sampled(task=tasks.FiniteTask([[1.0, 2.0, 3.0, 4.0]])).held_out(2000)
    frequency = np.bincount(prompts.token.ravel(), minlength=4) / prompts.token.size
    np.testing.assert_allclose(frequency, FEATURES.probs, atol=0.01)
    np.testing.assert_array_equal(prompts.answer, prompts.query + 1.0)


def test_numbers_of_prompts_are_checked() -> None:
    with pytest.raises(ValueError, match="size = 0"):
        sampled().held_out(0)
    with pytest.raises(ValueError, match="size = 0"):
        sampled().draw(np.random.default_rng(0), 0)


@pytest.mark.parametrize(
    "given", [{}, {"noise": 0.3}, {"token_noise": 0.2}, {"dataset": 9}]
)
def test_prompts_taken_a_few_at_a_time_are_the_same_prompts(
    given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    features = icl.Features.simplex(4, 1.0, [0.4, 0.3, 0.2, 0.1])

    def drawn() -> tuple[list[Any], float, np.ndarray, float]:
        risk = icl.SampledRisk(
            features, icl.tasks.Linear(2.0), N=30, batch=7, seed=5, **given
        )
        params = np.random.default_rng(1).normal(size=risk.initial.shape)
        return (
            [*risk.prompts(2)],
            *risk.evaluate(params, 2),
            float(risk.observe(params, 2)["attention"]),
        )

    whole = drawn()
    monkeypatch.setattr(
        layer, "blocks", lambda rows, columns, _: blocks(rows, columns, 60)
    )  # two prompts
    parts = drawn()
    for one, other in zip(whole[0], parts[0], strict=True):
        assert (one is None and other is None) or np.array_equal(one, other)
    for one, other in zip(whole[1:], parts[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-13, atol=1e-15)


def test_prompts_of_a_fixed_set_cannot_be_changed() -> None:
    features = icl.Features.simplex(3, 1.0)
    risk = icl.SampledRisk(
        features, tasks.Linear(1.0), 5, 8, 0, dataset=8, token_noise=0.1
    )
    for part in risk.prompts(0):
        assert part is not None
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 0


def test_however_large_scores_are_one_token_has_all_attention() -> None:
    """A matrix near the end of the range of float64 attends as one does whose scores are far apart already."""
    features = icl.Features.simplex(3, 100.0)
    risk = icl.SampledRisk(features, tasks.Linear(1.0), 5, 8, 0, token_noise=0.1)
    direction = np.random.default_rng(0).normal(size=(3, 3))
    for sign in (-1.0, 1.0):
        large, huge = (
            sign * size * direction / np.abs(direction).max() for size in (1e9, 1e308)
        )
        assert risk.loss(huge) == risk.loss(large)
        assert np.isfinite(risk.gradient(huge)).all()

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.papers.recall.sampled import MATRICES
from tests.recall.enumeration import matrices
from tests.references import slopes

Counts, RecallTask = icl.recall.Counts, icl.recall.RecallTask
reparameterised, TransformerRisk = (
    icl.recall.reparameterised,
    icl.recall.TransformerRisk,
)
ATTENTION = ["linear", "relu", "softmax"]


def small(alpha: float = 0.0) -> icl.recall.RecallTask:
    return RecallTask(7, 2, 2, alpha=alpha, H=7, probs=[0.6, 0.4])


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("name", MATRICES)
def test_backward_pass_is_the_derivative_of_the_forward_pass(
    attention: str, alpha: float, name: str
) -> None:
    risk = TransformerRisk(small(alpha), attention, batch=6, trained=[name])
    rng = np.random.default_rng(1)
    params = risk.initial + 0.3 * rng.normal(size=risk.initial.shape)
    chosen = rng.choice(len(params), 25, replace=False)

    def loss(values: np.ndarray) -> float:
        moved = params.copy()
        moved[chosen] = values
        return risk.evaluate(moved, 3)[0]

    expected = slopes(loss, params[chosen])
    np.testing.assert_allclose(
        risk.evaluate(params, 3)[1][chosen], expected, rtol=1e-6, atol=1e-9
    )
    assert np.abs(expected).max() > 0


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_reparameterised_gradient_is_the_derivative_of_the_loss(
    attention: str, alpha: float
) -> None:
    risk = reparameterised(TransformerRisk(small(alpha), attention, batch=16))
    params = np.random.default_rng(0).normal(size=risk.initial.shape)
    expected = slopes(lambda x: risk.evaluate(x, 2)[0], params)
    np.testing.assert_allclose(
        risk.evaluate(params, 2)[1], expected, rtol=1e-7, atol=1e-9
    )


@pytest.mark.parametrize("attention", ["linear", "relu"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_full_transformer_has_the_empirical_risk_of_the_formula(
    attention: str, alpha: float
) -> None:
    task = RecallTask(9, 2, 3, alpha=alpha, H=11, probs=[0.6, 0.4])
    data = task.sentences(np.random.default_rng(0), 300)
    formula = icl.recall.RecallRisk(task, attention, data=data)
    model = reparameterised(TransformerRisk(task, attention, data=data))
    for seed in range(3):
        params = np.random.default_rng(seed).normal(size=formula.initial.shape)
        (loss, gradient), (other, slope) = (
            formula.evaluate(params),
            model.evaluate(params),
        )
        assert loss == pytest.approx(other, rel=1e-13)
        np.testing.assert_allclose(gradient, slope, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("attention", ["linear", "relu"])
def test_fresh_sentences_agree_with_the_population(attention: str) -> None:
    task = small(0.2)
    population = icl.recall.RecallRisk(task, attention)
    model = reparameterised(TransformerRisk(task, attention, batch=200))
    params = np.array([0.5, 1.5, -0.7])
    draws = [model.evaluate(params, step) for step in range(100)]
    expected = [population.loss(params), *population.gradient(params)]
    found = np.array([[loss, *gradient] for loss, gradient in draws])
    z = (found.mean(axis=0) - expected) / (found.std(axis=0, ddof=1) / 10.0)
    assert np.abs(z).max() < 4.0


def test_unseen_outputs_have_the_same_loss_under_the_reparameterisation_and_not_without() -> (
    None
):
    task = RecallTask(16, 2, 4, H=13)
    full = TransformerRisk(task, batch=64)
    small_run = icl.descend(reparameterised(full), 0.1, rule="ngd", steps=150)
    full_run = icl.descend(full, 0.1, rule="ngd", steps=150)
    np.testing.assert_allclose(
        small_run.observed["seen_loss"], small_run.observed["unseen_loss"], rtol=1e-12
    )
    assert small_run.observed["unseen_accuracy"][-1] == 1.0
    assert full_run.observed["seen_accuracy"][-1] == 1.0
    assert full_run.observed["seen_loss"][-1] < 0.01
    assert full_run.observed["unseen_accuracy"][-1] < 0.1
    assert full_run.observed["unseen_loss"][-1] > math.log(task.V)


@pytest.mark.parametrize("attention", ATTENTION)
def test_attention_brings_the_output_and_the_feed_forward_layer_the_noise(
    attention: str,
) -> None:
    task = RecallTask(12, 2, 3, alpha=0.25, H=13)
    full = TransformerRisk(task, attention)
    scale = [60.0] if attention == "softmax" else []
    params = reparameterised(full).map.inward(
        np.array([60.0, 60.0, *scale, task.best_gamma])
    )
    test = task.sentences(np.random.default_rng(0), 100)
    complete = full.measure(params, test)
    assert (complete.output, complete.noise) == pytest.approx((0.75, 0.25), abs=1e-6)
    without = full.measure(params, test, without=["feed_forward"])
    assert (without.output, without.noise, without.accuracy) == pytest.approx(
        (1.0, 0.0, 1.0), abs=1e-6
    )
    odds = math.exp(task.best_gamma)
    alone = full.measure(params, test, without=["attention"])
    assert (alone.output, alone.noise) == pytest.approx(
        (1 / (11 + odds), odds / (11 + odds))
    )
    neither = full.measure(params, test, without=["attention", "feed_forward"])
    assert neither.loss == pytest.approx(math.log(12))


def test_the_same_seed_gives_the_same_run() -> None:
    runs = [
        icl.descend(
            TransformerRisk(small(0.2), batch=8, seed=5), 0.1, rule="ngd", steps=20
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    other = icl.descend(
        TransformerRisk(small(0.2), batch=8, seed=6), 0.1, rule="ngd", steps=20
    )
    assert not np.array_equal(runs[0].params, other.params)
    assert runs[0].at(7).loss == runs[0].risk.evaluate(runs[0].at(7).params, 7)[0]  # type: ignore[union-attr]


def test_fixed_sentences_are_learnt_by_heart() -> None:
    task = small()
    risk = TransformerRisk(task, data=task.sentences(np.random.default_rng(0), 1))
    assert not risk.stochastic
    assert icl.descend(risk, 0.2, rule="ngd", epsilon=1e-6, steps=500).converged


def test_batches_of_fixed_sentences_take_all_of_them_in_turn() -> None:
    task = RecallTask(8, 2, 3, H=9)
    data = task.sentences(np.random.default_rng(0), 10)
    risk = icl.recall.TransformerRisk(task, data=data, batch=4)
    tokens = np.concatenate([risk.prompts(step).tokens for step in range(5)])
    np.testing.assert_array_equal(tokens, np.concatenate([data.tokens, data.tokens]))


def test_losses_keep_their_digits_however_small() -> None:
    task = RecallTask(9, 1, 3, H=5, counts=Counts.fixed(1))
    model = reparameterised(TransformerRisk(task, batch=4))
    loss, gradient = model.evaluate(np.array([300.0]))
    assert loss == pytest.approx(8 * math.exp(-300.0), rel=1e-12, abs=0.0)
    assert gradient[0] == pytest.approx(-8 * math.exp(-300.0), rel=1e-12, abs=0.0)


def test_diverging_models_have_an_infinite_loss_and_no_nan() -> None:
    risk = TransformerRisk(small(), batch=4)
    huge = np.full(risk.initial.shape, 1e200)
    loss, gradient = risk.evaluate(huge)
    assert loss == math.inf
    assert np.isfinite(gradient).all()
    assert icl.descend(risk, 1e200, steps=20).stop_reason.startswith("diverged")
    with pytest.raises(ValueError, match="numbers with finite logits"):
        risk.measure(huge, risk.prompts())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": None}, "task = None"),
        ({"attention": "x"}, "attention = 'x'"),
        ({"batch": 0}, "batch = 0"),
        ({"seed": -1}, "seed = -1"),
        ({"trained": ["bias"]}, "trained = ['bias']"),
        ({"trained": []}, "trained = []"),
        ({"trained": 3}, "trained = 3"),
        ({"trained": [["value"]]}, "trained = [['value']]"),
        ({"scale": -1.0}, "scale = -1.0"),
        ({"task": RecallTask(5000, 2, 2)}, "V = 5000"),
    ],
)
def test_wrong_input_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        TransformerRisk(**({"task": small()} | options))  # type: ignore[arg-type]
    assert words in str(error.value)


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("weights", ["projection", "identity"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("held", [False, True])
def test_the_reparameterised_matrices_are_those_that_are_written_out(
    attention: str, weights: str, alpha: float, held: bool
) -> None:
    """With γ and v trained, and held at numbers of no special meaning; the words have names of their own."""
    task = RecallTask(
        7,
        [4, 1][: 1 if alpha else 2],
        [0, 5],
        noise_word=3,
        alpha=alpha,
        H=9,
        law="planted",
    )
    strength, v, gamma = (
        np.array([0.8, -1.3])[: task.Q],
        1.7 if attention == "softmax" else 1.0,
        -0.45,
    )
    scaled, noisy = attention == "softmax", alpha > 0
    full = TransformerRisk(task, attention, weights=weights)
    model = reparameterised(
        full, gamma if held and noisy else None, v if held and scaled else None
    )
    params = [*strength, *[v] * (scaled and not held), *[gamma] * (noisy and not held)]
    assert model.initial.tolist() == [0.0] * len(params)
    wanted = matrices(task, weights, strength, v, gamma)[: 3 if noisy else 2]
    np.testing.assert_array_equal(model.map.inward(np.array(params)), np.ravel(wanted))


READERS = [
    ("linear", 1, 0.0),
    ("linear", 0, 0.0),
    ("relu", 0, 0.0),
    ("relu", 1, 0.2),
    ("softmax", 0, 0.0),
]


@pytest.mark.parametrize(("attention", "kappa", "kink"), READERS)
def test_every_reader_has_the_logits_of_its_matrices_and_their_derivatives(
    attention: str, kappa: int, kink: float
) -> None:
    """All words are attended to; F reads what is gathered or not; ReLU stands beside its kink."""
    task = RecallTask(6, 1, 2, alpha=0.3, H=7, law="planted")
    full = TransformerRisk(
        task, attention, batch=5, weights="identity", kappa=kappa, kink=kink
    )
    params = np.random.default_rng(3).normal(0.0, 0.5, full.initial.shape)
    W, value, F = params.reshape(3, 12, 12)
    eye, losses, drawn = np.eye(12), [], full.prompts(4)
    for tokens, answer in zip(drawn.tokens, drawn.answer, strict=True):
        x = np.array(
            [
                eye[z] + (eye[6 + tokens[h - 1]] if h else 0.0)
                for h, z in enumerate(tokens)
            ]
        )
        scores = x @ (W.T @ x[-1]) + kink
        a = np.exp(scores) / np.exp(scores).sum() if attention == "softmax" else scores
        u = value @ (x.T @ (np.maximum(a, 0.0) if attention == "relu" else a))
        logits = (u + F @ (x[-1] + kappa * u))[:6]
        losses.append(np.log(np.exp(logits).sum()) - logits[answer])
    loss, gradient = full.evaluate(params, 4)
    assert loss == pytest.approx(np.mean(losses), rel=1e-12)
    direction = np.random.default_rng(5).normal(size=params.shape)
    slope = slopes(
        lambda s: full.evaluate(params + s[0] * direction, 4)[0], np.zeros(1)
    )
    assert gradient @ direction == pytest.approx(slope[0], rel=1e-6)


def test_a_step_by_blocks_is_as_long_for_strengths_scale_and_noise() -> None:
    task = small(0.3)
    full = TransformerRisk(task, "softmax", batch=16)
    run = icl.descend(reparameterised(full), 0.1, rule="ngd-blocks", steps=2)
    moved = run.states[2] - run.states[1]
    parts = [moved[:2], moved[2:3], moved[3:]]
    assert [float(np.linalg.norm(each)) for each in parts] == pytest.approx(
        [0.1] * 3, rel=1e-9
    )


def test_start_sentences_and_tests_are_those_of_the_seed() -> None:
    one, same, other = (
        TransformerRisk(small(0.2), batch=8, tests=9, seed=seed) for seed in (3, 3, 4)
    )
    for found in (
        lambda risk: risk.initial,
        lambda risk: risk.prompts(2).tokens,
        lambda risk: risk.observe(np.linspace(-1.0, 1.0, risk.initial.size))[
            "seen_loss"
        ],
    ):
        assert np.array_equal(found(one), found(same))
        assert not np.array_equal(found(one), found(other))
    assert not np.array_equal(one.prompts(2).tokens, one.prompts(3).tokens)


def test_only_fixed_sentences_can_be_learnt_below_the_bayes_risk() -> None:
    task = small(0.3)
    data = task.sentences(np.random.default_rng(0), 9)
    assert TransformerRisk(task).floor() == task.bayes_risk
    assert [
        TransformerRisk(task, data=data, batch=batch).floor() for batch in (9, 4)
    ] == [0.0, 0.0]
    assert [
        TransformerRisk(task, data=data, batch=batch).stochastic for batch in (9, 4)
    ] == [False, True]
    with pytest.raises(ValueError, match=r"batch = 10: must be an integer in \[1, 9\]"):
        TransformerRisk(task, data=data, batch=10)


def test_reparameterisation_needs_the_matrices_that_it_sets() -> None:
    with pytest.raises(ValueError, match="full"):
        reparameterised(TransformerRisk(small(), trained=["value"]))
    risk = TransformerRisk(small())
    with pytest.raises(ValueError, match="without = 'readout'"):
        risk.measure(risk.initial, risk.prompts(), without=["readout"])
    drawn = risk.prompts()
    with pytest.raises(
        ValueError, match="sentences = 7: must be made of words below V = 7"
    ):
        risk.measure(
            risk.initial,
            drawn._replace(tokens=np.where(drawn.tokens == 6, 7, drawn.tokens)),
        )
    with pytest.raises(
        ValueError, match=r"gamma = 0\.5: must be left out if alpha = 0"
    ):
        reparameterised(risk, gamma=0.5)
    for attention in ("linear", "relu"):
        with pytest.raises(
            ValueError, match=r"v = 2\.0: must be left out unless attention = 'softmax'"
        ):
            reparameterised(TransformerRisk(small(0.2), attention), v=2.0)

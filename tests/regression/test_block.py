from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression.sampled.block import Weights
from tests.references import Array, slopes

FEATURES = icl.Features.random(3, d=3, delta=1.5, seed=1, probs=[0.2, 0.3, 0.5])
SIMPLEX = icl.Features.simplex(5, delta=2.0)
CASES: dict[str, dict[str, object]] = {
    "features": {},
    "noise": {"noise": 0.3, "token_noise": 0.2},
    "dataset": {"dataset": 20},
}


def block(
    hidden: int = 5, seed: int = 0, held_out: int = 20, **changes: object
) -> icl.regression.BlockRisk:
    arguments: dict[str, object] = {
        "features": FEATURES,
        "task": tasks.Quadratic(1.5),
        "N": 6,
        "batch": 8,
        "seed": 3,
        **changes,
    }
    return icl.regression.BlockRisk(
        icl.SampledRisk(**arguments), hidden, seed, held_out
    )  # type: ignore[arg-type]


def scattered(risk: icl.regression.BlockRisk) -> Array:
    """Parameters at which no layer is special."""
    return risk.initial + 0.3 * np.random.default_rng(7).normal(size=risk.initial.shape)


@cache
def derivatives(case: str, step: int) -> tuple[Weights, Weights]:
    risk = block(**CASES[case])
    params = scattered(risk)
    expected = slopes(lambda x: risk.evaluate(x, step)[0], params)
    return risk.unpack(risk.evaluate(params, step)[1]), risk.unpack(expected)


@pytest.mark.parametrize("layer", Weights._fields)
@pytest.mark.parametrize(
    ("case", "step"), [("features", 0), ("features", 5), ("noise", 2), ("dataset", 1)]
)
def test_backward_pass_is_the_derivative_of_the_forward_pass(
    case: str, step: int, layer: str
) -> None:
    found, expected = (getattr(side, layer) for side in derivatives(case, step))
    assert np.abs(expected).max() > 1e-6
    np.testing.assert_allclose(
        found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max()
    )


def test_gradient_gives_the_slope_in_any_direction_of_a_wide_block() -> None:
    risk = block(
        hidden=40, batch=64, N=30, features=SIMPLEX, task=tasks.RandomCosine(3.0)
    )
    rng = np.random.default_rng(0)
    gradient = risk.gradient(risk.initial)
    for direction in rng.normal(size=(5, len(gradient))):
        h = 1e-6
        ahead, behind = (
            risk.loss(risk.initial + h * direction),
            risk.loss(risk.initial - h * direction),
        )
        assert gradient @ direction == pytest.approx(
            (ahead - behind) / (2.0 * h), rel=1e-6
        )


def layer_norm(x: Array, gain: Array, shift: Array) -> Array:
    return gain * (x - np.mean(x)) / np.sqrt(np.var(x) + 1e-5) + shift


def one_prediction(m: Weights, keys: Array, labels: Array, asked: Array) -> float:
    """The formulas of the theory page for a single prompt."""
    query = np.append(asked, 0.0)
    tokens = [np.append(key, label) for key, label in zip(keys, labels, strict=True)]
    weights = np.exp(
        [(m.W_K @ token) @ (m.W_Q @ query) / np.sqrt(len(query)) for token in tokens]
    )
    attended = sum(
        weight * (m.W_V @ token)
        for weight, token in zip(weights / weights.sum(), tokens, strict=True)
    )
    h = layer_norm(query + attended, m.gain_1, m.shift_1)
    rectified = np.array([max(unit, 0.0) for unit in m.W_1 @ h + m.c_1])
    return float(
        m.w @ layer_norm(h + m.W_2 @ rectified + m.c_2, m.gain_2, m.shift_2) + m.c[0]
    )


@pytest.mark.parametrize("case", ["features", "noise"])
def test_predictions_are_those_of_the_formulas_prompt_by_prompt(case: str) -> None:
    risk = block(**CASES[case])
    params, prompts = scattered(risk), risk.data.prompts(4)
    keys = FEATURES.vectors[prompts.token] if prompts.key is None else prompts.key
    asked = FEATURES.vectors[prompts.query] if prompts.asked is None else prompts.asked
    expected = [
        one_prediction(risk.unpack(params), *prompt)
        for prompt in zip(keys, prompts.label, asked, strict=True)
    ]
    np.testing.assert_allclose(risk.predict(params, prompts)[1], expected, rtol=1e-12)


def test_order_of_the_tokens_does_not_matter() -> None:
    risk = block()
    params, prompts = scattered(risk), risk.data.prompts()
    order = np.random.default_rng(0).permutation(6)
    mixed = prompts._replace(
        token=prompts.token[:, order], label=prompts.label[:, order]
    )
    attention, prediction = risk.predict(params, prompts)
    np.testing.assert_allclose(
        risk.predict(params, mixed)[0], attention[:, order], rtol=1e-12
    )
    np.testing.assert_allclose(risk.predict(params, mixed)[1], prediction, rtol=1e-12)


def test_attention_is_a_distribution_over_tokens_and_over_features() -> None:
    risk = block()
    attention, _ = risk.predict(scattered(risk), risk.data.prompts())
    assert (attention > 0).all()
    np.testing.assert_allclose(attention.sum(axis=1), 1.0, rtol=1e-12)
    seen = risk.observe(scattered(risk))
    np.testing.assert_allclose(seen["attention_map"].sum(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(seen["attention"], np.diagonal(seen["attention_map"]))


def test_what_is_observed_are_means_over_the_held_out_prompts() -> None:
    risk = block()
    params, prompts = scattered(risk), risk.data.held_out(20)
    attention, prediction = risk.predict(params, prompts)
    seen = risk.observe(params)
    for k in range(3):
        mine = prompts.query == k
        losses = 0.5 * (prediction - prompts.answer)[mine] ** 2
        assert seen["loss_per_query"][k] == pytest.approx(losses.mean())
        for m in range(3):
            on_feature = (attention * (prompts.token == m)).sum(axis=1)[mine]
            assert seen["attention_map"][m, k] == pytest.approx(on_feature.mean())
    assert seen["test_loss"] == pytest.approx(FEATURES.probs @ seen["loss_per_query"])


def test_without_values_the_block_knows_the_query_alone() -> None:
    risk = block()
    layers = risk.unpack(scattered(risk))
    params = np.concatenate(
        [part.ravel() for part in layers._replace(W_V=np.zeros((4, 4)))]
    )
    prompts = risk.data.prompts()
    other = prompts._replace(label=prompts.label + 1.0, token=prompts.token[:, ::-1])
    np.testing.assert_array_equal(
        risk.predict(params, prompts)[1], risk.predict(params, other)[1]
    )


def test_without_queries_all_tokens_have_the_same_attention() -> None:
    risk = block()
    layers = risk.unpack(scattered(risk))
    params = np.concatenate(
        [part.ravel() for part in layers._replace(W_Q=np.zeros((4, 4)))]
    )
    np.testing.assert_allclose(
        risk.predict(params, risk.data.prompts())[0], 1 / 6, rtol=1e-12
    )


def copying(risk: icl.regression.BlockRisk, Q: Array, small: float) -> Array:
    """Parameters that attend like Q and pass the label through the norms in one small coordinate.

    It leaves the norms as y small (1 - 1/D) over the deviations, which hardly depend on
    a small label.
    """
    d, D = risk.data.features.d, risk.data.features.d + 1
    layers = risk.unpack(np.zeros_like(risk.initial))
    layers.gain_1[:] = layers.gain_2[:] = 1.0
    layers.W_K[:d, :d] = np.eye(d)
    layers.W_Q[:d, :d] = np.sqrt(D) * Q
    layers.W_V[d, d] = small
    x = np.append(risk.data.features.vectors[0], 0.0)
    first = np.sqrt(np.var(x) + 1e-5)
    layers.w[d] = first * np.sqrt(np.var(x / first) + 1e-5) / (small * (1.0 - 1.0 / D))
    return np.concatenate([part.ravel() for part in layers])


def test_block_comes_as_close_to_the_one_matrix_model_as_one_likes() -> None:
    risk = block(features=SIMPLEX, task=tasks.RandomCosine(2.0), N=20)
    Q = np.random.default_rng(0).normal(size=(5, 5))
    one_matrix = icl.in_coordinates(risk.data, "embedding", SIMPLEX.vectors)
    expected = one_matrix.loss(Q)
    prompts = risk.data.prompts()
    errors = []
    for small in (0.1, 0.01):
        attention, prediction = risk.predict(copying(risk, Q, small), prompts)
        errors.append(
            np.abs(prediction - np.sum(attention * prompts.label, axis=1)).max()
        )
    assert errors[0] < 0.05
    assert errors[1] == pytest.approx(errors[0] / 100, rel=0.05)
    assert risk.loss(copying(risk, Q, 1e-4)) == pytest.approx(expected, rel=1e-6)


def test_the_target_is_not_needed_where_its_value_is_a_function_of_another() -> None:
    """The counterexample to the cone: f_3 = |f_1| and f_2 = 0, answered by a hidden unit for negative labels."""
    from scipy.optimize import nnls

    values = np.array([[-1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 1.0]])
    assert nnls(values[:, :2], values[:, 2])[1] ** 2 / 3 == pytest.approx(2 / 3)
    assert nnls(-values[:, :2], values[:, 2])[1] ** 2 / 3 == pytest.approx(2 / 3)

    risk = block(
        features=icl.Features.simplex(3, 2.0),
        task=tasks.FiniteTask(values),
        N=30,
        batch=400,
    )
    inverse = np.linalg.pinv(risk.data.features.vectors)
    scores = np.zeros((3, 3))
    scores[0, 2] = 90.0
    layers = risk.unpack(copying(risk, inverse @ scores @ inverse.T, 1e-4))
    layers.W_1[0, 3] = -1.0
    layers.W_2[3, 0] = 2.0 / (
        1.0 - 1.0 / 4.0
    )  # y + 2 relu(-y) = |y|, of which the second norm takes a fourth
    params = np.concatenate([part.ravel() for part in layers])
    prompts = risk.data.prompts()
    attention, prediction = risk.predict(params, prompts)
    asked = (prompts.query == 2) & (prompts.token == 0).any(axis=1)
    assert set(prompts.answer[asked]) == {0.0, 1.0}
    np.testing.assert_allclose(prediction[asked], prompts.answer[asked], atol=1e-6)
    assert (attention * (prompts.token == 2)).sum(axis=1)[asked].max() < 1e-20


def test_same_seeds_same_bits_other_seeds_other_runs() -> None:
    runs = [icl.descend(block(), 0.1, steps=30) for _ in range(2)]
    np.testing.assert_array_equal(runs[0].states, runs[1].states)
    np.testing.assert_array_equal(
        runs[0].observed["attention_map"], runs[1].observed["attention_map"]
    )
    assert not np.array_equal(block(seed=1).initial, block().initial)
    assert (
        block(seed=1).evaluate(block().initial)[0]
        == block().evaluate(block().initial)[0]
    )
    assert (
        block().evaluate(block().initial, 1)[0]
        != block().evaluate(block().initial, 0)[0]
    )


def test_small_steps_on_fixed_prompts_lower_the_loss_every_time() -> None:
    risk = block(dataset=30, batch=30)
    assert not risk.stochastic
    run = icl.descend(risk, 0.01, steps=50)
    assert (np.diff(run.loss) < 0).all()


def test_one_frequency_can_be_learnt_without_attending_to_the_target() -> None:
    data = {"features": icl.Features.simplex(6, 2.0), "N": 40, "batch": 32}
    run = icl.descend(
        block(32, 1, held_out=100, task=tasks.RandomCosine(3.0), **data),
        0.2,
        steps=3000,
    )
    assert run.observed["test_loss"][-1] < 0.01  # of 2.25 for the prediction 0
    assert run.attention[-1].mean() < 0.5
    assert run.observed["attention_loss"][-1] > 5.0 * run.observed["test_loss"][-1]


def test_parameters_are_one_vector_in_the_order_of_the_layers() -> None:
    risk = block(hidden=7)
    size = len(risk.initial)
    assert size == 3 * 16 + 4 * 4 + 2 * 28 + 7 + 4 + 4 + 1
    layers = risk.unpack(np.arange(size))
    np.testing.assert_array_equal(
        np.concatenate([part.ravel() for part in layers]), np.arange(size)
    )
    assert layers.W_1.shape == (7, 4)
    assert layers.W_2.shape == (4, 7)


def test_run_away_training_says_so() -> None:
    run = icl.descend(block(task=tasks.Quadratic(30.0)), 10.0, steps=1000)
    assert "diverged" in run.stop_reason
    assert np.isfinite(run.loss[:-1]).all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden": 0}, "hidden = 0"),
        ({"hidden": 2.5}, "hidden = 2.5"),
        ({"seed": -1}, "seed = -1"),
        ({"held_out": 0}, "held_out = 0"),
        ({"data": None}, "data = None"),
        ({"data": FEATURES}, "data = Features"),
    ],
)
def test_refuses_wrong_arguments(changes: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"data": block().data, **changes}
    with pytest.raises(ValueError, match=words):
        icl.regression.BlockRisk(**arguments)  # type: ignore[arg-type]


def test_refuses_wrong_parameters() -> None:
    risk, prompts = block(), block().data.prompts()
    with pytest.raises(ValueError, match="params"):
        risk.unpack(np.zeros(3))
    with pytest.raises(ValueError, match="params"):
        risk.loss(np.full(risk.initial.shape, np.nan))
    with pytest.raises(ValueError, match="finite"):
        risk.predict(np.full(risk.initial.shape, 1e200), prompts)


def test_no_number_is_not_one_beyond_the_range_of_float64() -> None:
    risk = block()
    huge = 1e200 * np.random.default_rng(0).normal(size=risk.initial.shape)
    assert risk.loss(huge) == np.inf
    assert np.isfinite(risk.gradient(huge)).all()
    assert not any(np.isnan(value).any() for value in risk.observe(huge).values())


def test_initial_parameters_do_not_share_their_random_bits_with_the_prompts() -> None:
    risk = block()
    first = np.random.default_rng([risk.data.seed, 0, 0]).normal(size=16)
    same = block(seed=risk.data.seed)
    assert not np.allclose(same.unpack(same.initial).W_Q.ravel() * 2.0, first)


def test_initial_entries_have_the_variance_of_one_over_the_number_of_inputs() -> None:
    risk = block(hidden=4000)
    start = risk.unpack(risk.initial)
    assert start.W_1.std() == pytest.approx(1 / 2, rel=0.05)  # of d + 1 = 4 inputs
    assert start.W_2.std() == pytest.approx(1 / np.sqrt(4000), rel=0.05)
    square = [block(seed=seed).unpack(block(seed=seed).initial) for seed in range(60)]
    for name in ("W_Q", "W_K", "W_V", "w"):
        entries = np.array([getattr(each, name) for each in square])
        assert entries.std() == pytest.approx(1 / 2, rel=0.2)
        assert len(np.unique(entries)) == entries.size
    for name in ("gain_1", "gain_2", "shift_1", "shift_2", "c_1", "c_2", "c"):
        assert (getattr(start, name) == name.startswith("gain")).all()


def test_prompts_with_vectors_of_another_dimension_are_refused() -> None:
    made, other = (
        icl.SampledRisk(
            icl.Features.random(4, d, 1.0, seed=0),
            tasks.Linear(1.0),
            5,
            3,
            0,
            token_noise=0.1,
        )
        for d in (4, 2)
    )
    block = icl.regression.BlockRisk(made)
    assert block.predict(block.initial, made.prompts())[1].shape == (3,)
    with pytest.raises(
        ValueError, match=r"^prompts = 'prompts of other features': must be of Features"
    ):
        block.predict(block.initial, other.prompts())

"""Heads with merged keys and queries, and all matrices of their layer, against layers written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import Pullback
from icl_theory.papers.linear_attention import (
    MergedHeads,
    MergedRisk,
    PromptLaw,
    SampledLayer,
    SeparateLayer,
    TensorRisk,
    WholeLayer,
)
from icl_theory.testing import check_risk
from tests.linear_attention.references import merged, random_law


def gauss(nodes: list[int]) -> tuple[Any, Any]:
    """Points and weights of a product of Gauss–Hermite rules for standard normal numbers."""
    rules = [np.polynomial.hermite_e.hermegauss(count) for count in nodes]
    points = np.meshgrid(*(x for x, _ in rules), indexing="ij")
    weight = np.ones(())
    for _, w in rules:
        weight = np.multiply.outer(weight, w / w.sum())
    return np.stack([axis.ravel() for axis in points], axis=1), weight.ravel()


def written_out(law: PromptLaw, P: Any, K: Any) -> tuple[float, Any, Any]:
    """Loss and gradients of a layer, prompt by prompt and head by head.

    The squared error has the degree 4 in each token, task and noise, and 6 in the
    query: three and four nodes are exact.
    """
    d, N = law.d, int(law.N)
    points, weight = gauss([3] * (N * d + d + N) + [4] * d)
    roots = [np.linalg.cholesky(moment) for moment in law.dense.moments]
    normal = np.split(points, np.cumsum([N * d, d, N]), axis=1)
    tokens = normal[0].reshape(-1, N, d) @ roots[0].T
    task = normal[1] @ roots[1].T
    query = normal[3] @ roots[2].T
    labels = np.einsum("bnd,bd->bn", tokens, task) + law.noise * normal[2]
    E = np.zeros((len(points), d + 1, N + 1))
    E[:, :d, :N] = tokens.swapaxes(1, 2)
    E[:, d, :N] = labels
    E[:, :d, N] = query
    last = E[:, :, N]
    error = -np.sum(query * task, axis=1)
    for P_h, K_h in zip(P, K, strict=True):
        scores = np.einsum("bin,ij,bj->bn", E, K_h, last)
        error += np.einsum("bn,bin,i->b", scores, E, P_h[-1]) / N
    by_P, by_K = np.zeros_like(P), np.zeros_like(K)
    for h in range(len(P)):
        scores = np.einsum("bin,ij,bj->bn", E, K[h], last)
        values = np.einsum("i,bin->bn", P[h, -1], E)
        by_P[h, -1] = np.einsum("b,bn,bin->i", weight * error, scores, E) / N
        by_K[h] = np.einsum("b,bn,bin,bj->ij", weight * error, values, E, last) / N
    return 0.5 * float(weight @ error**2), by_P, by_K


def turned_law(d: int, N: float, noise: float) -> PromptLaw:
    return PromptLaw(*random_law(d, 2, noise, seed=d)[:3], N=N, noise=noise)


@pytest.mark.parametrize(("d", "N", "noise"), [(2, 1, 0.6), (1, 2, 0.4), (2, 2, 0.0)])
def test_loss_and_gradient_of_the_layer_are_those_of_all_prompts(
    d: int, N: int, noise: float
) -> None:
    law = turned_law(d, N, noise)
    start = np.random.default_rng(d + N).normal(size=(2, 2, d + 1, d + 1))
    risk = Pullback(TensorRisk(law, np.zeros((d + 1, d + 1, d))), WholeLayer(start))
    loss, by_P, by_K = written_out(law, *start)
    assert risk.loss(start) == pytest.approx(loss, rel=1e-12)
    scale = np.abs(by_K).max()
    np.testing.assert_allclose(
        risk.gradient(start), [by_P, by_K], rtol=1e-11, atol=1e-11 * scale
    )
    assert risk.excess(start) == pytest.approx(loss - law.floor, rel=1e-12)


@pytest.mark.parametrize("N", [7, math.inf])
def test_derivatives_of_the_layer_and_of_merged_heads(N: float) -> None:
    law = turned_law(3, N, 0.3)
    start = 0.4 * np.random.default_rng(0).normal(size=(2, 2, 4, 4))
    check_risk(Pullback(TensorRisk(law, np.zeros((4, 4, 3))), WholeLayer(start)))
    check_risk(
        Pullback(
            MergedRisk(law, np.zeros((3, 3))),
            MergedHeads(start[0, 0, :1, :1] + np.ones((4, 10)), 3),
        )
    )


def test_derivatives_of_a_layer_with_separate_keys_and_queries() -> None:
    """Two heads with two keys and queries each."""
    start = 0.4 * np.random.default_rng(1).normal(size=(2, 4 + 2 * 7))
    tensor = TensorRisk(turned_law(3, 7, 0.3), np.zeros((4, 4, 3)))
    check_risk(Pullback(tensor, SeparateLayer(start, 3, 2)))


def as_merged(separate: Any, d: int, rank: int) -> Any:
    """The matrices P and K, (2, H, d + 1, d + 1), of heads with separate weights."""
    merged = np.zeros((2, len(separate), d + 1, d + 1))
    for h, head in enumerate(separate):
        keys = head[d + 1 : d + 1 + rank * (d + 1)].reshape(rank, d + 1)
        queries = head[d + 1 + rank * (d + 1) :].reshape(rank, d)
        merged[0, h, -1] = head[: d + 1]
        for key, query in zip(keys, queries, strict=True):
            merged[1, h, :, :d] += np.outer(key, query)
    return merged


def test_separate_weights_have_the_loss_of_their_merged_matrices() -> None:
    start = np.random.default_rng(2).normal(size=(3, 4 + 2 * 7))
    separate = icl.LinearAttention(
        d=3, decay=1.0, coordinates="separate-layer", heads=3, rank=2, start=start
    )
    merged = separate.changed(coordinates="layer", rank=1, start=as_merged(start, 3, 2))
    expected = merged.risk().loss(merged.risk().initial)
    assert separate.risk().loss(start) == pytest.approx(expected, rel=1e-12)


def test_separate_weights_that_are_zero_stay_zero_on_fresh_prompts() -> None:
    """The layer is then its heads with the values' weights on y alone."""
    heads = icl.LinearAttention(
        d=3, decay=1.0, N=8, coordinates="heads", heads=4, start=0.3
    )
    heads = heads.changed(eta=0.05, max_steps=300, above=1e-9, method="exact")
    v_K_Q = heads.risk().initial
    start = np.zeros((4, 4 + 7))
    start[:, 3] = v_K_Q[:, 0]
    start[:, 4:7] = v_K_Q[:, 1:4]
    start[:, 8:] = v_K_Q[:, 4:]
    layer = heads.changed(coordinates="separate-layer", start=start)
    short, long = heads.simulate(), layer.simulate()
    np.testing.assert_allclose(long.loss, short.loss, rtol=1e-12)
    assert short.loss[-1] < 0.8 * short.loss[0]
    assert np.abs(long.params[:, [0, 1, 2, 7]]).max() < 1e-15


@pytest.mark.parametrize("coordinates", ["layer", "separate-layer"])
def test_a_layer_on_a_fixed_set_has_the_loss_of_each_prompt(coordinates: str) -> None:
    """The set is condensed to a quadratic form, and a prompt is written out here."""
    problem = icl.LinearAttention(
        d=2, N=4, coordinates=coordinates, heads=2, start=0.5, dataset=6, eta=0.01
    )
    problem = problem.changed(max_steps=30)
    run = problem.simulate()
    prompts: Any = problem.trained_risk()
    prompts = prompts.prompts
    merged = run.params
    if coordinates == "separate-layer":
        merged = as_merged(run.params, 2, 1)
    losses = []
    for x, y, query, answer in zip(*prompts, strict=True):
        columns = np.vstack([np.column_stack([x, y]), np.append(query, 0.0)])
        gram = columns.T @ columns / 4
        output = 0.0
        for P, K in zip(*merged, strict=True):
            output += (P @ gram @ K @ np.append(query, 0.0))[-1]
        losses.append(0.5 * (output - answer) ** 2)
    assert run.loss[-1] == pytest.approx(np.mean(losses), rel=1e-9)
    assert run.floor <= run.loss[-1] < 0.9 * run.loss[0]
    assert run.observed["population_loss"][-1] > run.loss[-1]
    check_risk(problem.trained_risk())


def test_layer_and_samples_agree() -> None:
    """Loss and slopes along random directions, within four standard errors."""
    law = turned_law(3, 6, 0.5)
    rng = np.random.default_rng(5)
    start = 0.5 * rng.normal(size=(2, 3, 4, 4))
    risk = Pullback(TensorRisk(law, np.zeros((4, 4, 3))), WholeLayer(start))
    trainer = SampledLayer(law, start, batch=2000, seed=1)
    directions = rng.normal(size=(3, start.size))
    samples = []
    for step in range(40):
        loss, gradient = trainer.evaluate(start, step)
        samples.append([loss, *(directions @ gradient.ravel())])
    # The trainer of the tensor, pulled back to the matrices, sees the same prompts.
    pulled = risk.sampled(batch=2000, seed=1).evaluate(start, 39)
    np.testing.assert_allclose(pulled[0], loss, rtol=1e-12)
    np.testing.assert_allclose(pulled[1], gradient, rtol=1e-9, atol=1e-11)
    mean, error = np.mean(samples, axis=0), np.std(samples, axis=0) / math.sqrt(40)
    exact = [risk.loss(start), *(directions @ risk.gradient(start).ravel())]
    assert np.abs((mean - exact) / error).max() < 4.0


def fixed_rng() -> np.random.Generator:
    return np.random.default_rng(8)


def test_gradient_on_sampled_prompts_is_that_of_their_loss() -> None:
    start = 0.5 * np.random.default_rng(2).normal(size=(2, 2, 3, 3))
    trainer = SampledLayer(turned_law(2, 4, 0.5), start, batch=5)
    check_risk(trainer)
    # A trainer of the law of h alone would lose the other terms.
    assert trainer.cheaper() is trainer
    runs = np.stack([start, 2.0 * start])
    losses, gradients = trainer.evaluate_runs(runs, trainer.draw(fixed_rng(), 6))
    for run in range(2):
        part = type(trainer.draw(fixed_rng(), 1))(
            *(array[3 * run : 3 * run + 3] for array in trainer.draw(fixed_rng(), 6))
        )
        loss, gradient = trainer.evaluate_on(runs[run], part)
        assert losses[run] == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(gradients[run], gradient, rtol=1e-10, atol=1e-12)


def test_blocks_that_are_zero_stay_zero_and_the_layer_is_its_merged_heads() -> None:
    heads = icl.LinearAttention(
        d=3, decay=1.0, N=8, noise=0.2, coordinates="merged-heads", heads=4, start=0.1
    )
    heads = heads.changed(eta=0.02, max_steps=600, above=1e-9, method="exact")
    v_and_A = heads.risk().initial
    start = np.zeros((2, 4, 4, 4))
    start[0, :, 3, 3] = v_and_A[:, 0]
    start[1, :, :3, :3] = v_and_A[:, 1:].reshape(4, 3, 3).swapaxes(1, 2)
    layer = heads.changed(coordinates="layer", start=start)
    short, long = heads.simulate(), layer.simulate()
    np.testing.assert_allclose(long.loss, short.loss, rtol=1e-12)
    assert short.loss[-1] < 0.7 * short.loss[0]
    assert np.abs(long.params[0, :, 3, :3]).max() < 1e-15
    assert np.abs(long.params[1, :, 3, :3]).max() < 1e-15
    np.testing.assert_allclose(
        layer.gamma(long.params), heads.gamma(short.params), atol=1e-12
    )


def test_one_merged_head_is_the_pair() -> None:
    """The pair with a whole matrix A, from the same start."""
    start = 0.1 * np.random.default_rng(3).normal(size=10)
    pair = icl.LinearAttention(
        covariance=np.eye(3) + 0.2, N=9, coordinates="pair", start=start, eta=0.05
    )
    head = pair.changed(coordinates="merged-heads", start=start[None])
    losses = [
        problem.changed(max_steps=300).simulate().loss for problem in (pair, head)
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-12)


def test_any_layer_loses_at_least_what_the_best_matrix_does() -> None:
    """Entries beside v and A, and more heads, do not help: the rest of the loss is a square."""
    law = turned_law(3, 4, 0.5)
    risk = TensorRisk(law, np.zeros((4, 4, 3)))
    assert risk.excess(risk.best) == pytest.approx(0.0, abs=1e-13)
    assert np.abs(risk.gradient(risk.best)).max() < 1e-13
    curved = [
        risk.hessian_product(risk.best, unit.reshape(4, 4, 3)).ravel()
        for unit in np.eye(48)
    ]
    values = np.linalg.eigvalsh(curved)
    assert values[0] > -1e-12
    assert risk.largest_curvature() == pytest.approx(values[-1], rel=1e-9)


@pytest.mark.parametrize("coordinates", ["merged-heads", "layer"])
def test_automatic_rate_of_many_heads_is_below_the_edge_of_stability(
    coordinates: str,
) -> None:
    problem = icl.LinearAttention(
        d=3, decay=1.0, coordinates=coordinates, heads=4, start=0.1
    )
    run = problem.simulate()
    assert run.converged
    worst = max(icl.engine.sharpness_along(run, points=10)[1])
    assert problem.rate() * worst < 2.0
    assert np.all(np.diff(run.loss) <= 1e-12)


def test_a_plateau_of_random_merged_heads_is_as_long_as_expected() -> None:
    """To a quarter of ln(1/start), which the draw of the heads decides."""
    for seed in range(3):
        problem = icl.LinearAttention(
            d=4, coordinates="merged-heads", heads=8, start=1e-6, seed=seed, above=0.5
        )
        plateau = problem.simulate().phases.plateau[1]  # type: ignore[union-attr]
        assert plateau == pytest.approx(problem.expected_steps(), rel=0.25)


def test_one_layer_under_clipped_adamw_that_halves_its_rate() -> None:
    """The optimiser written out, on the loss of all prompts of a grid."""
    drawn = random_law(2, 2, 0.0)
    law = PromptLaw(*drawn[:3], N=2)
    start = 0.1 * np.random.default_rng(0).normal(size=(2, 2))
    problem = icl.LinearAttention(
        covariance=drawn[0],
        prior=drawn[1],
        query=drawn[2],
        N=2,
        start=start,
        eta=0.02,
        rule="adamw",
        beta1=0.99,
        beta2=0.9,
        weight_decay=0.0,
        clip=0.05,
        schedule="step",
        decay_steps=20,
        decay_factor=0.5,
        max_steps=60,
        above=1e-12,
    )
    run = problem.simulate()
    gamma, m, v, losses = start, 0.0 * start, 0.0 * start, []
    for t in range(61):
        loss, gradient = merged(drawn, gamma)
        losses.append(loss)
        gradient = gradient * min(1.0, 0.05 / (np.linalg.norm(gradient) + 1e-6))
        m = 0.99 * m + 0.01 * gradient
        v = 0.9 * v + 0.1 * gradient**2
        m_hat, v_hat = m / (1 - 0.99 ** (t + 1)), v / (1 - 0.9 ** (t + 1))
        gamma = gamma - 0.02 * 0.5 ** (t // 20) * m_hat / (np.sqrt(v_hat) + 1e-8)
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose([run.at(t).loss for t in range(61)], losses, rtol=1e-9)
    assert law.floor < losses[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"coordinates": "layer", "tasks": 3}, r"tasks = 3: must be left out for"),
        ({"coordinates": "merged-heads", "rank": 2}, r"rank = 2: must be left out"),
        ({"coordinates": "pair", "heads": 2}, r"heads = 2: must be left out unless"),
        ({"coordinates": "layer", "start": 0.0}, r"start = 0\.0: must be > 0"),
        ({"coordinates": "separate-layer", "tasks": 3}, "tasks = 3: must be left out"),
        (
            {"coordinates": "separate-layer", "d": 2, "start": np.ones((1, 7))},
            r"start = \(1, 7\): .*of shape \(1, 8\)",
        ),
        (
            {"coordinates": "layer", "heads": 3, "start": np.ones((2, 2, 9, 9))},
            r"start = \(2, 2, 9, 9\): must be a number, or of shape \(2, 3, 9, 9\)",
        ),
        (
            {"coordinates": "merged-heads", "start": [1.0]},
            r"start = \(1,\): must be a number, or of shape \(1, 65\)",
        ),
        ({"coordinates": "layer", "d": 5000}, r"d = 5000: must be at most 4000"),
    ],
)
def test_heads_and_layers_that_cannot_be_are_refused(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        icl.LinearAttention(**arguments)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MergedHeads(np.ones((2, 4)), 2), r"start = \(2, 4\).*\(H, 5\)"),
        (lambda: MergedHeads(np.ones((0, 5)), 2), r"start = \(0, 5\).*\(H, 5\)"),
        (lambda: WholeLayer(np.ones((2, 1, 3, 2))), r"start = \(2, 1, 3, 2\)"),
        (lambda: WholeLayer(np.full((2, 1, 3, 3), math.nan)), r"start = "),
        (
            lambda: TensorRisk(PromptLaw([1.0], N=2), np.zeros((2, 2, 2))),
            r"start = \(2, 2, 2\): must be of shape \(2, 2, 1\)",
        ),
        (
            lambda: SampledLayer(PromptLaw([1.0], N=2), np.zeros((2, 2)), 4),
            r"start = \(2, 2\): must be of shape \(2, 1, 2, 2\)",
        ),
    ],
)
def test_matrices_that_fit_no_layer_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()

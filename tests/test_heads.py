"""Softmax heads: the least losses, pairs, closed forms and samples of whole prompts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.testing import check_family, check_risk
from icl_theory.tokens.gaussian import gaussian_queries, usual_step
from icl_theory.tokens.heads import GaussianHeadsRisk

LINEAR = 0.3266  # linear attention


def eliminated(problem: icl.SoftmaxHeads, omega: list[float]) -> tuple[float, Any]:
    """Loss and output weights for the best output weights."""
    output, loss = problem.risk().eliminated(np.array(omega))
    return loss, output


def test_least_losses_of_one_head_two_heads_and_linear_attention() -> None:
    one, two = (icl.SoftmaxHeads(heads=H).risk() for H in (1, 2))
    assert one.floor() == pytest.approx(0.7164, abs=5e-5)
    assert two.floor() == pytest.approx(0.3337, abs=5e-5)
    assert two.best is not None
    assert two.best[0] == pytest.approx(0.0736, abs=1e-4)
    assert icl.LinearAttention(d=5, N=40, noise=0.1).risk().floor() == pytest.approx(
        LINEAR, abs=5e-5
    )
    assert icl.SoftmaxHeads(heads=3).risk().floor() == 0.0


def test_two_heads_with_a_small_best_temperature_have_their_floor_there() -> None:
    """In many dimensions the loss already rises at ω = e^-5."""
    risk = GaussianHeadsRisk(150, 20, 3.0, np.zeros(4))
    assert risk.best is not None
    best, least = risk.best
    assert best < np.exp(-5.0)
    assert risk.floor() == least
    for omega in best * np.exp([-0.5, -0.02, 0.02, 0.5]):
        assert risk.eliminated(np.array([omega, -omega]))[1] > least * (1.0 + 1e-11)


@pytest.mark.slow
def test_the_best_two_heads_are_opposite() -> None:
    """Output weights of a pair sum to zero, and no other two heads do better."""
    problem = icl.SoftmaxHeads(heads=2)
    loss, output = eliminated(problem, [0.0737, -0.0737])
    assert abs(output.sum()) < 1e-8 * abs(output[0])
    assert loss == pytest.approx(problem.risk().floor(), rel=1e-9)
    for omega in itertools.combinations((-0.3, -0.06, 0.09, 0.4), 2):
        assert eliminated(problem, [*omega])[0] > problem.risk().floor()


@pytest.mark.parametrize(
    ("d", "N", "heads"),
    [
        (5, 40, 1),
        pytest.param(2, 12, 1, marks=pytest.mark.slow),
        pytest.param(5, 40, 2, marks=pytest.mark.slow),
    ],
)
def test_temperatures_beside_the_best_one_lose_more(d: int, N: int, heads: int) -> None:
    """By losses with output weights from a least-squares fit of their own."""
    risk = icl.SoftmaxHeads(d=d, N=N, heads=heads).risk()
    signs = np.array([1.0, -1.0])[:heads]

    def loss(omega: float) -> float:
        gradients = [
            risk.gradient([*output, *(omega * signs)])[:heads]
            for output in [np.zeros(heads), *np.eye(heads)]
        ]
        hessian = np.array([gradient - gradients[0] for gradient in gradients[1:]])
        output = np.linalg.solve(hessian, -gradients[0])
        return risk.loss([*output, *(omega * signs)])

    assert risk.best is not None
    omega, least = risk.best
    at_best = loss(omega)
    assert at_best == pytest.approx(least, rel=1e-8)
    for factor in (0.8, 0.997, 1.003, 1.25):
        assert loss(factor * omega) > at_best


def test_slopes_ofwith_best_output_losses_are_differences() -> None:
    risk, omega, h = (
        icl.SoftmaxHeads(d=2, N=5, heads=2).risk(),
        np.array([0.4, -0.2]),
        1e-4,
    )
    _, _, slopes = risk.with_best_output(omega)
    for slope, unit in zip(slopes, h * np.eye(2), strict=True):
        difference = risk.eliminated(omega + unit)[1] - risk.eliminated(omega - unit)[1]
        assert slope == pytest.approx(difference / (2.0 * h), rel=1e-6)


def test_the_floor_is_searched_for_once_for_all_starts_and_rates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sweep over learning rates searched at every point; a dry run took 15 s."""
    passes = []
    own = GaussianHeadsRisk.with_best_output

    def counted(risk: GaussianHeadsRisk, omega: np.ndarray) -> Any:
        passes.append(omega)
        return own(risk, omega)

    monkeypatch.setattr(GaussianHeadsRisk, "with_best_output", counted)
    problem = icl.SoftmaxHeads(d=1, N=3, noise=0.37)
    assert passes == []
    floor = problem.risk().floor()
    assert 0 < len(passes) <= 12
    del passes[:]
    others = [
        problem.changed(eta=0.3),
        problem.changed(seed=5),
        problem.changed(start=0.01),
    ]
    assert [other.risk().floor() for other in others] == [floor] * 3
    assert passes == []


@pytest.mark.parametrize(("output", "other"), [([1.0], 0.7), ([0.5, 0.2, -1.0], 0.12)])
def test_equal_attention_is_the_plain_mean(output: list[float], other: float) -> None:
    """ω = 0: ½((Σμ)²(d + σ²)/N + d); N = 1: the same, whatever ω."""
    d, noise, total = 4, 0.3, sum(output)
    for N, omega in ((6, 0.0), (1, other), (10**8, 0.0)):
        risk = icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=len(output)).risk()
        found = risk.loss([*output, *(omega * (-1.0) ** h for h in range(len(output)))])
        assert found == pytest.approx(
            0.5 * (total**2 * (d + noise**2) / N + d), rel=1e-12
        )


@pytest.mark.parametrize("batches", [1, pytest.param(25, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("d", "N", "params"),
    [
        (3, 8, [1.0, -0.8, 0.4, -0.3]),
        (5, 20, [0.9, 0.5]),
        (1, 6, [2.0, -1.0, 0.2, 0.5]),
    ],
)
def test_samples_of_whole_prompts(
    d: int, N: int, params: list[float], batches: int
) -> None:
    """Inputs, tasks and labels drawn as the model says, with softmax applied to them."""
    rng, noise, H, found = np.random.default_rng(4), 0.3, len(params) // 2, []
    for _ in range(batches):
        x, beta = rng.normal(size=(40_000, N + 1, d)), rng.normal(size=(40_000, d))
        y = np.einsum("bnd,bd->bn", x, beta)
        labels = y[:, :-1] + noise * rng.normal(size=(len(y), N))
        scores, guess = np.einsum("bnd,bd->bn", x[:, :-1], x[:, -1]), np.zeros(len(y))
        for output, omega in zip(params[:H], params[H:], strict=True):
            weight = np.exp(omega * scores)
            guess += output * np.sum(weight * labels, axis=1) / weight.sum(axis=1)
        found.append(0.5 * (guess - y[:, -1]) ** 2)
    losses = np.concatenate(found)
    exact = icl.SoftmaxHeads(d=d, N=N, noise=noise, heads=H).risk().loss(params)
    assert abs(losses.mean() - exact) < 4.0 * losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize(
    ("d", "N", "omega"),
    [
        (5, 40, 0.074),
        (5, 40, 0.5),
        (2, 4, 0.5),
        (1, 2, 2.0),
        # a second and a half, for the most nodes of all
        pytest.param(5, 40, 2.0, marks=pytest.mark.slow),
    ],
)
def test_nodes_are_fine_enough_for_any_temperature(
    d: int, N: int, omega: float
) -> None:
    """Against twice as many lengths, and more digits."""
    risk = icl.SoftmaxHeads(d=d, N=N, heads=1).risk()
    finer = 0.0
    for weight, r, X, probs in gaussian_queries(
        d, N, omega, 0.5 * usual_step(d), digits=42.0
    ):
        tokens = icl.TokenRisk(icl.Kind(N, probs, X, d - 1.0 + 0.1**2), target=r)
        finer += weight * icl.HeadsRisk(tokens, 1).loss([[0.7, *(omega * r * X)]])
    assert risk.loss([0.7, omega]) == pytest.approx(finer, rel=1e-12)


def test_temperatures_beyond_what_fits_into_memory_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^scores = "):
        icl.SoftmaxHeads().risk().loss([1.0, 1e4])


def test_gradient_by_differences() -> None:
    risk, at, h = (
        icl.SoftmaxHeads(N=6, d=5, heads=2).risk(),
        np.array([0.8, -0.5, 0.12, 0.05]),  # ω up to 0.125 have the fewest nodes
        1e-5,
    )
    for gradient, unit in zip(risk.gradient(at), h * np.eye(4), strict=True):
        difference = risk.loss(at + unit) - risk.loss(at - unit)
        assert gradient == pytest.approx(difference / (2.0 * h), rel=1e-8)


def test_columns_of_a_run_and_what_it_observes() -> None:
    problem = icl.SoftmaxHeads(N=6, d=5, heads=3, eta=0.05, max_steps=1)
    run = problem.simulate()
    output, omega = run.params[:3], run.params[3:]
    found = problem.measure(run)
    assert found["zero_sum"] == pytest.approx(
        abs(sum(output)) / sum(map(abs, output)), rel=1e-14
    )
    assert found["omega"] == max(map(abs, omega))
    assert "best" not in found
    np.testing.assert_array_equal(run.observed["output"][-1], output)
    np.testing.assert_array_equal(run.observed["omega"][-1], omega)


def test_the_best_temperature_is_said_and_measured_with_its_loss() -> None:
    problem = icl.SoftmaxHeads(N=6, d=2, heads=1, max_steps=1)
    vars(problem.risk())["best"] = (0.25, 0.125)  # as if it had been searched for
    run = problem.simulate()
    assert run.notes["best"] == "|ω| = 0.25 with the loss 0.125"
    assert problem.measure(run)["best"] == 0.25
    assert run.floor == problem.risk().floor() == 0.125


def test_nodes_are_as_fine_for_temperatures_of_either_sign() -> None:
    """With both numbers of a head turned round its answers are those to tokens that are turned round."""
    risk = icl.SoftmaxHeads(N=6, d=2, heads=1).risk()
    assert risk.loss([0.8, 1.5]) == pytest.approx(risk.loss([-0.8, -1.5]), rel=1e-12)


def test_sampled_losses_and_gradients_average_to_the_exact_ones() -> None:
    problem, at = (
        icl.SoftmaxHeads(N=6, d=2, heads=2, noise=0.4),
        np.array([0.8, -0.5, 0.5, 0.2]),
    )
    risk, draws = problem.risk(), problem.sampled(400, seed=3)
    found = np.array(
        [
            [loss, *slope]
            for loss, slope in (draws.evaluate(at, step) for step in range(60))
        ]
    )
    off = (found.mean(axis=0) - [risk.loss(at), *risk.gradient(at)]) / (
        found.std(axis=0, ddof=1) / np.sqrt(60)
    )
    assert np.abs(off).max() < 4.0
    assert len(np.unique(found[:, 0])) == 60
    np.testing.assert_array_equal(draws.initial, risk.initial)


def test_losses_of_single_heads_are_those_of_their_scores() -> None:
    tokens = icl.TokenRisk(icl.Kind(9, [0.4, 0.6], [1.0, -0.3], 0.2), target=0.7)
    at = np.array([[0.8, 0.3, -0.2], [-0.4, 0.1, 0.9]])
    seen = icl.HeadsRisk(tokens, 2).observe(at)
    np.testing.assert_array_equal(seen["output"], [0.8, -0.4])
    alone = [icl.HeadsRisk(tokens, 1).loss([[1.0, *row[1:]]]) for row in at]
    np.testing.assert_allclose(seen["loss_per_head"], alone, rtol=1e-12)


def test_trainer() -> None:
    check_risk(icl.SoftmaxHeads(N=6, d=2, heads=2).sampled(16))


@pytest.mark.slow
def test_family() -> None:
    check_family(icl.SoftmaxHeads, N=4, d=1, heads=1, max_steps=3, rows=False)


def test_bad_input() -> None:
    for given in (
        {"heads": 0},
        {"heads": 9},
        {"start": 0.0},
        {"N": 0.5},
        {"noise": 1e20},
    ):
        with pytest.raises(ValueError, match=f"{next(iter(given))} = "):
            icl.SoftmaxHeads(**given)

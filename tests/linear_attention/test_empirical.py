"""Linear attention on given prompts: a quadratic form, and descent in closed form."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import icl_theory as icl
from icl_theory.engine import FixedSetRisk
from icl_theory.papers.linear_attention.empirical import (
    EmpiricalRisk,
    equations,
    gap_constant,
)

Array = NDArray[np.float64]


def drawn(M: int, d: int, seed: int = 0) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(M, d)), rng.normal(size=(M, d)), rng.normal(size=M)


def loss_of_prompts(gamma: Array, x: Array, h: Array, y: Array) -> float:
    """The mean over prompts, one by one."""
    return float(
        np.mean([0.5 * (x[m] @ gamma @ h[m] - y[m]) ** 2 for m in range(len(y))])
    )


@pytest.mark.parametrize(("M", "d"), [(1, 2), (2, 2), (10, 3), (500, 3)])
def test_loss_and_gradient_are_those_of_the_prompts(M: int, d: int) -> None:
    prompts = drawn(M, d)
    risk = EmpiricalRisk(equations(*prompts), np.zeros((d, d)))
    gamma = np.random.default_rng(1).normal(size=(d, d))
    assert risk.loss(gamma) == pytest.approx(loss_of_prompts(gamma, *prompts), 1e-12)
    gradient = risk.gradient(gamma)
    # The loss is quadratic, so that central differences have no error but rounding.
    for i in range(d):
        for j in range(d):
            step = np.zeros((d, d))
            step[i, j] = 1.0
            ahead = loss_of_prompts(gamma + step, *prompts)
            behind = loss_of_prompts(gamma - step, *prompts)
            assert gradient[i, j] == pytest.approx((ahead - behind) / 2.0, abs=1e-10)
            product = risk.hessian_product(gamma, step)
            change = risk.gradient(gamma + step) - gradient
            assert product == pytest.approx(change, abs=1e-10)


def test_blocks_of_prompts_give_the_same_equations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from icl_theory.papers.linear_attention import empirical

    prompts = drawn(300, 3)
    gamma = np.ones((3, 3))
    monkeypatch.setattr(empirical, "BLOCK", 200)
    risk = EmpiricalRisk(equations(*prompts), np.zeros((3, 3)))
    assert risk.equations.rows.shape == (10, 9)
    assert risk.loss(gamma) == pytest.approx(loss_of_prompts(gamma, *prompts), 1e-12)


@pytest.mark.parametrize(("M", "share"), [(1, 1.0), (2, 1.9), (10, 0.3), (200, 1.0)])
def test_closed_form_is_plain_iteration(M: int, share: float) -> None:
    d = 3
    x, h, y = drawn(M, d, seed=M)
    start = 0.1 * np.eye(d)
    risk = EmpiricalRisk(equations(x, h, y), start)
    eta = share / float(risk.curvature.max())
    gamma = start.copy()
    losses = []
    for _ in range(41):
        error = np.einsum("mi,ij,mj->m", x, gamma, h) - y
        losses.append(0.5 * np.mean(error**2))
        gamma = gamma - eta * (x * error[:, None]).T @ h / M
    run = icl.descend(risk, eta, steps=40, epsilon=1e-300, method="closed")
    assert run.method == "closed"
    for step in (0, 1, 2, 17, 40):
        assert run.at(step).loss == pytest.approx(losses[step], rel=1e-9, abs=1e-13)


def test_few_prompts_are_interpolated_and_unseen_directions_stay() -> None:
    d = 4
    start = np.random.default_rng(5).normal(size=(d, d))
    risk = EmpiricalRisk(equations(*drawn(10, d)), start)
    assert risk.floor() == 0.0
    run = icl.descend(risk, 1.0 / risk.curvature.max(), epsilon=1e-20)
    assert run.params == pytest.approx(risk.best, abs=1e-8)
    # Ten equations cannot see six of the sixteen directions.
    x, h, _ = drawn(10, d)
    products = np.einsum("mi,mj->mij", x, h).reshape(10, -1)
    unseen = np.linalg.svd(products)[2][10:]
    assert unseen @ (run.params - start).ravel() == pytest.approx(0.0, abs=1e-12)


def test_many_prompts_have_the_least_squares_floor() -> None:
    x, h, y = drawn(400, 3)
    risk = EmpiricalRisk(equations(x, h, y), np.zeros((3, 3)))
    products = np.einsum("mi,mj->mij", x, h).reshape(400, -1)
    best, residual, _, _ = np.linalg.lstsq(products, y, rcond=None)
    assert risk.best.ravel() == pytest.approx(best, abs=1e-12)
    assert risk.floor() == pytest.approx(0.5 * residual[0] / 400, rel=1e-12)
    assert risk.excess(np.zeros((3, 3))) == pytest.approx(
        0.5 * np.mean(y**2) - risk.floor(), rel=1e-12
    )


def test_the_error_of_the_number_of_steps_covers_that_of_single_steps() -> None:
    for M in (5, 40):
        risk = EmpiricalRisk(equations(*drawn(M, 3, seed=M)), np.zeros((3, 3)))
        eta = 1.0 / float(risk.curvature.max())
        closed = icl.descend(risk, eta, above=1e-6, method="closed")
        exact = icl.descend(risk, eta, above=1e-6, method="exact")
        assert closed.steps is not None
        assert exact.steps is not None
        assert closed.error is not None
        assert abs(closed.steps - exact.steps) <= closed.error


def test_prompts_that_do_not_fit_are_named() -> None:
    x, h, y = drawn(4, 2)
    with pytest.raises(ValueError, match=r"h = \(4, 3\): must be of shape \(4, 2\)"):
        equations(x, np.zeros((4, 3)), y)
    with pytest.raises(ValueError, match="answer"):
        equations(x, h, y[:2])
    with pytest.raises(ValueError, match="query"):
        equations(np.full((4, 2), np.nan), h, y)
    with pytest.raises(ValueError, match="query"):
        equations(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(ValueError, match="equations"):
        EmpiricalRisk(None, np.zeros((2, 2)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="start"):
        EmpiricalRisk(equations(x, h, y), np.zeros((3, 3)))


@pytest.mark.parametrize("coordinates", ["merged", "pair"])
def test_family_on_a_set_is_a_plain_loop_over_its_prompts(coordinates: str) -> None:
    d, N, M, eta = 3, 5, 12, 0.02
    problem = icl.LinearAttention(
        d=d, N=N, noise=0.2, coordinates=coordinates, eta=eta, dataset=M, max_steps=30
    )
    risk = problem.trained_risk()
    assert isinstance(risk, FixedSetRisk)
    run = problem.simulate()
    tokens, labels, queries, answers = risk.prompts
    v = 1.0
    A = 0.01 * np.eye(d)
    if coordinates == "pair":
        v, A = 0.01, 0.01 * np.eye(d) / np.sqrt(d)
    losses = []
    for _ in range(31):
        gradient = np.zeros((d, d))
        loss = 0.0
        for X, y, x, answer in zip(tokens, labels, queries, answers, strict=True):
            h = sum(y[i] * X[i] for i in range(N)) / N
            error = x @ (v * A) @ h - answer
            loss += 0.5 * error**2 / M
            gradient += error * np.outer(x, h) / M
        losses.append(loss)
        if coordinates == "pair":
            v, A = v - eta * np.sum(gradient * A), A - eta * v * gradient
        else:
            A = A - eta * gradient
    for step in (0, 1, 13, 30):
        assert run.at(step).loss == pytest.approx(losses[step], rel=1e-11)
    law = problem.law()
    assert run.at(30).observed["population_loss"] == pytest.approx(
        law.dense.loss(problem.gamma(run.at(30).params)), rel=1e-12
    )


def test_the_constant_of_the_gap_is_its_definition() -> None:
    # d = 1, N = 2: h = w (x₁² + x₂²)/2, averaged over a Gauss-Hermite grid.
    nodes, weights = np.polynomial.hermite_e.hermegauss(8)
    weights = weights / weights.sum()
    square = (nodes[:, None] ** 2 + nodes[None, :] ** 2) / 2.0
    weight = np.outer(weights, weights)
    m = np.sum(weight * square**2)
    gamma = np.sum(weight * square) / m
    # e = x w (γ a - 1), and E x⁴ = E w⁴ = 3
    mean = np.sum(weight * (gamma * square - 1.0) ** 2 * square**2)
    assert gap_constant(1, 2) == pytest.approx(9.0 * mean / m, rel=1e-12)


def test_the_constant_of_the_gap_is_that_of_samples() -> None:
    d, N, size = 4, 15, 100_000
    problem = icl.LinearAttention(d=d, N=N)
    best = np.diag(problem.law().best)
    prompts = problem.sampled(1, 0).draw(np.random.default_rng(0), size)
    h = np.einsum("bn,bnd->bd", prompts.labels, prompts.tokens) / N
    error = np.sum((prompts.query @ best) * h, axis=1) - prompts.answer
    m = problem.law().second[0]
    values = error**2 * np.sum(prompts.query**2, axis=1) * np.sum(h**2, axis=1) / m
    z = (values.mean() - gap_constant(d, N)) / (values.std() / np.sqrt(size))
    assert abs(z) < 4.0
    # The limit of long prompts, in units of the floor.
    law = icl.LinearAttention(d=d, N=10**8).law()
    assert gap_constant(d, 10**8) == pytest.approx(2 * 36 * law.floor, rel=1e-6)

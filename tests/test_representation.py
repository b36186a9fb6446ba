"""Regression over a dictionary: loss by all signs of tasks and noise, gradient, floors by other minimisers."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory.papers.representation import statements as papers
from icl_theory.testing import check_family
from tests.references import Array


def predictions(params: Any, labels: Any, problem: icl.Representation) -> Any:
    """Answers to all queries, (B, K), from labels, (B, N), softmax written out head by head."""
    K, N = problem.K, problem.N
    tokens = K if problem.sees == "all" else N
    weights = K if problem.output == "token" else 1
    answers = np.zeros((len(labels), K))
    for head in params:
        scores = np.reshape(head[weights:], (tokens, K))
        for k in range(K):
            attention = np.exp(scores[:, k]) / np.exp(scores[:, k]).sum()
            output = head[k] if problem.output == "token" else head[0]
            answers[:, k] += output * labels @ attention[:N]
    return answers


def random_problem(rng: np.random.Generator) -> tuple[icl.Representation, Any]:
    K, m, N = int(rng.integers(2, 6)), int(rng.integers(1, 4)), 0
    while not 1 <= N <= K:
        N = int(rng.integers(1, 5))
    problem = icl.Representation(
        K=K,
        m=m,
        N=N,
        heads=int(rng.integers(1, 4)),
        sees=str(rng.choice(["all", "labelled"])),
        output=str(rng.choice(["head", "token"])),
        answers=str(rng.choice(["clean", "labels"])),
        noise=float(rng.uniform(0.1, 2.0)),
        start=1.0,
        seed=int(rng.integers(1000)),
    )
    return problem, 2.0 * rng.normal(size=problem.risk().initial.shape)


def test_loss_is_that_of_all_signs_of_tasks_and_noise() -> None:
    """A mean of quadratic forms depends on second moments alone, which signs share with normal numbers."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        problem, params = random_problem(rng)
        m, N = problem.m, problem.N
        risk = problem.risk()
        signs = np.array([*itertools.product((-1.0, 1.0), repeat=m + N)])
        truth = signs[:, :m] @ risk.Z
        labels = truth[:, :N] + problem.noise * signs[:, m:]
        answers = predictions(params, labels, problem)
        if problem.answers == "labels":
            truth[:, :N] = labels
        assert risk.loss(params) == pytest.approx(
            0.5 * np.mean((answers - truth) ** 2), rel=1e-10
        )


@pytest.mark.parametrize(
    ("sees", "output", "answers"),
    [
        ("all", "head", "clean"),
        ("labelled", "head", "labels"),
        ("labelled", "token", "clean"),
        ("all", "token", "labels"),
    ],
)
def test_sampled_prompts_have_the_loss_and_the_gradient_as_means(
    sees: str, output: str, answers: str
) -> None:
    """Within 4 standard errors over 200 batches, each of whose gradients is that of differences."""
    problem = icl.Representation(
        K=4,
        m=3,
        N=2,
        heads=2,
        sees=sees,
        output=output,
        answers=answers,
        start=1.0,
        seed=3,
    )
    risk = problem.risk()
    trainer, params = risk.sampled(100, seed=5), risk.initial + 0.3
    drawn = [trainer.evaluate(params, step) for step in range(200)]
    losses, slopes = (
        np.array([loss for loss, _ in drawn]),
        np.array([slope for _, slope in drawn]),
    )
    for found, exact in ((losses, risk.loss(params)), (slopes, risk.gradient(params))):
        assert np.all(
            np.abs(found.mean(axis=0) - exact)
            < 4.0 * found.std(axis=0, ddof=1) / 200.0**0.5 + 1e-15
        )
    for at in np.ndindex(params.shape):
        move = np.zeros_like(params)
        move[at] = 1e-5
        rise = (
            trainer.evaluate(params + move, 7)[0]
            - trainer.evaluate(params - move, 7)[0]
        )
        assert slopes[7][at] == pytest.approx(rise / 2e-5, rel=1e-6, abs=1e-9)


@pytest.mark.slow
def test_loss_is_that_of_a_million_prompts() -> None:
    problem, rng = icl.Representation(K=5, m=3, N=2, heads=2), np.random.default_rng(1)
    risk = problem.risk()
    task = rng.normal(size=(1_000_000, 3))
    labels = task @ risk.Z[:, :2] + problem.noise * rng.normal(size=(len(task), 2))
    losses = 0.5 * np.mean(
        (predictions(risk.initial, labels, problem) - task @ risk.Z) ** 2, axis=1
    )
    assert abs(losses.mean() - risk.loss(risk.initial)) < 4.0 * losses.std() / 1000.0


def test_gradient_by_differences() -> None:
    rng, h = np.random.default_rng(2), 1e-3
    for _ in range(10):
        problem, params = random_problem(rng)
        risk, way = problem.risk(), rng.normal(size=params.shape)
        wide, near = (
            risk.loss(params + k * h * way) - risk.loss(params - k * h * way)
            for k in (2.0, 1.0)
        )
        expected = (8.0 * near - wide) / (12.0 * h)
        assert float(np.sum(risk.gradient(params) * way)) == pytest.approx(
            expected, rel=1e-8, abs=1e-9
        )


@pytest.mark.parametrize("sees", ["all", "labelled"])
@pytest.mark.parametrize(
    ("output", "answers"),
    [("head", "clean"), ("head", "labels"), ("token", "clean"), ("token", "labels")],
)
def test_floors_are_least_losses_over_coefficients(
    sees: str, output: str, answers: str
) -> None:
    """By another minimiser, of b under its constraints and not of scores."""
    for heads, seed in ((2, 0), (2, 3), (1, 1), (1, 3)):
        problem = icl.Representation(
            K=5,
            m=4,
            N=3,
            heads=heads,
            sees=sees,
            output=output,
            answers=answers,
            seed=seed,
        )
        risk = problem.risk()
        own = np.eye(3, 5) if answers == "labels" else np.zeros((3, 5))

        def losses(x: Any, risk: Any = risk, own: Any = own) -> Any:
            b = x.reshape(3, 5)
            missed = np.sum((risk.Z[:, :3] @ b - risk.Z) ** 2, axis=0)
            return 0.5 * (missed + 0.09 * np.sum((b - own) ** 2, axis=0))

        def mean(x: Any) -> float:
            return float(np.mean(losses(x)))

        same_sum = {"type": "eq", "fun": lambda x: np.diff(x.reshape(3, 5).sum(axis=0))}
        shared = sees == "labelled" and heads > 1 and output == "head"
        tied = {"constraints": [same_sum]} if shared else {}
        ranges = [(0.0, None), (None, 0.0)] if heads == 1 else [(None, None)]
        ends = [
            minimize(
                mean,
                np.zeros(15),
                bounds=[each] * 15,
                method="SLSQP",
                tol=1e-14,
                options={"maxiter": 500},
                **tied,
            ).x
            for each in ranges
        ]
        by_query = np.array([losses(x) for x in ends])
        least = (
            by_query.min(axis=0).mean()
            if output == "token"
            else by_query.mean(axis=1).min()
        )
        assert risk.floor() == pytest.approx(float(least), rel=1e-8)


def test_weights_of_head_and_token_begin_at_zero_and_reach_ridge_regression_over_labels_alone() -> (
    None
):
    """Given labels come back on their tokens; elsewhere the dual form, with an m x m matrix."""
    problem = icl.Representation(
        K=6,
        m=3,
        N=2,
        heads=2,
        sees="labelled",
        output="token",
        answers="labels",
        above=1e-10,
    )
    assert not problem.risk().initial[:, :6].any()
    run, risk = problem.simulate(), problem.risk()
    first = risk.Z[:, :2]
    dual = first.T @ np.linalg.solve(first @ first.T + 0.09 * np.eye(3), risk.Z[:, 2:])
    np.testing.assert_allclose(
        risk.coefficients(run.params), np.hstack([np.eye(2), dual]), atol=2e-4
    )
    shared = problem.changed(output="head")
    assert shared.risk().floor() > 1.05 * risk.floor()


def test_two_heads_that_are_split_have_the_coefficients_of_ridge_regression() -> None:
    risk = papers.PUBLISHED.changed(heads=2, seed=5).risk()
    np.testing.assert_allclose(
        risk.coefficients(papers.constructed_heads(risk.ridge)), risk.ridge, atol=1e-13
    )


def test_two_heads_end_as_ridge_regression() -> None:
    """Coefficients of ridge regression in the dual form, which inverts an m x m matrix."""
    problem = icl.Representation(heads=2, above=1e-10)
    run, risk = problem.simulate(), problem.risk()
    first = risk.Z[:, :4]
    dual = first.T @ np.linalg.solve(first @ first.T + 0.09 * np.eye(8), risk.Z)
    np.testing.assert_allclose(risk.coefficients(run.params), dual, atol=2e-4)


def test_what_is_observed_is_the_distance_from_ridge_regression() -> None:
    problem = icl.Representation(
        K=5, m=4, N=3, heads=2, seed=3, max_steps=2, noise=0.4, eta=0.5
    )
    run, risk = problem.simulate(), problem.risk()
    first = risk.Z[:, :3]
    ridge = np.linalg.solve(first.T @ first + 0.16 * np.eye(3), first.T @ risk.Z)
    for params, off in zip(run.states, run.observed["off"], strict=True):
        unit = [
            predictions(params, label[None], problem)[0] for label in np.eye(3)
        ]  # answers to one label alone
        assert off == pytest.approx(
            np.sqrt(np.sum((np.array(unit) - ridge) ** 2)), rel=1e-12
        )


def test_representations_have_the_mean_square_one_and_those_without_noise_are_taken_where_they_fit() -> (
    None
):
    Z = icl.Representation(K=100, m=50, N=1, heads=1).risk().Z
    assert np.mean(np.sum(Z**2, axis=0)) == pytest.approx(1.0, abs=0.1)
    assert icl.Representation(K=4, m=3, N=3, noise=0.0).risk().floor() < 0.3


def test_the_slowing_compares_the_steps_from_one_excess_to_the_next() -> None:
    problem = icl.Representation(K=3, m=3, N=1, heads=2, eta=2.0)
    ends = [
        problem.changed(above=above).simulate().steps for above in (1e-6, 1e-8, 1e-10)
    ]
    before_last, last = np.diff(ends)  # type: ignore[arg-type]
    assert min(before_last, last) > 0
    assert papers.slowing(problem) == last / before_last


def test_fewer_heads_than_labels_are_said_to_be_outside_the_theorems() -> None:
    few, enough = (
        icl.Representation(heads=heads, max_steps=2).simulate().notes
        for heads in (3, 4)
    )
    assert few["heads"].startswith("the reconstructed theorems do not apply")
    assert "heads" not in enough


def test_family() -> None:
    check_family(icl.Representation, K=4, m=3, N=2, heads=2, above=1e-3, rows=False)


@pytest.mark.parametrize(
    "given",
    [{"K": 3, "N": 4}, {"m": 3, "noise": 1e-200}, {"sees": "none"}, {"heads": 0}],
)
def test_bad_input(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{[*given][-1]} = "):
        icl.Representation(**given)


@pytest.mark.parametrize(
    "given", [{"K": 4, "N": 4}, {"K": 5, "N": 3, "sees": "labelled"}]
)
def test_the_floor_of_one_head_on_labels_alone_is_a_bound_that_is_not_attained(
    given: dict[str, Any],
) -> None:
    """All queries share one sum of coefficients, which non-negative least squares do not know."""
    risk = icl.Representation(heads=1, **given).risk()
    shape, rng, least = risk.start.shape, np.random.default_rng(0), math.inf

    def objective(flat: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(flat.reshape(shape))
        return loss, gradient.ravel()

    for _ in range(3):
        start = 0.5 * rng.normal(size=shape)
        start[:, 0] = 1.0
        least = min(
            least, minimize(objective, start.ravel(), jac=True, method="L-BFGS-B").fun
        )
    assert 1.005 * risk.floor() < least < 1.5 * risk.floor()


def test_the_gap_between_two_ridges_is_that_of_sampled_tasks() -> None:
    """The noise of a label is λ·ε with a normal vector ε, as in the paper."""
    rng = np.random.default_rng(0)
    m, K, N, tau, tasks = 3, 7, 5, 0.2, 200_000
    Z = rng.normal(size=(m, K))
    coefficients = rng.normal(size=(tasks, m))
    noise = rng.normal(0.0, math.sqrt(tau), (tasks, N, m))
    labels = coefficients @ Z[:, :N] + np.einsum("tm,tnm->tn", coefficients, noise)

    def answers(ridge: float) -> Any:
        """Ridge regression in its primal form."""
        gram = Z[:, :N] @ Z[:, :N].T + ridge * np.eye(m)
        return labels @ Z[:, :N].T @ np.linalg.solve(gram, Z[:, N:])

    learnt, best = answers(m * tau), answers(N * tau)
    right = coefficients @ Z[:, N:]
    found = papers.compare_ridges(Z, N, tau)
    for exact, difference in (
        (found.gap, learnt - best),
        (found.learnt_error, learnt - right),
        (found.best_error, best - right),
    ):
        squares = np.sum(difference**2, axis=1) / K
        deviation = float(squares.std()) / math.sqrt(tasks)
        assert abs(exact - float(squares.mean())) < 4.5 * deviation


def test_another_ridge_turns_the_row_on_features_and_labels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compare = papers.compare_ridges
    assert not papers.features_and_labels(True).violated
    monkeypatch.setattr(
        papers, "compare_ridges", lambda Z, N, tau: compare(Z, N + 1, tau)
    )
    assert papers.features_and_labels(True).violated

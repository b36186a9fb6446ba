"""The tail law: constants against gradient flow that shares no formula with them, and certified progress."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression.theorems.checks import ONE_STEP, TAIL_STEPS
from icl_theory.regression import (
    SymmetricRisk,
    step_rate,
    tail_constant,
    tail_steps,
    tails,
)
from icl_theory.regression.tails import query_constants
from tests.references import compositions, enumerate_finite

Array = NDArray[np.float64]


class Column:
    """The loss of one query over all prompts, for a task with these vectors of values."""

    def __init__(self, p: Array, values: Array, k: int, N: int, noise: float) -> None:
        self.counts = np.array(list(compositions(N, len(p))), dtype=float)
        logs = [
            math.lgamma(N + 1) - sum(math.lgamma(c + 1) for c in row)
            for row in self.counts
        ]
        self.probability = np.exp(logs + self.counts @ np.log(p))
        self.off, self.p = values - values[k], float(p[k])
        self.token = np.where(
            self.counts > 0, noise**2 / np.maximum(self.counts, 1.0), 0.0
        )

    def parts(self, scores: Array) -> tuple[float, Array]:
        with np.errstate(divide="ignore"):
            logs = np.log(self.counts) + scores
        a = np.exp(logs - logs.max(axis=1, keepdims=True))
        a /= a.sum(axis=1, keepdims=True)
        error = a @ self.off
        pull = error @ self.off.T + a * self.token
        loss = (
            0.5
            * self.probability
            @ ((error**2).sum(axis=1) + (a * a * self.token).sum(axis=1))
        )
        return float(loss), self.probability @ (
            a * (pull - (a * pull).sum(axis=1, keepdims=True))
        )

    def flow(self, times: tuple[float, float]) -> Array:
        """Scores at two times, along gradient flow from zero, in ln t."""

        def rate(x: float, scores: Array) -> Array:
            return -self.p * math.exp(x) * self.parts(scores)[1]

        def bend(x: float, scores: Array) -> Array:
            shifts = 1e-4 * np.eye(len(scores))
            return np.array(
                [(rate(x, scores + s) - rate(x, scores - s)) / 2e-4 for s in shifts]
            ).T

        at = np.log(times)
        found = solve_ivp(
            rate,
            (0.0, at[1]),
            np.zeros(len(self.off)),
            "Radau",
            at,
            jac=bend,
            rtol=1e-6,
            atol=1e-7,
        )
        assert found.success
        return np.asarray(found.y.T)

    def tail(self, time: float) -> float:
        """``t p ℓ``, ℓ the loss above that with the features whose scores part set infinitely far apart."""
        before, scores = self.flow((time / 100.0, time))
        order = np.argsort(-scores)
        parting = -np.diff(scores[order]) + np.diff(before[order]) > 0.7
        apart = scores.copy()
        apart[order[1:]] -= 60.0 * np.cumsum(parting)
        return time * self.p * (self.parts(scores)[0] - self.parts(apart)[0])


def finite_problem(kind: str, seed: int) -> tuple[icl.PopulationRisk, Array, Array]:
    """Points on a line or in the plane, linear tasks, and the features' values of a task of each coordinate."""
    rng = np.random.default_rng(seed)
    K, N = int(rng.integers(3, 6)), int(rng.integers(2, 6))
    p = rng.dirichlet(np.full(K, 6.0))
    x = (
        np.cumsum(rng.uniform(0.5, 1.5, K))[:, None]
        if kind == "line"
        else rng.normal(size=(K, 2))
    )
    noise = rng.uniform(0.2, 1.2) if kind == "noise" else 0.0
    law = tasks.Linear(math.sqrt(x.shape[1]))  # E f_m f_j = x_m · x_j
    return (
        icl.PopulationRisk(icl.Features(x, p), law, max(N, 3) if noise else N, noise),
        p,
        x,
    )


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        # Each takes a second. With noise the constants of seed 1 are all 0.
        pytest.param(kind, seed, marks=[] if seed == quick else [pytest.mark.slow])
        for kind, quick in (("line", 1), ("plane", 1), ("noise", 0))
        for seed in range(6)
    ],
)
def test_constants_of_finite_prompts_are_those_of_the_flow(
    kind: str, seed: int
) -> None:
    risk, p, x = finite_problem(kind, seed)
    expected = query_constants(risk)
    assert expected is not None
    assert tail_constant(risk) == pytest.approx(float(expected.sum()), rel=1e-12)
    time = (
        1e11 if kind == "plane" and seed in (3, 4) else 1e9
    )  # two whose last level parts late
    found = np.array(
        [Column(p, x, k, int(risk.N), risk.noise).tail(time) for k in range(len(p))]
    )
    np.testing.assert_allclose(found.sum(), expected.sum(), rtol=0.01, atol=1e-3)
    np.testing.assert_allclose(found, expected, rtol=0.015, atol=1e-3)


def test_features_on_a_line_are_left_one_after_the_other() -> None:
    """Heights 0, -1/2, -3/2, -5/2 at the ends; between them the other features stay together."""
    line = icl.Features([[0.0], [1.0], [2.2], [3.5]])
    found = query_constants(icl.PopulationRisk(line, tasks.Linear(1.0), N=3))
    np.testing.assert_allclose(
        found, np.array([59 / 3, 1.0, 1.0, 59 / 3]) * 3 / 16, rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_descent_has_the_constant_of_the_flow(noise: float) -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]])
    features = icl.Features(points, [0.3, 0.3, 0.4])
    risk = icl.PopulationRisk(features, tasks.KernelTask(points @ points.T), 4, noise)
    run = icl.descend(risk, 2.0, steps=10**10, method="fast")
    assert run.t[-1] == 10**10
    found = 2.0 * float(run.t[-1]) * (float(run.loss[-1]) - run.floor)
    assert found == pytest.approx(tail_constant(risk), rel=1e-4)


def test_a_level_of_second_order_is_half_as_far_below() -> None:
    """Without the first feature the second is best; the third, at a right angle to it, costs nothing at first."""
    x = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]])
    p = np.array([0.3, 0.4, 0.3])
    risk = icl.PopulationRisk(icl.Features(x, p), tasks.Linear(math.sqrt(2.0)), N=3)
    found = query_constants(risk)
    assert found is not None
    assert found[0] == pytest.approx(0.5)  # heights 0, -1/2, -1
    assert Column(p, x, 0, 3, 0.0).tail(1e9) == pytest.approx(0.5, rel=0.01)


@pytest.mark.parametrize(("N", "noise"), [(3, 0.0), (5, 0.7)])
def test_floors_are_the_losses_of_features_set_apart_and_no_scores_are_below(
    N: int, noise: float
) -> None:
    points = np.array([[0.0, 0.0], [1.0, 0.3], [3.0, 0.0]])
    risk = icl.PopulationRisk(
        icl.Features(points, [0.3, 0.3, 0.4]),
        tasks.KernelTask(points @ points.T),
        N=N,
        noise=noise,
    )
    assert risk.levels is not None
    scores, rng = np.zeros((3, 3)), np.random.default_rng(0)
    for k, levels in enumerate(risk.levels):
        for depth, (classes, weights) in enumerate(
            zip(levels.classes, levels.weights, strict=True)
        ):
            scores[classes, k] = np.log(weights) - 60.0 * depth
    floors = risk.floor_per_query()
    at = enumerate_finite(risk.features.probs, points @ points.T, scores, N, noise)[0]
    np.testing.assert_allclose(floors, at, rtol=1e-12)
    for centre in (scores, 0.0 * scores):
        for size in (0.1, 1.0, 5.0):
            other = centre + size * rng.normal(size=(3, 3))
            losses = enumerate_finite(
                risk.features.probs, points @ points.T, other, N, noise
            )[0]
            assert (losses >= floors * (1.0 - 1e-12)).all()


def embedded_flow(x: Array, p: Array, values: Array, times: list[float]) -> Array:
    """``t L`` along gradient flow on Q, N = ∞."""
    K, d = x.shape
    off = [values - values[k] for k in range(K)]

    def loss(flat: Array) -> tuple[float, Array]:
        scores = x @ flat.reshape(d, d) @ x.T
        total, slope = 0.0, np.zeros((K, K))
        for k in range(K):
            a = p * np.exp(scores[:, k] - scores[:, k].max())
            a /= a.sum()
            error = np.delete(a, k) @ np.delete(off[k], k, axis=0)
            pull = off[k] @ error
            total += 0.5 * p[k] * float(error @ error)
            slope[:, k] = p[k] * a * (pull - error @ error)
        return total, (x.T @ slope @ x).ravel()

    found = solve_ivp(
        lambda t, q: -math.exp(t) * loss(q)[1],
        (0.0, math.log(times[-1])),
        np.zeros(d * d),
        "Radau",
        np.log(times),
        rtol=1e-7,
        atol=1e-8,
    )
    assert found.success
    return np.array([t * loss(q)[0] for t, q in zip(times, found.y.T, strict=True)])


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 3, 4, 5, 10))]
)
def test_constants_of_embeddings_are_those_of_the_flow(seed: int) -> None:
    rng = np.random.default_rng(seed)
    K, d = int(rng.integers(3, 6)), int(rng.integers(3, 6))
    x, p = rng.normal(size=(K, d)), rng.dirichlet(np.full(K, 4.0))
    risk = icl.PopulationRisk(icl.Features(x, p), tasks.KernelTask(np.eye(K)))
    found = embedded_flow(x, p, np.eye(K), [1e12])
    assert found[0] == pytest.approx(
        tail_constant(icl.in_coordinates(risk, "embedding", x)), rel=0.01
    )


def test_margins_that_contradict_each_other_have_no_constant() -> None:
    """Of two features on one ray the nearer would have to be scored above itself."""
    x = np.array([[1.0], [2.0]])
    risk = icl.PopulationRisk(icl.Features(x), tasks.KernelTask(np.eye(2)))
    assert tail_constant(icl.in_coordinates(risk, "embedding", x)) is None


@pytest.mark.parametrize(("K", "expected"), [(16, 15.0), (33, None)])
def test_embeddings_of_more_than_32_features_have_no_constant(
    K: int, expected: float | None
) -> None:
    """The search for the smallest matrix would take too long."""
    features = icl.Features.simplex(K, 1.0)
    risk = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
    found = tail_constant(icl.in_coordinates(risk, "embedding", features.vectors))
    assert found == (expected and pytest.approx(expected, rel=1e-9))


def test_errors_of_negative_correlation_can_hold_a_feature_back_from_its_margin() -> (
    None
):
    """The attention on feature 1 of query 0 stays in proportion to that on feature 2: a larger constant."""
    x = np.array(
        [
            [-1.00699571, 1.6023286],
            [1.92172117, -0.01622114],
            [-0.93665946, -0.59087902],
        ]
    )
    values = np.array(
        [[0.00617841, 0.3115922], [-0.86930945, -0.64843364], [2.18176492, 1.89007088]]
    )
    risk = icl.in_coordinates(
        icl.PopulationRisk(icl.Features(x), tasks.KernelTask(values @ values.T)),
        "embedding",
        x,
    )
    assert tail_constant(risk) is None
    margins = tail_constant(risk, proved=False)
    assert margins == pytest.approx(0.0807328, rel=1e-5)
    # Values in another unit have the same tail.
    for unit in (1e-6, 1e6):
        task = tasks.KernelTask(unit**2 * values @ values.T)
        other = icl.PopulationRisk(icl.Features(x), task)
        embedded = icl.in_coordinates(other, "embedding", x)
        assert tail_constant(embedded) is None
        assert tail_constant(embedded, proved=False) == pytest.approx(margins)
    rows = {
        (k, m): np.outer(x[k] - x[m], x[k]).ravel()
        for k in range(3)
        for m in range(3)
        if m != k
    }
    # the margins that are met with equality, the first of them against the programme's
    tight = np.array([rows[pair] for pair in ((0, 1), (0, 2), (1, 0), (2, 0))])
    held = np.linalg.lstsq(tight, np.full(4, 0.5))[0]
    assert all(row @ held >= 0.5 - 1e-12 for row in rows.values())
    found = embedded_flow(x, np.full(3, 1 / 3), values, [1e16, 1e20])
    assert held @ held == pytest.approx(1.06998 * margins, rel=1e-4)
    np.testing.assert_allclose(found / (held @ held), 1.0, atol=2e-3)


@pytest.mark.parametrize(
    ("risk", "expected"),
    [
        (icl.ExchangeableRisk(5, 2.0), 1.0),
        (icl.ExchangeableRisk(5, 2.0, 7), 1.0),
        (icl.ExchangeableRisk(5, 2.0, 7, 0.3), 0.0),
        (icl.ExchangeableRisk(5, 2.0, 1), 0.0),
        (SymmetricRisk([1, 10**6], [0.5, 0.5e-6], 2.0), 250_000.0),
        (icl.PopulationRisk(icl.Features.simplex(4, 1.0), tasks.Halfspace(2.0)), None),
    ],
    ids=["N = inf", "finite", "noise", "one token", "groups", "degenerate"],
)
def test_constants_that_are_known(risk: icl.Risk, expected: float | None) -> None:
    assert tail_constant(risk) == (
        None if expected is None else pytest.approx(expected, rel=1e-12)
    )


def test_factored_coordinates_have_no_constant() -> None:
    features = icl.Features.simplex(3, 1.0)
    risk = icl.PopulationRisk(features, tasks.Linear(2.0))
    assert tail_constant(icl.in_coordinates(risk, "factored", features.vectors)) is None


@pytest.mark.parametrize(("N", "noise"), [(4, 0.0), (6, 0.6)])
def test_groups_have_the_constant_of_their_single_features(
    N: int, noise: float
) -> None:
    labels = np.array([0, 1, 1, 2])
    root = np.random.default_rng(3).normal(size=(3, 2))
    kernel = (root @ root.T)[np.ix_(labels, labels)] + np.diag(
        np.array([0.1, 0.5, 0.2])[labels]
    )
    features, law = (
        icl.Features.simplex(4, 1.0, [0.4, 0.15, 0.15, 0.3]),
        tasks.KernelTask(kernel),
    )
    single = icl.PopulationRisk(features, law, N, noise)
    grouped = SymmetricRisk.of(features, law, labels, N, noise)
    assert tail_constant(grouped) == pytest.approx(tail_constant(single), rel=1e-9)
    assert grouped.floor() == pytest.approx(single.floor(), rel=1e-9)


def test_a_run_of_finite_unequal_prompts_has_its_tail() -> None:
    points = np.array([[0.0], [1.0], [2.2]])
    features = icl.Features(points, [0.3, 0.3, 0.4])
    run = icl.Regression(
        L=1.0,
        delta=1.0,
        features=features,
        task=tasks.Linear,
        N=3,
        eta=4.0,
        above=3e-4,
        max_steps=10**4,
        method="fast",
    ).simulate()
    assert run.phases is not None
    assert run.phases.III is not None
    assert run.regime == "sharp"
    check = {each.name: each for each in icl.check_bounds(run)}["tail law"]
    assert check.holds
    assert check.measured == pytest.approx(1.0, abs=0.05)


def test_a_run_over_embeddings_of_any_features_has_its_tail() -> None:
    x = np.random.default_rng(0).normal(size=(3, 3))
    features = icl.Features(x)
    run = icl.simulate(
        1.0,
        features.gap,
        1.0,
        features=features,
        task=tasks.KernelTask(np.eye(3)),
        coordinates="embedding",
        epsilon=1e-4,
        max_steps=10**7,
    )
    constant = tail_constant(run.risk)  # type: ignore[arg-type]
    assert constant is not None
    assert run.phases is not None
    assert run.phases.III is not None
    begin = run.at(run.phases.III[0])
    assert begin.t * begin.loss <= 2.0 * constant
    assert run.t[-1] * run.loss[-1] == pytest.approx(constant, rel=0.1)


def unequal(seed: int, eta: float, steps: int, K: int = 4) -> icl.Trajectory:
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(K, K))
    features = icl.Features.simplex(K, 1.0, rng.dirichlet(np.full(K, 4.0)))
    return icl.descend(
        icl.PopulationRisk(features, tasks.KernelTask(root @ root.T)), eta, steps=steps
    )


@pytest.mark.parametrize("seed", range(4))
def test_no_step_falls_short_of_its_certified_progress(seed: int) -> None:
    run = unequal(seed, 0.3, 1000)
    least = ONE_STEP.check(run).measured
    assert least is not None
    assert least >= 1.0
    found = TAIL_STEPS.check(run)
    assert found.measured <= found.bound  # type: ignore[operator]


def test_certified_progress_is_attained_by_exchangeable_tasks() -> None:
    """For small steps the loss of exchangeable tasks makes the least progress there is."""
    features = icl.Features.simplex(5, 1.0)
    risk = icl.PopulationRisk(features, tasks.Exchangeable(2.0))
    run = icl.descend(risk, 1e-3, steps=100)
    least = ONE_STEP.check(run).measured
    assert least is not None
    assert 1.0 <= least < 1.0002
    np.testing.assert_allclose(step_rate(risk, 1e-3), 4e-3 / 4, rtol=1e-4)


@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.5])
def test_certified_steps_bound_the_recursion_they_are_made_for(rate: float) -> None:
    """1/ℓ grows by g (1 - √(2ℓ/c))² in each step: counted one by one."""
    scale, loss, steps = 3.0, 3.0 / 8.0, 0
    losses = [loss]
    while loss > 1e-3:
        loss = 1.0 / (1.0 / loss + rate * (1.0 - math.sqrt(2.0 * loss / scale)) ** 2)
        losses.append(loss)
        steps += 1
    bound = tail_steps(losses[0], loss, scale, rate)
    assert steps <= bound <= steps + 2.0 * math.log(2.0) + 1e-6 * steps


def test_steps_between_two_steps_of_a_run_are_bounded_and_one_more_to_any_target() -> (
    None
):
    """Single steps of two exchangeable features at a large rate, and targets between the losses of its steps."""
    L, eta = 2.0, 2.92
    features = icl.Features.simplex(2, 1.0)
    risk = icl.PopulationRisk(features, tasks.Exchangeable(L))
    scale, rate = (
        float(risk.task.nondegeneracy(features)[0]),
        float(step_rate(risk, eta)[0]),
    )
    scores, losses = risk.initial, []
    for _ in range(60):
        losses.append(float(risk.loss_per_query(scores)[0]))
        scores = scores - eta * risk.gradient(scores)
    within = [loss for loss in losses if loss < 0.49 * scale]
    needs_one_more = []
    for first, start in enumerate(within):
        for last in range(first, len(within)):
            bound = tail_steps(start, within[last], scale, rate)
            assert last - first <= bound * (1.0 + 1e-9) + 1e-9
            for share in (1e-6, 0.5, 1.0 - 1e-6):
                if last > first:  # reached at step `last`, and not before
                    target = within[last - 1] + share * (
                        within[last] - within[last - 1]
                    )
                    bound = tail_steps(start, target, scale, rate)
                    needs_one_more.append(last - first > bound)
                    assert last - first <= bound * (1.0 + 1e-9) + 1.0
    assert any(needs_one_more)


@pytest.mark.parametrize(
    "arguments", [(1.0, 2.0, 4.0, 0.1), (1.0, 0.5, 2.0, 0.1), (1.0, 0.5, 4.0, 0.0)]
)
def test_certified_steps_refuse_losses_out_of_reach(arguments: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        tail_steps(*arguments)


@pytest.mark.parametrize("over", [1e-4, 0.05, 3.0])
def test_wrong_features_beyond_their_margin_must_not_err_against_others(
    over: float,
) -> None:
    """Of query 0 feature 1 errs against 2: one of both beyond its margin is enough, and of other queries none."""
    values = tasks.FiniteTask([[0.0, 2.0, -1.0], [1.0, 2.5, 1.2]])
    form = values.kernel(icl.Features.simplex(3, 1.0))
    others = [tails._Pair(k, m) for k in range(3) for m in range(3) if m != k]
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), values)
    assert tails._is_proved(risk, others, np.full(6, 0.5))
    for i, (k, m) in enumerate(others):
        rest = 3 - k - m
        sign = (
            form[m, rest] - form[m, k] - form[k, rest] + form[k, k]
        )  # E (f_m - f_k)(f_rest - f_k)
        margins = 0.5 + over * (np.arange(6) == i)
        assert tails._is_proved(risk, others, margins) == (sign >= 0.0)
        assert (k == 0) == (sign < 0.0)


@pytest.mark.parametrize(
    ("K", "slowly"), [(3, True), (30, True), (200, True), (201, False)]
)
def test_tasks_are_known_to_be_nondegenerate_quickly_or_for_up_to_200_features(
    K: int, slowly: bool
) -> None:
    """Exchangeable values are independent; linear functions on a circle have rank two, and no point in a hull."""
    independent = icl.PopulationRisk(
        icl.Features.simplex(K, 1.0), tasks.Exchangeable(1.0)
    )
    assert independent.nondegenerate
    assert tail_constant(independent) == pytest.approx((K - 1) / 4, rel=1e-12)
    angle = 2 * np.pi * np.arange(K) / K
    circle = icl.Features(np.stack([np.cos(angle), np.sin(angle)], axis=1))
    risk = icl.PopulationRisk(circle, tasks.Linear(1.0))
    assert risk.nondegenerate is slowly
    assert tail_constant(risk) == (
        pytest.approx((K - 1) / 4, rel=1e-12) if slowly else None
    )
    inside = icl.Features([*circle.vectors[: K - 1], [0.01, 0.0]])
    assert icl.PopulationRisk(inside, tasks.Linear(1.0)).nondegenerate is (K == 3)

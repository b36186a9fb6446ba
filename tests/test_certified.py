"""What is proved against references of 40 digits and more, by mpmath: enumeration, iteration, roots."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mpmath
import numpy as np
import proofs
import pytest
from flint import arb, ctx, fmpq, fmpq_series

import icl_theory as icl
from icl_theory.certified import Proved, closed, losses
from icl_theory.certified.losses import enclosed
from icl_theory.cli import main
from icl_theory.papers.regression.statements import dynamics, lemmas
from icl_theory.tokens.generating import TokenCount

RNG = np.random.default_rng


def exactly(ball: arb) -> tuple[mpmath.mpf, mpmath.mpf]:
    """Return the ends of a ball."""
    return tuple(
        mpmath.ldexp(int(man), int(exp))
        for man, exp in (end.man_exp() for end in (ball.lower(), ball.upper()))
    )


def holds(
    ball: arb, value: mpmath.mpf, width: float = 1e-25, scale: float = 0.0
) -> bool:
    """Whether a value is in a ball of a width relative to the value, or to a larger scale."""
    with ctx.workprec(200):
        low, high = exactly(ball)
    return bool(low <= value <= high and high - low <= width * max(abs(value), scale))


def all_hold(gradient: Any, reference: Callable[[Any], mpmath.mpf], at: Any) -> bool:
    """Whether the derivatives of a reference are in the balls, of a width relative to the largest of them."""
    scale = max(float(abs(each.mid())) for each in gradient)
    return all(
        holds(each, slope(reference, at, i), scale=scale)
        for i, each in enumerate(gradient)
    )


def enumerated(
    kinds: list[tuple[int, Any, Any, Any, bool]], target: Any, scores: Any
) -> mpmath.mpf:
    """Half the mean square of the error over all prompts; a kind is number, probs, values, spread, each."""
    loss, start, laws = mpmath.mpf(0), 0, []
    for number, probs, values, spread, each in kinds:
        total = mpmath.fsum(map(mpmath.mpf, probs))
        nodes = [
            (
                mpmath.mpf(p) / total,
                [mpmath.mpf(x) - mpmath.mpf(y) for x, y in zip(v, target, strict=True)],
                mpmath.mpf(s),
                mpmath.exp(scores[start + i]),
            )
            for i, (p, v, s) in enumerate(zip(probs, values, spread, strict=True))
        ]
        lengths = range(1, number + 1) if each else (number,)
        laws.append(
            [
                (mpmath.mpf(1) / len(lengths), c)
                for n in lengths
                for c in itertools.product(nodes, repeat=n)
            ]
        )
        start += len(probs)
    for prompt in itertools.product(*laws):
        tokens = [token for _, part in prompt for token in part]
        chance = mpmath.fprod([share for share, _ in prompt]) * mpmath.fprod(
            [token[0] for token in tokens]
        )
        S = mpmath.fsum(token[3] for token in tokens)
        error = [
            mpmath.fsum(w * e[d] for _, e, _, w in tokens) / S
            for d in range(len(target))
        ]
        noise = mpmath.fsum((w / S) ** 2 * spread for _, _, spread, w in tokens)
        loss += chance * (mpmath.fsum(x * x for x in error) + noise) / 2
    return loss


def slope(function: Callable[[Any], mpmath.mpf], at: Any, i: int) -> mpmath.mpf:
    """Derivative by a central difference with 40 digits to spare."""
    h = mpmath.mpf(10) ** -30
    up, down = ([x + sign * h * (i == j) for j, x in enumerate(at)] for sign in (1, -1))
    return (function(up) - function(down)) / (2 * h)


def test_loss_and_gradient_over_tokens_hold_the_sum_over_all_prompts() -> None:
    rng = RNG(0)
    kinds = [
        (3, rng.dirichlet([2.0, 2.0]), rng.normal(size=(2, 2)), [0.0, 0.3], True),
        (2, rng.dirichlet([2.0] * 3), rng.normal(size=(3, 2)), [0.1, 0.0, 0.2], False),
    ]
    target, scores = [0.3, -0.2], rng.normal(size=5) * 3.0
    laws = []
    for number, probs, values, spread, each in kinds:
        lengths = icl.Lengths.uniform(1, number) if each else number
        laws.append(icl.Kind(lengths, probs, values, spread))
    risk = icl.TokenRisk(laws, target)
    loss, gradient = enclosed(risk, scores, 128)
    with mpmath.workdps(80):

        def reference(at: Any) -> mpmath.mpf:
            return enumerated(kinds, target, at)

        at = [mpmath.mpf(x) for x in scores]
        assert holds(loss, reference(at))
        assert all_hold(gradient, reference, at)


@pytest.mark.parametrize("first", [0, 2])
def test_a_uniform_number_of_tokens_is_the_mean_over_its_numbers(first: int) -> None:
    law = {"probs": [0.3, 0.7], "values": [1.0, -0.5]}
    query = icl.Kind(1, [1.0], [0.2])
    scores = np.array([0.5, -1.0, 0.3])

    def of_number(number: Any) -> Any:
        context = [icl.Kind(number, **law)] if number else []
        seen = scores if number else scores[2:]
        return enclosed(icl.TokenRisk([*context, query]), seen, 128)[0]

    total = sum(of_number(n) for n in range(first, 5)) / (5 - first)
    assert total.overlaps(of_number(icl.Lengths.uniform(first, 4)))
    with pytest.raises(ValueError, match=r"^number = Lengths"):
        of_number(icl.Lengths.poisson(3.0))
    together = icl.TokenRisk([icl.Kind([1, 2], **law), query])
    with pytest.raises(ValueError, match=r"^kinds = "):
        enclosed(together, scores, 128)


@pytest.mark.parametrize(("N", "noise"), [(3, 0.4), (math.inf, 0.4)])
def test_loss_and_gradient_of_regression_hold_the_sum_over_all_prompts(
    N: float, noise: float
) -> None:
    features = icl.Features.random(3, 2, 0.5, seed=4, probs=[0.5, 0.3, 0.2])
    risk, scores = (
        icl.PopulationRisk(features, icl.tasks.Linear(1.5), N, noise),
        RNG(5).normal(size=(3, 3)) * 2.0,
    )
    loss, gradient = enclosed(risk, scores, 128)
    with mpmath.workdps(80):
        gamma = [
            [mpmath.mpf(x) for x in row]
            for row in risk.task.variogram(features).tolist()
        ]
        p = [mpmath.mpf(x) for x in features.probs.tolist()]
        p = [x / mpmath.fsum(p) for x in p]

        def of_attention(k: int, a: list[mpmath.mpf]) -> mpmath.mpf:
            pairs = itertools.product(range(3), repeat=2)
            return (
                mpmath.fsum(
                    a[m] * a[j] * (gamma[m][k] + gamma[k][j] - gamma[m][j])
                    for m, j in pairs
                )
                / 2
            )

        def reference(flat: Any) -> mpmath.mpf:
            total = mpmath.mpf(0)
            for k in range(3):
                w = [mpmath.exp(flat[3 * m + k]) for m in range(3)]
                if math.isinf(N):
                    S = mpmath.fsum(x * y for x, y in zip(p, w, strict=True))
                    total += p[k] * of_attention(
                        k, [x * y / S for x, y in zip(p, w, strict=True)]
                    )
                    continue
                for prompt in itertools.product(range(3), repeat=int(N)):
                    S = mpmath.fsum(w[m] for m in prompt)
                    a = [
                        mpmath.fsum(w[m] / S for m in prompt if m == j)
                        for j in range(3)
                    ]
                    square = (
                        mpmath.mpf(noise) ** 2
                        * mpmath.fsum((w[m] / S) ** 2 for m in prompt)
                        / 2
                    )
                    total += (
                        p[k]
                        * mpmath.fprod(p[m] for m in prompt)
                        * (of_attention(k, a) + square)
                    )
            return total

        at = [mpmath.mpf(x) for x in scores.ravel()]
        assert holds(loss, reference(at))
        assert all_hold(gradient.ravel(), reference, at)


def test_a_feature_that_cannot_occur_again_has_no_say_in_a_loss() -> None:
    """A group of one feature: for its own query the others of its group are not there, whatever their score."""
    risk = icl.SymmetricRisk([1, 3], [0.4, 0.2], [[0.0, 1.5], [1.5, 2.0]], 7, 0.3)
    theta = RNG(8).normal(size=(2, 3))
    found = enclosed(risk, theta, 128)
    theta[0, 1] += 900.0
    loss, gradient = enclosed(risk, theta, 128)
    assert float(loss.rad()) < 1e-25
    assert loss.overlaps(found[0])
    assert all(
        one.overlaps(other)
        for one, other in zip(gradient.flat, found[1].flat, strict=True)
    )


def test_grouped_and_exchangeable_losses_hold_those_of_all_features() -> None:
    """One reference is the sum over features, which the test above holds against prompts."""
    rng = RNG(1)
    for N in (7, math.inf):
        grouped = icl.SymmetricRisk(
            [1, 3], [0.4, 0.2], [[0.0, 1.5], [1.5, 2.0]], N, 0.3
        )
        theta = rng.normal(size=(2, 3))
        labels = np.array([0, 1, 1, 1])
        variogram = np.where(np.eye(4), 0.0, grouped.variogram[np.ix_(labels, labels)])
        full = theta[labels[None, :], 1 + labels[:, None]] * 1.0
        np.fill_diagonal(full, theta[labels, 0])
        probs = losses.balls(np.array([0.4, 0.2, 0.2, 0.2]))
        with ctx.workprec(160):
            expected, parts = arb(0), []
            for k in range(4):
                own = losses.balls(variogram[k])
                form = own[:, None] + own - losses.balls(variogram)
                each = [TokenCount(N)] if math.isfinite(N) else []
                query = (
                    losses.balls(full[:, k]),
                    100.0,
                    probs,
                    form,
                    2 * own + arb(0.3) ** 2,
                )
                loss, gradient = losses.moments(*query, each)
                expected += probs[k] / probs.sum() * loss
                parts.append(gradient * probs[k] / probs.sum())
            found, slopes = enclosed(grouped, theta, 128)
            assert found.overlaps(expected)
            assert slopes[1, 0].overlaps(sum(parts[k][k] for k in (1, 2, 3)))
            assert slopes[0, 2].overlaps(sum(parts[0][m] for m in (1, 2, 3)))
        one = icl.ExchangeableRisk(4, 2.0, N, 0.3)
        alike = icl.SymmetricRisk([4], [0.25], 2.0, N, 0.3)
        assert enclosed(one, np.array(1.7), 128)[0].overlaps(
            enclosed(alike, np.array([[1.7, 0.0]]), 128)[0]
        )


def test_scores_far_apart_leave_the_loss_of_the_tokens_that_matter() -> None:
    """Two nodes: with n of N tokens at the first one, e^800 times heavier, the loss is that of no such token."""
    risk = icl.TokenRisk(icl.Kind(3, [0.25, 0.75], [0.0, 2.0]), 0.0)
    loss, gradient = enclosed(risk, np.array([800.0, 0.0]), 128)
    assert float(loss.rad()) < 1e-25
    assert loss.overlaps(arb(27) / 32)  # half of 4 (3/4)^3
    assert all(abs(each) < 1e-25 for each in gradient)


def test_linear_attention_and_coordinates_hold_references_of_40_digits() -> None:
    law = icl.linear_attention.PromptLaw(
        [[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.25], [0.25, 2.0]], N=7, noise=0.5
    )
    problem = icl.LinearAttention(
        covariance=law.covariance,
        prior=law.prior,
        N=7,
        noise=0.5,
        coordinates="heads",
        heads=2,
        start=0.7,
    )
    risk, params = problem.risk(), RNG(3).normal(size=(2, 5))
    loss, gradient = enclosed(risk, params, 128)
    with mpmath.workdps(80):
        tokens, tasks = (
            mpmath.matrix(each.tolist()) for each in (law.covariance, law.prior)
        )

        def reference(flat: Any) -> mpmath.mpf:
            gamma = mpmath.zeros(2)
            for h in range(2):
                v, *others = flat[5 * h : 5 * h + 5]
                keys, queries = mpmath.matrix(others[:2]), mpmath.matrix(others[2:])
                gamma += v * queries * keys.T
            trace = sum((tokens * tasks)[i, i] for i in range(2)) + mpmath.mpf("0.25")
            second = (
                tokens * tasks * tokens * (1 + mpmath.mpf(1) / 7) + trace * tokens / 7
            )
            whole = (
                gamma * second * gamma.T
                - gamma * tokens * tasks
                - tasks * tokens * gamma.T
                + tasks
            )
            return sum((tokens * whole)[i, i] for i in range(2)) / 2

        at = [mpmath.mpf(x) for x in params.ravel()]
        assert holds(loss, reference(at))
        assert all_hold(gradient.ravel(), reference, at)


@pytest.mark.parametrize("bits", [20, 60, 100])
def test_the_rule_is_as_close_as_its_bound_says(bits: int) -> None:
    with ctx.workprec(200):
        t, jacobian, errors = losses._rule(bits, 23.0)
        nodes, weights = (
            [exactly(each)[0] for each in array] for array in (t, jacobian)
        )
        worst = [error * arb(losses.NATS).exp() for error in errors]
    assert all(2.0**-bits / 100 < float(error) < 2.0 ** -(bits - 2) for error in worst)
    with mpmath.workdps(60):
        logs = [mpmath.log(s) for s in nodes[:2]]
        x = [
            mpmath.findroot(lambda x, y=y: x - mpmath.exp(-x) - y, -mpmath.log(-y))
            for y in logs
        ]
        step = x[1] - x[0]
        before = [x[0] - step * j for j in range(1, 40)]
        for n, error in zip(
            (2, 3), errors, strict=True
        ):  # both parts of the bound at once
            left = mpmath.fsum(
                step * (1 + mpmath.exp(-y)) * mpmath.exp(n * (y - mpmath.exp(-y)))
                for y in before
            ) / mpmath.gamma(n)
            shifted = 2 / mpmath.cos(1.5) ** (n + 1)
            assert (
                left + shifted / mpmath.expm1(3 * mpmath.pi / step) < exactly(error)[1]
            )
        for share in (30.0, 8.0, 1.0, 0.3, 1e-3, 1e-6):
            for n, error in zip((2, 3), errors, strict=True):
                found = mpmath.fsum(
                    w * s**n * mpmath.exp(-share * s)
                    for w, s in zip(weights, nodes, strict=True)
                )
                apart = abs(found * mpmath.mpf(share) ** n / mpmath.gamma(n) - 1)
                assert apart < exactly(error)[1] * mpmath.exp(share)


def iterated(K: int, c: float, goal: mpmath.mpf) -> int:
    u, n = mpmath.mpf(0), 0
    while u < goal:
        w = (K - 1) * mpmath.exp(-u)
        u, n = u + mpmath.mpf(c) * w**2 / (1 + w) ** 3, n + 1
    return n


def test_counts_are_those_of_single_steps_with_40_digits() -> None:
    rng = RNG(2)
    with mpmath.workdps(40), ctx.workprec(160):
        for _ in range(12):
            K, c, goal = (
                int(rng.integers(2, 40)),
                10.0 ** rng.uniform(-2.5, 2.0),
                rng.uniform(0.1, 1.2),
            )
            goal *= math.log(K) + 1.0
            n = iterated(K, c, mpmath.mpf(goal))
            assert closed.steps_to(
                K, arb(c), closed.shares(arb(goal) - arb(K - 1).log())[1]
            ) == range(n, n + 1)
        # where the goal is an iterate itself, the step is told apart from the next one
        for K, c in ((20, 0.3), (3, 5.0)):
            here = -arb(K - 1).log()
            for _ in range(500):
                a, s = closed.shares(here)
                here = here + arb(c) * a * s * s
            found = closed.steps_to(K, arb(c), closed.shares(here.mid())[1])
            assert 500 in found
            assert closed.steps_to(
                K, arb(c), closed.shares(here + arb(2) ** -90)[1]
            ) == range(501, 502)


def test_few_bits_end_soon_with_an_interval_or_a_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Balls that grew as fast as they moved took up to a million steps, or did not end."""
    calls = 0
    own = closed.shares

    def counted(u: arb) -> tuple[arb, arb]:
        nonlocal calls
        calls += 1
        return own(u)

    monkeypatch.setattr(closed, "shares", counted)
    problems = [
        (31, 33.037, 2.3141e-4),
        (2, 0.50133, 1.16684e-3),
        (5993, 1.13155e-3, 1.47896e-3),
        (7, 0.04227, 2.66e-4),
    ]
    rng = RNG(11)
    drawn = (
        np.exp(rng.uniform(0.7, 7.0, 6)).astype(int),
        10.0 ** rng.uniform(-3, 2, 6),
        10.0 ** rng.uniform(-4, -0.5, 6),
    )
    problems += zip(*(values.tolist() for values in drawn), strict=True)
    answered = 0
    for K, c, s in problems:
        with ctx.workprec(128):
            right = closed.steps_to(K, arb(c), arb(s))
        for bits in (24, 32, 40):
            calls = 0
            with contextlib.suppress(ArithmeticError), ctx.workprec(bits):
                found = closed.steps_to(K, arb(c), arb(s))
                answered += 1
                assert found[0] <= right[0] <= right[-1] <= found[-1]
            assert calls < 30_000
    assert answered > 10


def test_the_residual_of_the_abel_function_has_a_zero_of_order_seven_and_its_bound() -> (
    None
):
    """Coefficients of p^k r are polynomials of degree below 60 with rational coefficients: 60 zeros are enough."""
    before, ctx.cap = ctx.cap, 9
    try:
        for form in "as":
            for k in range(1, 61):
                x = fmpq(k, 61) * (fmpq(1, 3) if form == "a" else fmpq(2, 3))
                assert not any(
                    proofs.missing(form, x, fmpq_series([0, 1], prec=9)).coeffs()[:8]
                )
    finally:
        ctx.cap = before
    for form in "as":
        assert proofs.largest(form) < closed.LARGEST[form]
        assert proofs.further(form) < 2.0  # so that B increases


def test_a_step_changes_the_small_parameter_as_the_sums_assume() -> None:
    rng = RNG(7)
    c = 10.0 ** rng.uniform(-6, 6, 10_000)
    p = 10.0 ** rng.uniform(-6, math.log10(closed.SMALL), 10_000)
    for form, other in (("a", p / c), ("s", np.sqrt(p / c))):
        use = other < (1.0 / 3.0 if form == "a" else 2.0 / 3.0)
        a = np.where(form == "a", other, 1.0 - other)[use]
        w = (1.0 - a) / a
        after = w * np.exp(-c[use] * a * (1.0 - a) ** 2)
        change = (
            -(after - w)
            if form == "a"
            else (1.0 / after - 1.0 / w) * (2.0 + 1.0 / after + 1.0 / w)
        )
        assert (change / c[use] > closed.DROP - 1e-9).all()


@pytest.mark.parametrize("form", ["a", "s"])
@pytest.mark.parametrize("c", [0.05, 1.0, 300.0])
def test_what_is_in_doubt_is_no_less_than_the_sum_over_all_steps(
    form: str, c: float
) -> None:
    """Each step of a head, back in time, or of a tail misses up to M (p/P)^7, as Cauchy's estimate says."""
    # the largest attention a of a head, with p = c a, or the least one of a tail, with
    # p = c (1 - a)²
    head, tail = (
        min(closed.SMALL / c, 1.0 / 3.0),
        1.0 - min(math.sqrt(closed.SMALL / c), 2.0 / 3.0),
    )
    share = head if form == "a" else tail
    w, total = 1.0 / share - 1.0, 0.0
    for _ in range(3000):
        a, s = 1.0 / (1.0 + w), w / (1.0 + w)
        total += closed.LARGEST[form] * (c * (a if form == "a" else s * s) / 0.5) ** 7
        w *= math.exp((1.0 if form == "a" else -1.0) * c * a * s * s)
    doubt = closed.in_doubt(form, arb(c))
    for side in (-total, total):
        assert doubt.contains(arb(side))
    assert float(doubt.upper()) < 20.0 * total


def test_counts_of_the_closed_form_are_proved_at_random_and_at_its_branches() -> None:
    rng, cases = RNG(3), []
    for _ in range(25):
        K, eta, L = (
            int(rng.integers(2, 60)),
            10.0 ** rng.uniform(-3, 2),
            10.0 ** rng.uniform(-1.5, 1.5),
        )
        cases.append((K, eta, L, 10.0 ** rng.uniform(-9, -1) * L**2))
    # where a run has a head, and where it has single steps: η L² = K²/16 and c = 27/128
    for K in (4, 50):
        for edge in (K**2 / 16.0, 27.0 / 64.0 * (K - 1) ** 2 / K):
            cases += [
                (K, float(eta), 1.0, 1e-4)
                for eta in (np.nextafter(edge, 0.0), edge, np.nextafter(edge, 9e9))
            ]
    for K, eta, L, epsilon in cases:
        run = icl.simulate(L, 1.0, eta, K=K, epsilon=epsilon)
        found = icl.certify(run, states=1).named("steps").ball
        assert run.steps in found
        assert len(found) <= 1 + (run.steps > 1e12)


def test_constants_are_those_of_60_digits() -> None:
    def flow(s: mpmath.mpf, K: int) -> mpmath.mpf:
        def time(s: mpmath.mpf) -> mpmath.mpf:
            return 3 * mpmath.log((1 - s) / s) - 1 / (1 - s) + 2 / s + 1 / (2 * s**2)

        return time(s) - time(1 - mpmath.mpf(1) / K)

    with mpmath.workdps(60), ctx.workprec(160):
        for K in (3, 20, 1000):
            tail = mpmath.findroot(
                lambda s, K=K: s**2 * flow(s, K) - 1, icl.regression.tail_start(K)
            )
            assert holds(closed.deficit(K, 0), tail)
        half = mpmath.findroot(lambda s: (s * (1 - s)) ** 2 * flow(s, 20) - 1, 0.136)
        assert holds(closed.deficit(20, 2), half)

        def loss(u: mpmath.mpf) -> mpmath.mpf:
            K, N, gamma, noise = 5, 6, 2, mpmath.mpf("0.5")
            w, total = mpmath.exp(-u), mpmath.mpf(0)
            for n in range(N + 1):
                M, T = N - n, n + (N - n) * w
                q = (
                    1
                    + mpmath.mpf(1) / (K - 1)
                    + (1 - mpmath.mpf(1) / (K - 1)) / max(M, 1)
                )
                chance = (
                    mpmath.binomial(N, n) * mpmath.mpf(K - 1) ** M / mpmath.mpf(K) ** N
                )
                total += (
                    chance
                    * (gamma * (M * w / T) ** 2 * q + noise**2 * (n + M * w**2) / T**2)
                    / 2
                )
            return total

        best = mpmath.findroot(lambda u: mpmath.diff(loss, u), 2.0)
        assert holds(closed.least_loss(5, arb(2), 6, 0.5), loss(best))


@pytest.mark.parametrize("goal", [{"above": 1e-5}, {"epsilon": 0.8}, {"epsilon": 0.79}])
def test_steps_of_linear_attention_are_those_of_40_digits(
    goal: dict[str, float],
) -> None:
    """With a target that is a loss, and with one above the floor, which is most of the loss here."""
    problem = icl.LinearAttention(d=3, decay=1.0, N=10, noise=0.5, eta=0.3, **goal)
    run = problem.simulate()
    found = icl.certify(run, states=1).named("steps").ball
    with mpmath.workdps(40):
        tokens = [mpmath.mpf(x) for x in problem.law().covariance.tolist()]
        power = mpmath.fsum(tokens) + mpmath.mpf("0.25")
        second = [x**2 * mpmath.mpf("1.1") + power * x / 10 for x in tokens]
        gamma, n = [mpmath.mpf(0.01)] * 3, 0
        best = [x / y for x, y in zip(tokens, second, strict=True)]

        def loss(gamma: list[mpmath.mpf]) -> mpmath.mpf:
            """With the loss of the prediction 0, half the trace of the tokens' covariance."""
            parts = zip(tokens, second, gamma, strict=True)
            return mpmath.fsum(x * (g * g * y - 2 * g * x + 1) / 2 for x, y, g in parts)

        aim = (
            mpmath.mpf(goal["epsilon"])
            if "epsilon" in goal
            else loss(best) + mpmath.mpf(goal["above"])
        )
        while loss(gamma) > aim:
            gamma = [
                g - mpmath.mpf(0.3) * x * (g * y - x)
                for x, y, g in zip(tokens, second, gamma, strict=True)
            ]
            n += 1
    assert n > 0
    assert found == range(n, n + 1)


@pytest.mark.parametrize("share", [1.0001, 1.5])
def test_steps_are_not_proved_at_a_rate_at_which_a_mode_grows(share: float) -> None:
    """Though the run reached its target before: it would not stay there, and no number of bits would help."""
    law = icl.linear_attention.PromptLaw([1.0, 0.3], N=20, noise=0.1)
    risk = icl.linear_attention.MergedRisk(law, law.best * [1.0 + 1e-6, 0.0])
    largest = float(risk.curvature.max())
    run = icl.descend(
        risk,
        share * 2.0 / largest,
        epsilon=0.7 * risk.evaluate(risk.start)[0],
        method="exact",
    )
    assert run.steps
    with pytest.raises(
        ValueError, match=r"^eta = .*: must be at most 2 over the largest curvature"
    ):
        icl.certify(run, states=1)


def test_a_loss_below_the_floor_is_never_reached() -> None:
    risk = icl.LinearAttention(d=3, decay=1.0, N=10, noise=0.5).risk()
    for share in (0.5, 1.0 - 1e-9):
        with pytest.raises(ArithmeticError, match="the goal is not reached"):
            closed.mode_steps(risk, 0.3, share * risk.floor(), None)
    found = closed.mode_steps(risk, 0.3, (1.0 + 1e-9) * risk.floor(), None)
    assert 0 < found[0] == found[-1] < 10**4


def test_a_count_is_within_its_error_where_rounding_hides_what_a_step_gains() -> None:
    problem = icl.LinearAttention(
        d=8, N=15, decay=4.0, noise=0.3, above=1.2e-10, eta=0.01
    )
    run = problem.simulate()
    found = icl.certify(run, states=1).named("steps")
    assert len(found.ball) == 1
    assert run.error is not None
    assert abs(found.ball[0] - run.steps) <= run.error < 1e-6 * run.steps


def test_an_inequality_is_proved_on_an_interval_or_a_piece_is_named() -> None:
    assert closed.everywhere(lambda x: bool(x * x - x > -0.26), arb(-2), arb(2)) > 20
    with pytest.raises(ArithmeticError, match=r"^not proved at \[0\.[456]"):
        closed.everywhere(lambda x: bool(x * x - x > -0.24), arb(-2), arb(2))


def test_the_bound_after_phase_one_is_proved_for_all_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert proofs.soon_after() == 477
    flow = closed.flow
    monkeypatch.setattr(closed, "flow", lambda s, K: 1.005 * flow(s, K))
    with pytest.raises(ArithmeticError, match=r"^not proved at \[0\.2"):
        proofs.soon_after()


def test_all_zeros_are_enclosed_or_it_is_said_that_this_is_not_proved() -> None:
    (found,) = closed.zeros(lambda x: 2 - x * x, arb(0), arb(3))
    assert float(found.rad()) < 1e-11
    assert found.overlaps(arb(2).sqrt())
    found = closed.zeros(lambda x: (1 - x) * (2 - x) * (2.5 - x), arb(0), arb(3))
    assert all(
        zero.contains(at) and zero.rad() < 1e-9
        for zero, at in zip(found, (1, 2, 2.5), strict=True)
    )
    for function in (
        lambda x: x * x + 1,
        lambda x: (x - 1) * (x - 1),
    ):  # no sign changes
        with pytest.raises(ArithmeticError, match=r"^not proved at "):
            closed.zeros(function, arb(0), arb(3))


def test_a_bound_is_proved_on_a_box_and_a_tighter_one_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert lemmas.phase_one_proved(True).measured == "proved on 25 pieces"
    assert closed.phase_one_lies_between(20, arb(0.3))
    assert not closed.phase_one_lies_between(20, arb(0.3, 0.1))
    flow = closed.flow
    monkeypatch.setattr(closed, "flow", lambda s, K: flow(s, K) + 20)
    claim = lemmas.phase_one_proved(True)
    assert claim.verdict.startswith("fails")
    assert claim.measured.startswith("not proved at ")
    monkeypatch.setitem(sys.modules, "flint", None)
    claim = dynamics.proved_counts(True)
    assert claim.measured.startswith("a proof needs python-flint")
    assert claim.verdict.startswith("holds only as far as")


def test_a_certificate_holds_the_run_and_says_what_it_rests_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = icl.simulate(2.0, 1.0, 4.0)
    found = icl.certify(run, states=2)
    assert [each.name for each in found] == [
        "loss at step 0",
        "gradient at step 0",
        "loss at step 1413",
        "gradient at step 1413",
        "tail constant",
        "steps",
        "end of Phase I",
        "start of Phase III",
        "L*",
        "L½",
    ]
    assert all(
        each.error is None or each.error < 1e-15
        for each in found
        if each.name[0] in "lgL"
    )
    assert found.named("steps").ball == range(1413, 1414)
    assert "1,413 (the run says 1,413)" in str(found)
    embedded = icl.simulate(2.0, 1.5, 1.0, K=4, coordinates="embedding", epsilon=1e-4)
    assert icl.certify(embedded, states=1).named("steps").ball == range(
        embedded.steps, embedded.steps + 1
    )
    at_once = icl.simulate(2.0, 1.0, 4.0, K=2, epsilon=0.5)  # the loss at step 0
    assert icl.certify(at_once, states=1).named("steps").ball == range(1)
    with pytest.raises(SystemExit) as end:
        main(
            [
                "simulate",
                "--L",
                "2",
                "--delta",
                "1",
                "--eta",
                "4",
                "--certify",
                "--json",
            ]
        )
    assert end.value.code == 0
    proved = json.loads(capsys.readouterr().out)["proved"]
    assert {each["name"]: each["proved"] for each in proved}["steps"] == "1,413"
    assert "which is wrong" not in str(found)
    run.steps = 1414
    assert "1,413 (the run says 1,414, which is wrong)" in str(
        icl.certify(run, states=1)
    )
    run.error = 2.0
    assert "1,413 (the run says 1,414 and that it may be off by 2)" in str(
        icl.certify(run, states=1)
    )


def test_what_a_double_may_be_off_by_is_that_of_its_worst_entry() -> None:
    doubles = np.array([1.0, 2.0, 3.0])
    proof = Proved(
        "gradient", np.array([arb(1.0), arb(2.5), arb(3.125)]), "sums", doubles
    )
    assert proof.error == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize(
    ("low", "high", "off"),
    [(7, 9, 2.0), (9, 9, 0.0), (8, 9, 1.0), (9, 11, 2.0), (10, 12, 3.0)],
)
def test_a_count_may_be_off_by_the_farther_end_of_what_is_proved(
    low: int, high: int, off: float
) -> None:
    """It is wrong only outside the interval; what it may be off by, the run says, or does not."""
    proof = Proved("steps", range(low, high + 1), "the map", 9)
    assert proof.error == off
    assert proof.interval == (f"{low}" if low == high else f"{low} to {high}")
    for stated in (0.0, off, 0.999 * off):
        said = str(replace(proof, stated=stated))
        inside, told = low <= 9 <= high, stated >= off
        assert ("which is wrong" in said) == (not inside and not told)
        assert (f"that it may be off by {stated:g}" in said) == (not inside and told)
        assert said.endswith("rests on the map")


def test_an_interval_is_as_wide_as_its_widest_entry() -> None:
    entries = np.array([arb(1.0, 1e-9), arb(2.0, 3.91e-3), arb(3.0, 1e-20)])
    proof = Proved("gradient", entries, "sums", np.array([1.0, 2.001, 3.0]))
    # A bound is rounded up.
    assert proof.interval == "3 entries to within 4.0e-03"
    assert proof.error == pytest.approx(4.91e-3, rel=1e-6)
    assert "off by at most 5.0e-03" in str(proof)
    assert Proved("gradient", entries, "sums").error is None
    low, high = (
        float(arb(each))
        for each in Proved("loss", arb(2.0, 4e-3), "")
        .interval.strip("[]")
        .split(" +/- ")
    )
    assert low == pytest.approx(2.0, abs=5e-3)
    assert 0.0 < high < 2e-2


@pytest.mark.parametrize("states", [1, 2, 4, 99])
def test_as_many_states_are_enclosed_as_are_asked_for_and_saved(states: int) -> None:
    run = icl.descend(icl.LinearAttention(d=2, decay=1.0, N=5).risk(), 0.1, steps=300)
    found = icl.certify(run, states=states)
    steps = [
        int(each.name.split()[-1]) for each in found if each.name.startswith("loss")
    ]
    assert len(steps) == min(states, len(run.t))
    assert set(steps) <= {*run.t.tolist()}
    assert (steps[0], steps[-1]) == (0, 0 if states == 1 else 300)
    for each in found:
        at = run.states[run.t.tolist().index(int(each.name.split()[-1]))]
        assert np.array_equal(
            each.double, run.risk.evaluate(at)[each.name.startswith("gradient")]
        )
        assert each.error is not None
        assert each.error < 1e-14
    for name, wrong in (("bits", 31), ("bits", 8193), ("states", 0), ("states", 1.5)):
        with pytest.raises(ValueError, match=f"^{name} = {wrong}: must be "):
            icl.certify(run, **{name: wrong})


def test_finite_prompts_have_a_floor_and_other_risks_their_losses() -> None:
    found = icl.certify(icl.simulate(2.0, 1.0, 4.0, N=20, noise=0.5, above=1e-2))
    floor = found.named("floor")
    assert floor.error is not None
    assert floor.error < 1e-15
    sphere = icl.certify(
        icl.descend(
            icl.TokenRisk(icl.Kind(5, [0.5, 0.5], [0.0, 1.0]), 1.0), 1.0, steps=3
        )
    )
    assert len(sphere) == 6
    gradient = sphere.named("gradient at step 3")
    assert gradient.interval.startswith("2 entries to within ")
    assert str(gradient).count("off by at most") == 1


def test_bits_that_leave_a_loss_too_few_digits_are_refused_with_enough_of_them() -> (
    None
):
    run = icl.simulate(2.0, 1.0, 4.0, K=3, epsilon=1e-6, probs=[0.5, 0.3, 0.2])
    with pytest.raises(
        ValueError,
        match=rf"^bits = 32: must be at least 64 for the loss at step {run.t[-1]}$",
    ):
        icl.certify(run, bits=32, states=2)
    for bits in (40, 64):
        last = icl.certify(run, bits=bits, states=2).named(f"loss at step {run.t[-1]}")
        assert last.ball.rel_accuracy_bits() >= 24


def test_what_cannot_be_proved_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = icl.simulate(2.0, 1.0, 4.0, epsilon=1e-17)
    with pytest.raises(ValueError, match=r"^bits = 32: must be at least 64 for steps$"):
        icl.certify(run, bits=32)
    assert icl.certify(run, bits=64).named("steps").ball[0] > 10**17
    with pytest.raises(
        ValueError,
        match=r"^risk = 'RecallRisk': must be a TokenRisk, a risk of regression",
    ):
        icl.certify(icl.recall.simulate(alpha=0.2, max_steps=3))
    constant = icl.certify(
        icl.descend(icl.ExchangeableRisk(5, 0.0), 1.0, steps=2), states=1
    )
    assert [each.name for each in constant] == [
        "loss at step 0",
        "gradient at step 0",
        "tail constant",
    ]
    with pytest.raises(ValueError, match="must be one on the population"):
        icl.certify(
            icl.descend(
                icl.Regression(L=1, delta=1, eta=1, K=3, N=4).sampled(2), 0.1, steps=2
            )
        )
    with pytest.raises(
        ValueError, match="name = 'none': must be one of loss at step 0"
    ):
        icl.certify(run).named("none")
    monkeypatch.setitem(sys.modules, "flint", None)
    with pytest.raises(
        ValueError,
        match=r"^a proof needs python-flint: pip install 'python-flint>=0.9'$",
    ):
        icl.certify(run)
    with pytest.raises(SystemExit) as end:
        main(["simulate", "--L", "2", "--delta", "1", "--eta", "4", "--certify"])
    assert end.value.code == 2
    assert capsys.readouterr() == (
        "",
        "icl-theory: a proof needs python-flint: pip install 'python-flint>=0.9'\n",
    )


def test_doubles_are_within_their_stated_error_of_the_enclosure() -> None:
    rng = RNG(11)
    for seed in range(12):
        U, N = int(rng.integers(2, 6)), int(10 ** rng.uniform(0, 3))
        kind = icl.Kind(
            icl.Lengths.uniform(1, N) if seed % 3 == 0 else N,
            rng.dirichlet(np.ones(U)),
            rng.normal(size=(U, 2)),
            rng.uniform(size=U),
        )
        risk, scores = (
            icl.TokenRisk(kind, [0.5, 0.0]),
            rng.normal(size=U) * rng.uniform(0, 6),
        )
        loss, _ = enclosed(risk, scores, 128)
        assert float(abs(loss - risk.loss(scores)).upper()) <= risk.error(scores)


def test_the_time_of_a_flow_is_not_held_against_the_steps_of_descent() -> None:
    for method, counted in (("auto", True), ("flow", False)):
        run = icl.LinearAttention(d=3, decay=1.0, N=10, method=method).simulate()
        found = icl.certify(run, states=1)
        assert ("steps" in [each.name for each in found]) == counted
        assert "which is wrong" not in str(found)


@pytest.mark.parametrize("delta", [0.5, 3.0])
def test_boundaries_are_proved_in_the_unit_of_the_gap(delta: float) -> None:
    found = icl.certify(icl.simulate(2.0, delta, 0.5, K=20, epsilon=1e-2), states=1)
    expected = {
        "L*": icl.regression.crossover(1e-2, delta, 20),
        "L½": icl.regression.half_way(1e-2, delta, 20),
    }
    for name, value in expected.items():
        assert float(found.named(name).ball.mid()) == pytest.approx(value, rel=1e-12)

"""Gaussian inputs and finite prompts: closed forms at the ends, samples between, and the limit of long prompts."""

from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.regression import FiniteGaussianRisk, QuadraticLaw, SampledGaussianRisk
from icl_theory.tokens.gaussian import query_lengths, usual_step

LAWS = [QuadraticLaw(1, 0.5, 1.0), QuadraticLaw(2, 1.0, 0.0), QuadraticLaw(3, 0.4, 0.7)]


def plain_mean(law: QuadraticLaw, N: int, noise: float) -> float:
    """Loss of the plain mean of N labels, from moments of normal variables."""
    d, a, b = law.d, law.sigma_a**2, law.sigma_b**2
    # E f(x)² = a E|x|⁴ + b E|x|², and E f(x) f(x') = a E (x·x')² + b E x·x' = a d for
    # independent tokens
    square, product = a * d * (d + 2) + b * d, a * d
    variance = square - product
    return 0.5 * (variance / N + variance + noise**2 / N)


def test_the_sign_of_the_scores_is_nothing_to_even_functions() -> None:
    """To rounding, by every rule. With the coarser nodes for c up to 1, the loss at -1.9 is off by 8e-13."""
    c, risk = 1.9, FiniteGaussianRisk(QuadraticLaw(2, 1.0, 0.0), 5, 0.3, 1e-2)
    assert risk.loss([-c]) == pytest.approx(risk.loss([c]), rel=1e-13)
    assert risk.gradient([-c]) == pytest.approx(-risk.gradient([c]), rel=1e-9)
    products = (
        risk.hessian_product(np.array([sign * c]), np.ones(1)) for sign in (1.0, -1.0)
    )
    assert next(products) == pytest.approx(next(products), rel=1e-9)


def test_a_single_token_has_all_attention() -> None:
    risk = FiniteGaussianRisk(LAWS[2], 1)
    assert risk.loss([1.3]) == pytest.approx(risk.loss([0.0]), rel=1e-9)


@pytest.mark.parametrize(("law", "c"), list(zip(LAWS, (1.1, 0.4, 1.1), strict=True)))
def test_loss_and_slope_are_means_over_sampled_prompts(
    law: QuadraticLaw, c: float
) -> None:
    N, eye = 12, np.eye(law.d)
    loss, slope = FiniteGaussianRisk(law, N, 0.2).evaluate(np.array([c]))
    trainer = SampledGaussianRisk(law, N, 10_000, 5, noise=0.2)
    drawn = [trainer.evaluate(c * eye, step) for step in range(16)]
    found = np.array([[value, np.trace(gradient)] for value, gradient in drawn])
    z = (found.mean(axis=0) - [loss, slope[0]]) / (found.std(axis=0, ddof=1) / 4.0)
    assert np.abs(z).max() < 4.0


@pytest.mark.parametrize(("law", "c"), [(LAWS[0], 0.3), (LAWS[2], 0.9)])
def test_slopes_are_differences(law: QuadraticLaw, c: float) -> None:
    """Of the loss by the same rule, whatever its tolerance."""
    risk = FiniteGaussianRisk(law, 20, 0.1, 1e-4)
    ahead, behind = (risk.evaluate(np.array([c + h])) for h in (1e-4, -1e-4))
    assert risk.gradient([c])[0] == pytest.approx(
        (ahead[0] - behind[0]) / 2e-4, rel=1e-6
    )
    bend = risk.hessian_product(np.array([c]), np.ones(1))[0]
    assert bend == pytest.approx((ahead[1][0] - behind[1][0]) / 2e-4, rel=1e-6)


@pytest.mark.parametrize("law", [LAWS[0], LAWS[2]], ids=str)
def test_long_prompts_approach_the_closed_form(law: QuadraticLaw) -> None:
    """At c = 0.3 the tokens that count are not rare."""
    limit = icl.GaussianRisk(law).loss(0.3 * np.eye(law.d))
    assert FiniteGaussianRisk(law, 10**12).loss([0.3]) == pytest.approx(limit, rel=1e-8)


def test_the_metric_makes_steps_those_of_the_matrix() -> None:
    """A step of c is the step of Q = c I by the sampled gradient, whose mean is a multiple of the identity."""
    law, N = QuadraticLaw(2, 0.3, 0.8), 8
    risk = FiniteGaussianRisk(law, N, tolerance=1e-4)
    run = icl.descend(risk, eta=0.2, steps=1)
    trainer = SampledGaussianRisk(law, N, 5_000, 1)
    entries = np.array(
        [np.diagonal(trainer.evaluate(np.zeros((2, 2)), step)[1]) for step in range(20)]
    )
    error = 0.2 * entries.mean(axis=1).std(ddof=1) / math.sqrt(20)
    assert abs(run.states[-1][0] + 0.2 * entries.mean()) < 4.0 * error


@pytest.mark.parametrize("N", [5, math.inf])
def test_the_automatic_rate_is_one_over_the_largest_curvature(N: float) -> None:
    """That of the matrix, on the way to the minimum where c stands for it, and else at the minimum.

    For N = 5 it is largest half-way: 1.3 of the curvature at zero, 2.2 of that at the minimum.
    """
    d = 3
    problem = icl.regression.GaussianRegression(
        L=1.3, d=d, curved=0.6, N=N, noise=0.2, above=1e-4
    )
    risk = problem.risk()
    unit = np.eye(d) if math.isinf(N) else np.ones(1)
    shares = [1.0] if math.isinf(N) else np.linspace(0.0, 1.0, 9).tolist()
    largest = max(risk.sharpness(share * risk.best * unit) for share in shares)
    assert problem.rate() * largest == pytest.approx(1.0, rel=0.05)


def test_the_floor_of_linear_functions_falls_like_a_power_of_n() -> None:
    """d = 1, c = 1: the local exponent between 8192 and a million tokens, which a heuristic puts at 0.618."""
    law = QuadraticLaw(1, 0.0, 1.0)
    few, many = (
        FiniteGaussianRisk(law, N, tolerance=1e-7).loss([1.0]) for N in (8192, 10**6)
    )
    assert math.log(few / many) / math.log(10**6 / 8192) == pytest.approx(
        0.6046, abs=5e-5
    )


def loss_of_two_tokens(law: QuadraticLaw, c: float, noise: float, step: float) -> float:
    """Loss of prompts of two tokens, by trapezoid rules in the query and in the difference of the two inputs.

    In one dimension f(x) = A x² + b x. Attention depends on the difference of the
    inputs alone; their sum enters by polynomials of degree four, which eight
    Gauss-Hermite nodes average exactly.
    """
    assert law.d == 1
    points = step * np.arange(-math.floor(9.5 / step), math.floor(9.5 / step) + 1)
    sums, sum_weights = np.polynomial.hermite_e.hermegauss(8)
    query, difference, total = np.meshgrid(points, points, sums, indexing="ij")
    weight = np.exp(-0.5 * points**2) / np.exp(-0.5 * points**2).sum()
    chance = weight[:, None, None] * weight[:, None] * sum_weights / sum_weights.sum()
    first, second = (
        (total + difference) / math.sqrt(2.0),
        (total - difference) / math.sqrt(2.0),
    )
    attention = 1.0 / (1.0 + np.exp(-c * query * (first - second)))
    linear = attention * first + (1.0 - attention) * second - query
    square = attention * first**2 + (1.0 - attention) * second**2 - query**2
    noisy = noise**2 * (attention**2 + (1.0 - attention) ** 2)
    return 0.5 * float(
        np.sum(
            chance * (law.sigma_a**2 * square**2 + law.sigma_b**2 * linear**2 + noisy)
        )
    )


LINEAR, QUADRATIC = QuadraticLaw(1, 0.0, 1.0), QuadraticLaw(1, 1.0, 0.0)


@pytest.mark.parametrize(
    ("law", "c", "step"),
    [
        (QuadraticLaw(1, 0.5, 1.0), 0.3, 0.1),
        (LINEAR, 1.0, 0.1),
        (QUADRATIC, 1.6, 0.07),
        pytest.param(LINEAR, 2.5, 0.05, marks=pytest.mark.slow),
        pytest.param(QUADRATIC, 2.5, 0.05, marks=pytest.mark.slow),
    ],
)
def test_losses_of_two_tokens_are_off_by_less_than_stated(
    law: QuadraticLaw, c: float, step: float
) -> None:
    """64 Gauss-Laguerre nodes in the length of the query were off by 1.7e-7 at c = 1, 3e-4 at c = 2.5."""
    reference = loss_of_two_tokens(law, c, 0.2, step)
    risk = FiniteGaussianRisk(law, 2, 0.2)
    # 2e-13 is what the rules of the reference leave at these steps
    assert abs(risk.loss([c]) - reference) <= risk.error([c]) + 2e-13 * reference
    assert risk.error([c]) < 1e-12 * reference


@pytest.mark.parametrize(
    ("law", "N"), [(LAWS[0], 10**6), (LAWS[0], 2), (LAWS[1], 1), (LAWS[2], 50)]
)
def test_without_attention_the_answer_is_the_plain_mean_within_the_stated_error(
    law: QuadraticLaw, N: int
) -> None:
    risk, exact = FiniteGaussianRisk(law, N, 0.3), plain_mean(law, N, 0.3)
    assert abs(risk.loss([0.0]) - exact) <= risk.error([0.0]) < 1e-10 * exact


@pytest.mark.parametrize(
    ("d", "N", "c", "tolerances"),
    [
        (1, 10**6, 1.0, (1e-3, 1e-10)),
        (20, 50, 1.0, (1e-3,)),
        pytest.param(20, 50, 1.0, (1e-10,), marks=pytest.mark.slow),
        pytest.param(3, 30, 1.7, (1e-3, 1e-10), marks=pytest.mark.slow),
        pytest.param(1, 10**12, 0.3, (1e-3, 1e-10), marks=pytest.mark.slow),
        pytest.param(100, 20, 0.7, (1e-3, 1e-10), marks=pytest.mark.slow),
    ],
)
def test_errors_are_stated_from_above_and_within_the_tolerance(
    d: int, N: int, c: float, tolerances: tuple[float, ...]
) -> None:
    """Against three times as many lengths, and tokens and lengths of much lower probability."""
    law = QuadraticLaw.lipschitz(d, 1.0, 0.4)
    for tolerance in tolerances:
        risk = FiniteGaussianRisk(law, N, 0.1, tolerance)
        reach = 2.0 ** math.ceil(math.log2(max(c, 1.0)))
        step = risk._rule(reach).step
        finest = risk._queries_at(reach, step / 3.0, 46.0)
        reference = sum(
            weight * single.evaluate(c * X)[0] for weight, X, single in finest
        )
        loss, error = risk.loss([c]), risk.error([c])
        assert abs(loss - reference) <= error + 1e-15 * loss
        assert error <= tolerance * loss


def test_a_smaller_tolerance_takes_more_lengths() -> None:
    law = QuadraticLaw(1, 0.0, 1.0)
    numbers = [
        len(FiniteGaussianRisk(law, 50, 0.0, tol)._lengths(1.0))
        for tol in (1e-2, 1e-8, 1e-12)
    ]
    assert numbers[0] < numbers[1] <= numbers[2]


def test_lengths_of_queries_have_the_moments_of_the_chi_law() -> None:
    for d in (1, 2, 7, 100, 1000):
        lengths, weights = query_lengths(d, usual_step(d))
        for power in (1, 2, 4):
            log_moment = (
                math.lgamma(0.5 * (d + power))
                - math.lgamma(0.5 * d)
                + 0.5 * power * math.log(2.0)
            )
            assert weights @ lengths**power == pytest.approx(
                math.exp(log_moment), rel=1e-9
            )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"N": 0}, "N"),
        ({"N": math.inf}, "N"),
        ({"N": 5, "noise": -1.0}, "noise"),
        ({"N": 5, "tolerance": 1e-13}, "tolerance"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, float], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} = "):
        FiniteGaussianRisk(LAWS[0], **arguments)  # type: ignore[arg-type]


def test_too_many_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^d = 101"):
        FiniteGaussianRisk(QuadraticLaw(101, 0.0, 1.0), 10)


def test_the_family_follows_finite_prompts_to_its_floor() -> None:
    problem = icl.regression.GaussianRegression(L=1.0, d=3, N=5, noise=0.1, above=1e-4)
    run = problem.simulate()
    assert run.converged
    assert problem.measured(run)["excess"] <= 1e-4
    with pytest.raises(ValueError, match=r"^N = 1"):
        icl.regression.GaussianRegression(L=1.0, N=1).simulate()


@pytest.mark.parametrize("law", [QuadraticLaw(1, 0.0, 1.0), QuadraticLaw(3, 0.3, 0.7)])
def test_the_slope_changes_its_sign_at_the_best_multiple(law: QuadraticLaw) -> None:
    """Which is beyond the identity for linear functions, and below it for quadratic ones."""
    risk = FiniteGaussianRisk(law, 20, 0.1, 1e-4)
    before, after = (risk.gradient([risk.best + off])[0] for off in (-1e-4, 1e-4))
    assert before < 0.0 < after
    assert (risk.best > 1.0) == (law.sigma_a == 0.0)
    assert risk.floor() == risk.loss([risk.best])


def test_for_prompts_of_one_token_the_best_multiple_is_set_to_one() -> None:
    """Such a prompt has all attention on its token, and the same loss for every multiple."""
    risk = FiniteGaussianRisk(QuadraticLaw(2, 0.3, 0.7), 1, tolerance=1e-2)
    assert risk.best == 1.0
    assert risk.loss([0.2]) == pytest.approx(risk.floor(), rel=1e-12)

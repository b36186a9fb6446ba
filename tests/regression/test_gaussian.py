from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import special_ortho_group

import icl_theory as icl
from tests.references import Array, slopes

LAWS = [
    icl.regression.QuadraticLaw(1, 1.0, 0.5),
    icl.regression.QuadraticLaw(1, 1.3, 0.0),
    icl.regression.QuadraticLaw(2, 0.7, 0.3),
    icl.regression.QuadraticLaw(2, 0.0, 1.2),
]
seeds = st.integers(0, 2**32 - 1)
laws = st.builds(
    icl.regression.QuadraticLaw,
    st.integers(1, 5),
    st.just(0.0) | st.floats(0.01, 3.0),
    st.floats(0.1, 3.0),
)


def grid(d: int, nodes: int) -> tuple[Array, Array]:
    """Nodes and weights of Gauss-Hermite quadrature for N(0, I_d)."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    points = np.array(list(itertools.product(x, repeat=d)))
    return points, np.array(
        [np.prod(c) for c in itertools.product(w / w.sum(), repeat=d)]
    )


def quadrature_loss(law: icl.regression.QuadraticLaw, Q: Array) -> float:
    """The definition: attention e^(x·Qx_q) / E e^(x·Qx_q) on N(0, I), every monomial's error squared."""
    key, weight = grid(law.d, 120)
    total = 0.0
    for query, probability in zip(*grid(law.d, 5), strict=True):
        attention = weight * np.exp(key @ Q @ query)
        attention /= attention.sum()
        linear = attention @ key - query
        quadratic = np.einsum("n,ni,nj->ij", attention, key, key) - np.outer(
            query, query
        )
        squared = law.sigma_a**2 * np.sum(quadratic**2) + law.sigma_b**2 * np.sum(
            linear**2
        )
        total += 0.5 * probability * squared
    return float(total)


def mp_excess(law: icl.regression.QuadraticLaw, Q: Array) -> float:
    """Loss above the least loss of a multiple of the identity, from the expanded polynomial with 80 digits."""
    with mpmath.workdps(80):
        a, b, d = mpmath.mpf(law.sigma_a) ** 2, mpmath.mpf(law.sigma_b) ** 2, law.d

        def loss(M: mpmath.matrix) -> mpmath.mpf:
            def trace(X: mpmath.matrix) -> mpmath.mpf:
                return mpmath.fsum(X[i, i] for i in range(d))

            P, D = M.T * M, M - mpmath.eye(d)
            bracket = (
                trace(P) ** 2
                + 2 * trace(P * P)
                - 2 * trace(M) ** 2
                - 2 * trace(M * M)
                + d * (d + 1)
            )
            return (a * bracket + b * trace(D.T * D)) / 2

        c = mpmath.findroot(
            lambda x: 2 * a * ((d + 2) * x**3 - (d + 1) * x) - b * (1 - x), 1
        )
        return float(loss(mpmath.matrix(Q.tolist())) - loss(c * mpmath.eye(d)))


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("size", [0.0, 0.4, 0.9])
def test_loss_is_the_expectation_under_the_tilted_gaussian(
    law: icl.regression.QuadraticLaw, size: float
) -> None:
    Q = size * np.random.default_rng(3).normal(size=(law.d, law.d))
    assert icl.GaussianRisk(law).loss(Q) == pytest.approx(
        quadrature_loss(law, Q), rel=1e-10
    )


@pytest.mark.parametrize(
    "law", [*LAWS, icl.regression.QuadraticLaw(4, 0.3, 2.0)], ids=str
)
def test_gradient_and_hessian_are_derivatives(law: icl.regression.QuadraticLaw) -> None:
    risk = icl.GaussianRisk(law)
    rng = np.random.default_rng(1)
    Q, V = rng.normal(size=(2, law.d, law.d))
    np.testing.assert_allclose(
        risk.gradient(Q), slopes(risk.loss, Q), rtol=1e-8, atol=1e-8
    )
    along = (risk.gradient(Q + 1e-5 * V) - risk.gradient(Q - 1e-5 * V)) / 2e-5
    np.testing.assert_allclose(risk.hessian_product(Q, V), along, rtol=1e-7, atol=1e-7)


@given(laws, seeds)
def test_minimisation_from_anywhere_finds_no_less_than_the_floor(
    law: icl.regression.QuadraticLaw, seed: int
) -> None:
    risk = icl.GaussianRisk(law)
    starts = 2.0 * np.random.default_rng(seed).normal(size=(2, law.d**2))

    def flat(x: Array) -> tuple[float, Array]:
        loss, gradient = risk.evaluate(x.reshape(law.d, law.d))
        return loss - risk.floor(), gradient.ravel()

    for start in starts:
        assert minimize(flat, start, jac=True, method="BFGS").fun > -1e-12
    found = minimize(
        flat,
        np.eye(law.d).ravel() + 0.05 * starts[0],
        jac=True,
        method="BFGS",
        tol=1e-9,
    )
    assert found.fun < 1e-9
    np.testing.assert_allclose(
        found.x.reshape(law.d, law.d), risk.best * np.eye(law.d), atol=1e-5
    )


def test_without_linear_part_both_signs_of_the_identity_are_best() -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(3, 1.0, 0.0))
    assert risk.best == pytest.approx(np.sqrt(4.0 / 5.0))
    assert risk.floor() == pytest.approx(0.5 * 3 * 4 / 5)
    assert risk.excess(-risk.best * np.eye(3)) < 1e-12


def test_identity_is_not_the_minimum_and_costs_the_trace_of_the_matrix() -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(3, 0.8, 0.6))
    assert risk.loss(np.eye(3)) == pytest.approx(0.5 * 3 * 0.8**2)
    assert risk.floor() < risk.loss(np.eye(3))
    assert np.sqrt(4 / 5) < risk.best < 1.0


def test_a_weak_linear_part_leaves_a_false_minimum_at_a_negative_multiple() -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(2, 1.0, 0.1))
    found = minimize(
        lambda x: risk.loss(x.reshape(2, 2)), -0.8 * np.eye(2).ravel(), tol=1e-10
    )
    assert found.x[0] == pytest.approx(-0.865, abs=0.01)
    assert found.fun > risk.floor() + 0.01
    assert icl.descend(risk, 0.02, steps=3000).observed["excess"][-1] < 1e-12


@pytest.mark.parametrize("size", [1e-1, 1e-4, 1e-7])
@pytest.mark.parametrize(
    "law", [LAWS[0], LAWS[2], icl.regression.QuadraticLaw(3, 1e-3, 1.0)], ids=str
)
def test_excess_and_gradient_keep_their_digits_near_the_minimum(
    law: icl.regression.QuadraticLaw, size: float
) -> None:
    risk = icl.GaussianRisk(law)
    D = size * np.random.default_rng(5).normal(size=(law.d, law.d))
    Q = risk.best * np.eye(law.d) + D
    assert risk.excess(Q) == pytest.approx(mp_excess(law, Q), rel=1e-14 / size)
    curved = risk.hessian_product(risk.best * np.eye(law.d), D)
    np.testing.assert_allclose(
        risk.gradient(Q), curved, rtol=40.0 * size, atol=40.0 * size**2
    )


def test_linear_tasks_contract_by_the_same_factor_at_every_step() -> None:
    run = icl.descend(
        icl.GaussianRisk(icl.regression.QuadraticLaw(4, 0.0, 0.7)), 0.5, steps=40
    )
    np.testing.assert_allclose(
        run.loss, 2.0 * 0.49 * (1.0 - 0.245) ** (2.0 * run.t), rtol=1e-9
    )
    assert run.floor == 0.0


@given(laws, seeds)
def test_rotations_of_the_inputs_change_nothing(
    law: icl.regression.QuadraticLaw, seed: int
) -> None:
    risk = icl.GaussianRisk(law)
    rng = np.random.default_rng(seed)
    Q = rng.normal(size=(law.d, law.d))
    R = special_ortho_group.rvs(law.d, random_state=rng) if law.d > 1 else -np.eye(1)
    assert risk.loss(R @ Q @ R.T) == pytest.approx(risk.loss(Q), rel=1e-12)
    scale = np.abs(risk.gradient(Q)).max()
    np.testing.assert_allclose(
        risk.gradient(R @ Q @ R.T), R @ risk.gradient(Q) @ R.T, atol=1e-12 * scale
    )


@given(laws, seeds, st.floats(0.01, 100.0))
def test_scale_of_the_tasks_is_a_scale_of_loss_and_time(
    law: icl.regression.QuadraticLaw, seed: int, scale: float
) -> None:
    larger = icl.regression.QuadraticLaw(
        law.d, scale * law.sigma_a, scale * law.sigma_b
    )
    assert pytest.approx(scale * law.L) == larger.L
    eta = 0.3 / icl.GaussianRisk(law).rate
    one = icl.descend(icl.GaussianRisk(law), eta, steps=30)
    other = icl.descend(icl.GaussianRisk(larger), eta / scale**2, steps=30)
    np.testing.assert_allclose(other.states, one.states, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(other.loss, scale**2 * one.loss, rtol=1e-9)


@given(laws)
def test_descent_from_zero_stays_isotropic_and_rises_to_the_minimum(
    law: icl.regression.QuadraticLaw,
) -> None:
    risk = icl.GaussianRisk(law)
    run = icl.descend(risk, 1.0 / risk.rate, steps=400)
    c = run.observed["alignment"]
    np.testing.assert_allclose(run.states, c[:, None, None] * np.eye(law.d), atol=1e-13)
    assert (np.diff(c) >= -1e-15).all()
    assert c[-1] <= risk.best * (1.0 + 1e-12)
    assert (np.diff(run.loss) <= 1e-12 * run.loss[0]).all()


def test_approach_is_exponential_at_twice_the_largest_curvature() -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(3, 0.5, 0.4))
    assert risk.sharpness(risk.best * np.eye(3)) == pytest.approx(risk.rate, rel=1e-10)
    run = icl.descend(risk, 0.1 / risk.rate, steps=220)
    before, after = run.at(200), run.at(210)
    decay = np.log(before.observed["excess"] / after.observed["excess"]) / 10.0
    assert decay == pytest.approx(-2.0 * np.log(0.9), rel=1e-4)


@pytest.mark.parametrize(("sigma_a", "sigma_b"), [(0.5, 0.4), (1.0, 0.05), (0.1, 1.0)])
def test_flow_from_zero_is_a_sum_of_logarithms_over_the_roots(
    sigma_a: float, sigma_b: float
) -> None:
    d, a, b = 3, sigma_a**2, sigma_b**2
    run = icl.descend(
        icl.GaussianRisk(icl.regression.QuadraticLaw(d, sigma_a, sigma_b)),
        0.01,
        steps=400,
        method="flow",
    )
    cubic = np.array([2 * a * (d + 2), 0.0, b - 2 * a * (d + 1), -b])
    roots = np.roots(cubic)
    on_the_way = (run.t > 0) & (
        run.observed["alignment"] < 0.99 * roots[roots > 0].real
    )
    c = run.observed["alignment"][on_the_way, None]
    time = (
        -np.sum(
            np.log(1.0 - c / roots + 0j) / np.polyval(np.polyder(cubic), roots), axis=1
        )
        / 0.01
    )
    np.testing.assert_allclose(time.imag, 0.0, atol=1e-6)
    np.testing.assert_allclose(time.real, run.t[on_the_way], rtol=1e-6)


def test_without_linear_part_zero_is_a_saddle_that_descent_does_not_leave() -> None:
    run = icl.descend(
        icl.GaussianRisk(icl.regression.QuadraticLaw(3, 1.0, 0.0)), 0.1, epsilon=1e-3
    )
    assert run.stop_reason.startswith("stagnated at step 0")


def test_root_mean_square_gradient_is_l() -> None:
    law = icl.regression.QuadraticLaw.lipschitz(3, L=2.0, curved=0.3)
    rng = np.random.default_rng(0)
    A = rng.normal(0.0, law.sigma_a, (100_000, 3, 3))
    b, x = rng.normal(0.0, law.sigma_b, (100_000, 3)), rng.normal(size=(100_000, 3))
    slope = np.einsum("nij,nj->ni", A + A.transpose(0, 2, 1), x) + b
    assert np.mean(np.sum(slope**2, axis=1)) == pytest.approx(4.0, rel=0.02)
    assert 2 * 3 * 4 * law.sigma_a**2 == pytest.approx(0.3 * 4.0)


@pytest.mark.parametrize("d", [1, 4])
def test_far_away_the_loss_overflows_to_infinity_and_never_to_nan(d: int) -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(d, 1.0, 1.0))
    rng = np.random.default_rng(0)
    for size in (1e60, 1e90, 1e150, 1e300):
        Q = size * rng.normal(size=(d, d))
        assert risk.loss(Q) > 1e230
        assert not np.isnan(risk.gradient(Q)).any()
    assert icl.descend(risk, 1e9, epsilon=1e-3).stop_reason.startswith("diverged")


def test_far_away_linear_tasks_have_a_large_loss_and_diverge() -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(2, 0.0, 1.0))
    for size in (1e100, 1e150):
        assert risk.loss(size * np.eye(2)) == pytest.approx(size**2, rel=1e-12)
        np.testing.assert_allclose(
            risk.gradient(size * np.eye(2)), size * np.eye(2), rtol=1e-12
        )
    for size in (1e155, 1e200, 1e300):
        assert risk.loss(size * np.eye(2)) == np.inf
    assert icl.descend(risk, 1e9, epsilon=1e-3).stop_reason.startswith("diverged")


def test_sharpness_far_away_is_refused_or_that_of_linear_tasks() -> None:
    far = 1e200 * np.eye(2)
    with pytest.raises(ValueError, match="entries with a finite Hessian"):
        icl.GaussianRisk(icl.regression.QuadraticLaw(2, 1.0, 1.0)).sharpness(far)
    assert icl.GaussianRisk(icl.regression.QuadraticLaw(2, 0.0, 1.5)).sharpness(
        far
    ) == pytest.approx(2.25)


@pytest.mark.parametrize(
    ("sigma_a", "sigma_b"), [(1e-40, 1e-40), (1e40, 1e-40), (1e-40, 1e40), (0.0, 1e-40)]
)
def test_extreme_scales_have_a_floor_and_a_best_multiple(
    sigma_a: float, sigma_b: float
) -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(2, sigma_a, sigma_b))
    assert np.sqrt(3 / 4) * (1 - 1e-15) <= risk.best <= 1.0
    assert 0.5 * 2 * sigma_a**2 * 3 / 4 <= risk.floor() * (1 + 1e-14)
    assert risk.floor() <= sigma_a**2 * (1 + 1e-14)
    assert 0.0 < risk.loss(np.zeros((2, 2))) < np.inf


def sampled(**changes: object) -> icl.regression.SampledGaussianRisk:
    arguments: dict[str, object] = {
        "law": icl.regression.QuadraticLaw(3, 0.8, 0.6),
        "N": 7,
        "batch": 16,
        "seed": 3,
        **changes,
    }
    return icl.regression.SampledGaussianRisk(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{}, {"noise": 0.4}, {"dataset": 20}, {"dataset": 10}, {"N": 1}], ids=str
)
@pytest.mark.parametrize("step", [0, 5])
def test_backward_pass_is_the_derivative_of_the_forward_pass(
    changes: dict[str, object], step: int
) -> None:
    risk = sampled(**changes)
    Q = np.random.default_rng(0).normal(size=(3, 3))
    expected = slopes(lambda x: risk.evaluate(x, step)[0], Q)
    np.testing.assert_allclose(
        risk.evaluate(Q, step)[1], expected, rtol=1e-6, atol=1e-9
    )


def test_labels_and_answer_are_one_quadratic_of_the_law() -> None:
    prompts = sampled(
        law=icl.regression.QuadraticLaw(2, 0.8, 0.6), N=12, batch=4000
    ).prompts()

    def monomials(x: Array) -> Array:
        first, second = x[..., 0], x[..., 1]
        return np.stack([first, second, first**2, second**2, first * second], axis=-1)

    found = np.array(
        [
            np.linalg.lstsq(monomials(x), y, rcond=None)[0]
            for x, y in zip(prompts.key, prompts.label, strict=True)
        ]
    )
    np.testing.assert_allclose(
        np.sum(found * monomials(prompts.asked), axis=1), prompts.answer, atol=1e-8
    )
    spread = found.std(axis=0) / [0.6, 0.6, 0.8, 0.8, 0.8 * np.sqrt(2.0)]
    np.testing.assert_allclose(spread, 1.0, atol=5.0 / np.sqrt(2 * 4000))


def test_same_seed_same_bits_other_step_other_prompts() -> None:
    Q = np.eye(3)
    np.testing.assert_array_equal(
        sampled().evaluate(Q, 7)[1], sampled().evaluate(Q, 7)[1]
    )
    assert sampled().evaluate(Q, 0)[0] != sampled().evaluate(Q, 1)[0]
    assert sampled(seed=4).loss(Q) != sampled().loss(Q)
    assert not sampled(dataset=16).stochastic
    assert sampled(dataset=17).stochastic


def test_scale_of_the_tasks_is_a_scale_of_the_sampled_loss_for_every_length() -> None:
    Q = np.random.default_rng(0).normal(size=(3, 3))
    larger = sampled(law=icl.regression.QuadraticLaw(3, 2.4, 1.8))
    assert larger.loss(Q) == pytest.approx(9.0 * sampled().loss(Q), rel=1e-12)


def test_long_prompts_have_the_population_loss_and_gradient() -> None:
    law = icl.regression.QuadraticLaw(2, 0.8, 0.6)
    Q = 0.35 * np.random.default_rng(2).normal(size=(2, 2)) + 0.2 * np.eye(2)
    risk = icl.regression.SampledGaussianRisk(law, N=3000, batch=250, seed=11)
    found = [risk.evaluate(Q, step) for step in range(16)]
    exact = icl.GaussianRisk(law)
    losses = np.array([loss for loss, _ in found])
    gradients = np.array([gradient for _, gradient in found])
    for mine, theirs in ((losses, exact.loss(Q)), (gradients, exact.gradient(Q))):
        z = (mine.mean(axis=0) - theirs) / (mine.std(axis=0, ddof=1) / 4.0)
        assert (
            np.abs(z).max() < 4.5
        )  # Student's distribution, 15 degrees of freedom: 4e-4 two-sided


def test_gap_to_infinite_prompts_closes_like_one_over_n_for_a_small_q() -> None:
    law, Q = icl.regression.QuadraticLaw(1, 1.0, 1.0), np.array([[0.3]])
    exact = icl.GaussianRisk(law).loss(Q)
    gaps = [
        np.mean(
            [
                icl.regression.SampledGaussianRisk(law, N, 40_000, seed=5).evaluate(
                    Q, step
                )[0]
                for step in range(5)
            ]
        )
        - exact
        for N in (8, 32)
    ]
    assert gaps[0] / gaps[1] == pytest.approx(4.0, rel=0.25)


def test_huge_scores_are_hard_attention() -> None:
    risk = sampled()
    np.testing.assert_array_equal(
        risk.loss(1e200 * np.eye(3)), risk.loss(1e308 * np.eye(3))
    )
    assert np.isfinite(risk.loss(1e308 * np.ones((3, 3))))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: icl.regression.QuadraticLaw(0, 1.0, 1.0),
            "d = 0: must be an integer in",
        ),
        (lambda: icl.regression.QuadraticLaw(20_000, 1.0, 1.0), "d = 20000"),
        (lambda: icl.regression.QuadraticLaw(2, -1.0, 1.0), "sigma_a = -1.0"),
        (lambda: icl.regression.QuadraticLaw(2, 1.0, float("nan")), "sigma_b = nan"),
        (
            lambda: icl.regression.QuadraticLaw(2, 1e-50, 1.0),
            "sigma_a = 1e-50: must be 0, or between",
        ),
        (
            lambda: icl.regression.QuadraticLaw(2, 0.0, 0.0),
            "sigma_b = 0.0: must be positive if sigma_a is 0",
        ),
        (lambda: icl.regression.QuadraticLaw.lipschitz(2, 0.0), "L = 0.0"),
        (lambda: icl.regression.QuadraticLaw.lipschitz(2, 1.0, 1.5), "curved = 1.5"),
        (lambda: icl.GaussianRisk(2), "law = 2: must be a QuadraticLaw"),  # type: ignore[arg-type]
        (
            lambda: icl.GaussianRisk(LAWS[2]).loss(np.eye(3)),
            "params = (3, 3): must be of shape (2, 2)",
        ),
        (lambda: sampled(law=None), "law = None"),
        (lambda: sampled(N=0), "N = 0"),
        (lambda: sampled(N=float("inf")), "N = inf"),
        (lambda: sampled(batch=0), "batch = 0"),
        (lambda: sampled(seed=-1), "seed = -1"),
        (lambda: sampled(dataset=0), "dataset = 0"),
        (lambda: sampled(noise=-0.1), "noise = -0.1"),
    ],
)
def test_refuses_wrong_arguments(call: Callable[[], object], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


@pytest.mark.parametrize("d", [1, 3])
def test_what_is_observed_is_measured_from_the_minimum_that_descent_finds(
    d: int,
) -> None:
    risk = icl.GaussianRisk(icl.regression.QuadraticLaw(d, 0.6, 0.9))
    best = icl.descend(risk, 0.5 / risk.rate, steps=200).params
    Q = np.random.default_rng(0).normal(size=(d, d))
    seen = risk.observe(Q)
    assert seen["alignment"] == pytest.approx(sum(Q[i, i] for i in range(d)) / d)
    assert seen["residual"] == pytest.approx(
        math.sqrt(((Q - best) ** 2).sum() / d), rel=1e-8
    )
    assert seen["excess"] == pytest.approx(risk.loss(Q) - risk.loss(best), rel=1e-8)

"""The population loss against every prompt of a grid, against samples, and at extremes against mpmath."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import Pullback
from icl_theory.papers.linear_attention import (
    Heads,
    LayerRisk,
    LoopedRisk,
    MergedRisk,
    MixtureRisk,
    Pair,
    PlusPlusRisk,
    PromptLaw,
    SampledLoop,
    SampledRisk,
)
from icl_theory.testing import check_risk
from tests.linear_attention.references import layer, merged, random_law

BATCHES, BATCH = 50, 2000


@pytest.mark.parametrize(
    ("d", "N", "noise"), [(1, 4, 0.7), (2, 1, 0.0), (2, 2, 0.5), (2, 3, 1.0)]
)
def test_loss_and_gradient_are_those_of_all_prompts(
    d: int, N: int, noise: float
) -> None:
    found = random_law(d, N, noise, seed=N)
    law = PromptLaw(*found[:3], N=N, noise=noise)
    gamma = np.random.default_rng(1).normal(size=(d, d))
    loss, gradient = merged(found, gamma)
    assert law.loss(gamma) == pytest.approx(loss, rel=1e-12)
    risk = MergedRisk(law, gamma)
    assert risk.loss(gamma) == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(
        risk.gradient(gamma), gradient, atol=1e-12 * np.abs(gradient).max()
    )


def test_layer_is_the_pair_and_its_other_blocks_stay_zero() -> None:
    found, d = random_law(2, 2, 0.5), 2
    law = PromptLaw(*found[:3], N=2, noise=0.5)
    pair = np.concatenate([[1.3], np.random.default_rng(2).normal(size=d * d)])
    P, K = LayerRisk.of(law, pair, batch=1).initial
    loss, by_P, by_K = layer(found, P, K)
    risk = Pullback(MergedRisk(law, np.zeros((d, d))), Pair(pair, (d, d)))
    assert risk.loss(pair) == pytest.approx(loss, rel=1e-12)
    gradient = risk.gradient(pair)
    assert by_P[d, d] == pytest.approx(gradient[0], rel=1e-12)
    np.testing.assert_allclose(by_K[:d, :d].T.ravel(), gradient[1:], rtol=1e-11)
    by_P[d, d], by_K[:d, :d] = 0.0, 0.0
    assert np.abs(by_P).max() < 1e-12
    assert np.abs(by_K).max() < 1e-12


@pytest.mark.parametrize("d", [1, 2, 3])
def test_a_layer_of_a_diagonal_is_that_of_the_matrix(d: int) -> None:
    law, diagonal = PromptLaw(np.ones(d), N=4), np.arange(1.0, d + 1.0)
    found = LayerRisk.of(law, np.append(0.7, diagonal), batch=1).initial
    wanted = np.zeros((2, d + 1, d + 1))
    wanted[0, d, d], wanted[1, :d, :d] = 0.7, np.diag(diagonal)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(
        LayerRisk.of(law, np.append(0.7, np.diag(diagonal)), batch=1).initial, wanted
    )


def test_sampled_layer_has_the_population_loss_and_gradient() -> None:
    """100,000 prompts; each of the 51 figures within four standard errors."""
    found = random_law(4, 6, 0.5, seed=3)
    law = PromptLaw(*found[:3], N=6, noise=0.5)
    pair = np.concatenate([[0.8], 0.5 * np.random.default_rng(4).normal(size=16)])
    trainer = LayerRisk.of(law, pair, BATCH, seed=5)
    risk = Pullback(MergedRisk(law, np.zeros((4, 4))), Pair(pair, (4, 4)))
    loss, gradient = risk.evaluate(pair)
    exact = np.zeros((2, 5, 5))
    exact[0, 4, 4], exact[1, :4, :4] = gradient[0], gradient[1:].reshape(4, 4).T
    drawn = [trainer.evaluate(trainer.initial, step) for step in range(BATCHES)]
    losses, gradients = (
        np.array([each for each, _ in drawn]),
        np.array([each for _, each in drawn]),
    )
    assert abs(losses.mean() - loss) < 4.0 * losses.std(ddof=1) / math.sqrt(BATCHES)
    error = gradients.std(axis=0, ddof=1) / math.sqrt(BATCHES)
    assert (np.abs(gradients.mean(axis=0) - exact) <= 4.0 * error).all()


def test_sampled_risk_over_gamma_has_the_population_loss_and_gradient() -> None:
    found = random_law(3, 5, 0.3, seed=6)
    law = PromptLaw(*found[:3], N=5, noise=0.3)
    gamma = np.random.default_rng(7).normal(size=(3, 3))
    trainer, risk = SampledRisk(law, gamma, BATCH, seed=8), MergedRisk(law, gamma)
    drawn = [trainer.evaluate(gamma, step) for step in range(BATCHES)]
    losses, gradients = (
        np.array([each for each, _ in drawn]),
        np.array([each for _, each in drawn]),
    )
    loss, gradient = risk.evaluate(gamma)
    assert abs(losses.mean() - loss) < 4.0 * losses.std(ddof=1) / math.sqrt(BATCHES)
    assert (
        np.abs(gradients.mean(axis=0) - gradient)
        < 4.0 * gradients.std(axis=0, ddof=1) / math.sqrt(BATCHES)
    ).all()


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize("N", [1, 2, 12])
def test_means_of_labelled_tokens_have_the_law_that_tokens_give_them(
    N: int, noise: float
) -> None:
    """Losses, gradients and squares of both samplers agree, for less and more tokens."""
    d = 3
    law = PromptLaw(*random_law(d, N, noise, seed=4)[:3], N=N, noise=noise)
    gamma = np.random.default_rng(1).normal(size=(d, d))
    tokenwise = SampledRisk(law, gamma, batch=60_000, seed=2)
    reduced = tokenwise.cheaper()
    tokens = tokenwise.prompts()
    h = np.einsum("bn,bnd->bd", tokens.labels, tokens.tokens) / N
    other = reduced.prompts()
    samples = []
    for mean, query, answer in ((h, tokens.query, tokens.answer), other):
        loss = 0.5 * (np.einsum("bi,ij,bj->b", query, gamma, mean) - answer) ** 2
        products = mean * answer[:, None]
        columns = [loss, loss**2, mean, mean**2, np.abs(mean) ** 3, products]
        samples.append(np.column_stack(columns))
    np.testing.assert_allclose(reduced.losses(gamma), samples[1][:, 0], rtol=1e-9)
    difference = samples[0].mean(axis=0) - samples[1].mean(axis=0)
    error = np.sqrt(sum(sample.var(axis=0) for sample in samples) / 60_000)
    assert np.abs(difference / error).max() < 4.5


def test_minimiser_is_the_published_one_whatever_the_query() -> None:
    spectrum, N, noise = np.array([1.0, 0.3, 0.05]), 7, 0.4
    published = 1.0 / ((1 + 1 / N) * spectrum + (spectrum.sum() + noise**2) / N)
    for query in (None, [2.0, 0.1, 1.0]):
        np.testing.assert_allclose(
            PromptLaw(spectrum, None, query, N=N, noise=noise).best,
            published,
            rtol=1e-14,
        )
    dense = random_law(3, 5, 0.2)
    risk = MergedRisk(PromptLaw(*dense[:3], N=5, noise=0.2), np.eye(3))
    _, gradient = risk.evaluate(risk.law.best)
    assert np.abs(gradient).max() < 1e-15


def test_dense_and_diagonal_are_one() -> None:
    law = PromptLaw([1.0, 0.2, 0.1], [1.0, 2.0, 0.5], [0.3, 1.0, 1.0], N=9, noise=0.3)
    gamma = np.array([0.5, 1.0, -2.0])
    assert law.dense.floor == pytest.approx(law.floor, rel=1e-13)
    for one in (gamma, np.diag(gamma)):
        for other in (law, law.dense):
            assert other.loss(one) == pytest.approx(law.loss(gamma), rel=1e-13)
            assert other.excess(one) == pytest.approx(
                law.loss(gamma) - law.floor, rel=1e-11
            )


@pytest.mark.parametrize("N", [10**3, 10**8, 10**14])
def test_floor_keeps_its_digits_in_long_prompts(N: int) -> None:
    """L∞ = ½ Σ λ (1 - λ²/m) by mpmath, and for a rotated covariance the same."""
    spectrum = [1.0, 0.1, 0.003]
    with mpmath.workdps(50):
        total = mpmath.fsum(map(mpmath.mpf, spectrum))
        terms = []
        for each in map(mpmath.mpf, spectrum):
            m = each**2 * (1 + mpmath.mpf(1) / N) + each * total / N
            terms.append(each * (1 - each**2 / m) / 2)
        exact = float(mpmath.fsum(terms))
    assert PromptLaw(spectrum, N=N).floor == pytest.approx(exact, rel=1e-14)
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
    assert PromptLaw((turn * spectrum) @ turn.T, N=N).floor == pytest.approx(
        exact, rel=1e-9
    )


class Exact:
    """Loss of any matrix and least loss by mpmath, of the numbers of a law, Λ shifted by a multiple of I."""

    def __init__(self, law: PromptLaw, shift: float = 0.0) -> None:
        self.L, self.W, self.Q = (
            mpmath.matrix(each.tolist()) for each in law.dense.moments
        )
        self.L += shift * mpmath.eye(law.d)
        share, noise = (
            (0 if math.isinf(law.N) else 1 / mpmath.mpf(law.N)),
            mpmath.mpf(law.noise),
        )
        signal = self.L * self.W
        power = sum(signal[i, i] for i in range(law.d)) + noise**2
        self.S = share * (signal * self.L + power * self.L)
        self.M = signal * self.L + self.S

    def loss(self, gamma: Any) -> Any:
        G = mpmath.matrix(gamma.tolist())
        miss = G * self.L - mpmath.eye(len(G))
        return self._weighed(miss * self.W * miss.T + G * self.S * G.T)

    def gradient(self, gamma: Any) -> Any:
        G = mpmath.matrix(gamma.tolist())
        return np.array((self.Q * (G * self.M - self.W * self.L)).tolist(), dtype=float)

    def floor(self) -> Any:
        return self._weighed(
            self.W - self.W * self.L * mpmath.inverse(self.M) * self.L * self.W
        )

    def _weighed(self, moment: Any) -> Any:
        weighed = self.Q * moment
        return sum(weighed[i, i] for i in range(len(self.Q))) / 2


@pytest.mark.parametrize("N", [math.inf, 5, 10**4, 10**10])
@pytest.mark.parametrize("seed", range(6))
def test_dense_laws_keep_their_digits_where_tokens_are_ill_conditioned(
    N: float, seed: int
) -> None:
    """Eigenvalues of Λ down to 1e-12 in random bases; queries of any law, of one direction, of the tokens'."""
    rng = np.random.default_rng(seed)
    d = int(rng.integers(2, 5))
    turn = np.linalg.qr(rng.normal(size=(d, d)))[0]
    spectrum = np.array([1.0, 1e-12, *10.0 ** rng.uniform(-12.0, 0.0, d)])[:d]
    covariance = (turn * spectrum) @ turn.T
    prior = np.eye(d) if seed % 2 else rng.normal(size=(d, d)) / 2.0
    query = (np.eye(d), np.outer(turn[0], turn[0]), None)[seed % 3]
    law = PromptLaw(
        0.5 * (covariance + covariance.T),
        prior @ prior.T,
        query,
        N=N,
        noise=0.3 * (seed % 2),
    )
    gamma = rng.normal(size=(d, d))
    risk, scale = MergedRisk(law, gamma), float(np.sum(law.moments[2] * law.moments[1]))
    with mpmath.workdps(90):
        exact, eps = Exact(law), 2.3e-16
        floor, shifted = exact.floor(), Exact(law, 2.0 * d * eps).floor()
        assert (
            abs(law.floor - floor) <= 1e-13 * floor + abs(shifted - floor) + 1e-40
        )  # rounding of Λ alone
        loss, gradient = exact.loss(gamma), exact.gradient(gamma)
        # Γ* is known to the digits that Λ leaves, and entries as large as 1e12 to their
        # own
        lost = float(exact.loss(law.best) - floor)
    assert law.loss(gamma) == pytest.approx(float(loss), rel=1e-13)
    assert risk.loss(gamma) == pytest.approx(float(loss), rel=1e-12)
    np.testing.assert_allclose(
        risk.gradient(gamma), gradient, atol=1e-13 * np.abs(gradient).max(), rtol=0.0
    )
    largest = float(np.abs(law.best).max())
    assert -1e-30 <= lost <= 10.0 * scale * (d * 2.3e-16 * (1.0 + largest)) ** 2


def test_floor_of_infinite_prompts_is_zero_down_to_rounding() -> None:
    """Every direction that a token has is learnt in the end, whatever its variance."""
    turn = np.linalg.qr([[1.0, 2.0, 3.0], [2.0, 1.0, 0.0], [0.0, 1.0, 1.0]])[0]
    for least in 10.0 ** -np.arange(13.0):
        assert (
            PromptLaw((turn * [1.0, 0.5, least]) @ turn.T, query=np.eye(3)).floor == 0.0
        )
    unseen = PromptLaw((turn * [1.0, 0.5, 0.0]) @ turn.T, query=np.eye(3))
    assert unseen.floor == pytest.approx(0.5, rel=1e-14)
    assert MergedRisk(unseen, np.zeros((3, 3))).loss(np.zeros((3, 3))) == pytest.approx(
        1.5, rel=1e-14
    )


def test_singular_tasks_and_tokens_have_the_pseudo_inverse() -> None:
    """Γ* = WΛM⁺ also where Λ and W are singular, with null spaces of their own."""
    rng = np.random.default_rng(5)
    for N in (math.inf, 7):
        tokens, tasks = rng.normal(size=(4, 3)), rng.normal(size=(4, 2))
        law = PromptLaw(tokens @ tokens.T, tasks @ tasks.T, np.eye(4), N=N)
        wanted = (
            law.moments[1] @ law.covariance @ np.linalg.pinv(law.second, rcond=1e-10)
        )
        np.testing.assert_allclose(law.best, wanted, atol=1e-10)
        assert law.floor == pytest.approx(law.loss(wanted), rel=1e-10)
        other = rng.normal(size=(4, 4))
        assert law.excess(other) == pytest.approx(
            law.loss(other) - law.loss(wanted), rel=1e-12
        )


def test_directions_that_are_never_seen_are_left_alone() -> None:
    """No tokens along one axis, no tasks along another, no queries along the third."""
    for N in (math.inf, 5):
        law = PromptLaw([1.0, 0.0, 0.5], [1.0, 2.0, 0.0], [0.0, 1.0, 1.0], N=N)
        for one in (law, law.dense):
            best = one.best if one.best.ndim == 1 else np.diag(one.best)
            assert best[1:].tolist() == [0.0, 0.0]
            assert best[0] == pytest.approx(
                1.0 / ((1.0 + 1.0 / N) + 1.0 / N), rel=1e-14
            )
            assert one.floor == pytest.approx(
                1.0, rel=1e-14
            )  # half the query's moment times the tasks'
            assert one.loss(one.best) == pytest.approx(one.floor, rel=1e-14)
            assert one.excess([1.0, 7.0, 0.0]) == pytest.approx(0.0, abs=1e-30)
        run = icl.descend(MergedRisk(law, np.full(3, 0.3)), 0.5, steps=3)
        assert run.states[-1][:2].tolist() == [0.3, 0.3]


@pytest.mark.parametrize("dense", [False, True])
def test_a_matrix_is_trained_in_a_diagonal_law_as_in_a_dense_one(dense: bool) -> None:
    """Its entries off the diagonal have modes, too."""
    law = PromptLaw([1.0, 0.2, 0.5], [1.0, 0.5, 2.0], [0.3, 1.0, 0.1], N=7, noise=0.4)
    risk = MergedRisk(
        law.dense if dense else law, np.random.default_rng(0).normal(size=(3, 3))
    )
    check_risk(risk)
    eta, gamma, (covariance, prior, query) = (
        1.2 / float(risk.curvature.max()),
        risk.start,
        law.dense.moments,
    )
    form = risk.closed_form(eta, "gd")
    assert form is not None
    for t in range(4):
        np.testing.assert_allclose(
            form.states(np.array([t]))[0], gamma, rtol=1e-12, atol=1e-14
        )
        gamma = gamma - eta * query @ (gamma @ law.dense.second - prior @ covariance)
    assert 0.0 < float(form.blur(np.array([2]))[0]) < 1e-12


def test_singular_moments_have_a_floor_and_a_minimiser_that_descent_reaches() -> None:
    tasks = np.array([[1.0, 0.0, 1.0], [0.0, 2.0, 0.0]])
    problem = icl.LinearAttention(d=3, N=math.inf, tasks=tasks, start=0.0, above=1e-9)
    assert problem.law().floor == pytest.approx(0.0, abs=1e-30)
    run = problem.simulate()
    assert run.converged
    assert problem.law().excess(run.params) <= 1.01e-9
    flat = icl.LinearAttention(covariance=np.diag([1.0, 0.0]), N=5, query=[0.0, 1.0])
    assert flat.law().floor == pytest.approx(0.5)  # the query's direction is never seen
    assert flat.simulate().steps == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"covariance": [[1.0, 0.5], [0.0, 1.0]]},
            r"covariance = .*symmetric.*differs from its transpose by 0\.5",
        ),
        (
            {"covariance": [[1.0, 2.0], [2.0, 1.0]]},
            r"covariance = .*its least eigenvalue is -1",
        ),
        (
            {"covariance": [[1.0, 0.5], [0.5 + 1e-9, 1.0]]},
            r"covariance = .*differs from its transpose by 1e-09",
        ),
        (
            {"prior": [[1.0, 1.0 + 1e-9], [1.0 + 1e-9, 1.0]], "d": 2},
            r"prior = .*its least eigenvalue is -1e-09",
        ),
        ({"covariance": [1.0, -0.1]}, r"covariance = .*the least is -0\.1"),
        ({"covariance": [0.0, 0.0]}, r"covariance = .*largest entry between"),
        ({"covariance": [[1.0, math.nan], [0.0, 1.0]]}, r"covariance = "),
        ({"covariance": [1.0, 0.5], "decay": 1.0}, r"decay = 1\.0: must be left out"),
        ({"prior": [1.0, 1.0]}, r"prior = .*\(8 x 8\)"),
        ({"query": "all"}, r"query = 'all'"),
        (
            {"N": 0},
            r"N = 0: must be an integer in \[1, 9007199254740992\], or math\.inf",
        ),
        ({"tasks": 0}, r"tasks = 0: must be an integer >= 1"),
        ({"tasks": [[1.0, 2.0]]}, r"tasks = \(1, 2\): must be of shape \(k, 8\)"),
        ({"tasks": [[0.0] * 8]}, r"tasks = .*not all of them zero"),
        ({"coordinates": "heads", "rank": 9}, r"rank = 9: must be at most d = 8"),
        ({"heads": 2}, r"heads = 2: must be left out unless coordinates is one of"),
        ({"coordinates": "pair", "start": 0.0}, r"start = 0\.0: must be > 0 .*saddle"),
        (
            {"coordinates": "heads", "heads": 2, "start": [1.0]},
            r"start = \(1,\): must be .*\(2, 17\)",
        ),
        ({"start": [1.0, 2.0]}, r"start = .*of shape \(8,\) or \(8, 8\)"),
        (
            {"eta": 3.0},
            r"eta = 3\.0: must be below 2/\(q_max m_max\) = 1\.37931, beyond which descent diverges",
        ),
        ({"d": 5000, "tasks": 3}, r"d = 5000: must be at most 4000"),
    ],
)
def test_problem_that_cannot_be_is_refused_by_name(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        icl.LinearAttention(**arguments)


def test_a_rate_is_refused_only_where_steps_of_descent_diverge() -> None:
    limit = 2.0 * icl.LinearAttention().stable_rate()
    assert icl.LinearAttention(eta=math.nextafter(limit, 0.0)).rate() < limit
    with pytest.raises(ValueError, match=r"eta = .*beyond which descent diverges"):
        icl.LinearAttention(eta=limit)
    for given in (
        {"method": "flow"},
        {"rule": "ngd"},
        {"coordinates": "pair"},
        {"depth": 2},
    ):
        assert icl.LinearAttention(eta=3.0, **given).rate() == 3.0  # type: ignore[arg-type]


LAW = PromptLaw([1.0, 1.0], N=5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: SampledRisk(LAW, [0.0, 0.0, 0.0], 4),
            r"start = \(3,\): must be of shape \(2, 2\)",
        ),
        (lambda: SampledRisk(LAW, 0.01, 4), r"start = \(\): must be of shape \(2, 2\)"),
        (
            lambda: SampledRisk(LAW, [[math.nan, 0.0], [0.0, 0.0]], 4),
            "start = .*: must be numbers between",
        ),
        (
            lambda: LayerRisk(LAW, np.zeros((2, 2)), 4),
            r"start = \(2, 2\): must be of shape \(2, 3, 3\)",
        ),
        (
            lambda: LayerRisk(LAW, np.full((2, 3, 3), 1e308), 4),
            "start = .*: must be numbers between",
        ),
        (
            lambda: SampledLoop(LAW, [1.0, 2.0], 4, depth=2),
            r"start = \(2,\): must be of shape \(1,\)",
        ),
        (lambda: MergedRisk(LAW, [1.0, 2.0j]), "start = .*: must be numbers between"),
        (lambda: MergedRisk(LAW, [1.0, 1e308]), "start = .*: must be numbers between"),
        (
            lambda: MergedRisk(LAW, [1.0]),
            r"start = \(1,\): must be of shape \(2,\) or \(2, 2\)",
        ),
        (lambda: MergedRisk(LAW, [1.0, 1.0], 0), "rank = 0: must be an integer >= 1"),
        (lambda: Heads(math.nan, 1), "start = nan: must be a finite real array"),
        (
            lambda: Heads(np.zeros((2, 4)), 2),
            r"start = \(2, 4\): must be of shape \(H, 1 \+ 2R·2\)",
        ),
        (
            lambda: Heads(np.zeros((2, 6)), 2),
            r"start = \(2, 6\): must be of shape \(H, 1 \+ 2R·2\)",
        ),
        (
            lambda: Heads(np.zeros((0, 5)), 2),
            r"start = \(0, 5\): must be of shape \(H, 1 \+ 2R·2\)",
        ),
        (lambda: Heads(np.zeros((2, 5)), 0), "d = 0: must be an integer >= 1"),
        (lambda: Pair([1.0, math.inf], (1,)), "start = .*: must be numbers between"),
        (
            lambda: Pair([1.0, 2.0, 3.0], (2, 2)),
            r"start = \(3,\): must be of shape \(5,\)",
        ),
        (
            lambda: LoopedRisk(2, 5, 2, start=1e308),
            "start = 1e\\+308: must be a finite real array",
        ),
    ],
)
def test_start_that_fits_no_parameters_is_refused_where_it_enters(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make()


STARTS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "merged": (lambda start: MergedRisk(LAW, start), (2,)),
    "merged, matrix": (lambda start: MergedRisk(LAW, start), (2, 2)),
    "mixture": (
        lambda start: MixtureRisk([LAW, PromptLaw([1.0, 0.3], N=9)], start=start),
        (2,),
    ),
    "mixture, matrix": (lambda start: MixtureRisk([LAW], start=start), (2, 2)),
    "pair": (
        lambda start: Pullback(MergedRisk(LAW, np.zeros(2)), Pair(start, (2,))),
        (3,),
    ),
    "heads": (
        lambda start: Pullback(MergedRisk(LAW, np.zeros((2, 2))), Heads(start, 2)),
        (3, 5),
    ),
    "loop": (lambda start: LoopedRisk(2, 5, 3, start=start[0]), (1,)),
    "GD++": (lambda start: PlusPlusRisk(2, 5, start), (3,)),
    "sampled": (lambda start: SampledRisk(LAW, start, 4), (2, 2)),
    "sampled loop": (lambda start: SampledLoop(LAW, start, 4, depth=2), (1,)),
    "layer": (lambda start: LayerRisk(LAW, start, 4), (2, 3, 3)),
}


@pytest.mark.parametrize("name", STARTS)
def test_training_begins_at_the_start_that_is_given(name: str) -> None:
    make, shape = STARTS[name]
    start = np.random.default_rng(0).uniform(0.1, 0.3, shape)
    np.testing.assert_array_equal(make(start).initial, start)


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({}, (3, 3)),
        ({"d": 3, "covariance": None}, (3, 3)),
        ({"d": 3, "covariance": None}, (3,)),
        ({"coordinates": "pair"}, (10,)),
        ({"coordinates": "pair", "d": 3, "covariance": None}, (4,)),
        ({"coordinates": "heads", "heads": 2}, (2, 7)),
        ({"coordinates": "merged-heads", "heads": 2}, (2, 10)),
        ({"coordinates": "layer", "heads": 2}, (2, 2, 4, 4)),
    ],
)
def test_a_start_that_is_given_is_where_exact_and_sampled_training_begin(
    given: dict[str, Any], shape: tuple[int, ...]
) -> None:
    start = np.random.default_rng(0).uniform(0.1, 0.3, shape)
    options: dict[str, Any] = {"covariance": np.eye(3) + 0.1} | given
    problem = icl.LinearAttention(**options, start=start, N=5, max_steps=1, above=1e-9)
    np.testing.assert_allclose(problem.simulate().states[0], start, rtol=1e-14)
    found = problem.sampled(4).initial
    if shape == (10,):
        assert found[0, 3, 3] == start[0]
        found = found[1, :3, :3].T.ravel()
        start = start[1:]
    elif shape == (4,):
        assert found[0, 3, 3] == start[0]
        found, start = found[1, :3, :3], np.diag(start[1:])
    np.testing.assert_array_equal(found, np.diag(start) if shape == (3,) else start)


LAYERS = {
    "sampled": lambda seed: SampledRisk(LAW, 0.1 * np.eye(2), 4, seed),
    "sampled loop": lambda seed: SampledLoop(LAW, [0.1], 4, seed, depth=2),
    "layer": lambda seed: LayerRisk(LAW, np.full((2, 3, 3), 0.1), 4, seed),
    "layer of a pair": lambda seed: LayerRisk.of(LAW, [1.0, 0.1, 0.2], 4, seed),
    **{
        f"sampled of {name}": lambda seed, given=given: icl.LinearAttention(
            d=2, N=5, **given
        ).sampled(4, seed)
        for name, given in (
            ("merged", {}),
            ("pair", {"coordinates": "pair"}),
            ("heads", {"coordinates": "heads"}),
            ("merged heads", {"coordinates": "merged-heads", "heads": 2}),
            ("all heads", {"coordinates": "layer", "heads": 2}),
            ("a loop", {"depth": 2}),
        )
    },
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_step_and_every_seed_has_prompts_of_its_own(name: str) -> None:
    one, same, other = (LAYERS[name](seed) for seed in (3, 3, 4))
    params = one.initial
    losses = [
        risk.evaluate(params, step)[0] for risk in (one, other) for step in (0, 1, 2)
    ]
    assert len(set(losses)) == 6
    assert [same.evaluate(params, step)[0] for step in (2, 0)] == [losses[2], losses[0]]


def test_random_heads_are_those_of_the_seed() -> None:
    one, same, other = (
        icl.LinearAttention(d=3, coordinates="heads", heads=2, seed=seed).risk()
        for seed in (3, 3, 4)
    )
    np.testing.assert_array_equal(one.initial, same.initial)
    assert (one.initial != other.initial).all()


def test_components_of_a_diagonal_law_are_in_the_order_of_the_inputs_too() -> None:
    law, gamma = PromptLaw([0.2, 1.0, 0.5], N=9), np.array([1.0, 2.0, 3.0])
    for params in (gamma, np.diag(gamma)):
        found = MergedRisk(law, 0.0 * params).observe(params)["gamma"]
        assert found.tolist() == [2.0, 3.0, 1.0]


def test_infinite_prompts_are_not_sampled() -> None:
    with pytest.raises(ValueError, match="N = inf: must be finite"):
        icl.LinearAttention(N=math.inf).sampled(8)


@pytest.mark.parametrize(
    "start", [np.zeros(3), np.zeros((3, 3))], ids=["diagonal", "matrix"]
)
def test_the_minimiser_of_a_risk_has_the_shape_of_its_parameters(
    start: np.ndarray,
) -> None:
    law = PromptLaw([1.0, 0.5, 0.2], N=9, noise=0.3)
    risk = icl.linear_attention.MergedRisk(law, start)
    assert risk.best.shape == start.shape
    assert risk.excess(risk.best) == pytest.approx(0.0, abs=1e-15)
    np.testing.assert_allclose(
        risk.gradient(risk.best), np.zeros_like(start), atol=1e-15
    )
    assert risk.loss(risk.best) == pytest.approx(risk.floor(), rel=1e-14)
    np.testing.assert_allclose(risk.components(risk.best), law.best)
    run = icl.descend(risk, 0.9 / risk.curvature.max(), above=1e-10, method="closed")
    np.testing.assert_allclose(run.params, risk.best, atol=1e-3)
    assert run.error is not None
    assert run.error < 1e-3


def test_components_are_those_along_the_eigenvectors_of_the_inputs_largest_first() -> (
    None
):
    covariance = np.array([[1.0, 0.3], [0.3, 0.5]])
    run = icl.LinearAttention(covariance=covariance, prior=[2.0, 1.0], N=10).simulate()
    order = np.linalg.eigh(covariance)[1].T[::-1]
    np.testing.assert_allclose(
        run.observed["gamma"][-1], [u @ run.params @ u for u in order], rtol=1e-12
    )

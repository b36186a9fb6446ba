"""Sampled runs against exact ones, and trainers' prompts: every number a second time, by plain iteration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression.theorems.checks import class_scores
from icl_theory.regression import sampled_phases
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.layer import attend, bilinear_scores
from tests.references import Array

K, N, L, ETA, EPSILON, RUNS = 4, 30, 2.0, 2.0, 0.01, 4


class Path:
    """Losses and attention of descent on K x K scores, seen by the population risk."""

    def __init__(self, states: Array) -> None:
        population = icl.PopulationRisk(
            icl.Features.simplex(K, 1.0), tasks.Exchangeable(L), N
        )
        seen = [population.observe(scores) for scores in states]
        self.states, self.floor = states, population.floor()
        self.loss = np.array([each["loss_per_query"].mean() for each in seen])
        self.attention = np.array([each["attention"].mean() for each in seen]) / (
            1 - (1 - 1 / K) ** N
        )

    def measured(self, spans: list[tuple[int, int]]) -> dict[str, float]:
        t = np.arange(len(self.states))
        tail = t * (self.loss - self.floor) - 2 * (K - 1) / (4 * ETA)
        ends = [
            self.passage(0.5 - self.attention),
            self.passage(tail, last=True),
            self.passage(self.loss - EPSILON),
        ]
        found = dict(
            zip(("T_I", "T_II", "T_III"), np.diff([0.0, *ends]).tolist(), strict=True)
        )
        found["T_ε"] = ends[-1]
        for name, (first, last) in zip(("I", "II", "III"), spans, strict=True):
            own = [np.mean(np.diagonal(self.states[i])) for i in (first, last)]
            found[f"growth in {name}"] = float(own[1] - own[0]) / (last - first)
        return found

    @staticmethod
    def passage(height: Array, last: bool = False) -> float:
        falls = np.flatnonzero((height[:-1] > 0) & (height[1:] <= 0))
        i = int(falls[-1 if last else 0])
        return i + float(height[i] / (height[i] - height[i + 1]))


def descent(gradient: Any, steps: int) -> Path:
    states = [np.zeros((K, K))]
    for step in range(steps):
        states.append(states[-1] - ETA * gradient(states[-1], step))
    return Path(np.array(states))


def test_times_and_growth_of_sampled_and_exact_runs_are_those_of_plain_descent() -> (
    None
):
    run = icl.simulate(L, 1.0, ETA, K=K, N=N, epsilon=EPSILON)
    found = sampled_phases(run, runs=RUNS, batch=256, seed=3)
    assert run.phases is not None
    assert run.steps is not None
    spans = list(run.phases.present().values())
    features, law = icl.Features.simplex(K, 1.0), tasks.Exchangeable(L)
    population = icl.PopulationRisk(features, law, N)
    last = int(1.2 * run.steps) + 1
    exact = descent(lambda scores, _: population.gradient(scores), last).measured(spans)
    assert [check.name for check in found.checks] == [*exact]
    samples: list[dict[str, float]] = []
    for seed in np.random.SeedSequence(3).generate_state(RUNS).tolist():
        trainer = CountedRisk(features, law, N, 256, seed, every_query=False)
        samples.append(
            descent(
                lambda scores, step, t=trainer: t.evaluate(scores, step)[1], last
            ).measured(spans)
        )
    for check in found.checks:
        values = [each[check.name] for each in samples]
        assert check.population == pytest.approx(exact[check.name], rel=1e-6), (
            check.name
        )
        assert check.sampled == pytest.approx(np.mean(values), rel=1e-9), check.name
        assert check.standard_error == pytest.approx(stats.sem(values), rel=1e-6), (
            check.name
        )
        assert 2 * stats.t.sf(check.limit, RUNS - 1) == pytest.approx(
            1e-3 / len(exact), rel=1e-9
        )
    assert found.note == f"{RUNS} sampled runs, 256 prompts of N = {N} tokens a step"


def test_infinite_prompts_are_replaced_with_a_hundred_tokens() -> None:
    run = icl.simulate(1.0, 1.0, 2.0, K=3, epsilon=0.08)
    assert "N = 100 tokens" in sampled_phases(run, runs=3, batch=128).note
    assert "N = 7 tokens" in sampled_phases(run, runs=3, batch=128, N=7).note
    risk = icl.PopulationRisk(icl.Features.simplex(3, 1.0), tasks.Linear(1.0))
    assert (
        "N = 100 tokens"
        in icl.crosscheck(risk, precision=0.2, batch=8, batches=3, steps=1, runs=3).note
    )


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
def test_lemmas_on_a_sampled_run_are_means_over_its_own_prompts(
    coordinates: str,
) -> None:
    problem = icl.Regression(
        L=2.0,
        delta=1.3,
        eta=0.5,
        K=4,
        N=12,
        noise=0.4,
        probs=(0.4, 0.3, 0.2, 0.1),
        coordinates=coordinates,
    )
    trainer, population = problem.sampled(32, seed=5), problem.risk()
    run = icl.descend(trainer, 0.5, steps=25)
    checks = {check.name: check for check in icl.check_bounds(run)}
    losses, slopes = [], []
    for t, state in zip(run.t, run.states, strict=True):
        (loss, gradient), (exact, slope) = (
            trainer.evaluate(state, int(t)),
            population.evaluate(state),
        )
        losses.append(loss / exact)
        slopes.append(np.vdot(gradient, slope) / np.vdot(slope, slope))
    for name, values in (("Lemma 1, sampled", losses), ("Lemma 2, sampled", slopes)):
        check = checks[name]
        assert check.measured == pytest.approx(np.mean(values), rel=1e-12)
        assert check.slack == pytest.approx(abs(np.mean(values) - 1), rel=1e-9)
        assert check.bound == 1.0
        z, limit = (
            stats.ttest_1samp(values, 1.0).statistic,
            stats.t.isf(0.5 * 1e-3 / 2, len(values) - 1),
        )
        assert check.note.startswith(
            f"z = {z:+.1f} of at most {limit:.1f}, standard error {stats.sem(values):.1g}"
        )
        assert check.holds == (abs(z) <= limit)


@pytest.mark.parametrize(("saved", "stated"), [(19, False), (20, True)])
def test_a_mean_needs_twenty_saved_steps(saved: int, stated: bool) -> None:
    trainer = icl.Regression(L=2.0, delta=1.0, eta=1.0, K=3, N=6).sampled(8)
    run = next(
        run
        for steps in range(8, 40)
        if len((run := icl.descend(trainer, 1.0, steps=steps)).t) == saved
    )
    checks = {check.name: check for check in icl.check_bounds(run)}
    assert (checks["Lemma 1, sampled"].holds is not None) == stated


@pytest.mark.parametrize(("size", "checked"), [(200, True), (201, False)])
def test_statements_on_scores_are_checked_up_to_two_hundred_features(
    size: int, checked: bool
) -> None:
    risk, _ = class_scores(icl.descend(icl.ExchangeableRisk(size, 2.0), 4.0, steps=3))
    assert (risk is not None) == checked


# ---- prompts


def trainer(**changes: Any) -> icl.SampledRisk:
    given: dict[str, Any] = {
        "features": icl.Features.simplex(3, 1.0, [0.6, 0.3, 0.1]),
        "task": tasks.Linear(2.0),
        "N": 5,
        "batch": 6,
        "seed": 1,
    }
    return icl.SampledRisk(**(given | changes))


def test_no_step_trains_on_prompts_that_are_held_out() -> None:
    risk = trainer()
    held = risk.held_out(4)
    assert held.query.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert risk.held_out(4).label.tolist() == held.label.tolist()
    values = {round(each, 12) for each in held.label.ravel().tolist()}
    for step in range(20):
        assert not values & {
            round(each, 12) for each in risk.prompts(step).label.ravel().tolist()
        }
        assert (
            risk.prompts(step).token[:6].tolist() != held.token[:6].tolist()
        )  # another stream of random numbers
    fixed = trainer(dataset=40)
    assert not values & {
        round(each, 12) for each in fixed.prompts(0).label.ravel().tolist()
    }
    assert (
        fixed._draw(np.random.default_rng([1, 1]), 40).token[:6].tolist()
        != held.token[:6].tolist()
    )


def test_the_parameters_are_scores_or_with_noisy_tokens_a_matrix_of_their_dimension() -> (
    None
):
    features = icl.Features.random(5, 2, 0.5, seed=0)
    for noise, shape in ((0.0, (5, 5)), (0.1, (2, 2))):
        risk = trainer(features=features, token_noise=noise)
        np.testing.assert_array_equal(risk.initial, np.zeros(shape))
        assert risk.gradient(risk.initial).shape == shape


def test_a_fixed_set_gives_every_step_a_part_of_it_without_repetition() -> None:
    whole = trainer(dataset=12, batch=12).prompts()
    every = {tuple(row) for row in whole.label.round(12).tolist()}
    assert len(every) == 12
    part = trainer(dataset=12, batch=9)
    for step in range(10):
        rows = [tuple(row) for row in part.prompts(step).label.round(12).tolist()]
        assert len({*rows}) == 9
        assert {*rows} <= every
    assert [trainer(dataset=12, batch=size).stochastic for size in (11, 12, 13)] == [
        True,
        False,
        False,
    ]
    assert trainer().stochastic


def test_tokens_and_queries_have_the_probabilities_of_their_features() -> None:
    for risk in (
        trainer(batch=4000, N=20),
        trainer(batch=4000, N=20, features=icl.Features.simplex(3, 1.0)),
    ):
        p, prompts = risk.features.probs, risk.prompts()
        for drawn in (prompts.token, prompts.query):
            expected = p * drawn.size
            assert (
                stats.chisquare(
                    np.bincount(drawn.ravel(), minlength=3), expected
                ).pvalue
                > 1e-4
            )


def test_attention_that_is_observed_is_that_on_tokens_of_the_query() -> None:
    risk, rng = trainer(batch=30), np.random.default_rng(0)
    scores = rng.normal(size=(3, 3))
    for step in (0, 4):
        prompts = risk.prompts(step)
        shares = []
        for token, query in zip(prompts.token, prompts.query, strict=True):
            weight = np.exp(scores[token, query])
            shares.append(weight[token == query].sum() / weight.sum())
        assert float(risk.observe(scores, step)["attention"]) == pytest.approx(
            np.mean(shares), rel=1e-12
        )


@pytest.mark.parametrize("length", [6, 400])
@pytest.mark.parametrize("probs", [None, [0.6, 0.3, 0.1]])
def test_prompts_that_are_counted_have_the_law_of_those_that_are_drawn(
    length: int, probs: Any
) -> None:
    """Counts, sums of labels and their noise, below and above the length from which a multinomial law is drawn."""
    features, law, noise, size = (
        icl.Features.simplex(3, 1.0, probs),
        tasks.Linear(2.0),
        0.7,
        20000,
    )
    risk = CountedRisk(features, law, length, size, 0, noise)
    values, counts, labels = risk._prompts(np.random.default_rng(0), size)
    p, spread = features.probs, math.sqrt(size)
    np.testing.assert_array_equal(counts.sum(axis=1), length)
    variance = length * p * (1 - p)
    assert np.all(
        np.abs(counts.mean(axis=0) - length * p) < 5 * np.sqrt(variance) / spread
    )
    np.testing.assert_allclose(counts.var(axis=0), variance, rtol=0.06)
    off = (labels - counts * values) / np.sqrt(
        np.maximum(counts, 1)
    )  # n labels have n times the variance of one
    for m in range(3):
        there = counts[:, m] > 0
        assert np.std(off[there, m]) == pytest.approx(noise, rel=0.03)
        assert abs(np.mean(off[there, m])) < 5 * noise / math.sqrt(there.sum())


def test_entries_of_a_matrix_beyond_the_range_are_scaled_and_no_others() -> None:
    """One token has all attention still, and smaller matrices give their own scores."""
    rng = np.random.default_rng(0)
    Q, key, asked = (
        rng.normal(size=(2, 2)),
        rng.normal(size=(3, 5, 2)),
        rng.normal(size=(3, 2)),
    )
    for size in (1.0, 1e100, 1e149):
        expected = np.einsum("bnd,de,be->bn", key, size * Q, asked)
        np.testing.assert_allclose(
            bilinear_scores(size * Q, key, asked), expected, rtol=1e-12
        )
    weight, _ = attend(bilinear_scores(1e300 * Q, key, asked), np.ones((3, 5)))
    np.testing.assert_array_equal(weight.max(axis=1), 1.0)
    np.testing.assert_array_equal(
        weight.argmax(axis=1), bilinear_scores(Q, key, asked).argmax(axis=1)
    )


def test_noise_is_on_labels_alone_and_of_each_token_anew() -> None:
    features, law = (
        icl.Features.simplex(K, 1.0),
        icl.regression.QuadraticLaw(2, 1.0, 0.5),
    )
    for make in (
        lambda noise: icl.SampledRisk(
            features, tasks.Exchangeable(L), N, 400, 0, noise=noise
        ),
        lambda noise: icl.regression.SampledGaussianRisk(law, N, 400, 0, noise=noise),
    ):
        bare, noisy = make(0.0).prompts(2), make(1.7).prompts(2)
        np.testing.assert_array_equal(noisy.answer, bare.answer)
        added = noisy.label - bare.label
        assert added.std() == pytest.approx(1.7, rel=0.03)
        for mean in (added.mean(axis=1), added.mean(axis=0)):
            assert mean.std() == pytest.approx(
                1.7 / math.sqrt(added.size / len(mean)), rel=0.4
            )
    bare, noisy = (
        CountedRisk(features, tasks.Exchangeable(L), N, 400, 0, noise)._prompts(
            np.random.default_rng(1), 400
        )
        for noise in (0.0, 1.7)
    )
    for values, again in zip(bare[:2], noisy[:2], strict=True):
        np.testing.assert_array_equal(values, again)
    apart = (noisy[2] - bare[2]) / np.sqrt(
        np.maximum(noisy[1], 1.0)
    )  # a sum of n labels has √n times their noise
    assert np.cov(apart.T) == pytest.approx(1.7**2 * np.eye(K), abs=0.6)

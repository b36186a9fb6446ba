"""Groups, Gaussian inputs, single queries, and what the family says of a run: by plain descent and direct sums."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import icl_theory as icl
from icl_theory import regression, tasks
from icl_theory.papers.regression.theorems import orderwise
from icl_theory.papers.regression.theorems.checks import tail_ratio
from icl_theory.papers.regression.theorems.enumeration import (
    functions_of,
    lipschitz_values,
)
from icl_theory.regression.phases import phases_of
from icl_theory.regression.tails import (
    infima_of,
    resting_loss,
    tail_limits,
)
from icl_theory.statements.statement import UnstatedError
from tests.references import slopes


def descent(risk: Any, eta: float, steps: int) -> list[Any]:
    states = [risk.initial]
    for _ in range(steps):
        states.append(states[-1] - eta * risk.gradient(states[-1]) / risk.metric)
    return states


@pytest.mark.parametrize("N", [math.inf, 4.0])
def test_phases_and_columns_of_groups_are_those_of_plain_descent(N: float) -> None:
    sizes, shares = (1, 3), (0.4, 0.6)
    problem = regression.GroupedRegression(
        L=2.0, delta=1.0, sizes=sizes, shares=shares, N=N, eta=3.0, above=4e-3
    )
    run, probs = problem.simulate(), np.repeat(np.array(shares) / sizes, sizes)
    assert run.steps is not None
    single = icl.PopulationRisk(
        icl.Features.simplex(4, 1.0, probs), tasks.Exchangeable(2.0), N
    )
    seen = [single.observe(state) for state in descent(single, 3.0, run.steps)]
    present = 1.0 if math.isinf(N) else 1 - (1 - probs) ** N
    attention = np.array([each["attention"] for each in seen]) / present
    excess = (
        np.array([float(probs @ each["loss_per_query"]) for each in seen])
        - single.floor()
    )
    ends = [int(np.argmax(attention[:, k] >= 0.5)) for k in (0, 1)]
    columns = problem.measured(run)
    assert (columns["attends_first"], columns["attends_last"]) == (min(ends), max(ends))
    assert int(np.argmax(excess <= 4e-3)) == run.steps
    assert run.phases is not None
    assert (0, max(ends)) == run.phases.I
    if math.isinf(N):  # t times the loss falls to twice (K - 1)/(4η) for the last time
        t = np.arange(len(excess))
        tail = int(np.flatnonzero(t * excess > 2 * 3 / (4 * 3.0))[-1]) + 1
        assert (max(tail, max(ends)), run.steps) == run.phases.III
    else:
        assert run.phases.III is None
    assert [phases.I for phases in regression.query_phases(run)] == [
        (0, end) for end in ends
    ]
    if math.isfinite(N):
        noisy = icl.PopulationRisk(single.features, single.task, N, noise=1.5)
        for each, wanted in ((problem, single), (problem.changed(noise=1.5), noisy)):
            trainer = each.sampled(4000)
            np.testing.assert_allclose(trainer.features.probs, probs)
            scores = np.random.default_rng(0).normal(size=(4, 4))
            losses = [trainer.evaluate(scores, step)[0] for step in range(6)]
            assert np.mean(losses) == pytest.approx(
                wanted.loss(scores), abs=5 * stats.sem(losses)
            )


def test_groups_that_do_not_attend_have_no_end() -> None:
    problem = regression.GroupedRegression(
        L=2.0, delta=1.0, sizes=(1, 30), shares=(0.5, 0.5), eta=1.0
    )
    columns = [problem.changed(max_steps=steps) for steps in (1, 20)]
    found = [each.measured(each.simulate()) for each in columns]
    assert (found[0]["attends_last"], found[1]["attends_last"]) == (-1, -1)
    assert found[1]["attends_first"] == 0  # half of all tokens are its own


@pytest.mark.parametrize("curved", [0.0, 0.3, 0.9])
def test_the_family_of_gaussian_inputs_has_the_rate_and_the_columns_of_its_loss(
    curved: float,
) -> None:
    problem = regression.GaussianRegression(L=1.7, d=2, curved=curved, above=1e-7)
    run, risk = problem.simulate(), problem.risk()
    columns = problem.measured(run)
    assert columns["alignment"] == pytest.approx(
        float(np.trace(run.params)) / 2, rel=1e-12
    )
    assert columns["excess"] == pytest.approx(
        float(run.loss[-1]) - run.floor, abs=1e-12
    )
    assert run.loss[0] == pytest.approx(risk.loss(np.zeros((2, 2))))
    end = icl.descend(risk, problem.stable_rate(), steps=3000).params
    units = np.eye(4).reshape(4, 2, 2)
    hessian = np.array(
        [
            slopes(lambda x, u=u: float(np.sum(risk.gradient(x) * u)), end).ravel()
            for u in units
        ]
    )
    assert problem.stable_rate() == pytest.approx(
        1 / np.linalg.eigvalsh(hessian)[-1], rel=1e-4
    )
    # the mean square of the gradient 2Ax + b at normal x is L², and its share of A is
    # as stated
    rng, law, size = np.random.default_rng(0), risk.law, 100_000
    A, b = (
        rng.normal(0, law.sigma_a, (size, 2, 2)),
        rng.normal(0, law.sigma_b, (size, 2)),
    )
    x = rng.normal(size=(size, 2))
    by_A = np.einsum("sij,sj->si", A + A.swapaxes(1, 2), x)
    total = np.sum((by_A + b) ** 2, axis=1)
    assert total.mean() == pytest.approx(1.7**2, abs=5 * stats.sem(total))
    assert np.sum(by_A**2, axis=1).mean() == pytest.approx(
        curved * 1.7**2, abs=5 * stats.sem(total)
    )


def test_expected_steps_on_gaussian_inputs_are_those_of_a_single_rate() -> None:
    problem = regression.GaussianRegression(L=2.0, d=3, eta=0.01)
    risk, rate = problem.risk(), problem.risk().rate
    start = risk.excess(risk.initial)
    for above in (1e-2, 1e-9):
        told = problem.changed(above=above).expected_steps()
        assert told is not None
        assert start * math.exp(-2 * 0.01 * rate * told) == pytest.approx(
            above, rel=1e-9
        )
        same = problem.changed(epsilon=risk.floor() + above).expected_steps()
        assert same == pytest.approx(told, rel=1e-5)
    assert problem.changed(epsilon=0.5 * risk.floor()).expected_steps() is None


# ---- what the family says of a run


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
def test_the_regime_is_sharp_above_the_crossover_at_any_gap(coordinates: str) -> None:
    for delta in (0.5, 3.0):
        star = regression.crossover(1e-3, delta, 9)
        for part, regime in ((0.98, "flat"), (1.02, "sharp")):
            run = icl.simulate(
                part * star, delta, 0.1, K=9, epsilon=1e-3, coordinates=coordinates
            )
            assert run.regime == regime


def test_expected_steps_are_the_leading_order_in_any_coordinates() -> None:
    for changes, speed in (({}, 1.0), ({"coordinates": "embedding"}, 1.6**4 / 4)):
        problem = icl.Regression(L=3.0, delta=1.6, eta=0.01, K=50, **changes)  # type: ignore[arg-type]
        gamma, eta = (3.0 * 1.6) ** 2 / 2, 0.01 * speed
        for goal in ({"epsilon": 1e-5}, {"above": 1e-5}):
            told = problem.changed(**goal).expected_steps()
            assert told == pytest.approx(
                50**2 / (eta * gamma) + 49 / (4 * eta * 1e-5), rel=1e-12
            )
        assert problem.expected_steps() == pytest.approx(
            50**2 / (eta * gamma) + 49 / (4 * eta * 1e-3), rel=1e-12
        )
        assert problem.changed(epsilon=1e-5).simulate().steps == pytest.approx(
            50**2 / (eta * gamma) + 49 / (4 * eta * 1e-5), rel=0.05
        )


def test_the_automatic_rate_is_known_for_more_features_than_fit_into_memory() -> None:
    """K/(κγ), with κ of the polynomial in the theory."""
    kappa = 0.30811714
    for K in (20, 10**6):
        problem = icl.Regression(L=2.0, delta=0.5, eta="auto", K=K)
        assert problem.rate() == pytest.approx(K / (kappa * 0.5), rel=1e-6)
        alone = icl.sweep(
            L=[2.0], delta=0.5, eta="auto", K=K, epsilon=1e-3, progress=False
        )
        assert float(alone.eta_used[0]) == problem.rate()
        assert int(alone.steps[0]) == problem.simulate().steps
    probs = (0.5, 0.3, 0.2)
    for given in (
        {"probs": probs, "K": 3},
        {"features": icl.Features.simplex(3, 0.5, probs)},
    ):
        assert icl.Regression(
            L=2.0, delta=0.5, eta="auto", **given
        ).rate() == pytest.approx(2 / (kappa * 0.5))  # type: ignore[arg-type]


@pytest.mark.parametrize("coordinates", ["class", "embedding"])
@pytest.mark.parametrize("eta", [0.01, "auto"])
def test_exponents_far_out_are_their_limits(eta: Any, coordinates: str) -> None:
    """By what the leading order expects, which is that of runs, see above."""
    base = icl.Regression(
        L=1.0, delta=1.0, eta=eta, coordinates=coordinates, K=10**4, epsilon=1e-4
    )
    limits = icl.Regression.limits({"eta": eta, "coordinates": coordinates})
    far = {"L": (1e-5, 1e5), "delta": (1e-5, 1e5), "epsilon": (1e-12, 1e6)}
    for name, ends in far.items():
        found = []
        for x in ends:
            problems = [base.changed(**{name: x * factor}) for factor in (1.0, 1.001)]
            first, second = (problem.expected_steps() for problem in problems)
            assert first
            assert second
            found.append(math.log(second / first) / math.log(1.001))
        assert found == pytest.approx(limits[name], abs=0.01), name
    exponents = []
    for L in (
        1e5,
        1e-5,
    ):  # K: where the tail decides, and where learning to attend does
        first, second = (
            base.changed(L=L, K=K).expected_steps() for K in (10**6, 2 * 10**6)
        )
        assert first
        assert second
        exponents.append(math.log2(second / first))
    assert exponents == pytest.approx(limits["K"], abs=0.01)


@pytest.mark.parametrize("N", [math.inf, 9.0])
def test_phases_of_each_query_are_those_of_plain_descent(N: float) -> None:
    p, eta = np.array([0.5, 0.3, 0.2]), 2.0
    run = icl.simulate(2.0, 1.0, eta, K=3, N=N, probs=p, above=2e-3)
    assert run.steps is not None
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, p), tasks.Exchangeable(2.0), N
    )
    seen = [risk.observe(state) for state in descent(risk, eta, run.steps)]
    share = np.array([each["attention"] for each in seen]) / (
        1.0 if math.isinf(N) else 1 - (1 - p) ** N
    )
    losses = np.array([each["loss_per_query"] for each in seen])
    limits = tail_limits(risk, eta)
    assert limits is not None
    if math.isinf(N):
        np.testing.assert_allclose(limits, 2 / (12 * eta * p), rtol=1e-12)
    rest, t = infima_of(risk), np.arange(len(seen))
    for k, phases in enumerate(regression.query_phases(run)):
        attends = int(np.argmax(share[:, k] >= 0.5))
        above = np.flatnonzero(t * (losses[:, k] - rest[k]) > 2 * limits[k])
        begins = max(attends, int(above[-1]) + 1 if above.size else 0)
        last = run.steps
        expected = {"I": (0, attends), "II": (attends, min(begins, last))}
        expected |= {"III": (begins, last)} if begins < last else {}
        assert phases.present() == expected
    assert run.phases is not None
    assert (
        0,
        max(int(np.argmax(share[:, k] >= 0.5)) for k in range(3)),
    ) == run.phases.I
    assert resting_loss(risk, risk.floor()) == pytest.approx(float(p @ rest), abs=1e-12)


@pytest.mark.parametrize("method", ["exact", "fast", "closed"])
def test_phases_end_where_the_attention_of_plain_iteration_passes(method: str) -> None:
    """At ½, and at a deficit s with s² Φ(s) = 1, whatever the method."""
    K, eta, gamma = 12, 1.0, 2.0
    run = icl.simulate(2.0, 1.0, eta, K=K, epsilon=3e-3, method=method)
    c, u, t, ends = eta * gamma * K / (K - 1) ** 2, 0.0, 0, []
    for deficit in (0.5, regression.tail_start(K)):
        while (s := (K - 1) / (K - 1 + math.exp(u))) > deficit:
            u, t = u + c * (1 - s) * s * s, t + 1
        ends.append(t)
    assert run.phases is not None
    assert list(run.phases.values()) == [
        (0, ends[0]),
        tuple(ends),
        (ends[1], run.steps),
    ]


def test_phases_cover_the_run_without_gaps_and_are_there_if_they_begin() -> None:
    last = 7
    for first in (None, *range(last + 1)):
        for second in (None, *range(last + 1)):
            found = phases_of(last, first, second)
            assert [*found] == ["I", "II", "III"]
            spans = list(found.present().values())
            assert spans[0][0] == 0
            assert spans[-1][1] == last
            assert all(
                before[1] == after[0] for before, after in itertools.pairwise(spans)
            )
            assert (found.II is not None) == (first is not None and first < last)
            assert (found.III is not None) == (
                found.II is not None and second is not None and second < last
            )
            if found.II is not None:
                assert (0, first) == found.I
            if found.III is not None:
                assert first is not None
                assert second is not None
                assert (max(first, second), last) == found.III


def test_the_tail_law_is_judged_after_two_decades_of_its_own_time() -> None:
    """The end of Phase III over its beginning, or over the time that the law gives to the loss at its beginning."""
    judged = []
    for epsilon in np.geomspace(1e-3, 1e-6, 25):
        run = icl.simulate(2.0, 1.0, 0.5, K=5, epsilon=float(epsilon))
        assert run.phases is not None
        begin, end = run.phases.III
        own = (4 / (4 * 0.5)) / run.at(begin).loss
        try:
            ratio, within = tail_ratio(run)
        except UnstatedError:
            judged.append((end / max(begin, own, 1.0), False))
            continue
        judged.append((end / max(begin, own, 1.0), True))
        assert ratio == pytest.approx(
            float(run.t[-1]) * float(run.loss[-1]) * 4 * 0.5 / 4, rel=1e-9
        )
        assert within == pytest.approx(
            0.05 + 8 * (1 - float(run.attention[-1])), rel=1e-9
        )
    assert {said for part, said in judged if part < 99.9} == {False}
    assert {said for part, said in judged if part > 100.1} == {True}


# ---- orders of magnitude over a law of runs


def test_runs_of_a_law_are_uniform_in_the_logarithms_of_its_ranges() -> None:
    for law, seed in ((orderwise.WHOLE, 3), (orderwise.INNER, 4)):
        runs = orderwise.draw(law, seed)
        loss = runs.size**2 / 4 * (runs.K - 1) / runs.K
        gamma = runs.size**2 / 2
        step = runs.eta * gamma * runs.K / (runs.K - 1) ** 2
        np.testing.assert_allclose(runs.counter.c, step, rtol=1e-12)
        ranges = (
            (runs.imbalance, law.imbalance),
            (runs.epsilon / loss, law.target),
            (step, law.step),
        )
        for values, (low, high) in ranges:
            part = np.log(values / low) / math.log(high / low)
            assert stats.kstest(part, "uniform").pvalue > 1e-4
        assert law.K[0] <= runs.K.min() <= runs.K.max() <= law.K[1]
        flat = runs.size * runs.imbalance <= 1
        assert flat[::2].all()
        assert not flat[1::2].any()


@pytest.mark.parametrize("name", ["Phase I growth", "Theorem 2"])
def test_a_survey_has_the_extremes_the_mean_and_the_trends_of_its_ratios(
    name: str,
) -> None:
    statement = next(each for each in orderwise.STATEMENTS if each.name == name)
    found, runs = orderwise.survey(statement), orderwise.law_runs()
    ratios = orderwise.measured_ratios(statement, runs)
    kept = np.isfinite(ratios.high)
    low, high = ratios.low[kept], ratios.high[kept]
    assert found.runs == kept.sum()
    assert (found.low, found.high) == (low[low > 0].min(), high.max())
    some = (low > 0) & (high > 0)
    assert found.typical == pytest.approx(
        stats.gmean(np.sqrt(low[some] * high[some])), rel=1e-9
    )
    loss = runs.size**2 / 4 * (runs.K - 1) / runs.K
    values = np.array(
        [
            runs.K,
            runs.imbalance,
            runs.epsilon / loss,
            runs.counter.c,
            runs.size * runs.imbalance,
        ]
    )
    X = np.log10(values[:, kept]).T
    for ratio, told in ((high, found.rise), (low, found.fall)):
        there = ratio > 0
        centred = X[there] - X[there].mean(axis=0)
        y = np.log10(ratio[there])
        slope = np.linalg.solve(centred.T @ centred, centred.T @ (y - y.mean()))
        assert list(told.values()) == pytest.approx(10**slope, rel=1e-6)
    ends = int(np.argmin(np.where(low > 0, low, np.inf))), int(np.argmax(high))
    for words, index in zip(found.where, ends, strict=True):
        told_values = [float(part.split(" = ")[1]) for part in words.split(", ")]
        assert told_values == pytest.approx(values[:, kept][:, index], rel=6e-3)


# ---- functions


def test_halves_of_features_have_opposite_values_however_many_there_are() -> None:
    for K in (2, 3, 6, 7):
        features, law = icl.Features.simplex(K, 1.0), tasks.Halfspace(1.5)
        drawn = law.sample(features, np.random.default_rng(0), 400)
        assert np.abs(drawn).min() == np.abs(drawn).max() == 1.5
        assert 100 < (drawn[:, 0] > 0).sum() < 300  # both signs
        for functions in (drawn, functions_of(law, features)):
            same = functions[:, [0]] == functions
            assert np.all(same[:, : (K + 1) // 2])
            assert not np.any(same[:, (K + 1) // 2 :])
        np.testing.assert_array_equal(law.kernel(features), drawn[:1].T @ drawn[:1])


def test_drawn_lipschitz_functions_are_the_largest_below_their_values() -> None:
    """Every one is L-Lipschitz, reaches L between some features, and stays within L times the largest distance."""
    features, L = icl.Features.random(6, 2, 0.5, seed=0), 2.0
    values = lipschitz_values(features.distances, L, np.random.default_rng(0), 200)
    slope = np.abs(values[:, :, None] - values[:, None]) / np.where(
        np.eye(6), 1.0, features.distances
    )
    assert (
        slope.max(axis=(1, 2)) == pytest.approx(L, rel=1e-9)
        or np.mean(slope.max(axis=(1, 2)) > 0.999 * L) > 0.5
    )
    assert slope.max() <= L * (1 + 1e-9)
    assert np.abs(values).max() <= L * features.distances.max() * (1 + 1e-12)
    heights = (
        L
        * features.distances.max()
        * np.random.default_rng(0).uniform(-1.0, 1.0, (200, 6))
    )
    assert np.all(
        values <= heights + 1e-12
    )  # the largest L-Lipschitz functions below these
    assert np.all(np.isclose(values, heights).any(axis=1))


def test_the_worst_prediction_grows_with_l_and_with_the_distances() -> None:
    features, attention = (
        icl.Features.random(5, 2, 0.5, seed=1),
        np.array([0.4, 0.3, 0.1, 0.15, 0.05]),
    )
    one, values = regression.worst_prediction(attention, features.distances, 1.0)
    assert one == pytest.approx(
        float(attention @ features.distances[0]), rel=1e-9
    )  # attained by the distance
    np.testing.assert_allclose(np.abs(values), features.distances[0], rtol=1e-9)
    for L, scale in ((3.0, 1.0), (1.0, 0.2), (1e-6, 1e6)):
        found, there = regression.worst_prediction(
            attention, scale * features.distances, L
        )
        assert found == pytest.approx(L * scale * one, rel=1e-9)
        np.testing.assert_allclose(np.abs(there), L * scale * np.abs(values), rtol=1e-9)


@pytest.mark.parametrize(
    "problem",
    [
        icl.Regression(L=2.0, delta=1.0, eta=1.0, K=4, N=7, noise=0.3),
        regression.GroupedRegression(L=2.0, delta=1.0, N=7, noise=0.3),
        regression.GaussianRegression(L=2.0, N=7, noise=0.3, eta=0.1),
    ],
    ids=lambda problem: problem.name,
)
def test_sampled_prompts_have_the_noise_length_batch_and_seed_that_are_asked_for(
    problem: Any,
) -> None:
    trainer = problem.sampled(5, 9)
    assert (trainer.N, trainer.noise, trainer.batch, trainer.seed) == (7, 0.3, 5, 9)
    assert not np.array_equal(
        trainer.evaluate(trainer.initial)[0],
        problem.sampled(5, 8).evaluate(trainer.initial)[0],
    )

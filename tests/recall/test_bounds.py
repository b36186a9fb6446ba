from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl

Counts, RecallRisk, RecallTask = (
    icl.recall.Counts,
    icl.recall.RecallRisk,
    icl.recall.RecallTask,
)


@given(
    st.lists(st.floats(0.0, 50.0), min_size=3, max_size=3), st.sampled_from([0.0, 0.3])
)
def test_loss_is_below_its_bound(strengths: list[float], alpha: float) -> None:
    task = RecallTask(12, 3, 3, alpha=alpha, probs=[0.5, 0.3, 0.2])
    risk = RecallRisk(task, gamma=task.best_gamma if alpha else None)
    assert risk.excess(strengths) <= icl.recall.loss_bound(risk, strengths)


def test_a_bound_is_refused_where_it_does_not_hold() -> None:
    task = RecallTask(12, 1, 3, alpha=0.3, law="planted", H=9)
    two = RecallTask(12, 2, 3)
    for risk, params in (
        (RecallRisk(two), [1.0, -1e-9]),
        (RecallRisk(two, "softmax"), [1.0, 1.0, 1.0]),
        (RecallRisk(two, "softmax-limit"), [1.0, 1.0, 1.0]),
        (RecallRisk(task, weights="identity", kappa=0), [1.0, 1.0]),
    ):
        with pytest.raises(ValueError, match=r"^params = |^risk = "):
            icl.recall.loss_bound(risk, params)


def test_missing_triggers_cost_what_all_data_sets_say() -> None:
    task = RecallTask(9, 3, 2, probs=[0.5, 0.3, 0.2])
    M, mean = 4, 0.0
    for drawn in itertools.product(range(3), repeat=M):
        probability = math.prod(task.probs[q] for q in drawn)
        mean += (
            probability
            * math.log(9)
            * sum(task.probs[q] for q in range(3) if q not in drawn)
        )
    assert icl.recall.missing_loss(task, M) == pytest.approx(mean, rel=1e-12)
    assert icl.recall.missing_loss(task, [1, 4]).shape == (2,)


@pytest.mark.parametrize("alpha", [0.2, 0.5])
def test_noise_costs_one_over_two_m(alpha: float) -> None:
    assert 2000 * icl.recall.noise_cost(1000, alpha) == pytest.approx(1.0, rel=0.02)
    drawn = np.random.default_rng(0).binomial(30, alpha, 400_000)
    share = drawn[(drawn > 0) & (drawn < 30)] / 30
    cost = alpha * np.log(alpha / share) + (1 - alpha) * np.log(
        (1 - alpha) / (1 - share)
    )
    assert icl.recall.noise_cost(30, alpha) == pytest.approx(cost.mean(), rel=0.02)
    assert icl.recall.noise_cost(1, alpha) == 0.0


def test_rates_of_simple_tasks() -> None:
    task = RecallTask(20, 4, 3, counts=Counts.fixed(3))
    assert icl.recall.decay_rate(task, 0.2) == pytest.approx(0.3)
    assert icl.recall.decay_rate(task, 0.2, "relu") == pytest.approx(0.3)
    assert icl.recall.decay_rate(task, 0.2, "softmax") == pytest.approx(0.2)
    assert icl.recall.plain_tail(task, 0.5) == pytest.approx(8 / 9)
    noisy = RecallTask(20, 3, 8, alpha=0.2, counts=Counts.fixed(2, 1))
    assert icl.recall.plain_tail(noisy, 0.5, "softmax") == pytest.approx(
        1.0 / (0.5 * (2 / 3) ** 2)
    )
    with pytest.raises(ValueError, match="attention"):
        icl.recall.decay_rate(task, 0.2, "x")


@pytest.mark.parametrize("law", [Counts.fixed(1), Counts.fixed(2, 1)])
@pytest.mark.parametrize(("V", "Q"), [(3, 1), (5, 3), (6, 3), (20, 3)])
def test_the_rate_with_noise_is_that_of_runs_with_background_words_and_without(
    V: int, Q: int, law: icl.recall.Counts
) -> None:
    """Besides triggers, noise and the output there may be no word at all, or one, or many."""
    task = RecallTask(V, Q, 1, alpha=0.2, counts=law)
    risk = RecallRisk(task, attention="softmax-limit", gamma=task.best_gamma, tied=True)
    run = icl.descend(risk, 0.2, rule="ngd", steps=400)
    early, late = (float(run.at(t).observed["excess"]) for t in (200, 400))
    rate = icl.recall.decay_rate(task, 0.2, "softmax-limit")
    assert math.log(early / late) / 200 == pytest.approx(
        rate, rel=0.03 if V > Q + 2 else 3e-4
    )


@pytest.mark.parametrize(
    ("Q", "alpha", "limit", "there"), [(3, 0.2, 3.5, 3.83), (6, 0.5, 5.0, 5.67)]
)
def test_the_tail_with_gamma_held_approaches_its_limit_like_one_over_the_logarithm(
    Q: int, alpha: float, limit: float, there: float
) -> None:
    """The figures of docs/theory/recall.md: softmax attention silences the background words, too."""
    task = icl.recall.RecallTask(
        20, Q, 8, alpha=alpha, counts=icl.recall.Counts.fixed(1)
    )
    risk = icl.recall.RecallRisk(
        task, attention="softmax-limit", gamma=math.log(alpha / (1.0 - alpha))
    )
    run = icl.descend(risk, 0.5, steps=10**8, method="auto", progress=False)
    tails = [t * (run.at(t).loss - risk.floor()) for t in (10**4, 10**6, 10**8)]
    assert tails[-1] == pytest.approx(there, abs=0.005)
    beyond = [
        (tail - limit) * math.log(t)
        for tail, t in zip(tails, (10**4, 10**6, 10**8), strict=True)
    ]
    assert limit < tails[2] < tails[1] < tails[0]
    assert max(beyond) < 1.4 * min(
        beyond
    )  # 1/ln t halves meanwhile, so that a constant would double

from __future__ import annotations

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression.sampled.counts import CountedRisk

FEATURES = icl.Features.simplex(3, 1.0, [0.2, 0.3, 0.5])


@pytest.mark.parametrize("every_query", [True, False])
@pytest.mark.parametrize(
    "features", [FEATURES, icl.Features.simplex(3, 1.0)], ids=["unequal", "equal"]
)
def test_the_gradient_is_that_of_the_loss_of_the_same_prompts(
    features: icl.Features, every_query: bool
) -> None:
    risk = CountedRisk(
        features,
        tasks.Linear(2.0),
        N=7,
        batch=50,
        seed=1,
        noise=0.4,
        every_query=every_query,
    )
    rng = np.random.default_rng(0)
    scores, direction, h = rng.normal(size=(3, 3)), rng.normal(size=(3, 3)), 5e-4
    # A slope may be a thousandth of the loss: differences of fourth order leave it more
    # digits.
    near, far = (
        risk.evaluate(scores + step * direction)[0]
        - risk.evaluate(scores - step * direction)[0]
        for step in (h, 2.0 * h)
    )
    slope = (8.0 * near - far) / (12.0 * h)
    np.testing.assert_allclose(
        np.sum(risk.evaluate(scores)[1] * direction), slope, rtol=1e-8
    )


@pytest.mark.parametrize(
    ("probs", "noise"), [([0.2, 0.3, 0.5], 0.0), (None, 0.8)], ids=["unequal", "equal"]
)
def test_one_query_a_prompt_has_the_law_of_the_trainer(
    probs: list[float] | None, noise: float
) -> None:
    """First and second moments of loss and gradient, ten each, against those of prompts drawn token by token."""
    features, task = icl.Features.simplex(3, 1.0, probs), tasks.RandomCosine(2.0)
    scores, batch, size = np.random.default_rng(2).normal(size=(3, 3)), 4, 1500
    counted = CountedRisk(features, task, 5, batch, 3, noise, every_query=False)
    tokens = icl.SampledRisk(features, task, 5, batch, 4, noise=noise)
    values = []
    for sampler in (counted, tokens):
        pairs = [sampler.evaluate(scores, step) for step in range(size)]
        values.append(np.array([[loss, *gradient.ravel()] for loss, gradient in pairs]))
    for power in (1, 2):
        moments = [value**power for value in values]
        doubt = np.sqrt(sum(moment.var(axis=0, ddof=1) / size for moment in moments))
        apart = np.abs(moments[0].mean(axis=0) - moments[1].mean(axis=0)) / doubt
        assert apart.max() < 4.5


@pytest.mark.parametrize("N", [29, 31])
def test_counts_have_their_law_drawn_either_way(N: int) -> None:
    """Means and variances of the counts of three features, N on both sides of the change of method."""
    risk = CountedRisk(
        icl.Features.simplex(3, 1.0), tasks.Exchangeable(1.0), N, 40_000, 0
    )
    _, counts, _ = risk._prompts(np.random.default_rng(0), risk.batch)
    assert (counts.sum(axis=1) == N).all()
    mean, variance = N / 3.0, N * 2.0 / 9.0
    assert np.abs(counts.mean(axis=0) - mean).max() < 4.5 * np.sqrt(
        variance / risk.batch
    )
    assert np.abs(counts.var(axis=0) / variance - 1.0).max() < 4.5 * np.sqrt(
        2.0 / risk.batch
    )


@pytest.mark.parametrize("noise", [0.0, 0.8])
def test_means_are_those_of_prompts_drawn_token_by_token(noise: float) -> None:
    scores = np.random.default_rng(2).normal(size=(3, 3))
    samplers: tuple[icl.Risk, ...] = (
        CountedRisk(FEATURES, tasks.RandomCosine(2.0), 5, 4000, 3, noise),
        icl.SampledRisk(FEATURES, tasks.RandomCosine(2.0), 5, 4000, 4, noise=noise),
    )
    values = []
    for sampler in samplers:
        pairs = [sampler.evaluate(scores, step) for step in range(25)]
        values.append(np.array([[loss, *gradient.ravel()] for loss, gradient in pairs]))
    means = [value.mean(axis=0) for value in values]
    doubt = np.sqrt(sum(value.var(axis=0, ddof=1) / len(value) for value in values))
    assert (
        np.abs((means[0] - means[1]) / doubt).max() < 4.5
    )  # ten comparisons, about 1e-4 each


def test_one_prompt_of_one_token_is_predicted_by_its_label() -> None:
    risk = CountedRisk(FEATURES, tasks.Exchangeable(2.0), N=1, batch=1000, seed=0)
    assert (
        np.abs(risk.evaluate(np.ones((3, 3)))[1]).max() < 1e-16
    )  # attention has no choice


def test_blocks_make_no_difference_to_the_number_of_prompts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from icl_theory.memory import blocks
    from icl_theory.regression.sampled import counts as counted

    risk = CountedRisk(FEATURES, tasks.Halfspace(1.0), N=30, batch=101, seed=0)
    whole = risk.evaluate(risk.initial)[0]
    monkeypatch.setattr(counted, "blocks", lambda size, K, _: blocks(size, K, 30))
    assert abs(risk.evaluate(risk.initial)[0] / whole - 1.0) < 0.5

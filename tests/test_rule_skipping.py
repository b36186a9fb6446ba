"""Skipped steps of the heavy ball and of weight decay, within their estimate of an iteration written out here."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine import Decayed, GradientDescent, HeavyBall, Rule

Random = np.random.Generator


def _iterated(
    risk: icl.Risk,
    eta: float,
    beta: float,
    coupled: float,
    decoupled: float,
    steps: int,
) -> list[Array]:
    """Return the parameters after each step of the heavy ball, with both kinds of weight decay; Kahan's sum."""
    params = np.array(risk.initial, dtype=float)
    velocity = np.zeros_like(params)
    carry = np.zeros_like(params)
    states = [params]
    for _ in range(steps):
        gradient = np.asarray(risk.evaluate(params)[1]) / risk.metric
        velocity = beta * velocity + gradient + coupled * params
        change = -eta * velocity - eta * decoupled * params - carry
        moved = params + change
        carry = (moved - params) - change
        params = moved
        states.append(params)
    return states


def _problem(rng: Random) -> icl.Risk:
    K = int(rng.integers(2, 5))
    N = math.inf if rng.random() < 0.5 else float(rng.integers(3, 40))
    if rng.random() < 0.4:
        return icl.ExchangeableRisk(K, float(rng.uniform(0.2, 4.0)), N=N)
    laws = (icl.tasks.Linear, icl.tasks.Exchangeable, icl.tasks.RandomCosine)
    law = laws[int(rng.integers(3))](float(rng.uniform(0.5, 3.0)))
    features = icl.Features.simplex(K, 1.0, rng.dirichlet(np.full(K, 3.0)))
    return icl.PopulationRisk(
        features, law, N=N, noise=0.3 if math.isfinite(N) else 0.0
    )


def _training(rng: Random) -> tuple[Rule, float, float, float, float]:
    """Return a rule with its learning rate, momentum, coupled and decoupled decay."""
    beta = float(rng.choice([0.3, 0.8, 0.95]))
    eta = float(10.0 ** rng.uniform(-1.0, 0.5)) * (1.0 - beta)
    decay = float(10.0 ** rng.uniform(-6.0, -2.0))
    choices: list[tuple[Rule, float, float, float]] = [
        (HeavyBall(beta), beta, 0.0, 0.0),
        (HeavyBall(beta, decay), beta, decay, 0.0),
        (Decayed(HeavyBall(beta), decay), beta, 0.0, decay),
        (Decayed(GradientDescent(), decay), 0.0, 0.0, decay),
    ]
    rule, momentum, coupled, decoupled = choices[int(rng.integers(4))]
    return rule, eta, momentum, coupled, decoupled


def _share_of_estimate(seed: int, steps: int) -> float | None:
    """Return the largest error of the saved states over the estimate; None if no step was skipped."""
    rng = np.random.default_rng(seed)
    risk = _problem(rng)
    rule, eta, *settings = _training(rng)
    run = icl.descend(risk, eta, steps=steps, rule=rule, method="fast", give_up=False)
    if run.states_error is None:
        return None
    assert run.states_error < 1e-6, seed
    expected = _iterated(risk, eta, *settings, steps=int(run.t[-1]))
    errors = [
        np.abs(state - expected[t]).max()
        for t, state in zip(run.t.tolist(), run.states, strict=True)
    ]
    return float(max(errors)) / run.states_error


def test_no_estimate_is_exceeded() -> None:
    shares = [_share_of_estimate(seed, steps=1500) for seed in range(5)]
    skipped = [share for share in shares if share is not None]
    assert len(skipped) >= 3
    assert max(skipped) <= 1.0


@pytest.mark.slow
def test_no_estimate_is_exceeded_in_more_problems() -> None:
    shares = [_share_of_estimate(seed, steps=4000) for seed in range(100, 110)]
    skipped: list[Any] = [share for share in shares if share is not None]
    assert len(skipped) >= 7
    assert max(skipped) <= 1.0


def test_skipping_the_heavy_ball_takes_few_gradients() -> None:
    """A run over K x K scores to 10⁵ steps takes less than a gradient for ten steps."""
    count = 0

    class Counting(icl.PopulationRisk):
        def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
            nonlocal count
            count += 1
            return super().evaluate(params, step)

    risk = Counting(icl.Features.simplex(4, 1.0), icl.tasks.RandomCosine(2.0), N=12)
    run = icl.descend(
        risk, 0.05, steps=100_000, rule=HeavyBall(0.9), method="fast", give_up=False
    )
    assert int(run.t[-1]) == 100_000
    assert count < 10_000

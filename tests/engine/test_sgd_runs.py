"""Runs of stochastic gradient descent that are advanced together."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory.engine import (
    Adam,
    Clipped,
    Decayed,
    GradientDescent,
    HeavyBall,
    Normalised,
    Rule,
    Scheduled,
    Trainer,
    in_coordinates,
    sgd_runs,
)
from icl_theory.engine.sampling import joined, prompts_by_run, trainer_of
from icl_theory.engine.sgd_runs import train_runs
from icl_theory.engine.steps import UpdateMap

RULES: dict[str, tuple[Rule, float]] = {
    "gd": (GradientDescent(), 0.5),
    "momentum": (HeavyBall(0.9), 0.1),
    "adam": (Adam(), 0.05),
    "clipped": (Clipped(GradientDescent(), 0.02), 2.0),
    "clipped blocks": (Clipped(HeavyBall(0.5), 0.01, blocks=True), 1.0),
    "normalised": (Normalised(), 0.1),
    "schedule": (Decayed(Scheduled(Adam(), lambda t: 1.0 / (t + 1)), 0.1), 0.1),
}
TOKENS = icl.TokenRisk(icl.Kind(6, [0.3, 0.7], [0.0, 1.0], 0.1), target=1.0)
MAKERS: dict[str, Callable[[int], Trainer[Any]]] = {
    "regression": lambda seed: icl.Regression(
        L=2, delta=1, eta=1, K=4, N=9, coordinates="factored"
    ).sampled(12, seed),
    "linear attention": lambda seed: icl.LinearAttention(d=2, N=5).sampled(12, seed),
    "temperature": lambda seed: trainer_of(
        in_coordinates(TOKENS, "linear", [[1.0], [-1.0]], start=[0.3]), 12, seed
    ),
}


def one_by_one(trainer: Trainer[Any], eta: float, rule: Rule, last: int) -> list[float]:
    """Losses of the steps of one run."""
    descent = UpdateMap(trainer, eta, rule)
    losses = []
    for point in descent.iterates(descent.start()):
        losses.append(point.loss)
        if point.step == last:
            break
    return losses


class OneRun(Trainer[Any]):
    """A run of several that draw their batches of a step one after the other."""

    initial = np.zeros(1)
    batch = 1

    def __init__(self, trainer: Trainer[Any], run: int, batches: Any) -> None:
        self.trainer = trainer
        self.initial = trainer.initial
        self.batch = trainer.batch
        self.run = run
        self.batches = batches

    @property
    def metric(self) -> Any:
        return self.trainer.metric

    def blocks(self, array: Any) -> Any:
        return self.trainer.blocks(array)

    def prompts(self, step: int = 0) -> Any:
        return self.batches(step)[self.run]

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        raise NotImplementedError

    def losses_on(self, params: Any, prompts: Any) -> Any:
        return self.trainer.losses_on(params, prompts)

    def evaluate_on(self, params: Any, prompts: Any) -> Any:
        return self.trainer.evaluate_on(params, prompts)


def single_runs(trainer: Trainer[Any], runs: int, at_once: int) -> list[OneRun]:
    """Return runs by themselves. Batches of some runs at a time are drawn together."""

    @cache
    def batches(step: int) -> list[Any]:
        rng = trainer.generator(step)
        drawn: list[Any] = []
        for start in range(0, runs, at_once):
            count = min(at_once, runs - start)
            parts = trainer.draw_runs(rng, count)
            if len(parts) == count:
                drawn.extend(parts)
            else:
                drawn.extend(prompts_by_run(joined(parts), count))
        return drawn

    return [OneRun(trainer, run, batches) for run in range(runs)]


@pytest.mark.parametrize("bytes_together", [2**22, 1])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("model", MAKERS)
def test_runs_together_have_the_losses_of_runs_one_by_one(
    model: str, rule: str, bytes_together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules with a norm or a memory treat each run by itself."""
    monkeypatch.setattr(sgd_runs, "LARGEST_GROUP_BYTES", bytes_together)
    update, eta = RULES[rule]
    last = 12
    trainer = MAKERS[model](3)
    together = train_runs(trainer, 3, eta, update, np.array([0, 1, 2, 7, last]))
    single = single_runs(trainer, 3, 1 if bytes_together == 1 else 3)
    alone = [one_by_one(run, eta, update, last) for run in single]
    expected = np.array(alone)[:, [0, 1, 2, 7, last]]
    assert np.ptp(expected[:, -1]) > 1e-3 * expected[0, -1]
    np.testing.assert_allclose(together, expected, rtol=1e-9)


def test_the_band_of_a_risk_in_other_coordinates_covers_its_own_sgd() -> None:
    risk = in_coordinates(TOKENS, "linear", [[1.0], [-1.0]])
    run = icl.descend(risk, eta=0.5, steps=30)
    for seed in range(3):
        losses = one_by_one(trainer_of(risk, 32, seed), 0.5, GradientDescent(), 30)
        assert run.compare(losses, batch=32, runs=8).passed
    slow = one_by_one(trainer_of(risk, 32, 5), 0.1, GradientDescent(), 30)
    assert not run.compare(slow, batch=32, runs=8).passed


class Ragged(icl.engine.Trainer[Any]):
    """The mean of tokens, whose number differs from batch to batch."""

    initial = np.ones(1)
    batch = 5

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return (rng.normal(size=(size, int(rng.integers(2, 6)))),)

    def losses_on(self, params: Any, prompts: Any) -> Any:
        return 0.5 * (params[0] - prompts[0].mean(axis=1)) ** 2

    def evaluate_on(self, params: Any, prompts: Any) -> Any:
        gradient = params - prompts[0].mean()
        return float(self.losses_on(params, prompts).mean()), gradient


def test_prompts_may_have_another_length_in_each_run() -> None:
    together = train_runs(Ragged(0), 4, 0.3, GradientDescent(), np.arange(8))
    single = single_runs(Ragged(0), 4, 4)
    alone = [one_by_one(run, 0.3, GradientDescent(), 7) for run in single]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


class Flat(icl.engine.Trainer[Any]):
    """A trainer whose gradients of many runs lack an axis."""

    initial = np.zeros(2)
    batch = 3
    seed = 0

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        return (rng.normal(size=size),)

    def losses_on(self, params: Any, prompts: Any) -> Any:
        return prompts[0]

    def evaluate_on(self, params: Any, prompts: Any) -> Any:
        raise NotImplementedError

    def evaluate_runs(self, params: Any, prompts: Any) -> Any:
        return np.zeros(len(params)), np.zeros(2)


def test_wrong_runs_are_named() -> None:
    steps = np.array([0, 1])
    with pytest.raises(ValueError, match=r"trainer = 5: must be a Trainer"):
        train_runs(5, 2, 1.0, GradientDescent(), steps)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"runs = 0: must be an integer >= 1"):
        train_runs(Flat(), 0, 1.0, GradientDescent(), steps)
    with pytest.raises(ValueError, match=r"gradients = \(2,\): must be of shape"):
        train_runs(Flat(), 2, 1.0, GradientDescent(), steps)
    run = icl.descend(icl.SymmetricRisk([2, 1], [0.3, 0.4], 2.0), 1.0, steps=3)
    with pytest.raises(
        ValueError, match=r"^batch = 4: risk = .* can be sampled, .*; give errors"
    ):
        run.compare(run.loss, run.t, batch=4)

"""Results that are kept, because they are asked for twice."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

import icl_theory as icl
from icl_theory._validate import Array
from icl_theory.engine.last_result import LastResult
from icl_theory.engine.risk import Risk
from icl_theory.papers.recall.population import RecallRisk
from icl_theory.regression.risks import population
from icl_theory.tokens.chain import ChainRisk, Chains


def test_only_the_last_array_is_remembered() -> None:
    last = LastResult[float]()
    arrays = []

    def total(array: Array) -> float:
        arrays.append(array.copy())
        return float(array.sum())

    first = np.array([1.0, 2.0])
    second = np.array([1.0, 2.5])
    for array in (first, first.copy(), second, first):
        assert last.of(total, array) == array.sum()
    np.testing.assert_array_equal(arrays, [first, second, first])
    first[0] = 5.0
    assert last.of(total, first) == 7.0


def chain_risk() -> Risk:
    return ChainRisk(Chains([[0.9, 0.1], [0.3, 0.7]]), length=4)


def recall_risk() -> Risk:
    task = icl.recall.RecallTask(V=8, triggers=2, outputs=3, H=9)
    return RecallRisk(task, attention="softmax")


def population_risk() -> Risk:
    features = icl.Features.simplex(3, delta=1.0)
    return icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0), N=5, noise=0.2)


def symmetric_risk() -> Risk:
    return icl.SymmetricRisk([1, 3], [0.4, 0.2], np.array([[0.0, 1.0], [1.0, 1.0]]), 5)


@pytest.mark.parametrize(
    "make", [chain_risk, recall_risk, population_risk, symmetric_risk]
)
def test_changed_results_do_not_change_later_ones(make: Callable[[], Risk]) -> None:
    """A caller may write to what a risk returns."""
    params = np.random.default_rng(0).normal(size=make().initial.shape)
    risk = make()
    loss, gradient = risk.evaluate(params)
    observed = risk.observe(params)
    gradient[...] = math.nan
    for values in observed.values():
        values[...] = math.nan
    fresh_loss, fresh_gradient = make().evaluate(params)
    assert risk.evaluate(params)[0] == loss == fresh_loss
    np.testing.assert_array_equal(risk.evaluate(params)[1], fresh_gradient)
    for name, values in make().observe(params).items():
        np.testing.assert_array_equal(risk.observe(params)[name], values)


def test_gradients_together_are_those_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    features = icl.Features.simplex(4, delta=1.0, probs=[0.1, 0.2, 0.3, 0.4])
    risk = icl.PopulationRisk(features, icl.tasks.Exchangeable(2.0))
    states = np.random.default_rng(1).normal(size=(3, 4, 4))
    together = risk.gradients(states)
    monkeypatch.setattr(population, "MOST_TOGETHER", states.size - 1)
    np.testing.assert_allclose(risk.gradients(states), together, rtol=1e-13)

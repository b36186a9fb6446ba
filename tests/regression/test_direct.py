from __future__ import annotations

import math

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import tasks
from icl_theory.papers.regression.theorems.enumeration import (
    count_vectors,
    direct,
    enumerable,
    functions_of,
    lipschitz_values,
)
from tests.references import compositions, enumerate_finite


def test_count_vectors_are_all_compositions() -> None:
    assert {tuple(row) for row in count_vectors(4, 3).tolist()} == set(
        compositions(4, 3)
    )


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_sums_are_those_of_the_reference(noise: float) -> None:
    rng = np.random.default_rng(0)
    root, p, scores = (
        rng.normal(size=(3, 3)),
        np.array([0.5, 0.3, 0.2]),
        rng.normal(size=(3, 3)),
    )
    kernel = root @ root.T
    risk = icl.PopulationRisk(
        icl.Features.simplex(3, 1.0, p), tasks.KernelTask(kernel), 5, noise
    )
    loss, gradient, attention = enumerate_finite(p, kernel, scores, 5, noise)
    found = direct(risk, scores)
    for ours, theirs in zip(found, (loss, gradient, attention), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-13)


FAMILIES = [
    tasks.Exchangeable,
    tasks.Linear,
    tasks.RandomCosine,
    tasks.Quadratic,
    tasks.RandomFourier,
]


@pytest.mark.parametrize("family", FAMILIES)
def test_functions_have_the_mean_squared_differences_of_samples(
    family: type[tasks.Task],
) -> None:
    features = icl.Features.random(4, 2, 0.7, seed=3)
    law = family(1.5)  # type: ignore[call-arg]
    functions = functions_of(law, features)
    differences = ((functions[:, :, None] - functions[:, None]) ** 2).sum(axis=0)
    drawn = law.sample(features, np.random.default_rng(1), 40_000)
    sampled = (drawn[:, :, None] - drawn[:, None]) ** 2
    error = sampled.std(axis=0) / math.sqrt(len(drawn)) + 1e-12
    assert (np.abs(sampled.mean(axis=0) - differences) < 4.5 * error).all()


def test_drawn_functions_are_lipschitz() -> None:
    features = icl.Features.random(6, 2, 0.5, seed=0)
    values = lipschitz_values(features.distances, 2.0, np.random.default_rng(0), 50)
    assert (
        np.abs(values[:, :, None] - values[:, None]) <= 2.0 * features.distances + 1e-12
    ).all()


def test_large_prompts_are_not_summed() -> None:
    assert enumerable(math.inf, 200)
    assert enumerable(6, 5)
    assert not enumerable(100, 50)
    assert not enumerable(10**9, 2)

"""Contradictions of a millionth are refused and those of rounding are not; no array is shared with the caller."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import icl_theory as icl
from icl_theory import regression, tasks
from icl_theory.regression.batches.score_batch import fit_together
from icl_theory.regression.risks.exchangeable import expanded
from tests.test_boundaries import assert_ends

THREE = icl.Features.simplex(3, 1.0)
RUN = icl.simulate(2.0, 1.0, 4.0, K=3, N=20, above=0.01)
FEW: dict[str, Any] = {
    "batch": 2,
    "batches": 3,
    "runs": 3,
    "steps": 1,
    "precision": 1e6,
}

BOTH: dict[str, Callable[[float], Any]] = {
    "matrix, symmetric": lambda e: tasks.KernelTask([[2.0, 1.0 + e], [1.0, 2.0]]),
    "weights": lambda e: tasks.FiniteTask([[1.0, 2.0], [3.0, 4.0]], [0.5, 0.5 + e]),
    "probs": lambda e: icl.Features(np.eye(2), [0.5, 0.5 + 10 * e]),
    "delta": lambda e: icl.Regression(L=1.0, delta=1.0 + e, eta=1.0, features=THREE),
    "probs, of groups": lambda e: icl.SymmetricRisk([1, 2], [0.4, 0.3 + 10 * e], 2.0),
    "shares": lambda e: regression.GroupedRegression(
        L=1.0, delta=1.0, sizes=(1, 2), shares=(0.5, 0.5 + 10 * e)
    ),
    "variogram, symmetric": lambda e: icl.SymmetricRisk(
        [1, 2], [0.4, 0.3], [[1.0, 2.0], [2.0 + e, 1.0]]
    ),
    "groups, by probability": lambda e: icl.SymmetricRisk.of(
        icl.Features.simplex(3, 1.0, [0.4 - e, 0.3, 0.3 + e]),
        tasks.Exchangeable(1.0),
        [0, 1, 1],
    ),
    "groups, by variogram": lambda e: icl.SymmetricRisk.of(
        THREE, tasks.KernelTask(np.diag([1.0, 2.0, 2.0 + e])), [0, 1, 1]
    ),
}
ABOVE: dict[str, Callable[[float], Any]] = {
    "matrix, definite": lambda e: tasks.KernelTask([[1.0, 1.0 + e], [1.0 + e, 1.0]]),
    "variogram, of mean squares": lambda e: (
        icl.SymmetricRisk(  # √4 is the sum of √1 and √1
            [1, 1, 1],
            [0.2, 0.3, 0.5],
            [[0.0, 1.0, 1.0], [1.0, 0.0, 4.0 + e], [1.0, 4.0 + e, 0.0]],
        )
    ),
    "a": lambda e: regression.flow_time((1.0 - e * 1e-2) / 20, 20),
}


@pytest.mark.parametrize("name", [*BOTH, *ABOVE])
def test_contradictions_of_a_millionth_are_refused_and_those_of_rounding_are_not(
    name: str,
) -> None:
    make = (BOTH | ABOVE)[name]
    for off in (0.0, 5e-14, -5e-14):
        make(off)
    for off in (1e-6, -1e-6, 1e-3) if name in BOTH else (1e-6, 1e-3):
        with pytest.raises(ValueError, match=name.split(",")[0]):
            make(off)
    if name in ABOVE:
        make(-1e-6)


WHOLE: dict[str, Callable[[int], Any]] = {
    "L": lambda i: icl.Regression(
        L=2.0 + i, delta=1.0, eta=1.0, task=tasks.Linear(2.0)
    ).risk(),
    "K": lambda i: icl.Regression(L=2.0, delta=1.0, eta=1.0, K=3 + i, features=THREE),
    "N": lambda i: icl.crosscheck(RUN, N=20 + i, **FEW),
    "N, of phases": lambda i: regression.sampled_phases(
        RUN, N=20 + i, runs=3, batch=512
    ),
    "matrix": lambda i: tasks.KernelTask(np.eye(3 + i)).kernel(THREE),
    "matrix, drawn": lambda i: tasks.KernelTask(np.eye(3 + i)).sample(
        THREE, np.random.default_rng(0), 2
    ),
    "values": lambda i: tasks.FiniteTask(np.eye(3 + i)).variogram(THREE),
    "values, drawn": lambda i: tasks.FiniteTask(np.eye(3 + i)).sample(
        THREE, np.random.default_rng(0), 2
    ),
    "weights": lambda i: tasks.FiniteTask(np.eye(3), np.full(3 + i, 1.0 / (3 + i))),
    "direction": lambda i: tasks.RandomCosine(1.0, direction=np.ones(3 + i)).kernel(
        THREE
    ),
    "probs": lambda i: icl.Features(np.eye(3), np.full(3 + i, 1.0 / (3 + i))),
    "shares": lambda i: regression.GroupedRegression(
        L=1.0, delta=1.0, sizes=(1, 2, 3), shares=(1.0 / (3 + i),) * (3 + i)
    ),
    "probs, of groups": lambda i: icl.SymmetricRisk(
        [1, 1, 1], np.full(3 + i, 1.0 / (3 + i)), 2.0
    ),
    "variogram": lambda i: icl.SymmetricRisk(
        [1, 1, 1], np.full(3, 1.0 / 3), np.ones((3 + i, 3 + i))
    ),
    "groups": lambda i: icl.SymmetricRisk.of(
        THREE, tasks.Exchangeable(1.0), [0] * (3 + i)
    ),
    "distances": lambda i: regression.worst_prediction(
        np.full(3 + i, 0.2), THREE.distances, 1.0
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_numbers_that_contradict_each_other_are_refused_on_either_side(
    name: str,
) -> None:
    WHOLE[name](0)
    for off in (-1, 1):
        with pytest.raises(ValueError, match=name.split(",")[0]):
            WHOLE[name](off)


ENDS: dict[str, tuple[Callable[[float], Any], list[float], list[float]]] = {
    "start, of tails": (
        lambda x: regression.tail_steps(x, 0.1, 4.0, 0.1),
        [0.1, np.nextafter(2.0, 0.0)],
        [0.09, 2.0, 3.0],
    ),
    "a": (
        lambda x: regression.flow_time(x, 4),
        [0.25, 0.5, 1.0 - 1e-15],
        [0.2, 1.0, 2.0],
    ),
    "u, of bounds": (
        lambda x: regression.step_bounds(4, 0.1, x),
        [0.0, 300.0],
        [-1e-9, 300.1],
    ),
    "K, of bounds": (
        lambda x: regression.phase_one_bounds(x, 0.1),
        [2.0, 1e9],
        [1.9, 1.1e9],
    ),
    "tolerance": (
        lambda x: regression.FiniteGaussianRisk(
            regression.QuadraticLaw(1, 1.0, 0.0), 2, tolerance=x
        ),
        [1e-12, 1e-2],
        [9e-13, 1.1e-2],
    ),
    "d, of finite prompts": (
        lambda x: regression.FiniteGaussianRisk(
            regression.QuadraticLaw(x, 1.0, 0.0), 2
        ),
        [1, 100],
        [101],
    ),
    "sigma_a": (
        lambda x: regression.QuadraticLaw(1, x, 1.0),
        [0.0, 1e-40, 1e40],
        [1e-41, 1e41, -1.0],
    ),
    "sigma_b": (
        lambda x: regression.QuadraticLaw(1, 1.0, x),
        [0.0, 1e-40, 1e40],
        [1e-41, 1e41, -1.0],
    ),
    "delta, of embeddings": (
        lambda x: icl.Regression(
            L=1.0, delta=x, eta=1.0, coordinates="embedding"
        ).risk(),
        [1e-59, 1e59],
        [1e-60, 1e60],
    ),
    "sizes, of samples": (
        lambda x: regression.GroupedRegression(
            L=1.0, delta=1.0, sizes=(1, x), N=3
        ).sampled(2),
        [999],
        [1000],
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_numbers_are_taken_up_to_their_ends(name: str) -> None:
    assert_ends(*ENDS[name], match=name.split(",")[0])


def off_by(e: float) -> dict[str, icl.Regression]:
    """Problems of three features that are alike but for ``e``."""
    vectors = np.eye(3) + e * np.diag([0.0, 0.0, 1.0])
    probs, given = [1 / 3 - e, 1 / 3, 1 / 3 + e], icl.Features(vectors)
    numbers: dict[str, Any] = {"L": 1.0, "delta": 1.0, "eta": 1.0, "K": 3}
    kernel = tasks.KernelTask(np.diag([1.0, 1.0, 1.0 + e]))
    return {
        "probabilities": icl.Regression(**numbers, probs=probs),
        "values": icl.Regression(**numbers, task=kernel),
        "embeddings": icl.Regression(
            **numbers | {"delta": given.gap},
            task=tasks.KernelTask(np.eye(3)),
            features=given,
            coordinates="embedding",
        ),
    }


@pytest.mark.parametrize("N", [math.inf, 4])
@pytest.mark.parametrize("kind", ["probabilities", "values", "embeddings"])
def test_features_are_reduced_to_one_number_where_they_are_alike(
    kind: str, N: float
) -> None:
    """To rounding: with a millionth between them they keep their own losses, groups, and batches."""
    other = off_by(1e-6)[kind].changed(N=N).risk()
    assert not isinstance(other, icl.ExchangeableRisk)
    if kind != "probabilities":  # whose sum has rounding of its own
        assert isinstance(off_by(1e-14)[kind].changed(N=N).risk(), icl.ExchangeableRisk)
    if kind == "embeddings":
        return
    alike = expanded(off_by(0.0)[kind].changed(N=N).risk())
    assert isinstance(other, icl.PopulationRisk)
    assert isinstance(alike, icl.PopulationRisk)
    groups = regression.exchangeable_groups(other.features, other.task)
    assert groups.tolist() == ([0, 1, 2] if kind == "probabilities" else [0, 0, 1])
    assert regression.exchangeable_groups(alike.features, alike.task).tolist() == [
        0,
        0,
        0,
    ]
    assert fit_together(alike, alike)
    assert fit_together(alike, other) == math.isfinite(
        N
    )  # of infinite prompts one has the losses of the others


@pytest.mark.parametrize("N", [20, math.inf])
def test_constant_functions_are_learnt_at_step_0(N: float) -> None:
    features = icl.Features([[0.0], [1.0], [2.2]], probs=[0.2, 0.3, 0.5])
    task = tasks.KernelTask(np.zeros((3, 3)))
    run = icl.simulate(1.0, 1.0, 0.1, K=3, features=features, task=task, N=N)
    assert (run.steps, run.loss[-1]) == (0, 0.0)


@pytest.mark.parametrize("L", [1e-3, 0.7, 1.0, 30.0])
def test_a_variogram_for_l_1_is_one_whatever_the_law(L: float) -> None:
    """And of laws whose variogram is L² times it, all L share its bits."""
    laws = {
        "square": [
            tasks.Exchangeable,
            tasks.Linear,
            tasks.RandomCosine,
            tasks.RandomFourier,
            tasks.Quadratic,
        ],
        "other": [
            lambda L: tasks.RandomCosine(L, "frequency"),
            lambda L: tasks.KernelTask(L**2 * np.eye(4)),
        ],
    }
    for delta in (1e-3, 0.1, 1.0):
        features = icl.Features.random(4, 3, delta, seed=1)
        for kind, some in laws.items():
            for law in some:
                variogram = law(L).variogram(features)
                unit, factor = law(L).unit_variogram(features)
                np.testing.assert_allclose(factor * unit, variogram, rtol=1e-12)
                if kind == "square":
                    assert factor == L * L
                    np.testing.assert_array_equal(unit, law(1.0).variogram(features))


# ---- arrays


def arrays_in(found: Any) -> Iterator[np.ndarray]:
    if isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, dict | tuple | list):
        for each in found.values() if isinstance(found, dict) else found:
            yield from arrays_in(each)


VECTORS, P, VALUES, WEIGHTS = (
    np.diag([1.0, 2.0, 3.0, 4.0]),
    np.full(4, 0.25),
    1.0 * np.eye(4),
    np.full(4, 0.25),
)
MATRIX, SIZES, EACH, PAIRS = (
    2.0 * np.eye(4),
    np.array([1.0, 3.0]),
    np.array([0.4, 0.2]),
    np.full((2, 2), 1.5),
)
DIRECTION = np.ones(4)


def made() -> dict[str, Callable[[], Any]]:
    """What is made of arrays, and the arrays that it shows."""
    features = icl.Features(VECTORS, P)
    finite, normal = tasks.FiniteTask(VALUES, WEIGHTS), tasks.KernelTask(MATRIX)
    cosine = tasks.RandomCosine(1.0, direction=DIRECTION)
    groups = icl.SymmetricRisk(SIZES, EACH, PAIRS, N=5)
    single = icl.PopulationRisk(features, finite, N=3)
    data = icl.SampledRisk(features, tasks.Linear(1.0), 5, 4, 0, dataset=4)
    block = regression.BlockRisk(data, held_out=2)
    one, theta = single.initial, groups.initial
    return {
        "features": lambda: (
            features.vectors,
            features.probs,
            features.gram,
            features.distances,
        ),
        "finite task": lambda: (
            finite.values,
            finite.weights,
            finite.kernel(features),
            finite.factor(features),
        ),
        "normal values": lambda: (
            normal.matrix,
            normal.kernel(features),
            normal.variogram(features),
        ),
        "cosines": lambda: (cosine.omega(4), cosine.kernel(features)),
        "groups": lambda: (
            groups.sizes,
            groups.probs,
            groups.variogram,
            groups.members,
            groups.initial,
            groups.metric,
            groups.attention(theta),
            groups.scores(theta),
            groups.evaluate(theta),
            groups.observe(theta),
        ),
        "single features": lambda: (
            single.initial,
            single.probs,
            single.floor_per_query(),
            single.evaluate(one),
            single.observe(one),
        ),
        "sampled": lambda: (
            data.initial,
            data.prompts(1),
            data.held_out(2),
            data.evaluate(one),
        ),
        "block": lambda: (
            block.initial,
            block.observe(block.initial),
            block.evaluate(block.initial),
        ),
    }


def shown(show: Callable[[], Any]) -> list[list[float]]:
    return [array.ravel().tolist() for array in arrays_in(show())]


def test_who_changes_an_array_changes_no_other() -> None:
    """Arrays that were given, afterwards, and arrays that are shown, unless they are read-only."""
    shows = made()
    before = {name: shown(show) for name, show in shows.items()}
    assert all(before.values())
    given = (VECTORS, P, VALUES, WEIGHTS, MATRIX, SIZES, EACH, PAIRS, DIRECTION)
    kept = [array.copy() for array in given]
    for array in given:
        array += 1.0
    assert {name: shown(show) for name, show in shows.items()} == before
    for show in shows.values():
        for array in arrays_in(show()):
            if array.flags.writeable:
                array += 1
    after = {name: shown(show) for name, show in shows.items()}
    for array, old in zip(given, kept, strict=True):
        array[...] = old
    assert after == before
    assert {name: shown(show) for name, show in made().items()} == before

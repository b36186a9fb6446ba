"""Features and tasks of regression: what they are made of, their moments and samples, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import icl_theory as icl
from icl_theory.regression import tasks
from icl_theory.regression.features import Features
from icl_theory.regression.tasks import law
from tests.answers import Call
from tests.answers._runs import Asked, refused

UNEQUAL = [0.4, 0.3, 0.2, 0.1]
POINTS = [[0.3, -1.0], [2.0, 0.5], [-0.7, 0.4], [1.1, 1.9]]


def uneven() -> Features:
    return Features(POINTS, UNEQUAL)


def features() -> Asked:
    yield "random, unequal", partial(Features.random, 4, 3, 0.8, seed=3, probs=UNEQUAL)
    yield "random, one dimension", partial(Features.random, 5, 1, 2.5, 7)
    for K, d, gap in (
        (1, 3, 0.8),
        (4, 0, 0.8),
        (4, 3, 0.0),
        (4, 3, 1e200),
        (2.5, 3, 1.0),
        (20_001, 1, 1.0),
    ):
        yield f"random {K} {d} {gap}", partial(Features.random, K, d, gap, seed=3)
    yield "random, seed", partial(Features.random, 4, 3, 0.8, seed=-1)
    yield "random, large", partial(Features.random, 20_000, 10**10, 0.8, seed=1)
    yield "of vectors", uneven
    yield "of vectors, uniform", partial(Features, [[0, 0], [3, 4], [3, 0]])
    yield (
        "one dimension",
        partial(Features, [[0.0], [1.0], [2.2], [3.5]], [0.1, 0.2, 0.3, 0.4]),
    )
    yield "probabilities nearly 1", partial(Features, [[0.0], [1.0]], [0.3, 0.7000005])
    yield "square, not alike", partial(Features, [[1.0, 0.0], [0.0, 2.0]])
    yield "simplex", partial(Features.simplex, 5, 2.0)
    yield "simplex, unequal", partial(Features.simplex, 4, 0.7, UNEQUAL)
    yield "simplex of two", partial(Features.simplex, 2, 1e-3)
    yield "orthonormal", partial(Features.orthonormal, 3)
    yield "orthonormal, scaled", partial(Features.orthonormal, 4, 1.5, UNEQUAL)
    yield from refused(
        {
            "no vectors": partial(Features, np.zeros((0, 2))),
            "one vector": partial(Features, [[1.0, 2.0]]),
            "no dimension": partial(Features, np.zeros((3, 0))),
            "not a matrix": partial(Features, [1.0, 2.0]),
            "coincide": partial(Features, [[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]]),
            "nearly coincide": partial(Features, [[1.0], [1.0 + 1e-15]]),
            "not finite": partial(Features, [[1.0, np.nan], [0.0, 1.0]]),
            "large": partial(Features, [[1.1e40], [0.0]]),
            "as large as can be": partial(Features, [[1e40], [0.0]]),
            "sum of probabilities": partial(Features, POINTS, [0.4, 0.3, 0.2, 0.2]),
            "number of probabilities": partial(Features, POINTS, [0.5, 0.5]),
            "probability zero": partial(Features, [[0.0], [1.0]], [0.0, 1.0]),
            "simplex of one": partial(Features.simplex, 1, 1.0),
            "simplex, no gap": partial(Features.simplex, 3, 0.0),
            "simplex, small gap": partial(Features.simplex, 3, 0.9e-40),
            "simplex, least gap": partial(Features.simplex, 3, 1e-40),
            "simplex, large": partial(Features.simplex, 3, 2e40),
            "orthonormal, scale": partial(Features.orthonormal, 3, -1.0),
            "orthonormal, many": partial(Features.orthonormal, 30_000),
        }
    )
    yield (
        "repr",
        lambda: [
            repr(one)
            for one in (uneven(), Features.simplex(5, 0.25), Features.orthonormal(3))
        ],
    )

    def written() -> None:
        uneven().vectors[0, 0] = 1.0

    def written_gram() -> None:
        uneven().gram[0, 0] = 1.0

    def written_distances() -> None:
        uneven().distances[0, 0] = 1.0

    yield "cannot be written", written
    yield "gram cannot be written", written_gram
    yield "distances cannot be written", written_distances


FINITE_VALUES = [[1.0, -2.0, 0.5, 3.0], [0.0, 1.0, 1.5, -1.0], [2.0, 2.0, -1.0, 0.25]]
KERNEL = [
    [2.0, 0.5, -0.3, 0.1],
    [0.5, 1.0, 0.2, 0.0],
    [-0.3, 0.2, 1.5, 0.4],
    [0.1, 0.0, 0.4, 0.7],
]
LAWS: dict[str, Callable[[], tasks.Task]] = {
    "exchangeable": partial(tasks.Exchangeable, 1.7),
    "linear": partial(tasks.Linear, 1.7),
    "quadratic": partial(tasks.Quadratic, 1.7),
    "halfspace": partial(tasks.Halfspace, 1.7),
    "fourier": partial(tasks.RandomFourier, 1.7),
    "fourier, length": partial(tasks.RandomFourier, 1.7, length_scale=0.6),
    "cosine": partial(tasks.RandomCosine, 1.7),
    "cosine, frequency": partial(tasks.RandomCosine, 1.7, "frequency"),
    "cosine, direction": partial(tasks.RandomCosine, 1.7, direction=[1.0, -3.0]),
    "cosine, both": partial(
        tasks.RandomCosine, 1.7, scale="frequency", direction=[0.0, 2.0]
    ),
    "kernel": partial(tasks.KernelTask, KERNEL),
    "finite": partial(tasks.FiniteTask, FINITE_VALUES, [0.5, 0.2, 0.3]),
    "finite, equal weights": partial(tasks.FiniteTask, FINITE_VALUES),
    "finite, many": lambda: tasks.FiniteTask(np.sin(np.arange(28.0)).reshape(7, 4)),
}


def moments(make: Callable[[], tasks.Task]) -> dict[str, Any]:
    task, points = make(), uneven()
    rng = np.random.default_rng(5)
    shown = {
        "task": task,
        "repr": repr(task),
        "kernel": task.kernel(points),
        "variogram": task.variogram(points),
        "unit variogram": task.unit_variogram(points),
        "distances": law.variogram_of(points, task),
        "nondegeneracy": task.nondegeneracy(points),
        "sample": task.sample(points, rng, 3),
        "sample, by name": task.sample(points, rng=rng, size=2),
    }
    factor = task.factor(
        points
    )  # signs of eigenvectors are free: what it is for is its distances
    shown["factor"] = [factor.shape, np.sum((factor[:, None] - factor) ** 2, axis=2)]
    drawn = task.functions(points, np.random.default_rng(6), 2)
    shown["functions"] = drawn(np.random.default_rng(7).normal(size=(2, 5, 2)))
    if isinstance(task, tasks.RandomCosine):
        shown["omega"] = task.omega(2)
    return shown


def laws() -> Asked:
    for name, make in LAWS.items():
        if name != "kernel":
            yield name, partial(moments, make)
        else:  # its samples are by eigenvectors, whose signs are free
            yield (
                name,
                lambda: {
                    k: v for k, v in moments(LAWS["kernel"]).items() if "sampl" not in k
                },
            )
    yield (
        "factor of a formula",
        lambda: {
            name: LAWS[name]().factor(uneven())
            for name in ("exchangeable", "linear", "halfspace", "cosine", "finite")
        },
    )
    yield "omega alone", partial(tasks.RandomCosine(2.0, "frequency").omega, 3)
    yield (
        "exchangeable: gamma",
        lambda: tasks.Exchangeable(2.0).gamma(Features.simplex(3, 0.5)),
    )
    yield (
        "halfspace of five",
        lambda: tasks.Halfspace(2.0).kernel(Features.simplex(5, 1.0)),
    )
    close = Features([[1.0, 2.0], [1.0 + 2.0**-30, 2.0 - 2.0**-30], [0.0, 1.0]])
    for name in ("linear", "quadratic", "fourier, length", "cosine", "cosine, both"):
        # a cosine of x and one of x' differ by what rounding leaves of 2^-30
        variogram = Call(
            lambda name=name: 4.0**30 * LAWS[name]().variogram(close)[0, 1], rtol=1e-5
        )
        yield f"{name}: close features", variogram
    yield (
        "nondegeneracy on a line",
        lambda: tasks.Linear(1.0).nondegeneracy(Features([[0.0], [1.0], [2.5], [3.0]])),
    )
    yield (
        "quadratic on a line",
        lambda: tasks.Quadratic(2.0).nondegeneracy(Features([[0.0], [1.0], [2.5]])),
    )
    yield (
        "gamma",
        lambda: [
            law.exchangeable_gamma(*pair)
            for pair in ((2.0, 0.3), (1e-30, 1e-100), (1e140, 0.5))
        ],
    )
    yield "one in common", lambda: sorted(tasks.__all__)
    yield (
        "shorter name",
        lambda: [icl.tasks.Linear is tasks.Linear, icl.tasks.quadratics],
    )
    yield (
        "quadratics",
        lambda: tasks.quadratics(np.random.default_rng(3), 2, 3, 0.5, 2.0)(
            np.ones((2, 4, 3))
        ),
    )


def refusals_of_laws() -> Asked:
    points, rng = uneven(), np.random.default_rng(0)
    for name, ask in {
        "L zero": partial(tasks.Linear, 0.0),
        "L negative": partial(tasks.Exchangeable, -1.0),
        "L large": partial(tasks.Halfspace, 2e40),
        "L largest": partial(tasks.Halfspace, 1e40),
        "L word": partial(tasks.Quadratic, "2"),
        "scale": partial(tasks.RandomCosine, 1.0, "both"),
        "direction zero": partial(tasks.RandomCosine, 1.0, direction=[0.0, 0.0]),
        "direction not finite": partial(
            tasks.RandomCosine, 1.0, direction=[np.inf, 0.0]
        ),
        "direction, length": lambda: tasks.RandomCosine(
            1.0, direction=[1.0, 2.0, 3.0]
        ).kernel(points),
        "omega of no dimension": lambda: tasks.RandomCosine(1.0).omega(0),
        "length scale": partial(tasks.RandomFourier, 1.0, 0.0),
        "length scale, small": partial(tasks.RandomFourier, 1.0, 1e-41),
        "length scale, large": partial(tasks.RandomFourier, 1.0, 1.1e40),
        "gamma small": partial(law.exchangeable_gamma, 1e-145, 1.0),
        "gamma large": partial(law.exchangeable_gamma, 1e100, 1e60),
        "gamma at the edge": partial(law.exchangeable_gamma, 1.5e-145, 1.0),
        "gamma, delta": partial(law.exchangeable_gamma, 1.0, 0.0),
        "kernel, not square": partial(tasks.KernelTask, [[1.0, 0.0]]),
        "kernel, one": partial(tasks.KernelTask, [[1.0]]),
        "kernel, not symmetric": partial(tasks.KernelTask, [[1.0, 0.1], [0.2, 1.0]]),
        "kernel, nearly symmetric": partial(
            tasks.KernelTask, [[1.0, 0.1], [0.1 + 0.9e-10, 1.0]]
        ),
        "kernel, indefinite": partial(tasks.KernelTask, [[1.0, 2.0], [2.0, 1.0]]),
        "kernel, nearly indefinite": lambda: (
            tasks.KernelTask([[1.0, 1.0 + 5e-11], [1.0 + 5e-11, 1.0]]).matrix
        ),
        "kernel, K": lambda: tasks.KernelTask([[1.0, 0.0], [0.0, 1.0]]).kernel(points),
        "finite, empty": partial(tasks.FiniteTask, np.zeros((0, 3))),
        "finite, one feature": partial(tasks.FiniteTask, [[1.0], [2.0]]),
        "finite, sum": partial(tasks.FiniteTask, FINITE_VALUES, [0.5, 0.2, 0.2]),
        "finite, negative": partial(tasks.FiniteTask, FINITE_VALUES, [1.2, -0.4, 0.2]),
        "finite, number": partial(tasks.FiniteTask, FINITE_VALUES, [0.5, 0.5]),
        "finite, zero weight": partial(
            tasks.FiniteTask, FINITE_VALUES, [0.5, 0.0, 0.5]
        ),
        "finite, K": lambda: tasks.FiniteTask([[1.0, 2.0]]).kernel(points),
        "finite, K of samples": lambda: tasks.FiniteTask([[1.0, 2.0]]).sample(
            points, rng, 2
        ),
        "no features": lambda: tasks.Linear(1.0).kernel(POINTS),
        "no features, sample": lambda: tasks.Linear(1.0).sample(None, rng, 3),
        "no features, nondegeneracy": lambda: tasks.Halfspace(1.0).nondegeneracy("x"),
        "no features, gamma": lambda: tasks.Exchangeable(1.0).gamma(3),
        "sample, too many": lambda: tasks.Linear(1.0).sample(points, rng, 10**15),
        "sample, too many by name": lambda: tasks.Linear(1.0).sample(
            points, rng, size=10**15
        ),
        "variogram of no task": lambda: law.variogram_of(points, tasks.Linear),
        "variogram of no features": lambda: law.variogram_of(POINTS, tasks.Linear(1.0)),
    }.items():
        yield name, ask
    frozen: dict[str, Any] = {
        "kernel": tasks.KernelTask(KERNEL).matrix,
        "finite": tasks.FiniteTask(FINITE_VALUES).values,
    }

    def written(name: str) -> None:
        frozen[name][0, 0] = 1.0

    for name in frozen:
        yield f"{name} cannot be written", partial(written, name)

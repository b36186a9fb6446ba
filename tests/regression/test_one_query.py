"""One query of finite prompts: the sum over all prompts, differences, and the search that points share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize

import icl_theory as icl
from icl_theory import tasks
from icl_theory.regression.risks import floors as levels
from icl_theory.regression.risks.prompts import one_query
from icl_theory.tokens import square
from icl_theory.tokens.generating import TokenCount
from tests.references import compositions

Array = NDArray[np.float64]


def summed(
    scores: Array, p: Array, values: Array, N: int, noise: float
) -> tuple[float, Array]:
    """Loss of query 0 and attention over all prompts of these features."""
    loss, attention = 0.0, np.zeros(len(p))
    for row in compositions(N, len(p)):
        counts = np.array(row, dtype=float)
        chance = (
            math.factorial(N) * np.prod(p**counts) / math.prod(map(math.factorial, row))
        )
        a = counts * np.exp(scores - scores.max())
        a /= a.sum()
        error = a @ (values - values[0])
        loss += (
            0.5
            * chance
            * (error @ error + noise**2 * (a**2 / np.maximum(counts, 1.0)).sum())
        )
        attention += chance * a
    return loss, attention


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("spread", [0.5, 8.0])
@pytest.mark.parametrize("N", [1, 2, 3, 6])
def test_one_query_is_the_sum_over_prompts(
    N: int, spread: float, noise: float, hidden: bool
) -> None:
    rng = np.random.default_rng(N)
    values, p, scores = (
        rng.normal(size=(4, 2)),
        rng.dirichlet(np.full(4, 3.0)),
        spread * rng.normal(size=4),
    )
    off = values - values[0]
    matrix, own = off @ off.T, (off**2).sum(axis=1) + noise**2
    seen = np.where(np.arange(4) == 3, -np.inf, scores) if hidden else scores
    loss, gradient, attention, hessian = one_query(seen, p, own, N, matrix, curved=True)
    kept = slice(3 if hidden else 4)
    expected = summed(scores[kept], p[kept], values[kept], N, noise)
    assert loss == pytest.approx(expected[0], rel=1e-12)
    np.testing.assert_allclose(attention[kept], expected[1], rtol=0, atol=1e-13)
    for i in range(*kept.indices(4)):
        turn = 1e-4 * (np.arange(4) == i)
        above, below = (
            one_query(seen + way * turn, p, own, N, matrix) for way in (1.0, -1.0)
        )
        assert gradient[i] == pytest.approx((above[0] - below[0]) / 2e-4, abs=1e-8)
        np.testing.assert_allclose(
            hessian[i], (above[1] - below[1]) / 2e-4, rtol=0, atol=1e-8
        )
    np.testing.assert_allclose(hessian, hessian.T, rtol=0, atol=1e-15)


@pytest.mark.parametrize("hidden", [(), (3,), (0,), (1, 2)])
@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("N", [1, 2, 5])
def test_moments_are_the_sum_over_the_prompts_without_features_that_are_hidden(
    N: int, noise: float, hidden: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(N)
    values, p = rng.normal(size=(4, 2)), rng.dirichlet(np.full(4, 3.0))
    scores, direction = rng.normal(size=(2, 4, 3))
    off = values - values[0]
    matrix, own = off @ off.T, (off**2).sum(axis=1) + noise**2

    def form(queries: NDArray[np.intp], rows: slice, z: Array, out: Array) -> None:
        np.matmul(matrix, z, out=out)

    seen = scores.copy()
    seen[list(hidden)] = -np.inf
    weights = np.broadcast_to(own[:, None], scores.shape)

    def moments(scores: Array) -> square.Moments:
        return square.moments(scores, p[:, None], weights, TokenCount(N), form)

    found = moments(seen)
    kept = [i for i in range(4) if i not in hidden]

    def expected(scores: Array) -> tuple[float, Array]:
        # labels relative to those of the query, which may be hidden itself
        labels = np.concatenate([np.zeros((1, 2)), off[kept]])
        loss, attention = summed(
            np.append(0.0, scores[kept]), np.append(0.0, p[kept]), labels, N, noise
        )
        return loss, attention[1:]

    for q in range(3):
        loss, attention = expected(scores[:, q])
        assert found.loss[q] == pytest.approx(loss, rel=1e-12)
        np.testing.assert_allclose(
            found.attention[kept, q], attention, rtol=0, atol=1e-13
        )
        for i in kept:
            turn = 1e-4 * (np.arange(4) == i)
            above, below = (
                expected(scores[:, q] + way * turn)[0] for way in (1.0, -1.0)
            )
            assert found.gradient[i, q] == pytest.approx(
                (above - below) / 2e-4, abs=1e-8
            )
    ahead = [moments(seen + way * direction).gradient for way in (1e-4, -1e-4)]
    change = square.change_along(
        lambda scores: moments(scores).gradient, seen, direction
    )
    np.testing.assert_allclose(
        change[kept], ((ahead[0] - ahead[1]) / 2e-4)[kept], rtol=0, atol=1e-7
    )


@pytest.mark.parametrize(
    "word", ["linear", "cosine", "fourier", "quadratic", "halfspace"]
)
def test_points_at_other_lipschitz_constants_share_the_search(word: str) -> None:
    given: dict[str, Any] = {
        "delta": 1.0,
        "eta": 0.5,
        "K": 4,
        "N": 3,
        "task": word,
        "above": 1.0,
    }
    given["probs"] = [0.1, 0.2, 0.3, 0.4]
    levels._single_features.cache_clear()
    found = icl.sweep(L=[0.7, 1.0, 2.9], progress=False, **given)
    assert levels._single_features.cache_info().misses == 1
    levels._single_features.cache_clear()
    assert icl.Regression(L=2.9, **given).simulate().floor == found.floor.values[2]
    np.testing.assert_allclose(
        found.floor / found.floor[1], [0.49, 1.0, 8.41], rtol=1e-14
    )


@dataclass(frozen=True, eq=False)
class Bent(tasks.Linear):
    """A law whose variogram is not proportional to L²."""

    def variogram(self, features: icl.Features) -> Array:
        found = super().variogram(features)
        return found / (1.0 + found)


def test_other_laws_keep_their_own_variogram() -> None:
    features = icl.Features.simplex(4, 1.0)
    for law in (Bent(2.0), tasks.RandomCosine(2.0, scale="frequency")):
        variogram, factor = law.unit_variogram(features)
        assert factor == 1.0
        assert (variogram == law.variogram(features)).all()
    noisy = icl.PopulationRisk(features, tasks.Linear(2.0), 3, 0.2)
    plain = icl.PopulationRisk(features, tasks.Linear(1.0), 3, 0.1)
    np.testing.assert_allclose(
        noisy.floor_per_query(), 4.0 * plain.floor_per_query(), rtol=1e-12
    )


@pytest.mark.parametrize(("index", "query"), [(0, 5), (59, 0)])
def test_no_search_from_random_scores_ends_below_the_lowest_loss(
    index: int, query: int
) -> None:
    rng = np.random.default_rng(7)
    for _ in range(index + 1):
        K, N, noise = (
            int(rng.integers(3, 7)),
            int(rng.choice([2, 3, 5, 10, 50, 200])),
            float(rng.choice([0, 0, 0.3])),
        )
        values, probs = rng.normal(size=(K, K)), rng.dirichlet(np.full(K, 3.0))
    law = tasks.KernelTask(values @ values.T) if index % 2 else tasks.RandomCosine(2.0)
    risk = icl.PopulationRisk(icl.Features.simplex(K, 1.0, probs), law, N, noise)
    lowest = risk.floor_per_query()[query]

    def evaluated(column: Array) -> tuple[float, Array]:
        scores = np.zeros((K, K))
        scores[:, query] = column
        return float(risk.loss_per_query(scores)[query]), risk.gradient(scores)[
            :, query
        ] / probs[query]

    ends = []
    for _ in range(10):
        start = rng.normal(size=K) * 5.0 + 10.0 * (np.arange(K) == query)
        found = minimize(
            lambda x: tuple(part / lowest for part in evaluated(x)),
            start,
            jac=True,
            method="L-BFGS-B",
            options={"ftol": 0.0, "gtol": 1e-9, "maxiter": 100},
        )
        ends.append(evaluated(found.x)[0] / lowest)
    assert 1.0 - 1e-12 <= min(ends) < 1.0 + 1e-5


@pytest.mark.parametrize("chunk", [1, 2**10, 2**16])
def test_queries_side_by_side_are_those_alone(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries whose scores are near each other have few nodes, and may share a block with others, or with none."""
    monkeypatch.setattr(square, "BLOCK", chunk)
    rng = np.random.default_rng(3)
    values, p, noise = rng.normal(size=(5, 5)), rng.dirichlet(np.full(5, 3.0)), 0.3
    features = icl.Features.simplex(5, 1.0, p)
    law = tasks.KernelTask(values @ values.T)
    risk, gamma = icl.PopulationRisk(features, law, 7, noise), law.variogram(features)
    spread = np.array([0.1, 1.0, 5.0, 30.0, 100.0])
    states = np.stack(
        [rng.normal(size=(5, 5)) * rng.permutation(spread) for _ in range(3)]
    )
    together = risk.gradients(states)
    for state, gradient in zip(states, together, strict=True):
        loss, attention = risk.loss_per_query(state), risk.attention(state)
        changed = risk.hessian_product(state, values)
        for k in range(5):
            matrix = gamma[:, [k]] + gamma[k] - gamma
            alone = one_query(
                state[:, k], p, 2.0 * gamma[:, k] + noise**2, 7, matrix, curved=True
            )
            assert loss[k] == pytest.approx(alone[0], rel=1e-13)
            np.testing.assert_allclose(
                gradient[:, k], p[k] * alone[1], rtol=0, atol=1e-14
            )
            np.testing.assert_allclose(attention[:, k], alone[2], rtol=1e-12)
            np.testing.assert_allclose(
                changed[:, k], p[k] * alone[3] @ values[:, k], rtol=0, atol=1e-13
            )

"""Independent references: nothing here uses the package's formulas."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to distribute ``total`` tokens over ``parts`` features."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)


def attention_losses(
    kind: Any,
    query: Any,
    target: Any,
    values: Array,
    scores: Array,
    sink: Any,
    objective: str,
    scale: float,
) -> Array:
    """Losses of softmax attention over the tokens of each prompt, (B,), token by token."""
    if sink is not None:
        kind = np.column_stack([kind, np.full(len(kind), len(values))])
        values = np.vstack([values, sink])
    seen = scores[kind, np.asarray(query)[:, None]]
    weight = np.exp(seen - seen.max(axis=1)[:, None])
    o = np.einsum("bn,bnv->bv", weight / weight.sum(axis=1)[:, None], values[kind])
    rows = np.arange(len(kind))
    if objective == "square":
        return 0.5 * ((np.eye(o.shape[1])[target] - o) ** 2).sum(axis=1)
    if objective == "log":
        return -np.log(o[rows, target])
    return np.log(np.exp(scale * (o - o[rows, target][:, None])).sum(axis=1))


def all_sequences(
    T: int, start: Any, concentration: Any = None, chains: Any = None, probs: Any = None
) -> Any:
    """All sequences of T + 1 symbols of a two-state chain, and their probabilities, symbol by symbol."""
    x = np.array(list(itertools.product((0, 1), repeat=T + 1)))
    rows = np.arange(len(x))
    if chains is None:
        chance, seen = (
            np.where(x[:, 0] == 1, start, 1.0 - start),
            np.zeros((len(x), 2, 2)),
        )
        for i in range(T):
            here = concentration[x[:, i]] + seen[rows, x[:, i]]
            chance = chance * here[rows, x[:, i + 1]] / here.sum(axis=1)
            seen[rows, x[:, i], x[:, i + 1]] += 1.0
        return x, chance
    total = np.zeros(len(x))
    for P, share in zip(chains, probs, strict=True):
        first = P[0, 1] / (P[0, 1] + P[1, 0]) if start == "stationary" else start
        chance = np.where(x[:, 0] == 1, first, 1.0 - first)
        for i in range(T):
            chance = chance * P[x[:, i], x[:, i + 1]]
        total += share * chance
    return x, total


def enumerate_finite(
    p: Array, kernel: Array, S: Array, N: int, noise: float
) -> tuple[Array, Array, Array]:
    """Loss per query, its gradient and the expected attention by summing over all counts.

    The loss comes from the kernel, ½(aᵀκa − 2aᵀκ_k + κ_kk + σ²Σa²/n); the gradient is
    the softmax's.
    """
    K = len(p)
    loss, gradient, attention = np.zeros(K), np.zeros((K, K)), np.zeros((K, K))
    for counts in compositions(N, K):
        n = np.array(counts, dtype=float)
        log_probability = math.lgamma(N + 1) + sum(
            c * math.log(q) - math.lgamma(c + 1) for c, q in zip(counts, p, strict=True)
        )
        probability = math.exp(log_probability)
        there = n > 0
        for k in range(K):
            weight = np.where(there, n * np.exp(S[:, k] - S[there, k].max()), 0.0)
            a = weight / weight.sum()
            inverse = np.where(there, 1.0 / np.where(there, n, 1.0), 0.0)
            value = 0.5 * (
                a @ kernel @ a
                - 2.0 * a @ kernel[:, k]
                + kernel[k, k]
                + noise**2 * np.sum(a * a * inverse)
            )
            by_attention = kernel @ a - kernel[:, k] + noise**2 * a * inverse
            loss[k] += probability * value
            gradient[:, k] += probability * a * (by_attention - a @ by_attention)
            attention[:, k] += probability * a
    return loss, gradient, attention


def mp_infinite(p: Array, factor: Array, S: Array, k: int) -> tuple[Any, list[Any]]:
    """Loss of query k and its gradient for N = ∞ with 60 digits, from vectors with the task's distances."""
    with mpmath.workdps(60):
        K = len(p)
        weights = [mpmath.mpf(p[m]) * mpmath.exp(mpmath.mpf(S[m, k])) for m in range(K)]
        total = mpmath.fsum(weights)
        a = [w / total for w in weights]
        edges = [
            [
                mpmath.mpf(x) - mpmath.mpf(y)
                for x, y in zip(factor[m], factor[k], strict=True)
            ]
            for m in range(K)
        ]
        error = [
            mpmath.fsum(a[m] * edges[m][r] for m in range(K))
            for r in range(factor.shape[1])
        ]
        squared = mpmath.fsum(e * e for e in error)
        slope = [
            mpmath.fsum(edges[m][r] * error[r] for r in range(factor.shape[1]))
            for m in range(K)
        ]
        return squared / 2, [a[m] * (slope[m] - squared) for m in range(K)]


def mp_finite(p: Array, factor: Array, S: Array, N: int, noise: float, k: int) -> Any:
    """Loss of query k for finite N by enumeration with 60 digits."""
    with mpmath.workdps(60):
        K = len(p)
        result = mpmath.mpf(0)
        edges = [
            [
                mpmath.mpf(x) - mpmath.mpf(y)
                for x, y in zip(factor[m], factor[k], strict=True)
            ]
            for m in range(K)
        ]
        for counts in compositions(N, K):
            probability = mpmath.factorial(N)
            for c, q in zip(counts, p, strict=True):
                probability *= mpmath.mpf(q) ** c / mpmath.factorial(c)
            weights = [
                c * mpmath.exp(mpmath.mpf(S[m, k])) for m, c in enumerate(counts)
            ]
            total = mpmath.fsum(weights)
            a = [w / total for w in weights]
            squared = mpmath.fsum(
                mpmath.fsum(a[m] * edges[m][r] for m in range(K)) ** 2
                for r in range(factor.shape[1])
            )
            spread = mpmath.fsum(a[m] ** 2 / c for m, c in enumerate(counts) if c)
            result += probability * (squared + mpmath.mpf(noise) ** 2 * spread) / 2
        return result


def iterate_gap(
    K: int, c: float, stop: Callable[[int, float], bool]
) -> tuple[int, float]:
    """Iterate u <- u + c a s², with a carried rounding error, until ``stop(n, u)``."""
    u, carry, n = 0.0, 0.0, 0
    while not stop(n, u):
        w = (K - 1) * math.exp(-u)
        move = c * w * w / (1.0 + w) ** 3 - carry
        moved = u + move
        carry = (moved - u) - move
        u = moved
        n += 1
    return n, u


def slopes(function: Callable[[Array], float], x: Array, step: float = 1e-5) -> Array:
    """Central differences of fourth order."""
    result = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        unit = np.zeros_like(x)
        unit[index] = step
        near = function(x + unit) - function(x - unit)
        far = function(x + 2 * unit) - function(x - 2 * unit)
        result[index] = (8 * near - far) / (12 * step)
    return result


def mp_derivatives(
    p: Array, variogram: Array, S: Array, direction: Array
) -> tuple[Array, Array]:
    """Gradient for N = ∞ and its change in a direction with 60 digits, (K, K) each, from the quotient rule."""
    K = len(p)
    gradient, change = np.empty((K, K)), np.empty((K, K))
    with mpmath.workdps(60):
        exact = [[mpmath.mpf(x) for x in row] for row in variogram.tolist()]
        for k in range(K):
            weight = [
                mpmath.mpf(float(p[m])) * mpmath.exp(mpmath.mpf(float(S[m, k])))
                for m in range(K)
            ]
            a = [w / mpmath.fsum(weight) for w in weight]
            v = [mpmath.mpf(float(x)) for x in direction[:, k]]
            cross = [
                [exact[m][k] + exact[k][j] - exact[m][j] for j in range(K)]
                for m in range(K)
            ]
            mean = mpmath.fdot(a, v)
            moved = [x * (y - mean) for x, y in zip(a, v, strict=True)]
            residual = [mpmath.fdot(row, a) for row in cross]
            turned = [mpmath.fdot(row, moved) for row in cross]
            squared = mpmath.fdot(a, residual)
            rise = mpmath.fdot(moved, residual) + mpmath.fdot(a, turned)
            for m in range(K):
                gradient[m, k] = float(p[k] * a[m] * (residual[m] - squared))
                change[m, k] = float(
                    p[k]
                    * (moved[m] * (residual[m] - squared) + a[m] * (turned[m] - rise))
                )
    return gradient, change

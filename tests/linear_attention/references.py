"""The layer of linear attention, written out for every prompt of a Gauss–Hermite grid."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np


class Law(NamedTuple):
    """Matrices (d, d), number of pairs, noise."""

    covariance: Any
    prior: Any
    query: Any
    N: int
    noise: float


def random_law(d: int, N: int, noise: float, seed: int = 0) -> Law:
    """Three matrices that do not commute."""
    rng = np.random.default_rng(seed)
    factors = [rng.normal(size=(d, d)) for _ in range(3)]
    return Law(*(factor @ factor.T / d for factor in factors), N, noise)


def enumerated(law: Law) -> tuple[Any, Any, Any, Any, Any]:
    """Weights, tokens (n, N, d), labels (n, N), queries and tasks (n, d) of all prompts of the grid.

    Three nodes a coordinate of the tokens and the query are exact for polynomials of
    degree 5 in it, two a coordinate of the task and of the noise for those of degree 3.
    """
    d, N = len(law.covariance), law.N
    counts = [3] * (N * d + d) + [2] * (d + N)
    nodes = [np.polynomial.hermite_e.hermegauss(count) for count in counts]
    grid = np.stack(
        [each.ravel() for each in np.meshgrid(*(x for x, _ in nodes), indexing="ij")],
        axis=1,
    )
    weight = functools.reduce(
        np.multiply.outer, (w / w.sum() for _, w in nodes)
    ).ravel()
    roots = [np.linalg.cholesky(matrix) for matrix in law[:3]]
    tokens = grid[:, : N * d].reshape(-1, N, d) @ roots[0].T
    query = grid[:, N * d : N * d + d] @ roots[2].T
    task = grid[:, N * d + d : N * d + 2 * d] @ roots[1].T
    labels = (
        np.einsum("nid,nd->ni", tokens, task) + law.noise * grid[:, N * d + 2 * d :]
    )
    return weight, tokens, labels, query, task


def layer(law: Law, P: Any, K: Any) -> tuple[float, Any, Any]:
    """Loss of the whole layer and its gradients by P and K, prompt matrices multiplied out."""
    weight, tokens, labels, query, task = enumerated(law)
    d, n = query.shape[1], len(weight)
    E = np.zeros((n, d + 1, law.N + 1))
    E[:, :d, :-1], E[:, d, :-1], E[:, :d, -1] = tokens.transpose(0, 2, 1), labels, query
    S = E @ E.transpose(0, 2, 1) / law.N
    last = E[:, :, -1]
    error = np.einsum("i,nij,jk,nk->n", P[-1], S, K, last) - np.sum(
        query * task, axis=1
    )
    by_P = np.zeros((d + 1, d + 1))
    by_P[-1] = np.einsum("n,nij,jk,nk->i", weight * error, S, K, last)
    by_K = np.einsum("n,i,nij,nk->jk", weight * error, P[-1], S, last)
    return 0.5 * float(weight @ error**2), by_P, by_K


def merged(law: Law, gamma: Any) -> tuple[float, Any]:
    """Loss of xᵀΓh and its gradient by Γ."""
    weight, tokens, labels, query, task = enumerated(law)
    h = np.einsum("ni,nid->nd", labels, tokens) / law.N
    error = np.einsum("ni,ij,nj->n", query, gamma, h) - np.sum(query * task, axis=1)
    return 0.5 * float(weight @ error**2), np.einsum(
        "n,ni,nj->ij", weight * error, query, h
    )

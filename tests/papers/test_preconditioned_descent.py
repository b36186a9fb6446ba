"""The page on preconditioned descent: the losses of its rows, against layers on every prompt of a grid."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from icl_theory.linear_attention import PromptLaw
from icl_theory.papers.linear_attention import preconditioned_descent as evidence
from tests.linear_attention.references import random_law


def nodes(counts: list[int]) -> Any:
    """Points and weights of a grid with these numbers of Gauss-Hermite nodes along its axes."""
    rules = [np.polynomial.hermite_e.hermegauss(n) for n in counts]
    grid = np.stack(
        [each.ravel() for each in np.meshgrid(*(x for x, _ in rules), indexing="ij")],
        axis=1,
    )
    return grid, functools.reduce(
        np.multiply.outer, (w / w.sum() for _, w in rules)
    ).ravel()


def test_losses_and_gradients_of_two_hundred_whole_layers() -> None:
    """All entries of P and K are drawn; the error has the degree 2 in tokens and task, 3 in the query."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        d, N = 1 + seed % 2, 1 + seed // 2 % 2
        law = random_law(d, N, 0.0, seed)
        whole = evidence.WholeLayer(PromptLaw(*law))
        grid, weight = nodes([3] * (N * d) + [4] * d + [3] * d)
        roots = [np.linalg.cholesky(matrix) for matrix in law[:3]]
        x = grid[:, : N * d].reshape(-1, N, d) @ roots[0].T
        query, task = (
            grid[:, N * d : N * d + d] @ roots[2].T,
            grid[:, N * d + d :] @ roots[1].T,
        )
        E = np.zeros((len(grid), d + 1, N + 1))
        E[:, :d, :N], E[:, d, :N], E[:, :d, N] = (
            x.transpose(0, 2, 1),
            np.einsum("nid,nd->ni", x, task),
            query,
        )
        S, last = E @ E.transpose(0, 2, 1) / N, E[:, :, N]
        for P, K in rng.normal(size=(10, 2, d + 1, d + 1)):
            error = np.einsum("i,nij,jk,nk->n", P[-1], S, K, last) - np.sum(
                query * task, axis=1
            )
            by_P = np.einsum("n,nij,jk,nk->i", weight * error, S, K, last)
            by_K = np.einsum("n,i,nij,nk->jk", weight * error, P[-1], S, last)
            found, slopes = whole.evaluate(np.append(P[-1], K[:, :d]))
            assert found == pytest.approx(0.5 * float(weight @ error**2), rel=1e-10)
            wanted = np.append(by_P, by_K[:, :d])
            np.testing.assert_allclose(
                slopes, wanted, rtol=1e-10, atol=1e-10 * np.abs(wanted).max()
            )


def layers(A: Any, B: Any, covariance: Any, N: int) -> float:
    """Half the mean squared error of layers Z <- Z + PZM(ZᵀQZ)/N, P = diag(B, 1), Q = -diag(A, 0), W = Λ⁻¹."""
    d = len(covariance)
    grid, weight = nodes([9] * (N * d) + [2] * (2 * d))
    root, other = (
        np.linalg.cholesky(covariance),
        np.linalg.cholesky(np.linalg.inv(covariance)),
    )
    x = grid[:, : N * d].reshape(-1, d, N)
    task, query = grid[:, N * d : N * d + d] @ other.T, grid[:, N * d + d :] @ root.T
    Z = np.zeros((len(grid), d + 1, N + 1))
    Z[:, :d, :N], Z[:, :d, N] = root @ x, query
    Z[:, d, :N] = np.einsum("ndi,nd->ni", root @ x, task)
    P, Q, mask = (
        np.zeros((d + 1, d + 1)),
        np.zeros((d + 1, d + 1)),
        np.diag([1.0] * N + [0.0]),
    )
    P[d, d] = 1.0
    for keys, change in zip(A, B, strict=True):
        P[:d, :d], Q[:d, :d] = change, -keys
        Z = Z + P @ Z @ mask @ (Z.transpose(0, 2, 1) @ Q @ Z) / N
    error = -Z[:, d, N] - np.sum(task * query, axis=1)
    return 0.5 * float(weight @ error**2)


def test_losses_of_two_hundred_stacks_of_layers() -> None:
    """Two layers and three, all entries of their matrices drawn, of one prompt law after the other."""
    rng = np.random.default_rng(1)
    for at in range(200):
        d, N, D = *((1, 1), (1, 2), (2, 1))[at % 3], 2 + at // 3 % 2
        factor = rng.normal(size=(d, d)) + np.eye(d)
        covariance = factor @ factor.T + 0.1 * np.eye(d)
        A, B = rng.uniform(-0.5, 0.5, (2, D, d, d))
        grid = evidence.hermite_grid([9] * (N * d))
        found = evidence.deep_loss(A, B, covariance, grid)
        assert found == pytest.approx(layers(A, B, covariance, N), rel=1e-10)

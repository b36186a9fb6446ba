"""Counts of tokens that are drawn by Poisson numbers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from icl_theory.tokens.multinomial import multinomial

DRAWS = 100_000


@pytest.mark.parametrize(
    ("N", "probs"),
    [
        (40, (0.5, 0.3, 0.2)),
        (40, (1 / 3, 1 / 3, 1 / 3)),
        (12, (0.4, 0.4, 0.2)),
        (4, (0.5, 0.25, 0.25)),
    ],
)
def test_counts_have_the_multinomial_law(N: int, probs: tuple[float, ...]) -> None:
    """The joint law of all counts, by a test of chi-squared."""
    counts = multinomial(np.random.default_rng(1), N, np.array(probs), DRAWS)
    assert (counts.sum(axis=1) == N).all()
    assert counts.min() >= 0
    index = counts[:, 0] * (N + 1) + counts[:, 1]
    frequencies = np.bincount(index, minlength=(N + 1) ** 2)
    first, second = np.divmod(np.arange((N + 1) ** 2), N + 1)
    third = N - first - second
    possible = third >= 0
    cells = np.stack([first, second, third], axis=1)[possible]
    expected = DRAWS * stats.multinomial.pmf(cells, N, probs)
    observed = frequencies[possible]
    common = expected > 5.0
    rare = [observed[~common].sum(), expected[~common].sum()]
    squares = (observed - expected)[common] ** 2 / expected[common]
    chi_squared = squares.sum() + (rare[0] - rare[1]) ** 2 / max(rare[1], 1.0)
    assert stats.chi2.sf(chi_squared, common.sum()) > 1e-4


def test_many_tokens_have_the_covariance_of_the_law() -> None:
    N = 5000
    probs = np.array([0.6, 0.25, 0.1, 0.05, 0.0])
    draws = 5000
    counts = multinomial(np.random.default_rng(2), N, probs, draws)
    assert (counts[:, 4] == 0).all()
    expected = N * (np.diag(probs) - np.outer(probs, probs))[:4, :4]
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    correlations = np.cov(counts[:, :4].T) / scale
    np.testing.assert_allclose(correlations, expected / scale, atol=0.1)
    errors = np.sqrt(np.diag(expected) / draws)
    z = (counts[:, :4].mean(axis=0) - N * probs[:4]) / errors
    assert np.abs(z).max() < 4.0


@pytest.mark.parametrize(
    ("N", "K"), [(10**12, 3), (2000, 50), (300, 50), (7, 50), (1, 1), (1000, 1)]
)
def test_all_tokens_are_counted(N: int, K: int) -> None:
    """Many tokens, more probabilities than tables, and fewer tokens than cells."""
    probs = np.random.default_rng(0).dirichlet(np.ones(K))
    counts = multinomial(np.random.default_rng(1), N, probs, 200)
    assert counts.shape == (200, K)
    assert (counts.sum(axis=1) == N).all()
    error = np.sqrt(N * probs * (1.0 - probs) / 200.0)
    assert (np.abs(counts.mean(axis=0) - N * probs) <= 5.0 * error + 0.1).all()

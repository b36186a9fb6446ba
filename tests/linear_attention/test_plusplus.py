"""GD++: the loss of layers multiplied out, and the minimum."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy.optimize import minimize

from icl_theory.linear_attention import PlusPlusRisk, best_layers
from icl_theory.testing import check_risk


def layers(a: tuple[float, float], b: float, d: int, N: int) -> float:
    """Half the mean square of the error of two layers Z <- Z + PZM(ZᵀQZ)/N, over all prompts of a grid.

    The tokens have the degree 16, task and query the degree 2. The first layer has P =
    diag(B, 1), Q = -diag(A, 0).
    """
    rules = [
        np.polynomial.hermite_e.hermegauss(n) for n in [9] * (N * d) + [2] * (2 * d)
    ]
    grid = np.stack(
        [each.ravel() for each in np.meshgrid(*(x for x, _ in rules), indexing="ij")],
        axis=1,
    )
    weight = functools.reduce(
        np.multiply.outer, (w / w.sum() for _, w in rules)
    ).ravel()
    x, task, query = np.split(grid, [N * d, N * d + d], axis=1)
    x = x.reshape(-1, N, d)
    Z = np.zeros((len(grid), d + 1, N + 1))
    Z[:, :d, :N], Z[:, :d, N] = x.transpose(0, 2, 1), query
    Z[:, d, :N] = np.einsum("nid,nd->ni", x, task)
    mask = np.diag([1.0] * N + [0.0])
    for length, change in zip(a, (b, 0.0), strict=True):
        P, Q = np.diag([change / length] * d + [1.0]), np.diag([-length] * d + [0.0])
        Z = Z + P @ Z @ mask @ (Z.transpose(0, 2, 1) @ Q @ Z) / N
    error = -Z[:, d, N] - np.sum(task * query, axis=1)
    return 0.5 * float(weight @ error**2)


@pytest.mark.parametrize(("d", "N"), [(1, 1), (1, 3), (2, 1)])
def test_loss_is_that_of_layers_on_all_prompts(d: int, N: int) -> None:
    for params in np.random.default_rng(1).uniform(-0.5, 0.8, (3, 3)):
        a, c, b = params.tolist()
        assert PlusPlusRisk(d, N).loss(params) == pytest.approx(
            layers((a, c), b, d, N), rel=1e-12
        )


def test_losses_of_two_hundred_layers() -> None:
    rng = np.random.default_rng(2)
    for at in range(200):
        d, N = ((1, 1), (1, 2), (2, 1))[at % 3]
        a, c, b = params = rng.uniform(-1.0, 1.5, 3)
        assert PlusPlusRisk(d, N).loss(params) == pytest.approx(
            layers((a, c), b, d, N), rel=1e-10
        )


@pytest.mark.parametrize(("d", "N"), [(2, 2), (8, 20), (8, 1000)])
def test_no_parameters_have_a_lower_loss(d: int, N: int) -> None:
    risk = PlusPlusRisk(d, N)
    two, four = (best_layers(d, N, depth).loss for depth in (2, 4))
    assert four <= risk.floor() < 0.8 * two
    scale, rng = 1.0 / best_layers(d, N, 4).loss, np.random.default_rng(3)

    for start in np.exp(rng.uniform(-2.0, 1.0, (6, 3))):
        assert minimize(
            lambda x: scale * risk.loss(x), start
        ).fun >= scale * risk.floor() * (1.0 - 1e-9)


def test_risk_is_sound() -> None:
    check_risk(PlusPlusRisk(4, 6, (0.3, 0.2, 0.1)))
    assert PlusPlusRisk(3, math.inf).floor() == pytest.approx(0.0, abs=1e-30)
    with pytest.raises(ValueError, match=r"start = \(2,\): must be of shape \(3,\)"):
        PlusPlusRisk(3, 4, [0.0, 0.0])

"""A learning rate that no task can make unstable, from a bound on the curvature of the population loss."""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import Array


def curvature_bound(
    variogram: float | Array, K: float | Array, *, noise: float | Array = 0.0, N: float | Array = math.inf
) -> Array:
    r"""Bound on the largest eigenvalue of the Hessian of the population loss, anywhere, over class scores.

    .. math:: \lambda_{\max}(\nabla^2\mathcal L) \le
        \frac1K\,\bigl(\tfrac32 \max_{m,j} \Gamma_{mj} + \sigma^2\,[N < \infty]\bigr)

    Parameters
    ----------
    variogram : float or ndarray
        Largest :math:`\Gamma_{mj} = \tfrac12 E(f_m - f_j)^2`, squared label units; :math:`\gamma = L^2\Delta^2/2`
        for the exchangeable class.
    K : int or ndarray
        Number of features, equally likely.
    noise : float or ndarray
        Standard deviation σ of the label noise; it averages out for N = ∞.
    N : int, math.inf or ndarray
        Prompt length.

    Returns
    -------
    ndarray
        Squared label units.

    References
    ----------
    docs/theory.md, "A stable learning rate", with the proof.

    Examples
    --------
    >>> from icl_theory.regression.stability import curvature_bound
    >>> round(float(curvature_bound(2.0, 20)), 12)
    0.15
    """
    return np.asarray((1.5 * variogram + np.where(np.isinf(N), 0.0, noise * noise)) / K)


def stable_rate(
    variogram: float | Array,
    K: float | Array,
    *,
    noise: float | Array = 0.0,
    N: float | Array = math.inf,
    speed: float | Array = 1.0,
) -> Array:
    r"""Learning rate at which the loss falls at every step: 1 over the bound on the curvature.

    .. math:: \eta = \frac{K}{\bigl(\tfrac32\max\Gamma + \sigma^2\,[N<\infty]\bigr) \cdot \text{speed}}

    Parameters
    ----------
    variogram, K, noise, N
        As in `curvature_bound`.
    speed : float or ndarray
        Factor on the learning rate that coordinates amount to: ``Δ⁴/4`` for the matrix Q over a simplex.

    Returns
    -------
    ndarray
        Half of what is stable for sure.

    Examples
    --------
    >>> from icl_theory.regression.stability import stable_rate
    >>> round(float(stable_rate(2.0, 20)), 6)
    6.666667
    """
    return 1.0 / (curvature_bound(variogram, K, noise=noise, N=N) * speed)

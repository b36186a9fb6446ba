"""A learning rate that is stable for every task, from a bound on the curvature.

`curvature_bound` bounds the Hessian of the population loss, `stable_rate` is the
learning rate that follows from it, and `embedding_stretch` is the factor on the bound
in embedding coordinates.
"""

from __future__ import annotations

import math

import numpy as np

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    plain_numbers,
    prompt_lengths,
)
from icl_theory.engine.risk import largest_eigenvalue

# The attention t on the wrong one of two features at which the curvature is largest. It
# is the root of 12t² - 15t + 4 at which 4t²(1 - t)(2 - 3t), the curvature in units of
# max Γ/K, has its maximum between 0 and 1.
_WRONG_ATTENTION = (15.0 - math.sqrt(33.0)) / 24.0
# The constant κ, the largest value of 4t²(1 - t)(2 - 3t) between 0 and 1.
CURVATURE = (
    4.0
    * _WRONG_ATTENTION**2
    * (1.0 - _WRONG_ATTENTION)
    * (2.0 - 3.0 * _WRONG_ATTENTION)
)

# The largest variogram, and the ranges of ``speed`` (a factor on the bound) and of the
# bound in `stable_rate`. Within these ranges the bound and its inverse, the learning
# rate, neither overflow nor become subnormal.
LARGEST_VARIOGRAM = 1e290
SMALLEST_SPEED, LARGEST_SPEED = 1e-300, 1e200
SMALLEST_BOUND, LARGEST_BOUND = 1e-300, 1e300


def curvature_bound(
    variogram: float | Array,
    K: float | Array,
    *,
    noise: float | Array = 0.0,
    N: float | Array = math.inf,
) -> Array:
    r"""Bound on the largest eigenvalue of the Hessian of the population loss.

    It holds at all class scores (one score for each feature and query),

    .. math:: \lambda_{\max}(\nabla^2\mathcal L) \le
        \frac{\kappa}{K}\,\bigl(\max_{m,j} \Gamma_{mj} + \sigma^2\,[N < \infty]\bigr),
        \qquad \kappa = \max_{0 \le t \le 1} 4t^2(1 - t)(2 - 3t) = 0.30811714\ldots

    The bracket :math:`[N < \infty]` is 1 for finite prompts and 0 for N = ∞. Two
    features with N = ∞ attain the bound at the attention :math:`(15 - \sqrt{33})/24` on
    the wrong one. For features of unequal probability pass :math:`1/\max_k p_k` as K.
    The proof is in docs/theory.md, "A stable learning rate".

    Parameters
    ----------
    variogram : float or ndarray
        Largest :math:`\Gamma_{mj} = \tfrac12 E(f_m - f_j)^2`, squared label units. For
        the exchangeable class it is :math:`\gamma = L^2\Delta^2/2`, with the Lipschitz
        constant L and the distance Δ of two features.
    K : int or ndarray
        Number of features, equally likely.
    noise : float or ndarray
        Standard deviation σ of the label noise; it averages out for N = ∞.
    N : int, math.inf or ndarray
        Prompt length.

    Returns
    -------
    ndarray
        The bound, in squared label units.

    Examples
    --------
    >>> from icl_theory.regression.risks.stability import curvature_bound
    >>> round(float(curvature_bound(2.0, 20)), 12)
    0.030811714024
    """
    largest_variogram = plain_numbers(
        "variogram", variogram, least=0.0, most=LARGEST_VARIOGRAM
    )
    number_of_features = plain_numbers("K", K, least=1.0)
    deviation = plain_numbers("noise", noise, least=0.0, most=LARGEST)
    averages_out = np.isinf(prompt_lengths(N))
    noise_variance = np.where(averages_out, 0.0, deviation * deviation)
    return np.asarray(
        CURVATURE * (largest_variogram + noise_variance) / number_of_features
    )


def stable_rate(
    variogram: float | Array,
    K: float | Array,
    *,
    noise: float | Array = 0.0,
    N: float | Array = math.inf,
    speed: float | Array = 1.0,
) -> Array:
    r"""Learning rate at which the loss falls at every step.

    It is 1 over the bound on the curvature,

    .. math:: \eta = \frac{K}{\kappa\,\bigl(\max\Gamma
        + \sigma^2\,[N<\infty]\bigr) \cdot \text{speed}},
        \qquad \kappa = 0.30811714\ldots

    Parameters
    ----------
    variogram, K, noise, N
        As in `curvature_bound`.
    speed : float or ndarray
        Factor by which the coordinates raise the bound on the curvature. It is 1 for
        the scores themselves. For a trained matrix Q it is ``embedding_stretch``, which
        is ``Δ⁴/4`` if the features form a simplex or an orthogonal basis with distances
        Δ.

    Returns
    -------
    ndarray
        The learning rate. The bound proves stability up to twice this rate.

    Examples
    --------
    >>> from icl_theory.regression.risks.stability import stable_rate
    >>> round(float(stable_rate(2.0, 20)), 6)
    32.455189
    """
    # A product that overflows is refused below.
    with np.errstate(over="ignore"):
        score_bound = curvature_bound(variogram, K, noise=noise, N=N)
        bound = score_bound * plain_numbers(
            "speed", speed, least=SMALLEST_SPEED, most=LARGEST_SPEED
        )
    if not ((bound > SMALLEST_BOUND) & (bound < LARGEST_BOUND)).all():
        raise argument_error(
            "variogram", variogram, "one with a curvature between 1e-300 and 1e300"
        )
    return 1.0 / bound


def embedding_stretch(vectors: Array) -> float:
    r"""Factor by which embedding coordinates raise the bound on the curvature.

    For scores :math:`S = XQX^\top`,

    .. math:: \lambda_{\max}(\nabla^2_Q\mathcal L) \le \lambda\,
        \lambda_{\max}\bigl((X - \mathbf 1\bar x^\top)(X - \mathbf 1\bar
        x^\top)^\top\bigr)\, \lambda_{\max}(XX^\top) \le
        \lambda\,\lambda_{\max}(XX^\top)^2

    with the bound λ of `curvature_bound`, and the mean :math:`\bar x` of the features,
    the rows of X. A change D of Q changes the scores by :math:`XDX^\top`. The part
    :math:`\mathbf 1\bar x^\top D X^\top` adds the same number to all scores of a query,
    which changes no attention. The function returns the factor on λ in the middle of
    the inequality. See docs/theory.md, "A stable learning rate".

    Parameters
    ----------
    vectors : ndarray, (K, d)
        The features, one in each row. They may have any mean and any lengths.

    Returns
    -------
    float
        The factor. It is Δ⁴/4 for a regular simplex around zero and for an orthogonal
        basis with distances Δ.

    Examples
    --------
    >>> import icl_theory as icl
    >>> from icl_theory.regression.risks.stability import embedding_stretch
    >>> round(embedding_stretch(icl.Features.simplex(5, delta=2.0).vectors), 12)
    4.0
    """
    centred = vectors - vectors.mean(axis=0)
    return _squared_norm(centred) * _squared_norm(vectors)


def _squared_norm(matrix: Array) -> float:
    """Square of the largest singular value, the norm of XᵀX and of XXᵀ.

    It is computed with the smaller one of these two Gram matrices.
    """
    tall = matrix
    if matrix.shape[0] < matrix.shape[1]:
        tall = matrix.T
    # The matrix is divided by its largest entry, because the squares of very small
    # features would underflow.
    largest_entry = float(np.abs(tall).max())
    scaled = tall / largest_entry

    def gram_product(v: Array) -> Array:
        return scaled.T @ (scaled @ v)

    # With metric 1 this is the largest eigenvalue of the Gram matrix itself.
    eigenvalue, _direction = largest_eigenvalue(
        gram_product, shape=(scaled.shape[1],), metric=1.0
    )
    return eigenvalue * largest_entry**2

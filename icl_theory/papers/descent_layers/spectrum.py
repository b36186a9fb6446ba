r"""The mean spectrum of a real Wishart matrix, as nodes and weights of a quadrature.

The matrix is :math:`\hat\Sigma = X^\top X/N` with N rows of d independent standard
normal numbers. Its :math:`k = \min(d, N)` positive eigenvalues, times N, have the joint
density

.. math:: \propto \prod_i x_i^a e^{-x_i/2} \prod_{i<j} |x_i - x_j|, \qquad
    a = \tfrac12(|N - d| - 1) .

With functions :math:`\varphi_i` that span :math:`x^a e^{-x/2}` times the polynomials of
degree below k, and :math:`\Phi_j(x) = \int \mathrm{sgn}(y - x)\,\varphi_j(y)\,dy`, the
mean density of the eigenvalues is

.. math:: \rho(x) = \sum_{ij} (A^{-1})_{ji}\,\varphi_i(x)\,\Phi_j(x), \qquad
    A_{ij} = \int \varphi_i\,\Phi_j\,dx ,

if k is even. If k is odd, the matrix has one row and column more. See
docs/theory/layers.md, "The mean spectrum".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.special import gammaln

from icl_theory._validate import Array, argument_error, integer, prompt_length

# Largest number of positive eigenvalues. The work grows like its square.
MOST_EIGENVALUES = 200
# Largest degree of the polynomials that are integrated: six layers need 728.
MOST_DEGREE = 1000
# Nodes of a Gauss rule on a panel.
PANEL_NODES = 16
# A singular value of X is normal in its tails, with the variance 1. Beyond this
# distance from the edges of the spectrum its density is below e^-98.
REACH = 14.0
# Length of a panel, in singular values of X, for polynomials of low degree.
PANEL_LENGTH = 0.5


class Spectrum(NamedTuple):
    r"""A quadrature for the mean spectrum.

    For every polynomial p up to the degree of the call, :math:`\sum_j w_j p(\lambda_j)
    = E\,\mathrm{tr}\,p(\hat\Sigma) - z\,p(0)`, up to rounding. All weights are
    positive, so the sum of a square keeps its digits even if it is tiny.
    """

    nodes: Array  # λ_j, positive, (J,)
    weights: Array  # w_j, (J,); they sum to the number of positive eigenvalues
    zeros: int  # z, the number of eigenvalues that are zero


def mean_spectrum(d: int, N: float, degree: int, refine: int = 1) -> Spectrum:
    r"""Return a quadrature for the mean spectrum of :math:`\hat\Sigma`.

    Parameters
    ----------
    d : int
        Dimension.
    N : int
        Number of normal vectors, or math.inf for the unit matrix.
    degree : int
        Largest degree of the polynomials, at most 1000.
    refine : int
        Factor on the number of nodes. The difference between 1 and 2 is an estimate of
        the error.

    Returns
    -------
    Spectrum

    Raises
    ------
    ValueError
        An argument is out of range, or both d and N are larger than 200.

    References
    ----------
    docs/theory/layers.md, "The mean spectrum".

    Examples
    --------
    >>> from icl_theory.papers.descent_layers.spectrum import mean_spectrum
    >>> nodes, weights, zeros = mean_spectrum(2, 4, degree=2)
    >>> # the mean of tr(S^2) is d (N + d + 1)/N
    >>> round(float(weights @ nodes**2), 10), zeros
    (3.5, 0)
    """
    d = integer("d", d, minimum=1)
    N = prompt_length(N)
    degree = integer("degree", degree, minimum=0, maximum=MOST_DEGREE)
    refine = integer("refine", refine, minimum=1, maximum=8)
    if math.isinf(N):
        return Spectrum(np.ones(1), np.array([float(d)]), 0)
    if min(d, N) > MOST_EIGENVALUES:
        raise argument_error(
            "d", d, f"at most {MOST_EIGENVALUES} unless N is, which is {int(N)}"
        )
    return _mean_spectrum(d, int(N), degree, refine)


@lru_cache(maxsize=64)
def _mean_spectrum(d: int, N: int, degree: int, refine: int) -> Spectrum:
    """Return the quadrature, by the density that docs/theory/layers.md derives."""
    k = min(d, N)
    n = max(d, N)
    grid = _Grid(k, n, degree, refine)
    phi = _functions(k, 0.5 * (n - k - 1), grid.t**2)
    # dx = 2t dt
    integrals = grid.cumulative(phi * 2.0 * grid.t)
    total = integrals[:, -1:]
    Phi = total - 2.0 * integrals[:, :-1]
    weights = 2.0 * grid.t * grid.weights
    matrix = np.zeros((k + k % 2, k + k % 2))
    matrix[:k, :k] = (phi * weights) @ Phi.T
    # For odd k the matrix has a border.
    if k % 2:
        matrix[:k, k] = total[:, 0]
        matrix[k, :k] = -total[:, 0]
    # The matrix is antisymmetric, up to rounding.
    inverse = np.linalg.inv(0.5 * (matrix - matrix.T))
    density = np.einsum("ix,ji,jx->x", phi, inverse[:k, :k], Phi)
    if k % 2:
        density += inverse[k, :k] @ phi
    nodes = grid.t**2 / N
    weights = weights * density
    # In the far tails, rounding may leave a weight that is zero or negative.
    positive = weights > 0.0
    return Spectrum(nodes[positive], weights[positive], d - k)


def _functions(k: int, a: float, x: Array) -> Array:
    r"""Return :math:`x^a e^{-x/2}` times Laguerre polynomials of degree < k, (k, X).

    The polynomials are those that are orthonormal for :math:`x^{2a+1}e^{-x}`, which can
    be integrated for a = -½, too. Any other basis would give the same density; this one
    keeps the matrix A well conditioned.
    """
    alpha = 2.0 * a + 1.0
    functions = np.empty((k, len(x)))
    functions[0] = np.exp(a * np.log(x) - 0.5 * x - 0.5 * gammaln(alpha + 1.0))
    if k > 1:
        functions[1] = (alpha + 1.0 - x) / math.sqrt(alpha + 1.0) * functions[0]
    for i in range(1, k - 1):
        following = (2.0 * i + alpha + 1.0 - x) * functions[i]
        following -= math.sqrt(i * (i + alpha)) * functions[i - 1]
        functions[i + 1] = following / math.sqrt((i + 1.0) * (i + 1.0 + alpha))
    return functions


class _Grid:
    """Panels of Gauss nodes over the singular values t of X, of which k are positive.

    In t the density is smooth at zero, too, where in x it may be x^-½. The grid ends
    where t^(2 degree) times the density is negligible.
    """

    def __init__(self, k: int, n: int, degree: int, refine: int) -> None:
        upper_edge = math.sqrt(n) + math.sqrt(k)
        begin = max(0.0, math.sqrt(n) - math.sqrt(k) - REACH)
        end = upper_edge + REACH
        for _ in range(50):
            # (t/edge)^(2 degree) e^(-(t - edge)²/2) = e^(-REACH²/2), by iteration
            gained = 4.0 * degree * math.log(end / upper_edge)
            end = upper_edge + math.sqrt(gained + REACH**2)
        panels = math.ceil((end - begin) / PANEL_LENGTH) + degree // 4
        edges = np.linspace(begin, end, refine * panels + 1)
        points, weights = legendre.leggauss(PANEL_NODES)
        self._half_length = 0.5 * (edges[1] - edges[0])
        middles = 0.5 * (edges[:-1] + edges[1:])
        self._panel_weights = weights
        self.t = (middles[:, None] + self._half_length * points).ravel()
        self.weights = np.tile(self._half_length * weights, len(middles))

    def cumulative(self, values: Array) -> Array:
        """Integrals from the first panel up to each node, and over all, (k, T + 1)."""
        k = len(values)
        by_panel = values.reshape(k, -1, PANEL_NODES)
        within = self._half_length * by_panel @ _integration_matrix().T
        panel = self._half_length * by_panel @ self._panel_weights
        up_to_panel = np.cumsum(panel, axis=1)
        before_panel = up_to_panel - panel
        up_to_node = (before_panel[:, :, None] + within).reshape(k, -1)
        return np.concatenate([up_to_node, up_to_panel[:, -1:]], axis=1)


@lru_cache(maxsize=1)
def _integration_matrix() -> Array:
    """The matrix that integrates from -1 to each Gauss node, by interpolation."""
    points, _ = legendre.leggauss(PANEL_NODES)
    # Column j has the Legendre coefficients of the polynomial that is 1 at node j and 0
    # at all others.
    coefficients = np.linalg.inv(legendre.legvander(points, PANEL_NODES - 1))
    antiderivatives = legendre.legint(coefficients, lbnd=-1.0)
    return np.asarray(legendre.legval(points, antiderivatives).T)

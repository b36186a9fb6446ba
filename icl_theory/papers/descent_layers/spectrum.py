r"""The mean spectrum of a real Wishart matrix, as nodes and weights of a quadrature.

The matrix is :math:`\hat\Sigma = X^\top X/N`, where X has N rows of d independent
standard normal numbers. Let :math:`x_1, \dots, x_k` be the :math:`k = \min(d, N)`
positive eigenvalues of :math:`X^\top X`. They have the joint density

.. math:: \propto \prod_i x_i^a e^{-x_i/2} \prod_{i<j} |x_i - x_j|, \qquad
    a = \tfrac12(|N - d| - 1) .

Let the functions :math:`\varphi_i` span :math:`x^a e^{-x/2}` times the polynomials of
degree below k, and let :math:`\Phi_j(x) = \int \mathrm{sgn}(y - x)\,\varphi_j(y)\,dy`.
If k is even, the mean density of these eigenvalues, which has the integral k, is

.. math:: \rho(x) = \sum_{ij} (A^{-1})_{ji}\,\varphi_i(x)\,\Phi_j(x), \qquad
    A_{ij} = \int \varphi_i\,\Phi_j\,dx .

If k is odd, the matrix A has one more row and column, and the density has one more
term. See docs/theory/layers.md, "The mean spectrum".
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy.special import gammaln

from icl_theory._validate import Array, argument_error, integer, prompt_length

# Largest number k of positive eigenvalues; a cautious choice. The work grows like k².
MOST_EIGENVALUES = 200
# Largest degree of the polynomials that are integrated. The loss of six layers, the
# most that `LayersRisk` takes, is the integral of a polynomial of degree 728.
MOST_DEGREE = 1000
# The grid consists of panels, intervals of equal length. This is the number of nodes of
# the Gauss rule on each panel. More nodes would allow longer panels. The difference
# from a grid of twice as many panels estimates the error (`mean_spectrum`).
PANEL_NODES = 16
# The grid of singular values of X begins at this distance below the lower edge of their
# spectrum, or at 0, and ends at least as far above the upper edge. Beyond the edges the
# density falls at least as fast as a normal density of variance 1, so beyond this
# distance it is of the order of e^(-14²/2) = e^-98.
REACH = 14.0
# Length of a panel of singular values t of X, for polynomials of low degree. The tails
# of the density have the width 1. Between the tails, the density varies on this scale
# or more slowly, except for ripples of a few per cent.
PANEL_LENGTH = 0.5
# A polynomial of degree p in t² adds p/4 panels, because powers of t up to t^2p vary
# faster than the density.
DEGREES_PER_PANEL = 4
# Number of iterations of `_end_of_grid`. Near their limit each iteration divides the
# error by 2.6 or more, and 50 iterations are generous.
END_ITERATIONS = 50


class Spectrum(NamedTuple):
    r"""A quadrature for the mean spectrum.

    For every polynomial p up to the degree given to `mean_spectrum`, :math:`\sum_j w_j
    p(\lambda_j) = E\,\mathrm{tr}\,p(\hat\Sigma) - z\,p(0)`, up to rounding, with the
    number z of eigenvalues that are zero. All weights are positive, so the integral of
    a square keeps its digits even if it is tiny.
    """

    nodes: Array  # λ_j > 0, (J,)
    weights: Array  # w_j > 0, (J,); they sum to the number of positive eigenvalues
    zeros: int  # number z of eigenvalues that are zero


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
        Factor by which the number of panels is multiplied, at most 8. The difference
        between the integrals for the factors 1 and 2 is an estimate of the error.

    Returns
    -------
    Spectrum

    Raises
    ------
    ValueError
        An argument is out of range, or both d and N are larger than 200 and N is
        finite.

    References
    ----------
    docs/theory/layers.md, "The mean spectrum".

    Examples
    --------
    >>> from icl_theory.papers.descent_layers.spectrum import mean_spectrum
    >>> nodes, weights, zeros = mean_spectrum(2, 4, degree=2)
    >>> # the mean of the trace of the squared matrix is d (N + d + 1)/N
    >>> round(float(weights @ nodes**2), 10), zeros
    (3.5, 0)
    """
    d = integer("d", d, minimum=1)
    N = prompt_length(N)
    degree = integer("degree", degree, minimum=0, maximum=MOST_DEGREE)
    refine = integer("refine", refine, minimum=1, maximum=8)
    if math.isinf(N):
        # All d eigenvalues of the unit matrix are 1.
        return Spectrum(nodes=np.ones(1), weights=np.array([float(d)]), zeros=0)
    if min(d, N) > MOST_EIGENVALUES:
        raise argument_error(
            "d", d, f"at most {MOST_EIGENVALUES} unless N is, which is {int(N)}"
        )
    return _mean_spectrum(d, int(N), degree, refine)


@lru_cache(maxsize=64)
def _mean_spectrum(d: int, N: int, degree: int, refine: int) -> Spectrum:
    """Return the quadrature, by the density that docs/theory/layers.md derives.

    The letters are those at the top of this file, and n is the larger of d and N. There
    are T nodes x. The arguments must have been checked.
    """
    k = min(d, N)
    n = max(d, N)
    grid = _Grid(k, n, degree, refine)
    x = grid.t**2
    phi = _functions(k, a=0.5 * (n - k - 1), x=x)  # (k, T)
    # Integrals over x are integrals over t with dx = 2t dt.
    integrals = grid.cumulative(phi * 2.0 * grid.t)
    total = integrals[:, -1:]  # over the whole grid, (k, 1)
    # The integral of φ over the points above a node, minus its integral over the points
    # below the node, (k, T).
    Phi = total - 2.0 * integrals[:, :-1]
    x_weights = 2.0 * grid.t * grid.weights
    # If k is odd, the constant 1 is a further function Φ. Its column of A has the
    # integrals of the functions φ. A row of opposite sign keeps A antisymmetric.
    is_odd = k % 2 == 1
    size = k + 1 if is_odd else k
    A = np.zeros((size, size))
    A[:k, :k] = (phi * x_weights) @ Phi.T
    if is_odd:
        A[:k, k] = total[:, 0]
        A[k, :k] = -total[:, 0]
    # A is antisymmetric up to rounding, which the difference removes.
    inverse = np.linalg.inv(0.5 * (A - A.T))
    density = np.einsum("ix,ji,jx->x", phi, inverse[:k, :k], Phi)
    if is_odd:
        # The terms with Φ = 1. No further φ belongs to this Φ.
        density += inverse[k, :k] @ phi
    eigenvalues = x / N  # of XᵀX/N
    weights = x_weights * density
    # In the far tails, rounding may leave a weight that is zero or negative.
    is_positive = weights > 0.0
    return Spectrum(eigenvalues[is_positive], weights[is_positive], zeros=d - k)


def _functions(k: int, a: float, x: Array) -> Array:
    r"""Return :math:`x^a e^{-x/2}` times k Laguerre polynomials, (k, T).

    There are T points x. The polynomials have the degrees 0, ..., k - 1, and are
    orthonormal for the weight :math:`x^{2a+1}e^{-x}`. Their three-term recursion gives
    their values. Every basis of these polynomials gives the same density; this one
    keeps the matrix A well conditioned.
    """
    # If the polynomials had the weight x^2a e^-x, the functions themselves would be
    # orthonormal. But the integral of this weight diverges at x = 0 for a = -½.
    alpha = 2.0 * a + 1.0
    functions = np.empty((k, len(x)))
    # The polynomial of degree 0 is 1/√Γ(α + 1), because the weight has the integral
    # Γ(α + 1).
    functions[0] = np.exp(a * np.log(x) - 0.5 * x - 0.5 * gammaln(alpha + 1.0))
    if k > 1:
        functions[1] = (alpha + 1.0 - x) / math.sqrt(alpha + 1.0) * functions[0]
    # √((i + 1)(i + 1 + α)) p_(i+1) = (2i + α + 1 - x) p_i - √(i (i + α)) p_(i-1) holds
    # for the polynomials p, and so for the functions.
    for i in range(1, k - 1):
        numerator = (2.0 * i + alpha + 1.0 - x) * functions[i]
        numerator -= math.sqrt(i * (i + alpha)) * functions[i - 1]
        functions[i + 1] = numerator / math.sqrt((i + 1.0) * (i + 1.0 + alpha))
    return functions


class _Grid:
    """Panels of Gauss nodes over the k positive singular values t of X.

    The larger of d and N is n. The eigenvalues of XᵀX are x = t². In t the density is
    smooth at zero. In x the density may grow like x^-½ at zero. The grid ends where
    t^(2 degree) times the density is negligible.

    Attributes
    ----------
    t, weights : ndarray, (T,)
        The nodes in t, and their weights in the Gauss rule.
    """

    def __init__(self, k: int, n: int, degree: int, refine: int) -> None:
        # Most singular values are between the edges √n - √k and √n + √k.
        upper_edge = math.sqrt(n) + math.sqrt(k)
        begin = max(0.0, math.sqrt(n) - math.sqrt(k) - REACH)
        end = _end_of_grid(upper_edge, degree)
        panel_count = math.ceil((end - begin) / PANEL_LENGTH)
        panel_count += degree // DEGREES_PER_PANEL
        panel_edges = np.linspace(begin, end, refine * panel_count + 1)
        # Nodes and weights of the Gauss rule on (-1, 1).
        points, weights = legendre.leggauss(PANEL_NODES)
        self._half_length = 0.5 * (panel_edges[1] - panel_edges[0])
        middles = 0.5 * (panel_edges[:-1] + panel_edges[1:])
        self._panel_weights = weights
        self.t = (middles[:, None] + self._half_length * points).ravel()
        self.weights = np.tile(self._half_length * weights, len(middles))

    def cumulative(self, values: Array) -> Array:
        """Integrate k functions, given their values at the T nodes, (k, T).

        The integrals go from the beginning of the grid to each node and, last, to its
        end, (k, T + 1).
        """
        k = len(values)
        by_panel = values.reshape(k, -1, PANEL_NODES)
        # Integrals from the beginning of a panel to each of its nodes, (k, panels,
        # nodes), and over each panel, (k, panels).
        within_panel = self._half_length * by_panel @ _integration_matrix().T
        over_panel = self._half_length * by_panel @ self._panel_weights
        up_to_panel_end = np.cumsum(over_panel, axis=1)
        before_panel = up_to_panel_end - over_panel
        up_to_node = (before_panel[:, :, None] + within_panel).reshape(k, -1)
        return np.concatenate([up_to_node, up_to_panel_end[:, -1:]], axis=1)


def _end_of_grid(upper_edge: float, degree: int) -> float:
    """Return the t > edge with (t/edge)^(2 degree) e^(-(t - edge)²/2) = e^(-REACH²/2).

    The left side is the factor by which the highest power of t, times the tail of the
    density, changes from the edge to t. The result is the fixed point of
    t = edge + √(4 degree ln(t/edge) + REACH²), by iteration.
    """
    t = upper_edge + REACH
    for _ in range(END_ITERATIONS):
        t = upper_edge + math.sqrt(4.0 * degree * math.log(t / upper_edge) + REACH**2)
    return t


@lru_cache(maxsize=1)
def _integration_matrix() -> Array:
    """Return the matrix that integrates a function from -1 to each Gauss node.

    The matrix acts on the values of the function at the nodes in (-1, 1), and
    integrates the polynomial through these values.
    """
    points, _ = legendre.leggauss(PANEL_NODES)
    # Column j has the Legendre coefficients of the polynomial that is 1 at node j and 0
    # at all others.
    coefficients = np.linalg.inv(legendre.legvander(points, PANEL_NODES - 1))
    antiderivatives = legendre.legint(coefficients, lbnd=-1.0)
    # `legval` returns a row for each polynomial, and the transpose has a column for it.
    return np.asarray(legendre.legval(points, antiderivatives).T)

r"""In-context regression by one softmax head, for prompts of any length N.

The head scores tokens by :math:`x_i^\top Ax` for the query x, and predicts b times the
average of the labels with the softmax p of the scores as weights. Tokens have the
covariance Σ. For :math:`A = a\Sigma^{-1}` the risk is an integral over the length r of
the whitened query :math:`\Sigma^{-1/2}x`. The integral needs the moments
:math:`S_2 = E\sum p^2`, :math:`S_3 = E\sum p^3` and :math:`S_{22} = E(\sum p^2)^2` of
the weights. See docs/theory/softmax-limit.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from icl_theory._validate import (
    LARGEST,
    argument_error,
    integer,
    number,
    set_fields,
    signed,
)
from icl_theory.papers.softmax_linear.attention import (
    LARGEST_VARIANCE,
    LONGEST,
    moments_at,
)

# The length r of a whitened query is integrated over √d ± REACH. All other lengths
# together have a probability below 1e-20, for every d.
REACH = 8.5
# Number of nodes of the Gauss-Legendre rule over the length of a whitened query. The
# relative error of the means in `QueryMeans` is then below 1e-8 for a√d near 1, its
# value for the best head. In trials with larger a and up to 10⁹ pairs in a prompt the
# error was up to 2e-7.
LENGTH_NODES = 40
# The lower end of the search for the least risk, as a value of a√d, the standard
# deviation of the scores of a query of typical length. The best a√d is about 1 in high
# dimension. In searches it was never below 0.48 for d from 1 to 10⁶, N from 1 to 10⁹,
# and noise up to 100 times the signal.
SMALLEST_DEVIATION = 0.05
# The search ends when ln a is known to this accuracy. The risk is stationary at its
# minimum, and is then exact to rounding.
SEARCH_ACCURACY = 1e-9


class QueryMeans(NamedTuple):
    """Means over queries of the moments of the weights.

    The length of the whitened query is r, and ρ = r²/d has the mean 1.
    """

    squares: float  # E S_2
    squares_by_length: float  # E S_2 ρ
    spread_by_length: float  # E (S_2 - 6 S_3 + 6 S_22) ρ


class Minimum(NamedTuple):
    """The scale a of the scores and the output weight b with the least risk."""

    a: float
    b: float
    risk: float


@dataclass(frozen=True, eq=False)
class HeadRisk:
    r"""The risk of a softmax head on in-context regression with whitened scores.

    Tokens and query are normal with the covariance Σ, tasks are standard normal, and
    labels have the noise σ. The prediction for the query x is :math:`b\sum_i p_iy_i`
    with :math:`p_i \propto e^{a\,x_i^\top\Sigma^{-1}x}`. With c = ab, the length r of
    the whitened query and :math:`\rho = r^2/d`,

    .. math:: \frac{2\mathcal R_N}{\mathrm{tr}\,\Sigma} = (c - 1)^2
        + b^2\Bigl(1 + \frac{\sigma^2}{\mathrm{tr}\,\Sigma}\Bigr)E S_2
        + c^2E(S_2 - 6S_3 + 6S_{22})\rho - 2c(c - 1)E S_2\rho ,

    with the moments of `weight_moments` at the score variance :math:`v = a^2r^2`. The
    means E are over r, and r² has the χ² law with d degrees of freedom.

    Parameters
    ----------
    d, N : int
        Dimension of the tokens, and number of pairs in a prompt.
    noise : float
        Standard deviation σ of the label noise, label units.
    trace : float, optional
        tr Σ; by default d, for Σ = I.
    nodes : int, optional
        Number of nodes of the integral over r; with 40 its relative error is below 1e-8
        near the best scale a.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/softmax-limit.md; Boursier, Boyer 2025, Section 5.

    Examples
    --------
    The risk of prompts of 1000 pairs, and of infinitely long ones, for the head at
    which training on infinitely long prompts ends; then the best head for 1000 pairs:

    >>> from icl_theory.papers.softmax_linear.regression import HeadRisk
    >>> risk = HeadRisk(d=5, N=1000)
    >>> round(risk.risk(5**-0.25, 5**0.25), 2), round(risk.limit(5**-0.25, 5**0.25), 2)
    (0.09, 0.0)
    >>> best = risk.minimum()
    >>> round(best.a, 3), round(best.b, 2), round(best.risk, 3)
    (0.364, 2.7, 0.046)
    """

    d: int
    N: int
    noise: float = 0.0
    trace: float = 0.0
    nodes: int = LENGTH_NODES

    def __post_init__(self) -> None:
        d = integer("d", self.d, minimum=1, maximum=10**6)
        # A trace of 0, which is not allowed, stands for the default.
        trace = float(d)
        if self.trace != 0.0:
            trace = number("trace", self.trace, maximum=LARGEST)
        set_fields(
            self,
            d=d,
            N=integer("N", self.N, minimum=1, maximum=LONGEST),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            trace=trace,
            nodes=integer("nodes", self.nodes, minimum=1, maximum=1000),
        )

    @property
    def largest_score(self) -> float:
        """The largest scale a of scores.

        At this scale the longest query of the integral, of the length √d + `REACH`, has
        scores of the largest variance that the moments allow, `LARGEST_VARIANCE`.
        """
        return math.sqrt(LARGEST_VARIANCE) / (math.sqrt(self.d) + REACH)

    def means(self, a: float) -> QueryMeans:
        """Return the means over queries of the moments of the weights.

        Parameters
        ----------
        a : float
            Scale of the scores.

        Returns
        -------
        QueryMeans
        """
        # The moments depend on the score variance a²r² alone, so that the sign of a
        # does not matter.
        scale = abs(signed("a", a))
        if scale > self.largest_score:
            raise argument_error(
                "a", a, f"of absolute value up to {self.largest_score:.3g}"
            )
        return _query_means(self.d, self.N, scale, self.nodes)

    def risk(self, a: float, b: float) -> float:
        """Return half of the mean squared distance from the answer without noise.

        The four terms are in the order of the formula of the class.

        Parameters
        ----------
        a, b : float
            Scale of the scores, and output weight.

        Returns
        -------
        float, squared label units
        """
        b = signed("b", b, maximum=LARGEST)
        means = self.means(a)
        c = a * b
        total = (c - 1.0) ** 2
        total += b**2 * self._label_variance_ratio * means.squares
        total += c**2 * means.spread_by_length
        total -= 2.0 * c * (c - 1.0) * means.squares_by_length
        return 0.5 * self.trace * total

    def limit(self, a: float, b: float) -> float:
        """Return the risk of infinitely long prompts, ½(ab - 1)² tr Σ."""
        c = signed("a", a) * signed("b", b, maximum=LARGEST)
        return 0.5 * self.trace * (c - 1.0) ** 2

    def best_output(self, a: float) -> float:
        """Return the output weight b with the least risk for scores of scale a.

        With c = ab the risk is a quadratic function of b, proportional to
        1 - 2b · slope + b² · curvature.
        """
        means = self.means(a)
        curvature = self._label_variance_ratio * means.squares
        curvature += a**2 * (
            1.0 - 2.0 * means.squares_by_length + means.spread_by_length
        )
        slope = a * (1.0 - means.squares_by_length)
        return slope / curvature

    def minimum(self) -> Minimum:
        """Return the scale and the output weight with the least risk.

        The search is over a, from 0.05/√d to `largest_score`, with the best b for each
        a. The search finds a local minimum. In all cases that were tried there is only
        one.

        Returns
        -------
        Minimum
        """
        from scipy.optimize import minimize_scalar  # slow to load

        def risk_of_best_output(log_a: float) -> float:
            """Return the risk with the best output weight for the scale a."""
            a = math.exp(log_a)
            return self.risk(a, self.best_output(a))

        smallest = SMALLEST_DEVIATION / math.sqrt(self.d)
        end = minimize_scalar(
            risk_of_best_output,
            bounds=(math.log(smallest), math.log(self.largest_score)),
            method="bounded",
            options={"xatol": SEARCH_ACCURACY},
        )
        a = math.exp(float(end.x))
        return Minimum(a, self.best_output(a), float(end.fun))

    @property
    def _label_variance_ratio(self) -> float:
        """The variance of labels, relative to their variance tr Σ without noise."""
        return 1.0 + self.noise**2 / self.trace


# The cache helps because searches and curves ask for the same scale of scores with many
# output weights.
@lru_cache(maxsize=1024)
def _query_means(d: int, N: int, a: float, nodes: int) -> QueryMeans:
    """Return the means over queries for checked arguments, with a scale a >= 0.

    The means are integrals over the length r of a whitened query, which has the law of
    χ_d.
    """
    middle = math.sqrt(d)
    low = max(0.0, middle - REACH)
    high = middle + REACH
    # The points of the Gauss-Legendre rule are in [-1, 1]. They are mapped to
    # [low, high].
    points, weights = np.polynomial.legendre.leggauss(nodes)
    lengths = low + 0.5 * (high - low) * (points + 1.0)
    # The density of χ_d is proportional to r^(d - 1) e^(-r²/2). It is divided by its
    # largest value, so that it cannot overflow, and then by its sum over the nodes.
    log_density = (d - 1.0) * np.log(lengths) - 0.5 * lengths**2
    probability = weights * np.exp(log_density - log_density.max())
    probability /= probability.sum()
    rho = lengths**2 / d
    # The scores of a query of length r have the variance a²r².
    all_moments = [moments_at(N, (a * length) ** 2) for length in lengths.tolist()]
    squares = np.array([moments.squares for moments in all_moments])
    spread = np.array([moments.spread for moments in all_moments])
    return QueryMeans(
        squares=float(probability @ squares),
        squares_by_length=float(probability @ (squares * rho)),
        spread_by_length=float(probability @ (spread * rho)),
    )

r"""In-context regression by one softmax head, for prompts of any length.

The head scores tokens by :math:`x_i^\top Ax` and predicts b times the average of the
labels. For :math:`A = a\Sigma^{-1}` all means are integrals over the length of the
whitened query. See docs/theory/softmax-limit.md.
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

# Whitened queries whose length differs by more than this from √d have a probability
# below 1e-18.
REACH = 8.5
# Nodes of the Gauss-Legendre rule in the length of the query.
LENGTH_NODES = 40
# ln a of the search for the minimum, and the accuracy of its end.
LOWEST_LOG_SCORE = -6.0
SEARCH_ACCURACY = 1e-9


class QueryMeans(NamedTuple):
    """Means over queries, with the length r of the whitened query and ρ = r²/d."""

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
    labels have the noise σ. The prediction is :math:`b\sum_i p_iy_i` with :math:`p
    \propto e^{a\,x_i^\top\Sigma^{-1}x}`. With c = ab and :math:`\rho = r^2/d`,

    .. math:: \frac{2\mathcal R_N}{\mathrm{tr}\,\Sigma} = (c - 1)^2
        + b^2\Bigl(1 + \frac{\sigma^2}{\mathrm{tr}\,\Sigma}\Bigr)E S_2
        + c^2E(S_2 - 6S_3 + 6S_{22})\rho - 2c(c - 1)E S_2\rho ,

    with the moments of `weight_moments` at the score variance :math:`v = a^2r^2`, and
    r² of the χ² law with d degrees of freedom.

    Parameters
    ----------
    d, N : int
        Dimension, and pairs in a prompt.
    noise : float
        Standard deviation σ of the label noise, label units.
    trace : float, optional
        tr Σ; by default d, for Σ = I.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    References
    ----------
    docs/theory/softmax-limit.md; Boursier, Boyer 2025, Section 5.

    Examples
    --------
    The end of training in the limit of long prompts, and the least risk of 1000 pairs:

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

    def __post_init__(self) -> None:
        d = integer("d", self.d, minimum=1, maximum=10**6)
        # A trace of 0 stands for the default.
        trace = float(d)
        if self.trace != 0.0:
            trace = number("trace", self.trace, maximum=LARGEST)
        set_fields(
            self,
            d=d,
            N=integer("N", self.N, minimum=1, maximum=LONGEST),
            noise=number("noise", self.noise, zero=True, maximum=LARGEST),
            trace=trace,
        )

    @property
    def largest_score(self) -> float:
        """The largest scale a whose scores have a variance that can be integrated."""
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
        size = abs(signed("a", a))
        if size > self.largest_score:
            raise argument_error(
                "a", a, f"of absolute value up to {self.largest_score:.3g}"
            )
        return _query_means(self.d, self.N, size, LENGTH_NODES)

    def risk(self, a: float, b: float) -> float:
        """Return half of the mean squared error for the noiseless answer.

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
        total += b**2 * self._label_share * means.squares
        total += c**2 * means.spread_by_length
        total -= 2.0 * c * (c - 1.0) * means.squares_by_length
        return 0.5 * self.trace * total

    def limit(self, a: float, b: float) -> float:
        """Return the risk of infinitely long prompts, ½(ab - 1)² tr Σ."""
        c = signed("a", a) * signed("b", b, maximum=LARGEST)
        return 0.5 * self.trace * (c - 1.0) ** 2

    def best_output(self, a: float) -> float:
        """Return the output weight b with the least risk for scores of scale a."""
        means = self.means(a)
        square = self._label_share * means.squares
        square += a**2 * (1.0 - 2.0 * means.squares_by_length + means.spread_by_length)
        return a * (1.0 - means.squares_by_length) / square

    def minimum(self) -> Minimum:
        """Return the scale and the output weight with the least risk.

        The search is over a up to `largest_score`, with the best b for each; the risk
        has one minimum in all cases that we have seen.

        Returns
        -------
        Minimum
        """
        from scipy.optimize import minimize_scalar  # slow to load

        def least(log_a: float) -> float:
            a = math.exp(log_a)
            return self.risk(a, self.best_output(a))

        end = minimize_scalar(
            least,
            bounds=(LOWEST_LOG_SCORE, math.log(self.largest_score)),
            method="bounded",
            options={"xatol": SEARCH_ACCURACY},
        )
        a = math.exp(float(end.x))
        return Minimum(a, self.best_output(a), float(end.fun))

    @property
    def _label_share(self) -> float:
        """Variance of the labels over their variance without noise."""
        return 1.0 + self.noise**2 / self.trace


# A minimum or a flow asks for the same scores with many output weights.
@lru_cache(maxsize=1024)
def _query_means(d: int, N: int, a: float, nodes: int) -> QueryMeans:
    """Integrate over the length of a whitened query, which has the law of χ_d."""
    middle = math.sqrt(d)
    low = max(0.0, middle - REACH)
    high = middle + REACH
    points, weights = np.polynomial.legendre.leggauss(nodes)
    lengths = low + 0.5 * (high - low) * (points + 1.0)
    log_density = (d - 1.0) * np.log(lengths) - 0.5 * lengths**2
    probability = weights * np.exp(log_density - log_density.max())
    probability /= probability.sum()
    by_length = lengths**2 / d
    moments = [moments_at(N, (a * length) ** 2) for length in lengths.tolist()]
    squares = np.array([moment.squares for moment in moments])
    spread = np.array([moment.spread for moment in moments])
    return QueryMeans(
        float(probability @ squares),
        float(probability @ (squares * by_length)),
        float(probability @ (spread * by_length)),
    )

r"""The asymptotic loss, for d and N in proportion, by contour integrals.

For a Wishart matrix S of mean I and a fixed matrix A the resolvents have the
deterministic equivalents

.. math:: E(z - SA)^{-1} \simeq G(z) = (z - s(z)A)^{-1}, \qquad
    s(z) = \Bigl[1 - \tfrac1N\mathrm{tr}\,A G(z)\Bigr]^{-1},

    E(z - SA)^{-1}(z' - AS)^{-1} \simeq \frac{G(z)G(z')}{1 - s(z)s(z')\,v(z, z')},
    \qquad v = \tfrac1N\mathrm{tr}\,A^2G(z)G(z') .

Cauchy's formula turns them into the means of polynomials of S, for many more layers
than exact means can have. See docs/theory/depth-covariance.md, "The limit".
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq

from icl_theory._validate import (
    LARGEST,
    Array,
    argument_error,
    integer,
    number,
    prompt_length,
    real_array,
)
from icl_theory.memory import check_fits
from icl_theory.papers.depth_covariance.moments import (
    moment_diagonal,
    positive_definite,
)

Complex = NDArray[np.complex128]

# Radius of the circle, relative to half the length of the interval that it encloses.
MARGIN = 1.2
# The power 2L of the margin is what cancellation costs. It stays below e^10.
LOG_LOSS_OF_DIGITS = 10.0
# The error of the trapezoidal rule falls like margin^-nodes; this is e^-40.
LOG_TRAPEZOIDAL_ERROR = 40.0
# A circle for this many layers has 820 nodes, and the work grows like their square.
DEEPEST_LIMIT = 100


class Resolvents(NamedTuple):
    """The deterministic equivalents at nodes z around the spectrum of SA."""

    z: Complex  # (Z,)
    dz: Complex  # weights, with 1/(2πi), (Z,)
    s: Complex  # (Z,)
    G: Complex  # diagonal of G in the eigenbasis of A, (Z, d)


def limit_loss(
    eigenvalues: ArrayLike,
    covariance: ArrayLike,
    N: float,
    depth: int,
    prior: ArrayLike | None = None,
    noise: float = 0.0,
) -> float:
    r"""Return the asymptotic loss of L layers, for d and N in proportion.

    The limit has the spectrum and the ratio d/N of the given finite problem. The
    result equals the loss of `DepthRisk` without the terms that vanish in the limit,
    by formulas that share nothing with those of `DepthRisk`.

    Parameters
    ----------
    eigenvalues : array_like, (d,)
        Eigenvalues of Γ in the eigenbasis of Σ.
    covariance, N, prior, noise
        As for `DepthRisk`.
    depth : int
        Number of layers, at most 100.

    Returns
    -------
    float
        Half the mean squared error, squared label units.

    Raises
    ------
    ValueError
        An argument is out of range.

    References
    ----------
    docs/theory/depth-covariance.md, "The limit".

    Examples
    --------
    Fifty layers, each a short step, on prompts as long as the dimension:

    >>> import numpy as np
    >>> from icl_theory.papers.depth_covariance.limit import limit_loss
    >>> d = 20
    >>> loss = limit_loss(np.full(d, 20.0), np.ones(d), N=d, depth=50)
    >>> round(2 * loss / d, 4)
    0.0887
    """
    spectrum = positive_definite("covariance", covariance)
    if spectrum.ndim != 1:
        raise argument_error("covariance", spectrum.shape, "eigenvalues, of shape (d,)")
    d = len(spectrum)
    L = integer("depth", depth, minimum=1, maximum=DEEPEST_LIMIT)
    tasks = np.ones(d) if prior is None else moment_diagonal("prior", prior, d)
    gamma = real_array("eigenvalues", eigenvalues, 1, LARGEST)
    if gamma.shape != (d,):
        raise argument_error("eigenvalues", gamma.shape, f"of shape ({d},)")
    N = prompt_length(N)
    noise = number("noise", noise, zero=True, maximum=LARGEST)
    with np.errstate(over="ignore", invalid="ignore"):
        loss = _loss(gamma * spectrum / L, spectrum * tasks, N, L, noise)
    # Powers of steps that diverge may be beyond float64.
    return loss if math.isfinite(loss) else math.inf


def _loss(a: Array, task: Array, N: float, depth: int, noise: float) -> float:
    """Return the loss for the eigenvalues of A, with the diagonal of Ω̃, (d,) each."""
    if math.isinf(N):
        return 0.5 * float(task @ (1.0 - a) ** (2 * depth))
    if not a.any():
        return 0.5 * float(task.sum())
    resolvents = _resolvents(a, int(N), depth)
    loss = _bias(resolvents, a, task, int(N), depth)
    if noise > 0.0:
        loss += noise**2 / N * _noise(resolvents, a, depth)
    return 0.5 * loss


def _bias(resolvents: Resolvents, a: Array, task: Array, N: int, depth: int) -> float:
    """Mean of tr Ω̃ (I - SA)^L (I - AS)^L."""
    z, dz, s, G = resolvents
    weights = dz * (1.0 - z) ** depth
    numerator = (task * G) @ G.T
    v = (a**2 * G) @ G.T / N
    two_point = numerator / (1.0 - np.outer(s, s) * v)
    return float((weights @ two_point @ weights).real)


def _noise(resolvents: Resolvents, a: Array, depth: int) -> float:
    """Mean of tr A φ(SA) with φ(z) = (1 - (1 - z)^L)²/z."""
    z, dz, _, G = resolvents
    fitted = 1.0 - (1.0 - z) ** depth
    return float((dz * fitted**2 / z @ (G @ a)).real)


def _resolvents(a: Array, N: int, depth: int) -> Resolvents:
    r"""Return the equivalents on a closed curve around the spectrum of SA.

    With y = z/s(z) the equations are solved: :math:`s = 1 + \tfrac1N\sum_k a_k/(y -
    a_k)` and z = ys. The curve is the image of a circle in y.
    """
    margin = min(MARGIN, math.exp(LOG_LOSS_OF_DIGITS / (2 * depth)))
    nodes = math.ceil(LOG_TRAPEZOIDAL_ERROR / math.log(margin))
    check_fits("covariance", a.shape, 64.0 * nodes * (len(a) + nodes))
    left, right = _interval(a, N)
    directions = np.exp(2j * np.pi * (np.arange(nodes) + 0.5) / nodes)
    radius = margin * 0.5 * (right - left) * directions
    y = 0.5 * (left + right) + radius
    from_poles = 1.0 / (y[:, None] - a)
    s = 1.0 + from_poles @ a / N
    dz_dy = 1.0 - from_poles**2 @ a**2 / N
    return Resolvents(y * s, dz_dy * radius / nodes, s, from_poles / s[:, None])


def _interval(a: Array, N: int) -> tuple[float, float]:
    """An interval of y whose ends belong to both ends of the spectrum, or to zero.

    Real y with Σ a²/(y - a)² > N belong to no z outside the spectrum.
    """
    # The tolerance of the search for the ends is absolute.
    scale = float(np.abs(a).max())
    scaled = a[a != 0.0] / scale
    low = _end(scaled, N, float(scaled.min()), -1.0)
    high = _end(scaled, N, float(scaled.max()), 1.0)
    return scale * low, scale * high


def _end(a: Array, N: int, pole: float, side: float) -> float:
    """The end of the interval beyond the outermost eigenvalue ``pole`` on one side."""

    def excess(y: float) -> float:
        return float(np.sum((a / (y - a)) ** 2)) - N

    def z(y: float) -> float:
        return y * (1.0 + float(np.sum(a / (y - a))) / N)

    # The excess is at least 3N at the first distance, and negative at the second.
    near = 0.5 * abs(pole) / math.sqrt(N)
    far = 2.0 * math.sqrt(float(a @ a) / N)
    edge = brentq(excess, pole + side * near, pole + side * far)
    if side * z(edge) < 0.0:
        # All of the spectrum but zero is beyond zero. Zero is an eigenvalue if prompts
        # are shorter than d.
        far += 2.0 * float(np.abs(a).sum()) / N + 2.0 * abs(pole)
        edge = brentq(z, *sorted((edge, pole + side * far)))
    return float(edge)

r"""The asymptotic loss, for d and N in proportion, by contour integrals.

For a Wishart matrix S of mean I and N degrees of freedom, and a fixed matrix A, the
resolvents have the deterministic equivalents

.. math:: E(z - SA)^{-1} \simeq G(z) = (z - s(z)A)^{-1}, \qquad
    s(z) = \Bigl[1 - \tfrac1N\mathrm{tr}\,A G(z)\Bigr]^{-1},

    E(z - SA)^{-1}(z' - AS)^{-1} \simeq \frac{G(z)G(z')}{1 - s(z)s(z')\,v(z, z')},
    \qquad v = \tfrac1N\mathrm{tr}\,A^2G(z)G(z') .

Cauchy's formula turns these equivalents into the means of polynomials of S. The
computation works for more layers than the exact means of `DepthRisk` allow. For L
layers with the matrix Γ, tokens of the covariance Σ and tasks of the second moment Ω,
A is :math:`\Sigma\Gamma/L` and :math:`\tilde\Omega = \Sigma\Omega`, all diagonal. See
docs/theory/depth-covariance.md, "The limit".
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

# The margin is the radius of the circle of nodes, relative to half the length of the
# interval that it encloses. `MARGIN` is its largest value. A larger margin needs fewer
# nodes, but loses more digits with depth.
MARGIN = 1.2
# Terms of size margin^(2L) cancel in the sum over the nodes. The margin is chosen such
# that this size is at most e^10, which costs four or five of the 16 digits.
LOG_LOSS_OF_DIGITS = 10.0
# The error of the trapezoidal rule falls like margin^-nodes. The number of nodes is
# chosen so that the error is e^-40 = 4e-18, which is below the rounding of float64.
LOG_TRAPEZOIDAL_ERROR = 40.0
# A circle for this many layers has 800 nodes, and the work grows like their square. The
# limit is a choice.
DEEPEST_LIMIT = 100


class Resolvents(NamedTuple):
    """The deterministic equivalents at nodes z around the spectrum of SA."""

    z: Complex  # nodes, (Z,)
    # Weights of the integral over z, (Z,), which include the factor 1/(2πi).
    dz: Complex
    s: Complex  # s(z), (Z,)
    G: Complex  # diagonal of G(z) in the eigenbasis of A, (Z, d)


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
    result is the loss of `DepthRisk` without the terms that vanish in the limit, but is
    computed by other formulas.

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
    Fifty layers, each a short step, on prompts with as many pairs as dimensions:

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
    # If the layers diverge, powers such as (1 - a)^2L may be beyond float64, and their
    # differences NaN.
    return loss if math.isfinite(loss) else math.inf


def _loss(a: Array, task: Array, N: float, depth: int, noise: float) -> float:
    """Return the loss, ½ (``_bias`` + σ²/N · ``_noise``).

    The arguments are the eigenvalues a of A, (d,), and the diagonal ``task`` of Ω̃.
    """
    if math.isinf(N):
        # The Wishart matrix S of infinite prompts is I, and noise has no effect.
        return 0.5 * float(task @ (1.0 - a) ** (2 * depth))
    if not a.any():
        # Γ = 0: nothing is predicted, and there is no interval for a curve to enclose.
        return 0.5 * float(task.sum())
    resolvents = _resolvents(a, int(N), depth)
    loss = _bias(resolvents, a, task, int(N), depth)
    if noise > 0.0:
        loss += noise**2 / N * _noise(resolvents, a, depth)
    return 0.5 * loss


def _bias(resolvents: Resolvents, a: Array, task: Array, N: int, depth: int) -> float:
    """Return the mean of tr Ω̃ (I - SA)^L (I - AS)^L.

    It is the double integral of (1 - z)^L (1 - z')^L tr(Ω̃ G G')/(1 - s s' v). The
    matrices below have a row for each node z and a column for each node z'.
    """
    z, dz, s, G = resolvents
    weights = dz * (1.0 - z) ** depth
    numerator = (task * G) @ G.T
    v = (a**2 * G) @ G.T / N
    two_point = numerator / (1.0 - np.outer(s, s) * v)
    return float((weights @ two_point @ weights).real)


def _noise(resolvents: Resolvents, a: Array, depth: int) -> float:
    """Return the mean of tr A φ(SA) with φ(z) = (1 - (1 - z)^L)²/z.

    It is the integral of φ(z) tr A G(z).
    """
    z, dz, _, G = resolvents
    fitted = 1.0 - (1.0 - z) ** depth
    # The weights dz of the integral, each times φ(z).
    weights = dz * fitted**2 / z
    return float((weights @ (G @ a)).real)


def _resolvents(a: Array, N: int, depth: int) -> Resolvents:
    r"""Return the equivalents on a closed curve around the spectrum of SA.

    In the variable y = z/s(z) the equations have an explicit solution: :math:`s = 1 +
    \tfrac1N\sum_k a_k/(y - a_k)`, z = ys and G = (y - A)⁻¹/s. The curve is the image
    of a circle in y.
    """
    margin = min(MARGIN, math.exp(LOG_LOSS_OF_DIGITS / (2 * depth)))
    nodes = math.ceil(LOG_TRAPEZOIDAL_ERROR / math.log(margin))
    # A generous bound, in bytes: four complex arrays (Z, d) and four (Z, Z), with 16
    # bytes for each number.
    check_fits("covariance", a.shape, 64.0 * nodes * (len(a) + nodes))
    left, right = _interval(a, N)
    # The trapezoidal rule on a circle is equally accurate for any first node. The first
    # node is half a step off the real axis, which is a choice.
    directions = np.exp(2j * np.pi * (np.arange(nodes) + 0.5) / nodes)
    from_centre = margin * 0.5 * (right - left) * directions
    y = 0.5 * (left + right) + from_centre
    inverse_distances = 1.0 / (y[:, None] - a)
    s = 1.0 + inverse_distances @ a / N
    dz_dy = 1.0 - inverse_distances**2 @ a**2 / N  # the derivative of z = ys
    # From one node to the next dy = 2πi (y - centre)/nodes, and the integral is divided
    # by 2πi.
    return Resolvents(
        z=y * s,
        dz=dz_dy * from_centre / nodes,
        s=s,
        G=inverse_distances / s[:, None],
    )


def _interval(a: Array, N: int) -> tuple[float, float]:
    """Return an interval of y that a circle has to enclose.

    At the ends of the interval z is at the ends of the spectrum of SA, or at zero. The
    interval contains the real y with Σ a²/(y - a)² > N, because such y belong to no z
    outside the spectrum.
    """
    # The search for the ends has an absolute tolerance, so the eigenvalues are scaled
    # to at most 1 before. Eigenvalues of zero have no effect on z.
    scale = float(np.abs(a).max())
    scaled = a[a != 0.0] / scale
    low = _end(scaled, N, float(scaled.min()), side=-1.0)
    high = _end(scaled, N, float(scaled.max()), side=1.0)
    return scale * low, scale * high


def _end(a: Array, N: int, pole: float, side: float) -> float:
    """Return the end of the interval on one side: -1 for the left, 1 for the right.

    The end is beyond ``pole``, the outermost eigenvalue of A on this side.
    """

    def excess(y: float) -> float:
        """Return Σ a²/(y - a)² - N, zero if z(y) is an end of the spectrum of SA."""
        return float(np.sum((a / (y - a)) ** 2)) - N

    def z(y: float) -> float:
        """Return z = ys."""
        return y * (1.0 + float(np.sum(a / (y - a))) / N)

    # At the near distance from the pole the pole's term of Σ a²/(y - a)² is 4N. At the
    # far distance all terms together are at most N/4. So the excess changes its sign.
    near = 0.5 * abs(pole) / math.sqrt(N)
    far = 2.0 * math.sqrt(float(a @ a) / N)
    edge = brentq(excess, pole + side * near, pole + side * far)
    if side * z(edge) < 0.0:
        # All eigenvalues of SA other than zero are on the other side of zero, and zero
        # is an eigenvalue if N < d. So the interval has to extend to the y at which
        # z = 0. At the new far distance y has the sign of ``side``. z = ys has the same
        # sign, because Σ |a/(y - a)| is at most N/2 at this distance, so that s is at
        # least ½.
        far += 2.0 * float(np.abs(a).sum()) / N + 2.0 * abs(pole)
        edge = brentq(z, *sorted((edge, pole + side * far)))
    return float(edge)

r"""Log losses with many exchangeable labels, as one integral.

A label that occurs n times in a prompt has the logit β n, as after attention with a
known denominator. Let D be the logit of the right label. Let T be the sum of e^logit
over the labels x whose counts n_x are random, and C the sum over all other labels. Then

.. math:: E \ln\bigl(1 + (T + C) e^{-D}\bigr)
    = \int_0^\infty e^{-s e^D} \bigl(1 - e^{-sC}\, E e^{-sT}\bigr) \frac{ds}{s},
    \qquad T = \sum_x e^{\beta n_x},

because :math:`\ln(1 + R) = \int e^{-s} (1 - e^{-sR})\, ds/s`. The counts are
multinomial. So :math:`E e^{-sT}` is a coefficient of a product of power series, with
one series for each label, and a coefficient is a sum over points z on a circle around
zero. All terms of the integral have one sign, so that small losses keep their digits.
See docs/theory.md, "Many labels".

In the shapes below, A is the number of answers (losses that are computed at once) and J
the number of nodes of the integral.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    EXACT,
    Array,
    argument_error,
    integer,
    number,
    plain_numbers,
    real_array,
    signed,
)
from icl_theory.memory import check_fits

# Number of nodes that are evaluated at a time: their arrays stay in the cache.
BLOCK = 512
# Log of the factor by which rounding errors may grow: ten digits must remain.
MOST_LOST = math.log(1e-10 / 2.0**-52)
LARGEST_LOGIT = 1e13
# exp() of a larger number overflows.
LOG_LARGEST = 700.0
# A number of tokens of one label is left out if its probability is below RARE².
RARE = 1e-30
# A point of the circle is left out if its value is below e^(-60) of the largest.
NEGLIGIBLE = 60.0
# Points of the circle beyond the largest number of tokens.
MORE_POINTS = 128


class LogLoss(NamedTuple):
    """E ln(1 + (T + C)e^-D), nats, and its derivatives, (A,) each."""

    value: Array
    by_top: Array  # derivative with respect to D
    by_beta: Array  # derivative with respect to β
    by_rest: Array  # derivative with respect to ln C


def mean_log_loss(
    top: ArrayLike,
    beta: float,
    log_rest: float,
    tokens: ArrayLike,
    labels: int,
    silent: int = 0,
    *,
    density: float | None = None,
) -> LogLoss:
    r"""Mean log loss of a label with a known logit against many random logits.

    .. math:: E \ln\Bigl(1 + e^{-D}\bigl(C + \sum_{x=1}^P e^{\beta n_x}\bigr)\Bigr),
        \qquad
        (n_1, \ldots, n_{P+S}) \sim \text{multinomial}(n; \tfrac{1}{P+S}, \ldots)

    The mean of :math:`\ln(e^D + C + \sum_x e^{\beta n_x})`, the log of the partition
    function, is larger by D.

    Parameters
    ----------
    top : array_like
        D, finite, (A,). If several labels are right, D is the log of the sum of e^logit
        over them.
    beta : float
        β, of either sign.
    log_rest : float
        ln C, the log of the sum over all other labels; ``-math.inf`` if there are none.
    tokens : array_like
        n, the number of tokens that are spread over the labels, integers, (A,).
    labels : int
        P, number of labels with the logit β n_x.
    silent : int
        S, number of further labels that the tokens are spread over. Their logits are
        part of C.
    density : float, optional
        A number of tokens per label. With it, all n share one set of nodes, which saves
        time. The less probable n is for a Poisson variable with the mean
        (P + S) density, the more digits its loss loses. If ten digits would not
        remain, n is refused.

    Returns
    -------
    LogLoss
        The mean loss, and its derivatives with respect to D, β and ln C.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it. Logits beyond 1e13 are out of
        range, because the nodes of the integral coincide there in float64.

    References
    ----------
    docs/theory.md, "Many labels".

    Examples
    --------
    Three labels share two tokens, and all other labels together have e^0.5:

    >>> import math
    >>> loss = mean_log_loss([1.0], 0.7, 0.5, [2], 3)
    >>> rest, p = math.exp(0.5), math.exp(0.7)
    >>> one_label = math.log1p(math.exp(-1.0) * (rest + p**2 + 2))
    >>> two_labels = math.log1p(math.exp(-1.0) * (rest + 2 * p + 1))
    >>> expected = (one_label + 2 * two_labels) / 3
    >>> abs(float(loss.value[0]) / expected - 1) < 1e-14
    True
    """
    problem = _checked(top, beta, log_rest, tokens, labels, silent)
    n = problem.tokens
    m = problem.P + problem.S
    if density is not None:
        density = number("density", density)
        lost = log_poisson(n, n) - log_poisson(n, density * max(m, 1))
        worst = int(np.argmax(lost))
        if lost[worst] > MOST_LOST:
            raise argument_error(
                "density",
                density,
                f"nearer to tokens/labels: {n[worst]} tokens on {m} labels "
                "would not keep ten digits",
            )
        return LogLoss(*_integrate(problem, density))
    sums = np.empty((4, len(n)))
    for number_of_tokens in np.unique(n):
        same = n == number_of_tokens
        radius = max(float(number_of_tokens), 1.0) / max(m, 1)
        part = problem._replace(top=problem.top[same], tokens=n[same])
        sums[:, same] = _integrate(part, radius)
    return LogLoss(*sums)


def shared_log_loss(
    top: ArrayLike,
    beta: float,
    log_rest: float,
    tokens: ArrayLike,
    labels: int,
    silent: int,
    density: float,
) -> LogLoss:
    """Return `mean_log_loss` with one ``density`` for all numbers of tokens.

    Improbable numbers of tokens are not refused, although their losses lose digits. Use
    this for averages over the number of tokens, in which such losses have small
    weights.
    """
    problem = _checked(top, beta, log_rest, tokens, labels, silent)
    return LogLoss(*_integrate(problem, number("density", density)))


class _Problem(NamedTuple):
    """The checked arguments of `mean_log_loss`."""

    top: Array  # D, (A,)
    beta: float
    log_rest: float  # ln C
    tokens: NDArray[np.int64]  # n, (A,)
    P: int  # labels with the logit β n_x
    S: int  # labels whose logits are part of C


def _checked(
    top: ArrayLike,
    beta: float,
    log_rest: float,
    tokens: ArrayLike,
    labels: int,
    silent: int,
) -> _Problem:
    """Check the arguments of `mean_log_loss` other than the density."""
    numbers = np.asarray(plain_numbers("tokens", tokens, 0.0, EXACT))
    D = real_array("top", top, 1, LARGEST_LOGIT)
    n = numbers.astype(np.int64)
    if not D.size or n.shape != D.shape or (n != numbers).any():
        raise argument_error(
            "tokens", tokens, "integers >= 0, one for each entry of top"
        )
    is_number = isinstance(log_rest, float | np.floating)
    if not (is_number and log_rest == -math.inf):
        log_rest = signed("log_rest", log_rest, maximum=LARGEST_LOGIT)
    most = max(float(n.max()), 1.0)
    beta = signed("beta", beta, maximum=LARGEST_LOGIT / most)
    P = integer("labels", labels, minimum=0)
    S = integer("silent", silent, minimum=0)
    if P + S == 0 and n.any():
        raise argument_error("labels", labels, "at least 1: there are tokens to spread")
    return _Problem(D, beta, float(log_rest), n, P, S)


class _Circle(NamedTuple):
    """Points z on a circle of the radius r, and the power series in z of one label."""

    k: NDArray[np.intp]  # numbers of tokens of one label that are not too rare, (k,)
    poisson: Array  # e^(-r) r^k/k!, (k,)
    powers: Array  # (z/r)^k, (points, k)
    shift: Array  # z - r, (points,)
    # Matrix from values at the points to the coefficients of z^n, with a column for
    # each different number n of tokens, (points, n).
    coefficients: Array
    place: NDArray[np.intp]  # the column of the number of tokens of each answer, (A,)

    def of_tokens(self, values: Array) -> Array:
        """Return the coefficients of z^n of a function, (J, A).

        The ``values`` of the function at the points are (J, points).
        """
        return (values @ self.coefficients).real[:, self.place]


def _circle(problem: _Problem, radius: float) -> _Circle:
    """Return the points of a circle of this radius, and what depends on them alone."""
    m = problem.P + problem.S
    # Many answers may have only a few different numbers of tokens.
    n = np.unique(problem.tokens)
    place = np.searchsorted(n, problem.tokens)
    most = int(n[-1])
    check_fits("tokens", most, 40.0 * most)
    k = np.arange(most + 1)
    poisson = np.exp(log_poisson(k, radius))
    k = k[poisson > RARE**2]
    poisson = poisson[poisson > RARE**2]
    # Only the upper half of the circle is needed, because the values on the lower half
    # are the conjugates. Points at which e^(mz) is below e^(-60) of its largest value
    # are left out.
    points = most + MORE_POINTS
    reach = min(NEGLIGIBLE / ((m - 1) * radius), 2.0) if m > 1 else 2.0
    last = math.ceil(points * math.acos(1.0 - reach) / (2.0 * math.pi))
    point = np.arange(min(last, points // 2) + 1)
    check_fits(
        "tokens",
        most,
        24.0 * (len(point) + BLOCK) * len(k) + 64.0 * BLOCK * len(point),
    )
    roots = np.exp(2j * np.pi / points * np.arange(points))
    powers = roots[-point[:, None] * k % points]
    is_real = (point == 0) | (2 * point == points)
    weight = np.where(is_real, 1.0, 2.0) / points
    coefficients = (
        weight[:, None]
        * roots[point[:, None] * n % points]
        * np.exp(-log_poisson(n, m * radius))
    )
    shift = radius * (roots[point] - 1.0).conj()
    return _Circle(k, poisson, powers, shift, coefficients, place)


def _integrate(problem: _Problem, radius: float) -> Array:
    """Return the value and the derivatives with respect to D, β and ln C, (4, A)."""
    D = problem.top
    beta = problem.beta
    m = problem.P + problem.S
    circle = _circle(problem, radius)
    k = circle.k
    most = int(problem.tokens.max())
    largest = k[circle.poisson * (m + 1) * (most + 1) > RARE][-1]
    breaks = [-D, -beta * np.arange(largest + 1)]
    if problem.log_rest > -math.inf:
        breaks.append(np.array([-problem.log_rest]))
    value, by_top, by_beta, by_rest = np.zeros((4, len(D)))
    nodes = _nodes(np.concatenate(breaks), -float(D.min()), math.log(m + 1.0))
    for log_s, width in nodes:
        s_label = np.exp(np.minimum(log_s[:, None] + beta * k, LOG_LARGEST))  # s e^(βk)
        s_top = np.exp(np.minimum(log_s[:, None] + D, LOG_LARGEST))  # s e^D
        s_rest = np.exp(np.minimum(log_s + problem.log_rest, LOG_LARGEST))  # s C
        # h, the series of 1 - e^(-s e^(βk)), and its derivative with respect to β
        h = (circle.poisson * -np.expm1(-s_label)) @ circle.powers.T
        slope = (circle.poisson * k * s_label * np.exp(-s_label)) @ circle.powers.T
        missing, change = _products(h, slope, circle.shift, problem.P, problem.S)
        # 1 - E e^(-sT), and its derivative with respect to β
        missing = circle.of_tokens(missing)
        change = circle.of_tokens(change)
        weight = width[:, None] * np.exp(-s_top)
        decay = np.exp(-s_rest)[:, None]
        integrand = -np.expm1(-s_rest)[:, None] + decay * missing
        value += np.sum(weight * integrand, axis=0)
        by_top -= np.sum(weight * s_top * integrand, axis=0)
        by_beta += np.sum(weight * decay * change, axis=0)
        kept = 1.0 - missing
        by_rest += np.sum(weight * decay * s_rest[:, None] * kept, axis=0)
    return np.array([value, by_top, by_beta, by_rest])


def _products(
    h: Array, slope: Array, shift: Array, P: int, S: int
) -> tuple[Array, Array]:
    """Return the generating functions of 1 - E e^(-sT) and of its β-derivative.

    They are given on the circle, (J, points) each. Let r be the mean count of a label,
    and m = P + S the number of labels. If one label has the generating function
    e^(z-r) - h(z), then 1 - E e^(-sT) has e^(m(z-r)) - e^(S(z-r)) (e^(z-r) - h(z))^P.
    """
    if P == 0:
        return np.zeros_like(h), np.zeros_like(h)
    ratio = h * np.exp(-shift)
    is_small = np.abs(ratio) < 0.5
    # ln(1 - ratio): its real part needs 1 - |1 - ratio|² without cancellation
    square = 2.0 * ratio.real - ratio.real**2 - ratio.imag**2
    small = 0.5 * np.log1p(-np.where(is_small, square, 0.0))
    with np.errstate(divide="ignore"):
        large = np.log(np.abs(1.0 - ratio))
    # A finite number stands for ln 0: P times -inf would have the imaginary part NaN.
    size = np.maximum(np.where(is_small, small, large), -1e300)
    log = size + 1j * np.arctan2(-ratio.imag, 1.0 - ratio.real)
    whole = (P + S) * shift
    missing = np.where(
        is_small,
        -np.exp(whole) * np.expm1(P * log),
        np.exp(whole) - np.exp(whole + P * log),
    )
    return missing, P * slope * np.exp(whole - shift + (P - 1) * log)


def _joined(starts: Array, length: int) -> Array:
    """Return the integers, ascending, of ranges of one length that may overlap."""
    starts = np.unique(starts)
    # Hundreds of ranges may overlap, so each begins where the one before it ends.
    after_last = np.append(starts[:1], starts[:-1] + length)
    firsts = np.maximum(starts, after_last)
    ranges = [
        np.arange(first, start + length)
        for first, start in zip(firsts.tolist(), starts.tolist(), strict=True)
    ]
    return np.concatenate(ranges)


def _nodes(
    breaks: Array,
    last: float,
    spread: float,
    step: float = 0.25,
    before: float = 42.0,
    after: float = 6.0,
) -> list[tuple[Array, Array]]:
    """Return blocks of nodes ln s and of their weights, (J,) each.

    A factor exp(-s e^D) of the integrand has a *break* at ln s = -D: it is 1 to
    rounding until a distance ``before`` the break, and 0 to rounding from a distance
    ``after`` the break on. Between such ranges around the breaks the integrand is
    constant, and there are no nodes. Beyond the last break of the right labels,
    ``last``, the whole integrand vanishes. With ln s = u - e^(-(u - first)) there
    are fewer and fewer nodes towards small s, where the integrand is proportional to s.
    The trapezoidal rule in u has the error e^(-π²/step).
    """
    first = float(breaks.min()) - spread - 2.0
    # No gap may lie where ln s is not yet equal to u.
    places = np.append(breaks, first + before - after)
    number = _joined(
        np.rint((places - spread - before - first) / step),
        math.ceil((spread + before + after) / step) + 1,
    )
    u = first + step * number
    # At u = first - 3.8, ln s is 48 below ``first``.
    u = u[(u > first - 3.8) & (u < last + after + step)]
    tail = np.exp(-(u - first))
    log_s = u - tail
    width = step * (1.0 + tail)
    # The nodes on both sides of a gap get half of its length as additional weight.
    gap = np.flatnonzero(np.diff(u) > 1.5 * step)
    for edge in (gap, gap + 1):
        width[edge] += 0.5 * (log_s[gap + 1] - log_s[gap] - step)
    return [
        (log_s[start : start + BLOCK], width[start : start + BLOCK])
        for start in range(0, len(log_s), BLOCK)
    ]


def log_poisson(k: ArrayLike, mean: ArrayLike) -> Array:
    """Return the log of a Poisson probability.

    For the mean m it is k ln m - m - ln k!, in which large numbers cancel. So ln k! is
    split into k ln k - k, which is joined with the other terms, and Stirling's small
    remainder.
    """
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.asarray(k, dtype=np.float64)
    mean = np.asarray(mean, dtype=np.float64)
    gap = k - mean
    ratio = np.divide(gap, mean, out=np.where(gap > 0.0, np.inf, 0.0), where=mean > 0.0)
    log = gap - xlog1py(k, ratio)
    # ln k! - k ln k + k, directly for small k and by Stirling's series for large k
    x = 1.0 / np.maximum(k, 16.0)
    y = x * x
    series = x * (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188))))
    small = gammaln(k + 1.0) - xlogy(k, k) + k
    large = 0.5 * np.log(2.0 * np.pi / x) + series
    return np.asarray(log - np.where(k < 16.0, small, large))

r"""Log losses with many exchangeable labels, as one integral.

A label that occurs n times in a prompt has the logit β n. (Attention gives such logits
if its denominator does not depend on the labels.) Let D be the logit of the right
label. Let T be the sum of e^logit over the labels x whose logits β n_x are random, and
C the sum over all other wrong labels. Then

.. math:: E \ln\bigl(1 + (T + C) e^{-D}\bigr)
    = \int_0^\infty e^{-s e^D} \bigl(1 - e^{-sC}\, E e^{-sT}\bigr) \frac{ds}{s},
    \qquad T = \sum_x e^{\beta n_x},

because :math:`\ln(1 + R) = \int_0^\infty e^{-s} (1 - e^{-sR})\, ds/s`, in which
:math:`R = (T + C) e^{-D}` and s is replaced by :math:`s e^D`. The counts are
multinomial. So :math:`E e^{-sT}` is a coefficient of a product of power series, with
one series for each label. A coefficient is computed as a sum over points z on a circle
around zero. All terms of the integral have one sign, so small losses keep their digits.
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
LARGEST_LOG_GROWTH = math.log(1e-10 / 2.0**-52)
# Neighbouring float64 numbers of this size are 0.002 apart. Nodes of the integral are
# 0.25 apart in ln s, and would coincide at logits that are 500 times as large.
LARGEST_LOGIT = 1e13
# Larger exponents are cut to this number: exp() of a number above 709 overflows.
LOG_LARGEST = 700.0
# A number of tokens of one label is left out if its probability is below RARE². A more
# probable number is used, but without nodes of its own if its probability times the
# numbers of labels and of tokens is below `RARE`.
RARE = 1e-30
# A point of the circle is left out if its value is below e^(-60) of the largest value:
# that is 1e-26, far below rounding.
NEGLIGIBLE = 60.0
# The number of points of the circle minus the largest number of tokens. With p points,
# a computed coefficient of z^n also contains the coefficients of z^(n + p), z^(n + 2p)
# and so on. For this p they are far below rounding.
MORE_POINTS = 128
# If the |ratio| of `_products` is below this, expm1 and log1p keep the digits of small
# differences. For larger ratios the direct formulas hardly lose a digit. Another limit
# that is not near 0 or 1 would do as well.
LARGEST_SMALL_RATIO = 0.5


class LogLoss(NamedTuple):
    """The mean log loss E ln(1 + (T + C)e^(-D)) and its derivatives, (A,) each."""

    value: Array  # in nats
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
    r"""Return the mean log loss of a label with a known logit among random logits.

    .. math:: E \ln\Bigl(1 + e^{-D}\bigl(C + \sum_{x=1}^P e^{\beta n_x}\bigr)\Bigr),
        \qquad
        (n_1, \ldots, n_{P+S}) \sim \text{multinomial}(n; \tfrac{1}{P+S}, \ldots)

    The mean log of the partition function, :math:`\ln(e^D + C + \sum_x e^{\beta n_x})`,
    is larger by D.

    Parameters
    ----------
    top : array_like
        D, finite, (A,). If several labels are right, D is the log of the sum of e^logit
        over them.
    beta : float
        β, of either sign.
    log_rest : float
        ln C, the log of the sum of e^logit over all other wrong labels; ``-math.inf``
        if there are none.
    tokens : array_like
        n, the number of tokens that are spread over the labels, integers, (A,).
    labels : int
        P, number of labels with the logit β n_x.
    silent : int
        S, number of further labels that the tokens are spread over. Their e^logit are
        part of C.
    density : float, optional
        A number of tokens per label. If it is given, all n share one set of nodes,
        which saves time. The less probable n is for a Poisson variable with the mean
        ``(P + S) * density``, the more digits its loss loses. An n whose loss would
        keep fewer than ten digits is refused.

    Returns
    -------
    LogLoss
        The mean loss, and its derivatives with respect to D, β and ln C.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it. Logits beyond 1e13 are out of
        range, because float64 hardly resolves the nodes of the integral there.

    References
    ----------
    docs/theory.md, "Many labels".

    Examples
    --------
    Three labels share two tokens, and C = e^0.5 is the sum over all other labels:

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
    m = problem.P + problem.S  # labels that the tokens are spread over
    if density is not None:
        density = number("density", density)
        # A coefficient of z^n is computed as a sum over a circle of the radius
        # ``density``. The terms, and so the rounding errors, are larger than the sum.
        # The ratio of the terms to the sum is least if the Poisson mean, density times
        # m, is n. With the given density, ``log_growth`` is the log of the factor by
        # which the ratio exceeds its least value.
        log_growth = log_poisson(n, n) - log_poisson(n, density * max(m, 1))
        worst = int(np.argmax(log_growth))
        if log_growth[worst] > LARGEST_LOG_GROWTH:
            raise argument_error(
                "density",
                density,
                f"nearer to tokens/labels: {n[worst]} tokens on {m} labels "
                "would not keep ten digits",
            )
        return _integrate(problem, density)
    loss = LogLoss(*np.empty((4, len(n))))
    for number_of_tokens in np.unique(n):
        is_this_number = n == number_of_tokens
        # The best radius of the circle is the mean number of tokens of a label. Zero
        # tokens are treated as one here, because the radius must be positive.
        radius = max(float(number_of_tokens), 1.0) / max(m, 1)
        part = problem._replace(
            top=problem.top[is_this_number], tokens=n[is_this_number]
        )
        # The loss and each of its derivatives.
        for values, values_of_part in zip(loss, _integrate(part, radius), strict=True):
            values[is_this_number] = values_of_part
    return loss


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
    this function for averages over the number of tokens, in which such losses have
    small weights.
    """
    problem = _checked(top, beta, log_rest, tokens, labels, silent)
    return _integrate(problem, number("density", density))


class _Problem(NamedTuple):
    """The checked arguments of `mean_log_loss`."""

    top: Array  # D, (A,)
    beta: float
    log_rest: float  # ln C
    tokens: NDArray[np.int64]  # n, (A,)
    P: int  # labels with the logit β n_x
    S: int  # further labels of the tokens, whose e^logit are part of C


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
    # A C of zero has the logarithm -inf, which `signed` would refuse.
    is_float = isinstance(log_rest, float | np.floating)
    if not (is_float and log_rest == -math.inf):
        log_rest = signed("log_rest", log_rest, maximum=LARGEST_LOGIT)
    # The largest possible logit is β n.
    most = max(float(n.max()), 1.0)
    beta = signed("beta", beta, maximum=LARGEST_LOGIT / most)
    P = integer("labels", labels, minimum=0)
    S = integer("silent", silent, minimum=0)
    if P + S == 0 and n.any():
        raise argument_error("labels", labels, "at least 1: there are tokens to spread")
    return _Problem(D, beta, float(log_rest), n, P, S)


class _Circle(NamedTuple):
    """Points z on a circle of the radius r, and the power series in z of one label.

    The points are on one half of the circle. On the other half the values of all
    functions are the conjugates; the weights in ``to_means`` account for them.
    """

    k: NDArray[np.intp]  # numbers of tokens of one label that are not too rare, (k,)
    poisson: Array  # e^(-r) r^k/k!, (k,)
    powers: Array  # (z/r)^k, complex, (points, k)
    shift: Array  # z - r, complex, (points,)
    # Matrix from the values of a generating function to means over the multinomial
    # counts, with a column for each different number n of tokens, complex, (points, n).
    to_means: Array
    column: NDArray[np.intp]  # the column of each answer's number of tokens, (A,)

    def multinomial_means(self, values: Array) -> Array:
        """Return means over multinomial counts of each answer's n tokens, (J, A).

        The function with the given ``values`` at the points, (J, points), is a
        generating function for independent Poisson counts of the labels. The sum of
        these counts is a Poisson variable. So the coefficient of (z/r)^n is the mean
        over multinomial counts of n tokens, times the Poisson probability of n. The
        matrix ``to_means`` includes the division by this probability.
        """
        # The values on the other half of the circle are the conjugates, so that the
        # imaginary parts cancel.
        return (values @ self.to_means).real[:, self.column]


def _circle(problem: _Problem, radius: float) -> _Circle:
    """Return the points of a circle of this radius, with their powers and weights."""
    m = problem.P + problem.S
    # Many answers may have only a few different numbers of tokens.
    n = np.unique(problem.tokens)
    column = np.searchsorted(n, problem.tokens)
    most = int(n[-1])
    # Five arrays with an entry of 8 bytes for each k.
    check_fits("tokens", most, 40.0 * most)
    k = np.arange(most + 1)
    poisson = np.exp(log_poisson(k, radius))
    is_likely = poisson > RARE**2
    k = k[is_likely]
    poisson = poisson[is_likely]
    number_of_points = most + MORE_POINTS
    needed = _needed_points(number_of_points, m, radius)
    # Powers and series at the nodes of a block, and values of functions at the points.
    check_fits(
        "tokens",
        most,
        24.0 * (len(needed) + BLOCK) * len(k) + 64.0 * BLOCK * len(needed),
    )
    # The points are the conjugates of these roots of unity, times the radius. So the
    # roots themselves are the factors (z/r)^(-1) of the inverse transform. Powers of
    # the roots are roots of unity, too, and only looked up.
    roots = np.exp(2j * np.pi / number_of_points * np.arange(number_of_points))
    powers = roots[-needed[:, None] * k % number_of_points]
    shift = radius * (roots[needed] - 1.0).conj()
    to_means = _transform_to_means(roots, needed, n, log_poisson(n, m * radius))
    return _Circle(k, poisson, powers, shift, to_means, column)


def _transform_to_means(
    roots: NDArray[np.complex128],
    needed: NDArray[np.intp],
    n: NDArray[np.int64],
    log_prob: Array,
) -> Array:
    """Return the matrix from values at points of the half circle to means.

    The matrix, (points, n), is the discrete Fourier transform for the coefficients of
    (z/r)^n, divided by the Poisson probability of n, whose log is ``log_prob``. The
    argument ``needed`` has the numbers of the points, see `_needed_points`.
    """
    number_of_points = len(roots)
    # A coefficient is the mean over the whole circle of the values times (z/r)^(-n). A
    # point that is not real also stands for its conjugate on the other half.
    is_real = (needed == 0) | (2 * needed == number_of_points)
    weight = np.where(is_real, 1.0, 2.0) / number_of_points
    transform = weight[:, None] * roots[needed[:, None] * n % number_of_points]
    return np.asarray(transform * np.exp(-log_prob))


def _needed_points(number_of_points: int, m: int, radius: float) -> NDArray[np.intp]:
    """Return the numbers of the points on one half of the circle that are needed.

    Point 0 is the positive real one, and the numbers rise along the circle. Let a point
    have the angle φ. The functions of `_products` have at least m - 1 factors e^z, each
    of the size e^(r cos φ). A point is left out if the product of these factors is
    below e^(-60) times its value at φ = 0, that is, if (m - 1) r (1 - cos φ) exceeds
    60.
    """
    largest_drop = 2.0  # cos φ drops from 1 to -1 on half the circle
    if m > 1:
        largest_drop = min(NEGLIGIBLE / ((m - 1) * radius), 2.0)
    largest_angle = math.acos(1.0 - largest_drop)
    last = math.ceil(number_of_points * largest_angle / (2.0 * math.pi))
    return np.arange(min(last, number_of_points // 2) + 1)


def _integrate(problem: _Problem, radius: float) -> LogLoss:
    """Return the mean loss and its derivatives, from a circle of this radius."""
    circle = _circle(problem, radius)
    # A factor exp(-s e^logit) falls from 1 to 0 at its break, ln s = -logit. Beyond the
    # last break of the right labels the integrand vanishes.
    last = -float(problem.top.min())
    # A product of the factors of all m = P + S labels falls earlier than one factor, by
    # at most ln(m + 1).
    spread = math.log(problem.P + problem.S + 1.0)
    sums = np.zeros((4, len(problem.top)))  # a row for each field of LogLoss
    for log_s, width in _nodes(_breaks(problem, circle), last, spread):
        sums += np.stack(_sums_at_nodes(problem, circle, log_s, width))
    return LogLoss(*sums)


def _breaks(problem: _Problem, circle: _Circle) -> Array:
    """Return the breaks of all factors exp(-s e^logit), see `_nodes`."""
    m = problem.P + problem.S
    most = int(problem.tokens.max())
    # Numbers of tokens of a label above ``largest_k`` have a probability below `RARE`,
    # even if it is summed over all labels and all such numbers.
    largest_k = circle.k[circle.poisson * (m + 1) * (most + 1) > RARE][-1]
    breaks = [-problem.top, -problem.beta * np.arange(largest_k + 1)]
    if problem.log_rest > -math.inf:
        breaks.append(np.array([-problem.log_rest]))
    return np.concatenate(breaks)


def _sums_at_nodes(
    problem: _Problem, circle: _Circle, log_s: Array, width: Array
) -> LogLoss:
    """Return the part of the loss and its derivatives from given nodes ln s, (J,).

    The weights of the nodes are ``width``, (J,).
    """
    beta = problem.beta
    k = circle.k
    # Exponents are cut so that exp() does not overflow: e^(-s e^logit) is then 0
    # anyway.
    log_s_label = log_s[:, None] + beta * k  # (J, k)
    log_s_top = log_s[:, None] + problem.top  # (J, A)
    log_s_rest = log_s + problem.log_rest  # (J,)
    s_label = np.exp(np.minimum(log_s_label, LOG_LARGEST))  # s e^(βk)
    s_top = np.exp(np.minimum(log_s_top, LOG_LARGEST))  # s e^D
    s_rest = np.exp(np.minimum(log_s_rest, LOG_LARGEST))  # s C
    # h(z) = Σ_k e^(-r) z^k/k! (1 - e^(-s e^(βk))) and its derivative with respect to β,
    # (J, points)
    h = (circle.poisson * -np.expm1(-s_label)) @ circle.powers.T
    slope = (circle.poisson * k * s_label * np.exp(-s_label)) @ circle.powers.T
    functions = _products(h, slope, circle.shift, problem.P, problem.S)
    # 1 - E e^(-sT), and its derivative with respect to β
    missing = circle.multinomial_means(functions.missing)
    slope_of_missing = circle.multinomial_means(functions.slope)
    mean_decay = 1.0 - missing  # E e^(-sT)
    weight = width[:, None] * np.exp(-s_top)
    decay = np.exp(-s_rest)[:, None]  # e^(-sC)
    # 1 - e^(-sC) E e^(-sT) = (1 - e^(-sC)) + e^(-sC) (1 - E e^(-sT)), a sum of two
    # positive terms
    integrand = -np.expm1(-s_rest)[:, None] + decay * missing
    # The derivatives under the integral with respect to D, β and ln C.
    return LogLoss(
        value=np.sum(weight * integrand, axis=0),
        by_top=-np.sum(weight * s_top * integrand, axis=0),
        by_beta=np.sum(weight * decay * slope_of_missing, axis=0),
        by_rest=np.sum(weight * decay * s_rest[:, None] * mean_decay, axis=0),
    )


class _Functions(NamedTuple):
    """Generating functions at the points of a circle, (J, points) each."""

    missing: Array  # of 1 - E e^(-sT)
    slope: Array  # of its derivative with respect to β


def _products(h: Array, slope: Array, shift: Array, P: int, S: int) -> _Functions:
    """Return the generating functions of 1 - E e^(-sT) and of its β-derivative.

    Let r be the mean count of a label, and m = P + S the number of labels. The
    function 1 - e^(-s e^(βk)) of the count k of one label has the generating function
    h(z), and e^(-s e^(βk)) has e^(z-r) - h(z). So 1 - E e^(-sT) has

        e^(m(z-r)) - e^(S(z-r)) (e^(z-r) - h(z))^P,

    whose derivative with respect to β is P e^(S(z-r)) (e^(z-r) - h(z))^(P-1) times the
    derivative of h with respect to β, the ``slope``. The ``shift`` is z - r.
    """
    if P == 0:
        return _Functions(np.zeros_like(h), np.zeros_like(h))
    # e^(z-r) - h = e^(z-r) (1 - ratio)
    ratio = h * np.exp(-shift)
    is_small = np.abs(ratio) < LARGEST_SMALL_RATIO
    log_1_minus = _log_1_minus(ratio, is_small)
    log_first_term = (P + S) * shift  # m (z - r)
    missing = np.where(
        is_small,
        -np.exp(log_first_term) * np.expm1(P * log_1_minus),
        np.exp(log_first_term) - np.exp(log_first_term + P * log_1_minus),
    )
    slope_of_missing = (
        P * slope * np.exp(log_first_term - shift + (P - 1) * log_1_minus)
    )
    return _Functions(missing, slope_of_missing)


def _log_1_minus(ratio: Array, is_small: NDArray[np.bool_]) -> Array:
    """Return ln(1 - ratio) of complex numbers.

    The result keeps all its digits even if the ratio is small. A finite number stands
    for ln 0.
    """
    # |1 - ratio|² is 1 - ``gap``, and ln|1 - ratio| is half of its log.
    gap = 2.0 * ratio.real - ratio.real**2 - ratio.imag**2
    log_if_small = 0.5 * np.log1p(-np.where(is_small, gap, 0.0))
    with np.errstate(divide="ignore"):
        log_if_large = np.log(np.abs(1.0 - ratio))
    # `_products` takes multiples of the result. A complex multiple of -inf would have
    # the imaginary part NaN, and -1e300 has the exponential 0 as well.
    real = np.maximum(np.where(is_small, log_if_small, log_if_large), -1e300)
    return np.asarray(real + 1j * np.arctan2(-ratio.imag, 1.0 - ratio.real))


def _joined(starts: Array, length: int) -> Array:
    """Return the union of ranges of integers, in ascending order.

    Each range has the same ``length`` and begins at one of the ``starts``.
    """
    starts = np.unique(starts)
    # Hundreds of ranges may overlap, so each begins after the end of the one before it.
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

    A factor exp(-s e^a) of the integrand, with a logit a, has a *break* at ln s = -a:
    it is nearly constant outside the range of ln s from -a - ``before`` to
    -a + ``after``. With the defaults, the factor differs from 1 by at most e^(-42)
    before the range, and is below exp(-e^6), about e^(-403), after the range. A product
    of m such factors falls earlier, by ``spread`` = ln(m + 1) at most. Between such
    ranges the integrand is constant, and there are no nodes. Beyond the last break of
    the right labels, ``last``, the whole integrand vanishes.

    In the ranges the nodes are equidistant in u, with ln s = u - e^(-(u - first)) and a
    ``first`` before all breaks. So there are fewer and fewer nodes towards small s,
    where the integrand is proportional to s. The trapezoidal rule in u has the error
    e^(-π²/step).
    """
    # A margin of 2 before the earliest break.
    first = float(breaks.min()) - spread - 2.0
    # One more break, whose range ends at ``first`` + ``before``: no gap may lie where
    # ln s still differs from u.
    all_breaks = np.append(breaks, first + before - after)
    node_numbers = _joined(
        np.rint((all_breaks - spread - before - first) / step),
        math.ceil((spread + before + after) / step) + 1,
    )
    u = first + step * node_numbers
    # At u = first - 3.8, ln s is 48 below ``first``, and the integrand, which is in
    # proportion to s there, is below rounding.
    u = u[(u > first - 3.8) & (u < last + after + step)]
    tail = np.exp(-(u - first))
    log_s = u - tail
    width = step * (1.0 + tail)  # step times d(ln s)/du
    # Each of the two nodes beside a gap gets half of the gap's length as additional
    # weight. Neighbours without a gap are one step apart, up to rounding.
    left_of_gap = np.flatnonzero(np.diff(u) > 1.5 * step)
    additional = 0.5 * (log_s[left_of_gap + 1] - log_s[left_of_gap] - step)
    width[left_of_gap] += additional
    width[left_of_gap + 1] += additional
    return [
        (log_s[start : start + BLOCK], width[start : start + BLOCK])
        for start in range(0, len(log_s), BLOCK)
    ]


def log_poisson(k: ArrayLike, mean: ArrayLike) -> Array:
    """Return the log of the probability of k under the Poisson law with a given mean.

    For the mean μ it is k ln μ - μ - ln k!, in which large numbers cancel. So ln k! is
    split into k ln k - k and Stirling's small remainder. The first part and the other
    terms together are (k - μ) - k ln(k/μ).
    """
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.asarray(k, dtype=np.float64)
    mean = np.asarray(mean, dtype=np.float64)
    gap = k - mean
    # k/μ - 1. If the mean is 0, only k = 0 is possible: all larger k have the log -inf.
    ratio = np.divide(gap, mean, out=np.where(gap > 0.0, np.inf, 0.0), where=mean > 0.0)
    without_remainder = gap - xlog1py(k, ratio)  # (k - μ) - k ln(k/μ)
    # The remainder ln k! - k ln k + k, directly for k < 16 and by Stirling's series in
    # 1/k for larger k, where the next term is below rounding.
    x = 1.0 / np.maximum(k, 16.0)
    y = x * x
    series = x * (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188))))
    small = gammaln(k + 1.0) - xlogy(k, k) + k
    large = 0.5 * np.log(2.0 * np.pi / x) + series
    remainder = np.where(k < 16.0, small, large)
    return np.asarray(without_remainder - remainder)

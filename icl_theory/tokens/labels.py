r"""Log losses with many exchangeable labels, as one integral.

A label seen n times has the logit β n, as after attention with a known denominator.
With D the logit of the right label, T the sum over the labels whose counts are random
and C the sum of e^logit over all others,

    E ln(1 + (T + C)e^-D) = ∫ exp(−s e^D) E[1 − e^(−s(T + C))] ds/s,    T = Σ_x e^(β n_x),

because ln(1 + R) = ∫ e^-s (1 − e^-sR) ds/s. The counts are multinomial, and E e^(−sT)
is a coefficient of a product of power series, one for each label, found by a sum over a
circle. All terms have one sign, so that small losses keep their digits. See
docs/theory.md, "Many labels".
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

BLOCK = 512  # nodes at a time, whose arrays stay in the cache
MOST_LOST = math.log(1e-10 / 2.0**-52)  # log of the factor by which rounding may grow


class LogLoss(NamedTuple):
    """E ln(1 + (T + C)e^-D), nats, and its derivatives with respect to D, β and ln C, (A,) each."""

    value: Array
    by_top: Array
    by_beta: Array
    by_rest: Array


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
    r"""Mean log loss of a label with a known logit against many labels with random ones, and its derivatives.

    .. math:: E \ln\Bigl(1 + e^{-D}\bigl(C + \sum_{x=1}^P e^{\beta n_x}\bigr)\Bigr), \qquad
        (n_1, \ldots, n_{P+S}) \sim \text{multinomial}(n; \tfrac{1}{P+S}, \ldots)

    The mean of the log of the partition function is D more.

    Parameters
    ----------
    top : array_like
        D, finite, (A,). If several labels count as right, the log of the sum of their
        e^logit.
    beta : float
        β, of either sign.
    log_rest : float
        ln C, the log of the sum over all other labels; ``-math.inf`` if there are none.
    tokens : array_like
        n, how many tokens are spread over the labels, integers, (A,).
    labels : int
        P, number of labels with the logit β n_x.
    silent : int
        S, number of labels that tokens fall on but whose logits are part of C.
    density : float, optional
        Tokens per label for which all n share one set of nodes, which saves time. An n
        loses digits as it becomes improbable for a Poisson variable of this mean per
        label; if ten would not remain, it is refused.

    Returns
    -------
    LogLoss
        The mean and its derivatives by D, β and ln C.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it. Logits beyond 1e13 are: there
        the nodes of the integral coincide in float64.

    References
    ----------
    docs/theory.md, "Many labels".

    Examples
    --------
    Three labels share two tokens, and e^0.5 more competes:

    >>> import math
    >>> found = mean_log_loss([1.0], 0.7, 0.5, [2], 3)
    >>> one = math.log1p(math.exp(-1.0) * (math.exp(0.5) + math.exp(1.4) + 2))  # both on one label
    >>> two = math.log1p(math.exp(-1.0) * (math.exp(0.5) + 2 * math.exp(0.7) + 1))
    >>> abs(float(found.value[0]) / ((one + 2 * two) / 3) - 1) < 1e-14
    True
    """
    given = _checked(top, beta, log_rest, tokens, labels, silent)
    top, beta, log_rest, free, P, S = given
    if density is not None:
        density = number("density", density)
        mean = density * max(P + S, 1)
        lost = log_poisson(free, free) - log_poisson(free, mean)
        worst = int(np.argmax(lost))
        if lost[worst] > MOST_LOST:
            allowed = f"nearer to tokens/labels: {free[worst]} tokens on {P + S} labels would not keep ten digits"
            raise argument_error("density", density, allowed)
        return LogLoss(*_integrated(top, beta, log_rest, free, P, S, density))
    sums = np.empty((4, len(top)))
    for n in np.unique(free):
        same = free == n
        radius = max(float(n), 1.0) / max(P + S, 1)
        sums[:, same] = _integrated(top[same], beta, log_rest, free[same], P, S, radius)
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
    """Return `mean_log_loss` with one ``density`` for all numbers of tokens, however improbable.

    For sums in which these weigh as little as they are probable: their own digits are
    lost.
    """
    top, beta, log_rest, free, P, S = _checked(
        top, beta, log_rest, tokens, labels, silent
    )
    return LogLoss(
        *_integrated(top, beta, log_rest, free, P, S, number("density", density))
    )


def _checked(
    top: ArrayLike,
    beta: float,
    log_rest: float,
    tokens: ArrayLike,
    labels: int,
    silent: int,
) -> tuple[Array, float, float, NDArray[np.int64], int, int]:
    most = 1e13
    numbers = np.asarray(plain_numbers("tokens", tokens, 0.0, EXACT))
    top = real_array("top", top, 1, most)
    free = numbers.astype(np.int64)
    if not top.size or free.shape != top.shape or (free != numbers).any():
        raise argument_error(
            "tokens", tokens, "integers >= 0, one for each entry of top"
        )
    if not (isinstance(log_rest, float | np.floating) and log_rest == -math.inf):
        log_rest = signed("log_rest", log_rest, maximum=most)
    beta = signed("beta", beta, maximum=most / max(float(free.max()), 1.0))
    P = integer("labels", labels, minimum=0)
    S = integer("silent", silent, minimum=0)
    if P + S == 0 and free.any():
        raise argument_error("labels", labels, "at least 1: there are tokens to spread")
    return top, beta, float(log_rest), free, P, S


def _integrated(
    top: Array,
    beta: float,
    log_rest: float,
    free: NDArray[np.int64],
    P: int,
    S: int,
    radius: float,
    rare: float = 1e-30,
) -> Array:
    """Numbers of tokens of a label are left out whose probability is below the square of ``rare``."""
    others = P + S
    most = int(free.max())
    check_fits("tokens", most, 40.0 * most)
    k = np.arange(most + 1)
    poisson = np.exp(log_poisson(k, radius))
    k = k[poisson > rare**2]
    poisson = poisson[poisson > rare**2]
    points = most + 128
    # points on the upper half of the circle at which the function is above e^-60 of its
    # largest
    reach = min(60.0 / ((others - 1) * radius), 2.0) if others > 1 else 2.0
    kept = np.arange(
        min(math.ceil(points * math.acos(1.0 - reach) / (2.0 * math.pi)), points // 2)
        + 1
    )
    check_fits(
        "tokens", most, 24.0 * (len(kept) + BLOCK) * len(k) + 64.0 * BLOCK * len(kept)
    )
    roots = np.exp(2j * np.pi / points * np.arange(points))
    there = np.unique(free)
    place = np.searchsorted(there, free)
    circle = roots[-kept[:, None] * k % points]
    both = np.where((kept == 0) | (2 * kept == points), 1.0, 2.0) / points
    back = (
        both[:, None]
        * roots[kept[:, None] * there % points]
        * np.exp(-log_poisson(there, others * radius))
    )
    turn = radius * (roots[kept] - 1.0).conj()  # z - r
    largest = k[poisson * (others + 1) * (most + 1) > rare][-1]
    breaks = np.concatenate(
        [
            -top,
            -beta * np.arange(largest + 1),
            [-log_rest] if log_rest > -math.inf else [],
        ]
    )
    sums = np.zeros((4, len(top)))
    for x, width in _nodes(breaks, -float(top.min()), math.log(others + 1.0)):
        inside = np.exp(np.minimum(x[:, None] + beta * k, 700.0))
        gone = (poisson * -np.expm1(-inside)) @ circle.T
        slope = (poisson * k * inside * np.exp(-inside)) @ circle.T
        missing, change = _products(gone, slope, turn, P, S)
        missing, change = ((each @ back).real[:, place] for each in (missing, change))
        reach_top = np.exp(np.minimum(x[:, None] + top, 700.0))
        weight = width[:, None] * np.exp(-reach_top)
        rest = np.exp(np.minimum(x + log_rest, 700.0))
        left = np.exp(-rest)[:, None]
        integrand = -np.expm1(-rest)[:, None] + left * missing
        sums[0] += np.sum(weight * integrand, axis=0)
        sums[1] -= np.sum(weight * reach_top * integrand, axis=0)
        sums[2] += np.sum(weight * left * change, axis=0)
        sums[3] += np.sum(weight * left * rest[:, None] * (1.0 - missing), axis=0)
    return sums


def _products(
    gone: Array, slope: Array, turn: Array, P: int, S: int
) -> tuple[Array, Array]:
    """Generating functions of 1 − E e^(−sT) and of its derivative by β, over e^(-mean), on the circle.

    If the series of one label is e^(z−r) − h(z), that of 1 − e^(−sT) is e^(m(z−r)) −
    e^(S(z−r)) (e^(z−r) − h)^P.
    """
    if not P:
        return np.zeros_like(gone), np.zeros_like(gone)
    ratio = gone * np.exp(-turn)
    small = np.abs(ratio) < 0.5
    square = 2.0 * ratio.real - ratio.real**2 - ratio.imag**2  # 1 - |1 - ratio|²
    with np.errstate(divide="ignore"):
        size = np.where(
            small,
            0.5 * np.log1p(-np.where(small, square, 0.0)),
            np.log(np.abs(1.0 - ratio)),
        )
    log = np.maximum(size, -1e300) + 1j * np.arctan2(-ratio.imag, 1.0 - ratio.real)
    whole = (P + S) * turn
    missing = np.where(
        small,
        -np.exp(whole) * np.expm1(P * log),
        np.exp(whole) - np.exp(whole + P * log),
    )
    return missing, P * slope * np.exp(whole - turn + (P - 1) * log)


def _nodes(
    breaks: Array,
    last: float,
    spread: float,
    step: float = 0.25,
    left: float = 42.0,
    right: float = 6.0,
) -> list[tuple[Array, Array]]:
    """Blocks of nodes in ln s and their weights, except where the integrand is constant.

    A factor exp(-s e^D) is constant from a distance ``left`` or ``right`` of ln s = -D
    on; ``last`` is the last -D. ln s = u − e^−(u − u₀): to the left, where the
    integrand is proportional to s, the nodes thin out. The trapezoidal rule in u has
    the error e^(-π²/step).
    """
    first = float(breaks.min()) - spread - 2.0
    # no gap before the map is the identity
    places = np.append(breaks, first + left - right)
    at = np.rint(
        (places[:, None] + np.arange(-spread - left, right + step, step) - first) / step
    )
    u = first + step * np.unique(at)
    u = u[(u > first - 3.8) & (u < last + right + step)]
    tail = np.exp(-(u - first))
    x = u - tail
    width = step * (1.0 + tail)
    gap = np.flatnonzero(np.diff(u) > 1.5 * step)
    for edge in (gap, gap + 1):
        width[edge] += 0.5 * (x[gap + 1] - x[gap] - step)
    return [(x[i : i + BLOCK], width[i : i + BLOCK]) for i in range(0, len(x), BLOCK)]


def log_poisson(k: ArrayLike, mean: ArrayLike) -> Array:
    """Return the log of a Poisson probability, without the cancellation in k ln m - m - ln k!.

    ln k! is k ln k - k, most of which cancels exactly, and Stirling's small remainder.
    """
    from scipy.special import gammaln, xlog1py, xlogy

    k = np.asarray(k, dtype=np.float64)
    mean = np.asarray(mean, dtype=np.float64)
    gap = k - mean
    ratio = np.divide(gap, mean, out=np.where(gap > 0.0, np.inf, 0.0), where=mean > 0.0)
    log = gap - xlog1py(k, ratio)
    x = 1.0 / np.maximum(k, 16.0)
    y = x * x
    series = x * (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188))))
    near = gammaln(k + 1.0) - xlogy(k, k) + k
    far = 0.5 * np.log(2.0 * np.pi / x) + series
    return np.asarray(log - np.where(k < 16.0, near, far))

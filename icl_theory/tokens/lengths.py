r"""Laws of the number of tokens of a prompt.

A law gives the probability :math:`p_n` that a prompt has n tokens of a kind. Losses
depend on the law through its generating function and the derivatives of this function,

.. math:: \varphi(G) = \sum_n p_n G^n, \qquad
    \varphi^{(k)}(G) = \sum_n p_n\, n (n - 1) \cdots (n - k + 1)\, G^{n - k} ,

which are sums of positive terms for :math:`0 \le G \le 1`. The integrals of
`icl_theory.tokens.square` need nothing else of a law. See docs/theory.md, "Tokens".
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from icl_theory._validate import (
    ERROR_OF_SUM,
    Array,
    argument_error,
    generator,
    integer,
    number,
    real_array,
)
from icl_theory.memory import check_fits

# Beyond this number of tokens, N - 1 and N hardly differ in float64.
MOST_TOKENS = 10**15
# A number whose logarithm is below this is treated as zero: exp() would be slow,
# because its result is subnormal or nearly so.
LOG_ZERO = -700.0
# Largest mean of a law without a largest number of tokens. The attribute ``most`` of
# the geometric law, about 700 times the mean, is then still below `MOST_TOKENS`.
LARGEST_MEAN = 1e12
# Least rate of the Poisson law. Its third power, in the third derivative of the
# generating function, is still within float64.
LEAST_RATE = 1e-100
# Least mean of the geometric law. At a mean of 1e-16, 1 - r would be 1 in float64, and
# ln r, which is computed from it, infinite.
LEAST_MEAN = 1e-12
# How many powers of G are computed at a time. More would take more memory.
BLOCK = 2**16
# Sampled prompts are cut at a number of tokens that the geometric law exceeds with a
# probability of e^(-30), or 1e-13. For the Poisson law with the rate λ this number is
# λ + 9 √λ + 40, which is exceeded with a smaller probability.
LOG_RARELY = -30.0


class Lengths:
    r"""A law of the number of tokens, with given probabilities.

    .. math:: \varphi(G) = \sum_n p_n G^n, \qquad n = \text{first}, \text{first} + 1,
        \ldots

    `uniform`, `poisson` and `geometric` return laws with closed forms.

    Parameters
    ----------
    probs : array_like, one-dimensional
        Probabilities of ``first``, ``first + 1``, ... tokens. They sum to 1 to within
        1e-6, and are then normalised.
    first : int
        The number of tokens to which the first probability belongs.

    Attributes
    ----------
    least : int
        The least number of tokens.
    most : float
        The largest number of tokens. If a law has no largest number, the number of
        tokens exceeds ``most`` with a probability below e^(-700), which is treated as
        zero.
    mean : float
        Mean number of tokens.

    Raises
    ------
    ValueError
        An argument is out of range; the message names it.

    Examples
    --------
    Half of all prompts have two tokens, the other half has four:

    >>> import icl_theory as icl
    >>> kind = icl.Kind(icl.Lengths([0.5, 0.0, 0.5], first=2), [0.5, 0.5], [0.0, 1.0])
    >>> round(icl.TokenRisk(kind, target=1.0).loss([0.0, 0.0]), 10)
    0.171875
    """

    least: int
    most: float
    mean: float
    # Sampled prompts have places for this many tokens. A law without a largest number
    # exceeds it with a probability below 1e-13.
    places: int

    def __init__(self, probs: ArrayLike, first: int = 1) -> None:
        p = real_array("probs", probs, 1)
        first = integer("first", first, minimum=0, maximum=MOST_TOKENS)
        if (p < 0.0).any() or abs(p.sum() - 1.0) > ERROR_OF_SUM:
            raise argument_error(
                "probs", probs, f"numbers >= 0 that sum to 1 (sum: {p.sum():.9g})"
            )
        # Zeros at both ends are left out, so that the least and the largest number
        # occur.
        positive = np.flatnonzero(p)
        begin = positive[0]
        end = positive[-1] + 1
        n = first + np.arange(begin, end, dtype=np.float64)
        p = p[begin:end]
        if n[-1] == 0.0:
            raise argument_error(
                "probs", probs, "positive for some number of tokens above 0"
            )
        self.least = int(n[0])
        self.most = float(n[-1])
        self.places = int(n[-1])
        self._probs = p / p.sum()
        self.mean = float(n @ self._probs)

    def __repr__(self) -> str:
        return f"Lengths of {self.least} to {self.most:.0f} tokens, mean {self.mean:g}"

    @staticmethod
    def uniform(first: int, last: int) -> Lengths:
        r"""Return the law in which ``first`` to ``last`` tokens are equally probable.

        .. math:: \varphi(G) = \frac{1}{M} \sum_{n = \text{first}}^{\text{last}} G^n,
            \qquad M = \text{last} - \text{first} + 1

        With ``first = 1`` it is the law of training on all positions of a sequence.

        Examples
        --------
        >>> import icl_theory as icl
        >>> icl.Lengths.uniform(1, 100).mean
        50.5
        """
        last = integer("last", last, minimum=1, maximum=MOST_TOKENS)
        return UniformLengths(integer("first", first, minimum=0, maximum=last), last)

    @staticmethod
    def poisson(rate: float, least: int = 1) -> Lengths:
        r"""Return the Poisson law, restricted to ``least`` tokens or more.

        .. math:: p_n \propto \frac{\lambda^n}{n!}, \qquad n \ge \text{least}, \qquad
            \varphi(G) = \begin{cases}
            e^{\lambda (G - 1)} & \text{if least} = 0 \\
            \dfrac{e^{\lambda G} - 1}{e^\lambda - 1} & \text{if least} = 1
            \end{cases}

        with the rate λ.

        Examples
        --------
        >>> import icl_theory as icl
        >>> round(icl.Lengths.poisson(2.0).mean, 3)
        2.313
        """
        rate = number("rate", rate, minimum=LEAST_RATE, maximum=LARGEST_MEAN)
        return _Poisson(rate, integer("least", least, minimum=0, maximum=1))

    @staticmethod
    def geometric(mean: float, least: int = 1) -> Lengths:
        r"""Return the geometric law with a given mean, on ``least`` tokens or more.

        .. math:: p_n = (1 - r)\, r^{n - \text{least}}, \qquad n \ge \text{least},
            \qquad \varphi(G) = \frac{(1 - r)\, G^{\text{least}}}{1 - rG}

        for ``least`` = 0 or 1. The mean is :math:`\text{least} + r/(1 - r)`.

        Examples
        --------
        >>> import icl_theory as icl
        >>> icl.Lengths.geometric(20.0).mean
        20.0
        """
        least = integer("least", least, minimum=0, maximum=1)
        mean = number("mean", mean, minimum=LEAST_MEAN, maximum=LARGEST_MEAN)
        if mean <= least:
            raise argument_error("mean", mean, f"above {least}, the least number")
        return _Geometric(mean, least)

    def probabilities(self, most: int) -> Array:
        """Return the probabilities of 0, 1, ... ``most`` tokens."""
        most = integer("most", most, minimum=0)
        check_fits("most", most, 8.0 * most)
        result = np.zeros(most + 1)
        part = self._probs[: max(most + 1 - self.least, 0)]
        result[self.least : self.least + len(part)] = part
        return result

    def at_most(self, most: int) -> Lengths:
        """Return the law of the number of tokens, given that it is at most ``most``.

        A ``most`` below every possible number is refused.
        """
        probs = self.probabilities(most)
        total = float(probs.sum())
        if not total > 0.0:
            raise argument_error("most", most, f"at least {self.least}")
        return Lengths(probs / total, first=0)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the numbers of tokens of ``size`` prompts."""
        rng = generator("rng", rng)
        return self._drawn(rng, integer("size", size, minimum=0))

    def _drawn(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Do the work of `draw`, which has checked the arguments."""
        index = rng.choice(len(self._probs), size, p=self._probs)
        return np.asarray(self.least + index, dtype=np.int64)

    def _derivatives(self, mean: Array, log: Array, order: int) -> list[Array]:
        """Return the derivatives of φ of the orders 0 to ``order``, unchecked.

        The derivatives are taken at G = ``mean``, an array of real or complex numbers,
        whose logarithm is ``log``.
        """
        n = self.least + np.arange(len(self._probs))
        # The k-th derivative of G^n is a falling factorial times G^(n - k). The factor
        # G^(n - order) is the same for all k, so it is computed once, and the sum over
        # n is multiplied by G^(order - k). The exponent n - order would be negative for
        # n < order, so the terms of these few n are added one by one.
        sums = np.zeros((order + 1, log.size), dtype=log.dtype)
        is_long = n >= order
        factors = _falling_factorials(n[is_long], order) * self._probs[is_long]
        flat_log = log.ravel()
        lengths_at_a_time = max(1, BLOCK // max(log.size, 1))
        for start in range(0, factors.shape[1], lengths_at_a_time):
            block = slice(start, start + lengths_at_a_time)
            exponents = n[is_long][block, None] - float(order)
            sums += factors[:, block] @ _exp(exponents * flat_log)
        derivatives = []
        for k in range(order + 1):
            derivative = sums[k].reshape(log.shape) * mean ** (order - k)
            for small_n, p in zip(n[~is_long], self._probs[~is_long], strict=True):
                if small_n >= k:
                    factor = p * falling_factorial(float(small_n), k)
                    derivative = derivative + factor * mean ** (small_n - k)
            derivatives.append(derivative)
        return derivatives


class UniformLengths(Lengths):
    """The law of `Lengths.uniform`."""

    def __init__(self, first: int, last: int) -> None:
        self.least = first
        self.most = float(last)
        self.places = last
        self.mean = 0.5 * (first + last)

    def __repr__(self) -> str:
        return f"Lengths.uniform({self.least}, {self.most:.0f})"

    def probabilities(self, most: int) -> Array:
        """Return the probabilities of 0, 1, ... ``most`` tokens."""
        n = np.arange(integer("most", most, minimum=0) + 1.0)
        occurs = (n >= self.least) & (n <= self.most)
        return occurs / (self.most - self.least + 1.0)

    def _drawn(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the numbers of tokens of ``size`` prompts."""
        return rng.integers(self.least, int(self.most) + 1, size)

    def _derivatives(self, mean: Array, log: Array, order: int) -> list[Array]:
        """Return the derivatives of φ of the orders 0 to ``order`` at G = ``mean``."""
        # The sum of G^m over 1 <= m <= M, with its derivatives, is built by doubling M:
        # Σ_{m <= 2M} G^m = (1 + G^M) Σ_{m <= M} G^m. For each binary digit of the
        # number of powers, M is doubled, and one more power is added if the digit is 1.
        # For real G all derivatives are positive, so nothing cancels.
        most = int(self.most)
        number_of_powers = most - max(self.least, 1) + 1
        # All entries are the same array of zeros, which no step overwrites.
        total = [np.zeros_like(log)] * (order + 1)
        M = 0  # the number of powers in the total
        for bit in f"{number_of_powers:b}":
            power = power_derivatives(mean, log, M, order)
            total = _added(_product_derivatives(total, power), total)
            M = 2 * M
            if bit == "1":
                M += 1
                total = _added(total, power_derivatives(mean, log, M, order))
        if self.least > 1:
            # The powers begin at G^least instead of G.
            shift = power_derivatives(mean, log, self.least - 1, order)
            total = _product_derivatives(total, shift)
        if self.least == 0:
            # G^0 adds 1 to φ, and nothing to its derivatives.
            total[0] = total[0] + 1.0
        return [derivative / (most - self.least + 1.0) for derivative in total]


class _Poisson(Lengths):
    """The law of `Lengths.poisson`."""

    def __init__(self, rate: float, least: int) -> None:
        self.rate = rate
        self.least = least
        # Numbers above λ + t have a probability below exp(-t²/(2λ + 2t/3)) (Bernstein's
        # inequality). For this t it is below e^(-700).
        t = 40.0 * math.sqrt(rate) + 500.0
        self.most = float(math.ceil(rate + t))
        # Exceeded with a probability below 1e-13, see `LOG_RARELY`.
        self.places = math.ceil(rate + 9.0 * math.sqrt(rate) + 40.0)
        # The probability of n >= least under the usual Poisson law, without this limit.
        self._share = -math.expm1(-rate) if least == 1 else 1.0
        self.mean = rate / self._share

    def __repr__(self) -> str:
        return f"Lengths.poisson({self.rate!r}, least={self.least})"

    def probabilities(self, most: int) -> Array:
        """Return the probabilities of 0, 1, ... ``most`` tokens."""
        n = np.arange(integer("most", most, minimum=0) + 1.0)
        log_power = np.zeros_like(n)  # ln(λ^n/n!)
        log_power[1:] = np.cumsum(math.log(self.rate) - np.log(n[1:]))
        result = np.exp(log_power - self.rate) / self._share
        result[: self.least] = 0.0
        return result

    def _drawn(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the numbers of tokens of ``size`` prompts."""
        if self.least == 0:
            return rng.poisson(self.rate, size)
        # A Poisson number is the number of events of rate λ in a unit of time. Given
        # that there is an event, the time of the first one has an exponential law that
        # is cut at 1. The number of events after it is a Poisson number, too.
        first_time = -np.log1p(-self._share * rng.random(size)) / self.rate
        # Rounding may lead to a time slightly above 1.
        remaining_rate = np.maximum(self.rate * (1.0 - first_time), 0.0)
        return 1 + rng.poisson(remaining_rate)

    def _derivatives(self, mean: Array, log: Array, order: int) -> list[Array]:
        """Return the derivatives of φ of the orders 0 to ``order`` at G = ``mean``."""
        # e^(λG - λ), divided by the probability of n >= least under the usual law
        power = _exp(self.rate * np.expm1(log)) / self._share
        derivatives = [power * self.rate**k for k in range(order + 1)]
        if self.least == 1:
            # e^(λG - λ) (1 - e^(-λG)) is e^(λG) - 1, the numerator of φ, times e^(-λ).
            derivatives[0] = power * -np.expm1(-self.rate * mean)
        return derivatives


class _Geometric(Lengths):
    """The law of `Lengths.geometric`."""

    def __init__(self, mean: float, least: int) -> None:
        self.least = least
        self.mean = mean
        mean_excess = mean - least  # r/(1 - r)
        self._ratio = mean_excess / (1.0 + mean_excess)  # r
        self._stop = 1.0 / (1.0 + mean_excess)  # 1 - r
        log_ratio = math.log1p(-self._stop)
        # The number of tokens exceeds least + x with a probability of at most r^x. This
        # is at most e^(-700) for ``most``, and at most e^(-30) for ``places``.
        self.most = float(math.ceil(least + LOG_ZERO / log_ratio))
        self.places = math.ceil(least + LOG_RARELY / log_ratio)

    def __repr__(self) -> str:
        return f"Lengths.geometric({self.mean!r}, least={self.least})"

    def probabilities(self, most: int) -> Array:
        """Return the probabilities of 0, 1, ... ``most`` tokens."""
        n = np.arange(integer("most", most, minimum=0) + 1.0)
        result = self._stop * self._ratio ** (n - self.least)
        result[: self.least] = 0.0
        return np.asarray(result)

    def _drawn(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """Draw the numbers of tokens of ``size`` prompts."""
        return self.least - 1 + rng.geometric(self._stop, size)

    def _derivatives(self, mean: Array, log: Array, order: int) -> list[Array]:
        """Return the derivatives of φ of the orders 0 to ``order`` at G = ``mean``."""
        # 1/(1 - rG), with 1 - rG = (1 - r) + r (1 - G), a sum of positive numbers for
        # real G
        inverse = 1.0 / (self._stop - self._ratio * np.expm1(log))
        # The k-th derivative of (1 - r)/(1 - rG) is the (k - 1)-th one times
        # k r/(1 - rG).
        derivatives = []
        derivative = self._stop * inverse
        for k in range(1, order + 2):
            derivatives.append(derivative)
            derivative = derivative * (k * self._ratio * inverse)
        if self.least == 0:
            return derivatives
        # d^k/dG^k (G f) = G f^(k) + k f^(k-1)
        # The entry k is the derivative of the order k - 1.
        one_below = [np.zeros_like(mean), *derivatives]
        return [mean * derivatives[k] + k * one_below[k] for k in range(order + 1)]


def power_derivatives(
    mean: Array, log: Array, n: float, order: int, scale: Array | float = 1.0
) -> list[Array]:
    """Return G^n and its derivatives with respect to G, times ``scale``.

    The orders are 0 to ``order``. The derivatives are taken at G = ``mean``, whose
    logarithm is ``log``.
    """
    # Derivatives above the n-th are zero. Only the lowest power of G, which belongs to
    # the highest derivative, needs exp(). The other powers follow by multiplication.
    # (Of complex numbers, ``>`` and `np.maximum` compare the real parts first.)
    highest = int(min(n, order))
    log_power = log * (n - highest)
    is_normal = log_power > LOG_ZERO
    power = np.exp(np.maximum(log_power, LOG_ZERO, out=log_power), out=log_power)
    power *= is_normal
    power *= scale
    derivatives = [np.zeros_like(log)] * (order + 1)
    for k in range(highest, 0, -1):
        derivatives[k] = power * falling_factorial(n, k)
        power *= mean
    derivatives[0] = power
    return derivatives


def falling_factorial(n: float, k: int) -> float:
    """Return n (n - 1) ... (n - k + 1)."""
    product = 1.0
    for j in range(k):
        product *= n - j
    return product


def _falling_factorials(n: NDArray[np.int64], order: int) -> Array:
    """Return n (n - 1) ... (n - k + 1) for k = 0 ... ``order``, a row for each k."""
    factors = np.ones((order + 1, len(n)))
    for k in range(order):
        factors[k + 1] = factors[k] * (n - k)
    return factors


def _exp(log: Array) -> Array:
    """Return exp(log), with zero in place of subnormal results, which are slow."""
    is_normal = log.real > LOG_ZERO
    return np.asarray(np.exp(np.where(is_normal, log, 0.0)) * is_normal)


def _product_derivatives(first: list[Array], second: list[Array]) -> list[Array]:
    """Return the derivatives of a product by Leibniz's rule."""
    derivatives = []
    for k in range(len(first)):
        total = np.zeros_like(first[0])
        for i in range(k + 1):
            total = total + math.comb(k, i) * first[i] * second[k - i]
        derivatives.append(total)
    return derivatives


def _added(first: list[Array], second: list[Array]) -> list[Array]:
    """Add two lists of derivatives, order by order."""
    return [x + y for x, y in zip(first, second, strict=True)]

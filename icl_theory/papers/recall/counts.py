"""The law of the numbers of bigrams in a sentence.

There are two kinds of bigrams: the trigger followed by its output, and the trigger
followed by noise. A `RecallTask` draws its sentences with a law of these numbers,
`Counts`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from icl_theory._validate import (
    Array,
    argument_error,
    floats,
    fraction,
    instance,
    integer,
    number,
    set_fields,
)

# Largest count, and largest number H of words of a random sentence. The joint table of
# the counts of such a sentence has (H/2)² probabilities, 32 MB at this H.
LONGEST = 4001
# Largest mean of a geometric law. With this mean the law has 1,643 counts, each of
# which adds a term to every loss. A larger mean would cost more time.
LARGEST_MEAN = 40.0
# Negligible tail of a geometric law, below the rounding of its sum.
SMALLEST_TAIL = 2.0**-60
# Least probability of a possible pair of counts, relative to the largest probability.
# It is a little above the least normal number of float64, 2e-308.
LEAST_WEIGHT = 1e-300
# The sum of given probabilities may differ from 1 by this much. They are then
# normalised.
SUM_TOLERANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Counts:
    r"""Joint law of c and c_τ, the numbers of two kinds of bigrams in a sentence.

    There are c bigrams (trigger, output) and c_τ bigrams (trigger, noise).

    Parameters
    ----------
    pmf : array_like, (C+1,) or (C+1, T+1)
        The probabilities ``pmf[c, c_tau]``, or ``pmf[c]`` without noise bigrams. C and
        T are the largest counts. ``pmf[0]`` must be 0: the output follows its trigger
        at least once.

    Raises
    ------
    ValueError
        Entries are negative, do not sum to 1 (to 1e-6), or are positive at c = 0.

    Examples
    --------
    >>> import icl_theory as icl
    >>> icl.recall.Counts([0.0, 0.5, 0.5]).mean
    1.5
    >>> icl.recall.Counts.fixed(3).minimum
    3
    """

    pmf: Array

    def __post_init__(self) -> None:
        pmf = floats(self.pmf)  # None for anything but real numbers
        if pmf is not None and pmf.ndim == 1:
            pmf = pmf[:, None]  # c_τ = 0 is the only column
        if pmf is None or not _is_table(pmf):
            raise argument_error(
                "pmf",
                self.pmf,
                "probabilities of c = 0, 1, ..., one a row (columns: c_tau = 0, 1,"
                " ...)",
            )
        if abs(pmf.sum() - 1.0) > SUM_TOLERANCE:
            raise argument_error(
                "pmf",
                self.pmf,
                f"probabilities that sum to 1 (these sum to {pmf.sum():.9g})",
            )
        if pmf[0].any():
            raise argument_error(
                "pmf",
                self.pmf,
                f"without mass at c = 0 (this has {pmf[0].sum():.3g}): c is at least 1",
            )
        # Rows and columns of zeros at the end are counts that never occur. Drop them.
        last_c = np.flatnonzero(pmf.any(axis=1))[-1]
        last_c_tau = np.flatnonzero(pmf.any(axis=0))[-1]
        set_fields(self, pmf=pmf[: last_c + 1, : last_c_tau + 1] / pmf.sum())

    @classmethod
    def fixed(cls, c: int, c_tau: int = 0) -> Counts:
        """Law of exactly ``c`` bigrams with the output and ``c_tau`` with noise."""
        c = integer("c", c, minimum=1, maximum=LONGEST)
        c_tau = integer("c_tau", c_tau, minimum=0, maximum=LONGEST)
        pmf = np.zeros((c + 1, c_tau + 1))
        pmf[c, c_tau] = 1.0
        return cls(pmf)

    @classmethod
    def geometric(cls, mean: float, most: int | None = None) -> Counts:
        r"""Geometric law on c = 1, 2, ... with mean m.

        :math:`P(c) \propto (1 - 1/m)^{c-1}`, cut off at ``most``. By default, the part
        that is cut off has at most the probability 2⁻⁶⁰.
        """
        mean = number("mean", mean, minimum=1.0, maximum=LARGEST_MEAN)
        ratio = 1.0 - 1.0 / mean
        if most is None and ratio == 0:
            most = 1  # a mean of 1 allows only c = 1
        elif most is None:
            # P(c > most) = ratio^most
            most = int(np.ceil(np.log(SMALLEST_TAIL) / np.log(ratio)))
        most = integer("most", most, minimum=1, maximum=LONGEST)
        c = np.arange(most + 1)
        # The probability of c = 0 is 0. The power of the ratio at c = 0 is not used,
        # but it is computed: the maximum keeps its exponent from being -1, because 0^-1
        # would warn.
        pmf = np.where(c > 0, ratio ** np.maximum(c - 1.0, 0.0), 0.0)
        return cls(pmf / pmf.sum())

    @classmethod
    def sentence(cls, H: int, density: float = 0.25, noise: float = 0.0) -> Counts:
        r"""Law of the counts in a random sentence of H words.

        Words are drawn from left to right. The word after a trigger is noise with the
        probability ν, and the output otherwise. Any other word is the trigger with the
        probability d. The result is the law for sentences that end with the trigger,
        and in which the output follows it at least once. With k = c + c_τ blocks of two
        words among the first H − 1,

        .. math:: P(c, c_\tau) \propto \binom{H-1-k}{k} \binom{k}{c}
            d^k (1-d)^{H-1-2k} (1-\nu)^c \nu^{c_\tau}.

        In long sentences the probability of few bigrams is below the range of float64.
        It is replaced by 1e-300 of the largest probability, because the least possible
        count determines the rate at which the loss falls in the end.

        Parameters
        ----------
        H : int
            Words of the sentence, the last one being the trigger; 3 to 4001.
        density, noise : float
            d, strictly between 0 and 1, and ν, in [0, 1).
        """
        from scipy.special import gammaln, xlogy

        if integer("H", H, minimum=0) < 3:
            # This error gives the reason, which the error of `integer` would not.
            raise argument_error(
                "H", H, "at least 3: a trigger, its output, and the trigger again"
            )
        if H > LONGEST:
            raise argument_error(
                "H", H, f"at most {LONGEST} if the counts are those of random sentences"
            )
        d = fraction("density", density)
        noise = noise_level("noise", noise)
        # At most (H - 1)/2 blocks of two fit before the last word, at least one of them
        # with the output. Rows are for c, and columns for c_τ.
        most_blocks = (int(H) - 1) // 2
        c = np.arange(most_blocks + 1)[:, None]
        c_tau = np.arange(most_blocks if noise else 1)
        k = c + c_tau
        is_possible = (c > 0) & (k <= most_blocks)
        # The words outside the blocks, without the last word. An impossible pair gets
        # 0, which keeps the logarithms finite. Its results are not used.
        single_words = np.where(is_possible, H - 1 - 2 * k, 0)
        # The two binomial coefficients of P(c, c_τ) are together a multinomial one,
        # (single_words + k)!/(single_words! c! c_τ!).
        log_coefficient = (
            gammaln(single_words + k + 1)
            - gammaln(single_words + 1)
            - gammaln(c + 1)
            - gammaln(c_tau + 1)
        )
        log_pmf = (
            log_coefficient
            + k * np.log(d)
            + single_words * np.log1p(-d)
            + c * np.log1p(-noise)
            + xlogy(c_tau, noise)  # 0 for c_τ = 0, even without noise
        )
        largest = log_pmf[is_possible].max()
        # Relative to the largest probability, so that exp() cannot overflow.
        weight = np.exp(np.where(is_possible, log_pmf - largest, -np.inf))
        pmf = np.where(is_possible, np.maximum(weight, LEAST_WEIGHT), 0.0)
        return cls(pmf / pmf.sum())

    @property
    def marginal(self) -> Array:
        """Law ``P(c)`` of c alone, for c = 0 .. C, (C+1,)."""
        return np.asarray(self.pmf.sum(axis=1))

    @property
    def minimum(self) -> int:
        """Least c with positive probability, which sets the final rate of training."""
        first_possible, *_ = np.flatnonzero(self.marginal)
        return int(first_possible)

    @property
    def longest(self) -> int:
        """Largest c + c_tau with positive probability."""
        c, c_tau = np.nonzero(self.pmf)
        return int(np.max(c + c_tau))

    @property
    def mean(self) -> float:
        """Mean number ``E[c]`` of bigrams with the output."""
        return float(self.marginal @ np.arange(len(self.pmf)))

    @property
    def noise_mean(self) -> float:
        """Mean number ``E[c_tau]`` of bigrams with noise."""
        return float(self.pmf.sum(axis=0) @ np.arange(self.pmf.shape[1]))

    def same(self, other: Counts) -> bool:
        """Whether both laws have the same probabilities."""
        instance("other", other, Counts, "Counts")
        return self is other or (
            self.pmf.shape == other.pmf.shape and bool((self.pmf == other.pmf).all())
        )


def _is_table(pmf: Array) -> bool:
    """Whether ``pmf`` has finite and non-negative numbers in rows and columns."""
    if pmf.ndim != 2 or not pmf.size:
        return False
    return bool(np.isfinite(pmf).all()) and not (pmf < 0).any()


def noise_level(name: str, value: Any) -> float:
    """Return the value as a float, or refuse it unless it is a number in [0, 1).

    ``name`` is the name of the argument in the error.
    """
    try:
        # The largest number that is allowed is the largest float below 1.
        return number(name, value, zero=True, maximum=math.nextafter(1.0, 0.0))
    except ValueError:
        raise argument_error(name, value, "a number in [0, 1)") from None

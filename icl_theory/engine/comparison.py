"""Sampled values compared with exact ones, in standard errors.

A `Check` is one comparison. It passes if the size of its z-score, the difference in
standard errors, is at most a limit. `limit_of` chooses the limit so that all checks
together raise a false alarm in at most one of a thousand cases, and `detectable`
returns the smallest error that a check finds nine times in ten. `compare` compares the
loss and gradient of a risk with their means over sampled batches.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.display import Displayable
from icl_theory.engine.progress import counted
from icl_theory.engine.risk import Risk

# The probability with which a check fails if there is an error of the size that `Power`
# states.
DETECTION_PROBABILITY = 0.9
# A difference of this size, relative to the compared values, may be rounding. It is 45
# rounding units of 2^-52, because both values are sums of many rounded terms.
ROUNDING = 1e-14
# A number, or an array of numbers.
Number = TypeVar("Number", float, Array)


class Check(NamedTuple):
    r"""One comparison of a population value with a sampled mean.

    The population value, usually exact, is the expected value of the mean. The check
    passes if the size :math:`|z|` of the difference, in standard errors, is at most the
    limit.

    Attributes
    ----------
    name : str
        The quantity that is compared.
    population, sampled : float
        The population value and the sampled mean.
    standard_error : float
        The standard error of the sampled mean.
    z, limit : float
        The sampled mean minus the population value, in standard errors, and the largest
        size of this difference.
    """

    name: str
    population: float
    sampled: float
    standard_error: float
    z: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether population value and sampled mean agree within the limit."""
        return bool(abs(self.z) <= self.limit)

    def cells(self) -> tuple[str, ...]:
        """Return the numbers and the verdict as text."""
        return (
            f"{self.population:.3g}",
            f"{self.sampled:.3g}",
            f"{self.standard_error:.1g}",
            f"{self.z:+.2f}",
            f"{self.limit:.1f}",
            "pass" if self.passed else "FAIL",
        )


class Power(NamedTuple):
    """Smallest relative errors that a cross-check finds nine times in ten.

    A relative error e multiplies all population losses, or all gradients, by 1 + e. The
    smallest error is infinite if the population values are all zero.
    """

    loss: float
    gradient: float

    def __str__(self) -> str:
        """Return both errors in words."""
        return (
            f"errors found nine times in ten: {self.loss:.2%} of the loss, "
            f"{self.gradient:.2%} of the gradient"
        )


@dataclass(frozen=True)
class Comparison(Displayable):
    """Exact values and sampled values of the same quantities.

    Attributes
    ----------
    checks : tuple of Check
        The comparisons, one for each row of the table.
    note : str
        Remarks on the comparisons, such as the quantities that were left out.
    """

    checks: tuple[Check, ...]
    note: str

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(check.passed for check in self.checks)

    @property
    def remarks(self) -> str:
        """The sentence below the table."""
        return self.note

    @property
    def reference_title(self) -> str:
        """Title of the column of expected values."""
        return "population"

    def to_markdown(self) -> str:
        """Return the comparisons as a Markdown table, with the remarks below it."""
        # The last column, which has the verdicts, has no title.
        lines = [
            f"| check | {self.reference_title} | sampled | std. error | z | limit | |",
            "|" + "---|" * 7,
        ]
        for check in self.checks:
            cells = (check.name, *check.cells())
            lines.append("| " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", f"{self.remarks}."])


@dataclass(frozen=True)
class CrossCheck(Comparison):
    """Outcome of `crosscheck`: the comparisons, and an exact and a sampled run.

    Attributes
    ----------
    checks, note : tuple of Check, str
        The comparisons and the note of a `Comparison`.
    power : Power
        Smallest relative errors of loss and gradient that these comparisons find nine
        times in ten.
    t, population, sgd, band : ndarray, (T,)
        Steps, population loss along exact gradient descent, population loss along the
        SGD run, and the half-width of the band that SGD runs stay in.
    """

    power: Power
    t: NDArray[np.int64]
    population: Array
    sgd: Array
    band: Array

    @property
    def remarks(self) -> str:
        """The sentence below the table."""
        return f"{self.note}; {self.power}"


def limit_of(share: float, freedom: float, false_alarm: float = 1e-3) -> float:
    r"""Limit that one check exceeds with the probability ``share * false_alarm``.

    The limit applies to :math:`|z|`, and the probability to values that agree. Then z
    has Student's t distribution with ``freedom`` degrees of freedom. With ``share`` =
    1/n, the probability that any of n checks exceeds its limit is at most
    ``false_alarm``. With a smaller ``false_alarm`` fewer checks of correct values would
    fail, but errors would have to be larger to be found.
    """
    from scipy.special import stdtrit

    # z may be beyond the limit on either side, so half of the probability is on each.
    # `stdtrit` is the inverse of the distribution function. It gives the lower limit,
    # which is negative.
    return -float(stdtrit(freedom, 0.5 * share * false_alarm))


def detectable(check: Check, freedom: int) -> float:
    """Relative error of a population value at which its check fails nine times in ten.

    The z-score of a wrong value has a noncentral t distribution, with ``freedom``
    degrees of freedom.
    """
    from scipy.special import nctdtrinc

    # A relative error does not change the value 0.
    if check.population == 0.0:
        return math.inf
    # If the samples do not scatter, any error is found, however small it is.
    if check.standard_error == 0.0:
        return 0.0
    # With this error, in standard errors, z stays below the limit with a probability of
    # 1 - DETECTION_PROBABILITY. The error is the noncentrality of the distribution of
    # z, and `nctdtrinc` inverts the distribution for it.
    standard_errors = float(
        nctdtrinc(freedom, 1.0 - DETECTION_PROBABILITY, check.limit)
    )
    return standard_errors * check.standard_error / abs(check.population)


def mean_check(
    name: str, population: float, samples: Array, limit: float, scale: float = 0.0
) -> Check:
    """Compare a population value with the mean of independent samples of it.

    If the value is a sum in which larger numbers cancel, ``scale`` is the size of these
    numbers, because their rounding may cause a difference.
    """
    mean = float(np.mean(samples))
    standard_error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    z = z_score(mean - population, standard_error, max(abs(population), scale))
    return Check(
        name=name,
        population=population,
        sampled=mean,
        standard_error=standard_error,
        z=z,
        limit=limit,
    )


def z_score(
    difference: Number, error: Number, scale: Number, rounding: float = ROUNDING
) -> Number:
    """Difference between two values, in units of its standard error, ``error``.

    If the samples do not scatter, the standard error is zero. Therefore the rounding
    error of the values, ``rounding * abs(scale)``, is added to the standard error;
    ``scale`` is the size of the values. So a difference by rounding has a z-score of
    about 1 at most, and a difference far above rounding has a very large z-score.
    """
    # The tiny number avoids 0/0.
    tiny = float(np.finfo(float).tiny)
    return difference / (error + rounding * abs(scale) + tiny)


def compare(
    risk: Risk, trainer: Risk, points: Mapping[str, Array], batches: int
) -> list[Check]:
    """Compare a risk with a trainer on sampled data.

    ``points`` maps names to parameters. At each point three numbers are compared: the
    loss, the scalar product of the gradient with the exact gradient, and its scalar
    product with a random direction. The trainer's values are means over ``batches``
    batches.

    If the risk is a reduction to fewer parameters than the trainer has, the two have
    only their initial parameters in common. In this case the loss and the squared norm
    of the gradient are compared at the initial parameters.
    """
    if np.shape(trainer.initial) != np.shape(risk.initial):
        return _compare_reduced(risk, trainer, batches)
    # There are three checks at each point. A mean over batches has one degree of
    # freedom less than there are batches.
    limit = limit_of(share=1.0 / (3 * len(points)), freedom=batches - 1)
    checks = []
    for name, params in points.items():
        loss, gradient = risk.evaluate(params)
        samples = _samples(trainer, params, batches)
        checks.append(mean_check(f"loss at {name}", loss, samples.losses, limit))
        # The seed is fixed, so that the outcome is reproducible.
        random_direction = np.random.default_rng(0).normal(size=np.shape(params))
        directions = {
            "the exact gradient": gradient,
            "a random direction": random_direction,
        }
        for direction_name, direction in directions.items():
            # The first axis is the batch. The sum over the others is a scalar product.
            products = samples.gradients * direction
            check = mean_check(
                f"gradient along {direction_name} at {name}",
                float(np.sum(gradient * direction)),
                np.sum(products.reshape(batches, -1), axis=1),
                limit,
            )
            checks.append(check)
    return checks


def _compare_reduced(risk: Risk, trainer: Risk, batches: int) -> list[Check]:
    """Compare loss and squared norm of the gradient at the initial parameters."""
    loss, gradient = risk.evaluate(risk.initial)
    samples = _samples(trainer, trainer.initial, batches)
    # The mean squared norm of a sampled gradient exceeds the squared norm of the
    # population gradient by the variance of the samples. The mean scalar product of two
    # independent samples has no such excess. So each sample of the first half is
    # multiplied by one of the second half. The norms are taken in the metric, in which
    # a gradient and its reduction to fewer parameters have the same norm.
    pairs = batches // 2
    # There are two checks, each with half of the probability of a false alarm. A mean
    # has one degree of freedom less than it has terms.
    loss_limit = limit_of(share=1.0 / 2, freedom=batches - 1)
    norm_limit = limit_of(share=1.0 / 2, freedom=pairs - 1)
    products = samples.gradients[:pairs] * samples.gradients[-pairs:] / trainer.metric
    of_loss = mean_check("loss at the beginning", loss, samples.losses, loss_limit)
    of_gradient = mean_check(
        "squared norm of the gradient at the beginning",
        float(np.sum(gradient**2 / risk.metric)),
        np.sum(products.reshape(pairs, -1), axis=1),
        norm_limit,
    )
    return [of_loss, of_gradient]


class _Samples(NamedTuple):
    """Losses, (B,), and gradients, (B, ...), of B batches."""

    losses: Array
    gradients: Array


def _samples(trainer: Risk, params: Array, batches: int) -> _Samples:
    """Evaluate a trainer on the batches of its first steps, at the same parameters."""
    losses = []
    gradients = []
    # `counted` shows the user how many batches are done.
    for step in counted(range(batches), "batches"):
        loss, gradient = trainer.evaluate(params, step)
        losses.append(loss)
        gradients.append(gradient)
    return _Samples(np.array(losses), np.stack(gradients))

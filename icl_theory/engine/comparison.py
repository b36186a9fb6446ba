"""Sampled values against exact ones: comparisons with standard errors, their limits, and what they can find."""

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

FOUND = 0.9  # how often an error of the size that `Power` states is found
Number = TypeVar("Number", float, Array)


class Check(NamedTuple):
    r"""One comparison: population value, sampled mean, its standard error, z-score and the limit of \|z\|."""

    name: str
    population: float
    sampled: float
    standard_error: float
    z: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the two agree within the limit."""
        return bool(abs(self.z) <= self.limit)

    def cells(self) -> tuple[str, ...]:
        """Return the figures and the verdict as text."""
        figures = (
            f"{self.population:.3g}",
            f"{self.sampled:.3g}",
            f"{self.standard_error:.1g}",
        )
        return (
            *figures,
            f"{self.z:+.2f}",
            f"{self.limit:.1f}",
            "pass" if self.passed else "FAIL",
        )


class Power(NamedTuple):
    """Smallest relative errors that a cross-check finds nine times in ten: of all losses, and of all gradients.

    An error is a common factor on the population's values; infinite where the sampled
    values are all zero.
    """

    loss: float
    gradient: float

    def __str__(self) -> str:
        """Return both in words."""
        return f"errors found nine times in ten: {self.loss:.2%} of the loss, {self.gradient:.2%} of the gradient"


@dataclass(frozen=True)
class Comparison(Displayable):
    """Exact values and sampled values of the same quantities.

    Attributes
    ----------
    checks : tuple of Check
        One row a comparison.
    note : str
        What was compared, and what was left out, in words.
    """

    checks: tuple[Check, ...]
    note: str

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(check.passed for check in self.checks)

    @property
    def remarks(self) -> str:
        """What stands below the table."""
        return self.note

    def to_markdown(self) -> str:
        """Return the comparisons as a Markdown table, and under it what they can find."""
        lines = [
            "| check | population | sampled | std. error | z | limit | |",
            "|" + "---|" * 7,
        ]
        lines += ["| " + " | ".join((c.name, *c.cells())) + " |" for c in self.checks]
        return "\n".join([*lines, "", f"{self.remarks}."])


@dataclass(frozen=True)
class CrossCheck(Comparison):
    """Outcome of `crosscheck`: the comparisons, and the two loss curves of the SGD run.

    Attributes
    ----------
    checks, note : tuple of Check, str
        As of every `Comparison`.
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
        """What stands below the table."""
        return f"{self.note}; {self.power}"


def limit_of(share: float, freedom: float, false_alarm: float = 1e-3) -> float:
    r"""Limit of \|z\| that a share of ``false_alarm``, of all comparisons together, amounts to."""
    from scipy.special import stdtrit

    return -float(stdtrit(freedom, 0.5 * share * false_alarm))


def detectable(check: Check, freedom: int) -> float:
    """Relative error of a population value at which its check fails nine times in ten (noncentral t)."""
    from scipy.special import nctdtrinc

    if not (check.population and check.standard_error):
        return math.inf if not check.population else 0.0
    return (
        float(nctdtrinc(freedom, 1.0 - FOUND, check.limit))
        * check.standard_error
        / abs(check.population)
    )


def mean_check(
    name: str, population: float, samples: Array, limit: float, scale: float = 0.0
) -> Check:
    """Compare a population value with the mean of independent samples of it.

    ``scale`` is the size of the numbers whose sum the value is, where they cancel:
    beside it the value is rounding.
    """
    mean = float(np.mean(samples))
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    z = z_score(mean - population, error, max(abs(population), scale))
    return Check(name, population, mean, error, z, limit)


def z_score(difference: Number, error: Number, scale: Number) -> Number:
    """Difference in standard errors; where the samples do not scatter, 0 if it is rounding and large if not."""
    return difference / (error + 1e-14 * abs(scale) + float(np.finfo(float).tiny))


def compare(
    risk: Risk, trainer: Risk, points: Mapping[str, Array], batches: int
) -> list[Check]:
    """Compare a risk with a trainer on sampled data at some parameters, by name.

    At each the loss, the gradient along itself and the gradient along a random
    direction are compared. Where the risk is a reduction of the trainer's, with fewer
    parameters, the loss and the squared norm of the gradient are, and only at the
    beginning, which the two have in common.
    """
    reduced = np.shape(trainer.initial) != np.shape(risk.initial)
    checks = []
    count = 2 if reduced else 3 * len(points)
    limit = limit_of(1.0 / count, batches - 1)
    for where, params in (
        {"the beginning": risk.initial} if reduced else points
    ).items():
        loss, gradient = risk.evaluate(params)
        at = trainer.initial if reduced else params
        pairs = [
            trainer.evaluate(at, step) for step in counted(range(batches), "batches")
        ]
        gradients = np.stack([each for _, each in pairs])
        checks.append(
            mean_check(
                f"loss at {where}", loss, np.array([each for each, _ in pairs]), limit
            )
        )
        if reduced:
            products = (
                gradients[: batches // 2]
                * gradients[-(batches // 2) :]
                / trainer.metric
            )
            products = np.sum(products.reshape(batches // 2, -1), axis=1)
            norm = float(np.sum(gradient**2 / risk.metric))
            checks.append(
                mean_check(
                    "squared norm of the gradient at the beginning",
                    norm,
                    products,
                    limit,
                )
            )
            continue
        drawn = np.random.default_rng(0).normal(size=np.shape(params))
        for name, direction in (("itself", gradient), ("a random direction", drawn)):
            along = np.sum((gradients * direction).reshape(batches, -1), axis=1)
            exact = float(np.sum(gradient * direction))
            checks.append(
                mean_check(f"gradient along {name} at {where}", exact, along, limit)
            )
    return checks

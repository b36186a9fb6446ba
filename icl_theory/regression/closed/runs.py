"""Whole runs of the exchangeable case with N = ∞ in closed form, for one point or a grid of them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.regression.closed.abel import ROUNDING, StepCounter
from icl_theory.regression.closed.flow import loss_curve


class ClosedRuns(NamedTuple):
    """What `closed_runs` finds, one entry a point."""

    # first step with loss <= epsilon; INT64_MAX where there is none below it
    hit: NDArray[np.int64]
    # estimated absolute error of ``hit``, below 1 only where rounding leaves no other
    # integer
    error: Array
    # where the run ends: ``hit`` or the largest number of steps
    last: NDArray[np.int64]
    attends: NDArray[np.int64]  # end of Phase I, at most ``last``
    tails: NDArray[np.int64]  # end of Phase II, at most ``last``
    gap: Array  # u at the end
    loss: Array
    attention: Array


class CountedRuns(NamedTuple):
    """Runs of the exchangeable class by gradient descent with N = ∞, as columns."""

    size: Array  # L Δ
    eta: Array
    K: Array
    epsilon: Array
    imbalance: Array
    counter: StepCounter
    attends: NDArray[np.int64]  # T₁, the first step with attention >= ½
    steps: NDArray[np.int64]  # the first step with loss <= ε
    in_class_coordinates: NDArray[np.bool_] | bool = True


def closed_runs(
    counter: StepCounter, gamma: Array, epsilon: Array, max_steps: int, tail: Array
) -> ClosedRuns:
    """Follow u ← u + c g(u) until the loss is ``epsilon``, without taking the steps.

    All arguments but ``max_steps`` are (P,); ``tail`` is the attention deficit at which
    Phase III begins (see `tail_start`). Every point comes out to the same bits whatever
    the others are.
    """
    K = counter.K
    half, tail_gap = (
        np.log(K - 1.0) + np.log1p(-s) - np.log(s) for s in (np.full(K.size, 0.5), tail)
    )
    hit, error, (ended, began) = _first_below(counter, gamma, epsilon, half, tail_gap)
    last = np.minimum(hit, max_steps)
    attends = np.minimum(last, ended)
    tails = np.minimum(last, began)
    gap = counter.position(last)
    return ClosedRuns(
        hit,
        error,
        last,
        attends,
        np.maximum(attends, tails),
        gap,
        *loss_curve(gap, gamma, K),
    )


def _first_below(
    counter: StepCounter, gamma: Array, epsilon: Array, *gaps: Array
) -> tuple[NDArray[np.int64], Array, NDArray[np.int64]]:
    """First steps with loss <= epsilon and their errors, (P,), and first steps at some gaps u, (gaps, P)."""
    K = counter.K
    start, _ = loss_curve(np.zeros(K.size), gamma, K)
    hit = np.zeros(K.size, dtype=np.int64)
    error = np.zeros(K.size)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # ½ ln(epsilon/start), exact also where the two are close; s falls by that, and
        # u = ln(a/s) + ln(K-1)
        close = epsilon > 0.5 * start
        drop = 0.5 * np.where(
            close, np.log1p((epsilon - start) / start), np.log(epsilon) - np.log(start)
        )
        goal = np.log1p(-(K - 1.0) * np.expm1(drop)) - drop
    above = start > epsilon
    found = counter._counted(np.where(above, goal, 0.0))
    hit[above], error[above] = found.steps[above], found.error[above]
    earliest, latest = found.earliest, found.latest
    unsure = np.flatnonzero(above & (earliest != latest) & (latest < INT64_MAX))
    if unsure.size:
        # the count is within rounding of an integer: let the loss itself decide
        few = StepCounter(K[unsure], counter.c[unsure])
        low = earliest[unsure] - 1
        high = latest[unsure]
        while (open_ := high - low > 1).any():
            middle = low + (high - low) // 2
            reached = (
                loss_curve(few.position(middle), gamma[unsure], K[unsure])[0]
                <= epsilon[unsure]
            )
            high = np.where(open_ & reached, middle, high)
            low = np.where(open_ & ~reached, middle, low)
        hit[unsure] = high
    error[np.abs(start - epsilon) <= 4.0 * ROUNDING * start] = (
        1.0  # step 0 has the loss epsilon, to rounding
    )
    return hit, error, np.array([counter.steps_to(gap).steps for gap in gaps])


class ExchangeableSteps:
    """The iterates of one exchangeable problem with N = ∞, as a `Solution`."""

    def __init__(self, gamma: float, counter: StepCounter) -> None:
        self.K = float(counter.K[0])
        self.gamma = np.array([gamma])
        self.counter = counter

    def states(self, steps: NDArray[np.int64]) -> Array:
        """Return u at some steps, (T,)."""
        return self.counter.position(steps)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """Return the first step with loss <= epsilon, and its estimated error, also where that may hide one."""
        hits, error, _ = _first_below(self.counter, self.gamma, np.array([epsilon]))
        hit = int(hits[0])
        found = hit <= last and hit < INT64_MAX
        return hit if found else None, float(error[0]) if found or hit - error[
            0
        ] <= last else 0.0

    def first_missing(self, *deficits: float) -> list[int]:
        """Return the first steps with 1 - a <= each deficit; INT64_MAX where there is none below it."""
        goals = [
            math.log(self.K - 1.0) + math.log1p(-s) - math.log(s) for s in deficits
        ]
        return self.counter.steps_to(np.array(goals)).steps.tolist()


def leading_order(
    eta: Array, gamma: float | Array, K: Array, epsilon: Array, start: Array
) -> Array:
    """``K²/(ηγ) + (K-1)/(4ηε)``, and 0 where the loss is below ``epsilon`` from the start."""
    with np.errstate(over="ignore", divide="ignore"):
        steps = K * K / (eta * gamma) + (K - 1.0) / (4.0 * eta * epsilon)
    return np.where(start > epsilon, steps, 0.0)


def step_constant(
    eta: float | Array, speed: float | Array, gamma: float | Array, K: float | Array
) -> Array:
    """``c = η γ K/(K-1)²``, with the factor on η that a change of coordinates amounts to."""
    each = np.asarray(K, dtype=np.float64)
    with np.errstate(over="ignore"):  # refused by those who call
        return np.asarray(
            np.asarray(eta, dtype=np.float64)
            * speed
            * gamma
            * each
            / ((each - 1.0) * (each - 1.0))
        )

"""Whole runs of many points in closed form, for exchangeable tasks with N = ∞.

`closed_runs` computes the ends of runs and of their phases. `ExchangeableSteps` is one
run as a `Solution` of the engine. In the shapes below, P is the number of points
(problems).

A step of descent is u ← u + c g(u) with g = a s². Here u is the gap between the score
of the query's own feature and the other scores, a the attention on this feature, and
s = 1 − a. With K features, the variogram γ of the task and the learning rate η,
c = η γ K/(K−1)², and the loss is ½ γ K/(K−1) s². Phase I ends at the attention ½, Phase
III is the tail, and Phase II lies between the two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import INT64_MAX, Array
from icl_theory.regression.closed.abel import StepCounter
from icl_theory.regression.closed.abel_function import ROUNDING
from icl_theory.regression.closed.flow import loss_curve

Steps = NDArray[np.int64]


class ClosedRuns(NamedTuple):
    """Results of `closed_runs`, one entry for each point."""

    # First step with loss <= epsilon; INT64_MAX if the step is not below INT64_MAX.
    hit: Steps
    # Estimated absolute error of ``hit``. It is below 1 only if rounding allows a
    # single integer.
    error: Array
    # The last step: ``hit``, or the largest number of steps if that is smaller.
    last: Steps
    attends: Steps  # end of Phase I, at most ``last``
    tails: Steps  # end of Phase II, at most ``last``
    gap: Array  # u at the last step
    loss: Array  # at the last step
    attention: Array  # at the last step


class CountedRuns(NamedTuple):
    """P runs of the exchangeable class by gradient descent with N = ∞, (P,) each."""

    size: Array  # L Δ
    eta: Array
    K: Array
    epsilon: Array
    imbalance: Array  # of the prompts, δ of `papers_regime`
    counter: StepCounter
    # T₁, the first step with attention >= ½, but at most the last step of the run
    attends: Steps
    steps: Steps  # the first step with loss <= ε; INT64_MAX if the run has none
    # Whether descent acts on the scores, and not on the matrix Q of embedding
    # coordinates
    in_class_coordinates: NDArray[np.bool_] | bool = True


class _Hits(NamedTuple):
    """First steps with loss <= epsilon, and their estimated absolute errors, (P,)."""

    step: Steps
    error: Array


def closed_runs(
    counter: StepCounter, gamma: Array, epsilon: Array, max_steps: int, tail: Array
) -> ClosedRuns:
    """Follow u ← u + c g(u) to a loss of at most ``epsilon``, without taking the steps.

    The results of a point do not depend on the other points, not even in the last bit.

    Parameters
    ----------
    counter : StepCounter
        P points.
    gamma, epsilon : ndarray, (P,)
        Variograms and target losses.
    max_steps : int
        Largest number of steps.
    tail : ndarray, (P,)
        Attention deficits at which Phase III begins (see `tail_start`).
    """
    K = counter.K
    # Phase I ends at the attention ½, and so at the deficit ½.
    half = np.full(K.size, 0.5)
    end_of_phase_1 = counter.steps_to(_gap(half, K)).steps
    end_of_phase_2 = counter.steps_to(_gap(tail, K)).steps
    hits = _first_hits(counter, gamma, epsilon)
    last = np.minimum(hits.step, max_steps)
    attends = np.minimum(last, end_of_phase_1)
    tail_begins = np.minimum(last, end_of_phase_2)
    gap = counter.position(last)
    loss, attention = loss_curve(gap, gamma, K)
    return ClosedRuns(
        hit=hits.step,
        error=hits.error,
        last=last,
        attends=attends,
        # If the tail begins before the attention is 1/2, Phase II is empty.
        tails=np.maximum(attends, tail_begins),
        gap=gap,
        loss=loss,
        attention=attention,
    )


def _gap(deficit: Array, K: Array) -> Array:
    """The u at an attention deficit s: ``ln((K - 1) (1 - s)/s)``."""
    return np.asarray(np.log(K - 1.0) + np.log1p(-deficit) - np.log(deficit))


def _first_hits(counter: StepCounter, gamma: Array, epsilon: Array) -> _Hits:
    """Return the first steps whose loss is at most ``epsilon``, and their errors."""
    K = counter.K
    start, _attention = loss_curve(np.zeros(K.size), gamma, K)
    is_above = start > epsilon
    goal = np.where(is_above, _gap_of_loss(epsilon, start, K), 0.0)
    count = counter.count(goal)
    hit = np.where(is_above, count.steps, 0)
    error = np.where(is_above, count.error, 0.0)

    # If rounding allows several counts, the loss itself decides between them, unless
    # the latest one is INT64_MAX, which stands for never.
    is_unsure = is_above & (count.earliest != count.latest)
    unsure = np.flatnonzero(is_unsure & (count.latest < INT64_MAX))
    if unsure.size:
        # The step before the earliest one is surely not a hit.
        hit[unsure] = _bisected(
            StepCounter(K[unsure], counter.c[unsure]),
            gamma[unsure],
            epsilon[unsure],
            low=count.earliest[unsure] - 1,
            high=count.latest[unsure],
        )
    # If step 0 has the loss epsilon up to some roundings, the first hit may be step 0
    # or step 1.
    is_at_start = np.abs(start - epsilon) <= 4.0 * ROUNDING * start
    error[is_at_start] = 1.0
    return _Hits(hit, error)


def _gap_of_loss(epsilon: Array, start: Array, K: Array) -> Array:
    """The u at which the loss is ``epsilon``.

    The ``start`` is the loss at u = 0. A loss ``epsilon`` of 0 gives u = ∞.
    """
    # An ``epsilon`` of 0 has the logarithm -∞. A start that is not above epsilon may
    # give NaN, which `_first_hits` does not use.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # The loss is proportional to s², so ln s changes by ½ ln(epsilon/start). The
        # first form of this logarithm keeps its digits if both losses are nearly equal.
        log_ratio_if_close = np.log1p((epsilon - start) / start)
        log_ratio_if_far = np.log(epsilon) - np.log(start)
        is_close = epsilon > 0.5 * start
        change = 0.5 * np.where(is_close, log_ratio_if_close, log_ratio_if_far)
        # u = ln((K - 1) a/s), with s = (1 - 1/K) e^change and a = 1 - s. So (K - 1) a/s
        # is (1 - (K - 1)(e^change - 1))/e^change.
        return np.asarray(np.log1p(-(K - 1.0) * np.expm1(change)) - change)


def _bisected(
    counter: StepCounter, gamma: Array, epsilon: Array, low: Steps, high: Steps
) -> Steps:
    """Find the first steps with loss <= epsilon, above ``low`` and at most ``high``."""
    while True:
        is_open = high - low > 1
        if not is_open.any():
            return high
        middle = low + (high - low) // 2
        loss, _attention = loss_curve(counter.position(middle), gamma, counter.K)
        is_hit = loss <= epsilon
        high = np.where(is_open & is_hit, middle, high)
        low = np.where(is_open & ~is_hit, middle, low)


class ExchangeableSteps:
    """The iterates of one exchangeable problem with N = ∞, as a `Solution`.

    ``counter`` has a single point.
    """

    def __init__(self, gamma: float, counter: StepCounter) -> None:
        self.K = float(counter.K[0])
        self.gamma = np.array([gamma])
        self.counter = counter

    def states(self, steps: Steps) -> Array:
        """Return u at some steps, (T,)."""
        return self.counter.position(steps)

    def first_below(self, epsilon: float, last: int) -> tuple[int | None, float]:
        """First step with loss <= epsilon, and its estimated error.

        Parameters
        ----------
        epsilon : float
            Target loss.
        last : int
            Last step of the run.

        Returns
        -------
        step : int or None
            The step, or None if it is after ``last``.
        error : float
            Estimated error of the step. If the step is surely after ``last``, the error
            is 0.
        """
        hits = _first_hits(self.counter, self.gamma, np.array([epsilon]))
        hit = int(hits.step[0])
        error = float(hits.error[0])
        if hit <= last and hit < INT64_MAX:
            return hit, error
        # The step is counted as later than ``last``. Within its error it may be at
        # ``last`` or earlier.
        if hit - error <= last:
            return None, error
        return None, 0.0

    def first_with_deficits(self, *deficits: float) -> list[int]:
        """First steps with 1 - a <= deficit, one for each of the ``deficits``.

        A step that is not below INT64_MAX is returned as INT64_MAX.
        """
        goals = []
        for deficit in deficits:
            # The u at this deficit. The formula is that of `_gap`, which takes arrays.
            goal = math.log(self.K - 1.0) + math.log1p(-deficit) - math.log(deficit)
            goals.append(goal)
        # All goals belong to the only point, whose index is 0.
        points = np.zeros(len(goals), dtype=np.intp)
        return self.counter.count(np.array(goals), points).steps.tolist()


def leading_order(
    eta: Array, gamma: float | Array, K: Array, epsilon: Array, start: Array
) -> Array:
    """Number of steps to leading order, ``K²/(ηγ) + (K-1)/(4ηε)``.

    It is 0 if the ``start``, the loss at step 0, is at most ``epsilon``.
    """
    # With γ = 0 or ε = 0 the number is infinite.
    with np.errstate(over="ignore", divide="ignore"):
        steps = K * K / (eta * gamma) + (K - 1.0) / (4.0 * eta * epsilon)
    return np.where(start > epsilon, steps, 0.0)


def step_constant(
    eta: float | Array, speed: float | Array, gamma: float | Array, K: float | Array
) -> Array:
    """``c = η γ K/(K-1)²`` times ``speed``, the factor on η for other coordinates."""
    features = np.asarray(K, dtype=np.float64)
    learning_rate = np.asarray(eta, dtype=np.float64)
    # An overflow needs no warning, because callers refuse constants that are too large.
    with np.errstate(over="ignore"):
        square = (features - 1.0) * (features - 1.0)
        return np.asarray(learning_rate * speed * gamma * features / square)

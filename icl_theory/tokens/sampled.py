"""Softmax attention on sampled tokens.

`Sampled` is a risk over prompts that are drawn anew at each step. It shares no formula
with the exact risks, which are tested against it. The functions at the end of the
module are shared by all samplers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Generic, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer
from icl_theory.engine.risk import WithStart
from icl_theory.engine.sampling import (
    P,
    Trainer,
    drawn_at_once,
    prompts_per_run,
    prompts_to_draw,
)
from icl_theory.memory import check_fits

Indices = NDArray[np.intp]


class Pass(NamedTuple):
    """The result of a pass over RB prompts, B for each of R runs."""

    losses: Array  # loss of each prompt, (RB,)
    # Parameters on which the losses depend, as indices in the flat array of the
    # parameters of all runs. They are broadcast to the shape of the slopes.
    places: Indices
    slopes: Array  # derivatives with respect to these parameters, (RB, ...)


class Sampled(WithStart, Trainer[P], Generic[P]):
    """Mean loss over prompts that are drawn anew at each step.

    Parameters
    ----------
    start : ndarray
        Parameters at step 0.
    draw : callable
        A function that draws prompts, given a random generator and their number.
    on : callable
        A function of the parameters of R runs, (R, ...), and of RB prompts, B for each
        run, in the order of the runs. It returns a ``Pass``: the losses of the prompts,
        places in the flat array of the parameters of all runs, and the derivatives of
        the losses with respect to the parameters at these places.
    batch, seed : int
        Number of prompts in a step, and the seed.
    numbers : float
        How many numbers of 8 bytes a prompt takes in memory.
    observation : callable, optional
        A function of the parameters of one run and of its prompts that returns the
        observations, arrays by their names. By default there are none.
    """

    def __init__(
        self,
        start: Array,
        draw: Callable[[np.random.Generator, int], P],
        on: Callable[[Array, P], Pass],
        batch: int,
        seed: int,
        numbers: float,
        observation: Callable[[Array, P], dict[str, Array]] | None = None,
    ) -> None:
        self.start = start
        self._draw = draw
        self._losses_and_slopes = on
        self._observation = observation
        self._numbers = numbers
        self.batch = integer("batch", batch, minimum=1)
        self.seed = integer("seed", seed, minimum=0)
        check_fits("batch", batch, 8.0 * batch * numbers)

    def draw(self, rng: np.random.Generator, size: int) -> P:
        """Draw ``size`` prompts, after a check of the arguments and of the memory."""
        return self._draw(rng, prompts_to_draw(rng, size, self._numbers))

    def draw_runs(self, rng: np.random.Generator, runs: int) -> list[P]:
        """Draw the prompts of all ``runs`` by a single call of ``draw``."""
        return drawn_at_once(self, rng, runs)

    def losses_on(self, params: Array, prompts: P) -> Array:
        """Loss of each of B prompts of one run, (B,)."""
        losses, _, _ = self._losses_and_slopes(params[None], prompts)
        return losses

    def evaluate_on(self, params: Array, prompts: P) -> tuple[float, Array]:
        """Mean loss of given prompts, and its gradient."""
        losses, gradients = self.evaluate_runs(params[None], prompts)
        return float(losses[0]), gradients[0]

    def evaluate_runs(self, params: Array, prompts: P) -> tuple[Array, Array]:
        """Mean losses and gradients of R runs, (R,) and (R, ...)."""
        runs = len(params)
        # All runs have equally many prompts; any other number of prompts is refused.
        size = prompts_per_run(prompts, runs)
        losses, places, slopes = self._losses_and_slopes(params, prompts)
        places = np.broadcast_to(places, slopes.shape)
        # Derivatives of several prompts with respect to the same parameter are summed.
        summed = np.bincount(places.ravel(), slopes.ravel(), params.size)
        gradients = summed / size
        return losses.reshape(runs, size).mean(axis=1), gradients.reshape(params.shape)

    def observe(self, params: Array, step: int = 0) -> dict[str, Array]:
        """Observations on the prompts of the step, if ``observation`` was given."""
        if self._observation is None:
            return {}
        return self._observation(params, self.prompts(step))


def first_places(params: Array, size: int) -> Indices:
    """Return the place at which the parameters of each prompt's run begin.

    It is an index in the flat array of the parameters of all runs.

    Parameters
    ----------
    params : ndarray, (R, ...)
        Parameters of R runs.
    size : int
        Number of prompts of all runs together.

    Returns
    -------
    ndarray of int, (size, 1)
    """
    run_of_prompt = np.repeat(np.arange(len(params)), size // len(params))
    return np.asarray(run_of_prompt[:, None] * params[0].size, dtype=np.intp)


def softmax(scores: Array) -> tuple[Array, Array]:
    """Return the softmax along the last axis, and the log of its denominator.

    The denominator is the sum of e^score. Its log is returned without the last axis.
    """
    # The largest score is subtracted, so that no exponential overflows.
    top = scores.max(axis=-1, keepdims=True)
    weight = scores - top
    # in place, because new large arrays take as long as the arithmetic
    np.exp(weight, out=weight)
    total = weight.sum(axis=-1, keepdims=True)
    weight /= total
    return weight, (top + np.log(total))[..., 0]


def chosen(draws: Array, cumulated: Array) -> Indices:
    """Return the index of the interval in which each uniform number falls.

    The result has the shape of ``draws``. The last axis of ``cumulated`` has the upper
    ends of the intervals.
    """
    # The last end is left out: rounding may put it a little below 1, and below a draw.
    is_beyond = draws[..., None] >= cumulated[..., :-1]
    return np.asarray(is_beyond.sum(axis=-1), dtype=np.intp)


def choose(rng: np.random.Generator, probs: Array, shape: tuple[int, ...]) -> Indices:
    """Draw an array of indices with given probabilities.

    The indices are the same as from ``rng.choice(len(probs), shape, p=probs)``, which
    takes several times as long if many indices are drawn.
    """
    # Arrays cannot be keys of a cache, but their bytes can.
    cumulated, index_of_bin = _guide(probs.tobytes())
    draws = rng.random(shape)
    index = index_of_bin[(draws * len(index_of_bin)).astype(np.intp)]
    is_undecided = index < 0  # the bin has parts of several intervals
    index[is_undecided] = cumulated.searchsorted(draws[is_undecided], side="right")
    return index


@lru_cache(maxsize=64)
def _guide(probs: bytes) -> tuple[Array, Indices]:
    """Return the upper end of each index's interval, and a table that finds indices.

    ``probs`` are the bytes of a float64 array, because the cache needs hashable
    arguments. Index i has the interval of the numbers in [0, 1) for which it is drawn.
    The table divides [0, 1) into equal bins. For a bin inside one interval the table
    has the index of this interval. For a bin that contains the end of an interval it
    has -1.
    """
    cumulated = np.frombuffer(probs).cumsum()
    cumulated /= cumulated[-1]
    # A power of two, so that the bin of a number is found without rounding. There are
    # at least 64 bins for each index, so that few bins have an end in them: at most one
    # in 64. At least 4096 bins, 32 KiB, make them rarer still if indices are few.
    bins = 2 ** max(12, math.ceil(math.log2(64 * len(cumulated))))
    edges = np.arange(bins + 1) / bins
    # The intervals of the least number of each bin, and of the numbers just below its
    # upper edge.
    first = cumulated.searchsorted(edges[:-1], side="right")
    last = cumulated.searchsorted(edges[1:], side="left")
    return cumulated, np.where(first == last, first, -1)

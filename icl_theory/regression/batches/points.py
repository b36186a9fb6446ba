"""Parameters of many points of a sweep as arrays, and constants of their descent.

A *point* is one problem of a sweep. L is the Lipschitz constant of its tasks, Δ
(``delta``) the distance between any two of its K features, N the number of tokens of a
prompt, and γ = (L Δ)²/2 the variogram of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from icl_theory._validate import Array, indexed
from icl_theory.regression.batches.doubts import Mask
from icl_theory.regression.closed.runs import step_constant
from icl_theory.regression.risks.exchangeable import (
    LARGEST_GAP,
    LARGEST_STEP_CONSTANT,
    SMALLEST_GAP,
    embedding_speed,
)
from icl_theory.regression.risks.stability import stable_rate
from icl_theory.regression.tasks.law import LARGEST_GAMMA, SMALLEST_GAMMA

# The range of the product L Δ. For these products, γ = (L Δ)²/2 is within the range of
# the variogram.
SMALLEST_SIZE, LARGEST_SIZE = 1e-140, 1e140


@dataclass(frozen=True)
class SweepPoints:
    """Parameters of P points: arrays of shape (P,), or one value for all points."""

    L: Array
    delta: Array
    K: Array
    N: Array
    noise: Array  # standard deviation of the label noise
    # One number or an array, or "auto".
    eta: Array | float | str
    # Target of the loss; None if there is no target.
    target: Array | None
    # Whether the target is an excess above the floor. For N = ∞ this makes no
    # difference, because floors are zero.
    is_excess: bool
    # One number or an array; None if no imbalance is given.
    imbalance: Any
    # Name of the law of the tasks, or an array of names; "" if the law is an object.
    task: Any
    # Words, or arrays of words.
    coordinates: Any
    method: Any
    # Whether the features are a regular simplex with equal probabilities.
    has_uniform_features: bool
    max_steps: int

    @classmethod
    def of(cls, points: Mapping[str, Array], common: Mapping[str, Any]) -> SweepPoints:
        """Collect the parameters from the arguments of `Family.batched`.

        ``points`` has the parameters with a value for each point, and ``common`` all
        others. A parameter such as ``eta`` may be in either of them.
        """

        def value(name: str) -> Any:
            return points.get(name, common.get(name))

        is_excess = "above" in points
        law = value("task")
        is_named = isinstance(law, str | np.ndarray)
        probs = common.get("probs")
        features = common.get("features")
        return cls(
            L=points["L"],
            delta=points["delta"],
            K=points["K"],
            N=points["N"],
            noise=points["noise"],
            eta=value("eta"),
            target=points["above"] if is_excess else points.get("epsilon"),
            is_excess=is_excess,
            imbalance=value("imbalance"),
            task=law if is_named else "",
            coordinates=value("coordinates"),
            method=value("method"),
            has_uniform_features=probs is None and features is None,
            max_steps=common["max_steps"],
        )

    @property
    def is_exchangeable(self) -> Mask:
        """Whether the task is named "exchangeable", and features are the default."""
        is_exchangeable = np.equal(self.task, "exchangeable")
        is_exchangeable = is_exchangeable & self.has_uniform_features
        return np.broadcast_to(is_exchangeable, self.K.shape)

    def descent(self) -> ExchangeableDescent:
        """Return learning rates and step constants of exchangeable descent, (P,) each.

        For points whose parameters a simulation would refuse, the numbers have no
        meaning.
        """
        # Parameters out of range are replaced by 1 in the following, so that nothing
        # overflows. The results of these points are not used.
        size = self.L * self.delta
        is_in_range = (size > SMALLEST_SIZE) & (size < LARGEST_SIZE)
        is_embedded = np.broadcast_to(
            np.equal(self.coordinates, "embedding"), self.delta.shape
        )
        # Only embedding coordinates limit Δ alone, and not just the product L Δ.
        is_delta_in_range = (self.delta > SMALLEST_GAP) & (self.delta < LARGEST_GAP)
        is_in_range &= ~is_embedded | is_delta_in_range

        # In class coordinates the scores themselves are trained, so that the factor on
        # the learning rate is 1.
        speed = np.ones(len(self.delta))
        if is_embedded.any():
            delta = np.where(is_in_range, self.delta, 1.0)
            embedded_speed = by_distinct_value(embedding_speed, delta)
            speed = np.where(is_embedded, embedded_speed, 1.0)
        size = np.where(is_in_range, size, 1.0)
        gamma = 0.5 * (size * size)
        eta = self.eta
        # The only word that eta may be is "auto".
        if isinstance(eta, str):
            eta = stable_rate(gamma, self.K, noise=self.noise, N=self.N, speed=speed)

        constant = step_constant(eta, speed, gamma, self.K)
        is_in_range = is_in_range & (constant < LARGEST_STEP_CONSTANT)
        is_in_range &= (gamma > SMALLEST_GAMMA) & (gamma < LARGEST_GAMMA)
        return ExchangeableDescent(gamma, speed, eta, constant, is_in_range)


class ExchangeableDescent(NamedTuple):
    """Constants of the descent of P exchangeable points, (P,) each."""

    gamma: Array  # variogram, (L Δ)²/2
    speed: Array  # factor on η if other coordinates than the scores are trained
    eta: Any  # learning rate, an array or one number
    step_constant: Array  # c = η γ K/(K-1)² times ``speed``
    is_in_range: Mask  # points out of range are refused by simulations


def by_distinct_value(function: Callable[[float], float], values: Array) -> Array:
    """Evaluate a slow function of a number once for each distinct value, (P,)."""
    # The sorted distinct values, and the index of each value among them
    distinct, index = indexed(values)
    return np.array([function(value) for value in distinct.tolist()])[index]

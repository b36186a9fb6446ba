"""The open question about the transition between the regimes: how the exponent of the time in L rises."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims.claim import Answer, Series
from icl_theory.engine.descent import MAX_STEPS
from icl_theory.families.regression.abel import StepCounter
from icl_theory.families.regression.closed import closed_runs, step_constant
from icl_theory.families.regression.phases import crossover, tail_start


def separation(quick: bool) -> Answer:
    """How wide the transition between the regimes is, and which limits are reached, for few features and many."""
    epsilon, eta, words, series, ends = 1e-6, 1e-2, [], [], {}
    for K in (20, 1000):
        # from just above L with the loss ε at the start, where there is nothing to learn, to 100 L*
        lowest = math.sqrt(4.0 * epsilon * K / (K - 1.0))
        lipschitz = np.geomspace(1.05 * lowest, 100.0 * crossover(epsilon, 1.0, K), 101 if quick else 401)
        gamma, sizes = 0.5 * lipschitz**2, np.full(lipschitz.shape, float(K))
        counter = StepCounter(sizes, step_constant(eta, 1.0, gamma, sizes))
        goal, tail = np.full(sizes.shape, epsilon), np.full(sizes.shape, tail_start(K))
        time = closed_runs(counter, gamma, goal, MAX_STEPS, tail).last.astype(np.float64)
        exponent = np.gradient(np.log(time), np.log(lipschitz))
        steepest = int(np.argmin(exponent))
        after = slice(steepest, None)
        ends[K] = float(exponent[steepest]), float(exponent[-1])
        words.append(_transition(K, lipschitz[after], exponent[after], crossover(epsilon, 1.0, K)))
        series += [
            Series(f"exact, K = {K}", lipschitz, time),
            Series(f"learning to attend, K²/(ηγ), K = {K}", lipschitz, 2.0 * K**2 / (eta * lipschitz**2)),
            Series(
                f"tail, (K − 1)/(4ηε), K = {K}", lipschitz, np.full(len(lipschitz), (K - 1) / (4 * eta * epsilon))
            ),
        ]
    return Answer(
        "separation",
        "Is there a clear separation between the regimes?",
        f"T ~ L^-2 is reached to 5 % for {_which(K for K, (low, _) in ends.items() if low < -1.9)}, T independent"
        f" of L for {_which(K for K, (_, high) in ends.items() if abs(high) < 0.1)} (ε = {epsilon:g})."
        f" {' '.join(words)}",
        tuple(series),
        "L",
        "steps to ε",
    )


def _which(sizes: Iterable[int]) -> str:
    return " and ".join(f"K = {K}" for K in sizes) or "no K here"


def _transition(K: int, lipschitz: Array, exponent: Array, predicted: float) -> str:
    """Describe how the exponent of T rises with L from its lowest value on."""
    reached, end = -exponent.min() / 2.0, round(float(exponent[-1]), 2) + 0.0  # no -0.00

    def where(value: float) -> float | None:
        passed = np.flatnonzero(exponent >= value)
        return float(lipschitz[passed[0]]) if passed.size and passed[0] > 0 else None

    start, middle, stop = where(-1.8), where(-1.0), where(-0.2)
    words = (
        f"For K = {K} the exponent comes down to {exponent.min():.2f}, {reached:.0%} of the way to -2, and rises to"
    )
    words += f" {end:.2f} at 100 L*"
    if start is not None and stop is not None:
        words += f"; from -1.8 to -0.2 it takes {math.log10(stop / start):.1f} decades of L"
    elif stop is not None:
        words += (
            f"; it does not reach -1.8, and is -0.2 {math.log10(stop / lipschitz[0]):.1f} decades after its lowest"
        )
    if middle is not None:
        words += f". It is -1 at {middle / predicted:.2f} L*"
    return words + "."

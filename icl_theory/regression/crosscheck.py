"""Population against samples: z-scores of the sampled trainer's loss and gradient, and whole SGD runs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer, number, prompt_length, refuse
from icl_theory.descent import descend
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.features import Features
from icl_theory.regression.population import PopulationRisk
from icl_theory.regression.sampled import SampledRisk
from icl_theory.regression.tasks import Exchangeable
from icl_theory.risk import Risk
from icl_theory.trajectory import Trajectory

FALSE_ALARM = 1e-3
DEFAULT_N = 100


class Check(NamedTuple):
    """One comparison: population value, sampled mean, its standard error, z-score and the largest |z| allowed."""

    name: str
    population: float
    sampled: float
    standard_error: float
    z: float
    limit: float

    @property
    def passed(self) -> bool:
        """Whether the two agree within the limit."""
        return abs(self.z) <= self.limit


@dataclass(frozen=True)
class CrossCheck:
    """Outcome of `crosscheck`: the comparisons, and the two loss curves of the SGD run.

    Attributes
    ----------
    checks : tuple of Check
        One row a comparison.
    note : str
        What was compared, in words.
    t, population, sgd, band : ndarray, (T,)
        Steps, population loss along exact gradient descent, population loss along the SGD run, and the
        half-width of the band that SGD runs stay in.
    """

    checks: tuple[Check, ...]
    note: str
    t: NDArray[np.int64]
    population: Array
    sgd: Array
    band: Array

    @property
    def passed(self) -> bool:
        """Whether every comparison passed."""
        return all(check.passed for check in self.checks)

    def to_markdown(self) -> str:
        """Return the comparisons as a Markdown table."""
        lines = ["| check | population | sampled | std. error | z | limit | |", "|" + "---|" * 7]
        for name, *values, z, limit in self.checks:
            population, sampled, error = values
            verdict = "pass" if abs(z) <= limit else "FAIL"
            lines.append(
                f"| {name} | {population:.6g} | {sampled:.6g} | {error:.2g} | {z:+.2f} | {limit:.2f} | {verdict} |"
            )
        return "\n".join(lines)


def crosscheck(
    run_or_risk: Trajectory | Risk,
    *,
    eta: float | None = None,
    N: int | None = None,
    batch: int = 512,
    batches: int = 48,
    points: int = 3,
    steps: int = 100,
    runs: int = 8,
    seed: int = 0,
) -> CrossCheck:
    """Hold the sampled trainer against the population risk.

    At random scores, independent batches of prompts give a mean loss and gradient with standard errors; their
    distances to the population values are z-scores with Student's distribution. Then one run of stochastic
    gradient descent must stay within the band around exact gradient descent that the spread of other such
    runs gives. The limits make a false alarm, over all comparisons together, a one-in-a-thousand event.

    Parameters
    ----------
    run_or_risk : Trajectory, PopulationRisk or ExchangeableRisk
        A run of `simulate`, or a risk; changes of coordinates are looked through.
    eta : float, optional
        Learning rate of the SGD runs; the run's, or 1.
    N : int, optional
        Prompt length, where the risk has N = ∞ (which cannot be sampled): both sides then use this one, 100
        unless given.
    batch, batches : int
        Prompts in a batch; independent batches, at least 3.
    points : int
        Number of random score matrices.
    steps, runs : int
        Length of the SGD runs; number of runs that measure their spread, at least 3.
    seed : int
        Seed of everything.

    Returns
    -------
    CrossCheck
        With ``passed`` and ``to_markdown()``.

    Raises
    ------
    ValueError
        A risk that cannot be sampled, or an argument out of range.

    References
    ----------
    docs/theory.md, "Population against samples".

    Examples
    --------
    >>> import icl_theory as icl
    >>> risk = icl.PopulationRisk(icl.Features.simplex(4, delta=1.0), icl.tasks.Linear(2.0), N=20)
    >>> icl.crosscheck(risk, batch=128, steps=20).passed
    True
    """
    from scipy.special import stdtrit

    batch, steps = integer("batch", batch, minimum=1), integer("steps", steps, minimum=1)
    batches, runs = integer("batches", batches, minimum=3), integer("runs", runs, minimum=3)
    points, seed = integer("points", points, minimum=1), integer("seed", seed, minimum=0)
    population, note = _population(run_or_risk, N)
    if eta is None:
        eta = run_or_risk.eta if isinstance(run_or_risk, Trajectory) else 1.0
    eta = number("eta", eta)
    features, task = population.features, population.task
    streams = np.random.SeedSequence(seed).generate_state(runs + points + 2, dtype=np.uint32).tolist()

    def sampled(stream: int) -> SampledRisk:
        return SampledRisk(features, task, int(population.N), batch, stream, noise=population.noise)

    comparisons = points * (features.K**2 + 2)

    def limit(freedom: int, tests: int) -> float:
        return float(-stdtrit(freedom, 0.25 * FALSE_ALARM / tests))

    checks: list[Check] = []
    rng = np.random.default_rng(streams[-1])
    for point in range(points):
        scores = rng.normal(size=(features.K, features.K))
        loss, gradient = population.evaluate(scores)
        trainer = sampled(streams[runs + point])
        pairs = [trainer.evaluate(scores, step) for step in range(batches)]
        losses = np.array([pair[0] for pair in pairs])
        gradients = np.array([pair[1] for pair in pairs])
        along = gradient / max(np.linalg.norm(gradient), np.finfo(float).tiny)
        bound = limit(batches - 1, comparisons)
        checks.append(_mean_check(f"loss, scores {point + 1}", loss, losses, bound))
        slopes = np.einsum("bij,ij->b", gradients, along)
        checks.append(
            _mean_check(f"gradient norm, scores {point + 1}", float(np.linalg.norm(gradient)), slopes, bound)
        )
        entries = [
            _mean_check("", float(gradient[index]), gradients[:, *index], bound)
            for index in np.ndindex(gradient.shape)
        ]
        worst = max(entries, key=lambda check: abs(check.z))
        checks.append(worst._replace(name=f"worst of {len(entries)} entries"))

    exact = descend(population, eta, steps=steps)
    curves = np.array([
        [population.loss(state) for state in descend(sampled(stream), eta, steps=steps).states[1:]]
        for stream in [*streams[:runs], streams[-2]]
    ])  # fmt: skip
    size = min(curves.shape[1], len(exact.t) - 1)  # the exact run may stop early where nothing is left to learn
    t, expected, curves = exact.t[1 : size + 1], exact.loss[1 : size + 1], curves[:, :size]
    spread = np.std(curves[:-1], axis=0, ddof=1)
    bound = limit(runs - 1, max(size, 1))
    for position in _some(size):
        value, error = float(curves[-1, position]), float(spread[position])
        z = _z(value - float(expected[position]), error, float(expected[position]))
        checks.append(Check(f"SGD loss, step {t[position]}", float(expected[position]), value, error, z, bound))
    return CrossCheck(tuple(checks), note, t, expected, curves[-1], bound * spread)


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[PopulationRisk, str]:
    """Return the K x K population risk over class scores behind a run or risk, with finite N."""
    risk: object = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    while risk is not None and not isinstance(risk, PopulationRisk | ExchangeableRisk):
        risk = getattr(risk, "risk", None)
    if risk is None:
        raise refuse("run_or_risk", run_or_risk, "a run of simulate (not loaded from a file), or a regression risk")
    if isinstance(risk, ExchangeableRisk):
        task = Exchangeable(math.sqrt(2.0 * risk.gamma))
        risk = PopulationRisk(Features.simplex(risk.K, 1.0), task, risk.N, risk.noise)
    if math.isfinite(risk.N):
        if N is not None and N != risk.N:
            raise refuse("N", N, f"left out, or the risk's own {risk.N:g}")
        return risk, f"prompts of N = {risk.N:g} tokens"
    length = prompt_length(DEFAULT_N if N is None else N)
    if math.isinf(length):
        raise refuse("N", N, "finite: infinite prompts cannot be sampled")
    return replace(risk, N=length), f"prompts of N = {length:g} tokens on both sides (N = ∞ cannot be sampled)"


def _mean_check(name: str, population: float, samples: Array, limit: float) -> Check:
    mean = float(np.mean(samples))
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    return Check(name, population, mean, error, _z(mean - population, error, population), limit)


def _z(difference: float, error: float, scale: float) -> float:
    """Difference in standard errors; where the samples do not scatter, 0 if it is rounding and large if not."""
    return difference / (error + 1e-14 * abs(scale) + np.finfo(float).tiny)


def _some(size: int) -> Iterable[int]:
    return sorted({round(x) for x in np.linspace(0, size - 1, 4)}) if size else ()

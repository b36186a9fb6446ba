"""Population against samples: z-scores of the sampled trainer's loss and gradient, and whole SGD runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer, number, prompt_length, refuse
from icl_theory.engine.risk import Embedding, Factored, Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression.exchangeable import ExchangeableRisk
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.reduction import expanded
from icl_theory.families.regression.sampled import SampledRisk
from icl_theory.families.regression.whole import descend
from icl_theory.results import notebook

FALSE_ALARM = 1e-3
DEFAULT_N = 100
ENOUGH = 200  # prompts in which an entry of the gradient has a sample
MOST_SAMPLED = 1000


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
        return abs(self.z) <= self.limit

    def cells(self) -> tuple[str, ...]:
        """Return the figures and the verdict as text."""
        figures = (f"{self.population:.3g}", f"{self.sampled:.3g}", f"{self.standard_error:.1g}")
        return (*figures, f"{self.z:+.2f}", f"{self.limit:.1f}", "pass" if self.passed else "FAIL")


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

    def _repr_html_(self) -> str:
        """What a notebook shows: the comparisons as a table."""
        names = ("name", "population", "sampled", "standard_error", "z", "limit", "passed")
        columns = {name: [getattr(check, name) for check in self.checks] for name in names}
        return notebook.table(columns, self.note)

    def to_markdown(self) -> str:
        """Return the comparisons as a Markdown table."""
        lines = ["| check | population | sampled | std. error | z | limit | |", "|" + "---|" * 7]
        lines += ["| " + " | ".join((c.name, *c.cells())) + " |" for c in self.checks]
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
    runs: int = 12,
    seed: int = 0,
) -> CrossCheck:
    """Hold the sampled trainer against the population risk.

    At random parameters, independent batches of prompts give a mean loss and gradient with standard errors;
    their distances to the population values are z-scores with Student's distribution. (Entries of the gradient
    that fewer than 200 of the prompts touch are left out.) Then one run of stochastic gradient descent, in the
    run's coordinates, must stay within the band around exact gradient descent that the spread of other such runs
    gives. The limits make a false alarm, over all comparisons together, a one-in-a-thousand event, as long as
    the learning rate and the batch are such that SGD follows gradient descent on average: its bias is of order
    eta/batch.

    Parameters
    ----------
    run_or_risk : Trajectory or Risk
        A run of `simulate`, or a risk, in any coordinates.
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
    streams = np.random.SeedSequence(seed).generate_state(runs + points + 2, dtype=np.uint32).tolist()

    def sampled(stream: int) -> Risk:
        core = _core(population)
        trainer = SampledRisk(core.features, core.task, int(core.N), batch, stream, noise=core.noise)
        return _rewrapped(population, trainer)

    often = _often(population, batch * batches)
    per_test = 0.5 * FALSE_ALARM / (points * (int(often.sum()) + 2))
    bound = -float(stdtrit(batches - 1, 0.5 * per_test))
    checks: list[Check] = []
    rng = np.random.default_rng(streams[-1])
    for point in range(points):
        params = rng.normal(size=population.initial.shape)
        loss, gradient = population.evaluate(params)
        trainer = sampled(streams[runs + point])
        pairs = [trainer.evaluate(params, step) for step in range(batches)]
        losses, gradients = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
        size = float(np.linalg.norm(gradient))
        slopes = gradients.reshape(batches, -1) @ gradient.ravel() / max(size, np.finfo(float).tiny)
        checks.append(_mean_check(f"loss, point {point + 1}", loss, losses, bound))
        checks.append(_mean_check(f"gradient norm, point {point + 1}", size, slopes, bound))
        entries = [
            _mean_check("", float(gradient[index]), gradients[:, *index], bound)
            for index in zip(*np.nonzero(often), strict=True)
        ]
        worst = max(entries, key=lambda check: abs(check.z), default=checks[-1])
        checks.append(worst._replace(name=f"worst of {len(entries)} entries"))

    exact = descend(population, eta, steps=steps)
    curves = np.array([
        [population.loss(state) for state in descend(sampled(stream), eta, steps=steps).states[1:]]
        for stream in [*streams[:runs], streams[-2]]
    ])  # fmt: skip
    size = min(curves.shape[1], len(exact.t) - 1)  # the exact run stops early where nothing is left to learn
    t, expected, curves = exact.t[1 : size + 1], exact.loss[1 : size + 1], curves[:, :size]
    spread = np.std(curves[:-1], axis=0, ddof=1)
    bound = -float(stdtrit(runs - 1, 0.25 * FALSE_ALARM / max(size, 1)))
    if size:
        along = [
            Check("", *map(float, (e, value, sd, _z(value - e, sd, e), bound)))
            for e, value, sd in zip(expected, curves[-1], spread, strict=True)
        ]
        worst = max(along, key=lambda check: abs(check.z))
        checks.append(worst._replace(name=f"SGD loss, worst of {size} steps"))
        checks.append(along[-1]._replace(name=f"SGD loss, step {t[-1]}"))
    return CrossCheck(tuple(checks), note, t, expected, curves[-1], bound * spread)


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[Risk, str]:
    """Return the full population risk behind a run or risk, in its coordinates, with finite N."""
    risk = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    if isinstance(risk, ExchangeableRisk):
        if risk.K > MOST_SAMPLED:
            raise refuse("run_or_risk", risk, f"of at most {MOST_SAMPLED} features to be sampled")
        risk = expanded(risk)
    inner = risk
    while isinstance(inner, Embedding | Factored):
        inner = inner.risk
    if risk is None or not isinstance(inner, PopulationRisk):
        raise refuse("run_or_risk", run_or_risk, "a run of simulate (not loaded from a file), or a regression risk")
    if math.isfinite(inner.N):
        if N is not None and N != inner.N:
            raise refuse("N", N, f"left out, or the risk's own {inner.N:g}")
        return risk, f"prompts of N = {inner.N:g} tokens"
    length = prompt_length(DEFAULT_N if N is None else N)
    if math.isinf(length):
        raise refuse("N", N, "finite: infinite prompts cannot be sampled")
    note = f"prompts of N = {length:g} tokens on both sides (N = ∞ cannot be sampled)"
    return _rewrapped(risk, replace(inner, N=length)), note


def _core(risk: Risk) -> PopulationRisk:
    while isinstance(risk, Embedding | Factored):
        risk = risk.risk
    assert isinstance(risk, PopulationRisk)
    return risk


def _rewrapped(risk: Risk, core: Risk) -> Risk:
    """The same changes of coordinates around another core."""
    return replace(risk, risk=_rewrapped(risk.risk, core)) if isinstance(risk, Embedding | Factored) else core


def _often(risk: Risk, prompts: int) -> NDArray[np.bool_]:
    """Entries of the gradient whose query and feature meet in enough of the prompts for a normal mean."""
    if not isinstance(risk, PopulationRisk):
        return np.ones(risk.initial.shape, dtype=bool)
    p = risk.features.probs
    present = -np.expm1(risk.N * np.log1p(-np.minimum(p, 1.0 - 1e-16)))
    return np.asarray(prompts * present[:, None] * p >= ENOUGH)


def _mean_check(name: str, population: float, samples: Array, limit: float) -> Check:
    mean = float(np.mean(samples))
    error = float(np.std(samples, ddof=1)) / math.sqrt(len(samples))
    return Check(name, population, mean, error, _z(mean - population, error, population), limit)


def _z(difference: float, error: float, scale: float) -> float:
    """Difference in standard errors; where the samples do not scatter, 0 if it is rounding and large if not."""
    return difference / (error + 1e-14 * abs(scale) + np.finfo(float).tiny)

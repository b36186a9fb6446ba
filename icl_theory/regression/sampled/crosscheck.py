"""Comparison of the population risk with samples, by z-scores.

`crosscheck` compares losses and gradients of the population risk with two samplers at
random scores, the *points* (`_point_checks`). It also compares whole runs of stochastic
gradient descent (SGD) with exact descent (`_curve_checks`).

In the shapes below, K is the number of features and T the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, argument_error, integer, number
from icl_theory.engine.comparison import (
    Check,
    CrossCheck,
    Power,
    detectable,
    limit_of,
    mean_check,
    z_score,
)
from icl_theory.engine.descent import descend
from icl_theory.engine.progress import Progress
from icl_theory.engine.pullback import core_params, core_risk, replace_core
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.memory import check_fits
from icl_theory.regression.risks.exchangeable import ExchangeableRisk, expanded
from icl_theory.regression.risks.population import PopulationRisk
from icl_theory.regression.risks.prompts import presence
from icl_theory.regression.sampled.counts import CountedRisk
from icl_theory.regression.sampled.phases import sampled_length, sampled_phases
from icl_theory.regression.sampled.risk import SampledRisk

# An entry of the gradient is compared only if at least this many prompts contribute to
# it: its mean is then nearly normal.
ENOUGH = 1000
# Number of batches of the sampler by counts: Student's law is then nearly normal.
COUNTED_BATCHES = 64
# Of the probability of a false alarm, the share of each of four sums (two for each
# sampler), of the worst entries of each of two gradients, and of all steps of SGD.
SHARE_OF_A_SUM = 0.1
SHARE_OF_ENTRIES = 0.15
SHARE_OF_STEPS = 0.3

Steps = NDArray[np.int64]


def crosscheck(
    run_or_risk: Trajectory | Risk,
    *,
    eta: float | None = None,
    N: int | None = None,
    precision: float = 0.01,
    batch: int = 512,
    batches: int = 48,
    points: int = 3,
    steps: int = 100,
    runs: int = 12,
    phases: int = 0,
    seed: int = 0,
) -> CrossCheck:
    """Compare sampled prompts with the population risk.

    At each of several random points, independent batches of prompts give a mean loss
    and a mean gradient with standard errors. The distance of a mean from its population
    value, divided by the standard error, is a z-score with Student's distribution.
    There are two samplers. The first draws a prompt by its counts and uses every
    feature as the query (``sampled.counts.CountedRisk``). It draws enough prompts to
    find an error of ``precision``. The second is the trainer, `SampledRisk`, which
    draws prompts token by token. For each sampler three results are compared: the sum
    of the losses over the points, the sum of the norms of the gradients, and the
    entries of the gradients. Finally one run of SGD, in the coordinates of
    ``run_or_risk``, must stay within a band around exact gradient descent. The width of
    the band comes from the spread of further runs of SGD. All comparisons together
    raise a false alarm once in a thousand times, provided that SGD follows gradient
    descent on average; its bias is of order eta/batch. See docs/theory.md, "Population
    against samples".

    Parameters
    ----------
    run_or_risk : Trajectory or Risk
        A run of `simulate`, or a risk, in any coordinates.
    eta : float, optional
        Learning rate of the SGD runs; by default the learning rate of the run, or 1.
    N : int, optional
        Prompt length of the samples and of the population risk if the risk has N = ∞,
        which cannot be sampled. The default is 100.
    precision : float
        Relative error of the loss, and of the gradient, that the comparison should find
        nine times in ten. Because the work is bounded, it may find larger errors only;
        ``power`` of the result says which.
    batch, batches : int
        Number of prompts in a batch of the trainer, and number of its independent
        batches, at least 3.
    points : int
        Number of random points.
    steps, runs : int
        Number of steps of each SGD run, and number of runs that measure the spread, at
        least 3.
    phases : int
        Number of sampled runs to the target, at least 3, whose phases `sampled_phases`
        compares; 0 for none.
    seed : int
        Seed of all random numbers.

    Returns
    -------
    CrossCheck
        The checks, with ``passed``, ``power`` and ``to_markdown()``.

    Raises
    ------
    ValueError
        The risk cannot be sampled, or an argument is out of range.

    Examples
    --------
    >>> import icl_theory as icl
    >>> features = icl.Features.simplex(4, delta=1.0)
    >>> risk = icl.PopulationRisk(features, icl.tasks.Linear(2.0), N=20)
    >>> checked = icl.crosscheck(risk, batch=128, steps=20)
    >>> checked.passed, max(checked.power) < 0.01
    (True, True)
    """
    batch = integer("batch", batch, minimum=1)
    steps = integer("steps", steps, minimum=1)
    batches = integer("batches", batches, minimum=3)
    runs = integer("runs", runs, minimum=3)
    points = integer("points", points, minimum=1)
    seed = integer("seed", seed, minimum=0)
    precision = number("precision", precision, minimum=1e-6)
    population, note = _population(run_or_risk, N)
    run = run_or_risk if isinstance(run_or_risk, Trajectory) else None
    if phases and run is None:
        raise argument_error("phases", phases, "0 for a risk, which has no phases")
    if eta is None:
        eta = 1.0 if run is None else run.eta
    eta = number("eta", eta)
    core = core_risk(population)
    K = core.features.K
    # The gradients of all batches are kept, with a few more arrays of their size.
    gradients = points * (max(batches, COUNTED_BATCHES) + 4)
    check_fits("points", points, 8.0 * gradients * (K**2 + 2.0))
    check_fits("runs", runs, 1e3 * runs)

    seeds = _Seeds.spawn(seed, runs, points)
    values = _population_values(population, points, np.random.default_rng(seeds.points))
    checks: list[Check] = []
    notes = [note]
    with Progress("", "samples") as shown:
        shown.update(0, points * (COUNTED_BATCHES + batches) + runs + 1)

        def counted(size: int, stream: int) -> CountedRisk:
            return CountedRisk(
                core.features, core.task, int(core.N), size, stream, core.noise
            )

        def trainer(stream: int) -> SampledRisk:
            return SampledRisk(
                core.features,
                core.task,
                int(core.N),
                batch,
                stream,
                noise=core.noise,
            )

        size = _prompts_needed(values, counted(128, seeds.pilot), precision)
        counted_sampler = _Sampler(
            name="",
            risks=[counted(size, stream) for stream in seeds.counted],
            batches=COUNTED_BATCHES,
            batch=size,
            query_probs=np.ones(K),
        )
        trainer_sampler = _Sampler(
            name="trainer: ",
            risks=[trainer(stream) for stream in seeds.trainers],
            batches=batches,
            batch=batch,
            query_probs=core.features.probs,
        )
        present = presence(core.features.probs, core.N)
        for sampler in (counted_sampler, trainer_sampler):
            is_sampled = sampler.samples(present) >= ENOUGH
            checks += _point_checks(values, sampler, is_sampled, shown.add)
            if not is_sampled.any():
                notes.append(
                    f"{sampler.name}no entry of the gradient has a sample "
                    f"in {ENOUGH} prompts"
                )
        loss_check, gradient_check = checks[:2]
        power = Power(
            detectable(loss_check, COUNTED_BATCHES - 1),
            detectable(gradient_check, COUNTED_BATCHES - 1),
        )
        trainers = [trainer(stream) for stream in [*seeds.runs, seeds.judged_run]]
        t, expected, losses = _curves(population, trainers, eta, steps, shown.add)

    # The last run is compared with the spread of the others.
    judged = losses[-1]
    spread = np.std(losses[:-1], axis=0, ddof=1)
    limit = limit_of(SHARE_OF_STEPS / max(t.size, 1), runs - 1)
    if t.size:
        checks += _curve_checks(t, expected, judged, spread, limit)
    else:
        notes.append("nothing is left to learn for SGD")
    if phases and run is not None:
        compared = sampled_phases(run, N=N, runs=phases, batch=batch, seed=seed)
        checks += compared.checks
        notes.append(f"phases: {compared.note}")
    return CrossCheck(
        tuple(checks), "; ".join(notes), power, t, expected, judged, limit * spread
    )


class _Seeds(NamedTuple):
    """Independent seeds for all random numbers of a comparison."""

    runs: list[int]  # for the SGD runs that measure the spread
    counted: list[int]  # for the sampler by counts, one for each point
    trainers: list[int]  # for the trainer, one for each point
    pilot: int  # for the batches that estimate how many prompts are needed
    judged_run: int  # for the SGD run that is compared with exact descent
    points: int  # for the random points

    @classmethod
    def spawn(cls, seed: int, runs: int, points: int) -> _Seeds:
        sequence = np.random.SeedSequence(seed)
        size = runs + 2 * points + 3
        seeds = sequence.generate_state(size, dtype=np.uint32).tolist()
        return cls(
            seeds[:runs],
            seeds[runs : runs + points],
            seeds[runs + points : runs + 2 * points],
            *seeds[-3:],
        )


class _Sampler(NamedTuple):
    """A sampler that is compared with the population at every point."""

    name: str
    risks: Sequence[Risk]  # one for each point
    batches: int
    batch: int  # prompts in a batch
    query_probs: Array  # probability that feature k is a query of a prompt, (K,)

    def samples(self, present: Array) -> Array:
        """Expected number of prompts that contribute to each entry of the gradient.

        A prompt contributes to the entry of a feature and a query if it contains the
        feature and has this query. ``present`` is the probability that it contains the
        feature, (K,).
        """
        return self.batch * self.batches * present[:, None] * self.query_probs


class _PopulationValues(NamedTuple):
    """The population risk at one point."""

    scores: Array  # (K, K)
    loss: float
    gradient: Array  # (K, K)
    norm: float  # of the gradient
    scale: float  # size of the terms of loss and gradient, which may cancel


def _population_values(
    population: Risk, points: int, rng: np.random.Generator, spread: float = 8.0
) -> list[_PopulationValues]:
    """Evaluate the population risk at random parameters.

    The parameters are normal. They are halved until the scores of every query differ by
    less than ``spread``: if scores differ by more than 8, a few rare prompts decide the
    mean.
    """
    core = core_risk(population)
    # A sampled loss is a square of a difference of labels. Even if it should be zero,
    # rounding leaves 1e-32 of the second moment of the labels.
    variances = np.diagonal(core.task.kernel(core.features))
    second_moment = float(np.max(variances)) + core.noise**2
    values = []
    for _ in range(points):
        params = rng.normal(size=population.initial.shape)
        scores = core_params(population, params)
        while np.ptp(scores, axis=0).max() > spread:
            params = 0.5 * params
            scores = core_params(population, params)
        loss, gradient = core.evaluate(scores)
        norm = float(np.linalg.norm(gradient))
        scale = loss + 1e-16 * second_moment
        values.append(_PopulationValues(scores, loss, gradient, norm, scale))
    return values


class _Sampled(NamedTuple):
    """Results of the batches of one sampler at all points."""

    losses: Array  # losses, summed over the points, (batches,)
    slopes: Array  # slopes along the population gradient, summed likewise, (batches,)
    gradients: list[Array]  # one array for each point, (batches, K * K)


def _sample(
    values: list[_PopulationValues],
    samplers: Sequence[Risk],
    batches: int,
    add: Callable[[], None] = lambda: None,
) -> _Sampled:
    """Evaluate the first ``batches`` steps of each sampler, at its point.

    The function ``add`` is called after each evaluation.
    """
    losses = np.zeros(batches)
    slopes = np.zeros(batches)
    gradients = []
    for point, sampler in zip(values, samplers, strict=True):
        sampled_gradients = np.empty((batches, point.gradient.size))
        sampled_losses = np.empty(batches)
        for step in range(batches):
            loss, gradient = sampler.evaluate(point.scores, step)
            sampled_losses[step] = loss
            sampled_gradients[step] = gradient.ravel()
            add()
        # A gradient of zero has no direction, and its slopes are zero.
        direction = point.gradient.ravel() / max(point.norm, np.finfo(float).tiny)
        losses += sampled_losses
        slopes += sampled_gradients @ direction
        gradients.append(sampled_gradients)
    return _Sampled(losses, slopes, gradients)


def _sum_checks(
    values: list[_PopulationValues], sampled: _Sampled, freedom: int
) -> list[Check]:
    """Compare the sums over the points of losses and of norms of gradients."""
    limit = limit_of(SHARE_OF_A_SUM, freedom)
    loss = sum(point.loss for point in values)
    norm = sum(point.norm for point in values)
    scale = sum(point.scale for point in values)
    return [
        mean_check("loss", loss, sampled.losses, limit, scale),
        mean_check("gradient norm", norm, sampled.slopes, limit, scale),
    ]


def _point_checks(
    values: list[_PopulationValues],
    sampler: _Sampler,
    is_sampled: NDArray[np.bool_],
    add: Callable[[], None],
) -> list[Check]:
    """Compare losses, norms and entries of the gradients of one sampler.

    The mask ``is_sampled``, (K, K), selects the entries of a gradient that are
    compared.
    """
    sampled = _sample(values, sampler.risks, sampler.batches, add)
    checks = _sum_checks(values, sampled, sampler.batches - 1)
    compared = np.flatnonzero(is_sampled)
    count = len(values) * len(compared)
    if not count:
        return _named(sampler.name, checks)
    name = f"worst of {count} entries"
    limit = limit_of(SHARE_OF_ENTRIES / count, sampler.batches - 1)
    worst_entries = []
    for point, gradients in zip(values, sampled.gradients, strict=True):
        expected = point.gradient.ravel()[compared]
        entries = gradients[:, compared]
        errors = entries.std(axis=0, ddof=1) / math.sqrt(sampler.batches)
        scales = np.maximum(np.abs(expected), point.scale)
        z = z_score(entries.mean(axis=0) - expected, errors, scales)
        worst = int(np.argmax(np.abs(z)))
        worst_entries.append(
            mean_check(
                name, float(expected[worst]), entries[:, worst], limit, point.scale
            )
        )
    checks.append(max(worst_entries, key=lambda check: abs(check.z)))
    return _named(sampler.name, checks)


def _named(sampler: str, checks: list[Check]) -> list[Check]:
    """Put the name of the sampler in front of the names of its checks."""
    return [check._replace(name=sampler + check.name) for check in checks]


def _curves(
    population: Risk,
    trainers: list[SampledRisk],
    eta: float,
    steps: int,
    add: Callable[[int], None],
) -> tuple[Steps, Array, Array]:
    """Run exact descent and SGD.

    Return T steps and the population losses at these steps: of exact descent, (T,), and
    of the runs of SGD, (runs, T).
    """
    exact = descend(population, eta, steps=steps)
    curves = []
    for trainer in trainers:
        risk = replace_core(population, trainer)
        sgd = descend(risk, eta, steps=steps, callback=lambda *_: add(0))
        curves.append([population.loss(state) for state in sgd.states[1:]])
        add(1)
    # The exact run stops early if nothing is left to learn.
    size = min(len(curves[0]), len(exact.t) - 1)
    return exact.t[1 : size + 1], exact.loss[1 : size + 1], np.array(curves)[:, :size]


def _curve_checks(
    t: Steps, expected: Array, curve: Array, spread: Array, limit: float
) -> list[Check]:
    """Compare the losses of an SGD run with exact descent, in units of the spread."""
    z = z_score(curve - expected, spread, expected)

    def check(name: str, place: int) -> Check:
        return Check(
            f"SGD loss, {name}",
            float(expected[place]),
            float(curve[place]),
            float(spread[place]),
            float(z[place]),
            float(limit),
        )

    worst = int(np.argmax(np.abs(z)))
    return [check(f"worst of {len(t)} steps", worst), check(f"step {t[-1]}", -1)]


def _prompts_needed(
    values: list[_PopulationValues],
    pilot: CountedRisk,
    precision: float,
    pilots: int = 16,
    work: float = 2e10,
) -> int:
    """Return how many prompts in a batch are needed to find an error of ``precision``.

    The number is estimated from ``pilots`` batches of the sampler ``pilot``. It is
    bounded such that the whole comparison takes about ``work`` multiplications.
    """
    batches = COUNTED_BATCHES
    sampled = _sample(values, [pilot] * len(values), pilots)
    largest_error = 0.0
    for check in _sum_checks(values, sampled, batches - 1):
        error = detectable(check, batches - 1)
        if math.isfinite(error):
            largest_error = max(largest_error, error)
    # Errors fall like one over the square root of the number of prompts. The number is
    # increased by a fifth, because a few batches give only a rough estimate.
    prompts = pilot.batch * pilots / batches
    wanted = 1.2 * (largest_error / precision) ** 2 * prompts
    K = len(values[0].scores)
    most = work / (len(values) * batches * (K * (K + 400.0) + 1000.0))
    return int(max(pilot.batch, min(wanted, most)))


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[Risk, str]:
    """Return the population risk over K x K scores with finite N, and a note on N.

    The risk has the coordinates of ``run_or_risk``.
    """
    risk = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    if isinstance(risk, ExchangeableRisk):
        if risk.K > 1000:
            raise argument_error(
                "run_or_risk", risk, "of at most 1000 features if prompts are sampled"
            )
        risk = expanded(risk)
    core = core_risk(risk)
    if risk is None or not isinstance(core, PopulationRisk):
        raise argument_error(
            "run_or_risk",
            run_or_risk,
            "a run of simulate (not loaded from a file), or a regression risk",
        )
    if math.isfinite(core.N):
        if N is not None and N != core.N:
            raise ValueError(f"N = {N!r} contradicts the risk (N = {core.N:g})")
        return risk, f"prompts of N = {core.N:g} tokens"
    length = sampled_length(N)
    if math.isinf(length):
        raise argument_error("N", N, "finite: infinite prompts cannot be sampled")
    note = f"prompts of N = {length:g} tokens on both sides (N = ∞ cannot be sampled)"
    return replace_core(risk, replace(core, N=length)), note

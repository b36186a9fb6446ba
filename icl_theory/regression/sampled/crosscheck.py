"""Comparison of the population risk with samples, by z-scores.

`crosscheck` compares losses and gradients of the population risk with two samplers at
random scores, the *points* (`_point_checks`). It also compares whole runs of stochastic
gradient descent (SGD) with exact descent (`_compare_curves`).

A *z-score* is a difference in units of its standard error. The *core* of a risk is the
risk over K x K scores inside all changes of coordinates.

In the shapes below, K is the number of features and T the number of steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

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
# Number of batches of the sampler by counts: Student's law is then nearly normal, so
# that its limits are hardly wider than normal ones.
COUNTED_BATCHES = 64
# Shares of the probability of a false alarm, one for each group of comparisons. There
# are two samplers, each with two sums (of losses, and of norms of gradients) and with
# the entries of its gradients. All steps of SGD are one more group. The shares of all
# groups add up to 1: 4 * 0.1 + 2 * 0.15 + 0.3.
SHARE_OF_A_SUM = 0.1
SHARE_OF_ENTRIES = 0.15
SHARE_OF_STEPS = 0.3
# Number of prompts in a *pilot* batch, and number of pilot batches. They serve to
# estimate how many prompts are needed. With more of them the estimate is better, but
# takes longer.
PILOT_BATCH = 128
PILOTS = 16
# About how many multiplications the comparison may take. More of them find smaller
# errors, and take longer.
MOST_WORK = 2e10
# Rough memory of an SGD run, in bytes: its trainer and its losses.
BYTES_PER_RUN = 1e3
# The smallest ``precision`` that is accepted. The number of prompts grows like one over
# its square.
SMALLEST_PRECISION = 1e-6
# The estimated number of prompts is increased by this factor, because a few pilot
# batches give only a rough estimate. The time grows in proportion to this factor.
SAFETY_FACTOR = 1.2
# A rough cost of a prompt, expressed in multiplications. WORK_PER_FEATURE is the cost
# of drawing the count and the labels of one feature. WORK_PER_PROMPT is the cost of
# everything else, except for the K² multiplications of the weights.
WORK_PER_FEATURE = 400.0
WORK_PER_PROMPT = 1000.0
# The largest K for which gradients are sampled. They have K² entries, and many of them
# are kept.
MOST_SAMPLED_FEATURES = 1000

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
    There are two samplers. The first draws only how many tokens of a prompt show each
    feature, and uses every feature as the query (``sampled.counts.CountedRisk``). It
    draws enough prompts to find an error of ``precision``. The second is the trainer,
    `SampledRisk`, which draws prompts token by token. For each sampler three results
    are compared: the sum of the losses over the points, the sum of the norms of the
    gradients, and the entries of the gradients. Finally one run of SGD, in the
    coordinates of ``run_or_risk``, must stay within a band around exact gradient
    descent. The width of the band comes from the spread of further runs of SGD. All
    comparisons together raise a false alarm once in a thousand times, provided that SGD
    follows gradient descent on average. (The bias of SGD is of order eta/batch.) See
    docs/theory.md, "Population against samples".

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
        nine times in ten. Because the work is bounded, the comparison may find only
        larger errors; ``power`` of the result says which.
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
    precision = number("precision", precision, minimum=SMALLEST_PRECISION)
    # `note` says which prompt length is compared.
    population, note = _population(run_or_risk, N)
    run = run_or_risk if isinstance(run_or_risk, Trajectory) else None
    if phases and run is None:
        raise argument_error(
            "phases", phases, "0 if a risk is given: only a run has phases"
        )
    if eta is None:
        eta = 1.0 if run is None else run.eta
    eta = number("eta", eta)
    core = core_risk(population)
    _check_memory(core.features.K, points, batches, runs)

    seeds = _Seeds.spawn(seed, runs, points)
    values = _population_values(population, points, np.random.default_rng(seeds.points))
    with Progress(words="", unit="samples") as progress:
        # One evaluation for each batch at each point, and runs of SGD: those that
        # measure the spread, and one that is judged. `progress.add` counts them.
        progress.update(done=0, total=points * (COUNTED_BATCHES + batches) + runs + 1)
        pilot = _counted_risk(core, PILOT_BATCH, seeds.pilot)
        counted_batch = _prompts_needed(values, pilot, precision)
        samplers = _samplers(core, seeds, counted_batch, batches=batches, batch=batch)
        point_comparison = _compare_at_points(core, values, samplers, progress.add)
        # `_Curves` takes the last run as the one that is judged.
        run_seeds = [*seeds.runs, seeds.judged_run]
        trainers = [_trainer(core, batch, run_seed) for run_seed in run_seeds]
        curves = _curves(population, trainers, eta, steps, progress.add)

    sgd_comparison = _compare_curves(curves)
    checks = [*point_comparison.checks, *sgd_comparison.checks]
    notes = [note, *point_comparison.notes, *sgd_comparison.notes]
    if phases and run is not None:
        phase_comparison = sampled_phases(run, N=N, runs=phases, batch=batch, seed=seed)
        checks += phase_comparison.checks
        notes.append(f"phases: {phase_comparison.note}")
    return CrossCheck(
        checks=tuple(checks),
        note="; ".join(notes),
        power=_power(point_comparison),
        t=curves.t,
        population=curves.exact,
        sgd=curves.judged,
        band=curves.limit * curves.spread,
    )


class _Compared(NamedTuple):
    """Checks, and notes on checks that are missing."""

    checks: list[Check]
    notes: list[str]


def _power(point_comparison: _Compared) -> Power:
    """Return the smallest relative errors that the comparison at the points finds.

    The sampler by counts has the smaller errors. It comes first, and its checks of the
    loss and of the norm of the gradient come before all others.
    """
    loss, gradient_norm, *_ = point_comparison.checks
    # A mean of n batches has n - 1 degrees of freedom.
    freedom = COUNTED_BATCHES - 1
    return Power(
        loss=detectable(loss, freedom), gradient=detectable(gradient_norm, freedom)
    )


def _samplers(
    core: Any, seeds: _Seeds, counted_batch: int, *, batches: int, batch: int
) -> tuple[_Sampler, _Sampler]:
    """Return the sampler by counts and the trainer of the population risk ``core``.

    The batches of the sampler by counts have ``counted_batch`` prompts. The trainer has
    ``batches`` batches of ``batch`` prompts.
    """
    # A prompt of the sampler by counts has every feature as its query, so that the
    # probability of each query is 1.
    by_counts = _Sampler(
        name="",
        risks=[_counted_risk(core, counted_batch, seed) for seed in seeds.counted],
        batches=COUNTED_BATCHES,
        batch=counted_batch,
        query_probs=np.ones(core.features.K),
    )
    by_tokens = _Sampler(
        name="trainer: ",
        risks=[_trainer(core, batch, seed) for seed in seeds.trainers],
        batches=batches,
        batch=batch,
        query_probs=core.features.probs,
    )
    return by_counts, by_tokens


def _compare_at_points(
    core: Any,
    values: list[_PopulationValues],
    samplers: Sequence[_Sampler],
    add: Callable[[], None],
) -> _Compared:
    """Compare each sampler with the population risk at the points.

    For each sampler the checks of the loss and of the norm come first. The function
    ``add`` is called after each evaluation, to show progress.
    """
    # The probability that a prompt contains each feature
    present = presence(core.features.probs, core.N)
    checks = []
    notes = []
    for sampler in samplers:
        has_enough = sampler.samples(present) >= ENOUGH
        checks += _point_checks(values, sampler, has_enough, add)
        if not has_enough.any():
            notes.append(
                f"{sampler.name}no entry of the gradient has a sample "
                f"in {ENOUGH} prompts"
            )
    return _Compared(checks, notes)


def _check_memory(K: int, points: int, batches: int, runs: int) -> None:
    """Refuse numbers of points or runs that need more memory than is free."""
    # The gradients of all batches are kept. For each point, some more arrays of the
    # size of a gradient are needed, roughly four. A batch gives K² entries of the
    # gradient, a loss and a slope (see `_Sampled`), of 8 bytes each.
    kept_batches = points * (max(batches, COUNTED_BATCHES) + 4)
    check_fits("points", points, 8.0 * kept_batches * (K**2 + 2.0))
    check_fits("runs", runs, BYTES_PER_RUN * runs)


def _counted_risk(core: Any, batch: int, seed: int) -> CountedRisk:
    """Return the sampler of a population risk that draws prompts by their counts."""
    return CountedRisk(core.features, core.task, int(core.N), batch, seed, core.noise)


def _trainer(core: Any, batch: int, seed: int) -> SampledRisk:
    """Return the trainer of a population risk, which draws prompts token by token."""
    return SampledRisk(
        core.features, core.task, int(core.N), batch, seed, noise=core.noise
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
        """Derive all seeds from one."""
        sequence = np.random.SeedSequence(seed)
        # One for each run, two for each point, and three single ones
        size = runs + 2 * points + 3
        seeds = sequence.generate_state(size, dtype=np.uint32).tolist()
        pilot, judged_run, seed_of_points = seeds[-3:]
        return cls(
            runs=seeds[:runs],
            counted=seeds[runs : runs + points],
            trainers=seeds[runs + points : runs + 2 * points],
            pilot=pilot,
            judged_run=judged_run,
            points=seed_of_points,
        )


class _Sampler(NamedTuple):
    """A sampler that is compared with the population at every point."""

    name: str  # put in front of the names of its checks
    risks: Sequence[Risk]  # one for each point
    batches: int
    batch: int  # prompts in a batch
    query_probs: Array  # probability that feature k is a query of a prompt, (K,)

    def samples(self, present: Array) -> Array:
        """Return how many prompts should contribute to each gradient entry, (K, K).

        A prompt contributes to the entry of a feature (row) and a query (column) if it
        contains the feature and has this query. The result is the expected number of
        such prompts. ``present`` is the probability that a prompt contains each
        feature, (K,).
        """
        return self.batch * self.batches * present[:, None] * self.query_probs


class _PopulationValues(NamedTuple):
    """The population risk at one point."""

    scores: Array  # (K, K)
    loss: float
    gradient: Array  # (K, K)
    norm: float  # of the gradient
    # Size of the terms of loss and gradient, which may cancel. Rounding errors of loss
    # and gradient are relative to this size.
    scale: float


def _population_values(
    population: Risk, points: int, rng: np.random.Generator, spread: float = 8.0
) -> list[_PopulationValues]:
    """Evaluate the population risk at random parameters.

    The parameters are normal. They are halved until the scores of every query differ by
    at most ``spread``. If scores differ by more than 8, a few rare prompts decide the
    mean over samples. ``population`` may be in other coordinates than scores; its core,
    the risk over scores, is evaluated.
    """
    core = core_risk(population)
    # The diagonal of the kernel has the second moments of the values at each feature.
    second_moments = np.diagonal(core.task.kernel(core.features))
    second_moment = float(np.max(second_moments)) + core.noise**2
    values = []
    for _ in range(points):
        params = rng.normal(size=population.initial.shape)
        scores = core_params(population, params)
        while np.ptp(scores, axis=0).max() > spread:
            params = 0.5 * params
            scores = core_params(population, params)
        loss, gradient = core.evaluate(scores)
        norm = float(np.linalg.norm(gradient))
        # A sampled loss is a square of a difference of labels. If the exact loss is
        # zero, rounding of the difference (1e-16 of the labels) leaves a loss of 1e-32
        # of their second moment. `z_score` allows for a rounding error of 1e-14 of the
        # scale, which is then 1e-30 of the second moment.
        scale = loss + 1e-16 * second_moment
        values.append(_PopulationValues(scores, loss, gradient, norm, scale))
    return values


class _Sampled(NamedTuple):
    """Results of the batches of one sampler at all points."""

    losses: Array  # losses, summed over the points, (batches,)
    # Components of the gradient along the population gradient, summed over the points,
    # (batches,). Their mean is the sum of the norms of the population gradients.
    slopes: Array
    gradients: list[Array]  # one array for each point, (batches, K * K)


def _sample(
    values: list[_PopulationValues],
    risks: Sequence[Risk],
    batches: int,
    add: Callable[[], None] = lambda: None,
) -> _Sampled:
    """Evaluate a sampled risk at each point, on the batches of its first steps.

    ``risks`` has one risk for each point. The function ``add`` is called after each
    evaluation, to show progress.
    """
    losses = np.zeros(batches)
    slopes = np.zeros(batches)
    gradients = []
    for point, risk in zip(values, risks, strict=True):
        sampled_gradients = np.empty((batches, point.gradient.size))
        sampled_losses = np.empty(batches)
        for step in range(batches):
            loss, gradient = risk.evaluate(point.scores, step)
            sampled_losses[step] = loss
            sampled_gradients[step] = gradient.ravel()
            add()
        # A gradient of zero has no direction, and its slopes are zero. The smallest
        # normal number then avoids 0/0.
        direction = point.gradient.ravel() / max(point.norm, np.finfo(float).tiny)
        losses += sampled_losses
        slopes += sampled_gradients @ direction
        gradients.append(sampled_gradients)
    return _Sampled(losses, slopes, gradients)


def _sum_checks(
    values: list[_PopulationValues], sampled: _Sampled, freedom: int
) -> list[Check]:
    """Compare the sums over the points of losses and of norms of gradients.

    Limits are those of Student's t distribution with ``freedom`` degrees of freedom.
    """
    limit = limit_of(SHARE_OF_A_SUM, freedom)
    loss = sum(point.loss for point in values)
    norm = sum(point.norm for point in values)
    scale = sum(point.scale for point in values)
    return [
        mean_check("loss", loss, sampled.losses, limit, scale=scale),
        mean_check("gradient norm", norm, sampled.slopes, limit, scale=scale),
    ]


def _point_checks(
    values: list[_PopulationValues],
    sampler: _Sampler,
    is_compared: NDArray[np.bool_],
    add: Callable[[], None],
) -> list[Check]:
    """Compare the losses, norms and entries of the gradients of one sampler.

    Return the checks of the loss and of the norm first. The check of the worst entry
    follows. It is missing if the mask ``is_compared``, (K, K), selects no entries.
    """
    sampled = _sample(values, sampler.risks, sampler.batches, add)
    checks = _sum_checks(values, sampled, sampler.batches - 1)
    compared = np.flatnonzero(is_compared)
    if compared.size:
        entries = [gradients[:, compared] for gradients in sampled.gradients]
        checks.append(_worst_entry_check(values, entries, compared))
    return [check._replace(name=sampler.name + check.name) for check in checks]


def _worst_entry_check(
    values: list[_PopulationValues], entries: list[Array], compared: NDArray[np.intp]
) -> Check:
    """Compare the entry with the largest absolute z-score among those of all points.

    ``entries`` has an array for each point, (batches, E): the E sampled entries that
    are compared. Their indices in the flattened gradients are ``compared``, (E,).
    """
    batches = len(entries[0])
    count = len(values) * len(compared)
    # The allowed probability of a false alarm is divided among all entries, because any
    # of them may be the worst.
    limit = limit_of(SHARE_OF_ENTRIES / count, batches - 1)
    worst_of_points = []
    for point, samples in zip(values, entries, strict=True):
        expected = point.gradient.ravel()[compared]
        # The z-scores are those of `mean_check`, which is called for the worst only.
        standard_errors = samples.std(axis=0, ddof=1) / math.sqrt(batches)
        scales = np.maximum(np.abs(expected), point.scale)
        z = z_score(samples.mean(axis=0) - expected, standard_errors, scales)
        worst = int(np.argmax(np.abs(z)))
        worst_of_points.append(
            mean_check(
                f"worst of {count} entries",
                float(expected[worst]),
                samples[:, worst],
                limit,
                scale=point.scale,
            )
        )
    return max(worst_of_points, key=lambda check: abs(check.z))


class _Curves(NamedTuple):
    """Population losses of exact descent and of SGD at T steps.

    Step 0 is left out, because all runs start at the same parameters.
    """

    t: Steps  # (T,)
    exact: Array  # of exact descent, (T,)
    # Of the runs of SGD, (runs + 1, T). The last run is judged, and the other ``runs``
    # measure the spread.
    sgd: Array

    @property
    def judged(self) -> Array:
        """Losses of the run that is compared with exact descent, (T,)."""
        return np.asarray(self.sgd[-1])

    @property
    def spread(self) -> Array:
        """Standard deviation of the losses of the other runs, (T,)."""
        return np.asarray(np.std(self.sgd[:-1], axis=0, ddof=1))

    @property
    def limit(self) -> float:
        """Largest distance from exact descent that is allowed, in units of the spread.

        Without steps there is no check of SGD, and the limit does not matter.
        """
        # The spread is estimated from all runs but the judged one. An estimate from n
        # runs has n - 1 degrees of freedom.
        freedom = len(self.sgd) - 2
        return limit_of(SHARE_OF_STEPS / max(self.t.size, 1), freedom)


def _curves(
    population: Risk,
    trainers: list[SampledRisk],
    eta: float,
    steps: int,
    add: Callable[[int], None],
) -> _Curves:
    """Run exact descent and SGD, at most ``steps`` steps of each.

    The function ``add`` is called with the number of runs that are done since the last
    call, to show progress.
    """
    exact = descend(population, eta, steps=steps)
    curves = []
    for trainer in trainers:
        risk = replace_core(population, trainer)
        # With a callback, `descend` does not show its own progress. This callback only
        # keeps the display alive, without counting anything.
        sgd = descend(risk, eta, steps=steps, callback=lambda *_: add(0))
        curves.append([population.loss(state) for state in sgd.states[1:]])
        add(1)
    # The exact run stops early if nothing is left to learn. SGD does not, so its curves
    # are cut to the same length.
    size = min(len(curves[0]), len(exact.t) - 1)
    after_start = slice(1, size + 1)
    return _Curves(
        t=exact.t[after_start],
        exact=exact.loss[after_start],
        sgd=np.array(curves)[:, :size],
    )


def _compare_curves(curves: _Curves) -> _Compared:
    """Compare the losses of the judged SGD run with exact descent.

    The unit is the spread of the other SGD runs.
    """
    t = curves.t
    if not t.size:
        return _Compared(
            checks=[],
            notes=["SGD is not compared, because exact descent takes no step"],
        )
    limit = curves.limit
    spread = curves.spread
    # The differences in units of the spread, (T,). The last argument tells the size of
    # the losses, whose rounding `z_score` allows for.
    z = z_score(curves.judged - curves.exact, spread, curves.exact)

    # The check of one step, the entry ``index`` of all curves
    def check(name: str, index: int) -> Check:
        return Check(
            f"SGD loss, {name}",
            population=float(curves.exact[index]),
            sampled=float(curves.judged[index]),
            standard_error=float(spread[index]),
            z=float(z[index]),
            limit=float(limit),
        )

    worst = int(np.argmax(np.abs(z)))
    worst_step = check(f"worst of {len(t)} steps", worst)
    last_step = check(f"step {t[-1]}", index=-1)
    return _Compared(checks=[worst_step, last_step], notes=[])


def _prompts_needed(
    values: list[_PopulationValues],
    pilot: CountedRisk,
    precision: float,
    pilots: int = PILOTS,
) -> int:
    """Return how many prompts in a batch are needed to find an error of ``precision``.

    The number is estimated from ``pilots`` batches of the sampler ``pilot``. It is
    bounded such that the whole comparison takes about MOST_WORK multiplications.
    """
    batches = COUNTED_BATCHES
    sampled = _sample(values, [pilot] * len(values), pilots)
    largest_error = 0.0
    # The errors that the pilots would find, with the limits of the final comparison
    for check in _sum_checks(values, sampled, freedom=batches - 1):
        error = detectable(check, freedom=batches - 1)
        # The error is infinite for a value of 0, for which no number of prompts helps.
        if math.isfinite(error):
            largest_error = max(largest_error, error)
    # The number of prompts in each batch if the pilots' prompts were divided among the
    # final number of batches
    prompts_per_batch = pilot.batch * pilots / batches
    # Errors fall like one over the square root of the number of prompts.
    needed = SAFETY_FACTOR * (largest_error / precision) ** 2 * prompts_per_batch
    # The products of a prompt with the weights of all queries take K² multiplications.
    K = len(values[0].scores)
    work_per_prompt = K * (K + WORK_PER_FEATURE) + WORK_PER_PROMPT
    affordable = MOST_WORK / (len(values) * batches * work_per_prompt)
    return int(max(pilot.batch, min(needed, affordable)))


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[Risk, str]:
    """Return the population risk with finite N, and a note on N.

    The risk has the coordinates of ``run_or_risk``. Its core is over K x K scores.
    """
    risk = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    if isinstance(risk, ExchangeableRisk):
        if risk.K > MOST_SAMPLED_FEATURES:
            raise argument_error(
                "run_or_risk",
                risk,
                f"of at most {MOST_SAMPLED_FEATURES} features if prompts are sampled",
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
    # The risk has N = ∞. Its prompts get the same finite length as the samples.
    note = f"prompts of N = {length:g} tokens on both sides (N = ∞ cannot be sampled)"
    return replace_core(risk, replace(core, N=length)), note

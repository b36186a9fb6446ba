"""Population against samples: z-scores of sampled losses and gradients, their power, and whole SGD runs."""

from __future__ import annotations

import math
from collections.abc import Callable
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

# prompts with a sample of an entry of the gradient from which on its mean is compared
ENOUGH = 1000

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

    At random scores, independent batches of prompts give a mean loss and gradient with
    standard errors; their distances to the population values are z-scores with
    Student's distribution. There are two samplers. One draws a prompt by its counts and
    asks for every feature (``sampled.counts.CountedRisk``), with enough prompts to find
    an error of ``precision``. The other is the trainer, `SampledRisk`, token by token.
    For both, the sum of the losses over the points, the sum of the gradients' norms,
    and the entries of the gradients are compared. Finally one run of stochastic
    gradient descent, in the run's coordinates, must stay within a band around exact
    gradient descent, whose width comes from the spread of other such runs. All
    comparisons together raise a false alarm once in a thousand times, provided that SGD
    follows gradient descent on average: its bias is of order eta/batch. See
    docs/theory.md, "Population against samples".

    Parameters
    ----------
    run_or_risk : Trajectory or Risk
        A run of `simulate`, or a risk, in any coordinates.
    eta : float, optional
        Learning rate of the SGD runs; by default that of the run, or 1.
    N : int, optional
        Prompt length for both sides if the risk has N = ∞, which cannot be sampled; 100
        by default.
    precision : float
        Relative error of the loss, and of the gradient, to be found nine times in ten.
        The work is bounded: ``power`` tells the errors that are found.
    batch, batches : int
        Prompts in a batch of the trainer, and its number of independent batches, at
        least 3.
    points : int
        Number of random score matrices.
    steps, runs : int
        Length of the SGD runs, and number of runs that measure their spread, at least
        3.
    phases : int
        Number of sampled runs to the target, at least 3, whose phases are compared as
        by `sampled_phases`; 0 for none.
    seed : int
        Seed of everything.

    Returns
    -------
    CrossCheck
        With ``passed``, ``power`` and ``to_markdown()``.

    Raises
    ------
    ValueError
        The risk cannot be sampled, or an argument is out of range.

    Examples
    --------
    >>> import icl_theory as icl
    >>> risk = icl.PopulationRisk(icl.Features.simplex(4, delta=1.0), icl.tasks.Linear(2.0), N=20)
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
    eta = number("eta", eta if eta is not None else 1.0 if run is None else run.eta)
    core = core_risk(population)
    K = core.features.K
    counted_batches = 64  # enough for Student's law to be nearly normal
    check_fits(
        "points",
        points,
        8.0 * points * (max(batches, counted_batches) + 4) * (K**2 + 2.0),
    )
    check_fits("runs", runs, 1e3 * runs)
    streams = (
        np.random.SeedSequence(seed)
        .generate_state(runs + 2 * points + 3, dtype=np.uint32)
        .tolist()
    )
    known = _known(population, points, np.random.default_rng(streams[-1]))
    args = (core.features, core.task, int(core.N))

    with Progress("", "samples") as shown:
        shown.update(0, points * (counted_batches + batches) + runs + 1)
        needed = _prompts_needed(
            known,
            CountedRisk(*args, 128, streams[-3], core.noise),
            precision,
            counted_batches,
        )
        checks = []
        left_out = []
        p = core.features.probs
        for name, size, number_of, first, asked in (
            ("", needed, counted_batches, runs, np.ones(K)),
            ("trainer: ", batch, batches, runs + points, p),
        ):
            samplers: list[Risk] = [
                CountedRisk(*args, size, stream, core.noise)
                if not name
                else SampledRisk(*args, size, stream, noise=core.noise)
                for stream in streams[first : first + points]
            ]
            # entries whose feature and query are in enough prompts for a normal mean
            often = size * number_of * presence(p, core.N)[:, None] * asked >= ENOUGH
            found = _point_checks(known, samplers, number_of, often, shown.add)
            checks += [check._replace(name=name + check.name) for check in found]
            if not often.any():
                left_out.append(
                    f"{name}no entry of the gradient has a sample in {ENOUGH} prompts"
                )
        power = Power(*(detectable(check, counted_batches - 1) for check in checks[:2]))

        trainers = [
            SampledRisk(*args, batch, each, noise=core.noise)
            for each in [*streams[:runs], streams[-2]]
        ]
        t, expected, losses = _curves(population, trainers, eta, steps, shown.add)
    spread = np.std(losses[:-1], axis=0, ddof=1)
    # all steps of SGD together: 30 % of the false alarms
    limit = limit_of(0.3 / max(t.size, 1), runs - 1)
    if t.size:
        checks += _curve_checks(t, expected, losses[-1], spread, limit)
    else:
        left_out.append("nothing is left to learn for SGD")
    if phases and run is not None:
        passed = sampled_phases(run, N=N, runs=phases, batch=batch, seed=seed)
        checks += passed.checks
        left_out.append(f"phases: {passed.note}")
    return CrossCheck(
        tuple(checks),
        "; ".join([note, *left_out]),
        power,
        t,
        expected,
        losses[-1],
        limit * spread,
    )


class _Known(NamedTuple):
    """Population values at one point."""

    scores: Array  # (K, K)
    loss: float
    gradient: Array
    norm: float
    scale: float = 0.0  # of the terms of loss and gradient, which may cancel


def _known(
    population: Risk, points: int, rng: np.random.Generator, spread: float = 8.0
) -> list[_Known]:
    """Population values at normal parameters, halved until scores spread less: beyond 8 rare prompts decide."""
    result = []
    core = core_risk(population)
    # Sampled losses are squares of differences of labels, which rounding leaves at
    # 1e-32
    # of their second moment even if they are zero.
    moment = float(np.max(np.diagonal(core.task.kernel(core.features)))) + core.noise**2
    for _ in range(points):
        params = rng.normal(size=population.initial.shape)
        while np.ptp(scores := core_params(population, params), axis=0).max() > spread:
            params = 0.5 * params
        loss, gradient = core.evaluate(scores)
        norm = float(np.linalg.norm(gradient))
        scale = loss + 1e-16 * moment
        result.append(_Known(scores, loss, gradient, norm, scale))
    return result


def _sums(
    known: list[_Known],
    samplers: list[Risk],
    batches: int,
    add: Callable[[], None] = lambda: None,
) -> tuple[Array, Array, list[Array]]:
    """Sums over the points of loss and slope along the population gradient, (batches,) each, and all gradients."""
    losses = np.zeros(batches)
    slopes = np.zeros(batches)
    every = []
    for point, sampler in zip(known, samplers, strict=True):
        pairs = []
        for step in range(batches):
            pairs.append(sampler.evaluate(point.scores, step))
            add()
        gradients = np.array([gradient.ravel() for _, gradient in pairs])
        losses += [loss for loss, _ in pairs]
        slopes += gradients @ (
            point.gradient.ravel() / max(point.norm, np.finfo(float).tiny)
        )
        every.append(gradients)
    return losses, slopes, every


def _sum_checks(
    known: list[_Known], losses: Array, slopes: Array, freedom: int
) -> list[Check]:
    # loss and gradient of two samplers: 40 % of the false alarms
    limit = limit_of(0.1, freedom)
    scale = sum(point.scale for point in known)
    return [
        mean_check("loss", sum(point.loss for point in known), losses, limit, scale),
        mean_check(
            "gradient norm", sum(point.norm for point in known), slopes, limit, scale
        ),
    ]


def _point_checks(
    known: list[_Known],
    samplers: list[Risk],
    batches: int,
    often: NDArray[np.bool_],
    add: Callable[[], None],
) -> list[Check]:
    """Compare losses, norms and entries of the gradients of one sampler."""
    losses, slopes, every = _sums(known, samplers, batches, add)
    checks = _sum_checks(known, losses, slopes, batches - 1)
    kept = np.flatnonzero(often)
    count = len(known) * len(kept)
    if not count:
        return checks
    name = f"worst of {count} entries"
    limit = limit_of(0.15 / count, batches - 1)
    entries = []  # of both samplers: 30 % of the false alarms
    for point, gradients in zip(known, every, strict=True):
        expected = point.gradient.ravel()[kept]
        sampled = gradients[:, kept]
        errors = sampled.std(axis=0, ddof=1) / math.sqrt(batches)
        far = z_score(
            sampled.mean(axis=0) - expected,
            errors,
            np.maximum(np.abs(expected), point.scale),
        )
        worst = int(np.argmax(np.abs(far)))
        entries.append(
            mean_check(
                name, float(expected[worst]), sampled[:, worst], limit, point.scale
            )
        )
    return [*checks, max(entries, key=lambda check: abs(check.z))]


def _curves(
    population: Risk,
    trainers: list[SampledRisk],
    eta: float,
    steps: int,
    add: Callable[[int], None],
) -> tuple[Steps, Array, Array]:
    """Steps, and the losses there of exact descent, (T,), and of the runs of SGD, (runs, T)."""
    exact = descend(population, eta, steps=steps)
    curves = []
    for trainer in trainers:
        states = descend(
            replace_core(population, trainer),
            eta,
            steps=steps,
            callback=lambda *_: add(0),
        ).states
        curves.append([population.loss(state) for state in states[1:]])
        add(1)
    # the exact run stops early if nothing is left to learn
    size = min(len(curves[0]), len(exact.t) - 1)
    return exact.t[1 : size + 1], exact.loss[1 : size + 1], np.array(curves)[:, :size]


def _curve_checks(
    t: Steps, expected: Array, curve: Array, spread: Array, limit: float
) -> list[Check]:
    """Compare the losses of one SGD run with those of exact descent, in units of the spread of other runs."""
    z = z_score(curve - expected, spread, expected)
    return [
        Check(
            f"SGD loss, {name}",
            *map(float, (expected[i], curve[i], spread[i], z[i], limit)),
        )
        for name, i in (
            (f"worst of {len(t)} steps", np.argmax(np.abs(z))),
            (f"step {t[-1]}", -1),
        )
    ]


def _prompts_needed(
    known: list[_Known],
    pilot: CountedRisk,
    precision: float,
    batches: int,
    pilots: int = 16,
    work: float = 2e10,
) -> int:
    """Prompts in a batch that find an error of ``precision``, estimated from batches of a pilot.

    The number is bounded by ``work``, roughly the multiplications of the whole
    comparison.
    """
    losses, slopes, _ = _sums(known, [pilot] * len(known), pilots)
    checks = _sum_checks(known, losses, slopes, batches - 1)
    found = [
        error
        for check in checks
        if math.isfinite(error := detectable(check, batches - 1))
    ]
    # a fifth more, because so few batches estimate it roughly
    wanted = (
        1.2 * (max([0.0, *found]) / precision) ** 2 * pilot.batch * pilots / batches
    )
    K = len(known[0].scores)
    most = work / (len(known) * batches * (K * (K + 400.0) + 1000.0))
    return int(max(pilot.batch, min(wanted, most)))


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[Risk, str]:
    """Return the full population risk behind a run or risk, in its coordinates, with finite N."""
    risk = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    if isinstance(risk, ExchangeableRisk):
        if risk.K > 1000:
            raise argument_error(
                "run_or_risk", risk, "of at most 1000 features if prompts are sampled"
            )
        risk = expanded(risk)
    inner = core_risk(risk)
    if risk is None or not isinstance(inner, PopulationRisk):
        raise argument_error(
            "run_or_risk",
            run_or_risk,
            "a run of simulate (not loaded from a file), or a regression risk",
        )
    if math.isfinite(inner.N):
        if N is not None and N != inner.N:
            raise ValueError(f"N = {N!r} contradicts the risk (N = {inner.N:g})")
        return risk, f"prompts of N = {inner.N:g} tokens"
    length = sampled_length(N)
    if math.isinf(length):
        raise argument_error("N", N, "finite: infinite prompts cannot be sampled")
    note = f"prompts of N = {length:g} tokens on both sides (N = ∞ cannot be sampled)"
    return replace_core(risk, replace(inner, N=length)), note

"""Population against samples: z-scores of sampled losses and gradients, what they can find, and whole SGD runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array, integer, number, prompt_length, refuse
from icl_theory.engine.comparison import Check, CrossCheck, Power, detectable, limit_of, mean_check, z_score
from icl_theory.engine.descent import descend
from icl_theory.engine.progress import CountProgress
from icl_theory.engine.pullback import around, innermost
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.regression.counted import CountedRisk
from icl_theory.families.regression.exchangeable import ExchangeableRisk, expanded
from icl_theory.families.regression.population import PopulationRisk
from icl_theory.families.regression.prompts import presence
from icl_theory.families.regression.sampled import SampledRisk
from icl_theory.families.regression.sampled_phases import DEFAULT_N, sampled_phases
from icl_theory.memory import check_fits

MEAN_SHARE = 0.1  # of the false alarms: loss, and gradient, of each of the two samplers
ENTRY_SHARE = 0.15  # all entries of the gradient, of each of them
CURVE_SHARE = 0.3  # all steps of SGD
ENOUGH = 1000  # prompts in which an entry of the gradient has a sample
MOST_SAMPLED = 1000
COUNTED_BATCHES = 64
PILOT_BATCHES, PILOT = 16, 128
WORK = 2e10  # multiplications, roughly, that prompts drawn by their counts may take
SPREAD = 8.0  # of the scores at which the two are compared: beyond, entries hang on rare prompts

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

    At random scores, independent batches of prompts give a mean loss and gradient with standard errors; their
    distances to the population values are z-scores with Student's distribution. Two samplers do so. One draws a
    prompt by its counts and asks for every feature (``families.regression.counted.CountedRisk``), with as
    many prompts as it takes to find an error of ``precision``. The other is the trainer, `SampledRisk`, token by
    token. Of both are compared the sum of the losses over the points, the sum of the gradients' norms, and the
    entries of the gradients. Then one run of stochastic gradient descent, in the run's coordinates, must stay
    within the band around exact gradient descent that the spread of other such runs gives. The limits make a false
    alarm, over all comparisons together, a one-in-a-thousand event, as long as the learning rate and the batch are
    such that SGD follows gradient descent on average: its bias is of order eta/batch.

    Parameters
    ----------
    run_or_risk : Trajectory or Risk
        A run of `simulate`, or a risk, in any coordinates.
    eta : float, optional
        Learning rate of the SGD runs; the run's, or 1.
    N : int, optional
        Prompt length, where the risk has N = ∞ (which cannot be sampled): both sides then use this one, 100
        unless given.
    precision : float
        Relative error of the loss, and of the gradient, to be found nine times in ten. The work is bounded:
        ``power`` says what was reached.
    batch, batches : int
        The trainer's prompts in a batch; its independent batches, at least 3.
    points : int
        Number of random score matrices.
    steps, runs : int
        Length of the SGD runs; number of runs that measure their spread, at least 3.
    phases : int
        Number of sampled runs to the target, at least 3, whose phases are compared as by `sampled_phases`; none
        at 0.
    seed : int
        Seed of everything.

    Returns
    -------
    CrossCheck
        With ``passed``, ``power`` and ``to_markdown()``.

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
    >>> checked = icl.crosscheck(risk, batch=128, steps=20)
    >>> checked.passed, max(checked.power) < 0.01
    (True, True)
    """
    batch, steps = integer("batch", batch, minimum=1), integer("steps", steps, minimum=1)
    batches, runs = integer("batches", batches, minimum=3), integer("runs", runs, minimum=3)
    points, seed = integer("points", points, minimum=1), integer("seed", seed, minimum=0)
    precision = number("precision", precision, minimum=1e-6)
    population, note = _population(run_or_risk, N)
    if eta is None:
        eta = run_or_risk.eta if isinstance(run_or_risk, Trajectory) else 1.0
    eta = number("eta", eta)
    K = innermost(population)[0].features.K
    check_fits("points", points, 8.0 * points * (max(batches, COUNTED_BATCHES) + 4) * (K**2 + 2.0))
    check_fits("runs", runs, 1e3 * runs)
    streams = np.random.SeedSequence(seed).generate_state(runs + 2 * points + 3, dtype=np.uint32).tolist()
    known = _known(population, points, np.random.default_rng(streams[-1]))
    core = innermost(population)[0]
    args = (core.features, core.task, int(core.N))

    with CountProgress(None, "samples") as shown:
        shown.update(0, points * (COUNTED_BATCHES + batches) + runs + 1)
        needed = _prompts_needed(known, CountedRisk(*args, PILOT, streams[-3], core.noise), precision)
        checks, left_out = [], []
        for name, size, number_of, first in (
            ("", needed, COUNTED_BATCHES, runs),
            ("trainer: ", batch, batches, runs + points),
        ):
            samplers: list[Risk] = [
                CountedRisk(*args, size, stream, core.noise) if not name else
                SampledRisk(*args, size, stream, noise=core.noise)
                for stream in streams[first : first + points]
            ]  # fmt: skip
            often = _often(core, size * number_of, every_query=not name)
            found = _point_checks(known, samplers, number_of, often, shown.add)
            checks += [check._replace(name=name + check.name) for check in found]
            if not often.any():
                left_out.append(f"{name}no entry of the gradient has a sample in {ENOUGH} prompts")
        power = Power(*(detectable(check, COUNTED_BATCHES - 1) for check in checks[:2]))

        exact, curves = descend(population, eta, steps=steps), []
        for stream in [*streams[:runs], streams[-2]]:
            trainer = around(population, SampledRisk(*args, batch, stream, noise=core.noise))
            states = descend(trainer, eta, steps=steps, callback=lambda *_: shown.add(0)).states
            curves.append([population.loss(state) for state in states[1:]])
            shown.add()
    size = min(len(curves[0]), len(exact.t) - 1)  # the exact run stops early where nothing is left to learn
    t, expected, losses = exact.t[1 : size + 1], exact.loss[1 : size + 1], np.array(curves)[:, :size]
    spread = np.std(losses[:-1], axis=0, ddof=1)
    if size:
        checks += _curve_checks(t, expected, losses[-1], spread, runs - 1)
    else:
        left_out.append("nothing is left to learn for SGD")
    band = limit_of(CURVE_SHARE / max(size, 1), runs - 1) * spread
    if phases:
        if not isinstance(run_or_risk, Trajectory):
            raise refuse("phases", phases, "0 for a risk: it has no phases")
        passed = sampled_phases(run_or_risk, N=N, runs=phases, batch=batch, seed=seed)
        checks += passed.checks
        left_out.append(f"phases: {passed.note}")
    return CrossCheck(tuple(checks), "; ".join([note, *left_out]), power, t, expected, losses[-1], band)


class _Known(NamedTuple):
    """Population loss, gradient and its norm at some scores, (K, K)."""

    scores: Array
    loss: float
    gradient: Array
    norm: float


def _known(population: Risk, points: int, rng: np.random.Generator) -> list[_Known]:
    """Population values at normal parameters, halved until their scores have a moderate spread."""
    result, core = [], innermost(population)[0]
    for _ in range(points):
        params = rng.normal(size=population.initial.shape)
        while np.ptp(scores := innermost(population, params)[1], axis=0).max() > SPREAD:
            params = 0.5 * params
        loss, gradient = core.evaluate(scores)
        result.append(_Known(scores, loss, gradient, float(np.linalg.norm(gradient))))
    return result


def _sums(
    known: list[_Known], samplers: list[Risk], batches: int, add: Callable[[], None] = lambda: None
) -> tuple[Array, Array, list[Array]]:
    """Sums over the points of loss and slope along the population gradient, a batch each; all gradients."""
    losses, slopes, every = np.zeros(batches), np.zeros(batches), []
    for point, sampler in zip(known, samplers, strict=True):
        pairs = []
        for step in range(batches):
            pairs.append(sampler.evaluate(point.scores, step))
            add()
        gradients = np.array([gradient.ravel() for _, gradient in pairs])
        losses += [loss for loss, _ in pairs]
        slopes += gradients @ (point.gradient.ravel() / max(point.norm, np.finfo(float).tiny))
        every.append(gradients)
    return losses, slopes, every


def _sum_checks(known: list[_Known], losses: Array, slopes: Array, limit: float) -> list[Check]:
    return [
        mean_check("loss", sum(point.loss for point in known), losses, limit),
        mean_check("gradient norm", sum(point.norm for point in known), slopes, limit),
    ]


def _point_checks(
    known: list[_Known], samplers: list[Risk], batches: int, often: NDArray[np.bool_], add: Callable[[], None]
) -> list[Check]:
    """Compare losses, norms and entries of the gradients of one kind of sampler."""
    losses, slopes, every = _sums(known, samplers, batches, add)
    checks = _sum_checks(known, losses, slopes, limit_of(MEAN_SHARE, batches - 1))
    kept = np.flatnonzero(often)
    count = len(known) * len(kept)
    if not count:
        return checks
    name, limit = f"worst of {count} entries", limit_of(ENTRY_SHARE / count, batches - 1)
    entries = []
    for point, gradients in zip(known, every, strict=True):
        expected, sampled = point.gradient.ravel()[kept], gradients[:, kept]
        far = z_score(sampled.mean(axis=0) - expected, sampled.std(axis=0, ddof=1) / math.sqrt(batches), expected)
        worst = int(np.argmax(np.abs(far)))
        entries.append(mean_check(name, float(expected[worst]), sampled[:, worst], limit))
    return [*checks, max(entries, key=lambda check: abs(check.z))]


def _curve_checks(t: Steps, expected: Array, curve: Array, spread: Array, freedom: int) -> list[Check]:
    """Compare the losses of one SGD run with those of exact descent, in units of the spread of other runs."""
    limit = limit_of(CURVE_SHARE / len(t), freedom)
    along = [
        Check(f"SGD loss, worst of {len(t)} steps", *map(float, (e, value, sd, z_score(value - e, sd, e), limit)))
        for e, value, sd in zip(expected, curve, spread, strict=True)
    ]
    worst = max(along, key=lambda check: abs(check.z))
    return [worst, along[-1]._replace(name=f"SGD loss, step {t[-1]}")]


def _prompts_needed(known: list[_Known], pilot: Risk, precision: float) -> int:
    """Prompts in a batch that find an error of ``precision``, as a pilot foretells, or that the work allows."""
    freedom = COUNTED_BATCHES - 1
    losses, slopes, _ = _sums(known, [pilot] * len(known), PILOT_BATCHES)
    checks = _sum_checks(known, losses, slopes, limit_of(MEAN_SHARE, freedom))
    found = [error for check in checks if math.isfinite(error := detectable(check, freedom))]
    # somewhat more than foretold, as sixteen batches do not foretell well
    wanted = 1.2 * (max([0.0, *found]) / precision) ** 2 * PILOT * PILOT_BATCHES / COUNTED_BATCHES
    K = len(known[0].scores)
    most = WORK / (len(known) * COUNTED_BATCHES * (K * (K + 400.0) + 1000.0))
    return int(max(PILOT, min(wanted, most)))


def _population(run_or_risk: Trajectory | Risk, N: int | None) -> tuple[Risk, str]:
    """Return the full population risk behind a run or risk, in its coordinates, with finite N."""
    risk = run_or_risk.risk if isinstance(run_or_risk, Trajectory) else run_or_risk
    if isinstance(risk, ExchangeableRisk):
        if risk.K > MOST_SAMPLED:
            raise refuse("run_or_risk", risk, f"of at most {MOST_SAMPLED} features to be sampled")
        risk = expanded(risk)
    inner, _ = innermost(risk)
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
    return around(risk, replace(inner, N=length)), note


def _often(core: PopulationRisk, prompts: int, *, every_query: bool) -> NDArray[np.bool_]:
    """Entries of the gradient whose feature, and query, are in enough of the prompts for a normal mean."""
    p = core.features.probs
    asked = np.ones_like(p) if every_query else p
    return np.asarray(prompts * presence(p, core.N)[:, None] * asked >= ENOUGH)

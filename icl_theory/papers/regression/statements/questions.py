"""Open questions about in-context regression; the docstring of each is the question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates, largest_stable_eta
from icl_theory.engine.trajectory import Trajectory
from icl_theory.papers.regression.statements.common import (
    equivalent,
    plain_descent,
    rescaled,
    rise,
)
from icl_theory.papers.regression.statements.optimisers import optimisers
from icl_theory.papers.regression.theorems.orderwise import counted_runs
from icl_theory.regression import (
    ExchangeableRisk,
    Features,
    PopulationRisk,
    SampledRisk,
    crossover,
    tasks,
)
from icl_theory.regression.family import Regression
from icl_theory.regression.simulate import simulate
from icl_theory.regression.tails import resting_loss
from icl_theory.statements.claim import Series, above, along, curves, question
from icl_theory.statements.numbers import apart, decade, off, power


@question("separation", "L", "steps to ε")
def separation(quick: bool) -> tuple[str, list[Series]]:
    """Is there a clear separation between the regimes?"""
    epsilon = 1e-6
    eta = 1e-2
    count = 101 if quick else 401
    reach_square = []
    reach_constant = []
    transitions = []
    series = []
    for K in (20, 1000):
        times = _times_by_size(K, epsilon, eta, count)
        exponent = np.gradient(np.log(times.steps), np.log(times.lipschitz))
        if exponent.min() < -1.9:
            reach_square.append(f"K = {K}")
        if abs(exponent[-1]) < 0.1:
            reach_constant.append(f"K = {K}")
        predicted = crossover(epsilon, 1.0, K)
        transitions.append(_transition(K, times.lipschitz, exponent, predicted))

        series.append(Series(f"K = {K}: exact", times.lipschitz, times.steps))
        attend = 2.0 * K**2 / (eta * times.lipschitz**2)
        tail = np.full(count, (K - 1) / (4 * eta * epsilon))
        # A part of the sum is drawn only if it is not negligible.
        for label, part, other_part in (
            ("attending, K²/(ηγ)", attend, tail),
            ("tail, (K − 1)/(4ηε)", tail, attend),
        ):
            counts = part > 0.1 * other_part
            series.append(
                Series(f"K = {K}: {label}", times.lipschitz[counts], part[counts])
            )
    return (
        "T ~ L^-2 is reached to 5 % for"
        f" {' and '.join(reach_square) or 'no K here'}, T independent of L for"
        f" {' and '.join(reach_constant) or 'no K here'} (ε = {epsilon:g})."
        f" {' '.join(transitions)}"
    ), series


class TimesBySize(NamedTuple):
    """Steps to ε by Lipschitz constant."""

    lipschitz: Array  # (P,)
    steps: Array  # (P,)


def _times_by_size(K: int, epsilon: float, eta: float, count: int) -> TimesBySize:
    """Count steps for Lipschitz constants up to 100 L*.

    The smallest one is just above the one whose loss at the start is ε.
    """
    lowest = math.sqrt(4.0 * epsilon * K / (K - 1.0))
    highest = 100.0 * crossover(epsilon, 1.0, K)
    lipschitz = np.geomspace(1.05 * lowest, highest, count)
    runs = counted_runs(
        size=lipschitz,
        eta=np.full(count, eta),
        K=np.full(count, float(K)),
        epsilon=np.full(count, epsilon),
        imbalance=np.ones(count),
    )
    return TimesBySize(lipschitz, runs.steps.astype(np.float64))


def _transition(K: int, lipschitz: Array, exponent: Array, predicted: float) -> str:
    """Describe how the exponent of T rises with L from its lowest value on."""
    lowest = int(np.argmin(exponent))
    lipschitz = lipschitz[lowest:]
    exponent = exponent[lowest:]
    share = -exponent.min() / 2.0
    # Adding 0 turns -0.00 into 0.00.
    end = round(float(exponent[-1]), 2) + 0.0
    words = (
        f"For K = {K} the exponent comes down to {exponent.min():.2f}, {share:.0%} of"
        f" the way to -2, and rises to {end:.2f} at 100 L*"
    )

    start = _first_with(exponent, -1.8, lipschitz)
    middle = _first_with(exponent, -1.0, lipschitz)
    stop = _first_with(exponent, -0.2, lipschitz)
    if start is not None and stop is not None:
        decades = math.log10(stop / start)
        words += f"; from -1.8 to -0.2 it takes {decades:.1f} decades of L"
    elif stop is not None:
        decades = math.log10(stop / lipschitz[0])
        words += (
            f"; it does not reach -1.8, and is -0.2 {decades:.1f} decades after its"
            " lowest"
        )
    if middle is not None:
        words += f". It is -1 at {middle / predicted:.2f} L*"
    return words + "."


def _first_with(exponent: Array, value: float, lipschitz: Array) -> float | None:
    """The smallest L whose exponent is at least a value; None if all or none are."""
    reached = np.flatnonzero(exponent >= value)
    if reached.size == 0 or reached[0] == 0:
        return None
    return float(lipschitz[reached[0]])


@question("linear", "ηγ t (steps)", "loss / γ")
def linear(quick: bool) -> tuple[str, list[Series]]:
    """Does the linear case reduce to this?"""
    steps = 200 if quick else 2000
    families = equivalent(6)
    standard = descend(ExchangeableRisk(6, 1.0), 1.0, steps=steps)
    series = [along("one-number formula", standard, standard.loss)]
    errors = []
    for shift, name in enumerate(("linear", "Fourier", "quadratic"), start=1):
        losses = rescaled(*families[name], steps)
        errors.append(off(losses, standard.loss))
        # The curves coincide: draw different points of each.
        series.append(Series(name, standard.t[shift::9], losses[shift::9], points=True))
    worst = max(errors)
    return (
        f"{'Yes' if worst < 1e-10 else 'No'}: loss/γ of linear, Fourier and quadratic"
        " tasks on the full scores differs from the one-number dynamics in time ηγt by"
        f" less than {decade(worst)} over {steps} steps."
    ), series


@question("tightness", "K (Phase I), or 1/ε (the tail)", "measured / bound")
def tightness(quick: bool) -> tuple[str, list[Series]]:
    """Are the bounds tight?"""
    eta = 0.01
    points = 10 if quick else 30
    sizes = np.unique(np.logspace(math.log10(5), 5, points).astype(int))
    phase_one_steps = []
    for K in sizes:
        run = simulate(math.sqrt(2.0), 1.0, eta, K=int(K), epsilon=1e-3)
        assert run.phases is not None
        phase_one_steps.append(run.phases.I[1])
    attend = np.array(phase_one_steps) * eta * 2.0 / sizes**2
    attend_with_log = attend / np.log(sizes)

    targets = np.logspace(-9, -2, points)
    tail_steps = []
    for epsilon in targets:
        run = simulate(2.0, 1.0, eta, epsilon=float(epsilon))
        assert run.phases is not None
        tail_steps.append(float(run.t[-1]) - run.phases.I[1])
    tail = np.array(tail_steps) * eta * targets / 20
    tail_with_log = tail / np.log(20 * 2.0 / np.sqrt(targets))

    attend_words = _moves(
        "T₁",
        ("K² ln K/(ηL²Δ²)", "K²/(ηL²Δ²)"),
        f"K = {sizes[0]} and {sizes[-1]:,}",
        attend_with_log,
        attend,
    )
    tail_words = _moves(
        "T_s - T₁",
        ("K ln(K LΔ ε^-½)/(ηε)", "K/(ηε)"),
        "ε = 1e-2 and 1e-9",
        tail_with_log[::-1],
        tail[::-1],
    )
    return f"{attend_words} {tail_words}", [
        Series(
            "Phase I: T₁ over K² ln K / (ηL²Δ²)", sizes.astype(float), attend_with_log
        ),
        Series("tail: T − T₁ over K ln(K LΔ/√ε) / (ηε)", 1.0 / targets, tail_with_log),
    ]


def _moves(
    time: str, bounds: tuple[str, str], ends: str, with_log: Array, without_log: Array
) -> str:
    """Say how a time moves over a bound with its logarithm, and over one without it.

    The logarithm is needed unless the second ratio moves much less in its last half.
    """
    bound, bare_bound = bounds
    is_needed = _late_move(without_log) >= 0.5 * _late_move(with_log)
    return (
        f"{time} over {bound} goes from {with_log[0]:.2g} to {with_log[-1]:.2g}"
        f" between {ends}, {time} over {bare_bound} from {without_log[0]:.2g} to"
        f" {without_log[-1]:.2g}: the logarithm is"
        f" {'needed' if is_needed else 'not needed'}."
    )


def _late_move(ratio: Array) -> float:
    """The change of ln ratio in the last half."""
    return abs(math.log(ratio[-1] / ratio[len(ratio) // 2]))


@question("learning-rate", "η λ_max / 2", "loss − minimum")
def learning_rate(quick: bool) -> tuple[str, list[Series]]:
    """Must the learning rate be bounded?"""
    rises = []
    for eta in (1.0, 1e3, 1e9):
        run = descend(ExchangeableRisk(20, 2.0), eta, steps=40)
        rises.append(rise(run))
    largest = max(rises)
    with_noise, series = _at_limit(quick)
    return (
        f"{'Not for' if largest <= 1e-12 else 'Even for'} exchangeable tasks without"
        f" noise: up to η = 1e9 the largest rise of the loss is {largest:.0e}."
        f" {with_noise}"
    ), series


def _at_limit(quick: bool) -> tuple[str, list[Series]]:
    """Descent with label noise at rates around the stability limit of the minimum."""
    risk = PopulationRisk(
        Features.simplex(3, 1.0), tasks.Exchangeable(2.0), N=12, noise=1.0
    )
    stable = largest_stable_eta(risk)
    limit = stable.eta
    minimum = stable.params
    least = risk.loss(minimum)
    near = minimum + 1e-3 * np.random.default_rng(0).normal(size=minimum.shape)
    steps = 300 if quick else 2000
    factors = np.array([0.5, 0.8, 0.95, 0.98, 1.02, 1.05, 1.2, 1.5])
    if quick:
        factors = np.array([0.5, 0.95, 1.05, 1.5])

    near_excess = []
    zero_excess = []
    for eta in (factors * limit).tolist():
        near_excess.append(risk.loss(plain_descent(risk, near, eta, steps)) - least)
        # The largest of the last losses is the height of an oscillation, if any.
        last_losses = descend(risk, eta, steps=steps).loss[-5:]
        zero_excess.append(last_losses.max() - least)
    settles = np.array(near_excess) < risk.loss(near) - least
    behaviour = []
    for factor, ends in zip(factors, settles, strict=True):
        behaviour.append(f"{factor:g} ({'settles' if ends else 'leaves'})")
    keeps = "keeps" if all(settles == (factors < 1.0)) else "does not keep"
    ordinates = {
        "started near the minimum": np.maximum(near_excess, 1e-17),
        "started from zero": np.maximum(zero_excess, 1e-17),
    }
    return (
        "With label noise (K = 3, N = 12, σ = 1) the minimum that descent finds has the"
        f" stability limit 2/λ_max = {limit:.4g}; descent started near it {keeps} to"
        f" that limit, at η over the limit = {', '.join(behaviour)}. Started from zero,"
        f" it ends {zero_excess[0]:.1e} above the minimum at {factors[0]:g} of the"
        f" limit, and {zero_excess[-1]:.1e} above it at {factors[-1]:g}."
    ), curves(factors, ordinates, points=True)


@question("unequal-features", "step", "1 − attention")
def unequal(quick: bool) -> tuple[str, list[Series]]:
    """What happens for features of unequal frequency?"""
    p = np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    if quick:
        p = np.array([0.4, 0.2, 0.2, 0.1, 0.1])
    K = len(p)
    risk = PopulationRisk(Features.simplex(K, 1.0, p), tasks.Exchangeable(2.0))
    run = descend(risk, 2.0, epsilon=1e-3)
    half_steps = [_first_half(run, k) for k in range(K)]
    is_ordered = all(a <= b for a, b in itertools.pairwise(half_steps))
    exponent = power(p, np.maximum(half_steps, 1))

    # t L(t) over the limit (K-1)/(4η) of the tail law, η = 2
    over_tail_law = run.t * run.loss * 8.0 / (K - 1)
    before = float(np.interp(run.t[-1] / 10.0, run.t, over_tail_law))
    end = float(over_tail_law[-1])
    approaches = abs(end - 1) < abs(before - 1)
    after_start = run.t > 0
    series = []
    for k in (0, 1, K - 1):
        missed = 1.0 - run.attention[after_start][:, k]
        series.append(Series(f"p = {p[k]:g}", run.t[after_start], missed))
    return (
        "Queries learn at different times,"
        f" {'frequent ones first' if is_ordered else 'not in the order of frequency'}:"
        f" Attn_k passes ½ at steps {half_steps} for p = {p.tolist()}, fitted by"
        f" p^{exponent:.1f}. t L(t) 4η/(K-1) goes from {before:.3f} to {end:.3f} in the"
        f" last decade of steps, {'towards' if approaches else 'away from'} the 1 of"
        " the tail law."
    ), series


def _first_half(run: Trajectory, k: int) -> int:
    """Return the first step at which query k has the attention ½, or 0 if none has."""
    return run.first(lambda state: bool(state.attention[k] >= 0.5)) or 0


@question("large-L", "L", "steps to ε")
def large_lipschitz(quick: bool) -> tuple[str, list[Series]]:
    """What happens for L far above the threshold?"""
    K = 20
    epsilon = 1e-6
    lipschitz = np.logspace(-1, 3, 41 if quick else 161)
    fixed_steps = []
    shrinking_steps = []
    for L in lipschitz.tolist():
        fixed_steps.append(simulate(L, 1.0, 1.0, K=K, epsilon=epsilon).t[-1])
        eta = 2.0 * K / L**2
        shrinking_steps.append(simulate(L, 1.0, eta, K=K, epsilon=epsilon).t[-1])
    fixed = np.maximum(np.array(fixed_steps), 1.0)
    shrinking = np.maximum(np.array(shrinking_steps), 1.0)

    tail = (K - 1) / (4 * epsilon)
    is_beyond = lipschitz > crossover(epsilon, 1.0, K)
    # The first L at which the first steps overshoot far into the tail.
    overshoots = is_beyond & (fixed < 0.5 * tail)
    jump = int(np.argmax(overshoots)) if overshoots.any() else len(lipschitz)
    overshoot = "nowhere on this grid"
    if jump < len(lipschitz):
        overshoot = f"from L = {lipschitz[jump]:.3g} on"
    level = fixed[np.argmax(is_beyond) : jump] / tail
    is_large = lipschitz > 1.0
    exponent = power(lipschitz[is_large], shrinking[is_large])
    ordinates = {
        "η fixed": fixed,
        "η ~ 1/γ": shrinking,
        "(K − 1)/(4ηε)": np.full(len(fixed), tail),
    }
    return (
        f"At fixed η = 1 (Δ = 1, ε = {epsilon:g}) the time is {level.min():.2f} to"
        f" {level.max():.2f} times (K-1)/(4ηε) = {tail:.3g} from L* on; {overshoot} the"
        " first steps overshoot and carry the loss below ε in less than half of it. If"
        " η must shrink like 1/γ, as for noisy or unequal tasks, the time grows like"
        f" L^{exponent:.2f} instead."
    ), curves(lipschitz, ordinates)


@question("label-noise", "step", "loss − minimum")
def label_noise(quick: bool) -> tuple[str, list[Series]]:
    """What if the label noise does not vanish?"""
    steps = 3000 if quick else 30_000
    series = []
    gaps = []
    for noise in (0.1, 0.3, 1.0):
        risk = ExchangeableRisk(10, 2.0, 60, noise)
        run = descend(risk, 2.0, steps=steps)
        excess = run.loss[1:] - risk.floor()
        series.append(above(1e-13, f"σ = {noise:g}", run.t[1:], excess))
        gaps.append(f"u = {float(run.params):.3g} (σ = {noise:g})")
    largest_noise = series[-1]
    late = _halving_time(largest_noise, -11, -1)
    early = _halving_time(largest_noise, -21, -11)
    is_exponential = abs(late / early - 1.0) < 0.1

    quiet = descend(ExchangeableRisk(10, 2.0, math.inf, 0.0), 2.0, steps=300)
    noisy = descend(ExchangeableRisk(10, 2.0, math.inf, 1.0), 2.0, steps=300)
    return (
        f"For N = inf the loss moves by {apart(noisy.loss, quiet.loss):.0e}: noise"
        " averages out. For finite prompts descent ends at a finite gap, here"
        f" {', '.join(gaps)} for K = 10, N = 60, exchangeable tasks. For σ = 1 the"
        f" excess loss halves every {late:.3g} steps at the end and every {early:.3g}"
        f" before: {'exponentially' if is_exponential else 'not at a steady rate'}."
    ), series


def _halving_time(curve: Series, first: int, last: int) -> float:
    """Steps in which a curve halves, between two of its points."""
    logarithms = np.log2(curve.y)
    steps = curve.x[last] - curve.x[first]
    return float(steps / (logarithms[first] - logarithms[last]))


@question("factored", "step", "loss")
def factored(quick: bool) -> tuple[str, list[Series]]:
    """What changes with gradient descent on W_K, W_Q instead of Q?"""
    features = Features.simplex(5, 1.5)
    epsilon = 0.02 if quick else 2e-3
    risk = PopulationRisk(features, tasks.Exchangeable(2.0))
    models: dict[str, Risk] = {
        "class scores": risk,
        "Q": in_coordinates(risk, "embedding", features.vectors),
    }
    factor_names = []
    for scale in (0.1, 0.01, 0.001):
        name = f"W_K, W_Q, start {scale:g}"
        factor_names.append(name)
        models[name] = in_coordinates(
            risk, "factored", features.vectors, scale=scale, seed=1
        )
    runs = {
        name: descend(model, 1.0, epsilon=epsilon) for name, model in models.items()
    }
    counts = ", ".join(f"{run.steps} ({name})" for name, run in runs.items())
    # The start is a tenth of the one before: ln(1/start) grows by the same amount.
    factor_steps = [runs[name].steps or 0 for name in factor_names]
    first_delay = factor_steps[1] - factor_steps[0]
    second_delay = factor_steps[2] - factor_steps[1]
    is_logarithmic = 0.8 < second_delay / max(first_delay, 1) < 1.25
    return (
        f"Steps to ε = {epsilon:g}: {counts}. The smaller the start of the factors, the"
        " longer the plateau before they grow: a tenth of the start costs"
        f" {first_delay} and then {second_delay} steps more,"
        f" {'like' if is_logarithmic else 'not like'} ln(1/start)."
    ), [along(name, run, run.loss) for name, run in runs.items()]


@question("finite-samples", "number of prompts M", "loss − population training")
def finite_samples(quick: bool) -> tuple[str, list[Series]]:
    """What if the model is trained on finitely many prompts?"""
    steps = 100 if quick else 200
    repeats = 6 if quick else 30
    sizes = np.array([30, 100, 300] if quick else [30, 100, 300, 1000])
    features = Features.simplex(4, 1.0)
    law = tasks.Exchangeable(2.0)
    population = PopulationRisk(features, law, N=20)

    def loss_after_training_on(risk: Risk) -> float:
        return population.loss(descend(risk, 4.0, steps=steps).params)

    population_loss = loss_after_training_on(population)
    gaps = []
    errors = []
    for M in sizes.tolist():
        losses = []
        for seed in range(repeats):
            fixed = SampledRisk(features, law, 20, M, seed, dataset=M)
            losses.append(loss_after_training_on(fixed))
        excess = np.array(losses) - population_loss
        gaps.append(excess.mean())
        errors.append(excess.std(ddof=1) / math.sqrt(repeats))
    shown = []
    for gap, error, M in zip(gaps, errors, sizes, strict=True):
        shown.append(f"{gap:.1e} ± {error:.0e} (M = {M})")
    exponent = power(sizes, np.maximum(gaps, 1e-99))
    number = sizes.astype(float)
    return (
        f"After {steps} steps on M fixed prompts the population loss exceeds that of"
        f" population training by {', '.join(shown)}, fitted by M^{exponent:.1f};"
        f" K = 4, N = 20, mean and standard error of {repeats} sets."
    ), [
        Series("excess population loss", number, np.maximum(gaps, 1e-12), points=True),
        Series("∝ 1/M", number, gaps[0] * sizes[0] / sizes),
    ]


@question("fixed-set-tail", "step", "excess population loss")
def fixed_set_tail(quick: bool) -> tuple[str, list[Series]]:
    """When does the 1/t tail end on a fixed set of prompts?"""
    sizes = (300, 1000, 3000) if quick else (300, 1000, 3000, 10000)
    sets = 3 if quick else 6
    steps = 300
    base = Regression(
        L=2.0, delta=1.0, eta=4.0, K=4, N=8, epsilon=1e-300, max_steps=steps
    )
    exact = base.simulate()
    rest = resting_loss(exact.risk, exact.floor)
    tail = [exact.at(t).loss - rest for t in exact.t.tolist()]
    series = [Series("population training", exact.t, np.array(tail))]
    ends = []
    crossings = []
    for M in sizes:
        runs = [
            base.changed(dataset=M, dataset_seed=seed, method="exact").simulate()
            for seed in range(sets)
        ]
        t = runs[0].t
        excess = np.mean([run.observed["population_loss"] for run in runs], axis=0)
        excess -= rest
        tail = [exact.at(step).loss - rest for step in t.tolist()]
        ends.append(_first_step(t, excess > 2.0 * np.array(tail)))
        set_loss = np.mean([run.loss for run in runs], axis=0)
        crossings.append(_first_step(t, set_loss < rest))
        series.append(Series(f"M = {M}", t, np.maximum(excess, 1e-12)))
    are_later = sorted(ends) == ends and ends[0] < ends[-1]
    return (
        "The population loss leaves the tail of population training, so that its"
        f" excess is twice as large, at step {_steps_of_sizes(ends, sizes, steps)}:"
        f" {'the later, the larger the set' if are_later else 'not in the order of M'}."
        " The loss of the set falls on, and is below the limit of the population loss"
        f" from step {_steps_of_sizes(crossings, sizes, steps)} on. Softmax attention,"
        f" K = 4, N = 8, η = 4; means of {sets} sets."
    ), series


def _steps_of_sizes(first_steps: list[int], sizes: Sequence[int], last: int) -> str:
    """List steps with the numbers of prompts."""
    shown = []
    for step, M in zip(first_steps, sizes, strict=True):
        shown.append(f"{step if step <= last else f'> {last}'} (M = {M})")
    return ", ".join(shown)


def _first_step(t: NDArray[np.int64], holds: NDArray[np.bool_]) -> int:
    """Return the first saved step at which something holds, or the one after all."""
    steps = t[holds]
    return int(steps[0]) if steps.size else int(t[-1]) + 1


@question("degenerate", "step", "loss, 1 − attention")
def degenerate(quick: bool) -> tuple[str, list[Series]]:
    """Are there degenerate tasks that the condition does not exclude?"""
    K = 6
    steps = 300 if quick else 3000
    features = Features.simplex(K, 1.0)
    halves = tasks.Halfspace(1.0)
    half_run = descend(PopulationRisk(features, halves), 2.0, steps=steps)
    plain_law = tasks.Exchangeable(1.0)
    plain_run = descend(PopulationRisk(features, plain_law), 2.0, steps=steps)

    # The condition: at each feature a function differs from some other of its values.
    differences = np.abs(halves.factor(features) - halves.factor(features).T)
    least_difference = float(differences.max(axis=1).min())
    constant = float(halves.nondegeneracy(features).max())
    attention = float(half_run.attention[-1].max())
    learns = half_run.loss[-1] < 0.01 * half_run.loss[0]
    attends = attention > 2.0 / K
    meets_condition = least_difference >= 2.0 * halves.L
    is_degenerate = constant == 0.0 and learns and not attends and meets_condition
    return (
        f"{'Yes' if is_degenerate else 'No'}: f = ±L on two fixed halves, the example"
        " of a public review (ICLR 2026, Reviewer 3). Every function is 2L/Δ-Lipschitz"
        " and differs at each feature from some other by at least"
        f" {least_difference / halves.L:g} L, yet c_k = {constant:g}: after {steps}"
        f" steps the loss is {half_run.loss[-1]:.1e} and Attn_k <= {attention:.3f},"
        f" 2/K being {2 / K:.3f}; an exchangeable task has"
        f" {plain_run.attention[-1].max():.3f}."
    ), [
        along("halves: loss", half_run, half_run.loss),
        along("halves: 1 − attention", half_run, 1.0 - half_run.attention[:, 0]),
        along(
            "exchangeable: 1 − attention", plain_run, 1.0 - plain_run.attention[:, 0]
        ),
    ]


QUESTIONS = (
    linear,
    tightness,
    separation,
    learning_rate,
    unequal,
    large_lipschitz,
    label_noise,
    factored,
    finite_samples,
    fixed_set_tail,
    degenerate,
    optimisers,
)

"""Open questions about in-context regression; the docstring of each is the question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates, largest_stable_eta
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
from icl_theory.regression.simulate import simulate
from icl_theory.statements.claim import Series, above, along, curves, question
from icl_theory.statements.numbers import apart, decade, off, power


@question("separation", "L", "steps to ε")
def separation(quick: bool) -> tuple[str, list[Series]]:
    """Is there a clear separation between the regimes?"""
    epsilon = 1e-6
    eta = 1e-2
    exponents = dict[int, Array]()
    words = list[str]()
    series = list[Series]()
    for K in (20, 1000):
        lipschitz, time = _steps_by_size(K, epsilon, eta, 101 if quick else 401)
        exponents[K] = np.gradient(np.log(time), np.log(lipschitz))
        words.append(
            _transition(K, lipschitz, exponents[K], crossover(epsilon, 1.0, K))
        )
        attend = 2.0 * K**2 / (eta * lipschitz**2)
        tail = np.full(len(lipschitz), (K - 1) / (4 * eta * epsilon))
        series += [Series(f"K = {K}: exact", lipschitz, time)]
        for law, y, other in (
            ("attending, K²/(ηγ)", attend, tail),
            ("tail, (K − 1)/(4ηε)", tail, attend),
        ):
            told = y > 0.1 * other  # where it says something
            series += [Series(f"K = {K}: {law}", lipschitz[told], y[told])]
    return (
        "T ~ L^-2 is reached to 5 % for"
        f" {_which(K for K, b in exponents.items() if b.min() < -1.9)}, T independent"
        f" of L for {_which(K for K, b in exponents.items() if abs(b[-1]) < 0.1)} (ε ="
        f" {epsilon:g}). {' '.join(words)}"
    ), series


def _steps_by_size(
    K: int, epsilon: float, eta: float, count: int
) -> tuple[Array, Array]:
    """Lipschitz constants from just above the one with the loss ε at the start to 100
    L*, and steps to ε.
    """
    lowest = math.sqrt(4.0 * epsilon * K / (K - 1.0))
    lipschitz = np.geomspace(1.05 * lowest, 100.0 * crossover(epsilon, 1.0, K), count)
    rate, size, goal, none = (np.full(count, float(x)) for x in (eta, K, epsilon, 1.0))
    return lipschitz, counted_runs(lipschitz, rate, size, goal, none).steps.astype(
        np.float64
    )


def _which(sizes: Iterable[int]) -> str:
    return " and ".join(f"K = {K}" for K in sizes) or "no K here"


def _transition(K: int, lipschitz: Array, exponent: Array, predicted: float) -> str:
    """Describe how the exponent of T rises with L from its lowest value on."""
    lipschitz, exponent = (
        each[int(np.argmin(exponent)) :] for each in (lipschitz, exponent)
    )
    # no -0.00
    reached = -exponent.min() / 2.0
    end = round(float(exponent[-1]), 2) + 0.0

    def where(value: float) -> float | None:
        passed = np.flatnonzero(exponent >= value)
        return float(lipschitz[passed[0]]) if passed.size and passed[0] > 0 else None

    start = where(-1.8)
    middle = where(-1.0)
    stop = where(-0.2)
    words = f"For K = {K} the exponent comes down to {exponent.min():.2f}, {reached:.0%} of the way to -2,"
    words += f" and rises to {end:.2f} at 100 L*"
    if start is not None and stop is not None:
        words += (
            f"; from -1.8 to -0.2 it takes {math.log10(stop / start):.1f} decades of L"
        )
    elif stop is not None:
        decades = math.log10(stop / lipschitz[0])
        words += f"; it does not reach -1.8, and is -0.2 {decades:.1f} decades after its lowest"
    if middle is not None:
        words += f". It is -1 at {middle / predicted:.2f} L*"
    return words + "."


@question("linear", "ηγ t (steps)", "loss / γ")
def linear(quick: bool) -> tuple[str, list[Series]]:
    """Does the linear case reduce to this?"""
    steps = 200 if quick else 2000
    exchangeable = equivalent(6)
    standard = descend(ExchangeableRisk(6, 1.0), 1.0, steps=steps)
    found = {
        name: rescaled(*exchangeable[name], steps)
        for name in ("linear", "Fourier", "quadratic")
    }
    worst = max(off(losses, standard.loss) for losses in found.values())
    return (
        f"{'Yes' if worst < 1e-10 else 'No'}: loss/γ of linear, Fourier and quadratic"
        " tasks on the full scores differs from the one-number dynamics in time ηγt"
        f" by less than {decade(worst)} over {steps} steps."
    ), [
        along("one-number formula", standard, standard.loss),
        *(
            Series(
                name, standard.t[first::9], losses[first::9], points=True
            )  # in turn: they coincide
            for first, (name, losses) in enumerate(found.items(), start=1)
        ),
    ]


@question("tightness", "K (Phase I), or 1/ε (the tail)", "measured / bound")
def tightness(quick: bool) -> tuple[str, list[Series]]:
    """Are the bounds tight?"""
    sizes = np.unique(np.logspace(math.log10(5), 5, 10 if quick else 30).astype(int))
    runs = [simulate(math.sqrt(2.0), 1.0, 0.01, K=int(K), epsilon=1e-3) for K in sizes]
    plain = (
        np.array([run.phases.I[1] for run in runs if run.phases])
        * 0.01
        * 2.0
        / sizes**2
    )
    one = plain / np.log(sizes)
    targets = np.logspace(-9, -2, 10 if quick else 30)
    runs = [simulate(2.0, 1.0, 0.01, epsilon=float(e)) for e in targets]
    bare = (
        np.array([float(run.t[-1]) - run.phases.I[1] for run in runs if run.phases])
        * 0.01
        * targets
        / 20
    )
    two = bare / np.log(20 * 2.0 / np.sqrt(targets))
    attend = _moves(
        "T₁",
        ("K² ln K/(ηL²Δ²)", "K²/(ηL²Δ²)"),
        f"K = {sizes[0]} and {sizes[-1]:,}",
        one,
        plain,
    )
    tail = _moves(
        "T_s - T₁",
        ("K ln(K LΔ ε^-½)/(ηε)", "K/(ηε)"),
        "ε = 1e-2 and 1e-9",
        two[::-1],
        bare[::-1],
    )
    return f"{attend} {tail}", [
        Series("Phase I: T₁ over K² ln K / (ηL²Δ²)", sizes.astype(float), one),
        Series("tail: T − T₁ over K ln(K LΔ/√ε) / (ηε)", 1.0 / targets, two),
    ]


def _moves(
    time: str, bounds: tuple[str, str], ends: str, with_it: Array, without: Array
) -> str:
    """Say how a time moves over a bound, and over this without its logarithm, and
    whether that is needed.
    """
    # in the last half
    moved = [
        abs(math.log(ratio[-1] / ratio[len(ratio) // 2]))
        for ratio in (with_it, without)
    ]
    return (
        f"{time} over {bounds[0]} goes from {with_it[0]:.2g} to {with_it[-1]:.2g}"
        f" between {ends}, {time} over {bounds[1]} from {without[0]:.2g} to"
        f" {without[-1]:.2g}: the logarithm is"
        f" {'not needed' if moved[1] < 0.5 * moved[0] else 'needed'}."
    )


@question("learning-rate", "η λ_max / 2", "loss − minimum")
def learning_rate(quick: bool) -> tuple[str, list[Series]]:
    """Must the learning rate be bounded?"""
    largest = max(
        rise(descend(ExchangeableRisk(20, 2.0), eta, steps=40))
        for eta in (1.0, 1e3, 1e9)
    )
    words, series = _at_limit(quick)
    return (
        f"{'Not for' if largest <= 1e-12 else 'Even for'} exchangeable tasks without"
        f" noise: up to η = 1e9 the largest rise of the loss is {largest:.0e}. {words}"
    ), series


def _at_limit(quick: bool) -> tuple[str, list[Series]]:
    """What descent does beside a minimum, and from zero, at rates around the stability
    limit of label noise.
    """
    noisy = PopulationRisk(
        Features.simplex(3, 1.0), tasks.Exchangeable(2.0), N=12, noise=1.0
    )
    limit, _, best, _ = largest_stable_eta(noisy)
    factors = np.array(
        [0.5, 0.95, 1.05, 1.5]
        if quick
        else [0.5, 0.8, 0.95, 0.98, 1.02, 1.05, 1.2, 1.5]
    )
    near = best + 1e-3 * np.random.default_rng(0).normal(size=best.shape)
    steps = 300 if quick else 2000
    least = noisy.loss(best)
    rates = (factors * limit).tolist()
    excess = (
        np.array([noisy.loss(plain_descent(noisy, near, eta, steps)) for eta in rates])
        - least
    )
    # the largest of the last losses: the height of an oscillation, if there is one
    thrown = (
        np.array([descend(noisy, eta, steps=steps).loss[-5:].max() for eta in rates])
        - least
    )
    settled = excess < noisy.loss(near) - least
    kept = ", ".join(
        f"{x:g} ({'settles' if ends else 'leaves'})"
        for x, ends in zip(factors, settled, strict=True)
    )
    limited = "keeps" if all(settled == (factors < 1.0)) else "does not keep"
    lines = {
        "started near the minimum": np.maximum(excess, 1e-17),
        "started from zero": np.maximum(thrown, 1e-17),
    }
    return (
        "With label noise (K = 3, N = 12, σ = 1) the minimum that descent finds has"
        f" the stability limit 2/λ_max = {limit:.4g}; descent started near it"
        f" {limited} to that limit, at η over the limit = {kept}. Started from zero,"
        f" it ends {thrown[0]:.1e} above the minimum at {factors[0]:g} of the limit,"
        f" and {thrown[-1]:.1e} above it at {factors[-1]:g}."
    ), curves(factors, lines, points=True)


@question("unequal-features", "step", "1 − attention")
def unequal(quick: bool) -> tuple[str, list[Series]]:
    """What happens for features of unequal frequency?"""
    p = (
        np.array([0.4, 0.2, 0.2, 0.1, 0.1])
        if quick
        else np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    )
    run = descend(
        PopulationRisk(Features.simplex(len(p), 1.0, p), tasks.Exchangeable(2.0)),
        2.0,
        epsilon=1e-3,
    )
    half = [
        run.first(lambda state, k=k: bool(state.attention[k] >= 0.5)) or 0  # type: ignore[misc]
        for k in range(len(p))
    ]
    late = run.t > 0
    law = run.t * run.loss * 8.0 / (len(p) - 1)
    before = float(np.interp(run.t[-1] / 10.0, run.t, law))
    tail = float(law[-1])
    ordered = all(a <= b for a, b in itertools.pairwise(half))
    return (
        "Queries learn at different times,"
        f" {'frequent ones first' if ordered else 'not in the order of frequency'}:"
        f" Attn_k passes ½ at steps {half} for p = {p.tolist()}, fitted by"
        f" p^{power(p, np.maximum(half, 1)):.1f}. t L(t) 4η/(K-1) goes from"
        f" {before:.3f} to {tail:.3f} in the last decade of steps,"
        f" {'towards' if abs(tail - 1) < abs(before - 1) else 'away from'} the 1 of"
        " the tail law."
    ), [
        Series(f"p = {p[k]:g}", run.t[late], 1.0 - run.attention[late][:, k])
        for k in (0, 1, len(p) - 1)
    ]


@question("large-L", "L", "steps to ε")
def large_lipschitz(quick: bool) -> tuple[str, list[Series]]:
    """What happens for L far above the threshold?"""
    K = 20
    epsilon = 1e-6
    lipschitz = np.logspace(-1, 3, 41 if quick else 161)
    cases = [(L, eta) for L in lipschitz.tolist() for eta in (1.0, 2.0 * K / L**2)]
    steps = [simulate(L, 1.0, eta, K=K, epsilon=epsilon).t[-1] for L, eta in cases]
    fixed, shrinking = np.maximum(np.reshape(steps, (-1, 2)).T, 1.0)
    tail = (K - 1) / (4 * epsilon)
    beyond = lipschitz > crossover(epsilon, 1.0, K)
    jump = int(np.argmax(np.append(beyond & (fixed < 0.5 * tail), True)))
    level = fixed[np.argmax(beyond) : jump] / tail
    end = (
        f"from L = {lipschitz[jump]:.3g} on"
        if jump < len(lipschitz)
        else "nowhere on this grid"
    )
    grown = power(lipschitz[lipschitz > 1.0], shrinking[lipschitz > 1.0])
    return (
        f"At fixed η = 1 (Δ = 1, ε = {epsilon:g}) the time is {level.min():.2f} to"
        f" {level.max():.2f} times (K-1)/(4ηε) = {tail:.3g} from L* on; {end} the"
        " first steps overshoot and carry the loss below ε in less than half of it."
        " If η must shrink like 1/γ, as for noisy or unequal tasks, the time grows"
        f" like L^{grown:.2f} instead."
    ), curves(
        lipschitz,
        {
            "η fixed": fixed,
            "η ~ 1/γ": shrinking,
            "(K − 1)/(4ηε)": np.full(len(fixed), tail),
        },
    )


@question("label-noise", "step", "loss − minimum")
def label_noise(quick: bool) -> tuple[str, list[Series]]:
    """What if the label noise does not vanish?"""
    risks = {noise: ExchangeableRisk(10, 2.0, 60, noise) for noise in (0.1, 0.3, 1.0)}
    runs = {
        noise: descend(risk, 2.0, steps=3000 if quick else 30_000)
        for noise, risk in risks.items()
    }
    series = [
        above(1e-13, f"σ = {noise:g}", run.t[1:], run.loss[1:] - risks[noise].floor())
        for noise, run in runs.items()
    ]
    times = series[-1].x
    fall = np.log2(series[-1].y)
    late, early = (
        (times[i] - times[j]) / (fall[j] - fall[i]) for i, j in ((-1, -11), (-11, -21))
    )
    ends = ", ".join(
        f"u = {float(run.params):.3g} (σ = {noise:g})" for noise, run in runs.items()
    )
    quiet, loud = (
        descend(ExchangeableRisk(10, 2.0, math.inf, noise), 2.0, steps=300).loss
        for noise in (0.0, 1.0)
    )
    return (
        f"For N = inf the loss moves by {apart(loud, quiet):.0e}: noise averages out."
        f" For finite prompts descent ends at a finite gap, here {ends} for K = 10, N"
        f" = 60, exchangeable tasks. For σ = 1 the excess loss halves every {late:.3g}"
        f" steps at the end and every {early:.3g} before:"
        f" {'exponentially' if abs(late / early - 1.0) < 0.1 else 'not at a steady rate'}."
    ), series


@question("factored", "step", "loss")
def factored(quick: bool) -> tuple[str, list[Series]]:
    """What changes with gradient descent on W_K, W_Q instead of Q?"""
    features = Features.simplex(5, 1.5)
    epsilon = 0.02 if quick else 2e-3
    risk = PopulationRisk(features, tasks.Exchangeable(2.0))
    models = {
        "class scores": risk,
        "Q": in_coordinates(risk, "embedding", features.vectors),
    }
    for scale in (0.1, 0.01, 0.001):
        factors = in_coordinates(
            risk, "factored", features.vectors, scale=scale, seed=1
        )
        models[f"W_K, W_Q, start {scale:g}"] = factors
    runs = {
        name: descend(model, 1.0, epsilon=epsilon) for name, model in models.items()
    }
    counts = ", ".join(f"{run.steps} ({name})" for name, run in runs.items())
    one, two = np.diff([run.steps or 0 for run in runs.values()][2:]).tolist()
    return (
        f"Steps to ε = {epsilon:g}: {counts}. The smaller the start of the factors,"
        f" the longer the plateau before they grow: a tenth of the start costs {one}"
        f" and then {two} steps more,"
        f" {'like' if 0.8 < two / max(one, 1) < 1.25 else 'not like'} ln(1/start)."
    ), [along(name, run, run.loss) for name, run in runs.items()]


@question("finite-samples", "number of prompts M", "loss − population training")
def finite_samples(quick: bool) -> tuple[str, list[Series]]:
    """What if the model is trained on finitely many prompts?"""
    (steps, repeats), sizes = (
        (100, 6) if quick else (200, 30),
        np.array([30, 100, 300, 1000])[: 3 if quick else 4],
    )
    features = Features.simplex(4, 1.0)
    law = tasks.Exchangeable(2.0)
    population = PopulationRisk(features, law, N=20)

    def reached(risk: Risk) -> float:
        return population.loss(descend(risk, 4.0, steps=steps).params)

    costs = np.array(
        [
            [
                reached(SampledRisk(features, law, 20, M, seed, dataset=M))
                for seed in range(repeats)
            ]
            for M in sizes.tolist()
        ]
    ) - reached(population)
    gaps = costs.mean(axis=1)
    errors = costs.std(axis=1, ddof=1) / math.sqrt(repeats)
    found = zip(gaps, errors, sizes, strict=True)
    return (
        f"After {steps} steps on M fixed prompts the population loss exceeds that of"
        " population training by"
        f" {', '.join(f'{gap:.1e} ± {error:.0e} (M = {M})' for gap, error, M in found)}, fitted by M^{power(sizes, np.maximum(gaps, 1e-99)):.1f}; K = 4, N = 20, mean and standard error of {repeats} sets."
    ), [
        Series(
            "excess population loss",
            sizes.astype(float),
            np.maximum(gaps, 1e-12),
            points=True,
        ),
        Series("∝ 1/M", sizes.astype(float), gaps[0] * sizes[0] / sizes),
    ]


@question("degenerate", "step", "loss, 1 − attention")
def degenerate(quick: bool) -> tuple[str, list[Series]]:
    """Are there degenerate tasks that the condition does not exclude?"""
    K = 6
    steps = 300 if quick else 3000
    features = Features.simplex(6, 1.0)
    law = tasks.Halfspace(1.0)
    risks = (PopulationRisk(features, each) for each in (law, tasks.Exchangeable(1.0)))
    hidden, plain = (descend(risk, 2.0, steps=steps) for risk in risks)
    # the farthest off
    apart_by = float(
        np.abs(law.factor(features) - law.factor(features).T).max(axis=1).min()
    )
    constant = float(law.nondegeneracy(features).max())
    most = float(hidden.attention[-1].max())
    learns = hidden.loss[-1] < 0.01 * hidden.loss[0] and most <= 2.0 / K
    degenerate = constant == 0.0 and learns and apart_by >= 2.0 * law.L
    return (
        f"{'Yes' if degenerate else 'No'}: f = ±L on two fixed halves, the example of"
        " a public review (ICLR 2026, Reviewer 3). Every function is 2L/Δ-Lipschitz"
        " and differs at each feature from some other by at least"
        f" {apart_by / law.L:g} L, yet c_k = {constant:g}: after {steps} steps the"
        f" loss is {hidden.loss[-1]:.1e} and Attn_k <= {most:.3f}, 2/K being"
        f" {2 / K:.3f}; an exchangeable task has {plain.attention[-1].max():.3f}."
    ), [
        along("halves: loss", hidden, hidden.loss),
        along("halves: 1 − attention", hidden, 1.0 - hidden.attention[:, 0]),
        along("exchangeable: 1 − attention", plain, 1.0 - plain.attention[:, 0]),
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
    degenerate,
    optimisers,
)

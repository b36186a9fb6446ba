"""Open questions about in-context regression; the docstring of each is the question."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine import Risk, descend, in_coordinates, largest_stable_eta
from icl_theory.families.regression import ExchangeableRisk, Features, PopulationRisk, SampledRisk, crossover, tasks
from icl_theory.families.regression.simulate import simulate
from icl_theory.families.regression.theorems.orderwise import closed
from icl_theory.papers.claim import Series, curves, question
from icl_theory.papers.numbers import decade, off, power
from icl_theory.papers.regression.common import equivalent, plain_descent, rescaled


@question("separation", "L", "steps to ε")
def separation(quick: bool) -> tuple[str, list[Series]]:
    """Is there a clear separation between the regimes?"""
    epsilon, eta, words, series, ends = 1e-6, 1e-2, [], [], {}
    for K in (20, 1000):
        # from just above L with the loss ε at the start, where there is nothing to learn, to 100 L*
        lowest = math.sqrt(4.0 * epsilon * K / (K - 1.0))
        lipschitz = np.geomspace(1.05 * lowest, 100.0 * crossover(epsilon, 1.0, K), 101 if quick else 401)
        rate, size, goal, none = (np.full(lipschitz.shape, float(x)) for x in (eta, K, epsilon, 1.0))
        time = closed(lipschitz, rate, size, goal, none).steps.astype(np.float64)
        exponent = np.gradient(np.log(time), np.log(lipschitz))
        after = slice(int(np.argmin(exponent)), None)
        ends[K] = float(exponent.min()), float(exponent[-1])
        words.append(_transition(K, lipschitz[after], exponent[after], crossover(epsilon, 1.0, K)))
        attend, tail = 2.0 * K**2 / (eta * lipschitz**2), np.full(len(lipschitz), (K - 1) / (4 * eta * epsilon))
        first, last = attend > 0.1 * tail, tail > 0.1 * attend  # where each says something
        series += [
            Series(f"K = {K}: exact", lipschitz, time),
            Series(f"K = {K}: attending, K²/(ηγ)", lipschitz[first], attend[first]),
            Series(f"K = {K}: tail, (K − 1)/(4ηε)", lipschitz[last], tail[last]),
        ]
    return (
        f"T ~ L^-2 is reached to 5 % for {_which(K for K, (low, _) in ends.items() if low < -1.9)}, T independent"
        f" of L for {_which(K for K, (_, high) in ends.items() if abs(high) < 0.1)} (ε = {epsilon:g})."
        f" {' '.join(words)}"
    ), series


def _which(sizes: Iterable[int]) -> str:
    return " and ".join(f"K = {K}" for K in sizes) or "no K here"


def _transition(K: int, lipschitz: Array, exponent: Array, predicted: float) -> str:
    """Describe how the exponent of T rises with L from its lowest value on."""
    reached, end = -exponent.min() / 2.0, round(float(exponent[-1]), 2) + 0.0  # no -0.00

    def where(value: float) -> float | None:
        passed = np.flatnonzero(exponent >= value)
        return float(lipschitz[passed[0]]) if passed.size and passed[0] > 0 else None

    start, middle, stop = where(-1.8), where(-1.0), where(-0.2)
    words = f"For K = {K} the exponent comes down to {exponent.min():.2f}, {reached:.0%} of the way to -2,"
    words += f" and rises to {end:.2f} at 100 L*"
    if start is not None and stop is not None:
        words += f"; from -1.8 to -0.2 it takes {math.log10(stop / start):.1f} decades of L"
    elif stop is not None:
        decades = math.log10(stop / lipschitz[0])
        words += f"; it does not reach -1.8, and is -0.2 {decades:.1f} decades after its lowest"
    if middle is not None:
        words += f". It is -1 at {middle / predicted:.2f} L*"
    return words + "."


@question("linear", "ηγ t (steps)", "loss / γ")
def linear(quick: bool) -> tuple[str, list[Series]]:
    """Does the linear case reduce to this?"""
    steps, exchangeable = 200 if quick else 2000, equivalent(6)
    standard = descend(ExchangeableRisk(6, 1.0), 1.0, steps=steps)
    found = {name: rescaled(*exchangeable[name], steps) for name in ("linear", "Fourier", "quadratic")}
    worst = max(off(losses, standard.loss) for losses in found.values())
    return (
        f"{'Yes' if worst < 1e-10 else 'No'}: loss/γ of linear, Fourier and quadratic tasks on the full scores"
        f" differs from the one-number dynamics in time ηγt by less than {decade(worst)} over {steps} steps."
    ), [
        Series("one-number formula", standard.t[1:], standard.loss[1:]),
        *(Series(name, standard.t[first::9], losses[first::9], points=True)  # in turn: they coincide
          for first, (name, losses) in enumerate(found.items(), start=1)),
    ]  # fmt: skip


@question("tightness", "K (Phase I), or 1/ε (the tail)", "measured / bound")
def tightness(quick: bool) -> tuple[str, list[Series]]:
    """Are the bounds tight?"""
    sizes = np.unique(np.logspace(math.log10(5), 5, 10 if quick else 30).astype(int))
    runs = [simulate(math.sqrt(2.0), 1.0, 0.01, K=int(K), epsilon=1e-3) for K in sizes]
    plain = np.array([run.phases.I[1] for run in runs if run.phases]) * 0.01 * 2.0 / sizes**2
    one, targets = plain / np.log(sizes), np.logspace(-9, -2, 10 if quick else 30)
    runs = [simulate(2.0, 1.0, 0.01, epsilon=float(e)) for e in targets]
    bare = np.array([float(run.t[-1]) - run.phases.I[1] for run in runs if run.phases]) * 0.01 * targets / 20
    two = bare / np.log(20 * 2.0 / np.sqrt(targets))
    return (
        f"T₁ over K² ln K/(ηL²Δ²) goes from {one[0]:.2g} to {one[-1]:.2g} between K = {sizes[0]} and {sizes[-1]:,},"
        f" T₁ over K²/(ηL²Δ²) from {plain[0]:.2g} to {plain[-1]:.2g}: {_logarithm(one, plain)}. T_s - T₁ over"
        f" K ln(K LΔ ε^-½)/(ηε) goes from {two[-1]:.2g} to {two[0]:.2g} between ε = 1e-2 and 1e-9, T_s - T₁ over"
        f" K/(ηε) from {bare[-1]:.2g} to {bare[0]:.2g}: {_logarithm(two[::-1], bare[::-1])}."
    ), [
        Series("Phase I: T₁ over K² ln K / (ηL²Δ²)", sizes.astype(float), one),
        Series("tail: T − T₁ over K ln(K LΔ/√ε) / (ηε)", 1.0 / targets, two),
    ]


def _logarithm(with_it: Array, without: Array) -> str:
    """Whether a bound keeps its distance better without its logarithm, by the last half of a sequence of ratios."""
    moved = [abs(math.log(ratio[-1] / ratio[len(ratio) // 2])) for ratio in (with_it, without)]
    return "the logarithm is not needed" if moved[1] < 0.5 * moved[0] else "the logarithm is needed"


@question("learning-rate", "η λ_max / 2", "loss − minimum")
def learning_rate(quick: bool) -> tuple[str, list[Series]]:
    """Must the learning rate be bounded?"""
    noisy = PopulationRisk(Features.simplex(3, 1.0), tasks.Exchangeable(2.0), N=12, noise=1.0)
    limit, _, best, _ = largest_stable_eta(noisy)
    factors = np.array([0.5, 0.95, 1.05, 1.5] if quick else [0.5, 0.8, 0.95, 0.98, 1.02, 1.05, 1.2, 1.5])
    near, steps = best + 1e-3 * np.random.default_rng(0).normal(size=best.shape), 300 if quick else 2000
    least, rates = noisy.loss(best), (factors * limit).tolist()
    excess = np.array([noisy.loss(plain_descent(noisy, near, eta, steps)) for eta in rates]) - least
    settled = excess < noisy.loss(near) - least
    # the largest of the last losses: the height of an oscillation, if there is one
    thrown = np.array([descend(noisy, eta, steps=steps).loss[-5:].max() for eta in rates]) - least
    runs = [descend(ExchangeableRisk(20, 2.0), eta, steps=40) for eta in (1.0, 1e3, 1e9)]
    rise = max(float(np.max(np.diff(run.loss), initial=0.0)) for run in runs)
    sharp = bool((settled == (factors < 1.0)).all())
    kept = ", ".join(f"{x:g} ({'settles' if ends else 'leaves'})" for x, ends in zip(factors, settled, strict=True))
    return (
        f"{'Not for' if rise <= 1e-12 else 'Even for'} exchangeable tasks without noise: up to η = 1e9 the largest"
        f" rise of the loss is {rise:.0e}. With label noise (K = 3, N = 12, σ = 1) the minimum that descent finds"
        f" has the stability limit 2/λ_max = {limit:.4g}; descent started near it"
        f" {'keeps' if sharp else 'does not keep'} to that limit, at η over the limit = {kept}. Started from zero,"
        f" it ends {thrown[0]:.1e} above the minimum at {factors[0]:g} of the limit, and {thrown[-1]:.1e} above it"
        f" at {factors[-1]:g}."
    ), curves(factors, {
        "started near the minimum": np.maximum(excess, 1e-17), "started from zero": np.maximum(thrown, 1e-17),
    }, points=True)  # fmt: skip


@question("unequal-features", "step", "1 − attention")
def unequal(quick: bool) -> tuple[str, list[Series]]:
    """What happens for features of unequal frequency?"""
    p = np.array([0.4, 0.2, 0.2, 0.1, 0.1]) if quick else np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    run = descend(PopulationRisk(Features.simplex(len(p), 1.0, p), tasks.Exchangeable(2.0)), 2.0, epsilon=1e-3)
    half = [run.first(lambda state, k=k: bool(state.attention[k] >= 0.5)) or 0 for k in range(len(p))]  # type: ignore[misc]
    late, law = run.t > 0, run.t * run.loss * 8.0 / (len(p) - 1)
    before, tail = float(np.interp(run.t[-1] / 10.0, run.t, law)), float(law[-1])
    ordered = all(a <= b for a, b in itertools.pairwise(half))
    return (
        "Queries learn at different times,"
        f" {'frequent ones first' if ordered else 'not in the order of frequency'}:"
        f" Attn_k passes ½ at steps {half} for p = {p.tolist()}, fitted by p^{power(p, np.maximum(half, 1)):.1f}."
        f" t L(t) 4η/(K-1) goes from {before:.3f} to {tail:.3f} in the last decade of steps,"
        f" {'towards' if abs(tail - 1) < abs(before - 1) else 'away from'} the 1 of the tail law."
    ), [Series(f"p = {p[k]:g}", run.t[late], 1.0 - run.attention[late][:, k]) for k in (0, 1, len(p) - 1)]


@question("large-L", "L", "steps to ε")
def large_lipschitz(quick: bool) -> tuple[str, list[Series]]:
    """What happens for L far above the threshold?"""
    K, epsilon, eta = 20, 1e-6, 1.0
    lipschitz = np.logspace(-1, 3, 41 if quick else 161)
    time = np.array([simulate(float(x), 1.0, eta, K=K, epsilon=epsilon).t[-1] for x in lipschitz], dtype=float)
    tail, beyond = (K - 1) / (4 * eta * epsilon), lipschitz > crossover(epsilon, 1.0, K)
    missed = np.flatnonzero(beyond & (time < 0.5 * tail))
    jump = int(missed[0]) if missed.size else len(lipschitz)
    level = time[np.flatnonzero(beyond)[0] : jump] / tail
    end = f"from L = {lipschitz[jump]:.3g} on" if jump < len(lipschitz) else "nowhere on this grid"
    at_stable = [simulate(float(x), 1.0, 2.0 * K / float(x) ** 2, K=K, epsilon=epsilon).t[-1] for x in lipschitz]
    shrinking, late = np.maximum(np.array(at_stable, dtype=float), 1.0), lipschitz > 1.0
    return (
        f"At fixed η = {eta:g} (Δ = 1, ε = {epsilon:g}) the time is {level.min():.2f} to {level.max():.2f} times"
        f" (K-1)/(4ηε) = {tail:.3g} from L* on; {end} the first steps overshoot and carry the loss below ε in less"
        " than half of it. If η must shrink like 1/γ, as for noisy or unequal tasks, the time grows like"
        f" L^{power(lipschitz[late], shrinking[late]):.2f} instead."
    ), curves(lipschitz, {
        "η fixed": np.maximum(time, 1.0), "η ~ 1/γ": shrinking, "(K − 1)/(4ηε)": np.full(len(lipschitz), tail),
    })  # fmt: skip


@question("label-noise", "step", "loss − minimum")
def label_noise(quick: bool) -> tuple[str, list[Series]]:
    """What if the label noise does not vanish?"""
    series, words, halving = [], [], []
    for noise in (0.1, 0.3, 1.0):
        risk = ExchangeableRisk(10, 2.0, 60, noise)
        run = descend(risk, 2.0, steps=3000 if quick else 30_000)
        excess = run.loss - risk.floor()
        kept = (excess > 1e-13) & (run.t > 0)
        series.append(Series(f"σ = {noise:g}", run.t[kept], excess[kept]))
        words.append(f"u = {float(run.params):.3g} (σ = {noise:g})")
        times, fall = run.t[kept].astype(float), np.log2(excess[kept])
        halving = [(times[i] - times[j]) / (fall[j] - fall[i]) for i, j in ((-1, -11), (-11, -21))]
    quiet, loud = (descend(ExchangeableRisk(10, 2.0, math.inf, noise), 2.0, steps=300).loss for noise in (0.0, 1.0))
    moved, steady = float(np.max(np.abs(loud - quiet))), abs(halving[0] / halving[1] - 1.0) < 0.1
    return (
        f"For N = inf the loss moves by {moved:.0e}: noise averages out. For finite prompts descent ends at a"
        f" finite gap, here {', '.join(words)} for K = 10, N = 60, exchangeable tasks. For σ = 1 the excess loss"
        f" halves every {halving[0]:.3g} steps at the end and every {halving[1]:.3g} before:"
        f" {'exponentially' if steady else 'not at a steady rate'}."
    ), series


@question("factored", "step", "loss")
def factored(quick: bool) -> tuple[str, list[Series]]:
    """What changes with gradient descent on W_K, W_Q instead of Q?"""
    features, eta, epsilon = Features.simplex(5, 1.5), 1.0, 0.02 if quick else 2e-3
    risk = PopulationRisk(features, tasks.Exchangeable(2.0))
    models: dict[str, Risk] = {
        "class scores": risk, "Q": in_coordinates(risk, "embedding", features.vectors),
        **{f"W_K, W_Q, start {scale:g}": in_coordinates(risk, "factored", features.vectors, scale=scale, seed=1)
           for scale in (0.1, 0.01, 0.001)},
    }  # fmt: skip
    runs = {name: descend(model, eta, epsilon=epsilon) for name, model in models.items()}
    counts = ", ".join(f"{run.steps} ({name})" for name, run in runs.items())
    started = [run.steps or 0 for run in runs.values()][2:]
    more = [later - earlier for earlier, later in itertools.pairwise(started)]
    logarithmic = 0.8 < more[1] / max(more[0], 1) < 1.25
    return (
        f"Steps to ε = {epsilon:g}: {counts}. The smaller the start of the factors, the longer the plateau before"
        f" they grow: a tenth of the start costs {more[0]} and then {more[1]} steps more,"
        f" {'like' if logarithmic else 'not like'} ln(1/start)."
    ), [Series(name, run.t[1:], run.loss[1:]) for name, run in runs.items()]


@question("finite-samples", "number of prompts M", "loss − population training")
def finite_samples(quick: bool) -> tuple[str, list[Series]]:
    """What if the model is trained on finitely many prompts?"""
    features, law, N = Features.simplex(4, 1.0), tasks.Exchangeable(2.0), 20
    population = PopulationRisk(features, law, N=N)
    steps, repeats = (100, 6) if quick else (200, 30)
    sizes = np.array([30, 100, 300] if quick else [30, 100, 300, 1000])

    def reached(risk: Risk) -> float:
        return population.loss(descend(risk, 4.0, steps=steps).params)

    best = reached(population)
    costs = np.array([[reached(SampledRisk(features, law, N, size, seed, dataset=size)) - best
                       for seed in range(repeats)] for size in sizes.tolist()])  # fmt: skip
    gaps, errors = costs.mean(axis=1), costs.std(axis=1, ddof=1) / math.sqrt(repeats)
    found = zip(gaps, errors, sizes, strict=True)
    return (
        f"After {steps} steps on M fixed prompts the population loss exceeds that of population training by"
        f" {', '.join(f'{gap:.1e} ± {error:.0e} (M = {size})' for gap, error, size in found)}, fitted by"
        f" M^{power(sizes, np.maximum(gaps, 1e-300)):.1f}; K = 4, N = {N}, mean and standard error of {repeats}"
        " sets."
    ), [
        Series("excess population loss", sizes.astype(float), np.maximum(gaps, 1e-12), points=True),
        Series("∝ 1/M", sizes.astype(float), gaps[0] * sizes[0] / sizes),
    ]


@question("degenerate", "step", "loss, 1 − attention")
def degenerate(quick: bool) -> tuple[str, list[Series]]:
    """Are there degenerate tasks that the condition does not exclude?"""
    K, steps, features, law = 6, 300 if quick else 3000, Features.simplex(6, 1.0), tasks.Halfspace(1.0)
    hidden = descend(PopulationRisk(features, law), 2.0, steps=steps)
    plain = descend(PopulationRisk(features, tasks.Exchangeable(1.0)), 2.0, steps=steps)
    apart = np.abs(law.factor(features) - law.factor(features).T).max(axis=1)  # from the feature farthest off
    constant, most = float(law.nondegeneracy(features).max()), float(hidden.attention[-1].max())
    learns, found = float(hidden.loss[-1] / hidden.loss[0]), float(plain.attention[-1].max())
    degenerate = constant == 0.0 and most <= 2.0 / K and learns < 0.01 and bool((apart >= 2.0 * law.L).all())
    return (
        f"{'Yes' if degenerate else 'No'}: f = ±L on two fixed halves. Every function is 2L/Δ-Lipschitz and differs"
        f" at each feature from some other by at least {apart.min() / law.L:g} L, yet c_k = {constant:g}: after"
        f" {steps} steps the loss is {hidden.loss[-1]:.1e} and Attn_k <= {most:.3f}, 2/K being {2 / K:.3f}; an"
        f" exchangeable task has {found:.3f}."
    ), [
        Series("halves: loss", hidden.t[1:], hidden.loss[1:]),
        Series("halves: 1 − attention", hidden.t[1:], 1.0 - hidden.attention[1:, 0]),
        Series("exchangeable: 1 − attention", plain.t[1:], 1.0 - plain.attention[1:, 0]),
    ]


QUESTIONS = (
    linear, tightness, separation, learning_rate, unequal, large_lipschitz, label_noise, factored, finite_samples,
    degenerate,
)  # fmt: skip

"""Open questions about the theory of in-context regression, each answered by runs and one figure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from icl_theory._validate import Array
from icl_theory.claims import Answer, Series
from icl_theory.regression import tasks
from icl_theory.regression.exchangeable import ExchangeableRisk
from icl_theory.regression.features import Features
from icl_theory.regression.phases import crossover
from icl_theory.regression.population import PopulationRisk
from icl_theory.regression.sampled import SampledRisk
from icl_theory.regression.whole import descend, simulate
from icl_theory.risk import Risk, in_coordinates
from icl_theory.sharpness import largest_stable_eta
from icl_theory.trajectory import Trajectory


def linear(quick: bool) -> Answer:
    """Whether linear tasks are a special case."""
    K, steps = 6, 200 if quick else 2000
    simplex, basis = Features.simplex(K, 0.5), Features.orthonormal(K, 0.5)
    families: dict[str, tuple[tasks.Task, Features]] = {
        "linear": (tasks.Linear(2.0), simplex),
        "Fourier": (tasks.RandomFourier(2.0), simplex),
        "quadratic": (tasks.Quadratic(2.0), basis),
    }
    standard = descend(ExchangeableRisk(K, 1.0), 1.0, steps=steps)
    series, worst = [Series("one-number formula", standard.t[1:], standard.loss[1:])], 0.0
    for shift, (name, (law, features)) in enumerate(families.items()):
        gamma = float(law.variogram(features)[0, 1])
        run = descend(PopulationRisk(features, law), 1.0 / gamma, steps=steps)
        scaled = run.loss / gamma
        worst = max(worst, float(np.max(np.abs(scaled / standard.loss - 1.0))))
        series.append(Series(name, run.t[1 + shift :: 9], scaled[1 + shift :: 9], points=True))
    return Answer(
        "linear",
        "Does the linear case reduce to this?",
        f"Yes: linear, Fourier and quadratic tasks follow the one-number dynamics in time ηγt; loss/γ differs by"
        f" at most {worst:.0e} over {steps} steps on the full scores.",
        tuple(series),
        "ηγ t (steps)",
        "loss / γ",
    )


def tightness(quick: bool) -> Answer:
    """How far the bounds are from the exact times."""
    sizes = np.unique(np.logspace(math.log10(5), 5, 10 if quick else 30).astype(int))
    first = np.array([_first(simulate(math.sqrt(2.0), 1.0, 0.01, K=int(K), epsilon=1e-3)) for K in sizes])
    one = first * 0.01 * 2.0 / (sizes**2 * np.log(sizes))
    targets = np.logspace(-9, -2, 10 if quick else 30)
    late = np.array([_late(simulate(2.0, 1.0, 0.01, epsilon=float(e))) for e in targets])
    two = late * 0.01 * targets / (20 * np.log(20 / np.sqrt(targets)))
    return Answer(
        "tightness",
        "Are the bounds tight?",
        f"Not quite. T₁ over K² ln K/(ηL²Δ²) falls from {one[0]:.2g} to {one[-1]:.2g} between K = {sizes[0]} and"
        f" {sizes[-1]:,}: the logarithm is not needed. T_s - T₁ over K ln(K ε^-½)/(ηε) moves from {two[-1]:.2g} to"
        f" {two[0]:.2g} between ε = 1e-2 and 1e-9, against (K-1)/(4K ln(K ε^-½)): right up to the logarithm.",
        (
            Series("T₁ η L²Δ² / (K² ln K) against K", sizes.astype(float), one),
            Series("(T − T₁) ηε / (K ln(K/√ε)) against 1/ε", 1.0 / targets, two),
        ),
        "K, or 1/ε",
        "measured / bound",
    )


def separation(quick: bool) -> Answer:
    """How wide the transition between the regimes is."""
    K, epsilon, eta = 20, 1e-6, 1e-2
    lipschitz = np.logspace(-2.3, 0.7, 61 if quick else 241)
    time = np.array([simulate(float(x), 1.0, eta, K=K, epsilon=epsilon).t[-1] for x in lipschitz], dtype=float)
    exponent = np.gradient(np.log(time), np.log(lipschitz))
    inside = (exponent > -1.8) & (exponent < -0.2)
    width = math.log10(lipschitz[inside].max() / lipschitz[inside].min())
    middle = float(lipschitz[np.argmin(np.abs(exponent + 1.0))])
    return Answer(
        "separation",
        "Is there a clear separation between the regimes?",
        f"There are two clear limits, T ~ L^-2 and T independent of L, but no sharp threshold: the exponent takes"
        f" {width:.1f} decades of L to go from -1.8 to -0.2 (K = {K}, ε = {epsilon:g})."
        f" It is -1 at L = {middle:.3g}; predicted L* = {crossover(epsilon, 1.0, K):.3g} (exact),"
        f" {crossover(epsilon, 1.0, K, leading_order=True):.3g} (leading order).",
        (
            Series("exact", lipschitz, time),
            Series("learning to attend, K²/(ηγ)", lipschitz, 2.0 * K**2 / (eta * lipschitz**2)),
            Series("tail, (K − 1)/(4ηε)", lipschitz, np.full(len(lipschitz), (K - 1) / (4 * eta * epsilon))),
        ),
        "L",
        "steps to ε",
    )


def learning_rate(quick: bool) -> Answer:
    """Whether the learning rate must be bounded."""
    noisy = PopulationRisk(Features.simplex(3, 1.0), tasks.Exchangeable(2.0), N=12, noise=1.0)
    limit, _, best, _ = largest_stable_eta(noisy)
    factors = np.array([0.5, 0.95, 1.05, 1.5] if quick else [0.5, 0.8, 0.95, 0.98, 1.02, 1.05, 1.2, 1.5])
    near = _Started(noisy, best + 1e-3 * np.random.default_rng(0).normal(size=best.shape))
    steps, start = 300 if quick else 2000, near.loss(near.initial) - noisy.loss(best)
    excess = np.array([_amplitude(near, float(x) * limit, steps) - noisy.loss(best) for x in factors])
    settled = excess < start
    thrown = np.array([_amplitude(noisy, float(x) * limit, steps) - noisy.loss(best) for x in factors])
    rise = max(
        float(np.max(np.diff(descend(ExchangeableRisk(20, 2.0), eta, steps=40).loss), initial=0.0))
        for eta in (1.0, 1e3, 1e9)
    )
    return Answer(
        "learning-rate",
        "Must the learning rate be bounded?",
        f"Not for exchangeable tasks without noise: up to η = 1e9 the loss never rises (largest rise {rise:.0e})."
        f" With label noise (K = 3, N = 12, σ = 1) the minimum is finite and its stability limit is 2/λ_max ="
        f" {limit:.4g}: started near it, descent settles for η up to {factors[settled].max():g} of that and leaves"
        f" from {factors[~settled].min():g} on. Started from zero, large steps end on a plateau well before:"
        f" at {factors[0]:g} of the limit the loss stays {thrown[0]:.1e} above the minimum.",
        (
            Series("started near the minimum", factors, np.maximum(excess, 1e-17), points=True),
            Series("started from zero", factors, np.maximum(thrown, 1e-17), points=True),
        ),
        "η λ_max / 2",
        "loss − minimum",
    )


def unequal(quick: bool) -> Answer:
    """What unequal feature probabilities do."""
    p = np.array([0.4, 0.2, 0.2, 0.1, 0.1]) if quick else np.array([0.4, 0.2, 0.15, 0.1, 0.1, 0.05])
    run = descend(PopulationRisk(Features.simplex(len(p), 1.0, p), tasks.Exchangeable(2.0)), 2.0, epsilon=1e-3)
    half = [run.first(lambda state, k=k: bool(state.attention[k] >= 0.5)) or 0 for k in range(len(p))]  # type: ignore[misc]
    slope = float(np.polyfit(np.log(p), np.log(np.maximum(half, 1)), 1)[0])
    late = run.t > 0
    tail = float(run.t[-1] * run.loss[-1]) * 8.0 / (len(p) - 1)
    return Answer(
        "unequal-features",
        "What happens for features of unequal frequency?",
        f"Queries learn one after the other, frequent ones first: Attn_k passes ½ at steps {half} for"
        f" p = {p.tolist()}, roughly like p^{slope:.1f}. At the end t L(t) 4η/(K-1) = {tail:.3f}, on its way to 1.",
        tuple(
            Series(f"p = {p[k]:g}", run.t[late], 1.0 - run.attention[late][:, k])
            for k in range(len(p))
            if k in (0, 1, len(p) - 1)
        ),
        "step",
        "1 − attention",
    )


def large_lipschitz(quick: bool) -> Answer:
    """What happens far above the threshold."""
    K, epsilon, eta = 20, 1e-6, 1.0
    lipschitz = np.logspace(-1, 3, 41 if quick else 161)
    time = np.array([simulate(float(x), 1.0, eta, K=K, epsilon=epsilon).t[-1] for x in lipschitz], dtype=float)
    tail = (K - 1) / (4 * eta * epsilon)
    jump = float(lipschitz[time < 0.5 * tail].min()) if (time < 0.5 * tail).any() else math.inf
    if math.isfinite(jump):
        jump = float(lipschitz[(time < 0.5 * tail) & (lipschitz > 1)].min())
    return Answer(
        "large-L",
        "What happens for L far above the threshold?",
        f"At fixed η the time stays at (K-1)/(4ηε) = {tail:.3g}, whatever L, until a single step overshoots"
        f" the target: from L = {jump:.3g} on (η = {eta:g}, Δ = 1) the first steps carry the loss below ε."
        " If η must shrink like 1/γ, as for noisy or unequal tasks, the time grows like L²Δ²/ε instead.",
        (
            Series("η fixed", lipschitz, np.maximum(time, 1.0)),
            Series("η ~ 1/γ", lipschitz, _stable_times(lipschitz, K, epsilon)),
            Series("(K − 1)/(4ηε)", lipschitz, np.full(len(lipschitz), tail)),
        ),
        "L",
        "steps to ε",
    )


def label_noise(quick: bool) -> Answer:
    """What noise that does not vanish does."""
    series, words = [], []
    for noise in (0.1, 0.3, 1.0):
        risk = ExchangeableRisk(10, 2.0, 60, noise)
        run = descend(risk, 2.0, steps=3000 if quick else 30_000)
        excess = run.loss - risk.floor()
        kept = (excess > 1e-13) & (run.t > 0)
        series.append(Series(f"σ = {noise:g}", run.t[kept], excess[kept]))
        words.append(f"u = {float(run.params):.3g} (σ = {noise:g})")
        rate = math.log(excess[kept][-20] / excess[kept][-1]) / float(run.t[kept][-1] - run.t[kept][-20])
    return Answer(
        "label-noise",
        "What if the label noise does not vanish?",
        "For N = inf nothing: it averages out. For finite prompts the optimum is at a finite gap, here "
        + ", ".join(words)
        + f" for K = 10, N = 60. Near it the excess loss falls exponentially: for σ = 1 it halves every"
        f" {math.log(2) / rate:.3g} steps at the end.",
        tuple(series),
        "step",
        "loss − minimum",
    )


def factored(quick: bool) -> Answer:
    """Descent on Q and on its factors."""
    features, eta, epsilon = Features.simplex(5, 1.5), 1.0, 0.02 if quick else 2e-3
    risk = PopulationRisk(features, tasks.Exchangeable(2.0))
    models: dict[str, Risk] = {
        "class scores": risk,
        "Q": in_coordinates(risk, "embedding", features.vectors),
        "W_K, W_Q, start 0.1": in_coordinates(risk, "factored", features.vectors, scale=0.1, seed=1),
        "W_K, W_Q, start 0.01": in_coordinates(risk, "factored", features.vectors, scale=0.01, seed=1),
        "W_K, W_Q, start 0.001": in_coordinates(risk, "factored", features.vectors, scale=0.001, seed=1),
    }
    runs = {name: descend(model, eta, epsilon=epsilon) for name, model in models.items()}
    counts = ", ".join(f"{run.steps} ({name})" for name, run in runs.items())
    return Answer(
        "factored",
        "What changes with gradient descent on W_K, W_Q instead of Q?",
        f"There is a plateau first, because small factors have small gradients: it grows with ln(1/start)."
        f" After it the rate grows with the factors. Steps to ε = {epsilon:g}: {counts}.",
        tuple(Series(name, run.t[1:], run.loss[1:]) for name, run in runs.items()),
        "step",
        "loss",
    )


def finite_samples(quick: bool) -> Answer:
    """Training on a fixed set of prompts."""
    features, law, N = Features.simplex(4, 1.0), tasks.Exchangeable(2.0), 20
    population = PopulationRisk(features, law, N=N)
    sizes = np.array([30, 100, 300] if quick else [30, 100, 300, 1000])
    steps, repeats = (100, 6) if quick else (200, 30)
    reached = population.loss(descend(population, 4.0, steps=steps).params)
    gaps, errors = [], []
    for size in sizes.tolist():
        losses = []
        for seed in range(repeats):
            risk = SampledRisk(features, law, N, size, seed, dataset=size)
            losses.append(population.loss(descend(risk, 4.0, steps=steps).params) - reached)
        gaps.append(float(np.mean(losses)))
        errors.append(float(np.std(losses, ddof=1)) / math.sqrt(repeats))
    shown = ", ".join(
        f"{gap:.1e} ± {error:.0e} (M = {size})" for gap, error, size in zip(gaps, errors, sizes, strict=True)
    )
    return Answer(
        "finite-samples",
        "What if the model is trained on finitely many prompts?",
        f"After {steps} steps on M fixed prompts the population loss exceeds that of population training by"
        f" {shown};"
        f" K = 4, N = {N}, mean and standard error of {repeats} sets.",
        (
            Series("excess population loss", sizes.astype(float), np.maximum(gaps, 1e-12), points=True),
            Series("∝ 1/M", sizes.astype(float), gaps[0] * sizes[0] / sizes),
        ),
        "number of prompts M",
        "loss − population training",
    )


def degenerate(quick: bool) -> Answer:
    """Tasks that satisfy the paper's condition and cannot be learned by attention."""
    K, steps = 6, 300 if quick else 3000
    features = Features.simplex(K, 1.0)
    hidden = descend(PopulationRisk(features, tasks.Halfspace(1.0)), 2.0, steps=steps)
    plain = descend(PopulationRisk(features, tasks.Exchangeable(1.0)), 2.0, steps=steps)
    return Answer(
        "degenerate",
        "Are there degenerate tasks that the condition does not exclude?",
        f"Yes: f = ±L on two fixed halves. Every function is 2L/Δ-Lipschitz and separates each feature from some"
        f" other, yet c_k = 0: after {steps} steps the loss is {hidden.loss[-1]:.1e} and"
        f" Attn_k <= {hidden.attention[-1].max():.3f}, below 2/K; a non-degenerate task has"
        f" {plain.attention[-1].max():.3f}.",
        (
            Series("halves: loss", hidden.t[1:], hidden.loss[1:]),
            Series("halves: 1 − attention", hidden.t[1:], 1.0 - hidden.attention[1:, 0]),
            Series("exchangeable: 1 − attention", plain.t[1:], 1.0 - plain.attention[1:, 0]),
        ),
        "step",
        "loss, 1 − attention",
    )


def _first(run: Trajectory) -> float:
    assert run.phases is not None
    return float(run.phases.I[1])


def _late(run: Trajectory) -> float:
    return float(run.t[-1]) - _first(run)


def _stable_times(lipschitz: Array, K: int, epsilon: float) -> Array:
    """Steps to ε at the learning rate K/γ."""
    times = [simulate(float(x), 1.0, 2.0 * K / float(x) ** 2, K=K, epsilon=epsilon).t[-1] for x in lipschitz]
    return np.maximum(np.array(times, dtype=float), 1.0)


@dataclass(frozen=True, eq=False)
class _Started(Risk):
    """A risk with another start."""

    risk: Risk
    start: Array

    @property
    def initial(self) -> Array:
        return self.start

    def evaluate(self, params: Array, step: int = 0) -> tuple[float, Array]:
        return self.risk.evaluate(params, step)


def _amplitude(risk: Risk, eta: float, steps: int) -> float:
    """Largest loss over the last saved steps of a run: the height of an oscillation, if there is one."""
    return float(descend(risk, eta, steps=steps).loss[-5:].max())


QUESTIONS: dict[str, Callable[[bool], Answer]] = {
    "linear": linear,
    "tightness": tightness,
    "separation": separation,
    "learning-rate": learning_rate,
    "unequal-features": unequal,
    "large-L": large_lipschitz,
    "label-noise": label_noise,
    "factored": factored,
    "finite-samples": finite_samples,
    "degenerate": degenerate,
}

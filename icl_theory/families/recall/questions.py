"""Open questions about in-context recall, each answered by runs and one figure."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.claims.claim import Answer, Series
from icl_theory.engine.descent import descend
from icl_theory.engine.interrupts import whole
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.recall.bounds import decay_rate, missing_loss, stall
from icl_theory.families.recall.counts import Counts
from icl_theory.families.recall.population import RecallRisk
from icl_theory.families.recall.sampled import Reparameterised, TransformerRisk
from icl_theory.families.recall.task import RecallTask

ONCE = Counts.fixed(1)


def exponent(quick: bool) -> Answer:
    """Which of the published exponents of the linear convergence is right."""
    sizes, rates = rates_by_size(quick)
    uniform, unequal, soft = powers(sizes, rates).values()
    return Answer(
        "recall-exponent",
        "Which exponent is right: ηt/√|Q|, ηt/|Q| or ηt?",
        f"For linear and ReLU attention ηt/√|Q|: the rate over η goes like |Q|^{uniform:.3f} for uniform triggers"
        f" and |Q|^{unequal:.3f} for p ~ 1/rank (|Q| = 1..{sizes[-1]}). Neither ηt/|Q| nor ηt holds for |Q| > 1."
        f" With softmax attention and a trained value scale it is ηt, whatever |Q|: |Q|^{abs(soft):.3f}.",
        (
            *(
                Series(name, sizes[first::2], values[first::2], points=True)  # in turn: two of them coincide
                for first, (name, values) in zip((0, 1, 0), rates.items(), strict=True)
            ),
            Series("1 / √|Q|", sizes, sizes**-0.5),
            Series("1 / |Q|", sizes, 1.0 / sizes),
            Series("1", sizes, np.ones(len(sizes))),
        ),
        "number of triggers |Q|",
        "rate of convergence / η",
    )


def noise(quick: bool) -> Answer:
    """Whether normalised descent reaches the Bayes risk where there is noise."""
    task, eta, steps = RecallTask(50, 4, 8, alpha=0.1, counts=ONCE), 0.4, 2000 if quick else 20_000
    runs = {
        "normalised, λ and γ": whole(descend(RecallRisk(task, tied=True), eta, rule="ngd", steps=steps)),
        "normalised, λ alone, γ = ln(α/(1-α))": whole(
            descend(RecallRisk(task, gamma=task.best_gamma, tied=True), eta, rule="ngd", steps=200)
        ),
        "plain, λ and γ": whole(descend(RecallRisk(task, tied=True), eta, steps=steps)),
    }
    joint, alone, plain = runs.values()
    last = [joint.at(int(joint.t[-1]) - shift).observed["excess"] for shift in (0, 1)]
    level = stall(task.alpha, eta)
    series = [Series(name, run.t[1:], run.observed["excess"][1:]) for name, run in runs.items()]
    return Answer(
        "recall-noise",
        "Does normalised descent reach the Bayes risk with noise?",
        f"Only if λ alone is normalised: with γ held at ln(α/(1-α)) the excess falls like exp(-ηt/√|Q|), to"
        f" {alone.observed['excess'][-1]:.0e} in {alone.t[-1]} steps. With γ trained too, steps of"
        f" constant length make"
        f" it jump about its optimum: the excess stays at {np.mean(last):.2e} (mean of two steps at"
        f" t = {joint.t[-1]:,});"
        f" predicted α(1-α)η²/8 = {level:.2e} (α = 0.1, η = {eta:g}). Plain descent converges, but"
        f" like 1/t: t × excess"
        f" = {plain.t[-1] * plain.observed['excess'][-1]:.3g}, predicted |Q|/η = {task.Q / eta:g}.",
        (*series, Series("α(1-α)η²/8", joint.t[1:], np.full(len(joint.t) - 1, level))),
        "step",
        "loss above the Bayes risk (nats)",
    )


def samples(quick: bool) -> Answer:
    """How many sentences are needed."""
    sizes = np.array([3, 10, 30] if quick else [3, 6, 10, 20, 30, 60, 100, 200, 400])
    sets, probs = 20 if quick else 60, np.array([0.5, 0.3, 0.15, 0.05])
    clean = RecallTask(50, 4, 8, probs=probs, counts=ONCE)
    noisy = RecallTask(50, 4, 8, alpha=0.2, probs=probs, counts=ONCE)
    found = [costs(clean, M, sets, "ngd", 1.0, 100) for M in sizes.tolist()]
    missing, doubt = np.mean(found, axis=1), np.std(found, axis=1, ddof=1) / math.sqrt(sets)
    cost = np.array([np.mean(costs(noisy, M, sets, "gd", 4.0, 100 if quick else 200)) for M in sizes.tolist()])
    predicted = missing_loss(clean, sizes)
    shown = [0, len(sizes) // 3, len(sizes) // 2]
    figures = ", ".join(f"{missing[i]:.2g} ± {doubt[i]:.1g} ({predicted[i]:.2g}) for M = {sizes[i]}" for i in shown)
    return Answer(
        "recall-samples",
        "What does training on M sentences cost?",
        "Without noise only the triggers that are missing from the sentences: the population loss in the end is"
        f" {figures}; predicted ln V Σ p_q (1-p_q)^M in brackets. With noise (α = 0.2) the frequency of noise is"
        f" learnt instead of α, which costs 1/(2M) more: at M = {sizes[-1]} the excess over"
        f" training on the population is"
        f" {cost[-1]:.2g}, 1/(2M) = {0.5 / sizes[-1]:.2g}; means over {sets} sets.",
        (
            Series("no noise, measured", sizes[missing > 1e-6], missing[missing > 1e-6], points=True),
            Series("no noise, predicted", sizes[predicted > 1e-6], predicted[predicted > 1e-6]),
            Series("α = 0.2, measured", sizes, cost, points=True),
            Series("1/(2M)", sizes, 0.5 / sizes),
        ),
        "sentences M",
        "population loss above full training (nats)",
    )


def unseen(quick: bool) -> Answer:
    """Whether a trained model recalls outputs that it has never seen."""
    task = RecallTask(24, 3, 6, H=17)
    full = TransformerRisk(task, batch=64)
    models: dict[str, Risk] = {"reparameterised": Reparameterised(full), "full matrices": full}
    series, found = [], {}
    for name, model in models.items():
        run = whole(descend(model, 0.05, rule="ngd", steps=100 if quick else 600))
        found[name] = {key: float(values[-1]) for key, values in run.observed.items()}
        for kind in ("seen", "unseen"):
            losses = run.observed[f"{kind}_loss"][1:]
            series.append(Series(f"{name}, {kind} outputs", run.t[1:], losses, points=kind == "unseen"))
    return Answer(
        "recall-unseen",
        "Does the trained model recall outputs that it has never seen?",
        "Under the reparameterisation yes, at exactly the same loss; full matrices trained on the"
        " same sentences learn"
        " the outputs by heart. Seen and unseen: "
        + "; ".join(
            f"{name}, loss {f['seen_loss']:.2g} and {f['unseen_loss']:.2g}, accuracy {f['seen_accuracy']:.0%} and"
            f" {f['unseen_accuracy']:.0%}"
            for name, f in found.items()
        )
        + f" (V = {task.V}, |Q| = {task.Q}, 6 outputs, normalised descent, {int(run.t[-1])} steps of"
        f" 64 sentences).",
        tuple(series),
        "step",
        "loss (nats)",
        "linear",
    )


def roles(quick: bool) -> Answer:
    """Which part of the model predicts the output, and which the noise."""
    task = RecallTask(12 if quick else 24, 3, 6, alpha=0.2, H=17)
    full = TransformerRisk(task, "softmax", batch=64)
    small = Reparameterised(full)
    test = task.sentences(np.random.default_rng(1), 200)
    series, words = [], []
    parts: dict[str, tuple[str, ...]] = {
        "whole": (), "no feed-forward": ("feed_forward",), "no attention": ("attention",)
    }  # fmt: skip
    models: tuple[tuple[str, Risk, Callable[[Array], Array]], ...] = (
        ("reparameterised", small, small.inward),
        ("full matrices", full, lambda params: params),
    )
    for name, model, inward in models:
        run = whole(descend(model, 0.1, rule="ngd", steps=100 if quick else 600))
        shown = np.unique(np.linspace(1, len(run.t) - 1, 20).astype(int))
        for part, without in parts.items():
            curve = [full.measure(inward(state), test, without) for state in run.states[shown]]
            if name == "reparameterised":
                series.append(Series(f"{part}: output", run.t[shown], np.array([m.output for m in curve])))
                series.append(
                    Series(f"{part}: noise", run.t[shown], np.array([m.noise for m in curve]), points=True)
                )
            words.append(f"{name}, {part}: {curve[-1].output:.3f} and {curve[-1].noise:.3f}")
    return Answer(
        "recall-roles",
        "Which part predicts the output, and which the noise?",
        f"Mean probabilities of output and noise word (α = 0.2, softmax attention) after {int(run.t[-1])} steps: "
        + "; ".join(words)
        + ". Under the reparameterisation attention alone finds the output and never says noise; the"
        " feed-forward layer"
        " brings the noise, in proportion to what attention found. In full matrices the roles mix.",
        tuple(series),
        "step",
        "mean probability (reparameterised)",
    )


QUESTIONS: dict[str, Callable[[bool], Answer]] = {
    "recall-exponent": exponent,
    "recall-noise": noise,
    "recall-samples": samples,
    "recall-unseen": unseen,
    "recall-roles": roles,
}


def rates_by_size(quick: bool) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """Numbers of triggers, and measured rates over η for linear attention, unequal triggers, and softmax."""
    sizes = np.array([1, 4, 16] if quick else [1, 2, 4, 8, 16, 32, 64])
    eta, far = 0.5, 120.0
    rates = {}
    for name, unequal, attention in (
        ("linear, uniform triggers", False, "linear"),
        ("linear, p ~ 1/rank", True, "linear"),
        ("softmax, uniform triggers", False, "softmax"),
    ):
        tasks = [
            RecallTask(2 * Q + 20, Q, 8, probs=zipf(Q) if unequal else None, counts=ONCE) for Q in sizes.tolist()
        ]
        rates[name] = np.array([final_rate(RecallRisk(task, attention), eta, far) for task in tasks]) / eta
    return sizes, rates


def powers(sizes: NDArray[np.int64], rates: dict[str, Array]) -> dict[str, float]:
    """Fitted exponents b of rates that go like sizes^b."""
    return {name: float(np.polyfit(np.log(sizes), np.log(values), 1)[0]) for name, values in rates.items()}


def zipf(Q: int) -> Array:
    """Return trigger probabilities in proportion to 1/rank."""
    weight = 1.0 / np.arange(1, Q + 1)
    return np.asarray(weight / weight.sum())


def final_rate(risk: RecallRisk, eta: float, far: float) -> float:
    """Decay per step of the excess of normalised descent over the second half of a run that ends near e^-far."""
    steps = 2 * math.ceil(0.5 * far / decay_rate(risk.task, eta, risk.attention))
    run = whole(descend(risk, eta, rule="ngd", steps=steps))
    ends = [float(run.at(t).observed["excess"]) for t in (steps // 2, steps)]
    return (math.log(ends[0]) - math.log(ends[1])) / (steps - steps // 2)


def costs(task: RecallTask, M: int, sets: int, rule: str, eta: float, steps: int) -> Array:
    """Population losses of training on M sentences, minus that of training on the population, one for each set."""
    population = RecallRisk(task)

    def trained(risk: RecallRisk) -> Trajectory:
        return whole(descend(risk, eta, rule=rule, steps=steps, give_up=False))

    best = population.excess(trained(population).params)
    data = (task.sentences(np.random.default_rng([M, number]), M) for number in range(sets))
    return np.array([population.excess(trained(RecallRisk(task, data=some)).params) for some in data]) - best

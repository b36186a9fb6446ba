"""Open questions about in-context recall; the docstring of each is the question."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.risk import Risk
from icl_theory.engine.trajectory import Trajectory
from icl_theory.families.recall.bounds import decay_rate, missing_loss, noise_cost, stall
from icl_theory.families.recall.coordinates import reparameterised
from icl_theory.families.recall.counts import Counts
from icl_theory.families.recall.population import RecallRisk
from icl_theory.families.recall.sampled import TransformerRisk
from icl_theory.families.recall.task import RecallTask
from icl_theory.papers.claim import Series, power, question

ONCE = Counts.fixed(1)
PUBLISHED = {"ηt/√|Q|": -0.5, "ηt/|Q|": -1.0, "ηt": 0.0}  # and the powers of |Q| in their rates


@question("recall-exponent", "number of triggers |Q|", "rate of convergence / η")
def exponent(quick: bool) -> tuple[str, list[Series]]:
    """Which exponent is right: ηt/√|Q|, ηt/|Q| or ηt?"""
    sizes, rates = rates_by_size(quick)
    found = {name: power(sizes, each) for name, each in rates.items()}
    measured = ", ".join(f"{name}: |Q|^{b:.3f}, so {published(b)}" for name, b in found.items())
    absent = [name for name in PUBLISHED if name not in map(published, found.values())]
    words = f"Rates over η for |Q| = 1..{sizes[-1]} go like these powers. {measured[0].upper()}{measured[1:]}."
    return words + (f" None of these models has {' or '.join(absent)}." if absent else ""), [
        *(
            Series(name, sizes[first::2], values[first::2], points=True)  # in turn: two of them coincide
            for first, (name, values) in zip((0, 1, 0, 0), rates.items(), strict=True)
        ),
        Series("1 / √|Q|", sizes, sizes**-0.5),
        Series("1 / |Q|", sizes, 1.0 / sizes),
        Series("1", sizes, np.ones(len(sizes))),
    ]


@question("recall-noise", "step", "loss above the Bayes risk (nats)")
def noise(quick: bool) -> tuple[str, list[Series]]:
    """Does normalised descent reach the Bayes risk with noise?"""
    task, eta, steps = RecallTask(50, 4, 8, alpha=0.1, counts=ONCE), 0.4, 2000 if quick else 20_000
    free, held = RecallRisk(task, tied=True), RecallRisk(task, gamma=task.best_gamma, tied=True)
    joint, alone = descend(free, eta, rule="ngd", steps=steps), descend(held, eta, rule="ngd", steps=200)
    plain = descend(free, eta, steps=steps)
    level, ended, stays = stall(task.alpha, eta), float(alone.observed["excess"][-1]), cycle_level(joint)
    tail = float(plain.t[-1] * plain.observed["excess"][-1])
    verdict = (
        "Only if λ alone is normalised" if ended < 1e-6 < stays
        else "Yes, with γ trained and without" if max(ended, stays) < 1e-6
        else "These runs do not decide it"
    )  # fmt: skip
    names = ("normalised, λ and γ", "normalised, λ alone, γ = ln(α/(1-α))", "plain, λ and γ")
    curves = [
        Series(name, run.t[1:], run.observed["excess"][1:])
        for name, run in zip(names, (joint, alone, plain), strict=True)
    ]
    return (
        f"{verdict}: with γ held at ln(α/(1-α)) the excess is {ended:.0e} after {alone.t[-1]} steps, predicted rate"
        f" {decay_rate(task, eta):.3g}, measured {_last_rate(alone):.3g}. With γ trained too it is {stays:.2e}"
        f" (mean of two steps at t = {joint.t[-1]:,}); predicted α(1-α)η²/8 = {level:.2e}, {stays / level:.3f} of"
        f" it (α = 0.1, η = {eta:g}). Plain descent: t × excess = {tail:.3g} at t = {plain.t[-1]:,}, predicted"
        f" |Q|/η = {task.Q / eta:g}."
    ), [*curves, Series("α(1-α)η²/8", joint.t[1:], np.full(len(joint.t) - 1, level))]


@question("recall-samples", "sentences M", "population loss above full training (nats)")
def samples(quick: bool) -> tuple[str, list[Series]]:
    """What does training on M sentences cost?"""
    sizes = np.array([3, 10, 30] if quick else [3, 6, 10, 20, 30, 60, 100, 200, 400])
    sets, probs, limit = 20 if quick else 60, np.array([0.5, 0.3, 0.15, 0.05]), 3.5
    clean, noisy = (RecallTask(50, 4, 8, alpha=alpha, probs=probs, counts=ONCE) for alpha in (0.0, 0.2))
    missing = np.mean([costs(clean, M, sets, "ngd", 1.0, 100) for M in sizes.tolist()], axis=1)
    predicted, doubt = missing_loss(clean, sizes), missing_spread(clean, sizes) / math.sqrt(sets)
    some = sizes[::2]  # the first and the last among them
    cost = np.array([np.mean(costs(noisy, M, sets, "gd", 4.0, 100 if quick else 200)) for M in some.tolist()])
    shown = sorted({0, len(sizes) // 3, len(sizes) // 2})
    figures = ", ".join(f"{missing[i]:.2g} ± {doubt[i]:.1g} ({predicted[i]:.2g}) for M = {sizes[i]}" for i in shown)
    likely = doubt > 0.02 * math.log(clean.V) * probs.min() / math.sqrt(sets)  # elsewhere no set lacks a trigger
    z = float(np.max(np.abs(missing - predicted)[likely] / doubt[likely]))
    return (
        f"Without noise {'' if z < limit else 'not '}only the triggers that are missing from the sentences"
        f": the mean population loss in the end is {figures}; predicted ln V Σ p_q (1-p_q)^M in brackets, ±"
        f" the standard deviation of a mean over {sets} sets by the same prediction. Largest distance for M ="
        f" {sizes[0]}..{sizes[likely][-1]}: {z:.1f} of these. With noise (α = 0.2) the frequency of noise is learnt"
        f" instead of α: at M = {sizes[-1]} the excess over training on the population is {cost[-1]:.2g}, 1/(2M) ="
        f" {0.5 / sizes[-1]:.2g}, expected divergence of the frequency {noise_cost(int(sizes[-1]), 0.2):.2g}."
    ), [
        Series("no noise, measured", sizes[missing > 1e-6], missing[missing > 1e-6], points=True),
        Series("no noise, predicted", sizes[predicted > 1e-6], predicted[predicted > 1e-6]),
        Series("α = 0.2, measured", some, cost, points=True),
        Series("1/(2M)", sizes, 0.5 / sizes),
    ]


@question("recall-unseen", "step", "loss (nats)", "linear")
def unseen(quick: bool) -> tuple[str, list[Series]]:
    """Does the trained model recall outputs that it has never seen?"""
    task = RecallTask(24, 3, 6, H=17)
    full = TransformerRisk(task, batch=64)
    models: dict[str, Risk] = {"reparameterised": reparameterised(full), "full matrices": full}
    series, found = [], {}
    for name, model in models.items():
        run = descend(model, 0.05, rule="ngd", steps=100 if quick else 600)
        found[name] = {key: float(values[-1]) for key, values in run.observed.items()}
        for kind in ("seen", "unseen"):
            losses = run.observed[f"{kind}_loss"][1:]
            series.append(Series(f"{name}, {kind} outputs", run.t[1:], losses, points=kind == "unseen"))
    told = "; ".join(
        f"{name}, loss {f['seen_loss']:.2g} and {f['unseen_loss']:.2g}, accuracy {f['seen_accuracy']:.0%} and"
        f" {f['unseen_accuracy']:.0%}"
        for name, f in found.items()
    )
    return (
        "; ".join(f"{name}: {_recalls(f)}" for name, f in found.items())
        + f". Seen and unseen: {told} (V = {task.V}, |Q| = {task.Q}, 6 outputs, normalised descent,"
        f" {int(run.t[-1])} steps of 64 sentences)."
    ), series


@question("recall-roles", "step", "mean probability (reparameterised)")
def roles(quick: bool) -> tuple[str, list[Series]]:
    """Which part predicts the output, and which the noise?"""
    task = RecallTask(12 if quick else 24, 3, 6, alpha=0.2, H=17)
    full = TransformerRisk(task, "softmax", batch=64)
    small, test = reparameterised(full), task.sentences(np.random.default_rng(1), 200)
    series, words, last = [], [], {}
    parts: dict[str, tuple[str, ...]] = {
        "whole": (), "no feed-forward": ("feed_forward",), "no attention": ("attention",)
    }  # fmt: skip
    models: dict[str, Risk] = {"reparameterised": small, "full matrices": full}
    for name, model in models.items():
        run = descend(model, 0.1, rule="ngd", steps=100 if quick else 600)
        shown = np.unique(np.linspace(1, len(run.t) - 1, 20).astype(int))
        states = [small.map.inward(state) if model is small else state for state in run.states[shown]]
        for part, without in parts.items():
            curve = [full.measure(state, test, without) for state in states]
            if model is small:
                series.append(Series(f"{part}: output", run.t[shown], np.array([m.output for m in curve])))
                series.append(
                    Series(f"{part}: noise", run.t[shown], np.array([m.noise for m in curve]), points=True)
                )
            words.append(f"{name}, {part}: {curve[-1].output:.3f} and {curve[-1].noise:.3f}")
            last[name, part] = curve[-1]
    attention, no_attention = (last["reparameterised", part] for part in ("no feed-forward", "no attention"))
    return (
        f"Mean probabilities of output and noise word (α = 0.2, softmax attention) after {int(run.t[-1])} steps: "
        + "; ".join(words)
        + f". Under the reparameterisation attention alone says the output with probability {attention.output:.2f}"
        f" and noise with {attention.noise:.2g}, the feed-forward layer alone noise with {no_attention.noise:.2g}: "
        + ("attention finds the output" if attention.output > 0.9 else "attention does not find the output yet")
        + (" and does not say noise" if attention.noise < 1e-3 else " and still says noise")
        + (", and the feed-forward layer alone says neither." if max(no_attention[2:]) < 0.1 else ".")
    ), series


def rates_by_size(quick: bool) -> tuple[NDArray[np.int64], dict[str, Array]]:
    """Numbers of triggers, and measured rates over η of the models that the exponents are claimed for."""
    sizes = np.array([1, 4, 16] if quick else [1, 2, 4, 8, 16, 32, 64])
    eta, far = 0.5, 120.0
    rates = {}
    for name, attention in (
        ("linear, uniform triggers", "linear"), ("linear, p ~ 1/rank", "linear"),
        ("ReLU, uniform triggers", "relu"), ("softmax, uniform triggers", "softmax-limit"),
    ):  # fmt: skip
        probs = [zipf(Q) if "rank" in name else None for Q in sizes.tolist()]
        tasks = [
            RecallTask(2 * Q + 20, Q, 8, probs=p, counts=ONCE) for p, Q in zip(probs, sizes.tolist(), strict=True)
        ]
        rates[name] = np.array([final_rate(RecallRisk(task, attention), eta, far) for task in tasks]) / eta
    return sizes, rates


def _last_rate(run: Trajectory) -> float:
    """Decay of the excess per step over the second half of a run."""
    end = int(run.t[-1])
    ends = [float(run.at(t).observed["excess"]) for t in (end // 2, end)]
    return (math.log(ends[0]) - math.log(ends[1])) / (end - end // 2)


def _recalls(found: dict[str, float]) -> str:
    """What losses and accuracies on seen and unseen outputs say."""
    if abs(found["unseen_loss"] / found["seen_loss"] - 1.0) < 1e-9:
        return "yes, at the same loss"
    if found["unseen_accuracy"] < 0.1 < 0.9 < found["seen_accuracy"]:
        return "no, it learns the seen outputs by heart"
    return f"in {found['unseen_accuracy']:.0%} of the sentences"


def missing_spread(task: RecallTask, M: NDArray[np.int64]) -> Array:
    """Standard deviation of the loss of the triggers missing from M sentences, from their joint probabilities."""
    p = task.probs
    both = np.array([np.maximum(1.0 - p[:, None] - p, 0.0) ** m for m in M.tolist()])
    alone = (1.0 - p) ** M[:, None]
    index = np.arange(len(p))
    both[:, index, index] = alone
    covariance = both - alone[:, :, None] * alone[:, None, :]
    return np.asarray(math.log(task.V) * np.sqrt(np.maximum(np.einsum("mqr,q,r->m", covariance, p, p), 0.0)))


def published(power: float) -> str:
    """Return the published exponent that a measured power of |Q| goes with, if there is one."""
    near = [name for name, wanted in PUBLISHED.items() if abs(power - wanted) < 0.01]
    return near[0] if near else "none of the published exponents"


def zipf(Q: int) -> Array:
    """Return trigger probabilities in proportion to 1/rank."""
    weight = 1.0 / np.arange(1, Q + 1)
    return np.asarray(weight / weight.sum())


def final_rate(risk: RecallRisk, eta: float, far: float) -> float:
    """Decay per step of the excess of normalised descent over the second half of a run that ends near e^-far."""
    steps = 2 * math.ceil(0.5 * far / decay_rate(risk.task, eta, risk.attention))
    return _last_rate(descend(risk, eta, rule="ngd", steps=steps))


def rate_ratio(risk: RecallRisk, eta: float, far: float) -> float:
    """The same over the predicted rate."""
    return final_rate(risk, eta, far) / decay_rate(risk.task, eta, risk.attention)


def cycle_level(run: Trajectory) -> float:
    """Mean excess of the last two steps of a run."""
    return float(np.mean([run.at(int(run.t[-1]) - shift).observed["excess"] for shift in (0, 1)]))


def costs(task: RecallTask, M: int, sets: int, rule: str, eta: float, steps: int) -> Array:
    """Population losses of training on M sentences, minus that of training on the population, one for each set.

    Sets with the same counts and the same number of noisy answers have the same loss, and are trained on once.
    """
    population = RecallRisk(task)

    def reached(risk: RecallRisk) -> float:
        return population.excess(descend(risk, eta, rule=rule, steps=steps, give_up=False).params)

    found: list[float] = []
    known: dict[bytes, float] = {}
    for number in range(sets):
        data = task.sentences(np.random.default_rng([M, number]), M)
        alike = np.append(np.sort(data.trigger * task.H + data.c), np.sum(data.answer == task.noise_word)).tobytes()
        if alike not in known:
            known[alike] = reached(RecallRisk(task, data=data))
        found.append(known[alike])
    return np.array(found) - reached(population)

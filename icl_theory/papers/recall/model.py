"""Rows on what the recall models compute: sentences, losses, optima, roles."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.rules import RULES
from icl_theory.engine.statement import OURS, Statement, Status
from icl_theory.families.recall.bounds import loss_bound
from icl_theory.families.recall.coordinates import reparameterised
from icl_theory.families.recall.counts import Counts
from icl_theory.families.recall.population import ATTENTION, RecallRisk
from icl_theory.families.recall.sampled import TransformerRisk
from icl_theory.families.recall.task import RecallTask, Words
from icl_theory.families.recall.training import Training
from icl_theory.papers.claim import Errors, Found, Outcome, Row, decade, identity, off, row

SETTINGS = (("planted", "identity"), ("markov", "projection"))  # the paper's and ours
PAPER = "recall paper, {} (reconstructed)"
NOISY = functools.partial(RecallTask, 60, 1, 4, H=256, law="planted")  # of the paper's setting, for an alpha


@row("recall: sentences", OURS, Status.EXACT)
def sentence_counts(quick: bool) -> Found:
    """counts of sampled sentences have the law C(H-1-k, k) C(k, c) d^k (1-d)^(H-1-2k) (1-ν)^c ν^cτ; planted,
    (q, y) and (q, τ) are anywhere, in either order
    """
    size, grid = 10_000 if quick else 200_000, list(itertools.product((5, 9, 33), (0.0, 0.3)))
    found = [_places(np.random.default_rng(len(grid)), size)]
    for number, (H, alpha) in enumerate(grid):
        rng, law = np.random.default_rng(number), Counts.sentence(H, noise=alpha)
        drawn = RecallTask(9, 2, 3, alpha=alpha, H=H, counts=law).sentences(rng, size)
        after = np.where(drawn.tokens[:, :-1] == drawn.tokens[:, -1:], drawn.tokens[:, 1:], -1)
        found.append(_fit(law.pmf, np.sum(after == drawn.output[:, None], axis=1), np.sum(after == 8, axis=1)))
        found.append(_fit(law.pmf, *_word_by_word(rng, H, alpha, size)))
    limit = 1e-3 / len(found)
    return Found(
        min(found) > limit,
        f"H = 5, 9, 33, α = 0, 0.3; bigrams in {size:,} sentences, and in as many sequences drawn word by word;"
        f" places of both bigrams in {size:,} planted sentences, H = 9, α = 0.3",
        f"least p-value {min(found):.2g} (χ²)",
        bound=f"{limit:.1e}",
    )


def _places(rng: np.random.Generator, size: int) -> float:
    """p-value of the places of (q, y) and (q, τ) in planted sentences: as likely wherever they do not overlap."""
    from scipy.stats import chisquare

    task = RecallTask(9, 1, 3, alpha=0.3, H=9, law="planted")
    tokens = task.sentences(rng, size).tokens[:, :-1]
    first, second = np.nonzero(tokens == task.triggers[0])[1].reshape(size, 2).T
    noise_first = tokens[np.arange(size), first + 1] == task.noise_word
    seen = np.unique(np.stack([first, second, noise_first]), axis=1, return_counts=True)[1]
    return float(chisquare(seen).pvalue) if len(seen) == 2 * math.comb(task.H - 3, 2) else 0.0


def _word_by_word(rng: np.random.Generator, H: int, noise: float, size: int) -> tuple[Words, Words]:
    """Counts in sequences drawn from left to right, of those that end with the trigger after some output."""
    c, c_tau = np.zeros(size, dtype=np.intp), np.zeros(size, dtype=np.intp)
    after_trigger = np.zeros(size, dtype=bool)
    for _ in range(H):
        uniform = rng.random(size)
        wrong = uniform < noise
        c, c_tau = c + (after_trigger & ~wrong), c_tau + (after_trigger & wrong)
        after_trigger = ~after_trigger & (uniform < 0.25)
    found = after_trigger & (c > 0)
    return c[found], c_tau[found]


def _fit(pmf: Array, c: Words, c_tau: Words) -> float:
    """p-value of counts under a law: χ² over cells with ten expected counts, the others together."""
    from scipy.stats import chi2

    if c.max() >= pmf.shape[0] or c_tau.max() >= pmf.shape[1]:
        return 0.0
    expected, seen = len(c) * pmf, np.zeros_like(pmf)
    np.add.at(seen, (c, c_tau), 1.0)
    often = expected >= 10
    observed = np.append(seen[often], seen[~often].sum())
    wanted = np.append(expected[often], max(expected[~often].sum(), 1e-9))
    statistic = float(np.sum((observed - wanted) ** 2 / wanted))
    return float(chi2.sf(statistic, max(1, often.sum() - 1 + (wanted[-1] > 1e-9))))


@identity("recall: Lemma 3.1", PAPER.format("Lemma 3.1"), 1e-12)
def lemma_adding(quick: bool) -> Errors:
    """linear and ReLU attention: L = Σ p_q E ln(1 + (V-1) e^(-λ_q c)); with noise Σ p_q E ln(1 + e^γ + (V-2)
    e^(-λ_q c)) - αγ
    """
    models = itertools.product(("linear", "relu"), (0.0, 0.3), SETTINGS)
    for seed, (attention, alpha, (law, weights)) in enumerate(models):
        task = RecallTask(9, 1 if alpha else 2, 3, alpha=alpha, H=11, law=law)
        data = task.sentences(np.random.default_rng(seed), 200 if quick else 2000)
        risk = RecallRisk(task, attention, data=data, weights=weights)
        sampled = reparameterised(TransformerRisk(task, attention, data=data, weights=weights))
        params = np.random.default_rng(seed).uniform(0.0, 2.0, len(risk.initial))
        (loss, gradient), (other, slope) = risk.evaluate(params), sampled.evaluate(params)
        yield max(abs(loss / other - 1.0), np.max(np.abs(gradient - slope)))
    return (
        "loss and gradient against full transformers on the same sentences, α = 0, 0.3, in the paper's setting"
        " (planted bigrams, 𝒱 = I, all H words attended to) and in ours"
    )


def _excesses(quick: bool) -> Iterator[tuple[float, float]]:
    """What models are above the Bayes risk at λ = v = 900, in closed form and on sentences."""
    models = itertools.product(ATTENTION[:3], (0.0, 0.2), SETTINGS)
    for seed, (attention, alpha, (law, weights)) in enumerate(models):
        task = RecallTask(50, 1 if alpha else 4, 8, alpha=alpha, law=law)
        gamma = task.best_gamma if alpha else None
        risk = RecallRisk(task, attention, gamma, weights=weights)
        params = np.full(len(risk.initial), 900.0)
        data = task.sentences(np.random.default_rng(seed), 100 if quick else 500)
        reached = reparameterised(TransformerRisk(task, attention, data=data, weights=weights), gamma).loss(params)
        chances = task.predict(data.tokens)[np.arange(len(data.answer)), data.answer]
        yield risk.excess(params), abs(reached + float(np.mean(np.log(chances))))


@row("recall: Bayes-optimal", PAPER.format("Lemmas 3.1, 4.1 and section 5"), Status.EXACT, "-> 0")
def bayes(quick: bool) -> Found:
    """three attentions, with and without noise, reach the Bayes risk H(α): λ (and v = λ) -> ∞, γ = ln(α/(1-α))"""
    worst, on_sentences = map(max, zip(*_excesses(quick), strict=True))
    noisy, best = NOISY(alpha=0.2), math.log(0.25)
    held = RecallRisk(noisy, "softmax", best, weights="identity", v=1.0)
    few = (held, RecallRisk(noisy, gamma=best, weights="identity", kappa=0))
    above, gap = (risk.floor() - noisy.bayes_risk for risk in few)
    apart = off(
        (above, gap), [min(risk.excess([x]) for x in np.linspace(-5.0, 20.0, 501).tolist()) for risk in few]
    )
    read = RecallRisk(noisy, gamma=best, weights="identity").floor() - noisy.bayes_risk
    return Found(
        max(worst, on_sentences, read) < 1e-12 and min(above, gap) > 0.01 and apart < 1e-3,
        "λ = v = 900, α = 0, 0.2, the paper's setting and ours; in closed form,"
        " and transformers on sentences against the Bayes predictor;"
        " the least excess at V = 60, H = 256, α = 0.2 where 𝒱 = I is held, and where κ = 0",
        f"excess at most {worst:.0e}, on sentences {on_sentences:.0e}; softmax with 𝒱 = I held: {above:.3g} at"
        f" least; linear attention with κ = 0: {gap:.3g} at least; the least along λ = -5..20 off by"
        f" {decade(apart)} at most",
        " where F reads what is attended to (κ = 1), for softmax attention only where 𝒱 grows too",
        Outcome.ONLY,
    )


@row("recall: loss bound", PAPER.format("Thm 3.2"), Status.CERTIFIED, "1")
def certified_bound(quick: bool) -> Found:
    """L <= (V-1) Σ p_q e^(-λ_q) for λ >= 0; with noise L - H(α) <= (V-2) Σ p_q e^(-λ_q) at γ = ln(α/(1-α))"""
    rng, ratios = np.random.default_rng(0), []
    for number in range(12 if quick else 60):
        Q, attention, alpha = int(rng.integers(1, 4)), ATTENTION[number % 2], 0.3 * (number % 4 > 1)
        first = RecallTask(Q + int(rng.integers(6, 20)), Q, 2, alpha=alpha, H=9)
        data = first.sentences(rng, 200)
        seen = np.unique(data.trigger)
        share = np.bincount(data.trigger, minlength=Q)[seen] / len(data.trigger)
        task = RecallTask(first.V, first.triggers[seen], first.outputs, alpha=alpha, H=9, probs=share)
        params, held = rng.uniform(0.0, 12.0, Q), task.best_gamma if alpha else None
        full = np.append(params, task.best_gamma) if alpha else params
        chances = task.predict(data.tokens)[np.arange(200), data.answer] if alpha else np.ones(200)
        excess = reparameterised(TransformerRisk(first, attention, data=data)).loss(full) + np.mean(np.log(chances))
        ratios.append(excess / loss_bound(RecallRisk(task, attention, held), params[seen]))
    inside = bool(max(ratios) <= 1.0)
    return Found(
        inside,
        f"{len(ratios)} random tasks and strengths, linear and ReLU transformers on 200 sentences each",
        f"inside on all: {inside}; loss/bound up to {max(ratios):.3f}",
        " (by ln(1 + x) <= x)",
    )


@row("recall: Lemma 4.1", PAPER.format("Lemma 4.1"), Status.EXACT, "4; 1e-8; -> 0")
def lemma_averaging(quick: bool) -> Found:
    """softmax attention at finite H: the mean over all sentences by one integral; as sentences grow long logit
    v ρ e^λ/(ρ e^λ + 1 - ρ) for the output
    """
    z, gaps, slope, lengths = 0.0, [], 0.0, (33, 65, 129) if quick else (33, 65, 129, 257)
    for alpha, (law, weights) in itertools.product((0.0, 0.3), SETTINGS):
        task = RecallTask(12, 1 if alpha else 2, 3, alpha=alpha, H=33, law=law)
        risk = RecallRisk(task, "softmax", weights=weights)
        params = np.array([*np.full(task.Q, 2.0), 5.0, *([-1.0] if alpha else [])])
        model = reparameterised(TransformerRisk(task, "softmax", batch=200, weights=weights))
        losses = np.array([model.evaluate(params, step)[0] for step in range(25 if quick else 250)])
        z = max(z, abs(losses.mean() - risk.loss(params)) / losses.std(ddof=1) * math.sqrt(len(losses)))
        kinds = [risk, RecallRisk(task, "softmax-limit")] if law == "markov" else [risk]
        slope = max(slope, *(_gradient_error(kind, params) for kind in kinds))
    for H in lengths:
        task = RecallTask(9, 2, 3, H=H)
        short, long = (RecallRisk(task, kind, tied=True).loss([1.0, 3.0]) for kind in ("softmax", "softmax-limit"))
        gaps.append(abs(short - long))
    order = float(np.polyfit(np.log(lengths), np.log(gaps), 1)[0])
    return Found(
        z < 4.0 and order < -0.5 and slope < 1e-8,
        "H = 33, α = 0, 0.3, the paper's setting and ours, against full transformers on"
        f" {5000 if quick else 50_000:,} sentences; the limit for H = {lengths[0]}..{lengths[-1]}",
        f"largest |z| {z:.1f}; gradient against differences {slope:.0e}; limit off by {gaps[0]:.1e} ->"
        f" {gaps[-1]:.1e}, like H^{order:.2f}",
    )


def _gradient_error(risk: RecallRisk, params: Array, h: float = 1e-3) -> float:
    """Largest distance of the gradient from sixth-order differences of the loss."""
    found = []
    for unit in h * np.eye(len(params)):
        ahead = [risk.loss(params + i * unit) - risk.loss(params - i * unit) for i in (1, 2, 3)]
        found.append((45.0 * ahead[0] - 9.0 * ahead[1] + ahead[2]) / (60.0 * h))
    return float(np.max(np.abs(risk.gradient(params) - found)))


def unseen_outputs(alpha: float, theorem: str) -> Row:
    """Make the row on outputs that training has not seen."""
    words = "outputs never seen in training have the loss of seen ones" + (", with noise" if alpha else "")

    @row(
        Statement(f"recall: Theorem {theorem}", PAPER.format(f"Thm {theorem}"), words, "", Status.EXACT),
        bound="equal",
    )
    def unseen(quick: bool) -> Found:
        size = {"V": 24, "H": 33, "batch": 128, "max_steps": 150} if quick else {"max_steps": 400, "batch": 256}
        last, steps = [], {}
        for model, longer in (("reparameterised", 1), ("attention", 1), ("attention", 5), ("full", 1)):
            more = size | {"max_steps": longer * size["max_steps"]}
            run = Training(model=model, alpha=alpha, eta=0.1 if quick else 0.05, **more).simulate()  # type: ignore[arg-type]
            last.append([float(run.observed[f"{kind}_loss"][-1]) for kind in ("seen", "unseen")])
            steps[longer] = int(run.t[-1])
        guess = math.log(run.family.V)
        (seen, other), alone, late, full = last
        good = abs(other / seen - 1.0) < 1e-9 and alone[1] < 0.7 * guess and full[1] > guess > full[0]
        names = ("λ alone", "W alone", f"W alone after {steps[5]} steps", "all matrices")
        return Found(
            good and late[0] < late[1] < alone[1],
            f"α = {alpha:g}, linear attention, planted bigrams, V = {run.family.V}, H = {run.family.H}, {steps[1]}"
            f" steps of {run.family.batch} fresh sentences, for W alone {steps[5]} too",
            "loss on seen and unseen outputs: "
            + "; ".join(f"{name} {a:.3g}, {b:.3g}" for name, (a, b) in zip(names, last, strict=True)),
            " for λ alone, by symmetry; W alone recalls unseen outputs at a higher loss, which goes on"
            f" falling; all matrices do worse on them than guessing, ln V = {guess:.2f}",
        )

    return unseen


UNSEEN, UNSEEN_NOISY = unseen_outputs(0.0, "3.3"), unseen_outputs(0.2, "5.5")


@row("recall: why all matrices fail", OURS, Status.CERTIFIED, "0")
def unseen_rows(quick: bool) -> Found:
    """where F reads no E(x): ∂L/∂𝒱_xz = E[(p_x - 1(answer x)) a_z], a ≥ 0 what ReLU or softmax attention gathers;
    so row x of 𝒱 never grows for a word x that is never an answer
    """
    largest, ends, steps = -math.inf, [], 100 if quick else 400
    for attention, alpha in itertools.product(("relu", "softmax"), (0.0, 0.2)):
        problem = Training(
            attention=attention, alpha=alpha, rule="ngd-blocks", scale=0.0, V=20, H=24, batch=64, max_steps=2,
            gamma=0.0, eta=0.1,
        )  # fmt: skip
        full, task = problem.transformer, problem.task
        if alpha:  # F is held, and reads no E(x): the rows of 𝒱 are read out by themselves
            full = dataclasses.replace(full, trained=("attention", "value"), gamma=0.0)
        params, never = full.initial.copy(), task.unseen
        for step in range(steps):
            gradient = full.evaluate(params, step)[1]
            fall = -full.matrices(gradient)["value"][never]
            largest = max(largest, float(np.max(fall)) / float(np.max(np.abs(gradient))))
            params = params + RULES["ngd-blocks"].move(full, gradient, 0.1, step)
        value = np.diagonal(full.matrices(params)["value"])
        ends.append((float(np.mean(value[task.outputs])), float(np.mean(value[never]))))
    grown, still = min(seen for seen, _ in ends), max(unseen for _, unseen in ends)
    return Found(
        largest <= 1e-15 and grown > 0.1,
        f"ReLU and softmax attention from zero, each matrix normalised, {steps} steps, α = 0, 0.2",
        f"largest growth of such a row {max(0.0, largest):.0e} of the largest gradient; 𝒱_yy of seen outputs at"
        f" least {grown:.2f}, 𝒱_xx of unseen ones at most {still:.3f}",
        ": 𝒱 learns which words are answers; W alone cannot, its 𝒱 = I lets every word through",
    )


@row("recall: Theorem 5.6", PAPER.format("Thm 5.6"), Status.EXACT, "0.8, 0.2; 1, 0; 1/(V-1+e^γ), e^γ/(V-1+e^γ)")
def part_roles(quick: bool) -> Found:
    """after training attention predicts the output and the feed-forward layer the noise"""
    task = NOISY(alpha=0.2)
    full = TransformerRisk(task, "relu", weights="identity")
    small, test = reparameterised(full, task.best_gamma), task.sentences(np.random.default_rng(1), 100)
    run = descend(RecallRisk(task, "relu", task.best_gamma, weights="identity"), 0.5, rule="ngd", steps=100)
    whole, no_noise, no_attention = (
        full.measure(small.map.inward(run.params), test, without)
        for without in ((), ("feed_forward",), ("attention",))
    )
    half_way = run.at(10).params  # where half of a part would show
    odds, strength = (task.V - 1.0) * (1.0 - task.alpha) / task.alpha, float(half_way[0])
    output = full.measure(small.map.inward(half_way), test, ("feed_forward",)).output
    error = max(
        abs(output - 1.0 / (1.0 + (task.V - 1.0) * np.exp(-strength))), abs(whole.output - 0.8),
        abs(whole.noise - 0.2), abs(no_noise.output - 1.0), no_noise.noise,
        abs(no_attention.noise - 1.0 / (1.0 + odds)),
    )  # fmt: skip
    return Found(
        error < 1e-9,
        f"the paper's setting, V = 60, H = 256, ReLU attention, α = 0.2, γ = ln(α/(1-α)); {run.t[-1]} steps of"
        f" normalised descent on λ, to {run.params.min():.1f}; then, and without feed-forward layer at λ ="
        f" {strength:.1f}, ablated",
        f"off by {error:.0e}; probabilities of output and noise {whole.output:.3f}, {whole.noise:.3f};"
        f" without feed-forward {no_noise.output:.3f}, {no_noise.noise:.3f}; without attention"
        f" {no_attention.output:.3f}, {no_attention.noise:.3f}",
        " for λ alone; without attention F does not read u either, and gives noise little probability",
    )


@identity("recall: Theorem 5.6, by layers", PAPER.format("Thm 5.6"), 1e-12)
def layer_logits(quick: bool) -> Errors:
    """attention adds λ to the logit of the output alone, F adds γ + λ to that of noise alone: the largest of F's is
    noise once λ > ln((1-α)/α)
    """
    strengths = (0.5, 1.3, 1.5, 43.0)
    for alpha, strength in itertools.product((0.2, 0.5, 0.8), strengths):
        full = TransformerRisk(NOISY(alpha=alpha), "relu", weights="identity", tests=64)
        gamma = math.log(alpha / (1.0 - alpha))
        seen = full.observe(reparameterised(full, gamma).map.inward(np.array([strength])))
        wanted = {"feed_forward_noise": gamma + strength, "attention_output": strength}
        wanted |= {"feed_forward_other": 0.0, "attention_other": 0.0}
        yield max(abs(float(seen[name]) - value) for name, value in wanted.items())
        yield bool((seen["feed_forward_noise"] > seen["feed_forward_other"]) != (strength > -gamma))
    return (
        "the paper's setting, V = 60, H = 256, ReLU attention, α = 0.2, 0.5, 0.8, γ = ln(α/(1-α)), λ = "
        + ", ".join(f"{each:g}" for each in strengths)
    )

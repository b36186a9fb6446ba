"""Rows on what the recall models compute: sentences, losses, optima, roles."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from icl_theory._validate import Array
from icl_theory.engine.descent import descend
from icl_theory.engine.rules import NO_MEMORY, RULES
from icl_theory.papers.recall import (
    Counts,
    Training,
    TransformerRisk,
    loss_bound,
    reparameterised,
)
from icl_theory.papers.recall.population import ATTENTION, RecallRisk
from icl_theory.papers.recall.task import RecallTask, Sentences, Words
from icl_theory.papers.regression.theorems.enumeration import differences
from icl_theory.statements.claim import Claim, Errors, Row, identity, row
from icl_theory.statements.numbers import (
    apart,
    decade,
    deviations,
    listed,
    losses,
    named,
    off,
    power,
)
from icl_theory.statements.statement import OURS, Statement, Status

SETTINGS = (("planted", "identity"), ("markov", "projection"))  # the paper's and ours
PAPER = "recall paper, {} (reconstructed)"
# of the paper's setting, for an alpha
NOISY = functools.partial(RecallTask, 60, 1, 4, H=256, law="planted")


@row("recall: sentences", OURS, Status.EXACT)
def sentence_counts(quick: bool) -> Claim:
    """counts of sampled sentences have the law C(H-1-k, k) C(k, c) d^k (1-d)^(H-1-2k) (1-ν)^c ν^cτ; planted,
    (q, y) and (q, τ) are anywhere, in either order
    """
    size = 10_000 if quick else 200_000
    grid = [*itertools.product((5, 9, 33), (0.0, 0.3))]
    found = [_places(np.random.default_rng(len(grid)), size)]
    found += [
        p
        for number, case in enumerate(grid)
        for p in _counted(np.random.default_rng(number), *case, size)
    ]
    return Claim.of(
        min(found) > 1e-3 / len(found),
        f"H = 5, 9, 33, α = 0, 0.3; bigrams in {size:,} sentences, and in as many"
        f" sequences drawn word by word; places of both bigrams in {size:,} planted"
        " sentences, H = 9, α = 0.3",
        f"least p-value {min(found):.2g} (χ²)",
        bound=f"{1e-3 / len(found):.1e}",
    )


def _counted(
    rng: np.random.Generator, H: int, alpha: float, size: int
) -> tuple[float, float]:
    law = Counts.sentence(H, noise=alpha)
    drawn = RecallTask(9, 2, 3, alpha=alpha, H=H, counts=law).sentences(rng, size)
    after = np.where(
        drawn.tokens[:, :-1] == drawn.tokens[:, -1:], drawn.tokens[:, 1:], -1
    )
    found = _fit(
        law.pmf,
        np.sum(after == drawn.output[:, None], axis=1),
        np.sum(after == 8, axis=1),
    )
    return found, _fit(law.pmf, *_word_by_word(rng, H, alpha, size))


def _places(rng: np.random.Generator, size: int) -> float:
    """p-value of the places of (q, y) and (q, τ) in planted sentences: as likely
    wherever they do not overlap.
    """
    from scipy.stats import chisquare

    task = RecallTask(9, 1, 3, alpha=0.3, H=9, law="planted")
    tokens = task.sentences(rng, size).tokens[:, :-1]
    first, second = np.nonzero(tokens == task.triggers[0])[1].reshape(size, 2).T
    noise_first = tokens[np.arange(size), first + 1] == task.noise_word
    seen = np.unique(
        np.stack([first, second, noise_first]), axis=1, return_counts=True
    )[1]
    return (
        float(chisquare(seen).pvalue)
        if len(seen) == 2 * math.comb(task.H - 3, 2)
        else 0.0
    )


def _word_by_word(
    rng: np.random.Generator, H: int, noise: float, size: int
) -> tuple[Words, Words]:
    """Counts in sequences drawn from left to right, of those that end with the trigger
    after some output.
    """
    c = np.zeros(size, dtype=np.intp)
    c_tau = np.zeros(size, dtype=np.intp)
    after_trigger = np.zeros(size, dtype=bool)
    for _ in range(H):
        uniform = rng.random(size)
        wrong = uniform < noise
        c = c + (after_trigger & ~wrong)
        c_tau = c_tau + (after_trigger & wrong)
        after_trigger = ~after_trigger & (uniform < 0.25)
    found = after_trigger & (c > 0)
    return c[found], c_tau[found]


def _fit(pmf: Array, c: Words, c_tau: Words) -> float:
    """p-value of counts under a law: χ² over cells with ten expected counts, the others
    together.
    """
    from scipy.stats import chisquare

    if c.max() >= pmf.shape[0] or c_tau.max() >= pmf.shape[1]:
        return 0.0
    expected = len(c) * pmf
    seen = np.zeros_like(pmf)
    np.add.at(seen, (c, c_tau), 1.0)
    often = expected >= 10
    observed, wanted = (
        np.append(each[often], each[~often].sum()) for each in (seen, expected)
    )
    possible = wanted > 1e-9
    return (
        0.0
        if observed[~possible].any()
        else float(chisquare(observed[possible], wanted[possible]).pvalue)
    )


@identity("recall: Lemma 3.1", PAPER.format("Lemma 3.1"), 1e-12)
def lemma_adding(quick: bool) -> Errors:
    """linear and ReLU attention: L = Σ p_q E ln(1 + (V-1) e^(-λ_q c)); with noise Σ p_q E ln(1 + e^γ + (V-2)
    e^(-λ_q c)) - αγ
    """
    every = _settings(("linear", "relu"), 0.3, 200 if quick else 2000, (9, 2, 3), H=11)
    for seed, (task, options, data) in enumerate(every):
        risk = RecallRisk(task, data=data, **options)
        full = reparameterised(TransformerRisk(task, data=data, **options))
        params = np.random.default_rng(seed).uniform(0.0, 2.0, len(risk.initial))
        yield risk.loss(params), full.loss(params)
        yield apart(risk.gradient(params), full.gradient(params))
    grid = "loss and gradient against full transformers on the same sentences, α = 0, 0.3, in the paper's setting"
    return f"{grid} (planted bigrams, 𝒱 = I, all H words attended to) and in ours"


def _settings(
    attentions: tuple[str, ...],
    noise: float,
    size: int,
    numbers: tuple[int, int, int],
    **more: Any,
) -> Iterator[tuple[RecallTask, dict[str, Any], Sentences]]:
    """Tasks without and with noise in the paper's setting and in ours, what their
    models are, and sentences.
    """
    (V, Q, outputs), every = (
        numbers,
        itertools.product(attentions, (0.0, noise), SETTINGS),
    )
    for seed, (attention, alpha, (law, weights)) in enumerate(every):
        task = RecallTask(V, 1 if alpha else Q, outputs, alpha=alpha, law=law, **more)
        options = {"attention": attention, "weights": weights}
        yield task, options, task.sentences(np.random.default_rng(seed), size)


def _excesses(quick: bool) -> Iterator[tuple[float, float]]:
    for task, options, data in _settings(
        ATTENTION[:3], 0.2, 100 if quick else 500, (50, 4, 8)
    ):
        gamma = task.best_gamma if task.alpha else None
        risk = RecallRisk(task, gamma=gamma, **options)
        full = reparameterised(TransformerRisk(task, data=data, **options), gamma)
        params = np.full(len(risk.initial), 900.0)
        yield risk.excess(params), abs(full.loss(params) - _bayes_loss(task, data))


def _bayes_loss(task: RecallTask, data: Sentences) -> float:
    return -float(
        np.mean(
            np.log(task.predict(data.tokens)[np.arange(len(data.answer)), data.answer])
        )
    )


@row(
    "recall: Bayes-optimal",
    PAPER.format("Lemmas 3.1, 4.1 and section 5"),
    Status.EXACT,
    "-> 0",
)
def bayes(quick: bool) -> Claim:
    """three attentions, with and without noise, reach the Bayes risk H(α): λ (and v =
    λ) -> ∞, γ = ln(α/(1-α))
    """
    worst, on_sentences = map(max, zip(*_excesses(quick), strict=True))
    read, above, gap, along = _floors(NOISY(alpha=0.2))
    return Claim.of(
        max(worst, on_sentences, read) < 1e-12
        and min(above, gap) > 0.01
        and along < 1e-3,
        "λ = v = 900, α = 0, 0.2, the paper's setting and ours; in closed form, and"
        " transformers on sentences against the Bayes predictor; the least excess at"
        " V = 60, H = 256, α = 0.2 where 𝒱 = I is held, and where κ = 0",
        f"excess at most {worst:.0e}, on sentences {on_sentences:.0e}; softmax with 𝒱"
        f" = I held: {above:.3g} at least; linear attention with κ = 0: {gap:.3g} at"
        f" least; the least along λ = -5..20 off by {decade(along)} at most",
        "holds only where F reads what is attended to (κ = 1), for softmax attention"
        " only where 𝒱 grows too",
    )


def _floors(task: RecallTask) -> tuple[float, float, float, float]:
    """Least excess with κ = 1, with 𝒱 = I held, and with κ = 0; how far the last two
    are off the least along λ.
    """
    made = functools.partial(
        RecallRisk, task, gamma=task.best_gamma, weights="identity"
    )
    risks = (made(), made("softmax", v=1.0), made(kappa=0))
    read, above, gap = (risk.floor() - task.bayes_risk for risk in risks)
    least = [
        min(risk.excess([x]) for x in np.linspace(-5.0, 20.0, 501).tolist())
        for risk in risks[1:]
    ]
    return read, above, gap, off((above, gap), least)


@row("recall: loss bound", PAPER.format("Thm 3.2"), Status.CERTIFIED, "1")
def certified_bound(quick: bool) -> Claim:
    """L <= (V-1) Σ p_q e^(-λ_q) for λ >= 0; with noise L - H(α) <= (V-2) Σ p_q e^(-λ_q)
    at γ = ln(α/(1-α))
    """
    rng = np.random.default_rng(0)
    ratios = [
        _over_bound(rng, ATTENTION[n % 2], 0.3 * (n % 4 > 1))
        for n in range(12 if quick else 60)
    ]
    return Claim.of(
        np.max(ratios) <= 1.0,
        f"{len(ratios)} random tasks and strengths, linear and ReLU transformers on"
        " 200 sentences each",
        f"inside on all: {np.max(ratios) <= 1.0}; loss/bound up to"
        f" {np.max(ratios):.3f}",
        "holds (by ln(1 + x) <= x)",
    )


def _over_bound(rng: np.random.Generator, attention: str, alpha: float) -> float:
    Q = int(rng.integers(1, 4))
    first = RecallTask(Q + int(rng.integers(6, 20)), Q, 2, alpha=alpha, H=9)
    data = first.sentences(rng, 200)
    seen = np.unique(data.trigger)
    share = np.bincount(data.trigger, minlength=Q)[seen] / len(data.trigger)
    task = RecallTask(
        first.V, first.triggers[seen], first.outputs, alpha=alpha, H=9, probs=share
    )
    params = rng.uniform(0.0, 12.0, Q)
    held = task.best_gamma if alpha else None
    full = reparameterised(TransformerRisk(first, attention, data=data), held)
    least = _bayes_loss(task, data) if alpha else 0.0
    return (full.loss(params) - least) / loss_bound(
        RecallRisk(task, attention, held), params[seen]
    )


@row("recall: Lemma 4.1", PAPER.format("Lemma 4.1"), Status.EXACT, "4; 1e-8; -> 0")
def lemma_averaging(quick: bool) -> Claim:
    """softmax attention at finite H: the mean over all sentences by one integral; as sentences grow long logit
    v ρ e^λ/(ρ e^λ + 1 - ρ) for the output
    """
    lengths, batches = ((33, 65, 129), 25) if quick else ((33, 65, 129, 257), 250)
    z, slope = np.max(
        [
            _against_sentences(*each, a, batches)
            for a in (0.0, 0.3)
            for each in SETTINGS
        ],
        axis=0,
    )
    gaps = []
    for task in (RecallTask(9, 2, 3, H=H) for H in lengths):
        short, long = (
            RecallRisk(task, kind, tied=True).loss([1.0, 3.0])
            for kind in ("softmax", "softmax-limit")
        )
        gaps.append(abs(short - long))
    return Claim.of(
        z < 4.0 and power(lengths, gaps) < -0.5 and slope < 1e-8,
        "H = 33, α = 0, 0.3, the paper's setting and ours, against full transformers"
        f" on {200 * batches:,} sentences; the limit for H ="
        f" {lengths[0]}..{lengths[-1]}",
        f"largest |z| {z:.1f}; gradient against differences {slope:.0e}; limit off by"
        f" {gaps[0]:.1e} -> {gaps[-1]:.1e}, like H^{power(lengths, gaps):.2f}",
    )


def _against_sentences(
    law: str, weights: str, alpha: float, batches: int
) -> tuple[float, float]:
    task = RecallTask(12, 1 if alpha else 2, 3, alpha=alpha, H=33, law=law)
    risk = RecallRisk(task, "softmax", weights=weights)
    params = np.array([*np.full(task.Q, 2.0), 5.0, *([-1.0] if alpha else [])])
    full = reparameterised(TransformerRisk(task, "softmax", batch=200, weights=weights))
    kinds = [risk, RecallRisk(task, "softmax-limit")] if law == "markov" else [risk]
    slopes = [
        [differences(kind.loss, params, unit) for unit in np.eye(len(params))]
        for kind in kinds
    ]
    z = float(deviations(losses(full, params, batches), risk.loss(params)))
    return z, max(
        apart(kind.gradient(params), slope)
        for kind, slope in zip(kinds, slopes, strict=True)
    )


def unseen_outputs(alpha: float, theorem: str) -> Row:
    """Make the row on outputs that training has not seen."""
    words = "outputs never seen in training have the loss of seen ones" + (
        ", with noise" if alpha else ""
    )
    claimed = Statement(
        f"recall: Theorem {theorem}",
        PAPER.format(f"Thm {theorem}"),
        words,
        "",
        Status.EXACT,
    )

    @row(claimed, bound="equal")
    def unseen(quick: bool) -> Claim:
        base, steps, found = _unseen_losses(alpha, quick)
        (seen, other), alone, late, full = found.values()
        guess = math.log(base.V)
        return Claim.of(
            off(other, seen) < 1e-9
            and late[0] < late[1] < alone[1] < 0.7 * guess
            and full[1] > guess > full[0],
            f"α = {alpha:g}, linear attention, planted bigrams, V = {base.V}, H ="
            f" {base.H}, {steps} steps of {base.batch} fresh sentences, for W alone"
            f" {5 * steps} too",
            "loss on seen and unseen outputs:"
            f" {'; '.join(f'{k} {a:.3g}, {b:.3g}' for k, (a, b) in found.items())}",
            "holds for λ alone, by symmetry; W alone recalls unseen outputs at a"
            " higher loss, which goes on falling; all matrices do worse on them than"
            f" guessing, ln V = {guess:.2f}",
        )

    return unseen


def _unseen_losses(
    alpha: float, quick: bool
) -> tuple[Training, int, dict[str, tuple[float, float]]]:
    size: dict[str, Any] = (
        {"V": 24, "H": 33, "batch": 128, "eta": 0.1}
        if quick
        else {"batch": 256, "eta": 0.05}
    )
    base = Training(alpha=alpha, **size)
    steps = 150 if quick else 400
    found = {}
    for name, model, share in (
        ("λ alone", "reparameterised", 1),
        ("W alone", "attention", 1),
        (f"W alone after {5 * steps} steps", "attention", 5),
        ("all matrices", "full", 1),
    ):
        seen = base.changed(model=model, max_steps=share * steps).simulate().observed
        found[name] = float(seen["seen_loss"][-1]), float(seen["unseen_loss"][-1])
    return base, steps, found


UNSEEN = unseen_outputs(0.0, "3.3")
UNSEEN_NOISY = unseen_outputs(0.2, "5.5")


@row(
    "recall: Theorem 3.3, lower bound",
    PAPER.format("Thm 3.3"),
    Status.CERTIFIED,
    "1, attained to 1e-9",
)
def unseen_lower_bound(quick: bool) -> Claim:
    """at step t of normalised descent on λ, uniform triggers, an output never seen in training has at least the
    probability 1/(1 + (V-1) e^(-x)), x = ηt/√|Q|
    """
    sizes, steps = ((1, 4), (1, 8, 64)) if quick else ((1, 4, 9), (1, 4, 16, 64, 128))
    planted = []
    drawn = []
    for Q, attention in itertools.product(sizes, ("linear", "relu")):
        task = RecallTask(40, Q, 4, H=24, law="planted")
        planted.append(_exponents_of_unseen(task, attention, 0.25, steps))
        task = RecallTask(40, Q, 4, H=24, counts=Counts(np.array([0.0, 0.4, 0.6])))
        drawn.append(_exponents_of_unseen(task, attention, 0.25, steps))
    powers = {"ηt/√|Q|": -0.5, "ηt/|Q|": -1.0, "ηt": 0.0}
    size = np.repeat(np.array(sizes, dtype=float), 2)[:, None]
    ratios = {
        name: np.array(planted + drawn) / np.tile(size, (2, 1)) ** b
        for name, b in powers.items()
    }
    attained = apart(ratios["ηt/√|Q|"][: len(planted)], 1.0)
    least = {name: float(np.min(each)) for name, each in ratios.items()}
    weaker = "holds" if least["ηt/|Q|"] >= 1.0 - 1e-9 else "fails"
    stronger = "holds" if least["ηt"] >= 1.0 - 1e-9 else "fails"
    return Claim.of(
        least["ηt/√|Q|"] >= 1.0 - 1e-9 and attained < 1e-9,
        f"linear and ReLU transformers, V = 40, H = 24, |Q| = {listed(sizes)}, η ="
        f" 0.25, t = {listed(steps)}; planted bigrams, and one or two of them; the"
        " least likely of 16 sentences with unseen outputs",
        f"least ln((V-1) P/(1-P)) over each exponent: {named(least, '.4f')}; off"
        f" ηt/√|Q| by {decade(attained)} for planted bigrams",
        "holds, attained by planted bigrams; with ηt/|Q| in place of ηt/√|Q| it"
        f" {weaker}, with ηt it {stronger} for |Q| > 1: a public review (ICLR 2026,"
        " Reviewer 4) says that the paper has ηt where ηt/|Q| is right",
    )


def _exponents_of_unseen(
    task: RecallTask, attention: str, eta: float, steps: tuple[int, ...]
) -> list[float]:
    """Least ``ln((V-1) P/(1-P))`` over ηt of unseen outputs at some steps, by a full
    transformer.
    """
    full = TransformerRisk(task, attention, tests=16)
    inward = reparameterised(full).map.inward
    run = descend(RecallRisk(task, attention), eta, rule="ngd", steps=max(steps))
    rng = np.random.default_rng(task.Q)
    sentences = [task.sentences(rng, 1, task.unseen) for _ in range(16)]
    exponents = []
    for step in steps:
        params = inward(np.atleast_1d(run.at(step).params))
        # -ln P
        losses_of_outputs = [full.measure(params, each).loss for each in sentences]
        largest = max(losses_of_outputs)
        exponents.append(
            (math.log(task.V - 1.0) - math.log(math.expm1(largest))) / (eta * step)
        )
    return exponents


@row("recall: why all matrices fail", OURS, Status.CERTIFIED, "0")
def unseen_rows(quick: bool) -> Claim:
    """where F reads no E(x): ∂L/∂𝒱_xz = E[(p_x - 1(answer x)) a_z], a ≥ 0 what ReLU or softmax attention gathers;
    so row x of 𝒱 never grows for a word x that is never an answer
    """
    steps = 100 if quick else 400
    found = [
        _value_rows(attention, alpha, steps)
        for attention in ("relu", "softmax")
        for alpha in (0.0, 0.2)
    ]
    growth, seen, never = zip(*found, strict=True)
    return Claim.of(
        np.max(growth) <= 1e-15 and min(seen) > 0.1,
        f"ReLU and softmax attention from zero, each matrix normalised, {steps} steps,"
        " α = 0, 0.2",
        f"largest growth of such a row {max(0.0, *growth):.0e} of the largest"
        f" gradient; 𝒱_yy of seen outputs at least {min(seen):.2f}, 𝒱_xx of unseen"
        f" ones at most {max(never):.3f}",
        "holds: 𝒱 learns which words are answers; W alone cannot, its 𝒱 = I lets"
        " every word through",
    )


def _value_rows(attention: str, alpha: float, steps: int) -> tuple[float, float, float]:
    """Largest growth of a row of 𝒱 for a word that is never an answer, and the mean
    ends of 𝒱_yy and 𝒱_xx.
    """
    size: dict[str, Any] = {
        "V": 20,
        "H": 24,
        "batch": 64,
        "max_steps": 2,
        "gamma": 0.0,
        "eta": 0.1,
    }
    problem = Training(
        attention=attention, alpha=alpha, rule="ngd-blocks", scale=0.0, **size
    )
    full = problem.transformer
    task = problem.task
    largest = -math.inf
    if alpha:  # F is held, and reads no E(x): the rows of 𝒱 are read out by themselves
        full = dataclasses.replace(full, trained=("attention", "value"), gamma=0.0)
    params = full.initial.copy()
    for step in range(steps):
        gradient = full.evaluate(params, step)[1]
        fall = -full.matrices(gradient)["value"][task.unseen]
        largest = max(largest, float(np.max(fall)) / float(np.max(np.abs(gradient))))
        change, _ = RULES["ngd-blocks"].step(
            full, params, gradient, 0.1, NO_MEMORY, step
        )
        params = params + change
    value = np.diagonal(full.matrices(params)["value"])
    return (
        largest,
        float(np.mean(value[task.outputs])),
        float(np.mean(value[task.unseen])),
    )


@row(
    "recall: Theorem 5.6",
    PAPER.format("Thm 5.6"),
    Status.EXACT,
    "0.8, 0.2; 1, 0; 1/(V-1+e^γ), e^γ/(V-1+e^γ)",
)
def part_roles(quick: bool) -> Claim:
    """after training attention predicts the output and the feed-forward layer the noise"""
    (steps, end, strength), error, (whole, no_noise, no_attention) = _ablated(
        NOISY(alpha=0.2)
    )
    return Claim.of(
        error < 1e-9,
        "the paper's setting, V = 60, H = 256, ReLU attention, α = 0.2, γ ="
        f" ln(α/(1-α)); {steps:.0f} steps of normalised descent on λ, to {end:.1f};"
        f" then, and without feed-forward layer at λ = {strength:.1f}, ablated",
        f"off by {error:.0e}; probabilities of output and noise"
        f" {listed(whole, '.3f')}; without feed-forward {listed(no_noise, '.3f')};"
        f" without attention {listed(no_attention, '.3f')}",
        "holds for λ alone; without attention F does not read u either, and gives"
        " noise little probability",
    )


def _ablated(
    task: RecallTask,
) -> tuple[tuple[float, float, float], float, list[tuple[float, float]]]:
    """Length and end of a run, and λ half way; an error; probabilities of output and
    noise at the end by parts.
    """
    full = TransformerRisk(task, "relu", weights="identity")
    small = reparameterised(full, task.best_gamma)
    test = task.sentences(np.random.default_rng(1), 100)
    run = descend(
        RecallRisk(task, "relu", task.best_gamma, weights="identity"),
        0.5,
        rule="ngd",
        steps=100,
    )
    # where half of a part would show
    half_way = run.at(10).params
    parts = ((), ("feed_forward",), ("attention",))
    ends = [full.measure(small.map.inward(run.params), test, part) for part in parts]
    found = [(each.output, each.noise) for each in ends]
    strength = float(half_way[0])
    output = full.measure(small.map.inward(half_way), test, ("feed_forward",)).output
    alone = [
        1.0 / (1.0 + (task.V - 1.0) * each)
        for each in (np.exp(-strength), (1.0 - task.alpha) / task.alpha)
    ]
    error = apart(
        [output, *found[0], *found[1], found[2][1]],
        [alone[0], 0.8, 0.2, 1.0, 0.0, alone[1]],
    )
    return (float(run.t[-1]), float(run.params.min()), strength), error, found


@identity("recall: Theorem 5.6, by layers", PAPER.format("Thm 5.6"), 1e-12)
def layer_logits(quick: bool) -> Errors:
    """attention adds λ to the logit of the output alone, F adds γ + λ to that of noise alone: the largest of F's is
    noise once λ > ln((1-α)/α)
    """
    for alpha, strength in itertools.product((0.2, 0.5, 0.8), (0.5, 1.3, 1.5, 43.0)):
        full = TransformerRisk(NOISY(alpha=alpha), "relu", weights="identity", tests=64)
        gamma = math.log(alpha / (1.0 - alpha))
        seen = full.observe(
            reparameterised(full, gamma).map.inward(np.array([strength]))
        )
        wanted = {"feed_forward_noise": gamma + strength, "attention_output": strength}
        wanted |= {"feed_forward_other": 0.0, "attention_other": 0.0}
        yield apart([seen[name] for name in wanted], [*wanted.values()])
        yield bool(
            (seen["feed_forward_noise"] > seen["feed_forward_other"])
            != (strength > -gamma)
        )
    setting = "the paper's setting, V = 60, H = 256, ReLU attention, α = 0.2, 0.5, 0.8, γ = ln(α/(1-α))"
    return f"{setting}, λ = 0.5, 1.3, 1.5, 43"

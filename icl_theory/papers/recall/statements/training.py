"""Rows of the audit, and questions, on the training of recall models.

The subjects are convergence, rates, the number of sentences, unseen outputs, and the
roles of the layers.

A sentence of H words ends with a trigger q. There are |Q| triggers, with the
probabilities p. The answer to a sentence is the output y or, with the probability α,
the noise word. V is the number of words. In a sentence q is followed c times by y, and
c_τ times by the noise word. The least c of a trigger is c_q, and the least share
c/(c + c_τ) of the output is s. A risk has a strength λ for each trigger, or a single
one if it is ``tied``; with softmax attention also the scale v of the values 𝒱, and with
noise the log-odds γ of noise, unless these are held at a value. The rule "ngd",
normalised descent, takes steps of the length η, and "gd" is plain descent.
``observed["excess"]`` of a run is the loss above the Bayes risk H(α) at its saved steps
``t``.

A row returns ``Claim.of(holds, grid, measured, verdict)``: whether the measurements are
as expected, the cases, the measured numbers in words, and the verdict. ``quick`` asks
for fewer cases. ``off`` is the largest relative difference of two arrays, and ``apart``
the largest absolute one. ``power`` fits the exponent b of a law y ~ x^b, and ``decade``
rounds an error up to a power of ten.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from icl_theory._validate import Array
from icl_theory.engine import Pullback, Risk, Trajectory, descend, in_coordinates
from icl_theory.papers.recall import (
    Counts,
    Measure,
    RecallRisk,
    RecallTask,
    TransformerRisk,
    reparameterised,
)
from icl_theory.papers.recall.bounds import (
    decay_rate,
    missing_loss,
    noise_cost,
    plain_tail,
    stall,
)
from icl_theory.papers.recall.samples import failure_probability, sentences_needed
from icl_theory.papers.recall.simulate import simulate
from icl_theory.papers.recall.statements.model import (
    EQUAL,
    LARGEST_Z,
    PAPER,
    noisy_task,
)
from icl_theory.statements.claim import (
    Claim,
    Series,
    above,
    along,
    curves,
    question,
    row,
)
from icl_theory.statements.numbers import apart, decade, listed, off, power, span
from icl_theory.statements.statement import OURS, Status

# In every sentence the output follows the trigger once.
ONCE = Counts.fixed(1)
# Exponents that a public review of the paper (ICLR 2026, Reviewer 4) quotes from it,
# and the powers of |Q| in their rates. We have not read the formulas themselves.
REVIEWED = {"ηt/√|Q|": -0.5, "ηt/|Q|": -1.0, "ηt": 0.0}
# Unequal probabilities of four triggers.
PROBS = (0.5, 0.3, 0.15, 0.05)


def planted_task(triggers: int) -> RecallTask:
    """Return the task of the paper's setting without noise."""
    return RecallTask(V=60, triggers=triggers, outputs=4, H=256, law="planted")


@question("recall-exponent", "number of triggers |Q|", "rate of convergence / η")
def exponent(quick: bool) -> tuple[str, list[Series]]:
    """Which exponent do these models have: ηt/√|Q|, ηt/|Q| or ηt?"""
    sizes, rates = rates_by_size(quick)
    # By model: the exponent b of the law rate ~ |Q|^b, fitted to the rates.
    powers = {name: power(sizes, values) for name, values in rates.items()}
    powers_in_words = ", ".join(
        f"{name}: |Q|^{b:.3f}, so {exponent_with(b)}" for name, b in powers.items()
    )
    sentence = powers_in_words[0].upper() + powers_in_words[1:]
    present = [exponent_with(b) for b in powers.values()]
    absent = [name for name in REVIEWED if name not in present]
    words = f"Rates over η for |Q| = 1..{sizes[-1]} go like these powers. {sentence}."
    # Curves of the rates over η that belong to the three exponents.
    laws = {"1 / √|Q|": sizes**-0.5, "1 / |Q|": 1.0 / sizes, "1": np.ones(len(sizes))}
    if absent:
        words += f" None of these models has {' or '.join(absent)}."
    series = []
    for name, rates_of_model in rates.items():
        # Both models with linear attention have the same rates. Each model shows every
        # other size. One of the two linear models shows the sizes between, so that the
        # points of both alternate.
        first_index = 1 if name == "linear, p ~ 1/rank" else 0
        shown_sizes = sizes[first_index::2]
        series.append(
            Series(name, shown_sizes, rates_of_model[first_index::2], points=True)
        )
    return words, [*series, *curves(sizes, laws)]


@question("recall-noise", "step", "loss above the Bayes risk (nats)")
def noise(quick: bool) -> tuple[str, list[Series]]:
    """Does normalised descent reach the Bayes risk with noise?"""
    task = RecallTask(V=50, triggers=4, outputs=8, alpha=0.1, counts=ONCE)
    eta = 0.4
    steps = 2000 if quick else 20_000
    # Descent on λ and γ, normalised and plain, and on λ alone with γ at its optimum.
    joint_run = descend(RecallRisk(task, tied=True), eta, rule="ngd", steps=steps)
    plain_run = descend(RecallRisk(task, tied=True), eta, rule="gd", steps=steps)
    alone_run = descend(with_gamma(task, tied=True), eta, rule="ngd", steps=200)
    predicted_level = stall(task.alpha, eta)  # α(1-α)η²/8
    end_alone = float(alone_run.observed["excess"][-1])
    # Normalised descent on λ and γ ends in a cycle, at this mean excess.
    level = cycle_level(joint_run)
    # Excesses below 1e-6 count as the Bayes risk: the level of the cycle is 2e-3, and
    # the excess with λ alone is far smaller.
    if end_alone >= 1e-6:
        answer = "These runs do not decide it"
    elif level < 1e-6:
        answer = "Yes, with γ trained and without"
    else:
        answer = "Only if λ alone is normalised"
    runs = {
        "normalised, λ and γ": joint_run,
        "normalised, λ alone, γ = ln(α/(1-α))": alone_run,
        "plain, λ and γ": plain_run,
    }
    series = [along(name, run, run.observed["excess"]) for name, run in runs.items()]
    # A logarithmic axis has no step 0, so `along` has left it out of the curves.
    cycle = np.full(len(joint_run.t) - 1, predicted_level)
    series.append(Series("α(1-α)η²/8", joint_run.t[1:], cycle))
    plain_tail_of_run = plain_run.t[-1] * plain_run.observed["excess"][-1]
    return (
        f"{answer}: with γ held at ln(α/(1-α)) the excess is {end_alone:.0e} after"
        f" {alone_run.t[-1]} steps, predicted rate {decay_rate(task, eta):.3g},"
        f" measured {_last_rate(alone_run):.3g}. With γ trained too it is {level:.2e}"
        f" (mean of two steps at t = {joint_run.t[-1]:,}); predicted α(1-α)η²/8 ="
        f" {predicted_level:.2e}, {level / predicted_level:.3f} of it (α = 0.1, η ="
        f" {eta:g}). Plain descent: t × excess = {plain_tail_of_run:.3g} at t ="
        f" {plain_run.t[-1]:,}, predicted |Q|/η = {task.Q / eta:g}."
    ), series


@question("recall-samples", "sentences M", "population loss above full training (nats)")
def samples(quick: bool) -> tuple[str, list[Series]]:
    """What does training on M sentences cost?"""
    sizes = np.array([3, 10, 30] if quick else [3, 6, 10, 20, 30, 60, 100, 200, 400])
    sets = 20 if quick else 60  # of M sentences, for each M in ``sizes``
    answer, series = _cost_of_triggers(sizes, sets)
    answer_with_noise, series_with_noise = _cost_of_noise(sizes, sets, quick)
    return f"{answer} {answer_with_noise}", [*series, *series_with_noise]


def _cost_of_triggers(sizes: NDArray[np.int64], sets: int) -> tuple[str, list[Series]]:
    """Compare the cost of missing triggers with its prediction.

    ``sizes`` are numbers of sentences. Return an answer and its curves.
    """
    task = RecallTask(V=50, triggers=4, outputs=8, probs=list(PROBS), counts=ONCE)
    # Mean costs over the sets, predicted means, and standard errors, for each size.
    measured_costs, predicted_costs, standard_error = missing_costs(task, sizes, sets)
    # the indices of three sizes
    shown_indices = sorted({0, len(sizes) // 3, len(sizes) // 2})
    costs_in_words = ", ".join(
        f"{measured_costs[i]:.2g} ± {standard_error[i]:.1g}"
        f" ({predicted_costs[i]:.2g}) for M = {sizes[i]}"
        for i in shown_indices
    )
    # In large sets a trigger is almost never missing, so there is nothing to compare. A
    # missing trigger costs ln V times its probability. If the rarest one is missing
    # with the probability π, the standard deviation of its cost is √(π(1 - π)) of this
    # cost. Only sizes at which √(π(1 - π)) is above 0.02, or π > 0.0004, are compared.
    cost_of_rarest = math.log(task.V) * task.probs.min()
    is_compared = standard_error > 0.02 * cost_of_rarest / math.sqrt(sets)
    differences = np.abs(measured_costs - predicted_costs)
    distances = differences[is_compared] / standard_error[is_compared]
    z = float(np.max(distances))
    # A normal z exceeds 3.5 in one of 2,000 draws. There is one draw for each size, and
    # there are at most nine sizes.
    negation = "" if z < 3.5 else "not "
    # Costs of 1e-6 nats or less are left out of the curves: axes are logarithmic.
    series = [
        above(1e-6, "no noise, measured", sizes, measured_costs, points=True),
        above(1e-6, "no noise, predicted", sizes, predicted_costs),
    ]
    return (
        f"Without noise {negation}only the triggers that are missing"
        " from the sentences: the mean population loss in the end is"
        f" {costs_in_words};"
        " predicted ln V Σ p_q (1-p_q)^M in brackets, ± the standard deviation of a"
        f" mean over {sets} sets by the same prediction. Largest distance for M ="
        f" {sizes[0]}..{sizes[is_compared][-1]}: {z:.1f} of these."
    ), series


def _cost_of_noise(
    sizes: NDArray[np.int64], sets: int, quick: bool
) -> tuple[str, list[Series]]:
    """Measure the cost of learning the frequency of noise instead of α.

    ``sizes`` are numbers of sentences. Return an answer and its curves.
    """
    task = RecallTask(
        V=50, triggers=4, outputs=8, alpha=0.2, probs=list(PROBS), counts=ONCE
    )
    steps = 100 if quick else 200
    # To save time, only every other size is measured, among them the first and the last
    # one.
    measured_sizes = sizes[::2]
    mean_costs = []
    for M in measured_sizes.tolist():
        # Plain descent, because normalised descent on λ and γ ends in a cycle. The
        # learning rate is a choice.
        costs_of_sets = costs(task, M, sets, rule="gd", eta=4.0, steps=steps)
        mean_costs.append(np.mean(costs_of_sets))
    measured_costs = np.array(mean_costs)
    return (
        "With noise (α = 0.2) the frequency of noise is learnt instead of α: at M ="
        f" {sizes[-1]} the excess over training on the population is"
        f" {measured_costs[-1]:.2g}, 1/(2M) = {0.5 / sizes[-1]:.2g}, expected"
        f" divergence of the frequency {noise_cost(int(sizes[-1]), 0.2):.2g}."
    ), [
        Series("α = 0.2, measured", measured_sizes, measured_costs, points=True),
        Series("1/(2M)", sizes, 0.5 / sizes),
    ]


def both(full: TransformerRisk) -> dict[str, Risk]:
    """Return the risks of two models by name, on the same sampled sentences.

    One model trains the parameters of the paper's reparameterisation: λ and, with
    softmax attention, v and, with noise, γ. The other trains all matrices of the
    transformer ``full``.
    """
    return {"reparameterised": reparameterised(full), "full matrices": full}


@question("recall-unseen", "step", "loss (nats)", "linear")
def unseen(quick: bool) -> tuple[str, list[Series]]:
    """Does the trained model recall outputs that it has never seen?"""
    models = both(
        TransformerRisk(RecallTask(V=24, triggers=3, outputs=6, H=17), batch=64)
    )
    runs = {
        name: descend(model, eta=0.05, rule="ngd", steps=100 if quick else 600)
        for name, model in models.items()
    }
    ends = []
    recalls = []
    series = []
    for name, run in runs.items():
        # The last values on test sentences, by name: "seen_loss", "unseen_loss", …
        last = {key: float(values[-1]) for key, values in run.observed.items()}
        recalls.append(f"{name}: {_whether_recalled(last)}")
        ends.append(
            f"{name}, loss {last['seen_loss']:.2g} and {last['unseen_loss']:.2g},"
            f" accuracy {last['seen_accuracy']:.0%} and {last['unseen_accuracy']:.0%}"
        )
        for kind in ("seen", "unseen"):
            label = f"{name}, {kind} outputs"
            losses = run.observed[f"{kind}_loss"]
            series.append(along(label, run, losses, points=kind == "unseen"))
    recalls_in_words = "; ".join(recalls)
    ends_in_words = "; ".join(ends)
    return (
        f"{recalls_in_words}. Seen and unseen: {ends_in_words} (V = 24, |Q| = 3,"
        f" 6 outputs, normalised descent, {runs['full matrices'].t[-1]} steps of 64"
        " sentences)."
    ), series


@question("recall-roles", "step", "mean probability (reparameterised)")
def roles(quick: bool) -> tuple[str, list[Series]]:
    """Which part predicts the output, and which the noise?"""
    V = 12 if quick else 24
    task = RecallTask(V, triggers=3, outputs=6, alpha=0.2, H=17)
    full = TransformerRisk(task, "softmax", batch=64)
    steps = 100 if quick else 600
    ablated_by_model = {
        name: _train_and_ablate(full, model, steps)
        for name, model in both(full).items()
    }
    ends = []
    for name, ablated in ablated_by_model.items():
        for part, measures in ablated.parts.items():
            last = measures[-1]
            ends.append(f"{name}, {part}: {last.output:.3f} and {last.noise:.3f}")
    t, parts = ablated_by_model["reparameterised"]
    # The measures of each part alone, at the last step.
    attention = parts["no feed-forward"][-1]
    feed_forward = parts["no attention"][-1]
    return (
        "Mean probabilities of output and noise word (α = 0.2, softmax attention)"
        f" after {t[-1]} steps: {'; '.join(ends)}. Under the reparameterisation"
        f" attention alone says the output with probability {attention.output:.2f} and"
        f" noise with {attention.noise:.2g}, the feed-forward layer alone noise with"
        f" {feed_forward.noise:.2g}: {_roles_in_words(attention, feed_forward)}."
    ), _probability_curves(t, parts)


def _roles_in_words(attention: Measure, feed_forward: Measure) -> str:
    """Say which of the parts, each taken alone, predicts the output and which noise.

    The words stand for probabilities near 1 or 0. The limits 0.9, 0.001 and 0.1 are
    choices.
    """
    on_output = "does not find the output yet"
    if attention.output > 0.9:
        on_output = "finds the output"
    on_noise = "does not say" if attention.noise < 1e-3 else "still says"
    of_feed_forward = ""
    if max(feed_forward.output, feed_forward.noise) < 0.1:
        of_feed_forward = ", and the feed-forward layer alone says neither"
    return f"attention {on_output} and {on_noise} noise{of_feed_forward}"


def _probability_curves(
    t: NDArray[np.int64], parts: dict[str, list[Measure]]
) -> list[Series]:
    """Return the probabilities of output and noise at the steps t, for each part."""
    series = []
    for part, measures in parts.items():
        output = np.array([measure.output for measure in measures])
        noise_word = np.array([measure.noise for measure in measures])
        series.append(Series(f"{part}: output", t, output))
        series.append(Series(f"{part}: noise", t, noise_word, points=True))
    return series


class _Ablated(NamedTuple):
    """Measurements of a model and its parts along training."""

    t: NDArray[np.int64]  # steps
    # Measures at each of the steps, of the whole model ("whole") or without a part.
    parts: dict[str, list[Measure]]


def _train_and_ablate(full: TransformerRisk, model: Risk, steps: int) -> _Ablated:
    """Train a model, and measure it whole and without each part at 20 of its steps.

    ``model`` is the transformer ``full``, or its reparameterised form.
    """
    run = descend(model, eta=0.1, rule="ngd", steps=steps)
    test = full.task.sentences(np.random.default_rng(1), 200)
    # Indices of saved steps. Step 0 is left out, because the axis is logarithmic.
    shown_indices = np.unique(np.linspace(1, len(run.t) - 1, 20).astype(int))
    matrices = run.states[shown_indices]
    if isinstance(model, Pullback):
        # The states of the reparameterised model are λ, v and γ, and `inward` returns
        # the matrices for them.
        matrices = [model.map.inward(state) for state in matrices]
    parts = {
        "whole": (),
        "no feed-forward": ("feed_forward",),
        "no attention": ("attention",),
    }
    measures = {}
    for name, without in parts.items():
        measures[name] = [full.measure(params, test, without) for params in matrices]
    return _Ablated(run.t[shown_indices], measures)


class RatesBySize(NamedTuple):
    """Measured rates of convergence of several models."""

    sizes: NDArray[np.int64]  # numbers of triggers
    rates: dict[str, Array]  # by model: rate over η for each of the sizes


def rates_by_size(quick: bool) -> RatesBySize:
    """Measure the rates of four models for several numbers of triggers."""
    sizes = np.array([1, 4, 16] if quick else [1, 2, 4, 8, 16, 32, 64])
    eta = 0.5
    rates = {}
    for name, attention, has_uniform_triggers in (
        ("linear, uniform triggers", "linear", True),
        ("linear, p ~ 1/rank", "linear", False),
        ("ReLU, uniform triggers", "relu", True),
        ("softmax, uniform triggers", "softmax-limit", True),
    ):
        rates_of_model = []
        for Q in sizes.tolist():
            probs = None if has_uniform_triggers else zipf(Q)
            # The size of the vocabulary is a choice: it has room for all triggers.
            task = RecallTask(
                V=2 * Q + 20, triggers=Q, outputs=8, probs=probs, counts=ONCE
            )
            risk = RecallRisk(task, attention)
            rates_of_model.append(final_rate(risk, eta, log_fall=120.0))
        rates[name] = np.array(rates_of_model) / eta
    return RatesBySize(sizes, rates)


def _last_rate(run: Trajectory) -> float:
    """Return the rate r of an excess ~ e^(-rt), over the second half of a run."""
    last_step = int(run.t[-1])
    middle_step = last_step // 2
    excess_at_middle = float(run.at(middle_step).observed["excess"])
    excess_at_end = float(run.at(last_step).observed["excess"])
    log_fall = math.log(excess_at_middle) - math.log(excess_at_end)
    return log_fall / (last_step - middle_step)


def _whether_recalled(last: dict[str, float]) -> str:
    """Say whether unseen outputs are recalled, by losses and accuracies at the end.

    "No" means that the model is right about more than 90 % of the seen outputs and less
    than 10 % of the unseen ones. Both limits are choices.
    """
    if abs(last["unseen_loss"] / last["seen_loss"] - 1.0) < EQUAL:
        return "yes, at the same loss"
    if last["unseen_accuracy"] < 0.1 < 0.9 < last["seen_accuracy"]:
        return "no, it memorises the seen outputs"
    return f"in {last['unseen_accuracy']:.0%} of the sentences"


def missing_spread(task: RecallTask, M: NDArray[np.int64]) -> Array:
    """Standard deviation of the loss of the triggers missing from M sentences.

    The loss is ln V times the probability of these triggers, Σ_q p_q 1(q missing).
    ``M`` has several numbers of sentences, and the result a number for each, (sizes,).
    """
    p = task.probs
    # The probabilities that a trigger is missing, (sizes, Q), and that both triggers of
    # a pair are missing, (sizes, Q, Q). A sum of two probabilities may exceed 1: by
    # rounding, or on the diagonal, which is replaced.
    one_missing = (1.0 - p) ** M[:, None]
    neither_drawn = np.maximum(1.0 - p[:, None] - p, 0.0)
    # The M sentences are independent.
    two_missing = np.array([neither_drawn**m for m in M.tolist()])
    diagonal = np.arange(task.Q)  # a trigger and itself
    two_missing[:, diagonal, diagonal] = one_missing
    covariance = two_missing - one_missing[:, :, None] * one_missing[:, None, :]
    # Σ_qr p_q p_r cov(q, r) over pairs of triggers q and r, for each M.
    variance = np.einsum("mqr,q,r->m", covariance, p, p)
    # Rounding may make a vanishing variance negative.
    return np.asarray(math.log(task.V) * np.sqrt(np.maximum(variance, 0.0)))


class MissingCosts(NamedTuple):
    """Costs of training on M noiseless sentences, for each M; (sizes,) each."""

    means: Array  # measured, over the data sets
    predicted: Array  # expectations of these means
    error: Array  # standard errors of the means, also predicted


def missing_costs(
    task: RecallTask, sizes: NDArray[np.int64], sets: int
) -> MissingCosts:
    """Compare mean costs of training on M noiseless sentences with predicted costs."""
    means = []
    for M in sizes.tolist():
        # With η = 1 the steps have the length 1. In 60 steps the λ of the triggers that
        # occur get so large that the losses of these triggers vanish.
        costs_of_sets = costs(task, M, sets, rule="ngd", eta=1.0, steps=60)
        means.append(costs_of_sets.mean())
    return MissingCosts(
        means=np.array(means),
        predicted=missing_loss(task, sizes),
        error=missing_spread(task, sizes) / math.sqrt(sets),
    )


def exponent_with(measured_power: float) -> str:
    """Name the exponent among the `REVIEWED` ones that has this power of |Q|.

    The powers are ½ apart. A measured one must agree to 0.01.
    """
    for name, power_of_exponent in REVIEWED.items():
        if abs(measured_power - power_of_exponent) < 0.01:
            return name
    return "none of these exponents"


def zipf(Q: int) -> Array:
    """Return probabilities of Q triggers in proportion to 1/rank, (Q,)."""
    weight = 1.0 / np.arange(1, Q + 1)
    return np.asarray(weight / weight.sum())


def final_rate(risk: RecallRisk, eta: float, log_fall: float) -> float:
    """Return the rate r of the excess ~ e^(-rt) at the end of normalised descent.

    The run is so long that the log of the excess falls by ``log_fall`` at the predicted
    rate. The rate
    is measured over the second half of the run.
    """
    predicted_rate = decay_rate(risk.task, eta, risk.attention)
    # an even number of steps, so that the run has two equal halves
    steps = 2 * math.ceil(0.5 * log_fall / predicted_rate)
    return _last_rate(descend(risk, eta, rule="ngd", steps=steps))


def rate_ratio(risk: RecallRisk, eta: float, log_fall: float) -> float:
    """Return the rate at the end of normalised descent, over the predicted rate.

    The run is so long that the log of the excess falls by ``log_fall`` at the predicted
    rate.
    """
    predicted_rate = decay_rate(risk.task, eta, risk.attention)
    return final_rate(risk, eta, log_fall) / predicted_rate


def cycle_level(run: Trajectory) -> float:
    """Mean excess of the last two steps of a run that ends in a cycle of two steps."""
    last = int(run.t[-1])
    excesses = [run.at(step).observed["excess"] for step in (last, last - 1)]
    return float(np.mean(excesses))


def costs(
    task: RecallTask, M: int, sets: int, rule: str, eta: float, steps: int
) -> Array:
    """Return the costs of training on each of some sets of M sentences.

    A cost is the population loss after training on a set, minus the population loss
    after as many steps of training on the population itself.
    """
    population = RecallRisk(task)

    def population_excess(risk: RecallRisk) -> float:
        """Train on a risk, and return the population excess at the end."""
        run = descend(risk, eta, rule=rule, steps=steps, give_up=False)
        return population.excess(run.params)

    # The risk depends only on the triggers and counts of the sentences, and on the
    # number of noise answers. Sets that agree in these numbers have the same excess,
    # which is computed once.
    excesses: list[float] = []
    excess_of_counts: dict[bytes, float] = {}
    for set_index in range(sets):
        data = task.sentences(np.random.default_rng([M, set_index]), M)
        # One number for each sentence stands for its trigger and its count c < H of
        # bigrams. The order of the sentences does not matter.
        pairs = np.sort(data.trigger * task.H + data.c)
        noise_answers = np.sum(data.answer == task.noise_word)
        key = np.append(pairs, noise_answers).tobytes()
        if key not in excess_of_counts:
            excess_of_counts[key] = population_excess(RecallRisk(task, data=data))
        excesses.append(excess_of_counts[key])
    return np.array(excesses) - population_excess(population)


@row("recall: Theorem 3.2", PAPER.format("Thm 3.2"), Status.EXACT, "1e-12; 0")
def linear_convergence(quick: bool) -> Claim:
    """normalised descent, uniform triggers: λ_q = ηt/√|Q|, L(t) = E ln(1 + (V-1)
    e^(-ηtc/√|Q|))
    """
    settings = ((5, 0.05), (1, 0.3), (4, 0.5), (9, 2.0))  # |Q| and η
    errors = []
    steps_differ = []
    for (Q, eta), attention in itertools.product(settings, ("linear", "relu")):
        compared = _compare_with_line(Q, eta, attention)
        errors.append(compared.error)
        steps_differ.append(compared.steps_differ)
    return Claim.of(
        np.max(errors) <= 1e-12 and not any(steps_differ),
        "planted bigrams, V = 60, H = 256, |Q| = 5, and ours, |Q| = 1, 4, 9, linear"
        " and ReLU, every trigger its own λ, 400 steps; steps to a loss of 1e-6",
        f"λ off by less than {decade(np.max(errors))}; {sum(steps_differ)} of"
        f" {len(steps_differ)} step counts differ between single steps, one λ for all"
        " triggers, and the closed form",
    )


class _ComparedWithLine(NamedTuple):
    """Training of linear or ReLU attention compared with λ_q = ηt/√|Q|."""

    error: float  # largest relative error of λ
    steps_differ: bool  # whether three ways to reach a loss differ in their steps


def _compare_with_line(Q: int, eta: float, attention: str) -> _ComparedWithLine:
    """Train a model, and compare its λ and its number of steps with the closed form."""
    if Q == 5:  # the paper's number of triggers, in its setting
        task = planted_task(Q)
    else:
        # ours, with one to three bigrams
        task = RecallTask(
            V=40, triggers=Q, outputs=8, counts=Counts(np.array([0.0, 0.5, 0.3, 0.2]))
        )
    risk = RecallRisk(task, attention)
    run = descend(risk, eta, rule="ngd", steps=400)
    # All λ_q should be ηt/√|Q|. Step 0 is left out, as λ = 0 has no relative error.
    error = off(run.states[1:], eta * run.t[1:, None] / math.sqrt(Q))

    # The numbers of steps to a loss of 1e-6, with a λ for each trigger, with one tied
    # λ, and by the closed form. Without noise the Bayes risk is 0, so the target excess
    # `above` is a target loss.
    numbers_of_steps = {descend(risk, eta, rule="ngd", epsilon=1e-6).steps}
    for method in ("exact", "closed"):
        tied_run = simulate(
            eta=eta, task=task, attention=attention, above=1e-6, method=method
        )
        numbers_of_steps.add(tied_run.steps)
    return _ComparedWithLine(error, steps_differ=len(numbers_of_steps) > 1)


@row("recall: exponent", PAPER.format("Thm 3.2"), Status.ORDER, "-1/2, -1 or 0")
def exponents(quick: bool) -> Claim:
    """L <= O(exp(-ηt/√|Q|)); a public review (ICLR 2026, Reviewer 4) quotes ηt/|Q| and
    ηt from the paper, too
    """
    sizes, rates = rates_by_size(quick)
    # By model: the exponent b of the law rate ~ |Q|^b, and the exponent of the excess
    # that has this power of |Q|.
    powers = {name: power(sizes, values) for name, values in rates.items()}
    exponent_of = {model: exponent_with(b) for model, b in powers.items()}
    holds = True
    for model, exponent_of_model in exponent_of.items():
        predicted = "ηt" if "softmax" in model else "ηt/√|Q|"
        holds = holds and exponent_of_model == predicted
    absent = ""
    for reviewed in REVIEWED:
        if reviewed not in exponent_of.values():
            absent += f"; {reviewed} is the rate of none of these"
    powers_in_words = ", ".join(f"b = {b:.3f} ({model})" for model, b in powers.items())
    return Claim.of(
        holds,
        f"|Q| = 1..{sizes[-1]}, η = 0.5, one bigram",
        f"rate ~ |Q|^b with {powers_in_words}",
        f"holds {_grouped(exponent_of)}{absent}",
    )


def _grouped(exponent_of: dict[str, str]) -> str:
    """Name each exponent once, with the models that have it."""
    groups = []
    for name in dict.fromkeys(exponent_of.values()):  # each exponent once
        models = [model for model in exponent_of if exponent_of[model] == name]
        groups.append(f"with {name} ({'; '.join(models)})")
    return ", ".join(groups)


@row("recall: rate, unequal triggers", bound="1e-3")
def unequal_rate(quick: bool) -> Claim:
    """linear attention: rate η/√(Σ c_q^-2), c_q the least count of trigger q, for any p
    and rates below 2
    """
    log_fall = 100.0 if quick else 200.0
    ratios = []
    for least_counts in ([1, 1, 1], [1, 2, 3], [4, 1, 2]):
        laws = []
        for least in least_counts:
            # The count is the least one, or one more.
            pmf = np.zeros(6)
            pmf[least] = 0.7
            pmf[least + 1] = 0.3
            laws.append(Counts(pmf))
        task = RecallTask(
            V=40, triggers=3, outputs=8, probs=[0.6, 0.3, 0.1], counts=laws
        )
        ratios.append(rate_ratio(RecallRisk(task), eta=0.2, log_fall=log_fall))
    # The rate η/√|Q| = 4 of this task is above 2, so that triggers overshoot.
    overshooting = RecallTask(
        V=40, triggers=4, outputs=8, probs=[0.55, 0.25, 0.15, 0.05], counts=ONCE
    )
    ratio_of_large_steps = rate_ratio(RecallRisk(overshooting), eta=8.0, log_fall=200.0)
    largest_error = apart(ratios, 1.0)
    # Overshooting makes the rate clearly smaller than predicted, by 5 % or more.
    is_slower = ratio_of_large_steps < 0.95
    return Claim.of(
        largest_error < 1e-3 and is_slower,
        "p = 0.6, 0.3, 0.1; least counts 1 to 4; and η = 8 for |Q| = 4",
        f"off by at most {largest_error:.0e}; measured/predicted"
        f" {ratio_of_large_steps:.2f} where η/√|Q| = 4",
        "holds for rates below 2; beyond, triggers overshoot in turn and it is slower",
    )


@row("recall: plain descent", bound="1")
def plain_descent(quick: bool) -> Claim:
    """without normalisation the excess falls like 1/t, not at a linear rate:
    t (L - H(α)) tends to Σ_q 1/(η c_q²) for linear attention and to 1/(η s²) for
    softmax attention
    """
    ratios = []
    steps = 2000 if quick else 15_000
    eta = 2.0
    for attention, alpha in itertools.product(("linear", "softmax-limit"), (0.0, 0.2)):
        task = RecallTask(
            V=20,
            triggers=3,
            outputs=8,
            alpha=alpha,
            probs=[0.5, 0.3, 0.2],
            counts=Counts.fixed(c=2, c_tau=1),
        )
        # The default rule is plain descent.
        run = descend(RecallRisk(task, attention), eta, steps=steps)
        tail = float(run.t[-1] * run.observed["excess"][-1])
        ratios.append(tail / plain_tail(task, eta, attention))
    # The tails approach their limits like 1/t up to logarithms: to 0.2 % in 15,000
    # steps, and more coarsely in the 2,000 steps of a quick row.
    return Claim.of(
        apart(ratios, 1.0) < 0.03,
        f"unequal triggers, c = 2, c_τ = 1, s = 2/3, α = 0, 0.2, t = {steps:,}",
        f"measured/predicted {span(ratios, '.3f')}",
    )


def softmax_rates(quick: bool, eta: float) -> list[float]:
    """Return rates of softmax attention at finite H, divided by the predicted ηs.

    λ and v are trained, and s is the least share of the output among the words after a
    trigger.
    """
    log_fall_of_planted = 30.0 if quick else 300.0
    sizes = (1, 5) if quick else (1, 5, 25)
    ratios = []
    for Q in sizes:
        # In planted sentences without noise s = 1.
        risk = RecallRisk(planted_task(Q), "softmax", tied=True, weights="identity")
        ratios.append(final_rate(risk, eta, log_fall_of_planted) / eta)
    log_fall_of_random = 20.0 if quick else 150.0
    # With these counts c and c_τ the least share c/(c + c_τ) of the output is 1/2. The
    # first law has c = 1, and c_τ = 0 or 1.
    same_for_all = Counts(np.array([[0.0, 0.0], [0.3, 0.7]]))
    unequal = (Counts.fixed(1, c_tau=1), Counts.fixed(2, c_tau=1), Counts.fixed(3))
    for counts in (same_for_all, unequal):
        task = RecallTask(V=30, triggers=3, outputs=8, H=17, counts=counts)
        # Each of these laws has a single c, so that its least c and its largest c + c_τ
        # occur together.
        share = min(law.minimum / law.longest for law in task.counts)
        rate = final_rate(RecallRisk(task, "softmax"), eta, log_fall_of_random)
        ratios.append(rate / (eta * share))
    return ratios


class NoisyRates(NamedTuple):
    """Rates of softmax attention in long contexts with noise."""

    ratios: list[float]  # measured rates, divided by predicted ones
    sizes: tuple[int, ...]  # numbers |Q| of triggers for which they were measured


def noisy_softmax_rates(quick: bool) -> NoisyRates:
    """Measure rates in long contexts with noise, for two laws of counts.

    The least share of the output after a trigger is s = 1 under the first law, and
    s = 1/2 under the second one.
    """
    sizes = (4, 16) if quick else (1, 4, 16, 64)
    eta = 0.4 if quick else 0.1
    ratios = []
    for law, Q in itertools.product((ONCE, Counts.fixed(c=1, c_tau=1)), sizes):
        # The size of the vocabulary is a choice: it has room for all triggers.
        task = RecallTask(V=2 * Q + 52, triggers=Q, outputs=8, alpha=0.1, counts=law)
        risk = with_gamma(task, attention="softmax-limit", tied=True)
        ratios.append(rate_ratio(risk, eta, log_fall=30.0))
    return NoisyRates(ratios, sizes)


class _AttentionAlone(NamedTuple):
    """Training of λ alone, for softmax attention with 𝒱 = I."""

    end: float  # loss at the end
    # The limit of this loss, ln(1 + (V-1)/e), at which all attention is on the output.
    least: float
    # Rate at which the loss approaches its limit, over the predicted rate.
    rate_ratio: float


def attention_alone(task: RecallTask, eta: float) -> _AttentionAlone:
    """Train λ alone with 𝒱 = I."""
    risk = RecallRisk(task, "softmax", tied=True, weights="identity", v=1.0)
    # λ moves by η/√|Q| in a step, so it ends at 60/√|Q|. Nearly all attention is then
    # on the output.
    steps = round(60.0 / eta)
    run = descend(risk, eta, rule="ngd", steps=steps)
    least_loss = math.log1p((task.V - 1) / math.e)
    # The rate is measured in the third quarter of the run. Later, the loss less its
    # limit has too few digits.
    first_step = steps // 2
    last_step = 3 * steps // 4
    first_excess = run.at(first_step).loss - least_loss
    last_excess = run.at(last_step).loss - least_loss
    rate = math.log(first_excess / last_excess) / float(last_step - first_step)
    predicted_rate = decay_rate(task, eta, "softmax", "identity", v=1.0)
    return _AttentionAlone(
        end=float(run.loss[-1]), least=least_loss, rate_ratio=rate / predicted_rate
    )


@row(
    "recall: Theorem 4.2",
    PAPER.format("Thm 4.2"),
    Status.ORDER,
    "rate ηs, whatever |Q|",
)
def softmax_rate(quick: bool) -> Claim:
    """softmax attention: linear convergence to the Bayes risk under normalised
    descent
    """
    eta = 1.0 if quick else 0.5
    alone = attention_alone(planted_task(5), eta)
    ratios = softmax_rates(quick, eta)
    noisy_ratios, sizes = noisy_softmax_rates(quick)
    # All limits are loose: the runs of quick rows are shorter, and their rates less
    # exact.
    as_predicted = apart(ratios, 1.0) < 0.03
    alone_stays_above = abs(alone.end - alone.least) < 1e-6
    alone_as_predicted = abs(alone.rate_ratio - 1.0) < 0.01
    # With noise the predicted rate holds only up to logarithms, which make the measured
    # rates a little smaller.
    noise_as_predicted = min(noisy_ratios) > 0.85 and max(noisy_ratios) < 1.0
    return Claim.of(
        as_predicted
        and alone_stays_above
        and alone_as_predicted
        and noise_as_predicted,
        f"planted bigrams, 𝒱 = vI, V = 60, H = 256, |Q| = 1..{5 if quick else 25}, λ"
        " and v trained; H = 17, counts with least share s = 1/2 of the output; λ"
        " alone with 𝒱 = I; with noise α = 0.1 in long contexts, |Q| ="
        f" {sizes[0]}..{sizes[-1]}, s = 1, 1/2, γ held",
        f"rate/(ηs) = {span(ratios, '.4f')}; λ alone: the loss ends at {alone.end:.4f},"
        f" ln(1 + (V-1)/e) = {alone.least:.4f}, approached at {alone.rate_ratio:.4f}"
        " η/√|Q|; with noise, down to an excess of e^-30, rate/(η/√(s^-2 + |Q|/4)) ="
        f" {span(noisy_ratios, '.2f')}",
        "holds only where 𝒱 = vI is trained too, with the exponent ηt and s the least"
        " share of the task's sentences; with 𝒱 = I and λ alone the loss stays far"
        " above the Bayes risk; with noise the rate falls with |Q| like η/√(s^-2 +"
        f" |Q|/4), up to logarithms: here {1 - min(noisy_ratios):.0%} at most",
    )


@row("recall: Theorem 4.2, 𝒱 = λI", PAPER.format("Thm 4.2"), Status.ORDER, "1")
def one_number(quick: bool) -> Claim:
    """softmax attention with one number λ for W and 𝒱 = λI: linear convergence to the
    Bayes risk, L ~ e^(-ηt)
    """
    sizes = (5,) if quick else (1, 5, 25)
    eta = 0.2 if quick else 0.05
    half = 75 if quick else 500  # half the number of steps
    rates = []
    losses_half_way = []
    for Q in sizes:
        risk = RecallRisk(planted_task(Q), "softmax", tied=True, weights="identity")
        # The parameters (λ, v) of the risk are (1, 1) times a single number, which
        # starts from 0.
        one_parameter = in_coordinates(risk, "linear", [[1.0], [1.0]])
        run = descend(one_parameter, eta, rule="ngd", steps=2 * half)
        loss_half_way = run.at(half).loss
        losses_half_way.append(loss_half_way)
        rates.append(math.log(loss_half_way / run.at(2 * half).loss) / (half * eta))
    return Claim.of(
        apart(rates, 1.0) < 1e-3,
        f"planted bigrams, V = 60, H = 256, |Q| = {listed(sizes)}, no noise, from"
        f" zero, η = {eta:g}, {2 * half} steps",
        f"slope of -ln L in ηt {span(rates, '.4f')} over the second half; loss"
        f" {max(losses_half_way):.1e} after {half} steps",
        "holds with the exponent ηt, whatever |Q|, with λ alone",
    )


@row("recall: starts with noise", OURS, bound="as the sign says")
def starts(quick: bool) -> Claim:
    """softmax attention with noise, γ held, from λ = v = 0: it learns if ∂L/∂v < 0
    there, else v turns negative
    """
    # ∂L/∂v changes its sign at α = 0.1255 and 0.5344 (docs/theory/recall.md).
    alphas = (0.1, 0.2) if quick else (0.1, 0.125, 0.127, 0.2, 0.5, 0.53, 0.54, 0.7)
    eta = 0.8 if quick else 0.05
    steps = 25 if quick else 1500
    from_zero = {alpha: _start_from_zero(alpha, eta) for alpha in alphas}
    learnt_alphas = [alpha for alpha, start in from_zero.items() if start.learns]
    predicted_alphas = [alpha for alpha, start in from_zero.items() if start.v_grows]
    # Three starts (λ, v) at α = 0.2. For this α the derivative ∂L/∂v at v = 0 is
    # negative from λ = 0.2425 on (docs/theory/recall.md).
    risk = _softmax_with_noise(0.2)
    end_from_half = _excess_from((0.5, 0.5), risk, eta, steps)
    end_from_above = _excess_from((0.25, 0.0), risk, eta, steps)
    end_from_below = _excess_from((0.24, 0.0), risk, eta, steps)
    ends = [end_from_half, end_from_above, end_from_below]
    # How much the excess rises along v = λ from zero before it falls.
    points = np.linspace(0.0, 0.3, 13 if quick else 61).tolist()
    on_diagonal = [risk.excess([x, x]) for x in points]
    barrier = max(on_diagonal) - on_diagonal[0]
    # The first two starts end at tiny excesses, and the third one at 4 nats. Any limits
    # between would do.
    only_third_fails = max(end_from_half, end_from_above) < 0.01 < 3.0 < end_from_below
    return Claim.of(
        learnt_alphas == predicted_alphas and only_third_fails,
        f"the paper's setting, V = 60, H = 256, one trigger, η = {eta:g}, α ="
        f" {listed(alphas)}; {steps} steps from three starts at α = 0.2",
        f"from zero it learns at α = {listed(learnt_alphas)} alone; at α = 0.2 the"
        f" excess ends at {listed(ends, '.0e')} from (λ, v) = (½, ½), (0.25, 0),"
        f" (0.24, 0); along v = λ it rises by {barrier:.1e}",
        "holds; no barrier has to be passed if λ grows first: with v = 0 the loss"
        " does not depend on λ",
    )


class _StartFromZero(NamedTuple):
    """Training of softmax attention from λ = v = 0, with noise."""

    learns: bool  # whether the excess ends near 0
    v_grows: bool  # whether ∂L/∂v < 0 at the start


def _softmax_with_noise(alpha: float) -> RecallRisk:
    """Return the risk of softmax attention in the paper's setting, with γ held."""
    return with_gamma(
        noisy_task(alpha), attention="softmax", weights="identity", tied=True
    )


def _start_from_zero(alpha: float, eta: float) -> _StartFromZero:
    """Train from zero, and take the sign of ∂L/∂v at zero."""
    risk = _softmax_with_noise(alpha)
    # A path of this length from zero shows whether v grows or turns negative. Each step
    # has the length η.
    path_length = 15.0
    end_excess = _excess_from((0.0, 0.0), risk, eta, round(path_length / eta))
    _, slope_of_v = risk.gradient([0.0, 0.0])
    # A model that does not learn keeps an excess of some nats.
    return _StartFromZero(learns=end_excess < 0.5, v_grows=bool(slope_of_v < 0.0))


def _excess_from(
    start: tuple[float, float], risk: RecallRisk, eta: float, steps: int
) -> float:
    """Excess at the end of normalised descent, from λ and v in ``start``."""
    # The coordinates are λ and v themselves, with another start than zero.
    from_start = in_coordinates(risk, "linear", np.eye(2), start=start)
    run = descend(from_start, eta, rule="ngd", steps=steps, give_up=False)
    return float(run.observed["excess"][-1])


def with_gamma(task: RecallTask, **options: Any) -> RecallRisk:
    """Return the risk of a task with γ held at its optimum, ln(α/(1-α)).

    ``options`` are other arguments of `RecallRisk`.
    """
    return RecallRisk(task, gamma=task.best_gamma, **options)


@row("recall: Theorem 5.4", PAPER.format("Thm 5.4"), Status.ORDER, "1; 1")
def noisy_convergence(quick: bool) -> Claim:
    """linear attention with noise: normalised descent on λ, γ = ln(α/(1-α)), converges
    to H(α) at the noiseless rate η/√|Q|
    """
    rate_ratios = []
    eta = 0.05
    for alpha in (0.2, 0.5, 0.8):
        risk = with_gamma(noisy_task(alpha), weights="identity")
        # With one trigger the predicted rate is η.
        rate_ratios.append(final_rate(risk, eta, log_fall=30.0) / eta)
    four_triggers = RecallTask(V=50, triggers=4, outputs=8, alpha=0.1, counts=ONCE)
    larger_eta = 0.4
    rate_ratios.append(rate_ratio(with_gamma(four_triggers), larger_eta, log_fall=30.0))
    # If γ is trained as well, the excess stays at the level of a cycle.
    steps = 2000 if quick else 20_000
    joint_run = descend(RecallRisk(four_triggers), larger_eta, rule="ngd", steps=steps)
    level_ratio = cycle_level(joint_run) / stall(four_triggers.alpha, larger_eta)
    # `stall`, α(1-α)η²/8, is the leading order in η. As η = 0.4 is not small, the limit
    # is loose.
    is_in_cycle = abs(level_ratio - 1.0) < 0.2
    return Claim.of(
        apart(rate_ratios, 1.0) < 1e-3 and is_in_cycle,
        "the paper's setting, V = 60, H = 256, one trigger, α = 0.2, 0.5, 0.8, η ="
        " 0.05; beyond it four triggers, α = 0.1, η = 0.4, γ held and γ trained from"
        " zero",
        f"rate/predicted {span(rate_ratios, '.4f')}; with γ trained the excess stays at"
        f" {level_ratio:.3f} α(1-α)η²/8",
        "holds; beyond the theorem, with γ trained too and constant η, descent cycles"
        " above the Bayes risk",
    )


@row("recall: finite samples", PAPER.format("finite-sample analysis"), bound="4")
def missing_triggers(quick: bool) -> Claim:
    """M sentences, no noise: mean population loss in the end ln V Σ p_q (1-p_q)^M: the
    triggers that are missing
    """
    task = RecallTask(V=30, triggers=3, outputs=5, probs=[0.6, 0.3, 0.1], counts=ONCE)
    sizes = np.array([3, 10] if quick else [3, 10, 30])
    sets = 60 if quick else 400
    means, predicted, error = missing_costs(task, sizes, sets)
    z = float(np.max(np.abs(means - predicted) / error))
    return Claim.of(
        z < LARGEST_Z,
        f"M = {listed(sizes)}, {sets} data sets each",
        f"largest |z| {z:.1f}",
    )


@row(
    "recall: sample complexity",
    PAPER.format("finite-sample theorem"),
    Status.ORDER,
    "O(1); O(1); 4",
)
def sample_complexity(quick: bool) -> Claim:
    """M sentences leave at most ε above the Bayes risk with probability 1 - δ for M of
    the order |Q| ln(|Q|/δ); with noise of the order ln(1/δ)/ε
    """
    sets = 120 if quick else 600
    eta = 3.0 if quick else 1.0
    deltas = (0.1, 1e-6) if quick else (0.1, 1e-3, 1e-6)
    ratios = []
    for Q, delta in itertools.product((2, 5, 20), deltas):
        M = sentences_needed(planted_task(Q), 1e-3, delta)
        ratios.append(M / (Q * math.log(Q / delta)))
    epsilons = (0.1, 0.01) if quick else (0.1, 0.01, 0.001)
    noisy_deltas = (0.05, 1e-3, 1e-6)
    noisy_ratios = []
    for alpha, epsilon, delta in itertools.product((0.2, 0.5), epsilons, noisy_deltas):
        M = sentences_needed(noisy_task(alpha), epsilon, delta)
        noisy_ratios.append(M * epsilon / math.log(1.0 / delta))
    # `sentences_needed` rests on a predicted probability of failure. Training on data
    # sets checks the prediction. The rate eta changes only the number of steps.
    in_training = failures(planted_task(5), M=12, epsilon=0.3, sets=sets, eta=eta)
    # The orders of magnitude hold with constants near 1. The limits 0.6, 1.05 and 1.2
    # are choices, just outside the range of the measured ratios.
    are_of_the_order = (
        np.max(ratios) <= 1.05
        and max(noisy_ratios) < 1.2
        and min(*ratios, *noisy_ratios) > 0.6
    )
    return Claim.of(
        in_training.z < LARGEST_Z and are_of_the_order,
        "V = 60, |Q| = 2, 5, 20, δ = 0.1 to 1e-6, ε = 0.001; with noise α = 0.2, 0.5,"
        f" one trigger, δ = 0.05, 1e-3, 1e-6, ε = {listed(epsilons)}; {sets} data sets"
        " of 12 sentences",
        f"M/(|Q| ln(|Q|/δ)) = {span(ratios, '.2f')}; with noise Mε/ln(1/δ) ="
        f" {span(noisy_ratios, '.2f')}; {in_training.failed} of {sets} sets fail where"
        f" {in_training.expected:.1f} are predicted (|z| {in_training.z:.1f})",
        "holds, the order being ours: the text that we have has lost the theorem's"
        " formula",
    )


class _Failures(NamedTuple):
    """Sets of sentences on which training fails, counted and predicted."""

    failed: int
    expected: float
    z: float  # distance of the two numbers in standard deviations


def failures(
    task: RecallTask, M: int, epsilon: float, sets: int, eta: float = 1.0
) -> _Failures:
    """Count the sets of M sentences that leave more than ε above the Bayes risk.

    Training on a set is normalised descent with the learning rate η, along a path of
    the length 60. At its end the λ of the triggers that occur are large.
    """
    failed = 0
    chance_of_failure = failure_probability(task, M, epsilon)  # of one set
    population = RecallRisk(task)
    for seed in range(sets):
        data = task.sentences(np.random.default_rng(seed), M)
        run = descend(
            RecallRisk(task, data=data),
            eta,
            rule="ngd",
            steps=round(60.0 / eta),
            give_up=False,
        )
        if population.excess(run.params) > epsilon:
            failed += 1
    # The number of failures has a binomial law.
    expected = sets * chance_of_failure
    deviation = math.sqrt(sets * chance_of_failure * (1.0 - chance_of_failure))
    z = abs(failed - expected) / deviation
    return _Failures(failed, expected, z)


@row("recall: learnt noise frequency", OURS, Status.EXACT, "1e-9; -> 1")
def learnt_frequency(quick: bool) -> Claim:
    """on M sentences with noise γ learns the frequency of noise in them; this costs its
    mean divergence from α, ~ 1/(2M)
    """
    largest_error = 0.0
    costs_in_units = []  # of 1/(2M)
    costs_of_largest_M = []  # in the same unit
    sizes = (5, 40, 400)
    for alpha, M in itertools.product((0.1, 0.4), sizes):
        risk = RecallRisk(
            RecallTask(V=12, triggers=1, outputs=3, alpha=alpha, counts=ONCE)
        )
        chances = []
        excesses = []
        # n of the M answers are noise, with a binomial law. At n = 0 and M the cost is
        # infinite, so these are left out, as in `noise_cost`.
        for n in range(1, M):
            chances.append(math.comb(M, n) * alpha**n * (1.0 - alpha) ** (M - n))
            # Training ends at λ = ∞, for which 900 stands, and at the log-odds γ of
            # the frequency n/M.
            excesses.append(risk.excess([900.0, math.log(n / (M - n))]))
        weights = np.array(chances)
        # The mean over the remaining n, whose chances do not sum to 1.
        direct_cost = float(weights @ excesses / weights.sum())
        largest_error = max(largest_error, off(noise_cost(M, alpha), direct_cost))
        costs_in_units.append(2.0 * M * direct_cost)
        if sizes[-1] == M:
            costs_of_largest_M.append(2.0 * M * direct_cost)
    # 2M × cost tends to 1. For the largest M it is off by 1.9 % for α = 0.1, and by
    # 0.4 % for α = 0.4.
    tends_to_limit = apart(costs_of_largest_M, 1.0) < 0.02
    return Claim.of(
        largest_error < EQUAL and tends_to_limit,
        "α = 0.1, 0.4, M = 5, 40, 400: the risk at every frequency but 0 and 1, with"
        " its binomial probability",
        f"off by {largest_error:.0e}; 2M × cost = {listed(costs_in_units, '.3f')}",
    )

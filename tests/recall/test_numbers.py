"""Every number that in-context recall states of a task or a run, computed a second time.

From sentences that are drawn or written down, from sums in many digits, or from the run
itself.
"""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
from scipy import optimize, stats

import icl_theory as icl
from icl_theory import recall
from tests.recall.enumeration import matrices
from tests.recall.references import logits

Counts, RecallRisk, RecallTask, Recall = (
    recall.Counts,
    recall.RecallRisk,
    recall.RecallTask,
    icl.Recall,
)
LAWS = [
    Counts(
        [[0.0, 0.0, 0.0], [0.2, 0.3, 0.0], [0.0, 0.4, 0.1]]
    ),  # c/(c + c_tau) from 1/2 on
    Counts([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.5, 0.25, 0.0], [0.0, 0.25, 0.0]]),
]


def divergence(alpha: float, share: float) -> float:
    """Excess of a frequency over the Bayes risk."""
    return alpha * math.log(alpha / share) + (1 - alpha) * math.log(
        (1 - alpha) / (1 - share)
    )


def noisy(
    H: int = 12, V: int = 11, alpha: float = 0.2, order: int = 1
) -> recall.RecallTask:
    return RecallTask(V, 2, 3, alpha=alpha, probs=[0.7, 0.3], counts=LAWS[::order], H=H)


def shares(task: recall.RecallTask) -> tuple[list[float], list[float], list[int]]:
    """Of drawn sentences: least share of the output after each trigger, share of the means, least count."""
    drawn = task.sentences(np.random.default_rng(0), 4000)
    least, mean, count = [], [], []
    for q in range(task.Q):
        c, c_tau = drawn.c[drawn.trigger == q], drawn.c_tau[drawn.trigger == q]
        least.append(float(np.min(c / (c + c_tau))))
        mean.append(float(np.sum(c) / np.sum(c + c_tau)))
        count.append(int(c.min()))
    return least, mean, count


@pytest.mark.parametrize("order", [1, -1])
def test_rates_and_tails_are_those_of_drawn_sentences(order: int) -> None:
    """Whichever of the triggers has the least count and the least share."""
    task = noisy(order=order)
    least, mean, count = shares(task)
    assert (min(least), count[::order]) == (0.5, [1, 2])
    root = math.sqrt(sum(1 / c**2 for c in count))
    for attention in ("linear", "relu"):
        assert recall.decay_rate(task, 0.3, attention) == pytest.approx(
            0.3 / root, rel=1e-13
        )
        assert recall.plain_tail(task, 0.3, attention) == pytest.approx(
            root**2 / 0.3, rel=1e-13
        )
    # words between the blocks feed the noise: with both triggers
    fed = 0.3 / math.sqrt(1 / min(least) ** 2 + 2 / 4)
    assert recall.decay_rate(task, 0.3, "softmax") == pytest.approx(fed, rel=1e-13)
    assert recall.plain_tail(task, 0.3, "softmax") == pytest.approx(
        1 / (0.3 * min(least) ** 2), rel=1e-13
    )
    limit = 0.3 / math.sqrt(1 / min(mean) ** 2 + 2 / 4)
    assert recall.decay_rate(task, 0.3, "softmax-limit") == pytest.approx(
        limit, rel=0.02
    )
    assert recall.plain_tail(task, 0.3, "softmax-limit") == pytest.approx(
        1 / (0.3 * min(mean) ** 2), rel=0.04
    )
    assert recall.decay_rate(task, 0.3, "softmax", v=2.0) == pytest.approx(
        0.3 / math.sqrt(2.0), rel=1e-13
    )


def test_triggers_without_other_words_feed_no_noise() -> None:
    """Of two triggers the second fills its sentences, and a task may have no other words."""
    full = Counts.fixed(2, 1)  # six words before the last
    task = RecallTask(11, 2, 3, alpha=0.2, counts=[Counts.fixed(2, 0), full], H=7)
    rate = 0.4 / math.sqrt((3 / 2) ** 2 + 1 / 4)
    assert recall.decay_rate(task, 0.4, "softmax-limit") == pytest.approx(
        rate, rel=1e-13
    )
    alone = RecallTask(4, 2, 1, alpha=0.2, counts=Counts.fixed(1), H=9)
    assert recall.decay_rate(alone, 0.4, "softmax") == pytest.approx(0.4, rel=1e-13)
    quiet = RecallTask(11, 2, 3, counts=Counts.fixed(1), H=9)
    assert recall.decay_rate(quiet, 0.4, "softmax") == pytest.approx(0.4, rel=1e-13)


def test_identity_weights_do_not_attend_to_noise() -> None:
    task = RecallTask(
        11, 1, 3, alpha=0.2, counts=Counts.fixed(1, 2), H=12, law="planted"
    )
    fed = 1 / 4
    assert recall.decay_rate(task, 0.4, "softmax", "identity") == pytest.approx(
        0.4 / math.sqrt(1 + fed), rel=1e-13
    )
    assert recall.decay_rate(task, 0.4, "softmax") == pytest.approx(
        0.4 / math.sqrt(9 + fed), rel=1e-13
    )


@pytest.mark.parametrize("alpha", [0.0, 0.2])
def test_the_bound_on_the_loss_is_reached_where_attention_is_strong_and_triggers_occur_once(
    alpha: float,
) -> None:
    """ln(1 + x) <= x: with c = 1 the excess over the bound tends to 1, with noise to its share 1/(1 + e^γ)."""
    task = RecallTask(
        12, 3, 3, alpha=alpha, probs=[0.5, 0.3, 0.2], counts=Counts.fixed(1)
    )
    risk = RecallRisk(task, gamma=task.best_gamma if alpha else None)
    strengths = [9.0, 10.0, 11.0]
    ratio = risk.excess(strengths) / recall.loss_bound(risk, strengths)
    assert ratio == pytest.approx(1.0 - alpha, rel=2e-3)
    whole = sum(
        p * math.exp(-x) for p, x in zip([0.5, 0.3, 0.2], strengths, strict=True)
    )
    assert recall.loss_bound(risk, strengths) == pytest.approx(
        (10 if alpha else 11) * whole, rel=1e-13
    )
    if not alpha:
        tied = RecallRisk(RecallTask(12, 3, 3, counts=Counts.fixed(1)), tied=True)
        assert recall.loss_bound(tied, [2.0]) == pytest.approx(
            11 * math.exp(-2.0), rel=1e-13
        )


@pytest.mark.parametrize("alpha", [0.1, 0.6])
@pytest.mark.parametrize("M", [2, 7, 900, 300_000])
def test_the_cost_of_noise_is_the_binomial_mean(M: int, alpha: float) -> None:
    """Over all counts that matter, also where the function takes a lattice of them."""
    middle, spread = M * alpha, 12 * math.sqrt(M)
    k = np.arange(max(1, int(middle - spread)), min(M - 1, int(middle + spread)) + 1)
    weight = stats.binom.pmf(k, M, alpha)
    cost = alpha * np.log(alpha * M / k) + (1 - alpha) * np.log(
        (1 - alpha) * M / (M - k)
    )
    assert recall.noise_cost(M, alpha) == pytest.approx(
        float(weight @ cost / weight.sum()), rel=1e-8
    )


def test_missing_triggers_cost_the_logarithm_of_the_vocabulary() -> None:
    task = RecallTask(17, 2, 3, probs=[0.9, 0.1])
    M = np.array([[0, 1], [5, 40]])
    wanted = [
        [math.log(17) * sum(p * (1 - p) ** m for p in (0.9, 0.1)) for m in row]
        for row in M.tolist()
    ]
    np.testing.assert_allclose(recall.missing_loss(task, M), wanted, rtol=1e-13)


@pytest.mark.parametrize(("alpha", "eta"), [(0.1, 1e-3), (0.4, 1e-2)])
def test_the_stall_is_the_mean_excess_of_a_cycle_of_length_eta(
    alpha: float, eta: float
) -> None:
    best = math.log(alpha / (1 - alpha))
    ends = [
        divergence(alpha, 1 / (1 + math.exp(-best - side * eta / 2)))
        for side in (-1, 1)
    ]
    assert recall.stall(alpha, eta) == pytest.approx(sum(ends) / 2, rel=1e-4)


@pytest.mark.parametrize("probs", [[0.5, 0.3, 0.2], [1.0]])
@pytest.mark.parametrize(
    ("alpha", "M", "epsilon"), [(0.0, 40, 0.1), (0.2, 150, 0.04), (0.5, 60, 5.0)]
)
def test_the_bound_on_failures_is_a_union_and_chernoffs(
    probs: list[float], alpha: float, M: int, epsilon: float
) -> None:
    task = RecallTask(
        30, len(probs), 3, probs=probs, alpha=alpha, counts=Counts.fixed(1)
    )
    wanted = sum((1 - p) ** M for p in probs) if len(probs) > 1 else 0.0
    if alpha:
        for low, high in ((1e-9, alpha), (alpha, 1 - 1e-9)):
            end = optimize.brentq(
                lambda x: divergence(alpha, x) - epsilon, low, high, xtol=1e-14
            )
            wanted += math.exp(
                -M
                * (
                    end * math.log(end / alpha)
                    + (1 - end) * math.log((1 - end) / (1 - alpha))
                )
            )
    assert recall.failure_bound(task, M, epsilon) == pytest.approx(
        min(1.0, wanted), rel=1e-6, abs=0.0
    )


@pytest.mark.parametrize("alpha", [0.0, 0.25])
def test_needed_sentences_are_the_first_number_that_is_enough(alpha: float) -> None:
    task = RecallTask(
        30, 3, 3, probs=[0.5, 0.3, 0.2], alpha=alpha, counts=Counts.fixed(1)
    )
    M = recall.sentences_needed(task, 0.3, 0.05)
    chances = [recall.failure_probability(task, m, 0.3) for m in range(1, M + 1)]
    assert chances[-1] <= 0.05 < chances[-2]
    if not alpha:
        assert min(chances[:-1]) > 0.05


# ---- tasks and risks


def test_words_are_names() -> None:
    """A task whose triggers, outputs and noise are other words has the same risk, and the same sentences."""
    plain = RecallTask(10, 2, 3, alpha=0.2, probs=[0.6, 0.4], H=9)
    other = RecallTask(
        10, [7, 2], [9, 0, 5], alpha=0.2, probs=[0.6, 0.4], H=9, noise_word=4
    )
    assert plain.parts is not None
    assert other.parts is None
    assert (plain.passing.tolist(), plain.unseen.tolist()) == (
        [*range(2, 9)],
        [5, 6, 7, 8],
    )
    assert (other.passing.tolist(), other.unseen.tolist()) == (
        [0, 1, 3, 5, 6, 8, 9],
        [1, 3, 6, 8],
    )
    for attention in ("linear", "relu", "softmax", "softmax-limit"):
        risks = [RecallRisk(task, attention) for task in (plain, other)]
        params = np.random.default_rng(1).normal(size=risks[0].initial.shape)
        assert risks[0].loss(params) == pytest.approx(risks[1].loss(params), rel=1e-14)
    drawn = other.sentences(np.random.default_rng(3), 500)
    assert set(drawn.output.tolist()) == {0, 5, 9}
    assert set(drawn.tokens[:, -1].tolist()) == {7, 2}
    assert np.mean(drawn.answer == 4) == pytest.approx(0.2, abs=0.08)
    assert np.mean(drawn.trigger == 0) == pytest.approx(0.6, abs=0.09)
    law = other.predict(drawn.tokens)
    np.testing.assert_allclose(law[np.arange(500), drawn.output], 0.8, rtol=1e-14)
    np.testing.assert_allclose(law[:, 4], 0.2, rtol=1e-14)
    np.testing.assert_allclose(law.sum(axis=1), 1.0, rtol=1e-14)


def test_the_noise_word_is_left_out_where_triggers_and_outputs_are_counted() -> None:
    task = RecallTask(9, 3, 2, noise_word=1, counts=Counts.fixed(1))
    assert (task.triggers.tolist(), task.outputs.tolist(), task.noise_word) == (
        [0, 2, 3],
        [4, 5],
        1,
    )
    assert task.parts is None


@pytest.mark.parametrize("attention", ["linear", "relu", "softmax-limit"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_the_risk_of_given_sentences_is_their_mean_loss(
    attention: str, alpha: float
) -> None:
    """Of the softmax's limit, which takes the frequencies of triggers and noise alone: the loss is linear in α."""

    def made(alpha: float, probs: list[float]) -> recall.RecallTask:
        return RecallTask(
            11, 2, 3, alpha=alpha, H=9, probs=probs, counts=Counts([0.0, 0.6, 0.4])
        )

    task = made(alpha, [0.6, 0.4])
    data = task.sentences(np.random.default_rng(5), 60)
    risk = RecallRisk(task, attention, data=data)
    strengths, v, gamma = np.array([0.9, 1.7]), 1.4, -0.8
    params = [
        *strengths,
        *([v] if attention == "softmax-limit" else []),
        *([gamma] if alpha else []),
    ]
    share = float(np.mean(data.answer == task.noise_word)) if alpha else 0.0
    losses = []
    for q, c in zip(data.trigger.tolist(), data.c.tolist(), strict=True):
        if attention == "softmax-limit":
            probs = [1.0, 0.0] if q == 0 else [0.0, 1.0]
            here = RecallRisk(
                made(alpha, [0.5 * p + 0.25 for p in probs]), attention
            ).loss(params)
            there = RecallRisk(
                made(alpha, [0.75 - 0.5 * p for p in probs]), attention
            ).loss(params)
            own = (
                1.5 * here - 0.5 * there
            )  # ¾ of this trigger and ¼ of the other, and the other way round
            if alpha:
                others = [
                    RecallRisk(made(0.5, p), attention).loss(params)
                    for p in ([0.75, 0.25], [0.25, 0.75])
                ]
                at_half = 1.5 * others[q] - 0.5 * others[1 - q]
                own += (share - alpha) / (0.5 - alpha) * (at_half - own)
            losses.append(own)
        else:
            others = (9 if alpha else 10) * math.exp(-strengths[q] * c)
            total = math.log(1 + (math.exp(gamma) if alpha else 0.0) + others)
            losses.append(total - share * (gamma if alpha else 0.0))
    assert risk.loss(params) == pytest.approx(np.mean(losses), rel=1e-12)
    entropy = (
        -share * math.log(share) - (1 - share) * math.log(1 - share) if alpha else 0.0
    )
    assert risk.excess(params) == pytest.approx(risk.loss(params) - entropy, rel=1e-9)
    assert risk.floor() == pytest.approx(entropy, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_attention_in_the_limit_is_that_of_an_average_sentence(alpha: float) -> None:
    """The share of the softmax on the output after its trigger."""
    task = RecallTask(
        11, 2, 3, alpha=alpha, H=17, counts=[Counts.fixed(2, 1), Counts.fixed(3, 1)]
    )
    risk = RecallRisk(task, "softmax-limit", v=2.0)
    found = risk.observe(np.array([0.7, -0.4] + [0.1] * (alpha > 0)))
    for q, (strength, c, after) in enumerate(((0.7, 2, 3), (-0.4, 3, 4))):
        wanted = c * math.exp(strength) / (after * math.exp(strength) + 16 - after)
        assert found["attention"][q] == pytest.approx(wanted, rel=1e-13)


def test_attention_of_softmax_is_that_of_every_sentence() -> None:
    task = RecallTask(9, 2, 2, counts=[Counts.fixed(1), Counts([0.0, 0.5, 0.5])], H=7)
    found = RecallRisk(task, "softmax", v=1.5).observe(np.array([0.7, 1.2]))[
        "attention"
    ]
    assert found[0] == pytest.approx(math.exp(0.7) / (math.exp(0.7) + 5), rel=1e-12)
    e = math.exp(1.2)
    assert found[1] == pytest.approx(
        0.5 * (e / (e + 5) + 2 * e / (2 * e + 4)), rel=1e-12
    )


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_attention_on_the_output_leaves_out_noise_after_its_trigger(
    alpha: float,
) -> None:
    task = RecallTask(
        8, 2, 2, alpha=alpha, H=9, counts=[Counts.fixed(1, 2), Counts.fixed(2, 1)]
    )
    found = RecallRisk(task, "softmax", v=1.5).observe(
        np.array([0.7, 1.2] + [-0.4] * (alpha > 0))
    )["attention"]
    for q, (c, strength) in enumerate(((1, 0.7), (2, 1.2))):
        assert found[q] == pytest.approx(
            c * math.exp(strength) / (3 * math.exp(strength) + 5), rel=1e-12
        )


@pytest.mark.parametrize("attention", ["softmax", "softmax-limit"])
def test_one_strength_has_one_attention_and_several_have_theirs(attention: str) -> None:
    task = RecallTask(9, 2, 2, counts=Counts.fixed(1), H=7)
    tied, free = (
        RecallRisk(task, attention, v=1.5, tied=tied) for tied in (True, False)
    )
    one, two = (
        tied.observe(np.array([0.7]))["attention"],
        free.observe(np.array([0.7, 0.7]))["attention"],
    )
    assert (one.shape, two.shape) == ((), (2,))
    np.testing.assert_allclose(two, float(one), rtol=1e-13)
    assert icl.descend(tied, 0.3, steps=4).observed["attention"].shape == (5,)


def test_floors_of_what_is_held_are_least_losses() -> None:
    """γ held elsewhere costs its divergence; with a held v the loss has a least value over λ."""
    task = RecallTask(20, 2, 4, alpha=0.3, counts=Counts.fixed(1))
    entropy = task.bayes_risk
    held = RecallRisk(task, gamma=0.4)
    assert held.floor() - entropy == pytest.approx(
        divergence(0.3, 1 / (1 + math.exp(-0.4))), rel=1e-12
    )
    assert RecallRisk(task).floor() == entropy
    for gamma in (task.best_gamma - 1.0, 0.4):
        free = RecallRisk(task, "softmax-limit", gamma=gamma)
        assert free.floor() <= entropy + 1e-15
    risk = RecallRisk(task, "softmax-limit", gamma=0.0, v=3.0, tied=True)
    grid = [risk.loss([x]) for x in np.linspace(-20.0, 60.0, 4001)]
    assert risk.floor() == pytest.approx(min(grid), rel=1e-6)


def test_no_training_of_v_ends_below_the_floor() -> None:
    """A negative v makes up for a large γ, and saves more than half a nat here."""
    task = RecallTask(V=50, triggers=4, outputs=8, alpha=0.1)
    risk = RecallRisk(task, "softmax-limit", gamma=5.0, tied=True)
    run = icl.descend(risk, 0.5, steps=2000)
    costs_of_gamma = divergence(0.1, 1 / (1 + math.exp(-5.0)))
    assert risk.floor() < run.loss[-1] < task.bayes_risk + costs_of_gamma - 0.5


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("v", [3.0, -2.0])
def test_floors_of_a_held_scale_are_the_least_of_every_trigger(
    alpha: float, v: float
) -> None:
    """Triggers with counts and probabilities of their own: each has its best λ, which may be negative."""
    task = RecallTask(
        20,
        3,
        4,
        alpha=alpha,
        probs=[0.5, 0.3, 0.2],
        counts=[Counts.fixed(c) for c in (1, 2, 4)],
    )
    risk = RecallRisk(task, "softmax-limit", v=v, gamma=0.2 if alpha else None)
    ends = np.full(3, 60.0)
    least = start = risk.loss(ends)
    for unit in np.eye(3):
        along = [risk.loss(ends + x * unit) for x in np.linspace(-90.0, 0.0, 301)]
        least += min(along) - start
    assert risk.floor() == pytest.approx(least, rel=1e-3)
    assert risk.floor() <= least + 1e-12


@pytest.mark.parametrize("attention", ["linear", "relu", "softmax", "softmax-limit"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("sampled", [False, True])
def test_what_is_observed_of_a_run_keeps_the_digits_of_the_excess(
    attention: str, alpha: float, sampled: bool
) -> None:
    task = RecallTask(9, 2, 3, H=7, alpha=alpha, counts=Counts.fixed(1))
    data = (
        task.sentences(np.random.default_rng(1), 40)
        if sampled and attention != "softmax"
        else None
    )
    risk = RecallRisk(task, attention, data=data)
    share = (
        alpha if data is None else float(np.mean(data.answer == 8)) if alpha else 0.0
    )
    best = [math.log(share / (1 - share))] if alpha else []
    params = np.array([300.0, 300.0, *[300.0] * attention.startswith("softmax"), *best])
    seen = float(risk.observe(params)["excess"])
    assert seen == risk.excess(params)
    assert 0.0 <= seen < 1e-25  # the entropy has its digits at 1e-16


KINDS = [
    (RecallTask(9, 3, 3, H=9), {}),
    (RecallTask(9, 3, 3, H=9, alpha=0.2), {"gamma": -1.0}),
    (RecallTask(9, 3, 3, H=9, alpha=0.2), {}),
    (
        RecallTask(9, 1, 3, H=9, alpha=0.2, law="planted"),
        {"gamma": -1.4, "weights": "identity"},
    ),
    (
        RecallTask(9, 1, 3, H=9, alpha=0.2, law="planted"),
        {"gamma": -1.4, "weights": "identity", "kappa": 0},
    ),
]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("attention", ["linear", "relu", "softmax-limit"])
def test_a_closed_form_is_given_only_where_single_steps_are_a_straight_line(
    attention: str, tied: bool
) -> None:
    given = 0
    for task, options in KINDS:
        if attention == "softmax-limit" and task.law == "planted":
            continue
        risk = RecallRisk(task, attention, tied=tied, **options)
        run = icl.descend(risk, 0.6, rule="ngd", steps=30, give_up=False)
        assert risk.closed_form(0.6, "gd") is None
        form = risk.closed_form(0.6, "ngd")
        given += form is not None
        if form is not None:
            np.testing.assert_allclose(form.states(run.t), run.states, rtol=1e-12)
    assert given == (3 if tied and attention != "softmax-limit" else 0)


# ---- the family


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"V": 30, "triggers": 3, "outputs": 5, "alpha": 0.2, "H": 15},
        {"law": "planted", "H": 20},
        {"counts": 2},
        {"counts": Counts([0.0, 0.5, 0.5])},
        {"triggers": 2, "probs": (0.7, 0.3)},
        {"triggers": 2, "counts": [Counts.fixed(1), Counts.fixed(3)]},
    ],
    ids=str,
)
def test_a_task_given_whole_is_its_parts(parts: dict[str, Any]) -> None:
    """Risk, steps and what a run says of its task."""
    apart = Recall(**parts)
    counts = parts.get("counts")
    law = Counts.fixed(counts) if isinstance(counts, int) else counts
    defaults = {
        "V": 50,
        "triggers": 4,
        "outputs": 8,
        "alpha": 0.0,
        "H": 33,
        "law": "markov",
        "probs": None,
    }
    task = RecallTask(**{**defaults, **parts, "counts": law})
    whole = Recall(task=task)
    one, two = apart.simulate(), whole.simulate()
    assert (one.steps, one.loss[-1]) == (two.steps, two.loss[-1])
    assert len(one.risk.initial) == len(two.risk.initial)  # type: ignore[union-attr]
    for name in ("V", "triggers", "outputs", "alpha", "H", "law"):
        assert two.info[name] == one.info[name] == {**defaults, **parts}[name], name
    assert two.info["probs"] == parts.get("probs")
    uniform = isinstance(law, Counts)
    if uniform:
        assert two.info["counts"].same(law)
    elif law is not None:
        assert two.info["counts"] == tuple(map(str, law))


def test_a_task_of_other_words_says_its_parts_too() -> None:
    """It cannot be made from them, and is carried along."""
    law = Counts.fixed(2)
    run = Recall(
        task=RecallTask(
            12, [3, 5], [1, 2, 8], alpha=0.1, H=15, noise_word=0, counts=law
        )
    ).simulate()
    wanted = {
        "V": 12,
        "triggers": 2,
        "outputs": 3,
        "alpha": 0.1,
        "H": 15,
        "law": "markov",
        "probs": None,
    }
    assert {name: run.info[name] for name in wanted} == wanted
    assert run.info["counts"].same(law)
    several = RecallTask(
        12, [3, 5], [1, 2, 8], H=15, counts=[law, Counts.fixed(1)], probs=[0.8, 0.2]
    )
    info = Recall(task=several).simulate().info
    assert info["counts"] == (str(law), str(Counts.fixed(1)))
    assert info["probs"] == (0.8, 0.2)


def test_columns_are_the_excess_over_the_bayes_risk_on_new_sentences() -> None:
    for problem in (
        Recall(alpha=0.2),
        Recall(
            alpha=0.2, M=60, seed=2, gamma="trained", rule="gd", eta=3.0, above=0.02
        ),
    ):
        run = problem.simulate()
        found = problem.measure(run)
        entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
        assert found["bayes_risk"] == pytest.approx(entropy, rel=1e-13)
        free = RecallRisk(RecallTask(50, 4, 8, alpha=0.2))
        strengths = np.resize(
            run.params[:1] if len(run.params) == 1 else run.params[:4], 4
        )
        gamma = float(run.params[4]) if len(run.params) == 5 else math.log(0.2 / 0.8)
        assert found["excess"] == pytest.approx(
            free.loss([*strengths, gamma]) - entropy, rel=1e-9
        )
        assert run.notes["bayes risk"] == f"{entropy:.6g}"
        if problem.data is not None:
            assert (
                run.notes["population"]
                == f"{found['excess']:.6g} above the Bayes risk in the end"
            )


def test_gamma_and_v_are_held_where_they_are_said_to_be() -> None:
    """The number of trained parameters, and the values of the others."""
    for options, trained, gamma, v in (
        ({}, 1, None, None),
        ({"alpha": 0.2}, 1, math.log(0.25), None),
        ({"alpha": 0.2, "gamma": "trained"}, 2, None, None),
        ({"alpha": 0.2, "gamma": -3.0}, 1, -3.0, None),
        ({"attention": "softmax"}, 1, None, 1.0),
        ({"attention": "softmax-limit", "v": 2.5}, 1, None, 2.5),
        ({"attention": "softmax", "v": "trained"}, 2, None, None),
        (
            {"attention": "softmax", "v": "trained", "alpha": 0.2, "gamma": "trained"},
            3,
            None,
            None,
        ),
        ({"probs": (0.4, 0.3, 0.2, 0.1)}, 4, None, None),
        ({"M": 50}, 4, None, None),
    ):
        risk: Any = Recall(**options).risk()
        assert len(risk.initial) == trained, options
        if "M" not in options:
            assert risk.gamma == (
                pytest.approx(gamma) if gamma is not None else None
            ), options
            assert risk.v == v, options
    problem = Recall(alpha=0.3, M=40, seed=7)
    assert problem.data is not None
    k = int(np.sum(problem.data.answer == problem.whole_task.noise_word))
    assert problem.held[0] == pytest.approx(math.log(k / (40 - k)), rel=1e-12)
    np.testing.assert_array_equal(
        problem.data.tokens,
        RecallTask(50, 4, 8, alpha=0.3).sentences(np.random.default_rng(7), 40).tokens,
    )


READ = [
    *itertools.product(
        ("linear", "relu", "softmax"), (1,), ("projection", "identity"), (0.0, 0.3)
    ),
    *itertools.product(("linear", "relu", "softmax"), (0,), ("identity",), (0.3,)),
]


@pytest.mark.parametrize(("attention", "kappa", "weights", "alpha"), READ)
def test_the_risk_on_sentences_is_that_of_a_transformer_that_reads_them(
    attention: str, kappa: int, weights: str, alpha: float
) -> None:
    """Whichever matrices and whatever the feed-forward layer reads, by the matrices written out."""
    scaled = attention == "softmax"
    problem = Recall(
        V=7,
        triggers=1,
        outputs=2,
        H=9,
        law="planted",
        alpha=alpha,
        M=12,
        seed=2,
        attention=attention,
        kappa=kappa,
        weights=weights,
        gamma=-0.6 if alpha else "best",
        v=1.7 if scaled else 1.0,
    )
    task, data = problem.whole_task, problem.data
    assert data is not None
    W, value, F = matrices(task, weights, np.array([0.9]), 1.7 if scaled else 1.0, -0.6)
    eye, losses = np.eye(14), []
    for tokens, answer in zip(data.tokens.tolist(), data.answer.tolist(), strict=True):
        x = np.array(
            [
                eye[z] + (eye[7 + tokens[h - 1]] if h else 0.0)
                for h, z in enumerate(tokens)
            ]
        )
        keys = x if weights == "identity" else x[:-1]
        scores = keys @ (W.T @ x[-1])
        a = np.exp(scores) / np.exp(scores).sum() if scaled else scores
        u = value @ (keys.T @ (np.maximum(a, 0.0) if attention == "relu" else a))
        found = (u + F @ (x[-1] + kappa * u))[:7]
        losses.append(math.log(np.exp(found).sum()) - found[answer])
    risk = problem.risk()
    assert risk.initial.shape == (1,)
    assert risk.loss([0.9]) == pytest.approx(np.mean(losses), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        ({"counts": 2}, 0.5 * 2 / 2),
        ({"counts": 2, "alpha": 0.2}, 0.5 * 2 / 2),
        ({"attention": "softmax", "H": 7, "max_steps": 30}, 0.5 / 2),
    ],
)
def test_a_note_says_the_rate_at_which_the_excess_falls(
    options: dict[str, Any], rate: float
) -> None:
    run = Recall(**options, above=1e-6).simulate()
    said = re.fullmatch(
        r"the excess.* falls like exp\(-([0-9.e-]+) t\) in the end", run.notes["rate"]
    )
    assert said is not None
    assert float(said[1]) == pytest.approx(rate, rel=1e-3)


def test_notes_on_cycles_floors_and_overshoots_are_given_where_they_hold() -> None:
    slow, large = (
        Recall(
            alpha=0.2, gamma="trained", eta=eta, above=1e-4, max_steps=200
        ).simulate()
        for eta in (0.3, 8.0)
    )
    assert slow.notes["cycle"].endswith(f"= {0.2 * 0.8 * 0.3**2 / 8:.3g}")
    assert large.notes["cycle"] == "constant steps in γ: the excess does not tend to 0"
    lone = Recall(alpha=0.2, gamma=0.0).simulate()
    floor = divergence(0.2, 0.5)
    assert f"over a floor {floor:.3g} above the Bayes risk" in lone.notes["rate"]
    held = Recall(alpha=0.2, attention="softmax-limit", v=1.0, max_steps=200).simulate()
    above = min(held.risk.excess([x]) for x in np.linspace(-20.0, 60.0, 801))  # type: ignore[union-attr]
    assert (
        held.notes["floor"]
        == f"the least loss over a floor {above:.3g} above the Bayes risk lies at a finite λ"
    )
    small: dict[str, Any] = {
        "V": 9,
        "triggers": 1,
        "outputs": 3,
        "alpha": 0.2,
        "H": 7,
        "max_steps": 3,
    }
    for options in (
        {"attention": "softmax"},
        {"law": "planted", "weights": "identity", "kappa": 0},
    ):
        notes = Recall(**small, gamma=-1.4, **options).simulate().notes  # type: ignore[arg-type]
        assert "lies at a finite λ" in notes["floor"]
    assert "rate" not in Recall(rule="gd", eta=2.0, max_steps=50).simulate().notes


# ---- the trainer


SMALL: dict[str, Any] = {
    "V": 14,
    "outputs": 4,
    "H": 12,
    "eta": 0.05,
    "max_steps": 3,
    "tests": 16,
    "batch": 8,
}


def test_what_the_trainer_takes_unless_it_is_given() -> None:
    for options, triggers, trained, scale in (
        ({}, 5, {"attention", "value"}, 0.5),
        ({"alpha": 0.2}, 1, {"attention", "value", "feed_forward"}, 0.5),
        ({"model": "attention"}, 5, {"attention"}, 0.0),
        ({"triggers": 3}, 3, {"attention", "value"}, 0.5),
        ({"scale": 0.25}, 5, {"attention", "value"}, 0.25),
    ):
        problem = recall.Training(**SMALL, **options)
        risk = problem.transformer
        assert (problem.task.Q, set(risk.trained or ()), risk.scale) == (
            triggers,
            trained,
            scale,
        ), options
        assert (risk.batch, risk.tests, risk.kink, problem.task.law) == (
            8,
            16,
            0.0,
            "planted",
        )
        spread = float(np.std(risk.initial)) * math.sqrt(28)
        assert spread == pytest.approx(scale, rel=0.1)
    assert recall.Training(**SMALL, attention="relu").transformer.kink == 1e-8
    few = recall.Training(**SMALL, M=5)
    assert (few.transformer.batch, few.transformer.stochastic) == (5, False)
    assert few.data is not None
    again = few.task.sentences(np.random.default_rng(0), 5)
    np.testing.assert_array_equal(few.data.tokens, again.tokens)
    declared = recall.Training.parameters()
    usual = {
        "eta": 0.05,
        "V": 60,
        "outputs": 4,
        "H": 256,
        "batch": 512,
        "tests": 128,
        "max_steps": 2000,
        "kappa": 1,
    }
    assert {name: declared[name].default for name in usual} == usual


@pytest.mark.parametrize(
    ("options", "gamma", "v"),
    [
        ({}, None, None),
        ({"alpha": 0.2}, math.log(0.25), None),
        ({"alpha": 0.2, "gamma": "trained"}, None, None),
        ({"alpha": 0.2, "gamma": -0.7}, -0.7, None),
        ({"alpha": 0.2, "gamma": 0.4, "attention": "softmax"}, 0.4, 1.0),
        ({"attention": "softmax", "v": 2.0}, None, 2.0),
        ({"attention": "softmax", "v": "trained"}, None, None),
    ],
)
def test_the_reparameterised_trainer_descends_on_the_sampled_risk(
    options: dict[str, Any], gamma: float | None, v: float | None
) -> None:
    """Its loss on the sentences of a step is that of the transformer of the references, word by word."""
    problem = recall.Training(
        **SMALL, model="reparameterised", weights="projection", kappa=1, **options
    )
    risk, task = problem.risk(), problem.task
    sizes = (
        task.Q + (options.get("v") == "trained") + (options.get("gamma") == "trained")
    )
    assert risk.initial.size == sizes
    params = np.linspace(0.3, 1.1, sizes)
    scale = v or (float(params[task.Q]) if options.get("v") == "trained" else 1.0)
    noise = (
        gamma
        if gamma is not None
        else float(params[-1])
        if options.get("gamma") == "trained"
        else 0.0
    )
    drawn, losses = problem.transformer.prompts(2), []
    for tokens, answer, q in zip(
        drawn.tokens, drawn.answer, drawn.trigger, strict=True
    ):
        found = np.array(
            logits(
                task,
                problem.attention,
                tuple(tokens.tolist()),
                float(params[q]),
                scale,
                noise,
            )
        )
        top = found.max()
        losses.append(top + math.log(np.exp(found - top).sum()) - found[answer])
    assert risk.evaluate(params.reshape(risk.initial.shape), 2)[0] == pytest.approx(
        np.mean(losses), rel=1e-10
    )


def test_notes_and_columns_of_the_trainer_are_its_last_observations() -> None:
    problem = recall.Training(**SMALL, alpha=0.2)
    run = problem.simulate()
    last = {name: float(values[-1]) for name, values in run.observed.items()}
    assert dict(problem.measure(run)) == {
        n: last[n] for n in ("seen_loss", "unseen_loss", "output", "noise")
    }
    entropy = -0.2 * math.log(0.2) - 0.8 * math.log(0.8)
    numbers = {
        "test loss": (last["seen_loss"], last["unseen_loss"], entropy),
        "predicts": (last["output"], last["noise"]),
        "attention": (last["attention_output"], last["attention_other"]),
        "feed-forward": (last["feed_forward_noise"], last["feed_forward_other"]),
    }
    for name, values in numbers.items():
        said = re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", run.notes[name])
        assert [float(x) for x in said] == [
            float(f"{value:.3g}") for value in values
        ], name
    assert "feed-forward" not in recall.Training(**SMALL).simulate().notes


def test_observations_are_means_over_the_test_sentences() -> None:
    """Every one from logits that are written out here."""
    task = RecallTask(9, 2, 3, alpha=0.3, H=8)
    risk = recall.TransformerRisk(
        task, tests=30, seed=4, trained=["attention", "value", "feed_forward"]
    )
    params = np.random.default_rng(2).normal(0.0, 0.6, risk.initial.shape)
    W, value, F = params.reshape(3, 18, 18)
    found = {name: float(each) for name, each in risk.observe(params).items()}
    eye = np.eye(18)
    for kind, words in (("seen", task.outputs), ("unseen", task.unseen)):
        test = task.sentences(np.random.default_rng([4, 2]), 30, words)
        rows = []
        for tokens, answer, y in zip(
            test.tokens, test.answer, test.output, strict=True
        ):
            x = np.array(
                [
                    eye[z] + (eye[9 + tokens[h - 1]] if h else 0.0)
                    for h, z in enumerate(tokens)
                ]
            )
            u = value @ (x[:-1].T @ (x[:-1] @ (W.T @ x[-1])))
            fed = F @ (x[-1] + u)
            total = (u + fed)[:9]
            p = np.exp(total - total.max()) / np.exp(total - total.max()).sum()
            tau = task.noise_word
            rows.append(
                [
                    -math.log(p[answer]),
                    np.argmax(total) == y,
                    p[y],
                    p[tau],
                    u[y],
                    np.delete(u[:9], y).max(),
                    fed[tau],
                    np.delete(fed[:9], tau).max(),
                ]
            )
        names = (
            "loss",
            "accuracy",
            "output",
            "noise",
            "attention_output",
            "attention_other",
        )
        names += ("feed_forward_noise", "feed_forward_other")
        for name, mean in zip(
            names, np.mean(np.array(rows, dtype=float), axis=0), strict=True
        ):
            if name in ("loss", "accuracy"):
                assert found[f"{kind}_{name}"] == pytest.approx(mean, rel=1e-10), name
            elif kind == "seen":
                assert found[name] == pytest.approx(mean, rel=1e-10, abs=1e-12), name

"""The audit's rows and answers on in-context recall notice what is wrong, and say what they measured."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array

import icl_theory as icl
from icl_theory.engine import Affine, Pullback
from icl_theory.papers.recall.bounds import cycle_excess
from icl_theory.papers.recall.statements import model, training

Counts, RecallRisk, RecallTask = (
    icl.recall.Counts,
    icl.recall.RecallRisk,
    icl.recall.RecallTask,
)


def test_words_drawn_one_by_one_refute_a_wrong_law(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Counts.sentence

    def wrong(H: int, density: float = 0.25, noise: float = 0.0) -> icl.recall.Counts:
        return right(H, 1.2 * density, noise)

    monkeypatch.setattr(Counts, "sentence", wrong)
    assert model.sentence_counts(True).violated


def test_measured_rates_make_the_conclusion_of_the_exponent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "ReLU" in icl.answer("recall-exponent", quick=True).answer
    monkeypatch.setattr(training, "final_rate", lambda risk, eta, log_fall: 1.0)
    said = icl.answer("recall-exponent", quick=True).answer
    assert "ηt/√|Q|," not in said
    assert "None of these models has ηt/√|Q| or ηt/|Q|" in said


def test_roles_do_not_deny_a_probability_that_they_print() -> None:
    said = icl.answer("recall-roles", quick=True).answer
    assert "never" not in said
    assert ("still says noise" in said) == (
        float(said.split("and noise with ")[1].split(",")[0]) >= 1e-3
    )


def test_no_number_of_sentences_is_printed_twice() -> None:
    said = icl.answer("recall-samples", quick=True).answer.split(";")[0]
    assert said.count("for M = 10") == 1


@pytest.mark.parametrize("other", ["closed", "exact"])
def test_a_count_that_differs_in_one_way_is_a_wrong_one(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not training._compare_with_line(4, 0.5, "linear").steps_differ
    right = training.simulate

    def off_by_one(method: str, **given: Any) -> Any:
        return SimpleNamespace(
            steps=right(method=method, **given).steps + (method == other)
        )

    monkeypatch.setattr(training, "simulate", off_by_one)
    assert training._compare_with_line(4, 0.5, "linear").steps_differ


def test_failures_are_counted_and_predicted_for_all_sets() -> None:
    task, sets = RecallTask(12, 2, 3, probs=[0.9, 0.1], counts=Counts.fixed(1)), 40
    drawn = [
        len({*task.sentences(np.random.default_rng(seed), 5).trigger})
        for seed in range(sets)
    ]
    failed, expected, z = training.failures(task, 5, 0.1, sets)
    chance = 0.9**5 + 0.1**5  # of a trigger that is missing
    assert failed == sum(size == 1 for size in drawn)
    assert expected == pytest.approx(sets * chance, rel=1e-12)
    assert z == pytest.approx(
        abs(failed - expected) / math.sqrt(sets * chance * (1.0 - chance)), rel=1e-9
    )


def test_counts_that_no_sentence_has_refute_a_law() -> None:
    """Also where they are as rare as can be, and where a law says nothing of them."""
    law = np.array([[0.0, 0.0], [0.5, 0.25], [0.25, 0.0]])
    c, c_tau = (
        np.repeat([1, 1, 2], [500, 250, 250]),
        np.repeat([0, 1, 0], [500, 250, 250]),
    )
    assert model._p_value_of_fit(law, c, c_tau) > 0.99
    for more in ((2, 1), (0, 0), (3, 0), (1, 2)):
        assert (
            model._p_value_of_fit(law, np.append(c, more[0]), np.append(c_tau, more[1]))
            == 0.0
        )
    assert (
        model._p_value_of_fit(
            law,
            np.repeat([1, 1, 2], [420, 290, 290]),
            np.repeat([0, 1, 0], [420, 290, 290]),
        )
        < 1e-3
    )


def test_a_row_that_grows_at_any_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    right = icl.recall.TransformerRisk.evaluate

    def grown(risk: icl.recall.TransformerRisk, params: Any, step: int = 0) -> Any:
        loss, gradient = right(risk, params, step)
        return loss, np.full_like(gradient, -1.0 if step == 1 else 1.0)

    monkeypatch.setattr(icl.recall.TransformerRisk, "evaluate", grown)
    assert model._train_value_matrix("relu", 0.0, 3).growth == 1.0


def test_a_place_that_is_never_taken_refutes_the_sentences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = RecallTask.sentences

    def never_first(
        task: icl.recall.RecallTask, rng: np.random.Generator, size: int
    ) -> Any:
        found = right(task, rng, 2 * size)
        rows = np.flatnonzero(found.tokens[:, 0] != task.triggers[0])[:size]
        return type(found)(*(each[rows] for each in found))

    assert model._p_value_of_places(np.random.default_rng(0), 3000) > 1e-4
    monkeypatch.setattr(RecallTask, "sentences", never_first)
    assert model._p_value_of_places(np.random.default_rng(0), 3000) == 0.0


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_sets_that_share_a_result_would_have_had_it(alpha: float) -> None:
    """Training on each set by itself costs the same as where sets with the same counts are trained on once."""
    task = RecallTask(12, 2, 3, alpha=alpha, probs=[0.7, 0.3], counts=Counts.fixed(1))
    population = RecallRisk(task)

    def reached(risk: icl.recall.RecallRisk) -> float:
        return population.excess(icl.descend(risk, 1.0, steps=30, give_up=False).params)

    sets = [
        task.sentences(np.random.default_rng([3, number]), 3) for number in range(12)
    ]
    alone = np.array([reached(RecallRisk(task, data=data)) for data in sets]) - reached(
        population
    )
    shared = training.costs(task, 3, 12, "gd", 1.0, 30)
    assert len(np.unique(alone.round(12))) > 2
    np.testing.assert_allclose(shared, alone, rtol=1e-10, atol=1e-14)


def test_the_spread_of_missing_triggers_is_that_of_drawn_sets() -> None:
    task = RecallTask(30, 3, 5, probs=[0.6, 0.3, 0.1], counts=Counts.fixed(1))
    rng = np.random.default_rng(0)
    counts = rng.multinomial(8, task.probs, 40_000)
    costs = math.log(30) * (counts == 0) @ task.probs
    found = training.missing_spread(task, np.array([8]))[0]
    assert abs(found / costs.std() - 1.0) < 0.02  # 40,000 sets: about 0.7 %


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_long_sentences_can_have_a_single_bigram(noise: float) -> None:
    law = Counts.sentence(2501, noise=noise)
    assert law.minimum == 1
    assert law.longest == 1250
    task = RecallTask(50, 2, 3, H=2501, counts=law)
    assert icl.recall.decay_rate(task, 1.0) == pytest.approx(1.0 / math.sqrt(2.0))


def test_the_law_of_long_sentences_keeps_its_mean() -> None:
    exact = Counts.sentence(901)
    k = np.arange(1, 451)
    log = [
        math.lgamma(901 - n)
        - math.lgamma(n + 1)
        - math.lgamma(901 - 2 * n)
        + n * math.log(0.25)
        + (900 - 2 * n) * math.log(0.75)
        for n in k.tolist()
    ]
    weight = np.exp(np.array(log) - max(log))
    assert exact.mean == pytest.approx(float(weight @ k / weight.sum()), rel=1e-9)


def test_a_note_does_not_promise_the_bayes_risk_where_the_floor_is_above_it() -> None:
    run = icl.recall.simulate(gamma=0.0, alpha=0.1)
    assert "over a floor 0.368 above the Bayes risk" in run.notes["rate"]
    assert run.floor - icl.recall.RecallTask(
        50, 4, 8, alpha=0.1
    ).bayes_risk == pytest.approx(0.368, abs=1e-3)


@pytest.mark.parametrize(
    ("eta", "words"),
    [(4.0, "triggers overshoot in turn"), (3.9, "the excess falls like exp(-1.95 t)")],
)
def test_a_note_promises_no_rate_at_which_triggers_overshoot(
    eta: float, words: str
) -> None:
    """From a rate of 2 on, η/√|Q| here; one strength for all triggers cannot overshoot."""
    given = {"counts": Counts.fixed(1), "max_steps": 40}
    run = icl.recall.simulate(eta=eta, probs=[0.55, 0.25, 0.15, 0.05], **given)  # type: ignore[arg-type]
    assert run.notes["rate"].startswith(words)
    assert f"exp(-{eta / 2:.4g} t)" in run.notes["rate"]
    assert (
        icl.recall.simulate(eta=eta, **given)
        .notes["rate"]
        .startswith("the excess falls")
    )  # type: ignore[arg-type]


def test_a_note_on_the_cycle_is_within_a_tenth_of_the_cycle() -> None:
    for eta, said in (
        (3.5, "near α(1-α)η²/8"),
        (4.0, "does not tend to 0"),
        (100.0, "does not tend to 0"),
    ):
        assert (
            abs(icl.recall.stall(0.1, eta) / cycle_excess(0.1, eta) - 1.0) < 0.1
            or eta > 3.5
        )
        assert (
            said
            in icl.recall.simulate(
                alpha=0.1, gamma="trained", eta=eta, max_steps=50
            ).notes["cycle"]
        )
    small = icl.recall.simulate(
        alpha=0.1, gamma="trained", eta=0.4, max_steps=20_000, above=1e-5
    )
    level = np.mean(
        [float(small.at(int(small.t[-1]) - i).observed["excess"]) for i in (0, 1)]
    )
    assert f"near α(1-α)η²/8 = {icl.recall.stall(0.1, 0.4):.3g}" in small.notes["cycle"]
    assert level == pytest.approx(cycle_excess(0.1, 0.4), rel=0.05)


def test_layers_that_add_other_logits_do_not_pass(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = model.reparameterised
    assert not model.layer_logits(True).violated
    monkeypatch.setattr(
        model, "reparameterised", lambda full, gamma: right(full, gamma + 0.01)
    )
    assert model.layer_logits(True).violated


@pytest.mark.parametrize("alpha", [0.05, 0.1254, 0.1256, 0.2, 0.5343, 0.5345, 0.8])
def test_the_first_step_from_zero_is_that_of_mean_counts(alpha: float) -> None:
    """Means of the logits' derivatives: of y, of the words that fill, of q, three times there, and of τ."""
    V, H = 60, 256
    task = RecallTask(V, 1, 4, alpha=alpha, H=H, law="planted")
    gamma = math.log(alpha / (1.0 - alpha))
    fills, y = H - 5.0, 1.0 + (H - 5.0) / (V - 2.0)
    chance = 1.0 / (V - 1.0 + math.exp(gamma))
    noise = 1.0 + 3.0 * gamma + 2.0  # of 𝒱, of γE(q), and of the words after q
    wanted = (
        chance * (fills + 1.0 + 3.0)
        + (chance * math.exp(gamma) - alpha) * noise
        - (1.0 - alpha) * y
    ) / H
    risk = RecallRisk(task, "softmax", gamma, weights="identity")
    assert risk.gradient([0.0, 0.0]) == pytest.approx(
        [0.0, wanted], rel=1e-9, abs=1e-14
    )
    assert (wanted > 0.0) == (0.1255 < alpha < 0.5344)


def test_softmax_with_little_noise_learns_from_beyond_a_low_barrier() -> None:
    """From zero descent makes the value scale negative; from λ = v = ½ it reaches the Bayes risk."""
    task = RecallTask(60, 1, 4, alpha=0.2, H=256, law="planted")
    risk = RecallRisk(task, "softmax", task.best_gamma, weights="identity")
    ends = {}
    for start in (0.0, 0.5):
        shifted = Pullback(
            risk, Affine(np.full(2, start), csc_array(np.eye(2)), (1, 1))
        )
        run = icl.descend(shifted, 0.2, rule="ngd", steps=100)
        ends[start] = risk.excess(start + run.params)
    assert ends[0.0] > 3.0
    assert ends[0.5] < 1e-2
    barrier = max(risk.loss([x, x]) for x in np.linspace(0.08, 0.16, 9)) - risk.loss(
        [0.0, 0.0]
    )
    assert barrier == pytest.approx(6.8e-5, abs=1e-6)


@pytest.mark.parametrize("power", [-1.0, -0.25])
def test_the_lower_bound_on_unseen_outputs_notices_another_power_of_the_triggers(
    power: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training at a rate whose power of |Q| is another one."""
    assert not model.unseen_lower_bound(True).violated
    right = model.descend
    monkeypatch.setattr(
        model,
        "descend",
        lambda risk, eta, **more: right(
            risk, eta * risk.task.Q ** (power + 0.5), **more
        ),
    )
    assert model.unseen_lower_bound(True).violated


def test_the_probability_of_an_unseen_output_is_that_of_its_logit() -> None:
    """λ = ηt/√|Q| on the output of a planted sentence, and 0 on the other V - 1 words."""
    task = RecallTask(40, 4, 4, H=24, law="planted")
    full = icl.recall.TransformerRisk(task, "linear", tests=4)
    inward = icl.recall.reparameterised(full).map.inward
    sentences = task.sentences(np.random.default_rng(0), 5, task.unseen)
    strength = 0.25 * 8 / math.sqrt(4)
    found = full.measure(inward(np.full(4, strength)), sentences).output
    assert found == pytest.approx(1 / (1 + 39 * math.exp(-strength)), rel=1e-12)
    assert model._exponents_of_unseen(task, "linear", 0.25, (8,)) == pytest.approx(
        [0.5], rel=1e-9
    )

"""The exact risks of both laws and both kinds of weights, against transformers that read every sentence."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import icl_theory as icl
from tests.recall.enumeration import loss
from tests.references import slopes

Counts, RecallRisk, RecallTask = (
    icl.recall.Counts,
    icl.recall.RecallRisk,
    icl.recall.RecallTask,
)
reparameterised, TransformerRisk = (
    icl.recall.reparameterised,
    icl.recall.TransformerRisk,
)


def planted(alpha: float, H: int = 7) -> icl.recall.RecallTask:
    probs = None if alpha else [0.7, 0.3]
    return RecallTask(
        5,
        1 if alpha else 2,
        2 - (alpha == 0),
        alpha=alpha,
        H=H,
        law="planted",
        probs=probs,
    )


CASES = [
    (planted(0.0), "identity", 1),
    (planted(0.0), "projection", 1),
    (planted(0.3, 9), "identity", 1),
    (planted(0.3), "identity", 0),
    (planted(0.3), "projection", 1),
    (RecallTask(5, 2, 2, H=6), "projection", 1),
    (RecallTask(5, 2, 2, H=6, alpha=0.3), "projection", 1),
    (RecallTask(5, 2, 1, H=6), "identity", 1),
]


@pytest.mark.parametrize(("task", "weights", "kappa"), CASES, ids=str)
@pytest.mark.parametrize("attention", ["linear", "relu", "softmax"])
def test_loss_is_the_mean_over_all_sentences(
    task: icl.recall.RecallTask, weights: str, kappa: int, attention: str
) -> None:
    risk = RecallRisk(task, attention, weights=weights, kappa=kappa)
    for seed, size in ((0, 1.0), (1, 4.0)):
        params = size * np.random.default_rng(seed).normal(size=risk.initial.shape)
        strength, v, gamma = risk.split(params)
        expected = loss(
            task, attention, weights, kappa, strength, v, gamma if task.alpha else 0.0
        )
        assert risk.loss(params) == pytest.approx(
            expected, rel=1e-12 if attention != "softmax" else 1e-13
        )
        np.testing.assert_allclose(
            risk.gradient(params), slopes(risk.loss, params), rtol=1e-8, atol=1e-9
        )


@pytest.mark.slow
def test_two_hundred_problems_of_one_number_for_attention_and_value() -> None:
    """𝒱 = λI and W of the strength λ, with noise and without, in short sentences of few words."""
    rng = np.random.default_rng(5)
    for at in range(200):
        alpha, H = (
            (0.0, float(rng.uniform(0.05, 0.95)))[at % 2],
            int(rng.integers(5, 7)),
        )
        task = RecallTask(
            4,
            1,
            1 + (alpha == 0.0),
            alpha=alpha,
            H=H,
            law=("markov", "planted")[at % 4 > 0],
        )
        both = RecallRisk(task, "softmax", tied=True, weights="identity")
        size, gamma = (
            float(rng.normal() * 10.0 ** rng.uniform(-1.0, 0.7)),
            float(rng.normal()),
        )
        expected = loss(
            task,
            "softmax",
            "identity",
            both.kappa,
            np.full(1, size),
            size,
            gamma if alpha else 0.0,
        )
        params = np.full(both.initial.shape, size)
        params[2:] = gamma
        assert both.loss(params) == pytest.approx(expected, rel=1e-10)


def test_attention_of_each_trigger_is_a_mean_over_its_own_sentences() -> None:
    """Where all words weigh alike it is the share of those that are the output after the trigger."""
    task = RecallTask(5, 2, 2, H=6, probs=[0.7, 0.3])
    risk = RecallRisk(task, "softmax")
    shares = [law.mean / (task.H - 1) for law in task.counts]
    np.testing.assert_allclose(
        risk.observe(np.zeros_like(risk.initial))["attention"], shares, rtol=1e-13
    )


@pytest.mark.slow
@pytest.mark.parametrize(("alpha", "weights"), [(0.2, "identity"), (0.0, "projection")])
def test_long_sentences_agree_with_a_hundred_thousand_sampled_ones(
    alpha: float, weights: str
) -> None:
    task = RecallTask(60, 1 if alpha else 5, 4, alpha=alpha, H=256, law="planted")
    risk = RecallRisk(task, "softmax", weights=weights, tied=True)
    params = np.array([3.5, 12.0, *([-1.0] if alpha else [])])
    every = np.concatenate([np.full(task.Q, 3.5), params[1:]])
    full = TransformerRisk(task, "softmax", batch=1000, weights=weights)
    drawn = np.array(
        [reparameterised(full).evaluate(every, step) for step in range(100)],
        dtype=object,
    )
    found = np.array(
        [[each[0], each[1][: task.Q].sum(), *each[1][task.Q :]] for each in drawn]
    )
    expected = np.array([risk.loss(params), *risk.gradient(params)])
    z = (found.mean(axis=0) - expected) / (found.std(axis=0, ddof=1) / 10.0)
    assert np.abs(z).max() < 4.0


def test_digits_survive_in_tiny_excesses() -> None:
    """With one word that fills nothing is random: the excess is ln(1 + ...) of two other words."""
    task = RecallTask(3, 1, 1, H=9, law="planted")
    risk = RecallRisk(task, "softmax", weights="identity", tied=True)
    for strength, v in ((3.0, 20.0), (9.0, 300.0), (30.0, 600.0)):
        Z = math.exp(strength) + 8
        y, q = v * (math.exp(strength) + 6) / Z, v * 2 / Z
        wanted = math.log1p(math.exp(-y) + math.exp(q - y))
        assert risk.excess([strength, v]) == pytest.approx(wanted, rel=1e-12, abs=0.0)


def test_a_task_with_short_sentences_is_not_its_limit() -> None:
    """λ = 0 and v = 900: words that occur as often as the output by chance cost nats, in the limit nothing."""
    task = RecallTask(60, 5, 4, H=33, counts=Counts.fixed(1))
    assert RecallRisk(task, "softmax-limit", tied=True).excess([0.0, 900.0]) < 1e-9
    params = np.array([0.0] * 5 + [900.0])
    losses = [
        reparameterised(
            TransformerRisk(
                task, "softmax", data=task.sentences(np.random.default_rng(i), 200)
            )
        ).loss(params)
        for i in range(20)
    ]
    exact = RecallRisk(task, "softmax", tied=True).excess([0.0, 900.0])
    assert abs(np.mean(losses) - exact) < 4.0 * np.std(losses, ddof=1) / math.sqrt(20)
    assert exact > 30.0


@pytest.mark.parametrize(("alpha", "v"), [(0.0, 1.0), (0.2, 1.0), (0.0, 6.0)])
def test_the_floor_of_a_held_scale_is_the_least_loss(alpha: float, v: float) -> None:
    task = RecallTask(12, 1, 3, alpha=alpha, H=9, law="planted")
    risk = RecallRisk(
        task, "softmax", task.best_gamma if alpha else None, weights="identity", v=v
    )
    losses = [risk.loss([x]) for x in np.linspace(-12.0, 80.0, 120)]
    assert risk.floor() <= min(losses) + 1e-12
    assert min(losses) - risk.floor() < 1e-3
    if not alpha:
        assert risk.floor() == pytest.approx(math.log1p(11 * math.exp(-v)), rel=1e-12)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"law": "uniform"}, "law = 'uniform': must be one of markov, planted"),
        (
            {"law": "planted", "alpha": 0.1, "triggers": 2},
            "triggers = 2: must be 1 with noise",
        ),
        (
            {"law": "planted", "H": 4, "alpha": 0.1, "triggers": 1},
            "H = 4: must be at least 5",
        ),
        ({"law": "planted", "V": 8}, "V = 8: must be at least 13"),
        ({"law": "planted", "alpha": 1.0, "triggers": 1}, "alpha = 1.0"),
        ({"attention": "softmax", "counts": 17}, "H = 33: must be at least 35"),
        (
            {"attention": "softmax-limit", "law": "planted"},
            "attention = 'softmax-limit'",
        ),
        ({"weights": "identity", "alpha": 0.1}, "weights = 'identity'"),
        ({"weights": "x"}, "weights = 'x'"),
        ({"kappa": 0}, "kappa = 0"),
        ({"v": 2.0}, "v = 2.0: must be left out"),
        ({"v": "x", "attention": "softmax"}, "v = 'x'"),
        (
            {"weights": "identity", "counts": Counts.fixed(1, 1)},
            "counts = 'with noise'",
        ),
    ],
)
def test_wrong_input_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        icl.recall.simulate(**options)  # type: ignore[arg-type]
    assert words in str(error.value)


@pytest.mark.parametrize("size", [1e6, -1e6])
@pytest.mark.parametrize(("alpha", "weights"), [(0.0, "projection"), (0.3, "identity")])
def test_huge_parameters_do_not_overflow(
    alpha: float, weights: str, size: float
) -> None:
    risk = RecallRisk(planted(alpha), "softmax", weights=weights)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, gradient = risk.evaluate(np.full(len(risk.initial), size))
    assert math.isfinite(loss)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("size", [1e14, -1e300])
@pytest.mark.parametrize(("alpha", "weights"), [(0.0, "projection"), (0.3, "identity")])
def test_beyond_the_largest_logit_the_loss_is_infinite(
    alpha: float, weights: str, size: float
) -> None:
    risk = RecallRisk(planted(alpha), "softmax", weights=weights)
    params = np.append(np.ones(len(risk.initial) - 1), size)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, gradient = risk.evaluate(params)
    assert loss == risk.excess(params) == math.inf
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize(("task", "weights", "kappa"), CASES[:4])
@pytest.mark.parametrize("v", [1e9, -1e12])
def test_huge_value_scales_agree_with_all_sentences(
    task: icl.recall.RecallTask, weights: str, kappa: int, v: float
) -> None:
    risk = RecallRisk(task, "softmax", weights=weights, kappa=kappa, tied=False)
    strength, gamma = np.full(task.Q, 0.3), [2.0] * risk.noisy
    exact = loss(task, "softmax", weights, kappa, strength, v, 2.0)
    assert risk.loss([*strength, v, *gamma]) == pytest.approx(exact, rel=1e-13)


def test_far_apart_logits_compare_the_largest_counts() -> None:
    """v -> ∞ without attention: the loss over v tends to the mean of max(n_x, 0) - n_y where that is positive."""
    task = planted(0.0)
    risk, v = RecallRisk(task, "softmax", tied=False), 1e5
    exact = loss(task, "softmax", "projection", 1, np.zeros(2), v, 0.0)
    assert risk.loss([0.0, 0.0, v]) == pytest.approx(exact, rel=1e-10)


def test_noise_turns_the_value_scale_away_from_the_output_at_the_start() -> None:
    """The derivative by v at 0, where all weights are 1/H, from the mean numbers of words written out."""
    V, H, alpha, gamma = 60, 256, 0.2, math.log(0.25)
    problem = icl.Recall(
        V=V,
        triggers=1,
        outputs=4,
        H=H,
        alpha=alpha,
        law="planted",
        weights="identity",
        attention="softmax",
        v="trained",
    )
    fill = (H - 5) / (V - 2)
    up = {
        "output": 1 + fill,
        "other": fill,
        "trigger": 3.0,
        "noise": 3 * gamma + 1 + 2,
    }  # slopes of the logits, times H
    odds = {"output": 1.0, "other": V - 3.0, "trigger": 1.0, "noise": math.exp(gamma)}
    mean = sum(odds[word] * up[word] for word in up) / sum(odds.values())
    expected = (mean - (1 - alpha) * up["output"] - alpha * up["noise"]) / H
    assert expected > 0
    assert problem.risk().gradient([0.0, 0.0])[1] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(
    ("attention", "kappa", "v"),
    [("linear", 0, None), ("relu", 0, None), ("softmax", 0, 1.0), ("softmax", 1, 3.0)],
)
def test_floor_of_held_numbers_is_the_least_loss_that_a_transformer_has(
    attention: str, kappa: int, v: float | None
) -> None:
    """Over all sentences, each read by the transformer, along λ."""
    task, gamma = planted(0.3), math.log(0.3 / 0.7)
    risk = RecallRisk(task, attention, gamma, weights="identity", kappa=kappa, v=v)

    def along(x: float) -> float:
        return loss(task, attention, "identity", kappa, np.array([x]), v or 1.0, gamma)

    grid = np.linspace(-8.0, 32.0, 11)
    best = grid[int(np.argmin([along(x) for x in grid]))]
    least = minimize_scalar(
        along, bounds=(best - 4.0, best + 4.0), method="bounded"
    ).fun
    assert risk.floor() == pytest.approx(least, rel=1e-9)
    if kappa == 0 and v is None:
        assert (
            least < along(40.0) - 1.0
        )  # at a finite λ, and far below the loss at λ = ∞


@pytest.mark.parametrize(("Q", "v"), [(1, 4.0), (3, 1.0)])
def test_rate_with_a_held_value_scale_falls_with_the_number_of_triggers(
    Q: int, v: float
) -> None:
    task = RecallTask(60, Q, 4, H=64, law="planted")
    risk = RecallRisk(task, "softmax", weights="identity", v=v)
    run = icl.descend(risk, 0.5, rule="ngd", steps=int(44 * math.sqrt(Q)))
    least = math.log1p(59 * math.exp(-v))  # λ = ∞: the output has the logit v
    late, end = int(28 * math.sqrt(Q)), int(run.t[-1])
    rate = math.log((run.at(late).loss - least) / (run.at(end).loss - least)) / (
        end - late
    )
    assert rate == pytest.approx(0.5 / math.sqrt(Q), rel=1e-2)
    assert icl.recall.decay_rate(
        task, 0.5, "softmax", "identity", v=v
    ) == pytest.approx(rate, rel=1e-2)


@pytest.mark.parametrize("attention", ["softmax", "softmax-limit"])
def test_a_start_may_hold_one_strength_and_the_value_scale(attention: str) -> None:
    problem = icl.Recall(attention=attention, v="trained", start=[1.0, 2.0])
    assert problem.risk().initial.tolist() == [1.0, 2.0]

from __future__ import annotations

import math
import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icl_theory as icl
from tests.recall.references import (
    all_losses,
    cross_entropy,
    enumerate_sentences,
    logits,
)
from tests.references import slopes

Counts, RecallRisk, RecallTask = (
    icl.recall.Counts,
    icl.recall.RecallRisk,
    icl.recall.RecallTask,
)
KINDS = [
    (attention, alpha)
    for attention in ("linear", "relu", "softmax-limit")
    for alpha in (0.0, 0.3)
]


def small(alpha: float = 0.0, **options: object) -> icl.recall.RecallTask:
    return RecallTask(9, 3, 3, alpha=alpha, probs=[0.5, 0.3, 0.2], H=13, **options)  # type: ignore[arg-type]


def params_of(
    risk: icl.recall.RecallRisk, seed: int = 0, size: float = 1.0
) -> np.ndarray:
    return size * np.abs(np.random.default_rng(seed).normal(size=risk.initial.shape))


@pytest.mark.parametrize("attention", ["linear", "relu"])
@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize("strengths", [[0.7, 1.9], [0.0, 12.0], [-0.8, 0.4]])
def test_loss_is_the_mean_over_all_sentences_and_all_words(
    attention: str, alpha: float, strengths: list[float]
) -> None:
    task = RecallTask(5, 2, 2, alpha=alpha, probs=[0.3, 0.7], H=6)
    sentences = enumerate_sentences(task, 0.25, alpha)
    gamma = -0.6 if alpha else 0.0
    mean = math.fsum(
        w * loss
        for w, loss in all_losses(
            task, attention, sentences, np.array(strengths), 1.0, gamma
        )
    )
    params = [*strengths, gamma] if alpha else strengths
    assert RecallRisk(task, attention).loss(params) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 0.3])
@pytest.mark.parametrize(
    ("strength", "scale"), [(0.0, 1.0), (1.3, 4.0), (-2.0, -3.0), (9.0, 20.0)]
)
def test_softmax_limit_is_exact_for_a_sentence_with_the_average_frequencies(
    alpha: float, strength: float, scale: float
) -> None:
    """16 words: the trigger 3 times, the output twice after it, noise once, and every other word once more."""
    counts = Counts.fixed(2, 1)
    task = RecallTask(11, 2, 3, alpha=alpha, H=17, counts=counts)
    q, y, tau = 0, 2, task.noise_word
    tokens = (q, y, q, y, q, tau, *(word for word in range(11) if word != q), q)
    assert len(tokens) == task.H
    gamma = -1.1 if alpha else 0.0
    expected = cross_entropy(
        task, logits(task, "softmax", tokens, strength, scale, gamma), y
    )
    params = [strength, strength, scale, *([gamma] if alpha else [])]
    assert RecallRisk(task, "softmax-limit").loss(params) == pytest.approx(
        expected, rel=1e-12
    )


@pytest.mark.parametrize(("attention", "alpha"), KINDS)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("empirical", [False, True])
def test_gradient_is_the_derivative_of_the_loss(
    attention: str, alpha: float, held: bool, empirical: bool
) -> None:
    task = small(alpha)
    data = task.sentences(np.random.default_rng(1), 40) if empirical else None
    risk = RecallRisk(task, attention, -0.4 if held and alpha else None, data=data)
    for sign in (1.0, -1.0):
        params = sign * params_of(risk, 1)
        np.testing.assert_allclose(
            risk.gradient(params), slopes(risk.loss, params), rtol=1e-8, atol=1e-9
        )


@pytest.mark.parametrize(("attention", "alpha"), KINDS)
def test_tied_triggers_descend_like_free_ones(attention: str, alpha: float) -> None:
    task = RecallTask(20, 5, 4, alpha=alpha)
    free = icl.descend(RecallRisk(task, attention), 0.3, rule="ngd", steps=40)
    tied = icl.descend(
        RecallRisk(task, attention, tied=True), 0.3, rule="ngd", steps=40
    )
    np.testing.assert_allclose(tied.loss, free.loss, rtol=1e-9)
    np.testing.assert_allclose(
        tied.states[:, 0], free.states[:, 3], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(
        tied.states[:, 1:], free.states[:, 5:], rtol=1e-9, atol=1e-12
    )


@given(st.sampled_from(KINDS), st.lists(st.floats(-30.0, 30.0), min_size=5, max_size=5))
def test_no_parameters_beat_the_bayes_risk(
    kind: tuple[str, float], values: list[float]
) -> None:
    attention, alpha = kind
    task = small(alpha)
    risk = RecallRisk(task, attention)
    params = np.array(values[: len(risk.initial)])
    assert risk.loss(params) >= task.bayes_risk * (1 - 1e-14)
    assert risk.excess(params) >= 0.0
    assert risk.excess(params) == pytest.approx(
        risk.loss(params) - task.bayes_risk, rel=1e-9, abs=1e-12
    )


@given(st.sampled_from(KINDS), st.floats(30.0, 1e6))
def test_all_six_models_tend_to_the_bayes_risk(
    kind: tuple[str, float], size: float
) -> None:
    """λ, and v = λ for softmax, to infinity, and γ at the log-odds of noise."""
    attention, alpha = kind
    task = small(alpha)
    risk = RecallRisk(task, attention)
    params = np.full(len(risk.initial), size)
    if alpha:
        params[-1] = task.best_gamma
    assert risk.excess(params) <= 3.0 * size * task.V * math.exp(-0.7 * size)
    assert risk.loss(params) == pytest.approx(task.bayes_risk, abs=1e-6)


def test_softmax_with_noise_needs_attention_before_value() -> None:
    """Background words feed the noise logit: the value scale alone makes the loss grow."""
    risk = RecallRisk(small(0.3), "softmax-limit", tied=False)
    gamma = risk.task.best_gamma
    assert risk.excess([5.0, 5.0, 5.0, 1000.0, gamma]) > 1.0
    assert RecallRisk(small(), "softmax-limit").excess([0.0, 0.0, 0.0, 1000.0]) < 1e-30


@pytest.mark.parametrize(("attention", "alpha"), KINDS)
@pytest.mark.parametrize("size", [1e6, -1e6, 1e300])
def test_huge_parameters_do_not_overflow(
    attention: str, alpha: float, size: float
) -> None:
    risk = RecallRisk(small(alpha), attention)
    params = np.full(len(risk.initial), size)
    if size == 1e300:
        params[3:] = 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, gradient = risk.evaluate(params)
        assert math.isfinite(loss)
        assert math.isfinite(risk.excess(params))
        assert np.isfinite(gradient).all()


@pytest.mark.parametrize("strength", [0.3, 40.0, 300.0, 690.0])
def test_digits_survive_down_to_losses_of_1e_300(strength: float) -> None:
    task = RecallTask(9, 2, 3, counts=np.array([0.0, 0.5, 0.3, 0.2]))
    risk = RecallRisk(task, tied=True)
    loss, gradient = risk.evaluate(np.array([strength]))
    with mpmath.workdps(50):
        x = mpmath.mpf(strength)
        terms = [(mpmath.mpf(p), c) for p, c in ((0.5, 1), (0.3, 2), (0.2, 3))]
        exact = mpmath.fsum(p * mpmath.log1p(8 * mpmath.exp(-x * c)) for p, c in terms)
        slope = mpmath.fsum(
            -p * c * 8 * mpmath.exp(-x * c) / (1 + 8 * mpmath.exp(-x * c))
            for p, c in terms
        )
        assert loss == pytest.approx(float(exact), rel=1e-13, abs=0.0)
        assert gradient[0] == pytest.approx(float(slope), rel=1e-13, abs=0.0)


@pytest.mark.parametrize("shift", [0.0, 1e-12, -1e-7, 2e-3, 0.03, -0.999, 1.001, -20.0])
@pytest.mark.parametrize("strength", [3.0, 50.0, 600.0])
def test_excess_keeps_its_digits_near_the_optimum(
    shift: float, strength: float
) -> None:
    task = RecallTask(9, 2, 3, alpha=0.3, counts=Counts.fixed(1))
    gamma = task.best_gamma + shift
    with mpmath.workdps(400):
        a, g, x = mpmath.mpf(task.alpha), mpmath.mpf(gamma), mpmath.mpf(strength)
        entropy = -a * mpmath.log(a) - (1 - a) * mpmath.log(1 - a)
        exact = mpmath.log(1 + mpmath.exp(g) + 7 * mpmath.exp(-x)) - a * g - entropy
        found = RecallRisk(task, tied=True).excess([strength, gamma])
    rounding = (
        1e-15 / abs(shift) if shift else 0.0
    )  # γ is known to 1e-16, and the excess goes like its square
    assert found == pytest.approx(float(exact), rel=1e-11 + rounding, abs=1e-31)


@pytest.mark.parametrize("noise", [True, False])
def test_answers_that_are_all_alike_have_a_least_loss_of_zero(noise: bool) -> None:
    """All noise, or none at all: the frequency of noise is 1 or 0, where entropy and divergence have their ends."""
    task = small(0.3)
    data = task.sentences(np.random.default_rng(0), 30)
    data = data._replace(answer=np.full(30, task.noise_word) if noise else data.output)
    risk, strength, gamma = RecallRisk(task, data=data), np.array([0.7, 1.9, 0.4]), 1.3
    rest = (task.V - 2) * np.exp(-strength[data.trigger] * data.c)
    wanted = np.mean(np.log1p(math.exp(gamma) + rest)) - gamma * noise
    assert risk.loss([*strength, gamma]) == pytest.approx(wanted, rel=1e-13)
    assert risk.excess([*strength, gamma]) == pytest.approx(wanted, rel=1e-13)
    assert risk.floor() == 0.0
    assert risk.excess([600.0] * 3 + [300.0 if noise else -300.0]) < 1e-99


@given(st.permutations(range(3)), st.sampled_from(KINDS))
def test_outputs_may_be_permuted(order: list[int], kind: tuple[str, float]) -> None:
    """Renaming the outputs in the sentences changes no empirical loss."""
    attention, alpha = kind
    task = small(alpha)
    data = task.sentences(np.random.default_rng(0), 30)
    names = np.arange(task.V)
    names[task.outputs] = task.outputs[order]
    renamed = data._replace(
        tokens=names[data.tokens], answer=names[data.answer], output=names[data.output]
    )
    of = attention.removesuffix("-limit")
    model = icl.recall.reparameterised(icl.recall.TransformerRisk(task, of, data=data))
    other = icl.recall.reparameterised(
        icl.recall.TransformerRisk(task, of, data=renamed)
    )
    params = np.abs(np.random.default_rng(2).normal(size=model.initial.shape))
    assert model.loss(params) == pytest.approx(other.loss(params), rel=1e-12)
    assert RecallRisk(task, attention, data=data).excess(params) == RecallRisk(
        task, attention, data=renamed
    ).excess(params)


@pytest.mark.parametrize(("attention", "alpha"), KINDS)
def test_empirical_risk_is_near_the_population_risk(
    attention: str, alpha: float
) -> None:
    task = small(alpha)
    population = RecallRisk(task, attention)
    params = params_of(population, 3)
    gaps = {
        M: [
            RecallRisk(
                task, attention, data=task.sentences(np.random.default_rng([M, i]), M)
            ).loss(params)
            - population.loss(params)
            for i in range(60)
        ]
        for M in (40, 4000)
    }
    for gap in gaps.values():
        assert abs(np.mean(gap)) < 4.5 * np.std(gap) / math.sqrt(60)
    assert np.std(gaps[40]) / np.std(gaps[4000]) == pytest.approx(10.0, rel=0.4)


def test_one_sentence_has_a_defined_risk() -> None:
    for attention, alpha in KINDS:
        task = small(alpha)
        risk = RecallRisk(
            task, attention, data=task.sentences(np.random.default_rng(0), 1)
        )
        assert risk.floor() == 0.0
        assert math.isfinite(risk.loss(risk.initial))
        assert icl.descend(risk, 0.5, rule="ngd", steps=50).loss[-1] < 0.1


def test_floor_is_the_infimum_also_where_gamma_is_held() -> None:
    task = small(0.3)
    held = RecallRisk(task, gamma=1.0)
    assert held.floor() == pytest.approx(math.log(1 + math.e) - 0.3, rel=1e-12)
    assert held.loss([200.0] * 3) == pytest.approx(held.floor(), rel=1e-12)
    assert RecallRisk(task).floor() == task.bayes_risk


def test_softmax_observes_its_attention() -> None:
    task = RecallTask(11, 2, 3, H=17, counts=Counts.fixed(2, 1))
    seen = RecallRisk(task, "softmax-limit").observe(
        np.array([math.log(5.0), 0.0, 1.0])
    )
    np.testing.assert_allclose(seen["attention"], [2 * 5 / (3 * 5 + 13), 2 / 16])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": 3}, "task = 3: must be a RecallTask"),
        (
            {"attention": "cosine"},
            "attention = 'cosine': must be one of linear, relu, softmax",
        ),
        ({"gamma": 1.0}, "gamma = 1.0: must be left out if alpha = 0"),
        ({"task": small(0.3), "gamma": math.nan}, "gamma = nan"),
        ({"task": small(0.3), "gamma": True}, "gamma = True"),
        ({"tied": True}, "tied = True"),
        (
            {
                "tied": True,
                "task": RecallTask(7, 2, 3),
                "data": RecallTask(7, 2, 3).sentences(np.random.default_rng(0), 5),
            },
            "tied = True",
        ),
    ],
)
def test_wrong_input_is_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError) as error:  # noqa: PT011
        RecallRisk(**({"task": small()} | options))  # type: ignore[arg-type]
    assert words in str(error.value)


def test_sentences_of_another_task_are_refused() -> None:
    """They would use the wrong λ, or none."""
    task = small()
    data = task.sentences(np.random.default_rng(0), 30)
    wrong = {
        "words": data._replace(tokens=data.tokens + 1),
        "triggers": data._replace(trigger=data.trigger + 1),
    }
    for name, other in wrong.items():
        for use in (RecallRisk, icl.recall.TransformerRisk):
            with pytest.raises(
                ValueError,
                match=f"^data has {name} 1 to .*: must be sentences of the task, whose {name} are 0 to",
            ):
                use(task, data=other)


@pytest.mark.parametrize("field", ["tokens", "answer", "output", "trigger"])
@pytest.mark.parametrize("beyond", [-1, 0])
def test_no_word_may_be_beyond_the_first_or_the_last(field: str, beyond: int) -> None:
    """A word below 0 would count from the end."""
    task = small()
    data = task.sentences(np.random.default_rng(0), 30)
    changed = np.array(getattr(data, field))
    number = task.Q if field == "trigger" else task.V
    changed.flat[3] = -1 if beyond else number
    for use in (RecallRisk, icl.recall.TransformerRisk):
        use(task, data=data)
        with pytest.raises(
            ValueError,
            match=rf"must be sentences of the task, whose \w+ are 0 to {number - 1}$",
        ):
            use(task, data=data._replace(**{field: changed}))


def test_parameters_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="params"):
        RecallRisk(small()).loss([1.0])
